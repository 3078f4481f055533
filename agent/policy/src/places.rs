//! The pods of the cluster by address and by namespace, kept from one table to the next (pure).

use crate::model::Pod;
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::AddressRange;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

/// Most addresses with changed pods that are changed one by one, here and in sets; with more, both
/// are computed anew.
pub(crate) const MOST_CHANGED: usize = 64;

/// An address and a pod that has it.
pub(crate) type PodAddress = (IpAddr, Arc<Pod>);

/// The places of a namespace's pods, in order, and how many named ports these pods have.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct NamespacePods {
    pub(crate) places: Vec<usize>,
    pub(crate) ports: usize,
}

/// All pods with addresses of a family, by address; a place is a position in this list. For this
/// node's own addresses, `own` decides: the node knows them before the master does.
///
/// Two pods may have one address for a while, as their updates from the master arrive at different
/// times.
#[derive(Debug)]
pub(crate) struct Places {
    family: Family,
    /// The cluster's pods, in the order of their uids, and those of this node, when this was
    /// updated last.
    pods: Vec<Arc<Pod>>,
    own: BTreeMap<IpAddr, Arc<Pod>>,
    /// Sorted by address.
    list: Vec<PodAddress>,
    by_namespace: HashMap<String, NamespacePods>,
    /// For each place how many named ports those before it have, and at the end how many all have.
    ports: Vec<usize>,
}

/// Pods that are no longer there, and those that are there instead.
struct Replaced {
    gone: Vec<Arc<Pod>>,
    come: Vec<Arc<Pod>>,
}

impl Places {
    /// No pods.
    pub(crate) fn new(family: Family) -> Self {
        Self {
            family,
            pods: Vec::new(),
            own: BTreeMap::new(),
            list: Vec::new(),
            by_namespace: HashMap::new(),
            ports: vec![0],
        }
    }

    /// Indexes all pods.
    pub(crate) fn of(
        family: Family,
        pods: &BTreeMap<String, Arc<Pod>>,
        own: &BTreeMap<IpAddr, Arc<Pod>>,
    ) -> Self {
        let away = pods.values();
        let away = away.flat_map(|pod| pod.addresses.iter().map(move |at| (at, pod)));
        let away = away.filter(|(at, _)| !own.contains_key(at));
        let all = away.chain(own);
        let all = all.filter(|(at, _)| Family::of(**at) == family);
        let mut list: Vec<PodAddress> = all.map(|(at, pod)| (*at, Arc::clone(pod))).collect();
        list.sort_by_key(|(at, _)| *at);
        let mut by_namespace: HashMap<&str, NamespacePods> = HashMap::new();
        let (mut ports, mut before) = (Vec::with_capacity(list.len() + 1), 0);
        for (place, (_, pod)) in list.iter().enumerate() {
            let own = by_namespace.entry(&pod.namespace).or_default();
            own.places.push(place);
            own.ports += pod.ports.len();
            ports.push(before);
            before += pod.ports.len();
        }
        ports.push(before);
        let by_namespace = by_namespace.into_iter();
        let by_namespace = by_namespace.map(|(name, own)| (name.to_owned(), own));
        let by_namespace = by_namespace.collect();
        Self {
            family,
            pods: pods.values().cloned().collect(),
            own: own.clone(),
            list,
            by_namespace,
            ports,
        }
    }

    /// Updates it to these pods. Returns the addresses whose pods may differ from before, sorted.
    pub(crate) fn follow(
        &mut self,
        pods: &BTreeMap<String, Arc<Pod>>,
        own: &BTreeMap<IpAddr, Arc<Pod>>,
    ) -> Vec<IpAddr> {
        let range = self.differing(pods);
        let count = (pods.len() + range.len()).saturating_sub(self.pods.len());
        let come: Vec<Arc<Pod>> = pods
            .values()
            .skip(range.start)
            .take(count)
            .cloned()
            .collect();
        let gone = self.pods.get(range.clone()).unwrap_or_default();
        let replaced = Replaced::of(gone, &come);
        let touched = self.touched(&replaced, own);
        // Pods of the master behind an address that this node no longer has are not known here.
        let is_removed = self.own.keys().any(|at| !own.contains_key(at));
        if is_removed || touched.len() > MOST_CHANGED {
            let now = Self::of(self.family, pods, own);
            let before = std::mem::replace(self, now);
            return changed(&before.list, &self.list);
        }
        for address in &touched {
            let there = match own.get(address) {
                Some(pod) => vec![Arc::clone(pod)],
                None => replaced.apply(*address, self.pods_at(*address)),
            };
            self.put(*address, there);
        }
        drop(self.pods.splice(range, come));
        if self.own != *own {
            self.own.clone_from(own);
        }
        touched.into_iter().collect()
    }

    /// The part of the last list of pods that differs from this one: what is the same at both ends
    /// is left out. Only pointers are compared.
    fn differing(&self, pods: &BTreeMap<String, Arc<Pod>>) -> Range<usize> {
        let is_same = |(one, other): &(&Arc<Pod>, &Arc<Pod>)| Arc::ptr_eq(one, other);
        let both = self.pods.iter().zip(pods.values());
        let start = both.take_while(is_same).count();
        let rest = self.pods.len().min(pods.len()).saturating_sub(start);
        let both = self.pods.iter().rev().zip(pods.values().rev());
        let end = both.take(rest).take_while(is_same).count();
        start..self.pods.len().saturating_sub(end)
    }

    /// The addresses of the family that pods have left or taken.
    fn touched(&self, replaced: &Replaced, own: &BTreeMap<IpAddr, Arc<Pod>>) -> BTreeSet<IpAddr> {
        let away = replaced.gone.iter().chain(&replaced.come);
        let away = away.flat_map(|pod| &pod.addresses);
        let here = own
            .iter()
            .filter(|(at, pod)| self.own.get(*at) != Some(*pod));
        let all = away.chain(here.map(|(at, _)| at)).copied();
        all.filter(|at| Family::of(*at) == self.family).collect()
    }

    fn pods_at(&self, address: IpAddr) -> Vec<Arc<Pod>> {
        let there = self.list.get(self.at(address)).unwrap_or_default();
        there.iter().map(|(_, pod)| Arc::clone(pod)).collect()
    }

    /// Replaces the pods at an address.
    fn put(&mut self, address: IpAddr, pods: Vec<Arc<Pod>>) {
        let there = self.at(address);
        for (place, (_, pod)) in self
            .list
            .iter()
            .enumerate()
            .take(there.end)
            .skip(there.start)
        {
            let Some(own) = self.by_namespace.get_mut(&pod.namespace) else {
                continue;
            };
            own.places.retain(|one| *one != place);
            own.ports = own.ports.saturating_sub(pod.ports.len());
            if own.places.is_empty() {
                self.by_namespace.remove(&pod.namespace);
            }
        }
        if there.len() != pods.len() {
            let behind = self
                .by_namespace
                .values_mut()
                .flat_map(|own| &mut own.places);
            for place in behind.filter(|place| **place >= there.end) {
                *place = *place - there.len() + pods.len();
            }
        }
        for (place, pod) in (there.start..).zip(&pods) {
            let own = self.by_namespace.entry(pod.namespace.clone()).or_default();
            let at = own.places.partition_point(|one| *one < place);
            own.places.insert(at, place);
            own.ports += pod.ports.len();
        }
        self.count_ports(there.clone(), &pods);
        let pods = pods.into_iter().map(|pod| (address, pod));
        drop(self.list.splice(there, pods));
    }

    /// Counts the named ports of these pods instead of those at the places.
    fn count_ports(&mut self, places: Range<usize>, pods: &[Arc<Pod>]) {
        let (first, behind) = (
            self.ports_before(places.start),
            self.ports_before(places.end),
        );
        let mut next = first;
        let mut counts = Vec::with_capacity(pods.len());
        for pod in pods {
            counts.push(next);
            next += pod.ports.len();
        }
        if next != behind {
            for count in self.ports.iter_mut().skip(places.end) {
                *count = *count - behind + next;
            }
        }
        drop(self.ports.splice(places, counts));
    }

    fn ports_before(&self, place: usize) -> usize {
        self.ports.get(place).copied().unwrap_or_default()
    }

    pub(crate) fn family(&self) -> Family {
        self.family
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The address and the pod of a place.
    pub(crate) fn get(&self, place: usize) -> Option<&PodAddress> {
        self.list.get(place)
    }

    /// The places of a namespace; `None` if it has none.
    pub(crate) fn of_namespace(&self, namespace: &str) -> Option<&NamespacePods> {
        self.by_namespace.get(namespace)
    }

    /// The places of an address.
    pub(crate) fn at(&self, address: IpAddr) -> Range<usize> {
        self.within(&AddressRange {
            first: address,
            last: address,
        })
    }

    /// The places of a range of addresses.
    pub(crate) fn within(&self, range: &AddressRange) -> Range<usize> {
        let from = self.list.partition_point(|(at, _)| *at < range.first);
        let to = self.list.partition_point(|(at, _)| *at <= range.last);
        from..to
    }

    /// How many named ports the pods at these places have.
    pub(crate) fn ports_of(&self, places: &Range<usize>) -> usize {
        let behind = self.ports_before(places.end);
        behind.saturating_sub(self.ports_before(places.start))
    }
}

impl Replaced {
    /// What differs between two lists of pods. With as many pods as before, most are usually the
    /// same, in the same places.
    fn of(gone: &[Arc<Pod>], come: &[Arc<Pod>]) -> Self {
        if gone.len() != come.len() {
            return Self {
                gone: gone.to_vec(),
                come: come.to_vec(),
            };
        }
        let both = gone.iter().zip(come);
        let differ = both.filter(|(one, other)| !Arc::ptr_eq(one, other));
        let (gone, come) = differ
            .map(|(one, other)| (Arc::clone(one), Arc::clone(other)))
            .unzip();
        Self { gone, come }
    }

    /// The pods at an address, after these were there.
    fn apply(&self, address: IpAddr, mut there: Vec<Arc<Pod>>) -> Vec<Arc<Pod>> {
        let has = |pod: &&Arc<Pod>| pod.addresses.contains(&address);
        for pod in self.gone.iter().filter(has) {
            if let Some(at) = there.iter().position(|one| Arc::ptr_eq(one, pod)) {
                there.remove(at);
            }
        }
        there.extend(self.come.iter().filter(has).cloned());
        there
    }
}

/// The addresses whose pods differ from before, sorted.
fn changed(mut before: &[PodAddress], mut after: &[PodAddress]) -> Vec<IpAddr> {
    let mut all = Vec::new();
    loop {
        let both = before.iter().zip(after);
        let same = both.take_while(|(one, other)| one == other).count();
        let next = |places: &[PodAddress]| places.get(same).map(|(at, _)| *at);
        let Some(at) = next(before).into_iter().chain(next(after)).min() else {
            return all;
        };
        all.push(at);
        before = behind(before, same, at);
        after = behind(after, same, at);
    }
}

/// The places after an address; none of the first `from` is after it.
fn behind(places: &[PodAddress], from: usize, address: IpAddr) -> &[PodAddress] {
    let rest = places.get(from..).unwrap_or_default();
    let count = rest.partition_point(|(at, _)| *at <= address);
    rest.get(count..).unwrap_or_default()
}

#[cfg(test)]
#[path = "places_tests.rs"]
mod tests;
