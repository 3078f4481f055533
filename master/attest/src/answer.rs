//! Bodies in and out: bounded JSON, and problems that tell a caller no more than it may know.

use bytes::Bytes;
use config_attest::Code;
use config_attest::wire::{self, Problem};
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use master_client::{Body, BoxFuture, body};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Time for a body to come in.
pub(crate) const BODY_TIME: Duration = Duration::from_secs(10);

/// Reads a body of at most `limit` octets that comes in within `time`.
pub(crate) async fn read<T: DeserializeOwned>(
    incoming: Body,
    limit: usize,
    time: Duration,
) -> Result<T, Answer> {
    let collect: BoxFuture<'static, _> = Box::pin(Limited::new(incoming, limit).collect());
    let bytes = match tokio::time::timeout(time, collect).await {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large(limit)),
        Ok(Err(_)) | Err(_) => {
            return Err(Answer::problem(Code::Malformed, "the body did not come in"));
        }
    };
    wire::parse(&bytes).map_err(|error| Answer::problem(wire::code_of(&error), &error.to_string()))
}

/// Lets a body pass that nobody wants, so that its sender can hear why, and keeps nothing of it. Whoever is refused without a
/// look at the body is refused for that, however the body ends: beyond `limit` octets the rest is not waited for.
pub(crate) async fn discard(incoming: Body, limit: usize) {
    let mut incoming = Limited::new(incoming, limit);
    let pass = async { while let Some(Ok(_)) = incoming.frame().await {} };
    // A body that is late has had its time.
    tokio::time::timeout(BODY_TIME, pass).await.ok();
}

fn too_large(limit: usize) -> Answer {
    Answer::problem(
        Code::TooLarge,
        &format!("the body has more than {limit} bytes"),
    )
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    status: StatusCode,
    body: Bytes,
    retry_after: Option<u32>,
}

impl Answer {
    /// Something good.
    pub(crate) fn json(value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(bytes) => Self {
                status: StatusCode::OK,
                body: bytes.into(),
                retry_after: None,
            },
            Err(_unencodable) => Self::unavailable("the answer cannot be encoded"),
        }
    }

    /// The one refusal that a caller sees, whatever the reason.
    pub(crate) fn refused() -> Self {
        Self::problem(
            Code::Refused,
            "the master refused; the reason is in its records: kubectl get nodeattestations, kubectl describe machine",
        )
    }

    /// A problem that names itself: about form and amount, never about machines.
    pub(crate) fn problem(code: Code, message: &str) -> Self {
        let statuses = [
            (Code::Malformed, StatusCode::BAD_REQUEST),
            (Code::ProtocolVersion, StatusCode::BAD_REQUEST),
            (Code::TooLarge, StatusCode::PAYLOAD_TOO_LARGE),
            (Code::RateLimited, StatusCode::TOO_MANY_REQUESTS),
            (Code::QueueFull, StatusCode::SERVICE_UNAVAILABLE),
        ];
        let found = statuses.into_iter().find(|(known, _)| *known == code);
        let status = found.map_or(StatusCode::FORBIDDEN, |(_, status)| status);
        let mut answer = Self::of(status, code.as_str(), message);
        let waits = [(Code::RateLimited, 2), (Code::QueueFull, 60)];
        answer.retry_after = waits
            .into_iter()
            .find(|(known, _)| *known == code)
            .map(|(_, seconds)| seconds);
        answer
    }

    /// A person must decide first.
    pub(crate) fn queued(message: &str) -> Self {
        let mut answer = Self::of(StatusCode::ACCEPTED, Code::Queued.as_str(), message);
        answer.retry_after = Some(5);
        answer
    }

    /// The machine is to ask under another name, which is its own.
    pub(crate) fn named(node_name: &str) -> Self {
        let code = Code::NameAssigned;
        let (code, message) = (code.as_str().to_owned(), code.meaning().to_owned());
        let problem = Problem {
            code,
            message,
            node_name: node_name.to_owned(),
        };
        Self {
            status: StatusCode::CONFLICT,
            body: encoded(&problem),
            retry_after: None,
        }
    }

    /// The master can't answer now.
    pub(crate) fn unavailable(message: &str) -> Self {
        let mut answer = Self::of(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", message);
        answer.retry_after = Some(2);
        answer
    }

    /// A problem with a code outside the verifier's.
    pub(crate) fn of(status: StatusCode, code: &str, message: &str) -> Self {
        let problem = Problem {
            code: code.to_owned(),
            message: message.to_owned(),
            ..Problem::default()
        };
        Self {
            status,
            body: encoded(&problem),
            retry_after: None,
        }
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(body(self.body));
        *response.status_mut() = self.status;
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        if let Some(seconds) = self.retry_after {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

fn encoded(problem: &Problem) -> Bytes {
    serde_json::to_vec(problem).unwrap_or_default().into()
}
