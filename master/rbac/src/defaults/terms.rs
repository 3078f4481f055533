//! The words in which the default roles are written: `on("get list", "core apps", "pods
//! deployments")`; `core` is the core group.

use crate::object::{Aggregation, Binding, ComponentRole, GROUP, Metadata, Role, RoleRef, Subject};
use crate::rule::Rule;
use serde_json::json;
use std::collections::BTreeMap;

/// Annotation with which an admin disables updates of a default role or binding (value `false`).
pub const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

pub(super) const READ: &str = "get list watch";
pub(super) const WRITE: &str = "create update patch delete deletecollection";
pub(super) const ALL: &str = "get list watch create update patch delete deletecollection";

pub(super) fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    words.sort();
    words.dedup();
    words
}

/// A rule on resources.
pub fn on(verbs: &str, groups: &str, resources: &str) -> Rule {
    let groups = words(groups).into_iter().map(|group| {
        if group == "core" {
            String::new()
        } else {
            group
        }
    });
    let mut api_groups: Vec<String> = groups.collect();
    api_groups.sort();
    Rule {
        verbs: words(verbs),
        api_groups,
        resources: words(resources),
        ..Rule::default()
    }
}

/// A rule on paths that are not resources.
pub fn paths(verbs: &str, paths: &str) -> Rule {
    Rule {
        verbs: words(verbs),
        non_resource_urls: words(paths),
        ..Rule::default()
    }
}

impl Rule {
    /// The same rule, limited to objects with these names.
    #[must_use]
    pub fn named(self, names: &str) -> Self {
        Self {
            resource_names: words(names),
            ..self
        }
    }
}

/// The right to write events.
pub(super) fn events() -> Rule {
    on("create update patch", "core events.k8s.io", "events")
}

pub(super) fn metadata(namespace: &str, name: &str) -> Metadata {
    Metadata {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        labels: BTreeMap::from([(
            "kubernetes.io/bootstrapping".to_owned(),
            "rbac-defaults".to_owned(),
        )]),
        annotations: BTreeMap::from([(AUTOUPDATE.to_owned(), "true".to_owned())]),
    }
}

pub(super) fn role(namespace: &str, name: &str, rules: Vec<Rule>) -> Role {
    Role {
        metadata: metadata(namespace, name),
        rules,
        aggregation_rule: None,
    }
}

pub(super) fn cluster_role(name: &str, rules: Vec<Rule>) -> Role {
    role("", name, rules)
}

/// A cluster role that aggregates the roles labelled for it, and may itself be aggregated.
pub(super) fn aggregated_role(name: &str, into: Option<&str>) -> Role {
    let label = |name: &str| format!("rbac.authorization.k8s.io/aggregate-to-{name}");
    let mut role = cluster_role(name, Vec::new());
    role.aggregation_rule = Some(Aggregation {
        cluster_role_selectors: vec![json!({ "matchLabels": { label(name): "true" } })],
    });
    if let Some(into) = into {
        role.metadata.labels.insert(label(into), "true".to_owned());
    }
    role
}

pub(super) fn aggregated_into(name: &str, into: &str, rules: Vec<Rule>) -> Role {
    let mut role = cluster_role(name, rules);
    role.metadata.labels.insert(
        format!("rbac.authorization.k8s.io/aggregate-to-{into}"),
        "true".to_owned(),
    );
    role
}

pub(super) fn user(name: &str) -> Subject {
    Subject {
        kind: "User".to_owned(),
        api_group: GROUP.to_owned(),
        name: name.to_owned(),
        namespace: String::new(),
    }
}

pub(super) fn group(name: &str) -> Subject {
    Subject {
        kind: "Group".to_owned(),
        ..user(name)
    }
}

pub(super) fn account(name: &str) -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        api_group: String::new(),
        name: name.to_owned(),
        namespace: "kube-system".to_owned(),
    }
}

pub(super) fn bind(
    namespace: &str,
    name: &str,
    kind: &str,
    role: &str,
    subjects: Vec<Subject>,
) -> Binding {
    let role_ref = RoleRef {
        api_group: GROUP.to_owned(),
        kind: kind.to_owned(),
        name: role.to_owned(),
    };
    Binding {
        metadata: metadata(namespace, name),
        subjects,
        role_ref,
    }
}

/// Binds a cluster role in the whole cluster, under its own name.
pub(super) fn bind_cluster(role: &str, subjects: Vec<Subject>) -> Binding {
    bind("", role, "ClusterRole", role, subjects)
}

/// The cluster role of a part of the master that runs as a user of its own, and the binding of
/// both.
pub fn component(role: &str, rules: Vec<Rule>, user: &str) -> ComponentRole {
    let subject = self::user(user);
    ComponentRole {
        role: cluster_role(role, rules),
        binding: bind_cluster(role, vec![subject]),
    }
}
