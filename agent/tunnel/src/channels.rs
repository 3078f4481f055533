//! Forwarded ports over a WebSocket without SPDY: `v4.channel.k8s.io`, one connection to each port that the query names.
//!
//! Each message begins with a byte that names its channel. The `n`th port has channel `2n` for its bytes and `2n + 1` for the reason
//! why it can't be reached; the server begins both with the port's number in two bytes, the lower first. No half of a connection can
//! be ended alone: a connection is over when its program writes no more, and the tunnel when all connections are (upstream's rules).

use crate::connections::{Connections, Turn};
use crate::dial::Ports;
use crate::forward::QUEUE;
use crate::handshake::Refusal;
use crate::link::{LINGER, Leave, Link, push};
use config_tunnel::websocket::NORMAL;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The protocol's name.
pub(crate) const PROTOCOL: &str = "v4.channel.k8s.io";
/// Most ports of a tunnel: a channel is one byte, and each port has two.
const MOST: usize = 128;

/// The ports of a query such as `port=80&port=443`.
///
/// # Errors
/// It names none, or more than there are channels for.
pub(crate) fn ports(query: &str) -> Result<Vec<u16>, Refusal> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let values = pairs.filter(|(name, _)| *name == "port");
    let read = values.map(|(_, value)| {
        let port = value.parse().ok().filter(|port| *port > 0);
        port.ok_or_else(|| Refusal::bad(format!("unable to parse {value:?} as a port")))
    });
    let ports: Vec<u16> = read.collect::<Result<_, _>>()?;
    match ports.len() {
        0 => Err(Refusal::bad("query parameter \"port\" is required")),
        1..=MOST => Ok(ports),
        count => Err(Refusal::bad(format!(
            "a tunnel has {MOST} ports at most, not {count}"
        ))),
    }
}

/// A client of a pod's ports.
pub(crate) struct Channels<S> {
    link: Link<S>,
    connections: Connections,
    /// The channel of the message that comes.
    channel: Option<u8>,
}

impl<S: AsyncRead + AsyncWrite> Channels<S> {
    /// Begins a connection to each port; `places` are for the connections of all tunnels.
    pub(crate) fn new(stream: S, pod: &Ports, ports: Vec<u16>, places: &Arc<Semaphore>) -> Self {
        let mut all = Self {
            link: Link::websocket(stream),
            connections: Connections::default(),
            channel: None,
        };
        for (data, port) in (0..).step_by(2).zip(ports) {
            for channel in [data, data + 1] {
                all.link.tell(&[channel], &port.to_le_bytes());
            }
            let Ok(place) = places.clone().try_acquire_owned() else {
                let why = format!("error forwarding port {port}: too many open connections");
                all.link.tell(&[data + 1], why.as_bytes());
                continue;
            };
            let pod = pod.clone();
            let dialing = async move { pod.dial(port).await };
            all.connections.add(data.into(), Box::pin(dialing), place);
        }
        all
    }

    /// Moves bytes until the client leaves or all connections are over.
    pub(crate) async fn run(mut self) -> io::Result<()> {
        let leave = self.pump().await?;
        // Programs see the end before the client's close is waited for.
        drop(self.connections);
        let parted = timeout(LINGER, self.link.part(leave)).await;
        parted.unwrap_or(Ok(()))
    }

    async fn pump(&mut self) -> io::Result<Leave> {
        while self.connections.count() > 0 {
            let link = &mut self.link;
            let (room, writes) = (link.has_room(), link.writes());
            let hears = link.hears() && self.connections.held() < QUEUE;
            // Each arm is cancel-safe: reads and writes have happened or not, and so have turns.
            tokio::select! {
                came = link.reader.read(&mut link.inbox), if hears => match came? {
                    0 => return Ok(Leave::Gone),
                    count => if let Some(leave) = self.take(count) {
                        return Ok(leave);
                    },
                },
                count = push(&mut link.writer, &link.outbox), if writes => self.link.pushed(count?),
                turn = self.connections.turn(room) => self.turned(turn),
                _ = link.ping.tick(), if room => self.link.ask(),
            }
        }
        Ok(Leave::Close(NORMAL))
    }

    /// Decodes the first `count` bytes of the inbox.
    fn take(&mut self, count: usize) -> Option<Leave> {
        let (connections, channel) = (&mut self.connections, &mut self.channel);
        self.link.take(count, |piece| {
            let mut bytes = piece.bytes;
            if piece.starts {
                *channel = None;
            }
            if channel.is_none()
                && let Some((first, rest)) = bytes.split_first()
            {
                *channel = Some(*first);
                bytes = rest;
            }
            // Connections have the numbers of their channels of data; a client has no word for the others.
            if let Some(channel) = *channel {
                connections.input(channel.into(), bytes, false);
            }
            Ok::<_, Infallible>(())
        })
    }

    /// Tells the client what happened to a connection.
    fn turned(&mut self, turn: Turn) {
        let channel = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
        match turn {
            Turn::Output(number) => {
                let piece = &self.connections.piece;
                self.link.tell(&[channel(number)], piece);
            }
            Turn::Ended(number) | Turn::Broken(number) => self.connections.remove(number),
            Turn::Refused(number, why) => self.link.tell(&[channel(number + 1)], why.as_bytes()),
            Turn::Moved => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_runtime::PodRef;
    use config_tunnel::websocket::{Decoder, Event, Kind, Sender, masked_frame};
    use std::collections::BTreeMap;
    use std::time::Duration;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    /// Longest wait for what must come.
    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_query_names_the_ports() {
        assert_eq!(ports("port=80&other=1&port=443"), Ok(vec![80, 443]));
        let many = "port=1&".repeat(129);
        for (query, reason) in [
            ("", "is required"),
            ("port=0", "unable to parse"),
            ("port=65536", "unable to parse"),
            (&many, "128 ports at most"),
        ] {
            let refusal = ports(query).unwrap_err();
            assert!(refusal.message.contains(reason), "{query}: {refusal}");
        }
    }

    #[tokio::test]
    async fn each_port_has_two_channels_and_the_tunnel_ends_with_the_last_connection() {
        let [listener, closed] =
            [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let port = |of: &std::net::TcpListener| of.local_addr().unwrap().port();
        let numbers = [port(&closed), port(&listener)];
        drop(closed);
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let program = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = [0; 3];
            stream.read_exact(&mut asked).await.unwrap();
            stream.write_all(&[b'x'; 100]).await.unwrap();
            asked
        });
        let pod = PodRef {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            uid: "u1".to_owned(),
        };
        let pod = Ports { pod, network: None };
        let (mut client, served) = tokio::io::duplex(64 * 1024);
        let places = Arc::new(Semaphore::new(2));
        let channels = Channels::new(served, &pod, numbers.to_vec(), &places);
        let work = tokio::spawn(channels.run());
        let mut frame = Vec::new();
        masked_frame(Kind::Binary, b"\x02abc", [9, 8, 7, 6], &mut frame);
        client.write_all(&frame).await.unwrap();

        let mut came: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        let (mut decoder, mut bytes) = (Decoder::new(Sender::Server), [0; 4096]);
        let mut code = None;
        let reading = async {
            while code.is_none() {
                let count = client.read(&mut bytes).await.unwrap();
                let mut rest = &mut bytes[..count];
                while let (used, Some(event)) = decoder.take(rest).unwrap() {
                    match event {
                        Event::Data { bytes, .. } => {
                            let all = came.entry(bytes[0]).or_default();
                            all.extend_from_slice(&bytes[1..]);
                        }
                        Event::Close(with) => code = with,
                        Event::Ping(_) | Event::Pong => {}
                    }
                    rest = &mut rest[used..];
                }
            }
        };
        timeout(LIMIT, reading).await.expect("it ends in time");
        drop(client);
        work.await.unwrap().unwrap();
        assert_eq!(&program.await.unwrap(), b"abc");
        assert_eq!(code, Some(NORMAL));
        let begins = numbers.map(u16::to_le_bytes);
        assert_eq!(came[&0], begins[0]);
        let refused = String::from_utf8_lossy(&came[&1][2..]).into_owned();
        assert!(came[&1].starts_with(&begins[0]), "{came:?}");
        assert!(refused.contains("connection refused"), "{refused}");
        assert_eq!(came[&2], [&begins[1][..], &[b'x'; 100]].concat());
        assert_eq!(came[&3], begins[1]);
        assert_eq!(places.available_permits(), 2, "places are given back");
    }
}
