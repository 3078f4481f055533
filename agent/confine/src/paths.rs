//! Kernel paths that containers can't see or write, and the devices that they get.
//!
//! A container has only the devices that the OCI specification gives to all (null, zero, tty …). A
//! privileged one has the machine's, except the TPM's: their nodes are left out, and the device
//! filter refuses nodes that the container makes.

use nix::sys::stat::{major, minor};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Hidden: files about the machine that containers don't need, and by which they could observe it.
/// The runtime skips those that a kernel does not have.
const MASKED: [&str; 20] = [
    "/proc/allocinfo",
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/pagetypeinfo",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/kernel/security",
];
/// Hidden from every container: the TPM's registers, its settings and its event log.
const MASKED_TPM: [&str; 2] = ["/sys/class/tpm", "/sys/class/tpmrm"];

/// Read-only: by the mode of these files alone, root of a container could write them. A test opens
/// all that a kernel has (`tests/cluster/tests/node/floor.rs`).
const READ_ONLY: [&str; 10] = [
    "/proc/bus",
    "/proc/driver",
    "/proc/dynamic_debug",
    "/proc/fs",
    "/proc/irq",
    "/proc/mtrr",
    "/proc/pressure",
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/tty",
];

/// `/dev/tpm0` (Documentation/admin-guide/devices.txt); the numbers of others, and of
/// `/dev/tpmrm…`, the kernel chooses.
const FIRST_TPM: (u64, u64) = (10, 224);
/// Prefixes of the TPM's names under `/dev`.
const TPM_NAMES: [&str; 2] = ["tpm", "vtpm"];
/// Folders under `/dev` that are file systems of their own in each container.
const OWN_FOLDERS: [&str; 4] = ["pts", "shm", "mqueue", "fd"];
/// Most devices that a privileged container gets.
const MAX_DEVICES: usize = 4096;
/// How deep folders under `/dev` are looked into.
const MAX_DEPTH: u8 = 4;

/// The machine's TPMs as the kernel shows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tpms {
    /// Device numbers.
    numbers: Vec<(u64, u64)>,
    /// Their folders in sysfs.
    folders: Vec<PathBuf>,
}

impl Tpms {
    /// Looks for them under `/sys`.
    pub fn find(sys: &Path) -> Self {
        let mut found = Self {
            numbers: vec![FIRST_TPM],
            folders: Vec::new(),
        };
        for class in ["class/tpm", "class/tpmrm"] {
            for entry in fs::read_dir(sys.join(class))
                .into_iter()
                .flatten()
                .filter_map(Result::ok)
            {
                let number = fs::read_to_string(entry.path().join("dev")).unwrap_or_default();
                let number = number
                    .trim()
                    .split_once(':')
                    .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                found
                    .numbers
                    .extend(number.filter(|number| !found.numbers.contains(number)));
                let folder = fs::canonicalize(entry.path())
                    .ok()
                    .and_then(|path| path.parent().map(Path::to_owned));
                found
                    .folders
                    .extend(folder.filter(|folder| !found.folders.contains(folder)));
            }
        }
        found
    }

    fn has(&self, device: &Device) -> bool {
        device.kind == 'c' && self.numbers.contains(&(device.major, device.minor))
    }
}

/// How much a container sees of the kernel's `/proc` and `/sys`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelView {
    /// The default: with masked and read-only paths in `/proc` and `/sys`.
    Least,
    /// `/proc` without masked paths, and with only one read-only (`procMount: Unmasked`). File
    /// modes protect the kernel's settings: root of a user namespace does not own them.
    Proc,
    /// All of both, except the TPM's paths.
    Whole,
}

/// The paths that a container can't write. With an unmasked `/proc` these are the files that all
/// users may write and that affect the machine: a pressure trigger costs its memory.
pub fn read_only(view: KernelView) -> &'static [&'static str] {
    match view {
        KernelView::Least => &READ_ONLY,
        KernelView::Proc => &["/proc/pressure"],
        KernelView::Whole => &[],
    }
}

/// What a container does not see.
pub fn masked(tpms: &Tpms, view: KernelView) -> Vec<String> {
    let is_hidden = |path: &&&str| match view {
        KernelView::Least => true,
        KernelView::Proc => !path.starts_with("/proc/"),
        KernelView::Whole => false,
    };
    let own = MASKED
        .iter()
        .filter(is_hidden)
        .chain(&MASKED_TPM)
        .map(|&path| path.to_owned());
    own.chain(
        tpms.folders
            .iter()
            .map(|path| path.to_string_lossy().into_owned()),
    )
    .collect()
}

/// A device node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    path: PathBuf,
    kind: char,
    major: u64,
    minor: u64,
    mode: u32,
    uid: u32,
    gid: u32,
}

/// The device nodes in a folder, without the TPM's.
pub fn devices(dir: &Path, tpms: &Tpms) -> Vec<Device> {
    let mut found = Vec::new();
    collect(dir, tpms, MAX_DEPTH, &mut found);
    found
}

fn collect(dir: &Path, tpms: &Tpms, depth: u8, found: &mut Vec<Device>) {
    for entry in fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(data) = entry.metadata() else { continue };
        if data.is_dir() && depth > 0 && !OWN_FOLDERS.contains(&name.as_str()) {
            collect(&entry.path(), tpms, depth - 1, found);
        }
        let kind = if data.file_type().is_char_device() {
            'c'
        } else {
            'b'
        };
        let is_device = kind == 'c' || data.file_type().is_block_device();
        let (major, minor) = (major(data.rdev()), minor(data.rdev()));
        let mode = data.mode() & 0o7777;
        let device = Device {
            path: entry.path(),
            kind,
            major,
            minor,
            mode,
            uid: data.uid(),
            gid: data.gid(),
        };
        let tpms = tpms.has(&device) || TPM_NAMES.iter().any(|tpm| name.starts_with(tpm));
        if is_device && !tpms && name != "console" && found.len() < MAX_DEVICES {
            found.push(device);
        }
    }
}

/// The nodes of a privileged container, as the OCI specification has them.
pub fn nodes(devices: &[Device]) -> Vec<Value> {
    let node = |device: &Device| {
        let Device {
            path,
            kind,
            major,
            minor,
            mode,
            uid,
            gid,
        } = device;
        json!({"path": path, "type": kind.to_string(), "major": major, "minor": minor, "fileMode": mode, "uid": uid, "gid": gid})
    };
    devices.iter().map(node).collect()
}

/// The rules of the device filter: no devices but the OCI specification's own; for a privileged
/// container all but the TPMs.
pub fn device_rules(tpms: &Tpms, privileged: bool) -> Vec<Value> {
    let mut rules = vec![json!({"allow": privileged, "access": "rwm"})];
    if privileged {
        rules.extend(tpms.numbers.iter().map(
            |(major, minor)| json!({"allow": false, "type": "c", "major": major, "minor": minor, "access": "rwm"}),
        ));
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> (tempfile::TempDir, Tpms) {
        let dir = tempfile::tempdir().unwrap();
        for (class, name, number) in [
            ("tpm", "tpm0", "10:224\n"),
            ("tpmrm", "tpmrm0", "253:65536\n"),
        ] {
            let real = dir
                .path()
                .join("devices/MSFT0101:00")
                .join(class)
                .join(name);
            fs::create_dir_all(&real).unwrap();
            fs::write(real.join("dev"), number).unwrap();
            let folder = dir.path().join("class").join(class);
            fs::create_dir_all(&folder).unwrap();
            std::os::unix::fs::symlink(&real, folder.join(name)).unwrap();
        }
        let tpms = Tpms::find(dir.path());
        (dir, tpms)
    }

    #[test]
    fn the_tpms_are_found_with_their_numbers_and_folders() {
        let (dir, tpms) = machine();
        assert_eq!(tpms.numbers, [(10, 224), (253, 65536)]);
        let base = fs::canonicalize(dir.path())
            .unwrap()
            .join("devices/MSFT0101:00");
        assert_eq!(tpms.folders, [base.join("tpm"), base.join("tpmrm")]);
        for view in [KernelView::Least, KernelView::Proc, KernelView::Whole] {
            let masked = masked(&tpms, view);
            assert!(masked.contains(&base.join("tpm").to_string_lossy().into_owned()));
            assert!(masked.contains(&"/sys/class/tpmrm".to_owned()));
            let has = |path: &str| masked.contains(&path.to_owned());
            assert_eq!(has("/proc/kcore"), view == KernelView::Least, "{view:?}");
            assert_eq!(has("/sys/firmware"), view != KernelView::Whole, "{view:?}");
        }
    }

    #[test]
    fn a_machine_that_shows_no_tpm_still_keeps_the_first_one_away() {
        let tpms = Tpms::find(Path::new("/nonexistent"));
        let rules = device_rules(&tpms, true);
        assert_eq!(rules[0], json!({"allow": true, "access": "rwm"}));
        assert_eq!(
            rules[1],
            json!({"allow": false, "type": "c", "major": 10, "minor": 224, "access": "rwm"})
        );
        assert_eq!(
            device_rules(&tpms, false),
            [json!({"allow": false, "access": "rwm"})]
        );
    }

    #[test]
    fn a_privileged_container_gets_the_machines_devices_without_its_tpm() {
        let (_dir, mut tpms) = machine();
        let devices = devices(Path::new("/dev"), &tpms);
        let zero = devices
            .iter()
            .find(|device| device.path == Path::new("/dev/zero"))
            .unwrap();
        assert_eq!((zero.kind, zero.major, zero.minor), ('c', 1, 5));
        // Whatever its name, a node with a TPM's numbers is left out.
        tpms.numbers.push((1, 5));
        assert!(!super::devices(Path::new("/dev"), &tpms).contains(zero));
        assert!(
            nodes(&devices)
                .iter()
                .all(|node| !node["path"].as_str().unwrap().contains("tpm"))
        );
    }
}
