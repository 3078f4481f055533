//! API writes of the queue: the request that a person decides, and the Machine that an approval
//! creates.

use crate::admit::Requests;
use crate::answer::ServiceAnswer;
use crate::error::Error;
use crate::inventory::ReferenceTables;
use crate::policy::{NewRequest, QueuedRequest};
use crate::queue_rank::QueueRank;
use crate::record;
use crate::request_queue::{EK, EXPIRES, ID, LABEL, MACHINE, PROOF, REMOTE, RequestQueue};
use crate::strangers_requests::StrangersRequests;
use config_attest::Verdict;
use config_attest::verifier::{Approval, Claimant};
use config_kube::Machine;
use config_kube::identity::{ATTESTATION_USER, NODE_CLIENT_SIGNER};
use config_kube::k8s_openapi::ByteString;
use config_kube::k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use config_protocol::Code;
use master_client::{ApiError, Change, Client, DeleteParams, Gone, Key, ListParams, Reason};
use master_journal::APPROVED_REQUEST;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// Longest annotation, in bytes; the NodeAttestation has the whole text.
const NOTE: usize = 8 * 1024;

/// The first thing that a person reads about a machine without a TPM.
const NO_TPM: &str = "NOTHING: it has no TPM, so anyone with a self-made key can claim to be this machine. Approve only \
                      if the machine's own console shows this node key";

/// A claimant to queue, with its certificate requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Submission<'a> {
    pub(crate) claimant: &'a Claimant,
    pub(crate) requests: Requests<'a>,
    pub(crate) remote: &'a str,
    pub(crate) now: SystemTime,
}

/// Writes the requests of the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueWriter<'a> {
    pub(crate) client: &'a Client,
    pub(crate) queue: &'a RequestQueue,
    pub(crate) inventory: &'a ReferenceTables,
}

/// The commands with which a person decides a request.
pub(crate) fn command(request: &str) -> String {
    format!(
        "waits for a person: kubectl describe csr {request}, then kubectl certificate approve {request} (or deny)"
    )
}

impl QueueWriter<'_> {
    /// Creates the request unless it exists, and returns the machine's answer: 202 with the
    /// request's name.
    ///
    /// # Errors
    /// The API rejects one of the writes, or has a Machine of the stranger's name.
    pub(crate) async fn enqueue(
        &self,
        submission: &Submission<'_>,
        queued: &QueuedRequest,
    ) -> Result<ServiceAnswer, Error> {
        let message = command(&queued.name);
        if let Some(new) = &queued.to_create {
            let fail = |source| Error::Api {
                what: "the request that waits for a person",
                source,
            };
            self.check_has_no_machine(submission.claimant)
                .await
                .map_err(fail)?;
            for old in &new.replaces {
                tracing::info!(
                    request = old,
                    replacement = queued.name,
                    "deleting a CertificateSigningRequest that another replaces"
                );
                drop_request(self.client, self.queue, old)
                    .await
                    .map_err(fail)?;
            }
            self.create(&object(submission, &queued.name, new))
                .await
                .map_err(fail)?;
            tracing::info!(
                node = submission.claimant.node_name(),
                request = queued.name,
                "CertificateSigningRequest waits for approval"
            );
            if let Some(id) = submission.claimant.own_machine() {
                let verdict = submission.claimant.verdict();
                let changed = !new.changes.is_empty();
                let text = if changed {
                    format!("{message}; {}", new.changes.join("; "))
                } else {
                    message.clone()
                };
                record::waits(
                    self.client,
                    self.inventory,
                    id,
                    &text,
                    &verdict,
                    new.is_other,
                )
                .await?;
            }
        }
        Ok(ServiceAnswer::queued(&message))
    }

    /// Checks that a stranger has no Machine yet. If a join was interrupted after it made the
    /// Machine, the inventory learns of it a moment later. A request from that moment would name no
    /// Machine, and its approval could make another one after this one was deleted.
    async fn check_has_no_machine(&self, claimant: &Claimant) -> Result<(), ApiError> {
        if !claimant.is_stranger() {
            return Ok(());
        }
        let name = claimant.node_name();
        if self.client.get_opt::<Machine>(None, name).await?.is_some() {
            let why = format!("Machine {name} has just been made");
            return Err(ApiError::new(Reason::Conflict, why));
        }
        Ok(())
    }

    /// Creates a request. An object of the same name by another user is deleted first: it must not
    /// block the queue.
    async fn create(&self, object: &CertificateSigningRequest) -> Result<(), ApiError> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let written = match self.client.create(object).await {
            Err(error) if error.is_already_exists() => {
                let there = self
                    .client
                    .get_opt::<CertificateSigningRequest>(None, name)
                    .await?;
                match there {
                    Some(ours) if ours.spec.username.as_deref() == Some(ATTESTATION_USER) => ours,
                    Some(_) | None => {
                        drop_request(self.client, self.queue, name).await?;
                        self.client.create(object).await?
                    }
                }
            }
            outcome => outcome?,
        };
        self.queue.take(&Change::Set(written));
        Ok(())
    }

    /// Uses up the approval of a stranger, before it makes the Machine: the stranger's other
    /// requests are deleted, approved or not, and its request names the Machine from then on. The
    /// API's copies of the requests decide, since the queue's may be older.
    async fn spend(
        &self,
        ek: &str,
        approval: &Approval,
        machine: &str,
    ) -> Result<CertificateSigningRequest, ApiError> {
        let params = ListParams {
            labels: Some(LABEL.to_owned()),
            ..ListParams::default()
        };
        let all = self
            .client
            .list::<CertificateSigningRequest>(None, &params)
            .await?
            .items;
        let found = StrangersRequests::of(all, ek, approval);
        let StrangersRequests {
            mut approved,
            others,
        } = found.map_err(|why| ApiError::new(Reason::Conflict, why))?;
        for other in &others {
            drop_request(self.client, self.queue, other).await?;
        }
        let notes = approved.metadata.annotations.get_or_insert_default();
        notes.insert(MACHINE.to_owned(), machine.to_owned());
        self.client.update(&approved).await
    }
}

/// Deletes a request; one that is gone already is no error.
pub(crate) async fn drop_request(
    client: &Client,
    queue: &RequestQueue,
    name: &str,
) -> Result<(), ApiError> {
    match client
        .delete::<CertificateSigningRequest>(None, name, &DeleteParams::default())
        .await
    {
        Err(error) if !error.is_not_found() => return Err(error),
        Ok(()) | Err(_) => {}
    }
    queue.take(&Change::Deleted(Gone {
        key: Key::cluster(name),
        ..Gone::default()
    }));
    Ok(())
}

fn object(submission: &Submission<'_>, name: &str, new: &NewRequest) -> CertificateSigningRequest {
    let (claimant, verdict) = (submission.claimant, submission.claimant.verdict());
    let seconds = i32::try_from(claimant.rule().ttl_seconds().max(600)).ok();
    let pem = master_ca::pem("CERTIFICATE REQUEST", submission.requests.client);
    let mut notes = notes(claimant, &verdict);
    notes.insert(REMOTE, submission.remote.to_owned());
    notes.insert(
        "pratique.dev/since",
        crate::time::timestamp(submission.now).to_string(),
    );
    notes.insert(EXPIRES, new.expires.to_string());
    notes.insert("pratique.dev/changed", new.changes.join("; "));
    let notes = notes.into_iter().filter(|(_, value)| !value.is_empty());
    CertificateSigningRequest {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(BTreeMap::from([(LABEL.to_owned(), "true".to_owned())])),
            annotations: Some(
                notes
                    .map(|(key, value)| (key.to_owned(), cut(value)))
                    .collect(),
            ),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: NODE_CLIENT_SIGNER.to_owned(),
            usages: Some(vec![
                "digital signature".to_owned(),
                "client auth".to_owned(),
            ]),
            expiration_seconds: seconds,
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    }
}

/// The annotations of a request: what it is for, which checks passed and which did not.
fn notes(claimant: &Claimant, verdict: &Verdict) -> BTreeMap<&'static str, String> {
    let claims = &verdict.claims;
    let passed = |name: &str| {
        verdict
            .checks
            .iter()
            .find(|check| check.ok && check.name == name)
    };
    let mut proved = vec![
        if claimant.has_tpm() {
            "its keys are in one TPM"
        } else {
            NO_TPM
        }
        .to_owned(),
    ];
    for name in [
        "EK hash",
        "EK certificate",
        "Secure Boot",
        "image signature",
        "configuration",
    ] {
        proved.extend(passed(name).map(|check| format!("{name}: {}", check.actual)));
    }
    let shown = if claims.image.is_empty() {
        "none"
    } else {
        &claims.image
    };
    BTreeMap::from([
        (ID, claimant.id().to_text()),
        (EK, claimant.party()),
        (PROOF, QueueRank::of(claimant).as_str().to_owned()),
        (
            MACHINE,
            claimant.machine_name().unwrap_or_default().to_owned(),
        ),
        ("pratique.dev/node", claimant.node_name().to_owned()),
        ("pratique.dev/role", claimant.role().to_owned()),
        ("pratique.dev/rule", claimant.rule().name().to_owned()),
        ("pratique.dev/proved", proved.join("; ")),
        ("pratique.dev/not-proved", verdict.failed()),
        (
            "pratique.dev/claimed",
            format!(
                "addresses {}; image {shown}; instance {}",
                claims.addresses.join(", "),
                claims.instance
            ),
        ),
    ])
}

fn cut(text: String) -> String {
    if text.len() <= NOTE {
        text
    } else {
        text.chars().take(NOTE / 4).chain(['…']).collect()
    }
}

/// Checks that a machine which is not in the inventory does not claim the name of an existing Node,
/// such as an ordinary kubelet's.
///
/// # Errors
/// `NAME_MISMATCH` where there is such a Node, or the API does not answer.
pub(crate) async fn check_name_is_free(client: &Client, claimant: &Claimant) -> Result<(), Code> {
    if !claimant.is_stranger() {
        return Ok(());
    }
    match client.get_opt::<Node>(None, claimant.node_name()).await {
        Ok(None) => Ok(()),
        Ok(Some(_)) | Err(_) => Err(Code::NameMismatch),
    }
}

/// Creates the Machine of a stranger that is admitted; `None` where there is one.
///
/// # Errors
/// The approval has made a Machine before or is gone, or the API did not create the Machine as it
/// was sent.
pub(crate) async fn create_machine(
    writer: &QueueWriter<'_>,
    claimant: &Claimant,
    approval: &Approval,
) -> Result<Option<Machine>, Error> {
    let Some(mut machine) = claimant.to_make() else {
        return Ok(None);
    };
    if let Approval::Person { request, by, .. } = approval {
        let name = machine.metadata.name.as_deref().unwrap_or_default();
        let approved = writer
            .spend(&claimant.party(), approval, name)
            .await
            .map_err(|source| Error::Api {
                what: "the approved request",
                source,
            })?;
        let note = (
            APPROVED_REQUEST.to_owned(),
            format!("{by}: request {request} ({})", approval_note(approved)),
        );
        machine.metadata.annotations = Some(BTreeMap::from([note]));
    }
    let fail = |source| Error::Api {
        what: "the new Machine",
        source,
    };
    let made = writer.client.create(&machine).await.map_err(fail)?;
    if made.spec != machine.spec {
        return Err(fail(ApiError::new(
            Reason::Invalid,
            "the API created a different Machine",
        )));
    }
    writer.inventory.take_written(made.clone());
    Ok(Some(made))
}

/// Reason and message of the condition Approved in a request.
fn approval_note(object: CertificateSigningRequest) -> String {
    let conditions = object
        .status
        .and_then(|status| status.conditions)
        .unwrap_or_default();
    let approval = conditions
        .into_iter()
        .find(|condition| condition.type_ == "Approved")
        .unwrap_or_default();
    [
        approval.reason.unwrap_or_default(),
        approval.message.unwrap_or_default(),
    ]
    .join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::FakeQueueApi;
    use crate::policy::PolicyDecision;
    use config_attest::verifier::PriorApproval;
    use config_kube::MachineSpec;
    use config_kube::identity::DECIDED_BY;
    use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequestCondition;
    use jiff::Timestamp;
    use std::sync::Arc;
    use tests_machines::{EkKind, SoftMachine, World};

    /// A stranger under the rule `queue`, with these claims beside its name.
    fn stranger(machine: &SoftMachine, instance: &str) -> Claimant {
        let mut world = World::new();
        world.rule.policy = config_kube::PolicyName::Queue;
        let mut machine = machine.clone();
        instance.clone_into(&mut machine.claims.instance);
        machine.boot(&world.image, "nocloud", b"version = 1\n");
        world.claim(&machine).unwrap()
    }

    fn submission(claimant: &Claimant) -> Submission<'_> {
        Submission {
            claimant,
            requests: Requests {
                client: &[1],
                serving: &[2],
            },
            remote: "192.0.2.1:4000",
            now: SystemTime::UNIX_EPOCH,
        }
    }

    fn queued(claimant: &Claimant) -> QueuedRequest {
        let (now, prior) = (Timestamp::UNIX_EPOCH, PriorApproval::New);
        let queue = RequestQueue::default();
        let decision = queue.decide(claimant, &prior, [192, 0, 2, 1].into(), now);
        let PolicyDecision::Queue(queued) = decision else {
            unreachable!("it waits: {decision:?}")
        };
        queued
    }

    /// The claimant's request, with a condition of this type.
    fn decided(claimant: &Claimant, word: &str) -> CertificateSigningRequest {
        let queued = queued(claimant);
        let mut object = object(
            &submission(claimant),
            &queued.name,
            &queued.to_create.unwrap(),
        );
        ATTESTATION_USER.clone_into(object.spec.username.get_or_insert_default());
        note(&mut object, DECIDED_BY, "jane at noon");
        object.status.get_or_insert_default().conditions =
            Some(vec![CertificateSigningRequestCondition {
                type_: word.to_owned(),
                status: "True".to_owned(),
                ..CertificateSigningRequestCondition::default()
            }]);
        object
    }

    fn note(object: &mut CertificateSigningRequest, key: &str, value: &str) {
        let notes = object.metadata.annotations.get_or_insert_default();
        notes.insert(key.to_owned(), value.to_owned());
    }

    /// Whether a Machine is made of the first claimant by its approval where the API has these
    /// requests, and what is written.
    async fn makes(
        claimant: &Claimant,
        requests: Vec<CertificateSigningRequest>,
    ) -> (bool, Vec<String>) {
        let api = Arc::new(FakeQueueApi::new(&requests, None));
        let (client, queue) = (api.client(), RequestQueue::default());
        let inventory = ReferenceTables::new(Vec::new(), Arc::default());
        let writer = QueueWriter {
            client: &client,
            queue: &queue,
            inventory: &inventory,
        };
        let approval = Approval::Person {
            request: queued(claimant).name,
            id: claimant.id(),
            by: "jane at noon".to_owned(),
        };
        let made = create_machine(&writer, claimant, &approval).await;
        (made.is_ok_and(|made| made.is_some()), api.written())
    }

    /// The queue's copy said Approved; what the API has decides.
    #[tokio::test]
    async fn an_approval_that_is_not_the_apis_makes_no_machine() {
        let machine = SoftMachine::new("worker-1", EkKind::P256);
        let (first, second) = (stranger(&machine, "i-1"), stranger(&machine, "i-2"));
        let good = || decided(&first, "Approved");
        let name = good().metadata.name.unwrap();
        // The controls: the approval alone, and beside another of the same machine, which goes with
        // it, and one of another machine, which stays.
        let posted = "POST machines".to_owned();
        let own = vec![format!("PUT {name}"), posted.clone()];
        assert_eq!(makes(&first, vec![good()]).await, (true, own));
        let (other, stays) = (
            decided(&second, "Approved"),
            SoftMachine::new("worker-2", EkKind::P256),
        );
        let stays = decided(&stranger(&stays, "i-1"), "Approved");
        let both = vec![
            format!("DELETE {}", other.metadata.name.as_deref().unwrap()),
            format!("PUT {name}"),
            posted,
        ];
        let there = vec![good(), other.clone(), stays];
        assert_eq!(makes(&first, there).await, (true, both));

        let changed = |key: &str, value: &str| {
            let mut object = good();
            note(&mut object, key, value);
            vec![object]
        };
        let (mut used, mut answered) = (other.clone(), other);
        note(&mut used, MACHINE, "worker-1");
        let certificate = ByteString(vec![1]);
        answered.status.get_or_insert_default().certificate = Some(certificate);
        for (what, there) in [
            ("it is gone", vec![]),
            ("it is undecided", vec![decided(&first, "Waits")]),
            ("it is denied", vec![decided(&first, "Denied")]),
            (
                "it is for other evidence",
                changed(ID, &second.id().to_text()),
            ),
            ("it is another machine's", changed(EK, "sha256:00")),
            (
                "another person approved it",
                changed(DECIDED_BY, "joe at one"),
            ),
            ("it made a Machine", changed(MACHINE, "worker-1")),
            ("another made a Machine", vec![good(), used]),
            ("another has a certificate", vec![good(), answered]),
            (
                "another is denied",
                vec![good(), decided(&second, "Denied")],
            ),
        ] {
            assert_eq!(makes(&first, there).await, (false, vec![]), "{what}");
        }
    }

    /// A join that was cut has made the Machine, and the inventory does not have it yet.
    #[tokio::test]
    async fn a_stranger_with_a_machine_is_not_queued() {
        let claimant = stranger(&SoftMachine::new("worker-1", EkKind::P256), "i-1");
        let queue = RequestQueue::default();
        let inventory = ReferenceTables::new(Vec::new(), Arc::default());
        let (queued, submission) = (queued(&claimant), submission(&claimant));
        let made = Machine::named("worker-1", MachineSpec::default());
        for (there, written) in [
            (Some(made), vec![]),
            (None, vec!["POST certificatesigningrequests".to_owned()]),
        ] {
            let api = Arc::new(FakeQueueApi::new(&[], there));
            let client = api.client();
            let writer = QueueWriter {
                client: &client,
                queue: &queue,
                inventory: &inventory,
            };
            let outcome = writer.enqueue(&submission, &queued).await;
            assert_eq!(outcome.is_ok(), !written.is_empty());
            assert_eq!(api.written(), written);
        }
    }
}
