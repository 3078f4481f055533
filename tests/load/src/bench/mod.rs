//! The figures of the API: the target of each, and how it is measured.
//!
//! The load has the shape with which upstream's figures were measured: 16 connections, TLS 1.3,
//! JSON, a flush to disk before each answer to a write. CPU is the master's own, user and kernel,
//! as /proc counts it; the load's is not in it.

mod crowd;
mod objects;
mod report;
mod store;
mod watch;

use crate::site::Site;
use crate::{Result, objects::namespace};
use report::Report;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Connections at once.
const CONNECTIONS: usize = 16;

/// A part of the settings of the shipped allocator (`.cargo/config.toml`), as they stand in the
/// program.
const ALLOCATOR: &[u8] = b"narenas:";

/// Whether a program has the allocator that is shipped. The test command builds the master without
/// it, as its C sources take minutes; its memory is another then.
fn has_shipped_allocator(program: &[u8]) -> bool {
    program
        .windows(ALLOCATOR.len())
        .any(|part| part == ALLOCATOR)
}

/// Measures what is named in `only` (separated by commas), or all, and prints it.
pub async fn run(program: &Path, only: &str) -> Result<()> {
    let wanted = |name: &str| only.is_empty() || only.split(',').any(|word| word == name);
    let mut report = Report::default();
    if !has_shipped_allocator(&std::fs::read(program)?) {
        Report::say(&format!(
            "{} has the C library's allocator, so that no figure of memory counts: `cargo build --profile quick -p master-daemon`",
            program.display()
        ));
    }
    let mut site = Site::new(program)?;
    site.start().await?;
    site.stop()?;
    // The first start makes keys and the objects that every cluster has.
    let ready = site.start().await?;
    report.time("start → ready", "start", ready);
    site.settle(Duration::from_secs(10)).await;
    report.memory("idle RSS", "idle", site.resident());
    make_namespace(&site, "bench").await?;
    if wanted("objects") {
        objects::measure(&site, &mut report).await?;
    }
    if wanted("watch") {
        watch::latency(&site, &mut report).await?;
    }
    if wanted("watchers") {
        let users = watch::users(&site).await?;
        watch::many(&site, &users, &mut report).await?;
        watch::others(&site, &users, &mut report).await?;
    }
    if wanted("collection") {
        crowd::delete_collection(&site, &mut report).await?;
    }
    site.stop()?;
    if wanted("crowd") {
        for size in crowd::SIZES {
            crowd::memory(&mut Site::new(program)?, size, &mut report).await?;
        }
    }
    if wanted("store") {
        store::opening(&mut report).await?;
    }
    report.print();
    Ok(())
}

/// Makes a namespace and waits for the account that pods in it run as, where there is one.
async fn make_namespace(site: &Site, name: &str) -> Result<()> {
    let mut connection = site.access()?.connect().await?;
    connection
        .json("POST", "/api/v1/namespaces", &namespace(name))
        .await?;
    for _ in 0..100 {
        let path = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
        if connection.send("GET", &path, b"").await?.0 == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// An object's resource version.
fn version(object: &Value) -> String {
    object
        .pointer("/metadata/resourceVersion")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allocator_that_is_shipped_is_known_by_its_settings() {
        let settings = include_str!("../../../../.cargo/config.toml");
        assert!(has_shipped_allocator(settings.as_bytes()));
        assert!(!has_shipped_allocator(b"a program"));
    }
}
