//! Labels and taints of a Machine's Node from the inventory, the proof and the Machine's state.

use config_kube::identity::{
    ARCH_LABELS, CONTROL_PLANE_TAINT, HOSTNAME_LABEL, IMAGE_LABEL, INSECURE_LABEL, JOIN_LABEL,
    NODE_ROLE_LABEL_PREFIX, OS, OS_LABELS, PRIVILEGED_LABEL, ROLE_LABEL,
};
use config_kube::k8s_openapi::api::core::v1::{Node, NodeSpec, Taint};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use config_kube::machine::{NodeMarks, ProvenImage};
use config_kube::taints::{NO_EXECUTE, NO_SCHEDULE, SUSPECT, UNTRUSTED};
use config_kube::{Decides, Machine, MachineState, PolicyName};
use std::collections::BTreeMap;

/// Value of the image label where no image was attested.
const UNPROVEN: &str = "unproven";

/// Value of the labels of a machine without a TPM.
const NO_TPM: &str = "no-tpm";
/// The architecture of every image that a release key signs: the build makes no other (Debian's
/// amd64). The kubelet of a node that proved no image reports its own.
const IMAGE_ARCH: &str = "amd64";
/// Roles as the master's labels name them.
const ROLES: [&str; 2] = ["worker", "control-plane"];

/// A label value of at most 63 characters: invalid characters become `_`.
fn label_value(text: &str) -> String {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let text: String = text
        .chars()
        .take(63)
        .map(|c| if good(c) { c } else { '_' })
        .collect();
    text.trim_matches(|c: char| !c.is_ascii_alphanumeric())
        .to_owned()
}

/// Labels that the master sets, from the inventory and the proof.
pub fn labels(
    machine: &Machine,
    image: Option<&ProvenImage>,
    policy: PolicyName,
) -> BTreeMap<String, String> {
    // A proved image has the Machine's role.
    let role = machine.spec.role.as_str();
    let shown = if role == "master" {
        "control-plane"
    } else {
        role
    };
    let mut labels = machine.spec.labels.clone();
    labels.insert(
        IMAGE_LABEL.to_owned(),
        image.map_or_else(|| UNPROVEN.to_owned(), |image| label_value(&image.id)),
    );
    labels.insert(ROLE_LABEL.to_owned(), label_value(role));
    labels.insert(format!("{NODE_ROLE_LABEL_PREFIX}{shown}"), String::new());
    if machine.spec.insecure_no_tpm {
        labels.insert(JOIN_LABEL.to_owned(), NO_TPM.to_owned());
        labels.insert(INSECURE_LABEL.to_owned(), NO_TPM.to_owned());
    }
    if policy.decides() == Decides::Always {
        labels.insert(
            INSECURE_LABEL.to_owned(),
            policy.as_str().trim_start_matches("insecure-").to_owned(),
        );
    }
    if machine
        .status
        .as_ref()
        .is_some_and(|status| status.privileged_pods)
    {
        labels.insert(PRIVILEGED_LABEL.to_owned(), "true".to_owned());
    }
    labels.insert(HOSTNAME_LABEL.to_owned(), label_value(machine.node_name()));
    labels.extend(OS_LABELS.map(|label| (label.to_owned(), OS.to_owned())));
    if image.is_some() {
        labels.extend(ARCH_LABELS.map(|label| (label.to_owned(), IMAGE_ARCH.to_owned())));
    }
    labels
}

/// The Node of a machine at its first admission.
pub fn fresh(
    machine: &Machine,
    image: Option<&ProvenImage>,
    policy: PolicyName,
    marks: &NodeMarks,
) -> Node {
    let mut taints = machine.spec.taints.clone();
    taints.extend(marks.taints.iter().map(crate::marks::taint));
    let mut all = marks.labels.clone();
    all.extend(labels(machine, image, policy));
    if machine.spec.role == "master" && !taints.iter().any(|taint| taint.key == CONTROL_PLANE_TAINT)
    {
        taints.push(taint(CONTROL_PLANE_TAINT, "NoSchedule"));
    }
    // Until its kubelet reports, nothing is scheduled there; the node lifecycle removes this taint
    // (upstream's name).
    taints.push(taint("node.kubernetes.io/not-ready", "NoSchedule"));
    Node {
        metadata: ObjectMeta {
            name: Some(machine.node_name().to_owned()),
            labels: Some(all),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: Some(taints),
            ..NodeSpec::default()
        }),
        status: None,
    }
}

/// The Node of a static machine: its role comes from the inventory, and no image is named.
pub fn fresh_static(machine: &Machine) -> Node {
    let mut node = fresh(machine, None, PolicyName::default(), &NodeMarks::default());
    let labels = node.metadata.labels.get_or_insert_default();
    labels.remove(IMAGE_LABEL);
    labels.insert(JOIN_LABEL.to_owned(), "static".to_owned());
    node
}

/// The labels of an existing Node that must change; `None` if none must.
pub fn relabel(
    node: &Node,
    wanted: &BTreeMap<String, String>,
) -> Option<BTreeMap<String, Option<String>>> {
    let have = node.metadata.labels.clone().unwrap_or_default();
    let mut patch: BTreeMap<String, Option<String>> = wanted
        .iter()
        .filter(|(key, value)| have.get(*key) != Some(value))
        .map(|(key, value)| (key.clone(), Some(value.clone())))
        .collect();
    // Other roles were set by an admin.
    let role = |key: &str| {
        key.strip_prefix(NODE_ROLE_LABEL_PREFIX)
            .is_some_and(|role| ROLES.contains(&role))
    };
    let ours = |key: &&String| {
        role(key) || [INSECURE_LABEL, JOIN_LABEL, PRIVILEGED_LABEL].contains(&key.as_str())
    };
    for key in have
        .keys()
        .filter(ours)
        .filter(|key| !wanted.contains_key(*key))
    {
        patch.insert(key.clone(), None);
    }
    (!patch.is_empty()).then_some(patch)
}

/// The state for which a Machine's Node is tainted. A machine whose certificates the API denies is
/// treated as an Untrusted one: it is retired, its board was replaced, or it was admitted without a
/// TPM and its spec no longer allows that.
pub fn state(machine: &Machine) -> MachineState {
    if machine.revocation().is_some() {
        return MachineState::Untrusted;
    }
    let status = machine.status.as_ref();
    status.map_or(MachineState::Pending, |status| status.state)
}

/// The taints of a node after its Machine's state was applied; `None` if nothing changes.
pub fn retaint(have: &[Taint], state: MachineState) -> Option<Vec<Taint>> {
    let wanted = match state {
        MachineState::Pending | MachineState::Trusted | MachineState::Unproven => None,
        MachineState::Suspect => Some(taint(SUSPECT, NO_SCHEDULE)),
        MachineState::Untrusted => Some(taint(UNTRUSTED, NO_EXECUTE)),
    };
    let ours = |t: &&Taint| t.key == SUSPECT || t.key == UNTRUSTED;
    let present: Vec<&Taint> = have.iter().filter(ours).collect();
    let same = match (&wanted, present.as_slice()) {
        (None, []) => true,
        (Some(wanted), [one]) => one.key == wanted.key && one.effect == wanted.effect,
        (None | Some(_), _) => false,
    };
    if same {
        return None;
    }
    Some(
        have.iter()
            .filter(|t| !ours(t))
            .cloned()
            .chain(wanted)
            .collect(),
    )
}

fn taint(key: &str, effect: &str) -> Taint {
    Taint {
        key: key.to_owned(),
        effect: effect.to_owned(),
        ..Taint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::MachineSpec;

    const POLICY: PolicyName = PolicyName::CloudVerify;

    fn image() -> ProvenImage {
        ProvenImage {
            id: "2026.11/a b".to_owned(),
            role: "worker".to_owned(),
            svn: 1,
        }
    }

    fn made(machine: &Machine, image: Option<&ProvenImage>, policy: PolicyName) -> Node {
        fresh(machine, image, policy, &NodeMarks::default())
    }

    fn machine(role: &str) -> Machine {
        Machine::named(
            "m",
            MachineSpec {
                role: role.to_owned(),
                ..MachineSpec::default()
            },
        )
    }

    #[test]
    fn a_master_is_tainted_and_a_worker_is_not() {
        let keys = |node: Node| {
            node.spec
                .and_then(|s| s.taints)
                .unwrap_or_default()
                .into_iter()
                .map(|t| t.key)
                .collect::<Vec<_>>()
        };
        assert!(
            keys(made(&machine("master"), Some(&image()), POLICY))
                .contains(&CONTROL_PLANE_TAINT.to_owned())
        );
        assert!(
            !keys(made(&machine("worker"), Some(&image()), POLICY))
                .contains(&CONTROL_PLANE_TAINT.to_owned())
        );
    }

    #[test]
    fn a_static_machines_node_has_its_label_and_names_no_image() {
        let spec = MachineSpec {
            role: "worker".to_owned(),
            is_static: true,
            ..MachineSpec::default()
        };
        let labels = fresh_static(&Machine::named("m", spec))
            .metadata
            .labels
            .unwrap();
        assert_eq!(labels[JOIN_LABEL], "static");
        assert!(
            !labels.contains_key(IMAGE_LABEL)
                && labels.contains_key("node-role.kubernetes.io/worker")
        );
    }

    #[test]
    fn a_node_has_the_labels_that_charts_select() {
        let of =
            |node: Node, label: &str| node.metadata.labels.unwrap_or_default().get(label).cloned();
        let proved = made(&machine("worker"), Some(&image()), POLICY);
        let upstream = [
            ("kubernetes.io/hostname", "m"),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "amd64"),
            ("beta.kubernetes.io/os", "linux"),
            ("beta.kubernetes.io/arch", "amd64"),
        ];
        for (label, value) in upstream {
            assert_eq!(of(proved.clone(), label).as_deref(), Some(value), "{label}");
        }
        // The master does not know the processor of a machine that proved no image; its kubelet
        // reports it.
        let nothing = made(&machine("worker"), None, PolicyName::InsecureAlwaysApprove);
        let fixed = fresh_static(&machine("worker"));
        for node in [nothing, fixed] {
            assert_eq!(
                of(node.clone(), "kubernetes.io/os").as_deref(),
                Some("linux")
            );
            assert_eq!(of(node, "kubernetes.io/arch"), None);
        }
    }

    #[test]
    fn the_kubelets_architecture_label_stays_without_a_proved_image() {
        let without = machine("worker");
        let mut node = made(&without, None, POLICY);
        let arm = ("kubernetes.io/arch".to_owned(), "arm64".to_owned());
        node.metadata.labels.get_or_insert_default().extend([arm]);
        assert_eq!(relabel(&node, &labels(&without, None, POLICY)), None);
        let patch = relabel(&node, &labels(&without, Some(&image()), POLICY)).unwrap();
        assert_eq!(
            patch["kubernetes.io/arch"].as_deref(),
            Some("amd64"),
            "the proof counts more"
        );
    }

    #[test]
    fn labels_are_valid_and_a_changed_role_is_removed() {
        let image = image();
        let mut node = made(&machine("worker"), Some(&image), POLICY);
        assert_eq!(
            node.metadata.labels.as_ref().unwrap()[IMAGE_LABEL],
            "2026.11_a_b"
        );
        assert_eq!(
            relabel(&node, &labels(&machine("worker"), Some(&image), POLICY)),
            None
        );
        node.metadata
            .labels
            .get_or_insert_default()
            .insert("node-role.kubernetes.io/gpu".to_owned(), String::new());
        let patch = relabel(&node, &labels(&machine("master"), Some(&image), POLICY)).unwrap();
        assert!(
            !patch.contains_key("node-role.kubernetes.io/gpu"),
            "an admin's role stays"
        );
        assert_eq!(patch["node-role.kubernetes.io/worker"], None);
        assert_eq!(
            patch["node-role.kubernetes.io/control-plane"],
            Some(String::new())
        );
    }

    #[test]
    fn an_admission_without_a_decision_is_labelled_until_there_is_one() {
        let node = made(&machine("worker"), None, PolicyName::InsecureAlwaysApprove);
        let have = node.metadata.labels.as_ref().unwrap();
        assert_eq!(
            (have[INSECURE_LABEL].as_str(), have[IMAGE_LABEL].as_str()),
            ("always-approve", UNPROVEN)
        );
        let patch = relabel(&node, &labels(&machine("worker"), Some(&image()), POLICY)).unwrap();
        assert_eq!(patch[INSECURE_LABEL], None);
    }

    #[test]
    fn a_machine_without_a_tpm_is_labelled_until_it_has_one() {
        let spec = MachineSpec {
            role: "worker".to_owned(),
            insecure_no_tpm: true,
            ..MachineSpec::default()
        };
        let without = Machine::named("m", spec);
        let node = made(&without, None, PolicyName::Queue);
        let have = node.metadata.labels.as_ref().unwrap();
        assert_eq!(
            (have[INSECURE_LABEL].as_str(), have[JOIN_LABEL].as_str()),
            (NO_TPM, NO_TPM)
        );
        assert_eq!(have[IMAGE_LABEL], UNPROVEN);
        let patch = relabel(&node, &labels(&machine("worker"), Some(&image()), POLICY)).unwrap();
        assert_eq!((&patch[INSECURE_LABEL], &patch[JOIN_LABEL]), (&None, &None));
    }

    #[test]
    fn a_machine_with_privileged_pods_is_labelled_as_long_as_they_are_allowed() {
        let mut root = machine("worker");
        root.status.get_or_insert_default().privileged_pods = true;
        let node = made(&root, Some(&image()), POLICY);
        assert_eq!(
            node.metadata.labels.as_ref().unwrap()[PRIVILEGED_LABEL],
            "true"
        );
        let patch = relabel(&node, &labels(&machine("worker"), Some(&image()), POLICY)).unwrap();
        assert_eq!(patch[PRIVILEGED_LABEL], None);
    }

    #[test]
    fn state_taints_come_and_go_and_leave_others_alone() {
        let other = taint("x", "NoSchedule");
        let suspect = retaint(std::slice::from_ref(&other), MachineState::Suspect).unwrap();
        assert_eq!(suspect.len(), 2);
        assert_eq!(retaint(&suspect, MachineState::Suspect), None);
        let untrusted = retaint(&suspect, MachineState::Untrusted).unwrap();
        assert!(
            untrusted
                .iter()
                .any(|t| t.key == UNTRUSTED && t.effect == "NoExecute")
        );
        assert!(!untrusted.iter().any(|t| t.key == SUSPECT));
        assert_eq!(
            retaint(&untrusted, MachineState::Trusted).unwrap(),
            vec![other]
        );
    }

    /// As the API denies their certificates.
    #[test]
    fn a_machine_that_is_retired_replaced_or_lacks_its_tpm_is_untrusted() {
        let mut bound = machine("worker");
        bound.spec.ek.hashes = vec!["sha256:01".to_owned()];
        let status = bound.status.get_or_insert_default();
        status.state = MachineState::Trusted;
        status.bound_ek = Some("sha256:01".to_owned());
        assert_eq!(state(&bound), MachineState::Trusted);
        let ends: [fn(&mut Machine); 3] = [
            |machine| machine.spec.retired = true,
            |machine| machine.spec.ek.hashes = vec!["sha256:02".to_owned()],
            |machine| machine.spec.ek.hashes.clear(),
        ];
        for end in ends {
            let mut ended = bound.clone();
            end(&mut ended);
            assert_eq!(state(&ended), MachineState::Untrusted, "{:?}", ended.spec);
        }
        let mut without = machine("worker");
        without.spec.insecure_no_tpm = true;
        without.status.get_or_insert_default().node_key = Some("sha256:aa".to_owned());
        for now in [MachineState::Unproven, MachineState::Suspect] {
            without.status.get_or_insert_default().state = now;
            assert_eq!(state(&without), now);
            let mut listed = without.clone();
            listed.spec.ek.hashes = vec!["sha256:01".to_owned()];
            assert_eq!(state(&listed), MachineState::Untrusted);
            let mut needed = without.clone();
            needed.spec.insecure_no_tpm = false;
            assert_eq!(state(&needed), MachineState::Untrusted);
        }
    }
}
