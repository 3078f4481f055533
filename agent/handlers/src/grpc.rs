//! The health check of gRPC (`grpc.health.v1.Health/Check`) over HTTP/2 in the clear, in upstream's words.
//!
//! One call on one connection. Of the answer no more than [`LONGEST_ANSWER`] is read, and all of it takes no longer than the
//! probe may.

use crate::dial;
use bytes::{Buf, Bytes};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use std::time::Duration;
use tokio::time::timeout;

/// A health answer has two bytes; a longer one than this is none.
const LONGEST_ANSWER: usize = 4096;
/// The gRPC status codes that have words of their own.
const OK: u32 = 0;
const DEADLINE_EXCEEDED: u32 = 4;
const UNIMPLEMENTED: u32 = 12;

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, Message)]
struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    status: i32,
}

/// `grpc.health.v1.HealthCheckResponse.ServingStatus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

impl ServingStatus {
    fn name(number: i32) -> String {
        match Self::try_from(number) {
            Ok(Self::Unknown) => "UNKNOWN".to_owned(),
            Ok(Self::Serving) => "SERVING".to_owned(),
            Ok(Self::NotServing) => "NOT_SERVING".to_owned(),
            Ok(Self::ServiceUnknown) => "SERVICE_UNKNOWN".to_owned(),
            Err(_) => number.to_string(),
        }
    }
}

/// The status of a call that the server refused.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    code: u32,
    message: String,
}

/// Asks whether a service serves; the empty name stands for the server as a whole.
///
/// # Errors
/// It does not, it can't be asked, or it took longer than `limit`.
pub(crate) async fn check(
    place: &str,
    port: u16,
    service: &str,
    agent: &str,
    limit: Duration,
) -> Result<(), String> {
    let address = crate::address(place, port);
    let stage = std::sync::atomic::AtomicBool::new(false);
    let call = async {
        let stream = dial::connect(place, port)
            .await
            .map_err(|error| no_connection(&address, &error))?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_header_list_size(16 << 10)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| no_connection(&address, &error))?;
        stage.store(true, std::sync::atomic::Ordering::Relaxed);
        let call = ask(sender, &address, service, agent, limit);
        tokio::select! {
            // The call gets the connection's error; the connection ends with this future.
            answer = call => answer,
            ended = connection => Err(failed(&format!("the connection ended: {ended:?}"))),
        }
    };
    timeout(limit, call).await.unwrap_or_else(|_elapsed| {
        let seconds = limit.as_secs();
        Err(if stage.load(std::sync::atomic::Ordering::Relaxed) {
            format!("timeout: health rpc did not complete within {seconds}s")
        } else {
            format!("timeout: failed to connect service {address:?} within {seconds}s")
        })
    })
}

fn no_connection(address: &str, error: &dyn std::error::Error) -> String {
    format!("error: failed to connect service at {address:?}: {error}")
}

fn failed(why: &str) -> String {
    format!("error: health rpc probe failed: {why}")
}

async fn ask(
    mut sender: http2::SendRequest<Full<Bytes>>,
    address: &str,
    service: &str,
    agent: &str,
    limit: Duration,
) -> Result<(), String> {
    let request = Request::post(format!("http://{address}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", agent)
        .header("grpc-timeout", format!("{}S", limit.as_secs()))
        .body(Full::new(framed(service)))
        .map_err(|error| failed(&error.to_string()))?;
    let answer = sender
        .send_request(request)
        .await
        .map_err(|error| failed(&error.to_string()))?;
    let health = read(answer).await?;
    if health == ServingStatus::Serving as i32 {
        return Ok(());
    }
    Err(format!(
        "service unhealthy (responded with {:?})",
        ServingStatus::name(health)
    ))
}

/// The request as gRPC sends it: not compressed, its length, the message.
fn framed(service: &str) -> Bytes {
    let message = HealthCheckRequest {
        service: service.to_owned(),
    }
    .encode_to_vec();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut frame = vec![0];
    frame.extend(length.to_be_bytes());
    frame.extend(message);
    frame.into()
}

/// The health in an answer.
async fn read(answer: Response<Incoming>) -> Result<i32, String> {
    let (head, body) = answer.into_parts();
    if head.status != http::StatusCode::OK {
        let text = format!(
            "unexpected HTTP status code received from server: {}",
            head.status
        );
        return Err(failed(&text));
    }
    // A server that refuses at once puts its status into the head.
    if let Some(status) = status(&head.headers) {
        refused(status)?;
    }
    let body = Limited::new(body, LONGEST_ANSWER)
        .collect()
        .await
        .map_err(|error| failed(&error.to_string()))?;
    if let Some(status) = body.trailers().and_then(status) {
        refused(status)?;
    }
    parse(body.to_bytes()).ok_or_else(|| failed("the answer is no message of the health protocol"))
}

/// The status that headers or trailers name.
fn status(fields: &HeaderMap) -> Option<Status> {
    let text = |name: &str| fields.get(name).and_then(|value| value.to_str().ok());
    Some(Status {
        code: text("grpc-status")?.parse().unwrap_or(2),
        message: text("grpc-message").unwrap_or_default().to_owned(),
    })
}

fn refused(status: Status) -> Result<(), String> {
    let Status { code, message } = status;
    match code {
        OK => Ok(()),
        UNIMPLEMENTED => Err(format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
        )),
        DEADLINE_EXCEEDED => Err("timeout: health rpc did not complete within its time".to_owned()),
        code => Err(failed(&format!(
            "rpc error: code = {code} desc = {message}"
        ))),
    }
}

/// One message that is not compressed, and nothing after it.
pub(crate) fn parse(mut frame: Bytes) -> Option<i32> {
    if frame.len() < 5 || frame.get_u8() != 0 {
        return None;
    }
    let length = usize::try_from(frame.get_u32()).ok()?;
    if frame.len() != length {
        return None;
    }
    Some(HealthCheckResponse::decode(frame).ok()?.status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    fn refusal(code: u32, message: &str) -> String {
        let message = message.to_owned();
        refused(Status { code, message }).unwrap_err()
    }

    #[test]
    fn the_request_is_the_one_of_the_protocol() {
        assert_eq!(framed("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(framed("ab")[..], [0, 0, 0, 0, 4, 10, 2, b'a', b'b']);
    }

    #[test]
    fn a_servers_answer_is_reported_in_upstreams_words() {
        assert_eq!(
            refusal(12, "unknown service"),
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service"
        );
        assert!(refusal(4, "").starts_with("timeout: health rpc did not complete within"));
        assert_eq!(
            refusal(5, "no such service"),
            "error: health rpc probe failed: rpc error: code = 5 desc = no such service"
        );
        assert_eq!(parse(Bytes::from_static(&[0, 0, 0, 0, 2, 8, 1])), Some(1));
        assert_eq!(parse(Bytes::from_static(&[0, 0, 0, 0, 0])), Some(0));
        assert_eq!(ServingStatus::name(2), "NOT_SERVING");
        assert_eq!(ServingStatus::name(7), "7");
    }

    #[tokio::test]
    async fn a_missing_server_and_a_silent_one_have_their_own_errors() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let silent = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            // It reads for ever and never answers, as a server of another protocol may.
            let mut bytes = [0; 1024];
            while stream.read(&mut bytes).await.is_ok_and(|count| count > 0) {}
        });
        let limit = Duration::from_secs(1);
        let late = check("127.0.0.1", port, "", "agent", limit).await;
        assert_eq!(
            late.unwrap_err(),
            "timeout: health rpc did not complete within 1s"
        );
        silent.await.unwrap();
        let nobody = check("127.0.0.1", port, "", "agent", limit)
            .await
            .unwrap_err();
        let words = format!("error: failed to connect service at \"127.0.0.1:{port}\": ");
        assert!(nobody.starts_with(&words), "{nobody}");
    }

    proptest! {
        #[test]
        fn no_answer_panics_or_is_mistaken_for_healthy(
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            if let Some(status) = parse(Bytes::from(bytes.clone())) {
                prop_assert!(bytes[0] == 0 && bytes.len() >= 5);
                prop_assert!(status == 0 || bytes.len() >= 7);
            }
        }
    }
}
