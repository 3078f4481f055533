//! Dry runs of a draft policy against the last evidence of each machine.

use crate::exchange::ExchangeService;
use crate::reference::ReferenceValues;
use crate::time::unix_seconds;
use config_attest::verifier::DryRunVerdict;
use config_kube::machine::EkMatch;
use config_kube::policy::DryRun;
use config_kube::{CertificatePolicySpec, Machine};
use jiff::Timestamp;
use std::time::SystemTime;

impl ExchangeService {
    /// The decision of a draft on the last evidence of each machine, sorted by machine.
    pub(crate) fn dry_run(&self, draft: &CertificatePolicySpec) -> Vec<DryRun> {
        let values = ReferenceValues::under(draft, 0, &self.inventory);
        let now = unix_seconds(SystemTime::now());
        let evidence = self.records.recent_evidence().into_iter();
        let mut runs: Vec<DryRun> = evidence
            .map(|(at, shown)| {
                let machines = self.inventory.machines();
                let known = machines
                    .iter()
                    .find(|machine| has_ek(machine, &shown.ek_hash().to_text()));
                let name = known.and_then(|machine| machine.metadata.name.clone());
                let judged = match &values {
                    Ok(values) => shown.dry_run(&self.facts.reference(values), now),
                    Err(refusal) => DryRunVerdict::Refused(refusal.clone()),
                };
                dry_run(name.unwrap_or_else(|| shown.claimed_name()), &judged, at)
            })
            .collect();
        runs.sort_by(|a, b| a.machine.cmp(&b.machine));
        runs
    }
}

/// Whether a Machine has this EK, by its spec or by its last attestation.
fn has_ek(machine: &Machine, ek: &str) -> bool {
    let listed = matches!(
        machine.spec.ek.match_of(ek),
        Some(EkMatch::Hash | EkMatch::Seen)
    );
    listed || machine.binding() == Some(ek)
}

fn dry_run(machine: String, judged: &DryRunVerdict, at: Timestamp) -> DryRun {
    let unproven = |failed: String| {
        if failed.is_empty() {
            failed
        } else {
            format!("not proven: {failed}")
        }
    };
    let (verdict, code, message) = match judged {
        DryRunVerdict::Accepted(verdict) => ("Accepted", "", unproven(verdict.failed())),
        DryRunVerdict::Queued(verdict, changes) if changes.is_empty() => {
            ("Queued", "", unproven(verdict.failed()))
        }
        DryRunVerdict::Queued(_, changes) => ("Queued", "", changes.join("; ")),
        DryRunVerdict::Refused(refusal) => ("Refused", refusal.code().as_str(), refusal.message()),
    };
    let message = message.chars().take(1024).collect();
    DryRun {
        machine,
        verdict: verdict.to_owned(),
        code: code.to_owned(),
        message,
        exchanged: at.to_string(),
    }
}
