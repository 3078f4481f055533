//! `agent metadata`: fetches the machine's user-data from its cloud's metadata service, for init,
//! before anything else of the agent runs.
//!
//! Two processes. The first brings up a network that reaches only the service, and takes it down
//! again; the second, its child, has no privileges (user `nobody`) and speaks HTTP with the server.
//! Neither parses the user-data: init measures it first.

use crate::console::{say, say_on_error};
use crate::error::Error;
use agent_metadata::platform::Way;
use agent_metadata::{ADDRESS, Answer, Fetch, MAX_BYTES, Platform, Request, Step, exit};
use agent_net::errand::{self, Errand};
use bytes::Bytes;
use config_errors::chain;
use config_http::{Connection, HttpError, Limits};
use http::header::{HOST, TRANSFER_ENCODING, USER_AGENT};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

/// Longest wait for an address.
const ADDRESS_LIMIT: Duration = Duration::from_secs(30);
/// Longest wait for the service's bytes, all attempts together.
const FETCH_LIMIT: Duration = Duration::from_secs(60);
/// Additional time for the child before it is killed.
const GRACE: Duration = Duration::from_secs(5);
/// Longest wait for one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Largest head of an answer.
const HEAD_LIMIT: usize = 16 << 10;
/// The unprivileged user and group.
const NOBODY: u32 = 65534;

/// Arguments of `agent metadata`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct MetadataArguments {
    /// The service.
    #[arg(long)]
    platform: Platform,
    /// The file for the user-data; must not exist.
    #[arg(long)]
    out: PathBuf,
    /// The only network interface to use.
    #[arg(long, hide = true)]
    interface: Option<String>,
}

/// Arguments of the unprivileged child.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FetchArguments {
    /// The service.
    #[arg(long)]
    platform: Platform,
    /// Where it answers.
    #[arg(long, default_value_t = SocketAddr::from((ADDRESS, 80)))]
    at: SocketAddr,
}

/// Fetches the user-data into the file; one of [`exit`]'s codes.
pub(crate) async fn run(arguments: MetadataArguments) -> Result<u8, Error> {
    let MetadataArguments {
        platform,
        out,
        interface,
    } = arguments;
    let way = Errand {
        host: ADDRESS,
        dhcp: platform.way() == Way::Lease,
        interface,
        limit: ADDRESS_LIMIT,
    };
    let fetched = match errand::run(&way, || fetch_in_child(platform)).await {
        Ok(fetched) => fetched?,
        Err(error) => {
            say(&format!(
                "no way to the metadata service at {ADDRESS}: {}",
                chain(&error)
            ));
            return Ok(exit::LATER);
        }
    };
    match fetched {
        Ok(bytes) => {
            write(&out, &bytes).map_err(|source| Error::File {
                what: "write",
                path: out,
                source,
            })?;
            Ok(exit::DONE)
        }
        Err(code) => Ok(code),
    }
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    std::fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?
        .write_all(bytes)
}

/// Runs this program again, unprivileged, and returns its output or its exit code.
async fn fetch_in_child(platform: Platform) -> Result<Result<Vec<u8>, u8>, Error> {
    let fault = |source| Error::File {
        what: "run",
        path: PathBuf::from("agent"),
        source,
    };
    // Another user may not reach this program by its path: it may lie in the home of root.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("agent")
        .args(["metadata-fetch", "--platform", platform.label()])
        .env_clear()
        .current_dir("/");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    if nix::unistd::geteuid().is_root() {
        // After exec a user other than root has no capabilities, and no supplementary groups.
        command.uid(NOBODY).gid(NOBODY);
    }
    let mut child = command.spawn().map_err(fault)?;
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_BYTES)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    let ended = timeout(FETCH_LIMIT + GRACE, async {
        if let Some(output) = child.stdout.take() {
            output.take(limit).read_to_end(&mut bytes).await?;
        }
        child.wait().await
    });
    let code = match ended.await {
        Ok(status) => status
            .map_err(fault)?
            .code()
            .and_then(|code| u8::try_from(code).ok()),
        Err(_elapsed) => None,
    };
    Ok(match (code, bytes.len()) {
        (Some(exit::DONE), 1..=MAX_BYTES) => Ok(bytes),
        (Some(code @ (exit::NOTHING | exit::REFUSED)), _) => Err(code),
        (_, _) => Err(exit::LATER),
    })
}

/// Asks the service and writes the user-data to standard output; one of [`exit`]'s codes.
pub(crate) async fn fetch(arguments: FetchArguments) -> Result<u8, Error> {
    let FetchArguments { platform, at } = arguments;
    let end = Instant::now() + FETCH_LIMIT;
    let (mut asking, mut pause) = (Fetch::new(platform), FIRST_PAUSE);
    loop {
        let request = asking.request();
        let url = format!("{} http://{at}{}", request.method, request.path);
        let step = match timeout(ANSWER_LIMIT, exchange(at, &request)).await {
            Ok(Ok(answer)) => asking.answer(answer),
            Ok(Err(ExchangeError::Answer(why))) => Step::Refused(why.to_owned()),
            Ok(Err(ExchangeError::Connection(error))) => Step::Later(chain(error.as_ref())),
            Err(_elapsed) => {
                Step::Later(format!("no whole answer in {} s", ANSWER_LIMIT.as_secs()))
            }
        };
        match step {
            Step::Ask(next) => asking = next,
            Step::Done(bytes) => {
                let fault = |source| Error::File {
                    what: "write to",
                    path: PathBuf::from("standard output"),
                    source,
                };
                let mut out = std::io::stdout().lock();
                out.write_all(&bytes)
                    .and_then(|()| out.flush())
                    .map_err(fault)?;
                return Ok(exit::DONE);
            }
            Step::Nothing => {
                say_on_error(&format!("{url}: this machine has no user-data"));
                return Ok(exit::NOTHING);
            }
            Step::Refused(why) => {
                say_on_error(&format!("{url}: {why}"));
                return Ok(exit::REFUSED);
            }
            Step::Later(why) if Instant::now() + pause >= end => {
                say_on_error(&format!(
                    "{url}: {why}; giving up after {} s",
                    FETCH_LIMIT.as_secs()
                ));
                return Ok(exit::LATER);
            }
            Step::Later(why) => {
                say_on_error(&format!(
                    "{url}: {why} (next attempt in {} s)",
                    pause.as_secs()
                ));
                sleep(pause).await;
                (asking, pause) = (Fetch::new(platform), (pause * 2).min(LONGEST_PAUSE));
            }
        }
    }
}

/// Why a request has no usable answer.
enum ExchangeError {
    /// No connection, or it broke.
    Connection(Box<dyn std::error::Error + Send + Sync>),
    /// It can't be used.
    Answer(&'static str),
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for ExchangeError {
    fn from(error: E) -> Self {
        Self::Connection(error.into())
    }
}

/// One request on a connection of its own.
async fn exchange(at: SocketAddr, request: &Request) -> Result<Answer, ExchangeError> {
    let limits = Limits {
        // The caller's time limit, which includes the connection, ends it.
        time: FETCH_LIMIT,
        head: HEAD_LIMIT,
        fields: 64,
        body: request.limit,
    };
    let stream = TokioIo::new(TcpStream::connect(at).await?);
    let (executor, timer) = (TokioExecutor::new(), TokioTimer::new());
    let mut connection = Connection::open(stream, &executor, timer, limits).await?;
    let mut builder = http::Request::builder()
        .method(request.method)
        .uri(request.path);
    builder = builder
        .header(HOST, host(at))
        .header(USER_AGENT, "pratique");
    if let Some((name, value)) = &request.header {
        builder = builder.header(*name, value);
    }
    let answer = connection.send(builder.body(Bytes::new())?).await?;
    let (head, body) = answer.into_parts();
    // An attacker could truncate a body that ends with the connection unnoticed.
    if body.length().is_none() && !head.headers.contains_key(TRANSFER_ENCODING) {
        return Err(ExchangeError::Answer(
            "the answer does not say how long it is; check what answers",
        ));
    }
    let flavour = head
        .headers
        .get("metadata-flavor")
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let body = match body.whole().await {
        Ok(body) => body.to_vec(),
        Err(HttpError::TooLong(_)) => {
            return Err(ExchangeError::Answer(
                "the answer is longer than the 64 KiB that user-data may have",
            ));
        }
        Err(error) => return Err(error.into()),
    };
    Ok(Answer {
        status: head.status.as_u16(),
        flavour,
        body,
    })
}

/// The host in the request: without the default port, as these services expect it.
fn host(at: SocketAddr) -> String {
    match at {
        SocketAddr::V4(v4) if at.port() == 80 => Ipv4Addr::to_string(v4.ip()),
        SocketAddr::V4(_) | SocketAddr::V6(_) => at.to_string(),
    }
}
