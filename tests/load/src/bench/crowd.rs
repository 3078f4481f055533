//! Many objects: memory against their size, a start with them, and the deletion of a collection.

use super::objects::{Request, spread};
use super::report::{Report, float};
use crate::Result;
use crate::objects::{node, pod};
use crate::site::Site;
use std::time::{Duration, Instant};

const NODES: usize = 5_000;
const PODS: usize = 50_000;
const DELETED: usize = 5_000;

/// Deletes a namespace's pods that run nowhere.
pub(super) async fn delete_collection(site: &Site, report: &mut Report) -> Result<()> {
    super::make_namespace(site, "gone").await?;
    let path = "/api/v1/namespaces/gone/pods";
    let body = pod("NAME", "").to_string();
    let make = move |number: usize| -> Request {
        ("POST", path.to_owned(), body.replace("NAME", &format!("pod-{number}")).into_bytes())
    };
    let mut run = spread(site, DELETED, make).await?;
    report.rate("create, pod", "pod", &mut run);
    site.settle(Duration::from_secs(10)).await;
    let mut connection = site.access()?.connect().await?;
    let (began, cpu) = (Instant::now(), site.cpu());
    connection.must("DELETE", path, b"").await?;
    report.time(&format!("delete collection of {DELETED} pods"), "collection", began.elapsed());
    report.note("delete collection: CPU, ms", (site.cpu() - cpu) * 1e3, "");
    Ok(())
}

/// Resident memory with nodes and pods bound to them, then the same after a restart.
pub(super) async fn memory(site: &mut Site, report: &mut Report) -> Result<()> {
    site.start().await?;
    super::make_namespace(site, "crowd").await?;
    let path = "/api/v1/namespaces/crowd/pods";
    let body = node("NAME").to_string();
    let nodes = move |number: usize| -> Request {
        ("POST", "/api/v1/nodes".to_owned(), body.replace("NAME", &format!("node-{number}")).into_bytes())
    };
    spread(site, NODES, nodes).await?;
    let body = pod("NAME", "HOST").to_string();
    let pods = move |number: usize| -> Request {
        let body = body.replace("NAME", &format!("pod-{number}")).replace("HOST", &format!("node-{}", number % NODES));
        ("POST", path.to_owned(), body.into_bytes())
    };
    spread(site, PODS, pods).await?;
    site.settle(Duration::from_secs(20)).await;
    let full = site.resident();
    let mut connection = site.access()?.connect().await?;
    let mut encoded = 0;
    for path in ["/api/v1/nodes", path] {
        encoded += connection.must("GET", path, b"").await?.len();
    }
    let encoded = float(encoded) / f64::from(1 << 20);
    report.memory(&format!("{NODES} nodes and {PODS} pods: encoded"), "", encoded);
    report.memory("RSS with them", "", full);
    report.figure("RSS with them, of 1.5 × encoded + 40 MiB", "", full / (1.5f64.mul_add(encoded, 40.0)), "");
    site.kill()?;
    let ready = site.start().await?;
    report.time("start → ready with them, after a kill", "", ready);
    site.settle(Duration::from_secs(20)).await;
    report.memory("RSS with them after the start", "", site.resident());
    site.stop()
}
