//! Admission: changes or refuses an authorized write before it is stored. One file per plugin,
//! under upstream's name, and one list of them, in the order in which they run: [`chain`].
//!
//! A write passes the [`Chain`] twice: [`Chain::admit`] lets plugins change the object, then the
//! kind's own validation runs, then [`Chain::check`] lets plugins refuse it. A plugin reads stored
//! objects by the request's reader; writes and preconditions that must be atomic with the object's
//! write are returned as operations of the same transaction ([`Admitted::ops`]). If one of them
//! conflicts, the caller repeats the whole attempt.
//!
//! The allocation of service addresses and node ports ([`services`]) is a plugin as the others; it
//! also has a repair, which a controller runs from time to time.
//!
//! No tasks, no channels.

mod certificates;
mod chain;
mod claim_resize;
mod default_ingress_class;
mod default_storage_class;
mod default_tolerations;
mod device_access;
mod entry_cache;
mod external_ips;
mod image_floor;
mod limit_ranger;
mod namespace_lifecycle;
mod node_restriction;
mod owner_duplicates;
mod owner_references;
mod plugin;
mod plugin_services;
mod pod_resize;
mod pod_security;
mod priority;
mod requestor;
mod resource_quota;
mod role_escalation;
mod runtime_class;
mod service_account;
pub mod services;
mod storage_in_use;
mod taint_nodes;

pub use chain::{Chain, EnabledPlugins};
pub use plugin::{Admitted, Operation, Plugin, Request};
pub use plugin_services::PluginServices;
