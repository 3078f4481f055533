//! The queue: CertificateSigningRequests of machines that wait, or waited, for a person's decision.
//!
//! This is a cache of API objects, updated by the watch and by the service's own writes; a decision
//! is the object's condition. Only requests that this service created count: other users who may
//! create requests cannot choose what an admin is shown.

use crate::policy::{NewRequest, PolicyDecision, QueuedRequest};
use crate::queue_rank::QueueRank;
use config_attest::verifier::{Approval, Claimant, PriorApproval};
use config_kube::identity;
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use config_limits::{Network, networks};
use config_protocol::Code;
use config_tpm::Digest;
use jiff::{SignedDuration, Timestamp};
use master_client::Change;
use master_journal::RequestDecision;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{PoisonError, RwLock};

/// Label of requests in the queue.
pub(crate) const LABEL: &str = "pratique.dev/queue";
/// Annotation: the evidence that the request is for ([`Claimant::id`]).
pub(crate) const ID: &str = "pratique.dev/evidence";
/// Annotation: hash of the endorsement key, or that there is none ([`Claimant::party`]).
pub(crate) const EK: &str = "pratique.dev/ek";
/// Annotation: RFC 3339 time after which an undecided request is deleted.
pub(crate) const EXPIRES: &str = "pratique.dev/expires";
/// Annotation: the address and port that the machine connected from.
pub(crate) const REMOTE: &str = "pratique.dev/remote";
/// Annotation: the Machine that asked, or that the approval has made.
pub(crate) const MACHINE: &str = "pratique.dev/machine";
/// Annotation: the rank of the request in a full queue ([`QueueRank`]).
pub(crate) const PROOF: &str = "pratique.dev/proof";
/// Hex digits of the evidence id in a request's name.
const DIGITS: usize = 12;

/// A person's decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueDecision {
    /// There is none yet.
    Undecided,
    /// The condition Approved.
    Approved,
    /// The condition Denied or Failed.
    Denied,
}

/// A decision that the watch reports for the first time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DecidedRequest {
    /// The request's name.
    pub(crate) request: String,
    /// Hash of the machine's endorsement key, or that it has none.
    pub(crate) ek: String,
    /// The decision.
    pub(crate) decision: QueueDecision,
    /// Who decided, and when.
    pub(crate) by: String,
}

impl DecidedRequest {
    /// The same for the journal.
    pub(crate) fn for_journal(&self) -> RequestDecision<'_> {
        RequestDecision {
            request: &self.request,
            ek: &self.ek,
            by: &self.by,
            decision: match self.decision {
                QueueDecision::Undecided => "Undecided",
                QueueDecision::Approved => "Approved",
                QueueDecision::Denied => "Denied",
            },
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredRequest {
    id: Digest,
    pub(crate) ek: String,
    pub(crate) decision: QueueDecision,
    /// Whether its certificate was issued.
    answered: bool,
    /// Whether a Machine asked, or the approval has made one.
    of_machine: bool,
    /// Who decided, and when, from the annotation that only the API server writes.
    by: String,
    expires: Timestamp,
    revision: u64,
    rank: QueueRank,
    /// The widest network of the address that the machine connected from.
    block: Option<Network>,
}

/// The widest network of an address: its block.
fn block(address: IpAddr) -> Option<Network> {
    networks(address).pop()
}

impl StoredRequest {
    pub(crate) fn of(object: &CertificateSigningRequest) -> Option<Self> {
        let meta = &object.metadata;
        let ours = object.spec.username.as_deref() == Some(identity::ATTESTATION_USER)
            && object.spec.signer_name == identity::NODE_CLIENT_SIGNER
            && meta
                .labels
                .as_ref()
                .is_some_and(|labels| labels.contains_key(LABEL));
        let note = |name: &str| {
            meta.annotations
                .as_ref()
                .and_then(|notes| notes.get(name))
                .filter(|_| ours)
        };
        let conditions = object
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_deref())
            .unwrap_or_default();
        let has = |kind: &str| {
            conditions
                .iter()
                .any(|c| c.type_ == kind && c.status == "True")
        };
        // The API rejects a request that is approved and denied. Should there be one, denial wins.
        let decision = match (has("Denied") || has("Failed"), has("Approved")) {
            (true, _) => QueueDecision::Denied,
            (false, true) => QueueDecision::Approved,
            (false, false) => QueueDecision::Undecided,
        };
        let answered = object
            .status
            .as_ref()
            .is_some_and(|status| status.certificate.is_some());
        let by = note(identity::DECIDED_BY).cloned().unwrap_or_default();
        let (id, ek, expires) = (
            note(ID)?.parse().ok()?,
            note(EK)?.clone(),
            note(EXPIRES)?.parse().ok()?,
        );
        // Earlier versions wrote no rank: such a request has the lowest.
        let rank = note(PROOF)
            .and_then(|text| QueueRank::parse(text))
            .unwrap_or(QueueRank::NoTpm);
        let remote = note(REMOTE).and_then(|text| text.parse::<SocketAddr>().ok());
        let block = remote.and_then(|remote| block(remote.ip()));
        Some(Self {
            id,
            ek,
            decision,
            answered,
            of_machine: note(MACHINE).is_some(),
            by,
            expires,
            revision: revision(object),
            rank,
            block,
        })
    }
}

impl StoredRequest {
    /// Whether a Machine asked, or one was made by its approval. Earlier versions named no Machine:
    /// their requests are known by the certificate.
    pub(crate) fn is_used(&self) -> bool {
        self.answered || self.of_machine
    }

    /// A person's approval in the request of this name.
    pub(crate) fn approval(&self, name: &str) -> Option<Approval> {
        (self.decision == QueueDecision::Approved).then(|| Approval::Person {
            request: name.to_owned(),
            id: self.id,
            by: self.by.clone(),
        })
    }
}

/// The requests of the queue, by name.
#[derive(Debug, Default)]
pub(crate) struct RequestQueue {
    requests: RwLock<BTreeMap<String, StoredRequest>>,
}

impl RequestQueue {
    /// Takes a change from the watch, or one of the service's own writes. Returns the decision that
    /// it brings, once.
    pub(crate) fn take(
        &self,
        change: &Change<CertificateSigningRequest>,
    ) -> Option<DecidedRequest> {
        let mut requests = self
            .requests
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let name =
            |object: &CertificateSigningRequest| object.metadata.name.clone().unwrap_or_default();
        match change {
            Change::Listed(objects) => {
                *requests = objects
                    .iter()
                    .filter_map(|object| Some((name(object), StoredRequest::of(object)?)))
                    .collect();
                None
            }
            Change::Set(object) => {
                let Some(request) = StoredRequest::of(object) else {
                    requests.remove(&name(object));
                    return None;
                };
                if requests
                    .get(&name(object))
                    .is_some_and(|known| known.revision > request.revision)
                {
                    // The watch may deliver a person's decision before the response to our own
                    // create arrives. The response is older, and must not undo the decision.
                    return None;
                }
                let (ek, decision, by) = (request.ek.clone(), request.decision, request.by.clone());
                let before = requests.insert(name(object), request)?.decision;
                (before == QueueDecision::Undecided && decision != before).then(|| DecidedRequest {
                    request: name(object),
                    ek,
                    decision,
                    by,
                })
            }
            Change::Deleted(gone) => {
                requests.remove(&gone.key.name);
                None
            }
        }
    }

    /// The decision for a claimant: a person's, if there is one for this evidence; else a place in
    /// the queue, or a refusal where the queue is full.
    ///
    /// An approval makes one Machine, or is about one, and the others of the same machine are used
    /// up with it. So the stranger that comes after the Machine was deleted waits for a person
    /// again: a new request replaces all that it had.
    pub(crate) fn decide(
        &self,
        claimant: &Claimant,
        prior: &PriorApproval,
        from: IpAddr,
        now: Timestamp,
    ) -> PolicyDecision {
        let requests = self.requests.read().unwrap_or_else(PoisonError::into_inner);
        let (rule, id, ek) = (claimant.rule(), claimant.id(), claimant.party());
        let name = request_name(claimant);
        let own = || requests.iter().filter(|(_, request)| request.ek == ek);
        if own().any(|(_, request)| request.decision == QueueDecision::Denied) {
            return PolicyDecision::Refuse(Code::RequestDenied);
        }
        let live = |request: &StoredRequest| {
            request.decision == QueueDecision::Undecided && now < request.expires
        };
        let is_spent = claimant.is_stranger() && own().any(|(_, request)| request.is_used());
        match requests.get(&name).filter(|request| request.id == id) {
            // Without a TPM the evidence id changes with the key only. A key that has had its
            // certificate and was replaced since must not come back on the old approval.
            Some(request) if request.answered && !claimant.has_tpm() => {
                return PolicyDecision::Refuse(Code::NodeKeyInUse);
            }
            Some(request) if !is_spent => {
                if let Some(approval) = request.approval(&name) {
                    return PolicyDecision::Approve(approval);
                }
                if live(request) {
                    return PolicyDecision::Queue(QueuedRequest {
                        name,
                        to_create: None,
                    });
                }
            }
            Some(_) | None => {}
        }
        let others: Vec<(&String, &StoredRequest)> = requests
            .iter()
            .filter(|(_, request)| request.ek != ek && live(request))
            .collect();
        let mut replaces: Vec<String> = own()
            .filter(|(_, request)| is_spent || request.decision == QueueDecision::Undecided)
            .map(|(name, _)| name.clone())
            .collect();
        if others.len() >= rule.max_waiting() {
            match displaced(&others, QueueRank::of(claimant), block(from)) {
                Some(name) => replaces.push(name),
                None => return PolicyDecision::Refuse(Code::QueueFull),
            }
        }
        let wait =
            SignedDuration::from_secs(i64::try_from(rule.expires_seconds()).unwrap_or(i64::MAX));
        let (changes, is_other) = (
            prior.changes().to_vec(),
            matches!(prior, PriorApproval::Changed(_)),
        );
        let expires = now.checked_add(wait).unwrap_or(Timestamp::MAX);
        PolicyDecision::Queue(QueuedRequest {
            name,
            to_create: Some(NewRequest {
                expires,
                changes,
                is_other,
                replaces,
            }),
        })
    }

    /// Names of undecided requests that have expired.
    pub(crate) fn expired(&self, now: Timestamp) -> Vec<String> {
        let requests = self.requests.read().unwrap_or_else(PoisonError::into_inner);
        let over = |request: &StoredRequest| {
            request.decision == QueueDecision::Undecided && request.expires <= now
        };
        requests
            .iter()
            .filter(|(_, request)| over(request))
            .map(|(name, _)| name.clone())
            .collect()
    }
}

/// The request that a newcomer displaces in a full queue; `None`: the newcomer is refused.
///
/// Candidates are the requests of the lowest rank, if that is not above the newcomer's. Among these
/// it is the newest from the block of networks that has most of them. At equal rank that block must
/// also have more than the newcomer's block will have, or two blocks would displace each other's
/// requests in turn.
fn displaced(
    others: &[(&String, &StoredRequest)],
    rank: QueueRank,
    block: Option<Network>,
) -> Option<String> {
    let least = others
        .iter()
        .map(|(_, request)| request.rank)
        .min()
        .filter(|least| *least <= rank)?;
    let among = || others.iter().filter(|(_, request)| request.rank == least);
    let count = |block: Option<Network>| {
        among()
            .filter(|(_, request)| request.block == block)
            .count()
    };
    let (name, chosen) =
        among().max_by_key(|(name, request)| (count(request.block), request.expires, *name))?;
    let fair = least < rank || count(chosen.block) > count(block) + 1;
    fair.then(|| (*name).clone())
}

/// The name of a claimant's request. The same evidence always has the same name, so a machine that
/// comes back finds its request. The name shows when there is no TPM.
fn request_name(claimant: &Claimant) -> String {
    let kind = if claimant.has_tpm() { "" } else { "no-tpm-" };
    let digits: String = claimant.id().to_hex().chars().take(DIGITS).collect();
    format!("{}-{kind}{digits}", claimant.node_name())
}

/// The resource version of a request; they are totally ordered in this API.
pub(crate) fn revision(object: &CertificateSigningRequest) -> u64 {
    object
        .metadata
        .resource_version
        .as_deref()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::k8s_openapi::ByteString;
    use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequestCondition;
    use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use master_client::Gone;
    use tests_machines::{EkKind, SoftMachine, World};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn claimant(node: &str) -> Claimant {
        let mut world = World::new();
        world.rule.policy = config_kube::PolicyName::Queue;
        world.rule.queue = config_kube::policy::QueueRule {
            expires_seconds: 60,
            max_waiting: 1,
        };
        let mut machine = SoftMachine::new(node, EkKind::P256);
        machine.boot(&world.image, "nocloud", b"version = 1\n");
        world.claim(&machine).unwrap()
    }

    fn object(
        claimant: &Claimant,
        name: &str,
        condition: Option<&str>,
    ) -> CertificateSigningRequest {
        let notes = [
            (ID, claimant.id().to_text()),
            (EK, claimant.party()),
            (EXPIRES, (NOW + SignedDuration::from_secs(60)).to_string()),
            (identity::DECIDED_BY, "jane".to_owned()),
            (PROOF, QueueRank::of(claimant).as_str().to_owned()),
        ];
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([(LABEL.to_owned(), "true".to_owned())].into()),
            annotations: Some(notes.map(|(key, value)| (key.to_owned(), value)).into()),
            ..ObjectMeta::default()
        };
        let mut object = CertificateSigningRequest {
            metadata,
            ..CertificateSigningRequest::default()
        };
        object.spec.username = Some(identity::ATTESTATION_USER.to_owned());
        identity::NODE_CLIENT_SIGNER.clone_into(&mut object.spec.signer_name);
        let condition = condition.map(|kind| CertificateSigningRequestCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            ..CertificateSigningRequestCondition::default()
        });
        object.status.get_or_insert_default().conditions = Some(condition.into_iter().collect());
        object
    }

    fn decide(queue: &RequestQueue, claimant: &Claimant, now: Timestamp) -> PolicyDecision {
        queue.decide(claimant, &PriorApproval::New, [192, 0, 2, 1].into(), now)
    }

    /// A request that waits: its name, what it proved, its block, and when it came.
    fn request(number: u8, rank: QueueRank, at: u8) -> (String, StoredRequest) {
        let request = StoredRequest {
            id: Digest([number; 32]),
            ek: number.to_string(),
            decision: QueueDecision::Undecided,
            answered: false,
            of_machine: false,
            by: String::new(),
            expires: NOW + SignedDuration::from_secs(i64::from(number)),
            revision: 0,
            rank,
            block: block([10, 0, at, 1].into()),
        };
        (number.to_string(), request)
    }

    #[test]
    fn a_full_queue_drops_lower_ranks_first_then_the_largest_block() {
        use QueueRank::{CertifiedTpm, Inventory, NoTpm, Tpm};
        let way = |all: &[(u8, QueueRank, u8)], rank: QueueRank, at: u8| {
            let all: Vec<_> = all
                .iter()
                .map(|(number, rank, at)| request(*number, *rank, *at))
                .collect();
            let all: Vec<_> = all.iter().map(|(name, request)| (name, request)).collect();
            displaced(&all, rank, block([10, 0, at, 9].into()))
        };
        let mixed = [
            (1, Tpm, 1),
            (2, NoTpm, 1),
            (3, NoTpm, 2),
            (4, NoTpm, 2),
            (5, CertifiedTpm, 3),
        ];
        for rank in [Tpm, CertifiedTpm, Inventory] {
            assert_eq!(
                way(&mixed, rank, 2).as_deref(),
                Some("4"),
                "{rank:?}: the last of the larger block"
            );
        }
        // One network fills the queue; another gets its share of it, and the first gets back no
        // more than its own.
        let crowd = [(1, NoTpm, 1), (2, NoTpm, 1), (3, NoTpm, 1)];
        assert_eq!(way(&crowd, NoTpm, 1), None);
        assert_eq!(way(&crowd, NoTpm, 2).as_deref(), Some("3"));
        assert_eq!(
            way(&[(1, NoTpm, 1), (2, NoTpm, 1), (4, NoTpm, 2)], NoTpm, 2),
            None
        );
        assert_eq!(
            way(&[(1, NoTpm, 1), (2, NoTpm, 1), (4, NoTpm, 2)], NoTpm, 1),
            None
        );
        // A higher rank is never displaced.
        assert_eq!(
            way(
                &[
                    (1, CertifiedTpm, 1),
                    (2, CertifiedTpm, 1),
                    (3, Inventory, 1)
                ],
                Tpm,
                2
            ),
            None
        );
    }

    fn queued(decision: PolicyDecision) -> (String, bool) {
        let PolicyDecision::Queue(request) = decision else {
            unreachable!("it waits: {decision:?}")
        };
        (request.name, request.to_create.is_some())
    }

    #[test]
    fn a_request_is_created_once_and_decided_by_a_person() {
        let (queue, claimant) = (RequestQueue::default(), claimant("worker-1"));
        let (name, fresh) = queued(decide(&queue, &claimant, NOW));
        assert!(fresh && name.starts_with("worker-1-"), "{name}");
        queue.take(&Change::Set(object(&claimant, &name, None)));
        assert_eq!(
            queued(decide(&queue, &claimant, NOW)),
            (name.clone(), false)
        );
        let decided = queue.take(&Change::Set(object(&claimant, &name, Some("Approved"))));
        assert_eq!(
            decided.map(|decided| (decided.decision, decided.by)),
            Some((QueueDecision::Approved, "jane".to_owned()))
        );
        let again = queue.take(&Change::Set(object(&claimant, &name, Some("Approved"))));
        assert_eq!(again, None, "a decision is reported once");
        let approved = Approval::Person {
            request: name.clone(),
            id: claimant.id(),
            by: "jane".to_owned(),
        };
        assert_eq!(
            decide(&queue, &claimant, NOW),
            PolicyDecision::Approve(approved)
        );
        queue.take(&Change::Set(object(&claimant, &name, Some("Denied"))));
        assert_eq!(
            decide(&queue, &claimant, NOW),
            PolicyDecision::Refuse(Code::RequestDenied)
        );
        queue.take(&Change::Deleted(Gone::of(
            &object(&claimant, &name, None).metadata,
        )));
        assert!(queued(decide(&queue, &claimant, NOW)).1);
    }

    /// The same evidence as a stranger's and as a Machine's, by requests that made a Machine, that
    /// a Machine asked, and that an earlier version answered.
    #[test]
    fn an_approval_that_made_a_machine_admits_no_stranger() {
        let stranger = claimant("worker-1");
        let mut world = World::new();
        world.rule.policy = config_kube::PolicyName::Queue;
        let known = world.machine("worker-1", "10.0.0.11", EkKind::P256);
        let known = world.claim(&known).unwrap();
        assert!(stranger.is_stranger() && !known.is_stranger());
        let used = |claimant: &Claimant, condition: Option<&str>, by_certificate: bool| {
            let mut object = object(claimant, &request_name(claimant), condition);
            if by_certificate {
                object.status.get_or_insert_default().certificate = Some(ByteString(vec![1]));
            } else {
                let notes = object.metadata.annotations.get_or_insert_default();
                notes.insert(MACHINE.to_owned(), "worker-1".to_owned());
            }
            let queue = RequestQueue::default();
            queue.take(&Change::Set(object));
            decide(&queue, claimant, NOW)
        };
        for by_certificate in [false, true] {
            for condition in [Some("Approved"), None] {
                let PolicyDecision::Queue(asked) = used(&stranger, condition, by_certificate)
                else {
                    unreachable!("the stranger waits")
                };
                let replaced = asked.to_create.map(|new| new.replaces);
                assert_eq!(replaced, Some(vec![request_name(&stranger)]));
            }
            let denied = used(&stranger, Some("Denied"), by_certificate);
            assert_eq!(denied, PolicyDecision::Refuse(Code::RequestDenied));
            // The control: the Machine is there.
            let approved = used(&known, Some("Approved"), by_certificate);
            assert!(
                matches!(approved, PolicyDecision::Approve(_)),
                "{approved:?}"
            );
        }
    }

    /// Two approvals of one machine, with other claims: each is good until one has made a Machine.
    #[test]
    fn a_second_approval_admits_no_stranger_once_one_made_a_machine() {
        let (first, second) = {
            let mut world = World::new();
            world.rule.policy = config_kube::PolicyName::Queue;
            let mut machine = SoftMachine::new("worker-1", EkKind::P256);
            machine.boot(&world.image, "nocloud", b"version = 1\n");
            let first = world.claim(&machine).unwrap();
            "another".clone_into(&mut machine.claims.instance);
            (first, world.claim(&machine).unwrap())
        };
        let (one, two) = (request_name(&first), request_name(&second));
        assert_ne!(one, two);
        let approved = |claimant| object(claimant, &request_name(claimant), Some("Approved"));
        let mut used = approved(&second);
        let notes = used.metadata.annotations.get_or_insert_default();
        notes.insert(MACHINE.to_owned(), "worker-1".to_owned());
        let mut answered = approved(&second);
        answered.status.get_or_insert_default().certificate = Some(ByteString(vec![1]));
        let mut all = [one.clone(), two.clone()];
        all.sort();

        let queue = RequestQueue::default();
        queue.take(&Change::Listed(vec![approved(&first), approved(&second)]));
        for claimant in [&first, &second] {
            let asked = decide(&queue, claimant, NOW);
            assert!(matches!(asked, PolicyDecision::Approve(_)), "{asked:?}");
        }
        for used in [used, answered] {
            queue.take(&Change::Listed(vec![approved(&first), used]));
            for claimant in [&first, &second] {
                let PolicyDecision::Queue(asked) = decide(&queue, claimant, NOW) else {
                    unreachable!("it waits")
                };
                let replaced = asked.to_create.map(|new| new.replaces);
                assert_eq!(replaced.as_deref(), Some(&all[..]));
            }
        }
        // The new request has replaced both, and is approved.
        queue.take(&Change::Listed(vec![approved(&first)]));
        let asked = decide(&queue, &first, NOW);
        assert!(matches!(asked, PolicyDecision::Approve(_)), "{asked:?}");
    }

    /// A person may decide before the answer to the write that created the request.
    #[test]
    fn an_older_version_of_a_request_does_not_undo_a_decision() {
        let (queue, claimant) = (RequestQueue::default(), claimant("worker-1"));
        let (name, _) = queued(decide(&queue, &claimant, NOW));
        let version = |condition, revision: &str| {
            let mut object = object(&claimant, &name, condition);
            object.metadata.resource_version = Some(revision.to_owned());
            Change::Set(object)
        };
        queue.take(&version(Some("Approved"), "10"));
        queue.take(&version(None, "9"));
        assert!(matches!(
            decide(&queue, &claimant, NOW),
            PolicyDecision::Approve(_)
        ));
        queue.take(&version(None, "11"));
        assert!(matches!(
            decide(&queue, &claimant, NOW),
            PolicyDecision::Queue(_)
        ));
    }

    #[test]
    fn a_full_queue_keeps_its_requests() {
        let (queue, first, second) = (
            RequestQueue::default(),
            claimant("worker-1"),
            claimant("worker-2"),
        );
        let (name, _) = queued(decide(&queue, &first, NOW));
        queue.take(&Change::Set(object(&first, &name, None)));
        assert_eq!(
            decide(&queue, &second, NOW),
            PolicyDecision::Refuse(Code::QueueFull)
        );
        assert_eq!(queued(decide(&queue, &first, NOW)), (name.clone(), false));
        let later = NOW + SignedDuration::from_secs(60);
        assert_eq!(queue.expired(NOW), Vec::<String>::new());
        assert_eq!(queue.expired(later), [name]);
        assert!(
            queued(decide(&queue, &second, later)).1,
            "an expired request makes room"
        );
    }

    #[test]
    fn a_request_of_another_user_or_for_another_state_does_not_count() {
        let (queue, claimant, other) = (
            RequestQueue::default(),
            claimant("worker-1"),
            claimant("worker-2"),
        );
        let (name, _) = queued(decide(&queue, &claimant, NOW));
        let mut forged = object(&claimant, &name, Some("Approved"));
        forged.spec.username = Some("system:node:worker-9".to_owned());
        queue.take(&Change::Listed(vec![forged]));
        assert!(queued(decide(&queue, &claimant, NOW)).1);
        // The approval is for the evidence, not for the name alone.
        queue.take(&Change::Set(object(&other, &name, Some("Approved"))));
        assert!(queued(decide(&queue, &claimant, NOW)).1);
    }
}
