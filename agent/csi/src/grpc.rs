//! One call of gRPC over a Unix socket.
//!
//! A driver's answers are hostile input: every call has a time limit, an answer is read up to [`LONGEST_ANSWER`], headers up to
//! 16 KiB, and words of the driver that a person reads are cut. Fields that are not known are skipped.

use agent_sys::beneath::{Beneath, Links};
use bytes::{Buf, Bytes};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Bytes of an answer; the longest of the calls in use names a node and its topology.
const LONGEST_ANSWER: usize = 256 << 10;
/// Characters of a driver's words that are passed on.
const LONGEST_WORDS: usize = 1024;
/// The header list of an answer, in bytes.
const LONGEST_HEADERS: u32 = 16 << 10;
/// The names of gRPC's status codes, as Go prints them.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// A socket below a folder: on the way to it no link is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Socket {
    /// A folder whose path only the machine's own programs can change.
    pub(crate) root: PathBuf,
    /// The socket's path below it.
    pub(crate) path: PathBuf,
}

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// Nobody answers at the socket.
    #[error("the driver can't be reached at {path}: {why}")]
    Unreachable {
        /// The socket's path below the folder of the machine's volumes.
        path: String,
        /// The reason.
        why: String,
    },
    /// The driver refused.
    #[error("rpc error: code = {code} desc = {message}")]
    Refused {
        /// The code's name.
        code: String,
        /// The driver's words.
        message: String,
    },
    /// It took too long.
    #[error("rpc error: code = DeadlineExceeded desc = no answer within {} s", .0.as_secs())]
    Late(Duration),
    /// It is no answer of gRPC.
    #[error("the driver's answer can't be read: {0}")]
    Answer(String),
}

impl Socket {
    async fn connect(&self) -> io::Result<UnixStream> {
        let place = Beneath::root(&self.root)?.place(&self.path, Links::Refused)?;
        if !place.is_socket() {
            return Err(io::Error::other("it is not a socket"));
        }
        // The kernel's link leads to exactly the socket that was looked at.
        UnixStream::connect(format!("/proc/self/fd/{}", place.as_fd().as_raw_fd())).await
    }
}

/// Calls `method`, such as `/csi.v1.Node/NodeGetInfo`.
pub(crate) async fn call<Q: Message, A: Message + Default>(
    socket: &Socket,
    method: &str,
    request: &Q,
    limit: Duration,
) -> Result<A, CallError> {
    let asked = async { message(exchange(socket, method, framed(request)).await?) };
    timeout(limit, asked)
        .await
        .unwrap_or(Err(CallError::Late(limit)))
}

/// The message of an answer: headers, trailers, body.
pub(crate) fn message<A: Message + Default>(
    answer: (HeaderMap, Option<HeaderMap>, Bytes),
) -> Result<A, CallError> {
    let mut message = read(answer)?;
    A::decode(&mut message).map_err(|error| CallError::Answer(error.to_string()))
}

async fn exchange(
    socket: &Socket,
    method: &str,
    body: Bytes,
) -> Result<(HeaderMap, Option<HeaderMap>, Bytes), CallError> {
    let unreachable = |why: String| CallError::Unreachable {
        path: socket.path.display().to_string(),
        why,
    };
    let stream = socket
        .connect()
        .await
        .map_err(|error| unreachable(error.to_string()))?;
    let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_header_list_size(LONGEST_HEADERS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| unreachable(error.to_string()))?;
    // The authority is not used: a Unix socket has one server.
    let request = Request::post(format!("http://localhost{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(body))
        .map_err(|error| CallError::Answer(error.to_string()))?;
    let call = async {
        let answer = sender.send_request(request).await;
        gather(answer.map_err(|error| unreachable(error.to_string()))?).await
    };
    tokio::select! {
        // The call gets the connection's error; the connection ends with this future.
        answer = call => answer,
        ended = connection => Err(unreachable(format!("the connection ended: {ended:?}"))),
    }
}

async fn gather(
    answer: Response<Incoming>,
) -> Result<(HeaderMap, Option<HeaderMap>, Bytes), CallError> {
    let (head, body) = answer.into_parts();
    if head.status != http::StatusCode::OK {
        return Err(CallError::Answer(format!("HTTP status {}", head.status)));
    }
    let body = Limited::new(body, LONGEST_ANSWER)
        .collect()
        .await
        .map_err(|error| CallError::Answer(error.to_string()))?;
    let trailers = body.trailers().cloned();
    Ok((head.headers, trailers, body.to_bytes()))
}

/// The request as gRPC sends it: not compressed, its length, the message.
fn framed(message: &impl Message) -> Bytes {
    let message = message.encode_to_vec();
    let mut frame = vec![0];
    frame.extend(
        u32::try_from(message.len())
            .unwrap_or(u32::MAX)
            .to_be_bytes(),
    );
    frame.extend(message);
    frame.into()
}

/// The message of an answer: one that is not compressed, and nothing after it.
fn read(
    (headers, trailers, mut body): (HeaderMap, Option<HeaderMap>, Bytes),
) -> Result<Bytes, CallError> {
    // A server that refuses at once puts its status into the head.
    let code = |fields: &HeaderMap| fields.contains_key("grpc-status");
    let fields = trailers.filter(code).unwrap_or(headers);
    refused(&fields)?;
    let fault = || CallError::Answer("it is no message of gRPC".to_owned());
    if body.len() < 5 || body.get_u8() != 0 {
        return Err(fault());
    }
    let length = usize::try_from(body.get_u32()).map_err(|_too_long| fault())?;
    if body.len() != length {
        return Err(fault());
    }
    Ok(body)
}

/// The error that headers or trailers name.
fn refused(fields: &HeaderMap) -> Result<(), CallError> {
    let text = |name: &str| fields.get(name).and_then(|value| value.to_str().ok());
    let status = text("grpc-status").ok_or_else(|| CallError::Answer("it has no status".into()))?;
    if status == "0" {
        return Ok(());
    }
    let number: Option<usize> = status.parse().ok();
    let name = number.and_then(|number| CODES.get(number)).copied();
    Err(CallError::Refused {
        code: name.map_or_else(|| cut(status), str::to_owned),
        message: cut(&unescaped(text("grpc-message").unwrap_or_default())),
    })
}

/// Text in which `%41` stands for `A`.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| *first == b'%');
        let byte = escaped
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Words of a driver as a person may read them: on one line, and not too many.
pub(crate) fn cut(words: &str) -> String {
    let plain = |character: char| {
        if character.is_control() {
            ' '
        } else {
            character
        }
    };
    words.chars().take(LONGEST_WORDS).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fields(all: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = all
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        pairs.collect::<HeaderMap>()
    }

    #[test]
    fn a_refusal_is_told_in_the_words_of_go() {
        let told = |all: &[(&'static str, &str)]| refused(&fields(all)).unwrap_err().to_string();
        assert_eq!(
            told(&[
                ("grpc-status", "13"),
                ("grpc-message", "no%20such%20disk%0A")
            ]),
            "rpc error: code = Internal desc = no such disk "
        );
        assert_eq!(
            told(&[("grpc-status", "99")]),
            "rpc error: code = 99 desc = "
        );
        assert_eq!(
            told(&[]),
            "the driver's answer can't be read: it has no status"
        );
        assert!(refused(&fields(&[("grpc-status", "0")])).is_ok());
        let long = "x".repeat(5000);
        assert!(told(&[("grpc-status", "2"), ("grpc-message", &long)]).len() < 1100);
    }

    proptest! {
        #[test]
        fn no_escape_panics(text in "[%0-9a-fA-Fx]{0,12}") {
            prop_assert!(unescaped(&text).len() <= 3 * text.len());
        }
    }
}
