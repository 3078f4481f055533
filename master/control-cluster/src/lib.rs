//! Controllers of cluster-wide objects, which belong to no node and no workload.
//!
//! - `namespace`: deletes the content of a deleted namespace
//! - `garbage`: deletes objects whose owners are gone
//! - `quota`: a namespace's usage of its quotas
//! - `in_use`: volumes and claims stay while a pod uses them
//! - `ephemeral_volume`: volumes that a pod has for itself alone get their claims
//! - `volume_binder`: claims and volumes are bound to one another
//! - `volume_provisioner`: makes folders of nodes into volumes, and removes them
//! - `local_class`: the class of these volumes, once there are machines
//! - `service_account`, `account_tokens`: each namespace's default account; tokens in Secrets on
//!   request
//! - `aggregation`: cluster roles that aggregate others
//! - `bootstrap_tokens`, `bootstrap_signer`, `discovery_publisher`: how new machines find and trust
//!   the cluster
//! - `root_ca`: the roots' certificates in every namespace
//! - `event_ttl`: events are kept for an hour
//! - `flow_schemas`: each says whether its priority level is there

pub mod account_tokens;
pub mod aggregation;
pub mod bootstrap_signer;
pub mod bootstrap_tokens;
pub mod discovery_publisher;
pub mod ephemeral_volume;
pub mod event_ttl;
pub mod flow_schemas;
pub mod garbage;
pub mod in_use;
pub mod local_class;
pub mod namespace;
pub mod quota;
pub mod root_ca;
pub mod service_account;
pub mod volume_binder;
pub mod volume_provisioner;

use master_control::Registration;

/// The controllers of this room.
pub const CONTROLLERS: &[Registration] = &[
    Registration::of::<namespace::Namespaces>(),
    Registration::of::<service_account::ServiceAccounts>(),
    Registration::of::<event_ttl::EventTtl>(),
    Registration::of::<flow_schemas::FlowSchemas>(),
    Registration::of::<root_ca::RootCa>(),
    Registration::of::<garbage::Garbage>(),
    Registration::of::<quota::Quotas>(),
    Registration::of::<aggregation::Aggregation>(),
    Registration::of::<bootstrap_tokens::BootstrapTokens>(),
    Registration::of::<bootstrap_signer::BootstrapSigner>(),
    Registration::of::<in_use::InUse>(),
    Registration::of::<ephemeral_volume::EphemeralVolumes>(),
    Registration::of::<volume_binder::VolumeBinder>(),
    Registration::of::<volume_provisioner::VolumeProvisioner>(),
    Registration::of::<local_class::LocalClass>(),
    Registration::of::<account_tokens::AccountTokens>(),
    Registration::of::<discovery_publisher::DiscoveryPublisher>(),
];
