//! A call of a driver over its Unix socket.
//!
//! A driver's answers are hostile input: every call has a time limit, an answer is read up to
//! [`LONGEST_ANSWER`], and words of the driver that a person reads are cut.

use agent_grpc::{Answer, Call, Channel, Error};
use agent_sys::beneath::{Beneath, Links};
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
    /// The socket does not accept a connection.
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
        let place = Beneath::root(&self.root)?.handle(&self.path, Links::Refused)?;
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
    let asked = async { message(exchange(socket, method, request).await?) };
    timeout(limit, asked)
        .await
        .unwrap_or(Err(CallError::Late(limit)))
}

/// The message of an answer, if the driver did not refuse.
pub(crate) fn message<A: Message + Default>(answer: Answer) -> Result<A, CallError> {
    refused(&answer)?;
    agent_grpc::message(answer.body).map_err(|error| CallError::Answer(error.to_string()))
}

async fn exchange(
    socket: &Socket,
    method: &str,
    request: &impl Message,
) -> Result<Answer, CallError> {
    let unreachable = |why: &dyn std::error::Error| CallError::Unreachable {
        path: socket.path.display().to_string(),
        why: why.to_string(),
    };
    let stream = socket
        .connect()
        .await
        .map_err(|error| unreachable(&error))?;
    let channel = Channel::open(stream)
        .await
        .map_err(|error| unreachable(&error))?;
    let call = Call {
        authority: "localhost",
        method,
        headers: &[],
        longest: LONGEST_ANSWER,
    };
    let answer = channel.call(&call, request).await;
    answer.map_err(|error| match error {
        Error::Connection(_) | Error::Ended(_) => unreachable(&error),
        Error::Request(_) | Error::Http(_) | Error::Body(_) | Error::Frame | Error::Message(_) => {
            CallError::Answer(error.to_string())
        }
    })
}

/// The error that an answer's status names.
fn refused(answer: &Answer) -> Result<(), CallError> {
    let status = answer
        .status()
        .ok_or_else(|| CallError::Answer("it has no status".into()))?;
    if status.is_ok() {
        return Ok(());
    }
    let name = status.name();
    Err(CallError::Refused {
        code: name.map_or_else(|| cut(&status.code), str::to_owned),
        message: cut(&status.message),
    })
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

    fn refusal(all: &[(&'static str, &str)]) -> Result<(), CallError> {
        let pairs = all
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        refused(&Answer {
            headers: pairs.collect(),
            trailers: None,
            body: bytes::Bytes::new(),
        })
    }

    #[test]
    fn a_refusal_is_reported_in_the_words_of_go() {
        let message_of = |all: &[(&'static str, &str)]| refusal(all).unwrap_err().to_string();
        assert_eq!(
            message_of(&[
                ("grpc-status", "13"),
                ("grpc-message", "no%20such%20disk%0A")
            ]),
            "rpc error: code = Internal desc = no such disk "
        );
        assert_eq!(
            message_of(&[("grpc-status", "99")]),
            "rpc error: code = 99 desc = "
        );
        assert_eq!(
            message_of(&[]),
            "the driver's answer can't be read: it has no status"
        );
        assert!(refusal(&[("grpc-status", "0")]).is_ok());
        let long = "x".repeat(5000);
        assert!(message_of(&[("grpc-status", "2"), ("grpc-message", &long)]).len() < 1100);
    }
}
