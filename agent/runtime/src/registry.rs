//! Registries: an image's documents and layers by the OCI distribution protocol, mirrors first.

use crate::content::{Content, Descriptor, MAX_DOCUMENT};
use crate::http::{Http, HttpError, collect};
use crate::images::Source;
use crate::model::{Error, ErrorClass, Pending};
use crate::reference::Reference;
use bytes::Bytes;
use futures_util::{Stream, stream};
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// Manifests and indexes that are understood.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";
/// Longest pause between two pieces of a layer.
const STALL: Duration = Duration::from_secs(60);
/// Longest answer of a token service.
const MAX_TOKEN: usize = 64 * 1024;
/// The machine's own roots, where it has some.
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";

/// How one registry is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registry {
    /// The registry's name in image references, such as `registry.example`.
    pub host: String,
    /// Addresses that are asked before it, in order, such as `http://10.0.2.2:5000`; plain http is allowed
    /// because it is written here.
    pub mirrors: Vec<String>,
    /// The registry itself speaks plain http.
    pub insecure: bool,
}

/// All of it: registries with mirrors, the default one, and the roots of TLS.
#[derive(Debug, Clone)]
pub struct Registries {
    list: Vec<Registry>,
    default_host: Option<String>,
    http: Http,
}

impl Registries {
    /// Registries with their mirrors. `default_host` is meant by references that name no registry;
    /// `ca_pem` holds further roots than the machine's own.
    pub fn new(list: Vec<Registry>, default_host: Option<String>, ca_pem: &str) -> Self {
        let mut roots = RootCertStore::empty();
        let system = std::fs::read_to_string(Path::new(SYSTEM_ROOTS)).unwrap_or_default();
        for pem in [system.as_str(), ca_pem] {
            roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok));
        }
        Self { list, default_host, http: Http::new(roots) }
    }

    pub(crate) fn default_host(&self) -> Option<&str> {
        self.default_host.as_deref()
    }

    /// Where an image may be had, in order: mirrors, then the registry itself.
    fn sources(&self, host: &str) -> Vec<String> {
        let named = || self.list.iter().filter(|registry| registry.host == host);
        let mirrors = named().flat_map(|registry| &registry.mirrors);
        let scheme = if named().any(|registry| registry.insecure) { "http" } else { "https" };
        let own = format!("{scheme}://{host}");
        mirrors.map(|mirror| mirror.trim_end_matches('/').to_owned()).chain([own]).collect()
    }

    /// Asks for the image's manifest, at each source until one has it.
    pub(crate) async fn resolve(&self, reference: &Reference) -> Result<Fetched, Error> {
        if reference.host.is_empty() {
            let message = format!("image {reference} names no registry and none is configured as the default");
            return Err(Error::new(ErrorClass::ImagePull, message));
        }
        let mut failures = Vec::new();
        for source in self.sources(&reference.host) {
            match self.resolve_at(&source, reference).await {
                Ok(fetched) => return Ok(fetched),
                Err(error) => failures.push(error.chain()),
            }
        }
        Err(Error::new(ErrorClass::ImagePull, format!("failed to pull image {reference}: {}", failures.join("; "))))
    }

    async fn resolve_at(&self, base: &str, reference: &Reference) -> Result<Fetched, Error> {
        let session =
            Session { http: self.http.clone(), base: format!("{base}/v2/{}", reference.path), token: Mutex::new(None) };
        let path = format!("manifests/{}", reference.selector());
        let answer = session.get(&path, MANIFESTS).await?;
        let media_type = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = media_type.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_owned();
        let limit = usize::try_from(MAX_DOCUMENT).unwrap_or(usize::MAX);
        let bytes = collect(answer, &session.base, limit).await.map_err(|error| pull_error(&path, error))?;
        let digest = format!("sha256:{}", hex::encode(Sha256::digest(&bytes)));
        if let Some(wanted) = reference.digest.as_deref().filter(|wanted| *wanted != digest) {
            let message = format!("{base} gave a manifest with digest {digest} where {wanted} was asked for");
            return Err(Error::new(ErrorClass::ImagePull, message));
        }
        let size = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
        let descriptor = Descriptor { media_type, digest, size, platform: None, annotations: HashMap::new() };
        Ok(Fetched { session, descriptor, bytes })
    }
}

/// An image that a registry has: its manifest is here, the rest can be brought.
#[derive(Debug)]
pub(crate) struct Fetched {
    session: Session,
    descriptor: Descriptor,
    bytes: Bytes,
}

impl Fetched {
    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    async fn fetch(&self, content: &Content, wanted: &Descriptor, lease: &str) -> Result<(), Error> {
        if wanted.digest == self.descriptor.digest {
            let once = stream::iter([Ok(self.bytes.clone())]);
            return content.write(wanted, once, lease).await;
        }
        // The digest goes into a URL: it must be nothing else.
        if !Reference::parse(&format!("x@{}", wanted.digest)).is_ok_and(|checked| checked.digest.is_some()) {
            return Err(Error::new(ErrorClass::ImagePull, format!("{:?} is no sha256 digest", wanted.digest)));
        }
        let kind = if wanted.media_type.contains("manifest") { "manifests" } else { "blobs" };
        let path = format!("{kind}/{}", wanted.digest);
        let answer = self.session.get(&path, if kind == "manifests" { MANIFESTS } else { "*/*" }).await?;
        content.write(wanted, pieces(answer, wanted.size, path), lease).await
    }
}

impl Source for Fetched {
    fn bring<'a>(&'a self, content: &'a Content, descriptor: &'a Descriptor, lease: &'a str) -> Pending<'a, ()> {
        Box::pin(self.fetch(content, descriptor, lease))
    }
}

/// The body's pieces, never more than `size` bytes.
fn pieces(answer: Response<Incoming>, size: i64, path: String) -> impl Stream<Item = Result<Bytes, Error>> {
    let left = u64::try_from(size).unwrap_or_default();
    stream::try_unfold((answer.into_body(), left, path), |(mut body, left, path)| async move {
        let broken = |what: &str| Error::new(ErrorClass::ImagePull, format!("{path}: {what}"));
        loop {
            let frame =
                timeout(STALL, body.frame()).await.map_err(|_elapsed| broken("the registry stopped sending"))?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|error| Error::caused(ErrorClass::ImagePull, path.clone(), error))?;
            let Ok(data) = frame.into_data() else { continue };
            let rest = left.checked_sub(data.len() as u64).ok_or_else(|| broken("longer than its descriptor says"))?;
            return Ok(Some((data, (body, rest, path))));
        }
    })
}

/// One repository at one source, with the token that it asked for.
#[derive(Debug)]
struct Session {
    http: Http,
    base: String,
    token: Mutex<Option<String>>,
}

impl Session {
    async fn get(&self, path: &str, accept: &str) -> Result<Response<Incoming>, Error> {
        let url = format!("{}/{path}", self.base);
        let fail = |error| pull_error(&url, error);
        let token = self.token.lock().await.clone();
        let mut answer = self.http.get(&url, accept, token.as_deref()).await.map_err(fail)?;
        if answer.status() == StatusCode::UNAUTHORIZED
            && let Some(service) = challenge(&answer)
        {
            let token = self.ask_token(&service).await.map_err(fail)?;
            answer = self.http.get(&url, accept, Some(&token)).await.map_err(fail)?;
            *self.token.lock().await = Some(token);
        }
        if answer.status() == StatusCode::OK {
            return Ok(answer);
        }
        Err(fail(HttpError::Refused { url: url.clone(), status: answer.status() }))
    }

    /// An anonymous token from the service that the registry named.
    async fn ask_token(&self, url: &str) -> Result<String, HttpError> {
        let answer = self.http.get(url, "application/json", None).await?;
        let status = answer.status();
        let body = collect(answer, url, MAX_TOKEN).await?;
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let token = body.get("token").or_else(|| body.get("access_token")).and_then(|token| token.as_str());
        token.map(|token| format!("Bearer {token}")).ok_or_else(|| HttpError::Refused { url: url.to_owned(), status })
    }
}

/// The address of the token service in a Bearer challenge (RFC 6750, as registries use it).
fn challenge(answer: &Response<Incoming>) -> Option<String> {
    bearer(answer.headers().get(WWW_AUTHENTICATE)?.to_str().ok()?)
}

fn bearer(header: &str) -> Option<String> {
    let parameters = header.strip_prefix("Bearer ")?;
    let value = |name: &str| {
        let at = parameters.find(&format!("{name}=\""))? + name.len() + 2;
        parameters[at..].split('"').next()
    };
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'&' | b'#' | b'?'));
    let query: Vec<String> = ["service", "scope"]
        .into_iter()
        .filter_map(|name| value(name).filter(|text| plain(text)).map(|text| format!("{name}={text}")))
        .collect();
    Some(format!("{}?{}", value("realm")?, query.join("&")))
}

fn pull_error(what: &str, error: HttpError) -> Error {
    Error::caused(ErrorClass::ImagePull, what.to_owned(), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_come_before_the_registry_itself() {
        let registry = Registry {
            host: "registry.example".into(),
            mirrors: vec!["http://10.0.2.2:5000/".into()],
            insecure: false,
        };
        let registries = Registries::new(vec![registry], None, "");
        assert_eq!(registries.sources("registry.example"), ["http://10.0.2.2:5000", "https://registry.example"]);
        assert_eq!(registries.sources("other.example"), ["https://other.example"]);
    }

    #[tokio::test]
    async fn a_short_name_without_default_registry_says_so() {
        let registries = Registries::new(Vec::new(), None, "");
        let error = registries.resolve(&Reference::parse("busybox").unwrap()).await.unwrap_err();
        assert!(error.chain().contains("names no registry"), "{}", error.chain());
    }

    #[test]
    fn a_challenge_names_its_token_service() {
        let header =
            r#"Bearer realm="https://auth.example/token",service="registry.example",scope="repository:a:pull""#;
        let expected = "https://auth.example/token?service=registry.example&scope=repository:a:pull";
        assert_eq!(bearer(header).as_deref(), Some(expected));
        assert_eq!(bearer("Basic realm=\"x\""), None);
    }
}
