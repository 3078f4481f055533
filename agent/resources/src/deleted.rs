//! Deleted files that a pod's processes keep: no walk of folders meets them, and they take the disk
//! until the last descriptor or mapping is gone.

use crate::qos;
use agent_sys::beneath::Usage;
use agent_sys::cgroup::Groups;
use agent_sys::held::{NamelessFile, NamelessFiles, held};
use config_kube::k8s_openapi::api::core::v1::Pod;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Descriptors and mappings that are looked at in one pod; one that has more is over every limit.
const MAX_HELD: u64 = 1_000_000;
/// Between two looks at a pod's processes while the disk becomes no fuller.
const HELD_PERIOD: Duration = Duration::from_secs(60);
/// Bytes by which the disk becomes fuller before they are looked at again.
const FULLER: u64 = 1 << 20;

/// Deleted files that a pod's processes keep open or mapped.
#[derive(Debug, Clone, Default)]
pub struct DeletedFiles {
    held: NamelessFiles,
    /// When that was looked at, and what was free of the disk then.
    looked: Option<(Instant, u64)>,
}

impl DeletedFiles {
    /// What the pod keeps on the disk with the folder `data`, looked at anew where that is due.
    /// Blocks while it looks.
    #[must_use]
    pub fn now(mut self, data: &Path, pod: &Pod, uid: &str) -> Self {
        let free = nix::sys::statvfs::statvfs(data);
        let free = free.map_or(0, |disk| {
            disk.blocks_free().saturating_mul(disk.fragment_size())
        });
        let fresh = self.looked.is_some_and(|(at, before)| {
            at.elapsed() < HELD_PERIOD && before.saturating_sub(free) < FULLER
        });
        if fresh {
            return self;
        }
        self.looked = Some((Instant::now(), free));
        let group = qos::cgroup(pod, uid);
        let processes = Groups::mounted().processes(&group).unwrap_or_default();
        let device = data.metadata().map_or(0, |data| data.dev());
        self.held = held(&processes, device, MAX_HELD);
        self
    }

    /// The deleted files of a folder of the pod on the disk. A file whose mount no process has any
    /// more counts in every folder, as it may have been in any.
    pub fn below(&self, uid: &str, folder: &str) -> Usage {
        let part = format!("/pods/{uid}/{folder}");
        let lies_in = |root: &Path| {
            let root = root.to_string_lossy();
            let rest = root.find(&part).map(|at| &root[at + part.len()..]);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || folder.is_empty())
        };
        let files = self.held.files.iter().filter(|file| file.direct);
        self.sum(files.filter(|file| file.root.as_deref().is_none_or(lies_in)))
    }

    /// All deleted files of the pod: those of its folder, and those of its containers' layers.
    pub fn all(&self, uid: &str) -> Usage {
        let layers = self.held.files.iter().filter(|file| !file.direct);
        self.below(uid, "").and(self.sum(layers))
    }

    fn sum<'a>(&self, files: impl Iterator<Item = &'a NamelessFile>) -> Usage {
        let one = |file: &NamelessFile| Usage {
            bytes: file.bytes,
            entries: 1,
            more: false,
        };
        let none = Usage {
            more: self.held.more,
            ..Usage::default()
        };
        files.map(one).fold(none, Usage::and)
    }
}
