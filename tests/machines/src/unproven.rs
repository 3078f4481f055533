//! A machine without a TPM, and whole exchanges of it against a world.

use super::machine::SoftMachine;
use super::requests::Requester;
use super::rng::SeededRng;
use super::world::World;
use config_attest::Refusal;
use config_attest::verifier::{
    Claimant, RenewingPeer, check_unproven, check_unproven_hello, check_unproven_renewal,
};
use config_protocol::question::{Channel, Purpose};
use config_protocol::unproven::{self, Challenge, Evidence, Hello};
use config_protocol::wire::{Blob, Claims, Der, csr_hash};
use config_tpm::Digest;
use p256::ecdsa::signature::Signer as _;
use p256::ecdsa::{DerSignature, SigningKey};
use p256::pkcs8::EncodePublicKey as _;

/// A machine without a TPM. Change any field to mount an attack.
#[derive(Debug, Clone)]
pub struct SoftKeyed {
    /// Node name that it asks for.
    pub node: String,
    /// Its claims.
    pub claims: Claims,
    /// Its node key.
    pub key: SigningKey,
    /// What it announces as its node key, DER.
    pub announced: Vec<u8>,
    /// The key of its serving certificate.
    pub serving: SigningKey,
    /// The content of the client request.
    pub client_request: Requester,
    /// The content of the serving request.
    pub serving_request: Requester,
}

impl SoftKeyed {
    /// A machine of a name and address, in the boot `boot`: each boot has a key of its own.
    pub fn new(node: &str, address: &str, boot: &str) -> Self {
        let mut rng = SeededRng::new(&format!("{node} in boot {boot}"));
        let key = SigningKey::random(&mut rng);
        let names = [node.to_owned(), address.to_owned()];
        Self {
            node: node.to_owned(),
            claims: Claims {
                name: node.to_owned(),
                addresses: vec![address.to_owned()],
                ..Claims::default()
            },
            announced: spki(&key),
            key,
            serving: SigningKey::random(&mut rng),
            client_request: Requester::node(node, &[]),
            serving_request: Requester::node(node, &names),
        }
    }

    /// A machine with a TPM that hides it: its own name and addresses, its own node key.
    pub fn hiding(machine: &SoftMachine) -> Self {
        let address = machine
            .claims
            .addresses
            .first()
            .cloned()
            .unwrap_or_default();
        let mut keyed = Self::new(&machine.node, &address, "hidden");
        keyed.key = machine.nk.clone();
        keyed.announced = spki(&keyed.key);
        keyed
    }

    /// SHA-256 of the node key's SubjectPublicKeyInfo.
    pub fn key_hash(&self) -> Digest {
        Digest::of(&self.announced)
    }

    /// Hello and both requests.
    pub fn hello(&self) -> (Hello, Vec<u8>, Vec<u8>) {
        let (client, serving) = (
            self.client_request.request(&self.key),
            self.serving_request.request(&self.serving),
        );
        let key = Blob::new(self.announced.clone()).expect("a key within the limit");
        (
            unproven::hello(key, &client, &serving, self.claims.clone()),
            client,
            serving,
        )
    }

    /// Evidence for a challenge.
    pub fn evidence(
        &self,
        purpose: Purpose,
        (hello, client, serving): &(Hello, Vec<u8>, Vec<u8>),
        challenge: &Challenge,
        channel: &Channel,
    ) -> Evidence {
        let mut announced = hello.clone();
        announced.csr_hash = csr_hash(client, serving);
        let (transcript, signed) = unproven::answer(purpose, &announced, challenge, channel);
        Evidence {
            transcript,
            signature: self.sign(&signed),
            client_csr: Der::new(client.clone()).expect("a request within the limit"),
            serving_csr: Der::new(serving.clone()).expect("a request within the limit"),
        }
    }

    /// A signature of the node key over any bytes.
    pub fn sign(&self, bytes: &[u8]) -> Blob<256> {
        let signature: DerSignature = self.key.sign(bytes);
        Blob::new(signature.as_bytes()).expect("a signature")
    }
}

fn spki(key: &SigningKey) -> Vec<u8> {
    key.verifying_key()
        .to_public_key_der()
        .expect("a public key")
        .as_bytes()
        .to_vec()
}

impl World {
    /// Steps 1 and 2 of a machine without a TPM.
    pub fn unproven_challenge(&mut self, hello: &Hello) -> Result<Challenge, Box<Refusal>> {
        let admitted =
            check_unproven_hello(hello, &self.references().get(), &self.channel, self.now)?;
        self.unproven.open(admitted, self.now, &mut self.rng)
    }

    /// Steps 1 and 2 of its renewal.
    pub fn unproven_renewal_challenge(
        &mut self,
        hello: &Hello,
        peer: &RenewingPeer,
    ) -> Result<Challenge, Box<Refusal>> {
        let admitted = check_unproven_renewal(
            hello,
            peer,
            &self.references().get(),
            &self.channel,
            self.now,
        )?;
        self.unproven.open(admitted, self.now, &mut self.rng)
    }

    /// Step 4.
    pub fn unproven_check(
        &mut self,
        challenge: &Challenge,
        evidence: &Evidence,
    ) -> Result<Claimant, Box<Refusal>> {
        let taken = self.unproven.take(&challenge.session, self.now);
        let pending = taken.map_err(|code| Box::new(Refusal::anonymous(code)))?;
        check_unproven(
            pending,
            evidence,
            &self.references().get(),
            &self.channel,
            self.now,
        )
    }

    /// A whole join, as far as what is left to others.
    pub fn unproven_claim(&mut self, machine: &SoftKeyed) -> Result<Claimant, Box<Refusal>> {
        self.unproven_claim_with(machine, |_| {})
    }

    /// The same with evidence that something in between changed.
    pub fn unproven_claim_with(
        &mut self,
        machine: &SoftKeyed,
        change: impl FnOnce(&mut Evidence),
    ) -> Result<Claimant, Box<Refusal>> {
        let hello = machine.hello();
        let challenge = self.unproven_challenge(&hello.0)?;
        let mut evidence = machine.evidence(Purpose::Join, &hello, &challenge, &self.channel);
        change(&mut evidence);
        self.unproven_check(&challenge, &evidence)
    }

    /// The certificate of a machine without a TPM, as the TLS layer would show it.
    pub fn unproven_peer(&mut self, machine: &SoftKeyed) -> RenewingPeer {
        let machine_uid = self
            .object(&machine.node)
            .metadata
            .uid
            .clone()
            .unwrap_or_default();
        RenewingPeer {
            machine_uid,
            node_name: machine.node.clone(),
            spki: machine.announced.clone(),
        }
    }

    /// A renewal, as far as what is left to others.
    pub fn unproven_renewal(&mut self, machine: &SoftKeyed) -> Result<Claimant, Box<Refusal>> {
        let (peer, hello) = (self.unproven_peer(machine), machine.hello());
        let challenge = self.unproven_renewal_challenge(&hello.0, &peer)?;
        let evidence = machine.evidence(Purpose::Renew, &hello, &challenge, &self.channel);
        self.unproven_check(&challenge, &evidence)
    }
}
