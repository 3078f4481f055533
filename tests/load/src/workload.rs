//! Concurrent clients of a few objects through the API, and a check that what they saw is
//! linearizable, while the master is killed and started again.

use crate::client::{Access, Connection};
use crate::linear::Timed;
use crate::objects;
use crate::register::{Answer, Call, check_each};
use crate::site::Site;
use crate::{Error, Result};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

const COLLECTION: &str = "/api/v1/namespaces/default/configmaps";

/// Longest life of the master, if calls are slow.
const LIMIT: Duration = Duration::from_secs(300);
/// Pause between two looks at how much was done.
const PAUSE: Duration = Duration::from_millis(20);

/// The size of a run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Clients at once.
    pub clients: u64,
    /// Objects that they share; few, so that they meet.
    pub objects: u64,
    /// How often the master is started; all runs but the last end by a kill.
    pub lives: u32,
    /// How long each life is at least.
    pub life: Duration,
    /// Calls that are answered in each life at least: on a slow machine it lasts longer.
    pub calls: u64,
}

/// The recorded history of all clients.
#[derive(Debug, Default)]
struct Record {
    clock: Cell<u64>,
    values: Cell<u64>,
    histories: RefCell<BTreeMap<String, Vec<Timed<Call>>>>,
    /// Answered writes: begin, end, resource version.
    versions: RefCell<Vec<(u64, u64, u64)>>,
}

impl Record {
    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    /// Calls that were answered or given up so far.
    fn answered(&self) -> u64 {
        self.histories
            .borrow()
            .values()
            .map(|calls| calls.len() as u64)
            .sum()
    }

    fn value(&self) -> u64 {
        self.values.set(self.values.get() + 1);
        self.values.get()
    }

    fn add(&self, object: &str, call: Call, began: u64, ended: Option<u64>) {
        self.histories
            .borrow_mut()
            .entry(object.to_owned())
            .or_default()
            .push(Timed { call, began, ended });
    }
}

/// A summary of a valid history.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    /// Calls in all histories.
    pub calls: usize,
    /// Writes whose answer never came.
    pub lost: usize,
    /// Watches that were replayed.
    pub replays: usize,
    /// The longest time from a start of the master to its being ready.
    pub slowest_start: Duration,
}

fn version(object: &Value) -> u64 {
    let text = object
        .pointer("/metadata/resourceVersion")
        .and_then(Value::as_str);
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn value_of(object: &Value) -> Option<u64> {
    object.pointer("/data/value")?.as_str()?.parse().ok()
}

/// Runs the plan. Must be called inside a [`tokio::task::LocalSet`].
///
/// Errors: [`Error::History`] if no order of the calls explains what the clients saw.
pub async fn run(site: &mut Site, plan: Plan) -> Result<Report> {
    let record = Rc::new(Record::default());
    let mut slowest_start = Duration::ZERO;
    for life in 0..plan.lives {
        slowest_start = slowest_start.max(site.start().await?);
        let access = site.access()?;
        let deadline = Instant::now() + plan.life;
        let last = life + 1 == plan.lives;
        let (over, begun) = (Rc::new(Cell::new(false)), record.answered());
        let mut clients = Vec::new();
        for client in 0..plan.clients {
            let (access, record) = (access.clone(), record.clone());
            let seed = u64::from(life) * 1000 + client;
            let over = over.clone();
            clients.push(tokio::task::spawn_local(async move {
                // A client whose connection is cut is done; its last call is lost.
                client_life(&access, &record, seed, plan.objects, &over).await
            }));
        }
        tokio::time::sleep_until(deadline.into()).await;
        while record.answered() - begun < plan.calls && deadline.elapsed() < LIMIT {
            tokio::time::sleep(PAUSE).await;
        }
        if last {
            over.set(true);
        } else {
            site.kill()?;
        }
        for client in clients {
            match client.await {
                Ok(Err(Error::Connection(_)) | Ok(())) => {}
                Ok(Err(error)) => return Err(error),
                Err(error) => return Err(Error::Protocol(error.to_string())),
            }
        }
    }
    let histories = record.histories.take();
    check_each(&histories).map_err(Error::History)?;
    let mut versions = record.versions.take();
    check_versions(&mut versions).map_err(Error::History)?;
    let mut seen: Vec<u64> = versions.iter().map(|(_, _, version)| *version).collect();
    seen.sort_unstable();
    let replays = replay(&site.access()?, &seen).await?;
    let all = || histories.values().flatten();
    let lost = all().filter(|timed| timed.ended.is_none()).count();
    Ok(Report {
        calls: all().count(),
        lost,
        replays,
        slowest_start,
    })
}

/// Resource versions of writes grow as time goes on.
fn check_versions(writes: &mut [(u64, u64, u64)]) -> std::result::Result<(), String> {
    writes.sort_unstable_by_key(|(_, _, version)| *version);
    let mut latest_begin = 0;
    for (began, ended, version) in writes.iter() {
        if *ended < latest_begin {
            return Err(format!(
                "a write of version {version} had ended before one of a lower version began"
            ));
        }
        latest_begin = latest_begin.max(*began);
    }
    Ok(())
}

async fn client_life(
    access: &Access,
    record: &Record,
    seed: u64,
    objects: u64,
    over: &Cell<bool>,
) -> Result<()> {
    let mut connection = access.connect().await?;
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    while !over.get() {
        let name = format!("register-{}", next() % objects);
        let known = read(&mut connection, record, &name).await?;
        write(&mut connection, record, &name, known, next() % 6).await?;
    }
    Ok(())
}

/// Reads an object: its value and resource version.
async fn read(
    connection: &mut Connection,
    record: &Record,
    name: &str,
) -> Result<Option<(u64, u64)>> {
    let began = record.tick();
    let (status, body) = connection
        .send("GET", &format!("{COLLECTION}/{name}"), b"")
        .await?;
    let ended = Some(record.tick());
    let object: Value =
        serde_json::from_slice(&body).map_err(|error| Error::Protocol(error.to_string()))?;
    let seen = match status {
        200 => value_of(&object).map(|value| (value, version(&object))),
        404 => None,
        _ => return Ok(None),
    };
    record.add(name, Call::Read(seen.map(|(value, _)| value)), began, ended);
    Ok(seen)
}

async fn write(
    connection: &mut Connection,
    record: &Record,
    name: &str,
    known: Option<(u64, u64)>,
    choice: u64,
) -> Result<()> {
    let value = record.value();
    let place = format!("{COLLECTION}/{name}");
    let call = |answer: Answer| match known {
        None => Call::Create(value, answer),
        Some((old, _)) if choice == 0 => Call::Delete(old, answer),
        Some((old, _)) => Call::Update(old, value, answer),
    };
    let (method, path, body) = match known {
        None => ("POST", COLLECTION, objects::register(name, value, "")),
        Some((_, version)) if choice == 0 => {
            let demanded = serde_json::json!({"resourceVersion": version.to_string()});
            let options = serde_json::json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": demanded});
            ("DELETE", place.as_str(), options)
        }
        Some((_, version)) => (
            "PUT",
            place.as_str(),
            objects::register(name, value, &version.to_string()),
        ),
    };
    let began = record.tick();
    let answer = connection
        .send(method, path, body.to_string().as_bytes())
        .await;
    let ended = record.tick();
    match answer {
        Ok((200 | 201, body)) => {
            record.add(name, call(Answer::Done), began, Some(ended));
            let object: Value = serde_json::from_slice(&body).unwrap_or_default();
            if method != "DELETE" {
                record
                    .versions
                    .borrow_mut()
                    .push((began, ended, version(&object)));
            }
            Ok(())
        }
        Ok((404 | 409, _)) => {
            record.add(name, call(Answer::Refused), began, Some(ended));
            Ok(())
        }
        Ok(_) => {
            // After a server error the call may or may not have taken effect.
            record.add(name, call(Answer::Lost), began, None);
            Ok(())
        }
        Err(error) => {
            record.add(name, call(Answer::Lost), began, None);
            Err(error)
        }
    }
}

type State = BTreeMap<String, (u64, Option<u64>)>;

fn put(state: &mut State, object: &Value) {
    let name = object
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    state.insert(name.to_owned(), (version(object), value_of(object)));
}

async fn listed(connection: &mut Connection, at: Option<u64>) -> Result<State> {
    let exact = at.map_or(String::new(), |at| {
        format!("?resourceVersion={at}&resourceVersionMatch=Exact")
    });
    let list = connection
        .json("GET", &format!("{COLLECTION}{exact}"), &Value::Null)
        .await?;
    let mut state = State::new();
    for item in list["items"].as_array().into_iter().flatten() {
        put(&mut state, item);
    }
    Ok(state)
}

/// Replays watches from some of the revisions that were seen, and compares with the list of the
/// end.
async fn replay(access: &Access, seen: &[u64]) -> Result<usize> {
    let mut connection = access.connect().await?;
    // A watch ends for us when it has shown this.
    let sentinel = connection
        .json("POST", COLLECTION, &objects::register("sentinel", 0, ""))
        .await?;
    let last = version(&sentinel);
    let now = listed(&mut connection, None).await?;
    let step = (seen.len() / 12).max(1);
    let mut replays = 0;
    for from in seen.iter().step_by(step) {
        let mut state = listed(&mut connection, Some(*from)).await?;
        let path = format!("{COLLECTION}?watch=1&resourceVersion={from}");
        let mut lines = access.connect().await?.watch(&path).await?;
        let mut reached = 0;
        while reached < last {
            let line = lines
                .next()
                .await?
                .ok_or_else(|| Error::History(format!("the watch from {from} ended")))?;
            let event: Value = serde_json::from_slice(&line)
                .map_err(|error| Error::Protocol(error.to_string()))?;
            let object = &event["object"];
            if version(object) <= reached.max(*from) && event["type"] != "BOOKMARK" {
                return Err(Error::History(format!(
                    "the watch from {from} went back to {}",
                    version(object)
                )));
            }
            reached = version(object);
            match event["type"].as_str() {
                Some("DELETED") => {
                    state.remove(object["metadata"]["name"].as_str().unwrap_or_default());
                }
                Some("ADDED" | "MODIFIED") => put(&mut state, object),
                _ => {}
            }
        }
        if state != now {
            return Err(Error::History(format!(
                "replayed from {from}: {state:?}; listed: {now:?}"
            )));
        }
        replays += 1;
    }
    connection
        .must("DELETE", &format!("{COLLECTION}/sentinel"), b"")
        .await?;
    Ok(replays)
}
