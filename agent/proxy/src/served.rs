//! The fronts (address, port, protocol) that a node serves, kept up to date service by service
//! (pure). A change of one service costs the work of its own fronts and, for each other service and
//! slice, a comparison of two pointers.
//!
//! Guarantee: after any sequence of states, the moves add up to the fronts of the last state.

use crate::fronts::{Front, Fronts, Here, Pick, Source, of_host_port, of_service};
use crate::health::health_ports;
use crate::view::{Key, Known, Objects, Slice};
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

/// Fronts that lead elsewhere than before.
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

/// The fronts that claimants offer, and where each would lead.
type Offers = BTreeMap<Claim, Vec<(Front, Pick)>>;

/// What a node serves.
#[derive(Debug, Default)]
pub struct Served {
    known: Arc<Known>,
    node: String,
    zone: Option<String>,
    addresses: Vec<IpAddr>,
    /// Ports at which load balancers ask for endpoints of this node.
    health: BTreeSet<u16>,
    /// Services and their slices, by service: an index into the known slices.
    slices: BTreeSet<(Key, Arc<Key>)>,
    claims: BTreeSet<(Front, Claim)>,
}

impl Served {
    /// Takes the cluster's present state; returns the fronts that changed, with what led where.
    pub fn take(&mut self, known: &Arc<Known>, here: Here<'_>) -> Moves {
        let touched = self.touched(known, here);
        let offers = |own: &Self| -> Offers {
            let offers = touched.iter();
            offers
                .map(|claim| (claim.clone(), own.offers(claim)))
                .collect()
        };
        let before = offers(self);
        self.know(known, here);
        let after = offers(self);
        let fronts: BTreeSet<Front> = [&before, &after]
            .into_iter()
            .flat_map(BTreeMap::values)
            .flatten()
            .map(|(front, _)| *front)
            .collect();
        let mut moves = Moves::default();
        for front in &fronts {
            let pick = self.pick(*front, &before);
            moves.before.extend(pick.map(|pick| (*front, pick)));
        }
        for (who, (front, _)) in each(&before) {
            self.claims.remove(&(*front, who.clone()));
        }
        for (who, (front, _)) in each(&after) {
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
            touched.extend(sides.flat_map(|slice| claims_of(&Arc::new(service_of(key, slice)))));
        }
        let ports = |known: &Known| known.host_ports.iter().flat_map(|(_, all)| all).count();
        let others = self.health != health_ports(known.services.as_ref());
        if others || self.known.host_ports != known.host_ports || self.addresses != here.addresses {
            let most = ports(&self.known).max(ports(known));
            touched.extend((0..most).map(Claim::HostPort));
        }
        touched
    }

    fn know(&mut self, known: &Arc<Known>, here: Here<'_>) {
        let before = std::mem::replace(&mut self.known, Arc::clone(known));
        for (key, was, is) in changes(before.slices.as_ref(), known.slices.as_ref()) {
            if let Some(slice) = was {
                self.slices
                    .remove(&(service_of(key, slice), Arc::clone(key)));
            }
            if let Some(slice) = is {
                self.slices
                    .insert((service_of(key, slice), Arc::clone(key)));
            }
        }
        self.health = health_ports(known.services.as_ref());
        here.node.clone_into(&mut self.node);
        self.zone = here.zone.map(str::to_owned);
        self.addresses = here.addresses.to_vec();
    }

    fn here(&self) -> Here<'_> {
        Here {
            node: &self.node,
            zone: self.zone.as_deref(),
            addresses: &self.addresses,
            name_servers: &self.known.name_servers,
        }
    }

    fn offers(&self, claim: &Claim) -> Vec<(Front, Pick)> {
        let (name, wanted) = match claim {
            Claim::Service(name) => (name, Source::Allocated),
            Claim::Named(name) => (name, Source::Claimed),
            Claim::HostPort(at) => {
                let mut ports = self.known.host_ports.iter().flat_map(|(_, ports)| ports);
                let port = ports.nth(*at);
                let of_port = |port| of_host_port(port, &self.addresses, &self.health);
                return port.map_or_else(Vec::new, of_port);
            }
        };
        let Some((services, slices)) = self.known.whole() else {
            return Vec::new();
        };
        let service = services.get(name).filter(|service| {
            let named = !service.external.is_empty() || !service.balancers.is_empty();
            !service.foreign && (named || wanted == Source::Allocated)
        });
        let Some(service) = service else {
            return Vec::new();
        };
        let first = ((**name).clone(), Arc::default());
        let own = self.slices.range(first..);
        let own = own.take_while(|(service, _)| *service == **name);
        let own: Vec<&Arc<Slice>> = own.filter_map(|(_, slice)| slices.get(slice)).collect();
        let all = of_service(service, &own, self.here()).into_iter();
        all.filter(|(source, ..)| *source == wanted)
            .map(|(_, front, pick)| (front, pick))
            .collect()
    }

    /// The endpoints of a front: those that its first claimant offers. `fresh` has the offers of
    /// the touched claimants; those of others are computed.
    fn pick(&self, front: Front, fresh: &Offers) -> Option<Pick> {
        let first = (front, Claim::Service(Arc::default()));
        let (_, claim) = self
            .claims
            .range(first..)
            .next()
            .filter(|(at, _)| *at == front)?;
        let found = |offers: &[(Front, Pick)]| {
            let mut own = offers.iter().filter(|(at, _)| *at == front);
            own.next().map(|(_, pick)| pick.clone())
        };
        fresh
            .get(claim)
            .map_or_else(|| found(&self.offers(claim)), |offers| found(offers))
    }
}

fn each(offers: &Offers) -> impl Iterator<Item = (&Claim, &(Front, Pick))> {
    let each = offers.iter();
    each.flat_map(|(claim, offers)| offers.iter().map(move |offer| (claim, offer)))
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

/// An object by its key, as it was and as it is.
type Change<'a, T> = (&'a Arc<Key>, Option<&'a T>, Option<&'a T>);

/// The objects that differ between two states: one merge of two sorted maps.
fn changes<'a, T: PartialEq>(
    before: Option<&'a Objects<T>>,
    after: Option<&'a Objects<T>>,
) -> Vec<Change<'a, T>> {
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
mod tests;
