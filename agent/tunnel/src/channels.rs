//! Forwarded ports for a client that names them in its request: one connection to each, over channels of a WebSocket.

use crate::connections::{Connections, Turn};
use crate::dial::Ports;
use crate::forward::QUEUE;
use crate::link::{LINGER, Leave, Link, push};
use config_tunnel::channels::{Input, data, fault, opening};
use config_tunnel::websocket::NORMAL;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// A client and its ports.
pub(crate) struct Channels<S> {
    link: Link<S>,
    input: Input,
    connections: Connections,
}

impl<S: AsyncRead + AsyncWrite> Channels<S> {
    /// Begins to connect to each port; one for which there is no place is told so.
    pub(crate) fn new(
        mut link: Link<S>,
        ports: Ports,
        numbers: &[u16],
        places: &Arc<Semaphore>,
    ) -> Self {
        let mut connections = Connections::default();
        let ports = Arc::new(ports);
        for (index, &port) in (0_u8..).zip(numbers) {
            for channel in [data(index), fault(index)] {
                link.tell(&[channel], &opening(port));
            }
            let Ok(place) = places.clone().try_acquire_owned() else {
                let why = format!("error forwarding port {port}: too many open connections");
                link.tell(&[fault(index)], why.as_bytes());
                continue;
            };
            let ports = ports.clone();
            let dialing = async move { ports.dial(port).await };
            connections.add(index.into(), Box::pin(dialing), place);
        }
        Self {
            link,
            input: Input::default(),
            connections,
        }
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
            let room = link.has_room();
            let hears = link.hears() && self.connections.held() < QUEUE;
            let writes = link.writes();
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
        let Self {
            link,
            input,
            connections,
        } = self;
        link.take(count, |piece| {
            if let Some(said) = input.take(piece.starts, piece.bytes) {
                connections.input(said.index.into(), said.bytes, false);
            }
            Ok::<_, Infallible>(())
        })
    }

    fn turned(&mut self, turn: Turn) {
        // Numbers of connections are indexes of ports, of which there are few.
        let index = |number: u32| u8::try_from(number).unwrap_or(u8::MAX / 2);
        match turn {
            Turn::Output(number) => self
                .link
                .tell(&[data(index(number))], &self.connections.piece),
            Turn::Refused(number, why) => self.link.tell(&[fault(index(number))], why.as_bytes()),
            // The client can't be told that one half has ended, so the whole connection has.
            Turn::Ended(number) => self.connections.remove(number),
            Turn::Broken(_) | Turn::Moved => {}
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
        let channels = Channels::new(Link::websocket(served), pod, &numbers, &places);
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
