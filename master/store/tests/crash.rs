//! A writing process is killed at any moment; every acknowledged write exists afterwards.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use bytes::Bytes;
use master_store::{EmbeddedStore, ListQuery, Op, Store};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Tells the child process which folder to write to. Parent and child are the same test binary.
const FOLDER: &str = "STORE_CRASH_FOLDER";

/// Not a test by itself: the code of the child process.
#[test]
fn child_writes_until_killed() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = std::sync::Arc::new(EmbeddedStore::open(Path::new(&folder)).unwrap());
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..8 {
            let store = store.clone();
            tasks.spawn(async move {
                loop {
                    let key = format!("k/{task}");
                    let entry = store.get(&key).await.unwrap().entry;
                    let count = entry.as_ref().map_or(0, |e| {
                        std::str::from_utf8(&e.value.bytes())
                            .unwrap()
                            .parse()
                            .unwrap()
                    });
                    let next: u64 = count + 1;
                    let value = Bytes::from(next.to_string());
                    let op = match entry {
                        Some(entry) => Op::update(&key, entry.modified, value),
                        None => Op::create(&key, value),
                    };
                    let revision = store.commit(vec![op]).await.unwrap().revision;
                    // A single write to the pipe, so that a line arrives complete or not at all.
                    std::io::stderr()
                        .write_all(format!("ack {key} {next} {revision}\n").as_bytes())
                        .unwrap();
                }
            });
        }
        tasks.join_all().await;
    });
}

/// Lets a child write until it has acknowledged `enough`, kills it, and returns the last
/// acknowledged writes: key → (count, revision).
fn run_and_kill(folder: &Path, enough: usize) -> BTreeMap<String, (u64, u64)> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child_writes_until_killed", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = tests_harness::lifetime::bind(&mut command)
        .unwrap()
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let mut acknowledged = BTreeMap::new();
    let mut take = |line: String| {
        let words: Vec<&str> = line.split(' ').collect();
        let ["ack", key, count, revision] = words.as_slice() else {
            return false;
        };
        acknowledged.insert(
            (*key).to_owned(),
            (count.parse().unwrap(), revision.parse().unwrap()),
        );
        true
    };
    // The moment of the kill differs in each round, so it hits the writers anywhere.
    let seen = lines
        .by_ref()
        .filter_map(|line| take(line).then_some(()))
        .take(enough)
        .count();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(seen, enough, "the child writes");
    // Lines written before the kill count too.
    for line in lines {
        take(line);
    }
    acknowledged
}

#[test]
fn an_acknowledged_write_survives_kill_at_any_moment() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut known: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for round in 0..6 {
        known.extend(run_and_kill(folder.path(), 60 + round * 37));
        let store = EmbeddedStore::open(folder.path()).unwrap();
        runtime.block_on(async {
            for (key, (count, revision)) in &known {
                let entry = store
                    .get(key)
                    .await
                    .unwrap()
                    .entry
                    .expect("an acknowledged key is there");
                let found: u64 = std::str::from_utf8(&entry.value.bytes())
                    .unwrap()
                    .parse()
                    .unwrap();
                assert!(
                    found >= *count,
                    "{key}: acknowledged {count}, found {found}"
                );
                assert!(entry.modified >= *revision);
            }
            // History agrees with state: every key's last event is its entry.
            let query = ListQuery {
                prefix: "k/".to_owned(),
                ..ListQuery::default()
            };
            let listing = store.list(query).await.unwrap();
            assert!(
                listing
                    .entries
                    .iter()
                    .all(|entry| entry.modified <= listing.revision)
            );
        });
    }
    assert!(
        known.values().map(|(count, _)| count).sum::<u64>() > 100,
        "the children wrote: {known:?}"
    );
}
