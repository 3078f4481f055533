//! Watches the cluster: Services, ServiceCIDRs, EndpointSlices, Nodes, NetworkPolicies, Namespaces
//! and Pods, once for all parts of the node that need them (the service proxy, DNS, pods'
//! environment variables, routes, nftables). The content stays while the master is unreachable.
//!
//! For each kind that users may create, namespaces share a number of bytes ([`KeptBytes`]). If a
//! namespace exceeds its share of a kind, the content of its objects is left out: its Services are
//! not served, its policies isolate all its pods, its slices have no endpoints, and its pods and
//! labels match no peers of policies. An object that can't be decoded is ignored, except that a
//! policy isolates all pods of its namespace.

use crate::shared::Shared;
use agent_api::{ApiError, Backoff, Pace, WatchEvent};
use agent_policy::model as policy;
use agent_policy::{World, name_namespaces};
use agent_proxy::{Key, Known, Node, Service, ServiceRange, Slice, View, is_everyones};
use config_errors::chain;
use config_limits::KeptBytes;
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Least time from the start of one watch to the start of the next: after a watch that lasted
/// longer and ended in order, the next one starts at once.
const AGAIN: Duration = Duration::from_secs(1);
/// How long the master may keep a watch open; then the next one starts.
const WATCH_SECONDS: u32 = 300;

/// Most bytes of a kind that are kept: of some 100,000 Services, slices of 500,000 endpoints,
/// 30,000 policies, 120,000 pods with 15 labels and 30,000 namespaces of the usual size.
const SERVICES: usize = 64 << 20;
const SLICES: usize = 128 << 20;
const POLICIES: usize = 32 << 20;
const PODS: usize = 256 << 20;
const NAMESPACES: usize = 16 << 20;
/// Bytes that a namespace takes besides its name and its labels.
const NAMESPACE: usize = 256;
/// No limit, for kinds that only the master and admins write, and of which little is read.
const ALL: usize = usize::MAX;

/// A kind that is watched.
trait Followed: Sized + Send + Sync + PartialEq + 'static {
    type Object: DeserializeOwned + Send;
    type Key: Ord + Clone + Send;
    /// The part of the node's view that has objects of the kind.
    type State: Clone + Send + Sync;
    /// The path of its list at the API.
    const PATH: &'static str;
    /// What is kept of an object; `None` if nothing on the node needs it.
    fn read(object: Self::Object) -> (Self::Key, Option<Self>);
    /// Its objects by key; `None` before they have been listed.
    fn kept(known: &Self::State) -> Option<&BTreeMap<Self::Key, Arc<Self>>>;
    fn kept_mut(known: &mut Self::State) -> &mut Option<BTreeMap<Self::Key, Arc<Self>>>;
    /// Most bytes of all that are kept.
    const MOST: usize;
    /// An object's namespace and name.
    fn named<'a>(&'a self, key: &'a Self::Key) -> (&'a str, &'a str);
    /// Bytes that count against its namespace's share; 0 if it is kept whatever its namespace
    /// takes.
    fn share(&self, _key: &Self::Key) -> usize {
        0
    }
    /// What is kept of it if its namespace is left out; `None` if it is ignored then.
    fn without_content(&self) -> Option<Self> {
        None
    }
    /// Whether its content is left out.
    fn is_without_content(&self) -> bool {
        false
    }
    /// The key of an object that can't be decoded, and what is kept of it; `None` if it is ignored.
    fn undecoded(key: Key, uid: String) -> (Self::Key, Option<Self>);
    /// Publishes the namespaces that are left out, if other parts need them.
    fn publish_left_out(_known: &mut Self::State, _left_out: &BTreeSet<String>) {}
}

/// A followed kind: object, key, path, state and field, how an object is read, how much is kept,
/// and the other functions.
macro_rules! followed {
    (
        $kind:ty, $object:ty, $key:ty, $path:literal, $state:ty, $field:ident, $read:expr, $most:ident,
        { $($more:tt)* }
    ) => {
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

            const MOST: usize = $most;

            $($more)*
        }
    };
}

/// What Services and their slices have in common.
macro_rules! of_services {
    () => {
        fn named<'a>(&'a self, key: &'a Arc<Key>) -> (&'a str, &'a str) {
            (&key.namespace, &key.name)
        }

        /// The Service "kubernetes" and its slice, which has the same name, are kept whatever they
        /// take.
        fn share(&self, key: &Arc<Key>) -> usize {
            let bytes = self.bytes();
            if is_everyones(key, bytes) { 0 } else { bytes }
        }

        fn without_content(&self) -> Option<Self> {
            Some(Self::without_content(self))
        }

        fn undecoded(key: Key, _uid: String) -> (Arc<Key>, Option<Self>) {
            (Arc::new(key), None)
        }
    };
}

/// What kinds that are not namespaced have in common.
macro_rules! named_alone {
    () => {
        fn undecoded(key: Key, _uid: String) -> (String, Option<Self>) {
            (key.name, None)
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
    ),
    SERVICES,
    {
        of_services!();

        fn is_without_content(&self) -> bool {
            self.left_out
        }
    }
);
followed!(
    Slice,
    EndpointSlice,
    Arc<Key>,
    "/apis/discovery.k8s.io/v1/endpointslices",
    Known,
    slices,
    |object: EndpointSlice| (Arc::new(Key::of(&object.metadata)), Self::read(object)),
    SLICES,
    {
        of_services!();

        fn publish_left_out(known: &mut Known, left_out: &BTreeSet<String>) {
            known.slices_left_out.clone_from(left_out);
        }
    }
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
    ),
    ALL,
    {
        named_alone!();

        fn named<'a>(&'a self, key: &'a String) -> (&'a str, &'a str) {
            ("", key)
        }
    }
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
    ),
    ALL,
    {
        named_alone!();

        fn named<'a>(&'a self, key: &'a String) -> (&'a str, &'a str) {
            ("", key)
        }
    }
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
    },
    PODS,
    {
        fn named<'a>(&'a self, key: &'a String) -> (&'a str, &'a str) {
            (&self.namespace, key)
        }

        fn share(&self, _key: &String) -> usize {
            self.bytes()
        }

        fn undecoded(_key: Key, uid: String) -> (String, Option<Self>) {
            (uid, None)
        }
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
    },
    NAMESPACES,
    {
        named_alone!();

        fn named<'a>(&'a self, key: &'a String) -> (&'a str, &'a str) {
            (key, key)
        }

        fn share(&self, key: &String) -> usize {
            NAMESPACE + key.len() + policy::bytes_of(self)
        }
    }
);
followed!(
    policy::Policy,
    NetworkPolicy,
    Key,
    "/apis/networking.k8s.io/v1/networkpolicies",
    World,
    policies,
    Self::keyed,
    POLICIES,
    {
        fn named<'a>(&'a self, key: &'a Key) -> (&'a str, &'a str) {
            (&key.namespace, &key.name)
        }

        fn share(&self, _key: &Key) -> usize {
            self.bytes()
        }

        fn without_content(&self) -> Option<Self> {
            Some(Self::without_content(self))
        }

        fn is_without_content(&self) -> bool {
            self.left_out
        }

        /// As for one that is not understood. If it were ignored, the pods that it isolates would
        /// be open.
        fn undecoded(key: Key, _uid: String) -> (Key, Option<Self>) {
            let closed = Self::closed(key.namespace.clone());
            (key, Some(closed))
        }
    }
);

/// Watches all kinds, for ever.
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
    let (mut pause, mut lists) = (Backoff::default(), Pace::default());
    let mut bytes = KeptBytes::of(K::MOST);
    loop {
        match list::<K>(shared, view, &mut bytes).await {
            Ok(version) => {
                let watched = watch::<K>(shared, view, version, &mut pause, &mut bytes, &mut lists);
                if let Err(error) = watched.await {
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

/// Applies the whole list; returns its resource version.
async fn list<K: Followed>(
    shared: &Shared,
    view: &View<K::State>,
    bytes: &mut KeptBytes<K::Key>,
) -> Result<String, ApiError> {
    let mut anew = bytes.anew();
    let mut all = BTreeMap::new();
    let take = |item| {
        let Came { key, object, .. } = object::<K>(item);
        if let Some(object) = object {
            let before: Option<Arc<K>> = all.remove(&key);
            let namespace = object.named(&key).0.to_owned();
            let kept = admitted(&mut anew, &namespace, &key, before.as_deref(), Some(object));
            all.extend(kept.map(|kept| (key, kept)));
            while let Some(namespace) = anew.shrink() {
                leave_out(&mut anew, &mut all, &namespace);
            }
        }
    };
    let version = agent_api::list(&*shared.api, K::PATH, take).await?;
    let known = view.now();
    let before = |key: &K::Key| K::kept(&known).and_then(|all| all.get(key));
    for (key, object) in &all {
        if !anew.left_out().contains(object.named(key).0) {
            log_content::<K>(key, before(key).map(|before| &**before), object);
        }
    }
    for namespace in anew.left_out().difference(bytes.left_out()) {
        log_left_out::<K>(namespace);
    }
    drop(known);
    let moved = anew.left_out() != bytes.left_out();
    *bytes = anew;
    view.change(
        |known| moved || K::kept(known) != Some(&all),
        |known| {
            *K::kept_mut(known) = Some(all.clone());
            K::publish_left_out(known, bytes.left_out());
        },
    );
    Ok(version)
}

/// What to keep of an object that was added, changed or deleted. `before`: what was kept of it so
/// far.
fn admitted<K: Followed>(
    bytes: &mut KeptBytes<K::Key>,
    namespace: &str,
    key: &K::Key,
    before: Option<&K>,
    object: Option<K>,
) -> Option<Arc<K>> {
    let share = |object: Option<&K>| object.map_or(0, |object| object.share(key));
    let (was, is) = (share(before), share(object.as_ref()));
    let is_left_out = bytes.count(namespace, key, was, is);
    let kept = if is_left_out && is > 0 {
        object.as_ref().and_then(K::without_content)
    } else {
        object
    };
    kept.map(Arc::new)
}

/// Drops the content of a namespace's objects.
fn leave_out<K: Followed>(
    bytes: &mut KeptBytes<K::Key>,
    all: &mut BTreeMap<K::Key, Arc<K>>,
    namespace: &str,
) {
    all.retain(|key, object| {
        let share = object.share(key);
        if share == 0 || object.named(key).0 != namespace {
            return true;
        }
        bytes.leave_out(key, share);
        let left = object.without_content().map(Arc::new);
        let stays = left.is_some();
        if let Some(left) = left {
            *object = left;
        }
        stays
    });
}

/// Logs that the content of one object is left out, if that is new.
fn log_content<K: Followed>(key: &K::Key, before: Option<&K>, object: &K) {
    if object.is_without_content() && !before.is_some_and(K::is_without_content) {
        let (namespace, name) = object.named(key);
        tracing::warn!(
            path = K::PATH,
            namespace,
            name,
            "an object has longer lists than this node follows, or is not understood: its content is left out"
        );
    }
}

/// Logs that the content of a namespace's objects is newly left out.
fn log_left_out<K: Followed>(namespace: &str) {
    tracing::warn!(
        path = K::PATH,
        namespace,
        "the objects of this namespace exceed its share of the memory for their kind, and their content is left out: use fewer or smaller ones"
    );
}

/// An object from the master.
struct Came<K: Followed> {
    key: K::Key,
    /// Its namespace; its name if it has none.
    namespace: String,
    /// What is kept of it.
    object: Option<K>,
}

/// Decodes an object. One that can't be decoded must not keep the others from being known.
fn object<K: Followed>(object: Value) -> Came<K> {
    let named = |at: &str| {
        let name = object.pointer(at).and_then(Value::as_str);
        name.unwrap_or_default().to_owned()
    };
    let (key, uid) = (
        Key {
            namespace: named("/metadata/namespace"),
            name: named("/metadata/name"),
        },
        named("/metadata/uid"),
    );
    let namespace = if key.namespace.is_empty() {
        key.name.clone()
    } else {
        key.namespace.clone()
    };
    let (key, object) = match serde_json::from_value::<K::Object>(object) {
        Ok(object) => K::read(object),
        Err(error) => {
            tracing::warn!(
                path = K::PATH,
                namespace = key.namespace,
                name = key.name,
                error = chain(&error),
                "cannot decode an object; ignoring it, but a NetworkPolicy closes its namespace until it is changed or deleted"
            );
            K::undecoded(key, uid)
        }
    };
    Came {
        key,
        namespace,
        object,
    }
}

/// Watches changes from a resource version, until the master refuses to continue from there, or
/// until a new list is due because there is room for what was left out.
async fn watch<K: Followed>(
    shared: &Shared,
    view: &View<K::State>,
    mut version: String,
    pause: &mut Backoff,
    bytes: &mut KeptBytes<K::Key>,
    lists: &mut Pace,
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
            take::<K>(view, &line?, &mut version, bytes)?;
        }
        sleep_until(again).await;
        if bytes.is_outdated() && lists.is_due() {
            return Ok(());
        }
    }
}

fn take<K: Followed>(
    view: &View<K::State>,
    line: &[u8],
    version: &mut String,
    bytes: &mut KeptBytes<K::Key>,
) -> Result<(), ApiError> {
    let (changed, stays) = match WatchEvent::read(line, version)? {
        WatchEvent::Is(object) => (object, true),
        WatchEvent::Gone(object) => (object, false),
        WatchEvent::Bookmark { .. } => return Ok(()),
    };
    let Came {
        key,
        namespace,
        object,
    } = object::<K>(changed);
    let before = K::kept(&view.now()).and_then(|all| all.get(&key)).cloned();
    let object = object.filter(|_| stays);
    if let Some(object) = &object {
        log_content(&key, before.as_deref(), object);
    }
    let kept = admitted(bytes, &namespace, &key, before.as_deref(), object);
    let mut gone = Vec::new();
    while let Some(namespace) = bytes.shrink() {
        log_left_out::<K>(&namespace);
        gone.push(namespace);
    }
    view.change(
        |_| before != kept || !gone.is_empty(),
        |known| {
            let all = K::kept_mut(known).get_or_insert_default();
            match &kept {
                Some(kept) => drop(all.insert(key.clone(), Arc::clone(kept))),
                None => drop(all.remove(&key)),
            }
            for namespace in &gone {
                leave_out(bytes, all, namespace);
            }
            K::publish_left_out(known, bytes.left_out());
        },
    );
    Ok(())
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
