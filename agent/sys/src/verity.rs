//! dm-verity through `/dev/mapper/control`, by hand.
//!
//! Layouts: linux/dm-ioctl.h (`struct dm_ioctl`, 312 bytes, and `struct dm_target_spec`, 40 bytes) and the kernel's
//! admin guide on dm-verity for the table line and the superblock.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::error::{Context, Error, Result};

const CONTROL: &str = "/dev/mapper/control";
const HEAD: usize = 312;
const SPEC: usize = 40;
const BUFFER: usize = 4096;
const READ_ONLY: u32 = 1;

#[allow(missing_docs, unreachable_pub, reason = "the macro writes the functions; their documentation is the ioctl's")]
mod ioctl {
    nix::ioctl_readwrite!(create, 0xFD, 3, [u8; super::HEAD]);
    nix::ioctl_readwrite!(resume, 0xFD, 6, [u8; super::HEAD]);
    nix::ioctl_readwrite!(load, 0xFD, 9, [u8; super::HEAD]);
    nix::ioctl_readwrite!(status, 0xFD, 12, [u8; super::HEAD]);
}

/// The part of a verity superblock that the kernel's table needs. Having one proves that format and sizes are the ones we build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Number of 4096-byte blocks that the tree covers.
    pub data_blocks: u64,
    /// Salt of every hash, at most 256 bytes.
    pub salt: Vec<u8>,
}

/// Why a superblock was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SuperblockError {
    /// Fewer than 512 bytes or another signature.
    #[error("there is no verity superblock")]
    Absent,
    /// Another version, hash, block size, or an impossible length.
    #[error("the verity superblock's {0} is not what our images have")]
    Foreign(&'static str),
}

impl Superblock {
    /// Reads the first 512 bytes of a hash partition.
    pub fn parse(bytes: &[u8]) -> std::result::Result<Self, SuperblockError> {
        let absent = || SuperblockError::Absent;
        let bytes: &[u8; 512] = bytes.first_chunk().ok_or_else(absent)?;
        if !bytes.starts_with(b"verity\0\0") {
            return Err(SuperblockError::Absent);
        }
        let word = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
        let expect =
            |at, value, what| if word(at) == Some(value) { Ok(()) } else { Err(SuperblockError::Foreign(what)) };
        expect(8, 1, "version")?;
        expect(12, 1, "hash type")?;
        if bytes.get(32..39) != Some(b"sha256\0") {
            return Err(SuperblockError::Foreign("hash algorithm"));
        }
        expect(64, 4096, "data block size")?;
        expect(68, 4096, "hash block size")?;
        let data_blocks =
            bytes.get(72..80).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes).ok_or_else(absent)?;
        let length = bytes.get(80..82).and_then(|b| b.try_into().ok()).map(u16::from_le_bytes).ok_or_else(absent)?;
        if data_blocks == 0 || data_blocks > u64::MAX / 4096 {
            return Err(SuperblockError::Foreign("number of blocks"));
        }
        let salt = bytes.get(88..88 + usize::from(length)).filter(|_| length <= 256);
        Ok(Self { data_blocks, salt: salt.ok_or(SuperblockError::Foreign("salt length"))?.to_vec() })
    }
}

/// A verity device to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Device-mapper name, 1 to 127 bytes.
    pub name: String,
    /// `major:minor` of the data partition.
    pub data: String,
    /// `major:minor` of the hash partition.
    pub hash: String,
    /// What the hash partition says.
    pub superblock: Superblock,
    /// The trusted root hash, lower-case hexadecimal.
    pub root_hash: String,
}

impl Target {
    /// The table line of the kernel's `verity` target. The tree starts behind the superblock, in block 1.
    pub fn table(&self) -> String {
        let salt = match self.superblock.salt.as_slice() {
            [] => "-".to_owned(),
            some => hex::encode(some),
        };
        let Self { data, hash, root_hash, superblock, .. } = self;
        format!("1 {data} {hash} 4096 4096 {} 1 sha256 {root_hash} {salt}", superblock.data_blocks)
    }
}

/// What the kernel found while reading through a verity device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Every block read so far was as built.
    Verified,
    /// At least one block was not; its readers got an I/O error.
    Corrupted,
}

/// Opens a verity device read-only and returns its node, `/dev/dm-N`.
///
/// Guarantees that every byte read from the node is covered by the root hash; a block that isn't gives an I/O error.
pub fn open(target: &Target) -> Result<String> {
    let control = File::options().read(true).write(true).open(CONTROL).at("open", CONTROL)?;
    let mut request = head(&target.name, READ_ONLY)?;
    // SAFETY: the request is BUFFER bytes long, says so in its head, and lives through the call.
    unsafe { ioctl::create(control.as_raw_fd(), request.as_mut_ptr().cast()) }
        .at("create verity device", &target.name)?;
    let minor = minor(&request);
    let mut request = load_request(target)?;
    // SAFETY: as above; the target and its table lie behind the head within the same buffer.
    unsafe { ioctl::load(control.as_raw_fd(), request.as_mut_ptr().cast()) }
        .at("load the verity table of", &target.name)?;
    let mut request = head(&target.name, 0)?;
    // SAFETY: as for creation.
    unsafe { ioctl::resume(control.as_raw_fd(), request.as_mut_ptr().cast()) }
        .at("activate verity device", &target.name)?;
    Ok(format!("/dev/dm-{minor}"))
}

/// Asks the kernel whether corruption was seen on the verity device `name`.
pub fn health(name: &str) -> Result<Health> {
    let control = File::options().read(true).write(true).open(CONTROL).at("open", CONTROL)?;
    let mut request = head(name, 0)?;
    // SAFETY: the request is BUFFER bytes long, says so in its head, and lives through the call, which fills it in place.
    unsafe { ioctl::status(control.as_raw_fd(), request.as_mut_ptr().cast()) }.at("ask for the state of", name)?;
    match status_text(&request).first() {
        Some(b'V') => Ok(Health::Verified),
        Some(b'C') => Ok(Health::Corrupted),
        Some(_) | None => Err(Error::new("understand the state of", name, io::Error::other("unknown verity status"))),
    }
}

fn head(name: &str, flags: u32) -> Result<Vec<u8>> {
    let mut buffer = vec![0_u8; BUFFER];
    if name.is_empty() || name.len() > 127 {
        return Err(Error::new("name", name, io::Error::other("a device name has 1 to 127 bytes")));
    }
    put(&mut buffer, 0, &4_u32.to_le_bytes());
    put(&mut buffer, 12, &u32::try_from(BUFFER).unwrap_or(0).to_le_bytes());
    put(&mut buffer, 16, &u32::try_from(HEAD).unwrap_or(0).to_le_bytes());
    put(&mut buffer, 28, &flags.to_le_bytes());
    put(&mut buffer, 48, name.as_bytes());
    Ok(buffer)
}

fn load_request(target: &Target) -> Result<Vec<u8>> {
    let table = target.table();
    let mut buffer = head(&target.name, READ_ONLY)?;
    if HEAD + SPEC + table.len() + 1 > BUFFER {
        return Err(Error::new("load the verity table of", &target.name, io::Error::other("the table is too long")));
    }
    put(&mut buffer, 20, &1_u32.to_le_bytes());
    put(&mut buffer, HEAD + 8, &(target.superblock.data_blocks * 8).to_le_bytes());
    put(&mut buffer, HEAD + 24, b"verity");
    put(&mut buffer, HEAD + SPEC, table.as_bytes());
    Ok(buffer)
}

/// The first target's status in an answered request, empty where there is none.
fn status_text(answer: &[u8]) -> &[u8] {
    let start = answer.get(16..20).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
    let text = usize::try_from(start).ok().and_then(|start| answer.get(start.checked_add(SPEC)?..));
    text.and_then(|text| text.split(|byte| *byte == 0).next()).unwrap_or_default()
}

/// The minor number in an answered request (`huge_encode_dev`).
fn minor(answer: &[u8]) -> u64 {
    let device = answer.get(40..48).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    (device & 0xFF) | ((device >> 12) & 0xFFF_FF00)
}

fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = buffer.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::{Superblock, SuperblockError, Target, head, load_request, minor, put, status_text};

    fn superblock() -> Vec<u8> {
        let mut bytes = vec![0_u8; 512];
        put(&mut bytes, 0, b"verity\0\0");
        put(&mut bytes, 8, &[1, 0, 0, 0, 1]);
        put(&mut bytes, 32, b"sha256");
        put(&mut bytes, 64, &4096_u32.to_le_bytes());
        put(&mut bytes, 68, &4096_u32.to_le_bytes());
        put(&mut bytes, 72, &1000_u64.to_le_bytes());
        put(&mut bytes, 80, &2_u16.to_le_bytes());
        put(&mut bytes, 88, &[0xAB, 0xCD]);
        bytes
    }

    #[test]
    fn a_superblock_of_ours_is_read() {
        assert_eq!(Superblock::parse(&superblock()), Ok(Superblock { data_blocks: 1000, salt: vec![0xAB, 0xCD] }));
    }

    #[test]
    fn each_foreign_field_is_named() {
        for (at, value, what) in [
            (8, 2, "version"),
            (12, 0, "hash type"),
            (33, 1, "hash algorithm"),
            (65, 8, "data block size"),
            (69, 8, "hash block size"),
            (81, 2, "salt length"),
            (79, 255, "number of blocks"),
        ] {
            let mut bytes = superblock();
            bytes[at] = value;
            assert_eq!(Superblock::parse(&bytes), Err(SuperblockError::Foreign(what)));
        }
        assert_eq!(Superblock::parse(&superblock()[..511]), Err(SuperblockError::Absent));
        assert_eq!(Superblock::parse(&[0; 512]), Err(SuperblockError::Absent));
    }

    #[test]
    fn the_load_request_carries_length_type_and_table() {
        let target = Target {
            name: "root".to_owned(),
            data: "253:2".to_owned(),
            hash: "253:3".to_owned(),
            superblock: Superblock { data_blocks: 10, salt: vec![] },
            root_hash: "ab".repeat(32),
        };
        let request = load_request(&target).expect("a short table fits");
        assert_eq!(&request[48..53], b"root\0");
        assert_eq!(&request[320..328], &80_u64.to_le_bytes());
        assert_eq!(&request[336..343], b"verity\0");
        let table = format!("1 253:2 253:3 4096 4096 10 1 sha256 {} -\0", "ab".repeat(32));
        assert_eq!(&request[352..352 + table.len()], table.as_bytes());
    }

    #[test]
    fn names_that_do_not_fit_are_refused() {
        assert!(head("", 0).is_err());
        assert!(head(&"x".repeat(128), 0).is_err());
        assert!(head(&"x".repeat(127), 0).is_ok());
    }

    #[test]
    fn the_status_is_found_behind_the_target() {
        let mut answer = head("root", 0).expect("a good name");
        put(&mut answer, 312 + 40, b"C\0");
        assert_eq!(status_text(&answer), b"C");
        put(&mut answer, 16, &u32::MAX.to_le_bytes());
        assert_eq!(status_text(&answer), b"");
    }

    #[test]
    fn minors_above_255_are_decoded() {
        let mut answer = head("root", 0).expect("a good name");
        put(&mut answer, 40, &0x0010_FD03_u64.to_le_bytes());
        assert_eq!(minor(&answer), 0x103);
    }
}
