//! `kubelet_volume_stats_*`: what is used of claimed volumes, under upstream's names; pure.

use crate::disks::Space;
use config_figures::Text;

/// Reads one family's figure of a volume.
type Take = fn(&Space) -> Option<u64>;

/// A family of claimed volumes.
struct Family {
    /// The end of its name, after `kubelet_volume_stats_`.
    suffix: &'static str,
    help: &'static str,
    take: Take,
}

const FAMILIES: [Family; 6] = [
    Family {
        suffix: "available_bytes",
        help: "Number of available bytes in the volume",
        take: |space| Some(space.disk.free),
    },
    Family {
        suffix: "capacity_bytes",
        help: "Capacity in bytes of the volume",
        take: |space| Some(space.disk.size),
    },
    Family {
        suffix: "inodes",
        help: "Maximum number of inodes in the volume",
        take: |space| Some(space.disk.inodes),
    },
    Family {
        suffix: "inodes_free",
        help: "Number of free inodes in the volume",
        take: |space| Some(space.disk.free_inodes),
    },
    Family {
        suffix: "inodes_used",
        help: "Number of used inodes in the volume",
        take: |space| space.inodes_used,
    },
    Family {
        suffix: "used_bytes",
        help: "Number of used bytes in the volume",
        take: |space| space.used,
    },
];

/// What is used of a claimed volume.
pub(crate) struct ClaimedVolume {
    /// The claim's, as samples have them.
    pub(crate) labels: String,
    pub(crate) space: Space,
}

/// Writes the families of these volumes, with their labels.
pub(crate) fn volume_stats(all: &[ClaimedVolume]) -> String {
    let mut text = Text::default();
    if all.is_empty() {
        return text.finish();
    }
    for family in FAMILIES {
        let name = format!("kubelet_volume_stats_{}", family.suffix);
        text.family(&name, "gauge", family.help);
        for ClaimedVolume { labels, space } in all {
            if let Some(value) = (family.take)(space) {
                text.sample(&name, labels, value);
            }
        }
    }
    text.finish()
}
