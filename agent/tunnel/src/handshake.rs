//! The upgrade of a client's request to WebSocket or SPDY.

use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};

/// Why no tunnel is made. The client gets the status and the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TunnelRefusal {
    /// The answer's status.
    pub status: StatusCode,
    /// The message for the client's user.
    pub message: String,
}

impl TunnelRefusal {
    /// A refusal with this status and message.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, message }
    }

    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            message: message.into(),
        }
    }

    pub(crate) fn too_many() -> Self {
        Self {
            status: StatusCode::TOO_MANY_REQUESTS,
            message:
                "the node has as many tunnels at once as it may: try again when others have ended"
                    .to_owned(),
        }
    }
}

/// What a connection is to become.
#[derive(Debug)]
enum Upgrade {
    /// A WebSocket, with the answer to its key.
    WebSocket { accept: String },
    /// One of SPDY.
    Spdy,
}

/// The protocols inside SPDY (Kubernetes, `httpstream`).
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// How SPDY is called in `Upgrade`.
const SPDY: &str = "SPDY/3.1";

/// A client's handshake for WebSocket (RFC 6455, 4.2.1) or SPDY. It is valid; the subprotocols are
/// not negotiated yet.
#[derive(Debug)]
pub(crate) struct Offer {
    upgrade: Upgrade,
    /// The protocols that it offers, with commas between them.
    pub(crate) protocols: String,
}

impl Offer {
    /// Reads a request's handshake.
    ///
    /// # Errors
    /// It is no upgrade, an upgrade to another protocol, or invalid.
    pub(crate) fn of<B>(request: &Request<B>) -> Result<Self, TunnelRefusal> {
        let headers = request.headers();
        if !has(headers, &CONNECTION, "upgrade") || !headers.contains_key(UPGRADE) {
            return Err(TunnelRefusal::bad("Upgrade request required"));
        }
        if has(headers, &UPGRADE, SPDY) {
            if ![Method::GET, Method::POST].contains(request.method()) {
                return Err(TunnelRefusal::bad("SPDY begins with POST or GET"));
            }
            return Ok(Self {
                upgrade: Upgrade::Spdy,
                protocols: list(headers, &STREAM_PROTOCOL),
            });
        }
        if !has(headers, &UPGRADE, "websocket") {
            return Err(TunnelRefusal::bad(
                "only upgrades to websocket and SPDY/3.1 are served",
            ));
        }
        if request.method() != Method::GET {
            return Err(TunnelRefusal::bad("a WebSocket begins with GET"));
        }
        if !has(headers, &SEC_WEBSOCKET_VERSION, "13") {
            return Err(TunnelRefusal::bad("only version 13 of WebSocket is served"));
        }
        let key = headers
            .get(SEC_WEBSOCKET_KEY)
            .and_then(|key| key.to_str().ok());
        let accept = key
            .and_then(config_tunnel::websocket::accept)
            .ok_or_else(|| TunnelRefusal::bad("Sec-WebSocket-Key is missing or no key"))?;
        Ok(Self {
            upgrade: Upgrade::WebSocket { accept },
            protocols: list(headers, &SEC_WEBSOCKET_PROTOCOL),
        })
    }

    /// Whether the connection is to become one of SPDY.
    pub(crate) fn is_spdy(&self) -> bool {
        matches!(self.upgrade, Upgrade::Spdy)
    }

    /// Whether it offers this protocol.
    pub(crate) fn names(&self, protocol: &str) -> bool {
        self.protocols
            .split(',')
            .any(|name| name.trim() == protocol)
    }

    /// The refusal if none of the offered protocols is among these.
    pub(crate) fn unknown(&self, known: &str) -> TunnelRefusal {
        TunnelRefusal::bad(format!(
            "unable to negotiate protocol: client supports [{}], server supports [{known}]",
            self.protocols
        ))
    }

    /// The answer that agrees on a protocol inside.
    pub(crate) fn agree(&self, protocol: &'static str) -> Response<()> {
        let mut head = Response::new(());
        *head.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = head.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        let protocol = HeaderValue::from_static(protocol);
        match &self.upgrade {
            Upgrade::Spdy => {
                headers.insert(UPGRADE, HeaderValue::from_static(SPDY));
                headers.insert(STREAM_PROTOCOL, protocol);
            }
            Upgrade::WebSocket { accept } => {
                headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
                // Base64 is a header's value.
                if let Ok(accept) = HeaderValue::from_str(accept) {
                    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
                }
                headers.insert(SEC_WEBSOCKET_PROTOCOL, protocol);
            }
        }
        head
    }
}

/// A header's values as one list. Clients of SPDY repeat the header.
fn list(headers: &HeaderMap, name: &HeaderName) -> String {
    let values = headers.get_all(name).iter();
    let values: Vec<&str> = values.filter_map(|value| value.to_str().ok()).collect();
    values.join(",")
}

/// Whether a header's list has a word, in whatever case.
pub(crate) fn has(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|one| one.trim().eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&'static str, &'static str)]) -> Request<()> {
        let request = headers
            .iter()
            .fold(Request::get("/"), |request, (name, value)| {
                request.header(*name, *value)
            });
        request.body(()).unwrap()
    }

    const WHOLE: [(&str, &str); 5] = [
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-protocol", "v5.channel.k8s.io"),
    ];

    #[test]
    fn a_handshake_in_order_is_agreed_to() {
        let offer = Offer::of(&request(&WHOLE)).unwrap();
        assert_eq!(offer.protocols, "v5.channel.k8s.io");
        let head = offer.agree("v5.channel.k8s.io");
        assert_eq!(head.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(
            head.headers()[SEC_WEBSOCKET_ACCEPT],
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
    }

    #[test]
    fn each_thing_that_is_not_in_order_has_its_reason() {
        for (number, (name, value), reason) in [
            (0, ("connection", "close"), "Upgrade request required"),
            (1, ("upgrade", "h2c"), "only upgrades to websocket"),
            (2, ("sec-websocket-version", "8"), "only version 13"),
            (3, ("sec-websocket-key", "short"), "Sec-WebSocket-Key"),
        ] {
            let mut headers = WHOLE;
            headers[number] = (name, value);
            let refusal = Offer::of(&request(&headers)).unwrap_err();
            assert_eq!(refusal.status, StatusCode::BAD_REQUEST);
            assert!(refusal.message.contains(reason), "{}", refusal.message);
        }
        let mut posted = request(&WHOLE);
        *posted.method_mut() = Method::POST;
        let refusal = Offer::of(&posted).unwrap_err();
        assert_eq!(refusal.message, "a WebSocket begins with GET");
    }

    #[test]
    fn spdy_is_agreed_to_with_one_of_the_protocols_that_the_client_repeats() {
        let whole = [
            ("connection", "Upgrade"),
            ("upgrade", "SPDY/3.1"),
            ("x-stream-protocol-version", "v5.channel.k8s.io"),
            (
                "x-stream-protocol-version",
                "v4.channel.k8s.io, v3.channel.k8s.io",
            ),
        ];
        for (method, agreed) in [
            (Method::POST, true),
            (Method::GET, true),
            (Method::PUT, false),
        ] {
            let mut asked = request(&whole);
            *asked.method_mut() = method;
            assert_eq!(Offer::of(&asked).is_ok(), agreed, "{}", asked.method());
        }
        let offer = Offer::of(&request(&whole)).unwrap();
        assert!(offer.is_spdy() && offer.names("v4.channel.k8s.io"));
        assert!(!offer.names("channel.k8s.io"));
        let head = offer.agree("v4.channel.k8s.io");
        assert_eq!(head.status(), StatusCode::SWITCHING_PROTOCOLS);
        for (name, value) in [
            (CONNECTION, "Upgrade"),
            (UPGRADE, "SPDY/3.1"),
            (STREAM_PROTOCOL, "v4.channel.k8s.io"),
        ] {
            assert_eq!(head.headers()[name], value);
        }
        assert!(!head.headers().contains_key(SEC_WEBSOCKET_PROTOCOL));
    }
}
