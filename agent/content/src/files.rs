//! The content of config map, secret, downward API and projected volumes: which files, and how they
//! are published.
//!
//! Files lie in a folder of their own; a link `..data` points to the current one and is swapped in
//! one step, so that a container sees all of an update or nothing of it. The agent alone writes
//! there; containers see it read-only.

use crate::tokens::TokenKind;
use crate::variables::{Sources, pod_field, resource_field};
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
/// Most files of a pod's volumes, and most bytes of them together: they lie in memory that counts
/// against no pod's limit. An object has at most a mebibyte.
const MAX_FILES: usize = 8192;
const MAX_BYTES: usize = 16 << 20;

/// One file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    path: String,
    mode: u32,
    /// The owner's user id; `None`: root.
    owner: Option<u32>,
    bytes: Vec<u8>,
}

/// What a pod's volumes may still hold.
#[derive(Debug)]
pub struct Room {
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
    /// One more file for `entries`; nothing is copied before there is room for it, as a pod may
    /// name one object many times.
    ///
    /// # Errors
    /// The pod's volumes would hold more than `MAX_FILES` files or `MAX_BYTES` bytes.
    fn add(
        &mut self,
        entries: &mut Vec<Entry>,
        path: &str,
        mode: u32,
        bytes: &[u8],
    ) -> Result<(), String> {
        let left = (self.files.checked_sub(1)).zip(self.bytes.checked_sub(bytes.len()));
        let Some((files, left)) = left else {
            return Err(format!(
                "the volumes of a pod may hold {MAX_FILES} files and {} MiB of config maps, secrets and the like",
                MAX_BYTES >> 20
            ));
        };
        (self.files, self.bytes) = (files, left);
        entries.push(Entry {
            path: path.to_owned(),
            mode,
            owner: None,
            bytes: bytes.to_vec(),
        });
        Ok(())
    }
}

/// A config map or a secret, where it is there.
#[derive(Debug, Clone, Copy)]
enum Data<'a> {
    Map(&'a ConfigMap),
    Secret(&'a Secret),
    Absent,
}

impl<'a> Data<'a> {
    fn map(sources: &'a Sources, name: &str, optional: Option<bool>) -> Result<Self, String> {
        let found = sources.config_maps.get(name).and_then(Option::as_ref);
        found_or(found.map(Self::Map), "configmap", name, optional)
    }

    fn secret(sources: &'a Sources, name: &str, optional: Option<bool>) -> Result<Self, String> {
        let found = sources.secrets.get(name).and_then(Option::as_ref);
        found_or(found.map(Self::Secret), "secret", name, optional)
    }

    fn get(self, key: &str) -> Option<&'a [u8]> {
        let bytes = |data: &'a Option<BTreeMap<String, ByteString>>| {
            data.as_ref()?
                .get(key)
                .map(|ByteString(value)| value.as_slice())
        };
        match self {
            Self::Map(map) => bytes(&map.binary_data)
                .or_else(|| map.data.as_ref()?.get(key).map(String::as_bytes)),
            Self::Secret(secret) => bytes(&secret.data),
            Self::Absent => None,
        }
    }

    /// What is said of a key that is not there (upstream's words).
    fn missing_key(self) -> &'static str {
        match self {
            Self::Secret(_) => "references non-existent secret key",
            Self::Map(_) | Self::Absent => "references non-existent config key",
        }
    }

    fn keys(self) -> BTreeSet<&'a str> {
        let (text, bytes) = match self {
            Self::Map(map) => (map.data.as_ref(), map.binary_data.as_ref()),
            Self::Secret(secret) => (None, secret.data.as_ref()),
            Self::Absent => (None, None),
        };
        let text = text.into_iter().flat_map(BTreeMap::keys);
        let bytes = bytes.into_iter().flat_map(BTreeMap::keys);
        text.chain(bytes).map(String::as_str).collect()
    }
}

fn found_or<'a>(
    found: Option<Data<'a>>,
    kind: &str,
    name: &str,
    optional: Option<bool>,
) -> Result<Data<'a>, String> {
    match found {
        Some(found) => Ok(found),
        None if optional == Some(true) => Ok(Data::Absent),
        None => Err(format!("{kind} {name:?} not found")),
    }
}

/// Collects the files of a volume.
struct Collector<'a> {
    pod: &'a Pod,
    sources: &'a Sources,
    /// Mode of files that name none.
    mode: Option<i32>,
    room: &'a mut Room,
    entries: Vec<Entry>,
}

/// The folder of the volume's kind and its files; `None` for volumes that hold no content of the
/// master's.
///
/// # Errors
/// If something that it needs isn't there, or there is no room for it.
pub fn entries(
    pod: &Pod,
    volume: &Volume,
    sources: &Sources,
    group: Option<u32>,
    room: &mut Room,
) -> Result<Option<(&'static str, Vec<Entry>)>, String> {
    let mut all = Collector {
        pod,
        sources,
        mode: None,
        room,
        entries: Vec::new(),
    };
    let kind = if let Some(source) = &volume.config_map {
        all.mode = source.default_mode;
        let data = Data::map(sources, &source.name, source.optional)?;
        all.chosen(data, source.items.as_deref(), source.optional)?;
        "config-map"
    } else if let Some(source) = &volume.secret {
        all.mode = source.default_mode;
        let name = source.secret_name.as_deref().unwrap_or_default();
        let data = Data::secret(sources, name, source.optional)?;
        all.chosen(data, source.items.as_deref(), source.optional)?;
        "secret"
    } else if let Some(source) = &volume.downward_api {
        all.mode = source.default_mode;
        all.downward(source.items.as_deref())?;
        "downward-api"
    } else if let Some(source) = &volume.projected {
        all.mode = source.default_mode;
        all.projected(source, group)?;
        "projected"
    } else {
        return Ok(None);
    };
    Ok(Some((kind, all.entries)))
}

impl Collector<'_> {
    fn mode(&self, own: Option<i32>) -> u32 {
        let mode = own.or(self.mode).unwrap_or(DEFAULT_MODE);
        mode.cast_unsigned() & 0o777
    }

    fn add(&mut self, path: &str, mode: u32, bytes: &[u8]) -> Result<(), String> {
        self.room.add(&mut self.entries, path, mode, bytes)
    }

    /// The keys that the pod chose, or all.
    fn chosen(
        &mut self,
        data: Data<'_>,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
    ) -> Result<(), String> {
        let Some(items) = items.filter(|items| !items.is_empty()) else {
            let mode = self.mode(None);
            return data
                .keys()
                .into_iter()
                .try_for_each(|key| self.add(key, mode, data.get(key).unwrap_or_default()));
        };
        for item in items {
            match data.get(&item.key) {
                Some(bytes) => self.add(&item.path, self.mode(item.mode), bytes)?,
                None if optional == Some(true) => {}
                None => return Err(format!("{}: {}", data.missing_key(), item.key)),
            }
        }
        Ok(())
    }

    /// What several sources put into one folder; of two files of one path the later stays.
    fn projected(
        &mut self,
        volume: &ProjectedVolumeSource,
        group: Option<u32>,
    ) -> Result<(), String> {
        let sources = self.sources;
        for source in volume.sources.iter().flatten() {
            if let Some(source) = &source.config_map {
                let data = Data::map(sources, &source.name, source.optional)?;
                self.chosen(data, source.items.as_deref(), source.optional)?;
            }
            if let Some(source) = &source.secret {
                let data = Data::secret(sources, &source.name, source.optional)?;
                self.chosen(data, source.items.as_deref(), source.optional)?;
            }
            if let Some(source) = &source.downward_api {
                self.downward(source.items.as_deref())?;
            }
            if let Some(source) = &source.service_account_token {
                let text = sources
                    .tokens
                    .get(&TokenKind::from(source))
                    .ok_or("its token is not there")?;
                // With a group or a user of its own, the token need not be everybody's (upstream's
                // rule).
                let owner = only_user(self.pod);
                let mode = if group.is_some() || owner.is_some() {
                    0o600
                } else {
                    self.mode(None)
                };
                self.add(&source.path, mode, text.as_bytes())?;
                if let Some(token) = self.entries.last_mut() {
                    token.owner = owner;
                }
            }
        }
        let all = std::mem::take(&mut self.entries).into_iter();
        let last: BTreeMap<String, Entry> = all.map(|entry| (entry.path.clone(), entry)).collect();
        self.entries = last.into_values().collect();
        Ok(())
    }

    fn downward(&mut self, items: Option<&[DownwardAPIVolumeFile]>) -> Result<(), String> {
        let (pod, sources) = (self.pod, self.sources);
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
            self.add(&item.path, self.mode(item.mode), text.as_bytes())?;
        }
        Ok(())
    }
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
pub fn publish(place: &Beneath, entries: &[Entry], group: Option<u32>) -> io::Result<()> {
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

/// True if the folder's files are exactly `entries`: nothing else is there either, however deep
/// (upstream's rule). A folder below the top may outlive a file in it.
fn is_current(dir: &Beneath, entries: &[Entry]) -> bool {
    let same = |entry: &Entry| {
        let bytes =
            inside(&entry.path).and_then(|path| dir.read(&path, entry.bytes.len() as u64).ok());
        bytes.is_some_and(|bytes| bytes == entry.bytes)
    };
    entries.iter().all(same) && has_no_other(dir, entries).unwrap_or(false)
}

/// Whether each name in the folder is that of one of `entries`, or of a folder on the way to one.
fn has_no_other(dir: &Beneath, entries: &[Entry]) -> io::Result<bool> {
    let files: BTreeSet<PathBuf> = entries
        .iter()
        .filter_map(|entry| inside(&entry.path))
        .collect();
    let above = files.iter().flat_map(|file| file.ancestors().skip(1));
    let folders: BTreeSet<&Path> = above.chain([Path::new("")]).collect();
    for folder in &folders {
        // One name more than are wanted is enough to know.
        for name in dir.dir(folder)?.names(files.len() + 1)? {
            let path = folder.join(name);
            if !files.contains(&path) && !folders.contains(path.as_path()) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}
