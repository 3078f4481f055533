//! The exchange by which machines attest (cloud-verify/v1): hello (step 1) → challenge (2),
//! evidence (3) → verdict (4) and certificates (5). WIRE.md numbers the steps.
//!
//! Cheap checks come first: the size of the body, the rate, then the verifier's own order.
//! Exchanges of one Machine are concluded one after another, and each sees what the one before
//! recorded. `decision` decides on checked evidence; `unproven` is the same exchange for machines
//! without a TPM.

use crate::admit::Requests;
use crate::answer::{self, BODY_TIME, ServiceAnswer};
use crate::caller::{address, listed_key, renewing_peer};
use crate::exchange_limits::ExchangeLimits;
use crate::facts::ClusterFacts;
use crate::inventory::ReferenceTables;
use crate::records::Records;
use crate::reference::ReferenceValues;
use crate::request_queue::RequestQueue;
use crate::session_tables::{SessionTable, SessionTables};
use crate::time::unix_seconds;
use config_attest::Refusal;
use config_attest::sessions::HalfOpen;
use config_attest::verifier::{
    CheckedHello, Pending, RecordedEvidence, Reference, RenewingPeer, check_evidence, check_hello,
    check_renewal,
};
use config_protocol::wire::{
    Claims, Evidence, Hello, MAX_EVIDENCE_BODY, MAX_HELLO_BODY, SessionId,
};
use config_protocol::{Channel, Code};
use master_ca::Authority;
use master_client::{Body, Client};
use master_listener::Peer;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Answers the exchange's paths.
#[derive(Debug)]
pub(crate) struct ExchangeService {
    pub(crate) facts: ClusterFacts,
    pub(crate) limits: ExchangeLimits,
    pub(crate) sessions: SessionTables,
    pub(crate) records: Records,
    pub(crate) authority: Arc<Authority>,
    pub(crate) inventory: Arc<ReferenceTables>,
    pub(crate) queue: Arc<RequestQueue>,
    pub(crate) client: Client,
}

impl ExchangeService {
    /// Step 1 of a join, `POST /attest/v1/sessions`.
    pub(crate) async fn hello(&self, incoming: Body, peer: &Peer) -> ServiceAnswer {
        self.open(incoming, peer, check_hello).await
    }

    /// Step 1 of a renewal, `POST /attest/v1/renewals`.
    pub(crate) async fn renewal(&self, incoming: Body, peer: &Peer) -> ServiceAnswer {
        let (renewing, incoming) = match self.renewing(incoming, peer).await {
            Ok(both) => both,
            Err(answer) => return answer,
        };
        self.open(incoming, peer, |hello, reference, channel, now| {
            check_renewal(hello, &renewing, reference, channel, now)
        })
        .await
    }

    /// Steps 1 and 2: checks a hello and opens a session with its challenge.
    async fn open(
        &self,
        incoming: Body,
        peer: &Peer,
        check: impl Fn(&Hello, &Reference<'_>, &Channel, u64) -> Result<CheckedHello, Box<Refusal>>,
    ) -> ServiceAnswer {
        let Some(_exchange) = peer.begin_exchange() else {
            return one_at_a_time();
        };
        let read = answer::read(incoming, MAX_HELLO_BODY, BODY_TIME).await;
        let machines = self.inventory.machines();
        // The rate limit comes before the verifier, whose checks cost more than parsing. The
        // endorsement key chooses the budget.
        let listed = read
            .as_ref()
            .ok()
            .and_then(|hello: &Hello| listed_key(&hello.keys, &machines));
        if let Err(answer) = self.limits.count_request(peer, listed) {
            return answer;
        }
        let hello = match read {
            Ok(hello) => hello,
            Err(answer) => return answer,
        };
        let Some(channel) = self.facts.channel(peer) else {
            return no_exporter();
        };
        let now = unix_seconds(SystemTime::now());
        let outcome = ReferenceValues::current(&self.inventory).and_then(|values| {
            let checked = check(&hello, &self.facts.reference(&values), &channel, now)?;
            self.sessions.tpm.open(address(peer), checked)
        });
        match outcome {
            Ok(challenge) => {
                if let Some(key) = listed {
                    peer.list(key.0);
                }
                ServiceAnswer::json(&challenge)
            }
            Err(refusal) => self.not_opened(peer, *refusal, &hello.claims).await,
        }
    }

    /// Records why a hello got no challenge. The caller learns that it was refused, and the reason
    /// only if it reveals nothing about machines.
    pub(crate) async fn not_opened(
        &self,
        peer: &Peer,
        refusal: Refusal,
        claims: &Claims,
    ) -> ServiceAnswer {
        let code = refusal.code();
        self.records
            .refused(peer, &with_claims(refusal, claims))
            .await;
        if code == Code::SessionsFullForEk {
            ServiceAnswer::problem(
                Code::RateLimited,
                "too many half-open sessions; try again later",
            )
        } else if [Code::ProtocolVersion, Code::Malformed].contains(&code) {
            ServiceAnswer::problem(code, code.meaning())
        } else {
            ServiceAnswer::refused()
        }
    }

    /// Step 3, `POST …/{session}/evidence`.
    pub(crate) async fn evidence(
        &self,
        session: &SessionId,
        incoming: Body,
        peer: &Peer,
    ) -> ServiceAnswer {
        let Some(_exchange) = peer.begin_exchange() else {
            return one_at_a_time();
        };
        let sessions = &self.sessions.tpm;
        let taken = self.take_session(sessions, session, incoming, MAX_EVIDENCE_BODY, peer);
        match taken.await {
            Ok(taken) => Box::pin(self.conclude(taken, peer, SystemTime::now())).await,
            Err(answer) => answer,
        }
    }

    /// Takes a session, then reads its evidence of at most `limit` bytes. In this order a body
    /// without an open session is never held in memory and takes no slot, and each session has at
    /// most one body.
    pub(crate) async fn take_session<P: HalfOpen, E: DeserializeOwned>(
        &self,
        sessions: &SessionTable<P>,
        session: &SessionId,
        incoming: Body,
        limit: usize,
        peer: &Peer,
    ) -> Result<Taken<P, E>, ServiceAnswer> {
        let open = match sessions.look(session) {
            Ok(open) => open,
            Err(code) => return Err(self.no_session(code, incoming, limit, peer).await),
        };
        // Without a free slot the session stays open, and the machine may send its evidence again.
        let Some(room) = self.limits.body_room(peer, open.listed) else {
            self.limits.count_request(peer, open.listed)?;
            answer::discard(incoming, limit).await;
            return Err(ServiceAnswer::problem(
                Code::RateLimited,
                "too much evidence is read at once; try again",
            ));
        };
        match sessions.take(session) {
            // Not counted by the rate limiter: its hello was, and a session is answered once.
            Ok(pending) => {
                let time = BODY_TIME.min(Duration::from_secs(open.seconds_left));
                let evidence = answer::read(incoming, limit, time).await;
                drop(room);
                Ok(Taken {
                    pending,
                    evidence: evidence?,
                    channel: self.facts.channel(peer).ok_or_else(no_exporter)?,
                })
            }
            // Another request has taken it since.
            Err(code) => {
                drop(room);
                Err(self.no_session(code, incoming, limit, peer).await)
            }
        }
    }

    /// The answer to evidence without an open session.
    async fn no_session(
        &self,
        code: Code,
        incoming: Body,
        limit: usize,
        peer: &Peer,
    ) -> ServiceAnswer {
        if let Err(answer) = self.limits.count_request(peer, None) {
            return answer;
        }
        answer::discard(incoming, limit).await;
        self.records.refused(peer, &Refusal::anonymous(code)).await;
        ServiceAnswer::refused()
    }

    /// The node that renews, by its client certificate. A caller without one is refused, and its
    /// body is not parsed.
    pub(crate) async fn renewing(
        &self,
        incoming: Body,
        peer: &Peer,
    ) -> Result<(RenewingPeer, Body), ServiceAnswer> {
        if let Some(renewing) = renewing_peer(peer) {
            return Ok((renewing, incoming));
        }
        self.limits.count_request(peer, None)?;
        answer::discard(incoming, MAX_HELLO_BODY).await;
        self.records
            .refused(peer, &Refusal::anonymous(Code::RenewalIdentity))
            .await;
        Err(ServiceAnswer::refused())
    }

    /// The reference values of the moment. Read under the machine's lock: these values have what
    /// the exchange before recorded.
    pub(crate) async fn current_values(
        &self,
        peer: &Peer,
    ) -> Result<ReferenceValues, ServiceAnswer> {
        match ReferenceValues::current(&self.inventory) {
            Ok(values) => Ok(values),
            Err(refusal) => {
                self.records.refused(peer, &refusal).await;
                Err(ServiceAnswer::refused())
            }
        }
    }

    /// Step 4: checks the evidence, and passes a claimant on to the policy.
    async fn conclude(
        &self,
        taken: Taken<Pending, Evidence>,
        peer: &Peer,
        now: SystemTime,
    ) -> ServiceAnswer {
        let Taken {
            pending,
            evidence,
            channel,
        } = taken;
        let ek = pending.ek_hash().to_text();
        let _lock = self.limits.lock_machine(&pending.lock_key(), &ek).await;
        let values = match self.current_values(peer).await {
            Ok(values) => values,
            Err(answer) => return answer,
        };
        let reference = self.facts.reference(&values);
        let shown = RecordedEvidence::of(&pending, &evidence);
        let outcome = check_evidence(pending, &evidence, &reference, &channel, unix_seconds(now));
        let possessed = outcome
            .as_ref()
            .map_or_else(|refusal| refusal.verdict().shows_possession(), |_| true);
        // Without possession anyone could have sent it, and dry runs would use invented evidence.
        if let Some(shown) = shown.filter(|_| possessed) {
            self.records.keep_evidence(shown);
        }
        let claimant = match outcome {
            Ok(claimant) => claimant,
            Err(refusal) => return self.refused(peer, &refusal).await,
        };
        let requests = Requests {
            client: evidence.client_csr.as_bytes(),
            serving: evidence.serving_csr.as_bytes(),
        };
        self.settle(claimant, &values, requests, peer, now).await
    }
}

/// A session that is answered, and its answer (step 3).
#[derive(Debug)]
pub(crate) struct Taken<P, E> {
    pub(crate) pending: P,
    pub(crate) evidence: E,
    /// The TLS connection that it came over.
    pub(crate) channel: Channel,
}

/// Adds the hello's claims to a refusal that was made outside the verifier, if they are printable.
fn with_claims(mut refusal: Refusal, claims: &Claims) -> Refusal {
    if let Refusal::Anonymous { verdict, .. } = &mut refusal
        && verdict.checks.is_empty()
        && claims.within_limits()
    {
        verdict.claims = claims.clone();
    }
    refusal
}

/// The answer on a connection without a TLS exporter.
pub(crate) fn no_exporter() -> ServiceAnswer {
    ServiceAnswer::problem(
        Code::Channel,
        "attestation needs a TLS 1.3 connection of its own",
    )
}

/// The answer to a second exchange over one connection at a time.
pub(crate) fn one_at_a_time() -> ServiceAnswer {
    ServiceAnswer::problem(
        Code::RateLimited,
        "another exchange goes on over this connection; take one connection for each",
    )
}
