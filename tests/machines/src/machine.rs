//! A machine with a software TPM in the loosest sense: it computes a TPM's outputs over any given
//! values.

use super::SeededRng;
use super::image::SoftImage;
use super::requests::Requester;
use config_protocol::prover::{self, TpmOutputs};
use config_protocol::question::{Channel, Purpose};
use config_protocol::wire::{
    Challenge, Claims, ConfigEvent, Credential, Der, Evidence, Hello, Keys, Proof, Signed,
};
use config_tpm::Digest;
use config_tpm::eventlog::EventLog;
use config_tpm::pcr::{Bank, CONFIG_PCR, NK_PCRS, QUOTE_PCRS, Selection, config_event_digest};
use config_tpm::{
    Attest, Attested, ClockInfo, ENDORSEMENT_HIERARCHY, EcdsaSignature, HashAlg, Key,
    NULL_HIERARCHY, Public, hmac, kdfa, kdfe, qualified_name_of_primary, template,
};
use p256::ecdsa::signature::Signer as _;
use p256::ecdsa::{Signature, SigningKey};
use p256::elliptic_curve::sec1::ToEncodedPoint as _;

/// Kinds of endorsement key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EkKind {
    /// RSA-2048; all machines share one fixed key, since making one takes seconds.
    Rsa,
    /// ECC P-256.
    P256,
    /// ECC P-384.
    P384,
}

#[derive(Debug, Clone)]
enum EkSecret {
    Rsa(Box<rsa::RsaPrivateKey>),
    P256(p256::SecretKey),
    P384(p384::SecretKey),
}

/// A machine. Change any field to mount an attack.
#[derive(Debug, Clone)]
pub struct SoftMachine {
    /// Node name that it asks for.
    pub node: String,
    /// Names and addresses that it asks for.
    pub names: Vec<String>,
    /// Its claims.
    pub claims: Claims,
    /// Public area of its EK.
    pub ek_public: Public,
    /// EK certificate.
    pub ek_certificate: Option<Vec<u8>>,
    /// Public area of its AK.
    pub ak_public: Public,
    /// Public area of its NK.
    pub nk_public: Public,
    /// AK.
    pub ak: SigningKey,
    /// NK.
    pub nk: SigningKey,
    /// Key of the serving certificate.
    pub serving: SigningKey,
    /// Hierarchy of the AK.
    pub ak_hierarchy: u32,
    /// Hierarchy of the NK.
    pub nk_hierarchy: u32,
    /// Registers.
    pub bank: Bank,
    /// Event log.
    pub log: EventLog,
    /// Configuration event.
    pub config_event: Option<ConfigEvent>,
    /// Counters.
    pub clock: ClockInfo,
    /// Version of the TPM's firmware.
    pub tpm_firmware: u64,
    /// The content of the client request.
    pub client_request: Requester,
    /// The content of the serving request.
    pub serving_request: Requester,
    ek: EkSecret,
}

const RSA_P: &str = "f26b200e3203a3e086ae0792be743ca56d35c9dc5dca87ada064bc2909778a00bb68c46ff9f073578814b7dc6c57d913d3c0ac35e315fea2a2b7c8cec88c7dde5d4dbc90d2696e5a68fc92d51eb20f7615a8999bcbbe2fcd9dab324b0a5852efac80b5b38feecdcacadaa4b3021fc5049e013f85067c04ba95df307c81ea0499";
const RSA_Q: &str = "e14a85870cfde3b3771b22470960c7c18bcf3e74a9586c36ef64fd30a8522cf2eda1fde35788bbd29eab3aaf80e6b3e99375c6d244bf72cf38ddce4ab30742ae3fe4baa9fcbaf9bf3500a489093dc6096d8907e5f8e14210665d46a323b7a6217bc9db22d74cb528c89174d56a060cea0521e10ba78dcef6af39dadbaf70392f";

fn endorsement_key(kind: EkKind, rng: &mut SeededRng) -> (EkSecret, Public) {
    match kind {
        EkKind::Rsa => {
            let prime = |hex: &str| rsa::BigUint::from_bytes_be(&hex::decode(hex).expect("hex"));
            let key = rsa::RsaPrivateKey::from_p_q(
                prime(RSA_P),
                prime(RSA_Q),
                rsa::BigUint::from(65537_u32),
            )
            .expect("an RSA key");
            let modulus = rsa::traits::PublicKeyParts::n(&key).to_bytes_be();
            let mut public = template::ek_rsa2048();
            if let Key::Rsa { modulus: slot, .. } = &mut public.key {
                *slot = modulus;
            }
            (EkSecret::Rsa(Box::new(key)), public)
        }
        EkKind::P256 => {
            let key = p256::SecretKey::random(rng);
            let public = with_point(
                template::ek_p256(),
                key.public_key().to_encoded_point(false).as_bytes(),
            );
            (EkSecret::P256(key), public)
        }
        EkKind::P384 => {
            let key = p384::SecretKey::random(rng);
            let public = with_point(
                template::ek_p384(),
                key.public_key().to_encoded_point(false).as_bytes(),
            );
            (EkSecret::P384(key), public)
        }
    }
}

/// A template with a public point (SEC 1, uncompressed).
fn with_point(mut public: Public, sec1: &[u8]) -> Public {
    if let Key::Ecc { x, y, .. } = &mut public.key {
        let (left, right) = sec1[1..].split_at((sec1.len() - 1) / 2);
        *x = left.to_vec();
        *y = right.to_vec();
    }
    public
}

/// The public area of a signing key of a template.
pub(super) fn signing_public(template: Public, key: &SigningKey) -> Public {
    with_point(
        template,
        key.verifying_key().to_encoded_point(false).as_bytes(),
    )
}

impl SoftMachine {
    /// A machine that is off: keys by name, registers after a reset.
    pub fn new(node: &str, kind: EkKind) -> Self {
        let mut rng = SeededRng::new(&format!("machine {node}"));
        let (ek, ek_public) = endorsement_key(kind, &mut rng);
        let (ak, nk, serving) = (
            SigningKey::random(&mut rng),
            SigningKey::random(&mut rng),
            SigningKey::random(&mut rng),
        );
        let names = vec![node.to_owned()];
        Self {
            node: node.to_owned(),
            claims: Claims {
                name: node.to_owned(),
                ..Claims::default()
            },
            ek_public,
            ek_certificate: None,
            ak_public: signing_public(template::ak(), &ak),
            nk_public: signing_public(template::nk(&std::collections::BTreeMap::new()), &nk),
            ak,
            nk,
            serving,
            ak_hierarchy: ENDORSEMENT_HIERARCHY,
            nk_hierarchy: NULL_HIERARCHY,
            bank: Bank::new(),
            log: EventLog::default(),
            config_event: None,
            clock: ClockInfo {
                clock: 1000,
                reset_count: 1,
                restart_count: 0,
                safe: true,
            },
            tpm_firmware: 7 << 48 | 85 << 32 | 4555 << 16,
            client_request: Requester::node(node, &[]),
            serving_request: Requester::node(node, &names),
            names,
            ek,
        }
    }

    /// Boots an image with a configuration: registers, log, a node key of this boot.
    pub fn boot(&mut self, image: &SoftImage, label: &str, config: &[u8]) {
        self.clock.reset_count += 1;
        self.log = image.log();
        self.bank = self.log.replay();
        let digest = config_event_digest(label, config);
        self.bank.extend(CONFIG_PCR, &digest);
        let length = u64::try_from(config.len()).unwrap_or(u64::MAX);
        self.config_event = Some(ConfigEvent {
            pcr: CONFIG_PCR,
            label: label.to_owned(),
            length,
            digest,
        });
        self.claims.image.clone_from(&image.id);
        let seed = format!("NK of {} in boot {}", self.node, self.clock.reset_count);
        self.nk = SigningKey::random(&mut SeededRng::new(&seed));
        self.bind_nk();
    }

    /// Makes the node key's public area for the registers as they are.
    pub fn bind_nk(&mut self) {
        let values = self.bank.values(Selection::of(NK_PCRS));
        self.nk_public = signing_public(template::nk(&values), &self.nk);
    }

    /// SHA-256 of the EK's SubjectPublicKeyInfo.
    pub fn ek_hash(&self) -> Digest {
        Digest::of(&self.ek_spki())
    }

    /// The EK's SubjectPublicKeyInfo.
    pub fn ek_spki(&self) -> Vec<u8> {
        self.ek_public.spki().expect("an EK")
    }

    /// The NK's SubjectPublicKeyInfo.
    pub fn nk_spki(&self) -> Vec<u8> {
        self.nk_public.spki().expect("an NK")
    }

    /// Public areas and EK certificate.
    pub fn keys(&self) -> Keys {
        let (ek, ak, nk) = (
            self.ek_public.to_bytes(),
            self.ak_public.to_bytes(),
            self.nk_public.to_bytes(),
        );
        prover::keys(&ek, &ak, &nk, self.ek_certificate.as_deref()).expect("keys within the limits")
    }

    /// The client request.
    pub fn client_csr(&self) -> Vec<u8> {
        self.client_request.request(&self.nk)
    }

    /// The serving request.
    pub fn serving_csr(&self) -> Vec<u8> {
        self.serving_request.request(&self.serving)
    }

    /// Step 1, with the requests that the evidence must carry.
    pub fn hello(&self) -> (Hello, Vec<u8>, Vec<u8>) {
        let (client, serving) = (self.client_csr(), self.serving_csr());
        (
            prover::hello(self.keys(), &client, &serving, self.claims.clone()),
            client,
            serving,
        )
    }

    /// Step 3: evidence for a challenge to a hello.
    pub fn evidence(
        &self,
        purpose: Purpose,
        hello: &(Hello, Vec<u8>, Vec<u8>),
        challenge: &Challenge,
        channel: &Channel,
    ) -> Evidence {
        let (hello, client, serving) = hello;
        let proof = self.proof(
            purpose,
            &hello.keys,
            hello.csr_hash,
            &hello.claims,
            challenge,
            channel,
        );
        Evidence {
            proof,
            client_csr: Der::new(client.clone()).expect("a request within the limit"),
            serving_csr: Der::new(serving.clone()).expect("a request within the limit"),
        }
    }

    /// A proof for a challenge.
    pub fn proof(
        &self,
        purpose: Purpose,
        keys: &Keys,
        csr_hash: Digest,
        claims: &Claims,
        challenge: &Challenge,
        channel: &Channel,
    ) -> Proof {
        let answer = prover::answer(purpose, keys, csr_hash, claims, challenge, channel)
            .expect("an answerable challenge");
        let quote = self.sign(&self.quote(answer.question()));
        let certify = self.sign(&self.certify(answer.question()));
        // A machine that cannot open the credential sends some secret of its own.
        let secret = self
            .activate(&challenge.credential)
            .unwrap_or_else(|| vec![0; 32]);
        let outputs = TpmOutputs {
            secret,
            quote: quote.attest.as_bytes().to_vec(),
            quote_signature: quote.signature.as_bytes().to_vec(),
            certify: certify.attest.as_bytes().to_vec(),
            certify_signature: certify.signature.as_bytes().to_vec(),
            pcrs: self.bank.values(Selection::of(QUOTE_PCRS)),
            event_log: self.log.to_bytes(),
            config_event: self.config_event.clone(),
        };
        answer.proof(outputs).expect("a proof within the limits")
    }

    /// TPM2_Quote over the exact selection.
    pub fn quote(&self, question: &Digest) -> Attest {
        let selection = Selection::of(QUOTE_PCRS);
        let digest = selection
            .digest(&self.bank.values(selection))
            .as_bytes()
            .to_vec();
        self.attest(
            question,
            Attested::Quote {
                selection: vec![selection.to_pcr_selection()],
                digest,
            },
        )
    }

    /// TPM2_Certify of the NK.
    pub fn certify(&self, question: &Digest) -> Attest {
        let name = self.nk_public.name();
        let qualified_name = qualified_name_of_primary(self.nk_hierarchy, &name);
        self.attest(
            question,
            Attested::Certify {
                qualified_name,
                name: name.as_bytes().to_vec(),
            },
        )
    }

    fn attest(&self, question: &Digest, attested: Attested) -> Attest {
        Attest {
            qualified_signer: qualified_name_of_primary(self.ak_hierarchy, &self.ak_public.name()),
            extra_data: question.as_bytes().to_vec(),
            clock_info: self.clock,
            firmware_version: self.tpm_firmware,
            attested,
        }
    }

    /// Signs an attestation with the AK.
    pub fn sign(&self, attest: &Attest) -> Signed {
        self.sign_bytes(&attest.to_bytes())
    }

    /// Signs any bytes with the AK, as only a key that is not restricted would.
    pub fn sign_bytes(&self, bytes: &[u8]) -> Signed {
        let signature: Signature = self.ak.sign(bytes);
        Signed {
            attest: config_protocol::wire::Blob::new(bytes)
                .expect("an attestation within the limit"),
            signature: config_protocol::wire::Blob::new(
                EcdsaSignature::from(&signature).to_bytes(),
            )
            .expect("a signature"),
        }
    }

    /// TPM2_ActivateCredential: S, if the credential is for this EK and this AK.
    pub fn activate(&self, credential: &Credential) -> Option<Vec<u8>> {
        let encrypted = credential.encrypted_secret.as_bytes();
        let hash = self.ek_public.name_alg;
        let seed = match &self.ek {
            EkSecret::Rsa(key) => key
                .decrypt(
                    rsa::Oaep::new_with_label::<sha2::Sha256, _>("IDENTITY\0"),
                    encrypted,
                )
                .ok()?,
            EkSecret::P256(key) => {
                let (point, x) = parse_point(encrypted, 32)?;
                let public = p256::PublicKey::from_sec1_bytes(&point).ok()?;
                let shared =
                    p256::ecdh::diffie_hellman(key.to_nonzero_scalar(), public.as_affine());
                let own = key.public_key().to_encoded_point(false);
                kdfe(hash, shared.raw_secret_bytes(), "IDENTITY", &x, own.x()?).to_vec()
            }
            EkSecret::P384(key) => {
                let (point, x) = parse_point(encrypted, 48)?;
                let public = p384::PublicKey::from_sec1_bytes(&point).ok()?;
                let shared =
                    p384::ecdh::diffie_hellman(key.to_nonzero_scalar(), public.as_affine());
                let own = key.public_key().to_encoded_point(false);
                kdfe(hash, shared.raw_secret_bytes(), "IDENTITY", &x, own.x()?).to_vec()
            }
        };
        unwrap(
            hash,
            &seed,
            self.ak_public.name().as_bytes(),
            credential.id_object.as_bytes(),
        )
    }
}

/// TPMS_ECC_POINT → SEC 1 point and its x.
fn parse_point(bytes: &[u8], size: usize) -> Option<(Vec<u8>, Vec<u8>)> {
    let (x, rest) = sized(bytes)?;
    let (y, rest) = sized(rest)?;
    if x.len() != size || y.len() != size || !rest.is_empty() {
        return None;
    }
    Some(([&[4], x, y].concat(), x.to_vec()))
}

fn sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (size, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*size)))
}

/// Opens a TPMS_ID_OBJECT.
fn unwrap(hash: HashAlg, seed: &[u8], name: &[u8], id_object: &[u8]) -> Option<Vec<u8>> {
    use cfb_mode::cipher::{AsyncStreamCipher as _, KeyIvInit as _};
    let (mac, identity) = sized(id_object)?;
    let key = kdfa(hash, seed, "INTEGRITY", &[], &[], hash.size());
    if hmac(hash, &key, &[identity, name]) != mac {
        return None;
    }
    let mut identity = identity.to_vec();
    let iv = [0; 16];
    if hash == HashAlg::Sha384 {
        let key = kdfa(hash, seed, "STORAGE", name, &[], 32);
        cfb_mode::Decryptor::<aes::Aes256>::new_from_slices(&key, &iv)
            .ok()?
            .decrypt(&mut identity);
    } else {
        let key = kdfa(hash, seed, "STORAGE", name, &[], 16);
        cfb_mode::Decryptor::<aes::Aes128>::new_from_slices(&key, &iv)
            .ok()?
            .decrypt(&mut identity);
    }
    sized(&identity).map(|(secret, _)| secret.to_vec())
}
