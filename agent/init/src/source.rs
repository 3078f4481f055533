//! Where the machine's configuration comes from: a NoCloud volume, SMBIOS, fw_cfg or the image
//! itself, exactly one of them; or, where there is none of these, the metadata service of the
//! machine's cloud.
//!
//! A machine that has a source of its own never asks a metadata service, so the two can't
//! contradict each other: an admin put the source there on purpose, and it needs no network.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use agent_metadata::Platform;
use agent_sys::mount::{Limits, mount, unmount};

use crate::cloud;
use crate::console::Console;
use crate::disks::{self, Device};
use crate::label::{self, Kind};
use crate::mounts::directory;
use crate::smbios::{self, SmbiosError};
use crate::user_data::{Found, SourceError, read_file};

/// How long a volume may take to appear.
const APPEAR_LIMIT: Duration = Duration::from_secs(10);
/// The same in a cloud with a metadata service, where a volume is the exception and the root's disk
/// was there first.
const APPEAR_LIMIT_IN_CLOUD: Duration = Duration::from_secs(2);
const VOLUME_LABEL: &str = "CIDATA";
const FILE: &str = "user-data";
const MOUNT_POINT: &str = "/run/pratique/cidata";
/// What QEMU's `-fw_cfg name=opt/io.pratique/config,file=FILE` gives.
const FW_CFG: &str = "/sys/firmware/qemu_fw_cfg/by_name/opt/io.pratique/config/raw";
/// What the image build was given as `--user-data`.
const IMAGE: &str = "/etc/pratique/user-data";
const SMBIOS_ENTRIES: &str = "/sys/firmware/dmi/entries";
/// Most type 11 structures that are read; machines have one or two.
const MAX_STRUCTURES: usize = 64;
/// Most bytes of one structure: base64 of the largest configuration and some.
const STRUCTURE_BYTES: u64 = 128 << 10;

/// Finds the one configuration. Several sources are an error even if their bytes are the same;
/// `service` is asked only where there is none.
///
/// # Errors
/// [`SourceError`] where there is none or more than one, or one that cannot be read.
pub fn find(console: &Console, service: Option<Platform>) -> Result<Found, SourceError> {
    match (local(service.is_some()), service) {
        (Err(SourceError::None), Some(platform)) => cloud::fetch(console, platform),
        (found, _) => found,
    }
}

/// The one configuration on the machine itself.
fn local(in_cloud: bool) -> Result<Found, SourceError> {
    let patience = if in_cloud {
        APPEAR_LIMIT_IN_CLOUD
    } else {
        APPEAR_LIMIT
    };
    let strings = smbios_strings().map_err(SourceError::Smbios)?;
    let mut there: Vec<Found> = strings
        .into_iter()
        .map(|bytes| Found {
            label: "smbios",
            bytes,
        })
        .collect();
    there.extend(file_source("fw_cfg", FW_CFG)?);
    there.extend(file_source("image", IMAGE)?);
    // These exist from the start; a volume may appear later.
    let limit = if there.is_empty() {
        patience
    } else {
        Duration::ZERO
    };
    let volumes = disks::wait_for(limit, || Some(volumes()).filter(|all| !all.is_empty()))
        .unwrap_or_default();
    match only_source(&volumes, there)? {
        OnlySource::Volume(volume) => read_volume(&volume),
        OnlySource::Read(found) => Ok(found),
    }
}

/// A volume that is labelled as a source.
#[derive(Debug, Clone, PartialEq)]
struct Volume {
    device: Device,
    /// Its file system.
    kind: Kind,
}

/// The one source that there is.
#[derive(Debug, PartialEq)]
enum OnlySource {
    /// A volume, which is not read yet.
    Volume(Volume),
    /// One whose bytes are here.
    Read(Found),
}

fn only_source(volumes: &[Volume], there: Vec<Found>) -> Result<OnlySource, SourceError> {
    let mut names: Vec<String> = volumes
        .iter()
        .map(|volume| format!("volume {}", volume.device.node()))
        .collect();
    names.extend(there.iter().map(|found| found.label.to_owned()));
    match (volumes, there.into_iter().next(), names.len()) {
        (_, _, 2..) => Err(SourceError::Several(names.join(", "))),
        ([volume, ..], _, _) => Ok(OnlySource::Volume(volume.clone())),
        ([], Some(found), _) if found.bytes.is_empty() => {
            Err(SourceError::Unusable(found.label.to_owned(), "empty"))
        }
        ([], Some(found), _) => Ok(OnlySource::Read(found)),
        ([], None, _) => Err(SourceError::None),
    }
}

/// A source that is one file; `None` if the file is absent.
fn file_source(label: &'static str, path: &str) -> Result<Option<Found>, SourceError> {
    match read_file(path, label) {
        Ok(bytes) => Ok(Some(Found { label, bytes })),
        Err(SourceError::Read(_, cause)) if cause.kind() == std::io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn smbios_strings() -> Result<Vec<Vec<u8>>, SmbiosError> {
    let entries = fs::read_dir(SMBIOS_ENTRIES).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("11-"));
    let mut all = Vec::new();
    for entry in ours.take(MAX_STRUCTURES) {
        let mut raw = Vec::new();
        let read = File::open(entry.path().join("raw"))
            .and_then(|file| file.take(STRUCTURE_BYTES).read_to_end(&mut raw));
        if read.is_ok() {
            all.append(&mut smbios::configurations(&raw)?);
        }
    }
    Ok(all)
}

/// Volumes labelled CIDATA. A disk that is such a volume as a whole does not count again by its
/// partitions.
fn volumes() -> Vec<Volume> {
    let mut found: Vec<Volume> = Vec::new();
    for device in disks::list() {
        let part_of_found = found
            .iter()
            .any(|whole| device.is_partition_of(&whole.device));
        if let Some(kind) = probe(&device).filter(|_| !part_of_found) {
            found.push(Volume { device, kind });
        }
    }
    found
}

fn probe(device: &Device) -> Option<Kind> {
    let file = File::open(device.node()).ok()?;
    let read = |offset: u64, length: usize| {
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset).ok().map(|()| bytes)
    };
    let ours =
        |label: Option<String>| label.is_some_and(|label| label.eq_ignore_ascii_case(VOLUME_LABEL));
    if ours(read(0, 512).and_then(|sector| label::vfat(&sector))) {
        return Some(Kind::Vfat);
    }
    ours(read(label::ISO_OFFSET, 2048).and_then(|sector| label::iso9660(&sector)))
        .then_some(Kind::Iso9660)
}

fn read_volume(volume: &Volume) -> Result<Found, SourceError> {
    let node = volume.device.node();
    let at = |cause| SourceError::Mount(node.clone(), cause);
    let limits = Limits {
        read_only: true,
        no_suid: true,
        no_dev: true,
        no_exec: true,
    };
    directory(MOUNT_POINT, 0o700).map_err(at)?;
    mount(&node, MOUNT_POINT, volume.kind.name(), limits, "").map_err(at)?;
    let bytes = read_file(&format!("{MOUNT_POINT}/{FILE}"), &node);
    unmount(MOUNT_POINT).map_err(at)?;
    drop(fs::remove_dir(MOUNT_POINT));
    Ok(Found {
        label: "nocloud",
        bytes: bytes?,
    })
}

#[cfg(test)]
mod tests {
    use super::{Found, OnlySource, SourceError, Volume, file_source, only_source};
    use crate::disks::Device;
    use crate::label::Kind;

    fn volume(name: &str) -> Volume {
        Volume {
            device: Device {
                name: name.to_owned(),
                partition: None,
            },
            kind: Kind::Vfat,
        }
    }

    fn there(label: &'static str) -> Found {
        Found {
            label,
            bytes: b"x".to_vec(),
        }
    }

    #[test]
    fn exactly_one_source_is_taken() {
        let only = only_source(&[volume("vdb")], vec![]).expect("one source");
        assert_eq!(only, OnlySource::Volume(volume("vdb")));
        for label in ["smbios", "fw_cfg", "image"] {
            assert_eq!(
                only_source(&[], vec![there(label)]).expect("one source"),
                OnlySource::Read(there(label))
            );
        }
    }

    #[test]
    fn none_and_several_are_errors() {
        assert!(matches!(only_source(&[], vec![]), Err(SourceError::None)));
        let pairs = [
            (vec![volume("a"), volume("b")], vec![]),
            (vec![volume("a")], vec![there("smbios")]),
            (vec![volume("a")], vec![there("image")]),
            (vec![], vec![there("smbios"), there("smbios")]),
            (vec![], vec![there("fw_cfg"), there("image")]),
        ];
        for (volumes, others) in pairs {
            let result = only_source(&volumes, others);
            assert!(matches!(result, Err(SourceError::Several(_))), "{result:?}");
        }
        let empty = Found {
            label: "fw_cfg",
            bytes: vec![],
        };
        assert!(matches!(
            only_source(&[], vec![empty]),
            Err(SourceError::Unusable(..))
        ));
    }

    #[test]
    fn a_file_is_a_source_where_it_is_there_and_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        assert_eq!(file_source("image", &path("absent")).expect("none"), None);
        std::fs::write(path("good"), "x").expect("written");
        assert_eq!(
            file_source("image", &path("good")).expect("one"),
            Some(there("image"))
        );
        for (name, bytes) in [
            ("empty", vec![]),
            ("long", vec![b'x'; agent_metadata::MAX_BYTES + 1]),
        ] {
            std::fs::write(path(name), bytes).expect("written");
            assert!(
                matches!(
                    file_source("image", &path(name)),
                    Err(SourceError::Unusable(..))
                ),
                "{name}"
            );
        }
        std::fs::create_dir(path("folder")).expect("made");
        assert!(file_source("image", &path("folder")).is_err());
        std::os::unix::fs::symlink(path("good"), path("link")).expect("linked");
        assert!(file_source("image", &path("link")).is_err());
    }

    #[test]
    fn the_guide_names_every_source() {
        let services = agent_metadata::Platform::ALL.map(agent_metadata::Platform::label);
        let all = [&["nocloud", "smbios", "fw_cfg", "image"][..], &services[..]].concat();
        assert_eq!(all, config_model::machine::USER_DATA_SOURCES);
    }

    #[test]
    fn content_never_shows_in_debug_text() {
        let found = Found {
            label: "smbios",
            bytes: b"hunter2".to_vec(),
        };
        assert_eq!(format!("{found:?}"), "Found(smbios, 7 bytes)");
    }
}
