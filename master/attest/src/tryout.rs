//! A draft of a policy, tried out on what machines showed last.

use crate::exchange::{Desk, seconds};
use config_attest::verifier::Judged;
use config_kube::machine::EkWord;
use config_kube::policy::DryRun;
use config_kube::{CertificatePolicySpec, Machine};
use jiff::Timestamp;
use std::time::SystemTime;

impl Desk {
    /// What a draft would say to the last exchange of each machine.
    pub(crate) fn try_out(&self, draft: &CertificatePolicySpec) -> Vec<DryRun> {
        let held = self.held_by(draft, 0);
        let now = seconds(SystemTime::now());
        let judged = self.exchanges.all().into_iter().map(|(at, shown)| {
            let machines = self.inventory.machines();
            let known = machines
                .iter()
                .find(|machine| knows(machine, &shown.ek_hash().to_text()));
            let name = known.and_then(|machine| machine.metadata.name.clone());
            let judged = match &held {
                Ok(held) => shown.judge(&self.reference(held), now),
                Err(refusal) => Judged::Refused(refusal.clone()),
            };
            dry_run(name.unwrap_or_else(|| shown.claimed_name()), &judged, at)
        });
        let mut judged: Vec<DryRun> = judged.collect();
        judged.sort_by(|a, b| a.machine.cmp(&b.machine));
        judged
    }

    /// Names in a policy that the cluster's configuration does not have: they match nothing.
    pub(crate) fn unknown_names(&self, spec: &CertificatePolicySpec) -> Vec<String> {
        let mut unknown = Vec::new();
        for rule in &spec.rules {
            let issuers = rule
                .ek
                .issuers
                .iter()
                .filter(|name| !self.issuers.iter().any(|one| one.name() == **name));
            unknown.extend(issuers.map(|name| {
                format!(
                    "rule `{}`: ek.issuers: no [[cluster.ek_issuer]] is named `{name}`",
                    rule.name
                )
            }));
            let keys = rule
                .images
                .release_keys
                .iter()
                .filter(|name| !self.release_keys.contains(name));
            unknown.extend(keys.map(|name| {
                format!(
                    "rule `{}`: images.releaseKeys: no [[cluster.release_key]] is named `{name}`",
                    rule.name
                )
            }));
        }
        unknown
    }
}

/// Whether a Machine has this EK, by the inventory or by its own proof.
fn knows(machine: &Machine, ek: &str) -> bool {
    let listed = matches!(
        machine.spec.ek.word_on(ek),
        Some(EkWord::Hash | EkWord::Seen)
    );
    listed || machine.binding() == Some(ek)
}

fn dry_run(machine: String, judged: &Judged, at: Timestamp) -> DryRun {
    let unproven = |failed: String| {
        if failed.is_empty() {
            failed
        } else {
            format!("not proven: {failed}")
        }
    };
    let (verdict, code, message) = match judged {
        Judged::Accepted(verdict) => ("Accepted", "", unproven(verdict.failed())),
        Judged::Queued(verdict, changes) if changes.is_empty() => {
            ("Queued", "", unproven(verdict.failed()))
        }
        Judged::Queued(_, changes) => ("Queued", "", changes.join("; ")),
        Judged::Refused(refusal) => ("Refused", refusal.code().as_str(), refusal.message()),
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
