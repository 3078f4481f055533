//! The health check of gRPC (`grpc.health.v1.Health/Check`) in upstream's words.
//!
//! One call on one connection. Of the answer no more than [`LONGEST_ANSWER`] is read, and all of it
//! takes no longer than the probe may.

use crate::dial;
use agent_grpc::{Answer, Call, Channel, Error, Status, message};
use bytes::Bytes;
use prost::Message;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::timeout;

/// A health answer has two bytes; a longer one than this is none.
const LONGEST_ANSWER: usize = 4096;
/// The gRPC status codes that have words of their own, and the one of a server that sends no
/// number.
const OK: u32 = 0;
const UNKNOWN: u32 = 2;
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

/// Asks whether a service serves (gRPC health checking); the empty name means the whole server.
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
    let connected = AtomicBool::new(false);
    let call = async {
        let stream = dial::connect(place, port)
            .await
            .map_err(|error| no_connection(&address, &error))?;
        let channel = Channel::open(stream)
            .await
            .map_err(|error| no_connection(&address, &error))?;
        connected.store(true, Ordering::Relaxed);
        ask(channel, &address, service, agent, limit).await
    };
    timeout(limit, call).await.unwrap_or_else(|_elapsed| {
        let seconds = limit.as_secs();
        Err(if connected.load(Ordering::Relaxed) {
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
    channel: Channel,
    address: &str,
    service: &str,
    agent: &str,
    limit: Duration,
) -> Result<(), String> {
    let time = format!("{}S", limit.as_secs());
    let call = Call {
        authority: address,
        method: "/grpc.health.v1.Health/Check",
        headers: &[("user-agent", agent), ("grpc-timeout", time.as_str())],
        longest: LONGEST_ANSWER,
    };
    let service = service.to_owned();
    let answer = channel.call(&call, &HealthCheckRequest { service }).await;
    let health = read(answer.map_err(|error| no_answer(&error))?)?;
    if health == ServingStatus::Serving as i32 {
        return Ok(());
    }
    Err(format!(
        "service unhealthy (responded with {:?})",
        ServingStatus::name(health)
    ))
}

fn no_answer(error: &Error) -> String {
    match error {
        Error::Http(status) => failed(&format!(
            "unexpected HTTP status code received from server: {status}"
        )),
        Error::Connection(_)
        | Error::Ended(_)
        | Error::Request(_)
        | Error::Body(_)
        | Error::Frame
        | Error::Message(_) => failed(&error.to_string()),
    }
}

/// The health in an answer. A server that gives no status but a message is taken at that.
fn read(answer: Answer) -> Result<i32, String> {
    if let Some(status) = answer.status() {
        refused(&status)?;
    }
    parse(answer.body).ok_or_else(|| failed("the answer is no message of the health protocol"))
}

fn refused(status: &Status) -> Result<(), String> {
    let message = &status.message;
    match status.code.parse().unwrap_or(UNKNOWN) {
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

/// The number of the health in an answer's body.
pub(crate) fn parse(body: Bytes) -> Option<i32> {
    let answer: HealthCheckResponse = message(body).ok()?;
    Some(answer.status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    fn refusal(code: u32, message: &str) -> String {
        let (code, message) = (code.to_string(), message.to_owned());
        refused(&Status { code, message }).unwrap_err()
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
