//! Kinds that make pods or look after them.

mod autoscaler;
mod columns;
mod daemonset;
mod deployment;
mod disruption;
mod job;
mod replica;
mod revision;
mod statefulset;
mod template;

pub(super) use autoscaler::{v1 as horizontal_pod_autoscaler_v1, v2 as horizontal_pod_autoscaler};
pub(super) use daemonset::daemon_set;
pub(super) use deployment::deployment;
pub(super) use disruption::pod_disruption_budget;
pub(super) use job::{cron_job, job};
pub(super) use replica::{replica_set, replication_controller};
pub(super) use revision::controller_revision;
pub(super) use statefulset::stateful_set;
pub(super) use template::pod_template;
