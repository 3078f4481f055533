//! Starts a pod's containers, each in a task of its own beside the pod's steps, so that a slow
//! start delays no probe and no status of the others.
//!
//! The task gathers what the container needs, waits for its turn, and has the engine create and
//! start it. Until the task has ended, the pod machine does not see the attempt: a half-made
//! container has no state in Kubernetes. When its pod ends, a start that has not reached the engine
//! is given up; any other is waited for, since the engine may still start the container. If the
//! agent restarts meanwhile, it finds the result in the engine.

use crate::links;
use crate::pull::NeededImage;
use crate::shared::Shared;
use crate::supplies::{Reading, Supplies};
use agent_cluster::Sandbox;
use agent_content::{SourceNames, Sources, env_files, variables};
use agent_launch::container::{self, Attempt, Launch};
use agent_launch::stage::Staged;
use agent_launch::volumes::VolumeLocation;
use agent_pods::Addresses;
use agent_runtime::{
    Container as Seen, ContainerKind, ContainerSpec, Error, ErrorClass, PodRef, Resources, apart,
    container_id, withheld,
};
use config_kube::k8s_openapi::api::core::v1::{Container, Pod};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

/// Pause after the engine could not be reached.
const RETRY: Duration = Duration::from_secs(2);
/// How long the file systems of a container's volumes may take to respond: its mounts are made in
/// milliseconds.
const SILENCE: Duration = Duration::from_secs(60);

/// An attempt to start.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) pod: Arc<Pod>,
    pub(crate) container: Container,
    pub(crate) kind: ContainerKind,
    pub(crate) number: u32,
    pub(crate) backoff: Option<Duration>,
    /// The round of restarts of all its pod's containers.
    pub(crate) round: u32,
    /// Id of the container whose processes it sees (its PID namespace).
    pub(crate) target: Option<String>,
    /// The limits of all the pod's containers together.
    pub(crate) limits: Resources,
    pub(crate) sandbox: Sandbox,
    pub(crate) addresses: Addresses,
    /// The images that it needs, its own first, with the digests of those that the pod may run.
    pub(crate) images: Vec<(NeededImage, String)>,
}

/// Whether a start goes ahead; decided once, by the start's task or by the pod's.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// The engine was asked to start it.
    Asked,
    /// The engine must not be asked any more.
    GivenUp,
}

/// A start that is under way; dropping it ends its task.
#[derive(Debug)]
struct Start {
    pod: Arc<Pod>,
    number: u32,
    fate: Arc<OnceLock<Fate>>,
    outcome: oneshot::Receiver<Result<(), Error>>,
    _task: JoinSet<()>,
}

/// A start that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The container's name.
    pub(crate) name: String,
    /// The pod as it was then.
    pub(crate) pod: Arc<Pod>,
    pub(crate) number: u32,
    /// `None` if it was given up.
    pub(crate) outcome: Option<Result<(), Error>>,
}

/// Wakes the pod's task when what is done beside it ends, also by a panic.
pub(crate) struct AtItsEnd(pub(crate) Arc<Notify>);

impl Drop for AtItsEnd {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// The starts of one pod that are under way, by container.
#[derive(Debug)]
pub(crate) struct Starts {
    shared: Arc<Shared>,
    news: Arc<Notify>,
    supplies: Supplies,
    running: BTreeMap<String, Start>,
}

impl Starts {
    pub(crate) fn new(shared: Arc<Shared>, news: Arc<Notify>, supplies: Supplies) -> Self {
        Self {
            shared,
            news,
            supplies,
            running: BTreeMap::new(),
        }
    }

    /// Starts an attempt in a task; its end wakes the pod's task.
    pub(crate) fn begin(&mut self, order: Order) {
        let (name, pod, number) = (
            order.container.name.clone(),
            order.pod.clone(),
            order.number,
        );
        let fate = Arc::<OnceLock<Fate>>::default();
        let (finished, outcome) = oneshot::channel();
        let (news, own) = (self.news.clone(), fate.clone());
        let (shared, supplies) = (self.shared.clone(), self.supplies.clone());
        let order = Arc::new(order);
        let mut task = JoinSet::new();
        task.spawn(async move {
            // Dropped after `finished`, so that the woken task finds the outcome.
            let _news = AtItsEnd(news);
            let finished = finished;
            let result = start(&shared, &supplies, &order, &own).await;
            if matches!(&result, Err(error) if error.class == ErrorClass::Unavailable) {
                tokio::time::sleep(RETRY).await;
            }
            finished.send(result).ok();
        });
        let start = Start {
            pod,
            number,
            fate,
            outcome,
            _task: task,
        };
        self.running.insert(name, start);
    }

    /// The starts that have ended since the last call. If the pod `ends`, those that have not
    /// reached the engine end, too.
    pub(crate) fn ended(&mut self, ends: bool) -> Vec<Ended> {
        let mut all = Vec::new();
        self.running.retain(|name, start| {
            let outcome = match start.outcome.try_recv() {
                Ok(result) => Some(result),
                Err(oneshot::error::TryRecvError::Closed) => {
                    let text = "the start task ended without a result";
                    Some(Err(Error::new(ErrorClass::Create, text)))
                }
                Err(oneshot::error::TryRecvError::Empty) => {
                    if !ends || *start.fate.get_or_init(|| Fate::GivenUp) == Fate::Asked {
                        return true;
                    }
                    None
                }
            };
            all.push(Ended {
                name: name.clone(),
                pod: start.pod.clone(),
                number: start.number,
                outcome,
            });
            false
        });
        all
    }

    /// The pod's containers, without the attempts whose start is under way.
    pub(crate) fn without_unfinished(&self, pod: &PodRef, mut seen: Vec<Seen>) -> Vec<Seen> {
        seen.retain(|seen| {
            let start = self.running.get(&seen.key.container);
            start.is_none_or(|start| {
                container_id(&pod.uid, &seen.key.container, start.number) != seen.id
            })
        });
        seen
    }
}

/// Gathers what the container needs, and has the engine create and start it unless that was given
/// up meanwhile.
async fn start(
    shared: &Arc<Shared>,
    supplies: &Supplies,
    order: &Arc<Order>,
    fate: &OnceLock<Fate>,
) -> Result<(), Error> {
    let config = |message: String| Error::new(ErrorClass::Config, message);
    let (pod, at) = (&order.pod, &order.addresses);
    let volumes = supplies.volumes(pod, at).await;
    let mut volumes = volumes.map_err(|message| Error::new(ErrorClass::Volume, message))?;
    let shown = order.images.iter().filter_map(|(wanted, digest)| {
        let volume = wanted.volume.as_deref()?;
        Some((volume, wanted.image.as_str(), digest.as_str()))
    });
    let users = container::users(&order.sandbox, PathBuf::new());
    for (volume, image, digest) in shown {
        let source = supplies.image(volume, image, digest, users.as_ref());
        let source = source.await?;
        volumes.insert(volume.to_owned(), source);
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let needs = variables::needs(&order.container);
    // Held until the container runs, as what is read is in memory. A container that needs nothing
    // from the master does not wait for those that do.
    let _gathering = if needs == SourceNames::default() {
        None
    } else {
        Some(shared.gathering.turn(namespace).await)
    };
    let sources = supplies.sources(pod, &needs, at, Reading::Now).await;
    let sources = sources.map_err(config)?;
    // Held until the container runs, as the prepared container has mounts and descriptors.
    let pod_id = pod.metadata.uid.as_deref().unwrap_or_default();
    // The place also excludes a second thread for this attempt: one that was given up may still
    // mount and unmount.
    let id = container_id(pod_id, &order.container.name, order.number);
    let place = shared.preparing.place(namespace, &id).await;
    let place = Arc::new(place.map_err(config)?);
    let prepared = {
        let (shared, order) = (shared.clone(), order.clone());
        let prepare = move |_: &_| prepare(&shared, &order, sources, &volumes);
        apart(SILENCE, place.clone(), prepare)
    };
    let (mut launch, staged) = prepared.await.map_err(config)?;
    // Only now, since a file system that does not respond would keep the turn from others.
    let _turn = shared.turns.turn_at(namespace, pod_id).await;
    launch.spec.round = order.round;
    let mut images = order.images.iter();
    let own = images.find(|(wanted, _)| wanted.volume.is_none());
    launch.spec.image_digest = own.map(|(_, digest)| digest.clone());
    let withheld = withheld(&launch.spec.capabilities.add);
    if !launch.spec.privileged && !withheld.is_empty() {
        let text = format!(
            "container {}: ALL does not include {}",
            order.container.name,
            withheld.join(", ")
        );
        let events = shared.events.of(pod, &order.container.name);
        events.normal("CapabilitiesNarrowed", text);
    }
    if *fate.get_or_init(|| Fate::Asked) == Fate::GivenUp {
        return Ok(());
    }
    let started = begin(shared, supplies, order, &mut launch.spec).await;
    drop(staged);
    started
}

/// Looks up and mounts what the container sees, and reads the environment variables that are in its
/// volumes. Blocks as long as a volume's file system does.
fn prepare(
    shared: &Shared,
    order: &Order,
    sources: Sources,
    volumes: &BTreeMap<String, VolumeLocation>,
) -> Result<(Launch, Staged), String> {
    let attempt = Attempt {
        pod: &order.pod,
        container: &order.container,
        kind: order.kind,
        number: order.number,
        backoff: order.backoff,
        target: order.target.as_deref(),
        sandbox: &order.sandbox,
    };
    let folder = |volume: &str| match volumes.get(volume) {
        Some(VolumeLocation::Own(folder)) => Some(folder.as_path()),
        _ => None,
    };
    let sources = Sources {
        env_files: env_files::read(&order.container, folder)?,
        ..sources
    };
    let machine = &shared.config.machine;
    let launch = container::prepare(machine, attempt, &sources, volumes, shared.memory)?;
    let users = container::users(&order.sandbox, PathBuf::new());
    let users = users.as_ref().map(|users| users.namespace.as_path());
    let staged = Staged::make(machine, &launch.id, &launch.wanted, users)?;
    Ok((launch, staged))
}

/// Has the engine create and start the container, after setting the pod's cgroup limits, and after
/// starting the process whose PID namespace it shares with others of its pod.
async fn begin(
    shared: &Arc<Shared>,
    supplies: &Supplies,
    order: &Order,
    spec: &mut ContainerSpec,
) -> Result<(), Error> {
    let limited = shared.limit(spec.cgroup_parent.clone(), order.limits).await;
    limited.map_err(|error| {
        Error::caused(ErrorClass::Create, "limit the pod's control group", error)
    })?;
    if spec.target.is_none()
        && let Some(pause) = container::pause(&order.pod, &order.sandbox)
    {
        // If several containers start at once, only one starts it.
        let _turn = supplies.sharing.lock().await;
        spec.target = Some(shared.runtime.share_processes(&pause).await?);
    }
    shared.runtime.start(spec).await?;
    links::make(shared, spec.key.clone()).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::tests::shared;
    use agent_runtime::ContainerState;
    use serde_json::json;
    use std::time::Instant;
    use tests_support::containers;
    use tests_support::silent::Silent;

    fn seen(pod: &PodRef, container: &str, attempt: u32) -> Seen {
        let mut seen = containers::container(pod.clone(), container, ContainerState::Created);
        seen.id = container_id(&pod.uid, container, attempt);
        seen.key.attempt = attempt;
        seen
    }

    fn order(pod: &Arc<Pod>, container: &Container) -> Order {
        Order {
            container: container.clone(),
            pod: pod.clone(),
            kind: ContainerKind::Main,
            number: 1,
            backoff: None,
            round: 0,
            target: None,
            limits: Resources::default(),
            sandbox: Sandbox::default(),
            addresses: Addresses::default(),
            images: Vec::new(),
        }
    }

    #[tokio::test]
    async fn a_start_is_not_seen_before_its_end_and_given_up_while_the_engine_knows_nothing_of_it()
    {
        let dir = tempfile::tempdir().unwrap();
        let shared = shared(dir.path());
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": "p", "uid": "u"},
            "spec": {
                "containers": [{"name": "a"}],
                "volumes": [{"name": "v", "configMap": {"name": "m"}}],
            },
        }))
        .unwrap();
        let reference = agent_pods::pod_ref(&pod).unwrap();
        let supplies = Supplies::new(shared.clone(), reference.clone(), Arc::default());
        let mut starts = Starts::new(shared, Arc::default(), supplies);
        let pod = Arc::new(pod);
        starts.begin(order(&pod, &pod.spec.as_ref().unwrap().containers[0]));
        let all = [("a", 0), ("a", 1), ("b", 1)];
        let all = all.map(|(name, attempt)| seen(&reference, name, attempt));
        let whole = starts.without_unfinished(&reference, all.to_vec());
        assert_eq!(whole, [all[0].clone(), all[2].clone()]);

        tokio::task::yield_now().await;
        assert!(starts.ended(false).is_empty(), "the master is silent");
        let ended = starts.ended(true);
        let ended: Vec<_> = ended.iter().map(|one| (&*one.name, one.number)).collect();
        assert_eq!(ended, [("a", 1)]);
        assert_eq!(starts.without_unfinished(&reference, all.to_vec()), all);
    }

    /// The number of threads of this process that look into volumes.
    fn threads_apart() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
        names
            .filter(|name| name.as_ref().is_ok_and(|name| name.trim() == "apart"))
            .count()
    }

    #[tokio::test]
    async fn starts_that_wait_for_silent_file_systems_keep_no_turn_from_others() {
        let dir = tempfile::tempdir().unwrap();
        let mut shared = Arc::into_inner(shared(dir.path())).unwrap();
        shared.config.cluster = None;
        let shared = Arc::new(shared);
        let (mut silent, mut all) = (Vec::new(), Vec::new());
        let starts_of = |pod: &Pod| {
            let reference = agent_pods::pod_ref(pod).unwrap();
            let supplies = Supplies::new(shared.clone(), reference, Arc::default());
            Starts::new(shared.clone(), Arc::default(), supplies)
        };
        for number in 0..4 {
            let uid = format!("u{number}");
            let mounts = json!([{"name": "v", "mountPath": "/v", "subPath": "silent/x"}]);
            let containers = ["a", "b"].map(|name| json!({"name": name, "volumeMounts": mounts}));
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"namespace": "silent", "name": uid, "uid": uid},
                "spec": {
                    "containers": containers,
                    "volumes": [{"name": "v", "emptyDir": {}}],
                },
            }))
            .unwrap();
            // In the place of a driver's volume.
            let volume = shared
                .config
                .machine
                .pod_dir(&uid)
                .join("volumes/empty-dir/v/silent");
            std::fs::create_dir_all(&volume).unwrap();
            silent.push(Silent::mount(&volume));
            let mut starts = starts_of(&pod);
            let pod = Arc::new(pod);
            for container in &pod.spec.as_ref().unwrap().containers {
                starts.begin(order(&pod, container));
            }
            all.push((starts, pod));
        }
        let begun = Instant::now();
        while threads_apart() < 8 {
            assert!(
                begun.elapsed() < Duration::from_secs(50),
                "they are prepared"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let turn = tokio::time::timeout(Duration::from_secs(5), shared.turns.turn("other"));
        assert!(
            turn.await.is_ok(),
            "a start of another namespace has a turn"
        );

        // Given up, and tried again while its thread still waits.
        let (given_up, pod) = all.remove(0);
        drop(given_up);
        let mut again = starts_of(&pod);
        again.begin(order(&pod, &pod.spec.as_ref().unwrap().containers[0]));
        let begun = Instant::now();
        let ended = loop {
            assert!(begun.elapsed() < Duration::from_secs(20), "it is refused");
            if let Some(ended) = again.ended(false).pop() {
                break ended;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let refused = ended.outcome.unwrap().unwrap_err().chain();
        assert!(refused.contains("an earlier attempt"), "{refused}");
        drop(silent);
    }
}
