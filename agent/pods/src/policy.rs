//! Which containers are started again after their end, and when.
//!
//! A rule of a container may ask that all containers of the pod are started anew
//! (`RestartAllContainers`, KEP-5532). They are so in rounds: an attempt remembers in which it was
//! started, and one that ended by such a rule begins the next. What is of an earlier round is
//! killed, without hook and grace; when none of it lives any more, the pod starts as if it had
//! never run here.

use crate::backoff::{after_run, between, later};
use crate::containers::{all, find, latest, mains};
use crate::notes::Notes;
use crate::resize::needs_restart;
use agent_runtime::{Container as Seen, ContainerState, Kind};
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

/// Whether a container that ended with `code` is started again. An init container is so only after
/// a failure, a sidecar always, an ephemeral one never; of a container's rules the first that
/// speaks of the code decides, before any policy.
pub fn restarts(pod: &Pod, kind: Kind, name: &str, code: i32) -> bool {
    match kind {
        Kind::Sidecar => return true,
        Kind::Ephemeral => return false,
        Kind::Init | Kind::Main => {}
    }
    let container = find(pod, name).map(|(_, container)| container);
    let rules = container.as_deref();
    let rule = rules.and_then(|container| rule(container, code));
    if rule.is_some_and(is_of_all) {
        return true;
    }
    let by_rule = rule.is_some();
    let policy = if by_rule {
        RestartPolicy::Always
    } else {
        RestartPolicy::of_container(pod, container.as_deref())
    };
    match policy {
        RestartPolicy::Always => kind == Kind::Main || code != 0,
        RestartPolicy::OnFailure => code != 0,
        RestartPolicy::Never => false,
    }
}

/// The first rule of a container that speaks of an exit code.
fn rule(container: &Container, code: i32) -> Option<&ContainerRestartRule> {
    let mut rules = container.restart_policy_rules.iter().flatten();
    rules.find(|rule| speaks(rule, code))
}

fn speaks(rule: &ContainerRestartRule, code: i32) -> bool {
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

fn is_of_all(rule: &ContainerRestartRule) -> bool {
    rule.action == "RestartAllContainers"
}

/// Which ends of attempts start all containers anew.
pub(crate) struct Triggers<'a> {
    /// Containers with such a rule, by name: at least one.
    ruled: BTreeMap<&'a str, &'a Container>,
    /// Since when each main container has ended for good, if all have.
    over: Option<Timestamp>,
}

impl<'a> Triggers<'a> {
    /// None where no rule of the pod can start all anew.
    pub(crate) fn of(pod: &'a Pod, seen: &[Seen]) -> Option<Self> {
        let ruled = all(pod).filter(|(_, container)| {
            let mut rules = container.restart_policy_rules.iter().flatten();
            rules.any(is_of_all)
        });
        let ruled = ruled.map(|(_, container)| (container.name.as_str(), container));
        let ruled: BTreeMap<_, _> = ruled.collect();
        let ended = |main: &Container| match latest(seen, &main.name)?.state {
            ContainerState::Exited {
                finished_at, code, ..
            } => (!restarts(pod, Kind::Main, &main.name, code)).then_some(finished_at),
            ContainerState::Running { .. } | ContainerState::Created => None,
        };
        let ends = || mains(pod).iter().map(ended).collect::<Option<Vec<_>>>();
        (!ruled.is_empty()).then(|| Self {
            over: ends().and_then(|ends| ends.into_iter().max()),
            ruled,
        })
    }

    /// Whether this attempt ended so. A sidecar that was ended because nobody is left whom it
    /// serves did not.
    pub(crate) fn has(&self, one: &Seen) -> bool {
        let ContainerState::Exited {
            code, finished_at, ..
        } = one.state
        else {
            return false;
        };
        let container = self.ruled.get(one.key.container.as_str());
        let rule = container.and_then(|container| rule(container, code));
        let served = one.key.kind != Kind::Sidecar || self.over.is_none_or(|at| at >= finished_at);
        served && rule.is_some_and(is_of_all)
    }
}

/// The round of the pod's containers: how often all of them were started anew, or are to be.
pub fn round(pod: &Pod, seen: &[Seen]) -> u32 {
    let Some(triggers) = Triggers::of(pod, seen) else {
        return 0;
    };
    let lasting = seen.iter().filter(|one| one.key.kind != Kind::Ephemeral);
    let rounds = lasting.map(|one| one.round.saturating_add(u32::from(triggers.has(one))));
    rounds.max().unwrap_or_default()
}

/// Attempts of earlier rounds that live.
pub(crate) fn outdated<'a>(pod: &Pod, seen: &'a [Seen]) -> impl Iterator<Item = &'a Seen> {
    let round = round(pod, seen);
    let lives = |one: &&Seen| !matches!(one.state, ContainerState::Exited { .. });
    let lasting = seen.iter().filter(|one| one.key.kind != Kind::Ephemeral);
    lasting.filter(lives).filter(move |one| one.round < round)
}

/// Whether an attempt is to be followed by one that is as the pod says now: the pod has another
/// image for it, or resources for which it has to be started anew. Of kinds that do not last the
/// next attempt has the new ones, if there is a next (upstream's rule).
pub fn is_replaced(pod: &Pod, notes: &Notes, seen: &Seen) -> bool {
    let lasts = matches!(seen.key.kind, Kind::Main | Kind::Sidecar);
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
    let again = seen.key.kind == Kind::Init
        && !seen.this_boot
        && RestartPolicy::of(pod) != RestartPolicy::Never;
    if !again && !restarts(pod, seen.key.kind, &seen.key.container, *code) {
        return None;
    }
    // What the machine's own end ended is not the container's fault, and a new image may have
    // mended the fault of the old.
    let wait = if seen.this_boot && !has_new_image(pod, seen) {
        after_run(seen.backoff, between(*started_at, *finished_at))
    } else {
        Duration::ZERO
    };
    Some((later(*finished_at, wait), wait))
}

/// Whether the next attempt is still to come. One that waits not at all never is, whatever the
/// clocks say: an end may be dated later than `now` by a clock that was set back. By the same clock
/// others would wait for longer than they are to; they are due, too.
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
        let again = |pod: &Pod, code| restarts(pod, Kind::Main, "a", code);
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
        assert!(restarts(&pod, Kind::Sidecar, "s", 0));
        assert!(restarts(&pod, Kind::Init, "i", 1) && !restarts(&pod, Kind::Init, "i", 0));
    }
}
