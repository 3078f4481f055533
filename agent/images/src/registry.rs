//! Registries: an image's documents and layers by the OCI distribution protocol, mirrors first.

use crate::content::{Content, Descriptor, MAX_DOCUMENT};
use crate::credential::Credential;
use crate::http::{Http, HttpError, Named, Reply, Scheme, address, origin};
use crate::images::{Pull, Source};
use crate::keyring::{Keyring, PullSecret};
use crate::reach::ClusterAddresses;
use crate::reference::{DOCKER_HUB, Reference, canonical_host};
use crate::session::Session;
use agent_containerd::{Error, ErrorClass, Pending};
use bytes::Bytes;
use futures_util::{Stream, TryStreamExt, stream};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Manifests and indexes that are understood.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";
/// Longest pause between two pieces of a layer.
const STALL: Duration = Duration::from_secs(60);
/// Slowest transfer of a layer, in bytes per second, in each [`STALL`] of waiting: below it a
/// registry only keeps a pod waiting.
const SLOWEST: u64 = 8 * 1024;
/// Largest layer: no machine that this is made for has room for more.
const MAX_LAYER: i64 = 64 << 30;
/// The roots that the image brings, where it has some.
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Where Docker Hub's images are, and who gives tokens for them.
const DOCKER_HUB_API: &str = "registry-1.docker.io";
/// Token services on another host than their registry that everybody may rely on: the registry's
/// owner runs them.
const TOKEN_HOSTS: [(&str, &str); 2] = [
    (DOCKER_HUB, "auth.docker.io:443"),
    ("registry.gitlab.com", "gitlab.com:443"),
];

/// How one registry is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registry {
    /// The registry's name in image references, such as `registry.example`, with its port if it has
    /// one there.
    pub host: String,
    /// Addresses that are asked before it, in order, such as `https://mirror.example`. One with
    /// `http://` is asked without TLS.
    pub mirrors: Vec<String>,
    /// Only the mirrors are asked.
    pub mirrors_only: bool,
    /// The registry itself speaks plain http. Ignored if a mirror with `http://` is configured:
    /// then that is the one that is meant.
    pub insecure: bool,
    /// Roots that count for it and for its mirrors, beside those that count for all.
    pub roots: Vec<CertificateDer<'static>>,
    /// The machine's own credential there, for all of its pods.
    pub credential: Option<Credential>,
    /// Hosts with their ports of token services to which credentials for it may go.
    pub token_hosts: Vec<String>,
}

/// All registries: those configured with their mirrors, the default one, and the roots of TLS.
#[derive(Debug, Clone)]
pub struct Registries {
    list: Vec<(Registry, Http)>,
    default_host: String,
    /// For registries that the configuration doesn't name.
    other: Http,
}

/// One place where an image may be.
#[derive(Debug, PartialEq, Eq)]
struct Endpoint {
    /// Scheme and host.
    base: String,
    /// The host by which credentials are for it.
    host: String,
}

/// Who may run an image that was fetched: everybody where the registry gives it to everybody or to
/// this machine, else who can show the pull secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reader {
    Everyone,
    Holder(PullSecret),
}

impl Registries {
    /// Registries with their mirrors. `default_host` is meant by references that name no registry;
    /// `roots` count for all, beside those of the image.
    pub fn new(
        list: Vec<Registry>,
        default_host: &str,
        roots: Vec<CertificateDer<'static>>,
    ) -> Self {
        let system = std::fs::read(SYSTEM_ROOTS).unwrap_or_default();
        let mut common = RootCertStore::empty();
        common.add_parsable_certificates(
            CertificateDer::pem_slice_iter(&system)
                .filter_map(Result::ok)
                .chain(roots),
        );
        if common.is_empty() {
            tracing::warn!(
                "no system root certificates: only registries with a configured `ca`, or with `insecure`, can be used"
            );
        }
        let named = Arc::new(named(&list));
        let client = |registry: &Registry| {
            let mut roots = common.clone();
            roots.add_parsable_certificates(registry.roots.iter().cloned());
            Http::new(roots, named.clone())
        };
        let list = list
            .into_iter()
            .map(|registry| (client(&registry), registry))
            .map(|(http, one)| (one, http));
        let list = list.collect();
        Self {
            list,
            default_host: default_host.to_owned(),
            other: Http::new(common, named),
        }
    }

    /// The same registries, none of which leads to a pod or a Service of the cluster.
    #[must_use]
    pub fn outside_of(self, cluster: &ClusterAddresses) -> Self {
        let list = self.list.into_iter();
        let list = list.map(|(one, http)| (one, http.outside_of(cluster.clone())));
        Self {
            list: list.collect(),
            default_host: self.default_host,
            other: self.other.outside_of(cluster.clone()),
        }
    }

    pub(crate) fn default_host(&self) -> &str {
        &self.default_host
    }

    fn of(&self, host: &str) -> Option<&(Registry, Http)> {
        self.list
            .iter()
            .find(|(registry, _)| canonical_host(&registry.host) == host)
    }

    /// Where an image may be had, in order: mirrors, then the registry itself.
    fn places(&self, host: &str) -> Vec<Endpoint> {
        let registry = self.of(host).map(|(registry, _)| registry);
        let mirrors = registry
            .into_iter()
            .flat_map(|registry| &registry.mirrors)
            .map(|mirror| {
                let base = mirror.trim_end_matches('/').to_owned();
                let host = base
                    .split_once("://")
                    .map_or(base.as_str(), |(_, host)| host)
                    .to_owned();
                Endpoint { base, host }
            });
        let api = if host == DOCKER_HUB {
            DOCKER_HUB_API
        } else {
            host
        };
        let scheme = registry.map_or("https", own_scheme);
        let own = Endpoint {
            base: format!("{scheme}://{api}"),
            host: host.to_owned(),
        };
        let own = (!registry.is_some_and(|registry| registry.mirrors_only)).then_some(own);
        mirrors.chain(own).collect()
    }

    /// The pull secrets among a pod's that are for an image, wherever it may be had.
    pub(crate) fn holders<'k>(
        &self,
        reference: &Reference,
        keys: &'k Keyring,
    ) -> Vec<&'k PullSecret> {
        let places = self.places(&reference.host);
        let entries = places
            .iter()
            .flat_map(|place| keys.matching(&place.host, &reference.path));
        entries.map(|entry| &*entry.from).collect()
    }

    /// What may be tried at a place, in order: the pod's credentials, then the machine's own, and
    /// none only where there are neither.
    fn tries(
        &self,
        place: &Endpoint,
        reference: &Reference,
        keys: &Keyring,
    ) -> Vec<(Option<Credential>, Reader)> {
        let of_pod = keys.matching(&place.host, &reference.path).into_iter();
        let mut tries: Vec<_> = of_pod
            .map(|entry| {
                (
                    Some(entry.credential.clone()),
                    Reader::Holder(PullSecret::clone(&entry.from)),
                )
            })
            .collect();
        let own = self
            .of(canonical_host(&place.host))
            .and_then(|(registry, _)| registry.credential.clone());
        tries.extend(own.map(|credential| (Some(credential), Reader::Everyone)));
        if tries.is_empty() {
            tries.push((None, Reader::Everyone));
        }
        tries
    }

    /// Asks for the image's manifest, at each place by each credential until one has it.
    pub(crate) async fn resolve(
        &self,
        reference: &Reference,
        keys: &Keyring,
    ) -> Result<Fetched, Error> {
        let mut failures = Vec::new();
        for place in self.places(&reference.host) {
            for (credential, reader) in self.tries(&place, reference, keys) {
                let error = match self.resolve_at(&place, reference, credential, reader).await {
                    Ok(fetched) => return Ok(fetched),
                    Err(error) => error,
                };
                let denied = is_denied(&error);
                let why = Error::caused(ErrorClass::ImagePull, place.base.clone(), error);
                failures.push(why.chain());
                if !denied {
                    break;
                }
            }
        }
        Err(Error::new(
            ErrorClass::ImagePull,
            format!("failed to pull image {reference}: {}", failures.join("; ")),
        ))
    }

    async fn resolve_at(
        &self,
        place: &Endpoint,
        reference: &Reference,
        credential: Option<Credential>,
        reader: Reader,
    ) -> Result<Fetched, PullFault> {
        let (http, token_hosts) = self.client(&reference.host, place);
        let session = Session::new(
            http,
            place.base.clone(),
            reference.path.clone(),
            credential,
            token_hosts,
        );
        let path = format!("manifests/{}", reference.selector());
        let reply = session.get(&path, MANIFESTS).await?;
        let media_type = reply
            .answer
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        let media_type = media_type
            .unwrap_or_default()
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned();
        let bytes = reply
            .collect(usize::try_from(MAX_DOCUMENT).unwrap_or(usize::MAX))
            .await?;
        let digest = format!("sha256:{}", hex::encode(Sha256::digest(&bytes)));
        if let Some(wanted) = reference
            .digest
            .as_deref()
            .filter(|wanted| *wanted != digest)
        {
            return Err(PullFault::Digest {
                wanted: wanted.to_owned(),
                found: digest,
            });
        }
        let size = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
        let descriptor = Descriptor {
            media_type,
            digest,
            size,
            platform: None,
            annotations: HashMap::new(),
        };
        Ok(Fetched {
            session,
            descriptor,
            bytes,
            reader,
        })
    }

    /// The client for a place where an image of `registry` may be, and the hosts to which
    /// credentials may go there: those of the place's own entry, and of the registry's only at the
    /// registry itself.
    fn client(&self, registry: &str, place: &Endpoint) -> (Http, Vec<String>) {
        let host = canonical_host(&place.host);
        let own = self.of(host);
        let http = self
            .of(registry)
            .or(own)
            .map_or(&self.other, |(_, http)| http)
            .clone();
        let known = TOKEN_HOSTS
            .iter()
            .filter(|(registry, _)| *registry == host)
            .map(|(_, at)| (*at).to_owned());
        let said = own
            .into_iter()
            .flat_map(|(registry, _)| registry.token_hosts.clone());
        (http, known.chain(said).collect())
    }
}

/// How the registry itself is asked: without TLS only where no mirror is what `insecure` means.
fn own_scheme(registry: &Registry) -> &'static str {
    let mut mirrors = registry.mirrors.iter();
    if registry.insecure && !mirrors.any(|mirror| mirror.starts_with("http://")) {
        "http"
    } else {
        "https"
    }
}

/// The hosts that the configuration names, by their origins.
fn named(list: &[Registry]) -> Named {
    let mut named = Named {
        hosts: BTreeSet::new(),
        plain: BTreeSet::new(),
        cluster: ClusterAddresses::default(),
    };
    for registry in list {
        let own = format!("{}://{}", own_scheme(registry), registry.host);
        for at in registry.mirrors.iter().chain([&own]) {
            let Ok(uri) = address(at) else { continue };
            let (scheme, host) = origin(&uri);
            if scheme == Scheme::Plain {
                named.plain.insert(host.clone());
            }
            named.hosts.insert(host);
        }
        named.hosts.extend(registry.token_hosts.iter().cloned());
    }
    named
}

/// Why a manifest did not come from one place.
#[derive(Debug, thiserror::Error)]
enum PullFault {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("manifest digest mismatch: expected {wanted}, got {found}")]
    Digest { wanted: String, found: String },
}

/// Whether another credential may get what this one did not; registries answer "not found" for
/// images that a caller may not see.
fn is_denied(fault: &PullFault) -> bool {
    match fault {
        PullFault::Http(HttpError::Unauthorized(_)) => true,
        PullFault::Http(HttpError::Refused { status, .. }) => {
            matches!(
                *status,
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND
            )
        }
        PullFault::Http(_) | PullFault::Digest { .. } => false,
    }
}

/// An image that a registry has: its manifest is here, the rest can be brought.
#[derive(Debug)]
pub(crate) struct Fetched {
    session: Session,
    descriptor: Descriptor,
    bytes: Bytes,
    reader: Reader,
}

impl Fetched {
    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The reader who was shown to be entitled to it.
    pub(crate) fn reader(&self) -> &Reader {
        &self.reader
    }

    async fn fetch(
        &self,
        content: &Content,
        wanted: &Descriptor,
        Pull { lease, count }: Pull<'_>,
    ) -> Result<(), Error> {
        if wanted.digest == self.descriptor.digest {
            let once = stream::iter([Ok(self.bytes.clone())]);
            return content.write(wanted, once, lease).await;
        }
        // The digest goes into a URL: it must be nothing else.
        if !Reference::parse(&format!("x@{}", wanted.digest))
            .is_ok_and(|checked| checked.digest.is_some())
        {
            return Err(Error::new(
                ErrorClass::ImagePull,
                format!("{:?} is no sha256 digest", wanted.digest),
            ));
        }
        if !(0..=MAX_LAYER).contains(&wanted.size) {
            let message = format!(
                "{} has {} bytes; {MAX_LAYER} are allowed",
                wanted.digest, wanted.size
            );
            return Err(Error::new(ErrorClass::ImagePull, message));
        }
        let (kind, accept) = if wanted.media_type.contains("manifest") {
            ("manifests", MANIFESTS)
        } else {
            ("blobs", "*/*")
        };
        let path = format!("{kind}/{}", wanted.digest);
        let reply = self.session.get(&path, accept).await;
        let reply = reply.map_err(|error| {
            Error::caused(ErrorClass::ImagePull, format!("fetch {path}"), error)
        })?;
        let pieces = pieces(reply, wanted.size, path);
        let pieces = pieces.inspect_ok(|piece| count.came(piece.len()));
        content.write(wanted, pieces, lease).await
    }
}

impl Source for Fetched {
    fn bring<'a>(
        &'a self,
        content: &'a Content,
        descriptor: &'a Descriptor,
        pull: Pull<'a>,
    ) -> Pending<'a, ()> {
        Box::pin(self.fetch(content, descriptor, pull))
    }
}

/// The body's pieces, never more than `size` bytes, while they come fast enough. The time that it
/// takes to store them is not the registry's.
fn pieces(reply: Reply, size: i64, path: String) -> impl Stream<Item = Result<Bytes, Error>> {
    let left = u64::try_from(size).unwrap_or_default();
    let body = reply.answer.into_body();
    stream::try_unfold(
        (body, left, path, (Duration::ZERO, 0)),
        move |(mut body, left, path, (waited, came))| async move {
            let broken =
                |what: &str| Error::new(ErrorClass::ImagePull, format!("fetch {path}: {what}"));
            let (asked, piece) = (Instant::now(), timeout(STALL, body.piece()).await);
            let piece = piece.map_err(|_elapsed| broken("the registry stopped sending"))?;
            let piece = piece.map_err(|error| {
                Error::caused(ErrorClass::ImagePull, format!("fetch {path}"), error)
            })?;
            let Some(data) = piece else { return Ok(None) };
            let rest = left
                .checked_sub(data.len() as u64)
                .ok_or_else(|| broken("longer than its descriptor says"))?;
            let (waited, came) = (waited + asked.elapsed(), came + data.len() as u64);
            if waited >= STALL && came < waited.as_secs() * SLOWEST {
                return Err(broken("the registry sends too slowly"));
            }
            let window = Some((waited, came)).filter(|_| waited < STALL);
            let window = window.unwrap_or_default();
            Ok(Some((data, (body, rest, path, window))))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credential::Secret;
    use crate::http::exchange;
    use futures_util::StreamExt;
    use http::Request;
    use std::pin::pin;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// How a layer of a gigabyte ends that a registry sends by so many bytes each second, and after
    /// what time.
    async fn sent_at(rate: usize, seconds: u64) -> (String, Duration) {
        let (own, mut registry) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n";
            registry.read_exact(&mut [0; 16]).await?;
            registry.write_all(head.as_bytes()).await?;
            for _ in 0..seconds {
                registry.write_all(&vec![0; rate]).await?;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            registry.shutdown().await
        });
        let asked = Request::get("/").body(Bytes::new()).unwrap();
        let answer = exchange(own, asked, "registry").await.unwrap();
        let (host, at_home) = ("registry".to_owned(), true);
        let reply = Reply {
            answer,
            host,
            at_home,
        };
        let (mut pieces, begun) = (
            pin!(pieces(reply, 1_000_000_000, "x".into())),
            Instant::now(),
        );
        loop {
            match pieces.next().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => return (error.chain(), begun.elapsed()),
                None => return ("all".to_owned(), begun.elapsed()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_registry_that_sends_nothing_more_is_given_up_after_a_minute() {
        let (why, after) = sent_at(0, 10_000).await;
        assert!(why.contains("the registry stopped sending"), "{why}");
        assert_eq!(after, STALL);
    }

    #[tokio::test(start_paused = true)]
    async fn a_registry_that_sends_byte_by_byte_is_given_up_and_a_slow_one_is_not() {
        let (why, after) = sent_at(1, 10_000).await;
        assert!(why.contains("the registry sends too slowly"), "{why}");
        assert!(after <= 2 * STALL, "{after:?}");
        let (why, after) = sent_at(10_000, 300).await;
        assert!(!why.contains("slowly"), "{why}");
        assert!(after >= Duration::from_secs(299), "{after:?}: {why}");
    }

    fn registries(list: Vec<Registry>) -> Registries {
        Registries::new(list, DOCKER_HUB, Vec::new())
    }

    fn bases(registries: &Registries, host: &str) -> Vec<String> {
        registries
            .places(host)
            .into_iter()
            .map(|place| place.base)
            .collect()
    }

    #[test]
    fn mirrors_come_before_the_registry_itself() {
        let one = Registry {
            host: "registry.example".into(),
            mirrors: vec!["https://10.0.2.2:5000/".into(), "https://b".into()],
            ..Registry::default()
        };
        let alone = Registry {
            host: "alone.example".into(),
            mirrors_only: true,
            ..one.clone()
        };
        let registries = registries(vec![one, alone]);
        let expected = [
            "https://10.0.2.2:5000",
            "https://b",
            "https://registry.example",
        ];
        assert_eq!(bases(&registries, "registry.example"), expected);
        assert_eq!(bases(&registries, "alone.example"), expected[..2]);
        assert_eq!(
            bases(&registries, "other.example"),
            ["https://other.example"]
        );
        assert_eq!(
            bases(&registries, DOCKER_HUB),
            ["https://registry-1.docker.io"]
        );
    }

    #[test]
    fn plain_http_is_spoken_where_it_is_written_and_nowhere_else() {
        let insecure = |mirrors: &[&str]| {
            let mirrors = mirrors.iter().map(|mirror| (*mirror).to_owned()).collect();
            let one = Registry {
                host: "lab:5000".into(),
                mirrors,
                insecure: true,
                ..Registry::default()
            };
            bases(&registries(vec![one]), "lab:5000")
        };
        assert_eq!(insecure(&[]), ["http://lab:5000"]);
        assert_eq!(insecure(&["https://m"]), ["https://m", "http://lab:5000"]);
        assert_eq!(insecure(&["http://m"]), ["http://m", "https://lab:5000"]);
    }

    #[test]
    fn a_pods_credentials_go_first_and_none_goes_to_a_mirror_that_it_is_not_for() {
        let from = PullSecret {
            namespace: "n".into(),
            name: "s".into(),
            uid: "u".into(),
        };
        let mut keys = Keyring::default();
        let document = br#"{"auths": {"registry.example": {"username": "pod", "password": "p"}}}"#;
        keys.add_docker_config_json(&from, document).unwrap();
        let own = Credential::IdentityToken(Secret::new("machine".to_owned()));
        let one = Registry {
            host: "registry.example".into(),
            mirrors: vec!["https://mirror.example".into()],
            credential: Some(own.clone()),
            ..Registry::default()
        };
        let registries = registries(vec![one]);
        let reference = Reference::parse("registry.example/a:1").unwrap();
        let [mirror, registry] =
            <[Endpoint; 2]>::try_from(registries.places("registry.example")).unwrap();
        assert_eq!(
            registries.tries(&mirror, &reference, &keys),
            [(None, Reader::Everyone)]
        );
        let tries = registries.tries(&registry, &reference, &keys);
        assert!(
            matches!(&tries[0], (Some(Credential::Password { .. }), Reader::Holder(holder)) if *holder == from)
        );
        assert_eq!(tries[1..], [(Some(own), Reader::Everyone)]);
        assert_eq!(registries.holders(&reference, &keys), [&from]);
    }

    #[test]
    fn credentials_for_docker_hub_may_go_to_its_token_service() {
        let registries = registries(Vec::new());
        let [hub] = <[Endpoint; 1]>::try_from(registries.places(DOCKER_HUB)).unwrap();
        assert_eq!(
            registries.client(DOCKER_HUB, &hub).1,
            ["auth.docker.io:443"]
        );
    }
}
