//! Decisions over a snapshot: tables, and properties against a simple reference.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may stop at the first surprise"
)]

use master_rbac::defaults::{self, on, paths};
use master_rbac::{
    Binding, Metadata, Request, Resource, Role, RoleRef, Rule, Snapshot, Subject, Verdict, Who,
};
use proptest::prelude::*;

fn role(namespace: &str, name: &str, rules: Vec<Rule>) -> Role {
    let metadata = Metadata {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        ..Metadata::default()
    };
    Role {
        metadata,
        rules,
        aggregation_rule: None,
    }
}

fn binding(namespace: &str, name: &str, kind: &str, role: &str, subjects: Vec<Subject>) -> Binding {
    let metadata = Metadata {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        ..Metadata::default()
    };
    let role_ref = RoleRef {
        api_group: "rbac.authorization.k8s.io".to_owned(),
        kind: kind.to_owned(),
        name: role.to_owned(),
    };
    Binding {
        metadata,
        subjects,
        role_ref,
    }
}

fn subject(kind: &str, namespace: &str, name: &str) -> Subject {
    Subject {
        kind: kind.to_owned(),
        api_group: String::new(),
        name: name.to_owned(),
        namespace: namespace.to_owned(),
    }
}

fn asks<'a>(verb: &'a str, path: &'a str, namespace: &'a str) -> Request<'a> {
    let (resource, subresource) = path.split_once('/').unwrap_or((path, ""));
    Request::Resource(
        verb,
        Resource {
            group: "",
            resource,
            subresource,
            namespace,
            name: "x",
        },
    )
}

fn allowed(snapshot: &Snapshot, name: &str, groups: &[&str], request: &Request<'_>) -> bool {
    let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
    matches!(
        snapshot.decide(
            &Who {
                name,
                groups: &groups
            },
            request
        ),
        Verdict::Allowed(_)
    )
}

fn defaults() -> Snapshot {
    let mut snapshot = Snapshot::default();
    defaults::cluster_roles()
        .into_iter()
        .chain(defaults::roles())
        .for_each(|role| snapshot.set_role(role));
    let bindings = defaults::cluster_role_bindings()
        .into_iter()
        .chain(defaults::role_bindings());
    bindings.for_each(|binding| snapshot.set_binding(binding));
    snapshot
}

#[test]
fn subjects_are_users_groups_and_service_accounts() {
    let mut snapshot = Snapshot::default();
    snapshot.set_role(role("", "reader", vec![on("get", "core", "pods")]));
    let subjects = vec![
        subject("User", "", "alice"),
        subject("Group", "", "team"),
        subject("ServiceAccount", "other", "robot"),
        subject("ServiceAccount", "", "local"),
        subject("Robot", "", "nobody"),
    ];
    snapshot.set_binding(binding("n", "b", "ClusterRole", "reader", subjects));
    let pods = asks("get", "pods", "n");
    for (name, groups, expected) in [
        ("alice", &[][..], true),
        ("bob", &["team"][..], true),
        ("bob", &[], false),
        ("team", &[], false),
        ("bob", &["alice"], false),
        ("system:serviceaccount:other:robot", &[], true),
        ("system:serviceaccount:n:robot", &[], false),
        ("system:serviceaccount:n:local", &[], true),
        ("system:serviceaccount:other:local", &[], false),
        ("nobody", &["nobody"], false),
    ] {
        assert_eq!(
            allowed(&snapshot, name, groups, &pods),
            expected,
            "{name} {groups:?}"
        );
    }
    for elsewhere in ["m", ""] {
        assert!(
            !allowed(&snapshot, "alice", &[], &asks("get", "pods", elsewhere)),
            "a binding ends with its namespace"
        );
    }
}

#[test]
fn the_reason_names_binding_role_and_subject() {
    let mut snapshot = Snapshot::default();
    snapshot.set_role(role("n", "reader", vec![on("get", "core", "pods")]));
    snapshot.set_binding(binding(
        "n",
        "b",
        "Role",
        "reader",
        vec![subject("ServiceAccount", "n", "robot")],
    ));
    let who = Who {
        name: "system:serviceaccount:n:robot",
        groups: &[],
    };
    assert_eq!(
        snapshot.decide(&who, &asks("get", "pods", "n")),
        Verdict::Allowed(
            "RBAC: allowed by RoleBinding \"b/n\" of Role \"reader\" to ServiceAccount \"robot/n\""
                .to_owned()
        )
    );
    snapshot.set_binding(binding(
        "",
        "c",
        "ClusterRole",
        "gone",
        vec![subject("User", "", who.name)],
    ));
    snapshot.remove_role("n", "reader");
    assert_eq!(
        snapshot.decide(&who, &asks("get", "pods", "n")),
        Verdict::NoOpinion(
            "RBAC: [clusterrole.rbac.authorization.k8s.io \"gone\" not found, role.rbac.authorization.k8s.io \"reader\" not found]"
                .to_owned()
        )
    );
}

#[test]
fn a_change_takes_effect_and_leaves_nothing_behind() {
    let mut snapshot = Snapshot::default();
    let pods = asks("get", "pods", "n");
    snapshot.set_role(role("", "reader", vec![on("get", "core", "pods")]));
    snapshot.set_binding(binding(
        "",
        "b",
        "ClusterRole",
        "reader",
        vec![subject("User", "", "a")],
    ));
    assert!(allowed(&snapshot, "a", &[], &pods));
    snapshot.set_binding(binding(
        "",
        "b",
        "ClusterRole",
        "reader",
        vec![subject("User", "", "c")],
    ));
    assert!(!allowed(&snapshot, "a", &[], &pods));
    assert!(allowed(&snapshot, "c", &[], &pods));
    snapshot.set_role(role("", "reader", Vec::new()));
    assert!(!allowed(&snapshot, "c", &[], &pods));
    snapshot.set_role(role("", "reader", vec![on("get", "core", "pods")]));
    snapshot.remove_binding("", "b");
    assert!(!allowed(&snapshot, "c", &[], &pods));
}

#[test]
fn callers_have_what_upstream_gives_them_by_default() {
    let snapshot = defaults();
    let anonymous = |path| {
        allowed(
            &snapshot,
            "system:anonymous",
            &["system:unauthenticated"],
            &Request::Path("get", path),
        )
    };
    for path in ["/livez", "/readyz", "/healthz", "/version"] {
        assert!(anonymous(path), "{path}");
    }
    for path in [
        "/api",
        "/apis/apps/v1",
        "/openapi/v3",
        "/metrics",
        "/livez/store",
        "/openid/v1/jwks",
    ] {
        assert!(!anonymous(path), "{path}");
    }
    let authenticated = &["system:authenticated"][..];
    for path in ["/api", "/api/v1", "/apis/apps/v1", "/openapi/v3"] {
        assert!(
            allowed(&snapshot, "u", authenticated, &Request::Path("get", path)),
            "{path}"
        );
    }
    assert!(!allowed(
        &snapshot,
        "u",
        authenticated,
        &asks("get", "pods", "default")
    ));
    assert!(allowed(
        &snapshot,
        "u",
        &["system:masters"],
        &asks("delete", "nodes", "")
    ));
    let account = &["system:serviceaccounts", "system:authenticated"][..];
    for path in ["/openid/v1/jwks", "/.well-known/openid-configuration"] {
        assert!(
            allowed(
                &snapshot,
                "system:serviceaccount:n:a",
                account,
                &Request::Path("get", path)
            ),
            "{path}"
        );
    }
    let monitoring = &["system:monitoring"][..];
    assert!(allowed(
        &snapshot,
        "m",
        monitoring,
        &Request::Path("get", "/metrics")
    ));
    assert!(
        !allowed(
            &snapshot,
            "system:node:n",
            &["system:nodes"],
            &asks("get", "secrets", "n")
        ),
        "not by a role"
    );
}

#[test]
fn every_default_binding_gives_a_default_role_and_names_are_unique() {
    let snapshot = defaults();
    let mut seen = std::collections::BTreeSet::new();
    for binding in defaults::cluster_role_bindings()
        .into_iter()
        .chain(defaults::role_bindings())
    {
        let Metadata {
            namespace, name, ..
        } = &binding.metadata;
        assert!(
            snapshot.referred(&binding.role_ref, namespace).is_ok(),
            "{binding:?}"
        );
        assert!(
            seen.insert(("binding", namespace.clone(), name.clone())),
            "{name}"
        );
    }
    for role in defaults::cluster_roles()
        .into_iter()
        .chain(defaults::roles())
    {
        let Metadata {
            namespace, name, ..
        } = &role.metadata;
        assert!(
            seen.insert(("role", namespace.clone(), name.clone())),
            "{name}"
        );
        assert!(
            role.rules.iter().all(|rule| !rule.verbs.is_empty()),
            "{name}"
        );
        let gathers = role.aggregation_rule.is_some();
        assert!(gathers || !role.rules.is_empty(), "{name} allows nothing");
    }
}

/// Lists of objects that fit a body: multiplied, they would take hours.
#[test]
fn long_lists_of_groups_subjects_and_rules_are_not_multiplied() {
    const COUNT: usize = 50_000;
    let names: Vec<String> = (0..COUNT).map(|number| format!("g{number}")).collect();
    let of_groups = names.iter().map(|name| subject("Group", "", name));
    let rules: Vec<Rule> = names.iter().map(|name| on("get", "core", name)).collect();
    let mut snapshot = Snapshot::default();
    snapshot.set_role(role("n", "many", rules.clone()));
    snapshot.set_binding(binding("n", "many", "Role", "many", of_groups.collect()));
    let who = Who {
        name: "u",
        groups: &names,
    };
    let refused = snapshot.decide(&who, &asks("delete", "pods", "n"));
    assert_eq!(refused, Verdict::NoOpinion(String::new()));
    let last = format!("g{}", COUNT - 1);
    let answer = snapshot.decide(&who, &asks("get", &last, "n"));
    assert!(matches!(answer, Verdict::Allowed(_)), "{answer:?}");
    assert_eq!(snapshot.grants(&who, "n").rules.len(), COUNT);
    let whole = serde_json::json!({"metadata": {"name": "whole"},
        "aggregationRule": {"clusterRoleSelectors": [{}]}});
    let whole: Role = serde_json::from_value(whole).unwrap();
    let parts = [role("", "a", rules.clone()), role("", "b", rules)];
    let gathered = master_rbac::aggregate::gathered(&whole, &parts, |_, _| true).unwrap();
    assert_eq!(gathered.len(), COUNT);
}

#[test]
fn admin_edit_and_view_gather_each_other() {
    let mut all = defaults::cluster_roles();
    // In the order of the aggregation controller: innermost roles first.
    for name in ["view", "edit", "admin"] {
        let own = all
            .iter()
            .position(|role| role.metadata.name == name)
            .unwrap();
        let gathered =
            master_rbac::aggregate::gathered(&all[own], &all, master_rbac::aggregate::by_labels)
                .unwrap();
        all[own].rules = gathered;
    }
    let rules = |name: &str| {
        &all.iter()
            .find(|role| role.metadata.name == name)
            .unwrap()
            .rules
    };
    let may = |name: &str, verb: &str, group: &str, path: &str| {
        let (resource, subresource) = path.split_once('/').unwrap_or((path, ""));
        let request = Request::Resource(
            verb,
            Resource {
                group,
                resource,
                subresource,
                namespace: "n",
                name: "x",
            },
        );
        rules(name).iter().any(|rule| rule.allows(&request))
    };
    assert!(
        may("view", "get", "", "pods")
            && !may("view", "get", "", "secrets")
            && !may("view", "delete", "", "pods")
    );
    assert!(
        may("edit", "get", "", "pods")
            && may("edit", "get", "", "secrets")
            && may("edit", "delete", "", "pods")
    );
    assert!(!may("edit", "create", "rbac.authorization.k8s.io", "roles"));
    assert!(
        may("admin", "create", "rbac.authorization.k8s.io", "roles")
            && may("admin", "delete", "", "pods")
    );
    for who in ["admin", "edit", "view"] {
        assert!(
            !may(who, "update", "", "resourcequotas") && !may(who, "create", "", "namespaces"),
            "{who}"
        );
    }
}

/// Upstream's rule for one binding, without an index.
fn naive(roles: &[Role], bindings: &[Binding], who: &Who<'_>, request: &Request<'_>) -> bool {
    bindings.iter().any(|binding| {
        let place = &binding.metadata.namespace;
        let applies = place.is_empty() || place == request.namespace();
        let bound = binding
            .subjects
            .iter()
            .any(|subject| match subject.kind.as_str() {
                "User" => subject.name == who.name,
                "Group" => who.groups.contains(&subject.name),
                _ => {
                    let home = if subject.namespace.is_empty() {
                        place
                    } else {
                        &subject.namespace
                    };
                    !home.is_empty()
                        && who.name == format!("system:serviceaccount:{home}:{}", subject.name)
                }
            });
        let home = if binding.role_ref.kind == "Role" {
            place.as_str()
        } else {
            ""
        };
        applies
            && bound
            && roles.iter().any(|role| {
                role.metadata.name == binding.role_ref.name
                    && role.metadata.namespace == home
                    && role.rules.iter().any(|rule| rule.allows(request))
            })
    })
}

fn word(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(words).prop_map(str::to_owned)
}

fn some(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::collection::vec(word(words), 0..3).prop_map(|list| list.join(" "))
}

const VERBS: &[&str] = &["get", "list", "*"];
const GROUPS: &[&str] = &["core", "apps", "*"];
const RESOURCES: &[&str] = &["pods", "pods/log", "*/log", "secrets", "*"];
const NAMES: &[&str] = &["a", "x"];
const PLACES: &[&str] = &["", "n", "m"];

fn rule() -> impl Strategy<Value = Rule> {
    (
        some(VERBS),
        some(GROUPS),
        some(RESOURCES),
        some(NAMES),
        some(&["/a", "/a/*", "*"]),
        any::<bool>(),
    )
        .prop_map(|(verbs, groups, resources, names, urls, path)| {
            if path {
                paths(&verbs, &urls)
            } else {
                on(&verbs, &groups, &resources).named(&names)
            }
        })
}

fn roles() -> impl Strategy<Value = Vec<Role>> {
    let one = (
        word(PLACES),
        word(&["r", "s"]),
        prop::collection::vec(rule(), 0..3),
    );
    prop::collection::vec(
        one.prop_map(|(place, name, rules)| role(&place, &name, rules)),
        0..4,
    )
    .prop_map(|mut roles| {
        roles.sort_by_key(|role| (role.metadata.namespace.clone(), role.metadata.name.clone()));
        roles.dedup_by_key(|role| (role.metadata.namespace.clone(), role.metadata.name.clone()));
        roles
    })
}

fn bindings() -> impl Strategy<Value = Vec<Binding>> {
    let kind = word(&["User", "Group", "ServiceAccount"]);
    let who = (kind, word(PLACES), word(&["u", "g", "v"]))
        .prop_map(|(kind, place, name)| subject(&kind, &place, &name));
    let one = (
        word(PLACES),
        word(&["b", "c"]),
        word(&["Role", "ClusterRole"]),
        word(&["r", "s"]),
        prop::collection::vec(who, 0..3),
    );
    let one =
        one.prop_map(|(place, name, kind, role, who)| binding(&place, &name, &kind, &role, who));
    prop::collection::vec(one, 0..5).prop_map(|mut bindings| {
        bindings.sort_by_key(|one| (one.metadata.namespace.clone(), one.metadata.name.clone()));
        bindings.dedup_by_key(|one| (one.metadata.namespace.clone(), one.metadata.name.clone()));
        bindings
    })
}

fn filled(roles: &[Role], bindings: &[Binding]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for role in roles {
        snapshot.set_role(role.clone());
    }
    for binding in bindings {
        snapshot.set_binding(binding.clone());
    }
    snapshot
}

/// Every question that the generated clusters can distinguish.
fn questions() -> Vec<(&'static str, &'static str, &'static str, &'static str)> {
    let mut all = Vec::new();
    for verb in ["get", "list", "delete"] {
        for group in ["", "apps"] {
            for path in ["pods", "pods/log", "secrets", "nodes/log"] {
                for place in ["", "n", "m"] {
                    all.push((verb, group, path, place));
                }
            }
        }
    }
    all
}

fn question(parts: (&'static str, &'static str, &'static str, &'static str)) -> Request<'static> {
    let (verb, group, path, namespace) = parts;
    let (resource, subresource) = path.split_once('/').unwrap_or((path, ""));
    Request::Resource(
        verb,
        Resource {
            group,
            resource,
            subresource,
            namespace,
            name: "x",
        },
    )
}

fn callers() -> Vec<(&'static str, Vec<String>)> {
    vec![
        ("u", vec!["g".to_owned()]),
        ("v", Vec::new()),
        ("system:serviceaccount:n:u", Vec::new()),
        ("system:serviceaccount:m:v", vec!["v".to_owned()]),
    ]
}

proptest! {
    #[test]
    fn the_index_decides_as_the_naive_reference(roles in roles(), bindings in bindings()) {
        let snapshot = filled(&roles, &bindings);
        for (name, groups) in callers() {
            let who = Who { name, groups: &groups };
            for parts in questions() {
                let request = question(parts);
                let decided = matches!(snapshot.decide(&who, &request), Verdict::Allowed(_));
                prop_assert_eq!(decided, naive(&roles, &bindings, &who, &request), "{} {:?}", name, parts);
            }
        }
    }

    #[test]
    fn another_rule_never_takes_a_right_away(roles in roles(), bindings in bindings(), more in rule(), at in any::<prop::sample::Index>()) {
        prop_assume!(!roles.is_empty());
        let before = filled(&roles, &bindings);
        let mut wider = roles.clone();
        let own = at.index(wider.len());
        wider[own].rules.push(more);
        let after = filled(&wider, &bindings);
        for (name, groups) in callers() {
            let who = Who { name, groups: &groups };
            for parts in questions() {
                let request = question(parts);
                if matches!(before.decide(&who, &request), Verdict::Allowed(_)) {
                    prop_assert!(matches!(after.decide(&who, &request), Verdict::Allowed(_)));
                }
            }
        }
    }

    #[test]
    fn covered_rules_allow_nothing_more(owned in prop::collection::vec(rule(), 0..3), wanted in rule()) {
        let lacking = master_rbac::cover::lacking(&owned, std::slice::from_ref(&wanted));
        if lacking.is_empty() {
            for parts in questions() {
                let request = question(parts);
                prop_assert!(!wanted.allows(&request) || owned.iter().any(|rule| rule.allows(&request)), "{:?}", parts);
            }
        }
        let mut all = owned;
        all.extend(lacking);
        prop_assert_eq!(master_rbac::cover::lacking(&all, &[wanted]), Vec::<Rule>::new());
    }

    #[test]
    fn changes_one_by_one_lead_to_the_same_as_all_at_once(roles in roles(), first in bindings(), second in bindings()) {
        let mut moved = filled(&roles, &first);
        for binding in &first {
            moved.remove_binding(&binding.metadata.namespace, &binding.metadata.name);
        }
        for binding in &second {
            moved.set_binding(binding.clone());
        }
        let fresh = filled(&roles, &second);
        for (name, groups) in callers() {
            let who = Who { name, groups: &groups };
            for parts in questions() {
                let request = question(parts);
                let is = |snapshot: &Snapshot| matches!(snapshot.decide(&who, &request), Verdict::Allowed(_));
                prop_assert_eq!(is(&moved), is(&fresh));
            }
        }
    }
}
