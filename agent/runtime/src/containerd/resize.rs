//! Changes the resource limits of a running container.

use super::Containerd;
use crate::labels;
use crate::model::Resources;
use crate::spec::limits;
use agent_containerd::{Error, ErrorClass, failed, request};
use containerd_client::services::v1::UpdateTaskRequest;
use prost_types::Any;

/// Type of limits in containerd's messages.
const LIMITS_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources";

impl Containerd {
    /// Sets the limits of a container; then records the pod's resources (`needs`).
    pub(super) async fn give(
        &self,
        id: &str,
        resources: &Resources,
        needs: &str,
    ) -> Result<(), Error> {
        let limits = limits(resources, self.host.unified_cgroups);
        let update = UpdateTaskRequest {
            container_id: id.to_owned(),
            resources: Some(Any {
                type_url: LIMITS_TYPE.to_owned(),
                value: limits.to_string().into_bytes(),
            }),
            ..UpdateTaskRequest::default()
        };
        let fail = failed(ErrorClass::Create, format!("resize container {id}"));
        self.tasks().update(request(update)).await.map_err(fail)?;
        self.note(id, vec![(labels::NEEDS, needs.to_owned())]).await
    }
}
