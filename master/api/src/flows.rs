//! The flow of each request, which its answer names.

use crate::state::ApiServer;
use master_client::UserInfo;
use master_listener::{Flow, FlowRequest, FlowTarget};
use master_wire::path::Target;

impl ApiServer {
    /// The flow of a request of this user.
    pub(crate) async fn flow(
        &self,
        user: &UserInfo,
        verb: &str,
        target: FlowTarget<'_>,
    ) -> Option<Flow> {
        let request = FlowRequest { user, verb, target };
        self.inner.flows.find(&*self.inner.reader, &request).await
    }
}

/// What flow schemas match of a request. A Namespace object counts as inside itself (upstream).
pub(crate) fn flow_target(target: &Target) -> FlowTarget<'_> {
    let whole = target.group.is_empty() && target.plural == "namespaces";
    FlowTarget::Resource {
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
