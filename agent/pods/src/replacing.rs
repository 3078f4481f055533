//! Holds back the pod's status between the end of a container for another image and the start of
//! its successor.

use crate::containers::latest;
use crate::machine::PodFacts;
use crate::{later, mains};
use agent_runtime::ContainerState;
use jiff::Timestamp;
use std::time::Duration;

/// How long the status leaves the moment out. A pull or a start that takes longer is reported.
const UNREPORTED: Duration = Duration::from_secs(2);

/// Until when the pod's status stays as it was last reported, because a container has been
/// replaced and its successor starts.
///
/// Upstream's kubelet kills, pulls and starts in one sync and reports the status before it and
/// after it, so that a change of an image never shows the pod unready for want of that container.
/// Here each of these is a step of its own, and the status would be reported between them.
pub fn quiet_until(facts: PodFacts<'_>) -> Option<Timestamp> {
    if facts.end().is_some() || facts.refused {
        return None;
    }
    let spec = facts.pod.spec.iter();
    let inits = spec.flat_map(|spec| spec.init_containers.iter().flatten());
    let ended = mains(facts.pod)
        .iter()
        .chain(inits)
        .filter_map(|container| {
            let seen = latest(facts.seen, &container.name)?;
            let ContainerState::Exited { finished_at, .. } = seen.state else {
                return None;
            };
            let unreported = facts.notes.replaced.contains(&seen.id)
                && facts.notes.failure(facts.pod, container).is_none();
            unreported.then_some(finished_at)
        });
    // A time that is yet to come is of a clock that was set back: nothing is held for it.
    let until = |ended: Timestamp| {
        let until = later(ended, UNREPORTED);
        (ended <= facts.now && facts.now < until).then_some(until)
    };
    ended.filter_map(until).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempts::{attempt, exited};
    use crate::notes::{Failure, Notes};
    use agent_runtime::{Container as Seen, ContainerKind, ExitCause};
    use config_kube::k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    fn pod() -> Pod {
        let main = json!({"name": "a", "image": "new"});
        serde_json::from_value(json!({"spec": {"containers": [main]}})).unwrap()
    }

    fn ended(finished_at: Timestamp) -> Seen {
        let state = exited(finished_at, 0, ExitCause::Own);
        Seen {
            image: "old".into(),
            ..attempt("a", ContainerKind::Main, state)
        }
    }

    fn seconds(count: i64) -> Timestamp {
        Timestamp::from_second(count).unwrap()
    }

    #[test]
    fn the_moment_after_a_replaced_container_is_reported_after_two_seconds() {
        let (pod, seen) = (pod(), [ended(seconds(100))]);
        let mut notes = Notes::default();
        let until = |notes: &Notes, now| {
            quiet_until(PodFacts {
                pod: &pod,
                seen: &seen,
                notes,
                refused: false,
                now: seconds(now),
            })
        };
        assert_eq!(until(&notes, 100), None, "it ended by itself");
        notes.replaced.insert("a".into());
        assert_eq!(until(&notes, 100), Some(seconds(102)));
        assert_eq!(until(&notes, 101), Some(seconds(102)));
        assert_eq!(until(&notes, 102), None);
        assert_eq!(until(&notes, 99), None, "the clock was set back");
        let failure = |image: &str| Failure {
            reason: "ErrImagePull",
            image: image.into(),
            message: String::new(),
            at: seconds(101),
            retry_at: seconds(111),
            count: 1,
        };
        notes.failures.insert("a".into(), failure("new"));
        assert_eq!(until(&notes, 101), None, "a pull that failed is reported");
        notes.failures.insert("a".into(), failure("older"));
        assert_eq!(until(&notes, 101), Some(seconds(102)), "of another image");
    }

    #[test]
    fn the_end_of_a_pod_is_reported_at_once() {
        let mut pod = pod();
        pod.metadata.deletion_timestamp =
            Some(config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(seconds(100)));
        let (seen, mut notes) = ([ended(seconds(100))], Notes::default());
        notes.replaced.insert("a".into());
        let facts = PodFacts {
            pod: &pod,
            seen: &seen,
            notes: &notes,
            refused: false,
            now: seconds(100),
        };
        assert_eq!(quiet_until(facts), None);
    }
}
