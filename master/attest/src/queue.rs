//! What the queue writes: the request that a person decides, the Machine that an approval makes, and words for both ends.

use crate::admit::Requests;
use crate::answer::Answer;
use crate::error::Error;
use crate::inventory::Inventory;
use crate::policy::{Fresh, Wait};
use crate::record;
use crate::waiting::{EK, EXPIRES, ID, LABEL, PROOF, Proof, REMOTE, Waiting};
use config_attest::verifier::{Approval, Claimant};
use config_attest::{Code, Verdict};
use config_kube::Machine;
use config_kube::identity::{ATTESTATION_USER, NODE_CLIENT_SIGNER};
use config_kube::k8s_openapi::ByteString;
use config_kube::k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use master_client::{ApiError, Change, Client, DeleteParams, Reason};
use std::collections::BTreeMap;
use std::time::SystemTime;

/// Annotation of a Machine: the request by which a person had it made, who that was, and what was said.
pub(crate) const APPROVED_BY: &str = "pratique.dev/approved-request";
/// Longest annotation; the whole of it is in the NodeAttestation.
const NOTE: usize = 8 * 1024;

/// What a person is told first of a machine without a TPM.
const NO_TPM: &str = "NOTHING: it has no TPM; whoever holds a key that anybody can make says that it is this machine. Approve only \
                      where the machine's own console shows this node key";

/// A machine that asks, with its requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) claimant: &'a Claimant,
    pub(crate) requests: Requests<'a>,
    pub(crate) remote: &'a str,
    pub(crate) now: SystemTime,
}

/// Writes requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keeper<'a> {
    pub(crate) client: &'a Client,
    pub(crate) waiting: &'a Waiting,
    pub(crate) inventory: &'a Inventory,
}

/// What a person types.
pub(crate) fn command(request: &str) -> String {
    format!(
        "waits for a person: kubectl describe csr {request}, then kubectl certificate approve {request} (or deny)"
    )
}

impl Keeper<'_> {
    /// Sees to it that the request is there; what the machine is told.
    pub(crate) async fn ask(&self, asked: &Asked<'_>, wait: &Wait) -> Result<Answer, Error> {
        let message = command(&wait.name);
        if let Some(fresh) = &wait.fresh {
            let fail = |source| Error::Api {
                what: "the request that waits for a person",
                source,
            };
            for old in &fresh.instead_of {
                tracing::info!(
                    request = old,
                    by = wait.name,
                    "a request that waits gives way to another"
                );
                drop_request(self.client, self.waiting, old)
                    .await
                    .map_err(fail)?;
            }
            self.create(&object(asked, &wait.name, fresh))
                .await
                .map_err(fail)?;
            tracing::info!(
                node = asked.claimant.node_name(),
                request = wait.name,
                "waits for a person"
            );
            if let Some(id) = asked.claimant.own_machine() {
                let verdict = asked.claimant.verdict();
                let changed = !fresh.changes.is_empty();
                let text = if changed {
                    format!("{message}; {}", fresh.changes.join("; "))
                } else {
                    message.clone()
                };
                record::waits(
                    self.client,
                    self.inventory,
                    id,
                    &text,
                    &verdict,
                    fresh.is_other,
                )
                .await?;
            }
        }
        Ok(Answer::queued(&message))
    }

    /// An object of this name by somebody else does not stay in the way.
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
                        drop_request(self.client, self.waiting, name).await?;
                        self.client.create(object).await?
                    }
                }
            }
            outcome => outcome?,
        };
        self.waiting.take(&Change::Set(written));
        Ok(())
    }
}

/// Deletes a request, which may be gone.
pub(crate) async fn drop_request(
    client: &Client,
    waiting: &Waiting,
    name: &str,
) -> Result<(), ApiError> {
    match client
        .delete::<CertificateSigningRequest>(None, name, &DeleteParams::default())
        .await
    {
        Err(error) if !error.is_not_found() => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut gone = CertificateSigningRequest::default();
    gone.metadata.name = Some(name.to_owned());
    waiting.take(&Change::Gone(gone));
    Ok(())
}

fn object(asked: &Asked<'_>, name: &str, fresh: &Fresh) -> CertificateSigningRequest {
    let (claimant, verdict) = (asked.claimant, asked.claimant.verdict());
    let seconds = i32::try_from(claimant.rule().ttl_seconds().max(600)).ok();
    let pem = master_ca::pem("CERTIFICATE REQUEST", asked.requests.client);
    let mut notes = notes(claimant, &verdict);
    notes.insert(REMOTE, asked.remote.to_owned());
    notes.insert(
        "pratique.dev/since",
        record::timestamp(asked.now).to_string(),
    );
    notes.insert(EXPIRES, fresh.expires.to_string());
    notes.insert("pratique.dev/changed", fresh.changes.join("; "));
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

/// What a person sees of a request: what it is for, what was proved and what was not.
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
        (PROOF, Proof::of(claimant).as_str().to_owned()),
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

/// That a machine which the inventory does not have claims no name of a Node that is there already, such as an ordinary
/// kubelet's.
pub(crate) async fn own_name(client: &Client, claimant: &Claimant) -> Result<(), Code> {
    if !claimant.is_stranger() {
        return Ok(());
    }
    match client.get_opt::<Node>(None, claimant.node_name()).await {
        Ok(None) => Ok(()),
        Ok(Some(_)) | Err(_) => Err(Code::NameMismatch),
    }
}

/// Makes the Machine of a stranger that is let in; none where there is one already.
pub(crate) async fn make(
    client: &Client,
    inventory: &Inventory,
    claimant: &Claimant,
    approval: &Approval,
) -> Result<Option<Machine>, Error> {
    let Some(mut machine) = claimant.to_make() else {
        return Ok(None);
    };
    if let Approval::Person { request, by, .. } = approval {
        let note = (
            APPROVED_BY.to_owned(),
            format!("{by}: request {request} ({})", said(client, request).await),
        );
        machine.metadata.annotations = Some(BTreeMap::from([note]));
    }
    let fail = |source| Error::Api {
        what: "the new Machine",
        source,
    };
    let made = client.create(&machine).await.map_err(fail)?;
    if made.spec != machine.spec {
        return Err(fail(ApiError::new(
            Reason::Invalid,
            "the API made another Machine of it",
        )));
    }
    inventory.take_machine(Change::Set(made.clone()));
    Ok(Some(made))
}

/// Reason and message that the person left in the request.
async fn said(client: &Client, request: &str) -> String {
    let object = client
        .get_opt::<CertificateSigningRequest>(None, request)
        .await
        .ok()
        .flatten();
    let conditions = object
        .and_then(|object| object.status)
        .and_then(|status| status.conditions)
        .unwrap_or_default();
    let word = conditions
        .into_iter()
        .find(|condition| condition.type_ == "Approved")
        .unwrap_or_default();
    [
        word.reason.unwrap_or_default(),
        word.message.unwrap_or_default(),
    ]
    .join(": ")
}
