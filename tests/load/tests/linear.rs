//! The checker catches what is known to be wrong and accepts what is known to be right.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use proptest::prelude::*;
use std::collections::BTreeMap;
use tests_load::linear::{Model, Timed, Verdict, check};
use tests_load::register::{Answer, Call, Joint, Register, Registers, check_each};

fn timed(began: u64, ended: u64, call: Call) -> Timed<Call> {
    Timed {
        call,
        began,
        ended: Some(ended),
    }
}

fn lost(began: u64, call: Call) -> Timed<Call> {
    Timed {
        call,
        began,
        ended: None,
    }
}

fn good(history: &[Timed<Call>]) {
    assert_eq!(
        check(&Register, history),
        Verdict::Linearizable,
        "{history:?}"
    );
}

fn bad(history: &[Timed<Call>]) {
    assert!(
        matches!(check(&Register, history), Verdict::Impossible(_)),
        "{history:?}"
    );
}

use Answer::{Done, Lost, Refused};
use Call::{Create, Delete, Read, Update};

#[test]
fn a_stale_read_is_caught_and_an_overlapping_one_is_not() {
    let made = timed(0, 1, Create(1, Done));
    bad(&[
        made.clone(),
        timed(2, 3, Update(1, 2, Done)),
        timed(4, 5, Read(Some(1))),
    ]);
    good(&[
        made.clone(),
        timed(2, 5, Update(1, 2, Done)),
        timed(3, 4, Read(Some(1))),
    ]);
    // Two readers see the write in the wrong order: the second began after the first had ended.
    bad(&[
        made.clone(),
        timed(2, 9, Update(1, 2, Done)),
        timed(3, 4, Read(Some(2))),
        timed(5, 6, Read(Some(1))),
    ]);
    bad(&[made, timed(2, 3, Read(None))]);
}

#[test]
fn lost_updates_and_double_creations_are_caught() {
    let made = timed(0, 1, Create(1, Done));
    bad(&[
        made.clone(),
        timed(2, 5, Update(1, 2, Done)),
        timed(3, 6, Update(1, 3, Done)),
    ]);
    good(&[
        made.clone(),
        timed(2, 5, Update(1, 2, Done)),
        timed(3, 6, Update(1, 3, Refused)),
    ]);
    bad(&[made.clone(), timed(2, 3, Update(1, 2, Refused))]);
    bad(&[made.clone(), timed(0, 3, Create(2, Done))]);
    good(&[made.clone(), timed(0, 3, Create(2, Refused))]);
    bad(&[
        made,
        timed(2, 3, Delete(1, Done)),
        timed(4, 5, Read(Some(1))),
    ]);
}

#[test]
fn an_acknowledged_write_that_a_crash_took_is_caught_and_an_unacknowledged_one_may_go_either_way() {
    let made = timed(0, 1, Create(1, Done));
    bad(&[
        made.clone(),
        timed(2, 3, Update(1, 2, Done)),
        timed(10, 11, Read(Some(1))),
    ]);
    good(&[
        made.clone(),
        lost(2, Update(1, 2, Lost)),
        timed(10, 11, Read(Some(1))),
    ]);
    good(&[
        made.clone(),
        lost(2, Update(1, 2, Lost)),
        timed(10, 11, Read(Some(2))),
    ]);
    // Once seen it stays, and it is never seen before it began.
    bad(&[
        made.clone(),
        lost(2, Update(1, 2, Lost)),
        timed(10, 11, Read(Some(2))),
        timed(12, 13, Read(Some(1))),
    ]);
    bad(&[
        made.clone(),
        timed(2, 3, Read(Some(2))),
        lost(4, Update(1, 2, Lost)),
    ]);
    // A late effect of a lost write is allowed, a third value is not.
    good(&[
        made.clone(),
        lost(2, Delete(1, Lost)),
        timed(3, 4, Read(Some(1))),
        timed(5, 6, Read(None)),
        timed(7, 8, Create(3, Done)),
    ]);
    bad(&[
        made,
        lost(2, Update(1, 2, Lost)),
        timed(10, 11, Read(Some(3))),
    ]);
}

#[test]
fn a_torn_transaction_is_caught() {
    let joint = |began, ended, call| Timed {
        call,
        began,
        ended: Some(ended),
    };
    let both = |from: Option<u64>, to: u64| {
        Joint::Write(vec![(1, from, Some(to)), (2, from, Some(to))], Done)
    };
    let seen = |one: u64, two: u64| Joint::Read(BTreeMap::from([(1, one), (2, two)]));
    let verdict = |reads: Joint| {
        check(
            &Registers,
            &[
                joint(0, 1, both(None, 1)),
                joint(2, 5, both(Some(1), 2)),
                joint(3, 4, reads),
            ],
        )
    };
    assert_eq!(verdict(seen(1, 1)), Verdict::Linearizable);
    assert_eq!(verdict(seen(2, 2)), Verdict::Linearizable);
    assert!(matches!(verdict(seen(1, 2)), Verdict::Impossible(_)));
}

#[test]
fn the_verdict_names_the_object() {
    let fine = vec![timed(0, 1, Create(1, Done))];
    let wrong = vec![timed(0, 1, Create(1, Done)), timed(2, 3, Read(None))];
    let histories = BTreeMap::from([("a".to_owned(), fine), ("b".to_owned(), wrong)]);
    assert!(
        check_each(&histories)
            .unwrap_err()
            .starts_with("b: no order")
    );
}

/// Runs calls one after another on a true register and gives each an interval around its moment.
fn history(calls: &[(u8, u8, u8)]) -> Vec<Timed<Call>> {
    let mut state: Option<u64> = None;
    let mut made = Vec::new();
    for (number, (kind, early, late)) in calls.iter().enumerate() {
        let moment = number as u64 * 10 + 1000;
        let value = number as u64;
        let answer = |holds: bool| if holds { Done } else { Refused };
        let old = state.unwrap_or(77_777);
        let call = match kind % 4 {
            0 => Create(value, answer(state.is_none())),
            1 => Update(old, value, answer(state.is_some())),
            2 => Delete(old, answer(state.is_some())),
            _ => Read(state),
        };
        state = Register.step(&state, &call).unwrap();
        made.push(Timed {
            call,
            began: moment - u64::from(*early % 40),
            ended: Some(moment + u64::from(*late % 40)),
        });
    }
    made
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_a_true_register_answered_is_accepted(calls in prop::collection::vec(any::<(u8, u8, u8)>(), 1..60)) {
        prop_assert_eq!(check(&Register, &history(&calls)), Verdict::Linearizable);
    }

    /// With calls that do not overlap there is one order only, so any other value in a read is
    /// impossible.
    #[test]
    fn a_forged_read_is_refused(calls in prop::collection::vec(any::<u8>(), 1..60), which in any::<prop::sample::Index>()) {
        let calls: Vec<(u8, u8, u8)> = calls.into_iter().map(|kind| (kind, 0, 0)).collect();
        let mut made = history(&calls);
        let reads: Vec<usize> = (0..made.len()).filter(|at| matches!(made[*at].call, Read(_))).collect();
        prop_assume!(!reads.is_empty());
        let at = *which.get(&reads);
        let Read(seen) = made[at].call else { unreachable!() };
        made[at].call = Read(if seen.is_some() { None } else { Some(0) });
        prop_assert!(matches!(check(&Register, &made), Verdict::Impossible(_)));
    }
}
