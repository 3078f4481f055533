//! Block devices as `/sys/class/block` shows them, and waiting for them.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use agent_sys::signal::wait_readable;
use agent_sys::socket::DeviceEvents;

use crate::gpt::{Geometry, GptError, Table, Write};
use crate::guid::{Guid, of_root_hash};

const CLASS: &str = "/sys/class/block";
/// Most devices that are examined.
const MAX_DEVICES: usize = 1024;
/// Longest time between two scans, for devices whose event was missed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A block device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// The kernel's name, `vda` or `vda1`.
    pub name: String,
    /// Its number in its disk's table where it is a partition.
    pub partition: Option<u32>,
}

impl Device {
    /// Its node under `/dev`.
    pub fn node(&self) -> String {
        format!("/dev/{}", self.name.replace('!', "/"))
    }

    /// Whether this is a partition of `disk`. The beginning of the name does not tell: `sdaa1` is
    /// none of `sda`.
    pub fn is_partition_of(&self, disk: &Self) -> bool {
        self.partition
            .is_some_and(|number| self.name == disk.partition_name(number))
    }

    /// The kernel's name of a partition of this disk (`disk_name` in block/partitions/core.c).
    fn partition_name(&self, number: u32) -> String {
        let separator = if self.name.ends_with(|c: char| c.is_ascii_digit()) {
            "p"
        } else {
            ""
        };
        format!("{}{separator}{number}", self.name)
    }
}

/// Real devices with a medium, sorted by name; memory disks and mapped devices are left out.
pub fn list() -> Vec<Device> {
    let entries = fs::read_dir(CLASS)
        .into_iter()
        .flatten()
        .flatten()
        .take(MAX_DEVICES);
    let mut found: Vec<Device> = entries
        .filter_map(|entry| device(&entry.file_name().to_string_lossy()))
        .collect();
    found.sort();
    found
}

fn device(name: &str) -> Option<Device> {
    let made_up = ["ram", "loop", "dm-", "md", "zram", "nbd"]
        .iter()
        .any(|kind| name.starts_with(kind));
    let read = |what: &str| fs::read_to_string(Path::new(CLASS).join(name).join(what)).ok();
    let empty = read("size").is_none_or(|size| size.trim() == "0");
    let partition = read("partition").and_then(|number| number.trim().parse().ok());
    (!made_up && !empty).then(|| Device {
        name: name.to_owned(),
        partition,
    })
}

/// The partition `number` of `disk`, once the kernel knows it.
pub fn partition(disk: &Device, number: u32) -> Option<Device> {
    let part =
        device(&disk.partition_name(number)).filter(|part| part.partition == Some(number))?;
    Path::new(&part.node()).exists().then_some(part)
}

/// The disk that holds the running image.
#[derive(Debug, Clone)]
pub struct RootDisk {
    /// The whole disk.
    pub disk: Device,
    /// Its table.
    pub table: Table,
    /// The root's data partition.
    pub data: Device,
    /// The root's hash partition.
    pub hashes: Device,
}

/// The first disk, by name, that has both partitions of the root with this hash.
pub fn with_root(hash: &[u8; 32]) -> Option<RootDisk> {
    let (root, tree) = of_root_hash(hash);
    list()
        .into_iter()
        .filter(|device| device.partition.is_none())
        .find_map(|disk| {
            let table = table(&disk).ok()?;
            let node = |id: Guid| {
                let part = table.partitions().find(|part| part.id == id)?;
                partition(&disk, part.number)
            };
            let (data, hashes) = (node(root)?, node(tree)?);
            Some(RootDisk {
                disk,
                table,
                data,
                hashes,
            })
        })
}

/// Reads the partition table of a disk.
///
/// # Errors
/// As [`Table::read`]; [`GptError::Read`] where the disk cannot be opened.
pub fn table(disk: &Device) -> Result<Table, GptError> {
    let io = |cause: agent_sys::Error| GptError::Read(std::io::Error::other(cause));
    let node = disk.node();
    let file = File::open(&node).map_err(GptError::Read)?;
    let sector = u64::from(agent_sys::block::sector_bytes(&file, &node).map_err(io)?);
    let size = agent_sys::block::size_bytes(&file, &node).map_err(io)?;
    Table::read(
        Geometry {
            sector,
            sectors: size / sector.max(1),
        },
        |offset, length| {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, offset).map(|()| bytes)
        },
    )
}

/// Writes a changed table, each part on the disk before the next.
///
/// # Errors
/// A write or its way to the medium fails; what follows it was not written.
pub fn write(disk: &File, writes: &[Write]) -> std::io::Result<()> {
    for write in writes {
        disk.write_all_at(&write.bytes, write.offset)?;
        disk.sync_all()?;
    }
    Ok(())
}

/// Scans again at each device event until `look` finds something or the time is over.
pub fn wait_for<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let events = DeviceEvents::open().ok();
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        rest(events.as_ref(), left.min(LOOK_AGAIN));
    }
}

fn rest(events: Option<&DeviceEvents>, time: Duration) {
    match events {
        Some(events) => {
            wait_readable(&[events.as_fd()], time);
            events.drain();
        }
        None => std::thread::sleep(time.min(Duration::from_millis(50))),
    }
}

#[cfg(test)]
mod tests {
    use super::Device;

    fn device(name: &str, partition: Option<u32>) -> Device {
        Device {
            name: name.to_owned(),
            partition,
        }
    }

    #[test]
    fn a_partition_belongs_to_one_disk_alone() {
        let disks = ["sda", "sdaa", "nvme0n1", "nvme0n10"].map(|name| device(name, None));
        for (name, number, own) in [
            ("sda1", 1, 0),
            ("sdaa1", 1, 1),
            ("nvme0n1p2", 2, 2),
            ("nvme0n10p2", 2, 3),
        ] {
            let part = device(name, Some(number));
            let of: Vec<bool> = disks
                .iter()
                .map(|disk| part.is_partition_of(disk))
                .collect();
            let wanted: Vec<bool> = (0..disks.len()).map(|at| at == own).collect();
            assert_eq!(of, wanted, "{name}");
        }
        assert!(!device("sdaa", None).is_partition_of(&device("sda", None)));
    }
}
