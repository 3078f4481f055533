//! Request and response bodies: bounded JSON, and refusals that reveal nothing about machines.

use bytes::Bytes;
use config_protocol::Code;
use config_protocol::wire::{self, Problem};
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use master_client::{Body, BoxFuture, body};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Time limit for a body to arrive.
pub(crate) const BODY_TIME: Duration = Duration::from_secs(10);

/// Reads a JSON body of at most `limit` octets that arrives within `time`.
///
/// # Errors
/// The answer `TOO_LARGE` or `MALFORMED`.
pub(crate) async fn read<T: DeserializeOwned>(
    incoming: Body,
    limit: usize,
    time: Duration,
) -> Result<T, ServiceAnswer> {
    let collect: BoxFuture<'static, _> = Box::pin(Limited::new(incoming, limit).collect());
    let bytes = match tokio::time::timeout(time, collect).await {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large(limit)),
        Ok(Err(_)) | Err(_) => {
            return Err(ServiceAnswer::problem(
                Code::Malformed,
                "the body did not arrive whole and in time",
            ));
        }
    };
    wire::parse(&bytes)
        .map_err(|error| ServiceAnswer::problem(wire::code_of(&error), &error.to_string()))
}

/// Reads and drops the body of a request that is refused anyway: many clients read the answer only
/// after they have sent the body. Beyond `limit` octets, or after the time limit, it stops.
pub(crate) async fn discard(incoming: Body, limit: usize) {
    let mut incoming = Limited::new(incoming, limit);
    let pass = async { while let Some(Ok(_)) = incoming.frame().await {} };
    // The answer does not depend on how the body ends.
    tokio::time::timeout(BODY_TIME, pass).await.ok();
}

fn too_large(limit: usize) -> ServiceAnswer {
    ServiceAnswer::problem(
        Code::TooLarge,
        &format!("the body has more than {limit} bytes"),
    )
}

/// An answer.
#[derive(Debug)]
pub(crate) struct ServiceAnswer {
    status: StatusCode,
    body: Bytes,
    retry_after: Option<u32>,
}

impl ServiceAnswer {
    /// Status 200 with a JSON body.
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

    /// The generic refusal, which is the same for every reason.
    pub(crate) fn refused() -> Self {
        Self::problem(
            Code::Refused,
            "the master refused; the reason is in its records: kubectl get nodeattestations, kubectl describe machine",
        )
    }

    /// A refusal with its code: about the form or number of requests, never about machines.
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

    /// Status 202: a person decides, and the node comes back.
    pub(crate) fn queued(message: &str) -> Self {
        let mut answer = Self::of(StatusCode::ACCEPTED, Code::Queued.as_str(), message);
        answer.retry_after = Some(5);
        answer
    }

    /// `NAME_ASSIGNED`: the machine has this node name, and asks again under it.
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

    /// The master cannot answer now.
    pub(crate) fn unavailable(message: &str) -> Self {
        let mut answer = Self::of(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", message);
        answer.retry_after = Some(2);
        answer
    }

    /// A refusal with a code that is not one of the verifier's.
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
