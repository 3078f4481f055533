//! Requests of machines that wait for a person, as the API holds them: kept current by the watch and by own writes.
//!
//! Only requests that this service made count. Who may create requests cannot choose what a person is shown.

use crate::policy::{Fresh, Ruling, Wait};
use crate::request;
use config_attest::verifier::{Approval, Claimant, Standing};
use config_attest::{Code, Digest};
use config_kube::identity;
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use config_limits::{Network, networks};
use jiff::{SignedDuration, Timestamp};
use master_client::Change;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{PoisonError, RwLock};

/// Label of requests that wait or waited for a person.
pub(crate) const LABEL: &str = "pratique.dev/queue";
/// Annotation: what the request is for ([`Claimant::id`]).
pub(crate) const ID: &str = "pratique.dev/evidence";
/// Annotation: hash of the machine's endorsement key, or that it has none ([`Claimant::party`]).
pub(crate) const EK: &str = "pratique.dev/ek";
/// Annotation: RFC 3339 time after which an undecided request is dropped.
pub(crate) const EXPIRES: &str = "pratique.dev/expires";
/// Annotation: where the machine asked from, address and port.
pub(crate) const REMOTE: &str = "pratique.dev/remote";
/// Annotation: how much the machine proved, as far as it counts for its place in the queue ([`Proof`]).
pub(crate) const PROOF: &str = "pratique.dev/proof";
/// Digits of the id in a request's name.
const DIGITS: usize = 12;

/// What a person said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// Nothing yet.
    Nothing,
    /// Yes.
    Approved,
    /// No.
    Denied,
}

/// A person's word on a request, heard for the first time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    /// The request.
    pub(crate) request: String,
    /// Hash of the endorsement key of the machine that asks.
    pub(crate) ek: String,
    /// What was said.
    pub(crate) said: Said,
    /// By whom, and when.
    pub(crate) by: String,
}

/// What it takes to ask once more under another identity: what keeps an attacker from filling the queue by himself. In a full
/// queue, what proved less gives way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Proof {
    /// Nothing: a key that anybody can make.
    NoTpm,
    /// A TPM of no known maker, which may be a program.
    Tpm,
    /// Another TPM by a maker that the rule names.
    CertifiedTpm,
    /// An admin's word: a Machine of the inventory has this TPM.
    Inventory,
}

impl Proof {
    const ALL: [Self; 4] = [Self::NoTpm, Self::Tpm, Self::CertifiedTpm, Self::Inventory];

    /// What a machine proved.
    pub(crate) fn of(claimant: &Claimant) -> Self {
        let certified = || {
            claimant
                .verdict()
                .checks
                .iter()
                .any(|check| check.ok && check.name == "EK certificate")
        };
        if !claimant.has_tpm() {
            Self::NoTpm
        } else if claimant.own_machine().is_some() {
            Self::Inventory
        } else if certified() {
            Self::CertifiedTpm
        } else {
            Self::Tpm
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NoTpm => "no-tpm",
            Self::Tpm => "tpm",
            Self::CertifiedTpm => "certified-tpm",
            Self::Inventory => "inventory",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|proof| proof.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Request {
    id: Digest,
    ek: String,
    said: Said,
    /// Its certificate was issued.
    answered: bool,
    /// By whom, and when, as the API noted it.
    by: String,
    expires: Timestamp,
    revision: u64,
    proof: Proof,
    /// The widest network that it was asked from.
    block: Option<Network>,
}

/// The widest network of an address.
fn block(address: IpAddr) -> Option<Network> {
    networks(address).pop()
}

impl Request {
    fn of(object: &CertificateSigningRequest) -> Option<Self> {
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
        // A request with both words, which the API does not let be, has the safer one.
        let said = match (has("Denied") || has("Failed"), has("Approved")) {
            (true, _) => Said::Denied,
            (false, true) => Said::Approved,
            (false, false) => Said::Nothing,
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
        // A request of a version that did not note it proved the least.
        let proof = note(PROOF)
            .and_then(|text| Proof::parse(text))
            .unwrap_or(Proof::NoTpm);
        let remote = note(REMOTE).and_then(|text| text.parse::<SocketAddr>().ok());
        let block = remote.and_then(|remote| block(remote.ip()));
        Some(Self {
            id,
            ek,
            said,
            answered,
            by,
            expires,
            revision: request::revision(object),
            proof,
            block,
        })
    }
}

/// The requests.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    requests: RwLock<BTreeMap<String, Request>>,
}

impl Waiting {
    /// What the watch, or an own write, tells. Gives the word of a person that it brings.
    pub(crate) fn take(&self, change: &Change<CertificateSigningRequest>) -> Option<Decision> {
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
                    .filter_map(|object| Some((name(object), Request::of(object)?)))
                    .collect();
                None
            }
            Change::Set(object) => {
                let Some(request) = Request::of(object) else {
                    requests.remove(&name(object));
                    return None;
                };
                if requests
                    .get(&name(object))
                    .is_some_and(|known| known.revision > request.revision)
                {
                    // An own write that was answered after the watch told of what a person made of it.
                    return None;
                }
                let (ek, said, by) = (request.ek.clone(), request.said, request.by.clone());
                let before = requests.insert(name(object), request)?.said;
                (before == Said::Nothing && said != before).then(|| Decision {
                    request: name(object),
                    ek,
                    said,
                    by,
                })
            }
            Change::Gone(object) => {
                requests.remove(&name(object));
                None
            }
        }
    }

    /// What a person said of this claimant, or how it waits.
    pub(crate) fn decide(
        &self,
        claimant: &Claimant,
        standing: &Standing,
        from: IpAddr,
        now: Timestamp,
    ) -> Ruling {
        let requests = self.requests.read().unwrap_or_else(PoisonError::into_inner);
        let (rule, id, ek) = (claimant.rule(), claimant.id(), claimant.party());
        let name = request_name(claimant);
        let own = || requests.iter().filter(|(_, request)| request.ek == ek);
        if own().any(|(_, request)| request.said == Said::Denied) {
            return Ruling::Refuse(Code::RequestDenied);
        }
        let live = |request: &Request| request.said == Said::Nothing && now < request.expires;
        match requests.get(&name) {
            // Without a TPM a key that was let in, and is not the Machine's any more, had its time: another took its place.
            Some(request) if request.id == id && request.answered && !claimant.has_tpm() => {
                return Ruling::Refuse(Code::NodeKeyInUse);
            }
            Some(request) if request.id == id && request.said == Said::Approved => {
                let (id, by) = (request.id, request.by.clone());
                return Ruling::Approve(Approval::Person {
                    request: name,
                    id,
                    by,
                });
            }
            Some(request) if request.id == id && live(request) => {
                return Ruling::Wait(Wait { name, fresh: None });
            }
            Some(_) | None => {}
        }
        let others: Vec<(&String, &Request)> = requests
            .iter()
            .filter(|(_, request)| request.ek != ek && live(request))
            .collect();
        let mut instead_of: Vec<String> = own()
            .filter(|(_, request)| request.said == Said::Nothing)
            .map(|(name, _)| name.clone())
            .collect();
        if others.len() >= rule.max_waiting() {
            match gives_way(&others, Proof::of(claimant), block(from)) {
                Some(name) => instead_of.push(name),
                None => return Ruling::Refuse(Code::QueueFull),
            }
        }
        let wait =
            SignedDuration::from_secs(i64::try_from(rule.expires_seconds()).unwrap_or(i64::MAX));
        let (changes, is_other) = (
            standing.changes().to_vec(),
            matches!(standing, Standing::Changed(_)),
        );
        let expires = now.checked_add(wait).unwrap_or(Timestamp::MAX);
        Ruling::Wait(Wait {
            name,
            fresh: Some(Fresh {
                expires,
                changes,
                is_other,
                instead_of,
            }),
        })
    }

    /// Undecided requests whose time is over.
    pub(crate) fn expired(&self, now: Timestamp) -> Vec<String> {
        let requests = self.requests.read().unwrap_or_else(PoisonError::into_inner);
        let over = |request: &Request| request.said == Said::Nothing && request.expires <= now;
        requests
            .iter()
            .filter(|(_, request)| over(request))
            .map(|(name, _)| name.clone())
            .collect()
    }
}

/// Who gives way in a full queue: of those that proved the least, and less than the newcomer, the one that came last from the
/// block of networks that has most of them. Among equals that is so only where that block has more than the newcomer's will
/// have, so that no two push each other out in turns. None: the queue is full.
fn gives_way(
    others: &[(&String, &Request)],
    proof: Proof,
    block: Option<Network>,
) -> Option<String> {
    let least = others
        .iter()
        .map(|(_, request)| request.proof)
        .min()
        .filter(|least| *least <= proof)?;
    let among = || others.iter().filter(|(_, request)| request.proof == least);
    let count = |block: Option<Network>| {
        among()
            .filter(|(_, request)| request.block == block)
            .count()
    };
    let (name, chosen) =
        among().max_by_key(|(name, request)| (count(request.block), request.expires, *name))?;
    let fair = least < proof || count(chosen.block) > count(block) + 1;
    fair.then(|| (*name).clone())
}

/// The name of the request for a node in one state: the same whenever it comes back in it. That there is no TPM is in it, so
/// that a list shows it.
fn request_name(claimant: &Claimant) -> String {
    let kind = if claimant.has_tpm() { "" } else { "no-tpm-" };
    let digits: String = claimant.id().to_hex().chars().take(DIGITS).collect();
    format!("{}-{kind}{digits}", claimant.node_name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_attest::testing::{EkKind, SoftMachine, World};
    use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequestCondition;
    use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

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

    fn object(claimant: &Claimant, name: &str, said: Option<&str>) -> CertificateSigningRequest {
        let notes = [
            (ID, claimant.id().to_text()),
            (EK, claimant.party()),
            (EXPIRES, (NOW + SignedDuration::from_secs(60)).to_string()),
            (identity::DECIDED_BY, "jane".to_owned()),
            (PROOF, Proof::of(claimant).as_str().to_owned()),
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
        let condition = said.map(|kind| CertificateSigningRequestCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            ..CertificateSigningRequestCondition::default()
        });
        object.status.get_or_insert_default().conditions = Some(condition.into_iter().collect());
        object
    }

    fn decide(waiting: &Waiting, claimant: &Claimant, now: Timestamp) -> Ruling {
        waiting.decide(claimant, &Standing::New, [192, 0, 2, 1].into(), now)
    }

    /// A request that waits: its name, what it proved, its block, and when it came.
    fn request(number: u8, proof: Proof, at: u8) -> (String, Request) {
        let request = Request {
            id: Digest([number; 32]),
            ek: number.to_string(),
            said: Said::Nothing,
            answered: false,
            by: String::new(),
            expires: NOW + SignedDuration::from_secs(i64::from(number)),
            revision: 0,
            proof,
            block: block([10, 0, at, 1].into()),
        };
        (number.to_string(), request)
    }

    #[test]
    fn in_a_full_queue_what_proved_less_gives_way_and_then_who_has_more_than_others() {
        use Proof::{CertifiedTpm, Inventory, NoTpm, Tpm};
        let way = |all: &[(u8, Proof, u8)], proof: Proof, at: u8| {
            let all: Vec<_> = all
                .iter()
                .map(|(number, proof, at)| request(*number, *proof, *at))
                .collect();
            let all: Vec<_> = all.iter().map(|(name, request)| (name, request)).collect();
            gives_way(&all, proof, block([10, 0, at, 9].into()))
        };
        let mixed = [
            (1, Tpm, 1),
            (2, NoTpm, 1),
            (3, NoTpm, 2),
            (4, NoTpm, 2),
            (5, CertifiedTpm, 3),
        ];
        for proof in [Tpm, CertifiedTpm, Inventory] {
            assert_eq!(
                way(&mixed, proof, 2).as_deref(),
                Some("4"),
                "{proof:?}: the last of the larger block"
            );
        }
        // One network fills the queue; another gets its share of it, and the first no more than that back.
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
        // What proved more is never reached.
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

    fn named(ruling: Ruling) -> (String, bool) {
        let Ruling::Wait(wait) = ruling else {
            unreachable!("it waits: {ruling:?}")
        };
        (wait.name, wait.fresh.is_some())
    }

    #[test]
    fn a_request_is_made_once_and_decided_by_a_persons_word() {
        let (waiting, claimant) = (Waiting::default(), claimant("worker-1"));
        let (name, fresh) = named(decide(&waiting, &claimant, NOW));
        assert!(fresh && name.starts_with("worker-1-"), "{name}");
        waiting.take(&Change::Set(object(&claimant, &name, None)));
        assert_eq!(
            named(decide(&waiting, &claimant, NOW)),
            (name.clone(), false)
        );
        let told = waiting.take(&Change::Set(object(&claimant, &name, Some("Approved"))));
        assert_eq!(
            told.map(|told| (told.said, told.by)),
            Some((Said::Approved, "jane".to_owned()))
        );
        let again = waiting.take(&Change::Set(object(&claimant, &name, Some("Approved"))));
        assert_eq!(again, None, "a word is told once");
        let approved = Approval::Person {
            request: name.clone(),
            id: claimant.id(),
            by: "jane".to_owned(),
        };
        assert_eq!(decide(&waiting, &claimant, NOW), Ruling::Approve(approved));
        waiting.take(&Change::Set(object(&claimant, &name, Some("Denied"))));
        assert_eq!(
            decide(&waiting, &claimant, NOW),
            Ruling::Refuse(Code::RequestDenied)
        );
        waiting.take(&Change::Gone(object(&claimant, &name, None)));
        assert!(named(decide(&waiting, &claimant, NOW)).1);
    }

    /// A person may be quicker than the answer to the write that made the request.
    #[test]
    fn an_older_version_of_a_request_takes_no_word_back() {
        let (waiting, claimant) = (Waiting::default(), claimant("worker-1"));
        let (name, _) = named(decide(&waiting, &claimant, NOW));
        let version = |said, revision: &str| {
            let mut object = object(&claimant, &name, said);
            object.metadata.resource_version = Some(revision.to_owned());
            Change::Set(object)
        };
        waiting.take(&version(Some("Approved"), "10"));
        waiting.take(&version(None, "9"));
        assert!(matches!(
            decide(&waiting, &claimant, NOW),
            Ruling::Approve(_)
        ));
        waiting.take(&version(None, "11"));
        assert!(matches!(decide(&waiting, &claimant, NOW), Ruling::Wait(_)));
    }

    #[test]
    fn the_queue_is_bounded_and_the_old_stay() {
        let (waiting, first, second) = (
            Waiting::default(),
            claimant("worker-1"),
            claimant("worker-2"),
        );
        let (name, _) = named(decide(&waiting, &first, NOW));
        waiting.take(&Change::Set(object(&first, &name, None)));
        assert_eq!(
            decide(&waiting, &second, NOW),
            Ruling::Refuse(Code::QueueFull)
        );
        assert_eq!(named(decide(&waiting, &first, NOW)), (name.clone(), false));
        let later = NOW + SignedDuration::from_secs(60);
        assert_eq!(waiting.expired(NOW), Vec::<String>::new());
        assert_eq!(waiting.expired(later), [name]);
        assert!(
            named(decide(&waiting, &second, later)).1,
            "what is past its time makes room"
        );
    }

    #[test]
    fn a_request_that_somebody_else_wrote_or_that_is_for_another_state_says_nothing() {
        let (waiting, claimant, other) = (
            Waiting::default(),
            claimant("worker-1"),
            claimant("worker-2"),
        );
        let (name, _) = named(decide(&waiting, &claimant, NOW));
        let mut forged = object(&claimant, &name, Some("Approved"));
        forged.spec.username = Some("system:node:worker-9".to_owned());
        waiting.take(&Change::Listed(vec![forged]));
        assert!(named(decide(&waiting, &claimant, NOW)).1);
        // The name alone is not what was approved.
        waiting.take(&Change::Set(object(&other, &name, Some("Approved"))));
        assert!(named(decide(&waiting, &claimant, NOW)).1);
    }
}
