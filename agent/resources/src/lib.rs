//! Resources of a node's pods: what they may use, and what they use.
//!
//! [`qos`] says what a pod may use: its service class, its control group, the limits of its
//! containers; [`group`] sets it in the kernel. [`Figures`] measures what the node, its pods and
//! their containers use, and answers as upstream's kubelet does: `/stats/summary` (JSON),
//! `/metrics/resource` and `/metrics/cadvisor` (Prometheus' text). It also gives the candidates
//! from which a node under pressure evicts one. [`Probed`] counts the results of probes, for
//! `/metrics/probes`, and [`Done`] what the kubelet has done, for `/metrics`; [`Counted`] is an
//! engine whose calls it counts, [`Disks`] what pods take of disks, and [`DeletedFiles`] what of it
//! no folder shows.
//!
//! [`machine`] has the facts about the machine in a node's status.
//!
//! There are no tasks and no channels. A request reads the control groups, unless the last reading
//! is younger than [`figures::LEAST`]; of several concurrent requests one reads, and all get its
//! figures. CPU per second is computed from two readings. Only the last reading is kept, and of it
//! only pods that are still here ([`Figures::retain`]).
//!
//! `counters`, `io` and `links` read the kernel's texts, `rate` compares two readings, `summary`,
//! `resource` and `cadvisor` write answers: all pure.

mod cadvisor;
mod candidates;
mod counted;
mod counters;
mod deleted;
mod disks;
mod done;
pub mod figures;
#[cfg(test)]
mod golden_tests;
pub mod group;
mod io;
mod links;
pub mod machine;
mod probed;
pub mod qos;
mod rate;
mod reading;
mod resource;
mod stall;
mod stored;
mod subjects;
mod summary;
mod timed;
mod volume_stats;

pub use candidates::DiskUse;
pub use counted::Counted;
pub use deleted::DeletedFiles;
pub use disks::{Disks, Measure, PodFolders, Space, VolumePlace};
pub use done::Done;
pub use figures::{Figures, MetricsRequest};
pub use probed::Probed;
pub use subjects::{Disk, Links, Subjects};
pub use timed::{TimedWork, WorkerStep};
