//! Forwarded ports for a client that names them in its request: one connection to each, over
//! channels of a WebSocket.

use crate::connections::{Connections, Turn};
use crate::dial::ForwardTarget;
use crate::link::{Link, Piece};
use crate::relay::{Relay, Session};
use config_tunnel::channels::{Input, data, fault, opening};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;

/// Channels of a WebSocket, two for each port.
#[derive(Default)]
pub(crate) struct Channels {
    input: Input,
}

/// Begins to connect to each port; a client learns of one for which there is no slot.
pub(crate) fn relay<S: AsyncRead + AsyncWrite>(
    mut link: Link<S>,
    ports: ForwardTarget,
    numbers: &[u16],
    permits: &Arc<Semaphore>,
) -> Relay<S, Channels> {
    let mut connections = Connections::default();
    let ports = Arc::new(ports);
    for (index, &port) in (0_u8..).zip(numbers) {
        for channel in [data(index), fault(index)] {
            link.tell(&[channel], &opening(port));
        }
        let Ok(permit) = permits.clone().try_acquire_owned() else {
            let why = format!("error forwarding port {port}: too many open connections");
            link.tell(&[fault(index)], why.as_bytes());
            continue;
        };
        let ports = ports.clone();
        let dialing = async move { ports.dial(port).await };
        connections.add(index.into(), Box::pin(dialing), permit);
    }
    Relay {
        link,
        connections,
        session: Channels::default(),
    }
}

impl Session for Channels {
    type Fault = Infallible;

    fn input(
        &mut self,
        piece: &Piece<'_>,
        connections: &mut Connections,
    ) -> Result<(), Infallible> {
        if let Some(said) = self.input.take(piece.starts, piece.bytes) {
            connections.input(said.index.into(), said.bytes, false);
        }
        Ok(())
    }

    fn report<S: AsyncRead + AsyncWrite>(
        &mut self,
        turn: Turn,
        connections: &mut Connections,
        link: &mut Link<S>,
    ) {
        // Numbers of connections are indexes of ports, of which there are few.
        let index = |number: u32| u8::try_from(number).unwrap_or(u8::MAX / 2);
        match turn {
            Turn::Output(number) => link.tell(&[data(index(number))], &connections.piece),
            Turn::Refused(number, why) => link.tell(&[fault(index(number))], why.as_bytes()),
            // The client can't be told that one half has ended, so the whole connection has.
            Turn::Ended(number) => connections.remove(number),
            Turn::Broken(_) | Turn::Progress => {}
        }
    }

    /// The request named all ports, so there is nothing to wait for after the last connection.
    fn is_over(&self, connections: &Connections) -> bool {
        connections.count() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_runtime::PodRef;
    use config_tunnel::websocket::{Decoder, Event, Kind, NORMAL, Sender, masked_frame};
    use std::collections::BTreeMap;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

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
        let pod = ForwardTarget { pod, network: None };
        let (mut client, served) = tokio::io::duplex(64 * 1024);
        let permits = Arc::new(Semaphore::new(2));
        let channels = relay(Link::websocket(served), pod, &numbers, &permits);
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
        assert_eq!(permits.available_permits(), 2, "permits are given back");
    }
}
