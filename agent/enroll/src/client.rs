//! Requests to the master's API over mTLS with the node key: answers, and watches line by line.

use crate::endpoint::{Endpoints, tls};
use crate::identity::CertificateSlot;
use crate::{Error, connector::Connector};
use bytes::{Bytes, BytesMut};
use config_figures::Requests;
use config_tls::Pins;
use futures_util::{Stream, stream};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;
use std::pin::Pin as Pinned;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::time::timeout;

/// Longest wait for the head of an answer.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for the rest of an answer that is not a watch.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Largest answer: five of the largest objects (3 MiB). What asks for a list asks for smaller pages
/// where one is larger.
const BODY_LIMIT: usize = 16 * 1024 * 1024;
/// Largest event of a watch: an object has at most 3 MiB.
const LINE_LIMIT: usize = 4 * 1024 * 1024;
/// HTTP/2 pings distinguish a dead connection from a silent watch.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Idle HTTP/1.1 connections that are kept.
const IDLE: usize = 4;

/// The lines of a watch, without their ends.
pub type Lines = Pinned<Box<dyn Stream<Item = Result<Bytes, Error>> + Send>>;

type HttpClient = Client<Connector, Full<Bytes>>;

/// An answer whose body was read whole.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Status code.
    pub status: StatusCode,
    /// Body.
    pub body: Bytes,
    /// The master's time as its answer began, and this machine's at that moment; both since 1970.
    pub times: Option<(Duration, Duration)>,
}

/// The way to the master's API for one node; cheap to clone.
///
/// Guarantees: the server is one that the pins allow; every connection is signed for by the node
/// key; a request fails over to another endpoint only while it is being connected, so it is never
/// sent twice.
#[derive(Debug, Clone)]
pub struct MasterClient {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    endpoints: Endpoints,
    tls: Arc<ClientConfig>,
    client: RwLock<HttpClient>,
    requests: Requests,
}

impl MasterClient {
    /// A client that shows the certificate in `identity`.
    ///
    /// # Errors
    /// The TLS library takes no such configuration.
    pub fn new(
        endpoints: Endpoints,
        pins: impl Into<Pins>,
        identity: Arc<CertificateSlot>,
    ) -> Result<Self, Error> {
        let tls = tls(pins.into(), Some(identity), &[b"h2", b"http/1.1"])?;
        let client = RwLock::new(http_client(&endpoints, &tls));
        Ok(Self {
            shared: Arc::new(Shared {
                endpoints,
                tls,
                client,
                requests: Requests::default(),
            }),
        })
    }

    /// Sends one request and reads its whole answer; any status is an answer.
    ///
    /// # Errors
    /// No endpoint can be reached, the connection breaks, or the answer is longer than its limit.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Answer, Error> {
        let (host, word) = (self.host(), method.to_string());
        let begun = Instant::now();
        let whole = match self.send(method, path, content_type, body).await {
            Ok(response) => answer(response).await,
            Err(error) => Err(error),
        };
        self.shared.requests.took(&host, &word, begun.elapsed());
        whole
    }

    /// Opens a watch; `Err` of the inner result is the answer where its status is not 200.
    ///
    /// # Errors
    /// No endpoint can be reached, or the connection breaks before the head of the answer.
    pub async fn watch(&self, path: &str) -> Result<Result<Lines, Answer>, Error> {
        let response = self.send(Method::GET, path, "", Bytes::new()).await?;
        if response.status() != StatusCode::OK {
            return answer(response).await.map(Err);
        }
        Ok(Ok(lines(response.into_body())))
    }

    /// Uses new connections, and so the renewed certificate, from now on. Requests in progress end
    /// on the old ones.
    pub(crate) fn reconnect(&self) {
        let fresh = http_client(&self.shared.endpoints, &self.shared.tls);
        *self
            .shared
            .client
            .write()
            .unwrap_or_else(PoisonError::into_inner) = fresh;
    }

    /// What this client asked, and how that ended.
    pub(crate) fn requests(&self) -> &Requests {
        &self.shared.requests
    }

    /// The endpoint by which the API is named.
    fn host(&self) -> String {
        self.shared.endpoints.first().to_string()
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<http::Response<Incoming>, Error> {
        let (host, word) = (self.host(), method.to_string());
        let uri = http::Uri::builder()
            .scheme("https")
            .authority(host.as_str())
            .path_and_query(path)
            .build();
        let mut request = Request::builder()
            .method(method)
            .uri(uri.map_err(Error::Request)?)
            .header(header::ACCEPT, "application/json")
            .header(
                header::USER_AGENT,
                concat!("pratique-agent/", env!("CARGO_PKG_VERSION")),
            );
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let request = request.body(Full::new(body)).map_err(Error::Request)?;
        let client = self
            .shared
            .client
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let response = match timeout(HEAD_TIMEOUT, client.request(request)).await {
            Ok(outcome) => outcome.map_err(Error::Exchange),
            Err(_elapsed) => Err(Error::Silent(HEAD_TIMEOUT)),
        };
        let code = response.as_ref().ok();
        let code = code.map(|response| response.status().as_u16());
        self.shared.requests.answered(&host, &word, code);
        response
    }
}

fn http_client(endpoints: &Endpoints, tls: &Arc<ClientConfig>) -> HttpClient {
    Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_max_idle_per_host(IDLE)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .http2_keep_alive_timeout(KEEP_ALIVE)
        .http2_keep_alive_while_idle(true)
        .build(Connector::new(endpoints.clone(), Arc::clone(tls)))
}

async fn answer(response: http::Response<Incoming>) -> Result<Answer, Error> {
    let ours = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let times = response
        .headers()
        .get(header::DATE)
        .and_then(date)
        .map(|theirs| (theirs, ours));
    Ok(Answer {
        status: response.status(),
        body: whole(response.into_body()).await?,
        times,
    })
}

/// The time in a Date header (RFC 9110, section 5.6.7), since 1970.
fn date(value: &http::HeaderValue) -> Option<Duration> {
    let time = jiff::fmt::rfc2822::DateTimeParser::new()
        .parse_timestamp(value.as_bytes())
        .ok()?;
    u64::try_from(time.as_second())
        .ok()
        .map(Duration::from_secs)
}

async fn whole(body: Incoming) -> Result<Bytes, Error> {
    match timeout(BODY_TIMEOUT, Limited::new(body, BODY_LIMIT).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(source)) if source.is::<LengthLimitError>() => Err(Error::TooLarge(BODY_LIMIT)),
        Ok(Err(source)) => Err(Error::Body(source)),
        Err(_elapsed) => Err(Error::Silent(BODY_TIMEOUT)),
    }
}

/// Cuts a body into lines as it arrives. A last line without its end is dropped: the master was cut
/// off in it.
fn lines(body: Incoming) -> Lines {
    let state = (body, BytesMut::new());
    Box::pin(stream::try_unfold(
        state,
        |(mut body, mut buffer)| async move {
            let mut searched = 0;
            loop {
                let unseen = buffer.get(searched..).unwrap_or_default();
                if let Some(end) = unseen.iter().position(|byte| *byte == b'\n') {
                    let mut line = buffer.split_to(searched + end + 1);
                    line.truncate(searched + end);
                    return Ok(Some((line.freeze(), (body, buffer))));
                }
                searched = buffer.len();
                if searched > LINE_LIMIT {
                    return Err(Error::LongLine(LINE_LIMIT));
                }
                match body.frame().await {
                    None => return Ok(None),
                    Some(Err(source)) => return Err(Error::Body(Box::new(source))),
                    Some(Ok(frame)) => {
                        buffer
                            .extend_from_slice(frame.data_ref().map_or(&[], |data| data.as_ref()));
                    }
                }
            }
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_masters_time_is_read_from_its_date() {
        let read = |text: &'static str| date(&http::HeaderValue::from_static(text));
        assert_eq!(
            read("Sun, 06 Nov 1994 08:49:37 GMT"),
            Some(Duration::from_secs(784_111_777))
        );
        assert_eq!(read("tomorrow"), None);
        assert_eq!(read("Sun, 06 Nov 1904 08:49:37 GMT"), None);
    }
}
