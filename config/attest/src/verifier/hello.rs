//! Phase 1: who calls, with which keys, before any answer.

use super::{Reference, identity};
use crate::code::Code;
use crate::digest::Digest;
use crate::inventory::{known, machine_id, state};
use crate::pcr::QUOTE_PCRS;
use crate::policy::CheckedRule;
use crate::question::{Channel, Names, Purpose, mac, question};
use crate::sessions::{HalfOpen, Opening};
use crate::tpm::{Attributes, Entropy, Public, make_credential, template};
use crate::verdict::{Checks, MachineId, Refusal, Stop, Verdict};
use crate::wire::{
    Challenge, Claims, Hello, Keys, PROTOCOL, SESSION_SECONDS, SessionId, Transcript,
};
use config_kube::machine::{Counters, EkSelector};
use config_kube::pratique::Check;
use config_kube::{Machine, MachineState};
use zeroize::Zeroizing;

/// A caller with keys of the right form for a Machine that may join. Proves nothing about who calls: the public areas and
/// the EK certificate are no secrets.
#[derive(Debug)]
pub struct Admitted {
    purpose: Purpose,
    subject: Subject,
    ek_hash: Digest,
    parsed: ParsedKeys,
    ek_certificate: Option<Vec<u8>>,
    /// Of the EK's certificate, where it is a good one.
    issuer: Option<String>,
    names: Names,
    csr_hash: Digest,
    claims: Claims,
    channel: Channel,
    then: Box<Then>,
    checks: Vec<Check>,
}

/// What held when a caller was looked at, which may be otherwise when it answers.
#[derive(Debug)]
struct Then {
    rule: CheckedRule,
    ek: EkSelector,
    counters: Option<Counters>,
}

impl Then {
    fn of(machine: &Machine, reference: &Reference<'_>) -> Box<Self> {
        let counters = known(machine).and_then(|status| status.counters);
        Box::new(Self {
            rule: reference.rule.clone(),
            ek: machine.spec.ek.clone(),
            counters,
        })
    }
}

/// Which machine a caller says that it is.
#[derive(Debug, Clone)]
pub(crate) enum Subject {
    /// One of the inventory.
    Known(MachineId),
    /// None that the inventory has; this is what it would become.
    Stranger(Box<Machine>),
    /// None that may join, for this reason. It hears so once it has proved that it has the EK: who only has public keys and a
    /// certificate learns nothing by the answer to a hello.
    Refused(Code),
}

/// A caller who was looked at: its keys, who it is, the issuer of its EK certificate, and what held then.
type Seen = (Keyed, Subject, Option<String>, Box<Then>);

#[derive(Debug)]
struct ParsedKeys {
    ek: Public,
    ak: p256::PublicKey,
    nk: Public,
    nk_spki: Vec<u8>,
}

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

/// The certificate with which a renewal comes, as the TLS layer verified it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenewingPeer {
    /// The Machine's uid in the certificate's extension.
    pub machine_uid: String,
    /// The node's name in the common name.
    pub node_name: String,
    /// The certificate's SubjectPublicKeyInfo, DER.
    pub spki: Vec<u8>,
}

/// Step 2 for a machine that joins.
pub fn check_hello(
    hello: &Hello,
    reference: &Reference<'_>,
    channel: &Channel,
    now: u64,
) -> Result<Admitted, Box<Refusal>> {
    let mut draft = Draft::new(Purpose::Join, &hello.claims, hello.csr_hash, channel);
    match draft.join(hello, reference, now) {
        Ok(seen) => Ok(draft.finish(seen)),
        Err(stop) => Err(draft.refuse(stop)),
    }
}

/// Step 2 for a node that renews over mTLS with the certificate that it has.
pub fn check_renewal(
    hello: &Hello,
    peer: &RenewingPeer,
    reference: &Reference<'_>,
    channel: &Channel,
    now: u64,
) -> Result<Admitted, Box<Refusal>> {
    let mut draft = Draft::new(Purpose::Renew, &hello.claims, hello.csr_hash, channel);
    match draft.renew(hello, peer, reference, now) {
        Ok(seen) => Ok(draft.finish(seen)),
        Err(stop) => Err(draft.refuse(stop)),
    }
}

/// Step 2 for the admin's look at the first master: the same checks, with the root in the place of the requests.
pub(crate) fn admit_bootstrap(
    keys: &Keys,
    claims: &Claims,
    root_hash: Digest,
    reference: &Reference<'_>,
    channel: &Channel,
    now: u64,
) -> Result<Admitted, Box<Refusal>> {
    let mut draft = Draft::new(Purpose::Bootstrap, claims, root_hash, channel);
    match draft.identify(keys, reference, now) {
        Ok(seen) => Ok(draft.finish(seen)),
        Err(stop) => Err(draft.refuse(stop)),
    }
}

/// An anonymous refusal.
pub(crate) fn refusal(
    stop: Stop,
    checks: Checks,
    ek_hash: Option<Digest>,
    claims: &Claims,
) -> Box<Refusal> {
    let code = checks.first_failure(stop);
    let verdict = Verdict {
        checks: checks.into_list(),
        ek_hash,
        claims: claims.clone(),
    };
    Box::new(Refusal::Anonymous { code, verdict })
}

struct Draft<'a> {
    purpose: Purpose,
    claims: &'a Claims,
    csr_hash: Digest,
    channel: &'a Channel,
    ek_hash: Option<Digest>,
    checks: Checks,
}

struct Keyed {
    ek_hash: Digest,
    parsed: ParsedKeys,
    ek_certificate: Option<Vec<u8>>,
    names: Names,
}

/// That keys are those recorded at the last whole exchange of a Machine.
pub(super) fn recorded(
    machine: &Machine,
    ek_hash: &Digest,
    names: &Names,
    checks: &mut Checks,
) -> Result<(), Stop> {
    let status = machine.status.clone().unwrap_or_default();
    let recorded = [
        (
            "recorded EK",
            status.bound_ek.unwrap_or_default(),
            ek_hash.to_text(),
        ),
        (
            "recorded AK",
            status.ak_name.unwrap_or_default(),
            names.ak.to_hex(),
        ),
        (
            "recorded NK",
            status.nk_name.unwrap_or_default(),
            names.nk.to_hex(),
        ),
    ];
    for (check, wanted, found) in recorded {
        checks.must(check, Code::RenewalKeys, wanted == found, wanted, found)?;
    }
    Ok(())
}

/// That a Machine is in a state in which it renews.
pub(super) fn may_renew(machine: &Machine, checks: &mut Checks) -> Result<(), Stop> {
    let trusted = state(machine) == MachineState::Trusted;
    checks.must(
        "state",
        Code::RenewalState,
        trusted,
        "Trusted",
        format!("{:?}", state(machine)),
    )
}

impl<'a> Draft<'a> {
    fn new(purpose: Purpose, claims: &'a Claims, csr_hash: Digest, channel: &'a Channel) -> Self {
        Self {
            purpose,
            claims,
            csr_hash,
            channel,
            ek_hash: None,
            checks: Checks::default(),
        }
    }

    fn refuse(self, stop: Stop) -> Box<Refusal> {
        // Claims over their limits are not recorded.
        let none = Claims::default();
        let claims = if self.claims.within_limits() {
            self.claims
        } else {
            &none
        };
        refusal(stop, self.checks, self.ek_hash, claims)
    }

    fn finish(self, (keyed, subject, issuer, then): Seen) -> Admitted {
        Admitted {
            purpose: self.purpose,
            subject,
            ek_hash: keyed.ek_hash,
            parsed: keyed.parsed,
            ek_certificate: keyed.ek_certificate,
            issuer,
            names: keyed.names,
            csr_hash: self.csr_hash,
            claims: self.claims.clone(),
            channel: self.channel.clone(),
            then,
            checks: self.checks.into_list(),
        }
    }

    fn join(&mut self, hello: &Hello, reference: &Reference<'_>, now: u64) -> Result<Seen, Stop> {
        self.protocol(&hello.protocol)?;
        self.identify(&hello.keys, reference, now)
    }

    fn protocol(&mut self, found: &str) -> Result<(), Stop> {
        self.checks.must(
            "protocol",
            Code::ProtocolVersion,
            found == PROTOCOL,
            PROTOCOL,
            found,
        )
    }

    /// In this order: size, inventory, key attributes, EK hash and chain. (The caller has done size of the body and rate.) What the
    /// inventory says against a caller that may learn names by it is kept back ([`Subject::Refused`]); the form of its keys is
    /// looked at first then.
    fn identify(&mut self, keys: &Keys, reference: &Reference<'_>, now: u64) -> Result<Seen, Stop> {
        self.limits()?;
        let (ek, spki, ek_hash) = self.endorsement_key(keys)?;
        let certificate = keys
            .ek_certificate
            .as_ref()
            .map(crate::wire::Blob::as_bytes);
        let waits = self.purpose == Purpose::Join
            && identity::kept_back(&ek_hash, &spki, certificate, reference, now);
        let mut said = Checks::default();
        let found = identity::find(&ek_hash, self.claims, reference, &mut said).and_then(|found| {
            identity::admissible(
                found.machine(),
                &ek_hash,
                self.claims,
                reference,
                now,
                &mut said,
            )?;
            Ok(found)
        });
        if found.is_ok() || !waits {
            self.checks.extend(std::mem::take(&mut said));
        }
        let found = match found {
            Err(stop) if !waits => return Err(stop),
            found => found,
        };
        let keyed = self.keys(keys, ek, ek_hash)?;
        let outcome = found.and_then(|found| {
            let issuer = identity::endorsement(
                found.machine(),
                &ek_hash,
                &spki,
                certificate,
                reference,
                now,
                &mut said,
            )?;
            Ok((
                Then::of(found.machine(), reference),
                found.subject(),
                issuer,
            ))
        });
        self.checks.extend(said);
        match outcome {
            Ok((then, subject, issuer)) => Ok((keyed, subject, issuer, then)),
            Err(Stop(code)) if waits => Ok((
                keyed,
                Subject::Refused(code),
                None,
                Then::of(&Machine::default(), reference),
            )),
            Err(stop) => Err(stop),
        }
    }

    fn renew(
        &mut self,
        hello: &Hello,
        peer: &RenewingPeer,
        reference: &Reference<'_>,
        now: u64,
    ) -> Result<Seen, Stop> {
        self.protocol(&hello.protocol)?;
        self.limits()?;
        let (ek, ek_spki, ek_hash) = self.endorsement_key(&hello.keys)?;
        let machine = self.renewing_machine(peer, reference)?;
        identity::holds(machine, &ek_hash, reference, &mut self.checks)?;
        identity::admissible(
            machine,
            &ek_hash,
            self.claims,
            reference,
            now,
            &mut self.checks,
        )?;
        may_renew(machine, &mut self.checks)?;
        let keyed = self.keys(&hello.keys, ek, ek_hash)?;
        self.recorded_keys(machine, &keyed, peer)?;
        let certificate = keyed.ek_certificate.as_deref();
        let issuer = identity::endorsement(
            machine,
            &ek_hash,
            &ek_spki,
            certificate,
            reference,
            now,
            &mut self.checks,
        )?;
        Ok((
            keyed,
            Subject::Known(machine_id(machine)),
            issuer,
            Then::of(machine, reference),
        ))
    }

    fn limits(&mut self) -> Result<(), Stop> {
        let good = self.claims.within_limits();
        let found = if good {
            "within"
        } else {
            "over the limits, or not printable"
        };
        self.checks
            .must("claims", Code::Malformed, good, "within the limits", found)
    }

    fn renewing_machine<'r>(
        &mut self,
        peer: &RenewingPeer,
        reference: &Reference<'r>,
    ) -> Result<&'r Machine, Stop> {
        let machine = reference
            .inventory
            .of_node(&peer.node_name)
            .into_iter()
            .find(|machine| machine.metadata.uid.as_deref() == Some(peer.machine_uid.as_str()));
        let found = format!("{} (uid {})", peer.node_name, peer.machine_uid);
        let wanted = "the certificate's Machine in the inventory";
        let Some(machine) = machine.filter(|_| !peer.machine_uid.is_empty()) else {
            return Err(self
                .checks
                .fail("certificate", Code::RenewalIdentity, wanted, found));
        };
        self.checks.pass("certificate", wanted, found);
        let claimed = &self.claims.name;
        let same = claimed.is_empty() || *claimed == peer.node_name;
        self.checks.must(
            "claimed name",
            Code::RenewalIdentity,
            same,
            &peer.node_name,
            claimed,
        )?;
        Ok(machine)
    }

    fn recorded_keys(
        &mut self,
        machine: &Machine,
        keyed: &Keyed,
        peer: &RenewingPeer,
    ) -> Result<(), Stop> {
        recorded(machine, &keyed.ek_hash, &keyed.names, &mut self.checks)?;
        let same = keyed.parsed.nk_spki == peer.spki;
        let found = if same { "the node key" } else { "another key" };
        self.checks.must(
            "certificate key",
            Code::RenewalIdentity,
            same,
            "the node key",
            found,
        )
    }

    fn endorsement_key(&mut self, keys: &Keys) -> Result<(Public, Vec<u8>, Digest), Stop> {
        const CHECK: &str = "EK template";
        const WANTED: &str = "RSA-2048, ECC P-256 or P-384 by a TCG template";
        let ek = Public::parse(keys.ek.as_bytes())
            .map_err(|fault| self.checks.fail(CHECK, Code::EkTemplate, WANTED, fault))?;
        self.checks.must(
            CHECK,
            Code::EkTemplate,
            template::is_ek(&ek),
            WANTED,
            describe(&ek),
        )?;
        let spki = ek
            .spki()
            .map_err(|fault| self.checks.fail(CHECK, Code::EkTemplate, WANTED, fault))?;
        let hash = Digest::of(&spki);
        self.ek_hash = Some(hash);
        Ok((ek, spki, hash))
    }

    fn keys(&mut self, keys: &Keys, ek: Public, ek_hash: Digest) -> Result<Keyed, Stop> {
        let ak = self.attestation_key(keys.ak.as_bytes())?;
        let nk = self.node_key(keys.nk.as_bytes())?;
        let names = Names {
            ek: ek.name(),
            ak: ak.name(),
            nk: nk.name(),
        };
        let on_curve = |fault| (fault, "a point on P-256");
        let ak = ak.p256().map_err(on_curve).map_err(|(fault, wanted)| {
            self.checks
                .fail("AK template", Code::AkTemplate, wanted, fault)
        })?;
        let nk_spki = nk.spki().map_err(on_curve).map_err(|(fault, wanted)| {
            self.checks
                .fail("NK template", Code::NkTemplate, wanted, fault)
        })?;
        let ek_certificate = keys
            .ek_certificate
            .as_ref()
            .map(|der| der.as_bytes().to_vec());
        Ok(Keyed {
            ek_hash,
            parsed: ParsedKeys {
                ek,
                ak,
                nk,
                nk_spki,
            },
            ek_certificate,
            names,
        })
    }

    fn attestation_key(&mut self, bytes: &[u8]) -> Result<Public, Stop> {
        const CHECK: &str = "AK template";
        let mut wanted = template::ak();
        let ak = Public::parse(bytes).map_err(|fault| {
            self.checks
                .fail(CHECK, Code::AkTemplate, describe(&wanted), fault)
        })?;
        wanted.attributes = wanted.attributes.no_da_of(ak.attributes);
        let code = if !ak.attributes.has(Attributes::SENSITIVE_DATA_ORIGIN) {
            Code::AkExternal
        } else if !ak
            .attributes
            .has(Attributes::FIXED_TPM.with(Attributes::FIXED_PARENT))
        {
            Code::AkDuplicable
        } else if !ak.attributes.has(Attributes::RESTRICTED) {
            Code::AkUnrestricted
        } else {
            Code::AkTemplate
        };
        self.checks.must(
            CHECK,
            code,
            template::matches(&ak, &wanted),
            describe(&wanted),
            describe(&ak),
        )?;
        Ok(ak)
    }

    fn node_key(&mut self, bytes: &[u8]) -> Result<Public, Stop> {
        const CHECK: &str = "NK template";
        let mut wanted = template::nk(&std::collections::BTreeMap::new());
        let nk = Public::parse(bytes).map_err(|fault| {
            self.checks
                .fail(CHECK, Code::NkTemplate, describe(&wanted), fault)
        })?;
        let code = if !nk.attributes.has(Attributes::SENSITIVE_DATA_ORIGIN) {
            Code::NkExternal
        } else if !nk
            .attributes
            .has(Attributes::FIXED_TPM.with(Attributes::FIXED_PARENT))
        {
            Code::NkDuplicable
        } else {
            Code::NkTemplate
        };
        wanted.attributes = wanted.attributes.no_da_of(nk.attributes);
        // The policy's value is checked against the quoted registers in phase 2; here it must only be one.
        if nk.auth_policy.len() == wanted.auth_policy.len() {
            wanted.auth_policy.clone_from(&nk.auth_policy);
        }
        self.checks.must(
            CHECK,
            code,
            template::matches(&nk, &wanted),
            describe(&wanted),
            describe(&nk),
        )?;
        Ok(nk)
    }
}

/// A key without its public value, for a person.
fn describe(key: &Public) -> String {
    use crate::tpm::Key;
    let kind = match &key.key {
        Key::Rsa {
            bits, symmetric, ..
        } => format!("RSA-{bits} {symmetric:?}"),
        Key::Ecc {
            curve,
            scheme,
            symmetric,
            ..
        } => format!("ECC {curve:?} {scheme:?} {symmetric:?}"),
    };
    format!(
        "{kind} {:?} {} policy {}",
        key.name_alg,
        key.attributes,
        hex::encode(&key.auth_policy)
    )
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
