//! Create, get, update and list of ConfigMaps of a kilobyte.

use super::report::{Report, Run, float, percentile};
use super::{CONNECTIONS, version};
use crate::client::Connection;
use crate::objects::config_map;
use crate::site::Site;
use crate::{Error, Result};
use serde_json::Value;
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

const COLLECTION: &str = "/api/v1/namespaces/bench/configmaps";
/// Objects of the list.
const LISTED: usize = 5_000;
const CREATED: usize = 20_000;
const READ: usize = 40_000;
const LISTS: usize = 20;

/// One request of a run: by its number.
pub(super) type Request = (&'static str, String, Vec<u8>);

/// Sends requests `0..count` over the connections, each as it becomes free.
pub(super) async fn spread(
    site: &Site,
    count: usize,
    make: impl Fn(usize) -> Request + 'static,
) -> Result<Run> {
    let access = site.access()?;
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(access.connect().await?);
    }
    let (next, make) = (Rc::new(Cell::new(0)), Rc::new(make));
    let (began, cpu) = (Instant::now(), site.cpu());
    let mut tasks = Vec::new();
    for connection in connections {
        tasks.push(tokio::task::spawn_local(one(
            connection,
            next.clone(),
            count,
            make.clone(),
        )));
    }
    let mut times = Vec::with_capacity(count);
    for task in tasks {
        times.extend(
            task.await
                .map_err(|error| Error::Protocol(error.to_string()))??,
        );
    }
    Ok(Run {
        times,
        wall: began.elapsed(),
        cpu: site.cpu() - cpu,
    })
}

async fn one(
    mut connection: Connection,
    next: Rc<Cell<usize>>,
    count: usize,
    make: Rc<impl Fn(usize) -> Request>,
) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    loop {
        let number = next.replace(next.get() + 1);
        if number >= count {
            return Ok(times);
        }
        let (method, path, body) = make(number);
        let began = Instant::now();
        connection.must(method, &path, &body).await?;
        times.push(began.elapsed());
    }
}

/// All of them.
pub(super) async fn measure(site: &Site, report: &mut Report) -> Result<()> {
    let create = |prefix: &'static str| {
        let body = config_map("NAME", "").to_string();
        move |number: usize| -> Request {
            let body = body.replace("NAME", &format!("{prefix}-{number}"));
            ("POST", COLLECTION.to_owned(), body.into_bytes())
        }
    };
    // Warm, and the objects of the list.
    spread(site, LISTED, create("listed")).await?;
    list(site, report).await?;
    let mut run = spread(site, CREATED, create("made")).await?;
    report.rate("create, 1 KiB ConfigMap", "create", &mut run);
    let get = |number: usize| -> Request {
        (
            "GET",
            format!("{COLLECTION}/listed-{}", number % LISTED),
            Vec::new(),
        )
    };
    let mut run = spread(site, READ, get).await?;
    report.rate("get", "get", &mut run);
    update(site, report).await
}

async fn list(site: &Site, report: &mut Report) -> Result<()> {
    let mut connection = site.access()?.connect().await?;
    let bytes = connection.must("GET", COLLECTION, b"").await?.len();
    let cpu = site.cpu();
    let mut times = Vec::new();
    for _ in 0..LISTS {
        let began = Instant::now();
        connection.must("GET", COLLECTION, b"").await?;
        times.push(began.elapsed());
    }
    let what = format!("list of {LISTED}, {:.2} MB", float(bytes) / 1e6);
    report.figure(
        &format!("{what}: CPU"),
        "list-cpu",
        (site.cpu() - cpu) / float(LISTS) * 1e3,
        "ms",
    );
    report.time(&format!("{what}: p50"), "list", percentile(&mut times, 50));
    Ok(())
}

/// Each object is changed by one connection, on the version that the last change gave.
async fn update(site: &Site, report: &mut Report) -> Result<()> {
    let mut connection = site.access()?.connect().await?;
    let listed = connection.json("GET", COLLECTION, &Value::Null).await?;
    let items = listed["items"].as_array().cloned().unwrap_or_default();
    let bodies: Vec<(String, Vec<u8>)> = items
        .into_iter()
        .take(CREATED / 2)
        .map(|item| {
            let name = item["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            let mut object = config_map(&name, &version(&item));
            object["data"]["changed"] = "yes".into();
            (
                format!("{COLLECTION}/{name}"),
                object.to_string().into_bytes(),
            )
        })
        .collect();
    let update = move |number: usize| -> Request {
        ("PUT", bodies[number].0.clone(), bodies[number].1.clone())
    };
    let mut run = spread(site, CREATED / 2, update).await?;
    report.rate("update", "update", &mut run);
    Ok(())
}
