//! Logs and watches over WebSocket, as a client of RFC 6455 sees them on the wire.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::{Identity, Server};
use crate::tunnels::{List, head, server_with};
use config_tunnel::websocket::{self, Kind, masked_frame};
use http::{Method, StatusCode};
use master_api::{DialError, NodeDialer, NodeStream, NodeTarget};
use master_client::BoxFuture;
use master_gateway::NodeLimits;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

const LIMIT: Duration = Duration::from_secs(60);
const LOG: &str = "/api/v1/namespaces/default/pods/p/log?follow=true";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// First bytes of frames: the last of its message, with the opcode.
const TEXT: u8 = 0x81;
const BINARY: u8 = 0x82;
const CLOSE: u8 = 0x88;
const PONG: u8 = 0x8A;

/// A kubelet whose log has the pieces that a test writes, and ends with them.
#[derive(Debug)]
struct Log {
    pieces: Mutex<Option<mpsc::Receiver<&'static str>>>,
    closed: watch::Sender<bool>,
}

impl Log {
    fn new() -> (Arc<Self>, mpsc::Sender<&'static str>) {
        let (write, pieces) = mpsc::channel(8);
        let log = Self {
            pieces: Mutex::new(Some(pieces)),
            closed: watch::Sender::new(false),
        };
        (Arc::new(log), write)
    }

    async fn until_closed(&self) {
        let mut closed = self.closed.subscribe();
        let closed = timeout(LIMIT, closed.wait_for(|closed| *closed)).await;
        closed.expect("the request to the node ends").unwrap();
    }
}

impl NodeDialer for Log {
    fn dial(&self, _target: NodeTarget) -> BoxFuture<'_, Result<Box<dyn NodeStream>, DialError>> {
        let (near, mut far) = tokio::io::duplex(1024);
        let mut pieces = self
            .pieces
            .lock()
            .unwrap()
            .take()
            .expect("it is asked once");
        let closed = self.closed.clone();
        tokio::spawn(async move {
            head(&mut far).await;
            far.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            loop {
                tokio::select! {
                    piece = pieces.recv() => match piece {
                        Some(piece) => far.write_all(piece.as_bytes()).await.unwrap(),
                        None => break,
                    },
                    came = far.read_u8() => {
                        assert!(came.is_err(), "nothing more is sent to the node");
                        break;
                    }
                }
            }
            closed.send_replace(true);
        });
        Box::pin(async move { Ok(Box::new(near) as Box<dyn NodeStream>) })
    }
}

/// A client and the head of the answer that it got.
struct Client {
    stream: TlsStream<TcpStream>,
    head: String,
}

impl Client {
    /// Asks to upgrade, with these headers besides those that each handshake has.
    async fn ask(server: &Server, who: &Identity, path: &str, headers: &str) -> Self {
        let tls = server.client_tls(Some(who), b"http/1.1");
        let mut stream = server.stream(tls).await.unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: keep-alive, Upgrade\r\nupgrade: WebSocket\r\n{headers}\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = timeout(LIMIT, head(&mut stream)).await.expect("an answer");
        Self { stream, head }
    }

    async fn open(server: &Server, path: &str, protocol: &str) -> Self {
        let offer = match protocol {
            "" => String::new(),
            protocol => format!("sec-websocket-protocol: {protocol}\r\n"),
        };
        let admin = server.admin_identity();
        let client = Self::ask(server, &admin, path, &(KEY.to_owned() + &offer)).await;
        let head = &client.head;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let accept = "\r\nsec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";
        assert!(head.contains(accept), "{head}");
        client
    }

    /// The protocol that the server chose.
    fn protocol(&self) -> Option<&str> {
        let lines = &mut self.head.lines();
        lines.find_map(|line| line.strip_prefix("sec-websocket-protocol: "))
    }

    /// The next frame: its first byte and its payload.
    async fn frame(&mut self) -> (u8, Vec<u8>) {
        let read = async {
            let first = self.stream.read_u8().await?;
            let length = match self.stream.read_u8().await? {
                126 => self.stream.read_u16().await?.into(),
                short => usize::from(short),
            };
            let mut payload = vec![0; length];
            self.stream.read_exact(&mut payload).await?;
            Ok::<_, std::io::Error>((first, payload))
        };
        timeout(LIMIT, read).await.expect("a frame comes").unwrap()
    }

    /// The next message, without those that are empty.
    async fn message(&mut self) -> (u8, String) {
        loop {
            let (first, payload) = self.frame().await;
            if !payload.is_empty() {
                return (first, String::from_utf8(payload).unwrap());
            }
        }
    }

    async fn send(&mut self, kind: Kind, payload: &[u8]) {
        let mut out = Vec::new();
        masked_frame(kind, payload, [1, 2, 3, 4], &mut out);
        self.stream.write_all(&out).await.unwrap();
    }

    /// The rest is a close frame with this code, and the end of the connection.
    async fn ends(&mut self, code: u16) {
        let (first, payload) = self.frame().await;
        assert_eq!((first, payload), (CLOSE, code.to_be_bytes().to_vec()));
        let end = timeout(LIMIT, self.stream.read_u8()).await;
        assert!(end.expect("in time").is_err(), "nothing follows");
    }
}

const KEY: &str = "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

#[tokio::test]
async fn a_log_comes_as_messages_and_ends_with_a_close_frame() {
    let (log, write) = Log::new();
    let server = server_with(log, NodeLimits::default()).await;
    let mut client = Client::open(&server, LOG, "v9.unknown, binary.k8s.io").await;
    assert_eq!(client.protocol(), Some("binary.k8s.io"));
    let beginning = client.frame().await;
    assert_eq!(beginning, (BINARY, Vec::new()), "the log begins");
    write.send("container is alive\n").await.unwrap();
    let alive = (BINARY, "container is alive\n".to_owned());
    assert_eq!(client.message().await, alive);
    client.send(Kind::Binary, b"nobody reads this").await;
    client.send(Kind::Ping, b"still there?").await;
    let pong = (PONG, "still there?".to_owned());
    assert_eq!(client.message().await, pong);
    write.send("it goes on\n").await.unwrap();
    assert_eq!(client.message().await.1, "it goes on\n");
    drop(write);
    client.ends(websocket::NORMAL).await;
    server.stop().await;
}

#[tokio::test]
async fn a_log_has_the_protocol_that_its_reader_offers_or_none() {
    for (offered, chosen, message) in [
        ("base64.binary.k8s.io", true, (TEXT, "b25lCg==")),
        ("", false, (BINARY, "one\n")),
    ] {
        let (log, write) = Log::new();
        let server = server_with(log, NodeLimits::default()).await;
        let mut client = Client::open(&server, LOG, offered).await;
        assert_eq!(client.protocol(), chosen.then_some(offered));
        write.send("one\n").await.unwrap();
        let (first, text) = client.message().await;
        assert_eq!((first, &*text), message);
        server.stop().await;
    }
}

#[tokio::test]
async fn the_request_to_the_node_ends_with_the_reader() {
    for says_so in [true, false] {
        let (log, write) = Log::new();
        let server = server_with(log.clone(), NodeLimits::default()).await;
        let mut client = Client::open(&server, LOG, "binary.k8s.io").await;
        write.send("one\n").await.unwrap();
        assert_eq!(client.message().await.1, "one\n");
        if says_so {
            let going_away = websocket::GOING_AWAY;
            client.send(Kind::Close, &going_away.to_be_bytes()).await;
            client.ends(going_away).await;
        }
        drop(client);
        log.until_closed().await;
        server.stop().await;
    }
}

#[tokio::test]
async fn a_websocket_ends_with_the_right_of_its_caller() {
    let (log, _write) = Log::new();
    let server = server_with(log.clone(), NodeLimits::default()).await;
    let list = List::new();
    assert!(server.local.api.set_deny_list(list.clone()));
    let bad = server.authority.issue("bad", &["system:masters"], &[]);
    let maps = format!("{MAPS}?watch=1");
    let (mut reader, mut watcher) = (
        Client::ask(&server, &bad, LOG, KEY).await,
        Client::ask(&server, &bad, &maps, KEY).await,
    );
    assert_eq!(reader.frame().await, (BINARY, Vec::new()));
    list.deny("bad");
    for client in [&mut reader, &mut watcher] {
        let end = timeout(LIMIT, client.stream.read_u8()).await;
        assert!(end.expect("in time").is_err(), "it is cut");
    }
    log.until_closed().await;
    server.stop().await;
}

#[tokio::test]
async fn a_reader_that_breaks_the_protocol_hears_so() {
    let (log, _write) = Log::new();
    let server = server_with(log.clone(), NodeLimits::default()).await;
    let mut client = Client::open(&server, LOG, "").await;
    assert_eq!(client.frame().await, (BINARY, Vec::new()));
    // A server's frame: it has no mask.
    client.stream.write_all(&[BINARY, 0]).await.unwrap();
    client.ends(websocket::PROTOCOL_ERROR).await;
    log.until_closed().await;
    server.stop().await;
}

#[tokio::test]
async fn each_refusal_of_a_websocket_is_an_answer_over_http() {
    let (log, _write) = Log::new();
    let server = server_with(log, NodeLimits::default()).await;
    let pods = "/api/v1/namespaces/default/pods";
    let (several, maps) = (
        KEY.to_owned() + "sec-websocket-protocol: a, b\r\n",
        format!("{MAPS}?watch=1"),
    );
    for (path, headers, status, message) in [
        (
            LOG,
            &*(KEY.to_owned() + "sec-websocket-protocol: v5.channel.k8s.io\r\n"),
            "403",
            "no WebSocket protocol of v5.channel.k8s.io is served here, only binary.k8s.io, base64.binary.k8s.io",
        ),
        (
            LOG,
            "sec-websocket-version: 8\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
            "400",
            "only version 13",
        ),
        (
            LOG,
            "sec-websocket-version: 13\r\n",
            "400",
            "Sec-WebSocket-Key",
        ),
        (
            &format!("{pods}/none/log"),
            KEY,
            "404",
            "pods \"none\" not found",
        ),
        (
            &format!("{pods}/waits/log"),
            KEY,
            "400",
            "does not have a host assigned",
        ),
        (
            &maps,
            &several,
            "400",
            "one WebSocket protocol at most, not a, b",
        ),
    ] {
        let mut client = Client::ask(&server, &server.admin_identity(), path, headers).await;
        let line = client.head.lines().next().unwrap_or_default().to_owned();
        let length = client.head.lines().find_map(|line| {
            let length = line.strip_prefix("content-length: ")?;
            length.parse().ok()
        });
        let mut body = vec![0; length.expect("a refusal has a length")];
        client.stream.read_exact(&mut body).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let said = body["message"].as_str().unwrap_or_default();
        assert!(
            line.contains(status) && said.contains(message),
            "{path}: {line} {said}"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn each_event_of_a_watch_is_a_message_of_text() {
    let (log, _write) = Log::new();
    let server = server_with(log, NodeLimits::default()).await;
    let make = async |name: &str, size: usize| {
        let map = json!({"metadata": {"name": name}, "data": {"text": "x".repeat(size)}});
        let (status, said) = server.local.admin_ask(Method::POST, MAPS, &map).await;
        assert_eq!(status, StatusCode::CREATED, "{said}");
    };
    make("before", 1).await;
    let path = format!("{MAPS}?watch=1&fieldSelector=metadata.name!=kube-root-ca.crt");
    let mut client = Client::open(&server, &path, "anything").await;
    assert_eq!(client.protocol(), Some("anything"));
    // The second is sent in fragments, but read as one message.
    for (name, size) in [("before", 1), ("large", 20_000), ("small", 1)] {
        if name != "before" {
            make(name, size).await;
        }
        let (first, text) = client.message().await;
        let event: Value = serde_json::from_str(&text).unwrap();
        let received = (first, &event["type"], &event["object"]["metadata"]["name"]);
        assert_eq!(received, (TEXT, &json!("ADDED"), &json!(name)));
    }
    let ending = format!(
        "{MAPS}?watch=1&resourceVersion=0&timeoutSeconds=1&fieldSelector=metadata.name=small"
    );
    let mut short = Client::open(&server, &ending, "").await;
    assert_eq!(short.message().await.0, TEXT);
    short.ends(websocket::NORMAL).await;
    server.stop().await;
    client.ends(websocket::GOING_AWAY).await;
}
