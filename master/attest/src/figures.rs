//! What `/metrics` says of attestation. Labels are states and codes, never what a caller chose.

use config_attest::{Code, Inventory};
use config_kube::MachineState;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Counters of this process.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) joined: AtomicU64,
    pub(crate) renewed: AtomicU64,
    pub(crate) verdicts: AtomicU64,
    refused: Box<[AtomicU64]>,
}

impl Default for Figures {
    fn default() -> Self {
        let refused = Code::ALL.iter().map(|_| AtomicU64::new(0)).collect();
        Self {
            joined: AtomicU64::new(0),
            renewed: AtomicU64::new(0),
            verdicts: AtomicU64::new(0),
            refused,
        }
    }
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    let _infallible = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

impl Figures {
    /// Counts a refusal.
    pub(crate) fn refuse(&self, code: Code) {
        let place = Code::ALL
            .iter()
            .position(|known| *known == code)
            .and_then(|index| self.refused.get(index));
        if let Some(place) = place {
            place.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The text form. `sessions` are half-open joins and renewals.
    pub(crate) fn write(
        &self,
        machines: &Inventory,
        sessions: (usize, usize),
        now: SystemTime,
    ) -> String {
        let mut text = String::new();
        write_machines(&mut text, machines, now);
        self.write_proofs(&mut text);
        self.write_refusals(&mut text);
        write_sessions(&mut text, sessions);
        family(
            &mut text,
            "pratique_verdict_log_records_total",
            "counter",
            "Records written to the log of verdicts.",
        );
        let _infallible = writeln!(
            text,
            "pratique_verdict_log_records_total {}",
            self.verdicts.load(Ordering::Relaxed)
        );
        text
    }

    fn write_proofs(&self, out: &mut String) {
        family(
            out,
            "pratique_attestations_total",
            "counter",
            "Accepted proofs.",
        );
        for (kind, count) in [("join", &self.joined), ("renewal", &self.renewed)] {
            let count = count.load(Ordering::Relaxed);
            let _infallible = writeln!(
                out,
                "pratique_attestations_total{{purpose=\"{kind}\"}} {count}"
            );
        }
    }

    fn write_refusals(&self, out: &mut String) {
        family(
            out,
            "pratique_refusals_total",
            "counter",
            "Refused proofs and attempts, by code.",
        );
        for (code, count) in Code::ALL.iter().zip(&self.refused) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                let _infallible =
                    writeln!(out, "pratique_refusals_total{{code=\"{code}\"}} {count}");
            }
        }
    }
}

/// The inventory by state, and how long the most silent of the trusted machines has proven nothing.
fn write_machines(out: &mut String, machines: &Inventory, now: SystemTime) {
    family(
        out,
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
        let _infallible = writeln!(out, "pratique_machines{{state=\"{state}\"}} {count}");
    }
    let name = "pratique_last_attestation_age_seconds_max";
    family(
        out,
        name,
        "gauge",
        "Time since the last proof of the Trusted machine that is silent the longest.",
    );
    let _infallible = writeln!(out, "{name} {oldest}");
}

/// Seconds since a recorded time; `None` where none that can be read is recorded.
fn age(time: Option<&str>, now: SystemTime) -> Option<f64> {
    let time = time?.parse::<jiff::Timestamp>().ok()?;
    Some(
        crate::record::timestamp(now)
            .duration_since(time)
            .as_secs_f64(),
    )
}

fn write_sessions(out: &mut String, (joins, renewals): (usize, usize)) {
    family(
        out,
        "pratique_sessions",
        "gauge",
        "Exchanges that are held, half-open ones and ends still remembered.",
    );
    for (kind, count) in [("join", joins), ("renewal", renewals)] {
        let _infallible = writeln!(out, "pratique_sessions{{purpose=\"{kind}\"}} {count}");
    }
}
