//! The level `baseline`: prevents known privilege escalations out of a container.

use super::labels::{Level, Policy};
use super::view::{APP_ARMOR, Pod};
use super::{containers, plural, quoted, setters, sorted, those};
use master_schema::validate::{Fields, get, items, object, text};
use serde_json::Value;

/// Capabilities that container runtimes grant by default.
const CAPABILITIES: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
/// Kernel parameters that are namespaced to a pod, and the version of the standard that first
/// allows them.
const SYSCTLS: &[(&str, u32)] = &[
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
];
/// SELinux types of containers, and the version of the standard that first allows them.
const SELINUX: &[(&str, u32)] = &[
    ("", 0),
    ("container_t", 0),
    ("container_init_t", 0),
    ("container_kvm_t", 0),
    ("container_engine_t", 31),
];

/// A pod's violations, each as `reason (detail)`, in upstream's order. Checks that `restricted`
/// tightens are left to it.
pub(super) fn faults(pod: &Pod<'_>, policy: &Policy) -> Vec<String> {
    let restricted = policy.level == Level::Restricted;
    let own = |fault: Option<String>| if restricted { None } else { fault };
    let faults = [
        app_armor(pod),
        own(capabilities(pod)),
        host_namespaces(pod),
        own(host_path(pod)),
        host_ports(pod),
        if policy.version() >= 34 {
            hosts(pod)
        } else {
            None
        },
        privileged(pod),
        proc_mount(pod),
        selinux(pod, policy.version()),
        own(seccomp(pod)),
        sysctls(pod, policy.version()),
        host_process(pod),
    ];
    faults.into_iter().flatten().collect()
}

fn app_armor(pod: &Pod<'_>) -> Option<String> {
    let bad = |context: &Fields| {
        let kind =
            object(context, "appArmorProfile").map(|profile| text(profile, "type").to_owned());
        kind.filter(|kind| !matches!(kind.as_str(), "RuntimeDefault" | "Localhost"))
    };
    let names = those(pod, |container| bad(container.context).is_some());
    let mut values: Vec<String> = bad(pod.context).into_iter().collect();
    values.extend(
        pod.containers
            .iter()
            .filter_map(|container| bad(container.context)),
    );
    let mut values = sorted(values);
    let fine =
        |value: &str| matches!(value, "" | "runtime/default") || value.starts_with("localhost/");
    let annotations = pod
        .annotations
        .iter()
        .filter_map(|(key, value)| Some((key, value.as_str()?)));
    let annotations = annotations.filter(|(key, value)| key.starts_with(APP_ARMOR) && !fine(value));
    let annotations = sorted(
        annotations
            .map(|(key, value)| format!("{key}={value:?}"))
            .collect(),
    );
    let own = setters(bad(pod.context).is_some(), &names);
    let word = plural(annotations.len(), "annotation", "annotations").to_owned();
    let all: Vec<String> = own
        .into_iter()
        .chain((!annotations.is_empty()).then_some(word))
        .collect();
    values.extend(annotations);
    let reason = plural(
        values.len(),
        "forbidden AppArmor profile",
        "forbidden AppArmor profiles",
    );
    (!all.is_empty()).then(|| {
        format!(
            "{reason} ({} must not set AppArmor profile type to {})",
            all.join(" and "),
            quoted(&values)
        )
    })
}

fn capabilities(pod: &Pod<'_>) -> Option<String> {
    let added = |context: &Fields| -> Vec<String> {
        let list = object(context, "capabilities").map_or(&[][..], |all| items(all, "add"));
        let list = list
            .iter()
            .filter_map(Value::as_str)
            .filter(|name| !CAPABILITIES.contains(name));
        list.map(str::to_owned).collect()
    };
    let names = those(pod, |container| !added(container.context).is_empty());
    let values = sorted(
        pod.containers
            .iter()
            .flat_map(|container| added(container.context))
            .collect(),
    );
    (!names.is_empty()).then(|| {
        let who = containers(&names);
        format!(
            "non-default capabilities ({who} must not include {} in securityContext.capabilities.add)",
            quoted(&values)
        )
    })
}

fn host_namespaces(pod: &Pod<'_>) -> Option<String> {
    let set = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|key| get(pod.spec, key) == &Value::Bool(true));
    let set: Vec<String> = set.map(|key| format!("{key}=true")).collect();
    (!set.is_empty()).then(|| format!("host namespaces ({})", set.join(", ")))
}

fn host_path(pod: &Pod<'_>) -> Option<String> {
    let volumes = items(pod.spec, "volumes")
        .iter()
        .filter_map(Value::as_object);
    let volumes: Vec<&str> = volumes
        .filter(|volume| object(volume, "hostPath").is_some())
        .map(|volume| text(volume, "name"))
        .collect();
    let word = plural(volumes.len(), "volume", "volumes");
    (!volumes.is_empty()).then(|| format!("hostPath volumes ({word} {})", quoted(&volumes)))
}

fn host_ports(pod: &Pod<'_>) -> Option<String> {
    let ports = |fields: &Fields| -> Vec<String> {
        let ports = items(fields, "ports")
            .iter()
            .filter_map(|port| port.get("hostPort").and_then(Value::as_i64));
        ports
            .filter(|port| *port != 0)
            .map(|port| port.to_string())
            .collect()
    };
    let names = those(pod, |container| !ports(container.fields).is_empty());
    let values = sorted(
        pod.containers
            .iter()
            .flat_map(|container| ports(container.fields))
            .collect(),
    );
    (!names.is_empty()).then(|| {
        let (uses, word) = (
            plural(names.len(), "uses", "use"),
            plural(values.len(), "hostPort", "hostPorts"),
        );
        format!(
            "hostPort ({} {uses} {word} {})",
            containers(&names),
            values.join(", ")
        )
    })
}

/// Probes and hooks that connect to hosts outside the pod.
fn hosts(pod: &Pod<'_>) -> Option<String> {
    const PLACES: [&str; 5] = [
        "/livenessProbe",
        "/readinessProbe",
        "/startupProbe",
        "/lifecycle/postStart",
        "/lifecycle/preStop",
    ];
    let of = |fields: &Fields| -> Vec<String> {
        let value = Value::Object(fields.clone());
        let found = PLACES.iter().flat_map(|place| {
            ["httpGet", "tcpSocket"].map(|how| {
                value
                    .pointer(&format!("{place}/{how}/host"))
                    .and_then(Value::as_str)
                    .map(str::to_owned)
            })
        });
        found.flatten().filter(|host| !host.is_empty()).collect()
    };
    let probed: Vec<(&str, Vec<String>)> = pod
        .containers
        .iter()
        .filter(|container| {
            [
                "livenessProbe",
                "readinessProbe",
                "startupProbe",
                "lifecycle",
            ]
            .iter()
            .any(|key| container.fields.contains_key(*key))
        })
        .map(|container| (container.name, of(container.fields)))
        .filter(|(_, hosts)| !hosts.is_empty())
        .collect();
    let names = sorted(probed.iter().map(|(name, _)| *name).collect());
    let values = sorted(probed.iter().flat_map(|(_, hosts)| hosts.clone()).collect());
    (!names.is_empty()).then(|| {
        let uses = plural(names.len(), "uses", "use");
        let word = plural(
            values.len(),
            "probe or lifecycle host",
            "probe or lifecycle hosts",
        );
        format!(
            "probe or lifecycle host ({} {uses} {word} {})",
            containers(&names),
            quoted(&values)
        )
    })
}

fn privileged(pod: &Pod<'_>) -> Option<String> {
    let names = those(pod, |container| {
        get(container.context, "privileged") == &Value::Bool(true)
    });
    (!names.is_empty()).then(|| {
        format!(
            "privileged ({} must not set securityContext.privileged=true)",
            containers(&names)
        )
    })
}

fn proc_mount(pod: &Pod<'_>) -> Option<String> {
    if pod.in_user_namespace() {
        return None;
    }
    let bad = |context: &Fields| {
        let kind = text(context, "procMount").to_owned();
        (!matches!(kind.as_str(), "" | "Default")).then_some(kind)
    };
    let names = those(pod, |container| bad(container.context).is_some());
    let values = sorted(
        pod.containers
            .iter()
            .filter_map(|container| bad(container.context))
            .collect(),
    );
    (!names.is_empty()).then(|| {
        format!(
            "procMount ({} must not set securityContext.procMount to {})",
            containers(&names),
            quoted(&values)
        )
    })
}

fn selinux(pod: &Pod<'_>, version: u32) -> Option<String> {
    let options = |context| object(context, "seLinuxOptions");
    let good_type = |kind: &str| {
        SELINUX
            .iter()
            .any(|(known, since)| *known == kind && *since <= version)
    };
    let bad = |options: &Fields| {
        !good_type(text(options, "type"))
            || !text(options, "user").is_empty()
            || !text(options, "role").is_empty()
    };
    let names = those(pod, |container| options(container.context).is_some_and(bad));
    let who = setters(options(pod.context).is_some_and(bad), &names)?;
    let all: Vec<&Fields> = std::iter::once(pod.context)
        .chain(pod.containers.iter().map(|c| c.context))
        .filter_map(options)
        .collect();
    let types: Vec<&str> = sorted(
        all.iter()
            .map(|options| text(options, "type"))
            .filter(|kind| !good_type(kind))
            .collect(),
    );
    let mut data = Vec::new();
    if !types.is_empty() {
        data.push(format!(
            "{} {}",
            plural(types.len(), "type", "types"),
            quoted(&types)
        ));
    }
    for key in ["user", "role"] {
        if all.iter().any(|options| !text(options, key).is_empty()) {
            data.push(format!("{key} may not be set"));
        }
    }
    Some(format!(
        "seLinuxOptions ({who} set forbidden securityContext.seLinuxOptions: {})",
        data.join("; ")
    ))
}

/// The seccomp profile of a context, if it does not confine.
pub(super) fn bad_seccomp(context: &Fields) -> Option<String> {
    let kind = object(context, "seccompProfile").map(|profile| text(profile, "type").to_owned());
    kind.filter(|kind| !matches!(kind.as_str(), "RuntimeDefault" | "Localhost"))
}

/// Seccomp profiles that are set and not allowed.
pub(super) fn seccomp(pod: &Pod<'_>) -> Option<String> {
    let names = those(pod, |container| bad_seccomp(container.context).is_some());
    let own = bad_seccomp(pod.context);
    let who = setters(own.is_some(), &names)?;
    let values = sorted(
        own.into_iter()
            .chain(pod.containers.iter().filter_map(|c| bad_seccomp(c.context)))
            .collect::<Vec<_>>(),
    );
    Some(format!(
        "seccompProfile ({who} must not set securityContext.seccompProfile.type to {})",
        quoted(&values)
    ))
}

fn sysctls(pod: &Pod<'_>, version: u32) -> Option<String> {
    let names = items(pod.context, "sysctls")
        .iter()
        .filter_map(|sysctl| sysctl.get("name").and_then(Value::as_str));
    let known = |name: &&str| {
        SYSCTLS
            .iter()
            .any(|(known, since)| known == name && *since <= version)
    };
    let bad: Vec<&str> = names.filter(|name| !known(name)).collect();
    (!bad.is_empty()).then(|| format!("forbidden sysctls ({})", bad.join(", ")))
}

fn host_process(pod: &Pod<'_>) -> Option<String> {
    let bad = |context: &Fields| {
        object(context, "windowsOptions")
            .is_some_and(|options| get(options, "hostProcess") == &Value::Bool(true))
    };
    let who = setters(
        bad(pod.context),
        &those(pod, |container| bad(container.context)),
    )?;
    Some(format!(
        "hostProcess ({who} must not set securityContext.windowsOptions.hostProcess=true)"
    ))
}
