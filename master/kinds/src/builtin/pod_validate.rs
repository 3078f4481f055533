//! Validation of pods (upstream: `pkg/apis/core/validation`), with upstream's paths and words.

use crate::validate::{At, Faults, Fields, get, items, names, object, text};
use serde_json::{Map, Value};
use std::collections::HashSet;

fn nothing() -> &'static Fields {
    static EMPTY: std::sync::LazyLock<Fields> = std::sync::LazyLock::new(Map::new);
    &EMPTY
}

/// Checks a pod.
pub(super) fn validate(fields: &Fields, faults: &mut Faults) {
    let spec = object(fields, "spec").unwrap_or(nothing());
    let at = At::root("spec");
    let volumes = volumes(spec, &at, faults);
    if items(spec, "containers").is_empty() {
        faults.required(&at.field("containers"), "");
    }
    let mut containers = HashSet::new();
    for list in ["initContainers", "containers"] {
        let at = at.field(list);
        for (number, container) in items(spec, list).iter().enumerate() {
            let Some(container) = container.as_object() else { continue };
            let at = at.index(number);
            self::container(container, &at, &volumes, list == "containers", faults);
            if !text(container, "name").is_empty() && !containers.insert(text(container, "name")) {
                faults.duplicate(&at.field("name"), get(container, "name"));
            }
        }
    }
    scalars(spec, &at, faults);
    host_ports(spec, &at, faults);
    tolerations(spec, &at, faults);
    if let Some(selector) = object(spec, "nodeSelector") {
        for (key, value) in selector {
            if let Err(fault) = names::qualified(key) {
                faults.invalid(&at.field("nodeSelector"), &Value::String(key.clone()), fault);
            }
            if let Err(fault) = names::label_value(value.as_str().unwrap_or_default()) {
                faults.invalid(&at.field("nodeSelector"), value, fault);
            }
        }
    }
}

fn scalars(spec: &Fields, at: &At<'_>, faults: &mut Faults) {
    faults.one_of(&at.field("restartPolicy"), get(spec, "restartPolicy"), &["Always", "OnFailure", "Never"]);
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    faults.one_of(&at.field("dnsPolicy"), get(spec, "dnsPolicy"), &policies);
    let grace = get(spec, "terminationGracePeriodSeconds");
    if grace.as_i64().is_some_and(|grace| grace < 0) {
        faults.invalid(&at.field("terminationGracePeriodSeconds"), grace, "must be greater than or equal to 0");
    }
    let deadline = get(spec, "activeDeadlineSeconds");
    if deadline.as_i64().is_some_and(|deadline| !(1..=i64::from(i32::MAX)).contains(&deadline)) {
        faults.invalid(&at.field("activeDeadlineSeconds"), deadline, "must be between 1 and 2147483647, inclusive");
    }
    for key in ["serviceAccountName", "nodeName"] {
        let name = text(spec, key);
        if !name.is_empty()
            && let Err(fault) = names::subdomain(name)
        {
            faults.invalid(&at.field(key), get(spec, key), fault);
        }
    }
    for key in ["hostname", "subdomain"] {
        let name = text(spec, key);
        if !name.is_empty()
            && let Err(fault) = names::label(name)
        {
            faults.invalid(&at.field(key), get(spec, key), fault);
        }
    }
    if get(spec, "hostPID") == &Value::Bool(true) && get(spec, "shareProcessNamespace") == &Value::Bool(true) {
        let value = get(spec, "shareProcessNamespace");
        faults.invalid(
            &at.field("shareProcessNamespace"),
            value,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
}

/// Checks volumes and tells their names.
fn volumes<'a>(spec: &'a Fields, at: &At<'_>, faults: &mut Faults) -> HashSet<&'a str> {
    let at = at.field("volumes");
    let mut known = HashSet::new();
    for (number, volume) in items(spec, "volumes").iter().enumerate() {
        let Some(volume) = volume.as_object() else { continue };
        let at = at.index(number);
        let name = text(volume, "name");
        if name.is_empty() {
            faults.required(&at.field("name"), "");
        } else if let Err(fault) = names::label(name) {
            faults.invalid(&at.field("name"), get(volume, "name"), fault);
        } else if !known.insert(name) {
            faults.duplicate(&at.field("name"), get(volume, "name"));
        }
        let mut sources = volume.keys().filter(|key| *key != "name");
        let first = sources.next();
        for more in sources {
            faults.forbidden(&at.field(more), "may not specify more than 1 volume type");
        }
        if let Some(source) = first
            && let Some(fields) = object(volume, source)
        {
            source_fields(source, fields, &at.field(source), faults);
        }
    }
    known
}

fn source_fields(source: &str, fields: &Fields, at: &At<'_>, faults: &mut Faults) {
    let needed = match source {
        "hostPath" => "path",
        "configMap" => "name",
        "secret" => "secretName",
        "persistentVolumeClaim" => "claimName",
        _ => return,
    };
    if text(fields, needed).is_empty() {
        faults.required(&at.field(needed), "");
    } else if source == "hostPath" && text(fields, "path").split('/').any(|part| part == "..") {
        faults.invalid(&at.field("path"), get(fields, "path"), "must not contain '..'");
    }
}

fn container(container: &Fields, at: &At<'_>, volumes: &HashSet<&str>, main: bool, faults: &mut Faults) {
    let name = text(container, "name");
    if name.is_empty() {
        faults.required(&at.field("name"), "");
    } else if let Err(fault) = names::label(name) {
        faults.invalid(&at.field("name"), get(container, "name"), fault);
    }
    let image = text(container, "image");
    if image.is_empty() {
        faults.required(&at.field("image"), "");
    } else if image.trim() != image {
        faults.invalid(&at.field("image"), get(container, "image"), "must not have leading or trailing whitespace");
    }
    faults.one_of(
        &at.field("imagePullPolicy"),
        get(container, "imagePullPolicy"),
        &["Always", "IfNotPresent", "Never"],
    );
    let policies = ["File", "FallbackToLogsOnError"];
    faults.one_of(&at.field("terminationMessagePolicy"), get(container, "terminationMessagePolicy"), &policies);
    let restart = get(container, "restartPolicy");
    if !restart.is_null() && !main {
        faults.one_of(&at.field("restartPolicy"), restart, &["Always", "OnFailure", "Never"]);
    }
    ports(container, at, faults);
    environment(container, at, faults);
    mounts(container, at, volumes, faults);
    resources(container, at, faults);
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(fields) = object(container, probe) {
            self::probe(fields, &at.field(probe), probe != "readinessProbe", faults);
        }
    }
}

fn ports(container: &Fields, at: &At<'_>, faults: &mut Faults) {
    let at = at.field("ports");
    let mut known = HashSet::new();
    for (number, port) in items(container, "ports").iter().enumerate() {
        let Some(port) = port.as_object() else { continue };
        let at = at.index(number);
        let name = text(port, "name");
        if !name.is_empty() {
            if let Err(fault) = names::port_name(name) {
                faults.invalid(&at.field("name"), get(port, "name"), fault);
            } else if !known.insert(name) {
                faults.duplicate(&at.field("name"), get(port, "name"));
            }
        }
        match get(port, "containerPort").as_i64() {
            None => faults.required(&at.field("containerPort"), ""),
            Some(number) => port_range(number, &at.field("containerPort"), get(port, "containerPort"), faults),
        }
        if let Some(number) = get(port, "hostPort").as_i64().filter(|number| *number != 0) {
            port_range(number, &at.field("hostPort"), get(port, "hostPort"), faults);
        }
        faults.one_of(&at.field("protocol"), get(port, "protocol"), &["SCTP", "TCP", "UDP"]);
    }
}

fn port_range(number: i64, at: &At<'_>, value: &Value, faults: &mut Faults) {
    if !(1..=65535).contains(&number) {
        faults.invalid(at, value, "must be between 1 and 65535, inclusive");
    }
}

/// One host port is used once; on the host's network, container and host port are the same.
fn host_ports(spec: &Fields, at: &At<'_>, faults: &mut Faults) {
    let host_network = get(spec, "hostNetwork") == &Value::Bool(true);
    let mut known = HashSet::new();
    let at = at.field("containers");
    for (number, container) in items(spec, "containers").iter().enumerate() {
        let at = at.index(number);
        let at = at.field("ports");
        let Some(container) = container.as_object() else { continue };
        for (number, port) in items(container, "ports").iter().enumerate() {
            let Some(port) = port.as_object() else { continue };
            let at = at.index(number);
            let at = at.field("hostPort");
            let host = get(port, "hostPort");
            let Some(value) = host.as_i64().filter(|value| *value != 0) else { continue };
            if host_network && host != get(port, "containerPort") {
                faults.invalid(&at, host, "must match `containerPort` when `hostNetwork` is true");
            }
            if !known.insert((value, text(port, "protocol"), text(port, "hostIP"))) {
                faults.duplicate(&at, host);
            }
        }
    }
}

fn environment(container: &Fields, at: &At<'_>, faults: &mut Faults) {
    let at = at.field("env");
    for (number, variable) in items(container, "env").iter().enumerate() {
        let Some(variable) = variable.as_object() else { continue };
        let at = at.index(number);
        let name = text(variable, "name");
        if name.is_empty() {
            faults.required(&at.field("name"), "");
        } else if let Err(fault) = names::env_name(name) {
            faults.invalid(&at.field("name"), get(variable, "name"), fault);
        }
        let Some(from) = object(variable, "valueFrom") else { continue };
        let at = at.field("valueFrom");
        if !text(variable, "value").is_empty() {
            faults.invalid(&at, &Value::String(String::new()), "may not be specified when `value` is not empty");
        }
        match from.len() {
            0 => faults.invalid(
                &at,
                &Value::String(String::new()),
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`",
            ),
            1 => {}
            _ => faults.invalid(
                &at,
                &Value::String(String::new()),
                "may not have more than one field specified at a time",
            ),
        }
    }
}

fn mounts(container: &Fields, at: &At<'_>, volumes: &HashSet<&str>, faults: &mut Faults) {
    let at = at.field("volumeMounts");
    let mut paths = HashSet::new();
    for (number, mount) in items(container, "volumeMounts").iter().enumerate() {
        let Some(mount) = mount.as_object() else { continue };
        let at = at.index(number);
        let (name, path) = (text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            faults.required(&at.field("name"), "");
        } else if !volumes.contains(name) {
            faults.not_found(&at.field("name"), get(mount, "name"));
        }
        if path.is_empty() {
            faults.required(&at.field("mountPath"), "");
        } else if !paths.insert(path) {
            faults.invalid(&at.field("mountPath"), get(mount, "mountPath"), "must be unique");
        }
        let sub = text(mount, "subPath");
        if sub.starts_with('/') {
            faults.invalid(&at.field("subPath"), get(mount, "subPath"), "must be a relative path");
        }
        if sub.split('/').any(|part| part == "..") {
            faults.invalid(&at.field("subPath"), get(mount, "subPath"), "must not contain '..'");
        }
    }
}

fn resources(container: &Fields, at: &At<'_>, faults: &mut Faults) {
    let Some(resources) = object(container, "resources") else { return };
    let at = at.field("resources");
    for list in ["limits", "requests"] {
        let at = at.field(list);
        for (name, quantity) in object(resources, list).into_iter().flatten() {
            if let Err(fault) = names::qualified(name) {
                faults.invalid(&at, &Value::String(name.clone()), fault);
            }
            if quantity.as_str().is_some_and(|text| text.starts_with('-')) {
                faults.invalid(&at.key(name), quantity, "must be greater than or equal to 0");
            }
        }
    }
    let limits = object(resources, "limits").unwrap_or(nothing());
    let at = at.field("requests");
    for (name, request) in object(resources, "requests").into_iter().flatten() {
        let value = |value: &Value| value.as_str().and_then(quantity);
        if let (Some(asked), Some(limit)) = (value(request), limits.get(name).and_then(value))
            && asked > limit
        {
            let shown = limits.get(name).and_then(Value::as_str).unwrap_or_default();
            faults.invalid(&at, request, format!("must be less than or equal to {name} limit of {shown}"));
        }
    }
}

/// A quantity as a number, exact enough to compare.
fn quantity(text: &str) -> Option<f64> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    let factor = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        "Gi" => 1024.0 * 1024.0 * 1024.0,
        "Ti" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        "Pi" => 1024.0 * 1024.0 * 1024.0 * 1024.0 * 1024.0,
        "Ei" => 1024.0 * 1024.0 * 1024.0 * 1024.0 * 1024.0 * 1024.0,
        exponent => return format!("{number}{exponent}").parse().ok(),
    };
    Some(number * factor)
}

fn probe(probe: &Fields, at: &At<'_>, once: bool, faults: &mut Faults) {
    let handlers: Vec<&str> =
        ["exec", "httpGet", "tcpSocket", "grpc"].into_iter().filter(|key| probe.contains_key(*key)).collect();
    match handlers.as_slice() {
        [] => faults.required(at, "must specify a handler type"),
        [_] => {}
        [_, more, ..] => faults.forbidden(&at.field(more), "may not specify more than 1 handler type"),
    }
    for key in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        let value = get(probe, key);
        if value.as_i64().is_some_and(|value| value < 0) {
            faults.invalid(&at.field(key), value, "must be greater than or equal to 0");
        }
    }
    let threshold = get(probe, "successThreshold");
    if once && threshold.as_i64().is_some_and(|threshold| threshold != 1) {
        faults.invalid(&at.field("successThreshold"), threshold, "must be 1");
    }
}

fn tolerations(spec: &Fields, at: &At<'_>, faults: &mut Faults) {
    let at = at.field("tolerations");
    for (number, toleration) in items(spec, "tolerations").iter().enumerate() {
        let Some(fields) = toleration.as_object() else { continue };
        let at = at.index(number);
        let (key, operator) = (text(fields, "key"), text(fields, "operator"));
        if !key.is_empty()
            && let Err(fault) = names::qualified(key)
        {
            faults.invalid(&at.field("key"), get(fields, "key"), fault);
        }
        if key.is_empty() && operator != "Exists" {
            let text = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            faults.invalid(&at.field("operator"), get(fields, "operator"), text);
        }
        if !matches!(operator, "" | "Equal" | "Exists") {
            faults.one_of(&at.field("operator"), get(fields, "operator"), &["Equal", "Exists"]);
        }
        if operator == "Exists" && !text(fields, "value").is_empty() {
            faults.invalid(
                &at.field("operator"),
                get(fields, "operator"),
                "value must be empty when `operator` is 'Exists'",
            );
        }
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        if !text(fields, "effect").is_empty() {
            faults.one_of(&at.field("effect"), get(fields, "effect"), &effects);
        }
        if !get(fields, "tolerationSeconds").is_null() && text(fields, "effect") != "NoExecute" {
            let text = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            faults.invalid(&at.field("effect"), get(fields, "effect"), text);
        }
    }
}

/// Upstream's word for what may change of a pod's spec.
const MUTABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
                       `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only \
                       additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set \
                       to 1 if it was previously negative)";

/// Checks a change of a pod.
pub(super) fn validate_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    let (new, old) = (object(new, "spec").unwrap_or(nothing()), object(old, "spec").unwrap_or(nothing()));
    let at = At::root("spec");
    let lists = ["containers", "initContainers"];
    for list in lists {
        if items(new, list).len() != items(old, list).len() {
            faults.forbidden(&at.field(list), "pod updates may not add or remove containers");
            return;
        }
    }
    let added = items(new, "tolerations");
    if !items(old, "tolerations").iter().all(|toleration| added.contains(toleration)) {
        faults.forbidden(
            &at.field("tolerations"),
            "existing toleration can not be modified except its tolerationSeconds",
        );
    }
    let (before, after) = (get(old, "activeDeadlineSeconds").as_i64(), get(new, "activeDeadlineSeconds").as_i64());
    if let Some(before) = before
        && after.is_none_or(|after| after > before)
    {
        let text = "must be less than or equal to previous value";
        faults.invalid(&at.field("activeDeadlineSeconds"), get(new, "activeDeadlineSeconds"), text);
    }
    let mut allowed = new.clone();
    for key in ["tolerations", "activeDeadlineSeconds", "schedulingGates"] {
        match old.get(key) {
            Some(value) => drop(allowed.insert(key.to_owned(), value.clone())),
            None => drop(allowed.remove(key)),
        }
    }
    for list in lists {
        let Some(containers) = allowed.get_mut(list).and_then(Value::as_array_mut) else { continue };
        for (container, before) in containers.iter_mut().zip(items(old, list)) {
            if let (Some(fields), Some(image)) = (container.as_object_mut(), before.get("image")) {
                fields.insert("image".to_owned(), image.clone());
            }
        }
    }
    if allowed != *old {
        faults.forbidden(&at, MUTABLE);
    }
    gates(new, old, &at, faults);
}

/// Scheduling gates can only be taken away.
fn gates(new: &Fields, old: &Fields, at: &At<'_>, faults: &mut Faults) {
    let known = items(old, "schedulingGates");
    for gate in items(new, "schedulingGates") {
        if !known.contains(gate) {
            let name = gate.get("name").and_then(Value::as_str).unwrap_or_default();
            faults.forbidden(
                &at.field("schedulingGates").key(name),
                format!("only deletion is allowed, but found new scheduling gate '{name}'"),
            );
        }
    }
}
