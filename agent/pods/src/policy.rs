//! Which containers are started again after their end, and when.
//!
//! A rule of a container may restart all containers of the pod (`RestartAllContainers`, KEP-5532).
//! Each such restart is a round: an attempt records the round in which it was started, and an
//! attempt that exits by such a rule begins the next one. Attempts of earlier rounds are killed,
//! without hook and grace period; when none of them runs any more, the pod starts as if it had
//! never run here.

use crate::backoff::{after_run, between, later};
use crate::containers::{all, find, latest, mains};
use crate::notes::Notes;
use crate::resize::needs_restart;
use agent_runtime::{Container as Seen, ContainerKind, ContainerState};
use config_kube::k8s_openapi::api::core::v1::{Container, ContainerRestartRule, Pod};
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

/// When containers are started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    fn read(text: Option<&str>) -> Option<Self> {
        match text {
            Some("Always") => Some(Self::Always),
            Some("OnFailure") => Some(Self::OnFailure),
            Some("Never") => Some(Self::Never),
            Some(_) | None => None,
        }
    }

    /// The policy of the pod as a whole.
    pub(crate) fn of(pod: &Pod) -> Self {
        let policy = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.restart_policy.as_deref());
        Self::read(policy).unwrap_or(Self::Always)
    }

    /// The policy of one container: its own (KEP-5307), or that of the pod.
    fn of_container(pod: &Pod, container: Option<&Container>) -> Self {
        let own = container.and_then(|container| Self::read(container.restart_policy.as_deref()));
        own.unwrap_or_else(|| Self::of(pod))
    }
}

/// Whether a container that ended with `code` is started again. An init container is started again
/// only after a failure, a sidecar always, an ephemeral one never. The first of the container's
/// rules that matches the code comes before any policy (KEP-5307).
pub fn restarts(pod: &Pod, kind: ContainerKind, name: &str, code: i32) -> bool {
    match kind {
        // Its own policy `Always` is what makes it a sidecar (KEP-753).
        ContainerKind::Sidecar => return true,
        // A debugger is for one session (KEP-277).
        ContainerKind::Ephemeral => return false,
        ContainerKind::Init | ContainerKind::Main => {}
    }
    let container = find(pod, name).map(|(_, container)| container);
    let rules = container.as_deref();
    let rule = rules.and_then(|container| rule(container, code));
    if rule.is_some_and(restarts_all) {
        return true;
    }
    // The only other action is `Restart`, which acts as the policy `Always`.
    let by_rule = rule.is_some();
    let policy = if by_rule {
        RestartPolicy::Always
    } else {
        RestartPolicy::of_container(pod, container.as_deref())
    };
    match policy {
        RestartPolicy::Always => kind == ContainerKind::Main || code != 0,
        RestartPolicy::OnFailure => code != 0,
        RestartPolicy::Never => false,
    }
}

/// The first rule of a container that matches an exit code.
fn rule(container: &Container, code: i32) -> Option<&ContainerRestartRule> {
    let mut rules = container.restart_policy_rules.iter().flatten();
    rules.find(|rule| matches_code(rule, code))
}

fn matches_code(rule: &ContainerRestartRule, code: i32) -> bool {
    let codes = rule.exit_codes.as_ref();
    codes.is_some_and(|codes| {
        let listed = codes.values.iter().flatten().any(|value| *value == code);
        match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    })
}

fn restarts_all(rule: &ContainerRestartRule) -> bool {
    rule.action == "RestartAllContainers"
}

/// Which exits restart all containers of the pod.
pub(crate) struct Triggers<'a> {
    /// Containers with such a rule, by name: at least one.
    ruled: BTreeMap<&'a str, &'a Container>,
    /// Since when each main container has ended for good, if all have.
    over: Option<Timestamp>,
}

impl<'a> Triggers<'a> {
    /// `None` if no container has a rule that restarts all.
    pub(crate) fn of(pod: &'a Pod, seen: &[Seen]) -> Option<Self> {
        let ruled = all(pod).filter(|(_, container)| {
            let mut rules = container.restart_policy_rules.iter().flatten();
            rules.any(restarts_all)
        });
        let ruled = ruled.map(|(_, container)| (container.name.as_str(), container));
        let ruled: BTreeMap<_, _> = ruled.collect();
        let ended = |main: &Container| match latest(seen, &main.name)?.state {
            ContainerState::Exited {
                finished_at, code, ..
            } => (!restarts(pod, ContainerKind::Main, &main.name, code)).then_some(finished_at),
            ContainerState::Running { .. } | ContainerState::Created => None,
        };
        let ends = || mains(pod).iter().map(ended).collect::<Option<Vec<_>>>();
        (!ruled.is_empty()).then(|| Self {
            over: ends().and_then(|ends| ends.into_iter().max()),
            ruled,
        })
    }

    /// Whether this attempt's exit restarts all. A sidecar that ended after the last main container
    /// does not count: the kubelet ended it, and its exit code is that of the signal.
    pub(crate) fn has(&self, one: &Seen) -> bool {
        let ContainerState::Exited {
            code, finished_at, ..
        } = one.state
        else {
            return false;
        };
        let container = self.ruled.get(one.key.container.as_str());
        let rule = container.and_then(|container| rule(container, code));
        let counts =
            one.key.kind != ContainerKind::Sidecar || self.over.is_none_or(|at| at >= finished_at);
        counts && rule.is_some_and(restarts_all)
    }
}

/// The round that the pod's containers are in or have to begin: how often a rule has restarted all
/// of them. It follows from the attempts alone, so that a restart of the agent does not lose it.
pub fn round(pod: &Pod, seen: &[Seen]) -> u32 {
    let Some(triggers) = Triggers::of(pod, seen) else {
        return 0;
    };
    let lasting = seen
        .iter()
        .filter(|one| one.key.kind != ContainerKind::Ephemeral);
    let rounds = lasting.map(|one| one.round.saturating_add(u32::from(triggers.has(one))));
    rounds.max().unwrap_or_default()
}

/// Attempts of earlier rounds that have not ended.
pub(crate) fn outdated<'a>(pod: &Pod, seen: &'a [Seen]) -> impl Iterator<Item = &'a Seen> {
    let round = round(pod, seen);
    let lives = |one: &&Seen| !matches!(one.state, ContainerState::Exited { .. });
    let lasting = seen
        .iter()
        .filter(|one| one.key.kind != ContainerKind::Ephemeral);
    lasting.filter(lives).filter(move |one| one.round < round)
}

/// Whether an attempt must be replaced by one with the pod's present spec: the image is another, or
/// a resize needs a restart. Init and ephemeral containers are not replaced: their next attempt has
/// the new spec, if there is a next one (upstream's rule).
pub fn is_replaced(pod: &Pod, notes: &Notes, seen: &Seen) -> bool {
    let lasts = matches!(seen.key.kind, ContainerKind::Main | ContainerKind::Sidecar);
    lasts && (has_new_image(pod, seen) || needs_restart(pod, notes, seen))
}

pub(crate) fn has_new_image(pod: &Pod, seen: &Seen) -> bool {
    let found = find(pod, &seen.key.container);
    let image = found.and_then(|(_, container)| container.image.clone());
    image.is_some_and(|image| image != seen.image)
}

/// When an attempt that ended is followed by the next, and the wait before it; `None` if never.
pub fn restart(pod: &Pod, seen: &Seen) -> Option<(Timestamp, Duration)> {
    let ContainerState::Exited {
        started_at,
        finished_at,
        code,
        ..
    } = &seen.state
    else {
        return None;
    };
    // An init container that did its work before a reboot has to do it again.
    let again = seen.key.kind == ContainerKind::Init
        && !seen.this_boot
        && RestartPolicy::of(pod) != RestartPolicy::Never;
    if !again && !restarts(pod, seen.key.kind, &seen.key.container, *code) {
        return None;
    }
    // No back-off after a reboot, which was not the container's fault, nor for a new image, which
    // may not have the fault of the old one.
    let wait = if seen.this_boot && !has_new_image(pod, seen) {
        after_run(seen.backoff, between(*started_at, *finished_at))
    } else {
        Duration::ZERO
    };
    Some((later(*finished_at, wait), wait))
}

/// Whether the next attempt, due at `at` after a wait of `backoff`, still has to wait. Where the
/// clock was set back, `at` can lie further ahead than the whole back-off: then the attempt is due,
/// and so is one without a back-off.
pub(crate) fn waits(at: Timestamp, backoff: Duration, now: Timestamp) -> bool {
    at > now && between(now, at) <= backoff
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(policy: &str, container: Value) -> Pod {
        let mut container = container;
        container["name"] = json!("a");
        serde_json::from_value(
            json!({"spec": {"restartPolicy": policy, "containers": [container]}}),
        )
        .unwrap()
    }

    #[test]
    fn a_containers_own_policy_wins_over_the_pods_and_its_rules_over_both() {
        let again = |pod: &Pod, code| restarts(pod, ContainerKind::Main, "a", code);
        let own = pod("Never", json!({"restartPolicy": "OnFailure"}));
        assert!(again(&own, 1) && !again(&own, 0));
        let never = pod("Always", json!({"restartPolicy": "Never"}));
        assert!(!again(&never, 1));
        let rule = |operator: &str| {
            let codes = json!({"operator": operator, "values": [42, 43]});
            let rules = json!([{"action": "Restart", "exitCodes": codes}]);
            pod(
                "Always",
                json!({"restartPolicy": "Never", "restartPolicyRules": rules}),
            )
        };
        assert!(again(&rule("In"), 42) && !again(&rule("In"), 1));
        assert!(!again(&rule("NotIn"), 42) && again(&rule("NotIn"), 1));
    }

    #[test]
    fn a_sidecar_is_always_started_again_and_an_init_container_after_failures() {
        let pod = pod("OnFailure", json!({}));
        assert!(restarts(&pod, ContainerKind::Sidecar, "s", 0));
        assert!(
            restarts(&pod, ContainerKind::Init, "i", 1)
                && !restarts(&pod, ContainerKind::Init, "i", 0)
        );
    }
}
