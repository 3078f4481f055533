//! The meaning of the cluster's names (pure): the schema of Kubernetes' DNS specification, version
//! 1.1.0.
//!
//! Names of pods by their addresses (`10-1-0-2.ns.pod.…`) say nothing that is proved: any address
//! has one in any namespace.

use crate::index::Index;
use agent_proxy::{DOMAIN, Endpoint, Key, Known, Protocol, Service, Slice};
use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

/// Most records with names that an answer is made of: 64 KiB, the longest answer, hold no more of
/// services' ports, whose names are not compressed. A service may have thousands of ports at
/// thousands of endpoints each, and one datagram asks for all of them.
pub const MOST_RECORDS: usize = 1500;
/// Most addresses that an answer is made of: 64 KiB hold no more, of 16 bytes each at least.
pub const MOST_ADDRESSES: usize = 4096;
/// Most endpoints that are looked at for an answer, as services may share addresses and host names.
const MOST_LOOKS: usize = 1 << 16;

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

/// Whether there may be more than was found, as that is as much as an answer is made of.
pub(crate) fn is_cut(found: &[Data]) -> bool {
    let is_address = |data: &Data| matches!(data, Data::Address(_));
    let most = if found.iter().all(is_address) {
        MOST_ADDRESSES
    } else {
        MOST_RECORDS
    };
    found.len() >= most
}

/// Finds the meaning of a name; the name is in lower case, without the dot at its end.
pub fn look_up(index: &Index, name: &str, kind: Kind) -> Outcome {
    if let Some(address) = reversed(name) {
        return reverse(index, address, kind);
    }
    let Some(inner) = below(name, DOMAIN) else {
        return Outcome::Foreign;
    };
    let known = index.known();
    if known.whole().is_none() {
        return Outcome::Unknown;
    }
    let labels: Vec<&str> = inner.split('.').filter(|label| !label.is_empty()).collect();
    let of_kind = |found: Option<Vec<Data>>| {
        found.map_or(Outcome::Missing, |found| {
            Outcome::Found(found.into_iter().filter(|data| fits(data, kind)).collect())
        })
    };
    let named = |service: &str, namespace: &str| Named::find(index, service, namespace);
    match labels.as_slice() {
        [] | ["svc" | "pod"] => Outcome::Found(Vec::new()),
        ["dns-version"] => of_kind(Some(vec![Data::Text("1.1.0")])),
        [namespace, "svc" | "pod"] => of_kind(is_there(known, namespace).then(Vec::new)),
        [pod, namespace, "pod"] => {
            let address = dashed(pod).filter(|_| is_there(known, namespace));
            of_kind(address.map(|address| vec![Data::Address(address)]))
        }
        [service, namespace, "svc"] => {
            of_kind(named(service, namespace).and_then(|named| named.itself(kind)))
        }
        [port, protocol, service, namespace, "svc"]
            if port.starts_with('_') && protocol.starts_with('_') =>
        {
            of_kind(named(service, namespace).and_then(|named| named.port(port, protocol)))
        }
        [host, service, namespace, "svc"] => {
            of_kind(named(service, namespace).and_then(|named| named.host(host, kind)))
        }
        _ => Outcome::Missing,
    }
}

/// Whether there is a namespace; before namespaces are known, whether one of its services is.
fn is_there(known: &Known, namespace: &str) -> bool {
    if let Some(namespaces) = &known.namespaces {
        return namespaces.contains(namespace);
    }
    let first = key("", namespace);
    let services = known.services.iter();
    let mut services = services.flat_map(|all| all.range(first.clone()..));
    services
        .next()
        .is_some_and(|(key, _)| key.namespace == namespace)
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

/// The name of an endpoint below its service's: its host name, or its address with dashes.
fn host_of(endpoint: &Endpoint) -> String {
    let hostname = endpoint.hostname.clone();
    hostname.unwrap_or_else(|| with_dashes(endpoint.address))
}

fn with_dashes(address: IpAddr) -> String {
    address.to_string().replace(['.', ':'], "-")
}

/// A service that a name is about.
struct Named<'a> {
    index: &'a Index,
    key: Key,
    service: &'a Service,
}

impl<'a> Named<'a> {
    fn find(index: &'a Index, name: &str, namespace: &str) -> Option<Self> {
        let key = key(name, namespace);
        let service = index.service(&key)?;
        Some(Self {
            index,
            key,
            service,
        })
    }

    fn name(&self) -> String {
        full(&self.key.name, &self.key.namespace)
    }

    /// Its ready endpoints: all, or those of which [`host_of`] says this, among the first
    /// [`MOST_LOOKS`].
    fn endpoints<'b>(
        &'b self,
        host: Option<&'b str>,
    ) -> impl Iterator<Item = (&'b Slice, &'b Endpoint)> {
        let slices = self.index.slices_of(&self.key);
        let all = slices.flat_map(|slice| slice.endpoints.iter().map(move |one| (slice, one)));
        let said = host.and_then(dashed);
        let said = said.filter(|address| host == Some(with_dashes(*address).as_str()));
        let is = move |one: &Endpoint| match &one.hostname {
            _ if host.is_none() => true,
            Some(own) => host == Some(own.as_str()),
            None => said == Some(one.address),
        };
        let all = all.take(MOST_LOOKS);
        all.filter(move |(_, one)| one.ready && is(one))
    }

    /// Its addresses, an alias, or, where it is headless, the addresses of its ready endpoints:
    /// without one there is no such name (section 2.4.1). Asked where it is, all of its ports,
    /// also those without a name: the specification has none for this name, and those who look for
    /// members of a group ask for them (CoreDNS answers so).
    fn itself(&self, kind: Kind) -> Option<Vec<Data>> {
        if let Some(other) = &self.service.external_name {
            let other = other.trim_end_matches('.').to_lowercase();
            return Some(vec![Data::Cname(other)]);
        }
        if self.is_empty() {
            None
        } else if kind == Kind::Srv {
            Some(self.ports(None, |_, _| true))
        } else if self.service.headless {
            let endpoints = self.endpoints(None).map(|(_, one)| one.address);
            Some(addresses_of(kind, endpoints))
        } else {
            let own = self.service.addresses.iter().copied();
            Some(data(own.take(MOST_ADDRESSES)))
        }
    }

    /// The ready endpoints of a host name, also where the service has an address: pods whose
    /// `subdomain` it is find each other so (beyond the specification, as CoreDNS).
    fn host(&self, host: &str, kind: Kind) -> Option<Vec<Data>> {
        self.is_no_alias()?;
        // `_tcp.web.…` is a step on the way to a port's name.
        if let Some(protocol) = host.strip_prefix('_') {
            let ports = &self.service.ports;
            let has = ports.iter().any(|port| is_named(port.protocol, protocol));
            let is_there = has && !self.is_empty();
            return is_there.then(Vec::new);
        }
        let own = || self.endpoints(Some(host)).map(|(_, one)| one.address);
        if own().next().is_none() {
            None
        } else if kind == Kind::Srv {
            Some(self.ports(Some(host), |_, _| true))
        } else {
            Some(addresses_of(kind, own()))
        }
    }

    /// A named port.
    fn port(&self, port: &str, protocol: &str) -> Option<Vec<Data>> {
        self.is_no_alias()?;
        let (port, protocol) = (port.strip_prefix('_')?, protocol.strip_prefix('_')?);
        let is =
            |name: &str, of: Protocol| !name.is_empty() && name == port && is_named(of, protocol);
        let found = self.ports(None, is);
        let mut ports = self.service.ports.iter();
        let is_there = !self.service.headless && ports.any(|own| is(&own.name, own.protocol));
        (is_there || !found.is_empty()).then_some(found)
    }

    /// An alias has no names below its own (section 2.5).
    fn is_no_alias(&self) -> Option<()> {
        self.service.external_name.is_none().then_some(())
    }

    /// Whether it is headless and nobody answers for it.
    fn is_empty(&self) -> bool {
        self.service.headless && self.endpoints(None).next().is_none()
    }

    /// Its ports: of the service's own name where it has an address, of each endpoint's where it
    /// has not, or where those of a host are asked for; no more than [`MOST_RECORDS`].
    fn ports(&self, host: Option<&str>, is: impl Fn(&str, Protocol) -> bool) -> Vec<Data> {
        let found = if self.service.headless || host.is_some() {
            distinct(self.ports_in_turn(host, is))
        } else {
            let (name, addresses) = (self.name(), self.service.addresses.as_slice());
            let name = &name;
            let ports = self.service.ports.iter();
            let ports = ports.filter(|own| is(&own.name, own.protocol));
            distinct(ports.flat_map(|own| {
                let number = own.port;
                let all = addresses.iter();
                all.map(move |address| srv(number, name.clone(), *address))
            }))
        };
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
        found
    }

    /// The ports of the endpoints, or of those of a host: first one of each, then the next one of
    /// each. Where they are too many, no endpoint is left out for the ports of another.
    fn ports_in_turn(
        &self,
        host: Option<&str>,
        is: impl Fn(&str, Protocol) -> bool,
    ) -> impl Iterator<Item = Data> {
        let name = self.name();
        let mut waiting = VecDeque::new();
        let mut last: Option<(&Slice, Rc<[u16]>)> = None;
        let mut looks = 0_usize;
        for (slice, endpoint) in self.endpoints(host) {
            let known = last.as_ref().filter(|(of, _)| std::ptr::eq(*of, slice));
            let ports = if let Some((_, ports)) = known {
                Rc::clone(ports)
            } else {
                looks = looks.saturating_add(slice.ports.len());
                let own = slice.ports.iter();
                let own = own.filter(|own| is(&own.name, own.protocol));
                let own = own.take(MOST_RECORDS).map(|own| own.port);
                let ports: Rc<[u16]> = own.collect();
                last = Some((slice, Rc::clone(&ports)));
                ports
            };
            if !ports.is_empty() {
                waiting.push_back(Unrecorded {
                    host: format!("{}.{name}", host_of(endpoint)),
                    address: endpoint.address,
                    ports,
                    next: 0,
                });
            }
            if waiting.len() == MOST_RECORDS || looks > MOST_LOOKS {
                break;
            }
        }
        std::iter::from_fn(move || {
            let mut one = waiting.pop_front()?;
            let port = *one.ports.get(one.next)?;
            one.next += 1;
            let data = srv(port, one.host.clone(), one.address);
            if one.next < one.ports.len() {
                waiting.push_back(one);
            }
            Some(data)
        })
    }
}

/// An endpoint, and its ports of which those from `next` on have no record yet.
struct Unrecorded {
    host: String,
    address: IpAddr,
    ports: Rc<[u16]>,
    next: usize,
}

fn srv(port: u16, host: String, address: IpAddr) -> Data {
    Data::Srv {
        port,
        weight: 0,
        host,
        address,
    }
}

/// The first of these, each once, as many as an answer is made of.
fn distinct(all: impl Iterator<Item = Data>) -> BTreeSet<Data> {
    let mut found = BTreeSet::new();
    // Slices may repeat one another.
    for data in all.take(4 * MOST_RECORDS) {
        if found.len() == MOST_RECORDS {
            break;
        }
        found.insert(data);
    }
    found
}

/// Those of a kind, each once, as many as an answer is made of.
fn addresses_of(kind: Kind, all: impl Iterator<Item = IpAddr>) -> Vec<Data> {
    let mut found = BTreeSet::new();
    for address in all.filter(|address| fits(&Data::Address(*address), kind)) {
        if found.len() == MOST_ADDRESSES {
            break;
        }
        found.insert(address);
    }
    data(found)
}

fn data(addresses: impl IntoIterator<Item = IpAddr>) -> Vec<Data> {
    addresses.into_iter().map(Data::Address).collect()
}

fn is_named(protocol: Protocol, name: &str) -> bool {
    protocol.name().eq_ignore_ascii_case(name)
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

/// The names of an address: the service's that has it, or else those of its ready endpoints, in all
/// services. Other addresses may have names elsewhere.
fn reverse(index: &Index, address: IpAddr, kind: Kind) -> Outcome {
    if index.known().whole().is_none() {
        return Outcome::Foreign;
    }
    let services = index.services_at(address).take(MOST_RECORDS);
    let mut names: BTreeSet<String> = services
        .map(|key| full(&key.name, &key.namespace))
        .collect();
    if names.is_empty() {
        let slices = index.slices_at(address).filter(|(key, _)| {
            let service = index.service(key);
            service.is_some_and(|service| service.external_name.is_none())
        });
        let mut looks = 0_usize;
        for (key, slice) in slices {
            if names.len() >= MOST_RECORDS || looks > MOST_LOOKS {
                break;
            }
            looks = looks.saturating_add(slice.endpoints.len());
            let service = full(&key.name, &key.namespace);
            let own = slice.endpoints.iter();
            let own = own.filter(|one| one.ready && one.address == address);
            let own = own.take(MOST_RECORDS - names.len());
            names.extend(own.map(|one| format!("{}.{service}", host_of(one))));
        }
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
