//! Validation of security contexts of pods and containers.

use super::context::{each_container, host_network};
use master_schema::validate::forms::{descending_path, formed, has, on, optional_choice, word};
use master_schema::validate::limits::{self, at_most};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, names, object, text};
use serde_json::Value;
use std::collections::BTreeSet;

/// The largest user or group ID.
// Upstream's bound; the kernel's numbers have no sign.
const MAX_ID: i64 = i32::MAX as i64;

fn user_or_group(value: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    if value.as_i64().is_some_and(|id| !(0..=MAX_ID).contains(&id)) {
        faults.invalid(
            at,
            value,
            format!("must be between 0 and {MAX_ID}, inclusive"),
        );
    }
}

fn runs_as(fields: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    for key in ["runAsUser", "runAsGroup"] {
        user_or_group(get(fields, key), &at.field(key), faults);
    }
}

/// Validates a pod's context.
pub(super) fn of_pod(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let at = at.field("securityContext");
    // Each says which processes a container sees, and they disagree.
    if on(spec, "hostPID") && on(spec, "shareProcessNamespace") {
        let words = "ShareProcessNamespace and HostPID cannot both be enabled";
        faults.invalid(
            &at.field("shareProcessNamespace"),
            &Value::Bool(true),
            words,
        );
    }
    let Some(context) = object(spec, "securityContext") else {
        return;
    };
    user_or_group(get(context, "fsGroup"), &at.field("fsGroup"), faults);
    runs_as(context, &at, faults);
    for list in ["supplementalGroups", "sysctls"] {
        at_most(context, list, limits::OF_POD, &at, faults);
    }
    let groups = at.field("supplementalGroups");
    for (number, group) in items(context, "supplementalGroups").iter().enumerate() {
        user_or_group(group, &groups.index(number), faults);
    }
    sysctls(context, spec, &at.field("sysctls"), faults);
    optional_choice(
        context,
        "fsGroupChangePolicy",
        &at,
        &["Always", "OnRootMismatch"],
        faults,
    );
    profiles(context, &at, faults);
    optional_choice(
        context,
        "supplementalGroupsPolicy",
        &at,
        &["Merge", "Strict"],
        faults,
    );
    optional_choice(
        context,
        "seLinuxChangePolicy",
        &at,
        &["MountOption", "Recursive"],
        faults,
    );
}

/// Validates the profiles that pods and containers can have.
fn profiles(context: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    if let Some(profile) = object(context, "seccompProfile") {
        seccomp(profile, &at.field("seccompProfile"), faults);
    }
    if let Some(options) = object(context, "windowsOptions") {
        windows(options, &at.field("windowsOptions"), faults);
    }
    if let Some(profile) = object(context, "appArmorProfile") {
        app_armor(profile, &at.field("appArmorProfile"), faults);
    }
}

/// Validates a container's context.
pub(super) fn of_container(
    context: &Fields,
    host_users: bool,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    runs_as(context, at, faults);
    optional_choice(context, "procMount", at, &["Default", "Unmasked"], faults);
    // All of /proc is the node's kernel; a user namespace takes away the power over it (KEP-4265).
    if host_users && text(context, "procMount") == "Unmasked" {
        let words = "`hostUsers` must be false to use `Unmasked`";
        faults.invalid(&at.field("procMount"), get(context, "procMount"), words);
    }
    // The kernel could not keep the promise: both give more than `no_new_privs` withholds.
    if get(context, "allowPrivilegeEscalation") == &Value::Bool(false) {
        let whole = Value::Object(context.clone());
        if on(context, "privileged") {
            let words = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            faults.invalid(at, &whole, words);
        }
        let added = object(context, "capabilities")
            .map_or(&[][..], |capabilities| items(capabilities, "add"));
        // Upstream compares the long name alone, although `SYS_ADMIN` is the usual one.
        for _capability in added
            .iter()
            .filter(|capability| *capability == "CAP_SYS_ADMIN")
        {
            let words = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            faults.invalid(at, &whole, words);
        }
    }
    profiles(context, at, faults);
}

fn seccomp(profile: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let kind = text(profile, "type");
    if kind.is_empty() {
        faults.required(
            &at.field("type"),
            "type is required when seccompProfile is set",
        );
    } else {
        faults.one_of(
            &at.field("type"),
            get(profile, "type"),
            &["Localhost", "RuntimeDefault", "Unconfined"],
        );
    }
    let place = at.field("localhostProfile");
    match (kind, has(profile, "localhostProfile")) {
        ("Localhost", false) => {
            faults.required(&place, "must be set when seccomp type is Localhost");
        }
        ("Localhost", true) => descending_path(get(profile, "localhostProfile"), &place, faults),
        (_, true) => {
            let words = "can only be set when seccomp type is Localhost";
            faults.invalid(&place, &Value::Object(profile.clone()), words);
        }
        (_, false) => {}
    }
}

/// Maximum length of a profile's path.
// `PATH_MAX` of Linux without the final zero byte.
const PROFILE: usize = 4095;

fn app_armor(profile: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let place = at.field("localhostProfile");
    let name = get(profile, "localhostProfile");
    match text(profile, "type") {
        "" => faults.required(
            &at.field("type"),
            "type is required when appArmorProfile is set",
        ),
        "Localhost" => {
            let words = "must be set when AppArmor type is Localhost";
            let own = name.as_str().unwrap_or_default();
            if own.trim() != own {
                faults.invalid(&place, name, "must not be padded with whitespace");
            } else if own.is_empty() {
                faults.required(&place, words);
            }
            if own.len() > PROFILE {
                faults.too_long(&place, PROFILE);
            }
        }
        "RuntimeDefault" | "Unconfined" => {
            if !name.is_null() {
                faults.invalid(
                    &place,
                    name,
                    "can only be set when AppArmor type is Localhost",
                );
            }
        }
        _ => {
            faults.unsupported(
                &at.field("type"),
                get(profile, "type"),
                &["Localhost", "RuntimeDefault", "Unconfined"],
            );
        }
    }
}

/// Maximum length of a sysctl's name.
const SYSCTL: usize = 253;
/// Sysctls of the network namespace and of the IPC namespace.
const OF_NETWORK: &[&str] = &["net."];
const OF_PROCESSES: &[&str] = &["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."];

fn is_sysctl(name: &str) -> bool {
    let end =
        |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let part = |part: &str| {
        let bytes = part.as_bytes();
        let inner =
            |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
        end(bytes.first()) && end(bytes.last()) && bytes.iter().all(inner)
    };
    // With slashes as separators a part can be written that has dots of its own.
    name.len() <= SYSCTL && name.split(['.', '/']).all(part)
}

fn sysctls(context: &Fields, spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let mut seen = BTreeSet::new();
    for (number, sysctl) in items(context, "sysctls").iter().enumerate() {
        let Some(sysctl) = sysctl.as_object() else {
            continue;
        };
        let item = at.index(number);
        let place = item.field("name");
        let (name, value) = (text(sysctl, "name"), word(sysctl, "name"));
        if name.is_empty() {
            faults.required(&place, "");
        } else if !is_sysctl(name) {
            let words = "must have at most 253 characters and match regex \
                         ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            faults.invalid(&place, value, words);
        } else if seen.contains(name) {
            faults.duplicate(&place, value);
        }
        seen.insert(name);
        let dotted = name.replace('/', ".");
        let of = |prefixes: &[&str]| prefixes.iter().any(|prefix| dotted.starts_with(prefix));
        // The pod has no such namespace of its own: the node's value would change.
        if host_network(spec) && of(OF_NETWORK) {
            faults.invalid(
                &place,
                value,
                "may not be specified when 'hostNetwork' is true",
            );
        } else if on(spec, "hostIPC") && of(OF_PROCESSES) {
            faults.invalid(&place, value, "may not be specified when 'hostIPC' is true");
        }
    }
}

/// Bytes of a GMSA credential spec, and maximum lengths of a Windows user's domain and name.
const CREDENTIALS: usize = 64 << 10;
const DOMAIN: usize = 256;
const USER: usize = 104;

fn windows(options: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    if has(options, "gmsaCredentialSpecName") {
        let name = get(options, "gmsaCredentialSpecName");
        formed(
            name,
            &at.field("gmsaCredentialSpecName"),
            names::subdomain,
            faults,
        );
    }
    if has(options, "gmsaCredentialSpec") {
        let place = at.field("gmsaCredentialSpec");
        let value = get(options, "gmsaCredentialSpec");
        match text(options, "gmsaCredentialSpec").len() {
            0 => faults.invalid(
                &place,
                value,
                "gmsaCredentialSpec cannot be an empty string",
            ),
            length if length > CREDENTIALS => {
                faults.invalid(
                    &place,
                    value,
                    "gmsaCredentialSpec size must be under 64 KiB",
                );
            }
            _ => {}
        }
    }
    if has(options, "runAsUserName") {
        windows_user(
            get(options, "runAsUserName"),
            &at.field("runAsUserName"),
            faults,
        );
    }
}

fn windows_user(value: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    let name = value.as_str().unwrap_or_default();
    if name.is_empty() {
        faults.invalid(at, value, "runAsUserName cannot be an empty string");
        return;
    }
    if name.chars().any(|c| c.is_ascii_control()) {
        faults.invalid(at, value, "runAsUserName cannot contain control characters");
        return;
    }
    if name.matches('\\').count() > 1 {
        faults.invalid(
            at,
            value,
            "runAsUserName cannot contain more than one backslash",
        );
        return;
    }
    let (domain, user) = match name.split_once('\\') {
        Some((domain, user)) => (Some(domain), user),
        None => (None, name),
    };
    if domain.is_some_and(|domain| domain.len() >= DOMAIN) {
        faults.invalid(
            at,
            value,
            format!("runAsUserName's Domain length must be under {DOMAIN} characters"),
        );
    }
    if domain.is_some_and(|domain| !is_net_bios(domain) && !is_domain(domain)) {
        faults.invalid(
            at,
            value,
            "runAsUserName's Domain doesn't match the NetBios nor the DNS format",
        );
    }
    if user.is_empty() {
        faults.invalid(at, value, "runAsUserName's User cannot be empty");
    } else if user.len() > USER {
        faults.invalid(
            at,
            value,
            format!("runAsUserName's User length must not be longer than {USER} characters"),
        );
    }
    if !user.is_empty() && user.chars().all(|c| matches!(c, '.' | ' ')) {
        faults.invalid(
            at,
            value,
            "runAsUserName's User cannot contain only periods or spaces",
        );
    }
    if user.contains([
        '"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']',
    ]) {
        let words =
            "runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]";
        faults.invalid(at, value, words);
    }
}

fn is_net_bios(name: &str) -> bool {
    let bad = ['\\', '/', ':', '*', '?', '"', '<', '>', '|'];
    (1..=15).contains(&name.chars().count()) && !name.starts_with('.') && !name.contains(bad)
}

fn is_domain(name: &str) -> bool {
    let end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    name.split('.').all(|part| {
        let bytes = part.as_bytes();
        let inner = |b: &u8| b.is_ascii_alphanumeric() || *b == b'-';
        bytes.len() <= 63 && end(bytes.first()) && end(bytes.last()) && bytes.iter().all(inner)
    })
}

/// Whether a context sets `hostProcess`, and to which value.
fn asks_host(fields: &Fields) -> Option<bool> {
    object(object(fields, "securityContext")?, "windowsOptions")
        .and_then(|options| get(options, "hostProcess").as_bool())
}

/// Windows HostProcess containers: all containers of a pod or none, with host networking.
pub(super) fn host_process(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let of_pod = asks_host(spec);
    let (mut all, mut hosts) = (0, 0);
    each_container(spec, at, |container, at| {
        all += 1;
        let own = asks_host(container);
        if let (Some(pod), Some(own)) = (of_pod, own)
            && pod != own
        {
            let words =
                format!("pod hostProcess value must be identical if both are specified, was {pod}");
            let place = at.field("securityContext");
            faults.invalid(
                &place.field("windowsOptions").field("hostProcess"),
                &own.into(),
                words,
            );
        }
        hosts += usize::from(own.or(of_pod) == Some(true));
    });
    if hosts == 0 {
        return;
    }
    if hosts != all {
        let words = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        faults.invalid(at, &Value::from(""), words);
    }
    // Windows gives HostProcess containers no network of their own (KEP-1981).
    if !host_network(spec) {
        let words = "hostNetwork must be true if pod contains any hostProcess containers";
        faults.invalid(&at.field("hostNetwork"), &Value::Bool(false), words);
    }
}

/// User namespaces cannot be combined with other host namespaces; upstream capitalizes two of these
/// paths.
pub(super) fn host_users(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    if get(spec, "hostUsers") != &Value::Bool(false) {
        return;
    }
    for (key, path) in [
        ("hostNetwork", "hostNetwork"),
        ("hostPID", "HostPID"),
        ("hostIPC", "HostIPC"),
    ] {
        if on(spec, key) {
            faults.forbidden(&at.field(path), "when `pod.Spec.HostUsers` is false");
        }
    }
    each_container(spec, at, |container, at| {
        if !items(container, "volumeDevices").is_empty() {
            faults.forbidden(&at.field("volumeDevices"), "when `hostUsers` is false");
        }
    });
}
