//! Controllers: each plans writes from what it observes; one driver runs them.
//!
//! Enter by [`run`]. A controller is a file with a pure `plan(observed, now) → writes` ([`Controller`]):
//!
//! - `node_lifecycle`: silent nodes become not ready, and what is wrong with a node shows as taints
//! - `taint_eviction`: pods leave nodes whose taints they don't tolerate, or not for long
//! - `pod_gc`: pods that nobody will ever end are ended
//! - `namespace`: what is in a deleted namespace goes, then the namespace
//! - `service_account`: system namespaces and default service accounts are there
//! - `event_ttl`, `csr_cleaner`: what is of no use any more goes
//!
//! The driver follows the kinds through the API, keeps what controllers need of them ([`observe::Observed`]), asks those
//! controllers whose kinds changed or whose time came, and carries out their writes: a bounded number at once, never two of
//! the same key, a failed one again after a growing wait. All is level-triggered: a write that was lost is planned again.
//! There are no tasks and no channels: the driver holds its writes as futures.

mod csr_cleaner;
mod driver;
mod event_ttl;
mod namespace;
mod node_lifecycle;
pub mod observe;
mod pod_gc;
mod service_account;
mod taint_eviction;
mod write;

pub use driver::{Controller, Now, Options, Plan, controllers, run};
pub use namespace::cleared;
pub use write::Write;
