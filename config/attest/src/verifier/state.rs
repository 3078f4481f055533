//! Step 4: the check of what the machine booted: event log, image, Secure Boot, configuration,
//! firmware, counters.
//!
//! Assumption: the register values are those of the quote. All checks run and record their results,
//! so that a verdict shows every fault, not only the first.

use super::Reference;
use crate::bootstrap;
use crate::facts;
use crate::inventory::{current_status, readmitted};
use crate::policy::CheckedRule;
use crate::release::{KnownRelease, Manifest};
use crate::verdict::{Checks, Stop};
use config_kube::Machine;
use config_kube::machine::{Counters, ProvenConfig, ProvenImage};
use config_kube::policy::TpmVersion;
use config_protocol::wire::{Claims, ConfigEvent};
use config_protocol::{Code, Purpose};
use config_tpm::ClockInfo;
use config_tpm::Digest;
use config_tpm::boot::Boot;
use config_tpm::eventlog::{EventLog, EventLogError};
use config_tpm::pcr::{CONFIG_PCR, QUOTE_PCRS, extended};
use std::collections::{BTreeMap, BTreeSet};

/// The registers of the firmware's own code and of option ROMs. No release can predict them, so
/// they are pinned at the first admission.
pub(super) const PINNED_PCRS: [u8; 2] = [0, 2];
/// The register of Secure Boot.
const SECURE_BOOT_PCR: u8 = 7;
/// The registers that the release predicts. The first that differs names the refusal, so PCR 9
/// comes first: another command line in the kernel image changes all three.
const IMAGE_PCRS: [u8; 3] = [9, 4, 11];

/// The evidence about the machine's state, from the quote, the log and the claims.
pub(super) struct StateEvidence<'a> {
    pub(super) purpose: Purpose,
    /// The last counters that were recorded before the challenge.
    pub(super) counters_at_hello: Option<Counters>,
    pub(super) clock: ClockInfo,
    /// The issuer of the EK's certificate, if it is valid.
    pub(super) issuer: Option<&'a str>,
    /// The TPM's firmware version in the quote.
    pub(super) tpm_firmware: TpmVersion,
    pub(super) pcrs: &'a BTreeMap<u8, Digest>,
    pub(super) log: &'a [u8],
    pub(super) config: Option<&'a ConfigEvent>,
    pub(super) claims: &'a Claims,
}

/// The state that was accepted.
#[derive(Debug, Clone)]
pub(super) struct AcceptedState {
    /// `None` if the rule does not accept the image; then only a rule that does not enforce can
    /// admit the machine.
    pub(super) image: Option<ProvenImage>,
    pub(super) config: Option<ProvenConfig>,
    pub(super) clock: ClockInfo,
    pub(super) tpm_firmware: TpmVersion,
    pub(super) pinned: BTreeMap<u8, Digest>,
    /// All quoted registers.
    pub(super) registers: BTreeMap<u8, Digest>,
}

impl StateEvidence<'_> {
    fn pcr(&self, index: u8) -> Digest {
        self.pcrs.get(&index).copied().unwrap_or(Digest::ZERO)
    }
}

/// Checks the evidence. The counters stop an exchange under every rule; the other checks stop it
/// only under a rule that enforces its verdict, and are shown to the person who decides otherwise.
pub(super) fn check(
    evidence: &StateEvidence<'_>,
    machine: &Machine,
    reference: &Reference<'_>,
    now: u64,
    checks: &mut Checks,
) -> Result<AcceptedState, Stop> {
    counters(evidence, machine, checks);
    let mut judgement = Checks::default();
    let accepted = judge(evidence, machine, reference, now, &mut judgement);
    let enforces = reference.rule.enforces();
    checks.judged(judgement, enforces);
    checks.all_passed()?;
    // A missing image is a failed check already. This guards against a later change that forgets
    // one.
    if enforces && accepted.image.is_none() {
        return Err(Stop(Code::ImageUnknown));
    }
    Ok(accepted)
}

/// Checks what was booted against the releases and the rule.
fn judge(
    evidence: &StateEvidence<'_>,
    machine: &Machine,
    reference: &Reference<'_>,
    now: u64,
    checks: &mut Checks,
) -> AcceptedState {
    no_outside_arguments(evidence, checks);
    let config = config(evidence, machine, reference, checks);
    super::privileged::check(evidence.claims, reference.rule, checks);
    let log = replayed(evidence, checks);
    let secure_boot = log.as_ref().and_then(|log| facts::secure_boot(log, checks));
    if let Some(on) = secure_boot {
        secure_boot_if_required(on, reference.rule, checks);
    }
    // Only failures of the image count against the image; those above have codes of their own.
    let before = checks.failures();
    let found = booted(evidence, machine, secure_boot, reference);
    let others = if let Some(started) = found {
        image(
            started,
            evidence,
            machine,
            reference,
            log.as_ref(),
            now,
            checks,
        )
    } else {
        checks.fail(
            "image",
            Code::ImageUnknown,
            "an ImageRelease with these registers",
            registers(evidence),
        );
        None
    };
    let taken = checks.failures() == before;
    if let (Some(log), Some(Started { boot, .. })) = (&log, found) {
        // The log's events of a register that was learned are not those of the release: its value
        // as a whole was judged.
        let learned = others.map(|_| SECURE_BOOT_PCR);
        facts::consume(log, boot, learned, reference.rule.allow_unknown, checks);
    }
    let mut pinned = firmware(evidence, machine, now, checks);
    tpm_firmware(evidence, reference.rule, checks);
    pinned.extend(others.map(|value| (SECURE_BOOT_PCR, value)));
    // Status and certificate name only an image that passed, never one that was claimed or similar.
    let image = found.filter(|_| taken).map(|Started { release, .. }| {
        let manifest = release.manifest();
        ProvenImage {
            id: manifest.id.clone(),
            role: manifest.role.clone(),
            svn: manifest.svn,
        }
    });
    AcceptedState {
        image,
        config,
        clock: evidence.clock,
        tpm_firmware: evidence.tpm_firmware,
        pinned,
        registers: evidence.pcrs.clone(),
    }
}

/// Checks that the boot used nothing from outside the image: systemd-stub measures arguments (also
/// those from SMBIOS), credentials and add-ons into PCR 12. They change neither PCR 4 nor PCR 11.
fn no_outside_arguments(evidence: &StateEvidence<'_>, checks: &mut Checks) {
    let outside = evidence.pcr(12);
    checks.test(
        "PCR 12",
        Code::OutsideArguments,
        outside == Digest::ZERO,
        "zero",
        outside,
    );
}

/// Checks the TPM's counters: resetCount and restartCount never decrease, and the clock never
/// decreases while both are equal. Lower ones mean that a snapshot was restored. An attacker can
/// delay the evidence of one exchange until a later one was recorded; then the counters are below
/// the recorded ones but not below those of the challenge, and the code is `OVERTAKEN`, which does
/// not change the Machine.
fn counters(evidence: &StateEvidence<'_>, machine: &Machine, checks: &mut Checks) {
    let now = evidence.clock;
    let show = |reset, restart, clock, safe| {
        format!("reset {reset} restart {restart} clock {clock} ms safe {safe}")
    };
    let found = show(now.reset_count, now.restart_count, now.clock, now.safe);
    let Some(Counters {
        reset_count,
        restart_count,
        clock,
        safe,
    }) = current_status(machine).and_then(|status| status.counters)
    else {
        checks.pass("counters", "first seen", found);
        return;
    };
    // Compared in this order: the clock is saved only from time to time, so that it goes back after
    // a power cut, in which case resetCount has grown.
    let before = (reset_count, restart_count, clock);
    let shown = (now.reset_count, now.restart_count, now.clock);
    let good = shown >= before;
    let at_hello = evidence
        .counters_at_hello
        .map(|at| (at.reset_count, at.restart_count, at.clock));
    // Two exchanges of one machine can overlap. What was recorded after this challenge is newer
    // than this evidence, and that is no sign of a restored snapshot: an attacker who holds a
    // message back must not make the machine Untrusted.
    if !good && at_hello != Some(before) && at_hello.is_none_or(|at_hello| shown >= at_hello) {
        checks.test(
            "counters",
            Code::Overtaken,
            false,
            "nothing newer proved since the challenge",
            &found,
        );
        return;
    }
    let wanted = format!("at least {}", show(reset_count, restart_count, clock, safe));
    checks.test("counters", Code::CountersWentBack, good, wanted, &found);
    if evidence.purpose == Purpose::Renew {
        // No renewal comes from a later boot. The NK dies with a TPM Reset, but a TPM Restart (TPM
        // 2.0 Part 1, Startup: TPM2_Startup(CLEAR) after TPM2_Shutdown(STATE)) keeps the seed of
        // the NULL hierarchy, and the next boot can make the same NK. It shows in restartCount
        // alone, which a TPM Resume (TPM2_Startup(STATE)) counts up, too: a machine that slept is
        // refused as well, and joins again.
        let starts = |reset, restart| format!("reset {reset} restart {restart}");
        checks.test(
            "starts of the TPM",
            Code::RenewalAfterReset,
            (now.reset_count, now.restart_count) == (reset_count, restart_count),
            starts(reset_count, restart_count),
            starts(now.reset_count, now.restart_count),
        );
    }
}

/// Checks that PCR 13 holds exactly the one configuration event, and that the inventory allows the
/// configuration.
fn config(
    evidence: &StateEvidence<'_>,
    machine: &Machine,
    reference: &Reference<'_>,
    checks: &mut Checks,
) -> Option<ProvenConfig> {
    let register = evidence.pcr(CONFIG_PCR);
    let Some(event) = evidence.config else {
        // Nothing was measured, which a rule may allow; or something was, and no event accounts for
        // it.
        let (code, good) = if register == Digest::ZERO {
            (Code::ConfigNotMeasured, !reference.rule.config_measured)
        } else {
            (Code::ConfigEvent, false)
        };
        let wanted = if reference.rule.config_measured {
            "one configuration event"
        } else {
            "at most one event"
        };
        checks.test(
            "configuration event",
            code,
            good,
            wanted,
            format!("none; PCR 13 holds {register}"),
        );
        return None;
    };
    // One extension of a register that began as zero: anything measured besides it gives another
    // value.
    let measured = extended(&Digest::ZERO, &event.digest);
    let own = event.pcr == CONFIG_PCR;
    let found = if own {
        register.to_hex()
    } else {
        format!("an event of PCR {}", event.pcr)
    };
    if !checks.test(
        "configuration event",
        Code::ConfigEvent,
        own && measured == register,
        measured,
        found,
    ) {
        return None;
    }
    let digest = event.digest.to_text();
    if reference.rule.config_inventory {
        let mut allowed = machine.spec.config_digests.clone();
        allowed
            .extend(bootstrap::attested_config(machine, reference).map(|digest| digest.to_text()));
        let good = allowed
            .iter()
            .any(|allowed| allowed.parse() == Ok(event.digest));
        let wanted = if allowed.is_empty() {
            "one listed in the Machine".to_owned()
        } else {
            allowed.join(", ")
        };
        checks.test("configuration", Code::ConfigChanged, good, wanted, &digest);
    } else {
        checks.pass("configuration", "any measured one", &digest);
    }
    Some(ProvenConfig {
        source: event.label.clone(),
        digest,
    })
}

/// The event log, if it replays to every quoted register. init extends PCR 13 after the firmware,
/// so the log has no event of it.
fn replayed(evidence: &StateEvidence<'_>, checks: &mut Checks) -> Option<EventLog> {
    let log = match EventLog::parse(evidence.log) {
        Ok(log) => log,
        Err(fault) => {
            let code = match fault {
                EventLogError::Truncated(_) => Code::EventLogTruncated,
                EventLogError::TooLarge | EventLogError::Header | EventLogError::Event(..) => {
                    Code::EventLogMalformed
                }
            };
            checks.test("event log", code, false, "a crypto-agile log", fault);
            return None;
        }
    };
    let bank = log.replay();
    let mut good = true;
    for pcr in QUOTE_PCRS.iter().copied() {
        let inits = pcr == CONFIG_PCR;
        let (wanted, found) = (
            if inits {
                Digest::ZERO
            } else {
                evidence.pcr(pcr)
            },
            bank.get(pcr),
        );
        let code = if !inits && facts::ends_early(&log, pcr) {
            Code::EventLogTruncated
        } else {
            Code::EventLogReplay
        };
        // All registers, also after a failure: the verdict shows every one that differs.
        good &= checks.test(
            &format!("event log: PCR {pcr}"),
            code,
            wanted == found,
            wanted,
            found,
        );
    }
    // A log that does not replay is the caller's word alone: no fact is read from it.
    good.then_some(log)
}

/// A boot variant of a release.
#[derive(Clone, Copy)]
struct Started<'a> {
    release: &'a KnownRelease,
    /// The predictions of one way in which it starts.
    boot: &'a Boot,
}

fn allows(boot: &Boot, pcr: u8, value: &Digest) -> bool {
    boot.pcrs
        .get(&pcr)
        .is_some_and(|allowed| allowed.contains(value))
}

/// Whether a key that the rule names signed a release.
fn signed(release: &KnownRelease, rule: &CheckedRule) -> bool {
    release
        .verified_by()
        .iter()
        .any(|key| rule.takes_release_key(key))
}

fn secure_boot_if_required(on: bool, rule: &CheckedRule, checks: &mut Checks) {
    checks.test(
        "Secure Boot",
        Code::SecureBootOff,
        on || !rule.secure_boot,
        if rule.secure_boot { "on" } else { "on or off" },
        if on { "on" } else { "off" },
    );
}

/// The release that was booted, or the most similar one, so that the verdict can name the
/// difference.
fn booted<'a>(
    evidence: &StateEvidence<'_>,
    machine: &Machine,
    secure_boot: Option<bool>,
    reference: &Reference<'a>,
) -> Option<Started<'a>> {
    let started = reference
        .releases
        .iter()
        .flat_map(|release| {
            release
                .manifest()
                .boots
                .iter()
                .map(move |boot| Started { release, boot })
        })
        // A release predicts other values with Secure Boot on than with it off.
        .filter(|started| secure_boot.is_none_or(|on| started.boot.secure_boot == on));
    let rank = |started: &Started<'a>| {
        let Started { release, boot } = *started;
        let manifest = release.manifest();
        let matching = IMAGE_PCRS
            .iter()
            .filter(|pcr| allows(boot, **pcr, &evidence.pcr(**pcr)))
            .count();
        // A full match wins; without one the claimed image is the better guess for the comparison.
        let claimed = matching < IMAGE_PCRS.len() && manifest.id == evidence.claims.image;
        (
            matching == IMAGE_PCRS.len(),
            claimed,
            matching,
            // Before role and SVN: an unsigned copy of a release must not hide the signed one.
            signed(release, reference.rule),
            manifest.role == machine.spec.role,
            manifest.svn,
        )
    };
    started.max_by_key(rank).filter(|started| {
        let (full, claimed, matching, ..) = rank(started);
        full || claimed || matching > 0
    })
}

/// Checks the registers against this release, and the release against the rule. Returns the value
/// of PCR 7 where it was learned ([`databases`]).
fn image(
    started: Started<'_>,
    evidence: &StateEvidence<'_>,
    machine: &Machine,
    reference: &Reference<'_>,
    log: Option<&EventLog>,
    now: u64,
    checks: &mut Checks,
) -> Option<Digest> {
    let Started { release, boot } = started;
    let rule = reference.rule;
    let manifest = release.manifest();
    // PCR 4 has the hash of the whole kernel image, PCR 9 its command line and initrd, PCR 11 its
    // sections.
    for pcr in IMAGE_PCRS {
        let code = match pcr {
            4 => Code::ImageLoader,
            9 => Code::ImageCommandLine,
            _ => Code::ImageSections,
        };
        register(&manifest.id, boot, pcr, code, evidence, checks);
    }
    let others = databases(started, evidence, machine, log, now, checks);
    let keys = if rule.enforces() {
        rule.release_keys.join(", ")
    } else {
        "a release key of the configuration".to_owned()
    };
    let by = if release.verified_by().is_empty() {
        "none".to_owned()
    } else {
        release.verified_by().join(", ")
    };
    checks.test(
        "image signature",
        Code::ImageUnsigned,
        signed(release, rule),
        keys,
        by,
    );
    let least = format!("at least {}", rule.min_svn);
    checks.test(
        "image SVN",
        Code::ImageSvn,
        manifest.svn >= rule.min_svn,
        least,
        manifest.svn,
    );
    let expected = &machine.spec.role;
    checks.test(
        "image role",
        Code::ImageRole,
        manifest.role == *expected,
        expected,
        &manifest.role,
    );
    concurrency(manifest, &machine.spec.role, reference, checks);
    others
}

fn register(
    id: &str,
    boot: &Boot,
    pcr: u8,
    code: Code,
    evidence: &StateEvidence<'_>,
    checks: &mut Checks,
) {
    let allowed: Vec<String> = boot
        .pcrs
        .get(&pcr)
        .into_iter()
        .flatten()
        .map(Digest::to_hex)
        .collect();
    let wanted = format!("{id}: {}", allowed.join(", "));
    checks.test(
        &format!("image: PCR {pcr}"),
        code,
        allows(boot, pcr, &evidence.pcr(pcr)),
        wanted,
        evidence.pcr(pcr),
    );
}

/// Checks PCR 7: the Secure Boot databases are those of the release, or those that an admin's
/// re-admission pinned (with a manufacturer's keys, or a revocation list that came with an update).
/// Returns the register's value in the second case.
fn databases(
    started: Started<'_>,
    evidence: &StateEvidence<'_>,
    machine: &Machine,
    log: Option<&EventLog>,
    now: u64,
    checks: &mut Checks,
) -> Option<Digest> {
    let Started { release, boot } = started;
    let found = evidence.pcr(SECURE_BOOT_PCR);
    let id = &release.manifest().id;
    if !boot.pcrs.contains_key(&SECURE_BOOT_PCR) {
        return None;
    }
    if allows(boot, SECURE_BOOT_PCR, &found) {
        register(
            id,
            boot,
            SECURE_BOOT_PCR,
            Code::SecureBootDatabase,
            evidence,
            checks,
        );
        return None;
    }
    let before = current_status(machine)
        .and_then(|status| status.pinned_pcrs.get(&SECURE_BOOT_PCR.to_string()));
    let check = format!("image: PCR {SECURE_BOOT_PCR}");
    // Only an admin's re-admission learns another value; a first admission learns none, as the
    // release says which databases it may start with.
    if readmitted(machine, now) {
        checks.pass(&check, "learned", found);
        return Some(found);
    }
    let allowed = boot
        .pcrs
        .get(&SECURE_BOOT_PCR)
        .into_iter()
        .flatten()
        .map(Digest::to_hex)
        .chain(before.cloned());
    let wanted = format!("{id}: {}", allowed.collect::<Vec<_>>().join(", "));
    let others = log
        .map(|log| facts::other_databases(log, boot).join(", "))
        .unwrap_or_default();
    let shown = if others.is_empty() {
        found.to_hex()
    } else {
        format!("{found}, by another {others}")
    };
    let good = before.is_some_and(|before| before.parse() == Ok(found));
    checks
        .test(&check, Code::SecureBootDatabase, good, wanted, shown)
        .then_some(found)
}

fn registers(evidence: &StateEvidence<'_>) -> String {
    let shown: Vec<String> = IMAGE_PCRS
        .iter()
        .map(|pcr| format!("PCR {pcr} {}", evidence.pcr(*pcr)))
        .collect();
    shown.join(", ")
}

/// Checks that at most `maxConcurrent` signed releases of the role are newer than the image, by SVN
/// and then by build time. Zero is no limit.
fn concurrency(image: &Manifest, role: &str, reference: &Reference<'_>, checks: &mut Checks) {
    let limit = reference.rule.max_concurrent;
    if limit == 0 {
        return;
    }
    let age = |manifest: &Manifest| (manifest.svn, manifest.build_time);
    // Unsigned releases do not count: they must not make a signed one too old.
    let others = reference
        .releases
        .iter()
        .filter(|release| signed(release, reference.rule))
        .map(KnownRelease::manifest);
    let newer: BTreeSet<&str> = others
        .filter(|other| other.role == role && other.id != image.id && age(other) > age(image))
        .map(|other| other.id.as_str())
        .collect();
    let good = u32::try_from(newer.len()).is_ok_and(|newer| newer <= limit);
    let wanted = format!("the newest image or one of the {limit} before it");
    checks.test(
        "image age",
        Code::ImageConcurrency,
        good,
        wanted,
        format!("{} images are newer", newer.len()),
    );
}

/// Checks the firmware's registers against the pinned values. They are pinned at the first
/// admission and at an admin's re-admission.
fn firmware(
    evidence: &StateEvidence<'_>,
    machine: &Machine,
    now: u64,
    checks: &mut Checks,
) -> BTreeMap<u8, Digest> {
    let mut pinned = BTreeMap::new();
    let learn = readmitted(machine, now);
    for pcr in PINNED_PCRS {
        let found = evidence.pcr(pcr);
        let before =
            current_status(machine).and_then(|status| status.pinned_pcrs.get(&pcr.to_string()));
        let check = format!("firmware: PCR {pcr}");
        match before {
            Some(known) if !learn => {
                checks.test(
                    &check,
                    Code::FirmwareChanged,
                    known.parse() == Ok(found),
                    known,
                    found,
                );
            }
            Some(_) | None => {
                checks.pass(&check, "learned", found);
            }
        }
        // Also a value that differs: it is recorded only if the machine is admitted with it.
        pinned.insert(pcr, found);
    }
    pinned
}

/// Checks that the TPM's own firmware is not below the rule's floor for its manufacturer. Version
/// numbers differ between manufacturers, so each has its own floor, and the EK certificate's issuer
/// names the manufacturer: where a rule has floors, a TPM without a certificate fails.
fn tpm_firmware(evidence: &StateEvidence<'_>, rule: &CheckedRule, checks: &mut Checks) {
    const CHECK: &str = "TPM firmware";
    let found = evidence.tpm_firmware;
    let floors = &rule.tpm_firmware;
    match evidence.issuer {
        // No floor, no question: a machine without an EK certificate passes then.
        _ if floors.is_empty() => checks.pass(CHECK, "any", found),
        None => {
            let wanted = "an EK certificate, which identifies the manufacturer";
            checks.test(
                CHECK,
                Code::EkCertificateMissing,
                false,
                wanted,
                "no good one",
            );
        }
        Some(issuer) => match floors.get(issuer) {
            None => checks.pass(CHECK, format!("any of {issuer}"), found),
            Some(least) => {
                let wanted = format!("at least {least} of {issuer}");
                checks.test(CHECK, Code::TpmFirmware, found >= *least, wanted, found);
            }
        },
    }
}
