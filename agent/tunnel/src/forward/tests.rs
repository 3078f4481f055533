//! A client and programs on loopback, without a node.

use super::*;
use agent_runtime::PodRef;
use config_tunnel::spdy::{self, Headers, Opener};
use config_tunnel::websocket::{self, Decoder, Kind, Sender, masked_frame};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longest wait for what must come.
const LIMIT: Duration = Duration::from_secs(60);

/// A client of port-forward.
struct Client {
    stream: DuplexStream,
    opener: Opener,
    decoder: Decoder,
    /// Bytes of messages that came.
    came: Vec<u8>,
    next: u32,
    /// Frames of SPDY are in messages of a WebSocket.
    messages: bool,
    work: JoinHandle<io::Result<()>>,
}

impl Client {
    fn new(places: usize) -> Self {
        Self::over(places, true)
    }

    fn over(places: usize, messages: bool) -> Self {
        let (stream, served) = tokio::io::duplex(64 * 1024);
        let link = if messages {
            Link::websocket(served)
        } else {
            Link::spdy(served)
        };
        let pod = PodRef {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            uid: "u1".to_owned(),
        };
        let ports = ForwardTarget { pod, network: None };
        let forward = relay(link, ports, Arc::new(Semaphore::new(places)));
        Self {
            stream,
            opener: Opener::default(),
            decoder: Decoder::new(Sender::Server),
            came: Vec::new(),
            next: 1,
            messages,
            work: tokio::spawn(forward.run()),
        }
    }

    async fn send(&mut self, bytes: &[u8]) {
        let mut frame = Vec::new();
        if self.messages {
            masked_frame(Kind::Binary, bytes, [9, 8, 7, 6], &mut frame);
        } else {
            frame.extend_from_slice(bytes);
        }
        self.stream.write_all(&frame).await.unwrap();
    }

    /// Asks for a connection; its number.
    async fn connect(&mut self, port: u16) -> u32 {
        let (first, mut bytes) = (self.next, Vec::new());
        self.next += 4;
        let (port, id) = (port.to_string(), first.to_string());
        for (stream, role) in [(first, "error"), (first + 2, "data")] {
            let headers =
                Headers::from([("streamtype", role), ("port", &*port), ("requestid", &*id)]);
            self.opener.open(stream, &headers, &mut bytes);
        }
        self.send(&bytes).await;
        first + 2
    }

    async fn data(&mut self, connection: u32, bytes: &[u8], ends: bool) {
        let mut frame = Vec::new();
        spdy::data(connection, bytes, ends, &mut frame);
        self.send(&frame).await;
    }

    /// Reads until these bytes have come.
    async fn until(&mut self, wanted: &[u8]) {
        let reading = async {
            let mut bytes = [0; 4096];
            while !self.came.windows(wanted.len()).any(|some| some == wanted) {
                let count = self.stream.read(&mut bytes).await.unwrap();
                assert!(
                    count > 0,
                    "it ended after {:?}",
                    String::from_utf8_lossy(&self.came)
                );
                let mut rest = &mut bytes[..count];
                if !self.messages {
                    self.came.extend_from_slice(rest);
                    continue;
                }
                while let (used, Some(event)) = self.decoder.take(rest).unwrap() {
                    if let websocket::Event::Data { bytes, .. } = event {
                        self.came.extend_from_slice(bytes);
                    }
                    rest = &mut rest[used..];
                }
            }
        };
        timeout(LIMIT, reading).await.expect("it comes in time");
    }
}

fn end_of(stream: u32) -> Vec<u8> {
    let mut out = Vec::new();
    spdy::data(stream, &[], true, &mut out);
    out
}

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

async fn text(program: &mut TcpStream) -> String {
    let mut text = String::new();
    let read = program.read_to_string(&mut text);
    timeout(LIMIT, read)
        .await
        .expect("it ends in time")
        .unwrap();
    text
}

/// Two connections of a client, with their programs. The second program's first bytes have reached
/// the client, and the first program has read all of its input.
async fn two_connections(client: &mut Client) -> ([u32; 2], [TcpStream; 2]) {
    let (listener, port) = listener().await;
    let one = client.connect(port).await;
    let mut first = listener.accept().await.unwrap().0;
    let two = client.connect(port).await;
    let mut second = listener.accept().await.unwrap().0;
    second.write_all(b"from the second").await.unwrap();
    client.until(b"from the second").await;
    client.data(one, b"to the first", true).await;
    assert_eq!(text(&mut first).await, "to the first");
    ([one, two], [first, second])
}

#[tokio::test]
async fn several_connections_go_on_beside_one_another() {
    let mut client = Client::new(8);
    let ([one, two], [mut first, mut second]) = two_connections(&mut client).await;
    first.write_all(b"after the end of input").await.unwrap();
    client.until(b"after the end of input").await;
    drop(first);
    client.until(&end_of(one)).await;
    client.data(two, b"on", true).await;
    assert_eq!(text(&mut second).await, "on");
}

#[tokio::test]
async fn a_client_that_goes_ends_its_connections() {
    let (listener, port) = listener().await;
    let mut client = Client::new(8);
    client.connect(port).await;
    let mut program = listener.accept().await.unwrap().0;
    drop(client.stream);
    assert_eq!(text(&mut program).await, "");
    timeout(LIMIT, client.work)
        .await
        .expect("it ends")
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_client_that_says_goodbye_and_reads_nothing_ends_its_connections() {
    let (listener, port) = listener().await;
    let mut client = Client::new(8);
    client.connect(port).await;
    let mut program = listener.accept().await.unwrap().0;
    let mut close = Vec::new();
    masked_frame(Kind::Close, &1000_u16.to_be_bytes(), [0; 4], &mut close);
    client.stream.write_all(&close).await.unwrap();
    assert_eq!(text(&mut program).await, "");
}

#[tokio::test]
async fn a_closed_port_and_one_connection_too_many_are_reported_and_others_go_on() {
    let (listener, port) = listener().await;
    let (closed, nobody) = self::listener().await;
    drop(closed);
    let mut client = Client::new(1);
    client.connect(nobody).await;
    client.until(b"connect: connection refused").await;
    let one = client.connect(port).await;
    let mut program = listener.accept().await.unwrap().0;
    client.connect(port).await;
    client.until(b"too many open connections").await;
    client.data(one, b"on", true).await;
    assert_eq!(text(&mut program).await, "on");
    drop(program);
    client.until(&end_of(one)).await;
    let again = client.connect(port).await;
    let mut program = listener.accept().await.unwrap().0;
    client.data(again, b"a place was given back", true).await;
    assert_eq!(text(&mut program).await, "a place was given back");
}

#[tokio::test]
async fn what_a_program_does_not_read_yet_waits_and_none_of_it_is_lost() {
    let (listener, port) = listener().await;
    let mut client = Client::new(8);
    let one = client.connect(port).await;
    let mut program = listener.accept().await.unwrap().0;
    // More than the kernel's buffers and the queue hold.
    let pieces = 2_000;
    let sending = tokio::spawn(async move {
        for _ in 0..pieces {
            client.data(one, &[b'x'; 16 * 1024], false).await;
        }
        client.data(one, b"", true).await;
        client
    });
    let mut bytes = vec![0; 1 << 20];
    let mut all = 0;
    let reading = async {
        while let Ok(count @ 1..) = program.read(&mut bytes).await {
            all += count;
        }
    };
    timeout(LIMIT, reading).await.expect("it ends in time");
    assert_eq!(all, pieces * 16 * 1024);
    drop(sending.await.unwrap());
}

#[tokio::test]
async fn a_client_that_breaks_the_protocol_inside_is_closed() {
    let mut client = Client::new(8);
    client.send(&[0x80, 2, 0, 1, 0, 0, 0, 10]).await;
    // A close frame of two bytes: its code.
    let mut close = [0; 4];
    let read = client.stream.read_exact(&mut close);
    timeout(LIMIT, read)
        .await
        .expect("it ends in time")
        .unwrap();
    let [high, low] = websocket::PROTOCOL_ERROR.to_be_bytes();
    assert_eq!(close, [0x88, 2, high, low]);
}

#[tokio::test]
async fn connections_over_spdy_itself_go_on_beside_one_another_and_end_with_their_client() {
    let mut client = Client::over(8, false);
    let ([one, two], [first, mut second]) = two_connections(&mut client).await;
    drop(first);
    client.until(&end_of(one)).await;
    client.data(two, b"goes on", false).await;
    let mut bytes = [0; 7];
    second.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"goes on");
    let mut ping = Vec::new();
    spdy::ping(1, &mut ping);
    client.send(&ping).await;
    client.until(&ping).await;
    drop(client.stream);
    assert_eq!(text(&mut second).await, "");
    timeout(LIMIT, client.work)
        .await
        .expect("it ends in time")
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_client_that_breaks_spdy_gets_a_goaway_and_is_left() {
    let mut client = Client::over(8, false);
    client.send(&[0x80, 2, 0, 1, 0, 0, 0, 10]).await;
    let mut received = Vec::new();
    let read = client.stream.read_to_end(&mut received);
    timeout(LIMIT, read)
        .await
        .expect("it ends in time")
        .unwrap();
    let mut away = Vec::new();
    spdy::go_away(0, true, &mut away);
    assert_eq!(received, away);
}
