//! Mirrors of static pods at the API: what is known of them, and the task that creates and deletes
//! them ([`config_static_pods::steps`]).

use crate::shared::Shared;
use agent_api::{ApiError, JSON, send};
use agent_pods::differs;
use config_kube::k8s_openapi::api::core::v1::{Pod, PodStatus};
use config_static_pods::{Mirror, Step, mirror_of, steps};
use http::Method;
use serde_json::json;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// How often mirrors are checked without news, and tried again after a failure.
const RETRY: Duration = Duration::from_secs(30);

/// The mirrors that the master has for this node.
#[derive(Debug, Default)]
pub(crate) struct Mirrors {
    known: Mutex<Vec<Mirror>>,
    news: Notify,
}

impl Mirrors {
    /// Replaces all mirrors by those of a list.
    pub(crate) fn listed(&self, all: Vec<Mirror>) {
        *self.known() = all;
        self.news.notify_one();
    }

    /// Adds or replaces a mirror, from a watch.
    pub(crate) fn seen(&self, mirror: Mirror) {
        let mut known = self.known();
        known.retain(|one| one.uid != mirror.uid);
        known.push(mirror);
        drop(known);
        self.news.notify_one();
    }

    /// Forgets a mirror that was deleted.
    pub(crate) fn gone(&self, mirror: &Mirror) {
        self.known().retain(|one| one.uid != mirror.uid);
        self.news.notify_one();
    }

    /// The UID of the object by which the API shows a pod: its own, or that of a static pod's
    /// mirror, if there is one.
    pub(crate) fn shown_as(&self, pod: &Pod, is_static: bool) -> Option<String> {
        if !is_static {
            return pod.metadata.uid.clone();
        }
        let known = self.known();
        let mirror = known.iter().find(|one| one.shows(pod) && !one.deleted);
        mirror.map(|mirror| mirror.uid.clone())
    }

    /// Whether a mirror shows another status than was written; `None` if no mirror has this UID.
    pub(crate) fn differs(&self, uid: &str, written: &PodStatus) -> Option<bool> {
        self.with(uid, |mirror| differs(Some(&mirror.status), written))
    }

    /// The UID of the pod that an object of the API shows.
    pub(crate) fn shown_by(&self, uid: &str) -> Option<String> {
        self.with(uid, |mirror| mirror.of.clone())
    }

    /// What `of` says of a mirror, under the lock; `None` if there is no such mirror.
    fn with<T>(&self, uid: &str, of: impl FnOnce(&Mirror) -> T) -> Option<T> {
        let known = self.known();
        known.iter().find(|one| one.uid == uid).map(of)
    }

    fn known(&self) -> MutexGuard<'_, Vec<Mirror>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes and deletes mirrors, for ever.
pub(crate) async fn keep(shared: Arc<Shared>) {
    let mirrors = &shared.mirrors;
    loop {
        // Before the first list every mirror would seem to be missing.
        if shared.listed.load(Ordering::Acquire) {
            let known = mirrors.known().clone();
            for step in steps(&shared.config.static_pods, &known) {
                carry_out(&shared, step).await;
            }
        }
        tokio::select! {
            // Cancel-safe: `Notify` keeps a notification that comes while nobody waits.
            () = mirrors.news.notified() => {}
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

async fn carry_out(shared: &Shared, step: Step<'_>) {
    let (name, done) = match step {
        Step::Create(pod) => (pod.metadata.name.clone(), create(shared, pod).await),
        Step::Delete(mirror) => (Some(mirror.name.clone()), delete(shared, mirror).await),
    };
    match done {
        // The watch reports the result.
        Ok(()) => {}
        Err(error) if error.is_not_found() || error.is_conflict() => {
            tracing::debug!(
                pod = name,
                error = error.chain(),
                "a mirror has changed meanwhile"
            );
        }
        Err(ApiError::Status {
            code: 403, message, ..
        }) => tracing::warn!(
            pod = name,
            error = message,
            "the master does not let this node create a mirror of its static pod, which runs all the same. An admin allows it by \
             `kubectl create clusterrolebinding static-pods --clusterrole=system:pratique:static-pods --group=system:nodes`"
        ),
        Err(error) => tracing::warn!(
            pod = name,
            error = error.chain(),
            "cannot write the mirror of a static pod; trying again"
        ),
    }
}

async fn create(shared: &Shared, pod: &Pod) -> Result<(), ApiError> {
    let Some(node) = shared.own_node(RETRY).await else {
        return Ok(());
    };
    let uid = node.metadata.uid.as_deref().unwrap_or_default();
    let mirror = mirror_of(pod, &shared.config.node_name, uid);
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    send(&*shared.api, Method::POST, path, JSON, &mirror).await
}

async fn delete(shared: &Shared, mirror: &Mirror) -> Result<(), ApiError> {
    let Mirror {
        namespace,
        name,
        uid,
        ..
    } = mirror;
    // Nothing of the mirror itself runs, so there is nothing to wait for.
    let body = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    send(&*shared.api, Method::DELETE, path, JSON, &body).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Anyone who may create pods on the node can write this annotation.
    #[test]
    fn a_pod_that_claims_to_be_a_mirror_hides_no_static_pod() {
        let manifest = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
            "spec": {"containers": [{"name": "main", "image": "a"}]}}"#;
        let pod = config_static_pods::read(manifest, "node").unwrap();
        let mirror = |namespace: &str, name: &str, uid: &str| Mirror {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            of: pod.metadata.uid.clone().unwrap(),
            deleted: false,
            status: PodStatus::default(),
        };
        let mirrors = Mirrors::default();
        mirrors.listed(vec![
            mirror("elsewhere", "a-node", "first"),
            mirror("default", "other", "second"),
        ]);
        assert_eq!(mirrors.shown_as(&pod, true), None);
        mirrors.seen(mirror("default", "a-node", "own"));
        assert_eq!(mirrors.shown_as(&pod, true).as_deref(), Some("own"));
    }

    #[test]
    fn the_status_of_a_mirror_is_compared_with_what_was_written() {
        let status = |phase: &str| PodStatus {
            phase: Some(phase.to_owned()),
            ..PodStatus::default()
        };
        let mirrors = Mirrors::default();
        mirrors.seen(Mirror {
            namespace: "default".to_owned(),
            name: "a-node".to_owned(),
            uid: "mirror".to_owned(),
            of: "pod".to_owned(),
            deleted: false,
            status: status("Running"),
        });
        let differs = |uid: &str, phase: &str| mirrors.differs(uid, &status(phase));
        assert_eq!(differs("mirror", "Running"), Some(false));
        assert_eq!(differs("mirror", "Pending"), Some(true));
        assert_eq!(differs("other", "Running"), None);
        assert_eq!(mirrors.shown_by("mirror").as_deref(), Some("pod"));
        assert_eq!(mirrors.shown_by("other"), None);
    }
}
