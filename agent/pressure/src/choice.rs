//! Which pod is evicted, and the message of its eviction: upstream's order for each signal.

use crate::thresholds::{Bound, Levels, Signal, Thresholds, quantity};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Usage of a resource against its request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// Used; `None` if a running container could not be measured.
    pub used: Option<u64>,
    /// Asked for.
    pub request: u64,
}

/// A container of a candidate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CandidateContainer {
    /// Its name.
    pub name: String,
    /// Bytes of its working set.
    pub memory: Share,
    /// Bytes of its writable layer and its log.
    pub disk: Share,
}

/// A pod that runs here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Candidate {
    /// Its UID.
    pub uid: String,
    /// Its priority.
    pub priority: i32,
    /// It is never evicted.
    pub critical: bool,
    /// Bytes of its working set.
    pub memory: Share,
    /// Bytes of its containers' layers and logs, and of its volumes on the disk.
    pub disk: Share,
    /// Files and folders of these.
    pub inodes: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Its containers that run.
    pub containers: Vec<CandidateContainer>,
}

/// A container that uses more than it requests.
struct Offender<'a> {
    name: &'a str,
    /// How much it uses and requests, as upstream writes quantities.
    used: String,
    request: String,
}

/// A pod to evict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodToEvict {
    /// Its UID.
    pub uid: String,
    /// Why, in upstream's words.
    pub message: String,
    /// The same for programs: annotations of the event.
    pub annotations: BTreeMap<String, String>,
}

/// The candidate with the lowest rank is evicted first: pods that can't be measured, pods above
/// their request, lower priority, and the largest usage above the request, in this order. For
/// process ids it is lower priority, pods that can't be measured, and the largest usage.
type Rank = (bool, bool, i32, Reverse<i128>);

impl Signal {
    /// The resource that runs out, in upstream's words.
    #[must_use]
    pub fn resource(self) -> &'static str {
        match self {
            Self::AllocatableMemoryAvailable | Self::MemoryAvailable => "memory",
            Self::NodefsAvailable | Self::ImagefsAvailable => "ephemeral-storage",
            Self::NodefsInodesFree | Self::ImagefsInodesFree => "inodes",
            Self::PidAvailable => "pids",
        }
    }

    /// Whether the pods' files count for it.
    #[must_use]
    pub fn is_of_disk(self) -> bool {
        matches!(self.resource(), "ephemeral-storage" | "inodes")
    }
}

impl Candidate {
    /// Its usage of the signal's resource.
    fn share(&self, signal: Signal) -> Share {
        match signal {
            Signal::AllocatableMemoryAvailable | Signal::MemoryAvailable => self.memory,
            Signal::NodefsAvailable | Signal::ImagefsAvailable => self.disk,
            Signal::NodefsInodesFree | Signal::ImagefsInodesFree => Share {
                used: self.inodes,
                request: 0,
            },
            Signal::PidAvailable => Share {
                used: self.processes,
                request: 0,
            },
        }
    }

    fn rank(&self, signal: Signal) -> Rank {
        let Share { used, request } = self.share(signal);
        if signal == Signal::PidAvailable {
            // There are no requests for process ids, so priority comes first, also where one pod
            // can't be measured (upstream's `rankPIDPressure`).
            let most = used.map_or(i128::MAX, i128::from);
            return (true, false, self.priority, Reverse(most));
        }
        let beyond = used.map_or(0, |used| i128::from(used) - i128::from(request));
        (used.is_some(), beyond <= 0, self.priority, Reverse(beyond))
    }

    /// Its containers that use more than they request.
    fn offenders(&self, signal: Signal) -> Vec<Offender<'_>> {
        let share = |container: &CandidateContainer| match signal {
            Signal::AllocatableMemoryAvailable | Signal::MemoryAvailable => Some(container.memory),
            Signal::NodefsAvailable | Signal::ImagefsAvailable => Some(container.disk),
            Signal::NodefsInodesFree | Signal::ImagefsInodesFree | Signal::PidAvailable => None,
        };
        let all = self.containers.iter();
        let beyond = all.filter_map(|container| {
            let Share { used, request } = share(container)?;
            let used = used.filter(|used| *used > request)?;
            Some(Offender {
                name: &container.name,
                used: quantity(used),
                request: quantity(request),
            })
        });
        beyond.collect()
    }

    /// Why it goes.
    fn message(&self, bound: Bound, thresholds: &Thresholds, levels: &Levels) -> String {
        let signal = bound.signal;
        let resource = signal.resource();
        let mut text = format!("The node was low on resource: {resource}. ");
        // Writing to a text does not fail.
        if let (Some(level), Some(least)) = (levels.get(&signal), thresholds.least(bound)) {
            let (least, left) = (least.of(level.capacity), level.available);
            let (least, left) = (quantity(least), quantity(left));
            write!(text, "Threshold quantity: {least}, available: {left}. ").ok();
        }
        for offender in self.offenders(signal) {
            let Offender {
                name,
                used,
                request,
            } = offender;
            write!(
                text,
                "Container {name} was using {used}, request is {request}, has larger consumption of {resource}. "
            )
            .ok();
        }
        text
    }

    /// The same for programs, as annotations of the event (upstream's).
    fn annotations(&self, signal: Signal) -> BTreeMap<String, String> {
        let offenders = self.offenders(signal);
        let names: Vec<&str> = offenders.iter().map(|one| one.name).collect();
        let usages: Vec<&str> = offenders.iter().map(|one| one.used.as_str()).collect();
        let all = [
            ("offending_containers", names.join(",")),
            ("offending_containers_usage", usages.join(",")),
            ("starved_resource", signal.resource().to_owned()),
        ];
        let all = all.into_iter();
        all.map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// The threshold to act for first: that of memory before all others, as upstream does.
#[must_use]
pub fn most_urgent(met: &BTreeSet<Bound>) -> Option<Bound> {
    met.first().copied()
}

/// The pod to evict for a threshold. `None` if all others are critical or use nothing of the
/// resource.
#[must_use]
pub fn choose(
    bound: Bound,
    thresholds: &Thresholds,
    levels: &Levels,
    candidates: &[Candidate],
) -> Option<PodToEvict> {
    let signal = bound.signal;
    let may_go =
        |one: &&Candidate| !one.critical && one.share(signal).used.is_none_or(|used| used > 0);
    // The choice between equals is deterministic.
    let first = candidates
        .iter()
        .filter(may_go)
        .min_by_key(|one| (one.rank(signal), &one.uid))?;
    Some(PodToEvict {
        uid: first.uid.clone(),
        message: first.message(bound, thresholds, levels),
        annotations: first.annotations(signal),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thresholds::{Least, Level, Soft, ThresholdKind};
    use proptest::prelude::*;
    use std::time::Duration;

    const MIB: u64 = 1 << 20;
    const SIGNALS: [Signal; 7] = [
        Signal::AllocatableMemoryAvailable,
        Signal::MemoryAvailable,
        Signal::NodefsAvailable,
        Signal::NodefsInodesFree,
        Signal::ImagefsAvailable,
        Signal::ImagefsInodesFree,
        Signal::PidAvailable,
    ];

    fn share(used: u64, request: u64) -> Share {
        Share {
            used: Some(used),
            request,
        }
    }

    fn pod(uid: &str, priority: i32, used: u64, request: u64) -> Candidate {
        Candidate {
            uid: uid.into(),
            priority,
            memory: share(used, request),
            disk: share(used, request),
            inodes: Some(used),
            processes: Some(used),
            ..Candidate::default()
        }
    }

    fn hard(signal: Signal) -> Bound {
        Bound {
            signal,
            kind: ThresholdKind::Hard,
        }
    }

    fn goes(signal: Signal, all: &[Candidate]) -> Option<String> {
        let thresholds = Thresholds::default();
        let bound = hard(signal);
        choose(bound, &thresholds, &Levels::new(), all).map(|eviction| eviction.uid)
    }

    /// The order of eviction.
    fn order(signal: Signal, all: &[Candidate]) -> Vec<String> {
        let mut left = all.to_vec();
        let mut gone = Vec::new();
        while let Some(uid) = goes(signal, &left) {
            left.retain(|one| one.uid != uid);
            gone.push(uid);
        }
        gone
    }

    #[test]
    fn pods_above_their_request_go_first_then_lower_priority_then_larger_usage() {
        let all = [
            pod("within", 0, 900, 1000),
            pod("within-low", -1, 10, 1000),
            pod("beyond-important", 5, 3000, 0),
            pod("beyond-little", 0, 150, 100),
            pod("beyond-much", 0, 1150, 1000),
        ];
        let expected = [
            "beyond-much",
            "beyond-little",
            "beyond-important",
            "within-low",
            "within",
        ];
        for signal in [
            Signal::AllocatableMemoryAvailable,
            Signal::MemoryAvailable,
            Signal::NodefsAvailable,
            Signal::ImagefsAvailable,
        ] {
            assert_eq!(order(signal, &all), expected, "{signal:?}");
        }
    }

    #[test]
    fn inodes_and_process_ids_have_no_requests() {
        let all = [
            pod("few", 0, 10, 0),
            pod("many", 0, 20, 1000),
            pod("low", -1, 5, 1000),
        ];
        for signal in [
            Signal::NodefsInodesFree,
            Signal::ImagefsInodesFree,
            Signal::PidAvailable,
        ] {
            assert_eq!(order(signal, &all), ["low", "many", "few"], "{signal:?}");
        }
    }

    #[test]
    fn unmeasured_pods_go_first_and_pods_that_use_nothing_stay() {
        let unknown = Candidate {
            memory: Share {
                used: None,
                request: 1000,
            },
            ..pod("unknown", 9, 0, 0)
        };
        let all = [pod("large", 0, 1 << 40, 0), unknown, pod("idle", 0, 0, 0)];
        assert_eq!(order(Signal::MemoryAvailable, &all), ["unknown", "large"]);
    }

    #[test]
    fn for_process_ids_an_unmeasured_pod_goes_only_before_those_of_its_priority() {
        let unknown = |uid: &str, priority| Candidate {
            processes: None,
            ..pod(uid, priority, 0, 0)
        };
        let all = [
            unknown("unknown-important", 9),
            pod("many", 0, 50, 0),
            unknown("unknown", 0),
            pod("low", -1, 1, 0),
        ];
        assert_eq!(
            order(Signal::PidAvailable, &all),
            ["low", "unknown", "many", "unknown-important"]
        );
    }

    #[test]
    fn memory_is_relieved_before_disks_and_disks_before_process_ids() {
        let mut met: BTreeSet<Bound> = SIGNALS.into_iter().map(hard).collect();
        let soft = Bound {
            kind: ThresholdKind::Soft,
            ..hard(Signal::MemoryAvailable)
        };
        met.insert(soft);
        let of_pods = hard(Signal::AllocatableMemoryAvailable);
        assert_eq!(most_urgent(&met), Some(of_pods));
        met.remove(&of_pods);
        assert_eq!(most_urgent(&met), Some(hard(Signal::MemoryAvailable)));
        met.remove(&hard(Signal::MemoryAvailable));
        assert_eq!(most_urgent(&met), Some(soft));
        met.remove(&soft);
        assert_eq!(most_urgent(&met), Some(hard(Signal::NodefsAvailable)));
        assert_eq!(most_urgent(&BTreeSet::new()), None);
        assert!(Signal::ImagefsInodesFree.is_of_disk() && !Signal::PidAvailable.is_of_disk());
    }

    #[test]
    fn an_eviction_has_upstreams_message() {
        let mut web = pod("web", 0, 300 * MIB, 200 * MIB);
        let container = |name: &str, used, request| CandidateContainer {
            name: name.into(),
            memory: share(used, request),
            disk: share(used, request),
        };
        web.containers = vec![
            container("main", 290 * MIB, 64 * MIB),
            container("sidecar", 10 * MIB, 136 * MIB),
        ];
        let levels = Levels::from([
            (
                Signal::AllocatableMemoryAvailable,
                Level {
                    available: 36 * MIB,
                    capacity: 1 << 29,
                },
            ),
            (
                Signal::MemoryAvailable,
                Level {
                    available: 52 * MIB,
                    capacity: 1 << 30,
                },
            ),
            (
                Signal::NodefsInodesFree,
                Level {
                    available: 49,
                    capacity: 1000,
                },
            ),
        ]);
        let soft = Soft {
            least: Least::Amount(300 * MIB),
            grace: Duration::from_secs(90),
        };
        let thresholds = Thresholds {
            soft: BTreeMap::from([(Signal::MemoryAvailable, soft)]),
            ..Thresholds::default()
        };
        let said = |bound| {
            let chosen = choose(bound, &thresholds, &levels, &[web.clone()]);
            chosen.unwrap().message
        };
        let message = |signal| said(hard(signal));
        let of_soft = said(Bound {
            kind: ThresholdKind::Soft,
            ..hard(Signal::MemoryAvailable)
        });
        let beginning =
            "The node was low on resource: memory. Threshold quantity: 300Mi, available: 52Mi. ";
        assert!(of_soft.starts_with(beginning), "{of_soft}");
        assert_eq!(
            message(Signal::MemoryAvailable),
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 52Mi. \
             Container main was using 290Mi, request is 64Mi, has larger consumption of memory. "
        );
        assert_eq!(
            message(Signal::AllocatableMemoryAvailable),
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 36Mi. \
             Container main was using 290Mi, request is 64Mi, has larger consumption of memory. "
        );
        assert_eq!(
            message(Signal::NodefsInodesFree),
            "The node was low on resource: inodes. Threshold quantity: 50, available: 49. "
        );
        assert_eq!(
            message(Signal::PidAvailable),
            "The node was low on resource: pids. ",
            "unmeasured usage is left out"
        );
        let annotations = |signal| {
            let chosen = choose(hard(signal), &thresholds, &levels, &[web.clone()]).unwrap();
            chosen.annotations.into_values().collect::<Vec<_>>()
        };
        for signal in [Signal::AllocatableMemoryAvailable, Signal::MemoryAvailable] {
            assert_eq!(annotations(signal), ["main", "290Mi", "memory"]);
        }
        let of_disk = annotations(Signal::NodefsAvailable);
        assert_eq!(of_disk, ["main", "290Mi", "ephemeral-storage"]);
        assert_eq!(annotations(Signal::PidAvailable), ["", "", "pids"]);
    }

    fn candidate() -> impl Strategy<Value = Candidate> {
        let used = || prop_oneof![Just(None), (0_u64..6).prop_map(Some)];
        let shares = (used(), 0_u64..6, used(), 0_u64..6, used(), used());
        (-2_i32..3, any::<bool>(), shares).prop_map(|(priority, critical, shares)| {
            let (memory, asked, disk, asked_disk, inodes, processes) = shares;
            let share = |used, request| Share { used, request };
            Candidate {
                priority,
                critical,
                memory: share(memory, asked),
                disk: share(disk, asked_disk),
                inodes,
                processes,
                ..Candidate::default()
            }
        })
    }

    fn named(all: Vec<Candidate>) -> Vec<Candidate> {
        let each = all.into_iter().enumerate();
        each.map(|(number, one)| Candidate {
            uid: format!("{number:03}"),
            ..one
        })
        .collect()
    }

    proptest! {
        #[test]
        fn no_critical_pod_goes_and_none_that_uses_nothing(
            all in prop::collection::vec(candidate(), 0..12), at in 0..SIGNALS.len(),
        ) {
            let (all, signal) = (named(all), SIGNALS[at]);
            let may = |one: &Candidate| !one.critical && one.share(signal).used != Some(0);
            let mut gone = order(signal, &all);
            gone.sort();
            let expected: Vec<String> =
                all.iter().filter(|one| may(one)).map(|one| one.uid.clone()).collect();
            prop_assert_eq!(gone, expected);
        }

        #[test]
        fn the_choice_does_not_depend_on_the_order_of_the_candidates(
            all in prop::collection::vec(candidate(), 0..12), at in 0..SIGNALS.len(),
        ) {
            let (all, signal) = (named(all), SIGNALS[at]);
            let back: Vec<Candidate> = all.iter().rev().cloned().collect();
            prop_assert_eq!(goes(signal, &all), goes(signal, &back));
        }

        #[test]
        fn a_pod_within_its_request_stays_while_another_exceeds_its_own(
            all in prop::collection::vec(candidate(), 1..12), at in 0..SIGNALS.len() - 1,
        ) {
            let (all, signal) = (named(all), SIGNALS[at]);
            let exceeds = |one: &Candidate| {
                let Share { used, request } = one.share(signal);
                used.is_none_or(|used| used > request)
            };
            let any = all.iter().any(|one| !one.critical && exceeds(one));
            if let Some(uid) = goes(signal, &all).filter(|_| any) {
                let chosen = all.iter().find(|one| one.uid == uid).unwrap();
                prop_assert!(exceeds(chosen));
            }
        }
    }
}
