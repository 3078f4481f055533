//! The desk's other window: machines without a TPM. Order, limits, records and what follows are those of the first; what is
//! looked at is in the verifier's `unproven`.

use crate::admit::Requests;
use crate::answer::{self, Answer, BODY_TIME};
use crate::caller::address;
use crate::entropy::SystemEntropy;
use crate::exchange::{Desk, no_exporter, one_at_a_time, seconds};
use config_attest::unproven::{Evidence, Hello};
use config_attest::verifier::{
    Reference, UnprovenAdmitted, UnprovenPending, check_unproven, check_unproven_hello,
    check_unproven_renewal,
};
use config_attest::wire::{MAX_HELLO_BODY, SessionId};
use config_attest::{Channel, Refusal};
use master_api::Peer;
use master_client::Body;
use std::sync::PoisonError;
use std::time::SystemTime;

impl Desk {
    /// `POST /attest/v1/unproven`.
    pub(crate) async fn unproven_hello(&self, incoming: Body, peer: &Peer) -> Answer {
        self.open_unproven(incoming, peer, check_unproven_hello)
            .await
    }

    /// `POST /attest/v1/unproven-renewals`.
    pub(crate) async fn unproven_renewal(&self, incoming: Body, peer: &Peer) -> Answer {
        let (renewing, incoming) = match self.renewing(incoming, peer).await {
            Ok(both) => both,
            Err(answer) => return answer,
        };
        self.open_unproven(incoming, peer, |hello, reference, channel, now| {
            check_unproven_renewal(hello, &renewing, reference, channel, now)
        })
        .await
    }

    async fn open_unproven(
        &self,
        incoming: Body,
        peer: &Peer,
        check: impl Fn(&Hello, &Reference<'_>, &Channel, u64) -> Result<UnprovenAdmitted, Box<Refusal>>,
    ) -> Answer {
        let Some(_exchange) = peer.begin_exchange() else {
            return one_at_a_time();
        };
        if let Err(answer) = self.admit_rate(peer, None) {
            return answer;
        }
        let hello: Hello = match answer::read(incoming, MAX_HELLO_BODY, BODY_TIME).await {
            Ok(hello) => hello,
            Err(answer) => return answer,
        };
        let Some(channel) = self.channel(peer) else {
            return no_exporter();
        };
        let now = seconds(SystemTime::now());
        let outcome = self.held().and_then(|held| {
            let admitted = check(&hello, &self.reference(&held), &channel, now)?;
            let mut sessions = self.unproven.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.open_from(
                address(peer),
                admitted,
                self.next_tick(),
                &mut SystemEntropy,
            )
        });
        match outcome {
            Ok(challenge) => Answer::json(&challenge),
            Err(refusal) => self.not_opened(peer, *refusal, &hello.claims).await,
        }
    }

    /// `POST …/{session}/evidence`.
    pub(crate) async fn unproven_evidence(
        &self,
        session: &SessionId,
        incoming: Body,
        peer: &Peer,
    ) -> Answer {
        let Some(_exchange) = peer.begin_exchange() else {
            return one_at_a_time();
        };
        let (pending, evidence): (_, Evidence) = match self
            .claim(&self.unproven, session, incoming, MAX_HELLO_BODY, peer)
            .await
        {
            Ok(both) => both,
            Err(answer) => return answer,
        };
        let Some(channel) = self.channel(peer) else {
            return no_exporter();
        };
        Box::pin(self.conclude_unproven(pending, &evidence, &channel, peer, SystemTime::now()))
            .await
    }

    async fn conclude_unproven(
        &self,
        pending: UnprovenPending,
        evidence: &Evidence,
        channel: &Channel,
        peer: &Peer,
        now: SystemTime,
    ) -> Answer {
        let turn = pending.turn();
        let _turn = self.turn(&turn, &turn).await;
        let held = match self.held() {
            Ok(held) => held,
            Err(refusal) => {
                self.refuse(peer, &refusal).await;
                return Answer::refused();
            }
        };
        match check_unproven(
            pending,
            evidence,
            &self.reference(&held),
            channel,
            seconds(now),
        ) {
            Ok(claimant) => {
                let requests = Requests {
                    client: evidence.client_csr.as_bytes(),
                    serving: evidence.serving_csr.as_bytes(),
                };
                self.settle(claimant, &held, requests, peer, now).await
            }
            Err(refusal) => self.refused(peer, &refusal).await,
        }
    }
}
