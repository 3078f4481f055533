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
use std::pin::Pin;
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
    Ended(Result<(), hyper::Error>),
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
        let exchange = async { gather(sender.send_request(request).await?, call.longest).await };
        tokio::select! {
            // The exchange gets the connection's error; the connection ends with this future.
            answer = exchange => answer,
            ended = connection => Err(Error::Ended(ended)),
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
