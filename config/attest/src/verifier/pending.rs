//! A checked hello with its challenge, between step 2 and step 4.

use super::hello::{CheckedHello, Subject};
use super::refusal;
use crate::policy::CheckedRule;
use crate::sessions::{HalfOpen, Opening};
use crate::verdict::{Checks, Refusal};
use config_kube::Machine;
use config_kube::machine::Counters;
use config_protocol::question::{mac, question};
use config_protocol::wire::{
    Challenge, Claims, Credential, SESSION_SECONDS, SessionId, Transcript,
};
use config_protocol::{Code, Names, Purpose};
use config_tpm::Digest;
use config_tpm::pcr::QUOTE_PCRS;
use config_tpm::{Entropy, Public, TpmError, make_credential};
use zeroize::Zeroizing;

/// A checked hello with its challenge, and the secret that only the EK's TPM can decrypt.
#[derive(Debug)]
pub struct Pending {
    hello: CheckedHello,
    session: SessionId,
    nonce: Digest,
    secret: Secret,
}

struct Secret(Zeroizing<[u8; 32]>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

impl Opening for CheckedHello {
    type Pending = Pending;
    type Challenge = Challenge;

    fn purpose(&self) -> Purpose {
        self.purpose
    }

    fn party(&self) -> Digest {
        self.ek_hash
    }

    fn is_listed(&self) -> bool {
        self.listed
    }

    /// Makes session, nonce and the credential of the secret.
    ///
    /// # Errors
    /// `EK_TEMPLATE` where nothing can be encrypted to the EK.
    fn challenge(self, rng: &mut impl Entropy) -> Result<(Pending, Challenge), Box<Refusal>> {
        // The session's name is random, too: one that could be guessed would let others answer it.
        let mut session = SessionId([0; 16]);
        let mut nonce = Digest::ZERO;
        let mut secret = Zeroizing::new([0; 32]);
        rng.fill_bytes(&mut session.0);
        rng.fill_bytes(&mut nonce.0);
        rng.fill_bytes(secret.as_mut());
        // The credential holds S for the EK and names the AK: a TPM opens it only where both keys
        // are loaded (TPM 2.0 Part 1, credential protection).
        let made = make_credential(&self.parsed.ek, &self.names.ak, &secret, rng)
            .and_then(|made| Credential::try_from(made).map_err(|_too_long| TpmError::Key));
        let credential = match made {
            Ok(credential) => credential,
            Err(fault) => {
                let mut checks = Checks::resume(self.checks, false);
                let stop = checks.fail(
                    "credential",
                    Code::EkTemplate,
                    "a key that can be encrypted to",
                    fault,
                );
                return Err(refusal(stop, checks, Some(self.ek_hash), &self.claims));
            }
        };
        let challenge = Challenge {
            session,
            nonce,
            credential,
            pcrs: QUOTE_PCRS.to_vec(),
            expires_in_seconds: SESSION_SECONDS,
        };
        Ok((
            Pending {
                hello: self,
                session,
                nonce,
                secret: Secret(secret),
            },
            challenge,
        ))
    }
}

impl HalfOpen for Pending {
    fn session(&self) -> &SessionId {
        &self.session
    }

    fn party(&self) -> Digest {
        self.hello.ek_hash
    }
}

impl Pending {
    /// The key of the lock under which exchanges of one machine are concluded: the Machine's uid
    /// or, for a stranger, its EK.
    pub fn lock_key(&self) -> String {
        match &self.hello.subject {
            Subject::Known(id) => id.uid.clone(),
            Subject::Stranger(_) | Subject::Refused(_) => self.hello.ek_hash.to_text(),
        }
    }

    pub(super) fn subject(&self) -> &Subject {
        &self.hello.subject
    }

    pub(super) fn purpose(&self) -> Purpose {
        self.hello.purpose
    }

    /// The EK's SubjectPublicKeyInfo, and the certificate in the hello.
    pub(super) fn endorsement(&self) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        Some((
            self.hello.parsed.ek.spki().ok()?,
            self.hello.ek_certificate.clone(),
        ))
    }

    /// Whether the hello was checked under this rule and this `spec.ek` of the Machine.
    pub(super) fn seen_under(&self, rule: &CheckedRule, machine: &Machine) -> bool {
        self.hello.at_hello.rule == *rule && self.hello.at_hello.ek == machine.spec.ek
    }

    /// The recorded counters of the TPM at the time of the hello.
    pub(super) fn counters(&self) -> Option<Counters> {
        self.hello.at_hello.counters
    }

    /// SHA-256 of the EK's SubjectPublicKeyInfo.
    pub fn ek_hash(&self) -> Digest {
        self.hello.ek_hash
    }

    pub(super) fn names(&self) -> &Names {
        &self.hello.names
    }

    pub(super) fn ak(&self) -> &p256::PublicKey {
        &self.hello.parsed.ak
    }

    pub(super) fn nk(&self) -> &Public {
        &self.hello.parsed.nk
    }

    pub(super) fn nk_spki(&self) -> &[u8] {
        &self.hello.parsed.nk_spki
    }

    pub(super) fn csr_hash(&self) -> Digest {
        self.hello.csr_hash
    }

    pub(crate) fn claims(&self) -> &Claims {
        &self.hello.claims
    }

    /// The issuer of the EK's certificate, as checked in step 2.
    pub(super) fn issuer(&self) -> Option<&str> {
        self.hello.issuer.as_deref()
    }

    /// The checks of step 2, to be continued in step 4. A failure that was held back must not name
    /// the refusal before the caller has proved that it has the EK.
    pub(super) fn resumed(&self, enforces: bool) -> Checks {
        let held_back = matches!(self.hello.subject, Subject::Refused(_));
        Checks::resume(self.hello.checks.clone(), enforces && !held_back)
    }

    /// The values that the prover must hash into Q.
    pub(super) fn transcript(&self) -> Transcript {
        let hello = &self.hello;
        Transcript::of(self.nonce, hello.csr_hash, &hello.claims, &hello.channel)
    }

    pub(super) fn question(&self) -> Digest {
        question(
            self.hello.purpose,
            &self.session,
            &self.hello.names,
            &self.transcript(),
        )
    }

    pub(super) fn mac(&self, question: &Digest) -> Digest {
        mac(self.secret.0.as_ref(), question)
    }
}
