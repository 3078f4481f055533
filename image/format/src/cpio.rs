//! cpio archives in the "newc" form, as the kernel unpacks them
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

/// A file, folder or link of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A folder, mode 0755.
    Folder,
    /// A file with permission bits and content.
    File(u32, Vec<u8>),
    /// A symbolic link.
    Link(String),
}

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_777;

/// The trailer of an archive, as systemd-stub writes it.
const TRAILER: &[u8] = b"070701\
    00000000000000000000000000000000000000010000000000000000\
    000000000000000000000000000000000000000B00000000TRAILER!!!\0\0\0\0";

/// An archive of entries in the given order, owned by root, time 0. Paths are relative.
pub fn archive(entries: &[(String, Entry)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, (path, entry)) in (1_u32..).zip(entries) {
        match entry {
            Entry::Folder => append(&mut out, number, path, FOLDER, &[]),
            Entry::File(mode, content) => {
                append(&mut out, number, path, FILE | (mode & 0o7777), content);
            }
            Entry::Link(target) => append(&mut out, number, path, LINK, target.as_bytes()),
        }
    }
    out.extend(TRAILER);
    out
}

/// The archive that systemd-stub (257, `pack_cpio_literal`) makes of a section: a folder, mode
/// 0555, with one file, 0444.
pub fn stub_archive(folder: &str, file: &str, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    append(&mut out, 1, folder, 0o040_555, &[]);
    append(
        &mut out,
        2,
        &format!("{folder}/{file}"),
        FILE | 0o444,
        content,
    );
    out.extend(TRAILER);
    out
}

fn append(out: &mut Vec<u8>, inode: u32, path: &str, mode: u32, content: &[u8]) {
    let length = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let fields = [
        inode,
        mode,
        0,
        0,
        1,
        0,
        length(content.len()),
        0,
        0,
        0,
        0,
        length(path.len() + 1),
        0,
    ];
    out.extend(b"070701");
    for field in fields {
        out.extend(format!("{field:08x}").as_bytes());
    }
    out.extend(path.as_bytes());
    out.push(0);
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend(content);
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    #[test]
    fn an_archive_is_the_golden_one() {
        let entries = [
            ("modules".to_owned(), Entry::Folder),
            ("init".to_owned(), Entry::File(0o755, b"program".to_vec())),
            ("link".to_owned(), Entry::Link("init".to_owned())),
        ];
        let archive = archive(&entries);
        assert_eq!(archive.len() % 4, 0);
        assert_eq!(
            hex::encode(Sha256::digest(archive)),
            "7181db7e89f4dc5c14060075c333c4f715170da2f4f464aadd5c4416f72ec1bb"
        );
    }
}
