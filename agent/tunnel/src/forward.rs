//! Forwarded ports: a client's connections to programs in a pod, over streams of SPDY, inside a
//! WebSocket or without one; or over channels of a WebSocket ([`channels`]).

use crate::channels;
use crate::connections::{Connections, Turn};
use crate::dial::ForwardTarget;
use crate::handshake::{Offer, TunnelRefusal};
use crate::link::{Link, Piece};
use crate::query;
use crate::relay::{Relay, Session};
use crate::{Tunnel, Tunnels};
use config_tunnel::channels::PROTOCOL as CHANNELS;
use config_tunnel::forward::{self, Event, PLAIN, PROTOCOL};
use config_tunnel::spdy::Fault;
use http::Request;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;

/// Most connections of a tunnel at once. A browser opens about six to a site.
const MOST: usize = 128;

impl Tunnels {
    /// Forwards ports of a pod.
    ///
    /// # Errors
    /// The request is invalid, or the node has as many tunnels as it may.
    pub fn forward<B>(
        &self,
        request: &mut Request<B>,
        ports: ForwardTarget,
    ) -> Result<Tunnel, TunnelRefusal> {
        let offer = Offer::of(request)?;
        let spdy = offer.is_spdy();
        let protocol = if spdy { PLAIN } else { PROTOCOL };
        let connections = self.connections.clone();
        let to = ports.pod.uid.clone();
        if !spdy && !offer.names(protocol) && offer.names(CHANNELS) {
            let numbers = query::ports(request.uri().query().unwrap_or_default())?;
            return self.agreed(request, &offer, CHANNELS, to, move |stream| {
                channels::relay(Link::websocket(stream), ports, &numbers, &connections).run()
            });
        }
        if !offer.names(protocol) {
            let known = if spdy {
                PLAIN.to_owned()
            } else {
                format!("{PROTOCOL}, {CHANNELS}")
            };
            return Err(offer.unknown(&known));
        }
        self.agreed(request, &offer, protocol, to, move |stream| {
            let link = if spdy {
                Link::spdy(stream)
            } else {
                Link::websocket(stream)
            };
            relay(link, ports, connections).run()
        })
    }
}

/// Streams of SPDY, as many as the client opens.
struct Forward {
    ports: Arc<ForwardTarget>,
    session: forward::Session,
    /// Connection permits shared by all tunnels.
    permits: Arc<Semaphore>,
    /// Frames that wait to become a message.
    frames: Vec<u8>,
}

/// A client of a pod's ports, which opens connections as it goes.
fn relay<S>(link: Link<S>, ports: ForwardTarget, permits: Arc<Semaphore>) -> Relay<S, Forward> {
    Relay {
        link,
        connections: Connections::default(),
        session: Forward {
            ports: Arc::new(ports),
            session: forward::Session::default(),
            permits,
            frames: Vec::new(),
        },
    }
}

impl Forward {
    /// Begins to connect to a port, or refuses it where that would be too many connections.
    fn connect(&mut self, connection: u32, port: u16, connections: &mut Connections) {
        match self.permits.clone().try_acquire_owned() {
            Ok(permit) if connections.count() < MOST => {
                let ports = self.ports.clone();
                let dialing = async move { ports.dial(port).await };
                connections.add(connection, Box::pin(dialing), permit);
            }
            Ok(_) | Err(_) => {
                let why = format!("error forwarding port {port}: too many open connections");
                self.session.refused(connection, &why, &mut self.frames);
            }
        }
    }
}

impl Session for Forward {
    type Fault = Fault;

    fn input(&mut self, piece: &Piece<'_>, connections: &mut Connections) -> Result<(), Fault> {
        let mut rest = piece.bytes;
        loop {
            let (used, event) = self.session.take(rest, &mut self.frames)?;
            match event {
                Some(Event::Connect { connection, port }) => {
                    self.connect(connection, port, connections);
                }
                Some(Event::Input {
                    connection,
                    bytes,
                    ends,
                }) => connections.input(connection, bytes, ends),
                Some(Event::Dropped { connection }) => connections.remove(connection),
                None => return Ok(()),
            }
            rest = &rest[used..];
        }
    }

    fn report<S: AsyncRead + AsyncWrite>(
        &mut self,
        turn: Turn,
        connections: &mut Connections,
        _link: &mut Link<S>,
    ) {
        let (session, frames) = (&mut self.session, &mut self.frames);
        match turn {
            Turn::Output(connection) => session.output(connection, &connections.piece, frames),
            Turn::Ended(connection) => session.end_output(connection, frames),
            Turn::Broken(connection) => session.broken(connection, frames),
            Turn::Refused(connection, why) => session.refused(connection, &why, frames),
            Turn::Progress => {}
        }
    }

    fn flush<S: AsyncRead + AsyncWrite>(&mut self, link: &mut Link<S>) {
        if !self.frames.is_empty() {
            link.tell(&[], &self.frames);
            self.frames.clear();
        }
    }

    fn go_away(&mut self, fault: bool, out: &mut Vec<u8>) {
        self.session.go_away(fault, out);
    }
}

#[cfg(test)]
mod tests;
