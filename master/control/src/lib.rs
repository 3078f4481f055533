//! Controllers: each plans writes from what it observes; one driver runs them.
//!
//! Enter by [`run`]. A controller is a file with a pure `plan(observed, now) → writes` ([`Controller`]):
//!
//! - `node_lifecycle`: silent nodes become not ready, and what is wrong with a node shows as taints
//! - `taint_eviction`: pods leave nodes whose taints they don't tolerate, or not for long
//! - `pod_gc`: pods that nobody will ever end are ended
//! - `namespace`: what is in a deleted namespace goes, then the namespace
//! - `service_account`: system namespaces and default service accounts are there
//! - `event_ttl`, `csr_cleaner`, `bootstrap_tokens`: what is of no use any more goes
//! - `garbage`: what nobody owns any more goes, of whatever kind
//! - `root_ca`: every namespace has the certificate by which the API server is known
//! - `quota`: what quotas count is counted anew where something became free
//! - `approver`: kubelets get their client certificates
//! - `aggregation`: cluster roles that gather rules have them
//! - `account_tokens`: secrets for tokens of service accounts have one
//! - `bootstrap_signer`: the public kubeconfig of the cluster is signed with the bootstrap tokens that may sign
//! - `service_ranges`: ranges of services' addresses say whether they serve, and go once no address is of them
//! - `in_use`: volumes and claims go once nothing uses them
//!
//! What each needs to be allowed is written beside it ([`rights`]).
//!
//! The driver follows the kinds through the API, keeps what controllers need of them ([`observe::Observed`]), asks those
//! controllers whose kinds changed or whose time came, and carries out their writes: a bounded number at once, never two of
//! the same key, a failed one again after a growing wait. All is level-triggered: a write that was lost is planned again.
//! There are no tasks and no channels: the driver holds its writes as futures.

mod account_tokens;
mod aggregation;
mod approver;
mod bootstrap_signer;
mod bootstrap_tokens;
mod csr_cleaner;
mod driver;
mod event_ttl;
mod followers;
pub mod garbage;
mod in_use;
mod namespace;
mod node_lifecycle;
pub mod observe;
mod pod_gc;
mod quota;
mod read;
mod root_ca;
mod service_account;
mod service_ranges;
mod taint_eviction;
mod write;

pub use driver::{Controller, Now, Options, Plan, Right, controllers, rights, run};
pub use write::Write;
