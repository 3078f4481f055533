//! The flow of each request, which its answer names.

use crate::state::ApiServer;
use http::Response;
use master_client::{Body, UserInfo};
use master_listener::{Asked, Flow, Matter};
use master_wire::path::Target;

impl ApiServer {
    /// The flow of a request of this user.
    pub(crate) async fn flow(
        &self,
        user: &UserInfo,
        verb: &str,
        matter: Matter<'_>,
    ) -> Option<Flow> {
        let asked = Asked { user, verb, matter };
        self.inner.flows.find(&*self.inner.reader, &asked).await
    }
}

/// What a request for a resource is about. A namespace is in itself, as upstream sees it.
pub(crate) fn matter(target: &Target) -> Matter<'_> {
    let whole = target.group.is_empty() && target.plural == "namespaces";
    Matter::Resource {
        group: &target.group,
        plural: &target.plural,
        subresource: &target.subresource,
        namespace: if whole {
            &target.name
        } else {
            &target.namespace
        },
    }
}

/// Names the flow of its request in an answer.
pub(crate) fn with_flow(mut response: Response<Body>, flow: Option<Flow>) -> Response<Body> {
    if let Some(flow) = flow {
        flow.tell(response.headers_mut());
    }
    response
}
