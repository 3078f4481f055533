//! Resources of a node's pods: what they may use, and what they use.
//!
//! [`qos`] says what a pod may use: its service class, its control group, the limits of its containers. [`Figures`] tells what
//! the node, its pods and their containers use, in the forms of upstream's kubelet: `/stats/summary` (JSON),
//! `/metrics/resource` and `/metrics/cadvisor` (Prometheus' text), and to the choice of the pod that a node under pressure evicts. [`Probed`] counts what came of probes, for `/metrics/probes`.
//!
//! [`machine`] has the facts of the machine that a node's status tells.
//!
//! There are no tasks and no channels. A question reads the control groups, unless the last reading is younger than
//! [`figures::LEAST`]; of several at once one reads, and all get its figures. CPU per second comes of two readings. The last
//! reading alone is kept, and of it only pods that are still here ([`Figures::retain`]).
//!
//! `counters` reads the kernel's texts, `rate` compares two readings, `summary`, `resource` and `cadvisor` write answers: all pure.

mod cadvisor;
mod candidates;
mod counters;
pub mod figures;
pub mod machine;
mod probed;
pub mod qos;
mod rate;
mod reading;
mod resource;
mod subjects;
mod summary;

pub use candidates::DiskUse;
pub use figures::{Figures, Question};
pub use probed::Probed;
pub use subjects::{Disk, Subjects};
