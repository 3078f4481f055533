//! The level `restricted`: pod hardening beyond `baseline`.

use super::baseline::{bad_seccomp, seccomp};
use super::labels::Policy;
use super::view::Pod;
use super::{containers, plural, quoted, setters, sorted, those};
use master_schema::validate::{Fields, get, items, object, text};
use serde_json::Value;

/// Volume types that are allowed.
const VOLUMES: &[&str] = &[
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// A pod's violations, each as `reason (detail)`, in upstream's order.
pub(super) fn faults(pod: &Pod<'_>, policy: &Policy) -> Vec<String> {
    // Windows has neither privilege escalation nor capabilities nor seccomp.
    let linux = !(pod.on_windows() && policy.version() >= 25);
    let on_linux = |fault: Option<String>| if linux { fault } else { None };
    let faults = [
        on_linux(escalation(pod)),
        on_linux(capabilities(pod)),
        volumes(pod),
        non_root(pod),
        user(pod),
        on_linux(seccomp(pod).or_else(|| no_seccomp(pod))),
    ];
    faults.into_iter().flatten().collect()
}

fn escalation(pod: &Pod<'_>) -> Option<String> {
    let names = those(pod, |container| {
        get(container.context, "allowPrivilegeEscalation") != &Value::Bool(false)
    });
    (!names.is_empty()).then(|| {
        let who = containers(&names);
        format!("allowPrivilegeEscalation != false ({who} must set securityContext.allowPrivilegeEscalation=false)")
    })
}

fn capabilities(pod: &Pod<'_>) -> Option<String> {
    let list = |context: &Fields, key: &str| -> Vec<String> {
        let list = object(context, "capabilities").map_or(&[][..], |all| items(all, key));
        list.iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let keeping = those(pod, |container| {
        !list(container.context, "drop")
            .iter()
            .any(|name| name == "ALL")
    });
    let added = |context: &Fields| -> Vec<String> {
        list(context, "add")
            .into_iter()
            .filter(|name| name != "NET_BIND_SERVICE")
            .collect()
    };
    let adding = those(pod, |container| !added(container.context).is_empty());
    let values = sorted(
        pod.containers
            .iter()
            .flat_map(|container| added(container.context))
            .collect(),
    );
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details.push(format!(
            "{} must set securityContext.capabilities.drop=[\"ALL\"]",
            containers(&keeping)
        ));
    }
    if !adding.is_empty() {
        let (who, what) = (containers(&adding), quoted(&values));
        details.push(format!(
            "{who} must not include {what} in securityContext.capabilities.add"
        ));
    }
    (!details.is_empty()).then(|| format!("unrestricted capabilities ({})", details.join("; ")))
}

fn volumes(pod: &Pod<'_>) -> Option<String> {
    let volumes = items(pod.spec, "volumes")
        .iter()
        .filter_map(Value::as_object);
    let bad: Vec<&Fields> = volumes
        .filter(|volume| !VOLUMES.iter().any(|kind| volume.contains_key(*kind)))
        .collect();
    let names: Vec<&str> = bad.iter().map(|volume| text(volume, "name")).collect();
    let kind = |volume: &&Fields| {
        volume
            .keys()
            .find(|key| *key != "name")
            .map_or("unknown", String::as_str)
            .to_owned()
    };
    let kinds = sorted(bad.iter().map(kind).collect());
    (!names.is_empty()).then(|| {
        let (volume, uses) = (
            plural(names.len(), "volume", "volumes"),
            plural(names.len(), "uses", "use"),
        );
        let word = plural(kinds.len(), "type", "types");
        format!(
            "restricted volume types ({volume} {} {uses} restricted volume {word} {})",
            quoted(&names),
            quoted(&kinds)
        )
    })
}

fn non_root(pod: &Pod<'_>) -> Option<String> {
    if pod.in_user_namespace() {
        return None;
    }
    let says = |context: &Fields| get(context, "runAsNonRoot").as_bool();
    let bad = those(pod, |container| says(container.context) == Some(false));
    if let Some(who) = setters(says(pod.context) == Some(false), &bad) {
        return Some(format!(
            "runAsNonRoot != true ({who} must not set securityContext.runAsNonRoot=false)"
        ));
    }
    let silent = those(pod, |container| says(container.context).is_none());
    (says(pod.context) != Some(true) && !silent.is_empty()).then(|| {
        let who = containers(&silent);
        format!("runAsNonRoot != true (pod or {who} must set securityContext.runAsNonRoot=true)")
    })
}

fn user(pod: &Pod<'_>) -> Option<String> {
    if pod.in_user_namespace() {
        return None;
    }
    let root = |context: &Fields| get(context, "runAsUser").as_i64() == Some(0);
    let who = setters(
        root(pod.context),
        &those(pod, |container| root(container.context)),
    )?;
    Some(format!("runAsUser=0 ({who} must not set runAsUser=0)"))
}

/// Containers for which neither the container nor the pod sets a profile.
fn no_seccomp(pod: &Pod<'_>) -> Option<String> {
    let has = |context: &Fields| object(context, "seccompProfile").is_some();
    let covered = has(pod.context) && bad_seccomp(pod.context).is_none();
    let bare = those(pod, |container| !has(container.context));
    (!covered && !bare.is_empty()).then(|| {
        let who = containers(&bare);
        format!(
            "seccompProfile (pod or {who} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
        )
    })
}
