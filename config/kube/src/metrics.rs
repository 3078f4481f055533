//! The kinds of `metrics.k8s.io/v1beta1`: what nodes and pods use (`k8s.io/metrics`).

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The group of these kinds.
pub const GROUP: &str = "metrics.k8s.io";
/// Their version.
pub const VERSION: &str = "v1beta1";

fn api_version() -> String {
    format!("{GROUP}/{VERSION}")
}

/// What a node uses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "io.k8s.metrics.pkg.apis.metrics.v1beta1.NodeMetrics")
)]
#[serde(rename_all = "camelCase")]
pub struct NodeMetrics {
    /// Always `metrics.k8s.io/v1beta1`.
    #[serde(default = "api_version")]
    pub api_version: String,
    /// Always `NodeMetrics`.
    #[serde(default)]
    pub kind: String,
    /// The node's name and labels.
    pub metadata: ObjectMeta,
    /// The end of the interval within which the usage was measured.
    pub timestamp: Time,
    /// The length of that interval, as `15.02s`.
    pub window: String,
    /// The usage of each resource: `cpu` and `memory`.
    pub usage: BTreeMap<String, Quantity>,
}

/// What a pod's containers use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "io.k8s.metrics.pkg.apis.metrics.v1beta1.PodMetrics")
)]
#[serde(rename_all = "camelCase")]
pub struct PodMetrics {
    /// Always `metrics.k8s.io/v1beta1`.
    #[serde(default = "api_version")]
    pub api_version: String,
    /// Always `PodMetrics`.
    #[serde(default)]
    pub kind: String,
    /// The pod's name, namespace and labels.
    pub metadata: ObjectMeta,
    /// The end of the interval within which the usage was measured.
    pub timestamp: Time,
    /// The length of that interval, as `15.02s`.
    pub window: String,
    /// The usage of each container.
    pub containers: Vec<ContainerMetrics>,
}

/// What a container uses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "io.k8s.metrics.pkg.apis.metrics.v1beta1.ContainerMetrics")
)]
pub struct ContainerMetrics {
    /// Its name in the pod.
    pub name: String,
    /// The usage of each resource: `cpu` and `memory`.
    pub usage: BTreeMap<String, Quantity>,
}

macro_rules! served {
    ($kind:ident, $name:literal, $plural:literal, $scope:ty) => {
        impl k8s_openapi::Resource for $kind {
            const API_VERSION: &'static str = "metrics.k8s.io/v1beta1";
            const GROUP: &'static str = GROUP;
            const KIND: &'static str = $name;
            const VERSION: &'static str = VERSION;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = $scope;
        }
    };
}

served!(
    NodeMetrics,
    "NodeMetrics",
    "nodes",
    k8s_openapi::ClusterResourceScope
);
served!(
    PodMetrics,
    "PodMetrics",
    "pods",
    k8s_openapi::NamespaceResourceScope
);
