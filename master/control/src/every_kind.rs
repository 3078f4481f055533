//! The metadata of the objects of every kind that is served, for controllers that can't name the
//! kinds they look after.

use futures_util::stream::{self, BoxStream, SelectAll, StreamExt};
use master_client::{Change, Client, Follower, Key, PartialObject, Resource};
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior};

/// A number for a kind of objects.
pub type ResourceId = u16;

/// How often the served kinds are read.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// The followed kinds, by number. Numbers are never reused.
#[derive(Debug, Clone, Default)]
pub struct Kinds(Arc<RwLock<Arc<Vec<Resource>>>>);

impl Kinds {
    /// All kinds; a [`ResourceId`] is a place in the list.
    pub fn all(&self) -> Arc<Vec<Resource>> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds the kinds that are served and not known yet; returns their numbers.
    fn serve(&self, served: &[Resource]) -> Vec<ResourceId> {
        let known = self.all();
        let new = served.iter().filter(|resource| !known.contains(resource));
        // Events own nothing, have no owners, and there are many.
        let new: Vec<&Resource> = new.filter(|resource| resource.plural != "events").collect();
        let all: Vec<Resource> = known.iter().chain(new).cloned().collect();
        let numbers = known.len()..all.len();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(all);
        numbers
            .filter_map(|number| ResourceId::try_from(number).ok())
            .collect()
    }
}

/// Takes a change of an object of some kind, and gives the keys that it concerns.
pub trait Listener:
    FnMut((ResourceId, &Resource), &Change<PartialObject>, &mut Vec<Key>) + Send + 'static
{
}
impl<F: FnMut((ResourceId, &Resource), &Change<PartialObject>, &mut Vec<Key>) + Send + 'static>
    Listener for F
{
}

/// The listening controllers, and the kinds.
#[derive(Default)]
pub(crate) struct EveryKind {
    listeners: Vec<(usize, Box<dyn Listener>)>,
    kinds: Kinds,
}

impl EveryKind {
    pub(crate) fn listen(&mut self, controller: usize, listener: impl Listener) -> Kinds {
        self.listeners.push((controller, Box::new(listener)));
        self.kinds.clone()
    }

    pub(crate) fn is_listened_to(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// Further kinds are served; the numbers of the new ones.
    pub(crate) fn serve(&self, served: &[Resource]) -> Vec<ResourceId> {
        self.kinds.serve(served)
    }

    /// The number of a kind in a group.
    pub(crate) fn number(&self, group: &str, kind: &str) -> Option<ResourceId> {
        let all = self.kinds.all();
        let place = all
            .iter()
            .position(|known| known.group == group && known.kind == kind)?;
        ResourceId::try_from(place).ok()
    }

    /// The keys that a change of an object of a kind concerns, by their controllers.
    pub(crate) fn concerned(
        &mut self,
        number: ResourceId,
        change: &Change<PartialObject>,
    ) -> Vec<(usize, Key)> {
        let (mut concerned, mut keys) = (Vec::new(), Vec::new());
        let kinds = self.kinds.all();
        let Some(resource) = kinds.get(usize::from(number)) else {
            return concerned;
        };
        for (controller, listener) in &mut self.listeners {
            listener((number, resource), change, &mut keys);
            concerned.extend(keys.drain(..).map(|key| (*controller, key)));
        }
        concerned
    }

    /// Changes as they come: whether every kind is known, and the keys that are concerned, by their
    /// controllers.
    pub(crate) fn start(self, client: &Client) -> BoxStream<'static, (bool, Vec<(usize, Key)>)> {
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let following = Following {
            client: client.clone(),
            every_kind: self,
            changes: SelectAll::new(),
            unlisted: BTreeSet::new(),
            poll,
        };
        let next = |mut following: Following| async move {
            let changed = following.next().await;
            Some((changed, following))
        };
        stream::unfold(following, next).boxed()
    }
}

struct Following {
    client: Client,
    every_kind: EveryKind,
    changes: SelectAll<BoxStream<'static, (ResourceId, Change<PartialObject>)>>,
    /// Kinds whose objects have not been listed yet.
    unlisted: BTreeSet<ResourceId>,
    poll: Interval,
}

impl Following {
    async fn next(&mut self) -> (bool, Vec<(usize, Key)>) {
        // Both arms are cancel-safe: a tick loses nothing, and streams keep what they have not
        // returned.
        tokio::select! {
            _ = self.poll.tick() => {
                self.serve();
                (self.unlisted.is_empty(), Vec::new())
            }
            Some((number, change)) = self.changes.next() => {
                let keys = self.take(number, &change);
                (self.unlisted.is_empty(), keys)
            }
        }
    }

    fn serve(&mut self) {
        let new = self.every_kind.serve(&self.client.resources());
        let kinds = self.every_kind.kinds.all();
        for number in new {
            let Some(resource) = kinds.get(usize::from(number)) else {
                continue;
            };
            self.unlisted.insert(number);
            let follower = Follower::metadata(self.client.clone(), resource);
            let next = move |mut follower: Follower<PartialObject>| async move {
                let change = follower.next().await;
                Some(((number, change), follower))
            };
            self.changes.push(stream::unfold(follower, next).boxed());
        }
    }

    fn take(&mut self, number: ResourceId, change: &Change<PartialObject>) -> Vec<(usize, Key)> {
        if matches!(change, Change::Listed(_)) {
            self.unlisted.remove(&number);
        }
        self.every_kind.concerned(number, change)
    }
}
