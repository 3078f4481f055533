//! Workload kinds.

mod autoscaler;
mod autoscaler_spec;
mod autoscaler_versions;
mod columns;
mod cron;
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

pub(super) use autoscaler::{v1 as horizontal_pod_autoscaler_v1, v2 as horizontal_pod_autoscaler};
pub(super) use cronjob::cron_job;
pub(super) use daemonset::daemon_set;
pub(super) use deployment::deployment;
pub(super) use disruption::pod_disruption_budget;
pub(super) use job::job;
pub(super) use replica::{replica_set, replication_controller};
pub(super) use revision::controller_revision;
pub(super) use statefulset::stateful_set;
pub(super) use template::pod_template;
