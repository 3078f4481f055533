//! APIs for unit tests: one that holds one Machine, one that holds the queue.

use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use config_kube::{Machine, ToJson as _};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use master_client::{Body, BoxFuture, Client, Resource, Transport, UserInfo, body};
use serde_json::{Value, json};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

/// An API that answers reads with one Machine, or that there is none. A write is answered as it
/// came where it was made from that version of the Machine, else with a conflict; nothing is
/// stored. It may be unavailable for the first reads.
#[derive(Debug)]
pub(crate) struct FakeApi {
    stored: Value,
    unavailable: AtomicUsize,
}

impl FakeApi {
    pub(crate) fn client(stored: Option<Machine>) -> Client {
        Self::busy_client(stored, 0)
    }

    /// As [`Self::client`], of an API that answers so many reads with 503 first.
    pub(crate) fn busy_client(stored: Option<Machine>, unavailable: usize) -> Client {
        let api = Self {
            stored: stored.map_or(Value::Null, |machine| machine.to_tree().unwrap()),
            unavailable: unavailable.into(),
        };
        Client::new(Arc::new(api), UserInfo::admin("test"))
    }

    fn answer(&self, sent: Option<Value>) -> (StatusCode, Value) {
        const VERSION: &str = "/metadata/resourceVersion";
        let less = |left: usize| left.checked_sub(1);
        let is_busy = self
            .unavailable
            .fetch_update(Relaxed, Relaxed, less)
            .is_ok();
        match sent {
            None if is_busy => refuse(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
            None if self.stored.is_null() => refuse(StatusCode::NOT_FOUND, "NotFound"),
            None => (StatusCode::OK, self.stored.clone()),
            Some(sent) if sent.pointer(VERSION) == self.stored.pointer(VERSION) => {
                (StatusCode::OK, sent)
            }
            Some(_) => refuse(StatusCode::CONFLICT, "Conflict"),
        }
    }
}

fn refuse(code: StatusCode, reason: &str) -> (StatusCode, Value) {
    let code_number = code.as_u16();
    let status = json!({"kind": "Status", "status": "Failure", "code": code_number,
        "reason": reason, "message": reason});
    (code, status)
}

fn response((status, answer): (StatusCode, Value)) -> Response<Body> {
    let mut response = Response::new(body(answer.to_string()));
    *response.status_mut() = status;
    response
}

impl Transport for FakeApi {
    fn call(&self, request: Request<Body>, _: UserInfo) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            let (parts, content) = request.into_parts();
            let content = content.collect().await.unwrap().to_bytes();
            let sent =
                (parts.method != Method::GET).then(|| serde_json::from_slice(&content).unwrap());
            response(self.answer(sent))
        })
    }

    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::UNIX_EPOCH
    }

    fn resources(&self) -> Vec<Resource> {
        Vec::new()
    }
}

/// An API that answers reads with the requests of the queue and perhaps a Machine. It takes every
/// write as it came and notes it; nothing is stored.
#[derive(Debug)]
pub(crate) struct FakeQueueApi {
    requests: Value,
    machine: Option<Value>,
    written: Mutex<Vec<String>>,
}

impl FakeQueueApi {
    pub(crate) fn new(requests: &[CertificateSigningRequest], machine: Option<Machine>) -> Self {
        let requests: Vec<Value> = requests.iter().map(|one| one.to_tree().unwrap()).collect();
        Self {
            requests: json!({"kind": "CertificateSigningRequestList", "metadata": {}, "items": requests}),
            machine: machine.map(|machine| machine.to_tree().unwrap()),
            written: Mutex::default(),
        }
    }

    pub(crate) fn client(self: &Arc<Self>) -> Client {
        Client::new(self.clone(), UserInfo::admin("test"))
    }

    /// Method and last part of the path of each write.
    pub(crate) fn written(&self) -> Vec<String> {
        self.written.lock().unwrap().clone()
    }
}

impl Transport for FakeQueueApi {
    fn call(&self, request: Request<Body>, _: UserInfo) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            let (parts, content) = request.into_parts();
            let content = content.collect().await.unwrap().to_bytes();
            let last = parts.uri.path().rsplit('/').next().unwrap_or_default();
            let is_list = last == "certificatesigningrequests";
            response(match (parts.method, &self.machine) {
                (Method::GET, _) if is_list => (StatusCode::OK, self.requests.clone()),
                (Method::GET, Some(machine)) => (StatusCode::OK, machine.clone()),
                (Method::GET, None) => refuse(StatusCode::NOT_FOUND, "NotFound"),
                (method, _) => {
                    let note = format!("{method} {last}");
                    self.written.lock().unwrap().push(note);
                    (StatusCode::OK, serde_json::from_slice(&content).unwrap())
                }
            })
        })
    }

    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::UNIX_EPOCH
    }

    fn resources(&self) -> Vec<Resource> {
        Vec::new()
    }
}
