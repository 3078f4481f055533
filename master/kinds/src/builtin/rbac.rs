//! Roles and who has them.

use super::cells::{AGE, CREATED};
use crate::registry::{Column, Kind, column, wide};
use crate::validate::{Fields, items, object, text};
use config_kube::k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde_json::Value;

pub(super) fn cluster_role() -> Kind {
    Kind { columns: const { &[CREATED] }, ..Kind::of::<ClusterRole>(false) }
}

pub(super) fn role() -> Kind {
    Kind { columns: const { &[CREATED] }, ..Kind::of::<Role>(true) }
}

pub(super) fn cluster_binding() -> Kind {
    Kind { columns: BINDING, ..Kind::of::<ClusterRoleBinding>(false) }
}

pub(super) fn binding() -> Kind {
    Kind { columns: BINDING, ..Kind::of::<RoleBinding>(true) }
}

const BINDING: &[Column] = &[
    column("Role", |fields, _| role_of(fields).into()),
    AGE,
    wide("Users", |fields, _| subjects(fields, "User").into()),
    wide("Groups", |fields, _| subjects(fields, "Group").into()),
    wide("ServiceAccounts", |fields, _| subjects(fields, "ServiceAccount").into()),
];

fn role_of(fields: &Fields) -> String {
    object(fields, "roleRef").map(|role| format!("{}/{}", text(role, "kind"), text(role, "name"))).unwrap_or_default()
}

fn subjects(fields: &Fields, kind: &str) -> String {
    let subjects = items(fields, "subjects").iter().filter_map(Value::as_object);
    let names = subjects.filter(|subject| text(subject, "kind") == kind).map(|subject| {
        let name = text(subject, "name");
        if kind == "ServiceAccount" { format!("{}/{name}", text(subject, "namespace")) } else { name.to_owned() }
    });
    names.collect::<Vec<_>>().join(", ")
}
