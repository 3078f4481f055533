//! The built-in kinds: one descriptor each.

mod admission;
mod admission_policy;
mod admission_validate;
mod blank;
mod certificate;
mod certificate_validate;
mod classes;
mod classes_validate;
mod data;
mod deletion;
mod devices;
mod devices_slice;
mod devices_status;
mod devices_validate;
mod endpoints;
mod endpoints_validate;
mod event;
mod event_validate;
mod fairness;
pub mod fairness_defaults;
mod fairness_validate;
mod ingress;
mod ingress_validate;
mod limits;
mod limits_validate;
mod namespace;
mod network;
mod network_validate;
mod node;
mod node_validate;
mod plain;
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
mod warnings;

pub use service::{needs_health_check, node_ports};
pub use service_families::{family_of, validate as validate_families};

use master_schema::registry::Kind;

/// Every built-in kind, in the order of discovery.
pub fn all() -> Vec<Kind> {
    let mut kinds = core();
    kinds.extend(admission::all());
    kinds.extend(groups());
    kinds.extend(pratique::all());
    deletion::apply(&mut kinds);
    blank::apply(&mut kinds);
    warnings::apply(&mut kinds);
    kinds
}

/// The kinds of the core group.
fn core() -> Vec<Kind> {
    vec![
        review::binding(),
        review::component(),
        data::config_map(),
        endpoints::endpoints(),
        event::core(),
        limits::range(),
        namespace::namespace(),
        node::node(),
        volume::volume(),
        volume::claim(),
        master_pods::pod(),
        master_workloads::pod_template(),
        master_workloads::replication_controller(),
        limits::quota(),
        data::secret(),
        service::service(),
        plain::service_account(),
    ]
}

/// The kinds of the groups after the admission kinds.
fn groups() -> Vec<Kind> {
    vec![
        review::self_subject(),
        review::token(),
        review::local_subject_access(),
        review::self_subject_access(),
        review::self_subject_rules(),
        review::subject_access(),
        master_workloads::controller_revision(),
        master_workloads::daemon_set(),
        master_workloads::deployment(),
        master_workloads::replica_set(),
        master_workloads::stateful_set(),
        master_workloads::horizontal_pod_autoscaler(),
        master_workloads::horizontal_pod_autoscaler_v1(),
        master_workloads::cron_job(),
        master_workloads::job(),
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
        master_workloads::pod_disruption_budget(),
    ]
}
