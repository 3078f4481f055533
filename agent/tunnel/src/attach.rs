//! A container's own streams over one connection of a client: what it writes from now on, beside its log, and what it reads.
//!
//! One task moves everything, as for a command. The container goes on when the client goes; its input ends then where its pod says
//! `stdinOnce`, so that a program that reads to the end comes to it.

use crate::client::{Agreed, Client, Pending, end_input, give};
use crate::handshake::Refusal;
use crate::link::{Leave, push};
use crate::{Tunnel, Tunnels, query};
use agent_runtime::{Attached, Control, Input, Runtime, Stream, Tap};
use config_tunnel::command::{self, STDERR, STDOUT};
use http::Request;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

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
        let (offer, agreed) = Agreed::negotiated(request)?;
        let wanted = query::streams(request.uri().query().unwrap_or_default())?;
        let (to, protocol) = (id.clone(), agreed.name());
        self.agreed(request, &offer, protocol, to, move |stream| async move {
            let mut client = Client::new(stream, agreed, wanted.outputs);
            let mut pending = Pending::default();
            if let Some(leave) = client.opens(&mut pending).await? {
                return client.part(leave).await;
            }
            match runtime.attach(&id, wanted.stdin).await {
                Ok(attached) => run(client, pending, attached, once).await,
                Err(error) => client.end(&command::not_attached(&error.chain())).await,
            }
        })
    }
}

/// Why there is nothing more to do for a client.
enum End {
    /// The container writes no more, or the client has nothing more to say.
    Output,
    /// The client leaves.
    Client(Leave),
}

/// Moves bytes until the container's streams or the client end. With `once` the container's input ends with the client.
async fn run<S: AsyncRead + AsyncWrite>(
    mut client: Client<S>,
    pending: Pending,
    attached: Attached,
    once: bool,
) -> io::Result<()> {
    let Attached {
        mut stdin,
        mut output,
        control,
    } = attached;
    let writes = stdin.is_some();
    let end = pump(
        &mut client,
        pending,
        (&mut stdin, once),
        &mut output,
        &control,
    )
    .await;
    // Before anything is waited for, and also where the connection broke.
    drop(stdin);
    if once && writes {
        end_input(&control).await;
    }
    match end? {
        End::Client(leave) => client.part(leave).await,
        End::Output if output.was_cut() => client.end(&command::not_attached(TOO_SLOW)).await,
        End::Output => client.end(&command::ended(0)).await,
    }
}

/// Moves bytes in both directions until the output or the client ends.
async fn pump<S: AsyncRead + AsyncWrite>(
    client: &mut Client<S>,
    mut pending: Pending,
    (stdin, once): (&mut Option<Input>, bool),
    output: &mut Tap,
    control: &Control,
) -> io::Result<End> {
    loop {
        pending.resize(control).await;
        if let Some(leave) = pending.leave {
            return Ok(End::Client(leave));
        }
        if pending.bytes.is_empty() && std::mem::take(&mut pending.end) {
            if !once {
                // The input stays open for others; a client that has said all is done (upstream's rule).
                return Ok(End::Output);
            }
            if stdin.take().is_some() {
                end_input(control).await;
            }
        }
        let link = &mut client.link;
        let room = link.has_room();
        let idle = pending.bytes.is_empty();
        let (hears, writes) = (link.hears() && idle, link.writes());
        // Each arm is cancel-safe: reads and writes have happened or not, and a tap keeps what was not taken.
        tokio::select! {
            came = link.reader.read(&mut link.inbox), if hears => match came? {
                0 => return Ok(End::Client(Leave::Gone)),
                count => client.take(count, &mut pending),
            },
            count = push(&mut link.writer, &link.outbox), if writes => client.link.pushed(count?),
            given = give(stdin.as_ref(), &pending.bytes), if !idle => if let Ok(count) = given {
                pending.bytes.drain(..count);
            } else {
                // It reads no more: what comes is lost, as in a pipe of a shell.
                *stdin = None;
                pending.bytes.clear();
            },
            piece = output.next(), if room => match piece {
                Some((Stream::Stdout, bytes)) => client.tell(STDOUT, &bytes),
                Some((Stream::Stderr, bytes)) => client.tell(STDERR, &bytes),
                None => return Ok(End::Output),
            },
            _ = link.ping.tick(), if room => client.link.ask(),
        }
    }
}
