//! Volumes of a pod as folders of the host: made, filled from config maps and secrets, brought up to date.
//!
//! Files of config maps, secrets and the downward API lie in a folder of their own; a link `..data` points to
//! the current one and is swapped in one step, so that a container sees all of an update or nothing of it.

use crate::env::{Sources, pod_field, resource_field};
use crate::tokens::TokenKind;
use config_kube::k8s_openapi::ByteString;
use config_kube::k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, HostPathVolumeSource, KeyToPath, Pod, ProjectedVolumeSource, Secret, Volume,
    VolumeProjection,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

/// The link to the current files.
const DATA: &str = "..data";
/// Mode of files that name none (upstream's).
const DEFAULT_MODE: i32 = 0o644;
/// Folders of the host by which a container could act as the machine: its keys, its engine, its devices and
/// its processes. Neither they, nor what is in them, nor what holds them is given to a container.
const FORBIDDEN: [&str; 8] = [
    "/run/pratique",
    "/run/containerd",
    "/var/lib/pratique",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/dev",
    "/proc",
    "/sys/kernel",
];
/// What lies in a forbidden folder and is harmless.
const HARMLESS: [&str; 1] = ["/dev/shm"];

/// One file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    path: String,
    mode: u32,
    bytes: Vec<u8>,
}

/// Names of the config maps and secrets that a pod's volumes need.
pub(crate) fn needs(pod: &Pod) -> (BTreeSet<String>, BTreeSet<String>) {
    let volumes = || volumes(pod).iter();
    let maps = volumes().filter_map(|volume| volume.config_map.as_ref()).map(|source| source.name.clone());
    let maps = maps.chain(projections(pod).filter_map(|source| source.config_map.as_ref()).map(|map| map.name.clone()));
    let secrets = volumes().filter_map(|volume| volume.secret.as_ref()?.secret_name.clone());
    let projected = projections(pod).filter_map(|source| source.secret.as_ref()).map(|secret| secret.name.clone());
    (maps.collect(), secrets.chain(projected).collect())
}

/// The tokens that a pod's volumes need.
pub(crate) fn tokens(pod: &Pod) -> Vec<TokenKind> {
    projections(pod).filter_map(|source| source.service_account_token.as_ref()).map(TokenKind::from).collect()
}

fn projections(pod: &Pod) -> impl Iterator<Item = &VolumeProjection> {
    let projected = volumes(pod).iter().filter_map(|volume| volume.projected.as_ref());
    projected.flat_map(|projected| projected.sources.iter().flatten())
}

fn volumes(pod: &Pod) -> &[Volume] {
    pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default()
}

/// Makes or refreshes all volumes of a pod under `dir`; returns where each is on the host.
pub(crate) fn prepare(pod: &Pod, dir: &Path, sources: &Sources) -> Result<BTreeMap<String, PathBuf>, String> {
    let group = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref()?.fs_group);
    let group = group.and_then(|group| u32::try_from(group).ok());
    let mut places = BTreeMap::new();
    for volume in volumes(pod) {
        let fault = |error: String| format!("MountVolume.SetUp failed for volume {:?} : {error}", volume.name);
        let place = prepare_one(pod, volume, dir, sources, group).map_err(fault)?;
        places.insert(volume.name.clone(), place);
    }
    Ok(places)
}

fn prepare_one(
    pod: &Pod,
    volume: &Volume,
    dir: &Path,
    sources: &Sources,
    group: Option<u32>,
) -> Result<PathBuf, String> {
    if let Some(host) = &volume.host_path {
        return host_path(host);
    }
    if !crate::names::is_plain(&volume.name) {
        return Err("its name can't be a folder's".to_owned());
    }
    let place = |kind: &str| dir.join("volumes").join(kind).join(&volume.name);
    let io = |error: io::Error| error.to_string();
    if volume.empty_dir.is_some() {
        let place = place("empty-dir");
        if !place.exists() {
            fs::DirBuilder::new().recursive(true).create(&place).map_err(io)?;
            let mode = if group.is_some() { 0o2777 } else { 0o777 };
            own(&place, group)
                .and_then(|()| fs::set_permissions(&place, fs::Permissions::from_mode(mode)))
                .map_err(io)?;
        }
        return Ok(place);
    }
    let (kind, entries) = if let Some(source) = &volume.config_map {
        let map = sources.config_maps.get(&source.name).and_then(Option::as_ref);
        let data = found(map.map(map_data), "configmap", &source.name, source.optional)?;
        ("config-map", chosen(data, source.items.as_deref(), source.default_mode, source.optional)?)
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.clone().unwrap_or_default();
        let secret = sources.secrets.get(&name).and_then(Option::as_ref);
        let data = found(secret.map(secret_data), "secret", &name, source.optional)?;
        ("secret", chosen(data, source.items.as_deref(), source.default_mode, source.optional)?)
    } else if let Some(source) = &volume.downward_api {
        ("downward-api", downward(pod, source.items.as_deref(), source.default_mode, sources)?)
    } else if let Some(source) = &volume.projected {
        ("projected", projected(pod, source, sources, group)?)
    } else {
        return Err("its kind is not available yet".to_owned());
    };
    let place = place(kind);
    publish(&place, &entries, group).map_err(io)?;
    Ok(place)
}

fn map_data(map: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = map.data.iter().flatten().map(|(key, value)| (key.clone(), value.clone().into_bytes()));
    let binary = map.binary_data.iter().flatten().map(|(key, ByteString(value))| (key.clone(), value.clone()));
    text.chain(binary).collect()
}

fn secret_data(secret: &Secret) -> BTreeMap<String, Vec<u8>> {
    secret.data.iter().flatten().map(|(key, ByteString(value))| (key.clone(), value.clone())).collect()
}

fn found<T: Default>(data: Option<T>, kind: &str, name: &str, optional: Option<bool>) -> Result<T, String> {
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
    let mode = |mode: Option<i32>| mode.or(default_mode).unwrap_or(DEFAULT_MODE).cast_unsigned() & 0o777;
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        return Ok(data.into_iter().map(|(path, bytes)| Entry { path, mode: mode(None), bytes }).collect());
    };
    let mut entries = Vec::new();
    for item in items {
        match data.remove(&item.key) {
            Some(bytes) => entries.push(Entry { path: item.path.clone(), mode: mode(item.mode), bytes }),
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
            let map = sources.config_maps.get(&source.name).and_then(Option::as_ref);
            let data = found(map.map(map_data), "configmap", &source.name, source.optional)?;
            entries.extend(chosen(data, source.items.as_deref(), mode, source.optional)?);
        }
        if let Some(source) = &source.secret {
            let secret = sources.secrets.get(&source.name).and_then(Option::as_ref);
            let data = found(secret.map(secret_data), "secret", &source.name, source.optional)?;
            entries.extend(chosen(data, source.items.as_deref(), mode, source.optional)?);
        }
        if let Some(source) = &source.downward_api {
            entries.extend(downward(pod, source.items.as_deref(), mode, sources)?);
        }
        if let Some(source) = &source.service_account_token {
            let text = sources.tokens.get(&TokenKind::from(source)).ok_or("its token is not there")?;
            // With a group of its own, the volume need not be everybody's (upstream's rule).
            let mode = if group.is_some() { 0o600 } else { mode.unwrap_or(DEFAULT_MODE).cast_unsigned() & 0o777 };
            entries.push(Entry { path: source.path.clone(), mode, bytes: text.as_bytes().to_vec() });
        }
        files.extend(entries.into_iter().map(|entry| (entry.path.clone(), entry)));
    }
    Ok(files.into_values().collect())
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
                let first =
                    pod.spec.as_ref().and_then(|spec| spec.containers.first()).ok_or("the pod has no container")?;
                resource_field(pod, first, field, sources)?
            }
            (None, None) => return Err(format!("file {:?} names no field", item.path)),
        };
        let mode = item.mode.or(default_mode).unwrap_or(DEFAULT_MODE).cast_unsigned() & 0o777;
        entries.push(Entry { path: item.path.clone(), mode, bytes: text.into_bytes() });
    }
    Ok(entries)
}

/// A path below a folder, without a way out of it.
fn inside(path: &str) -> Option<PathBuf> {
    let path = PathBuf::from(path);
    let plain = path
        .components()
        .all(|part| matches!(part, Component::Normal(name) if !name.to_string_lossy().starts_with("..")));
    (plain && path.components().next().is_some()).then_some(path)
}

/// Makes `entries` the files of the volume, unless they are that already.
fn publish(place: &Path, entries: &[Entry], group: Option<u32>) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(place)?;
    if current(place, entries) {
        return Ok(());
    }
    let number = (0..u32::MAX).find(|number| !place.join(format!("..{number}")).exists()).unwrap_or_default();
    let name = format!("..{number}");
    let dir = place.join(&name);
    fs::DirBuilder::new().mode(0o755).create(&dir)?;
    for entry in entries {
        let path = inside(&entry.path)
            .ok_or_else(|| io::Error::other(format!("file path {:?} leaves its volume", entry.path)))?;
        write(&dir.join(path), entry, group)?;
    }
    let old = fs::read_link(place.join(DATA)).ok();
    let swap = place.join("..swap");
    fs::remove_file(&swap).or_else(absent_is_fine)?;
    symlink(&name, &swap)?;
    fs::rename(&swap, place.join(DATA))?;
    relink(place, &dir)?;
    match old {
        Some(old) => fs::remove_dir_all(place.join(old)).or_else(absent_is_fine),
        None => Ok(()),
    }
}

fn absent_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn write(path: &Path, entry: &Entry, group: Option<u32>) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(path)?;
    io::Write::write_all(&mut file, &entry.bytes)?;
    own(path, group)?;
    let mode = if group.is_some() { entry.mode | 0o440 } else { entry.mode };
    file.set_permissions(fs::Permissions::from_mode(mode))
}

fn own(path: &Path, group: Option<u32>) -> io::Result<()> {
    match group {
        Some(group) => Ok(nix::unistd::chown(path, None, Some(nix::unistd::Gid::from_raw(group)))?),
        None => Ok(()),
    }
}

/// Top-level links to what the current folder has, and none to what it hasn't.
fn relink(place: &Path, dir: &Path) -> io::Result<()> {
    let names = |dir: &Path| -> io::Result<BTreeSet<std::ffi::OsString>> {
        fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.file_name())).collect()
    };
    let wanted = names(dir)?;
    for name in names(place)? {
        if !name.to_string_lossy().starts_with("..") && !wanted.contains(&name) {
            fs::remove_file(place.join(name))?;
        }
    }
    for name in wanted {
        let link = place.join(&name);
        if link.symlink_metadata().is_err() {
            symlink(Path::new(DATA).join(&name), link)?;
        }
    }
    Ok(())
}

/// True if the volume's files are exactly `entries`.
fn current(place: &Path, entries: &[Entry]) -> bool {
    let dir = place.join(DATA);
    let same = |entry: &Entry| {
        inside(&entry.path).is_some_and(|path| fs::read(dir.join(path)).is_ok_and(|bytes| bytes == entry.bytes))
    };
    let count = fs::read_dir(&dir).map_or(usize::MAX, Iterator::count);
    let tops: BTreeSet<_> = entries.iter().filter_map(|entry| entry.path.split('/').next()).collect();
    count == tops.len() && entries.iter().all(same)
}

/// A folder or file of the host, made where the pod asks for that, checked where it is.
fn host_path(source: &HostPathVolumeSource) -> Result<PathBuf, String> {
    let path = PathBuf::from(&source.path);
    let kind = source.type_.as_deref().unwrap_or_default();
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return Err(format!("hostPath {} must be absolute and without ..", source.path));
    }
    allowed(&path)?;
    let io = |error: io::Error| format!("hostPath {}: {error}", source.path);
    match kind {
        "DirectoryOrCreate" => fs::DirBuilder::new().recursive(true).mode(0o755).create(&path).map_err(io)?,
        "FileOrCreate" => drop(fs::File::options().append(true).create(true).mode(0o644).open(&path).map_err(io)?),
        _ => {}
    }
    // Links are followed now, and what they lead to is what the container gets.
    let real = fs::canonicalize(&path).map_err(io)?;
    allowed(&real)?;
    let meta = fs::metadata(&real).map_err(io)?;
    let fits = match kind {
        "" => true,
        "Directory" | "DirectoryOrCreate" => meta.is_dir(),
        "File" | "FileOrCreate" => meta.is_file(),
        "Socket" => std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()),
        _ => return Err(format!("hostPath type {kind} is not available yet")),
    };
    if fits { Ok(real) } else { Err(format!("hostPath type check failed: {} is not a {kind}", source.path)) }
}

/// Refuses what would put the machine itself into a container's hands.
fn allowed(path: &Path) -> Result<(), String> {
    if HARMLESS.iter().any(|harmless| path.starts_with(harmless)) {
        return Ok(());
    }
    match FORBIDDEN.iter().find(|forbidden| path.starts_with(forbidden) || Path::new(forbidden).starts_with(path)) {
        Some(forbidden) => Err(format!("hostPath {} is refused: {forbidden} is the machine's own", path.display())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(volume: Value) -> Pod {
        let mut volume = volume;
        volume["name"] = json!("v");
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": [volume]}}))
            .unwrap()
    }

    fn sources(data: &Value) -> Sources {
        let map: ConfigMap = serde_json::from_value(json!({"data": data})).unwrap();
        Sources { config_maps: [("m".to_owned(), Some(map))].into(), ..Sources::default() }
    }

    #[test]
    fn an_update_replaces_all_files_and_removes_what_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let pod = pod(json!({"configMap": {"name": "m"}}));
        let place = prepare(&pod, dir.path(), &sources(&json!({"a": "1", "b": "2"}))).unwrap()["v"].clone();
        assert_eq!(fs::read_to_string(place.join("a")).unwrap(), "1");
        prepare(&pod, dir.path(), &sources(&json!({"a": "3", "c": "4"}))).unwrap();
        assert_eq!(fs::read_to_string(place.join("a")).unwrap(), "3");
        assert_eq!(fs::read_to_string(place.join("c")).unwrap(), "4");
        assert!(!place.join("b").exists());
        let before = fs::read_link(place.join(DATA)).unwrap();
        prepare(&pod, dir.path(), &sources(&json!({"a": "3", "c": "4"}))).unwrap();
        assert_eq!(fs::read_link(place.join(DATA)).unwrap(), before, "nothing changed, nothing is written");
    }

    #[test]
    fn chosen_keys_get_their_paths_and_modes() {
        let dir = tempfile::tempdir().unwrap();
        let volume = json!({"configMap": {"name": "m", "items": [{"key": "a", "path": "sub/x", "mode": 0o400}]}});
        let place = prepare(&pod(volume), dir.path(), &sources(&json!({"a": "1", "b": "2"}))).unwrap()["v"].clone();
        assert_eq!(fs::metadata(place.join("sub/x")).unwrap().permissions().mode() & 0o777, 0o400);
        assert!(!place.join("b").exists());
    }

    #[test]
    fn a_projected_volume_holds_the_files_of_all_its_sources() {
        let dir = tempfile::tempdir().unwrap();
        let volume = json!({"projected": {"defaultMode": 0o400, "sources": [
            {"configMap": {"name": "m", "items": [{"key": "a", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            {"secret": {"name": "s", "optional": true}},
        ]}});
        let pod = pod(volume);
        assert_eq!(needs(&pod), (["m".to_owned()].into(), ["s".to_owned()].into()));
        let place = prepare(&pod, dir.path(), &sources(&json!({"a": "1", "b": "2"}))).unwrap()["v"].clone();
        assert_eq!(fs::read_to_string(place.join("ca.crt")).unwrap(), "1");
        assert_eq!(fs::read_to_string(place.join("name")).unwrap(), "p");
        assert_eq!(fs::metadata(place.join("name")).unwrap().permissions().mode() & 0o777, 0o400);
        assert!(!place.join("b").exists());
    }

    #[test]
    fn a_volume_whose_token_was_not_given_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let pod = pod(json!({"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}));
        assert_eq!(tokens(&pod).len(), 1);
        let error = prepare(&pod, dir.path(), &Sources::default()).unwrap_err();
        assert_eq!(error, "MountVolume.SetUp failed for volume \"v\" : its token is not there");
    }

    #[test]
    fn a_path_that_leaves_its_volume_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["../x", "/x", "a/../../x", ""] {
            let volume = json!({"configMap": {"name": "m", "items": [{"key": "a", "path": path}]}});
            assert!(prepare(&pod(volume), dir.path(), &sources(&json!({"a": "1"}))).is_err(), "{path:?}");
        }
    }

    #[test]
    fn a_missing_source_is_named_unless_it_is_optional() {
        let dir = tempfile::tempdir().unwrap();
        let error = prepare(&pod(json!({"secret": {"secretName": "s"}})), dir.path(), &Sources::default()).unwrap_err();
        assert_eq!(error, "MountVolume.SetUp failed for volume \"v\" : secret \"s\" not found");
        let optional = pod(json!({"secret": {"secretName": "s", "optional": true}}));
        assert!(prepare(&optional, dir.path(), &Sources::default()).is_ok());
    }

    #[test]
    fn the_machines_own_folders_are_given_to_nobody() {
        for path in ["/", "/dev", "/dev/tpmrm0", "/run", "/run/pratique/attestor.sock", "/var", "/proc/1", "/sys"] {
            assert!(allowed(Path::new(path)).is_err(), "{path}");
        }
        for path in ["/var/log", "/etc", "/dev/shm", "/srv/data", "/runner"] {
            assert!(allowed(Path::new(path)).is_ok(), "{path}");
        }
    }

    #[test]
    fn a_link_into_a_forbidden_folder_is_seen_through() {
        let dir = tempfile::tempdir().unwrap();
        symlink("/dev", dir.path().join("link")).unwrap();
        let path = dir.path().join("link").display().to_string();
        let error = prepare(&pod(json!({"hostPath": {"path": path}})), dir.path(), &Sources::default()).unwrap_err();
        assert!(error.contains("refused"), "{error}");
    }
}
