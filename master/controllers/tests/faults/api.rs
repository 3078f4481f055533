//! The API as the simulated processes reach it: some calls fail, and deletions are recorded.

use super::dice::Dice;
use super::kinds::KINDS;
use config_kube::local_volume::SERVED;
use http::{Method, Request, Response};
use jiff::Timestamp;
use master_client::{Body, BoxFuture, Resource, Transport, UserInfo, body};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// Which calls fail, in per cent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// Refused with a conflict or a server error.
    pub(crate) refused: usize,
    /// Carried out, but the answer is lost.
    pub(crate) lost: usize,
}

/// The API, some calls of which fail.
#[derive(Debug)]
pub(crate) struct Faulty {
    api: Arc<dyn Transport>,
    /// Calls are answered one after the other, in the order in which they start: otherwise the
    /// store's thread would decide the order.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<FaultyState>,
}

#[derive(Debug)]
struct FaultyState {
    dice: Dice,
    faults: Faults,
    /// When the process ends; `None`: it does not.
    end: Option<End>,
    has_ended: bool,
    /// The fate of the next call whose path has this end.
    next: Option<(&'static str, Fate)>,
    /// Whether the answer to the creation of a Job was lost in this run.
    has_lost_job: bool,
    deletions: Vec<Deletion>,
    /// Answers of extensions, by path.
    answers: BTreeMap<&'static str, String>,
    /// Folders of volumes on machines: node and name.
    folders: BTreeSet<(String, String)>,
    /// Machines that do not answer.
    cut_off: BTreeSet<String>,
}

/// When a process ends in the middle of what it does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    /// After this number of calls.
    pub(crate) calls: usize,
    /// Whether the call during which it ends is carried out all the same.
    pub(crate) done: bool,
}

/// A call that deletes an object.
#[derive(Debug)]
pub(crate) struct Deletion {
    /// The user who did it.
    pub(crate) by: String,
    /// Its kind, by the plural.
    pub(crate) kind: &'static str,
    pub(crate) name: String,
}

impl Faulty {
    pub(crate) fn new(api: Arc<dyn Transport>, seed: u64, faults: Faults) -> Arc<Self> {
        let state = FaultyState {
            dice: Dice(seed),
            faults,
            end: None,
            has_ended: false,
            next: None,
            has_lost_job: false,
            deletions: Vec::new(),
            answers: BTreeMap::new(),
            folders: BTreeSet::new(),
            cut_off: BTreeSet::new(),
        };
        let state = Mutex::new(state);
        let turn = tokio::sync::Mutex::default();
        Arc::new(Self { api, turn, state })
    }

    /// From now on no call fails.
    pub(crate) fn mend(&self) {
        let mut state = self.state.lock().unwrap();
        state.faults = Faults::default();
    }

    /// Starts a run of a process; `end`: when that process ends.
    pub(crate) fn begin(&self, end: Option<End>) {
        let mut state = self.state.lock().unwrap();
        state.end = end;
        state.has_ended = false;
        state.has_lost_job = false;
    }

    /// Ends the run.
    pub(crate) fn finish(&self) {
        let mut state = self.state.lock().unwrap();
        state.end = None;
        state.has_ended = false;
    }

    /// Whether the process has ended: then its calls are never answered.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().unwrap().has_ended
    }

    /// Whether the answer to the creation of a Job was lost in the last run.
    pub(crate) fn has_lost_job(&self) -> bool {
        self.state.lock().unwrap().has_lost_job
    }

    /// Sets the fate of the next call whose path has this end.
    pub(crate) fn decide(&self, end: &'static str, fate: Fate) {
        self.state.lock().unwrap().next = Some((end, fate));
    }

    /// From now on an extension of the API gives this answer at a path.
    pub(crate) fn answer(&self, path: &'static str, text: String) {
        self.state.lock().unwrap().answers.insert(path, text);
    }

    /// Sets which machines do not answer.
    pub(crate) fn cut_off(&self, machines: BTreeSet<String>) {
        self.state.lock().unwrap().cut_off = machines;
    }

    /// Folders of volumes on machines: node and name.
    pub(crate) fn folders(&self) -> BTreeSet<(String, String)> {
        self.state.lock().unwrap().folders.clone()
    }

    /// The deletions since the last call.
    pub(crate) fn deletions(&self) -> Vec<Deletion> {
        std::mem::take(&mut self.state.lock().unwrap().deletions)
    }

    /// A deletion that no call made.
    pub(crate) fn invent(&self, deletion: Deletion) {
        self.state.lock().unwrap().deletions.push(deletion);
    }

    /// Passes the request to the API, and notes deletions.
    async fn forward(&self, request: Request<Body>, user: UserInfo) -> Response<Body> {
        if let Some(answer) = self.answer_of_others(request.method(), request.uri().path()) {
            return answer;
        }
        let deletion = (request.method() == Method::DELETE)
            .then(|| Deletion::of(&user, request.uri().path()))
            .flatten();
        let response = self.api.call(request, user).await;
        let done = deletion.filter(|_| response.status().is_success());
        self.state.lock().unwrap().deletions.extend(done);
        response
    }

    /// Answers that do not come from the API: of machines about folders of volumes, of extensions,
    /// and to events. No controller reads events, and they would be half of all writes. Their error
    /// is final: retries would depend on this host's clock, and cases could not be repeated.
    fn answer_of_others(&self, method: &Method, path: &str) -> Option<Response<Body>> {
        let mut state = self.state.lock().unwrap();
        if is_event(path) {
            return Some(refusal(403, "Forbidden"));
        }
        if let Some(text) = state.answers.get(path) {
            return Some(Response::new(body(text.clone())));
        }
        let rest = path.strip_prefix("/api/v1/nodes/")?;
        let (node, rest) = rest.split_once("/proxy/")?;
        let volume = rest.strip_prefix(SERVED)?.strip_prefix('/')?;
        if state.cut_off.contains(node) {
            return Some(refusal(503, "ServiceUnavailable"));
        }
        let folder = (node.to_owned(), volume.to_owned());
        if *method == Method::DELETE {
            state.folders.remove(&folder);
        } else {
            state.folders.insert(folder);
        }
        Some(Response::new(body("")))
    }

    fn draw(&self, path: &str) -> Fate {
        let state = &mut *self.state.lock().unwrap();
        let decided = state.next.take_if(|(end, _)| path.ends_with(*end));
        let fate = decided.map_or_else(|| state.draw(), |(_, fate)| fate);
        state.has_lost_job |= matches!(fate, Fate::Lost) && path.ends_with("/jobs");
        fate
    }
}

impl FaultyState {
    fn draw(&mut self) -> Fate {
        if let Some(end) = &mut self.end {
            let Some(fewer) = end.calls.checked_sub(1) else {
                return Fate::Ended(end.done && !self.has_ended);
            };
            end.calls = fewer;
        }
        let (number, kind) = (self.dice.below(100), self.dice.below(2));
        let Faults { refused, lost } = self.faults;
        if number < refused {
            return if kind == 0 {
                Fate::Refused(409, "Conflict")
            } else {
                Fate::Refused(500, "InternalError")
            };
        }
        if number < refused + lost {
            Fate::Lost
        } else {
            Fate::Done
        }
    }
}

impl Deletion {
    fn of(by: &UserInfo, path: &str) -> Option<Self> {
        let (before, name) = path.rsplit_once('/')?;
        let plural = before.rsplit('/').next()?;
        Some(Self {
            by: by.name.clone(),
            kind: KINDS.iter().copied().find(|kind| *kind == plural)?,
            name: name.to_owned(),
        })
    }
}

/// The fate of a call.
#[derive(Debug)]
pub(crate) enum Fate {
    Done,
    /// The process ends; whether the call is carried out before.
    Ended(bool),
    Lost,
    Refused(u16, &'static str),
}

/// Whether a path is that of events.
fn is_event(path: &str) -> bool {
    path.ends_with("/events") || path.contains("/events/")
}

fn refusal(code: u16, reason: &str) -> Response<Body> {
    let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "a fault"});
    let mut response = Response::new(body(status.to_string()));
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
    response
}

impl Transport for Faulty {
    fn call(&self, request: Request<Body>, user: UserInfo) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            // Calls that start together queue in their order, however soon the first is done.
            tokio::task::yield_now().await;
            let _turn = self.turn.lock().await;
            match self.draw(request.uri().path()) {
                Fate::Refused(code, reason) => refusal(code, reason),
                Fate::Done => self.forward(request, user).await,
                Fate::Ended(is_done) => {
                    if is_done {
                        drop(self.forward(request, user).await);
                    }
                    self.state.lock().unwrap().has_ended = true;
                    std::future::pending().await
                }
                Fate::Lost if is_event(request.uri().path()) => self.forward(request, user).await,
                Fate::Lost => {
                    drop(self.forward(request, user).await);
                    refusal(504, "Timeout")
                }
            }
        })
    }

    fn now(&self) -> Timestamp {
        self.api.now()
    }

    fn resources(&self) -> Vec<Resource> {
        self.api.resources()
    }
}
