//! The machine's time: set once in a boot by time servers, before the machine enrols, slewed
//! afterwards, and compared with the master's.

use crate::console::{refused, say};
use crate::error::Error;
use crate::machine::ImageDescription;
use agent_clock::{Advice, Bounds, Sample, Server, Step, Watch, ask, judge, step};
use agent_kubelet::{Notice, Notices};
use agent_sys::clock;
use config_errors::chain;
use config_model::MachineConfig;
use futures_util::future::join_all;
use std::fs::OpenOptions;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Most servers that are asked: enough for a majority.
const MOST_SERVERS: usize = 8;
/// Time between two rounds after the machine has enrolled.
const PERIOD: Duration = Duration::from_secs(17 * 60);
/// Time between two checks of the master's time.
const LOOK: Duration = Duration::from_secs(60);
/// The file of the runtime folder which says that time servers have set the clock in this boot.
/// Without it, an attacker who answers in their place could step the clock each time the agent
/// starts.
const MARK: &str = "clock-set";
/// What a person can do about a doubtful clock.
const CURE: &str = "certificates are renewed by counting, not by this clock; check `network.ntp` and the master's own clock";

/// What the clock needs to know of where the agent runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClockOptions<'a> {
    /// Its runtime folder, which a boot clears.
    pub(crate) run: &'a Path,
    /// Whether it sets the clock; on a host it does not.
    pub(crate) ours: bool,
}

/// The machine's clock.
#[derive(Debug)]
pub(crate) struct Clock {
    servers: Vec<Server>,
    built: Duration,
    /// Whether this agent sets the clock; on a host it does not.
    ours: bool,
    /// Whether the master is another machine: a comparison with the machine's own clock proves
    /// nothing.
    afar: bool,
    /// [`MARK`].
    mark: PathBuf,
    state: Mutex<ClockState>,
    notices: Notices,
}

#[derive(Debug, Default)]
struct ClockState {
    watch: Watch,
    doubt: Option<String>,
    /// When the master's time was last checked.
    looked: Option<Instant>,
}

impl Clock {
    /// Sets the clock of a machine and spawns a task that keeps it; on a host, whose clock is not
    /// the agent's, only watches it.
    pub(crate) async fn start(
        machine: &MachineConfig,
        dhcp: &[IpAddr],
        image: &ImageDescription,
        options: ClockOptions<'_>,
        tasks: &mut JoinSet<Result<(), Error>>,
    ) -> Arc<Self> {
        let clock = Arc::new(Self::new(machine, dhcp, image, options));
        clock.tell(None);
        clock.set().await;
        let keeping = Arc::clone(&clock);
        tasks.spawn(async move { keeping.keep().await });
        clock
    }

    /// The configured time servers, and those that DHCP gave only if none is configured: a false
    /// DHCP server could otherwise name the majority.
    fn new(
        machine: &MachineConfig,
        dhcp: &[IpAddr],
        image: &ImageDescription,
        options: ClockOptions<'_>,
    ) -> Self {
        let configured = machine.network.ntp.iter().map(ToString::to_string);
        let given = dhcp.iter().map(ToString::to_string);
        let given = given.filter(|_| machine.network.ntp.is_empty());
        let mut servers: Vec<Server> = Vec::new();
        for host in configured.chain(given) {
            let server = Server::new(&host);
            if !servers.contains(&server) && servers.len() < MOST_SERVERS {
                servers.push(server);
            }
        }
        let (afar, state, notices) = (
            machine.cluster().is_none(),
            Mutex::default(),
            Notices::default(),
        );
        Self {
            servers,
            built: image.built(),
            ours: options.ours,
            afar,
            mark: options.run.join(MARK),
            state,
            notices,
        }
    }

    /// Conditions of the Node, the clock's among them.
    pub(crate) fn notices(&self) -> Notices {
        self.notices.clone()
    }

    /// Sets the clock by the servers, once in a boot, within bounds. Without servers, or without a
    /// usable answer, it stays as it is.
    async fn set(&self) {
        if !self.ours || self.servers.is_empty() {
            return;
        }
        let Some(sample) = self.round().await else {
            return;
        };
        let now = now();
        match step(now, sample.offset, Bounds { built: self.built }) {
            Ok(Step::Leave) => {}
            Ok(Step::Set(to)) => match self.first_step() {
                Ok(true) => match clock::set(to) {
                    Ok(()) => say(&format!(
                        "clock set by time servers, from {} to {}",
                        text(now),
                        text(to)
                    )),
                    Err(error) => say(&format!("the clock cannot be set: {}", chain(&error))),
                },
                Ok(false) => say(&format!(
                    "time servers say {}, and have set the clock in this boot already: it stays at {}, and is slewed",
                    text(to),
                    text(now)
                )),
                Err(error) => say(&format!(
                    "the clock is not set, as {} cannot be written: {error}",
                    self.mark.display()
                )),
            },
            Err(refusal) => {
                let cure = "check `network.ntp` and this machine's own clock";
                refused(
                    "TIME",
                    &format!("{refusal}; the clock stays at {}; {cure}", text(now)),
                );
            }
        }
    }

    /// Whether time servers have not set the clock since the boot: notes that they do now, before
    /// they do, so that no end of the agent gives them another step.
    fn first_step(&self) -> std::io::Result<bool> {
        let mut open = OpenOptions::new();
        match open
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&self.mark)
        {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes the master's time, from an authenticated connection, and the local time `ours` of that
    /// moment. Checks it now and then.
    pub(crate) fn master(&self, theirs: Duration, ours: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if self.afar && state.looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            state.looked = Some(Instant::now());
            let advice = state.watch.master(theirs, ours);
            self.follow(&mut state, advice);
        }
    }

    /// Slews by the servers, for as long as it is polled.
    async fn keep(&self) -> Result<(), Error> {
        loop {
            sleep(PERIOD).await;
            if self.ours
                && let Some(sample) = self.round().await
            {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                let advice = state.watch.servers(sample.offset);
                self.follow(&mut state, advice);
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
            say(&format!("{disagreement}; the clock is left as it is"));
            None
        })
    }

    /// Slews, and reports when the clock begins or ceases to be doubtful.
    fn follow(&self, state: &mut ClockState, Advice { slew, doubt }: Advice) {
        if self.ours
            && slew != 0
            && let Err(error) = clock::slew(slew)
        {
            tracing::warn!(error = %chain(&error), "the clock cannot be slewed");
        }
        if state.doubt.is_some() != doubt.is_some() {
            match &doubt {
                Some(why) => say(&format!("DOUBTFUL CLOCK: {why}; {CURE}")),
                None => say("the clock agrees with the master's again"),
            }
        }
        if state.doubt != doubt {
            self.tell(doubt.as_deref());
        }
        state.doubt = doubt;
    }

    /// The Node's condition.
    fn tell(&self, doubt: Option<&str>) {
        let (reason, message) = match doubt {
            Some(why) => ("ClockIsDoubtful", format!("{why}; {CURE}")),
            None => (
                "ClockIsNotContradicted",
                "neither master nor time servers contradict the clock".to_owned(),
            ),
        };
        self.notices.set(
            "ClockDoubtful",
            Notice {
                on: doubt.is_some(),
                reason,
                message,
            },
        );
    }
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

fn text(time: Duration) -> String {
    let moment = UNIX_EPOCH
        .checked_add(time)
        .and_then(|time| jiff::Timestamp::try_from(time).ok());
    moment.map_or_else(
        || format!("second {}", time.as_secs()),
        |time| time.to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_model::Document;

    const WORKER: &str = "version = 1\n[machine]\nname = \"worker-1\"\n[master]\nendpoints = [\"https://192.168.77.10:6443\"]\n\
        ca_pins = [\"sha256:7d2f0a9d5be0a2b7c1a9d4f1f0c3d6e9b2a5c8f1e4d7c0b3a6f9e2d5c8b1a4f7\"]\n";

    fn clock(run: &Path) -> Clock {
        clock_of(run, "", &[])
    }

    /// The clock of a machine with further lines of configuration, to which DHCP names servers.
    fn clock_of(run: &Path, further: &str, dhcp: &[IpAddr]) -> Clock {
        let text = format!("{WORKER}{further}");
        let Ok(Document::Machine(machine)) = config_model::parse(text, "user-data") else {
            panic!("not a machine's document");
        };
        let options = ClockOptions { run, ours: false };
        Clock::new(&machine, dhcp, &ImageDescription::default(), options)
    }

    #[test]
    fn time_servers_that_dhcp_names_are_asked_only_if_none_is_configured() {
        let dhcp: [IpAddr; 3] = [1, 2, 3].map(|last| [192_u8, 168, 77, last].into());
        let asked = |further: &str| {
            let clock = clock_of(Path::new("/nonexistent"), further, &dhcp);
            let hosts = clock.servers.into_iter().map(|server| server.host);
            hosts.collect::<Vec<_>>()
        };
        let configured = "[network]\nntp = [\"time.example\", \"10.0.0.1\"]\n";
        assert_eq!(asked(configured), ["time.example", "10.0.0.1"]);
        for none in ["", "[network]\nntp = []\n"] {
            assert_eq!(asked(none), dhcp.map(|address| address.to_string()));
        }
    }

    /// An attacker who answers in the time servers' place can't step the clock again by ending the
    /// agent.
    #[test]
    fn time_servers_set_the_clock_once_in_a_boot_however_often_the_agent_starts() {
        let run = tempfile::tempdir().unwrap();
        let steps = [(); 3].map(|()| clock(run.path()).first_step().unwrap());
        assert_eq!(steps, [true, false, false]);
        std::fs::remove_file(run.path().join(MARK)).unwrap();
        assert!(clock(run.path()).first_step().unwrap(), "the next boot");
        let gone = run.path().join("gone");
        assert!(clock(&gone).first_step().is_err(), "no step without a mark");
    }

    fn doubt(theirs: impl FnOnce(Duration) -> Duration) -> Option<String> {
        let clock = clock(Path::new("/nonexistent"));
        let ours = now();
        clock.master(theirs(ours), ours);
        clock
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .doubt
            .clone()
    }

    #[test]
    fn a_master_with_another_time_makes_the_clock_doubtful_and_one_with_ours_does_not() {
        assert_eq!(doubt(|ours| ours), None);
        for wrong in [
            doubt(|ours| ours + 4 * LOOK * 60),
            doubt(|ours| ours.saturating_sub(4 * LOOK * 60)),
        ] {
            assert!(
                wrong
                    .as_deref()
                    .is_some_and(|why| why.contains("master's time")),
                "{wrong:?}"
            );
        }
    }
}
