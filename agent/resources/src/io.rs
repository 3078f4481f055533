//! What a control group has read from devices and written to them, by the kernel's texts; pure.

use agent_sys::cgroup::Version;
use std::collections::{BTreeMap, HashMap};

/// What was read from one device and written to it, since the beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeviceIo {
    /// The device's file, such as `/dev/sda`, or its numbers where the kernel knows no name.
    pub(crate) device: String,
    /// Its numbers: `major:minor`.
    pub(crate) numbers: String,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
}

/// Most devices of one group.
const MOST: usize = 64;

/// Names of devices by their numbers, `major:minor`, as `/proc/diskstats` lists them
/// (proc_diskstats(5)).
pub(crate) fn devices(diskstats: &str) -> HashMap<String, String> {
    let name = |line: &str| {
        let mut parts = line.split_whitespace();
        let (major, minor, name) = (parts.next()?, parts.next()?, parts.next()?);
        Some((format!("{major}:{minor}"), format!("/dev/{name}")))
    };
    diskstats.lines().filter_map(name).collect()
}

/// What a group has read and written; `read` as in `Counters::of_group`.
pub(crate) fn io_of_group(
    version: Version,
    read: impl Fn(&'static str, &'static str) -> Option<String>,
    names: &HashMap<String, String>,
) -> Vec<DeviceIo> {
    let mut all: BTreeMap<String, DeviceIo> = BTreeMap::new();
    match version {
        Version::Two => {
            let text = read("io", "io.stat").unwrap_or_default();
            for line in text.lines() {
                let mut parts = line.split_whitespace();
                let Some(device) = parts.next() else { continue };
                for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                    let operation = match name {
                        "rbytes" => Operation::ReadBytes,
                        "wbytes" => Operation::WrittenBytes,
                        "rios" => Operation::Reads,
                        "wios" => Operation::Writes,
                        _ => continue,
                    };
                    add(&mut all, device, operation, value);
                }
            }
        }
        Version::One => {
            let files = [
                (
                    "blkio.throttle.io_service_bytes_recursive",
                    [Operation::ReadBytes, Operation::WrittenBytes],
                ),
                (
                    "blkio.throttle.io_serviced_recursive",
                    [Operation::Reads, Operation::Writes],
                ),
            ];
            for (file, [reads, writes]) in files {
                let text = read("blkio", file).unwrap_or_default();
                for line in text.lines() {
                    let parts: Vec<&str> = line.split_whitespace().collect();
                    match *parts.as_slice() {
                        [device, "Read", value] => add(&mut all, device, reads, value),
                        [device, "Write", value] => add(&mut all, device, writes, value),
                        _ => {}
                    }
                }
            }
        }
    }
    let with_device = |(numbers, io): (String, DeviceIo)| DeviceIo {
        device: names.get(&numbers).unwrap_or(&numbers).clone(),
        numbers,
        ..io
    };
    all.into_iter().map(with_device).collect()
}

#[derive(Clone, Copy)]
enum Operation {
    ReadBytes,
    WrittenBytes,
    Reads,
    Writes,
}

fn add(all: &mut BTreeMap<String, DeviceIo>, device: &str, operation: Operation, value: &str) {
    let Ok(value) = value.parse() else { return };
    let is_plain = device
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b':');
    if !is_plain || (all.len() >= MOST && !all.contains_key(device)) {
        return;
    }
    let io = all.entry(device.to_owned()).or_default();
    match operation {
        Operation::ReadBytes => io.read_bytes = value,
        Operation::WrittenBytes => io.written_bytes = value,
        Operation::Reads => io.reads = value,
        Operation::Writes => io.writes = value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_control_groups_count_the_same() {
        let names = devices("   8       0 sda 1 2 3\n 253       0 vda 1 2 3\n");
        let io =
            |[device, numbers]: [&str; 2], read_bytes, written_bytes, reads, writes| DeviceIo {
                device: device.to_owned(),
                numbers: numbers.to_owned(),
                read_bytes,
                written_bytes,
                reads,
                writes,
            };
        let expected = vec![
            io(["7:9"; 2], 1, 0, 1, 0),
            io(["/dev/sda", "8:0"], 4096, 8192, 2, 3),
        ];
        let two = |_: &'static str, file: &'static str| match file {
            "io.stat" => Some(
                "8:0 rbytes=4096 wbytes=8192 rios=2 wios=3 dbytes=0 dios=0\n7:9 rbytes=1 rios=1\n"
                    .to_owned(),
            ),
            _ => None,
        };
        let one = |_: &'static str, file: &'static str| match file {
            "blkio.throttle.io_service_bytes_recursive" => Some(
                "8:0 Read 4096\n8:0 Write 8192\n8:0 Total 12288\n7:9 Read 1\nTotal 12289\n"
                    .to_owned(),
            ),
            "blkio.throttle.io_serviced_recursive" => {
                Some("8:0 Read 2\n8:0 Write 3\n7:9 Read 1\n".to_owned())
            }
            _ => None,
        };
        assert_eq!(io_of_group(Version::Two, two, &names), expected);
        assert_eq!(io_of_group(Version::One, one, &names), expected);
    }

    #[test]
    fn other_texts_count_nothing() {
        for version in [Version::One, Version::Two] {
            for text in [
                None,
                Some("8:0 Read x\nx\"y rbytes=1\n8:0 rbytes=-1\n".to_owned()),
            ] {
                let found = io_of_group(version, |_, _| text.clone(), &HashMap::new());
                assert!(found.is_empty(), "{found:?}");
            }
        }
    }
}
