//! The supervisor's decisions: events and time in, effects out, nothing done here.
//!
//! Guarantees: a service is restarted after a pause that doubles from 1 s to 30 s and is forgotten once it lived for a
//! minute; a service that dies [`DEATHS`] times within [`WINDOW`] ends the machine by a reboot; an end goes through
//! asking the services, asking everybody, then force, each step bounded in time, and never turns back.

use std::time::Duration;

use agent_sys::power::End;
use agent_sys::process::Ended;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const GOOD_LIFE: Duration = Duration::from_secs(60);
/// So many deaths of one service within [`WINDOW`] mean that it can't be kept alive.
pub const DEATHS: usize = 10;
/// See [`DEATHS`].
pub const WINDOW: Duration = Duration::from_secs(600);
/// All services alive for so long make the boot a healthy one.
pub const HEALTHY: Duration = Duration::from_secs(600);
/// How long services may take to end when asked.
pub const ASK_SERVICES: Duration = Duration::from_secs(8);
/// How long everybody else may take.
pub const ASK_ALL: Duration = Duration::from_secs(2);
/// A service's exit code that asks for a reboot.
pub const WANTS_REBOOT: i32 = 100;
/// A service's exit code that asks for power-off.
pub const WANTS_POWER_OFF: i32 = 101;

/// What happened. Services are known by their place in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// An asked-for start gave this process.
    Started(usize, i32),
    /// An asked-for start failed.
    NotStarted(usize),
    /// A process was reaped, a service or not.
    Ended(i32, Ended),
    /// A signal or the power button asks for an end.
    Asked(End),
    /// The kernel saw corruption of the root.
    Corrupted,
    /// No process is left but init.
    Alone,
    /// Time passed.
    Tick,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Start a service.
    Start(usize),
    /// Tell that a service ended and when it is started again.
    TellRestart(usize, Ended, Duration),
    /// Tell that all services are started.
    TellStarted,
    /// A service can't be kept alive: count it, tell it. An end follows.
    GaveUp(usize),
    /// The boot was a healthy one: forget what was counted.
    Healthy,
    /// Tell that the root is corrupted. Everything is stopped.
    TellCorrupted,
    /// Tell how the machine will end.
    TellEnd(End),
    /// Ask a service to end.
    Ask(i32),
    /// Ask everybody.
    AskAll,
    /// End everybody at once.
    ForceAll,
    /// Unmount and end the machine; nothing comes after it.
    Finish(End),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Starting,
    Running { pid: i32, since: Duration },
    Waiting { until: Duration },
    Stopped,
}

#[derive(Debug, Clone)]
struct Service {
    life: Life,
    pause: Duration,
    deaths: Vec<Duration>,
    may_end_machine: bool,
    was_started: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving { all_since: Option<Duration>, healthy: bool },
    AskingServices { end: Option<End>, until: Duration },
    AskingAll { end: Option<End>, until: Duration },
    Held,
    Over,
}

/// The state of all services and of the machine's end.
#[derive(Debug, Clone)]
pub struct Supervisor {
    services: Vec<Service>,
    phase: Phase,
    told_started: bool,
}

impl Supervisor {
    /// Begins with one service for each item, which says whether its exit code may end the machine; the effects start
    /// them all. With none the machine is held: it only waits for an end.
    pub fn new(may_end_machine: &[bool]) -> (Self, Vec<Effect>) {
        let service = |may: &bool| Service {
            life: Life::Starting,
            pause: FIRST_PAUSE,
            deaths: Vec::new(),
            may_end_machine: *may,
            was_started: false,
        };
        let services: Vec<Service> = may_end_machine.iter().map(service).collect();
        let effects = (0..services.len()).map(Effect::Start).collect();
        let phase = if services.is_empty() { Phase::Held } else { Phase::Serving { all_since: None, healthy: false } };
        (Self { services, phase, told_started: false }, effects)
    }

    /// Takes one event at `now` (any clock that doesn't go back) and says what to do, in order.
    pub fn step(&mut self, now: Duration, event: Event) -> Vec<Effect> {
        match event {
            Event::Started(index, pid) => self.started(now, index, pid),
            Event::NotStarted(index) => self.died(now, index, Ended::Code(127)),
            Event::Ended(pid, how) => self.ended(now, pid, how),
            Event::Asked(end) => self.begin_end(now, Some(end)),
            Event::Corrupted => self.corrupted(now),
            Event::Alone => self.alone(),
            Event::Tick => self.tick(now),
        }
    }

    /// When the next tick is due, if nothing happens before.
    pub fn deadline(&self) -> Option<Duration> {
        match self.phase {
            Phase::Serving { all_since, healthy } => {
                let restart = self.services.iter().filter_map(|service| match service.life {
                    Life::Waiting { until } => Some(until),
                    Life::Starting | Life::Running { .. } | Life::Stopped => None,
                });
                restart.chain(all_since.filter(|_| !healthy).map(|since| since + HEALTHY)).min()
            }
            Phase::AskingServices { until, .. } | Phase::AskingAll { until, .. } => Some(until),
            Phase::Held | Phase::Over => None,
        }
    }

    /// Whether an end is under way.
    pub fn is_ending(&self) -> bool {
        !matches!(self.phase, Phase::Serving { .. } | Phase::Held)
    }

    fn started(&mut self, now: Duration, index: usize, pid: i32) -> Vec<Effect> {
        let Some(service) = self.services.get_mut(index) else { return Vec::new() };
        service.life = Life::Running { pid, since: now };
        service.was_started = true;
        if self.is_ending() {
            return vec![Effect::Ask(pid)];
        }
        let first = !self.told_started && self.services.iter().all(|service| service.was_started);
        self.told_started |= first;
        self.note_health(now);
        first.then_some(Effect::TellStarted).into_iter().collect()
    }

    fn note_health(&mut self, now: Duration) {
        let all = self.services.iter().all(|service| matches!(service.life, Life::Running { .. }));
        if let Phase::Serving { all_since, .. } = &mut self.phase {
            *all_since = all.then_some(all_since.unwrap_or(now));
        }
    }

    fn ended(&mut self, now: Duration, pid: i32, how: Ended) -> Vec<Effect> {
        let is_it = |service: &Service| matches!(service.life, Life::Running { pid: own, .. } if own == pid);
        match self.services.iter().position(is_it) {
            Some(index) => self.died(now, index, how),
            None => Vec::new(),
        }
    }

    fn died(&mut self, now: Duration, index: usize, how: Ended) -> Vec<Effect> {
        let ending = self.is_ending();
        let Some(service) = self.services.get_mut(index) else { return Vec::new() };
        if ending {
            service.life = Life::Stopped;
            return self.all_stopped(now);
        }
        match how {
            Ended::Code(WANTS_REBOOT) if service.may_end_machine => return self.stop_after(now, index, End::Reboot),
            Ended::Code(WANTS_POWER_OFF) if service.may_end_machine => {
                return self.stop_after(now, index, End::PowerOff);
            }
            Ended::Code(_) | Ended::Signal(_) => {}
        }
        if matches!(service.life, Life::Running { since, .. } if now.saturating_sub(since) >= GOOD_LIFE) {
            service.pause = FIRST_PAUSE;
        }
        service.deaths.retain(|death| now.saturating_sub(*death) < WINDOW);
        service.deaths.push(now);
        if service.deaths.len() >= DEATHS {
            let mut effects = vec![Effect::GaveUp(index)];
            effects.append(&mut self.stop_after(now, index, End::Reboot));
            return effects;
        }
        let pause = service.pause;
        service.life = Life::Waiting { until: now + pause };
        service.pause = (pause * 2).min(LONGEST_PAUSE);
        self.note_health(now);
        vec![Effect::TellRestart(index, how, pause)]
    }

    fn stop_after(&mut self, now: Duration, index: usize, end: End) -> Vec<Effect> {
        if let Some(service) = self.services.get_mut(index) {
            service.life = Life::Stopped;
        }
        self.begin_end(now, Some(end))
    }

    fn corrupted(&mut self, now: Duration) -> Vec<Effect> {
        if self.is_ending() || self.phase == Phase::Held {
            return Vec::new();
        }
        let mut effects = vec![Effect::TellCorrupted];
        effects.append(&mut self.begin_end(now, None));
        effects
    }

    /// Begins the end; `None` ends in holding the machine without services. An asked-for end wins over holding.
    fn begin_end(&mut self, now: Duration, end: Option<End>) -> Vec<Effect> {
        let mut effects: Vec<Effect> = end.map(Effect::TellEnd).into_iter().collect();
        match &mut self.phase {
            Phase::Serving { .. } | Phase::Held => {}
            Phase::AskingServices { end: planned, .. } | Phase::AskingAll { end: planned, .. } if planned.is_none() => {
                *planned = end;
                return effects;
            }
            Phase::AskingServices { .. } | Phase::AskingAll { .. } | Phase::Over => return Vec::new(),
        }
        self.phase = Phase::AskingServices { end, until: now + ASK_SERVICES };
        for service in &mut self.services {
            match service.life {
                Life::Running { pid, .. } => effects.push(Effect::Ask(pid)),
                Life::Waiting { .. } => service.life = Life::Stopped,
                Life::Starting | Life::Stopped => {}
            }
        }
        effects.append(&mut self.all_stopped(now));
        effects
    }

    fn all_stopped(&mut self, now: Duration) -> Vec<Effect> {
        let stopped = self.services.iter().all(|service| service.life == Life::Stopped);
        match self.phase {
            Phase::AskingServices { end, .. } if stopped => self.ask_all(now, end),
            Phase::AskingServices { .. }
            | Phase::Serving { .. }
            | Phase::AskingAll { .. }
            | Phase::Held
            | Phase::Over => Vec::new(),
        }
    }

    fn ask_all(&mut self, now: Duration, end: Option<End>) -> Vec<Effect> {
        self.phase = Phase::AskingAll { end, until: now + ASK_ALL };
        vec![Effect::AskAll]
    }

    fn alone(&mut self) -> Vec<Effect> {
        match self.phase {
            Phase::AskingAll { end, .. } => self.finish(end),
            Phase::Serving { .. } | Phase::AskingServices { .. } | Phase::Held | Phase::Over => Vec::new(),
        }
    }

    fn finish(&mut self, end: Option<End>) -> Vec<Effect> {
        self.phase = if end.is_some() { Phase::Over } else { Phase::Held };
        self.services.clear();
        end.map(Effect::Finish).into_iter().collect()
    }

    fn tick(&mut self, now: Duration) -> Vec<Effect> {
        match self.phase {
            Phase::Serving { all_since, healthy } => {
                let mut effects = Vec::new();
                if !healthy && all_since.is_some_and(|since| now.saturating_sub(since) >= HEALTHY) {
                    self.phase = Phase::Serving { all_since, healthy: true };
                    effects.push(Effect::Healthy);
                }
                for (index, service) in self.services.iter_mut().enumerate() {
                    if matches!(service.life, Life::Waiting { until } if until <= now) {
                        service.life = Life::Starting;
                        effects.push(Effect::Start(index));
                    }
                }
                effects
            }
            Phase::AskingServices { end, until } if until <= now => self.ask_all(now, end),
            Phase::AskingAll { end, until } if until <= now => {
                let mut effects = vec![Effect::ForceAll];
                effects.append(&mut self.finish(end));
                effects
            }
            Phase::AskingServices { .. } | Phase::AskingAll { .. } | Phase::Held | Phase::Over => Vec::new(),
        }
    }
}

#[cfg(test)]
#[path = "supervisor_tests.rs"]
mod tests;
