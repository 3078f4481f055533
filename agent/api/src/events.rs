//! Events about pods and the node, for people. Repetitions are counted, not written again.
//!
//! One task writes them, one after the other, of each namespace in turn; the channel to it is
//! bounded, as is what waits, and an event that doesn't fit is dropped: events must never delay a
//! container. An event whose write gets no answer, or that is one too many, is tried again a
//! bounded number of times.

use crate::{Api, ApiError, Backoff, JSON, STRATEGIC_MERGE, send};
use config_errors::chain;
use config_kube::event::{LONGEST_TRY, event_name, is_temporary};
use config_kube::k8s_openapi::api::core::v1::{Event, EventSource, Node, ObjectReference, Pod};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use http::Method;
use jiff::Timestamp;
use serde_json::json;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Events on their way to the task that writes them, and those of one namespace that wait there.
const QUEUE: usize = 256;
/// Those of all namespaces that wait there; of these the last places are for namespaces that have
/// none.
const ALL_WAITING: usize = 4 * QUEUE;
const RESERVED: usize = QUEUE;
/// Events whose repetitions are counted; beyond this number all counts are dropped at once.
const KNOWN: usize = 1024;
/// Longest message (upstream's limit).
const MAX_MESSAGE: usize = 1024;
/// Bytes of all annotations of an event at most. The master takes no event of more than 8 KiB from
/// a node, so an event whose annotations are larger is written without them.
const MAX_ANNOTATIONS: usize = 3 << 10;
/// How often an event is tried at most (upstream's number). Events that come meanwhile wait behind
/// it, there as here, and are dropped where too many wait.
const TRIES: usize = 12;
/// How long nothing is written after the master has refused an event as one too many.
const REFUSED: Duration = Duration::from_secs(1);
/// The reporting component of most events.
const KUBELET: &str = "kubelet";
/// That of events of Services, by upstream's name.
pub const SERVICE_PROXY: &str = "kube-proxy";

/// One thing that happened.
#[derive(Debug, Clone)]
struct Occurrence {
    about: ObjectReference,
    warning: bool,
    reason: Cow<'static, str>,
    message: String,
    annotations: Option<BTreeMap<String, String>>,
    at: Timestamp,
}

/// Queues events for the writer task.
#[derive(Debug, Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Occurrence>,
}

impl Recorder {
    /// The recorder, and the receiving end for [`write`].
    #[must_use]
    pub fn new() -> (Self, Queue) {
        Self::of_component(KUBELET)
    }

    /// The same of another component.
    #[must_use]
    pub fn of_component(component: &'static str) -> (Self, Queue) {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let queue_of = Queue {
            receiver,
            component,
        };
        (Self { queue }, queue_of)
    }

    /// Records a `Normal` event.
    pub fn normal(&self, pod: &Pod, reason: &'static str, message: impl Into<String>) {
        self.record(pod_reference(pod), false, reason, &message.into());
    }

    /// Records a `Warning` event.
    pub fn warning(
        &self,
        pod: &Pod,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) {
        self.record(pod_reference(pod), true, reason, &message.into());
    }

    /// Records a `Warning` event that says more to programs in its annotations, if these are not
    /// too large.
    pub fn annotated(
        &self,
        pod: &Pod,
        reason: &'static str,
        message: &str,
        annotations: BTreeMap<String, String>,
    ) {
        let news = occurrence(pod_reference(pod), true, reason.into(), message);
        let sizes = annotations
            .iter()
            .map(|(key, value)| key.len() + value.len());
        let has_room = !annotations.is_empty() && sizes.sum::<usize>() <= MAX_ANNOTATIONS;
        self.queue(Occurrence {
            annotations: has_room.then_some(annotations),
            ..news
        });
    }

    /// Records events of one container of a pod.
    pub fn of<'a>(&'a self, pod: &'a Pod, container: &'a str) -> OfContainer<'a> {
        OfContainer {
            recorder: self,
            pod,
            container,
        }
    }

    /// Records an event of the node.
    pub fn node(
        &self,
        node: &Node,
        warning: bool,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        let about = ObjectReference {
            kind: Some("Node".to_owned()),
            api_version: Some("v1".to_owned()),
            name: node.metadata.name.clone(),
            uid: node.metadata.uid.clone(),
            ..ObjectReference::default()
        };
        self.record(about, warning, reason, &message.into());
    }

    /// Records an event of an object.
    pub fn record(
        &self,
        about: ObjectReference,
        warning: bool,
        reason: impl Into<Cow<'static, str>>,
        message: &str,
    ) {
        self.queue(occurrence(about, warning, reason.into(), message));
    }

    fn queue(&self, news: Occurrence) {
        if let Err(error) = self.queue.try_send(news) {
            tracing::debug!(error = chain(&error), "event dropped");
        }
    }
}

fn occurrence(
    about: ObjectReference,
    warning: bool,
    reason: Cow<'static, str>,
    message: &str,
) -> Occurrence {
    Occurrence {
        about,
        warning,
        reason,
        message: message.chars().take(MAX_MESSAGE).collect(),
        annotations: None,
        at: Timestamp::now(),
    }
}

/// Records events of a container: they are the pod's, and name the container's place in its spec.
#[derive(Debug, Clone, Copy)]
pub struct OfContainer<'a> {
    recorder: &'a Recorder,
    pod: &'a Pod,
    container: &'a str,
}

impl OfContainer<'_> {
    /// Records a `Normal` event.
    pub fn normal(&self, reason: &'static str, message: impl Into<String>) {
        self.record(false, reason, &message.into());
    }

    /// Records a `Warning` event.
    pub fn warning(&self, reason: &'static str, message: impl Into<String>) {
        self.record(true, reason, &message.into());
    }

    fn record(&self, warning: bool, reason: &'static str, message: &str) {
        let about = ObjectReference {
            field_path: field_path(self.pod, self.container),
            ..pod_reference(self.pod)
        };
        self.recorder.record(about, warning, reason, message);
    }
}

/// A container's place in its pod, as upstream writes it: `spec.containers{name}`.
fn field_path(pod: &Pod, name: &str) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let mut inits = spec.init_containers.iter().flatten();
    let mut debuggers = spec.ephemeral_containers.iter().flatten();
    let list = if spec.containers.iter().any(|one| one.name == name) {
        "containers"
    } else if inits.any(|one| one.name == name) {
        "initContainers"
    } else if debuggers.any(|one| one.name == name) {
        "ephemeralContainers"
    } else {
        return None;
    };
    Some(format!("spec.{list}{{{name}}}"))
}

fn pod_reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".to_owned()),
        api_version: Some("v1".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        resource_version: pod.metadata.resource_version.clone(),
        field_path: None,
    }
}

/// The events that wait.
#[derive(Debug)]
pub struct Queue {
    receiver: mpsc::Receiver<Occurrence>,
    component: &'static str,
}

/// The events that came and are not written yet, by their namespaces, each of which has its turn. A
/// pod whose probes fail without an end, each time with other words, has more of them than the
/// master takes of a node; it keeps those of its own namespace waiting, and no others.
#[derive(Debug, Default)]
struct Waiting {
    /// Those of each namespace that has some. The next one is taken from the first.
    turns: VecDeque<(Option<String>, VecDeque<Occurrence>)>,
    count: usize,
}

impl Waiting {
    /// Adds an event, unless too many wait.
    fn add(&mut self, news: Occurrence) {
        let namespace = &news.about.namespace;
        let mut turns = self.turns.iter_mut();
        let own = turns.find(|(of, _)| of == namespace).map(|(_, own)| own);
        let most = match &own {
            Some(own) if own.len() >= QUEUE => 0,
            Some(_) => ALL_WAITING - RESERVED,
            None => ALL_WAITING,
        };
        if self.count >= most {
            tracing::debug!(?namespace, "event dropped: too many wait");
            return;
        }
        self.count += 1;
        match own {
            Some(own) => own.push_back(news),
            None => self
                .turns
                .push_back((namespace.clone(), VecDeque::from([news]))),
        }
    }

    /// The next event.
    fn take(&mut self) -> Option<Occurrence> {
        let (namespace, mut own) = self.turns.pop_front()?;
        let news = own.pop_front()?;
        self.count -= 1;
        if !own.is_empty() {
            self.turns.push_back((namespace, own));
        }
        Some(news)
    }
}

/// What repetitions of an event have in common: whose it is, reason and message.
type Key = ((Option<String>, Option<String>), Cow<'static, str>, String);

/// The occurrences of one event that were written.
#[derive(Debug)]
struct Series {
    /// The event's name.
    name: String,
    count: i32,
    first: Timestamp,
}

/// Writes events until every recorder is gone.
pub async fn write(mut queue: Queue, api: Arc<dyn Api>, node: String) {
    let mut known: HashMap<Key, Series> = HashMap::new();
    let source = EventSource {
        component: Some(queue.component.to_owned()),
        host: Some(node),
    };
    let mut waiting = Waiting::default();
    loop {
        for _ in 0..QUEUE {
            let Ok(news) = queue.receiver.try_recv() else {
                break;
            };
            waiting.add(news);
        }
        let Some(news) = waiting.take() else {
            let Some(news) = queue.receiver.recv().await else {
                return;
            };
            waiting.add(news);
            continue;
        };
        let about = (news.about.uid.clone(), news.about.field_path.clone());
        let key = (about, news.reason.clone(), news.message.clone());
        if known.len() >= KNOWN && !known.contains_key(&key) {
            known.clear();
        }
        let series = known.entry(key.clone()).or_insert_with(|| Series {
            name: event_name(
                news.about.name.as_deref().unwrap_or("unknown"),
                news.at.as_nanosecond(),
            ),
            count: 0,
            first: news.at,
        });
        series.count = series.count.saturating_add(1);
        let written = {
            let mut sending = pin!(timeout(
                LONGEST_TRY,
                write_one(&*api, &news, series, &source)
            ));
            loop {
                // Cancel-safe: the write is kept outside, and an event is received or not.
                tokio::select! {
                    written = &mut sending => break written,
                    Some(more) = queue.receiver.recv() => waiting.add(more),
                }
            }
        };
        let written = written.unwrap_or_else(|late| Err(ApiError::Transport(Box::new(late))));
        if let Err(error) = written {
            known.remove(&key);
            tracing::info!(
                reason = %news.reason,
                error = error.chain(),
                "an event is dropped, because it cannot be written"
            );
        }
    }
}

/// Writes one event, and tries again where that may help, [`TRIES`] times in all.
async fn write_one(
    api: &dyn Api,
    news: &Occurrence,
    series: &Series,
    source: &EventSource,
) -> Result<(), ApiError> {
    let mut backoff = Backoff::default();
    let mut tries = 0;
    loop {
        let Err(error) = put(api, news, series, source, tries > 0).await else {
            return Ok(());
        };
        let Some(pause) = pause_after(&error, &mut backoff) else {
            return Err(error);
        };
        tries += 1;
        // Also after the last try: the next event would meet the same.
        sleep(pause).await;
        if tries == TRIES {
            return Err(error);
        }
    }
}

/// How long to wait before an event is tried again; not at all where the answer would be the same.
fn pause_after(error: &ApiError, backoff: &mut Backoff) -> Option<Duration> {
    let again = match error {
        ApiError::Status { code: 429, .. } => return Some(REFUSED),
        ApiError::Transport(_) => true,
        ApiError::Status { code, reason, .. } => is_temporary(*code, reason),
        ApiError::TooLarge(_) | ApiError::Decode(_) | ApiError::Encode(_) => false,
    };
    again.then(|| backoff.take())
}

/// Counts a repetition in the event that is there. The master removes events after a while: one
/// that is gone is made anew with its count and its first time (upstream's rule). `again`: it was
/// tried before, and may have been made without an answer.
async fn put(
    api: &dyn Api,
    news: &Occurrence,
    series: &Series,
    source: &EventSource,
    again: bool,
) -> Result<(), ApiError> {
    let namespace = news.about.namespace.clone();
    let namespace = namespace.unwrap_or_else(|| "default".to_owned());
    let path = format!("/api/v1/namespaces/{namespace}/events");
    if series.count > 1 {
        let change = json!({"count": series.count, "lastTimestamp": Time(news.at)});
        let own = format!("{path}/{}", series.name);
        match send(api, Method::PATCH, own, STRATEGIC_MERGE, &change).await {
            Err(error) if error.is_not_found() => {}
            counted => return counted,
        }
    }
    let event = event(news.clone(), series, namespace, source);
    match send(api, Method::POST, path, JSON, &event).await {
        Err(error) if again && error.is_conflict() => Ok(()),
        made => made,
    }
}

fn event(news: Occurrence, series: &Series, namespace: String, source: &EventSource) -> Event {
    Event {
        metadata: ObjectMeta {
            name: Some(series.name.clone()),
            namespace: Some(namespace),
            annotations: news.annotations,
            ..ObjectMeta::default()
        },
        involved_object: news.about,
        type_: Some(if news.warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(news.reason.into_owned()),
        message: Some(news.message),
        count: Some(series.count),
        first_timestamp: Some(Time(series.first)),
        last_timestamp: Some(Time(news.at)),
        source: Some(source.clone()),
        reporting_component: source.component.clone(),
        reporting_instance: source.host.clone(),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, Call, Lines};
    use bytes::Bytes;
    use std::collections::VecDeque;
    use std::sync::Mutex;
    use tokio::time::Instant;

    /// The code of a call that gets no answer.
    const NO_ANSWER: u16 = 0;

    /// A master that answers with these codes in turn, and with success after them.
    #[derive(Debug, Default)]
    struct Scripted {
        codes: Mutex<VecDeque<u16>>,
        calls: Mutex<Vec<(Call, Instant)>>,
    }

    impl Api for Scripted {
        fn call(&self, call: Call) -> Answer<'_, Bytes> {
            self.calls.lock().unwrap().push((call, Instant::now()));
            let answer = match self.codes.lock().unwrap().pop_front() {
                None | Some(200) => Ok(Bytes::from_static(b"{}")),
                Some(NO_ANSWER) => Err(ApiError::Transport("the master is away".into())),
                Some(500) => {
                    let body = br#"{"reason": "ServerTimeout"}"#;
                    Err(ApiError::from_answer(500, body))
                }
                Some(code) => Err(ApiError::from_answer(code, b"{}")),
            };
            Box::pin(std::future::ready(answer))
        }

        fn watch(&self, _: String) -> Answer<'_, Lines> {
            Box::pin(std::future::pending())
        }
    }

    /// What a master that answers so is sent for an event that comes this often.
    async fn sent(codes: &[u16], times: usize) -> Vec<(Call, Instant)> {
        let (recorder, queue) = Recorder::new();
        let api = Arc::new(Scripted {
            codes: Mutex::new(codes.iter().copied().collect()),
            ..Scripted::default()
        });
        for _ in 0..times {
            recorder.node(&Node::default(), false, "Rebooted", "again");
        }
        drop(recorder);
        write(queue, api.clone(), "n".to_owned()).await;
        std::mem::take(&mut *api.calls.lock().unwrap())
    }

    fn methods(calls: &[(Call, Instant)]) -> Vec<Method> {
        calls.iter().map(|(call, _)| call.method.clone()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_is_one_too_many_is_tried_again_and_the_next_one_waits() {
        let began = Instant::now();
        let calls = sent(&[429], 2).await;
        assert_eq!(methods(&calls), [Method::POST, Method::POST, Method::PATCH]);
        assert_eq!(calls[0].0.body, calls[1].0.body);
        assert!(calls[0].1 == began && calls[1].1 >= began + REFUSED);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_stays_one_too_many_is_dropped_at_last() {
        let calls = sent(&[429; TRIES], 2).await;
        // What was dropped is not there to be counted.
        assert_eq!(methods(&calls), [Method::POST; TRIES + 1]);
        let [.., (last, refused), (next, at)] = &calls[..] else {
            panic!("{calls:?}");
        };
        assert_ne!(last.body, next.body);
        assert!(*at >= *refused + REFUSED);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_without_an_answer_is_tried_again_and_counts_once() {
        // The second try made it, and its answer was lost.
        let calls = sent(&[NO_ANSWER, NO_ANSWER, 409, 503, 200, 500], 3).await;
        let [post, patch] = [Method::POST, Method::PATCH];
        let expected = [&post, &post, &post, &patch, &patch, &patch, &patch].map(Method::clone);
        assert_eq!(methods(&calls), expected);
        let count = |at: usize| {
            let body: serde_json::Value = serde_json::from_slice(&calls[at].0.body).unwrap();
            body["count"].clone()
        };
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(count), [1, 1, 1, 2, 2, 3, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_without_an_answer_is_dropped_after_a_while() {
        let began = Instant::now();
        let calls = sent(&[NO_ANSWER; 100], 1).await;
        assert!((6..=TRIES).contains(&calls.len()), "{}", calls.len());
        assert!(Instant::now() <= began + LONGEST_TRY + Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_the_master_refuses_is_not_tried_again() {
        let began = Instant::now();
        let calls = sent(&[403, 422, 409], 4).await;
        assert_eq!(methods(&calls), [Method::POST; 4]);
        assert!(calls.iter().all(|(_, at)| *at == began));
    }

    #[tokio::test]
    async fn an_event_that_the_master_removed_is_made_anew_and_counts_on() {
        let calls = sent(&[200, 404], 3).await;
        let [first, _, again, next] = &calls[..] else {
            panic!("{calls:?}");
        };
        let expected = [Method::POST, Method::PATCH, Method::POST, Method::PATCH];
        assert_eq!(methods(&calls), expected);
        let event = |call: &Call| serde_json::from_slice::<Event>(&call.body).unwrap();
        let (first, again) = (event(&first.0), event(&again.0));
        assert_eq!((first.count, again.count), (Some(1), Some(2)));
        assert_eq!(again.first_timestamp, first.first_timestamp);
        let name = again.metadata.name.unwrap();
        assert!(next.0.path.ends_with(&name), "{} {name}", next.0.path);
        let change: serde_json::Value = serde_json::from_slice(&next.0.body).unwrap();
        assert_eq!(change["count"], 3);
    }

    fn pod_in(namespace: &str) -> Pod {
        let meta = json!({"name": "p", "namespace": namespace});
        serde_json::from_value(json!({"metadata": meta})).unwrap()
    }

    #[tokio::test]
    async fn a_pod_with_events_without_an_end_keeps_those_of_no_other_namespace_waiting() {
        let (recorder, queue) = Recorder::new();
        let api = Arc::<Scripted>::default();
        for number in 1..QUEUE {
            recorder.warning(&pod_in("noisy"), "Unhealthy", number.to_string());
        }
        recorder.warning(&pod_in("quiet"), "Evicted", "why");
        drop(recorder);
        write(queue, api.clone(), "n".to_owned()).await;
        let calls = api.calls.lock().unwrap();
        assert_eq!(calls.len(), QUEUE);
        let mut all = calls.iter();
        let at = all.position(|(call, _)| call.path.contains("/quiet/"));
        assert_eq!(at, Some(1), "after one of the other namespace");
    }

    #[test]
    fn events_that_wait_are_bounded_and_leave_places_to_namespaces_that_have_none() {
        let mut waiting = Waiting::default();
        for namespace in 0..10 {
            let about = pod_reference(&pod_in(&namespace.to_string()));
            for _ in 0..QUEUE + 10 {
                waiting.add(occurrence(about.clone(), true, "Failed".into(), "why"));
            }
        }
        let full = (ALL_WAITING - RESERVED) / QUEUE;
        assert_eq!(waiting.count, full * QUEUE + (10 - full));
        let mut taken = 0;
        while waiting.take().is_some() {
            taken += 1;
        }
        assert_eq!((taken, waiting.count), (full * QUEUE + (10 - full), 0));
    }

    #[test]
    fn annotations_of_an_event_are_written_with_it() {
        let (recorder, mut queue) = Recorder::new();
        let of = |value: String| BTreeMap::from([("a".to_owned(), value)]);
        let (annotations, large) = (of("b".to_owned()), of("b".repeat(MAX_ANNOTATIONS)));
        for annotations in [annotations.clone(), BTreeMap::new(), large] {
            recorder.annotated(&Pod::default(), "Evicted", "why", annotations);
        }
        let mut written = || {
            let news = queue.receiver.try_recv().unwrap();
            let series = Series {
                name: "p.1".to_owned(),
                count: 1,
                first: news.at,
            };
            let event = event(news, &series, "n".to_owned(), &EventSource::default());
            event.metadata.annotations
        };
        assert_eq!([(); 3].map(|()| written()), [Some(annotations), None, None]);
    }

    #[test]
    fn an_event_of_a_container_names_its_place_in_the_pod() {
        let (recorder, mut queue) = Recorder::new();
        let one = |name: &str| json!([{"name": name, "image": "i"}]);
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {
            "containers": one("a"), "initContainers": one("b"), "ephemeralContainers": one("c"),
        }}))
        .unwrap();
        for name in ["a", "b", "c", "d"] {
            recorder.of(&pod, name).warning("Failed", "why");
        }
        recorder.normal(&pod, "Scheduled", "why");
        let mut involved = || {
            let about = queue.receiver.try_recv().unwrap().about;
            (about.name.unwrap(), about.field_path)
        };
        for place in [
            Some("spec.containers{a}"),
            Some("spec.initContainers{b}"),
            Some("spec.ephemeralContainers{c}"),
            None,
            None,
        ] {
            assert_eq!(involved(), ("p".to_owned(), place.map(str::to_owned)));
        }
    }
}
