//! The session tables with their clock: half-open exchanges between challenge (step 2) and evidence
//! (step 3).

use crate::entropy::SystemEntropy;
use config_attest::Refusal;
use config_attest::sessions::{HalfOpen, Limits, OpenSession, Opening, SessionCounts, Sessions};
use config_attest::verifier::{Pending, UnprovenPending};
use config_protocol::Code;
use config_protocol::wire::SessionId;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A table for each of the two protocols, so that machines without a TPM take no sessions from the
/// others, and no session of one protocol can be answered by the other.
#[derive(Debug)]
pub(crate) struct SessionTables {
    /// Of cloud-verify/v1.
    pub(crate) tpm: SessionTable<Pending>,
    /// Of unproven/v1.
    pub(crate) unproven: SessionTable<UnprovenPending>,
}

impl SessionTables {
    /// `total`: half-open joins in each table at most, and as many renewals.
    pub(crate) fn new(total: usize) -> Self {
        Self {
            tpm: SessionTable::new(total),
            unproven: SessionTable::new(total),
        }
    }

    /// Joins and renewals in both tables, ended ones that are still remembered included.
    pub(crate) fn counts(&self) -> SessionCounts {
        let (tpm, unproven) = (self.tpm.lock().counts(), self.unproven.lock().counts());
        SessionCounts {
            joins: tpm.joins + unproven.joins,
            renewals: tpm.renewals + unproven.renewals,
        }
    }
}

/// The sessions of one protocol.
#[derive(Debug)]
pub(crate) struct SessionTable<P> {
    sessions: Mutex<Sessions<P>>,
    /// Session times are seconds since this instant: a monotonic clock, which a change of the
    /// system time does not touch.
    started: Instant,
}

impl<P: HalfOpen> SessionTable<P> {
    fn new(total: usize) -> Self {
        let limits = Limits {
            total,
            ..Limits::default()
        };
        Self {
            sessions: Mutex::new(Sessions::new(limits)),
            started: Instant::now(),
        }
    }

    /// Opens a session for a checked hello and makes its challenge (step 2).
    ///
    /// # Errors
    /// The caller's share of the table is full.
    pub(crate) fn open<A: Opening<Pending = P>>(
        &self,
        from: IpAddr,
        hello: A,
    ) -> Result<A::Challenge, Box<Refusal>> {
        // A session begins with the next whole second; otherwise its last second would be cut
        // short.
        let mut sessions = self.lock();
        let now = self.seconds() + 1;
        sessions.open_from(from, hello, now, &mut SystemEntropy)
    }

    /// Looks at a session that waits for its answer, and leaves it open.
    ///
    /// # Errors
    /// As [`SessionTable::take`].
    pub(crate) fn look(&self, session: &SessionId) -> Result<OpenSession, Code> {
        let (sessions, now) = (self.lock(), self.seconds());
        sessions.look(session, now)
    }

    /// Takes a session for its one answer.
    ///
    /// # Errors
    /// There is no such session, it has expired, or it was answered before.
    pub(crate) fn take(&self, session: &SessionId) -> Result<P, Code> {
        let mut sessions = self.lock();
        let now = self.seconds();
        sessions.take(session, now)
    }

    fn seconds(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    fn lock(&self) -> MutexGuard<'_, Sessions<P>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
