//! Nodes of Machines: a static machine has one, a Machine's state taints it, a rule of the policy
//! labels and taints it.
//!
//! Admission (`master/attest`) makes the Nodes of machines that attest, and this controller keeps
//! all of them. `master/nodes` decides what to set.

use config_kube::k8s_openapi::api::core::v1::{Node, NodeSpec};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use config_kube::machine::{CertificateRef, NodeMarks};
use config_kube::policy::POLICY_NAME;
use config_kube::{CertificatePolicy, CertificatePolicySpec, Machine, MachineStatus};
use master_client::{ApiError, Delta, Index, Key, Patch, Store, View};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::writer::Writer;
use master_nodes::{marks, node};
use serde_json::json;
use std::sync::Arc;

/// Machines by the name of their Node.
static BY_NODE: Index<MachineView> =
    Index::new("node", |_, machine| vec![machine.0.node_name().to_owned()]);

/// The parts of a Machine on which its Node depends. The others are empty, so that a proof which
/// changes none of these leads to no plan.
#[derive(Debug, PartialEq)]
pub struct MachineView(pub Machine);

impl View for MachineView {
    type Object = Machine;

    fn read(machine: Machine) -> Self {
        let status = machine.status.unwrap_or_default();
        let status = MachineStatus {
            state: status.state,
            admission: status.admission,
            node: status.node,
            privileged_pods: status.privileged_pods,
            certificate: status.certificate.map(|_| CertificateRef::default()),
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

/// The controller. Its keys are Machines.
#[derive(Debug)]
pub struct MachineNodes {
    machines: Store<MachineView>,
    nodes: Store<MarkedNode>,
    policies: Store<Rules>,
}

/// A Machine, its Node, and what the policy in force gives that Node.
#[derive(Debug)]
pub struct Facts {
    machine: Arc<MachineView>,
    node: Option<Arc<MarkedNode>>,
    wanted: Option<NodeMarks>,
}

/// An action on one Machine's Node.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// The Node of a static machine is created.
    Create(Arc<MachineView>),
    /// It is tainted by the Machine's state, or the taint is removed.
    Taint(Arc<MachineView>),
    /// It gets the labels and taints of a rule, and loses those of an earlier one.
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
        let machines: Store<MachineView> = setup.follow_keys();
        let (by_node, all) = (machines.index(&BY_NODE), machines.clone());
        let nodes = setup.follow(move |delta: &Delta<MarkedNode>, keys| {
            let machines = by_node.keys(&delta.key.name);
            keys.extend(machines.iter().map(|key| (**key).clone()));
        });
        // A change of the policy in force concerns every Machine.
        let policies = setup.follow(move |delta: &Delta<Rules>, keys| {
            if delta.key.name == POLICY_NAME {
                keys.extend(all.keys().iter().map(|key| (**key).clone()));
            }
        });
        Self {
            machines,
            nodes,
            policies,
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let machine = self.machines.get(key)?;
        let policy = self.policies.get(&Key::cluster(POLICY_NAME));
        Some(Facts {
            node: self.nodes.get(&Key::cluster(machine.0.node_name())),
            wanted: policy.and_then(|policy| marks::wanted(&machine.0, &policy.0)),
            machine,
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Action> {
        let machine = &facts.machine.0;
        let Some(MarkedNode(node)) = facts.node.as_deref() else {
            let create = has_static_node(machine).then(|| Action::Create(facts.machine.clone()));
            return create.into();
        };
        let mut plan = Plan::nothing();
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
        if node::retaint(taints.unwrap_or_default(), node::state(machine)).is_some() {
            plan.actions.push(Action::Taint(facts.machine.clone()));
        }
        if let Some(wanted) = &facts.wanted
            && !are_as_wanted(machine, node, wanted)
        {
            let mark = Action::Mark(facts.machine.clone(), wanted.clone());
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
            Action::Mark(machine, wanted) => mark(writer, &machine.0, &wanted).await,
        }
    }
}

/// Whether the master makes this machine's Node without a proof: it is static, and an admin has
/// approved its certificate.
fn has_static_node(machine: &Machine) -> bool {
    let status = machine.status.as_ref();
    let holds = status.is_some_and(|status| status.certificate.is_some());
    machine.spec.is_static && !machine.spec.retired && holds
}

fn are_as_wanted(machine: &Machine, node: &Node, wanted: &NodeMarks) -> bool {
    let unmarked = marks::is_empty(wanted) && marks::is_empty(&marks::noted(machine));
    unmarked || marks::changes(machine, node, wanted).is_nothing(machine)
}

/// Taints the Node by its Machine's state, unless it changes meanwhile.
async fn taint(writer: &Writer, machine: &Machine) -> Result<(), ApiError> {
    let key = Key::cluster(machine.node_name());
    let node: Node = writer.client().get(None, &key.name).await?;
    let have = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let Some(taints) = node::retaint(&have, node::state(machine)) else {
        return Ok(());
    };
    let patch = json!({
        "metadata": {"resourceVersion": node.metadata.resource_version}, "spec": {"taints": taints},
    });
    let patch = Patch::Merge(patch);
    writer.patch::<Node>(&key, &patch).await.map(drop)
}

/// Sets what the rule gives, and removes what an earlier one gave. The Machine's status is written
/// before the Node where something is added, and after it where something is removed.
async fn mark(writer: &Writer, planned: &Machine, wanted: &NodeMarks) -> Result<(), ApiError> {
    let (key, client) = (Key::cluster(planned.node_name()), writer.client());
    let node: Node = client.get(None, &key.name).await?;
    // Read after the Node: admission writes the status before it makes the Node, so this status
    // covers what the Node has.
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

/// Writes what comes from the rule into the Machine's status, and nothing else of it.
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
