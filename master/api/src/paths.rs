//! Paths that are not resources: health, metrics, version, discovery, OpenAPI.

use crate::state::ApiServer;
use config_figures::Text;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, header};
use master_client::{Body, BoxFuture, UserInfo};
use master_listener::Extensions;
use master_metrics::StoredObjects;
use master_openapi::discovery;
use master_schema::error::{ApiError, Reason, no_resource};
use master_store::ListQuery;
use master_verbs::{Answer, value_answer};
use master_wire::Accept;
use master_wire::path::{Query, not_allowed};
use master_wire::respond::text;
use master_wire::respond::{json_bytes, matches_tag};
use serde_json::json;
use std::collections::BTreeMap;

/// The paths listed at `/`, beside those of discovery.
const LISTED: &[&str] = &[
    "/.well-known/openid-configuration",
    "/healthz",
    "/livez",
    "/metrics",
    "/metrics/slis",
    "/openapi/v2",
    "/openapi/v3",
    "/openid/v1/jwks",
    "/readyz",
    "/snapshot",
    "/verdicts",
    "/version",
];

/// The label under which a path is counted: one of a fixed set, for any path.
pub(crate) fn counted(path: &str) -> &'static str {
    let first = path
        .trim_start_matches('/')
        .split('/')
        .next()
        .unwrap_or_default();
    match first {
        "healthz" => "/healthz",
        "livez" => "/livez",
        "readyz" => "/readyz",
        "metrics" => "/metrics",
        "openid" | ".well-known" => "/openid",
        "version" => "/version",
        "snapshot" => "/snapshot",
        "verdicts" => "/verdicts",
        "openapi" => "/openapi",
        "api" => "/api",
        "apis" => "/apis",
        _ => "",
    }
}

impl ApiServer {
    /// Answers a path that is not a resource; the caller is already authorized for it.
    pub(crate) fn other<'a>(
        &'a self,
        parts: &'a Parts,
        query: &'a Query,
        user: &'a UserInfo,
    ) -> BoxFuture<'a, Answer> {
        Box::pin(self.read_path(parts, query, user))
    }

    async fn read_path(&self, parts: &Parts, query: &Query, user: &UserInfo) -> Answer {
        if !matches!(parts.method, Method::GET | Method::HEAD) {
            return Err(not_allowed());
        }
        let path = parts.uri.path();
        let trimmed = path.trim_end_matches('/');
        let first = trimmed
            .trim_start_matches('/')
            .split('/')
            .next()
            .unwrap_or_default();
        match first {
            "" => value_answer(StatusCode::OK, &self.index(), Accept::JSON),
            "healthz" | "livez" | "readyz" => self.health(trimmed, query).await,
            "metrics" if trimmed == "/metrics" => self.figures().await,
            "metrics" if trimmed == "/metrics/slis" => Ok(figures(self.checked().await)),
            "version" if trimmed == "/version" => {
                value_answer(StatusCode::OK, &discovery::version(), Accept::JSON)
            }
            "snapshot" if trimmed == "/snapshot" => crate::snapshot::answer(self, user).await,
            "verdicts" if trimmed == "/verdicts" => self.verdicts().await,
            "openid" | ".well-known" => self.issuer(trimmed),
            "openapi" => self.openapi(trimmed, parts, query).await,
            "api" | "apis" => self.discover(parts, trimmed),
            _ => Err(no_resource()),
        }
    }

    /// The verdict log, unchanged, for `pratique verify`.
    async fn verdicts(&self) -> Answer {
        let log = self
            .extensions()
            .and_then(Extensions::verdicts)
            .ok_or_else(no_resource)?;
        let mut response = Response::new(log.await?);
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }

    /// The issuer of service account tokens and its public keys.
    fn issuer(&self, path: &str) -> Answer {
        let issuer = self.inner.authenticator.issuer().ok_or_else(no_resource)?;
        let (value, form) = match path {
            "/openid/v1/jwks" => (issuer.keys(), "application/jwk-set+json"),
            "/.well-known/openid-configuration" => (issuer.discovery(), "application/json"),
            _ => return Err(no_resource()),
        };
        let mut response = json_bytes(StatusCode::OK, value.to_string().into_bytes());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(form));
        headers.insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static("public, max-age=3600"),
        );
        Ok(response)
    }

    /// The list of paths at `/`.
    fn index(&self) -> serde_json::Value {
        let mut paths: Vec<String> = LISTED.iter().map(|path| (*path).to_owned()).collect();
        paths.extend(["/api".to_owned(), "/apis".to_owned()]);
        paths.extend(crate::health::paths());
        for (group, versions) in self.registry().groups() {
            if group.is_empty() {
                paths.extend(versions.iter().map(|version| format!("/api/{version}")));
            } else {
                paths.push(format!("/apis/{group}"));
                paths.extend(
                    versions
                        .iter()
                        .map(|version| format!("/apis/{group}/{version}")),
                );
            }
        }
        paths.sort();
        json!({ "paths": paths })
    }

    async fn figures(&self) -> Answer {
        let mut written = Text::default();
        self.inner.metrics.write(&mut written);
        master_metrics::in_flight(&mut written, self.inner.request_slots.running());
        let info = discovery::version();
        let version = info["gitVersion"].as_str().unwrap_or_default();
        let labels = format!("git_version=\"{version}\",major=\"1\",minor=\"36\"");
        written.family(
            "kubernetes_build_info",
            "gauge",
            "The version of the Kubernetes API.",
        );
        written.sample("kubernetes_build_info", &labels, 1_u64);
        self.objects(&mut written).await;
        let revision = self.inner.reader.revision().await.unwrap_or_default();
        written.single(
            "pratique_store_revision",
            "gauge",
            "The store's newest revision.",
            revision,
        );
        let mut written = written.finish();
        if let Some(extensions) = self.extensions() {
            written.push_str(&extensions.figures());
        }
        Ok(figures(written))
    }

    /// Counts the objects of each kind; the versions of a kind are counted once.
    async fn objects(&self, written: &mut Text) {
        let mut tables = BTreeMap::new();
        for kind in self
            .registry()
            .kinds()
            .iter()
            .filter(|kind| kind.review.is_none())
        {
            tables
                .entry(kind.table.clone())
                .or_insert_with(|| (kind.group.clone(), kind.plural.clone()));
        }
        let mut stored = Vec::new();
        for (table, (group, plural)) in tables {
            let query = ListQuery {
                prefix: format!("{table}/"),
                limit: 1,
                ..ListQuery::default()
            };
            if let Ok(listing) = self.inner.reader.list(query).await {
                stored.push(StoredObjects {
                    group,
                    plural,
                    count: (listing.entries.len() + listing.remaining) as u64,
                });
            }
        }
        master_metrics::objects(written, &stored);
    }

    fn discover(&self, parts: &Parts, path: &str) -> Answer {
        let aggregated =
            Accept::discovery(&parts.headers).filter(|_| matches!(path, "/api" | "/apis"));
        let registry = self.registry();
        let value = discovery::answer(&registry, path, aggregated)?;
        let Some(version) = aggregated else {
            let accept = Accept::parse(&parts.headers)?.plain();
            let mut response = value_answer(StatusCode::OK, &value, accept)?;
            response
                .headers_mut()
                .insert(header::VARY, HeaderValue::from_static("Accept"));
            return Ok(response);
        };
        let bytes = serde_json::to_vec(&value).map_err(|error| {
            ApiError::new(
                Reason::InternalError,
                format!("the answer cannot be encoded: {error}"),
            )
        })?;
        let tag = format!(
            "\"{}\"",
            hex::encode_upper(ring::digest::digest(&ring::digest::SHA512, &bytes))
        );
        let mut response = if matches_tag(parts, &tag) {
            let mut unchanged = Response::new(master_client::body(""));
            *unchanged.status_mut() = StatusCode::NOT_MODIFIED;
            unchanged
        } else {
            json_bytes(StatusCode::OK, bytes)
        };
        let kind = match version {
            "v2" => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            _ => "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
        };
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(header::VARY, HeaderValue::from_static("Accept"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            headers.insert(header::ETAG, tag);
        }
        Ok(response)
    }
}

/// An answer of metrics.
fn figures(written: String) -> Response<Body> {
    let mut response = text(StatusCode::OK, written);
    let form = HeaderValue::from_static(config_figures::CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, form);
    response
}
