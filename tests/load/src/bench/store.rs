//! The store by itself: what a flushed commit costs, and how soon a store of many revisions is
//! open.

use super::report::{Report, float};
use crate::{Error, Result};
use bytes::Bytes;
use master_store::{Action, EmbeddedStore, Expect, Op, Store};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const REVISIONS: usize = 1_000_000;
const KEYS: usize = 100_000;
/// Writers at once: as many as share a flush.
const WRITERS: usize = 256;
/// Bytes of a value.
const VALUE: usize = 512;

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Protocol(format!("the store failed: {error}"))
}

/// Fills a store and opens it again.
pub(super) async fn opening(report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("store");
    fill(&path).await?;
    let began = Instant::now();
    let store = tokio::task::spawn_blocking({
        let path = path.clone();
        move || EmbeddedStore::open(&path)
    });
    let store = store.await.map_err(failed)?.map_err(failed)?;
    report.time(
        &format!("opening a store of {REVISIONS} revisions, {KEYS} keys"),
        "open",
        began.elapsed(),
    );
    let revision = store.revision().await.map_err(failed)?;
    if float(REVISIONS) > f64::from(u32::try_from(revision).unwrap_or(u32::MAX)) {
        return Err(failed(format!("only revision {revision} was found again")));
    }
    Ok(())
}

async fn fill(path: &Path) -> Result<()> {
    let store = Arc::new(EmbeddedStore::open(path).map_err(failed)?);
    let value = Bytes::from(vec![b'v'; VALUE]);
    let mut tasks = Vec::new();
    for writer in 0..WRITERS {
        let (store, value) = (store.clone(), value.clone());
        tasks.push(tokio::task::spawn_local(async move {
            for number in (writer..REVISIONS).step_by(WRITERS) {
                let key = format!("configmaps/bench/object-{}", number % KEYS).into();
                let op = Op {
                    key,
                    expect: Expect::Any,
                    action: Action::Put(value.clone()),
                };
                store.commit(vec![op]).await.map_err(failed)?;
            }
            Ok::<_, Error>(())
        }));
    }
    for task in tasks {
        task.await.map_err(failed)??;
    }
    Ok(())
}
