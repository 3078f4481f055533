//! Probes: one task for each running container that has some; the pod's own task reads their
//! verdicts.
//!
//! The startup probe comes first and alone; then liveness and readiness side by side. A failed
//! liveness or startup probe marks the container dead; ending it is the pod machine's work. While a
//! deleted pod ends, readiness alone is asked for: it may serve to its end. A probe that could not
//! be made, as while the engine is away, changes no verdict.

use crate::reached;
use agent_api::events::Recorder;
use agent_handlers::{ProbeFault, Target, Warning};
use agent_pods::{Death, HookProgress, Notes, Verdict, between, find};
use agent_resources::Probed;
use agent_runtime::{Container as Seen, ContainerKind, ContainerState, Runtime};
use config_kube::k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, Probe};
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// Defaults of the API (upstream's).
const PERIOD: u64 = 10;
const TIMEOUT: u64 = 1;
const FAILURES: u32 = 3;
/// How often a probe is tried that says nothing of the container (upstream's).
const TRIES: usize = 3;

type Verdicts = Arc<Mutex<BTreeMap<String, Verdict>>>;

/// The probes of one pod's containers.
#[derive(Debug)]
pub struct Probes {
    runtime: Arc<dyn Runtime>,
    events: Recorder,
    probed: Probed,
    news: Arc<Notify>,
    verdicts: Verdicts,
    tasks: BTreeMap<String, AbortHandle>,
    /// Where the probes of each container reach the pod; none if they began before it had an
    /// address.
    places: BTreeMap<String, Option<IpAddr>>,
    /// The pod is being deleted.
    ends: Arc<AtomicBool>,
}

/// The kinds of probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Startup,
    Liveness,
    Readiness,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

impl Probes {
    /// The probes of a pod of which none runs yet; `news` is notified when a verdict changes.
    pub fn new(
        runtime: Arc<dyn Runtime>,
        events: Recorder,
        probed: Probed,
        news: Arc<Notify>,
    ) -> Self {
        Self {
            runtime,
            events,
            probed,
            news,
            verdicts: Verdicts::default(),
            tasks: BTreeMap::new(),
            places: BTreeMap::new(),
            ends: Arc::default(),
        }
    }

    /// Starts probes for what runs and ends those of what doesn't. A container is not probed before
    /// its hook after the start has ended. `host`: the pod's address; probes that began without
    /// one, or with another, begin anew with it, as a pod on the machine's network moves with the
    /// machine.
    pub fn follow(&mut self, pod: &Arc<Pod>, seen: &[Seen], notes: &Notes, host: Option<IpAddr>) {
        self.keep(seen);
        if let Some(address) = host {
            self.end_elsewhere(address);
        }
        let host = reached(pod, host);
        for seen in seen.iter().filter(|seen| is_running(seen)) {
            let hook = notes.post_start.get(&seen.id);
            let lasts = matches!(seen.key.kind, ContainerKind::Sidecar | ContainerKind::Main);
            let found = find(pod, &seen.key.container).map(|(_, container)| container.into_owned());
            if let Some(container) = found.filter(has_probe)
                && lasts
                && hook.is_none_or(|hook| *hook == HookProgress::Done)
                && !self.tasks.contains_key(&seen.id)
            {
                self.begin(pod.clone(), container, seen, host);
            }
        }
    }

    /// Ends the probes that reach the pod elsewhere than at this address. A container that they
    /// have declared dead has no need of others.
    fn end_elsewhere(&mut self, address: IpAddr) {
        let (tasks, verdicts) = (&mut self.tasks, lock(&self.verdicts));
        let is_dead = |id: &String| verdicts.get(id).is_some_and(|one| one.dead.is_some());
        self.places.retain(|id, place| {
            let stays = *place == Some(address) || is_dead(id);
            if !stays && let Some(task) = tasks.remove(id) {
                task.abort();
            }
            stays
        });
    }

    /// The pod is being deleted: of the probes that are under way, those of readiness go on where
    /// containers run.
    pub fn end_all_but_readiness(&mut self, seen: &[Seen]) {
        self.ends.store(true, Ordering::Relaxed);
        self.keep(seen);
    }

    /// Ends the probes of containers that don't run.
    fn keep(&mut self, seen: &[Seen]) {
        let running = |id: &str| seen.iter().any(|seen| seen.id == id && is_running(seen));
        self.tasks.retain(|id, task| {
            let keep = running(id);
            if !keep {
                task.abort();
            }
            keep
        });
        self.places.retain(|id, _| running(id));
        lock(&self.verdicts).retain(|id, _| running(id));
    }

    fn begin(&mut self, pod: Arc<Pod>, container: Container, seen: &Seen, host: Option<IpAddr>) {
        let ContainerState::Running { started_at } = seen.state else {
            return;
        };
        let id = seen.id.clone();
        // Probes that begin anew go on from what is known.
        let first = *lock(&self.verdicts)
            .entry(id.clone())
            .or_insert_with(|| first_verdict(&pod, &container, &id));
        self.places.insert(id.clone(), host);
        let prober = Prober {
            events: self.events.clone(),
            probed: self.probed.clone(),
            news: self.news.clone(),
            verdicts: self.verdicts.clone(),
            pod,
            target: Target {
                runtime: self.runtime.clone(),
                id: id.clone(),
                container,
                host,
            },
            started: first.started,
            started_at,
            ends: self.ends.clone(),
        };
        self.tasks
            .insert(id, tokio::spawn(prober.run()).abort_handle());
    }

    /// Ends all probes: the pod ends.
    pub fn stop_all(&mut self) {
        self.places.clear();
        for task in std::mem::take(&mut self.tasks).into_values() {
            task.abort();
        }
    }

    /// What is known of the containers that are there.
    pub fn verdicts(&self, seen: &[Seen]) -> BTreeMap<String, Verdict> {
        let all = lock(&self.verdicts);
        seen.iter()
            .filter_map(|seen| all.get(&seen.id).map(|verdict| (seen.id.clone(), *verdict)))
            .collect()
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.stop_all();
    }
}

fn lock(verdicts: &Verdicts) -> std::sync::MutexGuard<'_, BTreeMap<String, Verdict>> {
    verdicts.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_running(seen: &Seen) -> bool {
    matches!(seen.state, ContainerState::Running { .. })
}

fn has_probe(container: &Container) -> bool {
    container.startup_probe.is_some()
        || container.liveness_probe.is_some()
        || container.readiness_probe.is_some()
}

/// What is known of a container before its first probe. A container that runs on while the agent
/// restarts is what its status says, until a probe says otherwise: services do not lose a node
/// because its agent restarts.
fn first_verdict(pod: &Pod, container: &Container, id: &str) -> Verdict {
    let known = status_of(pod, id);
    let was_started = known.is_some_and(|status| status.started == Some(true));
    let started = container.startup_probe.is_none() || was_started;
    let was_ready = known.is_some_and(|status| status.ready);
    Verdict {
        started,
        ready: started && (container.readiness_probe.is_none() || was_ready),
        dead: None,
    }
}

/// What the pod's status says of this attempt.
fn status_of<'a>(pod: &'a Pod, id: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let inits = status.init_container_statuses.iter().flatten();
    let mut all = inits.chain(status.container_statuses.iter().flatten());
    all.find(|status| {
        let own = status.container_id.as_deref();
        own.is_some_and(|own| own.ends_with(id))
    })
}

/// What is left of a probe's initial delay, which counts from the container's start (upstream's
/// rule): neither a startup probe nor an agent that begins anew makes it longer.
fn rest(delay: Duration, started_at: Timestamp, now: Timestamp) -> Duration {
    delay.saturating_sub(between(started_at, now))
}

/// How a probe is repeated: what it says, or the API's defaults.
struct Pace {
    /// How often in a row it must pass, and may fail.
    needed: u32,
    allowed: u32,
    /// How long one may take.
    limit: Duration,
    period: Duration,
    delay: Duration,
}

impl Pace {
    fn of(probe: &Probe) -> Self {
        let seconds = |value: Option<i32>, default: u64| {
            let value = value.and_then(|value| u64::try_from(value).ok());
            Duration::from_secs(value.unwrap_or(default))
        };
        let times = |value: Option<i32>, default: u32| {
            let value = value.and_then(|value| u32::try_from(value).ok());
            value.unwrap_or(default).max(1)
        };
        let least = Duration::from_secs(1);
        Self {
            needed: times(probe.success_threshold, 1),
            allowed: times(probe.failure_threshold, FAILURES),
            limit: seconds(probe.timeout_seconds, TIMEOUT).max(least),
            period: seconds(probe.period_seconds, PERIOD).max(least),
            delay: seconds(probe.initial_delay_seconds, 0),
        }
    }
}

/// The task of one container.
struct Prober {
    events: Recorder,
    probed: Probed,
    news: Arc<Notify>,
    verdicts: Verdicts,
    pod: Arc<Pod>,
    target: Target,
    /// It has started, or no probe asks whether it has.
    started: bool,
    /// When the container was started.
    started_at: Timestamp,
    /// The pod is being deleted.
    ends: Arc<AtomicBool>,
}

impl Prober {
    async fn run(self) {
        let startup = self.target.container.startup_probe.as_ref();
        if let Some(probe) = startup.filter(|_| !self.started) {
            self.repeat(Role::Startup, probe).await;
            if !self.has_started() {
                return;
            }
        }
        let readiness = async {
            if let Some(probe) = &self.target.container.readiness_probe {
                self.repeat(Role::Readiness, probe).await;
            }
        };
        let liveness = async {
            if let Some(probe) = &self.target.container.liveness_probe {
                self.repeat(Role::Liveness, probe).await;
            }
        };
        tokio::join!(readiness, liveness);
    }

    fn has_started(&self) -> bool {
        let verdicts = lock(&self.verdicts);
        let own = verdicts.get(&self.target.id);
        own.is_some_and(|verdict| verdict.started)
    }

    /// Probes until it is decided (a startup probe that passes, or one that declares the container
    /// dead) or of no interest.
    async fn repeat(&self, role: Role, probe: &Probe) {
        let pace = Pace::of(probe);
        sleep(rest(pace.delay, self.started_at, Timestamp::now())).await;
        // A period is the time from one beginning to the next; what takes longer is followed at
        // once (upstream's ticker).
        let mut turns = interval(pace.period);
        turns.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let (mut good, mut bad) = (0_u32, 0_u32);
        loop {
            turns.tick().await;
            if !self.matters(role) {
                return;
            }
            let begun = Instant::now();
            let outcome = self.ask(probe, pace.limit).await;
            // One that was under way when the pod's end began may have failed because of that.
            if !self.matters(role) {
                return;
            }
            self.tell(role, &outcome, begun.elapsed());
            match outcome {
                Ok(_) => (good, bad) = (good.saturating_add(1), 0),
                Err(ProbeFault::Failed(_)) => (good, bad) = (0, bad.saturating_add(1)),
                Err(ProbeFault::Unknown(_)) => continue,
            }
            if good >= pace.needed && self.passed(role) {
                return;
            }
            if bad >= pace.allowed && self.failed(role) {
                return;
            }
        }
    }

    /// Asks, and again where that says nothing of the container.
    async fn ask(&self, probe: &Probe, limit: Duration) -> Result<Option<Warning>, ProbeFault> {
        let mut asked = self.target.probe(probe, limit).await;
        for _ in 1..TRIES {
            if !matches!(asked, Err(ProbeFault::Unknown(_))) {
                break;
            }
            asked = self.target.probe(probe, limit).await;
        }
        asked
    }

    /// Counts a probe, unless it could not be made (upstream's rule), and writes its event.
    fn tell(&self, role: Role, outcome: &Result<Option<Warning>, ProbeFault>, took: Duration) {
        let (name, role) = (&self.target.container.name, role.name());
        let events = self.events.of(&self.pod, name);
        if !matches!(outcome, Err(ProbeFault::Unknown(_))) {
            self.probed
                .count(&self.pod, name, role, outcome.is_ok(), took);
        }
        match outcome {
            Ok(None) => {}
            Ok(Some(warning)) => {
                events.warning("ProbeWarning", format!("{role} probe warning: {warning}"));
            }
            Err(ProbeFault::Failed(why)) => {
                events.warning("Unhealthy", format!("{role} probe failed: {why}"));
            }
            Err(ProbeFault::Unknown(why)) => {
                let text = format!("{role} probe errored and resulted in unknown state: {why}");
                events.warning("Unhealthy", text);
            }
        }
    }

    /// Whether anybody asks for the result: of a pod that is being deleted only readiness is of
    /// interest.
    fn matters(&self, role: Role) -> bool {
        role == Role::Readiness || !self.ends.load(Ordering::Relaxed)
    }

    /// True if that decides the probe.
    fn passed(&self, role: Role) -> bool {
        let ready_at_start = self.target.container.readiness_probe.is_none();
        self.change(|verdict| match role {
            Role::Startup => {
                verdict.started = true;
                verdict.ready = ready_at_start;
            }
            Role::Readiness => verdict.ready = true,
            Role::Liveness => {}
        });
        role == Role::Startup
    }

    fn failed(&self, role: Role) -> bool {
        self.change(|verdict| match role {
            Role::Startup => verdict.dead = Some(Death::Startup),
            Role::Liveness => verdict.dead = Some(Death::Liveness),
            Role::Readiness => verdict.ready = false,
        });
        role != Role::Readiness
    }

    fn change(&self, change: impl FnOnce(&mut Verdict)) {
        let mut all = lock(&self.verdicts);
        if let Some(verdict) = all.get_mut(&self.target.id) {
            let before = *verdict;
            change(verdict);
            if *verdict != before {
                self.news.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_resources::Figures;
    use agent_runtime::{ContainerKey, Containerd, Options, PodRef, Registries};
    use config_kube::k8s_openapi::api::core::v1::PodSpec;
    use serde_json::{Value, json};
    use std::net::Ipv4Addr;
    use tokio::net::TcpListener;

    /// A container with such a liveness probe, whose engine is away, and its task.
    fn prober(dir: &std::path::Path, liveness: Value) -> Prober {
        let engine = Containerd::new(Options {
            socket: dir.join("containerd.sock"),
            state: dir.join("state"),
            fifos: dir.join("fifos"),
            logs: dir.join("logs"),
            registries: Registries::new(Vec::new(), "registry.example", Vec::new()),
            programs: None,
            archives: Vec::new(),
        });
        let container = Container {
            name: "a".to_owned(),
            liveness_probe: serde_json::from_value(liveness).unwrap(),
            ..Container::default()
        };
        let spec = PodSpec {
            containers: vec![container.clone()],
            ..PodSpec::default()
        };
        let pod = Pod {
            spec: Some(spec),
            ..Pod::default()
        };
        let verdicts = Verdicts::default();
        let well = Verdict {
            started: true,
            ready: true,
            dead: None,
        };
        lock(&verdicts).insert("id".to_owned(), well);
        Prober {
            events: Recorder::new().0,
            probed: Figures::of_machine("node").probed(),
            news: Arc::default(),
            verdicts,
            pod: Arc::new(pod),
            target: Target {
                runtime: Arc::new(engine),
                id: "id".to_owned(),
                container,
                host: Some(Ipv4Addr::LOCALHOST.into()),
            },
            started: true,
            started_at: Timestamp::now(),
            ends: Arc::default(),
        }
    }

    #[test]
    fn an_initial_delay_counts_from_the_containers_start() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let delay = Duration::from_secs(30);
        let left = |now| rest(delay, at(100), at(now)).as_secs();
        assert_eq!([100, 110, 130, 500].map(left), [30, 20, 0, 0]);
        assert_eq!(left(50), 30, "somebody set the clock back");
    }

    #[test]
    fn a_container_begins_as_its_status_says_if_that_is_of_the_same_attempt() {
        let container = |probes: &[&str]| -> Container {
            let mut own = json!({"name": "a"});
            for probe in probes {
                own[*probe] = json!({"tcpSocket": {"port": 1}});
            }
            serde_json::from_value(own).unwrap()
        };
        let (plain, both) = (
            container(&[]),
            container(&["startupProbe", "readinessProbe"]),
        );
        let first = |container: &Container, started: bool, ready: bool, id: &str| {
            let status = json!({
                "name": "a", "containerID": "containerd://id", "image": "", "imageID": "", "restartCount": 0,
                "started": started, "ready": ready,
            });
            let pod = json!({"status": {"containerStatuses": [status]}});
            let first = first_verdict(&serde_json::from_value(pod).unwrap(), container, id);
            (first.started, first.ready)
        };
        assert_eq!(first(&plain, false, false, "id"), (true, true));
        assert_eq!(first(&both, true, true, "id"), (true, true));
        assert_eq!(first(&both, true, false, "id"), (true, false));
        assert_eq!(first(&both, false, true, "id"), (false, false));
        assert_eq!(first(&both, true, true, "next"), (false, false));
    }

    /// What a liveness probe makes of an answer that breaks off.
    async fn verdict(deleted_meanwhile: bool) -> Option<Death> {
        let dir = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let liveness =
            json!({"httpGet": {"port": port}, "failureThreshold": 1, "timeoutSeconds": 60});
        let prober = prober(dir.path(), liveness);
        let (verdicts, ends) = (prober.verdicts.clone(), prober.ends.clone());
        let running = tokio::spawn(prober.run());
        let (connection, _) = listener.accept().await.unwrap();
        ends.store(deleted_meanwhile, Ordering::Relaxed);
        drop(connection);
        running.await.unwrap();
        lock(&verdicts)["id"].dead
    }

    /// A container that runs.
    fn seen(id: &str) -> Seen {
        let pod = PodRef {
            namespace: "n".to_owned(),
            name: "p".to_owned(),
            uid: "u".to_owned(),
        };
        Seen {
            id: id.to_owned(),
            key: ContainerKey {
                pod,
                container: "a".to_owned(),
                kind: ContainerKind::Main,
                attempt: 0,
            },
            image: String::new(),
            image_id: String::new(),
            state: ContainerState::Running {
                started_at: Timestamp::now(),
            },
            backoff: None,
            round: 0,
            this_boot: true,
            stop_signal: None,
            needs: None,
            user: None,
        }
    }

    /// Probes of a pod, of which none runs.
    fn none_yet(dir: &std::path::Path) -> Probes {
        let Prober {
            target,
            events,
            probed,
            news,
            ..
        } = prober(dir, json!({"tcpSocket": {"port": 1}}));
        Probes::new(target.runtime, events, probed, news)
    }

    /// A pod with a liveness probe.
    fn pod(on_host: bool) -> Arc<Pod> {
        let container = json!({"name": "a", "livenessProbe": {"tcpSocket": {"port": 1}}});
        let spec = json!({"hostNetwork": on_host, "containers": [container]});
        Arc::new(serde_json::from_value(json!({"spec": spec})).unwrap())
    }

    /// Which task probes the container.
    fn begun(probes: &Probes) -> tokio::task::Id {
        probes.tasks["id"].id()
    }

    #[tokio::test]
    async fn probes_go_with_their_pod_to_another_address_and_keep_what_they_know() {
        let dir = tempfile::tempdir().unwrap();
        let mut probes = none_yet(dir.path());
        let (pod, seen, notes) = (pod(true), [seen("id")], Notes::default());
        let follow = |probes: &mut Probes, last: Option<u8>| {
            let host = last.map(|last| [127, 0, 0, last].into());
            probes.follow(&pod, &seen, &notes, host);
            begun(probes)
        };
        // The machine has no address at first, and none for a while later.
        let early = follow(&mut probes, None);
        let first = follow(&mut probes, Some(2));
        assert_ne!(early, first);
        assert_eq!(follow(&mut probes, None), first);
        lock(&probes.verdicts).get_mut("id").unwrap().ready = false;
        let second = follow(&mut probes, Some(3));
        assert_ne!(first, second);
        assert!(!lock(&probes.verdicts)["id"].ready);
        lock(&probes.verdicts).get_mut("id").unwrap().dead = Some(Death::Liveness);
        assert_eq!(follow(&mut probes, Some(2)), second, "it is being ended");
    }

    #[tokio::test]
    async fn a_probe_that_began_before_its_pod_had_an_address_begins_anew_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut probes = none_yet(dir.path());
        let (seen, notes) = ([seen("id")], Notes::default());
        let waits = |probes: &Probes| probes.places["id"].is_none();
        probes.follow(&pod(false), &seen, &notes, None);
        let first = begun(&probes);
        assert!(waits(&probes));
        probes.follow(&pod(false), &seen, &notes, None);
        assert_eq!(begun(&probes), first, "it goes on to wait");
        probes.follow(&pod(false), &seen, &notes, Some([127, 0, 0, 2].into()));
        assert_ne!(begun(&probes), first);
        assert!(!waits(&probes));
        probes.stop_all();
        probes.follow(&pod(true), &seen, &notes, None);
        assert!(!waits(&probes), "the machine is there");
    }

    #[tokio::test]
    async fn a_probe_that_is_under_way_when_its_pod_is_deleted_counts_no_failure() {
        assert_eq!(verdict(false).await, Some(Death::Liveness));
        assert_eq!(verdict(true).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_cannot_be_made_is_repeated_and_declares_nothing_dead() {
        for handler in [
            json!({"exec": {"command": ["true"]}}),
            json!({"httpGet": {"port": "unnamed"}}),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let mut liveness = handler.clone();
            liveness["failureThreshold"] = json!(1);
            let prober = prober(dir.path(), liveness);
            let verdicts = prober.verdicts.clone();
            let running = tokio::spawn(prober.run());
            sleep(Duration::from_secs(60)).await;
            assert!(!running.is_finished(), "{handler}");
            assert_eq!(lock(&verdicts)["id"].dead, None, "{handler}");
            running.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_period_counts_from_the_beginning_of_a_probe() {
        let dir = tempfile::tempdir().unwrap();
        // It takes connections, and never answers.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = silent.local_addr().unwrap().port();
        let liveness = json!({"httpGet": {"port": port}, "periodSeconds": 5, "timeoutSeconds": 5});
        let prober = prober(dir.path(), liveness);
        let (verdicts, begun) = (prober.verdicts.clone(), Instant::now());
        tokio::spawn(prober.run()).await.unwrap();
        assert_eq!(lock(&verdicts)["id"].dead, Some(Death::Liveness));
        assert_eq!(
            begun.elapsed().as_secs(),
            15,
            "three probes of five seconds"
        );
    }
}
