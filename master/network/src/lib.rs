//! The kinds of the network: services and their endpoints, ingresses, network policies, address
//! ranges.
//!
//! Each function of the first level is the descriptor of one kind; `master-kinds` has all of them
//! in one list. The files `*_validate` hold the rules. No tasks, no channels, no I/O.

mod endpoints;
mod endpoints_validate;
mod ingress;
mod ingress_validate;
mod policy;
mod policy_validate;
mod service;
mod service_families;
mod service_validate;

pub use endpoints::{endpoints, slice as endpoint_slice};
pub use ingress::{class as ingress_class, ingress};
pub use policy::{address as ip_address, policy as network_policy, range as service_range};
pub use service::{needs_health_check, node_ports, service};
pub use service_families::{family_of, validate as validate_families};
