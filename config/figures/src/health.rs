//! The checks of health as indicators of the service's level, under upstream's names.

use crate::text::Text;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The types of checks: the first part of the path that asks for them.
pub const HEALTH: [&str; 3] = ["healthz", "livez", "readyz"];

/// How one check ended.
#[derive(Debug, Clone, Copy, Default)]
struct Ended {
    well: bool,
    successes: u64,
    errors: u64,
}

/// How the checks ended, by name and type. Bounded: names are words of this program.
#[derive(Debug, Default)]
pub struct Health(Mutex<BTreeMap<(&'static str, &'static str), Ended>>);

impl Health {
    /// Counts checks that were made; a type that is none of [`HEALTH`] is ignored.
    pub fn note(&self, kind: &str, checks: impl IntoIterator<Item = (&'static str, bool)>) {
        let Some(kind) = HEALTH.into_iter().find(|known| *known == kind) else {
            return;
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, well) in checks {
            let ended = all.entry((name, kind)).or_default();
            ended.well = well;
            let count = if well {
                &mut ended.successes
            } else {
                &mut ended.errors
            };
            *count = count.saturating_add(1);
        }
    }

    /// Their text (upstream: `/metrics/slis`).
    pub fn write(&self) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = Text::default();
        let name = "kubernetes_healthcheck";
        text.family(name, "gauge", "Whether a check of health passed last.");
        for ((check, kind), ended) in all.iter() {
            let labels = format!("name=\"{check}\",type=\"{kind}\"");
            text.sample(name, &labels, u64::from(ended.well));
        }
        let name = "kubernetes_healthchecks_total";
        text.family(name, "counter", "Checks of health made, by how they ended.");
        for ((check, kind), ended) in all.iter() {
            for (status, count) in [("error", ended.errors), ("success", ended.successes)] {
                let labels = format!("name=\"{check}\",status=\"{status}\",type=\"{kind}\"");
                if count > 0 {
                    text.sample(name, &labels, count);
                }
            }
        }
        text.finish()
    }
}
