//! Metrics of attestation for `/metrics`. Label values are states and codes, never a value that a
//! caller chose.

use crate::time::timestamp;
use config_attest::Inventory;
use config_attest::sessions::SessionCounts;
use config_figures::Text;
use config_kube::MachineState;
use master_journal::VerdictCounters;
use std::time::SystemTime;

/// All metrics of attestation in the text format.
pub(crate) fn write(
    counters: &VerdictCounters,
    machines: &Inventory,
    sessions: SessionCounts,
    now: SystemTime,
) -> String {
    let mut text = Text::default();
    write_machines(&mut text, machines, now);
    write_admissions(&mut text, counters);
    write_refusals(&mut text, counters);
    write_sessions(&mut text, sessions);
    let name = "pratique_verdict_log_records_total";
    let help = "Records written to the log of verdicts.";
    text.single(name, "counter", help, counters.records());
    text.finish()
}

fn write_admissions(text: &mut Text, counters: &VerdictCounters) {
    let name = "pratique_attestations_total";
    text.family(name, "counter", "Accepted proofs.");
    for (kind, count) in [("join", counters.joined()), ("renewal", counters.renewed())] {
        text.sample(name, &format!("purpose=\"{kind}\""), count);
    }
}

fn write_refusals(text: &mut Text, counters: &VerdictCounters) {
    let name = "pratique_refusals_total";
    text.family(name, "counter", "Refused proofs and attempts, by code.");
    for (code, count) in counters.refused().filter(|(_, count)| *count > 0) {
        text.sample(name, &format!("code=\"{code}\""), count);
    }
}

/// Machines by state, and the age of the oldest last attestation of a Trusted one.
fn write_machines(text: &mut Text, machines: &Inventory, now: SystemTime) {
    text.family(
        "pratique_machines",
        "gauge",
        "Machines of the inventory, by state.",
    );
    let words = [
        "Pending",
        "Trusted",
        "Suspect",
        "Untrusted",
        "Retired",
        "Unproven",
    ];
    let mut counts = [0_u64; 6];
    let mut oldest = 0.0_f64;
    for machine in machines.iter() {
        let status = machine.status.as_ref();
        let index = match status.map(|status| status.state) {
            _ if machine.spec.retired => 4,
            None | Some(MachineState::Pending) => 0,
            Some(MachineState::Trusted) => 1,
            Some(MachineState::Suspect) => 2,
            Some(MachineState::Untrusted) => 3,
            Some(MachineState::Unproven) => 5,
        };
        counts[index] += 1;
        if index == 1 {
            let proof = status.and_then(|status| status.last_attestation.as_deref());
            oldest = oldest.max(age(proof, now).unwrap_or(0.0));
        }
    }
    for (state, count) in words.iter().zip(counts) {
        text.sample("pratique_machines", &format!("state=\"{state}\""), count);
    }
    let name = "pratique_last_attestation_age_seconds_max";
    text.family(
        name,
        "gauge",
        "Time since the oldest last proof of a Trusted machine.",
    );
    text.sample(name, "", oldest);
}

/// Seconds since a recorded time; `None` where there is none, or it cannot be parsed.
fn age(time: Option<&str>, now: SystemTime) -> Option<f64> {
    let time = time?.parse::<jiff::Timestamp>().ok()?;
    Some(timestamp(now).duration_since(time).as_secs_f64())
}

fn write_sessions(text: &mut Text, sessions: SessionCounts) {
    text.family(
        "pratique_sessions",
        "gauge",
        "Exchanges that are held, half-open ones and ends still remembered.",
    );
    let counts = [("join", sessions.joins), ("renewal", sessions.renewals)];
    for (kind, count) in counts {
        text.sample(
            "pratique_sessions",
            &format!("purpose=\"{kind}\""),
            count as u64,
        );
    }
}
