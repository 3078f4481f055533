//! Labels and taints that a rule of the policy gives to Nodes.
//!
//! The Machine's status records which of a Node's labels and taints come from a rule; all others
//! are an admin's. It is the Machine's status because no node can write it: with a record on the
//! Node, a node could choose what the master removes. At every moment the status names at least
//! what the rule has set on the Node: it is written before the Node where something is added, and
//! after the Node where something is removed.

use config_kube::identity::NODE_CLIENT_SIGNER;
use config_kube::k8s_openapi::api::core::v1::{Node, Taint};
use config_kube::machine::NodeMarks;
use config_kube::policy::NodeTaint;
use config_kube::{CertificatePolicySpec, Decides, Machine, Rule};
use std::collections::BTreeMap;

/// The signer by which an ordinary kubelet becomes a node.
const KUBELETS: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// The rule that applies to a machine: the one that admitted it, as long as the policy has it, else
/// the one that decides now.
fn rule<'a>(machine: &Machine, spec: &'a CertificatePolicySpec) -> Option<&'a Rule> {
    let admission = machine.status.as_ref()?.admission.as_ref()?;
    let machines = |rule: &&Rule| {
        rule.signers
            .iter()
            .any(|signer| signer == NODE_CLIENT_SIGNER)
    };
    let own = spec
        .rules
        .iter()
        .filter(machines)
        .find(|rule| rule.name == admission.rule);
    own.or_else(|| spec.rule_for(NODE_CLIENT_SIGNER))
}

/// The labels and taints of a machine's Node by the rules; `None` if the rules leave it as it is. A
/// rule that rejects every request says nothing about nodes that are admitted already.
pub fn wanted(machine: &Machine, spec: &CertificatePolicySpec) -> Option<NodeMarks> {
    let rule = rule(machine, spec).filter(|rule| rule.policy.decides() != Decides::Never)?;
    let own = &machine.spec;
    let labels = rule
        .node
        .labels
        .iter()
        .filter(|(key, _)| !own.labels.contains_key(*key));
    let given = |taint: &&NodeTaint| !own.taints.iter().any(|other| same(other, taint));
    Some(NodeMarks {
        rule: rule.name.clone(),
        labels: labels
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        taints: rule.node.taints.iter().filter(given).cloned().collect(),
    })
}

/// Whether a node may create its own Node object, by its Machine and the policy in force; else why
/// not.
///
/// # Errors
/// The node may not; the text says why: the master makes the Node, or an admin does.
pub fn may_register(
    machine: Option<&Machine>,
    policy: Option<&CertificatePolicySpec>,
) -> Result<(), String> {
    let Some(machine) = machine else {
        return match policy.and_then(|spec| spec.rule_for(KUBELETS)) {
            Some(rule) if rule.node.registers_itself == Some(false) => Err(format!(
                "rule `{}` says registers_itself = false: an admin makes this Node",
                rule.name
            )),
            Some(_) | None => Ok(()),
        };
    };
    match policy.and_then(|spec| rule(machine, spec)) {
        Some(rule) if rule.node.registers_itself == Some(true) => Ok(()),
        Some(_) | None => Err("the master makes the Node of a machine that it admitted".to_owned()),
    }
}

/// A taint as Nodes have it.
pub fn taint(taint: &NodeTaint) -> Taint {
    let value = Some(taint.value.clone()).filter(|value| !value.is_empty());
    Taint {
        key: taint.key.clone(),
        value,
        effect: taint.effect.clone(),
        time_added: None,
    }
}

fn same(on_node: &Taint, ours: &NodeTaint) -> bool {
    on_node.key == ours.key && on_node.effect == ours.effect
}

fn equal(on_node: &Taint, ours: &NodeTaint) -> bool {
    same(on_node, ours) && on_node.value.as_deref().unwrap_or_default() == ours.value
}

/// What changes on a Node, and in the Machine's status before and after it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    /// The status before the Node changes: all that the rule has set on the Node, and all that is
    /// added.
    pub before: NodeMarks,
    /// Labels that change; `None`: it is removed.
    pub labels: BTreeMap<String, Option<String>>,
    /// The Node's taints, where they change.
    pub taints: Option<Vec<Taint>>,
    /// The status after the Node changed.
    pub after: NodeMarks,
}

impl Changes {
    /// Whether nothing is to be changed.
    pub fn is_nothing(&self, machine: &Machine) -> bool {
        let same = self.labels.is_empty() && self.taints.is_none() && self.before == self.after;
        same && noted(machine) == self.after
    }
}

/// The changes, from the Node, the record in the Machine's status, and the rule.
pub fn changes(machine: &Machine, have: &Node, wanted: &NodeMarks) -> Changes {
    let noted = noted(machine);
    let labels = have.metadata.labels.clone().unwrap_or_default();
    let taints = have
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.clone())
        .unwrap_or_default();
    let mut plan = Changes {
        before: noted.clone(),
        ..Changes::default()
    };
    plan.before.rule.clone_from(&wanted.rule);
    plan.after.rule.clone_from(&wanted.rule);
    for (key, value) in &wanted.labels {
        if labels.get(key) != Some(value) {
            plan.labels.insert(key.clone(), Some(value.clone()));
        } else if !noted.labels.contains_key(key) {
            // An admin set the same label: it stays when the rule is removed.
            continue;
        }
        plan.before.labels.insert(key.clone(), value.clone());
        plan.after.labels.insert(key.clone(), value.clone());
    }
    let gone = noted
        .labels
        .iter()
        .filter(|(key, _)| !wanted.labels.contains_key(*key));
    let gone = gone.filter(|(key, value)| {
        labels.get(*key) == Some(*value) && !machine.spec.labels.contains_key(*key)
    });
    plan.labels.extend(gone.map(|(key, _)| (key.clone(), None)));

    let left = |taint: &&NodeTaint| {
        !wanted
            .taints
            .iter()
            .any(|other| same(&self::taint(taint), other))
    };
    let leaving: Vec<&NodeTaint> = noted.taints.iter().filter(left).collect();
    let stays = |taint: &&Taint| {
        machine
            .spec
            .taints
            .iter()
            .any(|own| own.key == taint.key && own.effect == taint.effect)
            || !leaving.iter().any(|ours| equal(taint, ours))
    };
    let mut result: Vec<Taint> = taints.iter().filter(stays).cloned().collect();
    for ours in &wanted.taints {
        let noted = noted.taints.iter().any(|other| same(&taint(other), ours));
        match result.iter_mut().find(|taint| same(taint, ours)) {
            Some(there) if equal(there, ours) && !noted => continue,
            Some(there) if equal(there, ours) => {}
            Some(there) => *there = taint(ours),
            None => result.push(taint(ours)),
        }
        plan.before
            .taints
            .retain(|other| !same(&taint(other), ours));
        plan.before.taints.push(ours.clone());
        plan.after.taints.push(ours.clone());
    }
    plan.taints = (result != taints).then_some(result);
    plan
}

/// Whether a rule sets nothing.
pub fn is_empty(marks: &NodeMarks) -> bool {
    marks.labels.is_empty() && marks.taints.is_empty()
}

/// Whether two have the same labels and taints, under whatever rule.
pub fn same_marks(one: &NodeMarks, other: &NodeMarks) -> bool {
    (&one.labels, &one.taints) == (&other.labels, &other.taints)
}

/// The record of the Node's marks in the Machine's status.
pub fn noted(machine: &Machine) -> NodeMarks {
    let status = machine.status.as_ref();
    status
        .and_then(|status| status.node.clone())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::machine::Admission;
    use config_kube::policy::NodeRule;
    use config_kube::{MachineSpec, MachineStatus, PolicyName};

    fn rule(name: &str, labels: &[(&str, &str)], taints: &[(&str, &str)]) -> Rule {
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let taints = taints.iter().map(|(key, value)| NodeTaint {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
            effect: "NoSchedule".to_owned(),
        });
        Rule {
            name: name.to_owned(),
            signers: vec![NODE_CLIENT_SIGNER.to_owned()],
            policy: PolicyName::CloudVerify,
            node: NodeRule {
                labels,
                taints: taints.collect(),
                registers_itself: None,
            },
            ..Rule::default()
        }
    }

    fn machine() -> Machine {
        let mut machine = Machine::named("m", MachineSpec::default());
        let admission = Admission {
            rule: "r".to_owned(),
            ..Admission::default()
        };
        machine.status = Some(MachineStatus {
            admission: Some(admission),
            ..MachineStatus::default()
        });
        machine
    }

    fn by(machine: &Machine, rules: Vec<Rule>) -> NodeMarks {
        wanted(machine, &CertificatePolicySpec { rules }).unwrap()
    }

    /// Carries out a plan.
    fn apply(machine: &mut Machine, node: &mut Node, wanted: &NodeMarks) {
        let plan = changes(machine, node, wanted);
        let labels = node.metadata.labels.get_or_insert_default();
        for (key, value) in plan.labels {
            match value {
                Some(value) => drop(labels.insert(key, value)),
                None => drop(labels.remove(&key)),
            }
        }
        if let Some(taints) = plan.taints {
            node.spec.get_or_insert_default().taints = Some(taints);
        }
        machine.status.get_or_insert_default().node = Some(plan.after);
    }

    fn labels(node: &Node) -> Vec<String> {
        node.metadata
            .labels
            .iter()
            .flatten()
            .map(|(key, value)| format!("{key}={value}"))
            .collect()
    }

    fn taints(node: &Node) -> Vec<String> {
        let taints = node
            .spec
            .iter()
            .flat_map(|spec| spec.taints.iter().flatten());
        taints
            .map(|taint| {
                format!(
                    "{}={}",
                    taint.key,
                    taint.value.as_deref().unwrap_or_default()
                )
            })
            .collect()
    }

    #[test]
    fn marks_of_a_rule_are_removed_with_it_and_those_of_an_admin_stay() {
        let (mut machine, mut node) = (machine(), Node::default());
        node.metadata.labels = Some(
            [("mine", "1"), ("equal", "x")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into(),
        );
        let own = Taint {
            key: "mine".to_owned(),
            effect: "NoExecute".to_owned(),
            ..Taint::default()
        };
        node.spec.get_or_insert_default().taints = Some(vec![own]);
        let first = by(
            &machine,
            vec![rule(
                "r",
                &[("pool", "a"), ("zone", "z"), ("equal", "x")],
                &[("t", "1"), ("u", "")],
            )],
        );
        apply(&mut machine, &mut node, &first);
        assert_eq!(labels(&node), ["equal=x", "mine=1", "pool=a", "zone=z"]);
        assert_eq!(taints(&node), ["mine=", "t=1", "u="]);
        assert_eq!(
            changes(&machine, &node, &first).labels,
            BTreeMap::new(),
            "nothing is left to do"
        );
        assert_eq!(changes(&machine, &node, &first).taints, None);
        let second = by(&machine, vec![rule("r", &[("pool", "b")], &[("t", "2")])]);
        apply(&mut machine, &mut node, &second);
        assert_eq!(labels(&node), ["equal=x", "mine=1", "pool=b"]);
        assert_eq!(taints(&node), ["mine=", "t=2"]);
        // An admin's later change stays.
        node.metadata
            .labels
            .get_or_insert_default()
            .insert("pool".to_owned(), "by hand".to_owned());
        let bare = by(&machine, vec![rule("r", &[], &[])]);
        apply(&mut machine, &mut node, &bare);
        assert_eq!(labels(&node), ["equal=x", "mine=1", "pool=by hand"]);
        assert_eq!(taints(&node), ["mine="]);
    }

    #[test]
    fn a_removed_mark_comes_back_as_long_as_the_rule_sets_it() {
        let (mut machine, mut node) = (machine(), Node::default());
        let wanted = by(&machine, vec![rule("r", &[("pool", "a")], &[("t", "1")])]);
        apply(&mut machine, &mut node, &wanted);
        let whole = node.clone();
        node.metadata.labels = None;
        node.spec = None;
        apply(&mut machine, &mut node, &wanted);
        assert_eq!(
            (labels(&node), taints(&node)),
            (labels(&whole), taints(&whole))
        );
    }

    /// After an interruption at any step, the status has all marks that the rule set on the Node.
    #[test]
    fn the_status_always_has_all_marks_of_the_node() {
        let (mut machine, node) = (machine(), Node::default());
        let first = by(&machine, vec![rule("r", &[("a", "1")], &[("t", "1")])]);
        let planned = changes(&machine, &node, &first);
        assert_eq!(
            planned.before, planned.after,
            "an added mark is recorded first"
        );
        let mut node = node;
        apply(&mut machine, &mut node, &first);
        let second = by(&machine, vec![rule("r", &[("b", "1")], &[])]);
        let planned = changes(&machine, &node, &second);
        assert_eq!(
            planned.before.labels.len(),
            2,
            "a removed mark is recorded until it is gone"
        );
        assert_eq!(
            (planned.before.taints.len(), planned.after.taints.len()),
            (1, 0)
        );
    }

    #[test]
    fn the_inventorys_labels_precede_the_rules_and_the_admitting_rule_precedes_others() {
        let mut machine = machine();
        machine
            .spec
            .labels
            .insert("pool".to_owned(), "of the inventory".to_owned());
        let other = rule("other", &[("pool", "x"), ("other", "1")], &[]);
        let own = rule("r", &[("pool", "a"), ("own", "1")], &[]);
        let keys = |marks: NodeMarks| marks.labels.into_keys().collect::<Vec<_>>();
        assert_eq!(keys(by(&machine, vec![other.clone(), own])), ["own"]);
        assert_eq!(
            keys(by(&machine, vec![other])),
            ["other"],
            "its rule is gone"
        );
        let mut locked = rule("r", &[], &[]);
        locked.policy = PolicyName::AlwaysReject;
        assert_eq!(
            wanted(
                &machine,
                &CertificatePolicySpec {
                    rules: vec![locked]
                }
            ),
            None
        );
        machine.status = None;
        assert_eq!(
            wanted(
                &machine,
                &CertificatePolicySpec {
                    rules: vec![rule("r", &[], &[])]
                }
            ),
            None
        );
    }
}
