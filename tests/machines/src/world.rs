//! A master's reference values, and whole exchanges against them.

use super::image::SoftImage;
use super::machine::{EkKind, SoftMachine};
use super::requests::{Maker, ek_certificate};
use super::rng::SeededRng;
use config_attest::Inventory;
use config_attest::Refusal;
use config_attest::policy::CheckedRule;
use config_attest::release::{KnownRelease, ReleaseKey};
use config_attest::sessions::Sessions;
use config_attest::verifier::{
    Approval, CertificateGrant, Claimant, RecordedEvidence, Reference, RenewingPeer,
    UnprovenPending, check_evidence, check_hello, check_renewal,
};
use config_certificates::EkIssuer;
use config_kube::identity::{NODE_CLIENT_SIGNER, NODE_SERVING_SIGNER};
use config_kube::machine::{EkSelector, MachineSpec};
use config_kube::policy::{
    CertificateRule, ConfigRule, EkRule, EventRule, ImageRule, PolicyName, Rule,
};
use config_kube::{ImageRelease, Machine};
use config_protocol::question::{Channel, Purpose};
use config_protocol::wire::{Challenge, Evidence, Hello};
use config_tpm::Digest;
use config_tpm::pcr::config_event_digest;
use p256::ecdsa::SigningKey;
use p256::pkcs8::{EncodePublicKey as _, LineEnding};

/// The configuration that machines boot with.
const CONFIG: &[u8] = b"version = 1\n";

/// A master: what it holds true, and its clock.
#[derive(Debug)]
pub struct World {
    /// All Machines.
    pub machines: Vec<Machine>,
    /// The rule that decides.
    pub rule: Rule,
    /// Issuers of EK certificates.
    pub issuers: Vec<EkIssuer>,
    /// Releases.
    pub releases: Vec<ImageRelease>,
    /// Release keys of the configuration.
    pub release_keys: Vec<ReleaseKey>,
    /// The key that signs releases.
    pub release_signer: SigningKey,
    /// Names of the API server.
    pub api_names: Vec<String>,
    /// The admin's key.
    pub admin: SigningKey,
    /// Unix seconds.
    pub now: u64,
    /// The TLS connection as the master sees it.
    pub channel: Channel,
    /// Half-open exchanges.
    pub sessions: Sessions,
    /// The session table of machines without a TPM.
    pub unproven: Sessions<UnprovenPending>,
    /// The image that machines of this world boot.
    pub image: SoftImage,
    /// The key that signs EK certificates under the name `lab-ca`.
    pub maker: SigningKey,
    pub(super) rng: SeededRng,
}

/// Reference values in the verifier's form.
#[derive(Debug)]
pub struct References {
    inventory: Inventory,
    rule: CheckedRule,
    issuers: Vec<EkIssuer>,
    releases: Vec<KnownRelease>,
    api_names: Vec<String>,
    admin_key: Digest,
}

impl References {
    /// As the verifier takes them.
    pub fn get(&self) -> Reference<'_> {
        Reference {
            inventory: &self.inventory,
            rule: &self.rule,
            issuers: &self.issuers,
            releases: &self.releases,
            api_names: &self.api_names,
            cluster: "lab",
            admin_key: Some(self.admin_key),
        }
    }
}

/// The strictest rule that a lab can meet.
fn rule() -> Rule {
    Rule {
        name: "workers".to_owned(),
        signers: vec![
            NODE_CLIENT_SIGNER.to_owned(),
            NODE_SERVING_SIGNER.to_owned(),
        ],
        policy: PolicyName::CloudVerify,
        ek: EkRule {
            issuers: vec!["lab-ca".to_owned()],
            hashes: "inventory".to_owned(),
            require: "all".to_owned(),
            ..EkRule::default()
        },
        images: ImageRule {
            release_keys: vec!["rel-2026".to_owned()],
            min_svn: 7,
            max_concurrent: 0,
        },
        events: EventRule {
            secure_boot: true,
            allow_unknown: false,
        },
        config: ConfigRule {
            measured: true,
            digests: "inventory".to_owned(),
            ..ConfigRule::default()
        },
        certificate: CertificateRule {
            ttl_seconds: 1800,
            sans: "inventory".to_owned(),
            roles: vec!["worker".to_owned()],
        },
        ..Rule::default()
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    /// A world with one signed worker image and no machine.
    pub fn new() -> Self {
        let mut rng = SeededRng::new("world");
        let release_signer = SigningKey::random(&mut rng);
        let maker = Maker::new("lab-ca", SigningKey::random(&mut rng));
        let image = SoftImage::new("worker-7", "worker", 7);
        let pem = release_signer
            .verifying_key()
            .to_public_key_pem(LineEnding::LF)
            .expect("a public key");
        let release = image
            .manifest()
            .sign(&[&release_signer])
            .expect("a release");
        Self {
            machines: Vec::new(),
            rule: rule(),
            issuers: vec![EkIssuer::from_der("lab-ca", vec![maker.der]).expect("an issuer")],
            releases: vec![release],
            release_keys: vec![ReleaseKey::from_pem("rel-2026", &pem).expect("a release key")],
            release_signer,
            api_names: vec![
                "kubernetes".to_owned(),
                "10.96.0.1".to_owned(),
                "192.168.77.10".to_owned(),
            ],
            admin: SigningKey::random(&mut rng),
            now: 1_800_000_000,
            channel: Channel {
                server_spki: Digest::of(b"server"),
                exporter: Digest::of(b"connection 1"),
            },
            sessions: Sessions::default(),
            unproven: Sessions::default(),
            image,
            maker: maker.key,
            rng,
        }
    }

    /// A good machine, booted, with a Machine object and an EK certificate.
    pub fn machine(&mut self, node: &str, address: &str, kind: EkKind) -> SoftMachine {
        let mut machine = SoftMachine::new(node, kind);
        machine.names = vec![node.to_owned(), address.to_owned()];
        machine.serving_request.names.clone_from(&machine.names);
        machine.claims.addresses = vec![address.to_owned()];
        if kind != EkKind::Rsa {
            machine.ek_certificate = Some(self.endorse(&machine, &[2, 23, 133, 8, 1], 2090));
        }
        machine.boot(&self.image, "nocloud", CONFIG);
        let mut object = Machine::named(
            node,
            MachineSpec {
                role: "worker".to_owned(),
                addresses: vec![address.to_owned()],
                ek: EkSelector {
                    hashes: vec![machine.ek_hash().to_text()],
                    issuers: Vec::new(),
                    ..EkSelector::default()
                },
                config_digests: vec![config_event_digest("nocloud", CONFIG).to_text()],
                ..MachineSpec::default()
            },
        );
        object.metadata.uid = Some(format!("uid-of-{node}"));
        self.machines.push(object);
        machine
    }

    /// An EK certificate by the world's issuer.
    pub fn endorse(&self, machine: &SoftMachine, usage: &[u64], until: i32) -> Vec<u8> {
        ek_certificate("lab-ca", &self.maker, &machine.ek_spki(), usage, until)
    }

    /// The object of a machine.
    pub fn object(&mut self, node: &str) -> &mut Machine {
        self.machines
            .iter_mut()
            .find(|machine| machine.node_name() == node)
            .expect("a Machine of this node")
    }

    /// The reference values as they are now.
    pub fn references(&self) -> References {
        let spki = self
            .admin
            .verifying_key()
            .to_public_key_der()
            .expect("a public key");
        References {
            inventory: Inventory::new(self.machines.clone()),
            rule: CheckedRule::try_from(&self.rule).expect("a rule without faults"),
            issuers: self.issuers.clone(),
            releases: self
                .releases
                .iter()
                .map(|release| KnownRelease::open(release, &self.release_keys).expect("a manifest"))
                .collect(),
            api_names: self.api_names.clone(),
            admin_key: Digest::of(spki.as_bytes()),
        }
    }

    /// Steps 1 and 2.
    pub fn challenge(&mut self, hello: &Hello) -> Result<Challenge, Box<Refusal>> {
        let admitted = check_hello(hello, &self.references().get(), &self.channel, self.now)?;
        self.sessions.open(admitted, self.now, &mut self.rng)
    }

    /// Steps 1 and 2 of a renewal.
    pub fn renewal_challenge(
        &mut self,
        hello: &Hello,
        peer: &RenewingPeer,
    ) -> Result<Challenge, Box<Refusal>> {
        let admitted = check_renewal(
            hello,
            peer,
            &self.references().get(),
            &self.channel,
            self.now,
        )?;
        self.sessions.open(admitted, self.now, &mut self.rng)
    }

    /// Step 4, as far as possession.
    pub fn check(
        &mut self,
        challenge: &Challenge,
        evidence: &Evidence,
    ) -> Result<Claimant, Box<Refusal>> {
        let pending = self
            .sessions
            .take(&challenge.session, self.now)
            .map_err(|code| Box::new(Refusal::anonymous(code)))?;
        check_evidence(
            pending,
            evidence,
            &self.references().get(),
            &self.channel,
            self.now,
        )
    }

    /// Step 4.
    pub fn verify(
        &mut self,
        challenge: &Challenge,
        evidence: &Evidence,
    ) -> Result<CertificateGrant, Box<Refusal>> {
        self.check(challenge, evidence)?.grant()
    }

    /// A whole join as far as possession, under a rule that leaves the rest to others.
    pub fn claim(&mut self, machine: &SoftMachine) -> Result<Claimant, Box<Refusal>> {
        let hello = machine.hello();
        let challenge = self.challenge(&hello.0)?;
        let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &self.channel);
        self.check(&challenge, &evidence)
    }

    /// A renewal as far as possession.
    pub fn claim_renewal(&mut self, machine: &SoftMachine) -> Result<Claimant, Box<Refusal>> {
        let uid = self
            .object(&machine.node)
            .metadata
            .uid
            .clone()
            .unwrap_or_default();
        let peer = RenewingPeer {
            machine_uid: uid,
            node_name: machine.node.clone(),
            spki: machine.nk_spki(),
        };
        let hello = machine.hello();
        let challenge = self.renewal_challenge(&hello.0, &peer)?;
        let evidence = machine.evidence(Purpose::Renew, &hello, &challenge, &self.channel);
        self.check(&challenge, &evidence)
    }

    /// A whole join, kept in place of being checked.
    pub fn show(&mut self, machine: &SoftMachine) -> Option<RecordedEvidence> {
        let hello = machine.hello();
        let challenge = self.challenge(&hello.0).ok()?;
        let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &self.channel);
        let pending = self.sessions.take(&challenge.session, self.now).ok()?;
        RecordedEvidence::of(&pending, &evidence)
    }

    /// Applies an approval: creates a missing Machine, and records the proof.
    pub fn approve(
        &mut self,
        claimant: Claimant,
        approval: &Approval,
    ) -> Result<CertificateGrant, Box<Refusal>> {
        let made = claimant.to_make().map(|mut machine| {
            machine.metadata.uid = Some(format!("uid-of-{}", machine.node_name()));
            machine
        });
        let verified = claimant.approve(approval, made.as_ref())?;
        self.machines.extend(made);
        self.record(&verified);
        Ok(verified)
    }

    /// A whole join; what was proved is recorded in the Machine.
    pub fn join(&mut self, machine: &SoftMachine) -> Result<CertificateGrant, Box<Refusal>> {
        self.join_with(machine, |_| {})
    }

    /// A whole join with evidence that something in between changed.
    pub fn join_with(
        &mut self,
        machine: &SoftMachine,
        change: impl FnOnce(&mut Evidence),
    ) -> Result<CertificateGrant, Box<Refusal>> {
        let hello = machine.hello();
        let challenge = self.challenge(&hello.0)?;
        let mut evidence = machine.evidence(Purpose::Join, &hello, &challenge, &self.channel);
        change(&mut evidence);
        let verified = self.verify(&challenge, &evidence)?;
        self.record(&verified);
        Ok(verified)
    }

    /// A whole renewal.
    pub fn renew(&mut self, machine: &SoftMachine) -> Result<CertificateGrant, Box<Refusal>> {
        let peer = RenewingPeer {
            machine_uid: format!("uid-of-{}", machine.node),
            node_name: machine.node.clone(),
            spki: machine.nk_spki(),
        };
        let hello = machine.hello();
        let challenge = self.renewal_challenge(&hello.0, &peer)?;
        let evidence = machine.evidence(Purpose::Renew, &hello, &challenge, &self.channel);
        let verified = self.verify(&challenge, &evidence)?;
        self.record(&verified);
        Ok(verified)
    }

    fn record(&mut self, verified: &CertificateGrant) {
        let status = self
            .object(verified.node_name())
            .status
            .get_or_insert_default();
        verified.record(status);
    }
}
