//! Block devices: size, sector size, and telling the kernel about a new partition.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::error::{Context, Result};

#[allow(
    missing_docs,
    unreachable_pub,
    reason = "the macro writes the functions; their documentation is the ioctl's"
)]
mod ioctl {
    nix::ioctl_read!(size_bytes, 0x12, 114, u64);
    nix::ioctl_read_bad!(
        logical_sector,
        nix::request_code_none!(0x12, 104),
        nix::libc::c_int
    );
    nix::ioctl_write_ptr_bad!(
        partition,
        nix::request_code_none!(0x12, 105),
        super::PartitionCall
    );
}

/// `struct blkpg_ioctl_arg` of linux/blkpg.h.
#[repr(C)]
#[derive(Debug)]
struct PartitionCall {
    op: i32,
    flags: i32,
    length: i32,
    data: *const PartitionData,
}

/// `struct blkpg_partition` of linux/blkpg.h; offsets are in bytes.
#[repr(C)]
#[derive(Debug)]
struct PartitionData {
    start: i64,
    length: i64,
    number: i32,
    device: [u8; 64],
    volume: [u8; 64],
}

const ADD_PARTITION: i32 = 1;

/// The device's size in bytes.
///
/// # Errors
/// The kernel refuses: the file is no block device.
pub fn size_bytes(device: &File, name: &str) -> Result<u64> {
    let mut size = 0_u64;
    // SAFETY: the file is open for the whole call and BLKGETSIZE64 writes one u64 where we point
    // it.
    unsafe { ioctl::size_bytes(device.as_raw_fd(), &raw mut size) }.at("read the size of", name)?;
    Ok(size)
}

/// The device's logical sector size in bytes (512 or 4096 on real disks).
///
/// # Errors
/// The kernel refuses: the file is no block device.
pub fn sector_bytes(device: &File, name: &str) -> Result<u32> {
    let mut size = 0;
    // SAFETY: the file is open for the whole call and BLKSSZGET writes one int where we point it.
    unsafe { ioctl::logical_sector(device.as_raw_fd(), &raw mut size) }
        .at("read the sector size of", name)?;
    u32::try_from(size)
        .map_err(std::io::Error::other)
        .at("read the sector size of", name)
}

/// Tells the kernel about a partition that was added to a disk in use (re-reading the whole table
/// is refused while another partition is open).
///
/// `start` and `length` are in bytes; `number` counts from 1 as in the partition table.
///
/// # Errors
/// The kernel refuses: the number is in use, or the partition overlaps another one.
pub fn add_partition(disk: &File, name: &str, number: u32, start: u64, length: u64) -> Result<()> {
    let whole = |value: u64| {
        i64::try_from(value)
            .map_err(std::io::Error::other)
            .at("add a partition to", name)
    };
    let data = PartitionData {
        start: whole(start)?,
        length: whole(length)?,
        number: i32::try_from(number)
            .map_err(std::io::Error::other)
            .at("add a partition to", name)?,
        device: [0; 64],
        volume: [0; 64],
    };
    let call = PartitionCall {
        op: ADD_PARTITION,
        flags: 0,
        length: i32::try_from(size_of::<PartitionData>())
            .map_err(std::io::Error::other)
            .at("add a partition to", name)?,
        data: &raw const data,
    };
    // SAFETY: both structures have the kernel's layout and outlive the call, which only reads them.
    unsafe { ioctl::partition(disk.as_raw_fd(), &raw const call) }
        .at("add a partition to", name)?;
    Ok(())
}

/// The `major:minor` of a block device by its kernel name (`vda2`), as device mapper takes it.
///
/// # Errors
/// There is no block device of this name.
pub fn device_number(name: &str) -> Result<String> {
    let path = Path::new("/sys/class/block").join(name).join("dev");
    let text = std::fs::read_to_string(&path).at("read the number of", name)?;
    Ok(text.trim().to_owned())
}
