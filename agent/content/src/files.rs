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
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::fchown;
use std::path::{Component, Path, PathBuf};

/// The link to the current files.
const DATA: &str = "..data";
/// The link to be, before it takes the other's place.
const SWAP: &str = "..swap";
/// The folders of the current files and of the next, in turns.
const VERSIONS: [&str; 2] = ["..0", "..1"];
/// Mode of files that name none (upstream's).
const DEFAULT_MODE: i32 = 0o644;
/// Most names that a pod's volumes take of the file system that holds them, and most bytes of all
/// their files: they lie in memory that counts against no pod's limit. A file takes two names, its
/// own and a link's, and one for each folder on its path, which each file counts anew. So these are
/// 10,237 files of one volume without folders. An object has at most a mebibyte.
const MAX_NAMES: u64 = 20_480;
const MAX_BYTES: u64 = 16 << 20;
/// Names that a volume takes without any file: the folders of its kind and its own, that of its
/// files, the link to that and the one to be.
const VOLUME_NAMES: usize = 5;
/// Bytes of a block, the least that content takes.
const BLOCK: u64 = 4096;
/// Longest name, and longest path, that the kernel takes (`NAME_MAX`, `PATH_MAX`).
const LONGEST_NAME: usize = 255;
const LONGEST_PATH: usize = 4095;

/// One file of a volume. Its path stays in the volume, and is none of those that the agent itself
/// needs there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    path: PathBuf,
    mode: u32,
    /// The owner's user id; `None`: root.
    owner: Option<u32>,
    bytes: Vec<u8>,
}

/// What content takes of the file system that holds it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Bytes, of whole blocks.
    pub bytes: u64,
    /// Files, folders and links.
    pub names: u64,
}

impl Taken {
    /// What both take together. A sum that does not fit is the largest number.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            names: self.names.saturating_add(other.names),
        }
    }
}

/// What a volume of these files takes.
pub fn taken(entries: &[Entry]) -> Taken {
    let empty = Taken {
        bytes: 0,
        names: VOLUME_NAMES as u64,
    };
    let each = entries.iter().map(|entry| Taken {
        bytes: (entry.bytes.len() as u64).next_multiple_of(BLOCK),
        names: names_of(&entry.path) as u64,
    });
    each.fold(empty, Taken::and)
}

/// Names that a file takes: its own, those of the folders above it, and that of a link to the
/// topmost of these.
fn names_of(path: &Path) -> usize {
    path.components().count() + 1
}

/// What a pod's volumes hold, up to what they may.
#[derive(Debug, Default)]
pub struct Room {
    taken: Taken,
    /// Bytes of the files themselves.
    content: u64,
}

impl Room {
    /// Room for so many names, and so many bytes of one file.
    ///
    /// # Errors
    /// The pod's volumes would take more than `MAX_NAMES` names or hold more than `MAX_BYTES`
    /// bytes.
    fn take(&mut self, names: usize, bytes: usize) -> Result<(), String> {
        let (names, bytes) = (names as u64, bytes as u64);
        let content = self.content + bytes;
        let taken = Taken {
            bytes: self.taken.bytes + bytes.next_multiple_of(BLOCK),
            names: self.taken.names + names,
        };
        if content > MAX_BYTES || taken.names > MAX_NAMES {
            return Err(format!(
                "the volumes of a pod may hold {} MiB of config maps, secrets and the like, and take {MAX_NAMES} names: \
                 two for each file and one for each folder on its path, {VOLUME_NAMES} for each volume",
                MAX_BYTES >> 20
            ));
        }
        (self.content, self.taken) = (content, taken);
        Ok(())
    }

    /// One more file for `entries`; nothing is copied before there is room for it, as a pod may
    /// name one object many times.
    ///
    /// # Errors
    /// As [`Room::take`], or the file's path can't be one of a volume.
    fn add(
        &mut self,
        entries: &mut Vec<Entry>,
        path: &str,
        mode: u32,
        bytes: &[u8],
    ) -> Result<(), String> {
        let path = inside(path)?;
        self.take(names_of(&path), bytes.len())?;
        entries.push(Entry {
            path,
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
/// If something that it needs isn't there, or there is no room for it, or no folder can hold these
/// files.
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
    all.room.take(VOLUME_NAMES, 0)?;
    Ok(Some((kind, distinct(all.entries)?)))
}

/// One file for each path: of two the later stays (upstream's rule).
///
/// # Errors
/// A file has the name of a folder that another one needs. Upstream's master takes such a pod, too,
/// and its kubelet fails where it writes the second.
fn distinct(entries: Vec<Entry>) -> Result<Vec<Entry>, String> {
    let all = entries.into_iter();
    let last: BTreeMap<PathBuf, Entry> = all.map(|entry| (entry.path.clone(), entry)).collect();
    for path in last.keys() {
        let mut above = path.ancestors().skip(1);
        if let Some(file) = above.find(|folder| last.contains_key(*folder)) {
            return Err(format!(
                "the file {} can't be in the folder {}, as the volume has a file of that name",
                path.display(),
                file.display()
            ));
        }
    }
    Ok(last.into_values().collect())
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

    /// What several sources put into one folder.
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

/// A file's path below its volume's folder. Names that begin with `..` are the agent's at the top,
/// and files' below it, as upstream has it.
///
/// # Errors
/// It leads out of the folder or to the folder itself, or no file can have it.
fn inside(path: &str) -> Result<PathBuf, String> {
    if path.len() > LONGEST_PATH {
        return Err(format!("a file path is longer than {LONGEST_PATH} bytes"));
    }
    let mut plain = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) if name.len() > LONGEST_NAME => {
                return Err(format!(
                    "a name in the file path {path:?} is longer than {LONGEST_NAME} bytes"
                ));
            }
            Component::Normal(name) => plain.push(name),
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::ParentDir => {
                return Err(format!("file path {path:?} leaves its volume"));
            }
        }
    }
    if plain.as_os_str().is_empty() {
        return Err(format!("file path {path:?} names no file"));
    }
    if is_own(plain.as_os_str()) {
        return Err(format!("file path {path:?} must not start with '..'"));
    }
    Ok(plain)
}

/// Whether a name at the top of a volume is one that the agent needs itself.
fn is_own(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"..")
}

/// Makes `entries` the files of the volume in `place`, unless they are that already. What fails
/// leaves nothing behind: its author may have it fail at each try, and what lies here counts
/// against no pod's limit.
///
/// # Errors
/// There is no room, or what is in the place can't be read or removed.
pub fn publish(place: &Beneath, entries: &[Entry], group: Option<u32>) -> io::Result<()> {
    let old = place.read_link(Path::new(DATA)).ok();
    let old = old.as_deref().map(Path::as_os_str);
    // Before there is more: what a try left that was cut short.
    remove_versions(place, old)?;
    let current = old.and_then(|name| place.dir(Path::new(name)).ok());
    if let Some(current) = current.filter(|dir| is_current(dir, entries)) {
        // The links may be what an earlier try had no room for.
        return relink(place, &current);
    }
    let other = old == Some(OsStr::new(VERSIONS[0]));
    let name = Path::new(VERSIONS[usize::from(other)]);
    let dir = match make(place, name, entries, group) {
        Ok(dir) => dir,
        Err(error) => {
            // What can't be removed now is removed before the next try.
            place.remove_tree(name).ok();
            return Err(error);
        }
    };
    remove_versions(place, Some(name.as_os_str()))?;
    relink(place, &dir)
}

/// Writes the files into a new folder and has [`DATA`] lead to it, as the last step.
fn make(
    place: &Beneath,
    name: &Path,
    entries: &[Entry],
    group: Option<u32>,
) -> io::Result<Beneath> {
    let dir = place.make_dirs(name, 0o755)?;
    for entry in entries {
        write(&dir, entry, group)?;
    }
    place.link(name, Path::new(SWAP))?;
    place.rename(Path::new(SWAP), Path::new(DATA))?;
    Ok(dir)
}

/// Removes all folders of files but this one, and a link that has not taken the other's place.
fn remove_versions(place: &Beneath, kept: Option<&OsStr>) -> io::Result<()> {
    let names = place.names(usize::MAX)?;
    let mut own = names.iter().filter(|name| is_own(name));
    own.try_for_each(|name| {
        if name == DATA || Some(name.as_os_str()) == kept {
            return Ok(());
        }
        place.remove_tree(Path::new(name))
    })
}

fn write(dir: &Beneath, entry: &Entry, group: Option<u32>) -> io::Result<()> {
    if let Some(parent) = entry.path.parent() {
        dir.make_dirs(parent, 0o755)?;
    }
    let mode = if group.is_some() {
        entry.mode | 0o440
    } else {
        entry.mode
    };
    let mut file = dir.create(&entry.path, mode)?;
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
    for name in there.difference(&wanted).filter(|name| !is_own(name)) {
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
        let bytes = dir.read(&entry.path, entry.bytes.len() as u64);
        bytes.is_ok_and(|bytes| bytes == entry.bytes)
    };
    entries.iter().all(same) && has_no_other(dir, entries).unwrap_or(false)
}

/// Whether each name in the folder is that of one of `entries`, or of a folder on the way to one.
fn has_no_other(dir: &Beneath, entries: &[Entry]) -> io::Result<bool> {
    let files: BTreeSet<&Path> = entries.iter().map(|entry| entry.path.as_path()).collect();
    let above = files.iter().flat_map(|file| file.ancestors().skip(1));
    let folders: BTreeSet<&Path> = above.chain([Path::new("")]).collect();
    for folder in &folders {
        // One name more than are wanted is enough to know.
        for name in dir.dir(folder)?.names(files.len() + 1)? {
            let path = folder.join(name);
            if !files.contains(path.as_path()) && !folders.contains(path.as_path()) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}
