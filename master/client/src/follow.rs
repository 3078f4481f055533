//! A list and its watch, resumed after every failure: the source of events for schedulers and
//! controllers.

use crate::client::{Client, ListParams, Object};
use crate::resources::{PartialObject, Resource, Source, Versioned};
use crate::transport::BoxFuture;
use crate::watch::{Gone, WatchEvent, Watcher};
use master_schema::error::ApiError;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// First backoff after a failure.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// Objects per page.
const PAGE: u32 = 500;
/// Maximum backoff after failures.
const BACKOFF_LAST: Duration = Duration::from_secs(10);

/// A change that a follower reports.
#[derive(Debug)]
pub enum Change<T> {
    /// All objects; the receiver drops what it knew before. The first change, and again after
    /// history was lost.
    Listed(Vec<T>),
    /// An object was created or changed.
    Set(T),
    /// An object was deleted, or no longer matches.
    Deleted(Gone),
}

/// Converts an object to the value that is kept.
type Read<T, V> = Arc<dyn Fn(T) -> V + Send + Sync>;
/// The listed values and their resource version.
type Known<V> = (Vec<V>, String);

/// The state of a follower. Requests in progress are part of it, so that dropping a call of `next`
/// loses nothing.
enum State<T, V> {
    /// Nothing is known, or the state is out of date.
    Unlisted,
    /// A list is in progress.
    Listing(BoxFuture<'static, Result<Known<V>, ApiError>>),
    /// Everything up to this resource version is known.
    Listed(String),
    /// A watch from this resource version is being opened.
    Opening(BoxFuture<'static, Result<Watcher<T>, ApiError>>, String),
    /// A watch is open, and everything up to this resource version is known.
    Watching(Box<Watcher<T>>, String, Instant),
}

/// Follows all matching objects of a kind by list and watch, and returns `read`'s view of each. It
/// never ends and never fails: after an error it backs off and continues.
pub struct Follower<T, V = T> {
    client: Client,
    source: Arc<Source>,
    read: Read<T, V>,
    state: State<T, V>,
    failures: u32,
    not_before: Instant,
}

impl<T, V> std::fmt::Debug for Follower<T, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match &self.state {
            State::Unlisted => "unlisted",
            State::Listing(_) => "listing",
            State::Listed(_) => "listed",
            State::Opening(..) => "opening",
            State::Watching(..) => "watching",
        };
        f.debug_struct("Follower")
            .field("state", &state)
            .field("failures", &self.failures)
            .finish_non_exhaustive()
    }
}

impl<T: Object> Follower<T> {
    /// A follower that has not listed yet.
    pub fn new(client: Client, namespace: Option<&str>, params: ListParams) -> Self {
        Self::reading(client, namespace, params, |object| object)
    }
}

impl<T: Object, V: Send + 'static> Follower<T, V> {
    /// A follower that keeps `read`'s result of each object, and at most one page of whole objects.
    pub fn reading(
        client: Client,
        namespace: Option<&str>,
        params: ListParams,
        read: impl Fn(T) -> V + Send + Sync + 'static,
    ) -> Self {
        Self::of(
            client,
            Source::typed::<T>(namespace, params),
            Arc::new(read),
        )
    }
}

impl Follower<PartialObject> {
    /// A follower of the metadata of all objects of a kind.
    pub fn metadata(client: Client, of: &Resource) -> Self {
        Self::of(client, Source::metadata(of), Arc::new(|object| object))
    }
}

impl<T: Versioned, V: Send + 'static> Follower<T, V> {
    fn of(client: Client, source: Source, read: Read<T, V>) -> Self {
        let (state, not_before) = (State::Unlisted, Instant::now());
        Self {
            client,
            source: Arc::new(source),
            read,
            state,
            failures: 0,
            not_before,
        }
    }

    /// The resource version up to which everything is known; 0 where nothing is.
    pub fn reached(&self) -> u64 {
        match &self.state {
            State::Unlisted | State::Listing(_) => 0,
            State::Listed(version)
            | State::Opening(_, version)
            | State::Watching(_, version, _) => version.parse().unwrap_or_default(),
        }
    }

    /// Lists again at the next change.
    pub fn relist(&mut self) {
        self.state = State::Unlisted;
    }

    /// The next change. Cancel-safe: requests in progress are kept, and an event is taken only when
    /// it is returned.
    pub async fn next(&mut self) -> Change<V> {
        loop {
            tokio::time::sleep_until(self.not_before).await;
            match &mut self.state {
                State::Unlisted => self.state = State::Listing(self.list()),
                State::Listing(listing) => match listing.await {
                    Ok((all, version)) => {
                        self.state = State::Listed(version);
                        return Change::Listed(all);
                    }
                    Err(error) => self.failed(&error, State::Unlisted),
                },
                State::Listed(version) => {
                    let version = std::mem::take(version);
                    self.state = State::Opening(self.watch(version.clone()), version);
                }
                State::Opening(listing, version) => match listing.await {
                    Ok(watcher) => {
                        self.state = State::Watching(
                            Box::new(watcher),
                            std::mem::take(version),
                            Instant::now(),
                        );
                    }
                    Err(error) => {
                        let next = State::Listed(std::mem::take(version));
                        self.failed(&error, next);
                    }
                },
                State::Watching(watcher, version, opened) => match watcher.next().await {
                    Ok(Some(event)) => {
                        self.failures = 0;
                        if let Some(change) = change_of(event, version, &*self.read) {
                            return change;
                        }
                    }
                    Ok(None) => {
                        // A watch ends at its time limit; one that ends at once must not cause a
                        // tight loop.
                        let short = opened.elapsed() < BACKOFF_LAST;
                        self.state = State::Listed(std::mem::take(version));
                        if short {
                            self.wait();
                        }
                    }
                    Err(error) => {
                        let next = State::Listed(std::mem::take(version));
                        self.failed(&error, next);
                    }
                },
            }
        }
    }

    fn list(&self) -> BoxFuture<'static, Result<Known<V>, ApiError>> {
        Box::pin(pages(
            self.client.clone(),
            Arc::clone(&self.source),
            Arc::clone(&self.read),
        ))
    }

    fn watch(&self, version: String) -> BoxFuture<'static, Result<Watcher<T>, ApiError>> {
        Box::pin(Arc::clone(&self.source).watch(self.client.clone(), version))
    }

    /// Continues with `next` after a backoff, or lists again if the history is lost.
    fn failed(&mut self, error: &ApiError, next: State<T, V>) {
        self.source.log_failure(self.failures, error);
        self.state = if error.is_expired() {
            State::Unlisted
        } else {
            next
        };
        self.wait();
    }

    fn wait(&mut self) {
        let wait = BACKOFF_FIRST
            .saturating_mul(1 << self.failures.min(10))
            .min(BACKOFF_LAST);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Instant::now() + wait;
    }
}

/// All objects, page by page.
async fn pages<T: Versioned, V>(
    client: Client,
    source: Arc<Source>,
    read: Read<T, V>,
) -> Result<Known<V>, ApiError> {
    let mut all = Vec::new();
    let mut next = None;
    loop {
        let page = source.page::<T>(&client, PAGE, next).await?;
        all.extend(page.items.into_iter().map(&*read));
        if page.continue_token.is_empty() {
            return Ok((all, page.resource_version));
        }
        next = Some(page.continue_token);
        // Nothing else here waits: with many objects, other tasks would not run until all are read.
        tokio::task::yield_now().await;
    }
}

/// The change in an event; `None` for a bookmark. Updates the resource version.
fn change_of<T: Versioned, V>(
    event: WatchEvent<T>,
    version: &mut String,
    read: &dyn Fn(T) -> V,
) -> Option<Change<V>> {
    match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
            object.resource_version().clone_into(version);
            Some(Change::Set(read(object)))
        }
        WatchEvent::Deleted(gone) => {
            // An object whose metadata is unreadable has none.
            if !gone.resource_version.is_empty() {
                version.clone_from(&gone.resource_version);
            }
            Some(Change::Deleted(gone))
        }
        WatchEvent::Bookmark(reached) => {
            if !reached.is_empty() {
                *version = reached;
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Body, Key, Transport, UserInfo, body};
    use config_kube::k8s_openapi::api::core::v1::Pod;
    use http::{Request, Response};
    use serde_json::{Value, json};

    fn pod(name: &str, version: &str, owners: &Value) -> Value {
        let metadata = json!({"name": name, "resourceVersion": version, "ownerReferences": owners});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    }

    /// An API that has stored an object that cannot be read as a Pod.
    #[derive(Debug)]
    struct Fixed;

    impl Transport for Fixed {
        fn call(&self, request: Request<Body>, _user: UserInfo) -> BoxFuture<'_, Response<Body>> {
            let (none, unreadable) = (json!([]), json!([null]));
            let query = request.uri().query().unwrap_or_default();
            let answer = if query.contains("watch=true") {
                let resumes = query.contains("resourceVersion=7");
                let pods = [
                    ("ADDED", pod("c", "8", &unreadable)),
                    ("ADDED", pod("d", "9", &none)),
                    ("DELETED", pod("d", "10", &unreadable)),
                ];
                // Additions as the server writes them, deletions in another form of the same JSON.
                let event = |(what, pod): (&str, Value)| match what {
                    "ADDED" => format!("{{\"type\":\"{what}\",\"object\":{pod}}}\n"),
                    what => format!("{{ \"object\": {pod}, \"type\": \"{what}\" }}\n"),
                };
                pods.into_iter().filter(|_| resumes).map(event).collect()
            } else {
                let items = [pod("a", "5", &unreadable), pod("b", "6", &none)];
                json!({"metadata": {"resourceVersion": "7"}, "items": items}).to_string()
            };
            Box::pin(std::future::ready(Response::new(body(answer))))
        }

        fn now(&self) -> jiff::Timestamp {
            jiff::Timestamp::now()
        }

        fn resources(&self) -> Vec<Resource> {
            Vec::new()
        }
    }

    fn follower() -> Follower<Pod> {
        let client = Client::new(Arc::new(Fixed), UserInfo::admin("test"));
        Follower::new(client, None, ListParams::default())
    }

    #[tokio::test]
    async fn an_object_that_nobody_can_read_keeps_no_other_from_being_known() {
        let mut follower = follower();
        let name = |pod: &Pod| pod.metadata.name.clone().unwrap_or_default();
        let listed = follower.next().await;
        assert!(matches!(&listed, Change::Listed(all) if all.iter().map(name).eq(["b"])));
        let next = follower.next().await;
        assert!(matches!(&next, Change::Set(pod) if name(pod) == "d"));
        assert_eq!(follower.reached(), 9);
    }

    #[tokio::test]
    async fn the_deletion_of_an_unreadable_object_is_reported() {
        let mut follower = follower();
        let (_listed, _set) = (follower.next().await, follower.next().await);
        let next = tokio::time::timeout(Duration::from_secs(60), follower.next()).await;
        let next = next.expect("the deletion is reported");
        assert!(matches!(&next, Change::Deleted(gone) if gone.key == Key::cluster("d")));
        assert_eq!(follower.reached(), 10);
    }
}
