//! Steps 2 and 4 for machines without a TPM (unproven/v1). They prove that the holder of one key
//! asks now, on this connection. Everything that a TPM would prove is recorded as not proven, and
//! only a rule with `insecure_no_tpm` accepts such machines.
//!
//! A Machine that lists endorsement keys, or was ever bound to one, is never admitted here, under
//! any rule: otherwise an attacker could avoid the TPM's checks by claiming that there is no TPM.

use super::claimant::{Basis, Claimant};
use super::hello::refusal;
use super::identity::{may_join, unclaimed};
use super::key_holder::KeyHolder;
use super::proof::{proven_of, same_exchange};
use super::requests::{RequestContext, check_requests};
use super::{Reference, RenewingPeer, Subject};
use crate::inventory::{current_status, machine_id, readmitted, state};
use crate::sessions::{HalfOpen, Opening};
use crate::verdict::{Checks, ProvenMachine, Refusal, Stop, Verdict};
use config_kube::pratique::Check;
use config_kube::{Decides, Machine, MachineSpec, MachineState};
use config_protocol::unproven::{Challenge, Evidence, Hello, PROTOCOL, question, signed};
use config_protocol::wire::{Claims, SESSION_SECONDS, SessionId, Transcript, csr_hash};
use config_protocol::{Channel, Code, Purpose, name};
use config_tpm::Digest;
use config_tpm::Entropy;

/// The only role that a machine without a TPM can have: a master keeps the cluster's keys in its
/// TPM.
const ROLE: &str = "worker";
/// OID of ECDSA with SHA-256.
const ECDSA_SHA256: &str = "1.2.840.10045.4.3.2";
/// What a TPM would prove and a machine without one cannot.
const NOT_PROVEN: [(&str, &str); 8] = [
    (
        "TPM",
        "which machine it is, by an endorsement key and its maker's certificate",
    ),
    ("node key in the TPM", "a key that cannot leave the machine"),
    ("boot registers", "a quote of what was booted"),
    ("event log", "events that replay to the quoted registers"),
    ("image", "a signed release"),
    ("Secure Boot", "on"),
    ("configuration", "measured before any network was up"),
    ("counters", "no snapshot was restored"),
];

/// A checked hello of a machine without a TPM. Holding one proves nothing about the caller.
#[derive(Debug)]
pub struct CheckedUnprovenHello {
    purpose: Purpose,
    subject: Subject,
    spki: Vec<u8>,
    csr_hash: Digest,
    claims: Claims,
    channel: Channel,
    checks: Vec<Check>,
}

/// A checked hello with its challenge, until the evidence comes.
#[derive(Debug)]
pub struct UnprovenPending {
    hello: CheckedUnprovenHello,
    session: SessionId,
    nonce: Digest,
}

/// Step 2 for a machine that joins.
///
/// # Errors
/// A refusal that names the first check that failed: form, protocol, Machine, what its rule admits.
pub fn check_unproven_hello(
    hello: &Hello,
    reference: &Reference<'_>,
    channel: &Channel,
    now: u64,
) -> Result<CheckedUnprovenHello, Box<Refusal>> {
    let mut checks = Checks::default();
    let subject = form(hello, reference, &mut checks)
        .and_then(|()| find(&hello.claims, reference, &mut checks))
        .and_then(|found| {
            admissible(&found, &hello.claims, reference, now, &mut checks).map(|()| found.subject())
        });
    conclude(Purpose::Join, hello, channel, checks, subject)
}

/// Step 2 for a node that renews over mTLS with the certificate that it has.
///
/// # Errors
/// A refusal that names the first check that failed: form, Machine, what its rule admits, or a
/// certificate that is not this Machine's.
pub fn check_unproven_renewal(
    hello: &Hello,
    peer: &RenewingPeer,
    reference: &Reference<'_>,
    channel: &Channel,
    now: u64,
) -> Result<CheckedUnprovenHello, Box<Refusal>> {
    let mut checks = Checks::default();
    let subject = form(hello, reference, &mut checks)
        .and_then(|()| find(&hello.claims, reference, &mut checks))
        .and_then(|found| {
            admissible(&found, &hello.claims, reference, now, &mut checks)?;
            renewing(&found, hello, peer, &mut checks)?;
            Ok(found.subject())
        });
    conclude(Purpose::Renew, hello, channel, checks, subject)
}

fn conclude(
    purpose: Purpose,
    hello: &Hello,
    channel: &Channel,
    checks: Checks,
    subject: Result<Subject, Stop>,
) -> Result<CheckedUnprovenHello, Box<Refusal>> {
    match subject {
        Ok(subject) => Ok(CheckedUnprovenHello {
            purpose,
            subject,
            spki: hello.key.as_bytes().to_vec(),
            csr_hash: hello.csr_hash,
            claims: hello.claims.clone(),
            channel: channel.clone(),
            checks: checks.into_list(),
        }),
        Err(stop) => {
            // Claims over their limits are not recorded: any caller can send them.
            let none = Claims::default();
            let claims = if hello.claims.within_limits() {
                &hello.claims
            } else {
                &none
            };
            Err(refusal(stop, checks, None, claims))
        }
    }
}

/// Protocol, limits, the rule, and the form of the key.
fn form(hello: &Hello, reference: &Reference<'_>, checks: &mut Checks) -> Result<(), Stop> {
    checks.must(
        "protocol",
        Code::ProtocolVersion,
        hello.protocol == PROTOCOL,
        PROTOCOL,
        &hello.protocol,
    )?;
    let good = hello.claims.within_limits();
    let found = if good {
        "within"
    } else {
        "over the limits, or not printable"
    };
    checks.must("claims", Code::Malformed, good, "within the limits", found)?;
    rule_admits(reference, checks)?;
    let spki = hello.key.as_bytes();
    let good = is_canonical_p256(spki);
    let found = if good {
        Digest::of(spki).to_text()
    } else {
        "another".to_owned()
    };
    checks.must(
        "node key",
        Code::UnprovenKey,
        good,
        "an uncompressed P-256 key, DER",
        found,
    )
}

/// Checks that the rule admits machines without a TPM.
fn rule_admits(reference: &Reference<'_>, checks: &mut Checks) -> Result<(), Stop> {
    let rule = reference.rule;
    let found = format!("rule `{}` does not say it", rule.name());
    let found = if rule.admits_without_tpm() {
        "true".to_owned()
    } else {
        found
    };
    checks.must(
        "insecure_no_tpm",
        Code::NoTpm,
        rule.admits_without_tpm(),
        "true, in the rule that decides",
        found,
    )
}

/// Accepts only the uncompressed encoding, so that one key has one hash.
fn is_canonical_p256(spki: &[u8]) -> bool {
    use p256::pkcs8::{DecodePublicKey as _, EncodePublicKey as _};
    let key = p256::PublicKey::from_public_key_der(spki);
    key.is_ok_and(|key| {
        key.to_public_key_der()
            .is_ok_and(|der| der.as_bytes() == spki)
    })
}

/// The Machine that the hello asks for.
enum ClaimedMachine<'a> {
    Known(&'a Machine),
    Stranger(Box<Machine>),
}

impl ClaimedMachine<'_> {
    fn machine(&self) -> &Machine {
        match self {
            ClaimedMachine::Known(machine) => machine,
            ClaimedMachine::Stranger(machine) => machine,
        }
    }

    fn subject(self) -> Subject {
        match self {
            ClaimedMachine::Known(machine) => Subject::Known(machine_id(machine)),
            ClaimedMachine::Stranger(machine) => Subject::Stranger(machine),
        }
    }
}

/// Finds the Machine by the claimed name; without a TPM there is nothing else to go by.
fn find<'a>(
    claims: &Claims,
    reference: &Reference<'a>,
    checks: &mut Checks,
) -> Result<ClaimedMachine<'a>, Stop> {
    let good = name::is_node_name(&claims.name);
    checks.must(
        "claimed name",
        Code::NameInvalid,
        good,
        "a DNS name in lower case",
        &claims.name,
    )?;
    // The first is enough: `may_join` refuses every Machine that shares its Node's name.
    if let Some(machine) = reference.inventory.of_node(&claims.name).first() {
        return Ok(ClaimedMachine::Known(machine));
    }
    unclaimed(&claims.name, reference.inventory, checks)?;
    let spec = MachineSpec {
        role: ROLE.to_owned(),
        insecure_no_tpm: true,
        ..MachineSpec::default()
    };
    Ok(ClaimedMachine::Stranger(Box::new(Machine::named(
        &claims.name,
        spec,
    ))))
}

/// Whether the Machine may join without a TPM at all.
fn admissible(
    found: &ClaimedMachine<'_>,
    claims: &Claims,
    reference: &Reference<'_>,
    now: u64,
    checks: &mut Checks,
) -> Result<(), Stop> {
    without_tpm(found.machine(), checks)?;
    may_join(found.machine(), claims, reference, now, checks)?;
    let role = found.machine().spec.role.as_str();
    checks.must(
        "role without a TPM",
        Code::RoleNotAdmitted,
        role == ROLE,
        ROLE,
        role,
    )
}

/// Checks that the inventory says that the Machine has no TPM, and that it never showed one.
fn without_tpm(machine: &Machine, checks: &mut Checks) -> Result<(), Stop> {
    let (spec, status) = (&machine.spec, machine.status.clone().unwrap_or_default());
    // Any trace of a TPM refuses: to claim that there is none must not be a way around its checks.
    let ek = &spec.ek;
    let found = if !spec.insecure_no_tpm {
        "insecureNoTpm is not set"
    } else if !(ek.hashes.is_empty() && ek.issuers.is_empty() && ek.seen.is_empty()) {
        "it has endorsement keys or issuers"
    } else if status.bound_ek.is_some() || status.ak_name.is_some() {
        "it was bound to an endorsement key"
    } else {
        "a Machine without a TPM"
    };
    let good = found == "a Machine without a TPM";
    checks.must(
        "kind of the Machine",
        Code::TpmExpected,
        good,
        "a Machine without a TPM",
        found,
    )
}

/// Only the machine that holds the Machine's current certificate and its key renews.
fn renewing(
    found: &ClaimedMachine<'_>,
    hello: &Hello,
    peer: &RenewingPeer,
    checks: &mut Checks,
) -> Result<(), Stop> {
    let machine = found.machine();
    // An empty UID names no Machine, so two empty ones are not the same.
    let same = machine.metadata.uid.as_deref() == Some(peer.machine_uid.as_str())
        && !peer.machine_uid.is_empty()
        && machine.node_name() == peer.node_name
        && peer.spki == hello.key.as_bytes();
    let shown = format!("{} (uid {})", peer.node_name, peer.machine_uid);
    checks.must(
        "certificate",
        Code::RenewalIdentity,
        same,
        "the Machine's certificate over this key",
        shown,
    )?;
    may_renew(machine, hello.key.as_bytes(), checks)
}

/// Checks that the Machine is in a state in which it may renew, with the recorded key.
fn may_renew(machine: &Machine, spki: &[u8], checks: &mut Checks) -> Result<(), Stop> {
    let found = state(machine);
    let good = found == MachineState::Unproven;
    checks.must(
        "state",
        Code::RenewalState,
        good,
        "Unproven",
        format!("{found:?}"),
    )?;
    let recorded = recorded_key(machine).unwrap_or_default();
    let shown = Digest::of(spki).to_text();
    checks.must(
        "recorded node key",
        Code::RenewalKeys,
        recorded == shown,
        recorded,
        &shown,
    )
}

/// The key of the Machine's last admission.
fn recorded_key(machine: &Machine) -> Option<&str> {
    current_status(machine)?.node_key.as_deref()
}

impl Opening for CheckedUnprovenHello {
    type Pending = UnprovenPending;
    type Challenge = Challenge;

    fn purpose(&self) -> Purpose {
        self.purpose
    }

    fn party(&self) -> Digest {
        Digest::of(&self.spki)
    }

    fn challenge(
        self,
        rng: &mut impl Entropy,
    ) -> Result<(UnprovenPending, Challenge), Box<Refusal>> {
        let mut session = SessionId([0; 16]);
        let mut nonce = Digest::ZERO;
        rng.fill_bytes(&mut session.0);
        rng.fill_bytes(&mut nonce.0);
        let challenge = Challenge {
            session,
            nonce,
            expires_in_seconds: SESSION_SECONDS,
        };
        Ok((
            UnprovenPending {
                hello: self,
                session,
                nonce,
            },
            challenge,
        ))
    }
}

impl HalfOpen for UnprovenPending {
    fn session(&self) -> &SessionId {
        &self.session
    }

    fn party(&self) -> Digest {
        Digest::of(&self.hello.spki)
    }
}

impl UnprovenPending {
    /// The key of the lock under which exchanges of one machine are concluded: the Machine's uid
    /// or, if the inventory does not have it, its name.
    pub fn lock_key(&self) -> String {
        match &self.hello.subject {
            Subject::Known(id) => id.uid.clone(),
            Subject::Stranger(_) | Subject::Refused(_) => self.hello.claims.name.clone(),
        }
    }

    fn transcript(&self) -> Transcript {
        let hello = &self.hello;
        Transcript::of(self.nonce, hello.csr_hash, &hello.claims, &hello.channel)
    }
}

/// Step 4: checks that the key answers this challenge on this connection, and asks for no more than
/// a node may have. No verdict can be enforced without a TPM, so a person decides, or no one.
///
/// # Errors
/// A refusal that names the first check that failed: the binding to challenge and connection, the
/// Machine as it is by now, the certificate requests.
pub fn check_unproven(
    pending: UnprovenPending,
    evidence: &Evidence,
    reference: &Reference<'_>,
    channel: &Channel,
    now: u64,
) -> Result<Claimant, Box<Refusal>> {
    let mut checks = Checks::resume(pending.hello.checks.clone(), true);
    let machine = match binding(&pending, evidence, channel, &mut checks)
        .and_then(|()| machine_of_step_2(&pending, reference, now, &mut checks))
    {
        Ok(machine) => machine,
        Err(stop) => return Err(refusal(stop, checks, None, &pending.hello.claims)),
    };
    let CheckedUnprovenHello {
        purpose,
        subject,
        spki,
        claims,
        ..
    } = pending.hello;
    let key = Digest::of(&spki);
    let asks = RequestContext {
        claims: &claims,
        derived: None,
        nk_spki: &spki,
        stranger: matches!(subject, Subject::Stranger(_)),
        client: evidence.client_csr.as_bytes(),
        serving: evidence.serving_csr.as_bytes(),
    };
    // Only the key of the last admission identifies the Machine: an attacker can make another key
    // and use the Machine's name.
    let own_key = recorded_key(&machine) == Some(key.to_text().as_str());
    let proven = if own_key { proven_of(&subject) } else { None };
    not_proven(&mut checks);
    let mut privileged = Checks::default();
    super::privileged::check(&claims, reference.rule, &mut privileged);
    checks.judged(privileged, false);
    match check_requests(&asks, &machine, reference, now, &mut checks) {
        Ok(requested) => {
            let keyed = KeyHolder {
                proven,
                machine,
                subject,
                purpose,
                key,
                claims,
                checks,
            };
            Ok(Claimant::new(
                Basis::KeyOnly(Box::new(keyed)),
                requested,
                reference.rule.clone(),
            ))
        }
        Err(stop) => Err(key_refused(proven, stop, checks, claims)),
    }
}

/// A refusal of a machine that holds its key. It counts against the Machine only if that is the key
/// that the Machine was admitted with.
fn key_refused(
    proven: Option<ProvenMachine>,
    stop: Stop,
    checks: Checks,
    claims: Claims,
) -> Box<Refusal> {
    let code = checks.first_failure(stop);
    let verdict = Verdict {
        checks: checks.into_list(),
        ek_hash: None,
        claims,
    };
    Box::new(match proven {
        Some(machine) => Refusal::Proven {
            machine,
            code,
            verdict,
        },
        None => Refusal::Anonymous { code, verdict },
    })
}

/// Checks that the evidence answers this challenge, on this connection, with the announced key.
fn binding(
    pending: &UnprovenPending,
    evidence: &Evidence,
    channel: &Channel,
    checks: &mut Checks,
) -> Result<(), Stop> {
    const WANTED: &str = "ECDSA P-256 with SHA-256 by the node key over label and Q";
    let wanted = pending.transcript();
    let found = csr_hash(
        evidence.client_csr.as_bytes(),
        evidence.serving_csr.as_bytes(),
    );
    checks.must(
        "requests",
        Code::CsrHash,
        wanted.csr_hash == found,
        wanted.csr_hash,
        found,
    )?;
    same_exchange(&wanted, &evidence.transcript, channel, checks)?;
    let spki = &pending.hello.spki;
    let question = question(
        pending.hello.purpose,
        &pending.session,
        &Digest::of(spki),
        &wanted,
    );
    // Last, as the one check here that costs more than a comparison.
    let good = config_certificates::x509::verifies(
        ECDSA_SHA256,
        spki,
        &signed(&question),
        evidence.signature.as_bytes(),
    );
    let found = if good { "verified" } else { "does not verify" };
    checks.must(
        "signature of the node key",
        Code::UnprovenSignature,
        good,
        WANTED,
        found,
    )
}

/// The Machine of step 2, if it may still join: rule, inventory and the Machine's state may have
/// changed since.
fn machine_of_step_2(
    pending: &UnprovenPending,
    reference: &Reference<'_>,
    now: u64,
    checks: &mut Checks,
) -> Result<Machine, Stop> {
    // The checks of step 2 stay in the verdict; failures of now are added.
    let mut again = Checks::default();
    let outcome = look_again(pending, reference, now, &mut again);
    if outcome.is_err() {
        checks.extend(again);
    }
    outcome
}

fn look_again(
    pending: &UnprovenPending,
    reference: &Reference<'_>,
    now: u64,
    checks: &mut Checks,
) -> Result<Machine, Stop> {
    let claims = &pending.hello.claims;
    rule_admits(reference, checks)?;
    let found = find(claims, reference, checks)?;
    let same = match (&pending.hello.subject, &found) {
        (Subject::Known(id), ClaimedMachine::Known(machine)) => machine_id(machine) == *id,
        (Subject::Stranger(_), ClaimedMachine::Stranger(_)) => true,
        (Subject::Known(_) | Subject::Refused(_), ClaimedMachine::Stranger(_))
        | (Subject::Stranger(_) | Subject::Refused(_), ClaimedMachine::Known(_)) => false,
    };
    let found_now = if same { "the same" } else { "gone, or another" };
    checks.must(
        "inventory",
        Code::MachineUnknown,
        same,
        "the Machine of step 2",
        found_now,
    )?;
    admissible(&found, claims, reference, now, checks)?;
    if pending.hello.purpose == Purpose::Renew {
        may_renew(found.machine(), &pending.hello.spki, checks)?;
    }
    not_in_use(
        found.machine(),
        &Digest::of(&pending.hello.spki),
        reference,
        now,
        checks,
    )?;
    Ok(found.machine().clone())
}

/// Under a rule by which no person decides, a new key does not replace one whose certificate is
/// still valid: after a reboot the machine waits until the certificate of its previous boot has
/// ended, or until an admin re-admits it. A person who decides sees the new key.
fn not_in_use(
    machine: &Machine,
    key: &Digest,
    reference: &Reference<'_>,
    now: u64,
    checks: &mut Checks,
) -> Result<(), Stop> {
    let status = machine.status.clone().unwrap_or_default();
    let (Some(recorded), Decides::Always) = (&status.node_key, reference.rule.decides()) else {
        return Ok(());
    };
    let until = status
        .certificate
        .map(|certificate| certificate.not_after)
        .unwrap_or_default();
    let end = until
        .parse::<jiff::Timestamp>()
        .ok()
        .and_then(|end| u64::try_from(end.as_second()).ok());
    // A certificate whose end cannot be read counts as one that never ends.
    let ended = end.is_some_and(|end| end < now) || until.is_empty();
    let good = *recorded == key.to_text() || ended || readmitted(machine, now);
    let wanted = format!("{recorded}, or after {until}, or until spec.readmitUntil");
    checks.must(
        "node key of the Machine",
        Code::NodeKeyInUse,
        good,
        wanted,
        key.to_text(),
    )
}

/// Records everything that a TPM would have shown as not proven. It does not affect the verdict.
fn not_proven(checks: &mut Checks) {
    let mut list = Checks::default();
    for (name, wanted) in NOT_PROVEN {
        list.test(
            name,
            Code::NotProven,
            false,
            wanted,
            "not proven: the machine has no TPM",
        );
    }
    checks.judged(list, false);
}
