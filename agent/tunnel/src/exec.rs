//! A remote command: the streams of a process over one WebSocket.
//!
//! One task moves everything. It reads from the client while there is room for what it may have to answer, and from the
//! process only while the client takes what came before.

use crate::handshake::{Offer, Refusal};
use crate::link::{LINGER, Leave, Link, push};
use crate::{Tunnel, Tunnels, query};
use agent_runtime::{Command, Control, Input, Output, Outputs, Process, Runtime};
use config_tunnel::command::{self, ERROR, STDERR, STDOUT, Said, Version};
use config_tunnel::websocket::NORMAL;
use http::Request;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::time::timeout;

/// Bytes for the client once the process has ended, which are kept in any case: what pipes and the shim held, and what
/// processes write that it left behind.
const LAST: usize = 1 << 20;

impl Tunnels {
    /// A command in the running container `id`, as a request asks for it.
    ///
    /// # Errors
    /// The request is not in order, or the node has as many tunnels as it may.
    pub fn exec<B>(
        &self,
        request: &mut Request<B>,
        runtime: Arc<dyn Runtime>,
        id: String,
    ) -> Result<Tunnel, Refusal> {
        let (offer, version) = negotiated(request)?;
        let wanted = query::command(request.uri().query().unwrap_or_default())?;
        let to = id.clone();
        self.agreed(
            request,
            &offer,
            version.name(),
            to,
            move |stream| async move {
                let client = Client::new(stream, version, wanted.outputs);
                client.run(&*runtime, &id, &wanted).await
            },
        )
    }
}

/// What a client offers, and the best protocol of it.
pub(crate) fn negotiated<B>(request: &Request<B>) -> Result<(Offer, Version), Refusal> {
    let offer = Offer::of(request)?;
    let Some(version) = Version::choose(&offer.protocols) else {
        let all = Version::ALL.map(Version::name).join(", ");
        return Err(Refusal::bad(format!(
            "unable to negotiate protocol: client supports [{}], server supports [{all}]",
            offer.protocols
        )));
    };
    Ok((offer, version))
}

/// A client of a command.
struct Client<S> {
    link: Link<S>,
    input: command::Input,
    outputs: Outputs,
}

/// Why there is nothing more to do for a client.
enum End {
    /// The process has ended with a code, or nobody knows with which.
    Process(Result<i32, agent_runtime::Error>),
    /// The client leaves.
    Client(Leave),
}

/// What the process gets next.
#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) bytes: Vec<u8>,
    pub(crate) end: bool,
    pub(crate) size: Option<(u16, u16)>,
    pub(crate) leave: Option<Leave>,
}

impl Pending {
    /// Reads what the client said in the first bytes of the inbox.
    pub(crate) fn take<S: AsyncRead + AsyncWrite>(
        &mut self,
        link: &mut Link<S>,
        input: &mut command::Input,
        count: usize,
    ) {
        self.leave = link.take(count, |piece| {
            match input.take(piece.starts, piece.bytes, piece.ends) {
                Some(Said::Input(bytes)) => self.bytes.extend_from_slice(bytes),
                Some(Said::EndOfInput) => self.end = true,
                Some(Said::Size { width, height }) => self.size = Some((width, height)),
                None => {}
            }
            Ok::<_, Infallible>(())
        });
    }

    /// Gives the terminal the size that the client asked for last.
    pub(crate) async fn resize(&mut self, control: &Control) {
        if let Some((width, height)) = self.size.take()
            && let Err(error) = control.resize(width, height).await
        {
            tracing::debug!(%error, "terminal not resized");
        }
    }
}

impl<S: AsyncRead + AsyncWrite> Client<S> {
    fn new(stream: S, version: Version, outputs: Outputs) -> Self {
        Self {
            link: Link::new(stream),
            input: command::Input::new(version),
            outputs,
        }
    }

    /// Runs the command and tells the client of its end.
    async fn run(mut self, runtime: &dyn Runtime, id: &str, wanted: &Command) -> io::Result<()> {
        let status = match runtime.open(id, wanted).await {
            Err(error) => command::failed(&error.chain()),
            Ok(Process {
                stdin,
                stdout,
                stderr,
                control,
            }) => match self
                .pump(stdin, stdout.as_ref(), stderr.as_ref(), &control)
                .await?
            {
                End::Client(leave) => {
                    // Killed before anything is waited for: a client that leaves may not read any more.
                    drop(control);
                    let parted = timeout(LINGER, self.link.part(leave)).await;
                    return parted.unwrap_or(Ok(()));
                }
                End::Process(code) => {
                    self.last_words(stdout, stderr, control).await;
                    match code {
                        Ok(code) => command::ended(code),
                        Err(error) => command::failed(&error.chain()),
                    }
                }
            },
        };
        self.link.tell(&[ERROR], &status);
        self.link.part(Leave::Close(NORMAL)).await
    }

    /// Moves bytes in both directions until the process or the client ends.
    async fn pump(
        &mut self,
        mut stdin: Option<Input>,
        stdout: Option<&Output>,
        stderr: Option<&Output>,
        control: &Control,
    ) -> io::Result<End> {
        let mut ended = std::pin::pin!(control.wait());
        let mut pending = Pending::default();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        loop {
            let link = &mut self.link;
            let room = link.has_room();
            let idle = pending.bytes.is_empty();
            let (hears, writes) = (link.hears() && idle, link.writes());
            // Each arm is cancel-safe: reads and writes have happened or not, an output appends what it read, the wait is
            // polled again.
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
                    stdin = None;
                    pending.bytes.clear();
                },
                read = take_from(stdout, &mut out), if room => read?,
                read = take_from(stderr, &mut err), if room => read?,
                code = &mut ended => return Ok(End::Process(code)),
                _ = link.ping.tick(), if room => self.link.ask(),
            }
            self.tell(STDOUT, &mut out);
            self.tell(STDERR, &mut err);
            pending.resize(control).await;
            if pending.bytes.is_empty()
                && std::mem::take(&mut pending.end)
                && stdin.take().is_some()
            {
                end_input(control).await;
            }
            if let Some(leave) = pending.leave {
                return Ok(End::Client(leave));
            }
        }
    }

    /// What the client did not ask for is dropped.
    fn tell(&mut self, channel: u8, bytes: &mut Vec<u8>) {
        if !wants(self.outputs, channel) {
            bytes.clear();
        }
        if !bytes.is_empty() {
            self.link.tell(&[channel], bytes);
            bytes.clear();
        }
    }

    /// Takes all that an ended process wrote: the shim holds it for some seconds only, however slow the client is.
    async fn last_words(
        &mut self,
        stdout: Option<Output>,
        stderr: Option<Output>,
        control: Control,
    ) {
        let mut cleared = std::pin::pin!(control.clear());
        let (mut out, mut err) = (Vec::new(), Vec::new());
        loop {
            let room = self.link.outbox.len() < LAST;
            // An output that can't be read any more has nothing more to say; the end of clearing away comes in any case.
            tokio::select! {
                () = &mut cleared => break,
                Ok(()) = take_from(stdout.as_ref(), &mut out), if room => {}
                Ok(()) = take_from(stderr.as_ref(), &mut err), if room => {}
            }
            self.tell(STDOUT, &mut out);
            self.tell(STDERR, &mut err);
        }
        for (channel, output) in [(STDOUT, stdout), (STDERR, stderr)] {
            let mut rest = output.map(Output::rest).unwrap_or_default();
            self.tell(channel, &mut rest);
        }
    }
}

/// Whether a client asked for an output.
pub(crate) fn wants(outputs: Outputs, channel: u8) -> bool {
    match outputs {
        Outputs::Terminal => true,
        Outputs::Pipes { stdout, stderr } => {
            (channel == STDOUT && stdout) || (channel == STDERR && stderr)
        }
    }
}

/// Lets a program that reads its input come to its end.
pub(crate) async fn end_input(control: &Control) {
    if let Err(error) = control.end_input().await {
        tracing::debug!(%error, "cannot close a process's stdin");
    }
}

pub(crate) async fn give(stdin: Option<&Input>, bytes: &[u8]) -> io::Result<usize> {
    match stdin {
        Some(stdin) => stdin.write(bytes).await,
        None => Ok(bytes.len()),
    }
}

async fn take_from(output: Option<&Output>, bytes: &mut Vec<u8>) -> io::Result<()> {
    match output {
        Some(output) => output.read(bytes).await,
        None => std::future::pending().await,
    }
}
