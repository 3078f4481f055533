//! `exec`: a command in a container, with its streams over one connection of a client.
//!
//! One task moves all bytes. It reads from the client while there is room for its own answers, and
//! from the process only while the client accepts earlier output, so that a slow client holds up
//! the process and fills no memory.

use crate::client::{Agreed, Client, Pending, end_input};
use crate::handshake::TunnelRefusal;
use crate::link::Leave;
use crate::{Tunnel, Tunnels, query};
use agent_runtime::{Command, Control, Input, Output, Process, Runtime};
use config_tunnel::command::{self, STDERR, STDOUT};
use http::Request;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};

/// Most bytes of output that are buffered for the client after the process has ended: what pipes
/// and the shim still hold, and what processes write that it left behind.
const LAST: usize = 1 << 20;

impl Tunnels {
    /// Runs the command of a request in the running container `id`.
    ///
    /// # Errors
    /// The request is invalid, or the node has as many tunnels as it may.
    pub fn exec<B>(
        &self,
        request: &mut Request<B>,
        runtime: Arc<dyn Runtime>,
        id: String,
    ) -> Result<Tunnel, TunnelRefusal> {
        let (offer, agreed) = Agreed::negotiated(request)?;
        let wanted = query::command(request.uri().query().unwrap_or_default())?;
        let to = id.clone();
        let protocol = agreed.name();
        self.agreed(request, &offer, protocol, to, move |stream| async move {
            let client = Client::new(stream, agreed, wanted.outputs);
            run(client, &*runtime, &id, &wanted).await
        })
    }
}

/// Why the pump ends.
enum End {
    /// The process has ended, with this exit code or with one that could not be read.
    Process(Result<i32, agent_runtime::Error>),
    /// The client leaves.
    Client(Leave),
}

/// Runs the command and reports its end to the client.
async fn run<S: AsyncRead + AsyncWrite>(
    mut client: Client<S>,
    runtime: &dyn Runtime,
    id: &str,
    wanted: &Command,
) -> io::Result<()> {
    let mut pending = Pending::default();
    if let Some(leave) = client.opens(&mut pending).await? {
        return client.part(leave).await;
    }
    let status = match runtime.open(id, wanted).await {
        Err(error) => command::failed(&error.chain()),
        Ok(Process {
            stdin,
            stdout,
            stderr,
            control,
        }) => match pump(
            &mut client,
            pending,
            stdin,
            stdout.as_ref(),
            stderr.as_ref(),
            &control,
        )
        .await?
        {
            End::Client(leave) => {
                // Dropping it kills the process: before the connection is closed, which may take
                // long where the client reads nothing.
                drop(control);
                return client.part(leave).await;
            }
            End::Process(code) => {
                drain(&mut client, stdout, stderr, control).await;
                match code {
                    Ok(code) => command::ended(code),
                    Err(error) => command::failed(&error.chain()),
                }
            }
        },
    };
    client.end(&status).await
}

/// Moves bytes in both directions until the process or the client ends.
async fn pump<S: AsyncRead + AsyncWrite>(
    client: &mut Client<S>,
    mut pending: Pending,
    mut stdin: Option<Input>,
    stdout: Option<&Output>,
    stderr: Option<&Output>,
    control: &Control,
) -> io::Result<End> {
    let mut ended = std::pin::pin!(control.wait());
    let (mut out, mut err) = (Vec::new(), Vec::new());
    loop {
        pending.resize(control).await;
        if pending.bytes.is_empty() && std::mem::take(&mut pending.end) && stdin.take().is_some() {
            end_input(control).await;
        }
        if let Some(leave) = pending.leave {
            return Ok(End::Client(leave));
        }
        let room = client.link.has_room();
        // Each arm is cancel-safe: a step with the client has happened or not, an output appends
        // what it read, the wait is polled again.
        tokio::select! {
            gone = client.step(&mut pending, &mut stdin) => if let Some(leave) = gone? {
                return Ok(End::Client(leave));
            },
            read = take_from(stdout, &mut out), if room => read?,
            read = take_from(stderr, &mut err), if room => read?,
            code = &mut ended => return Ok(End::Process(code)),
        }
        tell(client, STDOUT, &mut out);
        tell(client, STDERR, &mut err);
    }
}

fn tell<S: AsyncRead + AsyncWrite>(client: &mut Client<S>, channel: u8, bytes: &mut Vec<u8>) {
    client.tell(channel, bytes);
    bytes.clear();
}

/// Reads what an ended process has left in its outputs, until containerd has deleted the process.
/// This does not wait for the client to take the output: the shim keeps it for a few seconds only.
async fn drain<S: AsyncRead + AsyncWrite>(
    client: &mut Client<S>,
    stdout: Option<Output>,
    stderr: Option<Output>,
    control: Control,
) {
    let mut cleared = std::pin::pin!(control.clear());
    let (mut out, mut err) = (Vec::new(), Vec::new());
    loop {
        let room = client.link.outbox.len() < LAST;
        // An output that fails matches no pattern, so its arm is off until the next round.
        // `cleared` ends in any case.
        tokio::select! {
            () = &mut cleared => break,
            Ok(()) = take_from(stdout.as_ref(), &mut out), if room => {}
            Ok(()) = take_from(stderr.as_ref(), &mut err), if room => {}
        }
        tell(client, STDOUT, &mut out);
        tell(client, STDERR, &mut err);
    }
    for (channel, output) in [(STDOUT, stdout), (STDERR, stderr)] {
        let rest = output.map(Output::rest).unwrap_or_default();
        client.tell(channel, &rest);
    }
}

async fn take_from(output: Option<&Output>, bytes: &mut Vec<u8>) -> io::Result<()> {
    match output {
        Some(output) => output.read(bytes).await,
        None => std::future::pending().await,
    }
}
