//! Between challenge and evidence: what the verifier holds of a caller.

use super::hello::{Admitted, Subject};
use super::refusal;
use crate::code::Code;
use crate::digest::Digest;
use crate::pcr::QUOTE_PCRS;
use crate::policy::CheckedRule;
use crate::question::{Names, Purpose, mac, question};
use crate::sessions::{HalfOpen, Opening};
use crate::tpm::{Entropy, Public, make_credential};
use crate::verdict::{Checks, Refusal};
use crate::wire::{Challenge, Claims, SESSION_SECONDS, SessionId, Transcript};
use config_kube::Machine;
use config_kube::machine::Counters;
use zeroize::Zeroizing;

/// An admitted caller that was given a challenge, with what only the EK's TPM can learn.
#[derive(Debug)]
pub struct Pending {
    admitted: Admitted,
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

impl Opening for Admitted {
    type Pending = Pending;
    type Challenge = Challenge;

    fn purpose(&self) -> Purpose {
        self.purpose
    }

    fn party(&self) -> Digest {
        self.ek_hash
    }

    fn is_listed(&self) -> bool {
        let text = self.ek_hash.to_text();
        matches!(self.subject, Subject::Known(_)) && self.then.ek.hashes.contains(&text)
    }

    /// Errors if nothing can be encrypted to the EK.
    fn challenge(self, rng: &mut impl Entropy) -> Result<(Pending, Challenge), Box<Refusal>> {
        let mut session = SessionId([0; 16]);
        let mut nonce = Digest::ZERO;
        let mut secret = Zeroizing::new([0; 32]);
        rng.fill_bytes(&mut session.0);
        rng.fill_bytes(&mut nonce.0);
        rng.fill_bytes(secret.as_mut());
        let credential = match make_credential(&self.parsed.ek, &self.names.ak, &secret, rng) {
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
                admitted: self,
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
        self.admitted.ek_hash
    }
}

impl Pending {
    /// What exchanges of one machine have in common: its uid or, where the inventory does not have it, its EK.
    pub fn turn(&self) -> String {
        match &self.admitted.subject {
            Subject::Known(id) => id.uid.clone(),
            Subject::Stranger(_) | Subject::Refused(_) => self.admitted.ek_hash.to_text(),
        }
    }

    pub(super) fn subject(&self) -> &Subject {
        &self.admitted.subject
    }

    pub(super) fn purpose(&self) -> Purpose {
        self.admitted.purpose
    }

    /// The EK's SubjectPublicKeyInfo, and the certificate that was sent for it.
    pub(super) fn endorsement(&self) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        Some((
            self.admitted.parsed.ek.spki().ok()?,
            self.admitted.ek_certificate.clone(),
        ))
    }

    /// Whether the hello was looked at under this rule, and this word of the Machine on its keys.
    pub(super) fn seen_under(&self, rule: &CheckedRule, machine: &Machine) -> bool {
        self.admitted.then.rule == *rule && self.admitted.then.ek == machine.spec.ek
    }

    /// The TPM's counters that were known at the hello.
    pub(super) fn counters(&self) -> Option<Counters> {
        self.admitted.then.counters
    }

    /// SHA-256 of the EK's SubjectPublicKeyInfo.
    pub fn ek_hash(&self) -> Digest {
        self.admitted.ek_hash
    }

    pub(super) fn names(&self) -> &Names {
        &self.admitted.names
    }

    pub(super) fn ak(&self) -> &p256::PublicKey {
        &self.admitted.parsed.ak
    }

    pub(super) fn nk(&self) -> &Public {
        &self.admitted.parsed.nk
    }

    pub(super) fn nk_spki(&self) -> &[u8] {
        &self.admitted.parsed.nk_spki
    }

    pub(super) fn csr_hash(&self) -> Digest {
        self.admitted.csr_hash
    }

    pub(crate) fn claims(&self) -> &Claims {
        &self.admitted.claims
    }

    /// The issuer of the EK's certificate, as it was looked at with the hello.
    pub(super) fn issuer(&self) -> Option<&str> {
        self.admitted.issuer.as_deref()
    }

    /// What was looked at with the hello. What it found against the caller and kept back does not name what fails before the
    /// caller has proved that it has the EK.
    pub(super) fn resumed(&self, enforces: bool) -> Checks {
        let waits = matches!(self.admitted.subject, Subject::Refused(_));
        Checks::resume(self.admitted.checks.clone(), enforces && !waits)
    }

    /// What an honest prover put into Q.
    pub(super) fn transcript(&self) -> Transcript {
        Transcript {
            nonce: self.nonce,
            csr_hash: self.admitted.csr_hash,
            claims_hash: self.admitted.claims.hash(),
            server_spki: self.admitted.channel.server_spki,
            exporter: self.admitted.channel.exporter,
        }
    }

    pub(super) fn question(&self) -> Digest {
        question(
            self.admitted.purpose,
            &self.session,
            &self.admitted.names,
            &self.transcript(),
        )
    }

    pub(super) fn mac(&self, question: &Digest) -> Digest {
        mac(self.secret.0.as_ref(), question)
    }
}
