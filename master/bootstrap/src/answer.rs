//! The HTTP API of the endpoint: create a cluster, set and get its document, health and metrics.

use crate::clusters::{Clusters, ClustersError, StoredDocument, hash};
use crate::rate::{Buckets, Rate};
use crate::refusal::Refusal;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use config_discovery::{DocumentFault, Expected, MAX_BYTES, Trust, check, parse_object};
use config_model::discovery::{ClusterId, DiscoveryEndpoint, DiscoveryUri};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use p256::pkcs8::DecodePublicKey as _;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes of a request to create a cluster: a P-256 key has 91.
const MAX_CREATE: usize = 1024;
/// Time limit of a request's body.
const BODY_TIME: Duration = Duration::from_secs(10);
/// Seconds for which a document may be cached.
const MAX_AGE: u32 = 60;

/// Request rates per address.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// Requests that create clusters.
    pub create: Rate,
    /// Requests that set documents.
    pub set: Rate,
    /// All other requests: a thousand machines behind one address may boot at once.
    pub get: Rate,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            create: Rate {
                burst: 20,
                every: Duration::from_secs(600),
            },
            set: Rate {
                burst: 100,
                every: Duration::from_secs(5),
            },
            get: Rate {
                burst: 2000,
                every: Duration::from_millis(20),
            },
        }
    }
}

/// A new cluster, as returned to its creator.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Created {
    /// The id.
    pub cluster: String,
    /// The URI of its document.
    pub uri: String,
    /// The credential for setting its document; returned only here.
    pub credential: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    key: String,
}

/// The state of the endpoint.
#[derive(Debug)]
pub struct Endpoint {
    clusters: Arc<Clusters>,
    address: DiscoveryEndpoint,
    /// SHA-256 of the operator's token, if creating clusters requires it.
    token: Option<String>,
    create: Buckets,
    set: Buckets,
    get: Buckets,
    refused: Mutex<BTreeMap<&'static str, u64>>,
}

type Answer = Result<Response<Full<Bytes>>, Refusal>;

impl Endpoint {
    /// An endpoint with the public address `address`; with a token, creating clusters requires it.
    pub fn new(
        clusters: Clusters,
        address: DiscoveryEndpoint,
        token: Option<&str>,
        rates: Rates,
    ) -> Self {
        Self {
            clusters: Arc::new(clusters),
            address,
            token: token.map(hash),
            create: Buckets::new(rates.create),
            set: Buckets::new(rates.set),
            get: Buckets::new(rates.get),
            refused: Mutex::default(),
        }
    }

    /// Answers one request.
    pub(crate) async fn answer(
        &self,
        from: IpAddr,
        request: Request<Incoming>,
    ) -> Response<Full<Bytes>> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        match self.route(from, request, &path).await {
            Ok(response) => response,
            Err(refusal) => {
                self.count(&refusal);
                // The rate limits how many lines an address causes, but not the lines about the
                // rate limit itself.
                if matches!(refusal, Refusal::RateLimited(_)) {
                    tracing::debug!(remote = %from, %method, path, code = refusal.code(), "refused");
                } else {
                    tracing::info!(remote = %from, %method, path, code = refusal.code(), reason = %refusal, "refused");
                }
                refused(&refusal)
            }
        }
    }

    async fn route(&self, from: IpAddr, request: Request<Incoming>, path: &str) -> Answer {
        let method = request.method().clone();
        let limit = |buckets: &Buckets| {
            buckets
                .take(from, Instant::now())
                .map_err(Refusal::RateLimited)
        };
        if method == Method::PUT {
            limit(&self.set)?;
        } else {
            limit(&self.get)?;
        }
        let path = path
            .strip_prefix(self.address.base.as_str())
            .unwrap_or(path);
        if let Some(id) = path
            .strip_prefix("/v1/clusters/")
            .and_then(|rest| rest.strip_suffix("/master"))
        {
            let id: ClusterId = id.parse().map_err(|_no_id| Refusal::Unknown)?;
            return match method {
                Method::GET | Method::HEAD => self.get_master(&id).await,
                Method::PUT => self.set_master(&id, request).await,
                _ => Err(Refusal::Method),
            };
        }
        match (path, method) {
            ("/v1/clusters", Method::POST) => {
                limit(&self.create)?;
                self.create_cluster(request).await
            }
            ("/livez", Method::GET) => Ok(text("ok".to_owned())),
            ("/metrics", Method::GET) => Ok(text(self.metrics())),
            ("/v1/clusters" | "/livez" | "/metrics", _) => Err(Refusal::Method),
            _ => Err(Refusal::Unknown),
        }
    }

    async fn create_cluster(&self, request: Request<Incoming>) -> Answer {
        if let Some(token) = &self.token
            && bearer(request.headers()).is_none_or(|given| hash(given) != *token)
        {
            return Err(Refusal::Token);
        }
        let body = body(request, MAX_CREATE).await?;
        let malformed = |why: &str| Refusal::Malformed(why.to_owned());
        let Create { key } = parse_object(&body)?;
        let spki = STANDARD
            .decode(key)
            .map_err(|_opaque| malformed("`key` is not base64"))?;
        p256::PublicKey::from_public_key_der(&spki)
            .map_err(|_opaque| malformed("`key` is not the SubjectPublicKeyInfo of a P-256 key"))?;
        let (cluster, credential) = self.clusters.create(&spki, now()).await?;
        tracing::info!(%cluster, "cluster created");
        let uri = DiscoveryUri {
            endpoint: self.address.clone(),
            cluster: cluster.clone(),
        }
        .to_string();
        let created = Created {
            cluster: cluster.to_string(),
            uri,
            credential,
        };
        Ok(json(
            StatusCode::CREATED,
            serde_json::to_vec(&created).unwrap_or_default(),
        ))
    }

    async fn set_master(&self, id: &ClusterId, request: Request<Incoming>) -> Answer {
        let (record, revision) = self.clusters.get(id).await?.ok_or(Refusal::Unknown)?;
        if !bearer(request.headers()).is_some_and(|credential| record.admits(credential)) {
            return Err(Refusal::Credential);
        }
        let bytes = body(request, MAX_BYTES).await?;
        let pins: Vec<_> = record.pin().into_iter().collect();
        // Above the stored generation: setting the same document again is harmless but useless.
        let held = record.document.as_ref().map(|kept| kept.generation);
        let least = held.map_or(0, |held| held.saturating_add(1));
        let expected = Expected {
            cluster: id,
            trust: Trust::Pins(&pins),
            min_generation: least,
            now: now(),
        };
        let verified = check(&bytes, &expected)?;
        let (generation, expires) = (verified.document().generation, verified.document().expires);
        // No generation follows the greatest number.
        if held == Some(generation) {
            return Err(DocumentFault::GenerationBack {
                found: generation,
                least,
            }
            .into());
        }
        let kept = StoredDocument::new(generation, expires, &bytes);
        if !self.clusters.set(id, record, revision, kept).await? {
            return Err(Refusal::Store(
                "another document was set at the same time".to_owned(),
            ));
        }
        tracing::info!(cluster = %id, generation, "master set");
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::NO_CONTENT;
        Ok(response)
    }

    async fn get_master(&self, id: &ClusterId) -> Answer {
        let found = self.clusters.get(id).await?;
        let kept = found
            .and_then(|(record, _)| record.document)
            .ok_or(Refusal::Unknown)?;
        let bytes = kept
            .bytes()
            .ok_or_else(|| ClustersError::Damaged(id.to_string()))?;
        let mut response = json(StatusCode::OK, bytes);
        let headers = response.headers_mut();
        let mut put =
            |name, value: String| value.parse().map(|value| headers.insert(name, value)).ok();
        put(header::ETAG, format!("\"{}\"", kept.generation));
        put(header::CACHE_CONTROL, format!("max-age={MAX_AGE}"));
        Ok(response)
    }

    fn count(&self, refusal: &Refusal) {
        *self
            .refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(refusal.code())
            .or_default() += 1;
    }

    fn metrics(&self) -> String {
        let mut text = "# TYPE discovery_refused_total counter\n".to_owned();
        for (code, count) in &*self.refused.lock().unwrap_or_else(PoisonError::into_inner) {
            // Writing to a String does not fail.
            writeln!(text, "discovery_refused_total{{code=\"{code}\"}} {count}").ok();
        }
        text
    }
}

impl From<ClustersError> for Refusal {
    fn from(error: ClustersError) -> Self {
        if matches!(error, ClustersError::Full) {
            return Self::Full;
        }
        tracing::error!(error = config_errors::chain(&error), "the store failed");
        Self::Store(error.to_string())
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .strip_prefix("Bearer ")
}

async fn body(request: Request<Incoming>, most: usize) -> Result<Bytes, Refusal> {
    match tokio::time::timeout(BODY_TIME, Limited::new(request.into_body(), most).collect()).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::TooLarge(most)),
        Ok(Err(error)) => Err(Refusal::Malformed(error.to_string())),
        Err(_elapsed) => Err(Refusal::Slow),
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        http::HeaderValue::from_static("application/json"),
    );
    response
}

fn text(body: String) -> Response<Full<Bytes>> {
    let mut response = json(StatusCode::OK, body);
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        http::HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}

fn refused(refusal: &Refusal) -> Response<Full<Bytes>> {
    let body = serde_json::json!({"code": refusal.code(), "message": refusal.to_string()});
    let mut response = json(refusal.status(), body.to_string());
    if let Refusal::RateLimited(wait) = refusal {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, (wait.as_secs() + 1).into());
    }
    response
}
