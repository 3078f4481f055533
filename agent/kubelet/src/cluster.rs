//! What the node follows of the cluster: services, their ranges and endpoints, other nodes, network
//! policies, namespaces and pods, once for all who need it (the service proxy, names, pods'
//! variables, routes, the packet filter). It stays as it was while the master is away.

use crate::shared::Shared;
use agent_api::{ApiError, Backoff, WatchEvent};
use agent_policy::model as policy;
use agent_policy::{World, name_namespaces};
use agent_proxy::{Key, Known, Node, Service, ServiceRange, Slice, View};
use config_errors::chain;
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Time from one watch to the next where the first ended in order: one that lived longer is
/// followed by the next at once.
const AGAIN: Duration = Duration::from_secs(1);
/// How long the master may keep a watch open; then it is asked anew.
const WATCH_SECONDS: u32 = 300;

/// A kind that is followed.
trait Followed: Sized + Send + Sync + PartialEq + 'static {
    type Object: DeserializeOwned + Send;
    type Key: Ord + Clone + Send;
    /// The part of the node's view that has objects of the kind.
    type State: Clone + Send + Sync;
    /// The path of its list at the API.
    const PATH: &'static str;
    /// What is kept of an object; none where nothing on the node needs it.
    fn read(object: Self::Object) -> (Self::Key, Option<Self>);
    /// Its objects by key; none before they were listed.
    fn kept(known: &Self::State) -> Option<&BTreeMap<Self::Key, Arc<Self>>>;
    fn kept_mut(known: &mut Self::State) -> &mut Option<BTreeMap<Self::Key, Arc<Self>>>;
}

/// A followed kind: object, key, path, state and field, and how an object is read.
macro_rules! followed {
    ($kind:ty, $object:ty, $key:ty, $path:literal, $state:ty, $field:ident, $read:expr) => {
        impl Followed for $kind {
            type Object = $object;
            type Key = $key;
            type State = $state;
            const PATH: &'static str = $path;

            fn read(object: $object) -> ($key, Option<Self>) {
                $read(object)
            }

            fn kept(known: &$state) -> Option<&BTreeMap<$key, Arc<Self>>> {
                known.$field.as_ref()
            }

            fn kept_mut(known: &mut $state) -> &mut Option<BTreeMap<$key, Arc<Self>>> {
                &mut known.$field
            }
        }
    };
}

use config_kube::k8s_openapi::api::core::v1 as core;
use config_kube::k8s_openapi::api::discovery::v1::EndpointSlice;
use config_kube::k8s_openapi::api::networking::v1::{NetworkPolicy, ServiceCIDR};

followed!(
    Service,
    core::Service,
    Arc<Key>,
    "/api/v1/services",
    Known,
    services,
    |object: core::Service| (
        Arc::new(Key::of(&object.metadata)),
        Some(Self::read(object))
    )
);
followed!(
    Slice,
    EndpointSlice,
    Arc<Key>,
    "/apis/discovery.k8s.io/v1/endpointslices",
    Known,
    slices,
    |object: EndpointSlice| (Arc::new(Key::of(&object.metadata)), Self::read(object))
);
followed!(
    ServiceRange,
    ServiceCIDR,
    String,
    "/apis/networking.k8s.io/v1/servicecidrs",
    Known,
    service_ranges,
    |object: ServiceCIDR| (
        object.metadata.name.clone().unwrap_or_default(),
        Some(Self::read(object))
    )
);
followed!(
    Node,
    core::Node,
    String,
    "/api/v1/nodes",
    Known,
    nodes,
    |object: core::Node| (
        object.metadata.name.clone().unwrap_or_default(),
        Some(Self::read(object))
    )
);
followed!(
    policy::Pod,
    core::Pod,
    String,
    "/api/v1/pods",
    World,
    pods,
    |object: core::Pod| {
        let (uid, pod) = Self::read(object);
        (uid, Some(pod))
    }
);
followed!(
    policy::Labels,
    core::Namespace,
    String,
    "/api/v1/namespaces",
    World,
    namespaces,
    |object: core::Namespace| {
        let labels = object.metadata.labels.unwrap_or_default();
        (object.metadata.name.unwrap_or_default(), Some(labels))
    }
);
followed!(
    policy::Policy,
    NetworkPolicy,
    Key,
    "/apis/networking.k8s.io/v1/networkpolicies",
    World,
    policies,
    Self::keyed
);

/// Follows services, their ranges, endpoints and nodes, and what network policies are made of, for
/// ever.
pub(crate) async fn follow(shared: Arc<Shared>, view: View) {
    let world = shared.policies.view();
    tokio::join!(
        follow_kind::<policy::Pod>(&shared, world),
        follow_kind::<policy::Labels>(&shared, world),
        follow_kind::<policy::Policy>(&shared, world),
        follow_kind::<Service>(&shared, &view),
        follow_kind::<Slice>(&shared, &view),
        follow_kind::<ServiceRange>(&shared, &view),
        follow_kind::<Node>(&shared, &view),
        name_namespaces(world, &view),
    );
}

async fn follow_kind<K: Followed>(shared: &Shared, view: &View<K::State>) {
    let mut pause = Backoff::default();
    loop {
        match list::<K>(shared, view).await {
            Ok(version) => {
                if let Err(error) = watch::<K>(shared, view, version, &mut pause).await {
                    tracing::debug!(path = K::PATH, error = error.chain(), "watch ended");
                }
            }
            Err(error) => tracing::debug!(
                path = K::PATH,
                error = error.chain(),
                "cannot list objects; trying again"
            ),
        }
        tokio::time::sleep(pause.take()).await;
    }
}

/// Takes the whole list; gives its version.
async fn list<K: Followed>(shared: &Shared, view: &View<K::State>) -> Result<String, ApiError> {
    let mut all = BTreeMap::new();
    let take = |item| {
        if let Some((key, Some(kept))) = object::<K>(item) {
            all.insert(key, Arc::new(kept));
        }
    };
    let version = agent_api::list(&*shared.api, K::PATH, take).await?;
    view.change(
        |known| K::kept(known) != Some(&all),
        |known| *K::kept_mut(known) = Some(all.clone()),
    );
    Ok(version)
}

/// One object that can't be read must not keep the others from being known.
fn object<K: Followed>(object: Value) -> Option<(K::Key, Option<K>)> {
    let read = serde_json::from_value(object).map(K::read);
    read.inspect_err(|error| {
        tracing::warn!(
            path = K::PATH,
            error = chain(error),
            "cannot decode an object from a watch; ignoring it"
        );
    })
    .ok()
}

/// Follows changes from a version on, until the master refuses to go on from there.
async fn watch<K: Followed>(
    shared: &Shared,
    view: &View<K::State>,
    mut version: String,
    pause: &mut Backoff,
) -> Result<(), ApiError> {
    loop {
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}",
            K::PATH
        );
        let again = Instant::now() + AGAIN;
        let mut lines = shared.api.watch(path).await?;
        pause.reset();
        while let Some(line) = lines.next().await {
            take::<K>(view, &line?, &mut version)?;
        }
        sleep_until(again).await;
    }
}

fn take<K: Followed>(
    view: &View<K::State>,
    line: &[u8],
    version: &mut String,
) -> Result<(), ApiError> {
    let (changed, stays) = match WatchEvent::read(line, version)? {
        WatchEvent::Is(object) => (object, true),
        WatchEvent::Gone(object) => (object, false),
        WatchEvent::Bookmark { .. } => return Ok(()),
    };
    let Some((key, kept)) = object::<K>(changed) else {
        return Ok(());
    };
    let kept = kept.filter(|_| stays).map(Arc::new);
    view.change(
        |known| K::kept(known).and_then(|all| all.get(&key)) != kept.as_ref(),
        |known| {
            let all = K::kept_mut(known).get_or_insert_default();
            match &kept {
                Some(kept) => drop(all.insert(key.clone(), Arc::clone(kept))),
                None => drop(all.remove(&key)),
            }
        },
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::tests::{Ending, Large, shared_of};
    use serde_json::json;
    use tokio::time::timeout;

    fn service(name: &str, version: &str, address: &str) -> Value {
        json!({
            "metadata": {"namespace": "a", "name": name, "resourceVersion": version},
            "spec": {"clusterIPs": [address], "ports": [{"port": 80}]},
        })
    }

    fn told(view: &View, kind: &str, object: &Value) -> (bool, String) {
        let mut changes = view.changes();
        changes.mark_unchanged();
        let mut version = String::new();
        let line = json!({"type": kind, "object": object}).to_string();
        take::<Service>(view, line.as_bytes(), &mut version).unwrap();
        (changes.has_changed().unwrap(), version)
    }

    #[tokio::test]
    async fn services_too_large_for_one_answer_are_listed() {
        let services = (1..=12).map(|n| service(&format!("web{n}"), "7", &format!("10.96.0.{n}")));
        let dir = tempfile::tempdir().unwrap();
        let shared = shared_of(dir.path(), Vec::new(), Arc::new(Large(services.collect())));
        let view = View::default();
        assert_eq!(list::<Service>(&shared, &view).await.unwrap(), "9");
        assert_eq!(view.now().services.as_ref().unwrap().len(), 12);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_followed_is_watched_without_a_break() {
        let dir = tempfile::tempdir().unwrap();
        for (lives, pause) in [(300, 0), (0, 1)] {
            let master = Arc::new(Ending::after(lives));
            let shared = shared_of(dir.path(), Vec::new(), master.clone());
            let view = View::default();
            let follow = follow_kind::<Service>(&shared, &view);
            let followed = timeout(Duration::from_secs(650), follow).await;
            assert!(followed.is_err(), "it is followed for ever");
            let pauses = master.pauses();
            assert!(pauses.len() > 1, "{pauses:?}");
            for taken in pauses {
                assert_eq!(taken.as_secs(), pause, "after {lives} s: {taken:?}");
            }
        }
    }

    #[test]
    fn changes_are_told_once_and_versions_are_kept() {
        let view = View::default();
        let first = service("web", "7", "10.96.0.1");
        assert_eq!(told(&view, "ADDED", &first), (true, "7".to_owned()));
        let same = service("web", "8", "10.96.0.1");
        assert_eq!(told(&view, "MODIFIED", &same), (false, "8".to_owned()));
        let mark = json!({"metadata": {"resourceVersion": "9"}});
        assert_eq!(told(&view, "BOOKMARK", &mark), (false, "9".to_owned()));
        assert_eq!(view.now().services.as_ref().unwrap().len(), 1);
        assert!(told(&view, "DELETED", &same).0);
        assert!(view.now().services.as_ref().unwrap().is_empty());
    }
}
