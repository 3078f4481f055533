//! The pod's status as a pure function of the same facts as the plan: phase, conditions and
//! container states, with upstream's reasons and messages.

use crate::containers::{ephemeral, initial, kind_of_initial, latest, mains};
use crate::machine::{End, PodFacts, init_failed, initial_done, initialized};
use crate::notes::Eviction;
use crate::policy::{Triggers, outdated};
use crate::resize::{self, is_resized};
use agent_resources::qos;
use agent_runtime::{ContainerKind, ContainerState as State};
use config_kube::k8s_openapi::api::core::v1::{
    ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::net::IpAddr;

/// The conditions of a resize, which are there only while it is not done.
const RESIZE_PENDING: &str = "PodResizePending";
const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";

/// The message of the condition `DisruptionTarget` of a preempted pod.
const PREEMPTED: &str = "Pod was preempted by Kubelet to accommodate a critical pod.";

/// Addresses of the machine and of a pod, as its status names them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The machine's.
    pub host: Vec<IpAddr>,
    /// The pod's; the machine's where it is on that network, none before it has a sandbox.
    pub pod: Vec<IpAddr>,
    /// The node's own, at which its DNS server answers; none if there is no such server.
    pub dns: Option<IpAddr>,
    /// The pod has its sandbox.
    pub sandbox: bool,
}

/// Why this node can't run a pod. It is final: the pod has failed, and its controller may create
/// another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// A word for programs, such as `NotSupported`.
    pub reason: Cow<'static, str>,
    /// For a person.
    pub message: String,
}

/// The status that changes are measured against: the master's, with what was written since.
pub fn base(pod: &Pod, written: Option<&PodStatus>) -> PodStatus {
    let mut base = pod.status.clone().unwrap_or_default();
    if let Some(written) = written {
        // The watch may not have brought the last write back yet: conditions that the kubelet wrote
        // come from that write, all others from the master.
        let own = written.conditions.iter().flatten();
        let foreign = base.conditions.take().into_iter().flatten();
        let foreign = foreign.filter(|old| !own.clone().any(|own| own.type_ == old.type_));
        base.conditions = Some(foreign.chain(own.clone().cloned()).collect());
        base.start_time.clone_from(&written.start_time);
        base.qos_class.clone_from(&written.qos_class);
        // The last phase stays, no matter who wrote it.
        if !is_last(base.phase.as_ref()) {
            base.phase.clone_from(&written.phase);
            if is_last(base.phase.as_ref()) {
                base.reason.clone_from(&written.reason);
                base.message.clone_from(&written.message);
            }
        }
    }
    base
}

/// Whether the master's status of a pod says something else of the phase, or of the conditions that
/// the kubelet wrote: the write has yet to come back, or somebody else has written since, as the
/// controller does that makes the pods of a silent node not ready.
pub fn differs(found: Option<&PodStatus>, written: &PodStatus) -> bool {
    let none = PodStatus::default();
    let found = found.unwrap_or(&none);
    let is_said = |own: &PodCondition| {
        let mut conditions = found.conditions.iter().flatten();
        conditions.any(|condition| words_of(condition) == words_of(own))
    };
    let phase = found.phase.as_ref();
    let is_other_phase = phase != written.phase.as_ref() && !is_last(phase);
    is_other_phase || !written.conditions.iter().flatten().all(is_said)
}

/// What a condition says; no text is the same as an empty one.
fn words_of(condition: &PodCondition) -> [&str; 4] {
    [
        &condition.type_,
        &condition.status,
        condition.reason.as_deref().unwrap_or_default(),
        condition.message.as_deref().unwrap_or_default(),
    ]
}

/// Whether a pod in this phase is over.
fn is_last(phase: Option<&String>) -> bool {
    phase.is_some_and(|phase| matches!(phase.as_str(), "Succeeded" | "Failed"))
}

/// The status of a pod. `messages` gives the termination message of an attempt by its id.
/// Conditions that other writers set are not in it: the strategic merge patch leaves them as they
/// are.
pub fn status(
    facts: PodFacts<'_>,
    old: &PodStatus,
    refusal: Option<&Refusal>,
    addresses: &Addresses,
    messages: &dyn Fn(&str) -> Option<String>,
) -> PodStatus {
    let pod = facts.pod;
    let end = facts.end();
    let over = end.is_some() && is_over(facts);
    let input = StatusInput {
        facts,
        end,
        over,
        sandbox: addresses.sandbox,
        messages,
    };
    let inits: Vec<_> = initial(pod)
        .iter()
        .map(|init| input.container(init, kind_of_initial(init)))
        .collect();
    let own: Vec<_> = mains(pod)
        .iter()
        .map(|main| input.container(main, ContainerKind::Main))
        .collect();
    let debuggers: Vec<_> = ephemeral(pod)
        .map(|container| input.container(&container, ContainerKind::Ephemeral))
        .collect();
    let Outcome {
        phase,
        reason,
        message,
    } = input.outcome(old, refusal);
    let lasting = initial(pod)
        .iter()
        .zip(&inits)
        .filter(|(init, _)| kind_of_initial(init) == ContainerKind::Sidecar)
        .map(|(_, status)| status);
    let lasting: Vec<_> = lasting.chain(&own).collect();
    let before = old.conditions.as_deref().unwrap_or_default();
    let mut conditions = input.conditions(&phase, &lasting, before);
    conditions.extend(input.disruption(before));
    conditions.extend(input.resizing(before));
    conditions.extend(input.restarting(&phase, before));
    PodStatus {
        phase: Some(phase),
        reason,
        message,
        conditions: Some(conditions),
        init_container_statuses: (!inits.is_empty() && refusal.is_none()).then_some(inits),
        ephemeral_container_statuses: (!debuggers.is_empty() && refusal.is_none())
            .then_some(debuggers),
        container_statuses: refusal.is_none().then_some(own),
        // Set once, by the first status: when the kubelet took the pod.
        start_time: Some(old.start_time.clone().unwrap_or(Time(facts.now))),
        // Kept as it was first, too: no resize may change it (KEP-1287), as the class decides about
        // the control group.
        qos_class: Some(
            old.qos_class
                .clone()
                .unwrap_or_else(|| qos::class(pod).to_owned()),
        ),
        observed_generation: pod.metadata.generation,
        resources: resize::applied(facts).filter(|_| refusal.is_none()),
        allocated_resources: resize::allocated(facts).filter(|_| refusal.is_none()),
        ..addressed(addresses, refusal.is_some())
    }
}

/// Whether nothing of a pod runs or starts.
fn is_over(facts: PodFacts<'_>) -> bool {
    let mut seen = facts.seen.iter();
    facts.notes.starting.is_empty() && seen.all(|seen| matches!(seen.state, State::Exited { .. }))
}

/// The part of a status that names addresses. A pod that has no sandbox yet, or no longer, sends no
/// pod addresses, so that the patch keeps those of the status.
fn addressed(addresses: &Addresses, refused: bool) -> PodStatus {
    let texts = |addresses: &[IpAddr]| -> Vec<String> {
        one_of_each_family(addresses)
            .map(ToString::to_string)
            .collect()
    };
    let (host, pod) = (texts(&addresses.host), texts(&addresses.pod));
    let pod = (!refused && !pod.is_empty()).then_some(pod);
    PodStatus {
        host_ip: host.first().cloned(),
        host_ips: Some(host.into_iter().map(|ip| HostIP { ip }).collect()),
        pod_ip: pod.as_ref().and_then(|own| own.first().cloned()),
        pod_ips: pod.map(|own| own.into_iter().map(|ip| PodIP { ip }).collect()),
        ..PodStatus::default()
    }
}

/// The strategic merge patch that makes the master's `status` of a pod this one. Conditions merge
/// there by their types and addresses by themselves, so the patch clears what a condition no longer
/// says and replaces addresses whole; conditions of others stay.
///
/// # Errors
/// The status can't be written as JSON.
pub fn change(status: &PodStatus, old: &PodStatus) -> Result<Value, serde_json::Error> {
    let mut change = serde_json::to_value(status)?;
    let conditions = change.get_mut("conditions").and_then(Value::as_array_mut);
    if let Some(conditions) = conditions {
        for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
            // A merge keeps what a patch leaves out: only null removes the previous text.
            for words in ["reason", "message"] {
                condition.entry(words).or_insert(Value::Null);
            }
        }
        let says = |status: &PodStatus, name: &str| {
            let mut all = status.conditions.iter().flatten();
            all.any(|condition| condition.type_ == name)
        };
        // Only these conditions can go again, and a condition that a patch leaves out would stay.
        let done = [RESIZE_PENDING, RESIZE_IN_PROGRESS].into_iter();
        let done = done.filter(|name| says(old, name) && !says(status, name));
        conditions.extend(done.map(|name| json!({"$patch": "delete", "type": name})));
    }
    for addresses in ["hostIPs", "podIPs"] {
        let all = change.get_mut(addresses).and_then(Value::as_array_mut);
        if let Some(all) = all {
            all.insert(0, json!({"$patch": "replace"}));
        }
    }
    Ok(change)
}

/// The first address of each family, in the node's order: a status names no more.
fn one_of_each_family(addresses: &[IpAddr]) -> impl Iterator<Item = &IpAddr> {
    let first = |ip: &IpAddr| {
        addresses
            .iter()
            .find(|other| other.is_ipv4() == ip.is_ipv4())
            .copied()
    };
    addresses
        .iter()
        .filter(move |ip| first(ip) == Some(**ip))
        .take(2)
}

/// What each part of the status is computed from.
pub(crate) struct StatusInput<'a> {
    pub(crate) facts: PodFacts<'a>,
    pub(crate) end: Option<End>,
    /// It ends, and nothing runs any more.
    pub(crate) over: bool,
    sandbox: bool,
    pub(crate) messages: &'a dyn Fn(&str) -> Option<String>,
}

/// The pod's phase, with reason and message.
struct Outcome {
    phase: String,
    reason: Option<String>,
    message: Option<String>,
}

impl StatusInput<'_> {
    fn outcome(&self, old: &PodStatus, refusal: Option<&Refusal>) -> Outcome {
        let failed = |reason: &str, message| Outcome {
            phase: "Failed".to_owned(),
            reason: Some(reason.to_owned()),
            message,
        };
        let as_before = |phase: Option<String>| Outcome {
            phase: phase.unwrap_or_default(),
            reason: old.reason.clone(),
            message: old.message.clone(),
        };
        match (self.end, refusal) {
            // No phase is the last one while something still runs (upstream's rule).
            (Some(End::Deadline | End::Evicted), _)
                if is_last(old.phase.as_ref()) || !self.over =>
            {
                let phase = old.phase.clone();
                as_before(phase.or_else(|| Some("Pending".to_owned())))
            }
            (Some(End::Deadline), _) => {
                let text = "Pod was active on the node longer than the specified deadline";
                failed("DeadlineExceeded", Some(text.to_owned()))
            }
            (Some(End::Evicted), _) => {
                let eviction = self.facts.notes.evicted.as_ref();
                let reason = eviction.map_or(Eviction::PRESSURE, |eviction| eviction.reason);
                failed(reason, eviction.map(|eviction| eviction.message.clone()))
            }
            // Upstream's text for a pod that the node rejects. None of its containers ever ran, so
            // there are no container statuses.
            (None, Some(refusal)) => failed(
                &refusal.reason,
                Some(format!("Pod was rejected: {}", refusal.message)),
            ),
            (Some(End::Over), _) => as_before(old.phase.clone()),
            // Evicted, say, and deleted after that: how its containers ended changes nothing.
            (Some(End::Deleted), _) if is_last(old.phase.as_ref()) => as_before(old.phase.clone()),
            (Some(End::Deleted), _) | (None, None) => as_before(Some(self.phase())),
        }
    }

    /// The conditions of a resize that waits, or that is not done yet.
    fn resizing(&self, before: &[PodCondition]) -> Option<PodCondition> {
        let (notes, generation) = (self.facts.notes, self.facts.pod.metadata.generation);
        if self.end.is_some() {
            return None;
        }
        let said = |name: &str, reason: Option<&str>, message: Option<String>| PodCondition {
            reason: reason.map(str::to_owned),
            message,
            ..condition(name, None, before, generation, self.facts.now)
        };
        if let Some(pending) = &notes.pending {
            let message = Some(pending.message.clone());
            return Some(said(RESIZE_PENDING, Some(pending.reason), message));
        }
        let mut resized = self.facts.seen.iter();
        resized.find(|seen| is_resized(self.facts.pod, seen))?;
        let faults = notes.unresized.values().map(|(fault, _)| fault.as_str());
        let faults: Vec<&str> = faults.collect();
        let failed = (!faults.is_empty()).then(|| faults.join("; "));
        let reason = failed.is_some().then_some("Error");
        Some(said(RESIZE_IN_PROGRESS, reason, failed))
    }

    /// The condition that tells controllers why an evicted pod went.
    fn disruption(&self, before: &[PodCondition]) -> Option<PodCondition> {
        let eviction = self.facts.notes.evicted.as_ref();
        let eviction = eviction.filter(|_| self.end == Some(End::Evicted) && self.over)?;
        Some(PodCondition {
            reason: Some("TerminationByKubelet".to_owned()),
            message: Some(if eviction.reason == Eviction::PREEMPTION {
                PREEMPTED.to_owned()
            } else {
                eviction.message.clone()
            }),
            ..condition("DisruptionTarget", None, before, None, self.facts.now)
        })
    }

    /// The condition that shows a restart of all containers, where a rule of the pod can ask for
    /// it.
    fn restarting(&self, phase: &str, before: &[PodCondition]) -> Option<PodCondition> {
        let (pod, seen) = (self.facts.pod, self.facts.seen);
        Triggers::of(pod, seen)?;
        let name = "AllContainersRestarting";
        let of = |fault| condition(name, fault, before, pod.metadata.generation, self.facts.now);
        let done = match phase {
            "Succeeded" => Some("PodCompleted"),
            "Failed" => Some("PodFailed"),
            _ => None,
        };
        let begun = self.end.is_none() && outdated(pod, seen).next().is_some();
        if !begun || done.is_some() {
            return Some(of(Some(Fault {
                reason: done,
                message: None,
            })));
        }
        Some(PodCondition {
            reason: Some("RestartAllContainersStarted".to_owned()),
            message: Some("container exited with restart policy rule".to_owned()),
            ..of(None)
        })
    }

    /// The phase, by upstream's rules.
    fn phase(&self) -> String {
        let (pod, seen) = (self.facts.pod, self.facts.seen);
        let running = |state: &State| matches!(state, State::Running { .. });
        let alive =
            seen.iter().any(|seen| running(&seen.state)) || !self.facts.notes.starting.is_empty();
        if init_failed(pod, seen) {
            // No phase is the last one while something still runs: sidecars end after what they
            // served.
            return if alive { "Pending" } else { "Failed" }.to_owned();
        }
        let (mut waiting, mut stopped, mut well, mut again) = (0, 0, 0, false);
        for container in mains(pod) {
            let latest = latest(seen, &container.name);
            match latest.map(|seen| (seen, &seen.state)) {
                None | Some((_, State::Created)) => waiting += 1,
                // As a pod that has not started yet.
                Some((seen, State::Exited { .. }))
                    if !self.over && self.facts.is_of_earlier_round(seen) =>
                {
                    waiting += 1;
                }
                // Its hook after the start still runs: it does not count as running, nor as gone
                // back to waiting.
                Some((seen, State::Running { .. })) => {
                    let first = seen.key.attempt == 0 && self.facts.notes.is_held(&seen.id);
                    waiting += u32::from(first);
                }
                Some((seen, State::Exited { code, .. })) => {
                    stopped += 1;
                    well += u32::from(*code == 0);
                    again |= self.facts.next(seen).is_some();
                }
            }
        }
        let phase = if !self.over && waiting > 0 {
            "Pending"
        } else if !self.over && (alive || again) {
            "Running"
        } else if waiting == 0 && stopped == well {
            "Succeeded"
        } else {
            "Failed"
        };
        phase.to_owned()
    }

    fn conditions(
        &self,
        phase: &str,
        lasting: &[&ContainerStatus],
        old: &[PodCondition],
    ) -> Vec<PodCondition> {
        let (pod, seen) = (self.facts.pod, self.facts.seen);
        let done = phase == "Succeeded";
        let names = |all: Vec<&str>| format!("[{}]", all.join(" "));
        let initialized = done || initialized(self.facts);
        let incomplete: Vec<&str> = initial(pod)
            .iter()
            .filter(|init| !initial_done(self.facts, init))
            .map(|init| init.name.as_str())
            .collect();
        let unready: Vec<&str> = lasting
            .iter()
            .filter(|container| !container.ready)
            .map(|container| container.name.as_str())
            .collect();
        let no_init = || {
            let text = format!("containers with incomplete status: {}", names(incomplete));
            Fault::explained("ContainersNotInitialized", text)
        };
        let no_ready = || {
            let text = format!("containers with unready status: {}", names(unready.clone()));
            Fault::explained("ContainersNotReady", text)
        };
        let ready_fault = match phase {
            "Succeeded" => Some(Fault::named("PodCompleted")),
            "Failed" => Some(Fault::named("PodFailed")),
            _ if unready.is_empty() => None,
            _ => Some(no_ready()),
        };
        let gates = self.open_gates(old);
        let gate_fault = || {
            let text = format!(
                "corresponding conditions of pod readiness gates {} are not true",
                names(gates.clone())
            );
            (!gates.is_empty()).then_some(Fault::explained("ReadinessGatesNotReady", text))
        };
        let started = !self.over && (self.sandbox || seen.iter().any(|seen| seen.this_boot));
        let set = [
            ("PodReadyToStartContainers", (!started).then(Fault::default)),
            (
                "Initialized",
                if initialized { None } else { Some(no_init()) },
            ),
            ("Ready", ready_fault.clone().or_else(gate_fault)),
            ("ContainersReady", ready_fault),
            ("PodScheduled", None),
        ];
        let generation = pod.metadata.generation;
        set.into_iter()
            .map(|(name, fault)| condition(name, fault, old, generation, self.facts.now))
            .collect()
    }

    /// Readiness gates whose conditions, set by others, are not true.
    fn open_gates(&self, old: &[PodCondition]) -> Vec<&str> {
        let gates = self
            .facts
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.readiness_gates.as_deref())
            .unwrap_or_default();
        let met = |name: &str| {
            old.iter()
                .any(|condition| condition.type_ == name && condition.status == "True")
        };
        gates
            .iter()
            .map(|gate| gate.condition_type.as_str())
            .filter(|name| !met(name))
            .collect()
    }
}

/// Why a condition is false.
#[derive(Clone, Default)]
struct Fault {
    /// A word for programs, if there is one.
    reason: Option<&'static str>,
    /// For a person, where the reason does not say all.
    message: Option<String>,
}

impl Fault {
    fn named(reason: &'static str) -> Self {
        Self {
            reason: Some(reason),
            message: None,
        }
    }

    fn explained(reason: &'static str, message: String) -> Self {
        Self {
            reason: Some(reason),
            message: Some(message),
        }
    }
}

/// A condition, with the time of its last change; it is true without a fault.
fn condition(
    name: &str,
    fault: Option<Fault>,
    old: &[PodCondition],
    observed_generation: Option<i64>,
    now: Timestamp,
) -> PodCondition {
    let status = if fault.is_none() { "True" } else { "False" };
    // A transition is a change of the status; another reason or message is none (API conventions).
    let before = old
        .iter()
        .find(|condition| condition.type_ == name && condition.status == status);
    let Fault { reason, message } = fault.unwrap_or_default();
    PodCondition {
        type_: name.to_owned(),
        status: status.to_owned(),
        reason: reason.map(str::to_owned),
        message,
        observed_generation,
        last_transition_time: before
            .and_then(|before| before.last_transition_time.clone())
            .or(Some(Time(now))),
        last_probe_time: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_names_one_address_of_each_family_in_the_nodes_order() {
        let all: Vec<IpAddr> = ["192.0.2.7", "198.51.100.1", "2001:db8::7", "2001:db8::8"]
            .iter()
            .map(|ip| ip.parse().unwrap())
            .collect();
        let first = |addresses: &[IpAddr]| {
            one_of_each_family(addresses)
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(first(&all), ["192.0.2.7", "2001:db8::7"]);
        assert_eq!(first(&all[2..]), ["2001:db8::7"]);
        assert_eq!(first(&[]), Vec::<String>::new());
    }

    #[test]
    fn a_change_clears_what_conditions_no_longer_say_and_replaces_addresses() {
        let said = |reason: Option<&str>| PodCondition {
            type_: "Ready".to_owned(),
            status: "True".to_owned(),
            reason: reason.map(str::to_owned),
            ..PodCondition::default()
        };
        let ip = |ip: &str| PodIP { ip: ip.to_owned() };
        let status = |reason, addresses: Option<Vec<PodIP>>| PodStatus {
            conditions: Some(vec![said(reason)]),
            pod_ips: addresses,
            ..PodStatus::default()
        };
        let none = PodStatus::default();
        assert_eq!(
            change(&status(None, Some(vec![ip("10.1.0.2")])), &none).unwrap(),
            json!({
                "conditions": [{"type": "Ready", "status": "True", "reason": null, "message": null}],
                "podIPs": [{"$patch": "replace"}, {"ip": "10.1.0.2"}],
            })
        );
        assert_eq!(
            change(&status(Some("Why"), None), &none).unwrap(),
            json!({"conditions": [{"type": "Ready", "status": "True", "reason": "Why", "message": null}]}),
            "addresses that are not known stay"
        );
        let mut resized = PodStatus::default();
        let pending = PodCondition {
            type_: RESIZE_PENDING.to_owned(),
            ..said(None)
        };
        resized.conditions = Some(vec![said(None), pending]);
        let change = change(&status(None, None), &resized).unwrap();
        let last = &change["conditions"][1];
        assert_eq!(
            *last,
            json!({"$patch": "delete", "type": "PodResizePending"})
        );
    }

    #[test]
    fn what_others_wrote_over_the_kubelets_words_differs_and_what_they_added_does_not() {
        let read = |status: Value| -> PodStatus { serde_json::from_value(status).unwrap() };
        let written = read(json!({"phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}]}));
        let is_other = |phase: &str, conditions: Value| {
            let status = read(json!({"phase": phase, "conditions": conditions}));
            differs(Some(&status), &written)
        };
        let ready = json!({"type": "Ready", "status": "True", "reason": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let added = json!({"type": "example.com/gate", "status": "False"});
        assert!(!is_other("Running", json!([added, ready])));
        assert!(!is_other("Failed", json!([ready])), "the last phase stays");
        assert!(is_other("Pending", json!([ready])));
        assert!(is_other("Running", json!([added])));
        for other in [
            json!({"type": "Ready", "status": "False", "reason": "NodeNotReady"}),
            json!({"type": "Ready", "status": "True", "message": "m"}),
        ] {
            assert!(is_other("Running", json!([other])), "{other}");
        }
        assert!(differs(None, &written));
    }
}
