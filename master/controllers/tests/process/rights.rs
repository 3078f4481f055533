//! Each controller may do what it declares, as a user of its own, and nothing else.

use master_control::controller::Right;
use master_control::{Registration, roles};
use master_controllers::all;
use master_rbac::{ComponentRole, Request, Resource, Snapshot, Verdict, Who};
use std::collections::BTreeSet;

/// The roles of all controllers, and nothing else that RBAC has.
fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot::default();
    for ComponentRole { role, binding } in roles(&all()) {
        snapshot.set_role(role);
        snapshot.set_binding(binding);
    }
    snapshot
}

fn may(snapshot: &Snapshot, controller: &str, verb: &str, right: &Right, name: &str) -> bool {
    let user = format!("system:controller:{controller}");
    let (resource, subresource) = right
        .resource
        .split_once('/')
        .unwrap_or((right.resource, ""));
    let who = Who {
        name: &user,
        groups: &[],
    };
    let resource = Resource {
        group: right.group,
        resource,
        subresource,
        namespace: "",
        name,
    };
    let request = Request::Resource(verb, resource);
    matches!(snapshot.decide(&who, &request), Verdict::Allowed(_))
}

#[test]
fn every_controller_may_do_what_it_declares_for_the_names_that_it_declares() {
    let snapshot = snapshot();
    for Registration { name, rights, .. } in all() {
        assert!(!rights.is_empty(), "{name} declares none");
        for right in rights {
            let object = right.names.first().unwrap_or(&"any");
            for verb in right.verbs {
                let allowed = may(&snapshot, name, verb, right, object);
                assert!(allowed, "{name} may not {verb} {right:?}");
                let other = may(&snapshot, name, verb, right, "another");
                assert_eq!(other, right.names.is_empty(), "{name} {verb} {right:?}");
            }
        }
    }
}

#[test]
fn no_controller_may_do_what_another_one_declares() {
    use master_control::controller::right;
    let snapshot = snapshot();
    let rights = |verb: &'static str, right: Right, allowed: &[&str]| {
        let may = |one: &&Registration| may(&snapshot, one.name, verb, &right, "any");
        let all = all();
        let found: Vec<&str> = all.iter().filter(may).map(|one| one.name).collect();
        assert_eq!(found, allowed, "{verb} {right:?}");
    };
    let roles = right("rbac.authorization.k8s.io", "clusterroles", &[]);
    rights("escalate", roles, &["clusterrole-aggregation-controller"]);
    let bindings = right("rbac.authorization.k8s.io", "clusterrolebindings", &[]);
    rights("create", bindings, &[]);
    rights("impersonate", right("", "users", &[]), &[]);
    rights("create", right("pratique.dev", "machines", &[]), &[]);
    rights("sign", right("certificates.k8s.io", "signers", &[]), &[]);
}

#[test]
fn no_two_controllers_have_one_name() {
    let all = all();
    let names: BTreeSet<&str> = all.iter().map(|controller| controller.name).collect();
    assert_eq!(names.len(), all.len());
}
