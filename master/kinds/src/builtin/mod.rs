//! The served kinds: one descriptor each.

mod cells;
mod certificate;
mod event;
mod namespace;
mod node;
mod plain;
mod pod;
mod pod_columns;
mod pod_validate;
mod pratique;
mod review;

pub use pod::grace as pod_grace;

use crate::registry::Kind;

/// Every built-in kind, in the order of discovery.
pub fn all() -> Vec<Kind> {
    let mut kinds = vec![
        plain::config_map(),
        event::core(),
        namespace::namespace(),
        node::node(),
        pod::pod(),
        plain::secret(),
        plain::service_account(),
        review::self_subject(),
        review::token(),
        review::local_subject_access(),
        review::self_subject_access(),
        review::self_subject_rules(),
        review::subject_access(),
        certificate::request(),
        plain::lease(),
        event::events(),
    ];
    kinds.extend(pratique::all());
    kinds
}
