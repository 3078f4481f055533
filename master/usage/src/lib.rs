//! Resource metrics of nodes and pods, scraped from kubelets and served as `metrics.k8s.io`.
//!
//! [`run`] asks each node's kubelet for `/metrics/resource` every 15 seconds, through the API's own way to nodes (so a denied node
//! is not asked). [`Usage`] keeps the last two answers of each node and makes NodeMetrics and PodMetrics of them when the API is
//! asked; nothing is stored. As with upstream's metrics server, CPU is a rate over the time between two answers, and a node that
//! does not answer has no figures, nor have its pods.
//!
//! A node is trusted with its own pods: what it says of a pod counts only while that pod is bound to it. Its answer is limited in
//! bytes, in containers and in time, and nodes that don't answer wait for places of their own, so that they delay no other node.
//!
//! There is one task, the caller's ([`run`]), and no channel. `parse` reads an answer, `rates` compares two, `rota` says which node
//! is asked next: all pure.

mod figures;
mod go;
mod parse;
mod rates;
mod rota;
mod run;

pub use figures::Usage;
pub use parse::{Answer, NotFigures};
pub use run::{Options, run};
