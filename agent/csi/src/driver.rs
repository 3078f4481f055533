//! A driver of this machine: its registration, and the calls of its node service.

use crate::grpc::{CallError, Socket, call, cut};
use crate::messages::{
    Empty, NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesResponse,
    NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, PluginInfo, RegistrationStatus, capability,
};
use crate::paths::{REGISTRATION, endpoint, is_name, is_spoken};
use crate::request::Abilities;
use config_kube::k8s_openapi::api::core::v1::Node;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// How long a plugin may take to identify itself, and to take the result of its registration
/// (upstream's).
const GREETING: Duration = Duration::from_secs(10);
/// Longest id of a node, in bytes (CSI specification).
const MAX_NODE_ID: usize = 256;
/// Most keys of a topology.
const MAX_SEGMENTS: usize = 64;

/// A driver that has said what it is and what it can do.
#[derive(Debug)]
pub(crate) struct Driver {
    /// Its name.
    pub(crate) name: String,
    /// The id that it gives this node.
    pub(crate) node_id: String,
    /// Most of its volumes on this node; none for no limit.
    pub(crate) most: Option<i32>,
    /// Where it says that the node is, by labels of nodes.
    pub(crate) topology: BTreeMap<String, String>,
    /// What its node service can do.
    pub(crate) abilities: Abilities,
    /// The socket of its node service.
    socket: Socket,
    /// Longest wait for an answer.
    limit: Duration,
}

/// The socket by which a plugin registers.
pub(crate) fn registration(data: &Path, name: &str) -> Socket {
    Socket {
        root: data.to_owned(),
        path: Path::new(REGISTRATION).join(name),
    }
}

/// Asks the plugin at a registration socket what it is, and the driver behind it what it can do.
///
/// # Errors
/// For a person: it is no driver, or none that the node works with.
pub(crate) async fn identify(at: &Socket, limit: Duration) -> Result<Driver, String> {
    let text = |error: CallError| error.to_string();
    let info = "/pluginregistration.Registration/GetInfo";
    let info: PluginInfo = call(at, info, &Empty {}, GREETING).await.map_err(text)?;
    if info.kind != "CSIPlugin" {
        let kind = cut(&info.kind);
        return Err(format!(
            "plugins of the kind {kind:?} are not available: only CSIPlugin is"
        ));
    }
    if !is_name(&info.name) {
        return Err(format!("{:?} is no name of a CSI driver", cut(&info.name)));
    }
    if !info
        .supported_versions
        .iter()
        .any(|version| is_spoken(version))
    {
        let versions = cut(&info.supported_versions.join(", "));
        return Err(format!(
            "it speaks CSI {versions:?}, and the node speaks 1.x"
        ));
    }
    let socket = Socket {
        root: at.root.clone(),
        path: endpoint(&at.root, &info.endpoint, &at.path)?,
    };
    let method = "/csi.v1.Node/NodeGetInfo";
    let node: NodeGetInfoResponse = call(&socket, method, &Empty {}, limit)
        .await
        .map_err(text)?;
    let method = "/csi.v1.Node/NodeGetCapabilities";
    let able: NodeGetCapabilitiesResponse = call(&socket, method, &Empty {}, limit)
        .await
        .map_err(text)?;
    if node.node_id.is_empty() || node.node_id.len() > MAX_NODE_ID {
        return Err("it gave the node no id, or one that is too long".to_owned());
    }
    let segments = node.accessible_topology.unwrap_or_default().segments;
    if segments.len() > MAX_SEGMENTS {
        return Err(format!("its topology has {} keys", segments.len()));
    }
    let most = i32::try_from(node.max_volumes_per_node).unwrap_or(i32::MAX);
    Ok(Driver {
        name: info.name,
        node_id: node.node_id,
        most: (most > 0).then_some(most),
        topology: segments.into_iter().collect(),
        abilities: abilities(&able),
        socket,
        limit,
    })
}

/// Tells a plugin whether it is registered and, if it is not, why.
pub(crate) async fn notify(at: &Socket, fault: Option<&str>) -> Result<(), CallError> {
    let status = RegistrationStatus {
        plugin_registered: fault.is_none(),
        error: fault.unwrap_or_default().to_owned(),
    };
    let method = "/pluginregistration.Registration/NotifyRegistrationStatus";
    call::<_, Empty>(at, method, &status, GREETING)
        .await
        .map(drop)
}

fn abilities(response: &NodeGetCapabilitiesResponse) -> Abilities {
    let has = |wanted: i32| {
        let mut all = response
            .capabilities
            .iter()
            .filter_map(|one| one.rpc.as_ref());
        all.any(|rpc| rpc.kind == wanted)
    };
    Abilities {
        stages: has(capability::STAGE_UNSTAGE_VOLUME),
        expands: has(capability::EXPAND_VOLUME),
        measures: has(capability::GET_VOLUME_STATS),
        tells_writers: has(capability::SINGLE_NODE_MULTI_WRITER),
        gives_group: has(capability::VOLUME_MOUNT_GROUP),
    }
}

/// Whether a Node has the labels of a driver's topology. A node does not label itself here: labels
/// come from the master, by the policy's rules. So such a driver works on nodes that have its
/// labels already.
///
/// # Errors
/// Names the labels that it lacks.
pub(crate) fn fits(topology: &BTreeMap<String, String>, node: &Node) -> Result<(), String> {
    let labels = node.metadata.labels.as_ref();
    let lacks = |(key, value): &(&String, &String)| {
        labels.and_then(|labels| labels.get(*key)) != Some(*value)
    };
    let missing: Vec<String> = topology
        .iter()
        .filter(lacks)
        .map(|(key, value)| cut(&format!("{key}={value}")))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the driver's topology needs labels that the Node does not have: {}; a node does not label itself: set them by a rule \
         of the CertificatePolicy",
        missing.join(", ")
    ))
}

impl Driver {
    pub(crate) async fn stage(&self, request: &NodeStageVolumeRequest) -> Result<(), CallError> {
        self.ask("NodeStageVolume", request).await
    }

    pub(crate) async fn unstage(
        &self,
        request: &NodeUnstageVolumeRequest,
    ) -> Result<(), CallError> {
        self.ask("NodeUnstageVolume", request).await
    }

    pub(crate) async fn publish(
        &self,
        request: &NodePublishVolumeRequest,
    ) -> Result<(), CallError> {
        self.ask("NodePublishVolume", request).await
    }

    pub(crate) async fn unpublish(
        &self,
        request: &NodeUnpublishVolumeRequest,
    ) -> Result<(), CallError> {
        self.ask("NodeUnpublishVolume", request).await
    }

    pub(crate) async fn expand(&self, request: &NodeExpandVolumeRequest) -> Result<(), CallError> {
        let method = "/csi.v1.Node/NodeExpandVolume";
        call::<_, NodeExpandVolumeResponse>(&self.socket, method, request, self.limit)
            .await
            .map(drop)
    }

    /// How much of a volume is used, as the driver says within `limit`.
    pub(crate) async fn usage(
        &self,
        request: &NodeGetVolumeStatsRequest,
        limit: Duration,
    ) -> Result<NodeGetVolumeStatsResponse, CallError> {
        let method = "/csi.v1.Node/NodeGetVolumeStats";
        call(&self.socket, method, request, limit.min(self.limit)).await
    }

    async fn ask(&self, method: &str, request: &impl prost::Message) -> Result<(), CallError> {
        let method = format!("/csi.v1.Node/{method}");
        call::<_, Empty>(&self.socket, &method, request, self.limit)
            .await
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_topology_needs_the_labels_that_the_node_has() {
        let node: Node =
            serde_json::from_value(json!({"metadata": {"labels": {"zone": "a", "rack": "1"}}}))
                .unwrap();
        let topology = |value: &str| [("zone".to_owned(), value.to_owned())].into();
        assert_eq!(fits(&topology("a"), &node), Ok(()));
        let lacking = fits(&topology("b"), &node).unwrap_err();
        assert!(lacking.contains("zone=b"), "{lacking}");
        assert!(fits(&topology("a"), &Node::default()).is_err());
    }
}
