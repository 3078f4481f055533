//! Random stories: a pod's spec, the behaviour of its containers, and faults from outside.

use crate::simulation_story::{Behaviour, Fault, Story, Traits};
use proptest::prelude::*;

pub(super) fn story() -> impl Strategy<Value = Story> {
    let ends =
        proptest::option::weighted(0.8, (0_u16..900, prop_oneof![Just(0), Just(1), Just(137)]));
    let behaviour = (
        ends,
        any::<bool>(),
        (0_u16..90, proptest::bool::weighted(0.8)),
        0_u16..60,
        proptest::option::weighted(0.2, 0_u16..600),
        prop_oneof![3 => Just(0_u16), 1 => 1_u16..300],
    )
        .prop_map(|(ends, obeys, hook, starts, dies, takes)| Behaviour {
            takes,
            ends,
            obeys,
            hook,
            starts,
            dies,
        });
    let fault = (
        0_u16..3000,
        prop_oneof![
            Just(Fault::Delete),
            Just(Fault::Debug),
            Just(Fault::Image),
            Just(Fault::Evict),
            Just(Fault::AgentRestart),
            Just(Fault::Reboot),
            (-3600_i16..3600).prop_map(Fault::Clock),
            any::<bool>().prop_map(|anew| Fault::Resize { anew }),
            Just(Fault::ShorterGrace),
            Just(Fault::Gate),
        ],
    );
    let traits = |sidecars: f64| {
        let often = || proptest::bool::weighted(0.3);
        (
            proptest::bool::weighted(sidecars),
            often(),
            often(),
            often(),
            proptest::bool::weighted(0.1),
            often(),
        )
            .prop_map(
                |(sidecar, post_start, pre_stop, startup, restarts_all, own_grace)| Traits {
                    sidecar,
                    post_start,
                    pre_stop,
                    startup,
                    restarts_all,
                    own_grace,
                },
            )
    };
    // Only sidecars and main containers have hooks and probes.
    let init = traits(0.5).prop_map(|traits| {
        if traits.sidecar {
            traits
        } else {
            Traits {
                restarts_all: traits.restarts_all,
                ..Traits::default()
            }
        }
    });
    let volumes = prop_oneof![3 => Just(0_u16), 1 => 1_u16..300];
    (
        prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
        proptest::collection::vec(init, 0..4),
        proptest::collection::vec(traits(0.0), 1..4),
        (0_u16..60, proptest::bool::weighted(0.3), volumes),
        proptest::collection::vec(behaviour, 1..12),
        proptest::collection::vec(fault, 0..6),
    )
        .prop_map(
            |(policy, inits, mains, (grace, gate, volumes), behaviours, mut faults)| {
                faults.sort_unstable_by_key(|(at, _)| *at);
                Story {
                    policy,
                    inits,
                    mains,
                    grace,
                    gate,
                    volumes,
                    behaviours,
                    faults,
                }
            },
        )
}
