//! Device mapper through `/dev/mapper/control`, by hand: devices of one target.
//!
//! Layouts: linux/dm-ioctl.h (`struct dm_ioctl`, 312 bytes, and `struct dm_target_spec`, 40 bytes).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::error::{Context, Error, Result};

const CONTROL: &str = "/dev/mapper/control";
const HEAD: usize = 312;
const SPEC: usize = 40;
const BUFFER: usize = 4096;
const READ_ONLY: u32 = 1;

#[allow(
    missing_docs,
    unreachable_pub,
    reason = "the macro writes the functions; their documentation is the ioctl's"
)]
mod ioctl {
    nix::ioctl_readwrite!(create, 0xFD, 3, [u8; super::HEAD]);
    nix::ioctl_readwrite!(remove, 0xFD, 4, [u8; super::HEAD]);
    nix::ioctl_readwrite!(resume, 0xFD, 6, [u8; super::HEAD]);
    nix::ioctl_readwrite!(load, 0xFD, 9, [u8; super::HEAD]);
    nix::ioctl_readwrite!(status, 0xFD, 12, [u8; super::HEAD]);
}

/// A device of one target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mapped<'a> {
    /// Device-mapper name, 1 to 127 bytes.
    pub(crate) name: &'a str,
    pub(crate) read_only: bool,
    /// The kernel's name of the target.
    pub(crate) kind: &'a str,
    /// Its length in sectors of 512 bytes.
    pub(crate) sectors: u64,
    /// Its table line.
    pub(crate) table: &'a str,
}

/// Makes and activates a device; its node, `/dev/dm-N`. A device that can't be activated is removed
/// again.
pub(crate) fn activate(device: &Mapped<'_>) -> Result<String> {
    let name = device.name;
    let control = control()?;
    let flags = if device.read_only { READ_ONLY } else { 0 };
    let mut request = head(name, flags)?;
    // SAFETY: the request is BUFFER bytes long, says so in its head, and lives through the call.
    unsafe { ioctl::create(control.as_raw_fd(), request.as_mut_ptr().cast()) }
        .at("create the mapped device", name)?;
    let minor = minor(&request);
    match load_and_resume(&control, device, flags) {
        Ok(()) => Ok(format!("/dev/dm-{minor}")),
        Err(cause) => {
            // The original error is returned; an empty device that stays behind does no harm.
            drop(remove(name));
            Err(cause)
        }
    }
}

fn load_and_resume(control: &File, device: &Mapped<'_>, flags: u32) -> Result<()> {
    let name = device.name;
    let mut request = load_request(device, flags)?;
    // SAFETY: the request is BUFFER bytes long, says so in its head, and lives through the call;
    // the target and its table lie behind the head within it.
    unsafe { ioctl::load(control.as_raw_fd(), request.as_mut_ptr().cast()) }
        .at("load the table of", name)?;
    let mut request = head(name, 0)?;
    // SAFETY: as above, without a target.
    unsafe { ioctl::resume(control.as_raw_fd(), request.as_mut_ptr().cast()) }
        .at("activate the mapped device", name)?;
    Ok(())
}

/// Removes a device that is not open.
pub(crate) fn remove(name: &str) -> Result<()> {
    let control = control()?;
    let mut request = head(name, 0)?;
    // SAFETY: the request is BUFFER bytes long, says so in its head, and lives through the call.
    unsafe { ioctl::remove(control.as_raw_fd(), request.as_mut_ptr().cast()) }
        .at("remove the mapped device", name)?;
    Ok(())
}

/// The status line of a device's target.
pub(crate) fn status(name: &str) -> Result<Vec<u8>> {
    let control = control()?;
    let mut request = head(name, 0)?;
    // SAFETY: the request is BUFFER bytes long, says so in its head, and lives through the call,
    // which fills it in place.
    unsafe { ioctl::status(control.as_raw_fd(), request.as_mut_ptr().cast()) }
        .at("ask for the state of", name)?;
    Ok(status_text(&request).to_vec())
}

fn control() -> Result<File> {
    File::options()
        .read(true)
        .write(true)
        .open(CONTROL)
        .at("open", CONTROL)
}

fn head(name: &str, flags: u32) -> Result<Vec<u8>> {
    let mut buffer = vec![0_u8; BUFFER];
    if name.is_empty() || name.len() > 127 {
        return Err(Error::new(
            "name",
            name,
            io::Error::other("a device name has 1 to 127 bytes"),
        ));
    }
    put(&mut buffer, 0, &4_u32.to_le_bytes());
    put(
        &mut buffer,
        12,
        &u32::try_from(BUFFER).unwrap_or(0).to_le_bytes(),
    );
    put(
        &mut buffer,
        16,
        &u32::try_from(HEAD).unwrap_or(0).to_le_bytes(),
    );
    put(&mut buffer, 28, &flags.to_le_bytes());
    put(&mut buffer, 48, name.as_bytes());
    Ok(buffer)
}

fn load_request(device: &Mapped<'_>, flags: u32) -> Result<Vec<u8>> {
    let Mapped {
        name,
        kind,
        sectors,
        table,
        ..
    } = *device;
    let mut buffer = head(name, flags)?;
    if HEAD + SPEC + table.len() + 1 > BUFFER || kind.len() > 15 {
        return Err(Error::new(
            "load the table of",
            name,
            io::Error::other("the table is too long"),
        ));
    }
    put(&mut buffer, 20, &1_u32.to_le_bytes());
    put(&mut buffer, HEAD + 8, &sectors.to_le_bytes());
    put(&mut buffer, HEAD + 24, kind.as_bytes());
    put(&mut buffer, HEAD + SPEC, table.as_bytes());
    Ok(buffer)
}

/// The first target's status in an answered request, empty where there is none.
fn status_text(answer: &[u8]) -> &[u8] {
    let start = answer
        .get(16..20)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u32::from_le_bytes);
    let text = usize::try_from(start)
        .ok()
        .and_then(|start| answer.get(start.checked_add(SPEC)?..));
    text.and_then(|text| text.split(|byte| *byte == 0).next())
        .unwrap_or_default()
}

/// The minor number in an answered request (`huge_encode_dev`).
fn minor(answer: &[u8]) -> u64 {
    let device = answer
        .get(40..48)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u64::from_le_bytes);
    (device & 0xFF) | ((device >> 12) & 0xFFF_FF00)
}

fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = buffer.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::{Mapped, head, load_request, minor, put, status_text};

    #[test]
    fn the_load_request_carries_length_type_and_table() {
        let device = Mapped {
            name: "root",
            read_only: true,
            kind: "verity",
            sectors: 80,
            table: "1 253:2 -",
        };
        let request = load_request(&device, 1).expect("a short table fits");
        assert_eq!(&request[28..32], &1_u32.to_le_bytes());
        assert_eq!(&request[48..53], b"root\0");
        assert_eq!(&request[320..328], &80_u64.to_le_bytes());
        assert_eq!(&request[336..343], b"verity\0");
        assert_eq!(&request[352..362], b"1 253:2 -\0");
        let long = "x".repeat(4096);
        assert!(
            load_request(
                &Mapped {
                    table: &long,
                    ..device
                },
                0
            )
            .is_err()
        );
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
