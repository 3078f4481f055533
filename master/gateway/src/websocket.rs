//! Answers over WebSocket: logs and watches, for clients that can't read a body while it comes,
//! such as browsers.
//!
//! The answer is made as it is over HTTP alone, refusals included. If its status is 200, the
//! connection becomes a WebSocket, and the body becomes its messages: a log's pieces, or one
//! message for each event of a watch. Pings and the close frame of the client are answered; its
//! other frames are ignored, as upstream does. The body is read no faster than the client reads.
//! When the client ends, the body is dropped, and with it the request to the node.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use config_errors::chain;
use config_tunnel::websocket::{
    self, Decoder, Event, GOING_AWAY, Kind, NORMAL, PROTOCOL_ERROR, Sender, frame,
};
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use master_client::{Body, body};
use master_schema::error::{ApiError, Reason};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The protocols of a log, and how each carries its bytes (upstream: `wsstream`).
const LOG: [(&str, Messages); 2] = [
    ("binary.k8s.io", Messages::Bytes),
    ("base64.binary.k8s.io", Messages::Base64),
];
/// The end because of an error here or at the node (RFC 6455, 7.4.1).
const INTERNAL_ERROR: u16 = 1011;
/// Bytes that are read of a client at once. A pong is not longer than its ping.
const READ_BUFFER: usize = 4096;
/// Time for a client to close its side, so that the last messages reach it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// How a body becomes messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Messages {
    /// Each piece as it is.
    Bytes,
    /// Each piece as text in base64.
    Base64,
    /// Each line as text.
    Lines,
}

/// What a WebSocket carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebSocketContent {
    /// A container's log, in one of two protocols or in none.
    Log,
    /// A watch, a message for each event. They are the same whatever protocol the client names.
    Watch,
}

/// A client's WebSocket handshake that was checked and can be accepted.
#[derive(Debug)]
pub struct Socket {
    client: OnUpgrade,
    messages: Messages,
    accept: HeaderValue,
    protocol: Option<HeaderValue>,
}

impl Socket {
    /// The WebSocket that a request asks for; `None` where it asks for none.
    ///
    /// # Errors
    /// The handshake is not that of RFC 6455 (400), or names no protocol that is served (403).
    pub fn requested(
        carried: WebSocketContent,
        method: &Method,
        headers: &HeaderMap,
        upgrade: Option<&OnUpgrade>,
    ) -> Result<Option<Self>, ApiError> {
        let is_upgrade = method == Method::GET
            && value(headers, &UPGRADE).eq_ignore_ascii_case("websocket")
            && list(headers, &CONNECTION).any(|word| word.eq_ignore_ascii_case("upgrade"));
        if !is_upgrade {
            return Ok(None);
        }
        let (messages, protocol) = agree(carried, headers)?;
        let client = upgrade.ok_or_else(|| bad("this connection can't become a WebSocket"))?;
        if value(headers, &SEC_WEBSOCKET_VERSION) != "13" {
            return Err(bad("only version 13 of WebSocket is served"));
        }
        let accept = websocket::accept(value(headers, &SEC_WEBSOCKET_KEY))
            .and_then(|accept| HeaderValue::try_from(accept).ok())
            .ok_or_else(|| bad("Sec-WebSocket-Key is not 16 bytes in base64"))?;
        let protocol = protocol.map(HeaderValue::from_str).transpose();
        let protocol = protocol.map_err(|_invalid| bad("the WebSocket protocol has no name"))?;
        Ok(Some(Self {
            client: client.clone(),
            messages,
            accept,
            protocol,
        }))
    }

    /// Accepts the handshake and sends the answer's body in a task of its own, until the body or
    /// the client ends, the server is `draining`, or `cut` returns the reason to close. An answer
    /// other than 200 is returned unchanged.
    pub fn carry(
        self,
        answer: Response<Body>,
        cut: impl Future<Output = String> + Send + 'static,
        draining: impl Future<Output = ()> + Send + 'static,
    ) -> Response<Body> {
        if answer.status() != StatusCode::OK {
            return answer;
        }
        let mut response = Response::new(body(Bytes::new()));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(SEC_WEBSOCKET_ACCEPT, self.accept);
        if let Some(protocol) = self.protocol {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, protocol);
        }
        let (client, messages, content) = (self.client, self.messages, answer.into_body());
        tokio::spawn(async move {
            let moving = async {
                let client = TokioIo::new(client.await?);
                exchange_messages(client, content, messages, draining).await?;
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            };
            // Cancel-safe: what is cut is dropped, the connection and the body with it. The order
            // matters: a denied caller must get nothing that happened after the denial.
            tokio::select! {
                biased;
                why = cut => tracing::info!(reason = why, "WebSocket closed"),
                moved = moving => if let Err(error) = moved {
                    tracing::debug!(error = chain(error.as_ref()), "WebSocket broke");
                },
            }
        });
        response
    }
}

/// How messages are made, and the protocol's name.
fn agree(
    carried: WebSocketContent,
    headers: &HeaderMap,
) -> Result<(Messages, Option<&str>), ApiError> {
    let offered: Vec<&str> = list(headers, &SEC_WEBSOCKET_PROTOCOL).collect();
    let known = |name: &&str| LOG.iter().find(|(known, _)| known == name).copied();
    match (carried, offered.as_slice()) {
        (WebSocketContent::Log, []) => Ok((Messages::Bytes, None)),
        (WebSocketContent::Log, all) => {
            let agreed = all.iter().find_map(known);
            let agreed = agreed.map(|(name, messages)| (messages, Some(name)));
            agreed.ok_or_else(|| {
                let (all, known) = (all.join(", "), LOG.map(|(name, _)| name).join(", "));
                let text = format!("no WebSocket protocol of {all} is served here, only {known}");
                ApiError::new(Reason::Forbidden, text)
            })
        }
        (WebSocketContent::Watch, []) => Ok((Messages::Lines, None)),
        (WebSocketContent::Watch, [only]) => Ok((Messages::Lines, Some(only))),
        (WebSocketContent::Watch, several) => Err(bad(&format!(
            "a watch has one WebSocket protocol at most, not {}",
            several.join(", ")
        ))),
    }
}

fn bad(text: &str) -> ApiError {
    ApiError::new(Reason::BadRequest, text)
}

fn value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default()
}

/// The words of a header that is a list.
fn list<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> + use<'a> {
    let values = headers.get_all(name).into_iter();
    let words = values.filter_map(|value| value.to_str().ok());
    words
        .flat_map(|text| text.split(','))
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

/// Sends the messages of a body, answers the client's pings, and ends with a close frame.
async fn exchange_messages(
    client: impl AsyncRead + AsyncWrite,
    content: Body,
    messages: Messages,
    draining: impl Future<Output = ()>,
) -> io::Result<()> {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut decoder, mut inbox) = (Decoder::new(Sender::Client), vec![0; READ_BUFFER]);
    let (mut content, mut line, mut out) = (content, BytesMut::new(), Vec::new());
    let mut draining = std::pin::pin!(draining);
    if messages != Messages::Lines {
        // An empty message says that the log begins, as upstream's does.
        messages.take(&mut line, &Bytes::new(), &mut out);
    }
    let mut end = None;
    while end.is_none() {
        to_client.write_all(&out).await?;
        to_client.flush().await?;
        out.clear();
        // Cancel-safe: `read` and `frame` take nothing unless they return it.
        end = tokio::select! {
            came = from_client.read(&mut inbox) => match came? {
                0 => return Ok(()),
                count => read_frames(&mut decoder, &mut inbox[..count], &mut out),
            },
            piece = content.frame() => match piece.map(|piece| piece.map(http_body::Frame::into_data)) {
                Some(Ok(piece)) => {
                    messages.take(&mut line, &piece.unwrap_or_default(), &mut out);
                    None
                }
                Some(Err(_error)) => Some(INTERNAL_ERROR),
                // A watch ends by itself when the server does.
                None => tokio::select! {
                    biased;
                    () = &mut draining => Some(GOING_AWAY),
                    () = std::future::ready(()) => Some(NORMAL),
                },
            },
            () = &mut draining => Some(GOING_AWAY),
        };
    }
    drop(content);
    let code = end.unwrap_or(NORMAL);
    frame(Kind::Close, &code.to_be_bytes(), &[], &mut out);
    to_client.write_all(&out).await?;
    to_client.shutdown().await?;
    let mut unread = tokio::io::sink();
    let rest = tokio::io::copy(&mut from_client, &mut unread);
    // A client that does not close in time is disconnected; that is no error.
    let rest = tokio::time::timeout(CLOSE_TIMEOUT, rest).await;
    rest.map_or(Ok(()), |copied| copied.map(drop))
}

/// Reads a client's frames: appends answers to `out`, and returns the close code if the connection
/// ends.
fn read_frames(decoder: &mut Decoder, mut input: &mut [u8], out: &mut Vec<u8>) -> Option<u16> {
    loop {
        let Ok((used, event)) = decoder.take(input) else {
            return Some(PROTOCOL_ERROR);
        };
        match event {
            None => return None,
            Some(Event::Ping(payload)) => frame(Kind::Pong, payload, &[], out),
            Some(Event::Close(code)) => return Some(code.unwrap_or(NORMAL)),
            Some(Event::Data { .. } | Event::Pong) => {}
        }
        input = &mut input[used..];
    }
}

impl Messages {
    /// Appends the messages that a piece completes; `line` keeps the beginning of a line, which is
    /// not longer than an object.
    fn take(self, line: &mut BytesMut, piece: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Bytes => frame(Kind::Binary, piece, &[], out),
            Self::Base64 => frame(Kind::Text, STANDARD.encode(piece).as_bytes(), &[], out),
            Self::Lines => {
                for part in piece.split_inclusive(|byte| *byte == b'\n') {
                    line.extend_from_slice(part);
                    if line.ends_with(b"\n") {
                        frame(Kind::Text, line, &[], out);
                        line.clear();
                    }
                }
            }
        }
    }
}
