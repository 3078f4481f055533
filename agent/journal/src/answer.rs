//! Answers to requests below `/logs/`.

use crate::files::{Files, Now};
use crate::kmsg::KernelLog;
use crate::query::{Fault, Query};
use crate::reader::{Piece, Reader};
use crate::service::LoggedService;
use crate::source::Source;
use agent_port::{Body, answer};
use bytes::Bytes;
use config_machine::journal::{BOOT_ID, Boot, FOLDER};
use futures_util::{Stream, StreamExt as _, stream};
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use jiff::Timestamp;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

/// Concurrent answers that end by themselves, and concurrent followers.
const READS: usize = 8;
const FOLLOWS: usize = 8;
/// Concurrent readers: each holds a thread.
const SCANS: usize = 2;
/// For how long a reader holds its thread at a time.
const SLICE: Duration = Duration::from_millis(100);
/// How long a query may read until it reaches the end of the log. The master waits half a minute
/// for a piece.
const SEARCH: Duration = Duration::from_secs(25);
/// Time between two checks for more lines.
const LOOK: Duration = Duration::from_millis(200);
/// Longest time for which a log is followed (upstream's limit for streams).
const MAX_FOLLOW: Duration = Duration::from_secs(4 * 3600);

/// Where the logs are.
#[derive(Debug, Clone)]
pub struct LogPaths {
    /// The folder that init writes to.
    pub folder: PathBuf,
    /// The kernel's log.
    pub kernel: PathBuf,
}

impl Default for LogPaths {
    /// A machine's.
    fn default() -> Self {
        Self {
            folder: FOLDER.into(),
            kernel: "/dev/kmsg".into(),
        }
    }
}

/// The logs of this machine.
#[derive(Debug, Clone)]
pub struct Journal {
    places: Arc<LogPaths>,
    reads: Arc<Semaphore>,
    follows: Arc<Semaphore>,
    scans: Arc<Semaphore>,
}

/// Why nothing is read.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{0}")]
    Query(#[from] Fault),
    #[error("{fault}; there are: {there}")]
    Missing { fault: Fault, there: String },
    #[error(
        "boot: no line is kept of a boot that long ago; the kernel's log, which also holds init's, covers only this boot"
    )]
    NoBoot,
    #[error("no files are served here; name a service by /logs/?query=SERVICE; there are: {0}")]
    NoFile(String),
    #[error("too many log requests at once: try again")]
    Busy,
    #[error("a log can't be read: {0}")]
    Broken(#[from] io::Error),
}

impl Refusal {
    /// In the form that clients of Kubernetes read.
    fn answer(&self) -> Response<Body> {
        let (status, reason) = match self {
            Self::Query(_) | Self::Missing { .. } | Self::NoBoot => {
                (StatusCode::BAD_REQUEST, "BadRequest")
            }
            Self::NoFile(_) => (StatusCode::NOT_FOUND, "NotFound"),
            Self::Busy => (StatusCode::TOO_MANY_REQUESTS, "TooManyRequests"),
            Self::Broken(_) => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
        };
        let object = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.to_string(), "reason": reason, "code": status.as_u16(),
        });
        answer(status, "application/json", object.to_string().into())
    }
}

impl Journal {
    /// The logs at these places.
    pub fn new(places: LogPaths) -> Self {
        Self {
            places: Arc::new(places),
            reads: Arc::new(Semaphore::new(READS)),
            follows: Arc::new(Semaphore::new(FOLLOWS)),
            scans: Arc::new(Semaphore::new(SCANS)),
        }
    }

    /// Answers a GET of a path below `/logs/`. Without a query it lists the services. The caller is
    /// authorized before.
    pub async fn answer(&self, below: &[&str], query: &str) -> Response<Body> {
        let outcome = match (below, query) {
            ([] | [""], "") => self.listed().await,
            ([] | [""], query) => self.answer_query(query).await,
            _ => Err(Refusal::NoFile(self.names().await)),
        };
        outcome.unwrap_or_else(|refusal| refusal.answer())
    }

    async fn listed(&self) -> Result<Response<Body>, Refusal> {
        let names = self.names().await.replace(", ", "\n") + "\n";
        Ok(answer(StatusCode::OK, "text/plain", names.into()))
    }

    async fn answer_query(&self, query: &str) -> Result<Response<Body>, Refusal> {
        let query = match Query::parse(query) {
            Ok(query) => query,
            Err(fault @ (Fault::Service(_) | Fault::Nobody)) => {
                let there = self.names().await;
                return Err(Refusal::Missing { fault, there });
            }
            Err(fault) => return Err(fault.into()),
        };
        let places = if query.follow {
            &self.follows
        } else {
            &self.reads
        };
        let place = Arc::clone(places).try_acquire_owned();
        let place = place.map_err(|_full| Refusal::Busy)?;
        let paths = Arc::clone(&self.places);
        // Finding the boot needs a scan of all lines.
        let reader = self.at_work(move || paths.open(query)).await??;
        let body = StreamBody::new(pieces(self.clone(), reader, place));
        let mut response = Response::new(BodyExt::boxed_unsync(body));
        let plain = HeaderValue::from_static("text/plain");
        response.headers_mut().insert(header::CONTENT_TYPE, plain);
        Ok(response)
    }

    /// The services of this machine.
    async fn names(&self) -> String {
        let places = Arc::clone(&self.places);
        let there = self.at_work(move || places.there()).await;
        let names = there
            .unwrap_or_default()
            .into_iter()
            .map(LoggedService::name);
        names.collect::<Vec<_>>().join(", ")
    }

    /// Runs blocking work once a slot for it is free.
    async fn at_work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let turn = Arc::clone(&self.scans).acquire_owned().await;
        let turn = turn.map_err(io::Error::other)?;
        let done = spawn_blocking(move || {
            let done = work();
            drop(turn);
            done
        });
        done.await.map_err(io::Error::other)
    }
}

impl LogPaths {
    /// The services that have logs here.
    fn there(&self) -> Vec<LoggedService> {
        let now = now();
        let is_there = |service: &LoggedService| {
            if service.is_in_kernel_log() {
                KernelLog::open(&self.kernel, *service, now.epoch).is_ok()
            } else {
                Files::open(&self.folder, service.name(), now).is_ok_and(|files| files.is_there())
            }
        };
        LoggedService::ALL.into_iter().filter(is_there).collect()
    }

    fn open(&self, query: Query) -> Result<Reader, Refusal> {
        let there = self.there();
        if let Some(missing) = query.services.iter().find(|one| !there.contains(one)) {
            let fault = Fault::Service(missing.name().to_owned());
            let names: Vec<_> = there.into_iter().map(LoggedService::name).collect();
            let there = names.join(", ");
            return Err(Refusal::Missing { fault, there });
        }
        let now = now();
        let mut sources: Vec<(LoggedService, Box<dyn Source>)> = Vec::new();
        for service in &query.services {
            let source: Box<dyn Source> = if service.is_in_kernel_log() {
                if query.boot.is_some_and(|back| back > 0) {
                    continue;
                }
                Box::new(KernelLog::open(&self.kernel, *service, now.epoch)?)
            } else {
                let mut files = Files::open(&self.folder, service.name(), now)?;
                if let Some(back) = query.boot
                    && !files.select_boot(back)?
                {
                    continue;
                }
                Box::new(files)
            };
            sources.push((*service, source));
        }
        if sources.is_empty() {
            return Err(Refusal::NoBoot);
        }
        Ok(Reader::new(query, sources))
    }
}

/// This boot.
fn now() -> Now {
    let id = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
    let since = i64::try_from(agent_sys::clock::since_boot().as_micros()).unwrap_or(i64::MAX);
    Now {
        boot: Boot::of(&id),
        epoch: Timestamp::now()
            .as_microsecond()
            .saturating_sub(since)
            .max(0),
    }
}

/// A log on its way.
struct Sending {
    journal: Journal,
    reader: Reader,
    /// The answer's slot.
    _place: OwnedSemaphorePermit,
    begun: Instant,
    /// Time spent reading since the end of the log was last reached.
    spent: Duration,
    over: bool,
}

/// The log in pieces, until the end or, followed, until the client goes.
fn pieces(
    journal: Journal,
    reader: Reader,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = io::Result<Frame<Bytes>>> + Send {
    let sending = Sending {
        journal,
        reader,
        _place: place,
        begun: Instant::now(),
        spent: Duration::ZERO,
        over: false,
    };
    stream::try_unfold(sending, |sending| async move {
        let next = sending.next().await?;
        Ok(next.map(|(piece, sending)| (Frame::data(piece), sending)))
    })
    .boxed()
}

impl Sending {
    async fn next(mut self) -> io::Result<Option<(Bytes, Self)>> {
        loop {
            if self.over {
                return Ok(None);
            }
            if self.spent >= SEARCH {
                let why = "(the search ends after 25 s of reading: ask for less)\n";
                return Ok(Some(self.cut(why)));
            }
            let Self {
                journal,
                mut reader,
                ..
            } = self;
            let begun = Instant::now();
            let work = move || (reader.piece(SLICE), reader);
            let (piece, reader) = journal.at_work(work).await?;
            self = Self {
                journal,
                reader,
                spent: self.spent + begun.elapsed(),
                ..self
            };
            let query = self.reader.query();
            match piece? {
                Piece::Text(text) => return Ok(Some((text.into(), self))),
                Piece::Busy => {}
                Piece::Over => return Ok(None),
                Piece::Idle if !query.follow => return Ok(None),
                Piece::Idle => {
                    if query.until.is_some_and(|until| until < Timestamp::now()) {
                        return Ok(None);
                    }
                    if self.begun.elapsed() >= MAX_FOLLOW {
                        let why = "(a log is followed for 4 h at most)\n";
                        return Ok(Some(self.cut(why)));
                    }
                    self.spent = Duration::ZERO;
                    sleep(LOOK).await;
                }
            }
        }
    }

    /// The last piece.
    fn cut(mut self, why: &'static str) -> (Bytes, Self) {
        self.over = true;
        (Bytes::from_static(why.as_bytes()), self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_machine::journal::Stamp;
    use std::io::Write as _;

    struct Lab {
        dir: tempfile::TempDir,
        journal: Journal,
    }

    impl Lab {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let journal = Journal::new(LogPaths {
                folder: dir.path().to_owned(),
                kernel: dir.path().join("no-kernel"),
            });
            Self { dir, journal }
        }

        fn put(&self, service: &str, back: u64, text: &str) {
            let path = self.dir.path().join(format!("{service}.log"));
            let mut file = std::fs::File::options();
            let mut file = file.append(true).create(true).open(path).unwrap();
            let since = u64::try_from(agent_sys::clock::since_boot().as_millis()).unwrap();
            let stamp = Stamp {
                boot: now().boot,
                unix: 0,
                since_boot: since - back,
            };
            writeln!(file, "{stamp} {text}").unwrap();
        }

        async fn get(&self, query: &str) -> (u16, String) {
            let answer = self.journal.answer(&[""], query).await;
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            (status, String::from_utf8(body.to_vec()).unwrap())
        }
    }

    #[tokio::test]
    async fn services_are_listed_and_read_in_the_order_of_time() {
        let lab = Lab::new();
        lab.put("agent", 30, "first");
        lab.put("containerd", 20, "second");
        lab.put("agent", 10, "third");
        assert_eq!(lab.get("").await, (200, "containerd\nagent\n".to_owned()));
        let (status, all) = lab.get("query=kubelet&query=containerd").await;
        let texts: Vec<&str> = all
            .lines()
            .filter_map(|line| line.split(' ').nth(2))
            .collect();
        assert_eq!((status, &*texts), (200, &["first", "second", "third"][..]));
        let time: Timestamp = all.split(' ').next().unwrap().parse().unwrap();
        let age = Timestamp::now().duration_since(time);
        assert!(age.as_secs() < 60, "the clock of now gives the time: {all}");
    }

    #[tokio::test]
    async fn a_refusal_names_the_services_that_exist() {
        let lab = Lab::new();
        lab.put("agent", 0, "text");
        for (query, expected) in [
            ("query=sshd", "no service \\\"sshd\\\"; there are: agent"),
            (
                "query=master",
                "no service \\\"master\\\"; there are: agent",
            ),
            ("query=/etc/shadow", "there are: agent"),
            ("tailLines=1", "name a service; there are: agent"),
            (
                "query=agent&boot=-1",
                "no line is kept of a boot that long ago",
            ),
            ("query=agent&pattern=((a{99}){99}){99}", "too large"),
        ] {
            let (status, said) = lab.get(query).await;
            assert_eq!(status, 400, "{query}: {said}");
            assert!(said.contains(expected), "{query}: {said}");
            assert!(said.contains("\"kind\":\"Status\""), "{said}");
        }
        for path in [
            &["..", "..", "etc", "shadow"][..],
            &["agent.log"],
            &["..%2f"],
        ] {
            let answer = lab.journal.answer(path, "").await;
            assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path:?}");
        }
    }

    #[tokio::test]
    async fn a_link_in_place_of_a_log_is_no_service() {
        let lab = Lab::new();
        std::os::unix::fs::symlink("/etc/passwd", lab.dir.path().join("master.log")).unwrap();
        assert_eq!(lab.get("").await, (200, "\n".to_owned()));
        assert_eq!(lab.get("query=master").await.0, 400);
    }

    #[tokio::test]
    async fn a_log_is_followed_until_its_end_within_the_limit_of_followers() {
        let lab = Lab::new();
        lab.put("agent", 0, "before");
        let mut open = Vec::new();
        for _ in 0..FOLLOWS {
            let answer = lab.journal.answer(&[""], "query=agent&follow=true").await;
            open.push(answer.into_body());
        }
        assert_eq!(lab.get("query=agent&follow=true").await.0, 429);
        assert_eq!(
            lab.get("query=agent").await.0,
            200,
            "reads have places of their own"
        );
        let mut first = open.remove(0);
        for wanted in ["before", "after"] {
            let piece = first.frame().await.unwrap().unwrap().into_data().unwrap();
            let text = String::from_utf8_lossy(&piece).into_owned();
            assert!(text.ends_with(&format!("agent: {wanted}\n")), "{text}");
            lab.put("agent", 0, "after");
        }
        drop(first);
        let soon = Timestamp::now() + Duration::from_millis(300);
        let query = format!("query=agent&follow=true&untilTime={soon}");
        let (status, all) = lab.get(&query).await;
        assert_eq!(status, 200, "the client that left freed its slot");
        assert!(all.lines().count() >= 2, "{all}");
    }
}
