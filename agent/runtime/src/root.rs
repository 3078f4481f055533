//! Checks the root file system of a container before it is mounted: its layers, which are folders
//! on the host, and the places of its volumes.

use agent_containerd::{Error, ErrorClass};
use containerd_client::types::Mount;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

/// The directories of an overlay or a single bind, topmost first.
pub(crate) fn layers(mounts: &[Mount]) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for mount in mounts {
        if mount.r#type == "bind" {
            all.push(PathBuf::from(&mount.source));
        }
        let option = |name: &str| {
            mount
                .options
                .iter()
                .find_map(|option| option.strip_prefix(name))
        };
        all.extend(option("upperdir=").map(PathBuf::from));
        all.extend(
            option("lowerdir=")
                .into_iter()
                .flat_map(|dirs| dirs.split(':'))
                .map(PathBuf::from),
        );
    }
    all
}

/// Refuses a root in which `/dev` is anything but a folder.
///
/// The runtime makes devices and links in `/dev` while it still sees the machine's files: a link
/// there would lead it to a folder of the machine (CVE-2026-47766 of crun before 1.28). If the root
/// has no `/dev`, the runtime makes a folder.
///
/// # Errors
/// `/dev` is something else, or a layer can't be read.
pub(crate) fn check(layers: &[PathBuf]) -> Result<(), Error> {
    for layer in layers {
        let found = match layer.join("dev").symlink_metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            found => found.map_err(|error| {
                Error::caused(ErrorClass::Create, "look at the image's /dev", error)
            })?,
        };
        // A device of number 0 hides the layers below (an overlayfs whiteout).
        let hides = found.file_type().is_char_device() && found.rdev() == 0;
        if found.is_dir() || hides {
            return Ok(());
        }
        let text = "/dev of the image is a link or a file: it must be a folder, or not exist";
        return Err(Error::new(ErrorClass::Create, text));
    }
    Ok(())
}

/// Whether a mount at `destination` is the container's `/dev` or in it, by its text alone.
pub(crate) fn is_in_dev(destination: &str) -> bool {
    let names = names(destination);
    names.first().is_some_and(|first| *first == "dev")
}

/// Refuses volumes by which a pod could make the runtime create files on the machine: it makes
/// `console`, devices and links in the container's `/dev` while it still sees the machine's files,
/// and follows a link there.
///
/// - At `/dev`: it would be the pod's folder, with the pod's links.
/// - At `/dev/null`: crun takes the file there for the device, and gives it to the user that it
///   runs as.
/// - Below `/dev`, in another volume or in `/dev/shm`: the content there is the pod's, and a link
///   in it could lead the volume to `/dev`. Others below `/dev` are safe: they are mounted in the
///   container's own `/dev`, in which there are no links yet.
/// - With `..`, which may lead elsewhere than by name, after a link.
/// - At `/`: in which of the two roots crun then makes devices depends on its version. On nodes
///   with runc such a container does not start either (since 1.2.8, 1.3.3 and 1.4).
///
/// # Errors
/// One of the destinations is one of these ([`ErrorClass::Config`]).
pub(crate) fn check_volumes(destinations: &[&str]) -> Result<(), Error> {
    let all: Vec<Vec<&OsStr>> = destinations.iter().map(|at| names(at)).collect();
    let places: HashSet<&[&OsStr]> = all.iter().map(Vec::as_slice).collect();
    let faults = destinations.iter().zip(&all);
    let mut faults = faults.filter_map(|(at, names)| Some((at, fault(at, names, &places)?)));
    match faults.next() {
        None => Ok(()),
        Some((at, text)) => Err(Error::new(ErrorClass::Config, format!("{at:?}: {text}"))),
    }
}

/// What is wrong with a volume at `destination`, with these path components, besides volumes at
/// `places`.
fn fault(destination: &str, names: &[&OsStr], places: &HashSet<&[&OsStr]>) -> Option<&'static str> {
    let mut parts = Path::new(destination).components();
    if names.is_empty() {
        return Some("a volume cannot be mounted at /, in the place of the image: mount it below");
    }
    if names == ["dev"] || names == ["dev", "null"] {
        return Some("a volume can be mounted at /dev or /dev/null only in a privileged container");
    }
    if parts.any(|part| part == Component::ParentDir) {
        return Some("the place of a volume must not contain ..");
    }
    if names[0] != "dev" {
        return None;
    }
    let above = |depth: usize| &names[..depth];
    let in_another =
        |depth: usize| places.contains(above(depth)) || *above(depth) == ["dev", "shm"];
    (2..names.len()).any(in_another).then_some(
        "below /dev, a volume can be mounted in another one or in /dev/shm only in a privileged container",
    )
}

/// The components of a mount's path, with `..` resolved by name.
fn names(destination: &str) -> Vec<&OsStr> {
    let mut names = Vec::new();
    for part in Path::new(destination).components() {
        match part {
            Component::Normal(name) => names.push(name),
            Component::ParentDir => drop(names.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn layers_are_those_of_an_overlay_or_a_single_bind() {
        let overlay = Mount {
            options: ["index=off", "upperdir=/up", "lowerdir=/a:/b"]
                .map(str::to_owned)
                .to_vec(),
            ..Mount::default()
        };
        assert_eq!(layers(&[overlay]), ["/up", "/a", "/b"].map(PathBuf::from));
        let bind = Mount {
            r#type: "bind".to_owned(),
            source: "/one".to_owned(),
            ..Mount::default()
        };
        assert_eq!(layers(&[bind]), [PathBuf::from("/one")]);
    }

    #[test]
    fn a_root_whose_dev_is_a_link_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let layers = ["up", "low"].map(|layer| dir.path().join(layer));
        for layer in &layers {
            fs::create_dir(layer).unwrap();
        }
        check(&layers).unwrap();
        symlink("/run", layers[1].join("dev")).unwrap();
        assert_eq!(check(&layers).unwrap_err().class, ErrorClass::Create);
        fs::create_dir(layers[0].join("dev")).unwrap();
        check(&layers).unwrap();
        fs::remove_dir(layers[0].join("dev")).unwrap();
        fs::write(layers[0].join("dev"), "").unwrap();
        check(&layers).unwrap_err();
    }

    #[test]
    fn a_volume_at_the_root_or_at_dev_is_refused_and_one_below_them_is_not() {
        let check = |at: &str| check_volumes(&["/v", at]);
        for at in [
            "/dev",
            "/dev/",
            "//dev/.",
            "dev",
            "/a/../dev",
            "/../dev",
            "/dev/null",
            "/dev/./shm/../null/",
        ] {
            let told = check(at).unwrap_err();
            assert_eq!(told.class, ErrorClass::Config);
            assert!(told.message.contains("/dev or /dev/null"), "{at}: {told}");
        }
        for root in ["/", "//", "/.", "/dev/..", "/a/../..", "/a/b/../../."] {
            let told = check(root).unwrap_err();
            assert!(told.message.contains("mounted at /, "), "{root}: {told}");
        }
        for back in ["/dev/../a", "/a/../b", "/x/../dev/foo"] {
            let told = check(back).unwrap_err();
            assert!(told.message.contains("contain .."), "{back}: {told}");
        }
        for below in [
            "/dev/shm",
            "/dev/hugepages",
            "/dev/null/below",
            "/dev/a/b",
            "/device",
            "/a/dev",
            "/v/d",
        ] {
            check(below).unwrap();
        }
    }

    /// The content there is the pod's: a link could lead the volume to `/dev`, after that is
    /// mounted.
    #[test]
    fn a_volume_below_dev_is_refused_where_a_pod_can_have_put_a_link() {
        let own = ["/dev/a", "/dev/b/c", "/dev/shm", "/dev/termination-log"];
        check_volumes(&own).unwrap();
        for at in ["/dev/a/x", "/dev//a/./x/y", "/dev/b/c/d", "/dev/shm/x"] {
            let told = check_volumes(&[&own[..], &[at]].concat()).unwrap_err();
            assert_eq!(told.class, ErrorClass::Config);
            assert!(told.message.contains("below /dev"), "{at}: {told}");
        }
        check_volumes(&["/dev/shm/x"]).unwrap_err();
        // The order of the two does not matter.
        check_volumes(&["/dev/a/x", "/dev/a"]).unwrap_err();
        check_volumes(&["/dev/a", "/dev/a/", "/dev/ab"]).unwrap();
    }
}
