//! Finds the pods that policies' peers select, and computes the nftables sets of their addresses
//! (pure).

use crate::branch::{Content, Peers};
use crate::budget::MAX_EFFORT;
use crate::model::{Labels, PolicyPeer, Selector, is_selected};
use crate::places::{MOST_CHANGED, NamespacePods, Places, PodAddress};
use crate::table::Set;
use agent_sys::netlink::links::octets;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

/// Number of places whose marks are read in the time of one comparison.
const MARKS: usize = 32;
/// Cost, in comparisons, of finding the places of a range: two searches to count them, and two for
/// the set.
const SEARCHING: usize = 64;

/// The pods and namespaces of the cluster, and what has changed in them since the last table.
#[derive(Debug)]
pub(crate) struct PodIndex<'a> {
    pub(crate) places: &'a Places,
    pub(crate) namespaces: &'a BTreeMap<String, Arc<Labels>>,
    /// The addresses whose pods may have changed, sorted.
    pub(crate) changed: Vec<IpAddr>,
    /// Whether namespaces or their labels have changed: then no set of the last table is right.
    pub(crate) is_relabelled: bool,
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

impl PodIndex<'_> {
    /// Whether nothing has changed since the last table.
    pub(crate) fn is_same(&self) -> bool {
        self.changed.is_empty() && !self.is_relabelled
    }

    /// Comparisons to compute all these sets anew, one after the other.
    pub(crate) fn effort_of<'c>(
        &self,
        namespace: &str,
        contents: impl Iterator<Item = &'c Content>,
    ) -> usize {
        let mut last = None;
        let each = contents.map(|content| self.effort(namespace, content, &mut last));
        each.fold(0, usize::saturating_add)
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
            let there = self.places.within(range);
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
            for selected in self.theirs(own, namespaces.as_ref()) {
                let there = selected.places.len();
                let finding = pods.effort().saturating_mul(there);
                counted.finding = counted.finding.saturating_add(finding);
                counted.reading = counted.reading.saturating_add(there + selected.ports);
            }
        }
        counted.reading = counted.reading.min(all);
        counted
    }

    /// Comparisons to read each of these places and its named ports once.
    fn reading(&self, places: &Range<usize>) -> usize {
        places.len().saturating_add(self.places.ports_of(places))
    }

    /// The pods of the namespaces that a peer of a policy in this namespace selects.
    fn theirs(&self, own: &str, namespaces: Option<&Selector>) -> Vec<&NamespacePods> {
        let Some(selector) = namespaces else {
            return self.places.of_namespace(own).into_iter().collect();
        };
        let all = self.namespaces.iter();
        let all = all.filter(|(_, labels)| selector.matches(labels));
        all.filter_map(|(name, _)| self.places.of_namespace(name))
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
            Content::Pods(peers) => (peers, self.places.family().bytes()),
            Content::NamedPort(peers, ..) => (peers, self.places.family().bytes() + 8),
        };
        let is_kept = !self.is_relabelled && self.changed.len() <= MOST_CHANGED;
        let held = held.filter(|_| is_kept);
        let Some(mut set) = held else {
            let all = known(&mut selected.all, peers, || self.selected(namespace, peers));
            return Arc::new(Set::Keys(length, self.keys(content, all)));
        };
        if self.changed.is_empty() {
            return set;
        }
        let there = known(&mut selected.changed, peers, || {
            self.selected_of_changed(namespace, peers)
        });
        for address in &self.changed {
            let Set::Keys(_, held) = &*set else { continue };
            let octets = octets(*address);
            let had = held.range(octets.clone()..);
            let had = had.take_while(|key| key.starts_with(&octets)).cloned();
            let had: BTreeSet<Vec<u8>> = had.collect();
            let at = self.places.at(*address);
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
            for place in theirs.into_iter().flat_map(|selected| &selected.places) {
                let pod = self.places.get(*place);
                if pod.is_some_and(|(_, pod)| pods.matches(&pod.labels)) {
                    mean(*place);
                }
            }
        }
        for range in peers.ranges() {
            self.places.within(range).for_each(&mut mean);
        }
        let all = marks.into_iter().enumerate();
        all.filter_map(|(place, mark)| mark.then_some(place))
            .collect()
    }

    /// Those of them at addresses that have changed.
    fn selected_of_changed(&self, own: &str, peers: &Peers) -> Vec<usize> {
        let all = self.changed.iter().flat_map(|at| self.places.at(*at));
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
