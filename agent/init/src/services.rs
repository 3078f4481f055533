//! The supervisor's driver: one poll for signals, output, the power button and the clock.

use std::fs;
use std::io::{PipeReader, Read as _};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use agent_sys::clock::since_boot;
use agent_sys::landlock::Domain;
use agent_sys::power::End;
use agent_sys::process::{self, Program};
use agent_sys::signal::{Heard, Signals, wait_readable};
use agent_sys::verity::{Health, health};

use config_machine::journal::FOLDER;

use crate::console::Console;
use crate::fatal::Fatal;
use crate::initrd::{Corrupted, ROOT_NAME};
use crate::lines::Splitter;
use crate::output::Output;
use crate::supervisor::{Effect, Event, ServiceOptions, Supervisor};
use crate::{button, shutdown};

/// How often the root's dm-verity status is checked.
const HEALTH_PERIOD: Duration = Duration::from_secs(5);
/// How long killed processes may take to exit.
const FORCE_LIMIT: Duration = Duration::from_secs(2);
const READ_CHUNK: usize = 16 << 10;
/// Most chunks read from one service before others have their turn.
const MAX_CHUNKS: usize = 16;
const COUNTER: &str = "/var/lib/pratique/init/unhealthy-boots";
/// After this many consecutive boots in which init gave up on a service, services are not started
/// again.
pub const UNHEALTHY_LIMIT: u32 = 3;

const VERITY_CURE: &str = "everything is stopped; write the image again or replace the disk";

/// A program that is kept running.
#[derive(Debug, Clone)]
pub struct Service {
    /// Its short name, in messages and as the log file's name.
    pub name: &'static str,
    /// What is run.
    pub program: Program,
    /// How it differs from other services.
    pub options: ServiceOptions,
    /// It runs programs of others: no signal of its own, nor of anything that it starts, reaches a
    /// service that is not contained.
    pub contained: bool,
}

/// Makes any panic in this process end in a reboot, after a line on the console.
pub fn reboot_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        let place = info
            .location()
            .map(|at| format!("{}:{}", at.file(), at.line()))
            .unwrap_or_default();
        Console::open().line(&format!(
            "pratique: FATAL PANIC: init failed at {place}; rebooting, report it"
        ));
        agent_sys::power::sync();
        drop(agent_sys::power::end(End::Reboot));
    }));
}

/// How many consecutive boots ended because init gave up on a service.
pub fn unhealthy_boots() -> u32 {
    fs::read_to_string(COUNTER)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Resets that count.
pub fn forget_unhealthy_boots() {
    // Without the file there is nothing to reset.
    drop(fs::remove_file(COUNTER));
}

/// Keeps `services` running until the shutdown; without services it only waits for the shutdown.
/// Contained services start in `domain`, and nowhere else.
pub fn run(
    console: &Console,
    signals: Signals,
    services: Vec<Service>,
    domain: Option<Domain>,
) -> ExitCode {
    let names: Vec<&'static str> = services.iter().map(|service| service.name).collect();
    let options: Vec<ServiceOptions> = services.iter().map(|service| service.options).collect();
    let (supervisor, effects) = Supervisor::new(&options);
    let mut driver = Driver {
        console,
        signals,
        supervisor,
        output: Some(Output::start(&names, console.clone())),
        streams: services.iter().map(|_| Stream::default()).collect(),
        services,
        domain,
        buttons: button::open(),
        next_health: since_boot(),
    };
    driver.perform(effects);
    loop {
        driver.turn();
    }
}

#[derive(Debug, Default)]
struct Stream {
    pipes: Vec<PipeReader>,
    splitter: Splitter,
}

#[derive(Debug)]
struct Driver<'a> {
    console: &'a Console,
    signals: Signals,
    supervisor: Supervisor,
    output: Option<Output>,
    services: Vec<Service>,
    domain: Option<Domain>,
    streams: Vec<Stream>,
    buttons: Vec<fs::File>,
    next_health: Duration,
}

impl Driver<'_> {
    fn turn(&mut self) {
        self.wait();
        while let Some(heard) = self.signals.take() {
            match heard {
                Heard::ChildEnded => {}
                Heard::PowerOff => self.event(Event::EndRequested(End::PowerOff)),
                Heard::Reboot => self.event(Event::EndRequested(End::Reboot)),
            }
        }
        if self.read_buttons() {
            self.event(Event::EndRequested(End::PowerOff));
        }
        self.read_output();
        while let Some((pid, how)) = process::reap() {
            self.event(Event::Ended(pid, how));
        }
        if self.supervisor.is_ending() && !process::has_children() {
            self.event(Event::Alone);
        }
        self.ask_health();
        self.event(Event::Tick);
    }

    fn wait(&self) {
        let now = since_boot();
        let due = self
            .supervisor
            .deadline()
            .map_or(self.next_health, |due| due.min(self.next_health));
        // Rounded up, so that the time has come when the poll returns.
        let wait = due.saturating_sub(now) + Duration::from_millis(1);
        let mut files = vec![self.signals.as_fd()];
        files.extend(self.buttons.iter().map(AsFd::as_fd));
        files.extend(
            self.streams
                .iter()
                .flat_map(|stream| &stream.pipes)
                .map(AsFd::as_fd),
        );
        wait_readable(&files, wait);
    }

    /// Whether the power key was pressed. Unplugged devices are closed: with one of them among its
    /// files each poll would return at once.
    fn read_buttons(&mut self) -> bool {
        let mut pressed = false;
        self.buttons.retain(|device| {
            let input = button::read(device);
            pressed |= input.pressed;
            !input.gone
        });
        pressed
    }

    fn read_output(&mut self) {
        for (index, stream) in self.streams.iter_mut().enumerate() {
            let mut lines = Vec::new();
            let Stream { pipes, splitter } = stream;
            pipes.retain_mut(|pipe| read_pipe(pipe, splitter, &mut lines));
            if let Some(output) = self.output.as_mut() {
                for line in lines {
                    output.line(index, line);
                }
            }
        }
    }

    fn ask_health(&mut self) {
        if since_boot() < self.next_health {
            return;
        }
        self.next_health = since_boot() + HEALTH_PERIOD;
        match health(ROOT_NAME) {
            Ok(Health::Corrupted) => self.event(Event::Corrupted),
            Ok(Health::Verified) | Err(_) => {}
        }
    }

    fn event(&mut self, event: Event) {
        let effects = self.supervisor.step(since_boot(), event);
        self.perform(effects);
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Start(index) => self.start(index),
                Effect::ReportRestart(index, how, pause) => {
                    let name = self.name(index);
                    let line = format!(
                        "ended ({how:?}), starting it again in {} s",
                        pause.as_secs()
                    );
                    self.console.milestone(&format!("{name} {line}"));
                    self.note(index, &line);
                }
                Effect::ReportStarted => self.console.milestone("services started"),
                Effect::GaveUp(index) => self.gave_up(index),
                Effect::Healthy => forget_unhealthy_boots(),
                Effect::ReportCorrupted => {
                    self.console
                        .fatal(&Fatal::hold("VERITY", VERITY_CURE, Corrupted));
                }
                Effect::ReportEnd(End::Reboot) => self.console.milestone("stopping for a reboot"),
                Effect::ReportEnd(End::PowerOff) => {
                    self.console.milestone("stopping for power-off");
                }
                Effect::Ask(pid) => drop(process::ask_to_end(pid)),
                Effect::AskAll => drop(process::end_everything(false)),
                Effect::ForceAll => self.force(),
                Effect::Finish(how) => self.finish(how),
            }
        }
    }

    fn start(&mut self, index: usize) {
        let Some(service) = self.services.get(index) else {
            return;
        };
        let started = match (service.contained, &self.domain) {
            (false, _) => process::start(&service.program),
            (true, Some(domain)) => domain.start(&service.program),
            (true, None) => Err(agent_sys::Error::new(
                "contain",
                service.name,
                std::io::ErrorKind::Unsupported,
            )),
        };
        let event = match started {
            Ok(started) => {
                if let Some(stream) = self.streams.get_mut(index) {
                    // A child of the last run may still hold the old pipe, so two pipes are read,
                    // but no more.
                    stream.pipes.truncate(1);
                    stream.pipes.insert(0, started.output);
                }
                self.note(index, &format!("started as process {}", started.pid));
                Event::Started(index, started.pid)
            }
            Err(cause) => {
                self.console.line(&Fatal::warning("SERVICE", cause));
                Event::NotStarted(index)
            }
        };
        self.event(event);
    }

    /// Notes in a service's log what init has done with the service.
    fn note(&mut self, index: usize, text: &str) {
        if let Some(output) = self.output.as_mut() {
            output.note(index, text);
        }
    }

    fn name(&self, index: usize) -> &'static str {
        self.services
            .get(index)
            .map_or("service", |service| service.name)
    }

    fn gave_up(&mut self, index: usize) {
        let name = self.name(index);
        self.note(index, "can't be kept alive; rebooting");
        self.console.line(&format!(
            "pratique: FATAL SERVICE: {name} can't be kept alive; rebooting, see {FOLDER}/{name}.log"
        ));
        // If the state can't be written the count is lost, and the machine reboots anyway.
        drop(fs::write(COUNTER, (unhealthy_boots() + 1).to_string()));
    }

    fn force(&self) {
        drop(process::end_everything(true));
        let end = Instant::now() + FORCE_LIMIT;
        while process::has_children() && Instant::now() < end {
            while process::reap().is_some() {}
            wait_readable(&[self.signals.as_fd()], Duration::from_millis(20));
        }
    }

    fn finish(&mut self, how: End) {
        self.read_output();
        if let Some(output) = self.output.take() {
            output.close();
        }
        let refused = shutdown::finish(self.console, how);
        self.console.fatal(&Fatal::hold(
            "POWER",
            "switch the machine off by hand",
            refused,
        ));
    }
}

/// Reads the available output; `false` once the other end is closed.
fn read_pipe(pipe: &mut PipeReader, splitter: &mut Splitter, lines: &mut Vec<Vec<u8>>) -> bool {
    let mut buffer = [0; READ_CHUNK];
    for _ in 0..MAX_CHUNKS {
        match pipe.read(&mut buffer) {
            Ok(0) => {
                lines.extend(splitter.finish());
                return false;
            }
            Ok(length) => {
                lines.append(&mut splitter.push(buffer.get(..length).unwrap_or_default()));
            }
            Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock => return true,
            Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
    true
}
