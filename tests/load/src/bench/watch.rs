//! The latency of watches: one watcher, and a thousand; and what watches of other objects cost.

use super::report::{Report, float, percentile};
use crate::client::Access;
use crate::objects::{config_map, register};
use crate::site::Site;
use crate::{Error, Result};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

const COLLECTION: &str = "/api/v1/namespaces/bench/configmaps";
const SAMPLES: usize = 1_000;
const WATCHERS: usize = 1_000;
/// Users, who have equal parts of the watchers. A master whose limit of open files is low gives
/// a user few connections: where it is 20,000, the admin has 909 from one host.
const USERS: usize = 4;
const ROUNDS: usize = 20;
const UPDATES: usize = 1_000;

fn failed(error: &dyn std::fmt::Display) -> Error {
    Error::Protocol(error.to_string())
}

/// Revision from which a watch sees what is new only.
async fn now(site: &Site) -> Result<String> {
    let mut connection = site.access()?.connect().await?;
    let list = connection
        .json("GET", &format!("{COLLECTION}?limit=1"), &Value::Null)
        .await?;
    Ok(super::version(&list))
}

/// From sending a create to its event, one at a time.
pub(super) async fn latency(site: &Site, report: &mut Report) -> Result<()> {
    let path = format!("{COLLECTION}?watch=1&resourceVersion={}", now(site).await?);
    let mut lines = site.access()?.connect().await?.watch(&path).await?;
    let heard: Rc<RefCell<Vec<Instant>>> = Rc::default();
    let received = heard.clone();
    let watching = tokio::task::spawn_local(async move {
        while received.borrow().len() < SAMPLES {
            lines
                .next()
                .await?
                .ok_or_else(|| failed(&"the watch ended"))?;
            received.borrow_mut().push(Instant::now());
        }
        Ok::<_, Error>(())
    });
    let mut connection = site.access()?.connect().await?;
    let mut sent = Vec::new();
    for number in 0..SAMPLES {
        let body = config_map(&format!("watched-{number}"), "").to_string();
        sent.push(Instant::now());
        connection.must("POST", COLLECTION, body.as_bytes()).await?;
        while heard.borrow().len() <= number {
            tokio::task::yield_now().await;
        }
    }
    watching.await.map_err(|error| failed(&error))??;
    let mut times: Vec<Duration> = heard
        .borrow()
        .iter()
        .zip(sent)
        .map(|(heard, sent)| *heard - sent)
        .collect();
    report.time(
        "watch, create sent → event: p50",
        "watch-p50",
        percentile(&mut times, 50),
    );
    report.time(
        "watch, create sent → event: p99",
        "watch-p99",
        percentile(&mut times, 99),
    );
    Ok(())
}

/// Makes the users of the watchers: service accounts, each of a namespace of its own, as all
/// accounts of a namespace count as one user.
pub(super) async fn users(site: &Site) -> Result<Vec<Access>> {
    let admin = site.access()?;
    let mut connection = admin.connect().await?;
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "watchers"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": "system:serviceaccounts"}],
    });
    let bindings = format!("/apis/{group}/v1/clusterrolebindings");
    connection.json("POST", &bindings, &binding).await?;
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "watcher"}});
    let request =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let mut users = Vec::new();
    for number in 0..USERS {
        let namespace = format!("watchers-{number}");
        super::make_namespace(site, &namespace).await?;
        let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        connection.json("POST", &accounts, &account).await?;
        let path = format!("{accounts}/watcher/token");
        let answer = connection.json("POST", &path, &request).await?;
        let token = answer.pointer("/status/token").and_then(Value::as_str);
        let token = token.ok_or_else(|| failed(&format!("POST {path} was answered no token")))?;
        users.push(admin.with_token(token)?);
    }
    Ok(users)
}

/// A thousand connections that each watch all ConfigMaps of a namespace.
pub(super) async fn many(site: &Site, users: &[Access], report: &mut Report) -> Result<()> {
    let path = format!("{COLLECTION}?watch=1&resourceVersion={}", now(site).await?);
    site.settle(Duration::from_secs(5)).await;
    let before = site.resident();
    let heard = Rc::new(Cell::new(0));
    let mut watchers = Vec::new();
    for access in users.iter().cycle().take(WATCHERS) {
        let mut lines = access.connect().await?.watch(&path).await?;
        let heard = heard.clone();
        watchers.push(tokio::task::spawn_local(async move {
            while let Ok(Some(_)) = lines.next().await {
                heard.set(heard.get() + 1);
            }
        }));
    }
    report.note(
        "1,000 watchers: RSS growth for each, KiB",
        (site.resident() - before) * 1024.0 / float(WATCHERS),
        "",
    );
    let mut connection = site.access()?.connect().await?;
    let (mut times, cpu) = (Vec::new(), site.cpu());
    for round in 0..ROUNDS {
        let body = config_map(&format!("crowd-{round}"), "").to_string();
        heard.set(0);
        let began = Instant::now();
        connection.must("POST", COLLECTION, body.as_bytes()).await?;
        while heard.get() < WATCHERS {
            if began.elapsed() > Duration::from_secs(20) {
                return Err(failed(&format!(
                    "{} of {WATCHERS} watchers got a change: if the master closed the others, its limit of open files \
                     gives one host too few connections; `ulimit -Hn` must be 10,000 at least",
                    heard.get()
                )));
            }
            tokio::task::yield_now().await;
        }
        times.push(began.elapsed());
    }
    report.time(
        "1,000 watchers, until all are fed: p50",
        "watchers",
        percentile(&mut times, 50),
    );
    report.note(
        "1,000 watchers: CPU for a change, ms",
        (site.cpu() - cpu) / float(ROUNDS) * 1e3,
        "",
    );
    report.memory(
        "1,000 watchers: RSS growth after all",
        "",
        site.resident() - before,
    );
    for watcher in watchers {
        watcher.abort();
    }
    Ok(())
}

/// A thousand connections that each watch one ConfigMap, as nodes do for what pods mount, while
/// another ConfigMap is updated.
pub(super) async fn others(site: &Site, users: &[Access], report: &mut Report) -> Result<()> {
    let mut connection = site.access()?.connect().await?;
    let made = register("busy", 0, "").to_string();
    connection.must("POST", COLLECTION, made.as_bytes()).await?;
    let path = format!("{COLLECTION}/busy");
    let mut value = 0;
    let mut update = async || -> Result<f64> {
        site.settle(Duration::from_secs(5)).await;
        let cpu = site.cpu();
        for _ in 0..UPDATES {
            value += 1_u64;
            let body = register("busy", value, "").to_string();
            connection.must("PUT", &path, body.as_bytes()).await?;
        }
        Ok((site.cpu() - cpu) / float(UPDATES) * 1e3)
    };
    report.note(
        "updates one by one, watched by nobody: CPU each",
        update().await?,
        "ms",
    );
    let version = now(site).await?;
    let mut watchers = Vec::new();
    for (number, access) in users.iter().cycle().take(WATCHERS).enumerate() {
        let path = format!(
            "{COLLECTION}?watch=1&resourceVersion={version}&fieldSelector=metadata.name%3Dlone-{number}"
        );
        let mut lines = access.connect().await?.watch(&path).await?;
        watchers.push(tokio::task::spawn_local(async move {
            while let Ok(Some(_)) = lines.next().await {}
        }));
    }
    report.note(
        "the same beside 1,000 watchers of other objects: CPU each",
        update().await?,
        "ms",
    );
    for watcher in watchers {
        watcher.abort();
    }
    Ok(())
}
