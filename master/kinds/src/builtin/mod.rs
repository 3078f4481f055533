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
mod event;
mod event_validate;
mod extensions;
mod fairness;
pub mod fairness_defaults;
mod fairness_validate;
mod limits;
mod limits_validate;
mod metrics;
mod namespace;
mod node;
mod node_validate;
mod plain;
mod pratique;
mod rbac;
mod review;
mod warnings;

use master_schema::registry::{Kind, Registry};
use std::sync::{Arc, LazyLock};

/// The registry of [`all`], of which every API server of this process has the same: it never
/// changes, and its schemas are compiled from hundreds of definitions.
pub fn registry() -> Arc<Registry> {
    static REGISTRY: LazyLock<Arc<Registry>> = LazyLock::new(|| Arc::new(Registry::new(all())));
    REGISTRY.clone()
}

/// Every built-in kind, in the order of discovery.
pub fn all() -> Vec<Kind> {
    let mut kinds = core();
    kinds.extend(admission::all());
    kinds.extend(groups());
    kinds.extend(metrics::all());
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
        master_network::endpoints(),
        event::core(),
        limits::range(),
        namespace::namespace(),
        node::node(),
        master_volumes::volume(),
        master_volumes::claim(),
        master_pods::pod(),
        master_workloads::pod_template(),
        master_workloads::replication_controller(),
        limits::quota(),
        data::secret(),
        master_network::service(),
        plain::service_account(),
    ]
}

/// The kinds of the groups after the admission kinds.
fn groups() -> Vec<Kind> {
    vec![
        extensions::definition(),
        extensions::service(),
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
        master_network::endpoint_slice(),
        event::events(),
        fairness::schema(),
        fairness::level(),
        master_network::ingress(),
        master_network::ingress_class(),
        master_network::ip_address(),
        master_network::network_policy(),
        master_network::service_range(),
        classes::runtime(),
        rbac::cluster_binding(),
        rbac::cluster_role(),
        rbac::binding(),
        rbac::role(),
        master_devices::class(),
        master_devices::claim(),
        master_devices::template(),
        master_devices::slice(),
        classes::priority(),
        master_volumes::storage_driver(),
        master_volumes::storage_node(),
        master_volumes::capacity(),
        master_volumes::storage_class(),
        master_volumes::attachment(),
        master_volumes::attributes_class(),
        master_workloads::pod_disruption_budget(),
    ]
}
