//! A process that writes and acknowledges is killed at any moment; every acknowledged write is there afterwards.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use bytes::Bytes;
use master_store::{EmbeddedStore, ListQuery, Op, Store};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Tells the child which folder to write to. The same test binary is both.
const FOLDER: &str = "STORE_CRASH_FOLDER";

/// Longest wait for a child's first write.
const LIMIT: Duration = Duration::from_secs(60);

/// Not a test of its own: what the killed process does.
#[test]
fn child_writes_until_killed() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let store = std::sync::Arc::new(EmbeddedStore::open(Path::new(&folder)).unwrap());
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..8 {
            let store = store.clone();
            tasks.spawn(async move {
                loop {
                    let key = format!("k/{task}");
                    let entry = store.get(&key).await.unwrap().entry;
                    let count = entry.as_ref().map_or(0, |e| std::str::from_utf8(&e.value).unwrap().parse().unwrap());
                    let next: u64 = count + 1;
                    let value = Bytes::from(next.to_string());
                    let op = match entry {
                        Some(entry) => Op::update(&key, entry.modified, value),
                        None => Op::create(&key, value),
                    };
                    let revision = store.commit(vec![op]).await.unwrap().revision;
                    // One write to the pipe, so that a line is there whole or not at all.
                    std::io::stderr().write_all(format!("ack {key} {next} {revision}\n").as_bytes()).unwrap();
                }
            });
        }
        tasks.join_all().await;
    });
}

/// Lets a child write for a while from its first acknowledgement on, kills it, and tells what it acknowledged last: key → (count, revision).
fn run_and_kill(folder: &Path, life: Duration) -> BTreeMap<String, (u64, u64)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_writes_until_killed", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let reader = BufReader::new(child.stderr.take().unwrap());
    let (began, begins) = std::sync::mpsc::channel();
    let reading = std::thread::spawn(move || {
        let mut acknowledged = BTreeMap::new();
        for line in reader.lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split(' ').collect();
            if let ["ack", key, count, revision] = words.as_slice() {
                if acknowledged.is_empty() {
                    began.send(()).unwrap();
                }
                acknowledged.insert((*key).to_owned(), (count.parse().unwrap(), revision.parse().unwrap()));
            }
        }
        acknowledged
    });
    let first = begins.recv_timeout(LIMIT);
    // The moment of the kill, which each round has another of.
    std::thread::sleep(life);
    child.kill().unwrap();
    child.wait().unwrap();
    first.expect("the child writes");
    reading.join().unwrap()
}

#[test]
fn what_was_acknowledged_survives_kill_at_any_moment() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut known: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for round in 0..6u64 {
        let life = Duration::from_millis(250 + round * 73);
        known.extend(run_and_kill(folder.path(), life));
        let began = Instant::now();
        let store = EmbeddedStore::open(folder.path()).unwrap();
        assert!(began.elapsed() < Duration::from_secs(10), "reopening took {:?}", began.elapsed());
        runtime.block_on(async {
            for (key, (count, revision)) in &known {
                let entry = store.get(key).await.unwrap().entry.expect("an acknowledged key is there");
                let found: u64 = std::str::from_utf8(&entry.value).unwrap().parse().unwrap();
                assert!(found >= *count, "{key}: acknowledged {count}, found {found}");
                assert!(entry.modified >= *revision);
            }
            // History agrees with state: every key's last event is its entry.
            let query = ListQuery { prefix: "k/".to_owned(), ..ListQuery::default() };
            let listing = store.list(query).await.unwrap();
            assert!(listing.entries.iter().all(|entry| entry.modified <= listing.revision));
        });
    }
    assert!(known.values().map(|(count, _)| count).sum::<u64>() > 20, "the children wrote: {known:?}");
}
