//! `attach`: the streams of a container's own process over one connection of a client. The client
//! gets what the process writes from now on, which also goes to the log, and may write to its
//! stdin.
//!
//! One task moves all bytes, as for a command. The container goes on when the client leaves. If its
//! pod says `stdinOnce`, the first client that leaves also ends the process's stdin.

use crate::client::{Agreed, Client, Pending, end_input};
use crate::handshake::TunnelRefusal;
use crate::link::Leave;
use crate::{Tunnel, Tunnels, query};
use agent_runtime::{Attached, Control, Input, Runtime, Stream, Tap};
use config_tunnel::command::{self, STDERR, STDOUT};
use http::Request;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};

/// The error for a client that is cut off.
const TOO_SLOW: &str = "the client read nothing for too long while the container wrote";

impl Tunnels {
    /// Attaches to the running container `id`, with the streams that the request asks for. With
    /// `once` the container's stdin ends with this client.
    ///
    /// # Errors
    /// The request is invalid, or the node has as many tunnels as it may.
    pub fn attach<B>(
        &self,
        request: &mut Request<B>,
        runtime: Arc<dyn Runtime>,
        id: String,
        once: bool,
    ) -> Result<Tunnel, TunnelRefusal> {
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

/// Why the pump ends.
enum End {
    /// The container's output has ended, or the client's input.
    Output,
    /// The client has left, and why.
    Client(Leave),
}

/// Moves bytes until the container's streams or the client end. With `once` the container's input
/// ends with the client.
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
        &mut stdin,
        once,
        &mut output,
        &control,
    )
    .await;
    // Before anything else, and also if the connection broke: the program must not wait for input.
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
    stdin: &mut Option<Input>,
    once: bool,
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
                // The input stays open for other clients. This one is done once its own input has
                // ended (upstream's rule).
                return Ok(End::Output);
            }
            if stdin.take().is_some() {
                end_input(control).await;
            }
        }
        let room = client.link.has_room();
        // Each arm is cancel-safe: a step with the client happens completely or not at all, and a
        // tap keeps output that was not taken.
        tokio::select! {
            gone = client.step(&mut pending, stdin) => if let Some(leave) = gone? {
                return Ok(End::Client(leave));
            },
            piece = output.next(), if room => match piece {
                Some((Stream::Stdout, bytes)) => client.tell(STDOUT, &bytes),
                Some((Stream::Stderr, bytes)) => client.tell(STDERR, &bytes),
                None => return Ok(End::Output),
            },
        }
    }
}
