//! Each controller has its own user, whose role in the API grants only what it declares.

use crate::controller::Right;
use crate::driver::Registration;
use master_client::UserInfo;
use master_rbac::{ComponentRole, Rule, defaults};

/// Prefix of a controller's user name; the controller's name follows.
const USER: &str = "system:controller:";
/// Prefix of the names of its role and binding: upstream's own roles begin with `USER`.
const ROLE: &str = "system:pratique:controller:";

/// The user with which a controller's actions read and write. It exists only inside the master's
/// process: there is no ServiceAccount for it, so no token of `kube-system` acts for a controller.
pub(crate) fn user(controller: &str) -> UserInfo {
    UserInfo::authenticated(&format!("{USER}{controller}"), Vec::<String>::new())
}

/// The cluster roles of controllers, each with its binding. Every controller may also write events.
pub fn roles(list: &[Registration]) -> Vec<ComponentRole> {
    let of = |controller: &Registration| {
        let mut rules: Vec<Rule> = controller.rights.iter().map(rule).collect();
        rules.push(defaults::on("create patch", "core", "events"));
        let role = format!("{ROLE}{}", controller.name);
        defaults::component(&role, rules, &user(controller.name).name)
    };
    list.iter().map(of).collect()
}

/// A right as a rule of a role.
fn rule(right: &Right) -> Rule {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    Rule {
        api_groups: texts(&[right.group]),
        resources: texts(&[right.resource]),
        resource_names: texts(right.names),
        verbs: texts(right.verbs),
        ..Rule::default()
    }
}
