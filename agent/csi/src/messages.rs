//! The messages of the plugin registration (`pluginregistration`, v1) and of CSI's node service
//! (`csi.v1.Node`) that are in use, with the fields that are in use; numbers are those of kubelet's
//! `pluginregistration/v1` and of the CSI specification.

use prost::Message;
use std::collections::HashMap;

/// A message without fields in use: a question or an answer that says nothing more.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Empty {}

/// Of a plugin: what it is.
#[derive(Clone, PartialEq, Message)]
pub struct PluginInfo {
    /// `CSIPlugin` for a CSI driver.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// The driver's name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The path of the driver's own socket; empty where it is this one.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    /// Versions of the interface.
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

/// To a plugin: the result of its registration.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RegistrationStatus {
    /// Whether it is registered.
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    /// Why it isn't.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// Of a driver: the node as it sees it.
#[derive(Clone, PartialEq, Message)]
pub struct NodeGetInfoResponse {
    /// The driver's name of the node.
    #[prost(string, tag = "1")]
    pub node_id: String,
    /// Most volumes; 0 for no limit.
    #[prost(int64, tag = "2")]
    pub max_volumes_per_node: i64,
    /// Where the node is.
    #[prost(message, optional, tag = "3")]
    pub accessible_topology: Option<Topology>,
}

/// A place in a topology.
#[derive(Clone, PartialEq, Message)]
pub struct Topology {
    /// Values by keys, which are labels of nodes.
    #[prost(map = "string, string", tag = "1")]
    pub segments: HashMap<String, String>,
}

/// Of a driver: what its node service can do.
#[derive(Clone, PartialEq, Message)]
pub struct NodeGetCapabilitiesResponse {
    /// Each capability.
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<NodeServiceCapability>,
}

/// One of them.
#[derive(Clone, PartialEq, Message)]
pub struct NodeServiceCapability {
    /// A call or a property of calls.
    #[prost(message, optional, tag = "1")]
    pub rpc: Option<NodeServiceRpc>,
}

/// A capability of the node service.
#[derive(Clone, PartialEq, Message)]
pub struct NodeServiceRpc {
    /// See [`capability`].
    #[prost(int32, tag = "1")]
    pub kind: i32,
}

/// Numbers of capabilities of node services (`NodeServiceCapability.RPC.Type`).
pub mod capability {
    /// Volumes are staged once for the node before they are published to pods.
    pub const STAGE_UNSTAGE_VOLUME: i32 = 1;
    /// The driver says how much of a volume is used.
    pub const GET_VOLUME_STATS: i32 = 2;
    /// Volumes are expanded on the node.
    pub const EXPAND_VOLUME: i32 = 3;
    /// The access modes of one node with one and with several writers are told apart.
    pub const SINGLE_NODE_MULTI_WRITER: i32 = 5;
    /// The driver gives files the pod's group.
    pub const VOLUME_MOUNT_GROUP: i32 = 6;
}

/// How a volume is used.
#[derive(Clone, PartialEq, Message)]
pub struct VolumeCapability {
    /// As a file system.
    #[prost(message, optional, tag = "2")]
    pub mount: Option<MountVolume>,
    /// By whom.
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<AccessMode>,
}

/// A volume as a file system.
#[derive(Clone, PartialEq, Message)]
pub struct MountVolume {
    /// The file system's type; empty for the driver's choice.
    #[prost(string, tag = "1")]
    pub fs_type: String,
    /// Mount options.
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
    /// The group of its files, where the driver has `VOLUME_MOUNT_GROUP`.
    #[prost(string, tag = "3")]
    pub volume_mount_group: String,
}

/// Who uses a volume.
#[derive(Clone, PartialEq, Message)]
pub struct AccessMode {
    /// See [`mode`].
    #[prost(int32, tag = "1")]
    pub mode: i32,
}

/// Numbers of access modes (`VolumeCapability.AccessMode.Mode`).
pub mod mode {
    /// One node reads and writes.
    pub const SINGLE_NODE_WRITER: i32 = 1;
    /// Many nodes read.
    pub const MULTI_NODE_READER_ONLY: i32 = 3;
    /// Many nodes read and write.
    pub const MULTI_NODE_MULTI_WRITER: i32 = 5;
    /// One pod of one node reads and writes.
    pub const SINGLE_NODE_SINGLE_WRITER: i32 = 6;
    /// Several pods of one node read and write.
    pub const SINGLE_NODE_MULTI_WRITER: i32 = 7;
}

/// Makes a volume ready for the node.
#[derive(Clone, PartialEq, Message)]
pub struct NodeStageVolumeRequest {
    /// The volume's handle.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// What the attachment returned.
    #[prost(map = "string, string", tag = "2")]
    pub publish_context: HashMap<String, String>,
    /// A folder, which is there.
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    /// How it is used.
    #[prost(message, optional, tag = "4")]
    pub volume_capability: Option<VolumeCapability>,
    /// Of the volume's secret.
    #[prost(map = "string, string", tag = "5")]
    pub secrets: HashMap<String, String>,
    /// The volume's attributes.
    #[prost(map = "string, string", tag = "6")]
    pub volume_context: HashMap<String, String>,
}

/// Undoes a [`NodeStageVolumeRequest`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeUnstageVolumeRequest {
    /// The volume's handle.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// The folder.
    #[prost(string, tag = "2")]
    pub staging_target_path: String,
}

/// Mounts a volume for one pod.
#[derive(Clone, PartialEq, Message)]
pub struct NodePublishVolumeRequest {
    /// The volume's handle.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// What the attachment returned.
    #[prost(map = "string, string", tag = "2")]
    pub publish_context: HashMap<String, String>,
    /// Where it is staged; empty where it is not.
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    /// Where it is to be; the folder above is there.
    #[prost(string, tag = "4")]
    pub target_path: String,
    /// How it is used.
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    /// Whether the pod may only read.
    #[prost(bool, tag = "6")]
    pub readonly: bool,
    /// Of the volume's secret.
    #[prost(map = "string, string", tag = "7")]
    pub secrets: HashMap<String, String>,
    /// The volume's attributes, and what the driver wants to know of the pod.
    #[prost(map = "string, string", tag = "8")]
    pub volume_context: HashMap<String, String>,
}

/// Undoes a [`NodePublishVolumeRequest`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeUnpublishVolumeRequest {
    /// The volume's handle.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Where it is.
    #[prost(string, tag = "2")]
    pub target_path: String,
}

/// Lets a published volume use all of its new size.
#[derive(Clone, PartialEq, Message)]
pub struct NodeExpandVolumeRequest {
    /// The volume's handle.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Where it is published.
    #[prost(string, tag = "2")]
    pub volume_path: String,
    /// The new size.
    #[prost(message, optional, tag = "3")]
    pub capacity_range: Option<CapacityRange>,
    /// Where it is staged; empty where it is not.
    #[prost(string, tag = "4")]
    pub staging_target_path: String,
    /// How it is used.
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    /// Of the volume's secret.
    #[prost(map = "string, string", tag = "6")]
    pub secrets: HashMap<String, String>,
}

/// A size.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CapacityRange {
    /// The least capacity, in bytes.
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
}

/// How large it is now.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct NodeExpandVolumeResponse {
    /// Bytes.
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
}

/// Asks how much of a volume is used.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeGetVolumeStatsRequest {
    /// The volume's handle.
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Where it is published.
    #[prost(string, tag = "2")]
    pub volume_path: String,
    /// Where it is staged; empty where it is not.
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
}

/// How much of it is used.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeGetVolumeStatsResponse {
    /// One for each unit.
    #[prost(message, repeated, tag = "1")]
    pub usage: Vec<VolumeUsage>,
}

/// How much is used of what a volume has of one unit.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct VolumeUsage {
    /// What is free.
    #[prost(int64, tag = "1")]
    pub available: i64,
    /// All there is.
    #[prost(int64, tag = "2")]
    pub total: i64,
    /// What is used.
    #[prost(int64, tag = "3")]
    pub used: i64,
    /// See [`unit`].
    #[prost(int32, tag = "4")]
    pub unit: i32,
}

/// Numbers of units (`VolumeUsage.Unit`).
pub mod unit {
    /// Bytes.
    pub const BYTES: i32 = 1;
    /// Files and folders.
    pub const INODES: i32 = 2;
}
