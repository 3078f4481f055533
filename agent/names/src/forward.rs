//! Forwards questions about names outside of the cluster to the machine's DNS servers, or to those
//! of a stub domain, and caches the answers.

use super::answer::{Question, plain};
use super::zone::below;
use config_errors::chain;
use config_model::stub_domain::StubDomain;
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// Time for the answer of one server.
const PATIENCE: Duration = Duration::from_secs(3);
/// Servers that are asked at most, one after another.
const MOST_SERVERS: usize = 3;
/// How long a server that did not answer is asked last; then one question tries it.
const REST: Duration = Duration::from_secs(30);
/// Most servers that are remembered as silent: more than a machine and its stub domains have as a
/// rule.
const MOST_RESTING: usize = 64;
/// Cached answers, each of at most [`LARGEST_KEPT`] bytes: 8 MiB together.
const MOST_KEPT: usize = 4096;
const LARGEST_KEPT: usize = 2048;
/// Longest time that an answer is cached, also a negative one, in seconds.
const LONGEST: u32 = 30;
/// Largest resolver file.
const LARGEST_FILE: u64 = 64 * 1024;
const DNS_PORT: u16 = 53;

/// What another server is asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Asked {
    /// In lower case.
    name: Name,
    kind: RecordType,
}

/// An answer and when it came.
#[derive(Debug, Clone)]
struct CachedAnswer {
    answer: Message,
    at: Instant,
    seconds: u32,
}

/// The questions that servers are being asked, each with the place for its answer.
type UnderWay = HashMap<Asked, Arc<OnceCell<Message>>>;

/// Asks upstream DNS servers, and caches their answers.
#[derive(Debug)]
pub(super) struct Forwarder {
    resolv_conf: PathBuf,
    /// Addresses of this server itself, which is never asked.
    own: Vec<IpAddr>,
    stub_domains: Vec<StubDomain>,
    kept: Mutex<HashMap<Asked, CachedAnswer>>,
    /// Each question is asked once at a time: of many equal ones, a forged answer would have to
    /// guess the port and number of any, and one client asks as many as it likes (RFC 5452,
    /// section 5).
    under_way: Mutex<UnderWay>,
    /// Servers that did not answer when they were asked last, and when that was.
    resting: Mutex<HashMap<SocketAddr, Instant>>,
}

impl Forwarder {
    pub(super) fn new(
        resolv_conf: PathBuf,
        own: Vec<IpAddr>,
        stub_domains: Vec<StubDomain>,
    ) -> Self {
        Self {
            resolv_conf,
            own,
            stub_domains,
            kept: Mutex::default(),
            under_way: Mutex::default(),
            resting: Mutex::default(),
        }
    }

    /// Resolves a name upstream; an upstream failure becomes SERVFAIL. A question that servers are
    /// being asked already gets that answer, whose id and question may be another client's.
    pub(super) async fn ask(&self, question: &Question, name: &Name) -> Message {
        let asked = Asked {
            name: name.to_lowercase(),
            kind: question.query.query_type(),
        };
        if let Some(found) = self.remembered(&asked) {
            return found;
        }
        let place = Arc::clone(self.under_way().entry(asked.clone()).or_default());
        let answer = place.get_or_init(|| self.ask_servers(question, &asked));
        let answer = answer.await.clone();
        let mut under_way = self.under_way();
        if under_way
            .get(&asked)
            .is_some_and(|other| Arc::ptr_eq(other, &place))
        {
            under_way.remove(&asked);
        }
        answer
    }

    async fn ask_servers(&self, question: &Question, asked: &Asked) -> Message {
        for server in self.in_order(self.servers(&asked.name), Instant::now()) {
            match timeout(PATIENCE, exchange(server, asked)).await {
                Ok(Ok(answer)) => {
                    self.resting().remove(&server);
                    self.remember(asked.clone(), &answer);
                    return answer;
                }
                Ok(Err(error)) => {
                    tracing::debug!(%server, error = chain(&error), "an upstream DNS server did not answer");
                }
                Err(_) => tracing::debug!(%server, "an upstream DNS server timed out"),
            }
            self.rest(server, Instant::now());
        }
        question.answer(ResponseCode::ServFail)
    }

    fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        let under_way = self.under_way.lock();
        under_way.unwrap_or_else(PoisonError::into_inner)
    }

    fn resting(&self) -> MutexGuard<'_, HashMap<SocketAddr, Instant>> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rest(&self, server: SocketAddr, now: Instant) {
        let mut resting = self.resting();
        if resting.len() >= MOST_RESTING {
            resting.retain(|_, since| now.saturating_duration_since(*since) < REST);
        }
        if resting.len() < MOST_RESTING || resting.contains_key(&server) {
            resting.insert(server, now);
        }
    }

    /// These servers, those last that did not answer a while ago: otherwise each question would
    /// wait for a dead one.
    fn in_order(&self, mut servers: Vec<SocketAddr>, now: Instant) -> Vec<SocketAddr> {
        let mut resting = self.resting();
        servers.sort_by_cached_key(|server| {
            let since = resting.get_mut(server);
            since.is_some_and(|since| {
                let rests = now.saturating_duration_since(*since) < REST;
                if !rests {
                    // This question tries it; others do not wait for its outcome.
                    *since = now;
                }
                rests
            })
        });
        servers
    }

    /// The servers for a name: those of the longest stub domain that contains it, else the
    /// machine's.
    fn servers(&self, name: &Name) -> Vec<SocketAddr> {
        let name = plain(name);
        let stubs = self.stub_domains.iter();
        let stubs = stubs.filter(|stub| below(&name, stub.domain.as_str()).is_some());
        let stub = stubs.max_by_key(|stub| stub.domain.as_str().len());
        let all = stub.map_or_else(|| self.machines_servers(), |stub| stub.servers.clone());
        let others = all
            .into_iter()
            .filter(|address| !self.own.contains(address));
        let others = others.map(|address| SocketAddr::new(address, DNS_PORT));
        others.take(MOST_SERVERS).collect()
    }

    fn machines_servers(&self) -> Vec<IpAddr> {
        let is_small =
            std::fs::metadata(&self.resolv_conf).is_ok_and(|file| file.len() <= LARGEST_FILE);
        let text = is_small.then(|| std::fs::read_to_string(&self.resolv_conf));
        let text = text.and_then(Result::ok).unwrap_or_default();
        let named = text.lines().filter_map(|line| {
            let address = line.strip_prefix("nameserver")?.trim();
            address.parse::<IpAddr>().ok()
        });
        named.collect()
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<Asked, CachedAnswer>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A cached answer, with the TTLs that are left of its records.
    fn remembered(&self, asked: &Asked) -> Option<Message> {
        let kept = self.kept().get(asked).cloned()?;
        let age = u32::try_from(kept.at.elapsed().as_secs()).unwrap_or(u32::MAX);
        if age >= kept.seconds {
            return None;
        }
        let mut answer = kept.answer;
        let sections = [
            &mut answer.answers,
            &mut answer.authorities,
            &mut answer.additionals,
        ];
        for record in sections.into_iter().flatten() {
            record.ttl = record.ttl.saturating_sub(age);
        }
        Some(answer)
    }

    fn remember(&self, asked: Asked, answer: &Message) {
        let Some(seconds) = lifetime(answer) else {
            return;
        };
        if answer
            .to_vec()
            .map_or(true, |bytes| bytes.len() > LARGEST_KEPT)
        {
            return;
        }
        let mut kept = self.kept();
        if kept.len() >= MOST_KEPT {
            kept.retain(|_, one| one.at.elapsed() < Duration::from_secs(one.seconds.into()));
        }
        if kept.len() >= MOST_KEPT {
            // None has expired: any one makes room.
            let any = kept.keys().next().cloned();
            any.map(|any| kept.remove(&any));
        }
        let (answer, at) = (answer.clone(), Instant::now());
        kept.insert(
            asked,
            CachedAnswer {
                answer,
                at,
                seconds,
            },
        );
    }
}

/// Seconds for which an answer may be cached; `None` for an error of the server.
fn lifetime(answer: &Message) -> Option<u32> {
    let code = answer.metadata.response_code;
    if !matches!(code, ResponseCode::NoError | ResponseCode::NXDomain) {
        return None;
    }
    let shortest = answer.answers.iter().map(|record| record.ttl).min();
    let negative = answer.authorities.iter().find_map(|record| {
        if let RData::SOA(soa) = &record.data {
            return Some(soa.minimum.min(record.ttl));
        }
        None
    });
    // A negative answer without an SOA record says no time, and is not cached (RFC 2308, section
    // 5).
    let seconds = shortest.or(negative)?.min(LONGEST);
    (seconds > 0).then_some(seconds)
}

/// Asks one server by UDP, and by TCP if the answer was truncated.
async fn exchange(server: SocketAddr, asked: &Asked) -> io::Result<Message> {
    let mut request = Message::query();
    request.metadata.recursion_desired = true;
    request.add_query(hickory_proto::op::Query::query(
        asked.name.clone(),
        asked.kind,
    ));
    let bytes = request.to_vec().map_err(io::Error::other)?;
    // A socket for each question: its random source port is one more thing that a forged answer has
    // to guess (RFC 5452).
    let any: SocketAddr = if server.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0_u16; 8], 0).into()
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(&bytes).await?;
    let mut buffer = vec![0_u8; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        let answer = buffer
            .get(..length)
            .and_then(|bytes| fitting(bytes, &request));
        match answer {
            Some(answer) if answer.metadata.truncation => break,
            Some(answer) => return Ok(answer),
            None => {}
        }
    }
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream
        .write_all(&[&length.to_be_bytes(), bytes.as_slice()].concat())
        .await?;
    let mut buffer = vec![0_u8; stream.read_u16().await?.into()];
    stream.read_exact(&mut buffer).await?;
    fitting(&buffer, &request).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Decodes a server's answer as [`Forwarder`] does, with the seconds for which it would be cached;
/// `None` for bytes that are no answer. For the fuzz targets of `tests/fuzz`.
#[doc(hidden)]
pub fn heard(bytes: &[u8]) -> Option<(Message, Option<u32>)> {
    let mut request = Message::query();
    let said = Message::from_vec(bytes).ok()?;
    request.metadata.id = said.metadata.id;
    request.add_queries(said.queries);
    let answer = fitting(bytes, &request)?;
    let seconds = lifetime(&answer);
    Some((answer, seconds))
}

/// Decodes an answer, if it is one to this request: the same id and question.
fn fitting(bytes: &[u8], request: &Message) -> Option<Message> {
    let answer = Message::from_vec(bytes).ok()?;
    let same = answer.metadata.id == request.metadata.id && answer.queries == request.queries;
    same.then_some(answer)
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
