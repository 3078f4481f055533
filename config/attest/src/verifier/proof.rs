//! Step 4: the check of the TPM's proof. First that it was made for this exchange (binding), then
//! what it attests.

use super::hello::refusal;
use super::{Pending, Reference, Subject, hello, identity, state};
use crate::inventory::machine_id;
use crate::verdict::{Checks, POSSESSION, ProvenMachine, Refusal, Stop, Verdict};
use config_kube::Machine;
use config_kube::machine::{ProvenConfig, ProvenImage};
use config_kube::policy::TpmVersion;
use config_protocol::wire::{Proof, Signed, Transcript};
use config_protocol::{Channel, Code, Purpose};
use config_tpm::Digest;
use config_tpm::pcr::{QUOTE_PCRS, Selection};
use config_tpm::{
    Attest, Attested, ClockInfo, ENDORSEMENT_HIERARCHY, EcdsaSignature, HashAlg, NULL_HIERARCHY,
    TpmError, qualified_name_of_primary, template,
};
use std::collections::BTreeMap;
use subtle::ConstantTimeEq as _;

/// Holding one proves: the TPM with this EK made the proof for this exchange, and the machine's
/// state was checked. The certificate requests are not checked yet.
#[derive(Debug)]
pub struct AttestedMachine {
    pub(super) proven: Option<ProvenMachine>,
    /// Whether the EK is the Machine's by its binding or its list, and not only by an issuer's
    /// certificate.
    pub(super) own: bool,
    pub(super) machine: Machine,
    pub(super) pending: Pending,
    /// The issuer of the EK's certificate, if the rule accepts it.
    pub(super) issuer: Option<String>,
    pub(super) state: state::AcceptedState,
    pub(super) checks: Checks,
}

impl AttestedMachine {
    /// The image that it booted, if the rule accepts it.
    pub fn image(&self) -> Option<&ProvenImage> {
        self.state.image.as_ref()
    }

    /// The configuration that it was started with.
    pub fn config(&self) -> Option<&ProvenConfig> {
        self.state.config.as_ref()
    }

    /// The TPM's counters.
    pub fn clock_info(&self) -> ClockInfo {
        self.state.clock
    }

    /// The learned registers.
    pub fn pinned_pcrs(&self) -> &BTreeMap<u8, Digest> {
        &self.state.pinned
    }

    /// SHA-256 of the EK's SubjectPublicKeyInfo.
    pub fn ek_hash(&self) -> Digest {
        self.pending.ek_hash()
    }

    /// Hex of the AK's Name.
    pub fn ak_name(&self) -> String {
        self.pending.names().ak.to_hex()
    }

    /// Hex of the NK's Name.
    pub fn nk_name(&self) -> String {
        self.pending.names().nk.to_hex()
    }

    /// The Machine whose state a refusal may change.
    pub(super) fn accused(&self) -> Option<ProvenMachine> {
        self.proven.clone().filter(|_| self.own)
    }

    /// The checks so far.
    pub(crate) fn verdict(&self) -> Verdict {
        let (ek_hash, claims) = (Some(self.pending.ek_hash()), self.pending.claims().clone());
        Verdict {
            checks: self.checks.list().to_vec(),
            ek_hash,
            claims,
        }
    }
}

/// A refusal of a machine that proved its identity. It changes no state of a machine that the
/// inventory does not have, nor of a Machine known only by its issuer and not yet bound: any TPM of
/// that manufacturer could come in its name.
pub(super) fn proven_refusal(
    proven: Option<ProvenMachine>,
    pending: &Pending,
    checks: Checks,
    stop: Stop,
) -> Box<Refusal> {
    let Some(proven) = proven else {
        return refusal(stop, checks, Some(pending.ek_hash()), pending.claims());
    };
    let code = checks.first_failure(stop);
    let verdict = Verdict {
        checks: checks.into_list(),
        ek_hash: Some(pending.ek_hash()),
        claims: pending.claims().clone(),
    };
    Box::new(Refusal::Proven {
        machine: proven,
        code,
        verdict,
    })
}

/// Checks a proof against its session and the reference values.
pub(crate) fn check_proof(
    pending: Pending,
    proof: &Proof,
    reference: &Reference<'_>,
    channel: &Channel,
    now: u64,
) -> Result<AttestedMachine, Box<Refusal>> {
    let mut checks = pending.resumed(reference.rule.enforces());
    let quote = match binding(&pending, proof, channel, &mut checks) {
        Ok(quote) => quote,
        Err(stop) => return Err(refused(&pending, stop, checks)),
    };
    // Only now may the caller learn why it was refused in step 2: it has the EK, so that names in
    // the answer are its own.
    if let Subject::Refused(code) = *pending.subject() {
        return Err(refused(&pending, Stop(code), checks));
    }
    let (machine, own) = match machine_of_step_2(&pending, reference, &mut checks) {
        Ok((machine, own)) => (machine.clone(), own),
        Err(stop) => return Err(refused(&pending, stop, checks)),
    };
    // From here on HMAC(S, Q) and the AK's signature over Q hold: what follows comes from the
    // Machine's own TPM.
    let proven = proven_of(pending.subject());
    let outcome =
        still_admissible(&pending, &machine, reference, now, &mut checks).and_then(|issuer| {
            quoted(&pending, &quote, proof, &mut checks)?;
            let evidence = state_evidence(&pending, &quote, proof, issuer.as_deref());
            let state = state::check(&evidence, &machine, reference, now, &mut checks)?;
            Ok((issuer, state))
        });
    match outcome {
        Ok((issuer, state)) => Ok(AttestedMachine {
            proven,
            own,
            machine,
            pending,
            issuer,
            state,
            checks,
        }),
        Err(stop) => Err(proven_refusal(
            proven.filter(|_| own),
            &pending,
            checks,
            stop,
        )),
    }
}

/// A refusal before the evidence is known to come from the Machine's own TPM.
fn refused(pending: &Pending, stop: Stop, checks: Checks) -> Box<Refusal> {
    refusal(stop, checks, Some(pending.ek_hash()), pending.claims())
}

/// The Machine that made the proof, once it is known to be the subject of step 2; `None` where
/// there is no Machine yet.
pub(super) fn proven_of(subject: &Subject) -> Option<ProvenMachine> {
    match subject {
        Subject::Known(id) => Some(ProvenMachine::new(id.clone())),
        Subject::Stranger(_) | Subject::Refused(_) => None,
    }
}

/// The Machine of step 2, if the EK still leads to it, and whether the EK is the Machine's by its
/// binding or list. Since step 2 the object may have been deleted (a new one under its name is
/// another machine), a second session or an admin may have given the EK to another Machine, and the
/// EK of a stranger may have got a Machine.
fn machine_of_step_2<'a>(
    pending: &'a Pending,
    reference: &Reference<'a>,
    checks: &mut Checks,
) -> Result<(&'a Machine, bool), Stop> {
    const CHECK: &str = "inventory";
    match pending.subject() {
        Subject::Known(id) => {
            let gone = |checks: &mut Checks| {
                checks.fail(CHECK, Code::MachineUnknown, "the Machine of step 2", "gone")
            };
            let machine = reference.inventory.find(id).ok_or_else(|| gone(checks))?;
            // These checks are in the verdict already, from step 2: only what failed since then is
            // added.
            let mut again = Checks::default();
            match identity::find(&pending.ek_hash(), pending.claims(), reference, &mut again) {
                Ok(found) => {
                    let (same, other) = (
                        machine_id(found.machine()) == *id,
                        found.machine().node_name(),
                    );
                    checks.must(
                        "Machine of the EK",
                        Code::EkBoundElsewhere,
                        same,
                        machine.node_name(),
                        other,
                    )?;
                    Ok((machine, found.is_own()))
                }
                Err(stop) => {
                    checks.extend(again);
                    Err(stop)
                }
            }
        }
        Subject::Stranger(machine) => {
            let unknown =
                !reference.rule.enforces() && !reference.inventory.has_ek(&pending.ek_hash());
            let found = if unknown {
                "not in the inventory"
            } else {
                "known by now, or no longer admissible"
            };
            checks.must(
                CHECK,
                Code::MachineUnknown,
                unknown,
                "an EK without a Machine, as in step 2",
                found,
            )?;
            identity::unclaimed(machine.node_name(), reference.inventory, checks)?;
            Ok((machine, false))
        }
        Subject::Refused(code) => Err(Stop(*code)),
    }
}

/// Checks that the evidence answers this challenge, on this connection, by the TPM of the EK.
fn binding(
    pending: &Pending,
    proof: &Proof,
    channel: &Channel,
    checks: &mut Checks,
) -> Result<Attest, Stop> {
    // Before any cryptography: what differs here needs no TPM to refuse, and its code names the
    // field.
    same_exchange(&pending.transcript(), &proof.transcript, channel, checks)?;
    let question = pending.question();
    // S went out encrypted to the EK and the AK's Name (MakeCredential), so that only the TPM which
    // holds both can know it. In constant time: a caller could otherwise find the MAC byte by byte,
    // without the TPM.
    let same = bool::from(pending.mac(&question).0.ct_eq(&proof.mac.0));
    let found = if same { "HMAC(S, Q)" } else { "another value" };
    checks.must(
        "credential",
        Code::CredentialNotActivated,
        same,
        "HMAC(S, Q)",
        found,
    )?;
    let quote = attestation("quote", &proof.quote, checks)?;
    // The AK signs the certification of the NK with the same Q: without this check that structure
    // would pass for a quote.
    let is_quote = matches!(quote.attested, Attested::Quote { .. });
    checks.must(
        "quote: type",
        Code::AttestType,
        is_quote,
        "quote",
        kind(&quote),
    )?;
    // Q covers nonce and session, so the TPM made this quote after the challenge, for this
    // exchange.
    extra_data("quote", Code::QuoteExtraData, &quote, &question, checks)?;
    signature("quote", Code::QuoteSignature, &proof.quote, pending, checks)?;
    Ok(quote)
}

/// Checks that a transcript is that of this exchange, on the connection on which it came. The
/// failure names the first field that differs.
pub(super) fn same_exchange(
    wanted: &Transcript,
    found: &Transcript,
    channel: &Channel,
    checks: &mut Checks,
) -> Result<(), Stop> {
    checks.must(
        "nonce",
        Code::NonceReplayed,
        wanted.nonce == found.nonce,
        wanted.nonce,
        found.nonce,
    )?;
    checks.must(
        "CSR hash",
        Code::CsrHash,
        wanted.csr_hash == found.csr_hash,
        wanted.csr_hash,
        found.csr_hash,
    )?;
    let same = wanted.claims_hash == found.claims_hash;
    checks.must(
        "claims hash",
        Code::ClaimsMismatch,
        same,
        wanted.claims_hash,
        found.claims_hash,
    )?;
    // All three: what the master expects, what the prover hashed into Q, and the connection on
    // which the evidence came. A relay has one connection to each side, with another key or
    // exporter.
    let same = wanted.server_spki == found.server_spki && wanted.server_spki == channel.server_spki;
    checks.must(
        "server key",
        Code::MasterKey,
        same,
        wanted.server_spki,
        found.server_spki,
    )?;
    let same = wanted.exporter == found.exporter && wanted.exporter == channel.exporter;
    checks.must(
        "TLS exporter",
        Code::Channel,
        same,
        wanted.exporter,
        found.exporter,
    )
}

/// Parses one TPMS_ATTEST. A restricted key signs data from outside the TPM only if they do not
/// begin with TPM_GENERATED_VALUE (TPM 2.0 Part 1, restricted signing keys): with that magic and
/// the AK's signature, the TPM itself made the structure.
fn attestation(name: &str, signed: &Signed, checks: &mut Checks) -> Result<Attest, Stop> {
    let check = format!("{name}: structure");
    match Attest::parse(signed.attest.as_bytes()) {
        Ok(attest) => {
            checks.pass(&check, "TPMS_ATTEST", "TPMS_ATTEST");
            Ok(attest)
        }
        Err(fault) => {
            let code = match fault {
                TpmError::Magic(_) => Code::AttestMagic,
                TpmError::Malformed(_) | TpmError::Unsupported(..) | TpmError::Key => {
                    Code::AttestMalformed
                }
            };
            Err(checks.fail(&check, code, "TPMS_ATTEST with TPM_GENERATED_VALUE", fault))
        }
    }
}

fn kind(attest: &Attest) -> String {
    match &attest.attested {
        Attested::Quote { .. } => "quote".to_owned(),
        Attested::Certify { .. } => "certification".to_owned(),
        Attested::Other { kind, .. } => format!("{kind:#06x}"),
    }
}

fn extra_data(
    name: &str,
    code: Code,
    attest: &Attest,
    question: &Digest,
    checks: &mut Checks,
) -> Result<(), Stop> {
    let same = attest.extra_data == question.as_bytes();
    checks.must(
        &format!("{name}: extra data"),
        code,
        same,
        question,
        hex::encode(&attest.extra_data),
    )
}

fn signature(
    name: &str,
    code: Code,
    signed: &Signed,
    pending: &Pending,
    checks: &mut Checks,
) -> Result<(), Stop> {
    const WANTED: &str = "ECDSA P-256 with SHA-256 by the attestation key";
    let check = format!("{name}: signature");
    let parsed = EcdsaSignature::parse(signed.signature.as_bytes()).map_err(|fault| {
        let code = match fault {
            TpmError::Unsupported(..) => Code::AttestAlgorithm,
            TpmError::Malformed(_) | TpmError::Magic(_) | TpmError::Key => Code::AttestMalformed,
        };
        checks.fail(&check, code, WANTED, fault)
    })?;
    // The signature says which hash it uses; the AK's template allows SHA-256 alone.
    let hash = parsed.hash;
    checks.must(
        &check,
        Code::AttestAlgorithm,
        hash == HashAlg::Sha256,
        WANTED,
        format!("{hash:?}"),
    )?;
    let good = parsed.verifies(pending.ak(), signed.attest.as_bytes());
    checks.must(
        &check,
        code,
        good,
        WANTED,
        if good { "verified" } else { "does not verify" },
    )
}

/// Checks that the machine may still join or renew, and returns the issuer of the EK's certificate.
/// Since step 2 the Machine may have been retired, bound, or found Suspect or Untrusted, its keys
/// may have been recorded again, and the rule or the Machine's `spec.ek` may have changed.
fn still_admissible(
    pending: &Pending,
    machine: &Machine,
    reference: &Reference<'_>,
    now: u64,
    checks: &mut Checks,
) -> Result<Option<String>, Stop> {
    let mut again = Checks::default();
    let mut look = || {
        identity::admissible(
            machine,
            &pending.ek_hash(),
            pending.claims(),
            reference,
            now,
            &mut again,
        )?;
        if pending.purpose() == Purpose::Renew {
            hello::may_renew(machine, &mut again)?;
            hello::recorded(machine, &pending.ek_hash(), pending.names(), &mut again)?;
        }
        // The EK's certificate was checked in step 2, under the rule and the issuers of that time.
        if pending.seen_under(reference.rule, machine) {
            return Ok(pending.issuer().map(str::to_owned));
        }
        let (spki, certificate) = pending.endorsement().ok_or(Stop(Code::EkTemplate))?;
        identity::endorsement(
            machine,
            &pending.ek_hash(),
            &spki,
            certificate.as_deref(),
            reference,
            now,
            &mut again,
        )
    };
    let outcome = look();
    if outcome.is_err() {
        checks.extend(again);
    }
    outcome
}

/// Checks that the quote is of the session's AK and of the values that were sent with it.
fn quoted(
    pending: &Pending,
    quote: &Attest,
    proof: &Proof,
    checks: &mut Checks,
) -> Result<(), Stop> {
    // A qualified Name hashes the Names of all parents up to the hierarchy: only a primary key of
    // the endorsement hierarchy has this one. In other hierarchies the TPM obfuscates resetCount.
    let wanted = qualified_name_of_primary(ENDORSEMENT_HIERARCHY, &pending.names().ak);
    let found = &quote.qualified_signer;
    checks.must(
        "AK hierarchy",
        Code::AkHierarchy,
        *found == wanted,
        hex::encode(&wanted),
        hex::encode(found),
    )?;
    registers(quote, &proof.pcrs, checks)?;
    certification(pending, proof, checks)
}

/// What was quoted, as the state's check takes it.
fn state_evidence<'a>(
    pending: &'a Pending,
    quote: &Attest,
    proof: &'a Proof,
    issuer: Option<&'a str>,
) -> state::StateEvidence<'a> {
    state::StateEvidence {
        purpose: pending.purpose(),
        counters_at_hello: pending.counters(),
        clock: quote.clock_info,
        issuer,
        tpm_firmware: TpmVersion(quote.firmware_version),
        pcrs: &proof.pcrs,
        log: proof.event_log.as_bytes(),
        config: proof.config_event.as_ref(),
        claims: pending.claims(),
    }
}

/// Checks that the values sent are exactly the quoted ones.
fn registers(quote: &Attest, pcrs: &BTreeMap<u8, Digest>, checks: &mut Checks) -> Result<(), Stop> {
    let Attested::Quote { selection, digest } = &quote.attested else {
        return Err(Stop(Code::AttestType));
    };
    let wanted = Selection::of(QUOTE_PCRS);
    let banks: Vec<String> = selection
        .iter()
        .map(|selection| format!("{:#06x}", selection.bank))
        .collect();
    let only_sha256 = selection
        .iter()
        .all(|selection| selection.bank == HashAlg::Sha256.id());
    checks.must(
        "quote: bank",
        Code::PcrBank,
        only_sha256,
        "0x000b (SHA-256)",
        banks.join(", "),
    )?;
    // A TPM leaves out of its answer the registers of a bank that it does not have, so what was
    // asked for proves nothing.
    let exact = *selection == [wanted.to_pcr_selection()];
    let found: Vec<String> = selection
        .iter()
        .map(|selection| hex::encode(&selection.select))
        .collect();
    let bits = hex::encode(wanted.to_pcr_selection().select);
    checks.must(
        "quote: registers",
        Code::PcrSelection,
        exact,
        bits,
        found.join(", "),
    )?;
    // The digest covers the selected registers alone: another value beside them would be unproven.
    let complete = pcrs.keys().copied().eq(QUOTE_PCRS.iter().copied());
    let sent: Vec<String> = pcrs.keys().map(ToString::to_string).collect();
    checks.must(
        "register values",
        Code::PcrDigest,
        complete,
        format!("{QUOTE_PCRS:?}"),
        sent.join(", "),
    )?;
    let sent = wanted.digest(pcrs);
    let quoted = hex::encode(digest);
    checks.must(
        "register digest",
        Code::PcrDigest,
        digest == sent.as_bytes(),
        quoted,
        sent,
    )
}

/// Checks that the node key is in the same TPM and bound to the quoted values.
fn certification(pending: &Pending, proof: &Proof, checks: &mut Checks) -> Result<(), Stop> {
    let certify = attestation("certification", &proof.certify, checks)?;
    let Attested::Certify {
        name,
        qualified_name,
    } = &certify.attested
    else {
        return Err(checks.fail(
            "certification: type",
            Code::AttestType,
            "certification",
            kind(&certify),
        ));
    };
    extra_data(
        "certification",
        Code::CertifyExtraData,
        &certify,
        &pending.question(),
        checks,
    )?;
    signature(
        "certification",
        Code::CertifySignature,
        &proof.certify,
        pending,
        checks,
    )?;
    let wanted = &pending.names().nk;
    let same = name == wanted.as_bytes();
    checks.must(
        "certified key",
        Code::CertifyOtherKey,
        same,
        wanted,
        hex::encode(name),
    )?;
    // The null hierarchy's seed is new at each reset of the TPM: the key dies with the boot that it
    // proves.
    let in_null = qualified_name_of_primary(NULL_HIERARCHY, wanted);
    let same = *qualified_name == in_null;
    checks.must(
        "NK hierarchy",
        Code::NkHierarchy,
        same,
        hex::encode(&in_null),
        hex::encode(qualified_name),
    )?;
    // The key signs only while the registers are as quoted: a measurement that comes later ends its
    // use.
    let wanted = template::nk_policy(&proof.pcrs);
    let found = &pending.nk().auth_policy;
    checks.must(
        POSSESSION,
        Code::NkAuthPolicy,
        found == wanted.as_bytes(),
        wanted,
        hex::encode(found),
    )
}
