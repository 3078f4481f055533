//! Validation of ports, host names and DNS.

use super::context::{SpecOwner, each_container, host_network};
use master_schema::validate::forms::{choice, formed, has, number, on, optional_form, word};
use master_schema::validate::{
    Faults, FieldPath, Fields, get, items, limits, names, net, object, text,
};
use serde_json::Value;
use std::collections::BTreeSet;

/// The default pull policy: `Always` if the image's tag is `latest`.
pub fn pull_policy_of(image: &str) -> &'static str {
    let last = image.rsplit('/').next().unwrap_or_default();
    // A digest always names the same content. Only the last part is searched for a tag: the port of
    // a registry has a colon, too.
    let latest = !image.contains('@') && (!last.contains(':') || last.ends_with(":latest"));
    if latest { "Always" } else { "IfNotPresent" }
}

/// The ports of all containers count together: those of Services are looked up among them.
pub(super) fn number_of_ports(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let mut found = 0;
    each_container(spec, at, |container, _| {
        found += items(container, "ports").len();
    });
    if found > limits::POD_PORTS {
        faults.too_many(&at.field("containers[*].ports"), found, limits::POD_PORTS);
    }
}

/// Validates the ports of a container.
pub(super) fn ports(container: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let mut known = BTreeSet::new();
    for (index, port) in items(container, "ports").iter().enumerate() {
        let Some(port) = port.as_object() else {
            continue;
        };
        let at = at.index(index);
        let name = text(port, "name");
        if !name.is_empty() {
            if let Err(fault) = names::port_name(name) {
                faults.invalid(&at.field("name"), get(port, "name"), fault);
            } else if !known.insert(name) {
                faults.duplicate(&at.field("name"), get(port, "name"));
            }
        }
        for (key, needed) in [("containerPort", true), ("hostPort", false)] {
            // A host port of zero means none.
            let value = number(port, key);
            if value == 0 && needed {
                faults.required(&at.field(key), "");
            } else if value != 0 && !(1..=65535).contains(&value) {
                faults.invalid(
                    &at.field(key),
                    get(port, key),
                    "must be between 1 and 65535, inclusive",
                );
            }
        }
        choice(port, "protocol", &at, &["SCTP", "TCP", "UDP"], faults);
    }
}

/// A host port belongs to one container.
pub(super) fn unique_host_ports(
    container: &Fields,
    taken: &mut BTreeSet<String>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let at = at.field("ports");
    for (index, port) in items(container, "ports").iter().enumerate() {
        let Some(port) = port.as_object() else {
            continue;
        };
        let host = number(port, "hostPort");
        if host == 0 {
            continue;
        }
        // One number twice is fine on two addresses, and with two protocols.
        let key = format!("{}/{}/{host}", text(port, "protocol"), text(port, "hostIP"));
        if taken.contains(&key) {
            faults.duplicate(&at.index(index).field("hostPort"), &Value::from(key));
        } else {
            taken.insert(key);
        }
    }
}

/// With host networking, container ports must equal host ports; templates may leave host ports out.
pub(super) fn host_ports(
    spec: &Fields,
    owner: SpecOwner<'_>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    if !host_network(spec) {
        return;
    }
    // Init containers are not checked (upstream).
    let list = at.field("containers");
    for (index, container) in items(spec, "containers").iter().enumerate() {
        let Some(container) = container.as_object() else {
            continue;
        };
        let at = list.index(index);
        let at = at.field("ports");
        for (index, port) in items(container, "ports").iter().enumerate() {
            let Some(port) = port.as_object() else {
                continue;
            };
            let host = number(port, "hostPort");
            if (owner.pod || host != 0) && host != number(port, "containerPort") {
                let words = "must match `containerPort` when `hostNetwork` is true";
                faults.invalid(&at.index(index).field("hostPort"), &host.into(), words);
            }
        }
    }
}

/// Maximum length of `hostname`.
const HOSTNAME: usize = 64;

/// Validates host name and subdomain of the pod.
pub(super) fn names(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    for key in ["hostname", "subdomain"] {
        optional_form(spec, key, at, names::label, faults);
    }
    if !has(spec, "hostnameOverride") {
        return;
    }
    // KEP-4762. The length is the limit of Linux, above that of `hostname` itself.
    let at_name = at.field("hostnameOverride");
    formed(
        get(spec, "hostnameOverride"),
        &at_name,
        names::subdomain,
        faults,
    );
    if text(spec, "hostnameOverride").len() > HOSTNAME {
        faults.too_long(&at_name, HOSTNAME);
    }
    if on(spec, "setHostnameAsFQDN") {
        faults.forbidden(
            &at.field("setHostnameAsFQDN"),
            "must not be set to true when `hostnameOverride` is set",
        );
    }
    if host_network(spec) {
        faults.forbidden(
            &at.field("hostNetwork"),
            "must not be set to true when `hostnameOverride` is set",
        );
    }
}

/// Validates `hostAliases`.
pub(super) fn host_aliases(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let list = at.field("hostAliases");
    for (index, alias) in items(spec, "hostAliases").iter().enumerate() {
        let Some(alias) = alias.as_object() else {
            continue;
        };
        let at = list.index(index);
        net::address(word(alias, "ip"), &at.field("ip"), faults);
        let at = at.field("hostnames");
        for (index, name) in items(alias, "hostnames").iter().enumerate() {
            formed(name, &at.index(index), names::subdomain, faults);
        }
    }
}

/// Limits of the resolver in Linux's C library.
const NAMESERVERS: usize = 3;
const SEARCHES: usize = 32;
const SEARCH_TEXT: usize = 2048;

/// Validates DNS policy and DNS configuration.
pub(super) fn dns(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let at = at.field("dnsConfig");
    let config = object(spec, "dnsConfig");
    if text(spec, "dnsPolicy") == "None" {
        let Some(config) = config else {
            faults.required(&at, "must provide `dnsConfig` when `dnsPolicy` is None");
            return;
        };
        if items(config, "nameservers").is_empty() {
            let words = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            faults.required(&at.field("nameservers"), words);
            return;
        }
    }
    let Some(config) = config else { return };
    let servers = items(config, "nameservers");
    let place = at.field("nameservers");
    if servers.len() > NAMESERVERS {
        faults.invalid(
            &place,
            get(config, "nameservers"),
            format!("must not have more than {NAMESERVERS} nameservers"),
        );
    }
    for (index, server) in servers.iter().enumerate() {
        net::address(server, &place.index(index), faults);
    }
    searches(config, &at.field("searches"), faults);
    let place = at.field("options");
    for (index, option) in items(config, "options").iter().enumerate() {
        if option
            .as_object()
            .is_some_and(|option| text(option, "name").is_empty())
        {
            faults.required(&place.index(index), "must not be empty");
        }
    }
}

fn searches(config: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let paths: Vec<&str> = items(config, "searches")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let all = get(config, "searches");
    if paths.len() > SEARCHES {
        faults.invalid(
            at,
            all,
            format!("must not have more than {SEARCHES} search paths"),
        );
    }
    if paths.join(" ").len() > SEARCH_TEXT {
        let words = format!(
            "must not have more than {SEARCH_TEXT} characters (including spaces) in the search list"
        );
        faults.invalid(at, all, words);
    }
    // A single dot is the root: a name is looked up as it is (KEP-4427).
    for (index, path) in paths
        .into_iter()
        .enumerate()
        .filter(|(_, path)| *path != ".")
    {
        let path = path.strip_suffix('.').unwrap_or(path);
        if let Err(fault) = underscored(path) {
            faults.invalid(&at.index(index), &Value::from(path), fault);
        }
    }
}

/// A domain name whose labels may contain underscores.
fn underscored(name: &str) -> Result<(), String> {
    if name.len() > 253 {
        return Err("must be no more than 253 bytes".to_owned());
    }
    let end =
        |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let start = |byte: Option<&u8>| end(byte) || byte == Some(&b'_');
    // Search paths for SRV records begin with an underscore (KEP-4427).
    let label = |part: &str| {
        let bytes = part.as_bytes();
        let inner =
            |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
        start(bytes.first()) && end(bytes.last()) && bytes.iter().all(inner)
    };
    if !name.is_empty() && name.split('.').all(label) {
        return Ok(());
    }
    Err("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must \
         start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
         '[_a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\.[_a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')"
        .to_owned())
}
