//! Admission: changes or refuses an authorized write before it is stored. One file per plugin,
//! under upstream's name.
//!
//! A write passes the chain twice: [`create`] and [`update`] let plugins change the object, then
//! the kind's own validation runs, then [`check`] lets plugins refuse it. A plugin reads the store
//! itself; writes and preconditions that must be atomic with the object's write are returned as
//! operations of the same transaction ([`Admitted::ops`]). If one of them conflicts, the verb
//! repeats the whole attempt.

mod certificates;
mod chain;
mod claim_resize;
mod default_ingress_class;
mod default_storage_class;
mod default_tolerations;
mod device_access;
mod image_floor;
mod limit_ranger;
mod namespace_lifecycle;
mod node_restriction;
mod owner_references;
mod pod_security;
mod priority;
mod requestor;
mod resource_quota;
mod runtime_class;
mod service_account;
mod storage_in_use;
mod taint_nodes;

pub use chain::Admission;
pub(crate) use chain::Chain;

use crate::authorize::escalation;
use crate::object::meta_text;
use crate::verbs::{Call, store_error};
use config_kube::identity::GROUP;
use master_client::BoxFuture;
use master_schema::error::ApiError;
use master_schema::registry::Subresource;
use master_schema::validate::Fields;
use master_store::{Action, Entry, Expect, ListQuery, Op};
use std::fmt;
use tokio::sync::OwnedMutexGuard;

/// What the plugins add to a write.
#[derive(Debug, Default)]
pub(crate) struct Admitted {
    /// Part of the object's own transaction. A conflict on one of their keys repeats the attempt.
    pub(crate) ops: Vec<Op>,
    /// For the `Warning` header of the answer.
    pub(crate) warnings: Vec<String>,
    /// Held until the write is done: writers under the same quotas run one after the other instead
    /// of conflicting.
    pub(crate) quota_lock: Option<OwnedMutexGuard<()>>,
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
pub(crate) enum Operation {
    /// Creates it.
    Create,
    /// Changes it.
    Update,
    /// Deletes it, or begins its deletion.
    Delete,
}

/// A write, as plugins see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) call: &'a Call,
    pub(crate) operation: Operation,
    pub(crate) subresource: Option<Subresource>,
    /// The stored object; `None` at creation.
    pub(crate) old: Option<&'a Fields>,
}

impl Request<'_> {
    /// Whether the object itself (no subresource) of a kind is written.
    pub(crate) fn writes(&self, group: &str, plural: &str) -> bool {
        self.subresource.is_none() && self.is(group, plural)
    }

    /// Whether the write concerns a kind.
    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.call.kind.plural == plural && self.call.kind.group == group
    }

    /// Reads one key of the store.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<Entry>, ApiError> {
        Ok(self
            .call
            .api
            .inner
            .store
            .get(key)
            .await
            .map_err(store_error)?
            .entry)
    }
}

/// The stored objects of a kind, by its table and namespace (empty: all namespaces).
pub(crate) async fn stored(
    request: &Request<'_>,
    table: &str,
    namespace: &str,
) -> Result<Vec<(Entry, Fields)>, ApiError> {
    let prefix = if namespace.is_empty() {
        format!("{table}/")
    } else {
        format!("{table}/{namespace}/")
    };
    let query = ListQuery {
        prefix,
        ..ListQuery::default()
    };
    let entries = request
        .call
        .api
        .inner
        .store
        .list(query)
        .await
        .map_err(store_error)?
        .entries;
    Ok(entries
        .into_iter()
        .filter_map(|entry| read(&entry).map(|fields| (entry, fields)))
        .collect())
}

/// Decodes a stored object without the fields that only an answer has.
pub(crate) fn read(entry: &Entry) -> Option<Fields> {
    serde_json::from_slice(&entry.value).ok()
}

/// The name of an object; the `generateName` if it has no name yet.
pub(crate) fn name_of(object: &Fields) -> &str {
    match meta_text(object, "name") {
        "" => meta_text(object, "generateName"),
        name => name,
    }
}

/// One plugin. `concerns` is cheap and says whether the plugin is called at all.
pub(crate) trait Plugin: fmt::Debug + Send + Sync {
    /// Upstream's name, by which it is enabled and disabled.
    fn name(&self) -> &'static str;

    /// Whether the caller may learn anything about the stored object that it changes: later
    /// refusals may quote the object.
    fn reach(&self, _call: &Call, _stored: &Fields) -> Result<(), ApiError> {
        Ok(())
    }

    /// Whether the plugin handles this write.
    fn concerns(&self, request: &Request<'_>) -> bool;

    /// May change the object.
    fn admit<'a>(
        &'a self,
        _request: &'a Request<'a>,
        _object: &'a mut Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// May refuse the object, which has passed its kind's validation.
    fn check<'a>(
        &'a self,
        _request: &'a Request<'a>,
        _object: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Runs the changing plugins on a new object.
pub(crate) async fn create(call: &Call, fields: &mut Fields) -> Result<Admitted, ApiError> {
    requestor::stamp(call, fields);
    requestor::decided(call, fields, None);
    requestor::approved(call, fields, None);
    image_floor::remember(call, fields, None);
    let request = Request {
        call,
        operation: Operation::Create,
        subresource: None,
        old: None,
    };
    let admitted = admit(&request, fields).await?;
    escalation::check(call, fields, None).await?;
    Ok(admitted)
}

/// Runs before a change is compared with the stored object.
pub(crate) fn reach(call: &Call, stored: &Fields) -> Result<(), ApiError> {
    call.api
        .inner
        .admission
        .plugins()
        .iter()
        .try_for_each(|plugin| plugin.reach(call, stored))
}

/// Runs the changing plugins on a changed object.
pub(crate) async fn update(
    call: &Call,
    new: &mut Fields,
    old: &Fields,
    subresource: Option<Subresource>,
) -> Result<Admitted, ApiError> {
    let request = Request {
        call,
        operation: Operation::Update,
        subresource,
        old: Some(old),
    };
    if subresource.is_none() {
        requestor::decided(call, new, Some(old));
        image_floor::remember(call, new, Some(old));
    }
    requestor::approved(call, new, Some(old));
    let admitted = admit(&request, new).await?;
    escalation::check(call, new, Some(old)).await?;
    Ok(admitted)
}

/// Runs the validating plugins on a new (`old` is `None`) or changed object that has passed its
/// kind's validation.
pub(crate) async fn check(
    call: &Call,
    new: &Fields,
    old: Option<&Fields>,
    subresource: Option<Subresource>,
    admitted: &mut Admitted,
) -> Result<(), ApiError> {
    let operation = if old.is_some() {
        Operation::Update
    } else {
        Operation::Create
    };
    let request = Request {
        call,
        operation,
        subresource,
        old,
    };
    for plugin in call.api.inner.admission.plugins() {
        if plugin.concerns(&request) {
            plugin.check(&request, new, admitted).await?;
        }
    }
    image_floor::check(&request, new)?;
    if let Some(extensions) = call
        .api
        .inner
        .extensions
        .get()
        .filter(|_| subresource.is_none() && call.kind.group == GROUP)
    {
        admitted
            .warnings
            .extend(extensions.warnings(&call.kind.kind, new));
    }
    device_access::check(&request, new).await
}

/// Runs the plugins on a deletion.
pub(crate) async fn delete(call: &Call, fields: &Fields) -> Result<Admitted, ApiError> {
    let request = Request {
        call,
        operation: Operation::Delete,
        subresource: None,
        old: Some(fields),
    };
    let mut admitted = Admitted::default();
    for plugin in call.api.inner.admission.plugins() {
        if plugin.concerns(&request) {
            plugin.check(&request, fields, &mut admitted).await?;
        }
    }
    image_floor::check_delete(&request, fields)?;
    crate::allocate::check_delete(&request, fields).await?;
    Ok(admitted)
}

async fn admit(request: &Request<'_>, fields: &mut Fields) -> Result<Admitted, ApiError> {
    let mut admitted = Admitted::default();
    owner_references::once(request, fields, &mut admitted.warnings);
    for plugin in request.call.api.inner.admission.plugins() {
        if plugin.concerns(request) {
            plugin.admit(request, fields, &mut admitted).await?;
        }
    }
    crate::allocate::admit(request, fields, &mut admitted).await?;
    if request.subresource.is_none() {
        (request.call.kind.strategy.warn)(fields, request.old, &mut admitted.warnings);
    }
    Ok(admitted)
}
