//! Roles and bindings in stored form; without a namespace they are cluster-wide.

use crate::rule::{Rule, list};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// The group of roles and bindings.
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";

/// The metadata that RBAC uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Name.
    pub name: String,
    /// Namespace; empty for cluster roles and their bindings.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "map")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "map")]
    pub annotations: BTreeMap<String, String>,
}

fn map<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A Role or ClusterRole.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Role {
    /// Name, namespace, labels.
    pub metadata: Metadata,
    /// Its rules.
    #[serde(deserialize_with = "list")]
    pub rules: Vec<Rule>,
    /// Selects the cluster roles whose rules it aggregates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregation_rule: Option<Aggregation>,
}

/// Selects the roles that a cluster role aggregates.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Aggregation {
    /// Label selectors; a role that matches one of them is aggregated.
    #[serde(deserialize_with = "list")]
    pub cluster_role_selectors: Vec<Value>,
}

/// A subject of a binding.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Subject {
    /// `User`, `Group` or `ServiceAccount`.
    pub kind: String,
    /// API group of the kind.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// Name.
    pub name: String,
    /// Namespace of a service account.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind.as_str() {
            "ServiceAccount" => write!(
                f,
                "{} {:?}",
                self.kind,
                format!("{}/{}", self.name, self.namespace)
            ),
            kind => write!(f, "{kind} {:?}", self.name),
        }
    }
}

/// The role of a binding.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleRef {
    /// API group of the kind.
    pub api_group: String,
    /// `Role` or `ClusterRole`.
    pub kind: String,
    /// Name.
    pub name: String,
}

/// A RoleBinding or ClusterRoleBinding.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Binding {
    /// Name, namespace, labels.
    pub metadata: Metadata,
    /// The subjects.
    #[serde(deserialize_with = "list")]
    pub subjects: Vec<Subject>,
    /// The role.
    pub role_ref: RoleRef,
}

/// The role of a part of the master, and the binding that gives it to the part's own user.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ComponentRole {
    /// What the part may do, as a cluster role.
    pub role: Role,
    /// Binds the role to the user.
    pub binding: Binding,
}
