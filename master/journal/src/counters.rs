//! Counters of this process for `/metrics`.

use config_protocol::Code;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many admissions, refusals and log records there were since the process started.
#[derive(Debug)]
pub struct VerdictCounters {
    joined: AtomicU64,
    renewed: AtomicU64,
    records: AtomicU64,
    /// In the order of [`Code::ALL`].
    refused: Box<[AtomicU64]>,
}

impl Default for VerdictCounters {
    fn default() -> Self {
        Self {
            joined: AtomicU64::new(0),
            renewed: AtomicU64::new(0),
            records: AtomicU64::new(0),
            refused: Code::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl VerdictCounters {
    pub(crate) fn count_join(&self) {
        self.joined.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_renewal(&self) {
        self.renewed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_record(&self) {
        self.records.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_refusal(&self, code: Code) {
        let index = Code::ALL.iter().position(|known| *known == code);
        if let Some(counter) = index.and_then(|index| self.refused.get(index)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Admissions by a join.
    pub fn joined(&self) -> u64 {
        self.joined.load(Ordering::Relaxed)
    }

    /// Admissions by a renewal.
    pub fn renewed(&self) -> u64 {
        self.renewed.load(Ordering::Relaxed)
    }

    /// Records in the log of verdicts.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Refusals by code, in the order of [`Code::ALL`].
    pub fn refused(&self) -> impl Iterator<Item = (Code, u64)> {
        let counts = self
            .refused
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        Code::ALL.iter().copied().zip(counts)
    }
}
