//! The API as the processes reach it: some calls fail, and what they write is noted.

use super::dice::Dice;
use super::kinds::KINDS;
use http::{Method, Request, Response};
use jiff::Timestamp;
use master_client::{Body, BoxFuture, Resource, Transport, UserInfo, body};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// Which calls fail, in per cent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// Refused: a conflict or an error of the server.
    pub(crate) refused: usize,
    /// Done, and its answer is lost.
    pub(crate) lost: usize,
}

/// The API, some calls of which fail.
#[derive(Debug)]
pub(crate) struct Faulty {
    api: Arc<dyn Transport>,
    /// One call is answered after the other, in the order in which they begin: else the store's
    /// thread would decide it.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<FaultyState>,
}

#[derive(Debug)]
struct FaultyState {
    dice: Dice,
    faults: Faults,
    /// Calls until the process ends; none: it does not.
    left: Option<usize>,
    /// Kinds that were written, by their plurals.
    written: BTreeSet<&'static str>,
    deletions: Vec<Deletion>,
}

/// An object that was deleted, or begins to be.
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
            left: None,
            written: BTreeSet::new(),
            deletions: Vec::new(),
        };
        let state = Mutex::new(state);
        let turn = tokio::sync::Mutex::default();
        Arc::new(Self { api, turn, state })
    }

    /// From now on no call fails.
    pub(crate) fn mend(&self) {
        let mut state = self.state.lock().unwrap();
        state.faults = Faults::default();
        state.left = None;
    }

    /// Lets every call after `calls` more calls fail, as if the process had ended.
    pub(crate) fn end_after(&self, calls: Option<usize>) {
        self.state.lock().unwrap().left = calls;
    }

    /// Kinds that were written since the last call.
    pub(crate) fn written(&self) -> BTreeSet<&'static str> {
        std::mem::take(&mut self.state.lock().unwrap().written)
    }

    /// What was deleted since the last call.
    pub(crate) fn deletions(&self) -> Vec<Deletion> {
        std::mem::take(&mut self.state.lock().unwrap().deletions)
    }

    /// Passes the request to the API, and notes deletions.
    async fn forward(&self, request: Request<Body>, user: UserInfo) -> Response<Body> {
        let deletion = (request.method() == Method::DELETE)
            .then(|| Deletion::of(&user, request.uri().path()))
            .flatten();
        let response = self.api.call(request, user).await;
        let done = deletion.filter(|_| response.status().is_success());
        self.state.lock().unwrap().deletions.extend(done);
        response
    }

    fn draw(&self, method: &Method, path: &str) -> Fate {
        let mut state = self.state.lock().unwrap();
        if let Some(left) = &mut state.left {
            let Some(fewer) = left.checked_sub(1) else {
                return Fate::Refused(503, "ServiceUnavailable");
            };
            *left = fewer;
        }
        let (number, kind) = (state.dice.below(100), state.dice.below(2));
        let Faults { refused, lost } = state.faults;
        if number < refused {
            return if kind == 0 {
                Fate::Refused(409, "Conflict")
            } else {
                Fate::Refused(500, "InternalError")
            };
        }
        if *method != Method::GET {
            let plurals = KINDS
                .iter()
                .filter(|kind| path.split('/').any(|part| part == **kind));
            state.written.extend(plurals);
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

enum Fate {
    Done,
    Lost,
    Refused(u16, &'static str),
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
            // Calls that begin together queue in their order, however soon the first is done.
            tokio::task::yield_now().await;
            let _turn = self.turn.lock().await;
            match self.draw(request.method(), request.uri().path()) {
                Fate::Refused(code, reason) => refusal(code, reason),
                Fate::Done => self.forward(request, user).await,
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
