//! A share of the processors' time for this process and all that it starts, by a control group of
//! either version.

use crate::steps::{Failure, Outcome};
use std::path::{Path, PathBuf};

/// Where control groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";
/// Microseconds within which the kernel counts the time.
const PERIOD: u64 = 100_000;

/// This process in a control group of its own, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    home: PathBuf,
    group: PathBuf,
}

impl Share {
    /// Takes per cent of all processors together.
    pub(crate) fn take(percent: u8) -> Outcome<Self> {
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let unified = Path::new(ROOT).join("cgroup.controllers").exists();
        let home = home(&own, unified).ok_or_else(|| {
            Failure::new("this process has no control group for processor time", CURE)
        })?;
        let group = home.join(format!("pratique-soak-{}", std::process::id()));
        let share = Self { home, group };
        share
            .limit(percent, unified)
            .map_err(|error| Failure::new(format!("{}: {error}", share.group.display()), CURE))?;
        Ok(share)
    }

    fn limit(&self, percent: u8, unified: bool) -> std::io::Result<()> {
        let processors = std::thread::available_parallelism()?.get() as u64;
        let quota = PERIOD * processors * u64::from(percent) / 100;
        if unified {
            std::fs::write(self.home.join("cgroup.subtree_control"), "+cpu")?;
        }
        std::fs::create_dir(&self.group)?;
        if unified {
            std::fs::write(self.group.join("cpu.max"), format!("{quota} {PERIOD}"))?;
        } else {
            std::fs::write(self.group.join("cpu.cfs_period_us"), PERIOD.to_string())?;
            std::fs::write(self.group.join("cpu.cfs_quota_us"), quota.to_string())?;
        }
        enter(&self.group)
    }
}

const CURE: &str = "run it as root, in the host's own control groups, or without --processor";

/// Moves this process.
fn enter(group: &Path) -> std::io::Result<()> {
    std::fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}

impl Drop for Share {
    fn drop(&mut self) {
        // All processes of the group have ended. If it cannot be removed, it is empty and harmless.
        drop(enter(&self.home));
        drop(std::fs::remove_dir(&self.group));
    }
}

/// The group in which `/proc/self/cgroup` says that this process is: the only one, or that of the
/// controller `cpu`.
fn home(own: &str, unified: bool) -> Option<PathBuf> {
    own.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let base = if unified {
            controllers.is_empty().then(|| PathBuf::from(ROOT))
        } else {
            let mut names = controllers.split(',');
            names
                .any(|name| name == "cpu")
                .then(|| Path::new(ROOT).join(controllers))
        };
        Some(base?.join(path.trim_start_matches('/')))
    })
}

#[cfg(test)]
mod tests {
    use super::home;
    use std::path::Path;

    #[test]
    fn the_group_of_processor_time_is_found_in_both_versions() {
        let old = "8:pids:/\n3:cpu,cpuacct:/runner/7\n1:name=systemd:/x\n0::/other\n";
        let at = |text, unified| home(text, unified);
        assert_eq!(
            at(old, false).as_deref(),
            Some(Path::new("/sys/fs/cgroup/cpu,cpuacct/runner/7"))
        );
        assert_eq!(
            at("0::/user.slice\n", true).as_deref(),
            Some(Path::new("/sys/fs/cgroup/user.slice"))
        );
        assert_eq!(at("0::/\n", false), None);
        assert_eq!(at("", true), None);
    }
}
