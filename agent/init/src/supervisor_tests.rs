//! Scenarios and properties of the supervisor.

use std::collections::BTreeSet;
use std::time::Duration;

use agent_sys::power::End;
use agent_sys::process::Ended;
use proptest::prelude::*;

use super::{
    ASK_ALL, ASK_FIRST, ASK_SERVICES, DEATHS, Effect, Event, HEALTHY, LONGEST_PAUSE,
    ServiceOptions, Supervisor,
};

const PLAIN: ServiceOptions = ServiceOptions {
    may_end_machine: false,
    ends_first: false,
};
const TRUSTED: ServiceOptions = ServiceOptions {
    may_end_machine: true,
    ..PLAIN
};
const AGENT: ServiceOptions = ServiceOptions {
    ends_first: true,
    ..TRUSTED
};

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn running(count: usize) -> Supervisor {
    let (mut supervisor, effects) = Supervisor::new(&vec![TRUSTED; count]);
    assert_eq!(effects.len(), count);
    for (index, pid) in (0..count).zip(100..) {
        supervisor.step(at(0), Event::Started(index, pid));
    }
    supervisor
}

#[test]
fn the_start_is_reported_once_all_services_run() {
    let (mut supervisor, _) = Supervisor::new(&[PLAIN, TRUSTED]);
    assert_eq!(supervisor.step(at(0), Event::Started(0, 10)), []);
    assert_eq!(
        supervisor.step(at(0), Event::Started(1, 11)),
        [Effect::ReportStarted]
    );
}

#[test]
fn pauses_double_and_are_reset_after_a_minute() {
    let mut supervisor = running(1);
    let mut pauses = Vec::new();
    let mut now = 0;
    for pid in 100..106 {
        let effects = supervisor.step(at(now), Event::Ended(pid, Ended::Code(1)));
        if let [Effect::ReportRestart(0, _, pause)] = effects.as_slice() {
            pauses.push(pause.as_secs());
            now += pause.as_secs();
        }
        assert_eq!(supervisor.step(at(now), Event::Tick), [Effect::Start(0)]);
        supervisor.step(at(now), Event::Started(0, pid + 1));
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30]);
    let effects = supervisor.step(at(now + 60), Event::Ended(106, Ended::Signal(9)));
    assert_eq!(effects, [Effect::ReportRestart(0, Ended::Signal(9), at(1))]);
}

#[test]
fn a_service_that_cannot_be_kept_alive_ends_in_a_counted_reboot() {
    let mut supervisor = running(2);
    let mut now = 0;
    for death in 1..=DEATHS {
        let pid = 1000 + i32::try_from(death).expect("small");
        supervisor.step(at(now), Event::Started(0, pid));
        let effects = supervisor.step(at(now), Event::Ended(pid, Ended::Code(1)));
        if death == DEATHS {
            assert_eq!(
                effects,
                [
                    Effect::GaveUp(0),
                    Effect::ReportEnd(End::Reboot),
                    Effect::Ask(101)
                ]
            );
        } else {
            now += 30;
            assert_eq!(supervisor.step(at(now), Event::Tick), [Effect::Start(0)]);
        }
    }
    assert!(supervisor.is_ending());
}

#[test]
fn a_shutdown_terms_services_then_all_then_kills() {
    let mut supervisor = running(2);
    let effects = supervisor.step(at(5), Event::EndRequested(End::PowerOff));
    assert_eq!(
        effects,
        [
            Effect::ReportEnd(End::PowerOff),
            Effect::Ask(100),
            Effect::Ask(101)
        ]
    );
    assert_eq!(
        supervisor.step(at(6), Event::Ended(100, Ended::Code(0))),
        []
    );
    assert_eq!(supervisor.deadline(), Some(at(5) + ASK_SERVICES));
    assert_eq!(
        supervisor.step(at(5) + ASK_SERVICES, Event::Tick),
        [Effect::AskAll]
    );
    let late = at(5) + ASK_SERVICES + ASK_ALL;
    assert_eq!(
        supervisor.step(late, Event::Tick),
        [Effect::ForceAll, Effect::Finish(End::PowerOff)]
    );
    assert_eq!(supervisor.step(late, Event::EndRequested(End::Reboot)), []);
}

/// containerd and the agent, which run.
fn machine() -> Supervisor {
    let (mut supervisor, _) = Supervisor::new(&[PLAIN, AGENT]);
    supervisor.step(at(0), Event::Started(0, 100));
    supervisor.step(at(0), Event::Started(1, 101));
    supervisor
}

#[test]
fn containerd_ends_after_the_agent_has_ended_the_containers() {
    let mut supervisor = machine();
    let asked = supervisor.step(at(5), Event::EndRequested(End::PowerOff));
    assert_eq!(asked, [Effect::ReportEnd(End::PowerOff), Effect::Ask(101)]);
    assert_eq!(supervisor.deadline(), Some(at(5) + ASK_FIRST));
    assert_eq!(supervisor.step(at(60), Event::Tick), []);
    assert_eq!(
        supervisor.step(at(60), Event::EndRequested(End::Reboot)),
        [],
        "the first requested shutdown counts"
    );
    assert_eq!(
        supervisor.step(at(61), Event::Ended(101, Ended::Code(0))),
        [Effect::Ask(100)]
    );
    assert_eq!(
        supervisor.step(at(62), Event::Ended(100, Ended::Code(0))),
        [Effect::AskAll]
    );
    assert_eq!(
        supervisor.step(at(62), Event::Alone),
        [Effect::Finish(End::PowerOff)]
    );
}

#[test]
fn an_agent_that_ends_with_an_orders_code_ends_the_machine_in_order() {
    for (code, end) in [(100, End::Reboot), (101, End::PowerOff)] {
        let mut supervisor = machine();
        // The agent has ended the containers, and containerd is asked next.
        assert_eq!(
            supervisor.step(at(5), Event::Ended(101, Ended::Code(code))),
            [Effect::ReportEnd(end), Effect::Ask(100)]
        );
        assert_eq!(
            supervisor.step(at(6), Event::Ended(100, Ended::Code(0))),
            [Effect::AskAll]
        );
        assert_eq!(supervisor.step(at(6), Event::Alone), [Effect::Finish(end)]);
    }
    // The same code from another service, and other codes from the agent, are a death like any
    // other.
    for (pid, code) in [(100, 100), (101, 0), (101, 70), (101, 102)] {
        let effects = machine().step(at(5), Event::Ended(pid, Ended::Code(code)));
        assert!(
            matches!(effects[..], [Effect::ReportRestart(..)]),
            "{effects:?}"
        );
    }
}

#[test]
fn an_agent_that_does_not_end_in_time_is_not_waited_for() {
    let mut supervisor = machine();
    supervisor.step(at(5), Event::EndRequested(End::Reboot));
    let late = at(5) + ASK_FIRST;
    assert_eq!(
        supervisor.step(late, Event::Tick),
        [Effect::Ask(100), Effect::Ask(101)]
    );
    assert_eq!(
        supervisor.step(late + ASK_SERVICES, Event::Tick),
        [Effect::AskAll]
    );
}

#[test]
fn on_a_corrupted_root_all_services_end_at_once() {
    let asked = machine().step(at(5), Event::Corrupted);
    assert_eq!(
        asked,
        [Effect::ReportCorrupted, Effect::Ask(100), Effect::Ask(101)]
    );
}

#[test]
fn a_shutdown_is_quick_if_all_processes_end() {
    let mut supervisor = running(1);
    supervisor.step(at(5), Event::EndRequested(End::Reboot));
    assert_eq!(
        supervisor.step(at(6), Event::Ended(100, Ended::Code(0))),
        [Effect::AskAll]
    );
    assert_eq!(
        supervisor.step(at(6), Event::Alone),
        [Effect::Finish(End::Reboot)]
    );
}

#[test]
fn only_a_trusted_exit_code_ends_the_machine() {
    let (mut supervisor, _) = Supervisor::new(&[PLAIN, TRUSTED]);
    supervisor.step(at(0), Event::Started(0, 1000));
    supervisor.step(at(0), Event::Started(1, 1001));
    let effects = supervisor.step(at(1), Event::Ended(1000, Ended::Code(100)));
    assert_eq!(effects, [Effect::ReportRestart(0, Ended::Code(100), at(1))]);
    let effects = supervisor.step(at(1), Event::Ended(1001, Ended::Code(101)));
    assert_eq!(effects, [Effect::ReportEnd(End::PowerOff), Effect::AskAll]);
}

#[test]
fn corruption_stops_all_and_waits_for_a_shutdown() {
    let mut supervisor = running(1);
    assert_eq!(
        supervisor.step(at(1), Event::Corrupted),
        [Effect::ReportCorrupted, Effect::Ask(100)]
    );
    assert_eq!(
        supervisor.step(at(2), Event::Ended(100, Ended::Code(0))),
        [Effect::AskAll]
    );
    assert_eq!(supervisor.step(at(2), Event::Alone), []);
    assert_eq!(supervisor.step(at(9), Event::Corrupted), []);
    let effects = supervisor.step(at(9), Event::EndRequested(End::PowerOff));
    assert_eq!(effects, [Effect::ReportEnd(End::PowerOff), Effect::AskAll]);
    assert_eq!(
        supervisor.step(at(9), Event::Alone),
        [Effect::Finish(End::PowerOff)]
    );
}

#[test]
fn a_boot_is_healthy_once_after_ten_minutes_with_all_services() {
    let mut supervisor = running(2);
    assert_eq!(supervisor.deadline(), Some(HEALTHY));
    assert_eq!(supervisor.step(HEALTHY, Event::Tick), [Effect::Healthy]);
    assert_eq!(supervisor.deadline(), None);
    assert_eq!(supervisor.step(HEALTHY * 2, Event::Tick), []);
}

fn any_event() -> impl Strategy<Value = Event> {
    let end = prop_oneof![Just(End::Reboot), Just(End::PowerOff)];
    let how = prop_oneof![
        (0..110).prop_map(Ended::Code),
        (1..20).prop_map(Ended::Signal)
    ];
    prop_oneof![
        8 => (0_i32..40, how).prop_map(|(pid, how)| Event::Ended(pid, how)),
        1 => end.prop_map(Event::EndRequested),
        1 => Just(Event::Corrupted),
        1 => Just(Event::Alone),
        8 => Just(Event::Tick),
    ]
}

proptest! {
    /// For any events: a service never has two processes, nothing starts after a shutdown began, at
    /// most one finish comes out and nothing after it, and the shutdown ends within its time.
    #[test]
    fn no_service_starts_twice_or_during_a_shutdown(events in prop::collection::vec((any_event(), 0_u64..40), 1..200)) {
        let (mut supervisor, effects) = Supervisor::new(&[PLAIN, AGENT]);
        let mut world = World::default();
        world.apply(&mut supervisor, at(0), effects);
        let mut now = at(0);
        for (event, pause) in events {
            now += at(pause);
            let event = match event {
                // Pids that don't run are noise, as orphans are.
                Event::Ended(pid, how) => { world.alive.retain(|(_, own)| *own != pid); Event::Ended(pid, how) }
                Event::Started(..) | Event::NotStarted(_) | Event::EndRequested(_) | Event::Corrupted | Event::Alone | Event::Tick => event,
            };
            let effects = supervisor.step(now, event);
            world.apply(&mut supervisor, now, effects);
            prop_assert!(supervisor.deadline().is_none_or(|due| due <= now + HEALTHY.max(LONGEST_PAUSE)));
        }
        let effects = supervisor.step(now, Event::EndRequested(End::Reboot));
        world.apply(&mut supervisor, now, effects);
        for wait in [ASK_FIRST, ASK_SERVICES, ASK_ALL] {
            now += wait;
            let effects = supervisor.step(now, Event::Tick);
            world.apply(&mut supervisor, now, effects);
        }
        prop_assert_eq!(world.finishes, 1);
    }
}

#[derive(Default)]
struct World {
    alive: BTreeSet<(usize, i32)>,
    next: i32,
    finishes: usize,
    ending: bool,
}

impl World {
    fn apply(&mut self, supervisor: &mut Supervisor, now: Duration, effects: Vec<Effect>) {
        for effect in effects {
            assert_eq!(
                self.finishes, 0,
                "nothing comes after the finish, but {effect:?} did"
            );
            match effect {
                Effect::Start(index) => {
                    assert!(!self.ending, "nothing starts after the shutdown began");
                    assert!(
                        self.alive.iter().all(|(own, _)| *own != index),
                        "service {index} runs already"
                    );
                    self.next = (self.next + 1) % 40;
                    self.alive.insert((index, self.next));
                    let effects = supervisor.step(now, Event::Started(index, self.next));
                    self.apply(supervisor, now, effects);
                }
                Effect::ReportEnd(_) | Effect::ReportCorrupted => self.ending = true,
                Effect::Finish(_) => self.finishes += 1,
                Effect::AskAll
                | Effect::Ask(_)
                | Effect::ForceAll
                | Effect::GaveUp(_)
                | Effect::Healthy
                | Effect::ReportStarted
                | Effect::ReportRestart(..) => {}
            }
        }
    }
}
