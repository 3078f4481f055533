//! A remote command: the streams of a process over one WebSocket.
//!
//! One task moves everything. It reads from the client while there is room for what it may have to answer, and from the
//! process only while the client takes what came before.

use crate::handshake::{Offer, Refusal};
use crate::{Tunnel, Tunnels, query};
use agent_runtime::{Command, Control, Input, Output, Outputs, Process, Runtime};
use config_tunnel::command::{self, ERROR, STDERR, STDOUT, Said, Version};
use config_tunnel::websocket::{self, Decoder, Event, Kind, NORMAL, PROTOCOL_ERROR, Sender};
use http::Request;
use hyper_util::rt::TokioIo;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf,
};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

/// Bytes taken from the client at once, and so for the process at most.
const INBOX: usize = 32 * 1024;
/// Bytes for the client beyond which nothing more is taken from the process.
const OUTBOX: usize = 32 * 1024;
/// Bytes for the client beyond which nothing is read from it: each ping adds an answer. A client that reads nothing is heard
/// until then, so that it can still say that it leaves.
const ANSWERS: usize = 256 * 1024;
/// Bytes for the client once the process has ended, which are kept in any case: what pipes and the shim held, and what
/// processes write that it left behind.
const LAST: usize = 1 << 20;
/// Between two pings: a client's machine that is gone is found when its kernel answers none, and a connection is never idle
/// for those who watch it on the way.
const PING: Duration = Duration::from_secs(30);
/// Time for a client to close its side, so that the last bytes reach it.
const LINGER: Duration = Duration::from_secs(10);

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
        let offer = Offer::of(request)?;
        let version = Version::choose(&offer.protocols).ok_or_else(|| {
            let all = Version::ALL.map(Version::name).join(", ");
            Refusal::bad(format!(
                "unable to negotiate protocol: client supports [{}], server supports [{all}]",
                offer.protocols
            ))
        })?;
        let wanted = query::command(request.uri().query().unwrap_or_default())?;
        let place = self.place()?;
        let upgrade = hyper::upgrade::on(request);
        let work = Box::pin(async move {
            let _place = place;
            let Ok(stream) = upgrade.await else {
                tracing::debug!("a client of exec went before its tunnel was made");
                return;
            };
            let client = Client::new(TokioIo::new(stream), version, wanted.outputs);
            if let Err(error) = client.run(&*runtime, &id, &wanted).await {
                tracing::debug!(container = id, %error, "tunnel broke");
            }
        });
        let head = offer.agree(version.name());
        Ok(Tunnel { head, work })
    }
}

/// A client's connection.
struct Client<S> {
    reader: ReadHalf<S>,
    writer: WriteHalf<S>,
    decoder: Decoder,
    input: command::Input,
    outputs: Outputs,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// Bytes were written that may lie in a buffer of TLS.
    unflushed: bool,
    ping: Interval,
}

/// How a client leaves.
#[derive(Clone, Copy)]
enum Leave {
    /// It has gone without a word.
    Gone,
    /// It is told with this code that the connection ends.
    Close(u16),
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
struct Pending {
    bytes: Vec<u8>,
    end: bool,
    size: Option<(u16, u16)>,
    leave: Option<Leave>,
}

impl<S: AsyncRead + AsyncWrite> Client<S> {
    fn new(stream: S, version: Version, outputs: Outputs) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let mut ping = interval(PING);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ping.reset();
        Self {
            reader,
            writer,
            decoder: Decoder::new(Sender::Client),
            input: command::Input::new(version),
            outputs,
            inbox: vec![0; INBOX],
            outbox: Vec::new(),
            unflushed: false,
            ping,
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
                    let parted = timeout(LINGER, self.part(leave)).await;
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
        websocket::frame(Kind::Binary, &[ERROR], &status, &mut self.outbox);
        self.part(Leave::Close(NORMAL)).await
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
            let room = self.outbox.len() < OUTBOX;
            let idle = pending.bytes.is_empty();
            let hears = self.outbox.len() < ANSWERS && idle;
            // Each arm is cancel-safe: reads and writes have happened or not, an output appends what it read, the wait is
            // polled again.
            tokio::select! {
                came = self.reader.read(&mut self.inbox), if hears => match came? {
                    0 => return Ok(End::Client(Leave::Gone)),
                    count => self.take(count, &mut pending),
                },
                count = push(&mut self.writer, &self.outbox), if !self.outbox.is_empty() || self.unflushed => {
                    self.pushed(count?);
                }
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
                _ = self.ping.tick(), if room => websocket::frame(Kind::Ping, &[], &[], &mut self.outbox),
            }
            self.tell(STDOUT, &mut out);
            self.tell(STDERR, &mut err);
            if let Some((width, height)) = pending.size.take()
                && let Err(error) = control.resize(width, height).await
            {
                tracing::debug!(%error, "terminal not resized");
            }
            if pending.bytes.is_empty()
                && std::mem::take(&mut pending.end)
                && stdin.take().is_some()
                && let Err(error) = control.end_input().await
            {
                tracing::debug!(%error, "input not ended");
            }
            if let Some(leave) = pending.leave {
                return Ok(End::Client(leave));
            }
        }
    }

    /// Reads what the client said in the first bytes of the inbox.
    fn take(&mut self, count: usize, pending: &mut Pending) {
        let mut rest = &mut self.inbox[..count];
        loop {
            let (used, event) = match self.decoder.take(rest) {
                Ok(taken) => taken,
                Err(fault) => {
                    tracing::debug!(%fault, "a client broke the protocol");
                    pending.leave = Some(Leave::Close(PROTOCOL_ERROR));
                    return;
                }
            };
            match event {
                Some(Event::Data {
                    starts,
                    bytes,
                    ends,
                }) => match self.input.take(starts, bytes, ends) {
                    Some(Said::Input(bytes)) => pending.bytes.extend_from_slice(bytes),
                    Some(Said::EndOfInput) => pending.end = true,
                    Some(Said::Size { width, height }) => pending.size = Some((width, height)),
                    None => {}
                },
                Some(Event::Ping(bytes)) => {
                    websocket::frame(Kind::Pong, &[], bytes, &mut self.outbox);
                }
                Some(Event::Pong) => {}
                Some(Event::Close(code)) => {
                    pending.leave = Some(Leave::Close(code.unwrap_or(NORMAL)));
                    return;
                }
                None => return,
            }
            rest = &mut rest[used..];
        }
    }

    /// What the client did not ask for is dropped.
    fn tell(&mut self, channel: u8, bytes: &mut Vec<u8>) {
        let wanted = match self.outputs {
            Outputs::Terminal => true,
            Outputs::Pipes { stdout, stderr } => {
                (channel == STDOUT && stdout) || (channel == STDERR && stderr)
            }
        };
        if !wanted {
            bytes.clear();
        }
        if !bytes.is_empty() {
            websocket::frame(Kind::Binary, &[channel], bytes, &mut self.outbox);
            bytes.clear();
        }
    }

    /// Notes what [`push`] did.
    fn pushed(&mut self, count: usize) {
        self.outbox.drain(..count);
        self.unflushed = count > 0;
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
            let room = self.outbox.len() < LAST;
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

    /// Sends what is left, then the end with a code, and waits until the client closes its side, too.
    async fn part(mut self, leave: Leave) -> io::Result<()> {
        let Leave::Close(code) = leave else {
            return Ok(());
        };
        websocket::frame(Kind::Close, &code.to_be_bytes(), &[], &mut self.outbox);
        while !self.outbox.is_empty() {
            // As in `pump`.
            tokio::select! {
                count = push(&mut self.writer, &self.outbox) => self.pushed(count?),
                came = self.reader.read(&mut self.inbox) => if came? == 0 {
                    return Ok(());
                },
            }
        }
        self.writer.shutdown().await?;
        let rest = async {
            while self.reader.read(&mut self.inbox).await? > 0 {}
            io::Result::Ok(())
        };
        // A client that does not close in time has had its time.
        timeout(LINGER, rest).await.unwrap_or(Ok(()))
    }
}

/// Writes some of the bytes and says how many; with none, sends on what lies in buffers, and says 0.
///
/// Cancel-safe, as writing and flushing are.
async fn push<W: AsyncWrite + Unpin>(writer: &mut W, bytes: &[u8]) -> io::Result<usize> {
    if bytes.is_empty() {
        return writer.flush().await.map(|()| 0);
    }
    match writer.write(bytes).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        count => Ok(count),
    }
}

async fn give(stdin: Option<&Input>, bytes: &[u8]) -> io::Result<usize> {
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
