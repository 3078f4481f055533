//! An API for unit tests that holds one Machine.

use config_kube::{Machine, ToJson as _};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use master_client::{Body, BoxFuture, Client, Resource, Transport, UserInfo, body};
use serde_json::{Value, json};
use std::sync::Arc;

/// An API that answers reads with one Machine, or that there is none. A write is answered as it came
/// where it was made from that version of the Machine, else with a conflict; nothing is stored.
#[derive(Debug)]
pub(crate) struct FakeApi(Value);

impl FakeApi {
    pub(crate) fn client(stored: Option<Machine>) -> Client {
        let stored = stored.map_or(Value::Null, |machine| machine.to_tree().unwrap());
        Client::new(Arc::new(Self(stored)), UserInfo::admin("test"))
    }

    fn answer(&self, sent: Option<Value>) -> (StatusCode, Value) {
        const VERSION: &str = "/metadata/resourceVersion";
        let refuse = |code: StatusCode, reason: &str| {
            let code_number = code.as_u16();
            let status = json!({"kind": "Status", "status": "Failure", "code": code_number,
                "reason": reason, "message": reason});
            (code, status)
        };
        match sent {
            None if self.0.is_null() => refuse(StatusCode::NOT_FOUND, "NotFound"),
            None => (StatusCode::OK, self.0.clone()),
            Some(sent) if sent.pointer(VERSION) == self.0.pointer(VERSION) => {
                (StatusCode::OK, sent)
            }
            Some(_) => refuse(StatusCode::CONFLICT, "Conflict"),
        }
    }
}

impl Transport for FakeApi {
    fn call(&self, request: Request<Body>, _: UserInfo) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            let (parts, content) = request.into_parts();
            let content = content.collect().await.unwrap().to_bytes();
            let sent =
                (parts.method != Method::GET).then(|| serde_json::from_slice(&content).unwrap());
            let (status, answer) = self.answer(sent);
            let mut answer = Response::new(body(answer.to_string()));
            *answer.status_mut() = status;
            answer
        })
    }

    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::UNIX_EPOCH
    }

    fn resources(&self) -> Vec<Resource> {
        Vec::new()
    }
}
