//! The supervisor's decisions: events and time in, effects out, no I/O.
//!
//! Guarantees: a service is restarted after a pause that doubles from 1 s to 30 s and is reset
//! after the service ran for a minute; a service that dies [`DEATHS`] times within [`WINDOW`]
//! reboots the machine. A shutdown first sends SIGTERM to the services that end others' work (the
//! agent, which gives containers their grace), then to the other services, then to all processes,
//! then SIGKILL; each step is bounded in time, and none is repeated. If the root is corrupted, all
//! services get SIGTERM at once: none of them can be trusted to do its work.

use std::time::Duration;

use agent_sys::power::End;
use agent_sys::process::Ended;
use config_machine::end::AGENT_END;
use config_machine::power::Order;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const GOOD_LIFE: Duration = Duration::from_secs(60);
/// Exits of one service within [`WINDOW`] after which the machine reboots.
pub const DEATHS: usize = 10;
/// See [`DEATHS`].
pub const WINDOW: Duration = Duration::from_secs(600);
/// A boot counts as healthy after all services ran for this time.
pub const HEALTHY: Duration = Duration::from_secs(600);
/// How long services that end first may take: the containers' grace and the agent's own time.
pub const ASK_FIRST: Duration = AGENT_END;
/// How long services may take to end when asked.
pub const ASK_SERVICES: Duration = Duration::from_secs(8);
/// How long all other processes may take.
pub const ASK_ALL: Duration = Duration::from_secs(2);

/// An event. Services are identified by their index in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A service was started as this process.
    Started(usize, i32),
    /// A service could not be started.
    NotStarted(usize),
    /// A process was reaped, a service or not.
    Ended(i32, Ended),
    /// A signal or the power button asks for a shutdown.
    EndRequested(End),
    /// The kernel saw corruption of the root.
    Corrupted,
    /// No process but init is left.
    Alone,
    /// Time passed.
    Tick,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Start a service.
    Start(usize),
    /// Report that a service ended and when it is started again.
    ReportRestart(usize, Ended, Duration),
    /// Report that all services are started.
    ReportStarted,
    /// A service can't be kept alive: count it and report it. A shutdown follows.
    GaveUp(usize),
    /// The boot was healthy: reset the count.
    Healthy,
    /// Report that the root is corrupted. Everything is stopped.
    ReportCorrupted,
    /// Report how the machine will end.
    ReportEnd(End),
    /// Send SIGTERM to a service.
    Ask(i32),
    /// Send SIGTERM to all processes.
    AskAll,
    /// Send SIGKILL to all processes.
    ForceAll,
    /// Unmount and end the machine; nothing comes after it.
    Finish(End),
}

/// How a service differs from others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServiceOptions {
    /// Its exit codes of an [`Order`] end the machine.
    pub may_end_machine: bool,
    /// It ends before the others, because it needs them for its own shutdown.
    pub ends_first: bool,
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
    options: ServiceOptions,
    was_started: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving {
        all_since: Option<Duration>,
        healthy: bool,
    },
    AskingFirst {
        end: End,
        until: Duration,
    },
    AskingServices {
        end: Option<End>,
        until: Duration,
    },
    AskingAll {
        end: Option<End>,
        until: Duration,
    },
    Held,
    Over,
}

/// The state of all services and of the shutdown.
#[derive(Debug, Clone)]
pub struct Supervisor {
    services: Vec<Service>,
    phase: Phase,
    reported_started: bool,
}

impl Supervisor {
    /// Begins with one service for each item; the effects start them all. Without services init
    /// only waits for a shutdown.
    pub fn new(services: &[ServiceOptions]) -> (Self, Vec<Effect>) {
        let service = |options: &ServiceOptions| Service {
            life: Life::Starting,
            pause: FIRST_PAUSE,
            deaths: Vec::new(),
            options: *options,
            was_started: false,
        };
        let services: Vec<Service> = services.iter().map(service).collect();
        let effects = (0..services.len()).map(Effect::Start).collect();
        let phase = if services.is_empty() {
            Phase::Held
        } else {
            Phase::Serving {
                all_since: None,
                healthy: false,
            }
        };
        (
            Self {
                services,
                phase,
                reported_started: false,
            },
            effects,
        )
    }

    /// Handles one event at `now` (by a monotonic clock) and returns the effects, in order.
    pub fn step(&mut self, now: Duration, event: Event) -> Vec<Effect> {
        match event {
            Event::Started(index, pid) => self.started(now, index, pid),
            Event::NotStarted(index) => self.died(now, index, Ended::Code(127)),
            Event::Ended(pid, how) => self.ended(now, pid, how),
            Event::EndRequested(end) => self.begin_end(now, Some(end)),
            Event::Corrupted => self.corrupted(now),
            Event::Alone => self.alone(),
            Event::Tick => self.tick(now),
        }
    }

    /// When the next tick is due, if nothing happens before.
    pub fn deadline(&self) -> Option<Duration> {
        match self.phase {
            Phase::Serving { all_since, healthy } => {
                let restart = self
                    .services
                    .iter()
                    .filter_map(|service| match service.life {
                        Life::Waiting { until } => Some(until),
                        Life::Starting | Life::Running { .. } | Life::Stopped => None,
                    });
                restart
                    .chain(all_since.filter(|_| !healthy).map(|since| since + HEALTHY))
                    .min()
            }
            Phase::AskingFirst { until, .. }
            | Phase::AskingServices { until, .. }
            | Phase::AskingAll { until, .. } => Some(until),
            Phase::Held | Phase::Over => None,
        }
    }

    /// Whether a shutdown is under way.
    pub fn is_ending(&self) -> bool {
        !matches!(self.phase, Phase::Serving { .. } | Phase::Held)
    }

    fn started(&mut self, now: Duration, index: usize, pid: i32) -> Vec<Effect> {
        let Some(service) = self.services.get_mut(index) else {
            return Vec::new();
        };
        service.life = Life::Running { pid, since: now };
        service.was_started = true;
        let ends_first = service.options.ends_first;
        match self.phase {
            Phase::Serving { .. } | Phase::Held => {}
            // The others get SIGTERM after those have ended.
            Phase::AskingFirst { .. } if !ends_first => return Vec::new(),
            Phase::AskingFirst { .. }
            | Phase::AskingServices { .. }
            | Phase::AskingAll { .. }
            | Phase::Over => {
                return vec![Effect::Ask(pid)];
            }
        }
        let first =
            !self.reported_started && self.services.iter().all(|service| service.was_started);
        self.reported_started |= first;
        self.note_health(now);
        first.then_some(Effect::ReportStarted).into_iter().collect()
    }

    fn note_health(&mut self, now: Duration) {
        let all = self
            .services
            .iter()
            .all(|service| matches!(service.life, Life::Running { .. }));
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
        let Some(service) = self.services.get_mut(index) else {
            return Vec::new();
        };
        if ending {
            service.life = Life::Stopped;
            return self.all_stopped(now);
        }
        if let Some(end) = ordered(how).filter(|_| service.options.may_end_machine) {
            return self.stop_after(now, index, end);
        }
        if matches!(service.life, Life::Running { since, .. } if now.saturating_sub(since) >= GOOD_LIFE)
        {
            service.pause = FIRST_PAUSE;
        }
        service
            .deaths
            .retain(|death| now.saturating_sub(*death) < WINDOW);
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
        vec![Effect::ReportRestart(index, how, pause)]
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
        let mut effects = vec![Effect::ReportCorrupted];
        effects.append(&mut self.begin_end(now, None));
        effects
    }

    /// Begins the shutdown; `None` stops the services and leaves the machine up. A requested
    /// shutdown takes precedence.
    fn begin_end(&mut self, now: Duration, end: Option<End>) -> Vec<Effect> {
        let mut effects: Vec<Effect> = end.map(Effect::ReportEnd).into_iter().collect();
        match &mut self.phase {
            Phase::Serving { .. } | Phase::Held => {}
            Phase::AskingServices { end: planned, .. } | Phase::AskingAll { end: planned, .. }
                if planned.is_none() =>
            {
                *planned = end;
                return effects;
            }
            Phase::AskingFirst { .. }
            | Phase::AskingServices { .. }
            | Phase::AskingAll { .. }
            | Phase::Over => {
                return Vec::new();
            }
        }
        for service in &mut self.services {
            if matches!(service.life, Life::Waiting { .. }) {
                service.life = Life::Stopped;
            }
        }
        let mut next = match end {
            Some(end) => {
                self.phase = Phase::AskingFirst {
                    end,
                    until: now + ASK_FIRST,
                };
                self.ask(|options| options.ends_first)
            }
            None => self.ask_services(now, None),
        };
        effects.append(&mut next);
        effects.append(&mut self.all_stopped(now));
        effects
    }

    /// Sends SIGTERM to the running services whose options `which` selects.
    fn ask(&self, which: fn(ServiceOptions) -> bool) -> Vec<Effect> {
        let concerned = self
            .services
            .iter()
            .filter(|service| which(service.options));
        let pid = |service: &Service| match service.life {
            Life::Running { pid, .. } => Some(Effect::Ask(pid)),
            Life::Starting | Life::Waiting { .. } | Life::Stopped => None,
        };
        concerned.filter_map(pid).collect()
    }

    fn ask_services(&mut self, now: Duration, end: Option<End>) -> Vec<Effect> {
        self.phase = Phase::AskingServices {
            end,
            until: now + ASK_SERVICES,
        };
        self.ask(|_| true)
    }

    /// Goes on to the next step of a shutdown after all services of this step have stopped.
    fn all_stopped(&mut self, now: Duration) -> Vec<Effect> {
        let stopped = |service: &Service| service.life == Life::Stopped;
        match self.phase {
            Phase::AskingFirst { end, .. }
                if self
                    .services
                    .iter()
                    .filter(|service| service.options.ends_first)
                    .all(stopped) =>
            {
                let mut effects = self.ask_services(now, Some(end));
                effects.append(&mut self.all_stopped(now));
                effects
            }
            Phase::AskingServices { end, .. } if self.services.iter().all(stopped) => {
                self.ask_all(now, end)
            }
            Phase::AskingFirst { .. }
            | Phase::AskingServices { .. }
            | Phase::Serving { .. }
            | Phase::AskingAll { .. }
            | Phase::Held
            | Phase::Over => Vec::new(),
        }
    }

    fn ask_all(&mut self, now: Duration, end: Option<End>) -> Vec<Effect> {
        self.phase = Phase::AskingAll {
            end,
            until: now + ASK_ALL,
        };
        vec![Effect::AskAll]
    }

    fn alone(&mut self) -> Vec<Effect> {
        match self.phase {
            Phase::AskingAll { end, .. } => self.finish(end),
            Phase::Serving { .. }
            | Phase::AskingFirst { .. }
            | Phase::AskingServices { .. }
            | Phase::Held
            | Phase::Over => Vec::new(),
        }
    }

    fn finish(&mut self, end: Option<End>) -> Vec<Effect> {
        self.phase = if end.is_some() {
            Phase::Over
        } else {
            Phase::Held
        };
        self.services.clear();
        end.map(Effect::Finish).into_iter().collect()
    }

    fn tick(&mut self, now: Duration) -> Vec<Effect> {
        match self.phase {
            Phase::Serving { all_since, healthy } => {
                let mut effects = Vec::new();
                if !healthy && all_since.is_some_and(|since| now.saturating_sub(since) >= HEALTHY) {
                    self.phase = Phase::Serving {
                        all_since,
                        healthy: true,
                    };
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
            Phase::AskingFirst { end, until } if until <= now => {
                let mut effects = self.ask_services(now, Some(end));
                effects.append(&mut self.all_stopped(now));
                effects
            }
            Phase::AskingServices { end, until } if until <= now => self.ask_all(now, end),
            Phase::AskingAll { end, until } if until <= now => {
                let mut effects = vec![Effect::ForceAll];
                effects.append(&mut self.finish(end));
                effects
            }
            Phase::AskingFirst { .. }
            | Phase::AskingServices { .. }
            | Phase::AskingAll { .. }
            | Phase::Held
            | Phase::Over => Vec::new(),
        }
    }
}

/// The end that an exit code asks for.
fn ordered(how: Ended) -> Option<End> {
    let Ended::Code(code) = how else { return None };
    let mut all = Order::ALL.into_iter();
    let order = all.find(|order| i32::from(order.exit_code()) == code)?;
    Some(match order {
        Order::Reboot => End::Reboot,
        Order::PowerOff => End::PowerOff,
    })
}

#[cfg(test)]
#[path = "supervisor_tests.rs"]
mod tests;
