//! A container's own streams over one WebSocket: what it writes from now on, beside its log, and what it reads.
//!
//! One task moves everything, as for a command. The container goes on when the client goes; its input ends then where its pod says
//! `stdinOnce`, so that a program that reads to the end comes to it.

use crate::exec::{Pending, end_input, give, negotiated, wants};
use crate::handshake::Refusal;
use crate::link::{LINGER, Leave, Link, push};
use crate::query::Streams;
use crate::{Tunnel, Tunnels, query};
use agent_runtime::{Attached, Control, Input, Runtime, Stream, Tap};
use config_tunnel::command::{self, ERROR, STDERR, STDOUT};
use config_tunnel::websocket::NORMAL;
use http::Request;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::time::timeout;

/// What is said to a client that was cut.
const TOO_SLOW: &str = "the client read nothing for too long while the container wrote";

impl Tunnels {
    /// The own streams of the running container `id`, as a request asks for them. With `once` its input ends with this client.
    ///
    /// # Errors
    /// The request is not in order, or the node has as many tunnels as it may.
    pub fn attach<B>(
        &self,
        request: &mut Request<B>,
        runtime: Arc<dyn Runtime>,
        id: String,
        once: bool,
    ) -> Result<Tunnel, Refusal> {
        let (offer, version) = negotiated(request)?;
        let wanted = query::streams(request.uri().query().unwrap_or_default())?;
        let to = id.clone();
        self.agreed(
            request,
            &offer,
            version.name(),
            to,
            move |stream| async move {
                let client = Client {
                    link: Link::new(stream),
                    input: command::Input::new(version),
                    wanted,
                    once,
                };
                match runtime.attach(&id, wanted.stdin).await {
                    Ok(attached) => client.run(attached).await,
                    Err(error) => {
                        let status = command::not_attached(&error.chain());
                        client.tell_end(&status).await
                    }
                }
            },
        )
    }
}

/// A client of a container's own streams.
struct Client<S> {
    link: Link<S>,
    input: command::Input,
    wanted: Streams,
    once: bool,
}

/// Why there is nothing more to do for a client.
enum End {
    /// The container writes no more, or the client has nothing more to say.
    Output,
    /// The client leaves.
    Client(Leave),
}

impl<S: AsyncRead + AsyncWrite> Client<S> {
    async fn run(mut self, attached: Attached) -> io::Result<()> {
        let Attached {
            mut stdin,
            mut output,
            control,
        } = attached;
        let writes = stdin.is_some();
        let end = self.pump(&mut stdin, &mut output, &control).await;
        // Before anything is waited for, and also where the connection broke.
        drop(stdin);
        if self.once && writes {
            end_input(&control).await;
        }
        match end? {
            End::Client(leave) => {
                let parted = timeout(LINGER, self.link.part(leave)).await;
                parted.unwrap_or(Ok(()))
            }
            End::Output if output.was_cut() => {
                self.tell_end(&command::not_attached(TOO_SLOW)).await
            }
            End::Output => self.tell_end(&command::ended(0)).await,
        }
    }

    /// Tells the client how it ended.
    async fn tell_end(mut self, status: &[u8]) -> io::Result<()> {
        self.link.tell(&[ERROR], status);
        self.link.part(Leave::Close(NORMAL)).await
    }

    /// Moves bytes in both directions until the output or the client ends.
    async fn pump(
        &mut self,
        stdin: &mut Option<Input>,
        output: &mut Tap,
        control: &Control,
    ) -> io::Result<End> {
        let mut pending = Pending::default();
        loop {
            let link = &mut self.link;
            let room = link.has_room();
            let idle = pending.bytes.is_empty();
            let (hears, writes) = (link.hears() && idle, link.writes());
            // Each arm is cancel-safe: reads and writes have happened or not, and a tap keeps what was not taken.
            tokio::select! {
                came = link.reader.read(&mut link.inbox), if hears => match came? {
                    0 => return Ok(End::Client(Leave::Gone)),
                    count => pending.take(link, &mut self.input, count),
                },
                count = push(&mut link.writer, &link.outbox), if writes => self.link.pushed(count?),
                given = give(stdin.as_ref(), &pending.bytes), if !idle => if let Ok(count) = given {
                    pending.bytes.drain(..count);
                } else {
                    // It reads no more: what comes is lost, as in a pipe of a shell.
                    *stdin = None;
                    pending.bytes.clear();
                },
                piece = output.next(), if room => match piece {
                    Some((stream, bytes)) => self.tell(stream, &bytes),
                    None => return Ok(End::Output),
                },
                _ = link.ping.tick(), if room => self.link.ask(),
            }
            pending.resize(control).await;
            if let Some(leave) = pending.leave {
                return Ok(End::Client(leave));
            }
            if pending.bytes.is_empty() && std::mem::take(&mut pending.end) {
                if !self.once {
                    // The input stays open for others; a client that has said all is done (upstream's rule).
                    return Ok(End::Output);
                }
                if stdin.take().is_some() {
                    end_input(control).await;
                }
            }
        }
    }

    /// What the client did not ask for is dropped.
    fn tell(&mut self, stream: Stream, bytes: &[u8]) {
        let channel = match stream {
            Stream::Stdout => STDOUT,
            Stream::Stderr => STDERR,
        };
        if wants(self.wanted.outputs, channel) {
            self.link.tell(&[channel], bytes);
        }
    }
}
