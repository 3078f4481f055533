//! Volumes of a pod: made, brought up to date, and resolved to what a container is to see.
//!
//! What the agent fills (config maps, secrets, tokens, the downward API) lies in memory and is
//! read-only for containers, always. What pods fill lies on the disk, or in memory where they ask
//! for it, and is entered by descriptors only: pods choose every name below a volume (see
//! `agent_sys::beneath`).

use crate::host_paths::right_of;
use crate::machine::Machine;
use crate::shares;
use crate::stage::memory_folder;
use agent_claims::{Mounted, Right, What, fs_group, sub_path_handle};
use agent_content::files::{self, Entry};
use agent_content::{Keys, Room, SourceNames, Sources, Taken, TokenKind};
use agent_pods::{is_plain, pod_logs};
use agent_resources::{Measure, PodFolders, VolumePlace};
use agent_runtime::PodRef;
use agent_sys::beneath::{Beneath, Links, PathHandle};
use agent_sys::mount::{is_in_memory, is_mount_point};
use config_kube::k8s_openapi::api::core::v1::{
    EmptyDirVolumeSource, HostPathVolumeSource, Pod, Volume, VolumeProjection,
};
use config_kube::quantity::Amount;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};

/// Where a volume is.
#[derive(Debug, Clone, PartialEq)]
pub enum VolumeLocation {
    /// A folder that the agent alone fills, in memory.
    Held(PathBuf),
    /// A folder that the pod's containers fill.
    Own(PathBuf),
    /// A file or folder of the machine.
    Host(HostPathVolumeSource, Right),
    /// What a CSI driver has mounted, below the folder of the machine's volumes.
    Driver(PathBuf),
    /// Another source, which the pod may only read.
    ReadOnly(Box<VolumeLocation>),
    /// The files of an image, which nobody writes.
    Image {
        /// Where they are.
        place: PathBuf,
        /// The engine's name for its layers.
        layers: String,
    },
}

/// The objects that a pod's volumes need.
pub fn needs(pod: &Pod) -> SourceNames {
    let mut needs = SourceNames::default();
    for volume in volumes(pod) {
        if let Some(source) = &volume.config_map {
            needs.config_map(&source.name, Keys::chosen(source.items.as_deref()));
        }
        if let Some(source) = &volume.secret
            && let Some(name) = &source.secret_name
        {
            needs.secret(name, Keys::chosen(source.items.as_deref()));
        }
    }
    for source in projections(pod) {
        if let Some(map) = &source.config_map {
            needs.config_map(&map.name, Keys::chosen(map.items.as_deref()));
        }
        if let Some(secret) = &source.secret {
            needs.secret(&secret.name, Keys::chosen(secret.items.as_deref()));
        }
    }
    needs
}

/// The tokens that a pod's volumes need.
pub fn tokens(pod: &Pod) -> Vec<TokenKind> {
    projections(pod)
        .filter_map(|source| source.service_account_token.as_ref())
        .map(TokenKind::from)
        .collect()
}

/// A copy of the pod that has only the volumes with a token.
pub fn with_tokens(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    let spec = pod.spec.as_mut();
    if let Some(volumes) = spec.and_then(|spec| spec.volumes.as_mut()) {
        volumes.retain(shows_token);
    }
    pod
}

fn shows_token(volume: &Volume) -> bool {
    let projected = volume.projected.iter();
    let mut sources = projected.flat_map(|projected| projected.sources.iter().flatten());
    sources.any(|source| source.service_account_token.is_some())
}

/// A pod's labels and annotations.
pub type Noted = [BTreeMap<String, String>; 2];

/// A pod's labels and annotations, if a downward API volume of it shows any of them.
pub fn shown_notes(pod: &Pod) -> Option<Noted> {
    let direct = volumes(pod).iter();
    let direct = direct.filter_map(|volume| volume.downward_api.as_ref()?.items.as_ref());
    let parts = projections(pod);
    let parts = parts.filter_map(|source| source.downward_api.as_ref()?.items.as_ref());
    let mut fields = direct
        .chain(parts)
        .flatten()
        .filter_map(|item| item.field_ref.as_ref());
    let shows = fields.any(|field| {
        let path = &field.field_path;
        path.starts_with("metadata.labels") || path.starts_with("metadata.annotations")
    });
    let notes = [&pod.metadata.labels, &pod.metadata.annotations];
    shows.then(|| notes.map(|notes| notes.clone().unwrap_or_default()))
}

fn projections(pod: &Pod) -> impl Iterator<Item = &VolumeProjection> {
    let projected = volumes(pod)
        .iter()
        .filter_map(|volume| volume.projected.as_ref());
    projected.flat_map(|projected| projected.sources.iter().flatten())
}

fn volumes(pod: &Pod) -> &[Volume] {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.volumes.as_deref())
        .unwrap_or_default()
}

/// Makes or refreshes all volumes of a pod; returns where each is. Content is written only if it
/// fits into the pod's share of memory. If one volume's content is refused, the other volumes are
/// only refreshed where they exist. If there is no room for that either, only those with a token
/// are, since tokens expire.
///
/// # Errors
/// In upstream's words, with the volume's name.
pub fn prepare(
    pod: &Pod,
    uid: &str,
    machine: &Machine,
    sources: &Sources,
) -> Result<BTreeMap<String, VolumeLocation>, String> {
    let fault = |volume: &Volume, error: String| {
        let name = &volume.name;
        format!("MountVolume.SetUp failed for volume {name:?} : {error}")
    };
    let (group, mut room) = (fs_group(pod), Room::default());
    // Volumes of images are made when the containers that mount them start.
    let others = volumes(pod).iter().filter(|volume| volume.image.is_none());
    let (mut contents, mut refused) = (Vec::new(), None);
    for volume in others {
        match files::entries(pod, volume, sources, group, &mut room) {
            Ok(content) => contents.push((volume, content)),
            Err(error) => {
                refused.get_or_insert_with(|| fault(volume, error));
            }
        }
    }
    let held = machine.held_dir(uid);
    let is_there = |volume: &Volume, content: &Content| {
        let content = content.as_ref();
        content.is_some_and(|(kind, _)| held.join(kind).join(&volume.name).is_dir())
    };
    if refused.is_some() {
        contents.retain(|(volume, content)| is_there(volume, content));
    }
    let maker = Maker {
        pod,
        uid,
        machine,
        sources,
    };
    if let Err(error) = maker.take(&contents) {
        // Tokens expire in containers that run.
        contents.retain(|(volume, content)| shows_token(volume) && is_there(volume, content));
        if maker.take(&contents).is_err() {
            contents.clear();
        }
        refused.get_or_insert(error);
    }
    let mut places = BTreeMap::new();
    for (volume, content) in contents {
        let place = maker.volume(volume, content);
        let place = place.map_err(|error| fault(volume, error))?;
        places.insert(volume.name.clone(), place);
    }
    refused.map_or(Ok(places), Err)
}

/// For a volume whose content comes from the master: the folder of its kind, and its files.
type Content = Option<(&'static str, Vec<Entry>)>;

/// What volumes are made from.
struct Maker<'a> {
    pod: &'a Pod,
    uid: &'a str,
    machine: &'a Machine,
    sources: &'a Sources,
}

impl Maker<'_> {
    /// Reserves memory for the content of these volumes, and for what the pod's other volumes
    /// already hold: a volume that is refused keeps its files.
    ///
    /// # Errors
    /// As [`shares::take`].
    fn take(&self, contents: &[(&Volume, Content)]) -> Result<(), String> {
        let (mut wanted, mut own) = (Taken::default(), BTreeSet::new());
        for (volume, content) in contents {
            if let Some((kind, entries)) = content {
                wanted = wanted.and(files::taken(entries));
                own.insert(Path::new(kind).join(&volume.name));
            }
        }
        if own.is_empty() {
            return Ok(());
        }
        let held = self.machine.run.join("held");
        let wanted = wanted.and(shares::kept(&held, self.uid, &own)?);
        let namespace = self.pod.metadata.namespace.as_deref();
        shares::take(&held, self.uid, namespace.unwrap_or_default(), wanted)
    }

    fn volume(&self, volume: &Volume, content: Content) -> Result<VolumeLocation, String> {
        if let Some(mounted) = self.sources.claims.get(&volume.name) {
            return self.claimed(mounted);
        }
        if let Some(host) = &volume.host_path {
            let right = right_of(self.machine, self.pod);
            // Checked here before any container is made, and again for each container.
            self.machine.paths().place(host, right, true, None)?;
            let source = VolumeLocation::Host(host.clone(), right);
            let writable = self.machine.paths().is_writable(host, right);
            return Ok(if writable {
                source
            } else {
                VolumeLocation::ReadOnly(Box::new(source))
            });
        }
        if !is_plain(&volume.name) {
            return Err("its name can't be a folder's".to_owned());
        }
        let group = fs_group(self.pod);
        if let Some(source) = &volume.empty_dir {
            return self
                .empty_dir(&volume.name, source, group)
                .map(VolumeLocation::Own);
        }
        let Some((kind, entries)) = content else {
            return Err("its kind is not available yet".to_owned());
        };
        let dir = self.machine.held_dir(self.uid);
        let place = dir.join(kind).join(&volume.name);
        let made = Beneath::make_root(&dir).and_then(|held| {
            if !is_in_memory(&dir) {
                return Err(io::Error::other("its content would be written to a disk"));
            }
            let folder = held.make_dirs(&Path::new(kind).join(&volume.name), 0o755)?;
            files::publish(&folder, &entries, group)
        });
        made.map(|()| VolumeLocation::Held(place))
            .map_err(|error| error.to_string())
    }

    /// What a claim leads to.
    fn claimed(&self, mounted: &Mounted) -> Result<VolumeLocation, String> {
        let source = match &mounted.what {
            What::Folder(path) => VolumeLocation::Own(path.clone()),
            What::Path(host) => {
                self.machine
                    .paths()
                    .place(host, Right::Listed, true, None)?;
                VolumeLocation::Host(host.clone(), Right::Listed)
            }
            What::Driver(path) => VolumeLocation::Driver(path.clone()),
        };
        Ok(if mounted.read_only {
            VolumeLocation::ReadOnly(Box::new(source))
        } else {
            source
        })
    }

    /// A folder for the pod's containers; once made it stays as they leave it.
    fn empty_dir(
        &self,
        name: &str,
        source: &EmptyDirVolumeSource,
        group: Option<u32>,
    ) -> Result<PathBuf, String> {
        let mode = if group.is_some() { 0o2777 } else { 0o777 };
        let text = |error: io::Error| error.to_string();
        if source.medium.as_deref() == Some("Memory") {
            let place = self.machine.memory_dir(self.uid).join(name);
            std::fs::create_dir_all(&place).map_err(text)?;
            if !is_mount_point(&place.to_string_lossy()) {
                // Sticky, as the kernel makes the root of such a file system and upstream leaves
                // it.
                let mode = mode | 0o1000;
                let group = group.map_or(String::new(), |group| format!(",gid={group}"));
                memory_folder(
                    &place,
                    self.memory_size(source),
                    &format!("mode={mode:o}{group}"),
                )
                .map_err(|error| error.to_string())?;
            }
            return Ok(place);
        }
        let parent = self.machine.pod_dir(self.uid).join(Machine::EMPTY_DIRS);
        let folder = Beneath::make_root(&parent).map_err(text)?;
        let (name, new) = (Path::new(name), Path::new(".new"));
        match folder.dir(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found.map(|_| parent.join(name)).map_err(text),
        }
        // Renamed last, so that a folder of this name is complete.
        let make = || {
            folder.remove_tree(new)?;
            let fresh = folder.make_dirs(new, mode)?;
            if let Some(group) = group {
                fresh.set_group(group)?;
                fresh.set_mode(mode)?;
            }
            folder.rename(new, name)
        };
        make().map(|()| parent.join(name)).map_err(text)
    }

    /// Bytes of a volume in memory: the least of its own limit, the pod's, and what all pods may
    /// use (upstream's rule).
    fn memory_size(&self, source: &EmptyDirVolumeSource) -> u64 {
        let bytes = |amount: Amount| u64::try_from(amount.ceil_units()).unwrap_or(u64::MAX);
        let own = source
            .size_limit
            .as_ref()
            .and_then(|limit| Amount::try_from(limit).ok());
        let own = own.filter(|limit| *limit > Amount::ZERO).map(bytes);
        let pods = agent_resources::qos::pod_resources(self.pod).memory_limit;
        let all = self.sources.allocatable.get("memory").copied().map(bytes);
        [own, pods, all].into_iter().flatten().min().unwrap_or(0)
    }
}

/// The folders by which the pod's use of disks and memory is measured, and the volumes of which
/// drivers are asked. Paths of the machine are not measured.
pub fn measured(
    machine: &Machine,
    pod: &Pod,
    reference: &PodRef,
    made: &BTreeMap<String, VolumeLocation>,
) -> PodFolders {
    let claims: BTreeMap<_, _> = agent_claims::wanted(pod).into_iter().collect();
    let place = |volume: &Volume| {
        let (folder, measure) = match unwrapped(made.get(&volume.name)?) {
            VolumeLocation::Held(folder) => (folder, Measure::FilesInMemory),
            VolumeLocation::Own(folder) if claims.contains_key(&volume.name) => {
                (folder, Measure::FileSystem)
            }
            VolumeLocation::Own(folder) if folder.starts_with(&machine.run) => {
                (folder, Measure::FilesInMemory)
            }
            VolumeLocation::Own(folder) => (folder, Measure::Files),
            VolumeLocation::Driver(folder) => (folder, Measure::Driver),
            VolumeLocation::Host(..)
            | VolumeLocation::ReadOnly(_)
            | VolumeLocation::Image { .. } => return None,
        };
        let claim = claims.get(&volume.name).map(|claim| claim.name.clone());
        Some(VolumePlace {
            name: volume.name.clone(),
            claim,
            folder: folder.clone(),
            measure,
        })
    };
    PodFolders {
        namespace: reference.namespace.clone(),
        logs: machine.logs.join(pod_logs(reference)),
        volumes: volumes(pod).iter().filter_map(place).collect(),
    }
}

/// The source inside [`VolumeLocation::ReadOnly`].
fn unwrapped(mut source: &VolumeLocation) -> &VolumeLocation {
    while let VolumeLocation::ReadOnly(inner) = source {
        source = inner;
    }
    source
}

/// What a container is to see of a volume: all of it, or what is at `sub_path`, made as a folder
/// where nothing is there. Resolved here, once; a later change of the name has no effect.
///
/// # Errors
/// If it isn't there and can't be made, or a link is on the way.
pub(crate) fn place(
    machine: &Machine,
    source: &VolumeLocation,
    sub_path: Option<&str>,
    read_only: bool,
) -> Result<PathHandle, String> {
    let text = |error: io::Error| error.to_string();
    let plain = sub_path.map(plain_sub_path).transpose()?;
    // Without a sub-path it is the volume's folder.
    let below = plain.as_deref().unwrap_or(Path::new(""));
    match source {
        VolumeLocation::ReadOnly(source) => place(machine, source, sub_path, true),
        // Keys are links to the current folder; only the agent makes links there.
        VolumeLocation::Held(path) => Beneath::root(path)
            .and_then(|dir| dir.handle(below, Links::Inside))
            .map_err(text),
        VolumeLocation::Own(path) => {
            let dir = Beneath::root(path).map_err(text)?;
            sub_path_handle(&dir, below, true).map_err(text)
        }
        VolumeLocation::Image { place, .. } => {
            let dir = Beneath::root(place).map_err(text)?;
            sub_path_handle(&dir, below, false).map_err(text)
        }
        VolumeLocation::Host(host, right) => {
            machine
                .paths()
                .place(host, *right, read_only, plain.as_deref())
        }
        VolumeLocation::Driver(path) => {
            let dir = driven(machine, path).map_err(text)?;
            sub_path_handle(&dir, below, !read_only).map_err(text)
        }
    }
}

fn plain_sub_path(path: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    let plain = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    if plain {
        Ok(path)
    } else {
        Err("it must be relative and without ..".to_owned())
    }
}

/// What a driver has mounted at a path below the folder of the machine's volumes: pods of drivers
/// can change that path, so no link is followed, and a folder that is no mount is an error.
fn driven(machine: &Machine, path: &Path) -> io::Result<Beneath> {
    let parent = path.parent().unwrap_or(Path::new(""));
    let folder = Beneath::root(&machine.data)?.dir(parent)?;
    let name = Path::new(path.file_name().unwrap_or_default());
    if folder.is_mount(name)? {
        return folder.dir(name);
    }
    Err(io::Error::other("its driver has nothing mounted there"))
}

#[cfg(test)]
#[path = "volumes_tests.rs"]
mod tests;
