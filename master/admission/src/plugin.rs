//! What a plugin is, and what it gets: a request.

use master_client::{BoxFuture, UserInfo};
use master_objects::store_error;
use master_schema::error::ApiError;
use master_schema::object::meta_text;
use master_schema::registry::{Kind, Subresource};
use master_schema::validate::Fields;
use master_store::{Action, Entry, Expect, Op, Reader};
use std::fmt;
use tokio::sync::OwnedMutexGuard;

/// What the plugins add to a write.
#[derive(Debug, Default)]
pub struct Admitted {
    /// Part of the object's own transaction. A conflict on one of their keys repeats the attempt.
    pub ops: Vec<Op>,
    /// For the `Warning` header of the answer.
    pub warnings: Vec<String>,
    /// Held until the write is done: writers under the same quotas run one after the other instead
    /// of conflicting.
    pub quota_lock: Option<OwnedMutexGuard<()>>,
}

impl Admitted {
    /// Makes the write conditional on an entry being unchanged since it was read.
    pub(crate) fn hold(&mut self, entry: &Entry) {
        self.ops.push(Op {
            key: entry.key.clone(),
            expect: Expect::Revision(entry.modified),
            action: Action::Check,
        });
    }
}

/// What the write does to the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Creates it.
    Create,
    /// Changes it.
    Update,
    /// Deletes it, or begins its deletion.
    Delete,
}

/// A write, as plugins see it. The caller is authenticated and has the right to make the request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The kind of the object.
    pub kind: &'a Kind,
    /// The caller.
    pub user: &'a UserInfo,
    /// The namespace in the request's path; empty for the cluster.
    pub namespace: &'a str,
    /// The name in the request's path; empty if the path is that of a collection.
    pub name: &'a str,
    /// Whether the new object is made of the stored one and a patch.
    pub patched: bool,
    /// What the write does.
    pub operation: Operation,
    /// The subresource that is written; `None` for the object itself.
    pub subresource: Option<Subresource>,
    /// The stored object; `None` at creation.
    pub old: Option<&'a Fields>,
    /// Reads stored objects.
    pub reader: &'a dyn Reader,
}

impl Request<'_> {
    /// Whether the object itself (no subresource) of a kind is written.
    pub(crate) fn writes(&self, group: &str, plural: &str) -> bool {
        self.subresource.is_none() && self.is(group, plural)
    }

    /// Whether the write concerns a kind.
    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.kind.plural == plural && self.kind.group == group
    }

    /// Reads one key of the store.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<Entry>, ApiError> {
        Ok(self.reader.get(key).await.map_err(store_error)?.entry)
    }

    /// The stored objects of a kind, by its table and namespace (empty: all namespaces).
    pub(crate) async fn stored(
        &self,
        table: &str,
        namespace: &str,
    ) -> Result<Vec<(Entry, Fields)>, ApiError> {
        let prefix = if namespace.is_empty() {
            format!("{table}/")
        } else {
            format!("{table}/{namespace}/")
        };
        let entries = master_objects::list(self.reader, &prefix).await?;
        Ok(entries
            .into_iter()
            .filter_map(|entry| read(&entry).map(|fields| (entry, fields)))
            .collect())
    }

    /// The error that the write is forbidden.
    pub(crate) fn forbidden(&self, name: &str, why: &str) -> ApiError {
        self.kind.forbidden(name, why)
    }
}

/// Decodes a stored object without its managed fields and those that only an answer has.
pub(crate) fn read(entry: &Entry) -> Option<Fields> {
    master_objects::stored(entry).ok()
}

/// The name of an object; the `generateName` if it has no name yet.
pub(crate) fn name_of(object: &Fields) -> &str {
    match meta_text(object, "name") {
        "" => meta_text(object, "generateName"),
        name => name,
    }
}

/// One plugin. `concerns` is cheap and says whether the plugin is called at all.
pub trait Plugin: fmt::Debug + Send + Sync {
    /// Whether the plugin handles this write.
    fn concerns(&self, request: &Request<'_>) -> bool;

    /// Whether the caller may learn anything about the stored object that it changes: later
    /// refusals may quote the object.
    ///
    /// # Errors
    /// The caller may not (403); the answer must not quote what is stored, either.
    fn reach(&self, _request: &Request<'_>, _stored: &Fields) -> Result<(), ApiError> {
        Ok(())
    }

    /// May change the object of a creation or an update.
    fn admit<'a>(
        &'a self,
        _request: &'a Request<'a>,
        _object: &'a mut Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// May refuse the object. A new or changed one has passed its kind's validation; of a deletion
    /// it is the stored one.
    fn check<'a>(
        &'a self,
        _request: &'a Request<'a>,
        _object: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The operations that free what a deleted object had, part of the transaction that removes it.
    fn release<'a>(
        &'a self,
        _request: &'a Request<'a>,
        _object: &'a Fields,
    ) -> BoxFuture<'a, Result<Vec<Op>, ApiError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}
