//! What controllers declare that they must be allowed to do is granted to the user as whom they run.

use master_control::CONTROLLERS;
use master_control::controller::Right;
use master_rbac::cover::lacking;
use master_rbac::{Rule, defaults};
use std::collections::BTreeSet;

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

fn rule(right: &Right) -> Rule {
    Rule {
        api_groups: texts(&[right.group]),
        resources: texts(&[right.resource]),
        verbs: texts(right.verbs),
        ..Rule::default()
    }
}

#[test]
fn every_right_of_a_controller_is_granted_by_the_default_role() {
    let mut roles = defaults::cluster_roles().into_iter();
    let own = roles.find(|role| role.metadata.name == "system:pratique:controllers");
    let own = own.expect("the role of all controllers");
    for controller in CONTROLLERS {
        assert!(
            !controller.rights.is_empty(),
            "{} declares none",
            controller.name
        );
        for right in controller.rights {
            // Signers are named one by one.
            if right.resource == "signers" {
                continue;
            }
            let missing = lacking(&own.rules, &[rule(right)]);
            assert_eq!(missing, [], "{} needs {right:?}", controller.name);
        }
    }
}

#[test]
fn upstreams_names_that_controllers_bear_have_a_role_that_covers_what_they_follow() {
    let roles = defaults::cluster_roles();
    let named = |name: &str| {
        let name = format!("system:controller:{name}");
        roles.iter().find(|role| role.metadata.name == name)
    };
    let shared: BTreeSet<&str> = CONTROLLERS
        .iter()
        .filter(|controller| named(controller.name).is_some())
        .map(|controller| controller.name)
        .collect();
    let expected = [
        "clusterrole-aggregation-controller",
        "cronjob-controller",
        "deployment-controller",
        "disruption-controller",
        "job-controller",
        "namespace-controller",
        "replicaset-controller",
        "resourcequota-controller",
        "root-ca-cert-publisher",
        "service-cidrs-controller",
        "statefulset-controller",
        "ttl-after-finished-controller",
    ];
    assert_eq!(shared, expected.into());
}

#[test]
fn no_two_controllers_have_one_name() {
    let names: BTreeSet<&str> = CONTROLLERS
        .iter()
        .map(|controller| controller.name)
        .collect();
    assert_eq!(names.len(), CONTROLLERS.len());
}
