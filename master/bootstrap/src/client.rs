//! The client side: one request to an endpoint and its answer.

use crate::answer::Created;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use config_discovery::MAX_BYTES;
use config_http::{Connection, HttpError, Limits, first_to_answer};
use config_model::discovery::{DiscoveryEndpoint, DiscoveryUri};
use http::{Method, Request, StatusCode, header};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::sleep;
use tokio_rustls::TlsConnector;

/// Time limit of a whole exchange.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// A request failed or was refused.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection failed.
    #[error("{0} cannot be reached")]
    Connect(String, #[source] std::io::Error),
    /// TLS or HTTP failed.
    #[error("the exchange with {0} failed")]
    Exchange(String, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// There was no answer in time.
    #[error("{0} did not answer within {seconds} s", seconds = TIME_LIMIT.as_secs())]
    Silent(String),
    /// The endpoint refused the request.
    #[error("{at} refused ({status}): {code}: {message}")]
    Refused {
        /// The endpoint.
        at: String,
        /// HTTP status.
        status: u16,
        /// The error code, printable characters only.
        code: String,
        /// The message, printable characters only.
        message: String,
    },
}

impl ClientError {
    /// The error code of a refusal; empty for other errors.
    pub fn code(&self) -> &str {
        match self {
            Self::Refused { code, .. } => code,
            Self::Connect(..) | Self::Exchange(..) | Self::Silent(_) => "",
        }
    }
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Status.
    pub status: StatusCode,
    /// Body.
    pub body: Bytes,
}

/// Sends requests to an endpoint, one connection per call. Answers are untrusted until their
/// signature is checked, so with TLS any certificate is accepted.
#[derive(Debug, Clone)]
pub struct Client {
    endpoint: DiscoveryEndpoint,
}

impl Client {
    /// A client of an endpoint.
    pub fn new(endpoint: DiscoveryEndpoint) -> Self {
        Self { endpoint }
    }

    /// Creates a cluster for a discovery key.
    ///
    /// # Errors
    /// The endpoint is not reachable, refuses, or its answer is malformed.
    pub async fn create(&self, spki: &[u8], token: Option<&str>) -> Result<Created, ClientError> {
        let body = serde_json::json!({"key": STANDARD.encode(spki)}).to_string();
        let answer = self
            .send(Method::POST, &self.endpoint.clusters(), token, body.into())
            .await?;
        let answer = self.good(answer)?;
        serde_json::from_slice(&answer)
            .map_err(|error| ClientError::Exchange(self.endpoint.to_string(), error.into()))
    }

    /// Sets the signed document of a cluster.
    ///
    /// # Errors
    /// The endpoint is not reachable, or refuses.
    pub async fn set(
        uri: &DiscoveryUri,
        credential: &str,
        signed: Vec<u8>,
    ) -> Result<(), ClientError> {
        let client = Self::new(uri.endpoint.clone());
        let answer = client
            .send(Method::PUT, &uri.master(), Some(credential), signed.into())
            .await?;
        client.good(answer).map(drop)
    }

    /// The signed document of a cluster, not verified.
    ///
    /// # Errors
    /// The endpoint is not reachable, or refuses.
    pub async fn get(uri: &DiscoveryUri) -> Result<Bytes, ClientError> {
        let client = Self::new(uri.endpoint.clone());
        let answer = client
            .send(Method::GET, &uri.master(), None, Bytes::new())
            .await?;
        client.good(answer)
    }

    fn good(&self, answer: Answer) -> Result<Bytes, ClientError> {
        if answer.status.is_success() {
            return Ok(answer.body);
        }
        let value: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let text = |key: &str, most: usize| -> String {
            let text = value
                .get(key)
                .and_then(serde_json::Value::as_str)
                .unwrap_or_default();
            text.chars()
                .filter(|c| !c.is_control())
                .take(most)
                .collect()
        };
        Err(ClientError::Refused {
            at: self.endpoint.to_string(),
            status: answer.status.as_u16(),
            code: text("code", 64),
            message: text("message", 512),
        })
    }

    /// Sends one request; any status is an answer.
    ///
    /// # Errors
    /// The endpoint is not reachable, does not answer in time, or its answer is too large.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        bearer: Option<&str>,
        body: Bytes,
    ) -> Result<Answer, ClientError> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.endpoint.address.to_string())
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(bearer) = bearer {
            request = request.header(header::AUTHORIZATION, format!("Bearer {bearer}"));
        }
        let request = request.body(body);
        let request = request.map_err(|error| self.failed(error.into()))?;
        tokio::time::timeout(TIME_LIMIT, self.exchange(request))
            .await
            .unwrap_or_else(|_elapsed| Err(ClientError::Silent(self.endpoint.to_string())))
    }

    async fn exchange(&self, request: Request<Bytes>) -> Result<Answer, ClientError> {
        let limits = Limits {
            time: TIME_LIMIT,
            body: MAX_BYTES,
            ..Limits::default()
        };
        let host = self.endpoint.host().to_string();
        let unreachable = |error| ClientError::Connect(self.endpoint.to_string(), error);
        let found = lookup_host((host.as_str(), self.endpoint.port())).await;
        let found = found.map_err(unreachable)?.collect();
        let tcp = first_to_answer(found, sleep, TcpStream::connect::<SocketAddr>).await;
        let tcp = tcp.map_err(unreachable)?;
        let (executor, timer) = (TokioExecutor::new(), TokioTimer::new());
        let connection = if self.endpoint.tls {
            let name = ServerName::try_from(host).map_err(|error| self.failed(error.into()))?;
            let tls = config_tls::unverified_server(rustls::DEFAULT_VERSIONS);
            let tls = tls.map_err(|error| self.failed(error.into()))?;
            let stream = TlsConnector::from(tls).connect(name, tcp).await;
            let stream = stream.map_err(|error| self.failed(error.into()))?;
            Connection::open(TokioIo::new(stream), &executor, timer, limits).await
        } else {
            Connection::open(TokioIo::new(tcp), &executor, timer, limits).await
        };
        let mut connection = connection.map_err(|error| self.http(error))?;
        let answer = connection.call(request).await;
        let answer = answer.map_err(|error| self.http(error))?;
        Ok(Answer {
            status: answer.status(),
            body: answer.into_body(),
        })
    }

    fn failed(&self, error: Box<dyn std::error::Error + Send + Sync>) -> ClientError {
        ClientError::Exchange(self.endpoint.to_string(), error)
    }

    fn http(&self, error: HttpError) -> ClientError {
        match error {
            HttpError::Silent(_) => ClientError::Silent(self.endpoint.to_string()),
            HttpError::Exchange(_) | HttpError::TooLong(_) => self.failed(error.into()),
        }
    }
}
