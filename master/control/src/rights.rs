//! Each controller is a user of its own, and its role in the API grants what it declares and no more.

use crate::controller::Right;
use crate::driver::Registration;
use master_client::UserInfo;
use master_rbac::{Binding, Role, Rule, defaults};

/// What stands before a controller's name in the name of its user.
const USER: &str = "system:controller:";
/// What stands before a controller's name in the names of its role and binding: upstream's own roles begin with `USER`.
const ROLE: &str = "system:pratique:controller:";

/// The user as whom a controller reads and writes in its actions. It is known inside the master's process alone: no
/// ServiceAccount stands for it, so a token of `kube-system` acts for no controller.
pub(crate) fn user(controller: &str) -> UserInfo {
    UserInfo::authenticated(&format!("{USER}{controller}"), Vec::<String>::new())
}

/// The cluster roles of controllers, each with its binding. Every controller may write events beside what it declares.
pub fn roles(list: &[Registration]) -> Vec<(Role, Binding)> {
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
