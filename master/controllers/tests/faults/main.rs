//! Simulates the workload controllers, and the whole control plane, with faults: calls that fail,
//! answers that are lost, processes that end at any call, stores that lag, pods that fail, nodes
//! that vanish. Invariants are checked at every revision of the store, and after the faults
//! everything must reach its specification. Start at [`play`]; a seed repeats its case exactly. To
//! add a kind or an invariant, see [`parts`].

#![allow(
    clippy::unwrap_used,
    clippy::needless_pass_by_value,
    reason = "tests may stop at the first surprise, and cases are written in place"
)]

mod api;
mod cluster;
mod dice;
mod fixture;
mod history;
mod invariants;
mod kinds;
mod laws;
mod machines;
mod parts;
mod pods;
mod rest;
mod scheduling;
mod simulation;
mod waits;
mod world;
mod wrong;

use api::Faults;
use history::Event;
use std::collections::BTreeMap;
use std::ops::Range;
use world::World;

/// Steps of a case with faults.
const STEPS: usize = 220;
/// Machines of most control planes.
const MACHINES: usize = 4;
/// Machines of those with parts.
const PARTS_MACHINES: usize = 3;
/// The seeds of scenarios, by scope: as many as a minute of one processor allows, most of them in
/// the cheapest worlds. `cargo xtask soak worlds` passes others in the variable [`ASKED`], as
/// `FIRST..END`.
const SEEDS_OF_WORKLOADS: Range<u64> = 0..16;
const SEEDS_OF_MACHINES: Range<u64> = 0..6;
const SEEDS_OF_PARTS: Range<u64> = 0..18;
const ASKED: &str = "PRATIQUE_WORLDS";
/// Machines of large control planes, and their seeds. `cargo xtask soak worlds --nodes` passes
/// another number in the variable [`NODES`].
const MANY_MACHINES: usize = 40;
const SEEDS_OF_MANY: Range<u64> = 0..1;
const NODES: &str = "PRATIQUE_NODES";
/// In a large control plane more happens in a step, so there are fewer steps, by this factor.
const FEWER_STEPS: usize = 4;

/// Which controllers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The controllers of workloads. Pods are bound at random, to any node.
    Workloads,
    /// Also schedulers, and the controllers of nodes, of their pods and of garbage. Machines have
    /// simulated kubelets.
    ControlPlane,
    /// The same with some of the [`parts`] in place of these workloads, as the seed decides.
    Parts,
}

/// Which controllers run, and which faults occur.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) scope: Scope,
    /// Pods of services fail, nodes vanish, and numbers of replicas change. Bounds that these break
    /// without any fault of a controller are not checked then.
    pub(crate) disruption: bool,
    /// Watches are lost, clocks are set, and pods must be ready for some time.
    pub(crate) mishaps: bool,
    pub(crate) faults: Faults,
    /// Machines of a control plane.
    pub(crate) machines: usize,
}

impl Scenario {
    /// The factor by which there is more of everything, and more happens in a step, than in most
    /// worlds.
    pub(crate) fn size(&self) -> usize {
        (self.machines / MACHINES).max(1)
    }

    /// A scenario without faults.
    pub(crate) fn calm(scope: Scope) -> Self {
        Self {
            scope,
            disruption: false,
            mishaps: false,
            faults: Faults::default(),
            machines: PARTS_MACHINES,
        }
    }
}

/// Prints seed and scenario of a case that panics, so that it can be repeated.
struct CaseReport(u64, Scenario);

impl Drop for CaseReport {
    #[allow(clippy::print_stderr, reason = "the seed is what repeats a find")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("found with the seed {}: {:?}", self.0, self.1);
        }
    }
}

/// Runs a case.
fn play(seed: u64, scenario: Scenario) {
    drop(written_in(seed, scenario));
}

/// Runs a case, and returns every write of it.
fn written_in(seed: u64, scenario: Scenario) -> BTreeMap<&'static str, Vec<Event>> {
    let report = CaseReport(seed, scenario);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let steps = match scenario.scope {
        Scope::Workloads => STEPS,
        Scope::ControlPlane if scenario.size() > 1 => 2 * STEPS / FEWER_STEPS,
        Scope::ControlPlane | Scope::Parts => 2 * STEPS,
    };
    let life = async {
        let mut world = World::new(seed, scenario).await;
        for _ in 0..steps {
            world.step().await;
        }
        world.settle().await;
        world.history.logs
    };
    // tokio's budget would make a task yield after some number of operations, and the store's
    // thread decides when an operation is ready: the order of events would depend on speed.
    let written = runtime.block_on(tokio::task::unconstrained(life));
    drop(report);
    written
}

/// The seeds in [`ASKED`].
fn asked() -> Option<Range<u64>> {
    let asked = std::env::var(ASKED).ok()?;
    let (first, end) = asked.split_once("..").unwrap();
    Some(first.parse().unwrap()..end.parse().unwrap())
}

/// Runs a case for each seed.
fn play_all(scenario: Scenario) {
    let usual = match scenario.scope {
        Scope::Workloads => SEEDS_OF_WORKLOADS,
        Scope::ControlPlane if scenario.size() > 1 => SEEDS_OF_MANY,
        Scope::ControlPlane => SEEDS_OF_MACHINES,
        Scope::Parts => SEEDS_OF_PARTS,
    };
    for seed in asked().unwrap_or(usual) {
        play(seed, scenario);
    }
}

/// Invariants at every step: wanted replicas stay within `maxSurge`, and available pods within
/// `maxUnavailable`; a budget is never violated; a StatefulSet's pods are created in order, and no
/// pod is removed from its node; a Job runs no more pods at once than `parallelism`, none twice for
/// an index, and counts each end once; no node has two daemons. At the end all is as specified, and
/// nothing is an orphan.
#[test]
fn promises_hold_through_refused_calls_lost_watches_set_clocks_and_restarts() {
    let faults = Faults {
        refused: 8,
        lost: 0,
    };
    play_all(Scenario {
        scope: Scope::Workloads,
        disruption: false,
        mishaps: true,
        faults,
        machines: MACHINES,
    });
}

/// With lost answers, failing pods and dying nodes as well: ends are counted once, no pod is
/// removed from its node, nothing runs twice or beyond its number, and all reaches its
/// specification.
#[test]
fn workloads_reach_their_spec_after_any_sequence_of_events() {
    let faults = Faults {
        refused: 8,
        lost: 8,
    };
    play_all(Scenario {
        scope: Scope::Workloads,
        disruption: true,
        mishaps: true,
        faults,
        machines: MACHINES,
    });
}

/// The same for a whole control plane, with real schedulers and machines of limited capacity: no
/// scheduler overcommits a node or binds a pod twice; no pod waits for long while a node has room;
/// no node whose kubelet reports becomes unreachable; nothing with a living owner is collected.
#[test]
fn a_control_plane_keeps_its_promises_through_refused_calls_lost_watches_and_restarts() {
    let faults = Faults {
        refused: 8,
        lost: 0,
    };
    play_all(Scenario {
        scope: Scope::ControlPlane,
        disruption: false,
        mishaps: true,
        faults,
        machines: MACHINES,
    });
}

/// Also with lost answers, failing pods, and machines that become unreachable or lose power: pods
/// are evicted and collected only after their times, no identity runs twice, and everything
/// recovers when the machines do.
#[test]
fn a_control_plane_heals_after_its_machines_come_back() {
    let faults = Faults {
        refused: 8,
        lost: 8,
    };
    play_all(Scenario {
        scope: Scope::ControlPlane,
        disruption: true,
        mishaps: true,
        faults,
        machines: MACHINES,
    });
}

/// The same with dozens or hundreds of machines in two zones, of which all of one may fall silent.
#[test]
fn a_large_control_plane_heals_after_its_machines_come_back() {
    let faults = Faults {
        refused: 8,
        lost: 8,
    };
    let asked = std::env::var(NODES);
    play_all(Scenario {
        scope: Scope::ControlPlane,
        disruption: true,
        mishaps: true,
        faults,
        machines: asked.map_or(MANY_MACHINES, |number| number.parse().unwrap()),
    });
}

/// The same for further kinds: see [`parts`].
#[test]
fn parts_keep_their_promises_through_refused_calls_lost_watches_and_restarts() {
    let faults = Faults {
        refused: 8,
        lost: 0,
    };
    play_all(Scenario {
        scope: Scope::Parts,
        disruption: false,
        mishaps: true,
        faults,
        machines: PARTS_MACHINES,
    });
}

/// The same with lost answers, failing pods, and machines that become unreachable or lose power.
#[test]
fn parts_heal_after_their_machines_come_back() {
    let faults = Faults {
        refused: 8,
        lost: 8,
    };
    play_all(Scenario {
        scope: Scope::Parts,
        disruption: true,
        mishaps: true,
        faults,
        machines: PARTS_MACHINES,
    });
}

/// A fault can be examined only if its seed repeats it: the same writes, at the same times and in
/// the same order.
#[test]
fn a_seed_repeats_itself() {
    let faults = Faults {
        refused: 8,
        lost: 8,
    };
    for scope in [Scope::Workloads, Scope::ControlPlane, Scope::Parts] {
        let scenario = Scenario {
            scope,
            disruption: true,
            mishaps: true,
            faults,
            machines: MACHINES,
        };
        let [first, second] = [(); 2].map(|()| written_in(3, scenario));
        for (kind, events) in &first {
            // The strategy of volumes reads a clock of its own.
            let text = |event: &Event| {
                let text = format!("{event:?}");
                let words = text.split(", ");
                let words = words.filter(|word| !word.contains("last_phase_transition_time"));
                words.collect::<Vec<_>>().join(", ")
            };
            for (at, pair) in events.iter().zip(&second[kind]).enumerate() {
                assert_eq!(text(pair.0), text(pair.1), "{kind}, change {at}");
            }
            assert_eq!(events.len(), second[kind].len(), "{kind}");
        }
    }
}

/// Regressions: cases of other seeds that once showed a fault.
mod found {
    use super::*;

    #[test]
    fn a_rollout_goes_on_after_a_scaling_that_changes_nothing() {
        let faults = Faults {
            refused: 8,
            lost: 8,
        };
        play(
            17_025_865_414_621_594_633,
            Scenario {
                scope: Scope::Workloads,
                disruption: true,
                mishaps: false,
                faults,
                machines: MACHINES,
            },
        );
    }

    #[test]
    fn enough_pods_serve_while_the_stores_of_sets_and_of_pods_lag_differently() {
        let faults = Faults {
            refused: 8,
            lost: 0,
        };
        play(
            14_274_718_044_137_884_445,
            Scenario {
                scope: Scope::Workloads,
                disruption: false,
                mishaps: false,
                faults,
                machines: MACHINES,
            },
        );
    }

    #[test]
    fn a_budget_remembers_granted_evictions_while_clocks_are_set() {
        let faults = Faults {
            refused: 8,
            lost: 0,
        };
        for seed in [170, 225] {
            play(
                seed,
                Scenario {
                    scope: Scope::Workloads,
                    disruption: false,
                    mishaps: true,
                    faults,
                    machines: MACHINES,
                },
            );
        }
    }

    #[test]
    fn a_serving_pod_is_not_collected_while_the_clock_is_set_back() {
        let faults = Faults {
            refused: 8,
            lost: 0,
        };
        play(
            41,
            Scenario {
                scope: Scope::ControlPlane,
                disruption: false,
                mishaps: true,
                faults,
                machines: MACHINES,
            },
        );
    }
}
