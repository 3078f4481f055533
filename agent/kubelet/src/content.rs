//! The content of config map, secret, downward API and projected volumes: which files, and how they are published.
//!
//! Files lie in a folder of their own; a link `..data` points to the current one and is swapped in one step, so that a
//! container sees all of an update or nothing of it. The agent alone writes there; containers see it read-only.

use crate::env::{Sources, pod_field, resource_field};
use crate::tokens::TokenKind;
use agent_sys::beneath::Beneath;
use config_kube::k8s_openapi::ByteString;
use config_kube::k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, ProjectedVolumeSource, Secret, Volume,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::fs::fchown;
use std::path::{Component, Path, PathBuf};

/// The link to the current files.
const DATA: &str = "..data";
/// The link to be, before it takes the other's place.
const SWAP: &str = "..swap";
/// Mode of files that name none (upstream's).
const DEFAULT_MODE: i32 = 0o644;
/// Most files of a pod's volumes, and most bytes of them together: they lie in memory that is nobody's limit. An object
/// has at most a mebibyte.
const MAX_FILES: usize = 8192;
const MAX_BYTES: usize = 16 << 20;

/// One file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    path: String,
    mode: u32,
    /// Root's, where it names nobody.
    owner: Option<u32>,
    bytes: Vec<u8>,
}

/// What a pod's volumes may still hold.
#[derive(Debug)]
pub(crate) struct Room {
    files: usize,
    bytes: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            files: MAX_FILES,
            bytes: MAX_BYTES,
        }
    }
}

impl Room {
    /// Takes the entries' part.
    ///
    /// # Errors
    /// If there is not as much left.
    pub(crate) fn take(&mut self, entries: &[Entry]) -> Result<(), String> {
        let bytes: usize = entries.iter().map(|entry| entry.bytes.len()).sum();
        if entries.len() > self.files || bytes > self.bytes {
            return Err(format!(
                "the volumes of a pod may hold {MAX_FILES} files and {} MiB of config maps, secrets and the like",
                MAX_BYTES >> 20
            ));
        }
        self.files -= entries.len();
        self.bytes -= bytes;
        Ok(())
    }
}

/// The folder of the volume's kind and its files; `None` for volumes that hold no content of the master's.
///
/// # Errors
/// If something that it needs isn't there.
pub(crate) fn entries(
    pod: &Pod,
    volume: &Volume,
    sources: &Sources,
    group: Option<u32>,
) -> Result<Option<(&'static str, Vec<Entry>)>, String> {
    Ok(Some(if let Some(source) = &volume.config_map {
        let map = sources
            .config_maps
            .get(&source.name)
            .and_then(Option::as_ref);
        let data = found(
            map.map(map_data),
            "configmap",
            &source.name,
            source.optional,
        )?;
        (
            "config-map",
            chosen(
                data,
                source.items.as_deref(),
                source.default_mode,
                source.optional,
            )?,
        )
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.clone().unwrap_or_default();
        let secret = sources.secrets.get(&name).and_then(Option::as_ref);
        let data = found(secret.map(secret_data), "secret", &name, source.optional)?;
        (
            "secret",
            chosen(
                data,
                source.items.as_deref(),
                source.default_mode,
                source.optional,
            )?,
        )
    } else if let Some(source) = &volume.downward_api {
        (
            "downward-api",
            downward(pod, source.items.as_deref(), source.default_mode, sources)?,
        )
    } else if let Some(source) = &volume.projected {
        ("projected", projected(pod, source, sources, group)?)
    } else {
        return Ok(None);
    }))
}

fn map_data(map: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = map
        .data
        .iter()
        .flatten()
        .map(|(key, value)| (key.clone(), value.clone().into_bytes()));
    let binary = map
        .binary_data
        .iter()
        .flatten()
        .map(|(key, ByteString(value))| (key.clone(), value.clone()));
    text.chain(binary).collect()
}

fn secret_data(secret: &Secret) -> BTreeMap<String, Vec<u8>> {
    secret
        .data
        .iter()
        .flatten()
        .map(|(key, ByteString(value))| (key.clone(), value.clone()))
        .collect()
}

fn found<T: Default>(
    data: Option<T>,
    kind: &str,
    name: &str,
    optional: Option<bool>,
) -> Result<T, String> {
    match data {
        Some(data) => Ok(data),
        None if optional == Some(true) => Ok(T::default()),
        None => Err(format!("{kind} {name:?} not found")),
    }
}

/// The keys that the pod chose, or all.
fn chosen(
    mut data: BTreeMap<String, Vec<u8>>,
    items: Option<&[KeyToPath]>,
    default_mode: Option<i32>,
    optional: Option<bool>,
) -> Result<Vec<Entry>, String> {
    let mode = |mode: Option<i32>| {
        mode.or(default_mode)
            .unwrap_or(DEFAULT_MODE)
            .cast_unsigned()
            & 0o777
    };
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        return Ok(data
            .into_iter()
            .map(|(path, bytes)| Entry {
                path,
                mode: mode(None),
                owner: None,
                bytes,
            })
            .collect());
    };
    let mut entries = Vec::new();
    for item in items {
        match data.remove(&item.key) {
            Some(bytes) => entries.push(Entry {
                path: item.path.clone(),
                mode: mode(item.mode),
                owner: None,
                bytes,
            }),
            None if optional == Some(true) => {}
            None => return Err(format!("references non-existent config key: {}", item.key)),
        }
    }
    Ok(entries)
}

/// What several sources put into one folder; of two files of one path the later stays.
fn projected(
    pod: &Pod,
    volume: &ProjectedVolumeSource,
    sources: &Sources,
    group: Option<u32>,
) -> Result<Vec<Entry>, String> {
    let mode = volume.default_mode;
    let mut files: BTreeMap<String, Entry> = BTreeMap::new();
    for source in volume.sources.iter().flatten() {
        let mut entries = Vec::new();
        if let Some(source) = &source.config_map {
            let map = sources
                .config_maps
                .get(&source.name)
                .and_then(Option::as_ref);
            let data = found(
                map.map(map_data),
                "configmap",
                &source.name,
                source.optional,
            )?;
            entries.extend(chosen(
                data,
                source.items.as_deref(),
                mode,
                source.optional,
            )?);
        }
        if let Some(source) = &source.secret {
            let secret = sources.secrets.get(&source.name).and_then(Option::as_ref);
            let data = found(
                secret.map(secret_data),
                "secret",
                &source.name,
                source.optional,
            )?;
            entries.extend(chosen(
                data,
                source.items.as_deref(),
                mode,
                source.optional,
            )?);
        }
        if let Some(source) = &source.downward_api {
            entries.extend(downward(pod, source.items.as_deref(), mode, sources)?);
        }
        if let Some(source) = &source.service_account_token {
            let text = sources
                .tokens
                .get(&TokenKind::from(source))
                .ok_or("its token is not there")?;
            // With a group or a user of its own, the token need not be everybody's (upstream's rule).
            let owner = only_user(pod);
            let mode = if group.is_some() || owner.is_some() {
                0o600
            } else {
                mode.unwrap_or(DEFAULT_MODE).cast_unsigned() & 0o777
            };
            entries.push(Entry {
                path: source.path.clone(),
                mode,
                owner,
                bytes: text.as_bytes().to_vec(),
            });
        }
        files.extend(entries.into_iter().map(|entry| (entry.path.clone(), entry)));
    }
    Ok(files.into_values().collect())
}

/// The user of all containers of a pod, if each names one and it is the same.
fn only_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec.security_context.as_ref();
    let of_pod = of_pod.and_then(|security| security.run_as_user);
    let users = agent_pods::all(pod).map(|(_, container)| {
        let own = container.security_context.as_ref();
        own.and_then(|security| security.run_as_user).or(of_pod)
    });
    let users: Option<BTreeSet<i64>> = users.collect();
    let mut users = users.filter(|users| users.len() == 1)?;
    let user = users.pop_first()?;
    u32::try_from(user).ok()
}

fn downward(
    pod: &Pod,
    items: Option<&[DownwardAPIVolumeFile]>,
    default_mode: Option<i32>,
    sources: &Sources,
) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    for item in items.unwrap_or_default() {
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => pod_field(pod, &field.field_path, &sources.addresses)?,
            (None, Some(field)) => {
                let first = pod
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.containers.first())
                    .ok_or("the pod has no container")?;
                resource_field(pod, first, field, sources)?
            }
            (None, None) => return Err(format!("file {:?} names no field", item.path)),
        };
        let mode = item
            .mode
            .or(default_mode)
            .unwrap_or(DEFAULT_MODE)
            .cast_unsigned()
            & 0o777;
        entries.push(Entry {
            path: item.path.clone(),
            mode,
            owner: None,
            bytes: text.into_bytes(),
        });
    }
    Ok(entries)
}

/// A path below a folder, without a way out of it.
fn inside(path: &str) -> Option<PathBuf> {
    let path = PathBuf::from(path);
    let plain = path.components().all(
        |part| matches!(part, Component::Normal(name) if !name.to_string_lossy().starts_with("..")),
    );
    (plain && path.components().next().is_some()).then_some(path)
}

/// Makes `entries` the files of the volume in `place`, unless they are that already.
///
/// # Errors
/// If a file's path leaves its volume, or there is no room.
pub(crate) fn publish(place: &Beneath, entries: &[Entry], group: Option<u32>) -> io::Result<()> {
    let old = place.read_link(Path::new(DATA)).ok();
    let current = old.as_deref().and_then(|name| place.dir(name).ok());
    if current.is_some_and(|dir| is_current(&dir, entries)) {
        return Ok(());
    }
    let names = place.names(usize::MAX)?;
    let number =
        (0..u32::MAX).find(|number| !names.contains(&OsString::from(format!("..{number}"))));
    let name = format!("..{}", number.unwrap_or_default());
    let dir = place.make_dirs(Path::new(&name), 0o755)?;
    for entry in entries {
        let path = inside(&entry.path).ok_or_else(|| {
            io::Error::other(format!("file path {:?} leaves its volume", entry.path))
        })?;
        write(&dir, &path, entry, group)?;
    }
    place.remove_file(Path::new(SWAP))?;
    place.link(Path::new(&name), Path::new(SWAP))?;
    place.rename(Path::new(SWAP), Path::new(DATA))?;
    relink(place, &dir)?;
    // The folder before this one, and what an update that was cut short left.
    let stale = |other: &&OsString| {
        let text = other.to_string_lossy();
        text.starts_with("..") && text != DATA && text != name.as_str()
    };
    names
        .iter()
        .filter(stale)
        .try_for_each(|old| place.remove_tree(Path::new(old)))
}

fn write(dir: &Beneath, path: &Path, entry: &Entry, group: Option<u32>) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        dir.make_dirs(parent, 0o755)?;
    }
    let mode = if group.is_some() {
        entry.mode | 0o440
    } else {
        entry.mode
    };
    let mut file = dir.create(path, mode)?;
    if entry.owner.is_some() || group.is_some() {
        fchown(&file, entry.owner, group)?;
    }
    file.write_all(&entry.bytes)
}

/// Top-level links to what the current folder has, and none to what it hasn't.
fn relink(place: &Beneath, dir: &Beneath) -> io::Result<()> {
    let names = |dir: &Beneath| -> io::Result<BTreeSet<OsString>> {
        Ok(dir.names(usize::MAX)?.into_iter().collect())
    };
    let (wanted, there) = (names(dir)?, names(place)?);
    for name in there
        .difference(&wanted)
        .filter(|name| !name.to_string_lossy().starts_with(".."))
    {
        place.remove_tree(Path::new(name))?;
    }
    for name in wanted.difference(&there) {
        place.link(&Path::new(DATA).join(name), Path::new(name))?;
    }
    Ok(())
}

/// True if the folder's files are exactly `entries`.
fn is_current(dir: &Beneath, entries: &[Entry]) -> bool {
    let same = |entry: &Entry| {
        let bytes =
            inside(&entry.path).and_then(|path| dir.read(&path, entry.bytes.len() as u64).ok());
        bytes.is_some_and(|bytes| bytes == entry.bytes)
    };
    let tops: BTreeSet<OsString> = entries
        .iter()
        .filter_map(|entry| Some(entry.path.split('/').next()?.into()))
        .collect();
    let there = dir.names(entries.len() + 1).unwrap_or_default();
    there.len() == tops.len()
        && there.iter().all(|name| tops.contains(name))
        && entries.iter().all(same)
}
