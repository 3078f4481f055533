//! The root file system of a container before it is mounted: its layers, which are folders on the
//! host.

use agent_containerd::{Error, ErrorClass};
use containerd_client::types::Mount;
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
/// there would lead it to a folder of the machine (CVE-2026-47766 of crun before 1.28). Where the
/// root has none, the runtime makes a folder.
///
/// # Errors
/// There is something else, or a layer can't be read.
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
        let text = "/dev of the image is a link or a file: it must be a folder, or not there";
        return Err(Error::new(ErrorClass::Create, text));
    }
    Ok(())
}

/// Refuses a volume at `/dev` itself, where a link in it would have the same effect, and one at
/// `/dev/null`: crun takes the file there for the device, and gives it to the user that it runs as.
/// Other volumes below `/dev` are no danger.
///
/// One at `/` is refused, too: into which of the two roots crun then puts devices depends on its
/// version. On nodes with runc such a container does not start either (since 1.2.8, 1.3.3 and 1.4).
///
/// # Errors
/// `destination` is one of these once its `..` are resolved ([`ErrorClass::Config`]).
pub(crate) fn check_volume(destination: &str) -> Result<(), Error> {
    let mut names = Vec::new();
    for part in Path::new(destination).components() {
        match part {
            Component::Normal(name) => names.push(name),
            Component::ParentDir => drop(names.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    if names.is_empty() {
        let text = "a volume cannot be mounted at /, in the place of the image: mount it below";
        return Err(Error::new(ErrorClass::Config, text));
    }
    if names == ["dev"] || names == ["dev", "null"] {
        let text = "a volume can be mounted at /dev or /dev/null only in a privileged container";
        return Err(Error::new(ErrorClass::Config, text));
    }
    Ok(())
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
            check_volume(at).unwrap_err();
        }
        for root in ["/", "//", "/.", "/dev/..", "/a/../..", "/a/b/../../."] {
            let told = check_volume(root).unwrap_err();
            assert!(told.message.contains("mounted at /, "), "{root}: {told}");
        }
        for below in [
            "/dev/shm",
            "/dev/hugepages",
            "/dev/null/below",
            "/device",
            "/a/dev",
            "/dev/../a",
        ] {
            check_volume(below).unwrap();
        }
    }
}
