//! The disk: EFI system partition, root A and its verity tree, room for B, into which
//! [`crate::update`] writes. All images have the same layout, so that each fits beside a state. The
//! state partition is made by init on first boot, in the space that the machine's disk has beyond
//! the image.

use crate::error::{Error, Result, at};
use config_unlock::approvals::AREA;
use image_format::gpt::{self, Partition, kind};
use image_format::{Guid, fat};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

const MIB: u64 = 1 << 20;
/// Room for two kernel images.
const ESP: u64 = 128 * MIB;
const ROOT: u64 = 256 * MIB;
/// A verity tree takes 1/127 of its root.
const VERITY: u64 = 4 * MIB;
/// Partition attribute: mount read-only (Discoverable Partitions Specification).
const READ_ONLY: u64 = 1 << 60;
/// The program that firmware starts by default.
const BOOT_PATH: &str = "EFI/BOOT/BOOTX64.EFI";

/// The content of a disk.
#[derive(Debug)]
pub struct Content<'a> {
    /// Image id, of which identifiers are derived.
    pub id: &'a str,
    /// The unified kernel image.
    pub uki: &'a [u8],
    /// The root's file system.
    pub root: &'a [u8],
    /// Its verity tree.
    pub verity: &'a [u8],
    /// Its root hash.
    pub root_hash: &'a [u8; 32],
    /// Which boots may open the machine's state (`config_unlock::approvals`): at the end of the
    /// verity partition, where no register covers them and nothing needs to. Empty where no key
    /// signed the image.
    pub approvals: &'a [u8],
}

/// Writes the disk image, sparse: empty parts take no space.
///
/// # Errors
/// The disk cannot be written, or the parts do not fit the layout.
pub fn write(path: &Path, content: &Content<'_>) -> Result<()> {
    let (root, verity) = Guid::of_root_hash(content.root_hash);
    let derived =
        |what: &str| Guid::derived(&[b"pratique", content.id.as_bytes(), what.as_bytes()]);
    let partition = |kind, unique, label: &str, size, attributes| Partition {
        kind,
        unique,
        label: label.to_owned(),
        size,
        attributes,
    };
    let layout = gpt::layout(
        derived("disk"),
        &[
            partition(kind::ESP, derived("esp"), "esp", ESP, 0),
            partition(kind::ROOT, root, "root-a", ROOT, READ_ONLY),
            partition(kind::ROOT_VERITY, verity, "verity-a", VERITY, READ_ONLY),
            partition(kind::ROOT, derived("root-b"), "root-b", ROOT, READ_ONLY),
            partition(
                kind::ROOT_VERITY,
                derived("verity-b"),
                "verity-b",
                VERITY,
                READ_ONLY,
            ),
        ],
    );
    let tree_room = VERITY - AREA as u64;
    let sizes = [
        ("root", content.root.len(), ROOT),
        ("verity tree", content.verity.len(), tree_room),
        ("list of approvals", content.approvals.len(), AREA as u64),
    ];
    for (what, length, room) in sizes {
        if length as u64 > room {
            return Err(Error::Image(format!(
                "the {what} has {length} bytes, its partition holds {room}"
            )));
        }
    }
    let id = derived("esp").to_bytes();
    let size = usize::try_from(ESP).unwrap_or(usize::MAX);
    let esp = fat::volume(
        size,
        "PRATIQUE",
        u32::from_le_bytes([id[0], id[1], id[2], id[3]]),
        &[(BOOT_PATH, content.uki)],
    )?;
    let mut file = std::fs::File::create(path).map_err(at("write", path))?;
    file.set_len(layout.size).map_err(at("write", path))?;
    let tail = layout.size - layout.tail.len() as u64;
    let places: [(u64, &[u8]); 6] = [
        (0, &layout.head),
        (layout.extents[0].start, &esp),
        (layout.extents[1].start, content.root),
        (layout.extents[2].start, content.verity),
        (layout.extents[2].start + tree_room, content.approvals),
        (tail, &layout.tail),
    ];
    for (start, bytes) in places {
        sparse(&mut file, start, bytes).map_err(at("write", path))?;
    }
    Ok(())
}

/// Writes what is not zero.
fn sparse(file: &mut std::fs::File, start: u64, bytes: &[u8]) -> std::io::Result<()> {
    const PIECE: usize = 64 << 10;
    static ZEROS: [u8; PIECE] = [0; PIECE];
    for (i, piece) in bytes.chunks(PIECE).enumerate() {
        if piece != &ZEROS[..piece.len()] {
            file.seek(SeekFrom::Start(start + (i * PIECE) as u64))?;
            file.write_all(piece)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn empty_room_takes_no_space_and_parts_stand_where_the_table_says() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.raw");
        let (uki, root, verity) = (&[1; 5000], &[2; 8192], &[3; 4096]);
        let content = Content {
            id: "x",
            uki,
            root,
            verity,
            root_hash: &[4; 32],
            approvals: &[5; 100],
        };
        write(&path, &content).unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        assert!(
            metadata.blocks() * 512 < 2 * MIB,
            "{} blocks",
            metadata.blocks()
        );
        let bytes = std::fs::read(&path).unwrap();
        let start = usize::try_from(MIB + ESP).unwrap();
        assert_eq!(bytes[start..start + 8192], [2; 8192]);
        assert_eq!(&bytes[bytes.len() - 512..bytes.len() - 504], b"EFI PART");
        let approvals = usize::try_from(MIB + ESP + ROOT + VERITY).unwrap() - AREA;
        assert_eq!(
            (bytes[approvals - 1], &bytes[approvals..approvals + 101]),
            (0, &[&[5; 100][..], &[0]].concat()[..])
        );
    }

    #[test]
    fn a_root_that_does_not_fit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let verity = vec![0; usize::try_from(VERITY).unwrap() - AREA + 1];
        let content = Content {
            id: "x",
            uki: &[],
            root: &[],
            verity: &verity,
            root_hash: &[4; 32],
            approvals: &[],
        };
        let error = write(&folder.path().join("disk.raw"), &content).unwrap_err();
        assert!(error.to_string().contains("verity tree"), "{error}");
    }
}
