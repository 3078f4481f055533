//! The meaning of the cluster's names (pure): the schema of Kubernetes' DNS specification, version
//! 1.1.0.
//!
//! Names of pods by their addresses (`10-1-0-2.ns.pod.…`) say nothing that is proved: any address
//! has one in any namespace.

use agent_proxy::DOMAIN;
use agent_proxy::{Endpoint, Key, Known, Service, Slice, Whole};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// What a question is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Where a service is.
    Srv,
    /// The name of an address.
    Ptr,
    /// Text.
    Txt,
    /// The name of which another is an alias.
    Cname,
    /// Anything else.
    Other,
}

/// The meaning of a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Data {
    /// An address.
    Address(IpAddr),
    /// A port of a host, one of several.
    Srv {
        /// The port.
        port: u16,
        /// The share of it among all.
        weight: u16,
        /// The host's name.
        host: String,
        /// The host's address.
        address: IpAddr,
    },
    /// A name.
    Ptr(String),
    /// Another name, which is asked for instead.
    Cname(String),
    /// Text.
    Text(&'static str),
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// These; none where the name is there and has nothing of the kind.
    Found(Vec<Data>),
    /// There is no such name.
    Missing,
    /// The name is not the cluster's.
    Foreign,
    /// Nothing is known yet.
    Unknown,
}

/// Finds the meaning of a name; the name is in lower case, without the dot at its end.
pub fn look_up(known: &Known, name: &str, kind: Kind) -> Outcome {
    if let Some(address) = reversed(name) {
        return reverse(known, address, kind);
    }
    let Some(inner) = below(name, DOMAIN) else {
        return Outcome::Foreign;
    };
    let Some(whole) = known.whole() else {
        return Outcome::Unknown;
    };
    let labels: Vec<&str> = inner.split('.').filter(|label| !label.is_empty()).collect();
    let of_kind = |found: Option<Vec<Data>>| {
        found.map_or(Outcome::Missing, |found| {
            Outcome::Found(found.into_iter().filter(|data| fits(data, kind)).collect())
        })
    };
    match labels.as_slice() {
        [] | ["svc" | "pod"] => Outcome::Found(Vec::new()),
        ["dns-version"] => of_kind(Some(vec![Data::Text("1.1.0")])),
        [namespace, "svc" | "pod"] => of_kind(is_there(known, namespace).then(Vec::new)),
        [pod, namespace, "pod"] => {
            let address = dashed(pod).filter(|_| is_there(known, namespace));
            of_kind(address.map(|address| vec![Data::Address(address)]))
        }
        [service, namespace, "svc"] => of_kind(of_service(whole, service, namespace)),
        [port, protocol, service, namespace, "svc"]
            if port.starts_with('_') && protocol.starts_with('_') =>
        {
            of_kind(ports(whole, port, protocol, service, namespace))
        }
        [host, service, namespace, "svc"] => of_kind(of_host(whole, host, service, namespace)),
        _ => Outcome::Missing,
    }
}

/// Whether there is a namespace; before namespaces are known, whether one of its services is.
fn is_there(known: &Known, namespace: &str) -> bool {
    if let Some(namespaces) = &known.namespaces {
        return namespaces.contains(namespace);
    }
    let mut services = known.services.iter().flat_map(BTreeMap::keys);
    services.any(|key| key.namespace == namespace)
}

/// The address that the name of a pod says, with dashes in place of dots or colons. Whether a pod
/// has it is not asked: clusters' DNS answers so by default (CoreDNS with `pods insecure`), so that
/// names of hosts match certificates for wildcards.
fn dashed(pod: &str) -> Option<IpAddr> {
    let is_v4 = pod.matches('-').count() == 3 && !pod.contains("--");
    let address = if is_v4 {
        pod.replace('-', ".")
    } else {
        pod.replace('-', ":")
    };
    address.parse().ok()
}

fn fits(data: &Data, kind: Kind) -> bool {
    match data {
        Data::Address(IpAddr::V4(_)) => kind == Kind::A,
        Data::Address(IpAddr::V6(_)) => kind == Kind::Aaaa,
        Data::Srv { .. } => kind == Kind::Srv,
        Data::Ptr(_) => kind == Kind::Ptr,
        Data::Text(_) => kind == Kind::Txt,
        // An alias answers questions of every type (RFC 1034, 3.6.2).
        Data::Cname(_) => true,
    }
}

/// What stands before a domain in a name: empty for the domain itself.
pub(super) fn below<'a>(name: &'a str, domain: &str) -> Option<&'a str> {
    let inner = name.strip_suffix(domain)?;
    (inner.is_empty() || inner.ends_with('.')).then_some(inner)
}

fn key(service: &str, namespace: &str) -> Key {
    Key {
        namespace: namespace.to_owned(),
        name: service.to_owned(),
    }
}

fn full(service: &str, namespace: &str) -> String {
    format!("{service}.{namespace}.svc.{DOMAIN}")
}

/// The slices of a service, which are its namespace's.
fn slices_of<'a>(whole: Whole<'a>, wanted: &'a Key) -> impl Iterator<Item = &'a Arc<Slice>> {
    let from = Key {
        namespace: wanted.namespace.clone(),
        name: String::new(),
    };
    let of_namespace = whole
        .1
        .range(from..)
        .take_while(|(key, _)| key.namespace == wanted.namespace);
    of_namespace
        .map(|(_, slice)| slice)
        .filter(|slice| slice.service == wanted.name)
}

/// The name of an endpoint below its service's: its host name, or its address with dashes.
fn host_of(endpoint: &Endpoint) -> String {
    let dashed = || endpoint.address.to_string().replace(['.', ':'], "-");
    endpoint.hostname.clone().unwrap_or_else(dashed)
}

fn of_service(whole: Whole<'_>, name: &str, namespace: &str) -> Option<Vec<Data>> {
    let key = key(name, namespace);
    let service = whole.0.get(&key)?;
    if let Some(other) = &service.external_name {
        return Some(vec![Data::Cname(
            other.trim_end_matches('.').to_lowercase(),
        )]);
    }
    if !service.headless {
        return Some(
            service
                .addresses
                .iter()
                .copied()
                .map(Data::Address)
                .collect(),
        );
    }
    let ready = slices_of(whole, &key).flat_map(|slice| &slice.endpoints);
    let ready = ready.filter(|endpoint| endpoint.ready);
    let addresses: BTreeSet<Data> = ready.map(|one| Data::Address(one.address)).collect();
    Some(addresses.into_iter().collect())
}

fn of_host(whole: Whole<'_>, host: &str, service: &str, namespace: &str) -> Option<Vec<Data>> {
    let key = key(service, namespace);
    let found = whole.0.get(&key)?;
    // `_tcp.web.…` is a step on the way to a port's name.
    if host.starts_with('_') {
        let known = found.ports.iter().map(|port| port.protocol.name());
        let mut known = known.map(|name| format!("_{}", name.to_lowercase()));
        return known.any(|name| name == host).then(Vec::new);
    }
    if !found.headless {
        return None;
    }
    let endpoints = slices_of(whole, &key).flat_map(|slice| &slice.endpoints);
    let own = endpoints.filter(|endpoint| endpoint.ready && host_of(endpoint) == host);
    let addresses: BTreeSet<Data> = own.map(|one| Data::Address(one.address)).collect();
    (!addresses.is_empty()).then(|| addresses.into_iter().collect())
}

/// Named ports: of the service's own name where it has an address, of each endpoint's where it has
/// not.
fn ports(
    whole: Whole<'_>,
    port: &str,
    protocol: &str,
    name: &str,
    namespace: &str,
) -> Option<Vec<Data>> {
    let key = key(name, namespace);
    let service = whole.0.get(&key)?;
    let (port, protocol) = (port.strip_prefix('_')?, protocol.strip_prefix('_')?);
    let is = |own: &str, of: agent_proxy::Protocol| {
        !own.is_empty() && own == port && of.name().eq_ignore_ascii_case(protocol)
    };
    let mut found = BTreeSet::new();
    if service.headless {
        for slice in slices_of(whole, &key) {
            let ports = slice.ports.iter().filter(|own| is(&own.name, own.protocol));
            for own in ports {
                let ready = slice.endpoints.iter().filter(|endpoint| endpoint.ready);
                found.extend(ready.map(|endpoint| Data::Srv {
                    port: own.port,
                    weight: 0,
                    host: format!("{}.{}", host_of(endpoint), full(name, namespace)),
                    address: endpoint.address,
                }));
            }
        }
    } else {
        let ports = service
            .ports
            .iter()
            .filter(|own| is(&own.name, own.protocol));
        for own in ports {
            found.extend(service.addresses.iter().map(|address| Data::Srv {
                port: own.port,
                weight: 0,
                host: full(name, namespace),
                address: *address,
            }));
        }
    }
    if found.is_empty() && !has_port(service, port, protocol) {
        return None;
    }
    // All hosts have the same share (RFC 2782 knows none for no host), however many addresses.
    let share = u16::try_from(100 / targets(&found).max(1))
        .unwrap_or(1)
        .max(1);
    let mut found: Vec<Data> = found.into_iter().collect();
    for data in &mut found {
        if let Data::Srv { weight, .. } = data {
            *weight = share;
        }
    }
    Some(found)
}

/// How many targets these addresses have.
fn targets(found: &BTreeSet<Data>) -> usize {
    let mut targets = BTreeSet::new();
    for data in found {
        if let Data::Srv { port, host, .. } = data {
            targets.insert((*port, host));
        }
    }
    targets.len()
}

fn has_port(service: &Service, port: &str, protocol: &str) -> bool {
    service
        .ports
        .iter()
        .any(|own| own.name == port && own.protocol.name().eq_ignore_ascii_case(protocol))
}

/// The address that a name for reverse look-ups means (RFC 1035, section 3.5; RFC 3596, section
/// 2.5).
fn reversed(name: &str) -> Option<IpAddr> {
    if let Some(labels) = name.strip_suffix(".in-addr.arpa") {
        let parts: Vec<u8> = labels
            .split('.')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        let [d, c, b, a] = parts.try_into().ok()?;
        return Some(Ipv4Addr::new(a, b, c, d).into());
    }
    let labels = name.strip_suffix(".ip6.arpa")?;
    let mut number = 0_u128;
    let mut count = 0_u32;
    for label in labels.split('.').rev() {
        let digit = u128::from_str_radix(label, 16)
            .ok()
            .filter(|_| label.len() == 1)?;
        number = number.checked_shl(4)? | digit;
        count = count.checked_add(1)?;
    }
    (count == 32).then(|| Ipv6Addr::from(number).into())
}

/// The names of an address: the service's that has it, or an endpoint's of a headless service.
/// Other addresses may have names elsewhere.
fn reverse(known: &Known, address: IpAddr, kind: Kind) -> Outcome {
    let Some(whole) = known.whole() else {
        return Outcome::Foreign;
    };
    let mut names = BTreeSet::new();
    for (key, service) in whole.0 {
        if service.addresses.contains(&address) {
            names.insert(full(&key.name, &key.namespace));
        }
    }
    for (key, slice) in whole.1 {
        let own = slice.endpoints.iter().filter(|one| one.address == address);
        let mut own = own.peekable();
        // Nearly all slices are passed over here: who asks for names of addresses must not cost
        // more than others.
        if own.peek().is_none() {
            continue;
        }
        let service = self::key(&slice.service, &key.namespace);
        if whole
            .0
            .get(&service)
            .is_none_or(|service| !service.headless)
        {
            continue;
        }
        names.extend(own.map(|one| {
            format!(
                "{}.{}",
                host_of(one),
                full(&service.name, &service.namespace)
            )
        }));
    }
    if names.is_empty() {
        return Outcome::Foreign;
    }
    let names = names.into_iter().filter(|_| kind == Kind::Ptr);
    Outcome::Found(names.map(Data::Ptr).collect())
}

#[cfg(test)]
#[path = "zone_tests.rs"]
pub(super) mod tests;
