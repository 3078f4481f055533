//! Mounts layers of images for pods with user namespaces: files belong to the pod's own users, by
//! an idmapped mount (`MOUNT_ATTR_IDMAP`, mount_setattr(2)). Nothing changes on the disk, so that
//! all pods share layers.
//!
//! overlayfs itself can't be idmapped, but its layers can. A container's own layer is not idmapped:
//! what the pod writes there belongs to the pod's ids on the disk, too.

use crate::model::UserNamespace;
use agent_containerd::{Error, ErrorClass};
use agent_sys::attach::{Propagation, attach};
use agent_sys::beneath::{Beneath, Links};
use agent_sys::mount::{Limits, detach, is_mount_point, mount};
use agent_sys::namespace::IDS;
use config_errors::chain;
use containerd_client::types::Mount;
use std::fs::{File, create_dir_all};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};

/// Longest options of a mount; the kernel reads a page of them.
const MAX_OPTIONS: usize = 4095;
const LOWER: &str = "lowerdir=";
const UPPER: &str = "upperdir=";

/// Changes the mounts of a root file system for a pod with a user namespace: layers of the image
/// are replaced by those mounted at [`UserNamespace::layers`], and the container's own layer is
/// given to the pod's root.
///
/// # Errors
/// The kernel refuses, or the snapshots are not in the folder layout of containerd's overlay
/// snapshotter.
pub(crate) fn mapped(mounts: Vec<Mount>, users: &UserNamespace) -> Result<Vec<Mount>, Error> {
    let fault = |error: io::Error| {
        let text = "give the image's files to the pod's users";
        Error::caused(ErrorClass::Create, text, error)
    };
    let mapped = |mut mount: Mount| {
        for option in &mut mount.options {
            if let Some(upper) = option.strip_prefix(UPPER) {
                give(Path::new(upper), users.first)?;
            } else if let Some(lower) = option.strip_prefix(LOWER) {
                let folders: Vec<PathBuf> = lower.split(':').map(PathBuf::from).collect();
                *option = format!("{LOWER}{}", joined(&clone(&folders, users, &users.layers)?));
            }
        }
        Ok(mount)
    };
    let mounts = mounts.into_iter().map(mapped);
    mounts.collect::<io::Result<_>>().map_err(fault)
}

/// Mounts the layers of an image, the topmost first, at `place`, in place of an earlier agent's
/// mount; returns `place`. With a user namespace, its users own the files. The file system is
/// read-only itself, whatever the flags of later mounts of it: other images share the layers.
///
/// # Errors
/// There are no layers, or too many, or the kernel refuses them.
pub fn show(
    place: &Path,
    layers: &[PathBuf],
    users: Option<&UserNamespace>,
) -> Result<PathBuf, String> {
    let text = |error: io::Error| chain(&error);
    if layers.is_empty() {
        return Err("its image has no layers".to_owned());
    }
    let target = place.to_string_lossy();
    create_dir_all(place).map_err(text)?;
    while is_mount_point(&target) && detach(&target).is_ok() {}
    // No volume's name has a dot.
    let beside = |name: &str| place.with_extension(name);
    // overlayfs can't be mounted with a single folder.
    let nothing = beside("nothing");
    let whole = |mut shown: Vec<PathBuf>| {
        if shown.len() == 1 {
            create_dir_all(&nothing).map_err(text)?;
            shown.push(nothing.clone());
        }
        overlay(&target, &shown)
    };
    match users {
        None => whole(layers.to_vec())?,
        Some(users) => {
            // overlayfs keeps its layers, so that this mount can be detached.
            let beside = beside("layers");
            let shown = clone(layers, users, &beside).map_err(text);
            let shown = shown.and_then(whole);
            detach(&beside.to_string_lossy()).map_err(|error| chain(&error))?;
            shown?;
        }
    }
    Ok(place.to_owned())
}

fn overlay(target: &str, layers: &[PathBuf]) -> Result<(), String> {
    let options = format!("{LOWER}{}", joined(layers));
    if options.len() > MAX_OPTIONS {
        let count = layers.len();
        return Err(format!(
            "its image has {count} layers, which are too many for a volume"
        ));
    }
    let limits = Limits {
        read_only: true,
        no_suid: true,
        no_dev: true,
        no_exec: true,
    };
    let mounted = mount("overlay", target, "overlay", limits, &options);
    mounted.map_err(|error| chain(&error))
}

fn joined(layers: &[PathBuf]) -> String {
    let texts: Vec<_> = layers.iter().map(|layer| layer.to_string_lossy()).collect();
    texts.join(":")
}

/// Mounts the folder of all snapshots, idmapped, at `place`; returns the paths of these layers
/// there (`NUMBER/fs`). One mount serves any number of layers.
fn clone(layers: &[PathBuf], users: &UserNamespace, place: &Path) -> io::Result<Vec<PathBuf>> {
    let strange = || io::Error::other("the layers are in no folder of snapshots");
    let first = layers.first().and_then(|layer| layer.parent());
    let all = first.and_then(Path::parent).ok_or_else(strange)?;
    let there = layers.iter().map(|layer| {
        let name = layer.strip_prefix(all).map_err(io::Error::other)?;
        Ok(place.join(name))
    });
    let there = there.collect::<io::Result<_>>()?;
    create_dir_all(place)?;
    attach_to(all, users, place)?;
    Ok(there)
}

fn attach_to(folder: &Path, users: &UserNamespace, place: &Path) -> io::Result<()> {
    let namespace = File::open(&users.namespace)?;
    let folder = Beneath::root(folder)?.handle(Path::new(""), Links::Refused)?;
    let attached = attach(
        &folder,
        place,
        true,
        Propagation::Private,
        Some(namespace.as_fd()),
    );
    attached.map_err(io::Error::other)
}

/// Changes the owner of a container's own layer, which is still empty and belongs to the image's
/// owner, to the same id of the pod's users.
pub(crate) fn give(layer: &Path, first: u32) -> io::Result<()> {
    let found = layer.symlink_metadata()?;
    let own = |id: u32| {
        if id < IDS {
            first.saturating_add(id)
        } else {
            id
        }
    };
    lchown(layer, Some(own(found.uid())), Some(own(found.gid())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_sys::namespace::{Kind, hold_owned, release};
    use std::fs;

    const FIRST: u32 = 9 * IDS;

    /// A user namespace and two layers as containerd keeps them, the topmost first.
    fn made(dir: &Path) -> (UserNamespace, Vec<PathBuf>) {
        let namespace = dir.join("user");
        hold_owned(FIRST, &[(Kind::User, &namespace)]).unwrap();
        let layers = ["2", "1"].map(|name| dir.join("snapshots").join(name).join("fs"));
        for layer in &layers {
            create_dir_all(layer).unwrap();
        }
        fs::write(layers[0].join("of-root"), "").unwrap();
        fs::write(layers[1].join("of-user-7"), "").unwrap();
        lchown(layers[1].join("of-user-7"), Some(7), Some(8)).unwrap();
        let users = UserNamespace {
            namespace,
            first: FIRST,
            layers: dir.join("layers"),
        };
        (users, layers.to_vec())
    }

    fn owner(path: PathBuf) -> (u32, u32) {
        let found = fs::symlink_metadata(path).unwrap();
        (found.uid(), found.gid())
    }

    fn ended(users: &UserNamespace, mounts: &[&Path]) {
        for mount in mounts {
            detach(&mount.to_string_lossy()).unwrap();
        }
        release(&users.namespace).unwrap();
    }

    #[test]
    fn an_image_shown_to_a_pod_is_owned_by_its_users_and_on_the_disk_by_the_machines() {
        let dir = tempfile::tempdir().unwrap();
        let (users, layers) = made(dir.path());
        let place = dir.path().join("v");
        // The second time over the mounts that the first one left.
        for layers in [&layers[..], &layers[..], &layers[1..]] {
            assert_eq!(show(&place, layers, Some(&users)), Ok(place.clone()));
            assert_eq!(owner(place.join("of-user-7")), (FIRST + 7, FIRST + 8));
            let root = place.join("of-root");
            assert_eq!(root.exists(), layers.len() == 2);
            assert!(!root.exists() || owner(root) == (FIRST, FIRST));
            assert!(fs::write(place.join("new"), "").is_err());
        }
        assert_eq!(owner(layers[1].join("of-user-7")), (7, 8));
        ended(&users, &[&place]);
    }

    #[test]
    fn a_root_has_the_images_layers_by_the_pods_users_and_one_of_its_roots_own() {
        let dir = tempfile::tempdir().unwrap();
        let (users, layers) = made(dir.path());
        let upper = dir.path().join("snapshots/3/fs");
        create_dir_all(&upper).unwrap();
        let options = [
            "index=off".to_owned(),
            format!("upperdir={}", upper.display()),
            format!("lowerdir={}", joined(&layers)),
        ];
        let mount = Mount {
            r#type: "overlay".to_owned(),
            options: options.to_vec(),
            ..Mount::default()
        };
        let made = mapped(vec![mount], &users).unwrap();
        let there = ["2/fs", "1/fs"].map(|name| users.layers.join(name));
        assert_eq!(made[0].options[..2], options[..2]);
        assert_eq!(made[0].options[2], format!("lowerdir={}", joined(&there)));
        assert_eq!(owner(there[1].join("of-user-7")), (FIRST + 7, FIRST + 8));
        assert_eq!(owner(upper), (FIRST, FIRST));
        ended(&users, &[&users.layers]);
    }

    #[test]
    fn layers_that_lie_elsewhere_are_refused_and_nothing_is_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let (users, layers) = made(dir.path());
        let elsewhere = [layers[0].clone(), dir.path().join("other/1/fs")];
        clone(&elsewhere, &users, &users.layers).unwrap_err();
        assert!(!users.layers.exists());
        ended(&users, &[]);
    }
}
