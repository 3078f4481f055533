//! Resource metrics of nodes and pods, scraped from kubelets and served as `metrics.k8s.io`.
//!
//! [`run`] scrapes `/metrics/resource` of each node's kubelet every two minutes (less often where
//! there are many nodes), and while somebody reads its figures (an autoscaler, `kubectl top`) at
//! once and then every 15 seconds, through the API's own connections to nodes (so a denied node is
//! not scraped). [`Usage`] keeps the last two answers of each node and computes NodeMetrics and
//! PodMetrics from them per request; nothing is stored. As with upstream's metrics server, CPU is a
//! rate over the time between two answers, and a node that does not answer has no figures, nor have
//! its pods.
//!
//! A node is trusted with its own pods: its figures of a pod count only while that pod is bound to
//! it. Its answer is limited in bytes, in containers and in time, and nodes that don't answer have
//! separate slots, so that they delay no other node.
//!
//! There is one task, the caller's ([`run`]), and no channel. `parse` reads an answer, `rates`
//! compares two, `scrape_schedule` chooses the node to scrape next: all pure.

mod figures;
mod parse;
mod rates;
mod run;
mod scrape_schedule;

pub use figures::Usage;
pub use parse::{Answer, ParseError};
pub use run::{Options, run};
