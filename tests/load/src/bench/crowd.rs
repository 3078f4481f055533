//! Many objects: memory against their size, a start with them, and the deletion of a collection.

use super::objects::{Request, spread};
use super::report::{Report, float};
use crate::Result;
use crate::client::Access;
use crate::objects::{event, lease, node, pod};
use crate::site::Site;
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Nodes and pods of a cluster, and the memory of its master in MiB at most.
pub(super) type Size = (usize, usize, f64);
/// Clusters whose master's memory is measured.
pub(super) const SIZES: [Size; 2] = [(1_000, 10_000, 160.0), (5_000, 50_000, 300.0)];
const DELETED: usize = 5_000;
const LISTERS: usize = 4;
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const PODS: &str = "/api/v1/namespaces/crowd/pods";
const EVENTS: &str = "/api/v1/namespaces/crowd/events";
/// Connections over which nodes renew their leases.
const RENEWERS: usize = 10;
/// Time in which each node renews its lease, as agents do.
const RENEWAL: Duration = Duration::from_secs(10);
/// For how long processor time is measured: with the renewals, and without them, which ends before
/// nodes count as silent.
const RENEWED: Duration = Duration::from_secs(60);
const QUIET: Duration = Duration::from_secs(10);
/// The share of a core that a quiet master may take, in per cent.
const SHARE: f64 = 1.0;

/// Deletes a namespace's pods that run nowhere.
pub(super) async fn delete_collection(site: &Site, report: &mut Report) -> Result<()> {
    super::make_namespace(site, "gone").await?;
    let path = "/api/v1/namespaces/gone/pods";
    let body = pod("NAME", "").to_string();
    let make = move |number: usize| -> Request {
        (
            "POST",
            path.to_owned(),
            body.replace("NAME", &format!("pod-{number}")).into_bytes(),
        )
    };
    let mut run = spread(site, DELETED, make).await?;
    report.rate("create, pod", "pod", &mut run);
    site.settle(Duration::from_secs(10)).await;
    let mut connection = site.access()?.connect().await?;
    let (began, cpu) = (Instant::now(), site.cpu());
    connection.must("DELETE", path, b"").await?;
    report.time(
        &format!("delete collection of {DELETED} pods"),
        "collection",
        began.elapsed(),
    );
    report.note("delete collection: CPU, ms", (site.cpu() - cpu) * 1e3, "");
    Ok(())
}

/// Resident memory with nodes and pods bound to them, then the same after a restart.
pub(super) async fn memory(
    site: &mut Site,
    (nodes, pods, most): Size,
    report: &mut Report,
) -> Result<()> {
    site.start().await?;
    super::make_namespace(site, "crowd").await?;
    make_nodes(site, nodes).await?;
    let mut living = JoinSet::new();
    let renewals = Rc::new(Cell::new(0));
    for part in 0..RENEWERS {
        living.spawn_local(renew(site.access()?, (part, nodes), Rc::clone(&renewals)));
    }
    make_pods(site, (nodes, pods), report).await?;
    make_events(site, (nodes, pods)).await?;
    site.settle(Duration::from_secs(20)).await;
    let mut connection = site.access()?.connect().await?;
    let mut encoded = 0;
    for path in ["/api/v1/nodes", LEASES, PODS, EVENTS] {
        encoded += connection.skim(path).await?;
    }
    let encoded = float(encoded) / f64::from(1 << 20);
    let what = format!("RSS with {nodes} nodes, {pods} pods and their events");
    report.memory(
        "nodes, their leases, pods and their events encoded, as lists",
        "",
        encoded,
    );
    report.against(&what, site.resident(), most, "MiB");
    listed(site, PODS).await?;
    report.against(
        &format!("{what}, most while {LISTERS} clients list them"),
        site.peak(),
        most,
        "MiB",
    );
    processor(site, &renewals, (&what, living), report).await;
    site.kill()?;
    let ready = site.start().await?;
    report.time("start → ready with them, after a kill", "", ready);
    site.settle(Duration::from_secs(20)).await;
    report.against(
        &format!("{what}, after that start"),
        site.resident(),
        most,
        "MiB",
    );
    site.stop()
}

/// The share of a core that the master takes while nodes only renew their leases, and while no
/// client sends requests.
async fn processor(
    site: &Site,
    renewals: &Cell<usize>,
    (what, living): (&str, JoinSet<Result<()>>),
    report: &mut Report,
) {
    let share = async |time: Duration| {
        let cpu = site.cpu();
        tokio::time::sleep(time).await;
        (site.cpu() - cpu) / time.as_secs_f64() * 1e2
    };
    let before = renewals.get();
    let renewed = share(RENEWED).await;
    let each = float(renewals.get() - before) / RENEWED.as_secs_f64();
    let row = format!("{what}: share of a core while leases are renewed");
    report.note(&row, renewed, "%");
    report.note("renewals of leases, a second", each, "/s");
    drop(living);
    let row = format!("{what}: share of a core while nobody asks for anything");
    report.against(&row, share(QUIET).await, SHARE, "%");
}

/// Creates nodes and their leases.
async fn make_nodes(site: &Site, nodes: usize) -> Result<()> {
    let lease = lease("NAME", "2026-01-01T00:00:00.000000Z").to_string();
    for (path, body) in [("/api/v1/nodes", node("NAME").to_string()), (LEASES, lease)] {
        let make = move |number: usize| -> Request {
            let body = body.replace("NAME", &format!("node-{number}"));
            ("POST", path.to_owned(), body.into_bytes())
        };
        spread(site, nodes, make).await?;
    }
    Ok(())
}

/// Creates pods that are bound to the nodes in turn.
async fn make_pods(site: &Site, (nodes, pods): (usize, usize), report: &mut Report) -> Result<()> {
    let body = pod("NAME", "HOST").to_string();
    let make = move |number: usize| -> Request {
        let body = body
            .replace("NAME", &format!("pod-{number}"))
            .replace("HOST", &format!("node-{}", number % nodes));
        ("POST", PODS.to_owned(), body.into_bytes())
    };
    let mut run = spread(site, pods, make).await?;
    report.rate("create, bound pod", "", &mut run);
    Ok(())
}

/// Creates an event for each pod.
async fn make_events(site: &Site, (nodes, pods): (usize, usize)) -> Result<()> {
    let body = event("NAME", "POD", "HOST").to_string();
    let make = move |number: usize| -> Request {
        let body = body
            .replace("NAME", &format!("pod-{number}.18b8c1f3a2d40{number:05x}"))
            .replace("POD", &format!("pod-{number}"))
            .replace("HOST", &format!("node-{}", number % nodes));
        ("POST", EVENTS.to_owned(), body.into_bytes())
    };
    spread(site, pods, make).await?;
    Ok(())
}

/// Renews the leases of a part of the nodes again and again: otherwise they become not ready, and
/// that would be measured.
async fn renew(
    access: Access,
    (part, nodes): (usize, usize),
    renewals: Rc<Cell<usize>>,
) -> Result<()> {
    let mut connection = access.connect().await?;
    let own = (part..nodes).step_by(RENEWERS);
    let pause = RENEWAL.div_f64(float(own.len().max(1)));
    for round in 0.. {
        let body = format!("{{\"spec\":{{\"renewTime\":\"2026-01-01T00:00:00.{round:06}Z\"}}}}");
        for number in own.clone() {
            connection
                .must("PATCH", &format!("{LEASES}/node-{number}"), body.as_bytes())
                .await?;
            renewals.set(renewals.get() + 1);
            tokio::time::sleep(pause).await;
        }
    }
    Ok(())
}

/// Lists everything, by several clients at once.
async fn listed(site: &Site, path: &'static str) -> Result<()> {
    site.forget_peak()?;
    let access = site.access()?;
    let mut tasks = Vec::new();
    for _ in 0..LISTERS {
        let mut connection = access.connect().await?;
        tasks.push(tokio::task::spawn_local(async move {
            connection.skim(path).await
        }));
    }
    for task in tasks {
        task.await
            .map_err(|error| crate::Error::Protocol(error.to_string()))??;
    }
    Ok(())
}
