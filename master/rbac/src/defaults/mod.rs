//! The default roles and bindings: upstream's, and those of the master's own components. Each file
//! writes them in the words of [`terms`].

mod cluster;
mod controllers;
mod namespaced;
mod node;
mod own;
mod terms;
mod users;

use crate::object::{Binding, Role};
pub use node::rules as node_rules;
pub use terms::{AUTOUPDATE, component, on, paths};

/// Every default cluster role.
pub fn cluster_roles() -> Vec<Role> {
    let mut roles = cluster::roles();
    roles.extend(users::roles());
    roles.extend(controllers::roles());
    roles.extend(own::roles());
    roles
}

/// Every default cluster role binding.
pub fn cluster_role_bindings() -> Vec<Binding> {
    let mut bindings = cluster::bindings();
    bindings.extend(controllers::bindings());
    bindings.extend(own::bindings());
    bindings
}

/// Every default role in a namespace.
pub fn roles() -> Vec<Role> {
    namespaced::roles()
}

/// Every default role binding in a namespace.
pub fn role_bindings() -> Vec<Binding> {
    namespaced::bindings()
}
