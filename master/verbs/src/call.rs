//! A request for a resource, with helpers that the verbs share.

use http::{HeaderMap, Method, Response, Uri};
use hyper::upgrade::OnUpgrade;
use master_client::{Body, UserInfo};
use master_gateway::{CallOwner, Socket, WebSocketContent};
use master_listener::{Caller, Denials, DenyList, Peer};
use master_metrics::About;
use master_objects::{Clock, store_error};
use master_schema::error::{ApiError, Reason, shown};
use master_schema::registry::{Kind, Registry};
use master_store::{Entry, Reader};
use master_wire::path::{Query, Target};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// A request for a resource, and its caller. It gives no access to the parts of the server: a verb
/// gets those that it may use as further arguments.
#[derive(Debug, Clone)]
pub struct Call {
    /// The caller, after impersonation.
    pub user: UserInfo,
    /// The other end of the connection.
    pub peer: Peer,
    /// What the path and the method ask for.
    pub target: Target,
    /// The parameters of the query.
    pub query: Query,
    /// The request's headers.
    pub headers: HeaderMap,
    /// The kind of the resource.
    pub kind: Arc<Kind>,
    /// The kinds that are served when the request starts; they do not change while it runs.
    pub registry: Arc<Registry>,
    /// Verb and resource, for metrics.
    pub about: About,
    /// The method, as it was sent.
    pub method: Method,
    /// The path and the query, as they were sent.
    pub uri: Uri,
    /// The connection, if it can be upgraded to another protocol than HTTP.
    pub upgrade: Option<OnUpgrade>,
    /// The caller, for the deny list: the authenticated one, not the impersonated user.
    pub caller: Option<Caller>,
    /// The clock by which objects get their times.
    pub clock: Clock,
}

impl Call {
    /// The caller that a long-lived call counts against; an order to end a machine has priority.
    pub(super) fn owner(&self) -> CallOwner<'_> {
        let owner = CallOwner::new(&self.user, self.peer.remote.is_none()).at(self.peer.remote);
        match &*self.target.subresource {
            "power" => owner.with_priority(),
            _ => owner,
        }
    }

    /// The reason why the caller is denied, if it is.
    pub(super) fn denied(&self, list: &dyn DenyList) -> Option<String> {
        match &self.caller {
            Some(caller) => caller.denied(list),
            None => list.denied(&self.user, &self.peer),
        }
    }

    /// A function that sends an answer over the WebSocket that the client asks for, or returns it
    /// unchanged if it asks for none.
    pub(super) fn carrier(
        &self,
        what: WebSocketContent,
        denials: &Denials,
        draining: &CancellationToken,
    ) -> Result<impl FnOnce(Response<Body>) -> Response<Body> + use<>, ApiError> {
        let socket = Socket::requested(what, &self.method, &self.headers, self.upgrade.as_ref())?;
        let socket = socket.map(|socket| (socket, self.clone(), denials.clone(), draining.clone()));
        Ok(move |answer| match socket {
            Some((socket, call, denials, draining)) => {
                let answer = match &call.caller {
                    Some(caller) => caller.clone().guard(&denials, answer),
                    None => answer,
                };
                let cut = async move {
                    tokio::select! {
                        why = denials.until(|list| call.denied(list)) => why,
                        () = call.peer.displaced() => "another connection took its place".to_owned(),
                    }
                };
                socket.carry(answer, cut, draining.cancelled_owned())
            }
            None => answer,
        })
    }

    /// The same request by a client that accepts plain JSON, for verbs that convert the answer.
    pub(super) fn plain(&self) -> Self {
        let mut plain = self.clone();
        plain.headers.remove(http::header::ACCEPT);
        plain
    }

    /// The key of the object that the path names.
    pub(super) fn key(&self) -> String {
        self.kind.key(&self.target.namespace, &self.target.name)
    }

    /// The stored object that the path names.
    pub(super) async fn entry(&self, reader: &dyn Reader) -> Result<Entry, ApiError> {
        let stored = stored(reader, &self.key()).await?;
        stored.ok_or_else(|| self.not_found())
    }

    pub(super) fn not_found(&self) -> ApiError {
        let (plural, name) = (self.kind.qualified(), shown(&self.target.name));
        ApiError::new(Reason::NotFound, format!("{plural} {name:?} not found")).about(
            &self.kind.group,
            &self.kind.plural,
            &name,
        )
    }

    /// Refuses an object of another name than the path's.
    pub(super) fn check_name(&self, name: &str) -> Result<(), ApiError> {
        let own = &self.target.name;
        if name == own {
            return Ok(());
        }
        let text =
            format!("the name of the object ({name}) does not match the name on the URL ({own})");
        Err(ApiError::new(Reason::BadRequest, text))
    }

    /// Refuses an object of another namespace than the path's; it may name none.
    pub(super) fn check_namespace(&self, namespace: &str) -> Result<(), ApiError> {
        if namespace.is_empty() || namespace == self.target.namespace {
            return Ok(());
        }
        let text =
            "the namespace of the provided object does not match the namespace sent on the request";
        Err(ApiError::new(Reason::BadRequest, text))
    }

    /// The error that the object has changed meanwhile.
    pub(super) fn conflict(&self, why: &str) -> ApiError {
        self.conflict_on(&self.target.name, why)
    }

    /// As [`Call::conflict`], for one object of a collection.
    pub(super) fn conflict_on(&self, name: &str, why: &str) -> ApiError {
        let plural = self.kind.qualified();
        ApiError::new(
            Reason::Conflict,
            format!("Operation cannot be fulfilled on {plural} {name:?}: {why}"),
        )
        .about(&self.kind.group, &self.kind.plural, name)
    }
}

/// The entry under a key.
pub(super) async fn stored(reader: &dyn Reader, key: &str) -> Result<Option<Entry>, ApiError> {
    Ok(reader.get(key).await.map_err(store_error)?.entry)
}
