//! Controllers of workloads (Deployments, StatefulSets, DaemonSets, Jobs and others): they keep as
//! many pods as each workload wants, from its present template.
//!
//! A file or folder for each kind; `workload` holds what they share. Plans are pure;
//! `tests/workloads` shows each.

pub mod cron_job;
pub mod daemon_set;
pub mod deployment;
pub mod disruption_budget;
pub mod job;
pub mod replica_set;
pub mod replication_controller;
pub mod stateful_set;
pub mod workload;

use master_control::Registration;

/// The controllers of this room.
pub const CONTROLLERS: &[Registration] = &[
    Registration::of::<deployment::Deployments>(),
    Registration::of::<replica_set::ReplicaSets>(),
    Registration::of::<replication_controller::ReplicationControllers>(),
    Registration::of::<daemon_set::DaemonSets>(),
    Registration::of::<stateful_set::StatefulSets>(),
    Registration::of::<disruption_budget::DisruptionBudgets>(),
    Registration::of::<cron_job::CronJobs>(),
    Registration::of::<job::Jobs>(),
    Registration::of::<job::OrphanPods>(),
    Registration::of::<job::JobTtl>(),
];
