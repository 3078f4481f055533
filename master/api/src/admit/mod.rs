//! Admission: what becomes of an authorized write before it is stored. One file for each plugin, under upstream's name.
//!
//! A write passes the chain twice: [`create`] and [`update`] let plugins change the object, then the kind's own validation
//! runs, then [`check`] lets plugins refuse it. A plugin reads the store by itself; what it wants written or held still
//! together with the object it hands over as operations of the same transaction ([`Admitted::ops`]). Where one of them
//! meets a conflict, the verb runs the whole attempt again.

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
use crate::error::ApiError;
use crate::object::meta_text;
use crate::registry::Subresource;
use crate::validate::Fields;
use crate::verbs::{Call, store_error};
use config_kube::identity::GROUP;
use master_client::BoxFuture;
use master_store::{Action, Entry, Expect, ListQuery, Op};
use std::fmt;
use tokio::sync::OwnedMutexGuard;

/// What the plugins add to a write.
#[derive(Debug, Default)]
pub(crate) struct Admitted {
    /// Written in the object's own transaction. A conflict on one of their keys runs the attempt again.
    pub(crate) ops: Vec<Op>,
    /// For the answer's header.
    pub(crate) warnings: Vec<String>,
    /// Held until the write is done: writers of the same quotas go one after the other instead of against each other.
    pub(crate) turn: Option<OwnedMutexGuard<()>>,
}

impl Admitted {
    /// Lets the write happen only if an entry is still as it was read.
    pub(crate) fn hold(&mut self, entry: &Entry) {
        self.ops.push(Op {
            key: entry.key.clone(),
            expect: Expect::Revision(entry.modified),
            action: Action::Check,
        });
    }
}

/// What is done to the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// It is new.
    Create,
    /// It changes.
    Update,
    /// It goes, or begins to.
    Delete,
}

/// A write, as plugins see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) call: &'a Call,
    pub(crate) operation: Operation,
    pub(crate) subresource: Option<Subresource>,
    /// The object as it is stored; none at creation.
    pub(crate) old: Option<&'a Fields>,
}

impl Request<'_> {
    /// Whether the object itself, none of its subresources, of a kind is written.
    pub(crate) fn writes(&self, group: &str, plural: &str) -> bool {
        self.subresource.is_none() && self.is(group, plural)
    }

    /// Whether the write concerns a kind.
    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.call.kind.plural == plural && self.call.kind.group == group
    }

    /// One key of the store.
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

/// The stored objects of a kind, by its table and namespace (empty: all).
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

/// A stored object without what only an answer carries.
pub(crate) fn read(entry: &Entry) -> Option<Fields> {
    serde_json::from_slice(&entry.value).ok()
}

/// The name of an object; what it is generated from where it has none yet.
pub(crate) fn name_of(object: &Fields) -> &str {
    match meta_text(object, "name") {
        "" => meta_text(object, "generateName"),
        name => name,
    }
}

/// One plugin. It says first and cheaply whether a write concerns it; only then it is asked.
pub(crate) trait Plugin: fmt::Debug + Send + Sync {
    /// Upstream's name, by which it is switched on and off.
    fn name(&self) -> &'static str;

    /// Whether the caller may learn anything of a stored object that it would change: its refusals may quote it.
    fn reach(&self, _call: &Call, _stored: &Fields) -> Result<(), ApiError> {
        Ok(())
    }

    /// Whether a write concerns it.
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

    /// May refuse the object, which is valid by its kind's rules.
    fn check<'a>(
        &'a self,
        _request: &'a Request<'a>,
        _object: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A new object, which plugins may change.
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

/// Before anything of a stored object is held against a change of it.
pub(crate) fn reach(call: &Call, stored: &Fields) -> Result<(), ApiError> {
    call.api
        .inner
        .admission
        .plugins()
        .iter()
        .try_for_each(|plugin| plugin.reach(call, stored))
}

/// A changed object, which plugins may change further.
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

/// A new (`old` is none) or changed object that is valid by its kind's rules: the last word.
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

/// An object on its way out.
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
