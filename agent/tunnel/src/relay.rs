//! The loop of a tunnel to ports: one task moves all bytes between a client and its connections. It
//! reads from the client while programs take the input before, and from programs while the client
//! takes the output before.

use crate::connections::{Connections, Turn};
use crate::link::{LINGER, Leave, Link, Piece, push};
use config_tunnel::websocket::NORMAL;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::time::timeout;

/// Buffered bytes above which reading from the client pauses. Neither protocol has flow control for
/// one connection here, so that all of them wait.
const QUEUE: usize = 256 * 1024;

/// How a client names its connections, and how it learns what happens to them.
pub(crate) trait Session {
    /// Why what the client sent breaks the protocol.
    type Fault: std::error::Error;

    /// Takes some bytes of the client: opens, feeds and removes connections.
    ///
    /// # Errors
    /// The client broke the protocol; it is disconnected.
    fn input(
        &mut self,
        piece: &Piece<'_>,
        connections: &mut Connections,
    ) -> Result<(), Self::Fault>;

    /// Reports to the client what happened to a connection.
    fn report<S: AsyncRead + AsyncWrite>(
        &mut self,
        turn: Turn,
        connections: &mut Connections,
        link: &mut Link<S>,
    );

    /// Sends what [`Session::input`] and [`Session::report`] collected.
    fn flush<S: AsyncRead + AsyncWrite>(&mut self, _link: &mut Link<S>) {}

    /// Whether the tunnel ends by itself, as the client can open no more connections.
    fn is_over(&self, _connections: &Connections) -> bool {
        false
    }

    /// Writes the end of a tunnel that is SPDY itself: `fault` if the client broke the protocol.
    fn go_away(&mut self, _fault: bool, _out: &mut Vec<u8>) {}
}

/// A client, its connections, and the protocol between.
pub(crate) struct Relay<S, P> {
    pub(crate) link: Link<S>,
    pub(crate) connections: Connections,
    pub(crate) session: P,
}

impl<S: AsyncRead + AsyncWrite, P: Session> Relay<S, P> {
    /// Moves bytes until the client leaves or the session is over.
    pub(crate) async fn run(mut self) -> io::Result<()> {
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
        while !self.session.is_over(&self.connections) {
            let link = &mut self.link;
            let room = link.has_room();
            let hears = link.may_read() && self.connections.held() < QUEUE;
            let writes = link.has_output();
            // Each arm is cancel-safe: reads and writes have happened or not, and so have turns.
            tokio::select! {
                came = link.reader.read(&mut link.inbox), if hears => match came? {
                    0 => return Ok(Leave::Gone),
                    count => if let Some(leave) = self.take(count) {
                        return Ok(leave);
                    },
                },
                count = push(&mut link.writer, &link.outbox), if writes => self.link.pushed(count?),
                turn = self.connections.turn(room) => {
                    self.session.report(turn, &mut self.connections, &mut self.link);
                },
                _ = link.ping.tick(), if room => self.link.send_ping(),
            }
            self.session.flush(&mut self.link);
        }
        Ok(Leave::Close(NORMAL))
    }

    /// Decodes the first `count` bytes of the inbox.
    fn take(&mut self, count: usize) -> Option<Leave> {
        let Self {
            link,
            connections,
            session,
        } = self;
        link.take(count, |piece| session.input(&piece, connections))
    }
}
