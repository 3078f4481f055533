//! Whether what a container is to see has been mounted as it was wanted.
//!
//! The runtime mounts a volume at a path, and looks that path up again before it says what the
//! mount refuses. In between the path may lead elsewhere: through what was just mounted, or through
//! a name that another container changes. What one volume refuses is then said of another, which
//! loses what the agent had said of it: a folder that is only to be read can be written. So the
//! mounts of a container are compared with what was wanted after they are made and before anything
//! of the container runs.

use agent_sys::mount::Limits;
use agent_sys::mounted::{Mounted, place_of};
use std::path::{Component, Path, PathBuf};

/// Places at and below which no volume may be that doesn't name its own: the runtime and the
/// container's limits take what is there for their own, and the container's `/dev` covers what a
/// link led there.
const RESERVED: [&str; 3] = ["/dev", "/proc", "/sys"];

/// A mount that a container is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedMount {
    /// The file system's device, as [`Mounted::device`].
    pub device: String,
    /// What of the file system is mounted.
    pub root: PathBuf,
    /// What the mount must refuse, at least.
    pub limits: Limits,
    /// Where the pod's spec has it; none where it lies below another mount.
    pub destination: Option<String>,
}

impl ExpectedMount {
    /// The mounts that come of a volume: what lies at `source`, and what is mounted below it, by
    /// the mounts of this process. All are without devices and set-user-id bits; those below refuse
    /// what they refuse there.
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

/// What is wrong with a container's mounts; none if each wanted one is there, refuses what it must,
/// and nothing shows a part of a wanted one by which more could be done.
pub fn mount_fault(wanted: &[ExpectedMount], mounts: &[Mounted]) -> Option<String> {
    let missing = wanted.iter().find(|one| {
        let alike = wanted.iter().filter(|other| {
            (&other.device, &other.root) == (&one.device, &one.root) && other.destination.is_some()
        });
        let there = mounts.iter().filter(|mounted| one.is_of(mounted));
        one.destination.is_some() && there.count() < alike.count()
    });
    if let Some(destination) = missing.and_then(|one| one.destination.as_deref()) {
        return Some(format!("what belongs at {destination} is mounted nowhere"));
    }
    mounts.iter().find_map(|mounted| {
        let place = mounted.point.display();
        let all = nearest(wanted, mounted);
        if all.is_empty() {
            return None;
        }
        let is_whole = all.iter().any(|one| one.is_of(mounted));
        if is_whole && of_others(&mounted.point) && is_astray(&all, mounted) {
            return Some(format!("a volume came to be at {place} by a symbolic link"));
        }
        // One that is wanted twice, once to write, may be written as often as it is wanted so.
        let allowed = |one: &&&ExpectedMount| refuses(mounted.limits, one.limits, is_whole);
        let with = all.iter().filter(allowed).count();
        let alike = mounts.iter().filter(|other| {
            let is_same = other.device == mounted.device && other.root == mounted.root;
            is_same && other.limits == mounted.limits
        });
        (with == 0 || (is_whole && with < all.len() && alike.count() > with))
            .then(|| format!("more can be done with what is mounted at {place} than was wanted"))
    })
}

/// Whether a place is one of the runtime's own.
fn of_others(place: &Path) -> bool {
    place == Path::new("/") || RESERVED.iter().any(|one| place.starts_with(one))
}

/// Whether a volume is where none of the wanted ones of its kind is to be. What is mounted below a
/// volume has its place by that one.
fn is_astray(wanted: &[&ExpectedMount], mounted: &Mounted) -> bool {
    let mut alike = wanted.iter().filter(|one| one.is_of(mounted));
    alike.all(|one| one.destination.is_some() && !one.is_named(&mounted.point))
}

/// The wanted mounts of which `mounted` is one or a part.
fn nearest<'a>(wanted: &'a [ExpectedMount], mounted: &Mounted) -> Vec<&'a ExpectedMount> {
    let of_it =
        |one: &&ExpectedMount| one.device == mounted.device && mounted.root.starts_with(&one.root);
    let depth = |one: &&ExpectedMount| one.root.components().count();
    let deepest = wanted.iter().filter(of_it).map(|one| depth(&one)).max();
    let all = wanted.iter().filter(of_it);
    all.filter(|one| Some(depth(one)) == deepest).collect()
}

/// Whether a mount refuses all that it must. Of a part of a file system the runtime makes mounts of
/// its own, to hide files: those must only not be written.
fn refuses(limits: Limits, least: Limits, is_whole: bool) -> bool {
    let must = |least: bool, has: bool| has || !least;
    let rest = must(least.no_suid, limits.no_suid)
        && must(least.no_dev, limits.no_dev)
        && must(least.no_exec, limits.no_exec);
    must(least.read_only, limits.read_only) && (rest || !is_whole)
}

/// A path without what changes nothing.
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
    fn mounts_as_they_were_wanted_are_right_wherever_links_of_the_image_lead_them() {
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
        // What may be written may also be read only, as may its parts.
        there[1].limits.read_only = true;
        there.push(mounted("/ro/part", true, "/hidden"));
        there.push(mounted("/rw/part", false, "/part"));
        assert_eq!(mount_fault(&all, &there), None);
        // Another device's folder of the same name is not it.
        let mut other = mounted("/ro", false, "/other");
        other.device = "8:2".into();
        there.push(other);
        assert_eq!(mount_fault(&all, &there), None);
    }

    #[test]
    fn a_mount_that_lost_what_it_refuses_is_found_with_its_parts() {
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
                .contains("/ro is mounted nowhere")
        );
    }

    #[test]
    fn what_is_wanted_once_to_read_and_once_to_write_is_written_at_one_place() {
        let all = [wanted("/v", true, "/a"), wanted("/v", false, "/b")];
        let there =
            |first: bool, second: bool| [mounted("/v", first, "/a"), mounted("/v", second, "/b")];
        assert_eq!(mount_fault(&all, &there(true, false)), None);
        assert_eq!(mount_fault(&all, &there(true, true)), None);
        assert!(mount_fault(&all, &there(false, false)).is_some());
        assert!(mount_fault(&all, &there(true, false)[..1]).is_some());
    }

    #[test]
    fn a_part_that_may_be_written_lies_below_one_that_may_not() {
        let all = [wanted("/", true, "/host"), wanted("/w", false, "/w")];
        let there = [mounted("/", true, "/host"), mounted("/w/x", false, "/w/x")];
        let both = [&there[..], &[mounted("/w", false, "/w")]].concat();
        assert_eq!(mount_fault(&all, &both), None);
    }

    #[test]
    fn no_volume_takes_the_place_of_what_is_the_runtimes_by_a_link() {
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
        assert!(fault.contains("/dev/v by a symbolic link"), "{fault}");
    }
}
