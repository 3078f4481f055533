//! What a deletion does to an object, by its options. Pure.

mod options;

pub use options::{Options, Policy};

use jiff::{SignedDuration, Timestamp};
use master_pods::grace as pod_grace;
use master_schema::object::{metadata, metadata_mut};
use master_schema::registry::{Dependents, Kind};
use master_schema::validate::{Fields, get, items, object as inner, object_mut, text};
use serde_json::Value;

/// The garbage collector orphans an object's dependents before it goes.
const ORPHAN: &str = "orphan";
/// The garbage collector deletes an object's dependents before it goes.
const FOREGROUND: &str = "foregroundDeletion";

/// The result of the plan.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Delete it; its last state.
    Delete(Fields),
    /// Keep it until finalizers or its kubelet are done; its new state.
    Update(Fields),
    /// It is already being deleted, and the request does not shorten its grace period.
    Pending,
}

/// Plans the deletion of an object.
pub fn plan(kind: &Kind, fields: &Fields, options: &Options, now: Timestamp) -> Step {
    let mut object = fields.clone();
    let deleting = !text(metadata(fields), "deletionTimestamp").is_empty();
    // The grace period in seconds; `None` if the kind has none or it has elapsed.
    let grace = match (kind.strategy.graceful, deleting) {
        (false, _) => None,
        (true, false) => {
            let seconds = pod_grace(fields, options.grace);
            mark(&mut object, now, seconds);
            bump(&mut object);
            Some(seconds)
        }
        (true, true) => match get(metadata(fields), "deletionGracePeriodSeconds").as_i64() {
            None | Some(0) => None,
            Some(running) => {
                let requested = options
                    .grace
                    .map(|requested| if requested < 0 { 1 } else { requested });
                let Some(requested) = requested.filter(|requested| *requested < running) else {
                    return Step::Pending;
                };
                Some(shorten(&mut object, now, running, requested))
            }
        },
    };
    let finalizers = finalizers(kind, fields, options);
    let mut waits = !finalizers.is_empty();
    let metadata = metadata_mut(&mut object);
    if waits {
        metadata.insert("finalizers".to_owned(), Value::from(finalizers));
    } else {
        metadata.remove("finalizers");
    }
    if kind.kind == "Namespace" && kind.group.is_empty() {
        waits |= inner(fields, "spec").is_some_and(|spec| !items(spec, "finalizers").is_empty());
        if let Some(status) = object_mut(&mut object, "status").filter(|_| waits) {
            status.insert("phase".to_owned(), "Terminating".into());
        }
    }
    if grace.is_none() && waits {
        if !deleting {
            bump(&mut object);
        }
        mark(&mut object, now, 0);
    }
    if waits || grace.is_some_and(|seconds| seconds > 0) {
        Step::Update(object)
    } else {
        Step::Delete(object)
    }
}

/// Sets the deletion timestamp; never later than it was.
fn mark(object: &mut Fields, now: Timestamp, seconds: i64) {
    let metadata = metadata_mut(object);
    let end = now
        .checked_add(SignedDuration::from_secs(seconds))
        .unwrap_or(now);
    let before = text(metadata, "deletionTimestamp")
        .parse::<Timestamp>()
        .ok();
    if before.is_none_or(|before| before > end) {
        metadata.insert(
            "deletionTimestamp".to_owned(),
            end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into(),
        );
    }
    metadata.insert("deletionGracePeriodSeconds".to_owned(), seconds.into());
}

/// Moves the end of a running deletion forward, but not into the past; returns the seconds left.
fn shorten(object: &mut Fields, now: Timestamp, running: i64, requested: i64) -> i64 {
    let end = text(metadata(object), "deletionTimestamp")
        .parse::<Timestamp>()
        .unwrap_or(now);
    let moved = end
        .checked_sub(SignedDuration::from_secs(running.saturating_sub(requested)))
        .unwrap_or(now);
    // A request with a grace period leaves at least one second, in which the kubelet confirms.
    let (end, seconds) = if moved < now {
        (now, requested.min(1))
    } else {
        (moved, requested)
    };
    let metadata = metadata_mut(object);
    metadata.insert(
        "deletionTimestamp".to_owned(),
        end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into(),
    );
    metadata.insert("deletionGracePeriodSeconds".to_owned(), seconds.into());
    seconds
}

/// The beginning of a deletion raises the generation.
fn bump(object: &mut Fields) {
    let metadata = metadata_mut(object);
    if let Some(generation) = get(metadata, "generation")
        .as_i64()
        .filter(|generation| *generation > 0)
    {
        metadata.insert("generation".to_owned(), (generation + 1).into());
    }
}

/// The object's finalizers with those of the garbage collector, as the request, the object or the
/// kind demands.
fn finalizers(kind: &Kind, fields: &Fields, options: &Options) -> Vec<String> {
    let own: Vec<&str> = items(metadata(fields), "finalizers")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let requested = match options.orphan {
        Some(true) => Some(Policy::Orphan),
        Some(false) => Some(Policy::Background),
        None => options.policy,
    };
    let standing = own.iter().find_map(|finalizer| match *finalizer {
        ORPHAN => Some(Policy::Orphan),
        FOREGROUND => Some(Policy::Foreground),
        _ => None,
    });
    let policy = match kind.strategy.dependents {
        Dependents::Untracked => None,
        Dependents::Deleted => requested.or(standing),
        Dependents::Orphaned => requested.or(standing).or(Some(Policy::Orphan)),
    };
    let mut all: Vec<String> = own
        .into_iter()
        .filter(|own| !matches!(*own, ORPHAN | FOREGROUND))
        .map(str::to_owned)
        .collect();
    match policy {
        Some(Policy::Orphan) => all.push(ORPHAN.to_owned()),
        Some(Policy::Foreground) => all.push(FOREGROUND.to_owned()),
        Some(Policy::Background) | None => {}
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::k8s_openapi::api::apps::v1::Deployment;
    use config_kube::k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn pods() -> Kind {
        let mut kind = Kind::of::<Pod>(true);
        kind.strategy.graceful = true;
        kind
    }

    fn step(kind: &Kind, object: Value, options: &Options) -> (&'static str, Value) {
        let Value::Object(object) = object else {
            panic!("an object")
        };
        match plan(kind, &object, options, now()) {
            Step::Delete(fields) => ("delete", Value::Object(fields)),
            Step::Update(fields) => ("update", Value::Object(fields)),
            Step::Pending => ("pending", Value::Null),
        }
    }

    #[test]
    fn propagation_becomes_the_collectors_finalizers() {
        let kind = Kind::of::<Deployment>(true);
        let of = |policy, finalizers: Value| {
            let object =
                json!({"metadata": {"name": "a", "generation": 3, "finalizers": finalizers}});
            let (what, object) = step(
                &kind,
                object,
                &Options {
                    policy,
                    ..Options::default()
                },
            );
            (
                what,
                object["metadata"]["finalizers"].clone(),
                object["metadata"]["generation"].clone(),
            )
        };
        assert_eq!(of(None, json!([])), ("delete", Value::Null, json!(3)));
        assert_eq!(of(Some(Policy::Background), json!([])).0, "delete");
        assert_eq!(
            of(Some(Policy::Foreground), json!([])),
            ("update", json!([FOREGROUND]), json!(4))
        );
        assert_eq!(
            of(Some(Policy::Orphan), json!(["x/y"])),
            ("update", json!(["x/y", ORPHAN]), json!(4))
        );
        assert_eq!(
            of(Some(Policy::Background), json!([FOREGROUND])).0,
            "delete",
            "the request is stronger"
        );
        assert_eq!(
            of(None, json!([ORPHAN])),
            ("update", json!([ORPHAN]), json!(4))
        );
        let orphan = |orphan| Options {
            orphan: Some(orphan),
            ..Options::default()
        };
        let object = json!({"metadata": {"name": "a"}});
        assert_eq!(
            step(&kind, object.clone(), &orphan(true)).1["metadata"]["finalizers"],
            json!([ORPHAN])
        );
        assert_eq!(step(&kind, object.clone(), &orphan(false)).0, "delete");
        let mut job = Kind::of::<Deployment>(true);
        job.strategy.dependents = Dependents::Orphaned;
        assert_eq!(step(&job, object.clone(), &Options::default()).0, "update");
        job.strategy.dependents = Dependents::Untracked;
        let foreground = Options {
            policy: Some(Policy::Foreground),
            ..Options::default()
        };
        assert_eq!(step(&job, object, &foreground).0, "delete");
    }

    #[test]
    fn a_pod_on_a_node_gets_its_grace_and_only_less_can_be_asked_for_later() {
        let pod = json!({"metadata": {"name": "p", "generation": 1}, "spec": {"nodeName": "n"}});
        let (what, going) = step(&pods(), pod.clone(), &Options::default());
        assert_eq!(what, "update");
        assert_eq!(
            going["metadata"]["deletionTimestamp"],
            "2026-01-01T00:00:30Z"
        );
        assert_eq!(going["metadata"]["generation"], 2);
        let ask = |grace| Options {
            grace: Some(grace),
            ..Options::default()
        };
        assert_eq!(
            step(&pods(), going.clone(), &Options::default()).0,
            "pending"
        );
        assert_eq!(step(&pods(), going.clone(), &ask(60)).0, "pending");
        let (what, shorter) = step(&pods(), going.clone(), &ask(10));
        assert_eq!(
            (what, &shorter["metadata"]["deletionTimestamp"]),
            ("update", &json!("2026-01-01T00:00:10Z"))
        );
        assert_eq!(
            shorter["metadata"]["generation"], 2,
            "it was on its way already"
        );
        assert_eq!(step(&pods(), going.clone(), &ask(0)).0, "delete");
        assert_eq!(
            step(&pods(), going, &ask(-5)).1["metadata"]["deletionGracePeriodSeconds"],
            1
        );
        assert_eq!(step(&pods(), pod, &ask(0)).0, "delete");
    }

    #[test]
    fn a_pod_with_a_finalizer_waits_for_it_even_without_grace() {
        let pod = json!({"metadata": {"name": "p", "finalizers": ["a/b"]}, "spec": {}});
        let (what, going) = step(&pods(), pod, &Options::default());
        assert_eq!(
            (what, &going["metadata"]["deletionGracePeriodSeconds"]),
            ("update", &json!(0))
        );
        let (what, again) = step(&pods(), going.clone(), &Options::default());
        assert_eq!(
            (what, again),
            ("update", going),
            "and a second request changes nothing"
        );
    }
}
