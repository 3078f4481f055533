//! Roles and role bindings.

use config_kube::k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use master_schema::cells::{AGE, CREATED};
use master_schema::registry::{Column, Kind, Strategy, column, wide};
use master_schema::validate::labels;
use master_schema::validate::{
    Faults, FieldPath, Fields, default_to, get, items, names, object, object_mut, text,
};
use serde_json::Value;

/// The group of roles, and of users and groups as subjects.
const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) fn cluster_role() -> Kind {
    let validate = |fields: &Fields, faults: &mut Faults| {
        rules(fields, false, faults);
        aggregation(fields, faults);
    };
    let strategy = Strategy {
        // Names such as `system:node` are no DNS names.
        names: names::path_segment,
        validate,
        made_by_update: true,
        ..Strategy::default()
    };
    Kind {
        columns: vec![CREATED],
        strategy,
        ..Kind::of::<ClusterRole>(false)
    }
}

pub(super) fn role() -> Kind {
    let validate = |fields: &Fields, faults: &mut Faults| rules(fields, true, faults);
    let strategy = Strategy {
        names: names::path_segment,
        validate,
        made_by_update: true,
        ..Strategy::default()
    };
    Kind {
        columns: vec![CREATED],
        strategy,
        ..Kind::of::<Role>(true)
    }
}

pub(super) fn cluster_binding() -> Kind {
    let validate = |fields: &Fields, faults: &mut Faults| bound(fields, &["ClusterRole"], faults);
    Kind {
        columns: BINDING.to_vec(),
        strategy: Strategy {
            validate,
            ..binding_strategy()
        },
        ..Kind::of::<ClusterRoleBinding>(false)
    }
}

pub(super) fn binding() -> Kind {
    let validate =
        |fields: &Fields, faults: &mut Faults| bound(fields, &["Role", "ClusterRole"], faults);
    Kind {
        columns: BINDING.to_vec(),
        strategy: Strategy {
            validate,
            ..binding_strategy()
        },
        ..Kind::of::<RoleBinding>(true)
    }
}

/// The strategy that both kinds of bindings share.
fn binding_strategy() -> Strategy {
    Strategy {
        names: names::path_segment,
        made_by_update: true,
        defaults: |fields| {
            if let Some(role) = object_mut(fields, "roleRef") {
                default_to(role, "apiGroup", GROUP);
            }
            let subjects = fields
                .get_mut("subjects")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten();
            for subject in subjects.filter_map(Value::as_object_mut) {
                if matches!(text(subject, "kind"), "User" | "Group") {
                    default_to(subject, "apiGroup", GROUP);
                }
            }
        },
        validate_update: |new, old, faults| {
            // A right to update a binding is one to choose its subjects, not their role.
            if get(new, "roleRef") != get(old, "roleRef") {
                faults.invalid(
                    &FieldPath::root("roleRef"),
                    get(new, "roleRef"),
                    "cannot change roleRef",
                );
            }
        },
        ..Strategy::default()
    }
}

fn rules(fields: &Fields, namespaced: bool, faults: &mut Faults) {
    let at = FieldPath::root("rules");
    for (number, rule) in items(fields, "rules").iter().enumerate() {
        let at = at.index(number);
        let Some(rule) = rule.as_object() else {
            continue;
        };
        let none = |key: &str| items(rule, key).is_empty();
        if none("verbs") {
            faults.required(&at.field("verbs"), "verbs must contain at least one value");
        }
        if !none("nonResourceURLs") {
            let (at, value) = (at.field("nonResourceURLs"), get(rule, "nonResourceURLs"));
            if namespaced {
                faults.invalid(
                    &at,
                    value,
                    "namespaced rules cannot apply to non-resource URLs",
                );
            }
            if !(none("apiGroups") && none("resources") && none("resourceNames")) {
                faults.invalid(
                    &at,
                    value,
                    "rules cannot apply to both regular resources and non-resource URLs",
                );
            }
            continue;
        }
        if none("apiGroups") {
            faults.required(
                &at.field("apiGroups"),
                "resource rules must supply at least one api group",
            );
        }
        if none("resources") {
            faults.required(
                &at.field("resources"),
                "resource rules must supply at least one resource",
            );
        }
    }
}

fn aggregation(fields: &Fields, faults: &mut Faults) {
    let Some(aggregation) = object(fields, "aggregationRule") else {
        return;
    };
    let at = FieldPath::root("aggregationRule");
    let at = at.field("clusterRoleSelectors");
    let selectors = items(aggregation, "clusterRoleSelectors");
    if selectors.is_empty() {
        faults.required(
            &at,
            "at least one clusterRoleSelector required if aggregationRule is non-nil",
        );
    }
    for (number, selector) in selectors.iter().enumerate() {
        labels::selector(selector.as_object(), &at.index(number), faults);
    }
}

fn bound(fields: &Fields, kinds: &[&str], faults: &mut Faults) {
    let at = FieldPath::root("roleRef");
    let empty = Fields::new();
    let role = object(fields, "roleRef").unwrap_or(&empty);
    let value = |key: &str| Value::from(text(role, key));
    faults.one_of(&at.field("apiGroup"), &value("apiGroup"), &[GROUP]);
    faults.one_of(&at.field("kind"), &value("kind"), kinds);
    let name = text(role, "name");
    if name.is_empty() {
        faults.required(&at.field("name"), "");
    } else if let Err(fault) = names::path_segment(name) {
        faults.invalid(&at.field("name"), &name.into(), fault);
    }
    let at = FieldPath::root("subjects");
    for (number, subject) in items(fields, "subjects").iter().enumerate() {
        if let Some(subject) = subject.as_object() {
            who(subject, kinds.len() > 1, &at.index(number), faults);
        }
    }
}

fn who(subject: &Fields, namespaced: bool, at: &FieldPath<'_>, faults: &mut Faults) {
    let name = text(subject, "name");
    if name.is_empty() {
        faults.required(&at.field("name"), "");
    }
    let group: Value = text(subject, "apiGroup").into();
    match text(subject, "kind") {
        "ServiceAccount" => {
            if let Err(fault) = names::subdomain(name)
                && !name.is_empty()
            {
                faults.invalid(&at.field("name"), &name.into(), fault);
            }
            faults.one_of(&at.field("apiGroup"), &group, &[""]);
            // In a RoleBinding an account without a namespace is one of the binding's own.
            if !namespaced && text(subject, "namespace").is_empty() {
                faults.required(&at.field("namespace"), "");
            }
        }
        "User" | "Group" => faults.one_of(&at.field("apiGroup"), &group, &[GROUP]),
        kind => faults.one_of(
            &at.field("kind"),
            &kind.into(),
            &["ServiceAccount", "User", "Group"],
        ),
    }
}

const BINDING: &[Column] = &[
    column("Role", |fields, _| role_of(fields).into()),
    AGE,
    wide("Users", |fields, _| subjects(fields, "User").into()),
    wide("Groups", |fields, _| subjects(fields, "Group").into()),
    wide("ServiceAccounts", |fields, _| {
        subjects(fields, "ServiceAccount").into()
    }),
];

fn role_of(fields: &Fields) -> String {
    object(fields, "roleRef")
        .map(|role| format!("{}/{}", text(role, "kind"), text(role, "name")))
        .unwrap_or_default()
}

fn subjects(fields: &Fields, kind: &str) -> String {
    let subjects = items(fields, "subjects")
        .iter()
        .filter_map(Value::as_object);
    let names = subjects
        .filter(|subject| text(subject, "kind") == kind)
        .map(|subject| {
            let name = text(subject, "name");
            if kind == "ServiceAccount" {
                format!("{}/{name}", text(subject, "namespace"))
            } else {
                name.to_owned()
            }
        });
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn faults_of(kind: &Kind, object: Value) -> Vec<String> {
        let Value::Object(mut fields) = object else {
            panic!("an object")
        };
        (kind.strategy.defaults)(&mut fields);
        let mut faults = Faults::default();
        (kind.strategy.validate)(&fields, &mut faults);
        let error = faults.into_error(GROUP, &kind.kind, "x").err();
        let causes = error.map(|error| error.details.causes).unwrap_or_default();
        causes
            .into_iter()
            .map(|cause| format!("{}: {}", cause.field, cause.message))
            .collect()
    }

    #[test]
    fn every_fault_of_a_rule_is_reported() {
        let rules = json!({"rules": [
            {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
            {"apiGroups": [], "resources": []},
            {"verbs": ["get"], "nonResourceURLs": ["/x"]},
        ]});
        let common = [
            "rules[1].verbs: Required value: verbs must contain at least one value",
            "rules[1].apiGroups: Required value: resource rules must supply at least one api group",
            "rules[1].resources: Required value: resource rules must supply at least one resource",
        ];
        assert_eq!(faults_of(&cluster_role(), rules.clone()), common);
        let namespaced = faults_of(&role(), rules);
        assert_eq!(namespaced.len(), 4);
        assert!(
            namespaced[3].ends_with("namespaced rules cannot apply to non-resource URLs"),
            "{namespaced:?}"
        );
        let empty = json!({"aggregationRule": {"clusterRoleSelectors": []}});
        assert_eq!(faults_of(&cluster_role(), empty).len(), 1);
    }

    #[test]
    fn bindings_name_a_role_and_known_subjects() {
        let good = json!({"roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [
            {"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s", "namespace": "n"},
        ]});
        assert_eq!(
            faults_of(&binding(), good.clone()),
            Vec::<String>::new(),
            "groups are filled in"
        );
        assert_eq!(faults_of(&cluster_binding(), good), Vec::<String>::new());
        let bad = json!({"roleRef": {"kind": "Role", "name": ""}, "subjects": [
            {"kind": "Robot", "name": "u"}, {"kind": "ServiceAccount", "name": "s"}, {"kind": "Group", "name": ""},
        ]});
        assert_eq!(
            faults_of(&cluster_binding(), bad),
            [
                "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"",
                "roleRef.name: Required value",
                "subjects[0].kind: Unsupported value: \"Robot\": supported values: \"ServiceAccount\", \"User\", \"Group\"",
                "subjects[1].namespace: Required value",
                "subjects[2].name: Required value",
            ]
        );
    }
}
