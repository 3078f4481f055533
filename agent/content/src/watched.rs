//! The config maps and secrets that pods here use, each followed by a watch of its own.
//!
//! A node may read only those that its pods name, so there is no list of many to follow. A pod's
//! task holds a [`Use`] of the objects that its volumes show and is woken when one of them changes;
//! [`Watched::read`] then answers from memory.
//!
//! Guarantees: what is read from memory is never older than what was read of the same object
//! before; at most [`MOST`] watches are open and [`ROOM`] bytes kept, and the objects of a pod have
//! at most half of the watches that all other objects leave; what has no watch, or no room, or may
//! not be watched, is asked of the master at each read. While the master is away, the last state
//! that it reported stays.

use agent_api::{Api, ApiError, WatchEvent, get};
use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Watches at most. All share one connection with everything else that the agent asks, and the
/// master allows 250 requests on it.
const MOST: usize = 200;
/// Bytes of objects at most that are kept.
const ROOM: usize = 8 << 20;
/// How long the master may keep a watch open, and how much longer it may keep some, so that they
/// don't all end at once.
const WATCH_SECONDS: (u64, u64) = (480, 240);
/// The pause between two watches of an object, which doubles with each failure.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause while the master is away.
const AWAY: Duration = Duration::from_secs(32);
/// The longest pause while the master refuses the watch; the object is asked for meanwhile.
const REFUSED: Duration = Duration::from_secs(512);

/// A kind that is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// A config map.
    ConfigMap,
    /// A secret.
    Secret,
}

impl ObjectKind {
    /// Its name in paths.
    pub fn resource(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmaps",
            Self::Secret => "secrets",
        }
    }
}

/// The name of an object; its parts are plain names, which need no escapes in a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name there.
    pub name: String,
}

impl Name {
    fn folder(&self) -> String {
        let resource = self.kind.resource();
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
    }

    fn path(&self) -> String {
        format!("{}/{}", self.folder(), self.name)
    }

    /// A watch of this object alone, from a version on, or with its present state first.
    fn watch_path(&self, version: &str, seconds: u64) -> String {
        let from = if version.is_empty() {
            "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned()
        } else {
            format!("&resourceVersion={version}")
        };
        format!(
            "{}?fieldSelector=metadata.name%3D{}&watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}{from}",
            self.folder(),
            self.name
        )
    }
}

/// What is known of an object.
#[derive(Default)]
enum Known {
    /// Nothing, or only its version: there was no room for the rest.
    #[default]
    Nothing,
    /// It isn't there.
    Absent,
    /// Its JSON.
    Object(Bytes),
}

impl Known {
    fn size(&self) -> usize {
        match self {
            Self::Nothing | Self::Absent => 0,
            Self::Object(text) => text.len(),
        }
    }
}

/// Who learns of changes.
struct User {
    changed: Arc<AtomicBool>,
    news: Arc<Notify>,
}

/// An object that is in use.
#[derive(Default)]
struct Entry {
    users: BTreeMap<u64, Arc<User>>,
    known: Known,
    /// The version of what is known; empty before anything is.
    version: String,
    /// Whether a watch keeps it up to date, or it can't change.
    live: bool,
    watch: Option<AbortHandle>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

#[derive(Default)]
struct State {
    entries: HashMap<Name, Entry>,
    /// Bytes of all that is kept.
    size: usize,
    /// Uses and watches so far.
    count: u64,
}

impl State {
    fn watches(&self) -> usize {
        let entries = self.entries.values();
        let open = |watch: &AbortHandle| !watch.is_finished();
        entries
            .filter(|entry| entry.watch.as_ref().is_some_and(open))
            .count()
    }

    /// Watches that a pod may open for these names: with those that they have already, also by
    /// other pods, half of what all other names leave.
    fn share_of(&self, names: &BTreeSet<Name>) -> usize {
        let entries = names.iter().filter_map(|name| self.entries.get(name));
        let own = entries.filter(|entry| entry.watch.is_some());
        let (own, free) = (own.count(), MOST.saturating_sub(self.watches()));
        (free + own).div_ceil(2).saturating_sub(own)
    }

    /// Takes an object as the master shows it, unless that is no news, and informs its users.
    fn take(&mut self, name: &Name, version: &str, object: Option<&Value>) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        if !is_newer(version, &entry.version) {
            return;
        }
        // That it is absent is no news to those who asked for it before anything was known.
        let is_news = object.is_some() || !entry.version.is_empty();
        version.clone_into(&mut entry.version);
        self.size -= entry.known.size();
        entry.known = match object.map(Value::to_string) {
            None => Known::Absent,
            Some(text) if self.size + text.len() <= ROOM => Known::Object(text.into()),
            Some(_) => Known::Nothing,
        };
        self.size += entry.known.size();
        for user in entry.users.values().filter(|_| is_news) {
            user.changed.store(true, Ordering::Release);
            user.news.notify_one();
        }
    }

    fn leave(&mut self, name: &Name, id: u64) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        entry.users.remove(&id);
        if entry.users.is_empty() {
            self.size -= entry.known.size();
            self.entries.remove(name);
        }
    }
}

/// Versions of our master are numbers that grow; another one that is no number is taken for newer.
fn is_newer(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version > than,
        _ => version != than,
    }
}

struct Inner {
    api: Arc<dyn Api>,
    state: Mutex<State>,
}

/// The objects that are in use. Clones share them.
#[derive(Clone)]
pub struct Watched(Arc<Inner>);

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").finish_non_exhaustive()
    }
}

/// Some objects in use: they are followed until this is dropped.
pub struct Use {
    inner: Arc<Inner>,
    names: BTreeSet<Name>,
    id: u64,
}

impl fmt::Debug for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Use")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut state = self.inner.state();
        for name in &self.names {
            state.leave(name, self.id);
        }
    }
}

impl Watched {
    /// Nothing is in use yet.
    pub fn new(api: Arc<dyn Api>) -> Self {
        let state = Mutex::default();
        Self(Arc::new(Inner { api, state }))
    }

    /// Follows these objects. Each change of one sets `changed` and notifies `news`. A pod that
    /// names many leaves half of the watches to the others, however often it follows them anew, and
    /// also where other pods name the same ones.
    pub fn follow(
        &self,
        names: BTreeSet<Name>,
        changed: &Arc<AtomicBool>,
        news: &Arc<Notify>,
    ) -> Use {
        let user = Arc::new(User {
            changed: changed.clone(),
            news: news.clone(),
        });
        let mut state = self.0.state();
        state.count += 1;
        let id = state.count;
        let mut free = state.share_of(&names);
        for name in &names {
            let entry = state.entries.entry(name.clone()).or_default();
            entry.users.insert(id, user.clone());
            if entry.watch.is_some() || free == 0 {
                continue;
            }
            free -= 1;
            let life = WATCH_SECONDS.0 + (id * 37) % WATCH_SECONDS.1;
            let watching = keep(self.0.clone(), name.clone(), life);
            entry.watch = Some(tokio::spawn(watching).abort_handle());
        }
        drop(state);
        let inner = self.0.clone();
        Use { inner, names, id }
    }

    /// An object as it is known; asked of the master where that may be old.
    ///
    /// # Errors
    /// As [`Api::call`].
    pub async fn read(&self, name: &Name) -> Result<Option<Value>, ApiError> {
        let known = {
            let state = self.0.state();
            let entry = state.entries.get(name).filter(|entry| entry.live);
            match entry.map(|entry| &entry.known) {
                Some(Known::Absent) => return Ok(None),
                Some(Known::Object(text)) => Some(text.clone()),
                Some(Known::Nothing) | None => None,
            }
        };
        match known {
            Some(text) => serde_json::from_slice(&text).map_err(ApiError::Decode),
            None => self.ask(name).await,
        }
    }

    /// An object as the master has it now.
    ///
    /// # Errors
    /// As [`Api::call`].
    pub async fn ask(&self, name: &Name) -> Result<Option<Value>, ApiError> {
        match get::<Value>(&*self.0.api, name.path()).await {
            Ok(object) => {
                let version = version_of(&object);
                self.0.state().take(name, version, Some(&object));
                Ok(Some(object))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn version_of(object: &Value) -> &str {
    let version = object.pointer("/metadata/resourceVersion");
    version.and_then(Value::as_str).unwrap_or_default()
}

fn is_immutable(object: &Value) -> bool {
    object.get("immutable").and_then(Value::as_bool) == Some(true)
}

/// How a watch ended without an error.
#[derive(Debug, PartialEq)]
enum End {
    /// In its time.
    Over,
    /// The object can't change any more.
    Immutable,
}

/// Keeps one object up to date until that is no longer needed.
async fn keep(inner: Arc<Inner>, name: Name, life: u64) {
    let (mut version, mut pause) = (String::new(), PAUSE);
    loop {
        match inner.watch(&name, &mut version, life).await {
            Ok(End::Immutable) => return,
            Ok(End::Over) => pause = PAUSE,
            // What is known stays, and the watch goes on from there.
            Err(ApiError::Transport(_)) => pause = (pause * 2).min(AWAY),
            Err(error) => {
                version.clear();
                if error.is_gone() {
                    pause = PAUSE;
                } else {
                    inner.set_live(&name, false);
                    tracing::debug!(
                        ?name,
                        error = error.chain(),
                        "cannot watch an object; asking for it instead"
                    );
                    pause = (pause * 2).min(REFUSED);
                }
            }
        }
        tokio::time::sleep(pause).await;
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_live(&self, name: &Name, live: bool) {
        if let Some(entry) = self.state().entries.get_mut(name) {
            entry.live = live;
        }
    }

    /// One watch of an object, from the version on that is known, or with its present state first.
    async fn watch(&self, name: &Name, version: &mut String, life: u64) -> Result<End, ApiError> {
        let mut is_begun = !version.is_empty();
        let mut is_there = false;
        let path = name.watch_path(version, life);
        let mut at = version.clone();
        let mut lines = self.api.watch(path).await?;
        while let Some(line) = lines.next().await {
            match WatchEvent::read(&line?, &mut at)? {
                WatchEvent::Is(object) => {
                    is_there = true;
                    self.state().take(name, &at, Some(&object));
                    if is_immutable(&object) {
                        self.set_live(name, true);
                        return Ok(End::Immutable);
                    }
                }
                WatchEvent::Gone(_) => self.state().take(name, &at, None),
                WatchEvent::Bookmark { initial_end } if initial_end => {
                    if !is_there {
                        self.state().take(name, &at, None);
                    }
                    is_begun = true;
                    self.set_live(name, true);
                }
                WatchEvent::Bookmark { .. } => {}
            }
            // Not before the first list is complete: a watch that was cut off earlier lists again.
            if is_begun {
                version.clone_from(&at);
            }
        }
        Ok(End::Over)
    }
}

#[cfg(test)]
#[path = "watched_tests.rs"]
mod tests;
