//! One connection, its requests and the bodies of their answers.

use crate::HttpError;
use bytes::Bytes;
use futures_util::future::{AbortHandle, Either, abortable, select};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::rt::{Executor, Read, Timer, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Limits of an answer in time and size.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// From a request to the head of its answer, and then again to the end of a body that is read
    /// whole.
    pub time: Duration,
    /// Bytes of the head at most, and of the buffer for it; hyper wants 8 KiB at least.
    pub head: usize,
    /// Header fields at most.
    pub fields: usize,
    /// Bytes of a body that is read whole.
    pub body: usize,
}

impl Default for Limits {
    /// For small answers of services that are not trusted.
    fn default() -> Self {
        Self {
            time: Duration::from_secs(30),
            head: 64 << 10,
            fields: 100,
            body: 256 << 10,
        }
    }
}

/// The future that moves a connection's bytes; it runs beside the requests.
pub type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The clock of the runtime.
type Clock = Arc<dyn Timer + Send + Sync>;

/// Ends the driver when it is dropped.
#[derive(Debug)]
struct Guard(AbortHandle);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The outcome of work, unless the time is over first.
async fn within<T>(
    clock: &Clock,
    time: Duration,
    work: impl Future<Output = T>,
) -> Result<T, HttpError> {
    match select(std::pin::pin!(work), clock.sleep(time)).await {
        Either::Left((outcome, _)) => Ok(outcome),
        Either::Right(_) => Err(HttpError::Silent(time)),
    }
}

/// A connection. Requests go one after another.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: Arc<Guard>,
    clock: Clock,
    limits: Limits,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Speaks HTTP over a stream: TCP, or TLS over it. `executor` runs the driver until the
    /// connection is dropped.
    ///
    /// # Errors
    /// hyper refuses the stream ([`HttpError::Exchange`]); nothing is sent on it before the first
    /// request.
    pub async fn open(
        stream: impl Read + Write + Unpin + Send + 'static,
        executor: &impl Executor<Driver>,
        timer: impl Timer + Send + Sync + 'static,
        limits: Limits,
    ) -> Result<Self, HttpError> {
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(limits.head.max(8192))
            .max_headers(limits.fields)
            .handshake(stream)
            .await
            .map_err(HttpError::Exchange)?;
        let (driver, guard) = abortable(connection);
        // The request that waits gets the connection's error.
        executor.execute(Box::pin(async move { drop(driver.await) }));
        Ok(Self {
            sender,
            driver: Arc::new(Guard(guard)),
            clock: Arc::new(timer),
            limits,
        })
    }

    /// Sends a request with its headers as they are, and returns the answer's head within the time.
    ///
    /// # Errors
    /// The connection broke, no head came in time, or it is too large.
    pub async fn send(&mut self, request: Request<Bytes>) -> Result<Response<Body>, HttpError> {
        let request = request.map(Full::new);
        let answer = async {
            // hyper accepts a request only after the last answer was read.
            self.sender.ready().await?;
            self.sender.send_request(request).await
        };
        let answer = within(&self.clock, self.limits.time, answer).await?;
        let answer = answer.map_err(HttpError::Exchange)?;
        Ok(answer.map(|incoming| Body {
            incoming,
            clock: Arc::clone(&self.clock),
            limits: self.limits,
            _driver: Arc::clone(&self.driver),
        }))
    }

    /// Sends a request and reads its whole answer.
    ///
    /// # Errors
    /// As [`Connection::send`] and [`Body::whole`].
    pub async fn call(&mut self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = self.send(request).await?.into_parts();
        Ok(Response::from_parts(head, body.whole().await?))
    }
}

/// The body of an answer.
pub struct Body {
    incoming: Incoming,
    clock: Clock,
    limits: Limits,
    _driver: Arc<Guard>,
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Body {
    /// Length of the whole body in bytes, if the head declares it.
    pub fn length(&self) -> Option<u64> {
        self.incoming.size_hint().exact()
    }

    /// The next piece, without a time limit; `None` at the end.
    ///
    /// # Errors
    /// The stream ended before the body did, or its chunks are malformed ([`HttpError::Exchange`]).
    pub async fn piece(&mut self) -> Result<Option<Bytes>, HttpError> {
        while let Some(frame) = self.incoming.frame().await {
            // Trailers are ignored.
            if let Ok(piece) = frame.map_err(HttpError::Exchange)?.into_data() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    /// The whole body, within time and size.
    ///
    /// # Errors
    /// The connection broke, the time is over, or the body is longer than the limit.
    pub async fn whole(self) -> Result<Bytes, HttpError> {
        let limit = self.limits.body;
        self.within(limit).await
    }

    /// The whole body, with another limit than the connection's.
    ///
    /// # Errors
    /// As [`Body::whole`].
    pub async fn within(mut self, limit: usize) -> Result<Bytes, HttpError> {
        let (clock, time) = (Arc::clone(&self.clock), self.limits.time);
        let reading = async {
            let mut all = Vec::new();
            while let Some(piece) = self.piece().await? {
                if all.len() + piece.len() > limit {
                    return Err(HttpError::TooLong(limit));
                }
                all.extend_from_slice(&piece);
            }
            Ok(Bytes::from(all))
        };
        within(&clock, time, reading).await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const LIMITS: Limits = Limits {
        time: Duration::from_millis(200),
        head: 8192,
        fields: 4,
        body: 8,
    };

    /// The outcome of one request to a server that answers with these bytes.
    async fn answered(bytes: &'static str) -> Result<Response<Bytes>, HttpError> {
        let (near, mut far) = tokio::io::duplex(64 << 10);
        let server = tokio::spawn(async move {
            let mut request = [0; 1024];
            let came = far.read(&mut request).await.expect("a request comes");
            assert!(came > 0, "a request is not empty");
            far.write_all(bytes.as_bytes())
                .await
                .expect("it is answered");
            // The connection stays open, as with a server that stops sending.
            far.read(&mut request).await
        });
        let request = Request::get("/").body(Bytes::new()).expect("a request");
        let mut connection = Connection::open(
            TokioIo::new(near),
            &TokioExecutor::new(),
            TokioTimer::new(),
            LIMITS,
        )
        .await?;
        let answer = connection.call(request).await;
        drop(connection);
        let left = server.await.expect("the server does not panic");
        assert_eq!(left.ok(), Some(0), "the connection ends with its owner");
        answer
    }

    #[tokio::test]
    async fn an_answer_is_read_whole_and_a_redirect_is_not_followed() {
        let answer = answered("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        assert_eq!(answer.expect("an answer").into_body(), "ok");
        let moved = "HTTP/1.1 302 Found\r\nlocation: http://b/\r\ncontent-length: 0\r\n\r\n";
        let answer = answered(moved).await.expect("an answer");
        assert_eq!(answer.status(), http::StatusCode::FOUND);
    }

    #[tokio::test]
    async fn an_answer_too_long_too_late_or_not_http_is_refused() {
        let long = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n123456789";
        assert!(matches!(answered(long).await, Err(HttpError::TooLong(8))));
        let endless = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\n123456789\r\n";
        assert!(matches!(
            answered(endless).await,
            Err(HttpError::TooLong(8))
        ));
        let half = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no";
        assert!(matches!(answered(half).await, Err(HttpError::Silent(_))));
        assert!(matches!(answered("").await, Err(HttpError::Silent(_))));
        let fields = "HTTP/1.1 200 OK\r\na: 1\r\nb: 1\r\nc: 1\r\nd: 1\r\ne: 1\r\n\r\n";
        assert!(matches!(
            answered(fields).await,
            Err(HttpError::Exchange(_))
        ));
        assert!(matches!(
            answered("SSH-2.0\r\n").await,
            Err(HttpError::Exchange(_))
        ));
    }
}
