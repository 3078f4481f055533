//! The machine's time: set once by time servers before it enrols, slewed afterwards, and held against the master's.

use crate::console::{refused, say};
use crate::error::{Error, chain};
use crate::machine::ImageDescription;
use agent_clock::{Advice, Bounds, Sample, Server, Step, Watch, ask, judge, step};
use agent_sys::clock;
use config_model::MachineConfig;
use futures_util::future::join_all;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Most servers that are asked: a majority of them is one.
const MOST_SERVERS: usize = 8;
/// Between two rounds once the machine has enrolled.
const PERIOD: Duration = Duration::from_secs(17 * 60);

/// The machine's clock.
#[derive(Debug)]
pub(crate) struct Clock {
    servers: Vec<Server>,
    built: Duration,
    /// Whether the clock is this agent's to set; on a host it is the host's.
    ours: bool,
    watch: Mutex<(Watch, Option<String>)>,
}

impl Clock {
    /// Sets the clock of a machine and leaves a task that keeps it; on a host, whose clock is not `ours`, only watches it.
    pub(crate) async fn start(
        machine: &MachineConfig,
        dhcp: &[IpAddr],
        image: &ImageDescription,
        ours: bool,
        tasks: &mut JoinSet<Result<(), Error>>,
    ) -> Arc<Self> {
        let clock = Arc::new(Self::new(machine, dhcp, image, ours));
        clock.set().await;
        let keeping = Arc::clone(&clock);
        tasks.spawn(async move { keeping.keep().await });
        clock
    }

    /// The configured time servers, then those that DHCP gave.
    fn new(machine: &MachineConfig, dhcp: &[IpAddr], image: &ImageDescription, ours: bool) -> Self {
        let configured = machine.network.ntp.iter().map(ToString::to_string);
        let mut servers: Vec<Server> = Vec::new();
        for host in configured.chain(dhcp.iter().map(ToString::to_string)) {
            let server = Server::new(&host);
            if !servers.contains(&server) && servers.len() < MOST_SERVERS {
                servers.push(server);
            }
        }
        Self { servers, built: image.built(), ours, watch: Mutex::default() }
    }

    /// Sets the clock by the servers, once, within bounds. Without servers, or where they say nothing good, it stays as it is.
    async fn set(&self) {
        if !self.ours || self.servers.is_empty() {
            return;
        }
        let Some(sample) = self.round().await else { return };
        let now = now();
        match step(now, sample.offset, Bounds { built: self.built }) {
            Ok(Step::Leave) => {}
            Ok(Step::Set(to)) => match clock::set(to) {
                Ok(()) => say(&format!("clock set by time servers, from {} to {}", text(now), text(to))),
                Err(error) => say(&format!("the clock cannot be set: {}", chain(&error))),
            },
            Err(refusal) => {
                let cure = "check `network.ntp` and this machine's own clock";
                refused("TIME", &format!("{refusal}; the clock stays at {}; {cure}", text(now)));
            }
        }
    }

    /// The master told its time, over the connection by which it knows this machine.
    pub(crate) fn master(&self, theirs: Duration) {
        let advice = self.watch.lock().unwrap_or_else(PoisonError::into_inner).0.master(theirs, now());
        self.follow(advice);
    }

    /// Slews by the servers, for as long as it is polled.
    async fn keep(&self) -> Result<(), Error> {
        loop {
            sleep(PERIOD).await;
            if self.ours
                && let Some(sample) = self.round().await
            {
                let advice = self.watch.lock().unwrap_or_else(PoisonError::into_inner).0.servers(sample.offset);
                self.follow(advice);
            }
        }
    }

    async fn round(&self) -> Option<Sample> {
        let answers = join_all(self.servers.iter().map(|server| ask(server, self.built))).await;
        let mut samples = Vec::new();
        for (server, answer) in self.servers.iter().zip(answers) {
            match answer {
                Ok(sample) => samples.push(sample),
                Err(error) => say(&format!("time server {server}: {}", chain(&error))),
            }
        }
        judge(&samples).unwrap_or_else(|disagreement| {
            say(&format!("{disagreement}; none of them is listened to"));
            None
        })
    }

    /// Slews, and says when the clock begins or ceases to be doubtful.
    fn follow(&self, Advice { slew, doubt }: Advice) {
        if self.ours
            && slew != 0
            && let Err(error) = clock::slew(slew)
        {
            tracing::warn!(error = %chain(&error), "the clock cannot be slewed");
        }
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if watch.1.is_some() != doubt.is_some() {
            match &doubt {
                Some(why) => say(&format!(
                    "DOUBTFUL CLOCK: {why}; certificates are renewed by counting, not by this clock; check `network.ntp` and the \
                     master's clock"
                )),
                None => say("the clock agrees with the master's again"),
            }
        }
        watch.1 = doubt;
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn text(time: Duration) -> String {
    let moment = UNIX_EPOCH.checked_add(time).and_then(|time| jiff::Timestamp::try_from(time).ok());
    moment.map_or_else(|| format!("second {}", time.as_secs()), |time| time.to_string())
}
