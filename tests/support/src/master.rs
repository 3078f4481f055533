//! A master for tests of the agent: the project's verifier over HTTP, and an authority that
//! certifies what it verified.
//!
//! It is not the product's master: nothing is stored, and no policy but the strictest is known.

use agent_tpm::Tpm;
use bytes::Bytes;
use config_attest::Refusal;
use config_attest::verifier::{CertificateGrant, Claimant, RenewingPeer, check_evidence};
use config_certificates::{EkIssuer, San};
use config_kube::Machine as MachineObject;
use config_kube::identity::node_user;
use config_kube::machine::{EkSelector, MachineSpec};
use config_protocol::wire::{
    Certificates, ConfigEvent, EXPORTER_LABEL, Evidence, Hello, Problem, RENEWALS_PATH,
    SESSIONS_PATH, SessionId, session_of_path,
};
use config_protocol::{Channel, Code};
use config_tpm::Digest;
use config_tpm::Public;
use config_tpm::eventlog::kind;
use config_tpm::pcr::{CONFIG_PCR, config_event_digest};
use futures_util::{StreamExt as _, stream};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rand_core::{OsRng, RngCore as _};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SubjectPublicKeyInfo,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use tests_machines::{SoftImage, World};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

type Body = BoxBody<Bytes, Infallible>;

/// How the master misbehaves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Behaviour {
    /// Not at all.
    #[default]
    Good,
    /// Refuses hellos that come with an RSA endorsement key.
    RefusesRsa,
    /// Certifies a key of its own instead of the node's.
    CertifiesAnotherKey,
    /// Knows another configuration of the machine than it booted with.
    ExpectsAnotherConfiguration,
    /// Lets a person decide: the first evidence waits, the second is accepted.
    AsksAPerson,
    /// Refuses renewals, and accepts the machine when it joins again.
    RefusesRenewals,
}

/// The configuration of machines in these tests.
const CONFIG: &[u8] = b"version = 1\n";

/// A machine's logs, as its firmware and init would have left them.
#[derive(Debug)]
pub struct Booted {
    dir: TempDir,
}

impl Booted {
    /// The firmware's event log.
    pub fn firmware(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// The record of the configuration event.
    pub fn config_event(&self) -> PathBuf {
        self.dir.path().join("config-event.json")
    }
}

/// The running master.
#[derive(Debug)]
pub struct Master {
    /// Its port on 127.0.0.1.
    pub port: u16,
    /// SHA-256 of its root's SubjectPublicKeyInfo.
    pub pin: [u8; 32],
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    behaviour: Behaviour,
    root_pem: String,
    intermediate_pem: String,
    issuer: Issuer<'static, KeyPair>,
    server_spki: Digest,
    world: Mutex<World>,
    hellos: Mutex<Vec<&'static str>>,
    asked: AtomicBool,
}

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

impl Master {
    /// Starts a master for the name 127.0.0.1 on a free port; it ends with the runtime.
    pub async fn start(behaviour: Behaviour) -> Self {
        let root_key = KeyPair::generate().expect("a key");
        let root = authority("root").self_signed(&root_key).expect("a root");
        let root_issuer = Issuer::new(authority("root"), root_key);
        let key = KeyPair::generate().expect("a key");
        let intermediate = authority("intermediate")
            .signed_by(&key, &root_issuer)
            .expect("an intermediate");
        let issuer = Issuer::new(authority("intermediate"), key);
        let leaf_key = KeyPair::generate().expect("a key");
        let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("parameters");
        let leaf = leaf.signed_by(&leaf_key, &issuer).expect("a leaf");
        let chain = vec![
            leaf.der().clone(),
            intermediate.der().clone(),
            root.der().clone(),
        ];
        let pin = agent_enroll::spki_hash(root.der()).expect("a certificate");
        let server_spki = Digest(agent_enroll::spki_hash(leaf.der()).expect("a certificate"));
        let acceptor = acceptor(chain, &leaf_key, root.der());
        let shared = Arc::new(Shared {
            behaviour,
            root_pem: root.pem(),
            intermediate_pem: intermediate.pem(),
            issuer,
            server_spki,
            world: Mutex::new(world()),
            hellos: Mutex::default(),
            asked: AtomicBool::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(accept(listener, acceptor, Arc::clone(&shared)));
        Self { port, pin, shared }
    }

    /// Boots a machine with its TPM at `tcti` into an image of `role`, and puts it into the
    /// inventory as `name`.
    pub fn register(&self, name: &str, role: &str, tcti: &str, issuer: &str) -> Booted {
        let tpm = Tpm::open(tcti).expect("a TPM");
        let mut world = self.shared.world.lock().expect("not poisoned");
        let image = SoftImage::new(&format!("{role}-7"), role, 7);
        let release = image
            .manifest()
            .sign(&[&world.release_signer])
            .expect("a release");
        world.releases.push(release);
        world
            .issuers
            .push(EkIssuer::from_der("lab-ca", certificates(issuer)).expect("an issuer"));
        let rsa_refused = self.shared.behaviour == Behaviour::RefusesRsa;
        let keys = tpm
            .endorsement_keys()
            .expect("endorsement keys")
            .into_iter();
        let known = keys.filter(|key| !(rsa_refused && key.kind == agent_tpm::EkKind::Rsa2048));
        let hash = |key: agent_tpm::EndorsementKey| {
            Digest::of(
                &Public::parse(&key.public)
                    .expect("an EK")
                    .spki()
                    .expect("an EK"),
            )
            .to_text()
        };
        let mut object = MachineObject::named(
            name,
            MachineSpec {
                role: role.to_owned(),
                ek: EkSelector {
                    hashes: known.map(hash).collect(),
                    issuers: Vec::new(),
                    ..EkSelector::default()
                },
                config_digests: vec![config_event_digest("nocloud", CONFIG).to_text()],
                ..MachineSpec::default()
            },
        );
        object.metadata.uid = Some(format!("uid-of-{name}"));
        world.machines.push(object);
        let config = if self.shared.behaviour == Behaviour::ExpectsAnotherConfiguration {
            b"another"
        } else {
            CONFIG
        };
        boot(&tpm, &image, config)
    }

    /// The paths of the hellos that came so far.
    pub fn hellos(&self) -> Vec<&'static str> {
        self.shared.hellos.lock().expect("not poisoned").clone()
    }
}

/// The strictest rule, for both roles, at the time of day.
fn world() -> World {
    let mut world = World::new();
    world.rule.certificate.roles = vec!["worker".to_owned(), "master".to_owned()];
    world.issuers.clear();
    world.releases.clear();
    world.now = now();
    world
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_secs()
}

fn certificates(pem: &str) -> Vec<Vec<u8>> {
    use rustls::pki_types::pem::PemObject as _;
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .map(|der| der.expect("a certificate").to_vec())
        .collect()
}

/// Measures an image and a configuration as firmware, stub and init would.
fn boot(tpm: &Tpm, image: &SoftImage, config: &[u8]) -> Booted {
    let mut log = image.log();
    // This TPM was started in locality 0.
    log.events.retain(|event| event.kind != kind::NO_ACTION);
    for event in log.measured() {
        tpm.extend_pcr(event.pcr, event.digest).expect("extend");
    }
    let digest = config_event_digest("nocloud", config);
    tpm.extend_pcr(CONFIG_PCR, digest).expect("extend");
    let length = u64::try_from(config.len()).expect("small");
    let event = ConfigEvent {
        pcr: CONFIG_PCR,
        label: "nocloud".to_owned(),
        length,
        digest,
    };
    let booted = Booted {
        dir: tempfile::tempdir().expect("a directory"),
    };
    std::fs::write(booted.firmware(), log.to_bytes()).expect("a log");
    std::fs::write(
        booted.config_event(),
        serde_json::to_vec(&event).expect("JSON"),
    )
    .expect("a record");
    booted
}

fn acceptor(
    chain: Vec<CertificateDer<'static>>,
    key: &KeyPair,
    root: &CertificateDer<'static>,
) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).expect("a root");
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .expect("a verifier");
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_client_cert_verifier(clients)
        .with_single_cert(
            chain,
            PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der())),
        )
        .expect("a certificate");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, shared) = (acceptor.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            let caller = Arc::new(Caller::of(&stream));
            let service = service_fn(move |request| {
                answer(request, Arc::clone(&caller), Arc::clone(&shared))
            });
            let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            server
                .serve_connection(TokioIo::new(stream), service)
                .await
                .ok();
        });
    }
}

struct Caller {
    exporter: Digest,
    certificate: Option<Vec<u8>>,
    protocol: String,
}

impl Caller {
    fn of(stream: &TlsStream<tokio::net::TcpStream>) -> Self {
        let (_, tls) = stream.get_ref();
        let exporter = tls
            .export_keying_material([0; 32], EXPORTER_LABEL, Some(&[]))
            .expect("an exporter");
        let certificate = tls
            .peer_certificates()
            .and_then(|chain| chain.first())
            .map(|leaf| leaf.to_vec());
        let protocol =
            String::from_utf8_lossy(tls.alpn_protocol().unwrap_or_default()).into_owned();
        Self {
            exporter: Digest(exporter),
            certificate,
            protocol,
        }
    }

    /// The node whose certificate the caller showed.
    fn peer(&self) -> Option<RenewingPeer> {
        let der = self.certificate.as_ref()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(der).expect("a certificate");
        let user = certificate
            .subject()
            .iter_common_name()
            .next()?
            .as_str()
            .ok()?;
        let node = config_kube::identity::node_of_user(user)?.to_owned();
        let spki = certificate.public_key().raw.to_vec();
        Some(RenewingPeer {
            machine_uid: format!("uid-of-{node}"),
            node_name: node,
            spki,
        })
    }
}

async fn answer(
    request: Request<Incoming>,
    caller: Arc<Caller>,
    shared: Arc<Shared>,
) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let body = request
        .into_body()
        .collect()
        .await
        .expect("a body")
        .to_bytes();
    Ok(match path.as_str() {
        SESSIONS_PATH => shared.hello(&body, SESSIONS_PATH, &caller),
        RENEWALS_PATH if caller.certificate.is_some() => {
            shared.hello(&body, RENEWALS_PATH, &caller)
        }
        "/whoami" => whoami(&caller),
        "/watch" => watch(),
        // Above the client's limit of 16 MiB.
        "/huge" => full(StatusCode::OK, vec![b'x'; 17 * 1024 * 1024]),
        _ => {
            let sessions =
                [SESSIONS_PATH, RENEWALS_PATH].map(|sessions| session_of_path(sessions, &path));
            match sessions.into_iter().flatten().next() {
                Some(session) => shared.evidence(session, &body, &caller),
                None => full(StatusCode::NOT_FOUND, b"{}".to_vec()),
            }
        }
    })
}

fn full(status: StatusCode, body: Vec<u8>) -> Response<Body> {
    Response::builder()
        .status(status)
        .body(Full::new(Bytes::from(body)).boxed())
        .expect("a response")
}

fn refuse(code: &str) -> Response<Body> {
    let problem = Problem {
        code: code.to_owned(),
        // The line break shows that the agent cleans messages.
        message: "see the\nmaster".to_owned(),
        ..Problem::default()
    };
    full(
        StatusCode::FORBIDDEN,
        serde_json::to_vec(&problem).expect("JSON"),
    )
}

/// The answer of a master that queued the request.
fn queued() -> Response<Body> {
    let message = "waits as\nrequest-1".to_owned();
    let problem = Problem {
        code: Code::Queued.as_str().to_owned(),
        message,
        ..Problem::default()
    };
    let mut answer = full(
        StatusCode::ACCEPTED,
        serde_json::to_vec(&problem).expect("JSON"),
    );
    answer.headers_mut().insert(
        http::header::RETRY_AFTER,
        http::HeaderValue::from_static("0"),
    );
    answer
}

/// The answer of a master that has another name for the machine.
fn named(name: &str) -> Response<Body> {
    let code = Code::NameAssigned.as_str().to_owned();
    let problem = Problem {
        code,
        message: "ask anew".to_owned(),
        node_name: name.to_owned(),
    };
    full(
        StatusCode::CONFLICT,
        serde_json::to_vec(&problem).expect("JSON"),
    )
}

/// The caller's common name, serial number and protocol.
fn whoami(caller: &Caller) -> Response<Body> {
    let Some(der) = &caller.certificate else {
        return full(StatusCode::UNAUTHORIZED, Vec::new());
    };
    let (_, certificate) = x509_parser::parse_x509_certificate(der).expect("a certificate");
    let name = certificate
        .subject()
        .iter_common_name()
        .next()
        .expect("a name")
        .as_str()
        .expect("text");
    let text = format!(
        "{name} {} {}",
        certificate.raw_serial_as_string(),
        caller.protocol
    );
    full(StatusCode::OK, text.into_bytes())
}

/// Three lines in pieces that do not respect their ends, and a fourth that is cut off.
fn watch() -> Response<Body> {
    let pieces = ["{\"a\":1}\n{\"b\"", ":2}\n", "\n{\"c\":3", "}\n{\"d\":"];
    let frames =
        stream::iter(pieces).map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes()))));
    Response::new(BodyExt::boxed(StreamBody::new(frames)))
}

impl Shared {
    /// The verifier's world as this connection sees it.
    fn world(&self, caller: &Caller) -> MutexGuard<'_, World> {
        let mut world = self.world.lock().expect("not poisoned");
        world.channel = Channel {
            server_spki: self.server_spki,
            exporter: caller.exporter,
        };
        world.now = now();
        world
    }

    fn hello(&self, body: &[u8], path: &'static str, caller: &Caller) -> Response<Body> {
        let hello: Hello = serde_json::from_slice(body).expect("a hello");
        self.hellos.lock().expect("not poisoned").push(path);
        if self.behaviour == Behaviour::RefusesRenewals && path == RENEWALS_PATH {
            return refuse("REFUSED");
        }
        let mut world = self.world(caller);
        let challenge = match caller.peer() {
            Some(peer) if path == RENEWALS_PATH => world.renewal_challenge(&hello, &peer),
            _ => world.challenge(&hello),
        };
        match challenge {
            Ok(challenge) => full(
                StatusCode::CREATED,
                serde_json::to_vec(&challenge).expect("JSON"),
            ),
            // The protocol refuses a hello without a reason.
            Err(_) => refuse("REFUSED"),
        }
    }

    fn evidence(&self, session: SessionId, body: &[u8], caller: &Caller) -> Response<Body> {
        let evidence: Evidence = serde_json::from_slice(body).expect("evidence");
        let mut world = self.world(caller);
        let now = world.now;
        let taken = world
            .sessions
            .take(&session, now)
            .map_err(|code| Box::new(Refusal::anonymous(code)));
        let claimant = taken.and_then(|open| {
            check_evidence(
                open,
                &evidence,
                &world.references().get(),
                &world.channel,
                now,
            )
        });
        if self.behaviour == Behaviour::AsksAPerson && !self.asked.swap(true, Ordering::Relaxed) {
            return queued();
        }
        let verified = match claimant.and_then(Claimant::grant) {
            Ok(verified) => verified,
            Err(refusal) if refusal.code() == Code::NameAssigned => return named("worker-1"),
            Err(refusal) => return refuse(refusal.code().as_str()),
        };
        verified.record(
            world
                .object(verified.node_name())
                .status
                .get_or_insert_default(),
        );
        let certificates = Certificates {
            node_name: verified.node_name().to_owned(),
            client: self.certify(verified.client_spki(), &verified),
            serving: self.certify(verified.serving_spki(), &verified),
            roots: self.root_pem.clone(),
            not_after: 2_000_000_000,
            // A test can look at the first certificates before they are renewed.
            renew_after_seconds: 6,
        };
        full(
            StatusCode::OK,
            serde_json::to_vec(&certificates).expect("JSON"),
        )
    }

    fn certify(&self, spki: &[u8], verified: &CertificateGrant) -> String {
        let names = verified.serving_names().iter().map(|name| match name {
            San::Dns(name) => name.clone(),
            San::Ip(address) => address.to_string(),
        });
        let mut params = CertificateParams::new(names.collect::<Vec<_>>()).expect("parameters");
        params
            .distinguished_name
            .push(DnType::CommonName, node_user(verified.node_name()));
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(OsRng.next_u64().into());
        let leaf = if self.behaviour == Behaviour::CertifiesAnotherKey {
            params.signed_by(&KeyPair::generate().expect("a key"), &self.issuer)
        } else {
            params.signed_by(
                &SubjectPublicKeyInfo::from_der(spki).expect("a key"),
                &self.issuer,
            )
        };
        leaf.expect("a certificate").pem() + &self.intermediate_pem
    }
}
