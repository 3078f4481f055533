//! One call of gRPC (HTTP/2 in the clear) over a stream that the caller opened: to CSI drivers over
//! their Unix sockets, and to programs with a health check over TCP.
//!
//! The other end is hostile: headers are read up to 16 KiB, an answer up to [`Call::longest`], and
//! what is not known is skipped. The caller sets the time limit: nothing goes on after the future
//! of a call is dropped.
//!
//! Enter by [`Channel::open`]. [`Answer::status`] says whether the server did what was asked;
//! [`message`] reads what it answered.

mod frame;
mod status;

pub use frame::message;
pub use status::Status;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use std::fmt;
use std::pin::{Pin, pin};
use tokio::io::{AsyncRead, AsyncWrite};

/// The header list of an answer, in bytes.
const LONGEST_HEADERS: u32 = 16 << 10;

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection failed.
    #[error(transparent)]
    Connection(#[from] hyper::Error),
    /// The connection ended before the answer.
    #[error("the connection ended: {0:?}")]
    Ended(hyper::Error),
    /// The method or a header can't be sent.
    #[error(transparent)]
    Request(#[from] http::Error),
    /// The server does not speak gRPC.
    #[error("HTTP status {0}")]
    Http(StatusCode),
    /// The answer ended early, or is too long.
    #[error(transparent)]
    Body(Box<dyn std::error::Error + Send + Sync>),
    /// The answer is not one message without compression.
    #[error("the answer is not a gRPC message")]
    Frame,
    /// The answer is no message of the type that was asked for.
    #[error(transparent)]
    Message(#[from] prost::DecodeError),
}

/// One call.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The server's name; a Unix socket has one server, and any name will do.
    pub authority: &'a str,
    /// The method, such as `/csi.v1.Node/NodeGetInfo`.
    pub method: &'a str,
    /// Headers beside those of the protocol.
    pub headers: &'a [(&'static str, &'a str)],
    /// Bytes of an answer at most.
    pub longest: usize,
}

/// A connection for one call.
pub struct Channel {
    sender: http2::SendRequest<Full<Bytes>>,
    connection: Pin<Box<dyn Future<Output = Result<(), hyper::Error>> + Send>>,
}

/// What a server answered.
#[derive(Debug)]
pub struct Answer {
    /// The headers.
    pub headers: HeaderMap,
    /// The headers after the body.
    pub trailers: Option<HeaderMap>,
    /// The frame with the message; see [`message`].
    pub body: Bytes,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").finish_non_exhaustive()
    }
}

impl Channel {
    /// Begins HTTP/2 over a stream.
    ///
    /// # Errors
    /// [`Error::Connection`]: the other end is gone, or speaks another protocol.
    pub async fn open<S>(stream: S) -> Result<Self, Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_header_list_size(LONGEST_HEADERS)
            .handshake(TokioIo::new(stream))
            .await?;
        Ok(Self {
            sender,
            connection: Box::pin(connection),
        })
    }

    /// Sends a message and reads the answer, whatever its status.
    ///
    /// # Errors
    /// There is no answer, or none of gRPC.
    pub async fn call(self, call: &Call<'_>, message: &impl Message) -> Result<Answer, Error> {
        let Self {
            mut sender,
            connection,
        } = self;
        let mut request = Request::post(format!("http://{}{}", call.authority, call.method))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in call.headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(frame::framed(message)))?;
        let mut exchange =
            pin!(async { gather(sender.send_request(request).await?, call.longest).await });
        let ended = tokio::select! {
            answer = &mut exchange => return answer,
            // The exchange stays, and the connection is dropped.
            ended = connection => ended,
        };
        // A server that stops closes the connection right after its answer, or takes no further
        // calls before it: hyper ends the connection in both cases, and its tasks still bring what
        // the server sent. Where that is no answer, the exchange fails.
        match exchange.await {
            Err(Error::Connection(error)) => Err(Error::Ended(ended.err().unwrap_or(error))),
            answer => answer,
        }
    }
}

async fn gather(answer: Response<Incoming>, longest: usize) -> Result<Answer, Error> {
    let (head, body) = answer.into_parts();
    if head.status != StatusCode::OK {
        return Err(Error::Http(head.status));
    }
    let body = Limited::new(body, longest)
        .collect()
        .await
        .map_err(Error::Body)?;
    Ok(Answer {
        headers: head.headers,
        trailers: body.trailers().cloned(),
        body: body.to_bytes(),
    })
}

impl Answer {
    /// The status that the server gave, if it gave one.
    pub fn status(&self) -> Option<Status> {
        // A server that refuses at once puts its status into the head.
        let after = self.trailers.as_ref().and_then(Status::of);
        after.or_else(|| Status::of(&self.headers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use tokio::time::timeout;

    /// Types of frames (RFC 9113, section 6).
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;
    /// The flag END_STREAM of headers and data, which is ACK of settings and pings.
    const LAST: u8 = 1;
    /// The flag END_HEADERS.
    const COMPLETE: u8 = 4;
    /// Calls of each test, as it is chance which of two tasks is asked first.
    const CALLS: usize = 64;

    #[derive(Clone, Copy, PartialEq, Eq, Message)]
    struct Nothing {}

    fn http2(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        let head = [0, 0, length, kind, flags, 0, 0, 0, stream];
        [&head[..], payload].concat()
    }

    /// The head of an answer: `:status: 200` of HPACK's static table.
    fn head() -> Vec<u8> {
        http2(HEADERS, COMPLETE, 1, &[0x88])
    }

    /// The rest of it: an empty message, and that all went well.
    fn rest() -> Vec<u8> {
        let status = [&[0, 11][..], b"grpc-status", &[1], b"0"].concat();
        let trailers = http2(HEADERS, COMPLETE | LAST, 1, &status);
        [http2(DATA, 0, 1, &[0; 5]), trailers].concat()
    }

    /// The server takes no further calls; `last` is the last that it answers.
    fn goaway(last: u8) -> Vec<u8> {
        http2(GOAWAY, 0, 0, &[0, 0, 0, last, 0, 0, 0, 0])
    }

    /// Reads frames until so many had the flag [`LAST`].
    async fn read(stream: &mut DuplexStream, mut wanted: u8) -> io::Result<()> {
        while wanted > 0 {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await?;
            let length = u16::from_be_bytes([head[1], head[2]]);
            let mut payload = vec![0; usize::from(length)];
            stream.read_exact(&mut payload).await?;
            wanted -= head[4] & LAST;
        }
        Ok(())
    }

    /// A server of one call: it sends `first`, if there is that, and once the client has read it,
    /// `last`. Then it closes at once.
    async fn serve(
        mut stream: DuplexStream,
        first: Option<Vec<u8>>,
        last: Vec<u8>,
    ) -> io::Result<()> {
        stream.read_exact(&mut [0; 24]).await?;
        stream.write_all(&http2(SETTINGS, 0, 0, &[])).await?;
        // That the settings are taken, and the end of the request, in any order.
        read(&mut stream, 2).await?;
        if let Some(first) = first {
            let ping = http2(PING, 0, 0, &[0; 8]);
            stream.write_all(&[first, ping].concat()).await?;
            read(&mut stream, 1).await?;
        }
        stream.write_all(&last).await
    }

    async fn ask(first: Option<Vec<u8>>, last: Vec<u8>) -> Result<Answer, Error> {
        let (own, other) = tokio::io::duplex(1 << 16);
        let server = tokio::spawn(serve(other, first, last));
        let call = Call {
            authority: "localhost",
            method: "/test.Test/Ask",
            headers: &[],
            longest: 64,
        };
        let asked = async { Channel::open(own).await?.call(&call, &Nothing {}).await };
        let answer = timeout(Duration::from_secs(60), asked).await;
        let answer = answer.expect("a call ends with its connection");
        server.await.unwrap().unwrap();
        answer
    }

    fn is_whole(answer: &Answer) -> bool {
        answer.body[..] == [0; 5] && answer.status().is_some_and(|status| status.is_ok())
    }

    #[tokio::test]
    async fn an_answer_counts_after_which_the_server_closes_at_once() {
        for number in 0..CALLS {
            let last_frame = if number % 2 == 0 {
                goaway(1)
            } else {
                Vec::new()
            };
            let answer = ask(None, [head(), rest(), last_frame].concat()).await;
            assert!(is_whole(&answer.unwrap()), "call {number}");
        }
    }

    #[tokio::test]
    async fn an_answer_counts_of_a_server_that_takes_no_further_calls_in_its_middle() {
        for number in 0..CALLS {
            let first = [head(), goaway(1)].concat();
            let answer = ask(Some(first), rest()).await;
            assert!(is_whole(&answer.unwrap()), "call {number}");
        }
    }

    #[tokio::test]
    async fn a_call_fails_with_its_connection_where_that_ends_without_an_answer() {
        for number in 0..CALLS {
            let last_frame = if number % 2 == 0 {
                goaway(0)
            } else {
                Vec::new()
            };
            let error = ask(None, last_frame).await.unwrap_err();
            let is_connections = matches!(error, Error::Connection(_) | Error::Ended(_));
            assert!(is_connections, "call {number}: {error}");
        }
    }
}
