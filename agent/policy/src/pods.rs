//! Finds the pods that policies' peers select, and computes the nftables sets of their addresses
//! (pure).

use crate::branch::{Content, Peers};
use crate::budget::MAX_EFFORT;
use crate::model::{Labels, Pod, PolicyPeer, Selector, is_selected};
use crate::table::Set;
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::AddressRange;
use agent_sys::netlink::links::octets;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

/// Most addresses with changed pods for which sets are updated address by address; with more, sets
/// are computed anew.
const MOST_CHANGED: usize = 64;
/// Number of places whose marks are read in the time of one comparison.
const MARKS: usize = 32;
/// Cost, in comparisons, of finding the places of a range: two searches to count them, and two for
/// the set.
const SEARCHING: usize = 64;

/// An address and a pod that has it.
pub(crate) type PodAddress = (IpAddr, Arc<Pod>);
/// Sorted by address. Two pods may have one address for a while, as their updates from the master
/// arrive at different times.
pub(crate) type PodAddresses = Vec<PodAddress>;

/// All pods with addresses of a family. For this node's own addresses, `own` decides: the node
/// knows them before the master does.
pub(crate) fn places(
    family: Family,
    pods: &BTreeMap<String, Arc<Pod>>,
    own: &BTreeMap<IpAddr, Arc<Pod>>,
) -> PodAddresses {
    let away = pods.values();
    let away = away.flat_map(|pod| pod.addresses.iter().map(move |at| (at, pod)));
    let away = away.filter(|(at, _)| !own.contains_key(at));
    let all = away.chain(own);
    let all = all.filter(|(at, _)| Family::of(**at) == family);
    let mut places: PodAddresses = all.map(|(at, pod)| (*at, Arc::clone(pod))).collect();
    places.sort_by_key(|(at, _)| *at);
    places
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

/// The places of a namespace, and how many named ports their pods have.
#[derive(Debug, Default)]
struct Near {
    places: Vec<usize>,
    ports: usize,
}

/// The pods of the cluster, by address and by namespace.
#[derive(Debug)]
pub(crate) struct PodIndex<'a> {
    family: Family,
    places: &'a [PodAddress],
    near: HashMap<&'a str, Near>,
    /// For each place how many named ports those before it have, and at the end how many all have.
    ports: Vec<usize>,
    /// The addresses whose pods have changed since the last table.
    changed: Vec<IpAddr>,
    namespaces: &'a BTreeMap<String, Arc<Labels>>,
}

/// The pods that a list of peers selects, kept for the next sets with the same peers.
#[derive(Debug, Default)]
pub(crate) struct Selected {
    /// Among all.
    all: Option<Found>,
    /// Among those at addresses that have changed.
    changed: Option<Found>,
}

/// Comparisons that a list of peers takes.
#[derive(Debug)]
pub(crate) struct Counted {
    /// The digest of the peers.
    digest: Arc<str>,
    /// To find the pods that they select.
    finding: usize,
    /// To read each of these pods and its named ports once, at most.
    reading: usize,
}

/// The places of these pods, in order.
#[derive(Debug)]
struct Found {
    /// The digest of the peers.
    digest: Arc<str>,
    places: Vec<usize>,
}

/// The places in `last` if they are of these peers; else those that `find` returns, kept there.
fn known<'m>(
    last: &'m mut Option<Found>,
    peers: &Peers,
    find: impl FnOnce() -> Vec<usize>,
) -> &'m [usize] {
    if last.as_ref().is_none_or(|last| last.digest != peers.digest) {
        *last = Some(Found {
            digest: Arc::clone(&peers.digest),
            places: find(),
        });
    }
    last.as_ref()
        .map_or(&[][..], |found| found.places.as_slice())
}

impl<'a> PodIndex<'a> {
    /// Indexes the pods at `places`; `before`: the places when the last table was made.
    pub(crate) fn new(
        family: Family,
        before: &[PodAddress],
        places: &'a [PodAddress],
        namespaces: &'a BTreeMap<String, Arc<Labels>>,
    ) -> Self {
        let mut near: HashMap<&str, Near> = HashMap::new();
        let (mut ports, mut before_it) = (Vec::with_capacity(places.len() + 1), 0);
        for (place, (_, pod)) in places.iter().enumerate() {
            let own = near.entry(&pod.namespace).or_default();
            own.places.push(place);
            own.ports += pod.ports.len();
            ports.push(before_it);
            before_it += pod.ports.len();
        }
        ports.push(before_it);
        Self {
            family,
            places,
            near,
            ports,
            changed: changed(before, places),
            namespaces,
        }
    }

    /// Comparisons to compute a set anew for a policy of this namespace. What is kept of the last
    /// table does not lower the number. `last`: the peers of the set before this one.
    pub(crate) fn effort(
        &self,
        namespace: &str,
        content: &Content,
        last: &mut Option<Counted>,
    ) -> usize {
        let Some(peers) = content.peers() else {
            return 0;
        };
        let same = |last: &Counted| last.digest == peers.digest;
        let is_again = last.as_ref().is_some_and(same);
        if !is_again {
            *last = Some(self.count(namespace, peers));
        }
        let take = |counted: &Counted| {
            let finding = if is_again { 0 } else { counted.finding };
            let reading = match content {
                Content::Pods(_) | Content::Ranges(_) => 0,
                Content::NamedPort(..) => counted.reading,
            };
            finding.saturating_add(reading)
        };
        last.as_ref().map_or(0, take)
    }

    /// Counts the comparisons for these peers. Pods are compared only if a peer selects their
    /// namespace, so that many pods in one namespace close no other namespace that does not select
    /// them.
    fn count(&self, own: &str, peers: &Peers) -> Counted {
        let all = self.reading(&(0..self.places.len()));
        let mut counted = Counted {
            digest: Arc::clone(&peers.digest),
            finding: self.places.len() / MARKS,
            reading: if peers.list.is_empty() { all } else { 0 },
        };
        for range in peers.ranges() {
            let there = self.places_in(range);
            let finding = SEARCHING.saturating_add(there.len());
            counted.finding = counted.finding.saturating_add(finding);
            counted.reading = counted.reading.saturating_add(self.reading(&there));
            if counted.finding > MAX_EFFORT {
                break;
            }
        }
        for peer in &*peers.list {
            let PolicyPeer::Pods { namespaces, pods } = peer else {
                continue;
            };
            // Namespaces are matched once here, and once for the set.
            let looks = namespaces.as_ref().map_or(0, Selector::effort);
            let looks = looks
                .saturating_mul(2)
                .saturating_mul(self.namespaces.len());
            counted.finding = counted.finding.saturating_add(looks);
            if counted.finding > MAX_EFFORT {
                break;
            }
            for near in self.theirs(own, namespaces.as_ref()) {
                let there = near.places.len();
                let finding = pods.effort().saturating_mul(there);
                counted.finding = counted.finding.saturating_add(finding);
                counted.reading = counted.reading.saturating_add(there + near.ports);
            }
        }
        counted.reading = counted.reading.min(all);
        counted
    }

    /// Comparisons to read each of these places and its named ports once.
    fn reading(&self, places: &Range<usize>) -> usize {
        let ports_before = |place: usize| self.ports.get(place).copied().unwrap_or_default();
        let ports = ports_before(places.end).saturating_sub(ports_before(places.start));
        places.len().saturating_add(ports)
    }

    /// The pods of the namespaces that a peer of a policy in this namespace selects.
    fn theirs(&self, own: &str, namespaces: Option<&Selector>) -> Vec<&Near> {
        let Some(selector) = namespaces else {
            return self.near.get(own).into_iter().collect();
        };
        let all = self.namespaces.iter();
        let all = all.filter(|(_, labels)| selector.matches(labels));
        all.filter_map(|(name, _)| self.near.get(name.as_str()))
            .collect()
    }

    /// Computes a set. `held`: the same set in the last table. `selected`: what was found for the
    /// previous sets.
    pub(crate) fn set(
        &self,
        namespace: &str,
        content: &Content,
        held: Option<Arc<Set>>,
        selected: &mut Selected,
    ) -> Arc<Set> {
        let (peers, length) = match content {
            Content::Ranges(ranges) => return Arc::clone(ranges),
            Content::Pods(peers) => (peers, self.family.bytes()),
            Content::NamedPort(peers, ..) => (peers, self.family.bytes() + 8),
        };
        let held = held.filter(|_| self.changed.len() <= MOST_CHANGED);
        let Some(mut set) = held else {
            let all = known(&mut selected.all, peers, || self.selected(namespace, peers));
            return Arc::new(Set::Keys(length, self.keys(content, all)));
        };
        let there = known(&mut selected.changed, peers, || {
            self.selected_of_changed(namespace, peers)
        });
        for address in &self.changed {
            let Set::Keys(_, held) = &*set else { continue };
            let octets = octets(*address);
            let had = held.range(octets.clone()..);
            let had = had.take_while(|key| key.starts_with(&octets)).cloned();
            let had: BTreeSet<Vec<u8>> = had.collect();
            let at = self.places_at(*address);
            let from = there.partition_point(|place| *place < at.start);
            let to = there.partition_point(|place| *place < at.end);
            let has = self.keys(content, there.get(from..to).unwrap_or_default());
            if had != has
                && let Set::Keys(_, held) = Arc::make_mut(&mut set)
            {
                for key in &had {
                    held.remove(key);
                }
                held.extend(has);
            }
        }
        set
    }

    fn places_at(&self, address: IpAddr) -> Range<usize> {
        self.places_in(&AddressRange {
            first: address,
            last: address,
        })
    }

    fn places_in(&self, range: &AddressRange) -> Range<usize> {
        let from = self.places.partition_point(|(at, _)| *at < range.first);
        let to = self.places.partition_point(|(at, _)| *at <= range.last);
        from..to
    }

    /// The places that one of these peers selects, in order; all places if the list is empty. The
    /// result is that of [`is_selected`], without a test of each place against each peer.
    fn selected(&self, own: &str, peers: &Peers) -> Vec<usize> {
        let mut marks = vec![peers.list.is_empty(); self.places.len()];
        let mut mean = |place: usize| {
            if let Some(mark) = marks.get_mut(place) {
                *mark = true;
            }
        };
        for peer in &*peers.list {
            let PolicyPeer::Pods { namespaces, pods } = peer else {
                continue;
            };
            let theirs = self.theirs(own, namespaces.as_ref());
            for place in theirs.into_iter().flat_map(|near| &near.places) {
                let pod = self.places.get(*place);
                if pod.is_some_and(|(_, pod)| pods.matches(&pod.labels)) {
                    mean(*place);
                }
            }
        }
        for range in peers.ranges() {
            self.places_in(range).for_each(&mut mean);
        }
        let all = marks.into_iter().enumerate();
        all.filter_map(|(place, mark)| mark.then_some(place))
            .collect()
    }

    /// Those of them at addresses that have changed.
    fn selected_of_changed(&self, own: &str, peers: &Peers) -> Vec<usize> {
        let all = self.changed.iter().flat_map(|at| self.places_at(*at));
        let those = all.filter(|place| {
            let is = |(at, pod): &PodAddress| {
                let mean = |peer: &PolicyPeer| {
                    matches!(peer, PolicyPeer::Pods { .. })
                        && is_selected(peer, own, *at, Some(&**pod), self.namespaces)
                };
                peers.list.is_empty() || peers.holds(*at) || peers.list.iter().any(mean)
            };
            self.places.get(*place).is_some_and(is)
        });
        those.collect()
    }

    /// A set's keys for the pods at these places.
    fn keys(&self, content: &Content, places: &[usize]) -> BTreeSet<Vec<u8>> {
        let those = places.iter().filter_map(|place| self.places.get(*place));
        match content {
            Content::Pods(_) => those.map(|(at, _)| octets(*at)).collect(),
            Content::NamedPort(_, name, protocol) => {
                let keys = those.flat_map(|(at, pod)| {
                    let ports = pod.ports.iter();
                    let ports =
                        ports.filter(|port| port.name == *name && port.protocol == *protocol);
                    ports.map(|port| {
                        let [high, low] = port.port.to_be_bytes();
                        let mut key = octets(*at);
                        key.extend([*protocol, 0, 0, 0, high, low, 0, 0]);
                        key
                    })
                });
                keys.collect()
            }
            Content::Ranges(_) => BTreeSet::new(),
        }
    }
}
