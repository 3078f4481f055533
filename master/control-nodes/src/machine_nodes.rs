//! Nodes of Machines: creates those of static machines, taints Nodes by their Machines' states, and
//! sets the labels and taints of the policy's rule.
//!
//! Admission (`master/attest`) creates the Nodes of machines that attest; this controller updates
//! the Nodes of all. `master/nodes` decides what to set.
//!
//! The API denies a machine by the deny list of `master/attest`. Other machines know only from the
//! Node's taint that they must not connect to it. So a Node is tainted whenever that list denies
//! it, even if its Machine was deleted or is another node by now.

use config_kube::identity::ROLE_LABEL;
use config_kube::k8s_openapi::api::core::v1::{Node, NodeSpec, Taint};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use config_kube::machine::{CertificateRef, NodeMarks};
use config_kube::policy::POLICY_NAME;
use config_kube::{CertificatePolicy, CertificatePolicySpec, Machine, MachineState, MachineStatus};
use master_client::{ApiError, Delta, Index, Key, ListParams, Lookup, Patch, Store, View};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::writer::Writer;
use master_nodes::{marks, node};
use serde_json::json;
use std::sync::Arc;

/// Machines by the name of their Node.
static BY_NODE: Index<MachineView> =
    Index::new("node", |_, machine| vec![machine.0.node_name().to_owned()]);

/// The parts of a Machine on which its Node depends. The others are empty, so that an attestation
/// which changes none of these leads to no plan.
#[derive(Debug, PartialEq)]
pub struct MachineView(pub Machine);

impl View for MachineView {
    type Object = Machine;

    fn read(machine: Machine) -> Self {
        let status = machine.status.unwrap_or_default();
        let status = MachineStatus {
            state: status.state,
            bound_ek: status.bound_ek,
            ek_issuer: status.ek_issuer,
            admission: status.admission,
            node: status.node,
            privileged_pods: status.privileged_pods,
            certificate: status.certificate.map(|_| CertificateRef::default()),
            // Whether there is one.
            node_key: status.node_key.map(|key| key.chars().take(1).collect()),
            ..MachineStatus::default()
        };
        let name = machine.metadata.name.unwrap_or_default();
        let mut kept = Machine::named(&name, machine.spec);
        kept.metadata.uid = machine.metadata.uid;
        kept.status = Some(status);
        Self(kept)
    }
}

/// A Node's labels and taints; all else is empty.
#[derive(Debug, PartialEq)]
pub struct MarkedNode(pub Node);

impl View for MarkedNode {
    type Object = Node;

    fn read(node: Node) -> Self {
        let metadata = ObjectMeta {
            labels: node.metadata.labels,
            ..ObjectMeta::default()
        };
        let spec = NodeSpec {
            taints: node.spec.and_then(|spec| spec.taints),
            ..NodeSpec::default()
        };
        Self(Node {
            metadata,
            spec: Some(spec),
            status: None,
        })
    }
}

/// The rules of a policy.
#[derive(Debug, PartialEq)]
pub struct Rules(pub CertificatePolicySpec);

impl View for Rules {
    type Object = CertificatePolicy;

    fn read(policy: CertificatePolicy) -> Self {
        Self(policy.spec)
    }
}

/// The controller. Its keys are names of Nodes, whether or not there is one.
#[derive(Debug)]
pub struct MachineNodes {
    by_node: Lookup<MachineView>,
    nodes: Store<MarkedNode>,
    policies: Store<Rules>,
}

/// A Node, its Machine, and what the policy in force gives the Node.
#[derive(Debug)]
pub struct Facts {
    name: String,
    machine: Option<Arc<MachineView>>,
    node: Option<Arc<MarkedNode>>,
    wanted: Option<NodeMarks>,
}

/// An action on one Node.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// Creates the Node of a static machine.
    Create(Arc<MachineView>),
    /// Sets or removes the taint of the Machine's state.
    Taint(Arc<MachineView>),
    /// Taints the Node of this name: no Machine has the name any more.
    TaintFormer(String),
    /// Sets the labels and taints of a rule, and removes those of an earlier one.
    Mark(Arc<MachineView>, NodeMarks),
}

impl Controller for MachineNodes {
    const NAME: &'static str = "machine-nodes";
    const RIGHTS: &'static [Right] = &[
        right("pratique.dev", "machines", &["get", "list", "watch"]),
        right("pratique.dev", "machines/status", &["patch"]),
        right("pratique.dev", "certificatepolicies", &["list", "watch"]),
        right("", "nodes", &["get", "list", "watch", "create", "patch"]),
    ];
    type Facts = Facts;
    type Action = Action;

    fn new(setup: &mut Setup<'_>) -> Self {
        // A Machine that becomes another node concerns both.
        let machines = setup.follow(|delta: &Delta<MachineView>, keys| {
            let versions = [&delta.before, &delta.after].into_iter().flatten();
            let nodes = versions.map(|machine| Key::cluster(machine.0.node_name()));
            keys.extend(nodes);
        });
        let (by_node, all) = (machines.index(&BY_NODE), machines.clone());
        let nodes: Store<MarkedNode> = setup.follow_keys();
        // A change of the policy in force concerns every Machine.
        let policies = setup.follow(move |delta: &Delta<Rules>, keys| {
            if delta.key.name == POLICY_NAME {
                let machines = all.all().into_iter();
                let nodes = machines.map(|(_, machine)| Key::cluster(machine.0.node_name()));
                keys.extend(nodes);
            }
        });
        Self {
            by_node,
            nodes,
            policies,
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let own = self.by_node.get(&key.name);
        let machine = admitted(own.iter().map(|(_, machine)| machine)).cloned();
        let policy = self.policies.get(&Key::cluster(POLICY_NAME));
        let wanted = machine.as_ref().zip(policy);
        Some(Facts {
            name: key.name.clone(),
            node: self.nodes.get(key),
            wanted: wanted.and_then(|(machine, policy)| marks::wanted(&machine.0, &policy.0)),
            machine,
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Action> {
        let (machine, node) = match (&facts.machine, facts.node.as_deref()) {
            (Some(machine), Some(MarkedNode(node))) => (machine, node),
            (Some(machine), None) => {
                let create = has_static_node(&machine.0);
                return create.then(|| Action::Create(machine.clone())).into();
            }
            (None, Some(MarkedNode(node))) => {
                let taint = is_made_for_a_machine(node)
                    && retainted(node, MachineState::Untrusted).is_some();
                return taint
                    .then(|| Action::TaintFormer(facts.name.clone()))
                    .into();
            }
            (None, None) => return Plan::nothing(),
        };
        let mut plan = Plan::nothing();
        if retainted(node, state(&machine.0, node)).is_some() {
            plan.actions.push(Action::Taint(machine.clone()));
        }
        if let Some(wanted) = &facts.wanted
            && !are_as_wanted(&machine.0, node, wanted)
        {
            let mark = Action::Mark(machine.clone(), wanted.clone());
            plan.actions.push(mark);
        }
        plan
    }

    async fn carry_out(&self, action: Action, writer: &Writer) -> Result<(), ApiError> {
        match action {
            Action::Create(machine) => {
                let node = node::fresh_static(&machine.0);
                writer.create(&node).await.map(drop)
            }
            Action::Taint(machine) => taint(writer, &machine.0).await,
            Action::TaintFormer(name) => taint_former(writer, &name).await,
            Action::Mark(machine, wanted) => mark(writer, &machine.0, &wanted).await,
        }
    }
}

/// Whether this machine gets a Node without an attestation: it is static, and an admin has approved
/// its certificate.
fn has_static_node(machine: &Machine) -> bool {
    let status = machine.status.as_ref();
    let holds = status.is_some_and(|status| status.certificate.is_some());
    machine.spec.is_static && !machine.spec.retired && holds
}

fn are_as_wanted(machine: &Machine, node: &Node, wanted: &NodeMarks) -> bool {
    let unmarked = marks::is_empty(wanted) && marks::is_empty(&marks::noted(machine));
    unmarked || marks::changes(machine, node, wanted).is_nothing(machine)
}

/// Whether a Node was made for a Machine: by a label that only the master sets.
fn is_made_for_a_machine(node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key(ROLE_LABEL))
}

/// The Machine of a Node. While an admin replaces a Machine by another there are two, and the API
/// takes the certificates of either that it admits.
fn admitted<'a>(
    mut own: impl Iterator<Item = &'a Arc<MachineView>> + Clone,
) -> Option<&'a Arc<MachineView>> {
    let is_denied = |machine: &Machine| {
        proved_nothing(machine) || node::state(machine) == MachineState::Untrusted
    };
    let admitted = own.clone().find(|machine| !is_denied(&machine.0));
    admitted.or_else(|| own.next())
}

/// Whether a Machine has neither attested nor has issued certificates in force. A first proof that
/// was refused and made it Suspect counts for nothing.
fn proved_nothing(machine: &Machine) -> bool {
    let is_recorded = machine.status.as_ref().is_some_and(|status| {
        let key = status.node_key.as_deref();
        key.is_some_and(|key| !key.is_empty()) || status.certificate.is_some()
    });
    match node::state(machine) {
        MachineState::Pending => !machine.spec.is_static,
        MachineState::Suspect => !is_recorded,
        MachineState::Trusted | MachineState::Unproven | MachineState::Untrusted => false,
    }
}

/// The state by which the Node of a Machine is tainted. A Machine that has not proved itself has a
/// Node made for it only where that is an earlier Machine's, or where its issued certificates ended
/// when it ceased to be static: certificates and tokens of that time are denied.
fn state(machine: &Machine, node: &Node) -> MachineState {
    if proved_nothing(machine) && is_made_for_a_machine(node) {
        return MachineState::Untrusted;
    }
    node::state(machine)
}

/// The Node's taints for a state; `None` if nothing changes.
fn retainted(node: &Node, state: MachineState) -> Option<Vec<Taint>> {
    let have = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    node::retaint(have.unwrap_or_default(), state)
}

/// Taints the Node by its Machine's state, unless the Node changes meanwhile.
async fn taint(writer: &Writer, planned: &Machine) -> Result<(), ApiError> {
    let (node_name, client) = (planned.node_name(), writer.client());
    let node: Node = client.get(None, node_name).await?;
    // Read after the Node: admission writes the status before it makes the Node, so a Machine that
    // has just proved itself is not taken for one that has not.
    let name = planned.metadata.name.as_deref().unwrap_or_default();
    let machine: Machine = client.get(None, name).await?;
    if machine.metadata.uid != planned.metadata.uid || machine.node_name() != node_name {
        return Ok(());
    }
    write_taints(writer, node_name, &node, state(&machine, &node)).await
}

/// Taints a Node that was made for a Machine, unless a Machine has its name again.
async fn taint_former(writer: &Writer, name: &str) -> Result<(), ApiError> {
    let client = writer.client();
    let node: Node = client.get(None, name).await?;
    let machines = client.list::<Machine>(None, &ListParams::default()).await?;
    let mut machines = machines.items.iter();
    if machines.any(|machine| machine.node_name() == name) || !is_made_for_a_machine(&node) {
        return Ok(());
    }
    write_taints(writer, name, &node, MachineState::Untrusted).await
}

async fn write_taints(
    writer: &Writer,
    name: &str,
    node: &Node,
    state: MachineState,
) -> Result<(), ApiError> {
    let Some(taints) = retainted(node, state) else {
        return Ok(());
    };
    let patch = json!({
        "metadata": {"resourceVersion": node.metadata.resource_version}, "spec": {"taints": taints},
    });
    let (key, patch) = (Key::cluster(name), Patch::Merge(patch));
    writer.patch::<Node>(&key, &patch).await.map(drop)
}

/// Sets the rule's labels and taints, and removes those of an earlier rule. The Machine's status is
/// written before the Node if something is added, and after it if something is removed.
async fn mark(writer: &Writer, planned: &Machine, wanted: &NodeMarks) -> Result<(), ApiError> {
    let (key, client) = (Key::cluster(planned.node_name()), writer.client());
    let node: Node = client.get(None, &key.name).await?;
    // Read after the Node: admission writes the status before it creates the Node, so this status
    // has all marks of the Node.
    let name = planned.metadata.name.as_deref().unwrap_or_default();
    let machine: Machine = client.get(None, name).await?;
    if machine.metadata.uid != planned.metadata.uid {
        return Ok(());
    }
    let noted = marks::noted(&machine);
    let changes = marks::changes(&machine, &node, wanted);
    if !marks::same_marks(&noted, &changes.before) {
        note(writer, &machine, &changes.before).await?;
    }
    let mut patch = json!({"metadata": {"resourceVersion": node.metadata.resource_version}});
    if !changes.labels.is_empty() {
        patch["metadata"]["labels"] = json!(changes.labels);
    }
    if let Some(taints) = &changes.taints {
        patch["spec"]["taints"] = json!(taints);
    }
    if !changes.labels.is_empty() || changes.taints.is_some() {
        writer.patch::<Node>(&key, &Patch::Merge(patch)).await?;
        tracing::info!(
            node = key.name,
            rule = wanted.rule,
            "updated the Node's labels and taints"
        );
    }
    if changes.after != changes.before || noted.rule != changes.after.rule {
        note(writer, &machine, &changes.after).await?;
    }
    Ok(())
}

/// Writes the rule's labels and taints into the Machine's status, and no other field.
async fn note(writer: &Writer, machine: &Machine, marks: &NodeMarks) -> Result<(), ApiError> {
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let patch = json!([
        // Another Machine of this name is left alone.
        { "op": "test", "path": "/metadata/uid", "value": machine.metadata.uid },
        { "op": "add", "path": "/status/node", "value": marks },
    ]);
    let (key, patch) = (Key::cluster(name), Patch::Json(patch));
    writer.patch_status::<Machine>(&key, &patch).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Whether a Machine's Node is tainted, made for a Machine or by an ordinary kubelet.
    fn tainted(machine: &Machine) -> [bool; 2] {
        [true, false].map(|made| {
            let label = (ROLE_LABEL.to_owned(), "worker".to_owned());
            let mut node = Node::default();
            node.metadata.labels = made.then(|| BTreeMap::from([label]));
            state(machine, &node) == MachineState::Untrusted
        })
    }

    #[test]
    fn the_node_of_an_earlier_machine_stays_tainted_until_the_present_one_proves_itself() {
        let mut machine = Machine::named("m", config_kube::MachineSpec::default());
        assert_eq!(tainted(&machine), [true, false]);
        machine.spec.is_static = true;
        assert_eq!(tainted(&machine), [false; 2]);
        machine.spec.is_static = false;
        let state = |machine: &mut Machine, state| {
            machine.status.get_or_insert_default().state = state;
        };
        // A proof that was refused is none.
        state(&mut machine, MachineState::Suspect);
        assert_eq!(tainted(&machine), [true, false]);
        machine.status.get_or_insert_default().node_key = Some("sha256:aa".to_owned());
        machine.status.get_or_insert_default().bound_ek = Some("sha256:01".to_owned());
        machine.spec.ek.hashes = vec!["sha256:01".to_owned()];
        for now in [MachineState::Suspect, MachineState::Trusted] {
            state(&mut machine, now);
            assert_eq!(tainted(&machine), [false; 2]);
        }
    }

    /// The API takes the certificates of both, and no order of names may taint their Node.
    #[test]
    fn of_two_machines_of_a_node_the_one_counts_that_is_admitted() {
        let view = |name: &str, change: fn(&mut Machine)| {
            let mut machine = Machine::named(name, config_kube::MachineSpec::default());
            change(&mut machine);
            Arc::new(MachineView(machine))
        };
        let fresh = [
            view("pending", |_| ()),
            view("refused", |machine| {
                machine.status.get_or_insert_default().state = MachineState::Suspect;
            }),
        ];
        let old = [
            view("static", |machine| machine.spec.is_static = true),
            view("trusted", |machine| {
                machine.status.get_or_insert_default().state = MachineState::Trusted;
            }),
        ];
        for new in &fresh {
            for old in &old {
                assert_eq!(admitted([new, old].into_iter()), Some(old));
                assert_eq!(admitted([old, new].into_iter()), Some(old));
            }
        }
        assert_eq!(admitted(fresh.iter()), fresh.first());
    }
}
