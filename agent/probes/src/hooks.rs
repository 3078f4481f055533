//! Lifecycle hooks: one task for each that runs; the pod's own task reads their results.
//!
//! When a hook is begun, and what follows from its end, is the pod machine's work. A hook ends with
//! its container, and one after the start also with its pod's life, as upstream's does.

use crate::reached;
use agent_api::events::Recorder;
use agent_handlers::{Target, Warning};
use agent_pods::{Begun, HookProgress, Notes, find};
use agent_runtime::{Container as Seen, ContainerState, Runtime};
use config_kube::k8s_openapi::api::core::v1::{LifecycleHandler, Pod};
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// A hook after the start may take as long as its container runs; one that takes a day hangs.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Progress of one pod's hooks, by container id.
#[derive(Debug, Default)]
struct Course {
    post_start: BTreeMap<String, HookProgress>,
    pre_stop: BTreeMap<String, Begun>,
}

/// The hooks of one pod's containers.
#[derive(Debug)]
pub struct Hooks {
    runtime: Arc<dyn Runtime>,
    events: Recorder,
    news: Arc<Notify>,
    course: Arc<Mutex<Course>>,
    after_start: BTreeMap<String, AbortHandle>,
    before_stop: BTreeMap<String, AbortHandle>,
}

impl Hooks {
    /// The hooks of a pod of which none has run yet; `news` is notified when one ends.
    pub fn new(runtime: Arc<dyn Runtime>, events: Recorder, news: Arc<Notify>) -> Self {
        Self {
            runtime,
            events,
            news,
            course: Arc::default(),
            after_start: BTreeMap::new(),
            before_stop: BTreeMap::new(),
        }
    }

    /// Ends the hooks of what doesn't run any more, those after the start also where the pod
    /// `ends`, and writes down how far the others have come.
    pub fn follow(&mut self, seen: &[Seen], ends: bool, notes: &mut Notes) {
        let runs = |id: &String| {
            seen.iter()
                .any(|seen| seen.id == *id && matches!(seen.state, ContainerState::Running { .. }))
        };
        keep(&mut self.after_start, |id| runs(id) && !ends);
        keep(&mut self.before_stop, runs);
        let mut course = lock(&self.course);
        course.post_start.retain(|id, _| runs(id));
        course.pre_stop.retain(|id, _| runs(id));
        notes.post_start.clone_from(&course.post_start);
        notes.pre_stop.clone_from(&course.pre_stop);
    }

    /// Begins the postStart hook of a container that was just started, if it has one.
    pub fn begin_post_start(&mut self, pod: &Arc<Pod>, name: &str, id: &str, host: Option<IpAddr>) {
        let Some((target, hook)) = self.hook(pod, name, id, host, |own| own.post_start) else {
            return;
        };
        lock(&self.course)
            .post_start
            .insert(id.to_owned(), HookProgress::Running);
        let (events, pod, news) = (self.events.clone(), pod.clone(), self.news.clone());
        let course = self.course.clone();
        let task = tokio::spawn(async move {
            let progress = match target.hook(&hook, LONGEST).await {
                Ok(warning) => {
                    warn(&events, &pod, warning);
                    HookProgress::Done
                }
                Err(error) => {
                    tracing::debug!(container = target.id, error, "postStart hook failed");
                    // Without its output: what a hook prints may be secret (upstream's rule).
                    let words = "PostStartHook failed";
                    let events = events.of(&pod, &target.container.name);
                    events.warning("FailedPostStartHook", words);
                    HookProgress::Failed
                }
            };
            if let Some(entry) = lock(&course).post_start.get_mut(&target.id) {
                *entry = progress;
            }
            news.notify_one();
        });
        self.after_start.insert(id.to_owned(), task.abort_handle());
    }

    /// Begins the preStop hook of a container. After `limit` the container is asked to end, even if
    /// the hook still runs.
    pub fn begin_pre_stop(
        &mut self,
        pod: &Arc<Pod>,
        name: &str,
        id: &str,
        host: Option<IpAddr>,
        limit: Duration,
    ) {
        let begun = Begun {
            at: Timestamp::now(),
            over: false,
        };
        lock(&self.course).pre_stop.insert(id.to_owned(), begun);
        let found = self.hook(pod, name, id, host, |own| own.pre_stop);
        let (events, pod, news) = (self.events.clone(), pod.clone(), self.news.clone());
        let (course, id) = (self.course.clone(), id.to_owned());
        let key = id.clone();
        let task = tokio::spawn(async move {
            if let Some((target, hook)) = found {
                match tokio::time::timeout(limit, target.hook(&hook, limit)).await {
                    Err(_elapsed) => {}
                    Ok(Ok(warning)) => warn(&events, &pod, warning),
                    Ok(Err(error)) => {
                        tracing::debug!(container = id, error, "preStop hook failed");
                        let words = "PreStopHook failed";
                        let events = events.of(&pod, &target.container.name);
                        events.warning("FailedPreStopHook", words);
                    }
                }
            }
            if let Some(entry) = lock(&course).pre_stop.get_mut(&id) {
                entry.over = true;
            }
            news.notify_one();
        });
        self.before_stop.insert(key, task.abort_handle());
    }

    /// A container's hook and what it acts upon.
    fn hook(
        &self,
        pod: &Pod,
        name: &str,
        id: &str,
        host: Option<IpAddr>,
        which: impl FnOnce(
            config_kube::k8s_openapi::api::core::v1::Lifecycle,
        ) -> Option<LifecycleHandler>,
    ) -> Option<(Target, LifecycleHandler)> {
        let (_, container) = find(pod, name)?;
        let hook = container.lifecycle.clone().and_then(which)?;
        let target = Target {
            runtime: self.runtime.clone(),
            id: id.to_owned(),
            container: container.into_owned(),
            host: reached(pod, host),
        };
        Some((target, hook))
    }
}

impl Drop for Hooks {
    fn drop(&mut self) {
        keep(&mut self.after_start, |_| false);
        keep(&mut self.before_stop, |_| false);
    }
}

/// Records what a hook that has passed warns of.
fn warn(events: &Recorder, pod: &Pod, warning: Option<Warning>) {
    if let Some(warning) = warning {
        events.warning(pod, "LifecycleHTTPFallback", warning);
    }
}

fn lock(course: &Mutex<Course>) -> MutexGuard<'_, Course> {
    course.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the tasks that are not to be kept.
fn keep(tasks: &mut BTreeMap<String, AbortHandle>, stays: impl Fn(&String) -> bool) {
    tasks.retain(|id, task| {
        let stays = stays(id);
        if !stays {
            task.abort();
        }
        stays
    });
}
