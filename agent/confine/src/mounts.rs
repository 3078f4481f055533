//! Checks the mounts of a new container against those that the agent requested.
//!
//! The runtime (crun) mounts a volume at a path, and looks the path up again to set the mount's
//! flags (read-only, nosuid, nodev, noexec). In between, the path may have changed its meaning:
//! through what was just mounted, or through a link that another container changes. Then the flags
//! of one volume are set on another, in place of the requested ones: a read-only volume can become
//! writable. So the mounts are compared after they are made and before any process of the container
//! runs.

use agent_sys::mount::Limits;
use agent_sys::mounted::{Mounted, place_of};
use std::path::{Component, Path, PathBuf};

/// Paths at and below which a volume may be mounted only by its own `mountPath`, and not through a
/// symbolic link: runtime and container rely on the content there.
const RESERVED: [&str; 3] = ["/dev", "/proc", "/sys"];

/// A mount that a container must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedMount {
    /// The file system's device, as [`Mounted::device`].
    pub device: String,
    /// The folder or file of that file system that is mounted.
    pub root: PathBuf,
    /// The flags that the mount must have, at least.
    pub limits: Limits,
    /// The `mountPath` in the pod's spec; `None` for a mount below the volume's own.
    pub destination: Option<String>,
}

impl ExpectedMount {
    /// The mounts of a volume: that of `source`, and those below it, found in `own`, the mounts of
    /// this process. The volume's own mount gets nodev and nosuid in addition to `limits`; those
    /// below it keep their flags.
    ///
    /// # Errors
    /// `source` can't be resolved to a path, or none of `own` is the mount that it is on.
    pub fn of_volume(
        source: &Path,
        destination: &str,
        mut limits: Limits,
        own: &[Mounted],
    ) -> agent_sys::Result<Vec<Self>> {
        let (device, root, whole) = place_of(source, own)?;
        (limits.no_suid, limits.no_dev) = (true, true);
        let below = own
            .iter()
            .filter(|mounted| mounted.point != whole && mounted.point.starts_with(&whole));
        let below = below.map(|mounted| Self {
            device: mounted.device.clone(),
            root: mounted.root.clone(),
            limits: mounted.limits,
            destination: None,
        });
        let volume = Self {
            device,
            root,
            limits,
            destination: Some(destination.to_owned()),
        };
        Ok([volume].into_iter().chain(below).collect())
    }

    fn is_of(&self, mounted: &Mounted) -> bool {
        self.device == mounted.device && self.root == mounted.root
    }

    fn is_named(&self, place: &Path) -> bool {
        let destination = self.destination.as_deref();
        destination.is_some_and(|destination| plain(Path::new(destination)) == place)
    }
}

/// What is wrong with a container's mounts; `None` if each wanted one exists with its flags, and no
/// other mount shows the same files, or a part of them, with fewer flags.
pub fn mount_fault(wanted: &[ExpectedMount], mounts: &[Mounted]) -> Option<String> {
    let missing = wanted.iter().find(|one| {
        let alike = wanted.iter().filter(|other| {
            (&other.device, &other.root) == (&one.device, &one.root) && other.destination.is_some()
        });
        let there = mounts.iter().filter(|mounted| one.is_of(mounted));
        one.destination.is_some() && there.count() < alike.count()
    });
    if let Some(destination) = missing.and_then(|one| one.destination.as_deref()) {
        return Some(format!("the volume for {destination} is not mounted"));
    }
    mounts.iter().find_map(|mounted| {
        let place = mounted.point.display();
        let all = nearest(wanted, mounted);
        if all.is_empty() {
            return None;
        }
        let is_whole = all.iter().any(|one| one.is_of(mounted));
        if is_whole && is_reserved(&mounted.point) && is_astray(&all, mounted) {
            return Some(format!(
                "a symbolic link led the mount of a volume to {place}"
            ));
        }
        // A volume may be writable at as many places as its pod specifies, and no more.
        let allowed = |one: &&&ExpectedMount| refuses(mounted.limits, one.limits, is_whole);
        let with = all.iter().filter(allowed).count();
        let alike = mounts.iter().filter(|other| {
            let is_same = other.device == mounted.device && other.root == mounted.root;
            is_same && other.limits == mounted.limits
        });
        (with == 0 || (is_whole && with < all.len() && alike.count() > with))
            .then(|| format!("the volume mounted at {place} permits more than its pod asks for"))
    })
}

/// Whether only the runtime mounts at this place.
fn is_reserved(place: &Path) -> bool {
    place == Path::new("/") || RESERVED.iter().any(|one| place.starts_with(one))
}

/// Whether a volume is mounted where no `mountPath` names. A mount below a volume moves with it,
/// and is not checked by itself.
fn is_astray(wanted: &[&ExpectedMount], mounted: &Mounted) -> bool {
    let mut alike = wanted.iter().filter(|one| one.is_of(mounted));
    alike.all(|one| one.destination.is_some() && !one.is_named(&mounted.point))
}

/// The wanted mounts that `mounted` is equal to or a part of: those with the longest root.
fn nearest<'a>(wanted: &'a [ExpectedMount], mounted: &Mounted) -> Vec<&'a ExpectedMount> {
    let of_it =
        |one: &&ExpectedMount| one.device == mounted.device && mounted.root.starts_with(&one.root);
    let depth = |one: &&ExpectedMount| one.root.components().count();
    let deepest = wanted.iter().filter(of_it).map(|one| depth(&one)).max();
    let all = wanted.iter().filter(of_it);
    all.filter(|one| Some(depth(one)) == deepest).collect()
}

/// Whether a mount has the flags that it must have. A mount of a part of a volume is the runtime's
/// own, which hides files: read-only is the only flag that it must have.
fn refuses(limits: Limits, least: Limits, is_whole: bool) -> bool {
    let must = |least: bool, has: bool| has || !least;
    let rest = must(least.no_suid, limits.no_suid)
        && must(least.no_dev, limits.no_dev)
        && must(least.no_exec, limits.no_exec);
    must(least.read_only, limits.read_only) && (rest || !is_whole)
}

/// An absolute path with `.` and `..` resolved by name.
fn plain(path: &Path) -> PathBuf {
    let mut all = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => all.push(name),
            Component::ParentDir => drop(all.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(read_only: bool) -> Limits {
        Limits {
            read_only,
            no_suid: true,
            no_dev: true,
            no_exec: false,
        }
    }

    fn wanted(root: &str, read_only: bool, destination: &str) -> ExpectedMount {
        ExpectedMount {
            device: "8:1".into(),
            root: root.into(),
            limits: limits(read_only),
            destination: Some(destination.into()),
        }
    }

    fn mounted(root: &str, read_only: bool, point: &str) -> Mounted {
        Mounted {
            id: 1,
            device: "8:1".into(),
            root: root.into(),
            point: point.into(),
            limits: limits(read_only),
        }
    }

    #[test]
    fn mounts_with_their_flags_are_accepted_wherever_links_of_the_image_lead_them() {
        let all = [
            wanted("/ro", true, "/var/run/x"),
            wanted("/rw", false, "/rw"),
        ];
        let mut there = vec![
            mounted("/ro", true, "/run/x"),
            mounted("/rw", false, "/rw"),
            mounted("/other", false, "/"),
        ];
        assert_eq!(mount_fault(&all, &there), None);
        // A writable volume may be mounted read-only, and its parts may be mounted elsewhere.
        there[1].limits.read_only = true;
        there.push(mounted("/ro/part", true, "/hidden"));
        there.push(mounted("/rw/part", false, "/part"));
        assert_eq!(mount_fault(&all, &there), None);
        // A folder of the same name on another device is another folder.
        let mut other = mounted("/ro", false, "/other");
        other.device = "8:2".into();
        there.push(other);
        assert_eq!(mount_fault(&all, &there), None);
    }

    #[test]
    fn a_mount_that_lost_a_flag_is_found_and_so_is_a_part_of_it() {
        let all = [wanted("/ro", true, "/ro")];
        let right = || mounted("/ro", true, "/ro");
        let loose = |change: fn(&mut Limits)| {
            let mut one = right();
            change(&mut one.limits);
            mount_fault(&all, &[one]).is_some()
        };
        assert!(!loose(|_| ()));
        assert!(loose(|limits| limits.read_only = false));
        assert!(loose(|limits| limits.no_dev = false));
        assert!(loose(|limits| limits.no_suid = false));
        for more in ["/ro", "/ro/part"] {
            let fault = mount_fault(&all, &[right(), mounted(more, false, "/x")]).unwrap();
            assert!(fault.contains("mounted at /x"), "{fault}");
        }
        assert!(
            mount_fault(&all, &[])
                .unwrap()
                .contains("/ro is not mounted")
        );
    }

    #[test]
    fn a_volume_that_is_wanted_once_read_only_and_once_writable_is_writable_at_one_place() {
        let all = [wanted("/v", true, "/a"), wanted("/v", false, "/b")];
        let there =
            |first: bool, second: bool| [mounted("/v", first, "/a"), mounted("/v", second, "/b")];
        assert_eq!(mount_fault(&all, &there(true, false)), None);
        assert_eq!(mount_fault(&all, &there(true, true)), None);
        assert!(mount_fault(&all, &there(false, false)).is_some());
        assert!(mount_fault(&all, &there(true, false)[..1]).is_some());
    }

    #[test]
    fn a_writable_volume_may_be_a_folder_of_a_read_only_one() {
        let all = [wanted("/", true, "/host"), wanted("/w", false, "/w")];
        let there = [mounted("/", true, "/host"), mounted("/w/x", false, "/w/x")];
        let both = [&there[..], &[mounted("/w", false, "/w")]].concat();
        assert_eq!(mount_fault(&all, &both), None);
    }

    #[test]
    fn no_link_leads_a_volume_to_a_place_of_the_runtime() {
        for place in [
            "/",
            "/dev",
            "/dev/null",
            "/dev/shm",
            "/proc",
            "/proc/1",
            "/proc/sys",
            "/sys",
            "/sys/fs/cgroup",
        ] {
            let there = [mounted("/v", false, place)];
            assert!(mount_fault(&[wanted("/v", false, "/link")], &there).is_some());
            let named = format!("{place}/.");
            assert_eq!(mount_fault(&[wanted("/v", false, &named)], &there), None);
        }
        let beside = [
            mounted("/v", false, "/device"),
            mounted("/v", false, "/a/dev"),
        ];
        let led = [wanted("/v", false, "/link"), wanted("/v", false, "/other")];
        assert_eq!(mount_fault(&led, &beside), None);
    }

    #[test]
    fn what_is_mounted_below_a_volume_in_dev_comes_with_it() {
        let below = ExpectedMount {
            destination: None,
            ..wanted("/below", false, "")
        };
        let all = [wanted("/v", false, "/dev/v"), below];
        let there = [
            mounted("/v", false, "/dev/v"),
            mounted("/below", false, "/dev/v/x"),
        ];
        assert_eq!(mount_fault(&all, &there), None);
        let led = [wanted("/v", false, "/link"), all[1].clone()];
        let fault = mount_fault(&led, &there).unwrap();
        assert!(fault.contains("to /dev/v"), "{fault}");
    }
}
