//! The embedded store is linearizable: single keys by clients that are killed with it, and
//! transactions over keys.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may stop at the first surprise"
)]

use bytes::Bytes;
use master_store::{Action, EmbeddedStore, Expect, ListQuery, Op, Store, StoreError};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tests_load::linear::{Timed, Verdict, check};
use tests_load::register::{Answer, Call, Joint, Registers, check_each};

/// Tells the child which folder to write to, and where its values start. The same test binary is
/// both.
const FOLDER: &str = "STORE_LINEAR_FOLDER";
const VALUES: &str = "STORE_LINEAR_VALUES";
const KEYS: u64 = 4;

fn number(value: &Bytes) -> u64 {
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

/// A cheap source of choices.
fn next(random: &mut u64) -> u64 {
    *random = random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

/// Lines that are written whole: their order in the pipe is an order of time.
fn tell(line: &str) {
    std::io::stderr()
        .write_all(format!("{line}\n").as_bytes())
        .unwrap();
}

/// Not a test of its own: the program of the killed process. It reports each call before it begins
/// and after it ended.
#[test]
fn child_calls_until_killed() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    let values = AtomicU64::new(std::env::var(VALUES).unwrap().parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let store = Arc::new(EmbeddedStore::open(Path::new(&folder)).unwrap());
    let values = Arc::new(values);
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for client in 0..6u64 {
            let (store, values) = (store.clone(), values.clone());
            tasks.spawn(async move {
                let mut random = client * 7919 + values.load(Ordering::Relaxed);
                loop {
                    one_call(&store, &values, client, &mut random).await;
                }
            });
        }
        tasks.join_all().await;
    });
}

async fn one_call(store: &EmbeddedStore, values: &AtomicU64, client: u64, random: &mut u64) {
    let key = format!("k/{}", next(random) % KEYS);
    tell(&format!("call {client} {key} read"));
    let entry = store.get(&key).await.unwrap().entry;
    tell(&format!(
        "done {client} read {}",
        entry
            .as_ref()
            .map_or("none".to_owned(), |e| number(&e.value.bytes()).to_string())
    ));
    let value = values.fetch_add(1, Ordering::Relaxed);
    let bytes = Bytes::from(value.to_string());
    let (op, words) = match &entry {
        None => (Op::create(&key, bytes), format!("create {value}")),
        Some(entry) if next(random).is_multiple_of(5) => (
            Op::delete(&key, entry.modified),
            format!("delete {}", number(&entry.value.bytes())),
        ),
        Some(entry) => (
            Op::update(&key, entry.modified, bytes),
            format!("update {} {value}", number(&entry.value.bytes())),
        ),
    };
    tell(&format!("call {client} {key} {words}"));
    match store.commit(vec![op]).await {
        Ok(_) => tell(&format!("done {client} ok")),
        Err(StoreError::Conflict { .. }) => tell(&format!("done {client} conflict")),
        Err(error) => panic!("{error}"),
    }
}

/// Reads the output of children into histories; calls without an end were killed with their client.
#[derive(Default)]
struct Record {
    clock: u64,
    open: BTreeMap<String, (String, u64, Vec<String>)>,
    histories: BTreeMap<String, Vec<Timed<Call>>>,
}

impl Record {
    fn line(&mut self, line: &str) {
        self.clock += 1;
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["call", client, key, call @ ..] => {
                let call = call.iter().map(|word| (*word).to_owned()).collect();
                self.open
                    .insert((*client).to_owned(), ((*key).to_owned(), self.clock, call));
            }
            ["done", client, answer @ ..] => {
                let (key, began, call) = self.open.remove(*client).unwrap();
                let ended = Some(self.clock);
                let call = match (call[0].as_str(), answer) {
                    ("read", ["read", "none"]) => Call::Read(None),
                    ("read", ["read", value]) => Call::Read(value.parse().ok()),
                    (_, [word]) => write(
                        &call,
                        if *word == "ok" {
                            Answer::Done
                        } else {
                            Answer::Refused
                        },
                    ),
                    other => panic!("{other:?}"),
                };
                self.histories
                    .entry(key)
                    .or_default()
                    .push(Timed { call, began, ended });
            }
            _ => {}
        }
    }

    fn killed(&mut self) {
        for (_, (key, began, call)) in std::mem::take(&mut self.open) {
            if call[0] != "read" {
                let call = write(&call, Answer::Lost);
                self.histories.entry(key).or_default().push(Timed {
                    call,
                    began,
                    ended: None,
                });
            }
        }
    }
}

fn write(call: &[String], answer: Answer) -> Call {
    let value = |at: usize| call[at].parse().unwrap();
    match call[0].as_str() {
        "create" => Call::Create(value(1), answer),
        "update" => Call::Update(value(1), value(2), answer),
        _ => Call::Delete(value(1), answer),
    }
}

#[test]
fn a_store_that_is_killed_again_and_again_is_linearizable() {
    let folder = tempfile::tempdir().unwrap();
    let mut record = Record::default();
    for round in 0..5u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_calls_until_killed", "--nocapture"])
            .env(FOLDER, folder.path())
            .env(VALUES, (round * 10_000_000 + 1).to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        // The kill comes after this many lines, at any point of the clients; lines before it count.
        let enough = 1500 + round * 377;
        for line in lines.by_ref().take(usize::try_from(enough).unwrap()) {
            record.line(&line.unwrap());
        }
        child.kill().unwrap();
        for line in lines.map_while(Result::ok) {
            record.line(&line);
        }
        child.wait().unwrap();
        record.killed();
    }
    let calls: usize = record.histories.values().map(Vec::len).sum();
    assert!(calls > 3000, "{calls} calls are too few to tell");
    check_each(&record.histories).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn transactions_over_keys_are_linearizable() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(EmbeddedStore::open(folder.path()).unwrap());
    let history: Arc<Mutex<Vec<Timed<Joint>>>> = Arc::default();
    let (clock, values) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1)));
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..5u64 {
        let (store, history, clock, values) = (
            store.clone(),
            history.clone(),
            clock.clone(),
            values.clone(),
        );
        tasks.spawn(async move {
            let tick = || clock.fetch_add(1, Ordering::SeqCst);
            let mut random = client + 1;
            for _ in 0..60 {
                let began = tick();
                let query = ListQuery {
                    prefix: "j/".to_owned(),
                    ..ListQuery::default()
                };
                let entries = store.list(query).await.unwrap().entries;
                let ended = Some(tick());
                let key = |text: &str| -> u8 { text.trim_start_matches("j/").parse().unwrap() };
                let seen: BTreeMap<u8, u64> = entries
                    .iter()
                    .map(|e| (key(&e.key), number(&e.value.bytes())))
                    .collect();
                history.lock().unwrap().push(Timed {
                    call: Joint::Read(seen.clone()),
                    began,
                    ended,
                });
                let (mut ops, mut parts) = (Vec::new(), Vec::new());
                for key in 0..3u8 {
                    if next(&mut random).is_multiple_of(3) {
                        continue;
                    }
                    let name = format!("j/{key}");
                    let entry = entries.iter().find(|entry| *entry.key == *name);
                    let expect =
                        entry.map_or(Expect::Absent, |entry| Expect::Revision(entry.modified));
                    let value = (!next(&mut random).is_multiple_of(4))
                        .then(|| values.fetch_add(1, Ordering::Relaxed));
                    let action = value.map_or(Action::Delete, |value| {
                        Action::Put(value.to_string().into())
                    });
                    parts.push((key, seen.get(&key).copied(), value));
                    ops.push(Op {
                        key: name.as_str().into(),
                        expect,
                        action,
                    });
                }
                let began = tick();
                let answer = match store.commit(ops).await {
                    Ok(_) => Answer::Done,
                    Err(StoreError::Conflict { .. }) => Answer::Refused,
                    Err(error) => panic!("{error}"),
                };
                let ended = Some(tick());
                history.lock().unwrap().push(Timed {
                    call: Joint::Write(parts, answer),
                    began,
                    ended,
                });
                tokio::time::sleep(Duration::from_micros(next(&mut random) % 200)).await;
            }
        });
    }
    tasks.join_all().await;
    let history = history.lock().unwrap();
    assert_eq!(check(&Registers, &history), Verdict::Linearizable);
}
