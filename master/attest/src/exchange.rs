//! The desk where machines prove themselves: hello → challenge, evidence → certificates.
//!
//! Order before any answer: size, rate, then the verifier's own (inventory, key attributes, EK hash and chain). Exchanges
//! of one Machine are taken one after another, and each sees what the one before recorded. What is done with a machine that
//! proved which it is, its policy says (`policy`).

use crate::addresses::Addresses;
use crate::admit::{self, Admission, Requests};
use crate::answer::{self, Answer, BODY_TIME};
use crate::caller::{address, listed_key, remote, renewing_peer};
use crate::entropy::SystemEntropy;
use crate::exchanges::Exchanges;
use crate::inventory::Inventory;
use crate::journal::Journal;
use crate::limit::{Caller, Limiter};
use crate::policy::{Judgement, Policy, Ruling, judge, policy_of};
use crate::ring::{self, Entry, Ring};
use crate::service::Terms;
use crate::waiting::Waiting;
use crate::{queue, record};
use config_attest::policy::CheckedRule;
use config_attest::release::KnownRelease;
use config_attest::sessions::{HalfOpen, Limits, Sessions};
use config_attest::verifier::{
    Approval, Claimant, Pending, Reference, RenewingPeer, Shown, UnprovenPending, Verified,
    check_evidence, check_hello, check_renewal,
};
use config_attest::wire::{Claims, Evidence, Hello, MAX_EVIDENCE_BODY, MAX_HELLO_BODY, SessionId};
use config_attest::{Channel, Code, Digest, EkIssuer, Refusal};
use config_errors::chain;
use config_kube::CertificatePolicySpec;
use jiff::Timestamp;
use master_api::Peer;
use master_ca::Authority;
use master_client::{Body, Client, Recorder};
use serde::de::DeserializeOwned;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::MutexGuard;

/// Locks among which the Machines are spread.
const LANES: usize = 64;

/// The desk.
#[derive(Debug)]
pub(crate) struct Desk {
    cluster: String,
    api_names: Vec<String>,
    pub(crate) issuers: Vec<EkIssuer>,
    admin_key: Option<Digest>,
    server_spki: Digest,
    authority: Arc<Authority>,
    pub(crate) inventory: Arc<Inventory>,
    client: Client,
    waiting: Arc<Waiting>,
    events: Recorder,
    ring: Ring,
    journal: Arc<Journal>,
    pub(crate) exchanges: Exchanges,
    pub(crate) release_keys: Vec<String>,
    sessions: Mutex<Sessions>,
    /// Those of machines without a TPM, apart: whatever comes there takes nothing from those that have one.
    pub(crate) unproven: Mutex<Sessions<UnprovenPending>>,
    /// When the desk was opened: sessions live by a clock that never goes back.
    opened: Instant,
    limiter: Limiter,
    lanes: Vec<tokio::sync::Mutex<()>>,
    addresses: Addresses,
    spread: RandomState,
}

/// Everything that a [`Reference`] borrows.
pub(crate) struct Held {
    machines: Arc<config_attest::Inventory>,
    releases: Arc<Vec<KnownRelease>>,
    rule: Box<CheckedRule>,
    policy: &'static dyn Policy,
    generation: u64,
}

impl Desk {
    pub(crate) fn new(
        terms: &Terms,
        authority: Arc<Authority>,
        inventory: Arc<Inventory>,
        waiting: Arc<Waiting>,
        client: Client,
        ring: Ring,
        journal: Arc<Journal>,
    ) -> Self {
        let limits = Limits {
            total: terms.exchanges,
            ..Limits::default()
        };
        Self {
            cluster: terms.cluster.clone(),
            api_names: terms.api_names.clone(),
            issuers: terms.ek_issuers.clone(),
            admin_key: terms.bootstrap.admin_key,
            server_spki: terms.server_spki,
            authority,
            inventory,
            waiting,
            events: Recorder::new(client.clone(), "pratique-attestation"),
            client,
            ring,
            journal,
            exchanges: Exchanges::default(),
            release_keys: terms
                .release_keys
                .iter()
                .map(|key| key.name().to_owned())
                .collect(),
            sessions: Mutex::new(Sessions::new(limits)),
            unproven: Mutex::new(Sessions::new(limits)),
            opened: Instant::now(),
            addresses: Addresses::default(),
            limiter: Limiter::new(),
            lanes: (0..LANES).map(|_| tokio::sync::Mutex::default()).collect(),
            spread: RandomState::new(),
        }
    }

    /// `POST /attest/v1/sessions`.
    pub(crate) async fn hello(&self, incoming: Body, peer: &Peer) -> Answer {
        self.open(incoming, peer, check_hello).await
    }

    /// `POST /attest/v1/renewals`.
    pub(crate) async fn renewal(&self, incoming: Body, peer: &Peer) -> Answer {
        let (renewing, incoming) = match self.renewing(incoming, peer).await {
            Ok(both) => both,
            Err(answer) => return answer,
        };
        self.open(incoming, peer, |hello, reference, channel, now| {
            check_renewal(hello, &renewing, reference, channel, now)
        })
        .await
    }

    async fn open(
        &self,
        incoming: Body,
        peer: &Peer,
        check: impl Fn(
            &Hello,
            &Reference<'_>,
            &Channel,
            u64,
        ) -> Result<config_attest::verifier::Admitted, Box<Refusal>>,
    ) -> Answer {
        let Some(_exchange) = peer.begin_exchange() else {
            return one_at_a_time();
        };
        let read = answer::read(incoming, MAX_HELLO_BODY, BODY_TIME).await;
        let machines = self.inventory.machines();
        // Before anything is verified, which costs more than reading it.
        let listed = read
            .as_ref()
            .ok()
            .and_then(|hello: &Hello| listed_key(&hello.keys, &machines));
        if let Err(answer) = self.admit_rate(peer, listed) {
            return answer;
        }
        let hello = match read {
            Ok(hello) => hello,
            Err(answer) => return answer,
        };
        let Some(channel) = self.channel(peer) else {
            return no_exporter();
        };
        let now = seconds(SystemTime::now());
        let outcome = self.held().and_then(|held| {
            let admitted = check(&hello, &self.reference(&held), &channel, now)?;
            let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.open_from(
                address(peer),
                admitted,
                self.next_tick(),
                &mut SystemEntropy,
            )
        });
        match outcome {
            Ok(challenge) => {
                if let Some(key) = listed {
                    peer.list(key.0);
                }
                Answer::json(&challenge)
            }
            Err(refusal) => self.not_opened(peer, *refusal, &hello.claims).await,
        }
    }

    /// Records why no challenge was given, and tells the caller no more than that.
    pub(crate) async fn not_opened(
        &self,
        peer: &Peer,
        refusal: Refusal,
        claims: &Claims,
    ) -> Answer {
        let code = refusal.code();
        self.refuse(peer, &claimed(refusal, claims)).await;
        if [Code::SessionsFull, Code::SessionsFullForEk].contains(&code) {
            Answer::problem(
                Code::RateLimited,
                "too many half-open sessions; try again later",
            )
        } else if [Code::ProtocolVersion, Code::Malformed].contains(&code) {
            Answer::problem(code, code.meaning())
        } else {
            Answer::refused()
        }
    }

    /// `POST …/{session}/evidence`.
    pub(crate) async fn evidence(
        &self,
        session: &SessionId,
        incoming: Body,
        peer: &Peer,
    ) -> Answer {
        let Some(_exchange) = peer.begin_exchange() else {
            return one_at_a_time();
        };
        let (pending, evidence) = match self
            .claim(&self.sessions, session, incoming, MAX_EVIDENCE_BODY, peer)
            .await
        {
            Ok(both) => both,
            Err(answer) => return answer,
        };
        let Some(channel) = self.channel(peer) else {
            return no_exporter();
        };
        Box::pin(self.conclude(pending, &evidence, &channel, peer, SystemTime::now())).await
    }

    /// Takes a session and reads its evidence, in this order: a body that answers no challenge is not kept in memory, and of
    /// one session there is never more than one.
    pub(crate) async fn claim<P: HalfOpen, E: DeserializeOwned>(
        &self,
        sessions: &Mutex<Sessions<P>>,
        session: &SessionId,
        incoming: Body,
        most: usize,
        peer: &Peer,
    ) -> Result<(P, E), Answer> {
        let lock = || sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, listed) = {
            let (sessions, now) = (lock(), self.ticks());
            (sessions.left(session, now), sessions.is_listed(session))
        };
        // Where there is no room now the session stays open, and its answer may come again.
        let Some(_room) = self.limiter.body(listed || renewing_peer(peer).is_some()) else {
            return Err(Answer::problem(
                Code::RateLimited,
                "too much evidence is read at once; try again",
            ));
        };
        let taken = lock().take(session, self.ticks());
        match taken {
            // It was counted when it was opened, and is answered once.
            Ok(pending) => Ok((
                pending,
                answer::read(incoming, most, Duration::from_secs(left)).await?,
            )),
            Err(code) => {
                self.admit_rate(peer, None)?;
                answer::discard(incoming, most).await;
                self.refuse(peer, &Refusal::anonymous(code)).await;
                Err(Answer::refused())
            }
        }
    }

    /// The certificate by which a renewal's caller is known. One who shows none is refused without a look at what it sends,
    /// and one who shows one is counted by it.
    pub(crate) async fn renewing(
        &self,
        incoming: Body,
        peer: &Peer,
    ) -> Result<(RenewingPeer, Body), Answer> {
        if let Some(renewing) = renewing_peer(peer) {
            return Ok((renewing, incoming));
        }
        self.admit_rate(peer, None)?;
        answer::discard(incoming, MAX_HELLO_BODY).await;
        self.refuse(peer, &Refusal::anonymous(Code::RenewalIdentity))
            .await;
        Err(Answer::refused())
    }

    async fn conclude(
        &self,
        pending: Pending,
        evidence: &Evidence,
        channel: &Channel,
        peer: &Peer,
        now: SystemTime,
    ) -> Answer {
        let _turn = self
            .turn(&pending.turn(), &pending.ek_hash().to_text())
            .await;
        let held = match self.held() {
            Ok(held) => held,
            Err(refusal) => {
                self.refuse(peer, &refusal).await;
                return Answer::refused();
            }
        };
        let reference = self.reference(&held);
        let shown = Shown::of(&pending, evidence);
        let outcome = check_evidence(pending, evidence, &reference, channel, seconds(now));
        let possessed = outcome
            .as_ref()
            .map_or_else(|refusal| refusal.verdict().shows_possession(), |_| true);
        if let Some(shown) = shown.filter(|_| possessed) {
            self.exchanges.keep(shown, Timestamp::now());
        }
        let claimant = match outcome {
            Ok(claimant) => claimant,
            Err(refusal) => return self.refused(peer, &refusal).await,
        };
        let requests = Requests {
            client: evidence.client_csr.as_bytes(),
            serving: evidence.serving_csr.as_bytes(),
        };
        self.settle(claimant, &held, requests, peer, now).await
    }

    /// What comes of a machine that asks for no more than it may have: what the policy says, and what follows.
    pub(crate) async fn settle(
        &self,
        claimant: Claimant,
        held: &Held,
        requests: Requests<'_>,
        peer: &Peer,
        now: SystemTime,
    ) -> Answer {
        // Until the end, so that what is seen here is still so when it is recorded.
        let Some(_reserved) = self.addresses.reserve(claimant.claimed_addresses()) else {
            return Answer::unavailable(
                "another machine is being admitted with one of these addresses; try again",
            );
        };
        if claimant.is_overtaken_in(&self.inventory.machines(), seconds(now)) {
            return self
                .refused(peer, &claimant.refused(Code::AddressTaken))
                .await;
        }
        match self.decide(claimant, held, requests, peer, now).await {
            Ok(verified) => self.admit(&verified, held, &requests, peer, now).await,
            Err(answer) => answer,
        }
    }

    /// What the policy says to a machine that proved which it is.
    async fn decide(
        &self,
        claimant: Claimant,
        held: &Held,
        requests: Requests<'_>,
        peer: &Peer,
        now: SystemTime,
    ) -> Result<Verified, Answer> {
        if let Err(code) = queue::own_name(&self.client, &claimant).await {
            return Err(self.refused(peer, &claimant.refused(code)).await);
        }
        let outcome = match held.policy.decide(
            &claimant,
            &self.waiting,
            address(peer),
            Timestamp::now(),
        ) {
            Ruling::Verify => claimant.verified(),
            Ruling::Approve(approval) => self.approve(claimant, &approval).await?,
            Ruling::Refuse(code) => Err(claimant.refused(code)),
            Ruling::Wait(wait) => {
                let remote = remote(peer);
                let asked = queue::Asked {
                    claimant: &claimant,
                    requests,
                    remote: &remote,
                    now,
                };
                let keeper = queue::Keeper {
                    client: &self.client,
                    waiting: &self.waiting,
                    inventory: &self.inventory,
                };
                return Err(match keeper.ask(&asked, &wait).await {
                    Ok(answer) => {
                        if wait.fresh.is_some() {
                            self.ring
                                .record(ring::queued(&claimant, &wait.name, remote, now));
                        }
                        answer
                    }
                    Err(error) => {
                        tracing::warn!(node = claimant.node_name(), error = %chain(&error), "a request cannot be kept");
                        Answer::unavailable("the master could not keep the request; try again")
                    }
                });
            }
        };
        match outcome {
            Ok(verified) => Ok(verified),
            Err(refusal) => Err(self.refused(peer, &refusal).await),
        }
    }

    /// Lets a machine in on somebody's word; one that the inventory does not have gets its Machine first.
    async fn approve(
        &self,
        claimant: Claimant,
        approval: &Approval,
    ) -> Result<Result<Verified, Box<Refusal>>, Answer> {
        let made = match queue::make(&self.client, &self.inventory, &claimant, approval).await {
            Ok(made) => made,
            Err(error) => {
                tracing::warn!(node = claimant.node_name(), error = %chain(&error), "a Machine cannot be made");
                return Err(Answer::unavailable(
                    "the master could not record the machine; try again",
                ));
            }
        };
        Ok(claimant.approve(approval, made.as_ref()))
    }

    async fn admit(
        &self,
        verified: &Verified,
        held: &Held,
        requests: &Requests<'_>,
        peer: &Peer,
        now: SystemTime,
    ) -> Answer {
        let admission = Admission {
            client: &self.client,
            authority: &self.authority,
            inventory: &self.inventory,
            journal: &self.journal,
            events: &self.events,
            generation: held.generation,
        };
        match admit::admit(&admission, verified, requests, now).await {
            Ok(certificates) => {
                let image = verified
                    .image()
                    .map_or("unproven", |image| image.id.as_str());
                tracing::info!(
                    node = verified.node_name(),
                    image,
                    rule = verified.rule(),
                    "admitted"
                );
                self.ring
                    .record(ring::accepted(verified, remote(peer), now));
                Answer::json(&certificates)
            }
            Err(error) => {
                tracing::warn!(node = verified.node_name(), error = %chain(&error), "verified, but not admitted");
                Answer::unavailable("the master could not record the admission; try again")
            }
        }
    }

    /// Records a refusal and says what its caller may know: by then it has proved which machine it is, or nothing.
    pub(crate) async fn refused(&self, peer: &Peer, refusal: &Refusal) -> Answer {
        self.refuse(peer, refusal).await;
        let code = refusal.code();
        if code == Code::NameAssigned {
            let own = refusal
                .verdict()
                .checks
                .iter()
                .find(|check| check.code == code.as_str());
            return Answer::named(own.map_or("", |check| check.expected.as_str()));
        }
        if [Code::RequestDenied, Code::QueueFull, Code::NodeKeyInUse].contains(&code) {
            return Answer::problem(code, code.meaning());
        }
        Answer::refused()
    }

    /// Records a refusal: in the Machine where the machine itself proved what is refused, in the ring in any case.
    pub(crate) async fn refuse(&self, peer: &Peer, refusal: &Refusal) {
        let now = SystemTime::now();
        let remote = remote(peer);
        tracing::info!(code = %refusal.code(), remote, message = refusal.message(), "refused");
        let mut changed = None;
        if let Some((proven, consequence)) = refusal.consequence() {
            match record::refusal(
                &self.client,
                &self.inventory,
                proven,
                consequence,
                refusal,
                now,
            )
            .await
            {
                Ok(written) => changed = written,
                Err(error) => {
                    let machine = &proven.id().name;
                    tracing::error!(machine, error = %chain(&error), "a proven refusal could not be recorded");
                }
            }
        }
        self.journal
            .refused(
                refusal,
                changed.as_ref().map(|(before, after)| (before, after)),
            )
            .await;
        self.ring.record(Entry::refused(refusal, remote, now));
    }

    /// Counts a request, of a node by its certificate, of a machine by its endorsement key where the inventory lists it.
    pub(crate) fn admit_rate(&self, peer: &Peer, listed: Option<Digest>) -> Result<(), Answer> {
        let node = renewing_peer(peer);
        let caller = match (&node, listed) {
            (Some(node), _) => Caller::Node(&node.machine_uid),
            (None, Some(key)) => Caller::Listed(key),
            (None, None) => Caller::Stranger,
        };
        let admitted = self.limiter.admit(caller, address(peer));
        if admitted {
            Ok(())
        } else {
            Err(Answer::problem(
                Code::RateLimited,
                Code::RateLimited.meaning(),
            ))
        }
    }

    /// Whole seconds since the desk was opened.
    pub(crate) fn ticks(&self) -> u64 {
        self.opened.elapsed().as_secs()
    }

    /// When a session begins that is opened now: with the next second, so that its last one is not cut short.
    pub(crate) fn next_tick(&self) -> u64 {
        self.ticks() + 1
    }

    pub(crate) fn channel(&self, peer: &Peer) -> Option<Channel> {
        Some(Channel {
            server_spki: self.server_spki,
            exporter: Digest(peer.exporter?),
        })
    }

    pub(crate) fn held(&self) -> Result<Held, Box<Refusal>> {
        let policy = self
            .inventory
            .policy()
            .ok_or_else(|| Box::new(Refusal::anonymous(Code::PolicyRejects)))?;
        let generation = policy
            .metadata
            .generation
            .and_then(|g| u64::try_from(g).ok())
            .unwrap_or(0);
        self.held_by(&policy.spec, generation)
    }

    pub(crate) fn held_by(
        &self,
        spec: &CertificatePolicySpec,
        generation: u64,
    ) -> Result<Held, Box<Refusal>> {
        let refuse = |code| Box::new(Refusal::anonymous(code));
        let rule = match judge(spec) {
            Ok(Judgement::Prove(rule)) => rule,
            Ok(Judgement::Reject) => return Err(refuse(Code::PolicyRejects)),
            Err(_faults) => return Err(refuse(Code::PolicyInvalid)),
        };
        Ok(Held {
            machines: self.inventory.machines(),
            releases: self.inventory.known_releases(),
            policy: policy_of(rule.policy()),
            rule,
            generation,
        })
    }

    pub(crate) fn reference<'a>(&'a self, held: &'a Held) -> Reference<'a> {
        Reference {
            inventory: &held.machines,
            rule: &held.rule,
            issuers: &self.issuers,
            releases: &held.releases,
            api_names: &self.api_names,
            cluster: &self.cluster,
            admin_key: self.admin_key,
        }
    }

    /// DNS names and addresses of the API server.
    pub(crate) fn api_names(&self) -> &[String] {
        &self.api_names
    }

    /// Joins and renewals that are held.
    pub(crate) fn held_sessions(&self) -> (usize, usize) {
        let (joins, renewals) = self
            .sessions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .held();
        let unproven = self
            .unproven
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .held();
        (joins + unproven.0, renewals + unproven.1)
    }

    /// Waits until no other exchange of the same Machine or of the same EK is being concluded.
    pub(crate) async fn turn(&self, machine: &str, ek: &str) -> [Option<MutexGuard<'_, ()>>; 2] {
        let (machine, ek) = (self.lane(machine), self.lane(ek));
        // In one order, so that no two wait for each other.
        let first = self.lanes[machine.min(ek)].lock().await;
        let second = if machine == ek {
            None
        } else {
            Some(self.lanes[machine.max(ek)].lock().await)
        };
        [Some(first), second]
    }

    fn lane(&self, name: &str) -> usize {
        usize::try_from(self.spread.hash_one(name) % 64).unwrap_or(0)
    }
}

/// A refusal outside the verifier knows no claims; the hello's belong to it where they are printable.
fn claimed(mut refusal: Refusal, claims: &Claims) -> Refusal {
    if let Refusal::Anonymous { verdict, .. } = &mut refusal
        && verdict.checks.is_empty()
        && claims.within_limits()
    {
        verdict.claims = claims.clone();
    }
    refusal
}

pub(crate) fn no_exporter() -> Answer {
    Answer::problem(
        Code::Channel,
        "attestation needs a TLS 1.3 connection of its own",
    )
}

pub(crate) fn one_at_a_time() -> Answer {
    Answer::problem(
        Code::RateLimited,
        "another exchange goes on over this connection; take one connection for each",
    )
}

/// Unix seconds.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs()
}
