//! Machines in software around a running master, and the results of their exchanges.

use crate::site::Site;
use crate::wire::{Answer, Connection, Identity, config};
use config_attest::release::Manifest;
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use config_kube::machine::EkSelector;
use config_kube::{
    CertificatePolicy, ImageRelease, Machine, MachineSpec, MachineState, MachineStatus,
    NodeAttestation,
};
use config_protocol::wire::{
    Certificates, Challenge, Evidence, Hello, RENEWALS_PATH, SESSIONS_PATH, evidence_path,
};
use config_protocol::{Channel, Code, Consequence, Purpose};
use config_tpm::pcr::config_event_digest;
use http::StatusCode;
use p256::ecdsa::SigningKey;
use p256::pkcs8::{EncodePrivateKey as _, EncodePublicKey as _, LineEnding};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use tests_machines::{EkKind, SoftImage, SoftMachine, ek_certificate};

/// The configuration that machines boot with.
pub(crate) const CONFIG: &[u8] = b"version = 1\n";
/// Extended key usage of EK certificates.
pub(crate) const EK_USAGE: &[u64] = &[2, 23, 133, 8, 1];
/// Time for what the master does in the background.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);

/// A hello with the requests that its evidence must carry.
pub(crate) type Greeting = (Hello, Vec<u8>, Vec<u8>);

/// Where masters listen.
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The lab.
pub(crate) struct Lab {
    pub(crate) site: Site,
    pub(crate) image: SoftImage,
    pub(crate) maker: SigningKey,
    release_signer: SigningKey,
    next: AtomicU16,
}

/// The result of an exchange.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) answer: Answer,
    pub(crate) local: SocketAddr,
    pub(crate) node: String,
}

impl Lab {
    /// Starts a master with one signed worker image (SVN 7) and the strictest rule.
    pub(crate) async fn start() -> Self {
        Self::start_with("", "30m").await
    }

    /// A master with the strictest rule and this limit of half-open exchanges.
    pub(crate) async fn start_with_exchanges(most: usize) -> Self {
        let api = format!("[cluster.api]\nlimits = {{ exchanges = {most} }}\n\n");
        Self::start_of(LOCALHOST, (&api, "", "30m"), |_| {}).await
    }

    /// A master with the strictest rule at an address of this host.
    pub(crate) async fn start_at(host: IpAddr) -> Self {
        Self::start_of(host, ("", "", "30m"), |_| {}).await
    }

    /// The same, with further EK issuers (PEM) and another life of certificates.
    pub(crate) async fn start_with(issuers: &str, ttl: &str) -> Self {
        Self::start_on(issuers, ttl, |_| {}).await
    }

    /// The same on a data folder that something prepared.
    pub(crate) async fn start_on(issuers: &str, ttl: &str, prepare: impl FnOnce(&Path)) -> Self {
        Self::start_of(LOCALHOST, ("", issuers, ttl), prepare).await
    }

    async fn start_of(
        host: IpAddr,
        (api, issuers, ttl): (&str, &str, &str),
        prepare: impl FnOnce(&Path),
    ) -> Self {
        let seed = SoftMachine::new("keys of the lab", EkKind::P256);
        let (release_signer, maker) = (seed.ak, seed.nk);
        let site = Site::start_at(
            host,
            &document(&release_signer, &maker, api, issuers, ttl),
            prepare,
        )
        .await;
        let image = SoftImage::new("worker-7", "worker", 7);
        let lab = Self {
            site,
            image,
            maker,
            release_signer,
            next: AtomicU16::new(1),
        };
        lab.release(&lab.image, true).await;
        lab
    }

    /// Makes an image known, signed or not.
    pub(crate) async fn release(&self, image: &SoftImage, signed: bool) {
        let keys: &[&SigningKey] = if signed { &[&self.release_signer] } else { &[] };
        self.sign(&image.manifest(), keys).await;
    }

    /// Makes a build's own manifest known, signed.
    pub(crate) async fn release_of(&self, manifest: &Manifest) {
        self.sign(manifest, &[&self.release_signer]).await;
    }

    async fn sign(&self, manifest: &Manifest, keys: &[&SigningKey]) {
        let release: ImageRelease = manifest.sign(keys).unwrap();
        self.site.create(&release).await;
    }

    /// Changes the policy's first rule, which decides about machines.
    pub(crate) async fn change_rule(&self, change: impl FnOnce(&mut Value)) {
        let policy: CertificatePolicy = self.site.get("cluster").await;
        let mut rules = serde_json::to_value(&policy.spec.rules).unwrap();
        change(&mut rules[0]);
        let change = json!({ "spec": { "rules": rules } });
        self.site
            .patch::<CertificatePolicy>("cluster", &change)
            .await;
    }

    /// A machine that the inventory does not know.
    pub(crate) fn stranger(&self) -> SoftMachine {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let [high, low] = number.to_be_bytes();
        let node = format!("worker-{number}");
        let mut machine = SoftMachine::new(&node, EkKind::P256);
        let address = format!("10.7.{high}.{low}");
        machine.names = vec![node, address.clone()];
        machine.serving_request.names.clone_from(&machine.names);
        machine.claims.addresses = vec![address];
        machine.ek_certificate = Some(ek_certificate(
            "lab-ca",
            &self.maker,
            &machine.ek_spki(),
            EK_USAGE,
            2090,
        ));
        machine.boot(&self.image, "nocloud", CONFIG);
        machine
    }

    /// Writes the machine's line of the inventory, and waits until the attestation service knows
    /// it.
    pub(crate) async fn register(&self, machine: &SoftMachine, name: &str) {
        self.list(machine, name).await;
        self.known(machine).await;
    }

    /// Writes the machine's line of the inventory.
    pub(crate) async fn list(&self, machine: &SoftMachine, name: &str) {
        let spec = MachineSpec {
            role: "worker".to_owned(),
            addresses: machine.claims.addresses.clone(),
            ek: EkSelector {
                hashes: vec![machine.ek_hash().to_text()],
                issuers: Vec::new(),
                ..EkSelector::default()
            },
            config_digests: vec![config_event_digest("nocloud", CONFIG).to_text()],
            ..MachineSpec::default()
        };
        self.site.create(&Machine::named(name, spec)).await;
    }

    /// Waits until the attestation service knows a machine.
    pub(crate) async fn known(&self, machine: &SoftMachine) {
        let name = &machine.node;
        let start = Instant::now();
        while self.hello(machine).await.1.status != StatusCode::OK {
            assert!(
                start.elapsed() < LIMIT,
                "the Machine {name} does not become known:\n{}",
                self.site.log()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A good machine, booted and in the inventory.
    pub(crate) async fn machine(&self) -> SoftMachine {
        let machine = self.stranger();
        self.register(&machine, &machine.node).await;
        machine
    }

    pub(crate) async fn connect(&self) -> Connection {
        Connection::open(self.site.address, self.site.anonymous.clone())
            .await
            .unwrap()
    }

    /// Step 1 on a connection of its own.
    pub(crate) async fn hello(&self, machine: &SoftMachine) -> (Connection, Answer) {
        let mut connection = self.connect().await;
        let answer = connection.post(SESSIONS_PATH, &machine.hello().0).await;
        (connection, answer)
    }

    pub(crate) async fn join(&self, machine: &SoftMachine) -> Outcome {
        self.join_with(machine, |_| {}).await
    }

    /// A whole join of a machine that the inventory does not know.
    pub(crate) async fn join_stranger(&self) -> Outcome {
        self.join(&self.stranger()).await
    }

    /// A whole join; something in between changes the evidence.
    pub(crate) async fn join_with(
        &self,
        machine: &SoftMachine,
        change: impl FnOnce(&mut Evidence),
    ) -> Outcome {
        self.exchange(
            machine,
            self.connect().await,
            SESSIONS_PATH,
            Purpose::Join,
            |_| {},
            change,
        )
        .await
    }

    /// A whole exchange on a connection, in which the channel and the evidence may be changed.
    pub(crate) async fn exchange(
        &self,
        machine: &SoftMachine,
        mut connection: Connection,
        sessions: &str,
        purpose: Purpose,
        splice: impl FnOnce(&mut Channel),
        change: impl FnOnce(&mut Evidence),
    ) -> Outcome {
        let greeting = machine.hello();
        let mut answer = connection.post(sessions, &greeting.0).await;
        if answer.status == StatusCode::OK {
            let challenge: Challenge = serde_json::from_value(answer.json).unwrap();
            let mut channel = connection.channel.clone();
            splice(&mut channel);
            let mut evidence = machine.evidence(purpose, &greeting, &challenge, &channel);
            change(&mut evidence);
            let path = evidence_path(sessions, &challenge.session);
            answer = match purpose {
                Purpose::Join | Purpose::Bootstrap => connection.post(&path, &evidence).await,
                Purpose::Renew => connection.post_or_cut(&path, &evidence).await,
            };
        }
        Outcome {
            answer,
            local: connection.local,
            node: machine.node.clone(),
        }
    }

    /// A connection with a node's certificate.
    pub(crate) async fn connect_as(&self, identity: &Identity) -> std::io::Result<Connection> {
        Connection::open(self.site.address, config(&self.site.root, Some(identity))).await
    }

    /// A whole renewal with a certificate.
    pub(crate) async fn renew(&self, machine: &SoftMachine, identity: &Identity) -> Outcome {
        let connection = self.connect_as(identity).await.unwrap();
        self.exchange(
            machine,
            connection,
            RENEWALS_PATH,
            Purpose::Renew,
            |_| {},
            |_| {},
        )
        .await
    }

    pub(crate) async fn status(&self, machine: &str) -> MachineStatus {
        self.site
            .get::<Machine>(machine)
            .await
            .status
            .unwrap_or_default()
    }

    /// The exchange was refused with one generic answer, the code is on record for it, and the
    /// Machine's state is what the code's consequence and standing say.
    pub(crate) async fn refused(&self, outcome: &Outcome, code: Code, proven: bool) {
        let Outcome {
            answer,
            local,
            node,
        } = outcome;
        let plain = [Code::ProtocolVersion, Code::Malformed].contains(&code);
        let shown = if plain { code.as_str() } else { "REFUSED" };
        let said = answer.json["code"].as_str().unwrap_or_default();
        let limited = code == Code::SessionsFullForEk && said == "RATE_LIMITED";
        assert!(
            !answer.status.is_success(),
            "{node} is accepted, expected {code}: {:?}",
            answer.json
        );
        let cut = answer.is_cut() && code.consequence() == Consequence::Untrusted;
        assert!(
            said == shown || limited || cut,
            "{node}, {code}: {:?}\n{}",
            answer.json,
            self.site.log()
        );
        let record = self.record_of(*local, code).await;
        let status = record.status.clone().unwrap_or_default();
        assert_eq!(status.verdict, "Refused");
        assert_eq!(status.machine.is_some(), proven, "{code}: {status:?}");
        if !proven {
            return;
        }
        let known = self.status(node).await;
        let state = match code.consequence() {
            Consequence::Untrusted => MachineState::Untrusted,
            Consequence::Suspect => MachineState::Suspect,
            Consequence::Nothing => return,
        };
        assert_eq!(
            (known.reason.as_str(), known.state),
            (code.as_str(), state),
            "{}",
            known.message
        );
        assert!(
            known.checks.iter().any(|check| check.code == code.as_str()),
            "{:?}",
            known.checks
        );
    }

    /// Tries until the master accepts: what the admin changed is known a moment later.
    pub(crate) async fn until_accepted(&self, machine: &SoftMachine) -> Certificates {
        let start = Instant::now();
        loop {
            let outcome = self.join(machine).await;
            if outcome.answer.status == StatusCode::OK {
                return outcome.accepted();
            }
            assert!(
                start.elapsed() < LIMIT,
                "{}: {:?}\n{}",
                outcome.node,
                outcome.answer.json,
                self.site.log()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Tries until the master's record has this code: the admin's change takes effect a moment
    /// later.
    pub(crate) async fn until<F: Future<Output = Outcome>>(
        &self,
        code: Code,
        attempt: impl Fn() -> F,
    ) -> Outcome {
        let start = Instant::now();
        loop {
            let outcome = attempt().await;
            let own = |object: &NodeAttestation| object.spec.remote == outcome.local.to_string();
            let record = loop {
                let all: Vec<NodeAttestation> = self.site.list().await;
                let status = all.into_iter().find(own).and_then(|object| object.status);
                if let Some(status) = status.filter(|status| !status.verdict.is_empty()) {
                    break status;
                }
                assert!(
                    start.elapsed() < LIMIT,
                    "no record for {}:\n{}",
                    outcome.local,
                    self.site.log()
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            if record.code == code.as_str() {
                return outcome;
            }
            assert!(start.elapsed() < LIMIT, "{} instead of {code}", record.code);
        }
    }

    /// The record of a refusal on a connection.
    async fn record_of(&self, local: SocketAddr, code: Code) -> NodeAttestation {
        let start = Instant::now();
        loop {
            let all: Vec<NodeAttestation> = self.site.list().await;
            let own = |object: &&NodeAttestation| object.spec.remote == local.to_string();
            let coded = |object: &NodeAttestation| {
                object
                    .status
                    .as_ref()
                    .is_some_and(|s| s.code == code.as_str())
            };
            if let Some(found) = all.iter().filter(own).find(|object| coded(object)) {
                return found.clone();
            }
            let seen: Vec<_> = all
                .iter()
                .filter(own)
                .filter_map(|o| o.status.clone())
                .map(|s| s.message)
                .collect();
            assert!(
                start.elapsed() < LIMIT,
                "no record of {code} for {local}, but {seen:?}\n{}",
                self.site.log()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Outcome {
    /// The exchange was accepted; what the node got.
    pub(crate) fn accepted(self) -> Certificates {
        assert_eq!(
            self.answer.status,
            StatusCode::OK,
            "{}: {:?}",
            self.node,
            self.answer.json
        );
        serde_json::from_value(self.answer.json).unwrap()
    }
}

/// A joined node's certificate chain and node key.
pub(crate) fn identity(machine: &SoftMachine, certificates: &Certificates) -> Identity {
    Identity {
        chain: chain(&certificates.client),
        key: machine.nk.to_pkcs8_der().unwrap().as_bytes().to_vec(),
    }
}

/// The serving certificate and its key, to try them as a client's.
pub(crate) fn serving_identity(machine: &SoftMachine, certificates: &Certificates) -> Identity {
    Identity {
        chain: chain(&certificates.serving),
        key: machine.serving.to_pkcs8_der().unwrap().as_bytes().to_vec(),
    }
}

/// The certificates of a PEM text.
pub(crate) fn chain(pem: &str) -> Vec<Vec<u8>> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .map(|der| der.unwrap().to_vec())
        .collect()
}

/// The certificate (PEM) of `lab-ca`, which signs for the TPMs of a maker.
pub(crate) fn issuer(maker: &SigningKey) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "lab-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::try_from(maker.to_pkcs8_der().unwrap().as_bytes()).unwrap();
    params.self_signed(&key).unwrap().pem()
}

fn document(
    release_signer: &SigningKey,
    maker: &SigningKey,
    api: &str,
    issuers: &str,
    ttl: &str,
) -> String {
    let release = release_signer
        .verifying_key()
        .to_public_key_pem(LineEnding::LF)
        .unwrap();
    let issuer = issuer(maker);
    format!(
        "version = 1\nkind = \"cluster\"\n\n[cluster]\nname = \"lab\"\npod_cidrs = []\napi_names = [\"192.168.77.10\"]\n\n{api}\
         [[cluster.release_key]]\nname = \"rel-2026\"\npublic_key = '''\n{release}'''\n\n\
         [[cluster.ek_issuer]]\nname = \"lab-ca\"\ncertificates = '''\n{issuer}{issuers}'''\n\n\
         [[rule]]\nname = \"workers\"\nsigners = [\"pratique.dev/node-client\", \"pratique.dev/node-serving\"]\n\
         policy = \"cloud-verify\"\nek = {{ issuers = [\"lab-ca\"], hashes = \"inventory\", require = \"all\" }}\n\
         images = {{ release_keys = [\"rel-2026\"], min_svn = 7 }}\n\
         events = {{ secure_boot = true, allow_unknown = false }}\n\
         config = {{ measured = true, digests = \"inventory\" }}\n\
         certificate = {{ ttl = \"{ttl}\", sans = \"inventory\", roles = [\"worker\"] }}\n"
    )
}

/// A request of upstream's client signer by this name, for a user and its groups, with a new key.
pub(crate) fn client_request(name: &str, user: &str, groups: &[&str]) -> CertificateSigningRequest {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, user);
    for group in groups {
        let organization = DnType::OrganizationName;
        params.distinguished_name.push(organization, *group);
    }
    let key = KeyPair::generate().unwrap();
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    let mut object = CertificateSigningRequest::default();
    object.metadata.name = Some(name.to_owned());
    "kubernetes.io/kube-apiserver-client".clone_into(&mut object.spec.signer_name);
    object.spec.request.0 = pem.into_bytes();
    object.spec.usages = Some(vec!["client auth".to_owned()]);
    object
}
