//! Step 2: the check of a hello, before any answer: the Machine, the form of the keys, whether it
//! may join.

use super::Reference;
use super::identity::{self, EkOwner};
use super::keys::{CheckedEndorsementKey, CheckedKeys, ParsedKeys, checked_keys, endorsement_key};
use crate::inventory::{current_status, machine_id, state};
use crate::policy::CheckedRule;
use crate::verdict::{Checks, MachineId, Refusal, Stop, Verdict};
use config_kube::machine::{Counters, EkSelector};
use config_kube::pratique::Check;
use config_kube::{Machine, MachineState};
use config_protocol::wire::{Claims, Hello, Keys, PROTOCOL};
use config_protocol::{Channel, Code, Names, Purpose};
use config_tpm::Digest;

/// A hello whose keys have the right form, for a Machine that may join. Holding one proves nothing
/// about the caller: the public areas and the EK certificate are no secrets.
#[derive(Debug)]
pub struct CheckedHello {
    pub(super) purpose: Purpose,
    pub(super) subject: Subject,
    pub(super) ek_hash: Digest,
    /// Whether the inventory knows the EK, under whatever name: the claimed name must not choose
    /// the share of the sessions, or a caller with public keys alone could tell by a full share
    /// whether it is right.
    pub(super) listed: bool,
    pub(super) parsed: ParsedKeys,
    pub(super) ek_certificate: Option<Vec<u8>>,
    /// The issuer of the EK's certificate, if it is valid.
    pub(super) issuer: Option<String>,
    pub(super) names: Names,
    pub(super) csr_hash: Digest,
    pub(super) claims: Claims,
    pub(super) channel: Channel,
    pub(super) at_hello: Box<AtHello>,
    pub(super) checks: Vec<Check>,
}

/// The reference values at the hello. Step 4 compares them with those of its own time.
#[derive(Debug)]
pub(super) struct AtHello {
    pub(super) rule: CheckedRule,
    /// The Machine's `spec.ek`.
    pub(super) ek: EkSelector,
    /// The TPM's counters that were recorded last.
    pub(super) counters: Option<Counters>,
}

impl AtHello {
    fn of(machine: &Machine, reference: &Reference<'_>) -> Box<Self> {
        let counters = current_status(machine).and_then(|status| status.counters);
        Box::new(Self {
            rule: reference.rule.clone(),
            ek: machine.spec.ek.clone(),
            counters,
        })
    }
}

/// The Machine that a hello is for.
#[derive(Debug, Clone)]
pub(crate) enum Subject {
    /// A Machine of the inventory.
    Known(MachineId),
    /// A stranger, with the Machine that would be created for it.
    Stranger(Box<Machine>),
    /// It may not join, for this reason. The refusal is held back until step 4, when the caller has
    /// proved that it has the EK: a caller with only public keys and a certificate must not learn
    /// names from the answer to a hello.
    Refused(Code),
}

/// What the check of a hello found.
struct HelloFindings {
    keys: CheckedKeys,
    subject: Subject,
    /// The issuer of the EK's certificate, if it is valid.
    issuer: Option<String>,
    at_hello: Box<AtHello>,
}

/// The client certificate of a renewal. The caller must take it from a TLS handshake that verified
/// it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenewingPeer {
    /// The Machine's uid in the certificate's extension.
    pub machine_uid: String,
    /// The node's name in the common name.
    pub node_name: String,
    /// The certificate's SubjectPublicKeyInfo, DER.
    pub spki: Vec<u8>,
}

/// Step 2 of a join: checks a hello at `now` (Unix seconds).
///
/// # Errors
/// An anonymous refusal: nothing is proved yet.
pub fn check_hello(
    hello: &Hello,
    reference: &Reference<'_>,
    channel: &Channel,
    now: u64,
) -> Result<CheckedHello, Box<Refusal>> {
    let mut draft = Draft::new(Purpose::Join, &hello.claims, hello.csr_hash, channel);
    match draft.join(hello, reference, now) {
        Ok(identified) => Ok(draft.finish(identified)),
        Err(stop) => Err(draft.refuse(stop)),
    }
}

/// Step 2 of a renewal over mTLS: checks a hello against the client certificate as well.
///
/// # Errors
/// An anonymous refusal: nothing is proved yet.
pub fn check_renewal(
    hello: &Hello,
    peer: &RenewingPeer,
    reference: &Reference<'_>,
    channel: &Channel,
    now: u64,
) -> Result<CheckedHello, Box<Refusal>> {
    let mut draft = Draft::new(Purpose::Renew, &hello.claims, hello.csr_hash, channel);
    match draft.renew(hello, peer, reference, now) {
        Ok(identified) => Ok(draft.finish(identified)),
        Err(stop) => Err(draft.refuse(stop)),
    }
}

/// Step 2 at the bootstrap, by the admin: the same checks, with the root certificate in place of
/// the requests.
pub(crate) fn admit_bootstrap(
    keys: &Keys,
    claims: &Claims,
    root_hash: Digest,
    reference: &Reference<'_>,
    channel: &Channel,
    now: u64,
) -> Result<CheckedHello, Box<Refusal>> {
    let mut draft = Draft::new(Purpose::Bootstrap, claims, root_hash, channel);
    match draft.identify(keys, reference, now) {
        Ok(identified) => Ok(draft.finish(identified)),
        Err(stop) => Err(draft.refuse(stop)),
    }
}

/// An anonymous refusal, named by the first check that failed.
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

/// A hello while it is checked, with the checks so far.
struct Draft<'a> {
    purpose: Purpose,
    claims: &'a Claims,
    csr_hash: Digest,
    channel: &'a Channel,
    ek_hash: Option<Digest>,
    listed: bool,
    checks: Checks,
}

/// Checks that the keys are those recorded at the Machine's last join.
pub(super) fn recorded(
    machine: &Machine,
    ek_hash: &Digest,
    names: &Names,
    checks: &mut Checks,
) -> Result<(), Stop> {
    // What is not recorded is an empty text, which equals no hash and no Name.
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

/// Checks that the Machine is in a state in which it may renew.
pub(super) fn may_renew(machine: &Machine, checks: &mut Checks) -> Result<(), Stop> {
    // Suspect is not enough: its certificate runs out, unless the machine proves everything in a
    // new join.
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
            listed: false,
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

    fn finish(self, identified: HelloFindings) -> CheckedHello {
        let HelloFindings {
            keys,
            subject,
            issuer,
            at_hello,
        } = identified;
        CheckedHello {
            purpose: self.purpose,
            subject,
            ek_hash: keys.ek_hash,
            listed: self.listed,
            parsed: keys.parsed,
            ek_certificate: keys.ek_certificate,
            issuer,
            names: keys.names,
            csr_hash: self.csr_hash,
            claims: self.claims.clone(),
            channel: self.channel.clone(),
            at_hello,
            checks: self.checks.into_list(),
        }
    }

    fn join(
        &mut self,
        hello: &Hello,
        reference: &Reference<'_>,
        now: u64,
    ) -> Result<HelloFindings, Stop> {
        // First: a prover of another version has to learn that, and not that some field is wrong.
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

    /// Checks in this order: size, inventory, key attributes, EK hash and certificate chain. (The
    /// service has checked body size and rate before.) Where the inventory's result would reveal
    /// names it is held back ([`Subject::Refused`]), and the form of the keys is checked before it.
    fn identify(
        &mut self,
        keys: &Keys,
        reference: &Reference<'_>,
        now: u64,
    ) -> Result<HelloFindings, Stop> {
        // Before anything that could be recorded or that costs work.
        self.limits()?;
        let CheckedEndorsementKey {
            public: ek,
            spki,
            hash: ek_hash,
        } = self.endorsement_key(keys, reference)?;
        let certificate = keys
            .ek_certificate
            .as_ref()
            .map(config_protocol::wire::Blob::as_bytes);
        // Not at the bootstrap: there the admin runs the verifier, and has to see the reason.
        let held_back = self.purpose == Purpose::Join
            && identity::is_held_back(&ek_hash, &spki, certificate, reference, now);
        let mut checks = Checks::default();
        let found = self.admissible_owner(&ek_hash, reference, now, &mut checks);
        // The first failure in the list names the refusal. One that is held back stands behind
        // those of the keys, which the caller may learn.
        if found.is_ok() || !held_back {
            self.checks.extend(std::mem::take(&mut checks));
        }
        let found = match found {
            Err(stop) if !held_back => return Err(stop),
            found => found,
        };
        let keys = checked_keys(keys, ek, ek_hash, &mut self.checks)?;
        let outcome = found.and_then(|found| {
            let issuer = identity::endorsement(
                found.machine(),
                &ek_hash,
                &spki,
                certificate,
                reference,
                now,
                &mut checks,
            )?;
            let at_hello = AtHello::of(found.machine(), reference);
            Ok((found.subject(), issuer, at_hello))
        });
        self.checks.extend(checks);
        let (subject, issuer, at_hello) = match outcome {
            Ok(found) => found,
            Err(Stop(code)) if held_back => {
                // Step 4 compares nothing with these values: it ends with the refusal.
                let unused = AtHello::of(&Machine::default(), reference);
                (Subject::Refused(code), None, unused)
            }
            Err(stop) => return Err(stop),
        };
        Ok(HelloFindings {
            keys,
            subject,
            issuer,
            at_hello,
        })
    }

    /// Checks the form of the endorsement key, and notes its hash and whether the inventory knows
    /// it. This proves nothing of who has the key.
    fn endorsement_key(
        &mut self,
        keys: &Keys,
        reference: &Reference<'_>,
    ) -> Result<CheckedEndorsementKey, Stop> {
        let ek = endorsement_key(keys, &mut self.checks)?;
        self.ek_hash = Some(ek.hash);
        self.listed = reference.inventory.has_ek(&ek.hash);
        Ok(ek)
    }

    /// The owner of an endorsement key, by the inventory and the claims, if it may join. This
    /// proves that the reference values allow such a machine, and not that the caller is the one.
    fn admissible_owner<'r>(
        &self,
        ek_hash: &Digest,
        reference: &Reference<'r>,
        now: u64,
        checks: &mut Checks,
    ) -> Result<EkOwner<'r>, Stop> {
        let found = identity::find(ek_hash, self.claims, reference, checks)?;
        let machine = found.machine();
        identity::admissible(machine, ek_hash, self.claims, reference, now, checks)?;
        Ok(found)
    }

    fn renew(
        &mut self,
        hello: &Hello,
        peer: &RenewingPeer,
        reference: &Reference<'_>,
        now: u64,
    ) -> Result<HelloFindings, Stop> {
        self.protocol(&hello.protocol)?;
        self.limits()?;
        let CheckedEndorsementKey {
            public: ek,
            spki: ek_spki,
            hash: ek_hash,
        } = self.endorsement_key(&hello.keys, reference)?;
        // The Machine is the certificate's; the EK chooses nothing here. The admin's entry must
        // still name the EK: taking it out of `spec.ek` ends the renewals.
        let machine = self.renewing_machine(peer, reference)?;
        identity::spec_accepts(machine, &ek_hash, reference, &mut self.checks)?;
        identity::admissible(
            machine,
            &ek_hash,
            self.claims,
            reference,
            now,
            &mut self.checks,
        )?;
        may_renew(machine, &mut self.checks)?;
        let keys = checked_keys(&hello.keys, ek, ek_hash, &mut self.checks)?;
        // The NK's hierarchy has a new seed after each reset of the TPM: other keys than the
        // recorded ones mean another boot or another TPM, and need a join.
        self.recorded_keys(machine, &keys, peer)?;
        let certificate = keys.ek_certificate.as_deref();
        let issuer = identity::endorsement(
            machine,
            &ek_hash,
            &ek_spki,
            certificate,
            reference,
            now,
            &mut self.checks,
        )?;
        Ok(HelloFindings {
            keys,
            subject: Subject::Known(machine_id(machine)),
            issuer,
            at_hello: AtHello::of(machine, reference),
        })
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
        // By uid, too: the certificate of a deleted Machine is not one of a new Machine with its
        // name.
        let machine = reference
            .inventory
            .of_node(&peer.node_name)
            .into_iter()
            .find(|machine| machine.metadata.uid.as_deref() == Some(peer.machine_uid.as_str()));
        let found = format!("{} (uid {})", peer.node_name, peer.machine_uid);
        let wanted = "the certificate's Machine in the inventory";
        // A certificate without a uid must not fit a Machine without one.
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
        keys: &CheckedKeys,
        peer: &RenewingPeer,
    ) -> Result<(), Stop> {
        recorded(machine, &keys.ek_hash, &keys.names, &mut self.checks)?;
        // The TLS client and the NK that step 4 certifies are one key: the connection is the
        // node's.
        let same = keys.parsed.nk_spki == peer.spki;
        let found = if same { "the node key" } else { "another key" };
        self.checks.must(
            "certificate key",
            Code::RenewalIdentity,
            same,
            "the node key",
            found,
        )
    }
}
