//! The kinds of workloads: Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs, CronJobs,
//! autoscalers and disruption budgets. Each function returns the descriptor of a kind.
//!
//! No tasks, no channels, no I/O.

mod autoscaler;
mod autoscaler_spec;
mod autoscaler_versions;
mod columns;
mod cronjob;
mod daemonset;
mod deployment;
mod disruption;
mod job;
mod job_spec;
mod job_status;
mod replica;
mod revision;
mod rules;
mod statefulset;
mod template;

pub use autoscaler::{v1 as horizontal_pod_autoscaler_v1, v2 as horizontal_pod_autoscaler};
pub use cronjob::cron_job;
pub use daemonset::daemon_set;
pub use deployment::deployment;
pub use disruption::pod_disruption_budget;
pub use job::job;
pub use replica::{replica_set, replication_controller};
pub use revision::controller_revision;
pub use statefulset::stateful_set;
pub use template::pod_template;
