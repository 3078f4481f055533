//! The exchange of machines without a TPM (unproven/v1). Steps, order, limits and records are those
//! of `exchange`; the verifier's module `unproven` has the checks.

use crate::admit::Requests;
use crate::answer::{self, BODY_TIME, ServiceAnswer};
use crate::caller::address;
use crate::exchange::{ExchangeService, Taken, no_exporter, one_at_a_time};
use crate::reference::ReferenceValues;
use crate::time::unix_seconds;
use config_attest::Refusal;
use config_attest::verifier::{
    CheckedUnprovenHello, Reference, UnprovenPending, check_unproven, check_unproven_hello,
    check_unproven_renewal,
};
use config_protocol::Channel;
use config_protocol::unproven::{Evidence, Hello};
use config_protocol::wire::{MAX_HELLO_BODY, SessionId};
use master_client::Body;
use master_listener::Peer;
use std::time::SystemTime;

impl ExchangeService {
    /// Step 1 of a join, `POST /attest/v1/unproven`.
    pub(crate) async fn unproven_hello(&self, incoming: Body, peer: &Peer) -> ServiceAnswer {
        self.open_unproven(incoming, peer, check_unproven_hello)
            .await
    }

    /// Step 1 of a renewal, `POST /attest/v1/unproven-renewals`.
    pub(crate) async fn unproven_renewal(&self, incoming: Body, peer: &Peer) -> ServiceAnswer {
        let (renewing, incoming) = match self.renewing(incoming, peer).await {
            Ok(both) => both,
            Err(answer) => return answer,
        };
        self.open_unproven(incoming, peer, |hello, reference, channel, now| {
            check_unproven_renewal(hello, &renewing, reference, channel, now)
        })
        .await
    }

    /// Steps 1 and 2.
    async fn open_unproven(
        &self,
        incoming: Body,
        peer: &Peer,
        check: impl Fn(
            &Hello,
            &Reference<'_>,
            &Channel,
            u64,
        ) -> Result<CheckedUnprovenHello, Box<Refusal>>,
    ) -> ServiceAnswer {
        let Some(_exchange) = peer.begin_exchange() else {
            return one_at_a_time();
        };
        if let Err(answer) = self.limits.count_request(peer, None) {
            return answer;
        }
        let hello: Hello = match answer::read(incoming, MAX_HELLO_BODY, BODY_TIME).await {
            Ok(hello) => hello,
            Err(answer) => return answer,
        };
        let Some(channel) = self.facts.channel(peer) else {
            return no_exporter();
        };
        let now = unix_seconds(SystemTime::now());
        let outcome = ReferenceValues::current(&self.inventory).and_then(|values| {
            let checked = check(&hello, &self.facts.reference(&values), &channel, now)?;
            self.sessions.unproven.open(address(peer), checked)
        });
        match outcome {
            Ok(challenge) => ServiceAnswer::json(&challenge),
            Err(refusal) => self.not_opened(peer, *refusal, &hello.claims).await,
        }
    }

    /// Step 3, `POST …/{session}/evidence`.
    pub(crate) async fn unproven_evidence(
        &self,
        session: &SessionId,
        incoming: Body,
        peer: &Peer,
    ) -> ServiceAnswer {
        let Some(_exchange) = peer.begin_exchange() else {
            return one_at_a_time();
        };
        let sessions = &self.sessions.unproven;
        let taken = self.take_session(sessions, session, incoming, MAX_HELLO_BODY, peer);
        match taken.await {
            Ok(taken) => Box::pin(self.conclude_unproven(taken, peer, SystemTime::now())).await,
            Err(answer) => answer,
        }
    }

    /// Step 4.
    async fn conclude_unproven(
        &self,
        taken: Taken<UnprovenPending, Evidence>,
        peer: &Peer,
        now: SystemTime,
    ) -> ServiceAnswer {
        let Taken {
            pending,
            evidence,
            channel,
        } = taken;
        let machine = pending.lock_key();
        let _lock = self.limits.lock_machine(&machine, &machine).await;
        let values = match self.current_values(peer).await {
            Ok(values) => values,
            Err(answer) => return answer,
        };
        match check_unproven(
            pending,
            &evidence,
            &self.facts.reference(&values),
            &channel,
            unix_seconds(now),
        ) {
            Ok(claimant) => {
                let requests = Requests {
                    client: evidence.client_csr.as_bytes(),
                    serving: evidence.serving_csr.as_bytes(),
                };
                self.settle(claimant, &values, requests, peer, now).await
            }
            Err(refusal) => self.refused(peer, &refusal).await,
        }
    }
}
