//! An unmodified kubectl against the listener, a module for each theme: every verb that needs no
//! tunnel.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may stop at the first surprise"
)]

mod access;
mod applying;
mod changing;
mod creating;
mod documents;
mod everyday;
mod removing;
mod showing;
mod waiting;
mod workloads;

use crate::common::kubectl::Cluster;

/// A pod that asks for nothing.
pub(crate) const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec: {containers: [{name: c, image: 'reg/x:1'}]}
";

/// Two replicas of one container.
pub(crate) const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: x, image: 'reg/x:1', ports: [{containerPort: 8080}]}]}
";

/// A node without a machine.
pub(crate) const NODE: &str = "
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {capacity: {cpu: '4', memory: 8Gi, pods: '110'}}
";

/// Runs a transcript on a new cluster.
async fn play(documents: &[(&str, &str)], transcript: &str) {
    let cluster = Cluster::start().await;
    cluster.run_transcript(documents, transcript).await;
    cluster.server.stop().await;
}
