//! Events about pods and the node, for people. Repetitions are counted, not written again.
//!
//! One task writes them; the channel to it is bounded, and an event that doesn't fit is dropped:
//! events must never delay a container.

use crate::{Api, JSON, STRATEGIC_MERGE, send};
use config_kube::k8s_openapi::api::core::v1::{Event, EventSource, Node, ObjectReference, Pod};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use http::Method;
use jiff::Timestamp;
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Events that wait to be written.
const QUEUE: usize = 256;
/// Events whose repetitions are counted; beyond this number all counts are dropped at once.
const KNOWN: usize = 1024;
/// Longest message (upstream's limit).
const MAX_MESSAGE: usize = 1024;
/// The event's reporting component.
const COMPONENT: &str = "kubelet";

/// One thing that happened.
#[derive(Debug, Clone)]
struct News {
    about: ObjectReference,
    warning: bool,
    reason: &'static str,
    message: String,
    at: Timestamp,
}

/// Queues events for the writer task.
#[derive(Debug, Clone)]
pub struct Recorder {
    queue: mpsc::Sender<News>,
}

impl Recorder {
    /// The recorder, and the receiving end for [`write`].
    #[must_use]
    pub fn new() -> (Self, Queue) {
        let (queue, receiver) = mpsc::channel(QUEUE);
        (Self { queue }, Queue { receiver })
    }

    /// Records a `Normal` event.
    pub fn normal(&self, pod: &Pod, reason: &'static str, message: impl Into<String>) {
        self.tell(pod_reference(pod), false, reason, &message.into());
    }

    /// Records a `Warning` event.
    pub fn warning(&self, pod: &Pod, reason: &'static str, message: impl Into<String>) {
        self.tell(pod_reference(pod), true, reason, &message.into());
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
        self.tell(about, warning, reason, &message.into());
    }

    /// Records an event of an object.
    pub fn tell(&self, about: ObjectReference, warning: bool, reason: &'static str, message: &str) {
        let message = message.chars().take(MAX_MESSAGE).collect();
        let news = News {
            about,
            warning,
            reason,
            message,
            at: Timestamp::now(),
        };
        if let Err(error) = self.queue.try_send(news) {
            tracing::debug!(%error, "event dropped");
        }
    }
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
    receiver: mpsc::Receiver<News>,
}

/// Writes events until every recorder is gone.
pub async fn write(mut queue: Queue, api: Arc<dyn Api>, node: String) {
    let mut known: HashMap<(Option<String>, &'static str, String), (String, i32)> = HashMap::new();
    while let Some(news) = queue.receiver.recv().await {
        let namespace = news
            .about
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let path = format!("/api/v1/namespaces/{namespace}/events");
        let key = (news.about.uid.clone(), news.reason, news.message.clone());
        let result = if let Some((name, count)) = known.get_mut(&key) {
            *count = count.saturating_add(1);
            let change = json!({"count": *count, "lastTimestamp": Time(news.at)});
            let result = send(
                &*api,
                Method::PATCH,
                format!("{path}/{name}"),
                STRATEGIC_MERGE,
                &change,
            )
            .await;
            if result.is_err() {
                known.remove(&key);
            }
            result
        } else {
            if known.len() >= KNOWN {
                known.clear();
            }
            let name = format!(
                "{}.{:x}",
                news.about.name.as_deref().unwrap_or("unknown"),
                news.at.as_nanosecond()
            );
            known.insert(key, (name.clone(), 1));
            send(
                &*api,
                Method::POST,
                path,
                JSON,
                &event(news, name, namespace, &node),
            )
            .await
        };
        if let Err(error) = result {
            tracing::debug!(reason = error.chain(), "cannot write an event");
        }
    }
}

fn event(news: News, name: String, namespace: String, node: &str) -> Event {
    Event {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        involved_object: news.about,
        type_: Some(if news.warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(news.reason.to_owned()),
        message: Some(news.message),
        count: Some(1),
        first_timestamp: Some(Time(news.at)),
        last_timestamp: Some(Time(news.at)),
        source: Some(EventSource {
            component: Some(COMPONENT.to_owned()),
            host: Some(node.to_owned()),
        }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(node.to_owned()),
        ..Event::default()
    }
}
