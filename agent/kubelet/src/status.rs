//! A pod's status, as a pure function of what is wanted and seen: phases, conditions and container states in
//! the words that users of Kubernetes know.

use crate::machine::{
    End, Failure, PULL_ERROR_SHOWN, RestartPolicy, View, containers, init_done, initialized,
    latest, previous, restart, waits,
};
use crate::network::Addresses;
use agent_resources::qos;
use agent_runtime::{Container as Seen, ContainerState as State, Kind};
use config_kube::k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::Timestamp;
use std::net::IpAddr;
use std::time::Duration;

/// Why this node can't run a pod. It stays so: the pod has failed, and who made it makes another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// The status that changes are measured against: the master's, with what was written since.
pub(crate) fn base(pod: &Pod, written: Option<&PodStatus>) -> PodStatus {
    let mut base = pod.status.clone().unwrap_or_default();
    if let Some(written) = written {
        let own = written.conditions.iter().flatten();
        let foreign = base.conditions.take().into_iter().flatten();
        let foreign = foreign.filter(|old| !own.clone().any(|own| own.type_ == old.type_));
        base.conditions = Some(foreign.chain(own.clone().cloned()).collect());
        base.start_time.clone_from(&written.start_time);
        base.qos_class.clone_from(&written.qos_class);
    }
    base
}

/// The status of a pod. `messages` gives the termination message of an attempt by its id. Conditions of others
/// are not in it: a strategic merge patch leaves them as they are.
pub(crate) fn status(
    view: View<'_>,
    old: &PodStatus,
    refusal: Option<&Refusal>,
    addresses: &Addresses,
    messages: &dyn Fn(&str) -> Option<String>,
) -> PodStatus {
    let pod = view.pod;
    let end = view.end();
    let over = end.is_some()
        && view
            .seen
            .iter()
            .all(|seen| matches!(seen.state, State::Exited { .. }));
    let scene = Scene {
        view,
        end,
        over,
        messages,
    };
    let of_kind = |kind| {
        containers(pod, kind)
            .iter()
            .map(|container| scene.container(container, kind))
            .collect::<Vec<_>>()
    };
    let (inits, mains) = (of_kind(Kind::Init), of_kind(Kind::Main));
    let Outcome {
        phase,
        reason,
        message,
    } = scene.outcome(old, refusal);
    let mut conditions = scene.conditions(
        &phase,
        &mains,
        old.conditions.as_deref().unwrap_or_default(),
    );
    conditions.extend(scene.disruption(old.conditions.as_deref().unwrap_or_default()));
    let texts = |addresses: &[IpAddr]| -> Vec<String> {
        one_of_each_family(addresses)
            .map(ToString::to_string)
            .collect()
    };
    let (host, own) = (texts(&addresses.host), texts(&addresses.pod));
    // A pod that has no sandbox yet, or no longer, keeps what its status said.
    let own = (refusal.is_none() && !own.is_empty()).then_some(own);
    PodStatus {
        phase: Some(phase),
        reason,
        message,
        conditions: Some(conditions),
        init_container_statuses: (!inits.is_empty() && refusal.is_none()).then_some(inits),
        container_statuses: refusal.is_none().then_some(mains),
        host_ip: host.first().cloned(),
        host_ips: Some(host.into_iter().map(|ip| HostIP { ip }).collect()),
        pod_ip: own.as_ref().and_then(|own| own.first().cloned()),
        pod_ips: own.map(|own| own.into_iter().map(|ip| PodIP { ip }).collect()),
        start_time: Some(old.start_time.clone().unwrap_or(Time(view.now))),
        qos_class: Some(
            old.qos_class
                .clone()
                .unwrap_or_else(|| qos::class(pod).to_owned()),
        ),
        observed_generation: pod.metadata.generation,
        ..PodStatus::default()
    }
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

/// What every part of the status is made from.
struct Scene<'a> {
    view: View<'a>,
    end: Option<End>,
    /// It ends, and nothing runs any more.
    over: bool,
    messages: &'a dyn Fn(&str) -> Option<String>,
}

/// What has become of the pod as a whole.
struct Outcome {
    phase: String,
    reason: Option<String>,
    message: Option<String>,
}

impl Scene<'_> {
    fn outcome(&self, old: &PodStatus, refusal: Option<&Refusal>) -> Outcome {
        let failed = |reason: &str, message| Outcome {
            phase: "Failed".to_owned(),
            reason: Some(reason.to_owned()),
            message,
        };
        match (self.end, refusal) {
            (Some(End::Deadline), _) => {
                let text = "Pod was active on the node longer than the specified deadline";
                failed("DeadlineExceeded", Some(text.to_owned()))
            }
            (Some(End::Evicted), _) => failed("Evicted", self.view.notes.evicted.clone()),
            // Upstream's words for what a node doesn't admit; nothing of it ever ran, so there are no containers to tell of.
            (None, Some(refusal)) => failed(
                refusal.reason,
                Some(format!("Pod was rejected: {}", refusal.message)),
            ),
            (Some(End::Over), _) => Outcome {
                phase: old.phase.clone().unwrap_or_default(),
                reason: old.reason.clone(),
                message: old.message.clone(),
            },
            (Some(End::Deleted), _) | (None, None) => Outcome {
                phase: self.phase(),
                reason: old.reason.clone(),
                message: old.message.clone(),
            },
        }
    }

    /// The condition that tells controllers why an evicted pod goes.
    fn disruption(&self, before: &[PodCondition]) -> Option<PodCondition> {
        let message = self.view.notes.evicted.as_ref();
        let message = message.filter(|_| self.end == Some(End::Evicted))?;
        Some(PodCondition {
            reason: Some("TerminationByKubelet".to_owned()),
            message: Some(message.clone()),
            ..condition("DisruptionTarget", None, before, None, self.view.now)
        })
    }

    fn container(&self, container: &Container, kind: Kind) -> ContainerStatus {
        let seen = latest(self.view.seen, &container.name);
        let before =
            previous(self.view.seen, &container.name).and_then(|seen| self.terminated(seen));
        let verdict = seen
            .and_then(|seen| self.view.notes.verdicts.get(&seen.id))
            .copied();
        let running = seen.is_some_and(|seen| matches!(seen.state, State::Running { .. }));
        let (state, last) = self.states(container, kind, seen, before);
        let ended_well =
            seen.is_some_and(|seen| matches!(seen.state, State::Exited { code: 0, .. }));
        ContainerStatus {
            name: container.name.clone(),
            image: seen.map_or_else(
                || container.image.clone().unwrap_or_default(),
                |seen| seen.image.clone(),
            ),
            image_id: seen.map(|seen| seen.image_id.clone()).unwrap_or_default(),
            container_id: seen.map(|seen| format!("containerd://{}", seen.id)),
            restart_count: seen.map_or(0, |seen| {
                i32::try_from(seen.key.attempt).unwrap_or(i32::MAX)
            }),
            ready: match kind {
                Kind::Init => ended_well,
                Kind::Main => {
                    running && self.end.is_none() && verdict.is_none_or(|verdict| verdict.ready)
                }
            },
            started: Some(running && verdict.is_none_or(|verdict| verdict.started)),
            state: Some(state),
            last_state: Some(last.unwrap_or_default()),
            ..ContainerStatus::default()
        }
    }

    /// State and last state of a container.
    fn states(
        &self,
        container: &Container,
        kind: Kind,
        seen: Option<&Seen>,
        before: Option<ContainerState>,
    ) -> (ContainerState, Option<ContainerState>) {
        let Some(seen) = seen else {
            return (self.not_started(container, kind), None);
        };
        match &seen.state {
            State::Running { started_at } => {
                let running = ContainerStateRunning {
                    started_at: Some(Time(*started_at)),
                };
                (
                    ContainerState {
                        running: Some(running),
                        ..ContainerState::default()
                    },
                    before,
                )
            }
            State::Created => (self.not_started(container, kind), before),
            State::Exited { .. } => {
                let ended = self.terminated(seen);
                match self.back_off(container, seen) {
                    Some(waiting) => (waiting, ended),
                    None => (ended.unwrap_or_default(), before),
                }
            }
        }
    }

    fn not_started(&self, container: &Container, kind: Kind) -> ContainerState {
        if let Some(failure) = self.view.notes.failures.get(&container.name) {
            return self.failed(failure, container);
        }
        let inits = !containers(self.view.pod, Kind::Init).is_empty();
        let initializing = inits && (kind == Kind::Main || !self.is_turn(container));
        waiting(
            if initializing {
                "PodInitializing"
            } else {
                "ContainerCreating"
            },
            "",
        )
    }

    /// The init container whose turn it is.
    fn is_turn(&self, container: &Container) -> bool {
        let (pod, seen) = (self.view.pod, self.view.seen);
        let next = containers(pod, Kind::Init)
            .iter()
            .find(|init| !init_done(pod, seen, init));
        next.is_some_and(|next| next.name == container.name)
    }

    fn failed(&self, failure: &Failure, container: &Container) -> ContainerState {
        let shown = crate::backoff::between(failure.at, self.view.now) < PULL_ERROR_SHOWN;
        if failure.reason == "ErrImagePull" && !shown {
            let image = container.image.as_deref().unwrap_or_default();
            let message = format!(
                "Back-off pulling image {image:?}: ErrImagePull: {}",
                failure.message
            );
            return waiting("ImagePullBackOff", &message);
        }
        waiting(failure.reason, &failure.message)
    }

    /// The waiting state of a container between two attempts; `None` if there is no next, or it comes at once.
    fn back_off(&self, container: &Container, seen: &Seen) -> Option<ContainerState> {
        if self.end.is_some() {
            return None;
        }
        let (at, wait) = restart(self.view.pod, seen)?;
        if let Some(failure) = self.view.notes.failures.get(&container.name) {
            return Some(self.failed(failure, container));
        }
        let pod = &self.view.pod.metadata;
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        waits(at, wait, self.view.now).then(|| {
            let place = format!(
                "{}_{}({})",
                text(&pod.name),
                text(&pod.namespace),
                text(&pod.uid)
            );
            let message = format!(
                "back-off {} restarting failed container={} pod={place}",
                spoken(wait),
                container.name
            );
            waiting("CrashLoopBackOff", &message)
        })
    }

    fn terminated(&self, seen: &Seen) -> Option<ContainerState> {
        let State::Exited {
            started_at,
            finished_at,
            code,
            oom_killed,
            start_error,
        } = &seen.state
        else {
            return None;
        };
        let reason = match (start_error, oom_killed, code) {
            (Some(_), ..) => "StartError",
            (None, true, _) => "OOMKilled",
            (None, false, 0) => "Completed",
            (None, false, _) => "Error",
        };
        let terminated = ContainerStateTerminated {
            container_id: Some(format!("containerd://{}", seen.id)),
            exit_code: *code,
            started_at: Some(Time(*started_at)),
            finished_at: Some(Time(*finished_at)),
            reason: Some(reason.to_owned()),
            message: start_error.clone().or_else(|| (self.messages)(&seen.id)),
            signal: None,
        };
        Some(ContainerState {
            terminated: Some(terminated),
            ..ContainerState::default()
        })
    }

    /// The phase, by upstream's rules.
    fn phase(&self) -> String {
        let (pod, seen) = (self.view.pod, self.view.seen);
        let policy = RestartPolicy::of(pod);
        let init_failed = containers(pod, Kind::Init).iter().any(|init| {
            let ended = latest(seen, &init.name).map(|seen| &seen.state);
            policy == RestartPolicy::Never
                && matches!(
                    ended,
                    Some(State::Exited { code: 1.., .. } | State::Exited { code: ..=-1, .. })
                )
        });
        if init_failed {
            return "Failed".to_owned();
        }
        let (mut waiting, mut running, mut stopped, mut well) = (0, 0, 0, 0);
        for container in containers(pod, Kind::Main) {
            match latest(seen, &container.name).map(|seen| &seen.state) {
                None | Some(State::Created) => waiting += 1,
                Some(State::Running { .. }) => running += 1,
                Some(State::Exited { code, .. }) => {
                    stopped += 1;
                    well += u32::from(*code == 0);
                }
            }
        }
        let ended = || {
            if waiting == 0 && stopped == well {
                "Succeeded"
            } else {
                "Failed"
            }
        };
        let phase = if self.over {
            ended()
        } else if waiting > 0 {
            "Pending"
        } else if running > 0 {
            "Running"
        } else {
            match policy {
                RestartPolicy::Always => "Running",
                RestartPolicy::OnFailure if stopped > well => "Running",
                RestartPolicy::OnFailure | RestartPolicy::Never => ended(),
            }
        };
        phase.to_owned()
    }

    fn conditions(
        &self,
        phase: &str,
        mains: &[ContainerStatus],
        old: &[PodCondition],
    ) -> Vec<PodCondition> {
        let (pod, seen) = (self.view.pod, self.view.seen);
        let done = phase == "Succeeded";
        let names = |all: Vec<&str>| format!("[{}]", all.join(" "));
        let initialized = done || initialized(pod, seen);
        let incomplete: Vec<&str> = containers(pod, Kind::Init)
            .iter()
            .filter(|init| !init_done(pod, seen, init))
            .map(|init| init.name.as_str())
            .collect();
        let unready: Vec<&str> = mains
            .iter()
            .filter(|main| !main.ready)
            .map(|main| main.name.as_str())
            .collect();
        let no_init = || {
            (
                "ContainersNotInitialized",
                format!("containers with incomplete status: {}", names(incomplete)),
            )
        };
        let no_ready = || {
            (
                "ContainersNotReady",
                format!("containers with unready status: {}", names(unready.clone())),
            )
        };
        let ready_fault = match phase {
            "Succeeded" => Some(("PodCompleted", String::new())),
            "Failed" => Some(("PodFailed", String::new())),
            _ if unready.is_empty() => None,
            _ => Some(no_ready()),
        };
        let gates = self.open_gates(old);
        let gate_fault = || {
            let text = format!(
                "corresponding conditions of pod readiness gates {} are not true",
                names(gates.clone())
            );
            (!gates.is_empty()).then_some(("ReadinessGatesNotReady", text))
        };
        let started = !self.over && seen.iter().any(|seen| seen.this_boot);
        let set = [
            (
                "PodReadyToStartContainers",
                (!started).then_some(("", String::new())),
            ),
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
            .map(|(name, fault)| condition(name, fault, old, generation, self.view.now))
            .collect()
    }

    /// Readiness gates whose conditions, set by others, are not true.
    fn open_gates(&self, old: &[PodCondition]) -> Vec<&str> {
        let gates = self
            .view
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

/// A condition, with the time of its last change.
fn condition(
    name: &str,
    fault: Option<(&'static str, String)>,
    old: &[PodCondition],
    observed_generation: Option<i64>,
    now: Timestamp,
) -> PodCondition {
    let status = if fault.is_none() { "True" } else { "False" };
    let before = old
        .iter()
        .find(|condition| condition.type_ == name && condition.status == status);
    let text = |text: String| (!text.is_empty()).then_some(text);
    let (reason, message) = fault.map_or((None, None), |(reason, message)| {
        (text(reason.to_owned()), text(message))
    });
    PodCondition {
        type_: name.to_owned(),
        status: status.to_owned(),
        reason,
        message,
        observed_generation,
        last_transition_time: before
            .and_then(|before| before.last_transition_time.clone())
            .or(Some(Time(now))),
        last_probe_time: None,
    }
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    let message = (!message.is_empty()).then(|| message.to_owned());
    let waiting = ContainerStateWaiting {
        reason: Some(reason.to_owned()),
        message,
    };
    ContainerState {
        waiting: Some(waiting),
        ..ContainerState::default()
    }
}

/// A wait as upstream writes it: `10s`, `1m20s`, `5m0s`.
fn spoken(wait: Duration) -> String {
    let (minutes, seconds) = (wait.as_secs() / 60, wait.as_secs() % 60);
    if minutes == 0 {
        format!("{seconds}s")
    } else {
        format!("{minutes}m{seconds}s")
    }
}

/// Attempts that the engine has lost and the API still remembers, so that what is over isn't run again.
pub(crate) fn recover(pod: &Pod, mut seen: Vec<Seen>, now: Timestamp) -> Vec<Seen> {
    let Some(status) = &pod.status else {
        return seen;
    };
    let kinds = [
        (Kind::Init, &status.init_container_statuses),
        (Kind::Main, &status.container_statuses),
    ];
    for (kind, statuses) in kinds {
        for status in statuses.iter().flatten() {
            let known = seen.iter().any(|seen| seen.key.container == status.name);
            if let (false, Some(lost)) = (known, lost(pod, status, kind, now)) {
                seen.push(lost);
            }
        }
    }
    seen
}

fn lost(pod: &Pod, status: &ContainerStatus, kind: Kind, now: Timestamp) -> Option<Seen> {
    let id = status
        .container_id
        .as_deref()?
        .strip_prefix("containerd://")?
        .to_owned();
    let state = status.state.as_ref()?;
    let ended = state
        .terminated
        .as_ref()
        .or_else(|| status.last_state.as_ref()?.terminated.as_ref());
    let time = |time: &Option<Time>| time.as_ref().map_or(now, |time| time.0);
    let state = State::Exited {
        started_at: ended.map_or(now, |ended| time(&ended.started_at)),
        finished_at: ended.map_or(now, |ended| time(&ended.finished_at)),
        code: ended
            .filter(|_| state.running.is_none())
            .map_or(255, |ended| ended.exit_code),
        oom_killed: ended.is_some_and(|ended| ended.reason.as_deref() == Some("OOMKilled")),
        start_error: None,
    };
    Some(Seen {
        id,
        key: agent_runtime::ContainerKey {
            pod: crate::names::pod_ref(pod)?,
            container: status.name.clone(),
            kind,
            attempt: u32::try_from(status.restart_count).unwrap_or_default(),
        },
        image: status.image.clone(),
        image_id: status.image_id.clone(),
        state,
        backoff: None,
        this_boot: false,
    })
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
}
