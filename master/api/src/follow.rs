//! A list and its watch, kept up whatever happens: what schedulers and controllers observe by.

use crate::client::{Client, ListParams, Object, ObjectList, WatchEvent, Watcher};
use crate::error::ApiError;
use crate::hooks::BoxFuture;
use crate::resources::{Partial, Resource, Seen, Source};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// First wait after a failure.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// Longest wait after failures.
const BACKOFF_LAST: Duration = Duration::from_secs(10);

/// What a follower learned.
#[derive(Debug)]
pub enum Change<T> {
    /// Everything there is; forget what was known before. The first change, and again after history was lost.
    Listed(Vec<T>),
    /// One object came or changed.
    Set(T),
    /// One object went; its last state.
    Gone(T),
}

/// Where a follower stands. What is being asked for is part of it, so that a caller that looks away loses nothing.
enum State<T> {
    /// Nothing is known, or not enough.
    Unlisted,
    /// A list was asked for.
    Listing(BoxFuture<'static, Result<ObjectList<T>, ApiError>>),
    /// Everything up to a resource version is known.
    Listed(String),
    /// A watch from a resource version was asked for.
    Opening(BoxFuture<'static, Result<Watcher<T>, ApiError>>, String),
    /// A watch is open, and everything up to a resource version is known.
    Watching(Box<Watcher<T>>, String, Instant),
}

/// Follows all objects of a kind that match. Never ends and never fails: it waits, longer after each failure, and goes on.
pub struct Follower<T> {
    client: Client,
    source: Arc<Source>,
    state: State<T>,
    failures: u32,
    not_before: Instant,
}

impl<T> std::fmt::Debug for Follower<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match &self.state {
            State::Unlisted => "unlisted",
            State::Listing(_) => "listing",
            State::Listed(_) => "listed",
            State::Opening(..) => "opening",
            State::Watching(..) => "watching",
        };
        f.debug_struct("Follower").field("state", &state).field("failures", &self.failures).finish_non_exhaustive()
    }
}

impl<T: Object> Follower<T> {
    /// A follower that has not listed yet.
    pub fn new(client: Client, namespace: Option<&str>, params: ListParams) -> Self {
        Self::of(client, Source::typed::<T>(namespace, params))
    }
}

impl Follower<Partial> {
    /// A follower of the metadata of all objects of a kind.
    pub fn metadata(client: Client, of: &Resource) -> Self {
        Self::of(client, Source::metadata(of))
    }
}

impl<T: Seen> Follower<T> {
    fn of(client: Client, source: Source) -> Self {
        let (state, not_before) = (State::Unlisted, Instant::now());
        Self { client, source: Arc::new(source), state, failures: 0, not_before }
    }

    /// Lists anew at the next change.
    pub fn relist(&mut self) {
        self.state = State::Unlisted;
    }

    /// The next change. Cancel-safe: what was asked for is kept, and an event is taken only as it is returned.
    pub async fn next(&mut self) -> Change<T> {
        loop {
            tokio::time::sleep_until(self.not_before).await;
            match &mut self.state {
                State::Unlisted => self.state = State::Listing(self.list()),
                State::Listing(asked) => match asked.await {
                    Ok(list) => {
                        self.state = State::Listed(list.resource_version);
                        return Change::Listed(list.items);
                    }
                    Err(error) => self.failed(&error, State::Unlisted),
                },
                State::Listed(version) => {
                    let version = std::mem::take(version);
                    self.state = State::Opening(self.watch(version.clone()), version);
                }
                State::Opening(asked, version) => match asked.await {
                    Ok(watcher) => {
                        self.state = State::Watching(Box::new(watcher), std::mem::take(version), Instant::now());
                    }
                    Err(error) => {
                        let next = State::Listed(std::mem::take(version));
                        self.failed(&error, next);
                    }
                },
                State::Watching(watcher, version, opened) => match watcher.next().await {
                    Ok(Some(event)) => {
                        self.failures = 0;
                        if let Some(change) = told(event, version) {
                            return change;
                        }
                    }
                    Ok(None) => {
                        // Watches end after their time; one that ends at once must not make a tight loop.
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

    fn list(&self) -> BoxFuture<'static, Result<ObjectList<T>, ApiError>> {
        Box::pin(Arc::clone(&self.source).list(self.client.clone()))
    }

    fn watch(&self, version: String) -> BoxFuture<'static, Result<Watcher<T>, ApiError>> {
        Box::pin(Arc::clone(&self.source).watch(self.client.clone(), version))
    }

    /// Goes on with `next` after a wait, or lists anew where history is lost.
    fn failed(&mut self, error: &ApiError, next: State<T>) {
        tracing::debug!(source = ?self.source, failures = self.failures, %error, "cannot follow; trying again");
        self.state = if error.is_expired() { State::Unlisted } else { next };
        self.wait();
    }

    fn wait(&mut self) {
        let wait = BACKOFF_FIRST.saturating_mul(1 << self.failures.min(10)).min(BACKOFF_LAST);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Instant::now() + wait;
    }
}

/// The change in an event; none for a bookmark. The version moves on.
fn told<T: Seen>(event: WatchEvent<T>, version: &mut String) -> Option<Change<T>> {
    let change = match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => Change::Set(object),
        WatchEvent::Deleted(object) => Change::Gone(object),
        WatchEvent::Bookmark(reached) => {
            *version = reached;
            return None;
        }
    };
    if let Change::Set(object) | Change::Gone(object) = &change {
        object.resource_version().clone_into(version);
    }
    Some(change)
}
