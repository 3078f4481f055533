//! The table of pods, as upstream prints it.

use jiff::Timestamp;
use master_schema::cells::{AGE, at, since};
use master_schema::object::metadata;
use master_schema::registry::{Column, column, wide};
use master_schema::validate::{Fields, get, items, object, text};
use serde_json::Value;
use std::collections::{BTreeSet, HashSet};

pub(super) const COLUMNS: &[Column] = &[
    column("Ready", |fields, _| ready(fields).into()),
    column("Status", |fields, _| status(fields).into()),
    column("Restarts", |fields, now| restarts(fields, now).into()),
    AGE,
    wide("IP", |fields, _| at(fields, "status", "/podIP").into()),
    wide("Node", |fields, _| at(fields, "spec", "/nodeName").into()),
    wide("Nominated Node", |fields, _| {
        at(fields, "status", "/nominatedNodeName").into()
    }),
    wide("Readiness Gates", |fields, _| gates(fields).into()),
];

fn list<'a>(fields: &'a Fields, field: &str, key: &str) -> &'a [Value] {
    object(fields, field).map_or(&[], |inner| items(inner, key))
}

fn is_ready(status: &Value) -> bool {
    status.get("ready") == Some(&Value::Bool(true)) && status.pointer("/state/running").is_some()
}

/// The names of the init containers that are sidecars.
fn sidecar_names(fields: &Fields) -> BTreeSet<&str> {
    let containers = list(fields, "spec", "initContainers").iter();
    let containers = containers.filter_map(Value::as_object);
    containers
        .filter(|container| text(container, "restartPolicy") == "Always")
        .map(|container| text(container, "name"))
        .collect()
}

/// The statuses of sidecars.
fn sidecars(fields: &Fields) -> impl Iterator<Item = &Value> {
    let names = sidecar_names(fields);
    let statuses = list(fields, "status", "initContainerStatuses").iter();
    statuses.filter(move |status| {
        let name = status.get("name").and_then(Value::as_str);
        name.is_some_and(|name| names.contains(name))
    })
}

fn ready(fields: &Fields) -> String {
    let all = list(fields, "spec", "containers").len() + sidecars(fields).count();
    let ready = list(fields, "status", "containerStatuses")
        .iter()
        .chain(sidecars(fields));
    format!("{}/{all}", ready.filter(|status| is_ready(status)).count())
}

fn restarts(fields: &Fields, now: Timestamp) -> String {
    let statuses = list(fields, "status", "containerStatuses")
        .iter()
        .chain(sidecars(fields));
    let (mut count, mut last) = (0, None::<Timestamp>);
    for status in statuses {
        count += status
            .get("restartCount")
            .and_then(Value::as_i64)
            .unwrap_or_default();
        let finished = status
            .pointer("/lastState/terminated/finishedAt")
            .and_then(Value::as_str);
        last = last.max(finished.and_then(|time| time.parse().ok()));
    }
    match last {
        Some(last) if count > 0 => format!("{count} ({} ago)", since(&last.to_string(), now)),
        Some(_) | None => count.to_string(),
    }
}

fn gates(fields: &Fields) -> String {
    let gates = list(fields, "spec", "readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let conditions = list(fields, "status", "conditions").iter();
    let met: HashSet<Option<&Value>> = conditions
        .filter(|condition| condition.get("status").is_some_and(|s| s == "True"))
        .map(|condition| condition.get("type"))
        .collect();
    let holds = |gate: &&Value| met.contains(&gate.get("conditionType"));
    format!("{}/{}", gates.iter().filter(holds).count(), gates.len())
}

fn status(fields: &Fields) -> String {
    let part = |key: &str| object(fields, "status").map_or("", |status| text(status, key));
    let mut reason = match part("reason") {
        "" => part("phase").to_owned(),
        reason => reason.to_owned(),
    };
    if reason == "Pending" && !list(fields, "spec", "schedulingGates").is_empty() {
        "SchedulingGated".clone_into(&mut reason);
    }
    let initializing = init_reason(fields);
    if let Some(init) = &initializing {
        reason.clone_from(init);
    } else if let Some(found) = container_reason(fields) {
        reason = found;
    }
    if metadata(fields).contains_key("deletionTimestamp") {
        match part("reason") {
            "NodeLost" => "Unknown".clone_into(&mut reason),
            _ if matches!(part("phase"), "Succeeded" | "Failed") => {}
            _ => "Terminating".clone_into(&mut reason),
        }
    }
    reason
}

/// The reason why the first unfinished init container keeps the pod from starting.
fn init_reason(fields: &Fields) -> Option<String> {
    let sidecars = sidecar_names(fields);
    let total = list(fields, "spec", "initContainers").len();
    for (number, status) in list(fields, "status", "initContainerStatuses")
        .iter()
        .enumerate()
    {
        let name = status
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let started = status.get("started") == Some(&Value::Bool(true));
        if let Some(ended) = status
            .pointer("/state/terminated")
            .and_then(Value::as_object)
        {
            if get(ended, "exitCode").as_i64() == Some(0) {
                continue;
            }
            return Some(format!("Init:{}", ended_reason(ended)));
        }
        if started && sidecars.contains(name) {
            continue;
        }
        let waiting = status
            .pointer("/state/waiting/reason")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if !waiting.is_empty() && waiting != "PodInitializing" {
            return Some(format!("Init:{waiting}"));
        }
        return Some(format!("Init:{number}/{total}"));
    }
    None
}

fn ended_reason(ended: &Fields) -> String {
    if !text(ended, "reason").is_empty() {
        return text(ended, "reason").to_owned();
    }
    match get(ended, "signal").as_i64() {
        Some(signal) if signal != 0 => format!("Signal:{signal}"),
        Some(_) | None => format!(
            "ExitCode:{}",
            get(ended, "exitCode").as_i64().unwrap_or_default()
        ),
    }
}

/// The reason that the containers' states give; the first container takes precedence, as upstream
/// walks backwards.
fn container_reason(fields: &Fields) -> Option<String> {
    let (mut reason, mut running) = (None, false);
    for status in list(fields, "status", "containerStatuses").iter().rev() {
        let waiting = status
            .pointer("/state/waiting/reason")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if !waiting.is_empty() {
            reason = Some(waiting.to_owned());
        } else if let Some(ended) = status
            .pointer("/state/terminated")
            .and_then(Value::as_object)
        {
            reason = Some(ended_reason(ended));
        } else if is_ready(status) {
            running = true;
        }
    }
    if reason.as_deref() == Some("Completed") && running {
        let conditions = list(fields, "status", "conditions");
        let ready = conditions.iter().any(|condition| {
            condition.get("type").is_some_and(|kind| kind == "Ready")
                && condition
                    .get("status")
                    .is_some_and(|status| status == "True")
        });
        return Some(if ready { "Running" } else { "NotReady" }.to_owned());
    }
    reason
}
