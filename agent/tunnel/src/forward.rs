//! Forwarded ports: a client's connections to programs in a pod, over streams of SPDY, inside a WebSocket or without one.
//!
//! One task moves all bytes, as for a command: it reads from the client while programs take the input before, and from programs
//! while the client takes the output before.

use crate::channels::Channels;
use crate::connections::{Connections, Turn};
use crate::dial::Ports;
use crate::handshake::{Offer, Refusal};
use crate::link::{LINGER, Leave, Link, push};
use crate::query;
use crate::{Tunnel, Tunnels};
use config_tunnel::channels;
use config_tunnel::forward::{Event, PLAIN, PROTOCOL, Session};
use config_tunnel::spdy::Fault;
use config_tunnel::websocket::NORMAL;
use http::Request;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Most connections of a tunnel at once. A browser opens about six to a site.
const MOST: usize = 128;
/// Buffered bytes above which reading from the client pauses. SPDY has no flow control for one connection
/// here, so that all of them wait.
pub(crate) const QUEUE: usize = 256 * 1024;

impl Tunnels {
    /// Forwards ports of a pod.
    ///
    /// # Errors
    /// The request is invalid, or the node has as many tunnels as it may.
    pub fn forward<B>(&self, request: &mut Request<B>, ports: Ports) -> Result<Tunnel, Refusal> {
        let offer = Offer::of(request)?;
        let spdy = offer.is_spdy();
        let protocol = if spdy { PLAIN } else { PROTOCOL };
        let connections = self.connections.clone();
        let to = ports.pod.uid.clone();
        if !spdy && !offer.names(protocol) && offer.names(channels::PROTOCOL) {
            let numbers = query::ports(request.uri().query().unwrap_or_default())?;
            return self.agreed(request, &offer, channels::PROTOCOL, to, move |stream| {
                Channels::new(Link::websocket(stream), ports, &numbers, &connections).run()
            });
        }
        if !offer.names(protocol) {
            let known = if spdy {
                PLAIN.to_owned()
            } else {
                format!("{PROTOCOL}, {}", channels::PROTOCOL)
            };
            return Err(offer.unknown(&known));
        }
        self.agreed(request, &offer, protocol, to, move |stream| {
            let link = if spdy {
                Link::spdy(stream)
            } else {
                Link::websocket(stream)
            };
            Forward::new(link, ports, connections).run()
        })
    }
}

/// A client of a pod's ports.
struct Forward<S> {
    link: Link<S>,
    ports: Arc<Ports>,
    session: Session,
    connections: Connections,
    /// Connection permits shared by all tunnels.
    places: Arc<Semaphore>,
    /// Frames that wait to become a message.
    frames: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite> Forward<S> {
    fn new(link: Link<S>, ports: Ports, places: Arc<Semaphore>) -> Self {
        Self {
            link,
            ports: Arc::new(ports),
            session: Session::default(),
            connections: Connections::default(),
            places,
            frames: Vec::new(),
        }
    }

    /// Moves bytes until the client leaves.
    async fn run(mut self) -> io::Result<()> {
        let leave = self.pump().await?;
        // Programs see the end before the client's close is waited for.
        drop(self.connections);
        if let (true, Leave::Close(code)) = (self.link.is_spdy(), leave) {
            self.session.go_away(code != NORMAL, &mut self.link.outbox);
        }
        let parted = timeout(LINGER, self.link.part(leave)).await;
        parted.unwrap_or(Ok(()))
    }

    async fn pump(&mut self) -> io::Result<Leave> {
        loop {
            let link = &mut self.link;
            let room = link.has_room();
            let (hears, writes) = (
                link.hears() && self.connections.held() < QUEUE,
                link.writes(),
            );
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
            if !self.frames.is_empty() {
                self.link.tell(&[], &self.frames);
                self.frames.clear();
            }
        }
    }

    /// Decodes the first `count` bytes of the inbox.
    fn take(&mut self, count: usize) -> Option<Leave> {
        let Self {
            link,
            ports,
            session,
            connections,
            places,
            frames,
        } = self;
        link.take(count, |piece| {
            let mut rest = piece.bytes;
            loop {
                let (used, event) = session.take(rest, frames)?;
                match event {
                    Some(Event::Connect { connection, port }) => {
                        let place = places.clone().try_acquire_owned();
                        match place {
                            Ok(place) if connections.count() < MOST => {
                                let ports = ports.clone();
                                let dialing = async move { ports.dial(port).await };
                                connections.add(connection, Box::pin(dialing), place);
                            }
                            Ok(_) | Err(_) => {
                                let why = format!(
                                    "error forwarding port {port}: too many open connections"
                                );
                                session.refused(connection, &why, frames);
                            }
                        }
                    }
                    Some(Event::Input {
                        connection,
                        bytes,
                        ends,
                    }) => connections.input(connection, bytes, ends),
                    Some(Event::Dropped { connection }) => connections.remove(connection),
                    None => return Ok::<_, Fault>(()),
                }
                rest = &rest[used..];
            }
        })
    }

    /// Tells the client what happened to a connection.
    fn turned(&mut self, turn: Turn) {
        let (session, frames) = (&mut self.session, &mut self.frames);
        match turn {
            Turn::Output(connection) => session.output(connection, &self.connections.piece, frames),
            Turn::Ended(connection) => session.end_output(connection, frames),
            Turn::Broken(connection) => session.broken(connection, frames),
            Turn::Refused(connection, why) => session.refused(connection, &why, frames),
            Turn::Moved => {}
        }
    }
}

#[cfg(test)]
mod tests;
