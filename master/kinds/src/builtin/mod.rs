//! The served kinds: one descriptor each.

mod admission;
mod admission_validate;
mod cells;
mod certificate;
mod classes;
mod classes_validate;
mod deletion;
mod devices;
mod endpoints;
mod endpoints_validate;
mod event;
mod fairness;
mod ingress;
mod ingress_validate;
mod limits;
mod limits_validate;
mod namespace;
mod network;
mod network_validate;
mod node;
mod plain;
mod pod;
mod pratique;
mod rbac;
mod review;
mod service;
mod service_families;
mod service_validate;
mod storage;
mod storage_validate;
mod volume;
mod volume_sources;
mod volume_validate;
mod workload;

pub use cells::since as age;
pub use pod::grace as pod_grace;
pub use service::{needs_health_check, node_ports};
pub use service_families::{family_of, validate as validate_families};

use crate::registry::Kind;

/// Every built-in kind, in the order of discovery.
pub fn all() -> Vec<Kind> {
    let mut kinds = vec![
        review::binding(),
        plain::config_map(),
        endpoints::endpoints(),
        event::core(),
        limits::range(),
        namespace::namespace(),
        node::node(),
        volume::volume(),
        volume::claim(),
        pod::pod(),
        workload::pod_template(),
        workload::replication_controller(),
        limits::quota(),
        plain::secret(),
        service::service(),
        plain::service_account(),
        admission::mutating_policy(),
        admission::mutating_binding(),
        admission::mutating_hooks(),
        admission::validating_policy(),
        admission::validating_binding(),
        admission::validating_hooks(),
        review::self_subject(),
        review::token(),
        review::local_subject_access(),
        review::self_subject_access(),
        review::self_subject_rules(),
        review::subject_access(),
        workload::controller_revision(),
        workload::daemon_set(),
        workload::deployment(),
        workload::replica_set(),
        workload::stateful_set(),
        workload::horizontal_pod_autoscaler(),
        workload::horizontal_pod_autoscaler_v1(),
        workload::cron_job(),
        workload::job(),
        certificate::request(),
        plain::lease(),
        endpoints::slice(),
        event::events(),
        fairness::schema(),
        fairness::level(),
        ingress::ingress(),
        ingress::class(),
        network::address(),
        network::policy(),
        network::range(),
        classes::runtime(),
        rbac::cluster_binding(),
        rbac::cluster_role(),
        rbac::binding(),
        rbac::role(),
        devices::class(),
        devices::claim(),
        devices::template(),
        devices::slice(),
        classes::priority(),
        storage::driver(),
        storage::node(),
        storage::capacity(),
        storage::class(),
        storage::attachment(),
        storage::attributes_class(),
        workload::pod_disruption_budget(),
    ];
    kinds.extend(pratique::all());
    deletion::tell(&mut kinds);
    kinds
}
