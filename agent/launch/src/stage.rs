//! Staging folders: the mounts of a container that is being made, below a folder of the agent's
//! own, from where the engine takes them. They are removed as soon as the container is made.
//!
//! The source of each mount is resolved once, to a descriptor. The engine wants a path, so the
//! descriptor is mounted at one that no pod can reach, below [`Machine::run`]: a pod that renames
//! or replaces the source meanwhile changes nothing. The container has its own copy of the mount,
//! so the staged one is needed only while the container is made.

use crate::machine::Machine;
use agent_sys::attach::{Propagation, attach};
use agent_sys::beneath::{Beneath, PathHandle};
use agent_sys::mount::{Limits, detach, is_in_memory, is_mount_point, make_private, mount};
use config_errors::chain;
use config_kube::k8s_openapi::api::core::v1::{PodSpec, Volume, VolumeMount};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Most mounts of one container; far more than anyone needs.
const MAX_MOUNTS: usize = 1024;
/// Most volumes of a pod that are mounts of the machine's own. The kernel has room for 100,000
/// mounts (`fs.mount-max`), and copies all of them for each container that is made.
const MOST_MOUNTED: usize = 128;
/// Divisor of the machine's memory for the content of volumes, and the least size in bytes.
const HELD_PART: u64 = 10;
const HELD_LEAST: u64 = 64 << 20;
/// Bytes of a file system's block: it needs no more inodes than it has of these.
const BLOCK: u64 = 4096;

/// One mount of a container that is to be made.
#[derive(Debug)]
pub struct MountRequest {
    /// What is mounted, resolved.
    pub source: PathHandle,
    /// No writes through this mount.
    pub read_only: bool,
    /// Nothing there is executed.
    pub no_exec: bool,
    /// Which mounts below it are seen on both sides.
    pub propagation: Propagation,
    /// Its files already have the ids of the pod's user namespace.
    pub is_mapped: bool,
}

/// Why a pod has more volumes in memory and of images than it may: those are mounts of the
/// machine's own as long as the pod is here, and a hundred pods with a thousand each would leave no
/// room for the mounts of others.
pub(crate) fn mounted_fault(spec: &PodSpec) -> Option<String> {
    let is_mounted = |volume: &&Volume| {
        let folder = volume.empty_dir.as_ref();
        let medium = folder.and_then(|folder| folder.medium.as_deref());
        medium == Some("Memory") || volume.image.is_some()
    };
    let volumes = spec.volumes.iter().flatten();
    let count = volumes.filter(is_mounted).count();
    (count > MOST_MOUNTED).then(|| {
        format!(
            "a pod may have {MOST_MOUNTED} volumes in memory and of images, not {count}: let several paths lead into \
             one by subPath"
        )
    })
}

/// Which mounts below a container's volume are seen on both sides.
pub(crate) fn propagation(mount: &VolumeMount) -> Propagation {
    match mount.mount_propagation.as_deref() {
        Some("Bidirectional") => Propagation::Shared,
        Some("HostToContainer") => Propagation::Slave,
        Some(_) | None => Propagation::Private,
    }
}

/// The mounts of a container that is being made; they go when this is dropped.
#[derive(Debug)]
pub struct Staged {
    dir: PathBuf,
}

impl Staged {
    /// Mounts all of it, in order: the first at `0` in the container's folder. Where the pod has a
    /// user namespace, held at `users`, its users own what they see.
    ///
    /// # Errors
    /// Names the mount that the kernel refused; nothing stays mounted then.
    pub fn make(
        machine: &Machine,
        id: &str,
        wanted: &[MountRequest],
        users: Option<&Path>,
    ) -> Result<Self, String> {
        let dir = machine.stage_dir(id);
        clear(&dir);
        let staged = Self { dir };
        let text = |error: &dyn std::error::Error| format!("stage the mounts of {id}: {error}");
        let folder = Beneath::make_root(&staged.dir).map_err(|error| text(&error))?;
        let users = users.map(File::open).transpose();
        let users = users.map_err(|error| text(&error))?;
        for (index, wanted) in wanted.iter().enumerate() {
            let name = index.to_string();
            let made = if wanted.source.is_dir() {
                folder.make_dirs(Path::new(&name), 0o700).map(drop)
            } else {
                folder.create(Path::new(&name), 0o600).map(drop)
            };
            made.map_err(|error| text(&error))?;
            let target = staged.dir.join(&name);
            let users = users.as_ref().filter(|_| !wanted.is_mapped);
            let users = users.map(File::as_fd);
            let (read_only, sides) = (wanted.read_only, wanted.propagation);
            attach(&wanted.source, &target, read_only, sides, users)
                .map_err(|error| chain(&error))?;
        }
        Ok(staged)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        clear(&self.dir);
    }
}

/// Unmounts what is staged in a folder, and removes the folder. What is mounted there is never
/// entered.
fn clear(dir: &Path) {
    let Ok(folder) = Beneath::root(dir) else {
        return;
    };
    for name in folder.names(MAX_MOUNTS).unwrap_or_default() {
        let target = dir.join(&name);
        let target = target.to_string_lossy();
        // An interrupted start may have left one mount upon another. Each is made private first, as
        // what a container shares with the machine must stay mounted there.
        while make_private(&target).and_then(|()| detach(&target)).is_ok() {}
        if let Err(error) = folder.remove_tree(Path::new(&name)) {
            tracing::warn!(path = %dir.display(), ?name, error = chain(&error), "cannot unmount a staged volume");
        }
    }
    if let Err(error) = std::fs::remove_dir(dir) {
        tracing::warn!(path = %dir.display(), error = chain(&error), "cannot remove a staging folder");
    }
}

/// Before the first pod: removes what an earlier agent staged and did not use, and makes the file
/// system in memory that holds the content of volumes, if it isn't there from an earlier agent.
pub fn begin(machine: &Machine, memory: u64) {
    let stages = machine.run.join("mounts");
    for name in Beneath::root(&stages)
        .and_then(|dir| dir.names(usize::MAX))
        .unwrap_or_default()
    {
        clear(&stages.join(name));
    }
    if let Err(error) = hold(machine, memory) {
        tracing::error!(
            error = chain(&error),
            "cannot mount the tmpfs for volume content"
        );
    }
}

fn hold(machine: &Machine, memory: u64) -> agent_sys::Result<()> {
    let held = machine.run.join("held");
    let target = held.to_string_lossy();
    if is_mount_point(&target) && is_in_memory(&held) {
        return Ok(());
    }
    let make = |error: io::Error| agent_sys::Error::new("make", target.clone(), error);
    std::fs::create_dir_all(&held).map_err(make)?;
    memory_folder(&held, (memory / HELD_PART).max(HELD_LEAST), "mode=0700")
}

/// Mounts a file system in memory of `size` bytes. Programs in it may run, as upstream lets scripts
/// from config maps.
pub(crate) fn memory_folder(target: &Path, size: u64, options: &str) -> agent_sys::Result<()> {
    let size = size.max(BLOCK);
    let options = format!("size={size},nr_inodes={},{options}", (size / BLOCK).max(64));
    let limits = Limits {
        no_suid: true,
        no_dev: true,
        ..Limits::default()
    };
    mount(
        "tmpfs",
        &target.to_string_lossy(),
        "tmpfs",
        limits,
        &options,
    )
}

/// Unmounts and removes a pod's volumes in memory, and those that show images.
///
/// # Errors
/// A folder can't be read or removed.
pub fn forget(machine: &Machine, uid: &str) -> io::Result<()> {
    for dir in [machine.memory_dir(uid), machine.images_dir(uid)] {
        if let Ok(folder) = Beneath::root(&dir) {
            for name in folder.names(usize::MAX)? {
                while detach(&dir.join(&name).to_string_lossy()).is_ok() {}
            }
        }
    }
    for parent in ["memory", "images", "held"] {
        match Beneath::root(&machine.run.join(parent)) {
            Ok(parent) => parent.remove_tree(Path::new(uid))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;
    use agent_runtime::show;
    use agent_sys::mount::mount_again;
    use serde_json::{Value, json};
    use std::fs;

    #[test]
    fn a_pod_has_no_more_mounts_of_the_machines_own_than_leave_room_to_others() {
        let fault = |memory: usize, images: usize, others: usize| {
            let of = |count: usize, source: Value| vec![source; count];
            let memory = of(
                memory,
                json!({"name": "v", "emptyDir": {"medium": "Memory"}}),
            );
            let images = of(images, json!({"name": "v", "image": {"reference": "i"}}));
            let others = of(others, json!({"name": "v", "emptyDir": {}}));
            let volumes = [memory, images, others].concat();
            let spec = json!({"containers": [], "volumes": volumes});
            mounted_fault(&serde_json::from_value(spec).unwrap())
        };
        assert_eq!(fault(64, 64, 872), None);
        let refused = fault(65, 64, 0).unwrap();
        assert!(refused.contains("128 volumes"), "{refused}");
    }

    #[test]
    fn layers_of_an_image_are_shown_as_one_and_go_with_their_pod() {
        let dir = tempfile::tempdir().unwrap();
        let layers = ["upper", "lower"].map(|name| dir.path().join(name));
        for layer in &layers {
            fs::create_dir(layer).unwrap();
            fs::write(
                layer.join("both"),
                layer.file_name().unwrap().as_encoded_bytes(),
            )
            .unwrap();
        }
        fs::write(layers[1].join("one"), "1").unwrap();
        let machine = machine(dir.path());
        let place = machine.images_dir("u").join("v");
        // The second time over the mounts that the first one left.
        for _ in 0..2 {
            assert_eq!(show(&place, &layers, None), Ok(place.clone()));
        }
        assert_eq!(fs::read_to_string(place.join("both")).unwrap(), "upper");
        assert_eq!(fs::read_to_string(place.join("one")).unwrap(), "1");
        assert!(fs::write(place.join("new"), "").is_err());
        forget(&machine, "u").unwrap();
        assert!(!machine.images_dir("u").exists());
        assert!(layers[1].join("one").exists());

        // Also of one layer: what is shown can't be made writable, as it is other images', too.
        assert_eq!(show(&place, &layers[..1], None), Ok(place.clone()));
        assert_eq!(fs::read_to_string(place.join("both")).unwrap(), "upper");
        assert!(!place.join("one").exists());
        mount_again(&place.to_string_lossy(), Limits::default()).unwrap();
        let refused = fs::write(place.join("new"), "").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
        forget(&machine, "u").unwrap();
        assert!(show(&place, &[], None).is_err());
        let many = vec![layers[0].clone(); 200];
        assert!(
            show(&place, &many, None)
                .unwrap_err()
                .contains("200 layers")
        );
    }
}
