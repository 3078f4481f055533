//! The pods of this node: one list and watch, and a task for each pod.

use crate::cleanup;
use crate::desired::{DesiredPod, orphan_grace};
use crate::handle::{Handle, TaskState};
use crate::names::{is_plain, pod_ref};
use crate::sandbox::PodSandbox;
use crate::shared::Shared;
use crate::worker::Worker;
use agent_api::{ApiError, Backoff, Lines, WatchEvent};
use agent_runtime::{Change, PodRef};
use config_errors::chain;
use config_kube::k8s_openapi::api::core::v1::Pod;
use config_static_pods::{Mirror, from_api};
use futures_util::StreamExt;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

/// Least time from the start of one watch to the start of the next: after a watch that lasted
/// longer and ended in order, the next one starts at once.
const AGAIN: Duration = Duration::from_secs(1);
/// How long the master may keep a watch open; then the next one starts.
const WATCH_SECONDS: u32 = 300;
/// How often all pods are listed again.
const RELIST: Duration = Duration::from_secs(600);

/// Grace of containers whose pod was deleted while no agent ran (upstream's).
const ORPHAN_GRACE: Duration = Duration::from_secs(1);

/// The pods that the master has for this node.
#[derive(Debug)]
struct Listed {
    version: String,
    /// UIDs of all pods except mirrors, also of those that can't be decoded.
    there: HashSet<String>,
    pods: Vec<Pod>,
    mirrors: Vec<Mirror>,
}

fn uid_of(pod: &Value) -> Option<&str> {
    pod.pointer("/metadata/uid").and_then(Value::as_str)
}

/// Whether an object is the mirror of a static pod: it has no effect on what runs.
fn is_mirror(pod: &Value) -> bool {
    pod.pointer("/metadata/annotations")
        .is_some_and(|all| all.get(config_static_pods::MIRROR).is_some())
}

fn mirror(object: Value) -> Option<Mirror> {
    match serde_json::from_value(object) {
        Ok(pod) => Mirror::read(&pod),
        Err(error) => {
            tracing::warn!(
                error = chain(&error),
                "cannot decode a mirror of a static pod; ignoring it"
            );
            None
        }
    }
}

/// One pod that can't be decoded must not keep the others from running.
fn read_pod(object: Value) -> Option<Pod> {
    let name = object
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    match serde_json::from_value(object) {
        Ok(pod) => Some(from_api(pod)),
        Err(error) => {
            tracing::warn!(
                name,
                error = chain(&error),
                "cannot decode a pod; ignoring it"
            );
            None
        }
    }
}

/// Keeps a task for each pod of this node until dropped.
pub(crate) struct Pods {
    shared: Arc<Shared>,
    tasks: JoinSet<String>,
    pause: Backoff,
}

impl Pods {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            tasks: JoinSet::new(),
            pause: Backoff::default(),
        }
    }

    /// Lists and watches, and wakes pods' tasks by the engine's news, for ever.
    pub(crate) async fn run(self) {
        let (shared, changes) = (self.shared.clone(), self.shared.runtime.changes());
        // Beside the watch: while the master is away, that waits for it and for its pauses, and
        // containers that end must be started again all the same.
        tokio::join!(self.keep_watch(), pass_on(&shared, changes));
    }

    async fn keep_watch(mut self) {
        self.want_static();
        loop {
            match self.list().await {
                Ok(version) => match self.follow(version).await {
                    Ok(()) => {
                        self.reap(None);
                        continue;
                    }
                    Err(error) => tracing::debug!(error = error.chain(), "watch of pods ended"),
                },
                Err(error) => tracing::warn!(
                    error = error.chain(),
                    "cannot list this node's pods; trying again"
                ),
            }
            self.reap(None);
            tokio::time::sleep(self.pause.take()).await;
        }
    }

    fn path(&self) -> String {
        format!(
            "/api/v1/pods?fieldSelector=spec.nodeName%3D{}",
            self.shared.config.node_name
        )
    }

    /// Requests the whole list, before any of it is applied.
    async fn ask(&self) -> Result<Listed, ApiError> {
        let (mut there, mut pods, mut mirrors) = (HashSet::new(), Vec::new(), Vec::new());
        let take = |pod| {
            if is_mirror(&pod) {
                mirrors.extend(mirror(pod));
            } else {
                there.extend(uid_of(&pod).map(str::to_owned));
                pods.extend(read_pod(pod));
            }
        };
        let version = agent_api::list(&*self.shared.api, &self.path(), take).await?;
        Ok(Listed {
            version,
            there,
            pods,
            mirrors,
        })
    }

    /// Applies the whole list, and ends pods that the master doesn't have. Returns the list's
    /// resource version.
    async fn list(&mut self) -> Result<String, ApiError> {
        let Listed {
            version,
            mut there,
            pods,
            mirrors,
        } = self.ask().await?;
        there.extend(self.want_static());
        for pod in pods {
            self.want(pod);
        }
        let mirrored: Vec<String> = mirrors.iter().map(|one| one.of.clone()).collect();
        self.shared.mirrors.listed(mirrors);
        for uid in &mirrored {
            self.shared.wake(uid);
        }
        self.shared.listed.store(true, Ordering::Release);
        if let Some(view) = &self.shared.config.cluster {
            view.host_ports_are_listed();
        }
        let gone: Vec<String> = self
            .shared
            .handles()
            .keys()
            .filter(|uid| !there.contains(*uid))
            .cloned()
            .collect();
        for uid in gone {
            self.orphan(&uid);
        }
        self.adopt_orphans(&there).await;
        Ok(version)
    }

    /// Starts the tasks of the static pods; returns their UIDs.
    fn want_static(&mut self) -> HashSet<String> {
        let shared = self.shared.clone();
        let all = &shared.config.static_pods;
        for pod in all {
            self.want(pod.clone());
        }
        all.iter()
            .filter_map(|pod| pod.metadata.uid.clone())
            .collect()
    }

    /// Records a mirror, and wakes its pod's task to compare its status.
    fn take_mirror(&self, object: Value, there: bool) {
        let Some(mirror) = mirror(object) else { return };
        let of = mirror.of.clone();
        if there {
            self.shared.mirrors.seen(mirror);
        } else {
            self.shared.mirrors.gone(&mirror);
        }
        self.shared.wake(&of);
    }

    /// Starts tasks that remove what is left of pods that were deleted while no agent ran.
    async fn adopt_orphans(&mut self, there: &HashSet<String>) {
        let containers = match self.shared.runtime.list(None).await {
            Ok(containers) => containers,
            Err(error) => {
                tracing::debug!(error = %error.chain(), "cannot list containers from containerd");
                return;
            }
        };
        let mut pods: HashMap<String, PodRef> = HashMap::new();
        for uid in cleanup::left_uids(&self.shared.config)
            .into_iter()
            .chain(self.shared.sandboxes.uids())
            .chain(self.shared.csi.pods())
            .filter(|uid| is_plain(uid))
        {
            pods.insert(
                uid.clone(),
                PodRef {
                    namespace: "unknown".into(),
                    name: "unknown".into(),
                    uid,
                },
            );
        }
        pods.extend(
            containers
                .into_iter()
                .map(|container| (container.key.pod.uid.clone(), container.key.pod)),
        );
        for (uid, pod) in pods {
            if !there.contains(&uid) && !self.shared.handles().contains_key(&uid) {
                self.spawn(pod, DesiredPod::Gone(ORPHAN_GRACE));
            }
        }
    }

    async fn follow(&mut self, mut version: String) -> Result<(), ApiError> {
        let mut next = Instant::now();
        let mut lines = self.watch(&version, &mut next).await?;
        self.pause.reset();
        let end = tokio::time::sleep(RELIST);
        tokio::pin!(end);
        loop {
            tokio::select! {
                // A stream's next and a set's join lose nothing when dropped; the sleep is kept
                // outside.
                line = lines.next() => match line {
                    Some(line) => self.take(&line?, &mut version)?,
                    None => lines = self.watch(&version, &mut next).await?,
                },
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => self.reap(Some(done)),
                () = &mut end => return Ok(()),
            }
        }
    }

    /// Starts a watch from a resource version, not before `next`; sets `next` to the earliest time
    /// of the watch after this one.
    async fn watch(&self, version: &str, next: &mut Instant) -> Result<Lines, ApiError> {
        sleep_until(*next).await;
        *next = Instant::now() + AGAIN;
        let query = format!(
            "&watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}"
        );
        self.shared.api.watch(self.path() + &query).await
    }

    fn take(&mut self, line: &[u8], version: &mut String) -> Result<(), ApiError> {
        match WatchEvent::read(line, version)? {
            WatchEvent::Is(pod) if is_mirror(&pod) => self.take_mirror(pod, true),
            WatchEvent::Is(pod) => {
                if let Some(pod) = read_pod(pod) {
                    self.want(pod);
                }
            }
            WatchEvent::Gone(pod) if is_mirror(&pod) => self.take_mirror(pod, false),
            WatchEvent::Gone(pod) => self.orphan(uid_of(&pod).unwrap_or_default()),
            WatchEvent::Bookmark { .. } => {}
        }
        Ok(())
    }

    /// Sends a version of a pod to its task; starts a task if there is none.
    fn want(&mut self, pod: Pod) {
        let Some(reference) = pod_ref(&pod) else {
            tracing::warn!(name = ?pod.metadata.name, "pod has an invalid name, namespace or UID; ignoring it");
            return;
        };
        let pod = Arc::new(pod);
        let sent = match self.shared.handles().get(&reference.uid) {
            Some(handle) => {
                if matches!(&*handle.wanted.borrow(), DesiredPod::Pod(old) if old.metadata.resource_version == pod.metadata.resource_version)
                {
                    return;
                }
                handle.wanted.send(DesiredPod::Pod(pod.clone())).is_ok()
            }
            None => false,
        };
        if !sent {
            self.spawn(reference, DesiredPod::Pod(pod));
        }
    }

    /// Tells a pod's task that the master doesn't have the pod any more.
    fn orphan(&mut self, uid: &str) {
        if let Some(handle) = self.shared.handles().get(uid) {
            handle
                .wanted
                .send_modify(|wanted| *wanted = DesiredPod::Gone(orphan_grace(wanted)));
        }
    }

    fn spawn(&mut self, pod: PodRef, wanted: DesiredPod) {
        if let DesiredPod::Pod(object) = &wanted {
            // Before its task lists containers, so that host ports of an earlier agent's pod work
            // at once.
            PodSandbox::find(&self.shared, &pod.uid).publish(&self.shared, object);
        }
        let (sender, receiver) = watch::channel(wanted);
        let state = TaskState::default();
        let worker = Worker::new(self.shared.clone(), pod.clone(), receiver, state.clone());
        let TaskState {
            news,
            chosen,
            allocation,
            found,
            released,
        } = state;
        let uid = pod.uid.clone();
        self.shared.handles().insert(
            uid.clone(),
            Handle {
                pod,
                wanted: sender,
                news,
                chosen,
                allocation,
                found,
                released,
            },
        );
        self.tasks.spawn(async move {
            Box::pin(worker.run()).await;
            uid
        });
    }

    /// Forgets tasks that are done: `first`, if given, and all others.
    fn reap(&mut self, mut first: Option<Result<String, JoinError>>) {
        while let Some(done) = first.take().or_else(|| self.tasks.try_join_next()) {
            if let Err(error) = done {
                tracing::error!(error = chain(&error), "a pod's task died");
            }
        }
        let mut handles = self.shared.handles();
        // A task that has ended has dropped its receiver.
        handles.retain(|_, handle| !handle.wanted.is_closed());
        let is_here = |uid: &str| handles.contains_key(uid);
        self.shared.figures.retain(is_here);
    }
}

/// Wakes the tasks of pods by the engine's news, for ever.
async fn pass_on(shared: &Shared, mut changes: broadcast::Receiver<Change>) {
    loop {
        match changes.recv().await {
            Ok(Change::Pod(uid)) => shared.wake(&uid),
            Ok(Change::All) | Err(RecvError::Lagged(_)) => shared.wake_all(),
            // The engine has stopped; the agent ends with it.
            Err(RecvError::Closed) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::tests::{Ending, Large, beside_sandbox, shared, shared_of, with_host_port};
    use crate::shared::tests::handle;
    use crate::worker::tests::with_own_engine;
    use serde_json::json;
    use tokio::time::timeout;

    #[tokio::test]
    async fn pods_too_large_for_one_answer_are_listed() {
        let mark = json!({config_static_pods::MIRROR: "s"});
        let pods = (1..=12).map(|n| {
            let marks = (n == 12).then_some(&mark);
            json!({"metadata": {"namespace": "a", "name": "p", "uid": n.to_string(), "annotations": marks}})
        });
        let dir = tempfile::tempdir().unwrap();
        let shared = shared_of(dir.path(), Vec::new(), Arc::new(Large(pods.collect())));
        let listed = Pods::new(shared).ask().await.unwrap();
        assert_eq!(listed.version, "9");
        let all: HashSet<_> = (1..=11).map(|n| n.to_string()).collect();
        assert_eq!((listed.there, listed.pods.len()), (all, 11));
    }

    #[tokio::test(start_paused = true)]
    async fn pods_are_watched_without_a_break() {
        let dir = tempfile::tempdir().unwrap();
        // Beyond the time after which all pods are listed again, and within it.
        for (lives, pause, seconds) in [(300, 0, 1250), (0, 1, 500)] {
            let master = Arc::new(Ending::after(lives));
            let shared = shared_of(dir.path(), Vec::new(), master.clone());
            let watched = timeout(Duration::from_secs(seconds), Pods::new(shared).run()).await;
            assert!(watched.is_err(), "it is watched for ever");
            let pauses = master.pauses();
            assert!(pauses.len() > 2, "{pauses:?}");
            for taken in pauses {
                assert_eq!(taken.as_secs(), pause, "after {lives} s: {taken:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_is_woken_by_its_containers_end_while_the_master_does_not_answer() {
        let dir = tempfile::tempdir().unwrap();
        let (shared, engine) = with_own_engine(shared(dir.path()));
        let own = handle(with_host_port("a"));
        let news = own.news.clone();
        shared.handles().insert("a".to_owned(), own);
        let running = tokio::spawn(Pods::new(shared).run());
        // From the moment on that somebody listens.
        while !engine.tell(Change::Pod("a".to_owned())) {
            tokio::task::yield_now().await;
        }
        let woken = timeout(Duration::from_secs(5), news.notified());
        woken.await.unwrap();
        running.abort();
    }

    /// Needs root.
    #[test]
    fn an_adopted_pod_has_its_host_ports_before_the_engine_answers() {
        beside_sandbox(vec![with_host_port("a")], |shared, made| async move {
            Pods::new(shared.clone()).want_static();
            let known = shared.config.cluster.as_ref().unwrap().now();
            let [(uid, ports)] = known.host_ports.as_slice() else {
                unreachable!("{:?}", known.host_ports)
            };
            assert_eq!((&**uid, ports[0].pod), ("a", made.addresses[0]));
        });
    }
}
