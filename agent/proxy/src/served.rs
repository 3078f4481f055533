//! The fronts (address, port, protocol) that a node serves, kept up to date service by service
//! (pure). A change of one service costs the work of its own fronts and, for each other service and
//! slice, a comparison of two pointers. Namespaces share what the packet filter can hold
//! ([`crate::budget`]).
//!
//! Guarantee: after any sequence of states, the moves add up to the fronts of the last state.

use crate::budget;
use crate::fronts::{Front, Fronts, Here, Pick, Source, host_ports, of_host_port, of_service};
use crate::health::health_ports;
use crate::left_out::{LeftOut, MOST_NAMED};
use crate::view::{Key, Known, Objects, Service, Slice};
use agent_sys::netlink::Family;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Who claims a front. Of several claimants the first in this order gets it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    /// A service's cluster IPs and node ports, which the control plane allocated to it alone.
    Service(Arc<Key>),
    /// A service's external and load balancer IPs: several services can name the same.
    Named(Arc<Key>),
    /// A pod's host port, by its index among all host ports of the node.
    HostPort(usize),
}

/// Fronts whose endpoints have changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moves {
    /// The fronts before; new ones are not in it.
    pub before: Fronts,
    /// The fronts now; removed ones are not in it.
    pub after: Fronts,
}

impl Moves {
    /// The moves of one address family.
    #[must_use]
    pub fn of(&self, family: Family) -> Self {
        let of_family = |fronts: &Fronts| -> Fronts {
            let own = fronts.iter();
            let own = own.filter(|(front, _)| Family::of(front.address) == family);
            own.map(|(front, pick)| (*front, pick.clone())).collect()
        };
        Self {
            before: of_family(&self.before),
            after: of_family(&self.after),
        }
    }
}

/// The fronts that a claimant offers, in order, each once. There are usually one or two, for which
/// a map would have room for eleven.
type Offered = Vec<(Front, Pick)>;

/// The fronts that claimants offer, with their endpoints.
type Offers = BTreeMap<Claim, Offered>;

/// What a node serves.
#[derive(Debug)]
pub struct Served {
    known: Arc<Known>,
    node: String,
    zone: Option<String>,
    addresses: Vec<IpAddr>,
    /// Health check ports of services (`healthCheckNodePort`).
    health: BTreeSet<u16>,
    /// Whether pods have more host ports than are served.
    leaves_out_ports: bool,
    /// Services and their slices, by service: an index into the known slices.
    slices: BTreeSet<(Arc<Key>, Arc<Key>)>,
    claims: BTreeSet<(Front, Claim)>,
    /// Bytes of the nftables table that each service takes, and their sums by namespace.
    weights: BTreeMap<Arc<Key>, usize>,
    taken: BTreeMap<String, usize>,
    /// Bytes of the services that are served whatever their namespaces take.
    everyones: usize,
    /// Most bytes that all services may take, and the namespaces that are not served, each with the
    /// services that took most when it was closed.
    whole: usize,
    closed: BTreeMap<String, Vec<Arc<Key>>>,
}

impl Default for Served {
    fn default() -> Self {
        Self::within(budget::WHOLE)
    }
}

impl Served {
    /// `whole`: most bytes of the nftables table that all services together may take.
    fn within(whole: usize) -> Self {
        Self {
            known: Arc::default(),
            node: String::new(),
            zone: None,
            addresses: Vec::new(),
            health: BTreeSet::new(),
            leaves_out_ports: false,
            slices: BTreeSet::new(),
            claims: BTreeSet::new(),
            weights: BTreeMap::new(),
            taken: BTreeMap::new(),
            everyones: 0,
            whole,
            closed: BTreeMap::new(),
        }
    }

    /// All fronts of the last state.
    pub fn all(&self) -> Fronts {
        let claimants: BTreeSet<&Claim> = self.claims.iter().map(|(_, claim)| claim).collect();
        let mut all = Fronts::new();
        for claim in claimants {
            let offered = self.offers(claim).into_iter();
            all.extend(offered.filter(|(front, _)| self.owner(*front) == Some(claim)));
        }
        all
    }

    /// Takes the cluster's present state; returns the fronts that changed, as before and as now.
    pub fn take(&mut self, known: &Arc<Known>, here: Here<'_>) -> Moves {
        let touched = self.touched(known, here);
        let offers = |own: &Self, touched: &BTreeSet<Claim>| -> Offers {
            let offers = touched.iter();
            offers
                .map(|claim| (claim.clone(), own.offers(claim)))
                .collect()
        };
        let mut before = offers(self, &touched);
        self.know(known, here);
        let before_share = self.share(&touched);
        let was_closed: BTreeSet<&String> = before_share.keys().collect();
        let is_closed: BTreeSet<&String> = self.closed.keys().collect();
        let mut after = offers(self, &touched);
        // If a namespace is no longer served, or is served again, all its services move, not only
        // the touched ones.
        for namespace in is_closed.symmetric_difference(&was_closed) {
            for claim in self.services_in(namespace).flat_map(claims_of) {
                if touched.contains(&claim) {
                    continue;
                }
                let (offered, none) = (self.offered(&claim), Offered::new());
                let [was, is] = if was_closed.contains(namespace) {
                    [none, offered]
                } else {
                    [offered, none]
                };
                before.insert(claim.clone(), was);
                after.insert(claim, is);
            }
        }
        let fronts = each(&before).chain(each(&after));
        let fronts: BTreeSet<Front> = fronts.map(|(_, front)| *front).collect();
        let mut moves = Moves::default();
        for front in &fronts {
            let pick = self.pick(*front, &before);
            moves.before.extend(pick.map(|pick| (*front, pick)));
        }
        for (who, front) in each(&before) {
            self.claims.remove(&(*front, who.clone()));
        }
        for (who, front) in each(&after) {
            self.claims.insert((*front, who.clone()));
        }
        for front in &fronts {
            let pick = self.pick(*front, &after);
            moves.after.extend(pick.map(|pick| (*front, pick)));
        }
        moves
    }

    /// The claimants whose offers may differ from those before.
    fn touched(&self, known: &Known, here: Here<'_>) -> BTreeSet<Claim> {
        let mut touched = BTreeSet::new();
        let (services, slices) = (self.known.services.as_ref(), self.known.slices.as_ref());
        if self.here().node != here.node
            || self.here().zone != here.zone
            || self.addresses != here.addresses
            || self.here().name_servers != here.name_servers
        {
            let all = [services, known.services.as_ref()].into_iter().flatten();
            let all = all.flat_map(BTreeMap::keys);
            touched.extend(all.flat_map(claims_of));
        }
        for (key, ..) in changes(services, known.services.as_ref()) {
            touched.extend(claims_of(key));
        }
        for (key, was, is) in changes(slices, known.slices.as_ref()) {
            // A slice can change its service: both the old and the new one are concerned.
            let sides = [was, is].into_iter().flatten();
            touched.extend(sides.flat_map(|slice| claims_of(&service_key(known, key, slice))));
        }
        let ports =
            |known: &Known, addresses: &[IpAddr]| host_ports(known, addresses.len()).0.count();
        let others = self.health != health_ports(known.services.as_ref());
        if others || self.known.host_ports != known.host_ports || self.addresses != here.addresses {
            let most = ports(&self.known, &self.addresses).max(ports(known, here.addresses));
            touched.extend((0..most).map(Claim::HostPort));
        }
        touched
    }

    fn know(&mut self, known: &Arc<Known>, here: Here<'_>) {
        let before = std::mem::replace(&mut self.known, Arc::clone(known));
        for (key, was, is) in changes(before.slices.as_ref(), known.slices.as_ref()) {
            if let Some(slice) = was {
                let service = Arc::new(service_of(key, slice));
                self.slices.remove(&(service, Arc::clone(key)));
            }
            if let Some(slice) = is {
                let service = service_key(known, key, slice);
                self.slices.insert((service, Arc::clone(key)));
            }
        }
        self.health = health_ports(known.services.as_ref());
        here.node.clone_into(&mut self.node);
        self.zone = here.zone.map(str::to_owned);
        self.addresses = here.addresses.to_vec();
        let (_, are_more) = host_ports(known, self.addresses.len());
        if are_more && !self.leaves_out_ports {
            tracing::warn!(
                "pods have more host ports than this node can serve, and some are not served: use fewer hostPorts"
            );
        }
        self.leaves_out_ports = are_more;
    }

    fn here(&self) -> Here<'_> {
        Here {
            node: &self.node,
            zone: self.zone.as_deref(),
            addresses: &self.addresses,
            name_servers: &self.known.name_servers,
        }
    }

    /// Weighs the touched services again, and decides which namespaces are served; returns those
    /// that were closed before.
    fn share(&mut self, touched: &BTreeSet<Claim>) -> BTreeMap<String, Vec<Arc<Key>>> {
        for claim in touched {
            let Claim::Service(key) = claim else { continue };
            let weight = self
                .service(key)
                .map(|(service, slices)| budget::weigh(service, &slices, self.here()));
            let before = match weight {
                Some(weight) => self.weights.insert(Arc::clone(key), weight),
                None => self.weights.remove(key),
            };
            if let Some(before) = before {
                let taken = self.taken_with(key, before);
                *taken = taken.saturating_sub(before);
            }
            if let Some(weight) = weight {
                let taken = self.taken_with(key, weight);
                *taken = taken.saturating_add(weight);
            }
            if self.taken.get(&key.namespace) == Some(&0) {
                self.taken.remove(&key.namespace);
            }
        }
        let whole = self.whole.saturating_sub(self.everyones);
        let mut over = budget::closed(&self.taken, whole);
        over.extend(self.known.slices_left_out.iter().cloned());
        let mut closed = BTreeMap::new();
        for namespace in over {
            let named = self.closed.get(&namespace).cloned();
            let named = named.unwrap_or_else(|| {
                let bytes = self.taken.get(&namespace);
                tracing::warn!(
                    namespace,
                    bytes,
                    "the Services of this namespace exceed its share of the nftables table, or of the memory for watched objects, and are not served: use fewer Services or fewer ports"
                );
                self.largest(&namespace)
            });
            closed.insert(namespace, named);
        }
        std::mem::replace(&mut self.closed, closed)
    }

    /// The services of a namespace that take most, the largest first.
    fn largest(&self, namespace: &str) -> Vec<Arc<Key>> {
        let own = self.services_in(namespace);
        let own = own.filter_map(|key| Some((*self.weights.get(key)?, key)));
        let mut own: Vec<_> = own.collect();
        own.sort_by(|(bytes, key), (others, other)| others.cmp(bytes).then(key.cmp(other)));
        let own = own.into_iter().take(MOST_NAMED);
        own.map(|(_, key)| Arc::clone(key)).collect()
    }

    /// The services that are not served because their namespaces exceed their share.
    pub fn left_out(&self) -> LeftOut {
        let all = self.closed.keys();
        let spared = all.flat_map(|namespace| budget::everyones(namespace));
        let spared = spared.map(Arc::new);
        LeftOut {
            namespaces: self.closed.clone(),
            spared: spared.filter(|name| self.is_everyones(name)).collect(),
        }
    }

    /// The sum to which a service of this weight belongs.
    fn taken_with(&mut self, name: &Key, weight: usize) -> &mut usize {
        if budget::is_everyones(name, weight) {
            &mut self.everyones
        } else {
            self.taken.entry(name.namespace.clone()).or_default()
        }
    }

    /// Whether a service is served whatever its namespace takes.
    fn is_everyones(&self, name: &Key) -> bool {
        let weight = self.weights.get(name);
        weight.is_some_and(|weight| budget::is_everyones(name, *weight))
    }

    /// A service that this proxy serves, and its slices.
    fn service(&self, name: &Key) -> Option<(&Service, Vec<&Arc<Slice>>)> {
        let (services, slices) = self.known.whole()?;
        let service = services.get(name).filter(|service| !service.foreign)?;
        let first: (Arc<Key>, Arc<Key>) = (Arc::new(name.clone()), Arc::default());
        let own = self.slices.range(first..);
        let own = own.take_while(|(service, _)| **service == *name);
        let own = own.filter_map(|(_, slice)| slices.get(slice)).collect();
        Some((service, own))
    }

    /// A namespace's services, except those that are served whatever it takes.
    fn services_in(&self, namespace: &str) -> impl Iterator<Item = &Arc<Key>> {
        let from = Key {
            namespace: namespace.to_owned(),
            name: String::new(),
        };
        let services = self.known.services.iter();
        let own = services.flat_map(move |all| all.range(from.clone()..));
        let own = own.map(|(key, _)| key);
        let own = own.take_while(move |key| key.namespace == namespace);
        own.filter(move |key| !self.is_everyones(key))
    }

    /// What a claimant offers; nothing if its namespace is not served.
    fn offers(&self, claim: &Claim) -> Offered {
        match claim {
            Claim::Service(name) | Claim::Named(name)
                if self.closed.contains_key(&name.namespace) && !self.is_everyones(name) =>
            {
                Offered::new()
            }
            Claim::Service(_) | Claim::Named(_) | Claim::HostPort(_) => self.offered(claim),
        }
    }

    /// What a claimant offers, whether its namespace is served or not. If two ports of a service
    /// have the same number, the first gets the front.
    fn offered(&self, claim: &Claim) -> Offered {
        let (name, wanted) = match claim {
            Claim::Service(name) => (name, Source::Allocated),
            Claim::Named(name) => (name, Source::Claimed),
            Claim::HostPort(at) => {
                let (mut ports, _) = host_ports(&self.known, self.addresses.len());
                let port = ports.nth(*at);
                let of_port = |port| of_host_port(port, &self.addresses, &self.health);
                return in_order(port.map_or_else(Vec::new, of_port));
            }
        };
        let served = self.service(name).filter(|(service, _)| {
            let named = !service.external.is_empty() || !service.balancers.is_empty();
            named || wanted == Source::Allocated
        });
        let Some((service, own)) = served else {
            return Offered::new();
        };
        let all = of_service(service, &own, self.here()).into_iter();
        let offered = all.filter(|(source, ..)| *source == wanted);
        in_order(offered.map(|(_, front, pick)| (front, pick)).collect())
    }

    /// The first claimant of a front, which gets it.
    fn owner(&self, front: Front) -> Option<&Claim> {
        let first = (front, Claim::Service(Arc::default()));
        let (at, claim) = self.claims.range(first..).next()?;
        (*at == front).then_some(claim)
    }

    /// The endpoints of a front: those that its first claimant offers. `fresh` has the offers of
    /// the touched claimants; those of others are computed.
    fn pick(&self, front: Front, fresh: &Offers) -> Option<Pick> {
        let claim = self.owner(front)?;
        let found = |offered: &Offered| {
            let place = offered.binary_search_by_key(&front, |(at, _)| *at).ok()?;
            offered.get(place).map(|(_, pick)| pick.clone())
        };
        fresh
            .get(claim)
            .map_or_else(|| found(&self.offers(claim)), found)
    }
}

/// Sorts fronts; of those that are there twice, the first stays.
fn in_order(mut offered: Offered) -> Offered {
    offered.sort_by_key(|(front, _)| *front);
    offered.dedup_by_key(|(front, _)| *front);
    offered.shrink_to_fit();
    offered
}

fn each(offers: &Offers) -> impl Iterator<Item = (&Claim, &Front)> {
    let each = offers.iter();
    each.flat_map(|(claim, offered)| offered.iter().map(move |(front, _)| (claim, front)))
}

/// Both claims of a service.
fn claims_of(key: &Arc<Key>) -> [Claim; 2] {
    [
        Claim::Service(Arc::clone(key)),
        Claim::Named(Arc::clone(key)),
    ]
}

fn service_of(key: &Key, slice: &Slice) -> Key {
    Key {
        namespace: key.namespace.clone(),
        name: slice.service.clone(),
    }
}

/// The key of a slice's service: the service's own, if it is known, so that indexes share it.
pub fn service_key(known: &Known, key: &Key, slice: &Slice) -> Arc<Key> {
    let service = service_of(key, slice);
    let services = known.services.as_ref();
    let own = services.and_then(|all| all.get_key_value(&service));
    own.map_or_else(|| Arc::new(service), |(own, _)| Arc::clone(own))
}

/// An object by its key, as it was and as it is.
pub type ChangedObject<'a, T> = (&'a Arc<Key>, Option<&'a T>, Option<&'a T>);

/// The objects that differ between two states: one merge of two sorted maps.
pub fn changes<'a, T: PartialEq>(
    before: Option<&'a Objects<T>>,
    after: Option<&'a Objects<T>>,
) -> Vec<ChangedObject<'a, T>> {
    let mut old = before.into_iter().flatten().peekable();
    let mut new = after.into_iter().flatten().peekable();
    let mut found = Vec::new();
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return found,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            // Unchanged objects are shared between states, and an object has one key: no comparison
            // of contents is needed.
            (Some((_, was)), Some((_, is))) if Arc::ptr_eq(was, is) => {
                old.next();
                new.next();
                continue;
            }
            (Some((was, _)), Some((is, _))) => was.cmp(is),
        };
        let was = if order.is_le() { old.next() } else { None };
        let is = if order.is_ge() { new.next() } else { None };
        let object = |side: Option<(&'a Arc<Key>, &'a Arc<T>)>| side.map(|(_, object)| &**object);
        if let Some((key, _)) = is.or(was)
            && object(was) != object(is)
        {
            found.push((key, object(was), object(is)));
        }
    }
}

#[cfg(test)]
#[path = "served_tests.rs"]
pub(crate) mod tests;
