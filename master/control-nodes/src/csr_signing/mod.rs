//! Decides certificate requests by the rules of the policy, and signs approved ones.
//!
//! It decides only requests to upstream's signers; an attestation decides those of machines
//! (`master/attest`). It signs requests to upstream's signers and those of static machines. A
//! changed rule also decides requests that are already open.

mod static_machines;

use crate::machine_nodes::Rules;
use config_certificates::San;
use config_kube::Machine;
use config_kube::identity::{ROLE_LABEL, STATIC_CLIENT_SIGNER, STATIC_SERVING_SIGNER};
use config_kube::k8s_openapi::ByteString;
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::policy::{POLICY_NAME, Ruling};
use master_ca::{
    ApprovedRequest, CLIENT_SIGNER, KUBELET_CLIENT_SIGNER, KUBELET_SERVING_SIGNER, UPSTREAM_SIGNERS,
};
use master_client::{ApiError, Delta, Index, Key, ListParams, Store, View};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::options::Signing;
use master_control::setup::Setup;
use master_control::views::request::{condition, is_undecided};
use master_control::views::uid;
use master_control::writer::Writer;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

/// Requests that wait for a decision, under [`UNDECIDED`].
static BY_STEP: Index<OpenRequest> = Index::new("step", |_, request| {
    let undecided = request.step == Step::Decision;
    undecided
        .then(|| UNDECIDED.to_owned())
        .into_iter()
        .collect()
});
const UNDECIDED: &str = "undecided";

/// The parts of a request that this controller needs.
#[derive(Debug, PartialEq, Eq)]
pub struct OpenRequest {
    uid: String,
    signer: String,
    step: Step,
}

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// A decision.
    Decision,
    /// Its certificate: it is approved.
    Certificate,
    /// Nothing: it is denied, failed or signed.
    Nothing,
}

impl View for OpenRequest {
    type Object = CertificateSigningRequest;

    fn read(request: CertificateSigningRequest) -> Self {
        Self {
            uid: uid(&request.metadata),
            step: step(&request),
            signer: request.spec.signer_name,
        }
    }
}

fn step(request: &CertificateSigningRequest) -> Step {
    if is_undecided(request) {
        return Step::Decision;
    }
    let status = request.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref());
    let has = |kind: &str| {
        let mut conditions = conditions.unwrap_or_default().iter();
        conditions.any(|condition| condition.type_ == kind)
    };
    let signed = status.is_some_and(|status| status.certificate.is_some());
    if has("Approved") && !has("Denied") && !has("Failed") && !signed {
        Step::Certificate
    } else {
        Step::Nothing
    }
}

/// The controller. Its keys are requests. Without [`Signing`] it does nothing.
#[derive(Debug)]
pub struct CsrSigning {
    signing: Option<Signing>,
    requests: Store<OpenRequest>,
    policies: Store<Rules>,
}

/// A request, and the decision of the policy in force for its signer.
#[derive(Debug)]
pub struct Facts {
    name: String,
    request: Arc<OpenRequest>,
    ruling: Option<Ruling>,
}

/// An action on a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Approves or denies it.
    Decide(Named, Ruling),
    /// Signs it, or records why it is not signed.
    Sign(Named),
}

/// A request by name and UID.
#[derive(Debug, PartialEq, Eq)]
pub struct Named {
    name: String,
    uid: String,
}

impl Controller for CsrSigning {
    const NAME: &'static str = "csr-signing";
    const RIGHTS: &'static [Right] = &[
        right(
            "certificates.k8s.io",
            "certificatesigningrequests",
            &["get", "list", "watch"],
        ),
        right(
            "certificates.k8s.io",
            "certificatesigningrequests/approval",
            &["update"],
        ),
        right(
            "certificates.k8s.io",
            "certificatesigningrequests/status",
            &["update"],
        ),
        right("certificates.k8s.io", "signers", &["approve", "sign"]).named(&[
            CLIENT_SIGNER,
            KUBELET_CLIENT_SIGNER,
            KUBELET_SERVING_SIGNER,
        ]),
        // Certificates of static machines are approved by an admin only.
        right("certificates.k8s.io", "signers", &["sign"])
            .named(&[STATIC_CLIENT_SIGNER, STATIC_SERVING_SIGNER]),
        right("pratique.dev", "certificatepolicies", &["list", "watch"]),
        right("pratique.dev", "machines", &["list"]),
        right("pratique.dev", "machines/status", &["update"]),
        right("", "nodes", &["get"]),
    ];
    type Facts = Facts;
    type Action = Action;

    fn new(setup: &mut Setup<'_>) -> Self {
        let requests: Store<OpenRequest> = setup.follow_keys();
        let undecided = requests.index(&BY_STEP);
        // A change of the policy in force concerns undecided requests.
        let policies = setup.follow(move |delta: &Delta<Rules>, keys| {
            if delta.key.name == POLICY_NAME {
                let open = undecided.keys(UNDECIDED);
                keys.extend(open.iter().map(|key| (**key).clone()));
            }
        });
        Self {
            signing: setup.options().signing.clone(),
            requests,
            policies,
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let signing = self.signing.as_ref()?;
        let request = self.requests.get(key)?;
        let policy = self.policies.get(&Key::cluster(POLICY_NAME));
        let ruling = policy.filter(|_| UPSTREAM_SIGNERS.contains(&request.signer.as_str()));
        Some(Facts {
            name: key.name.clone(),
            ruling: ruling.and_then(|policy| (signing.decide)(&policy.0, &request.signer)),
            request,
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Action> {
        let request = Named {
            name: facts.name.clone(),
            uid: facts.request.uid.clone(),
        };
        match facts.request.step {
            Step::Decision => {
                let ruling = facts.ruling.clone();
                let action = ruling.map(|ruling| Action::Decide(request, ruling));
                action.into()
            }
            Step::Certificate if is_signed_here(&facts.request.signer) => {
                Plan::act(Action::Sign(request))
            }
            Step::Certificate | Step::Nothing => Plan::nothing(),
        }
    }

    async fn carry_out(&self, action: Action, writer: &Writer) -> Result<(), ApiError> {
        let Some(signing) = &self.signing else {
            return Ok(());
        };
        match action {
            Action::Decide(request, ruling) => decide(writer, &request, ruling).await,
            Action::Sign(request) => sign(signing, writer, &request).await,
        }
    }
}

fn is_signed_here(signer: &str) -> bool {
    UPSTREAM_SIGNERS.contains(&signer)
        || [STATIC_CLIENT_SIGNER, STATIC_SERVING_SIGNER].contains(&signer)
}

/// The request as the API has it, if it is still the same object and waits for the same step.
async fn current(
    writer: &Writer,
    request: &Named,
    expected: Step,
) -> Result<Option<CertificateSigningRequest>, ApiError> {
    let found: CertificateSigningRequest = writer.client().get(None, &request.name).await?;
    let same = uid(&found.metadata) == request.uid && step(&found) == expected;
    Ok(Some(found).filter(|_| same))
}

/// Approves or denies a request in the name of a rule.
async fn decide(writer: &Writer, request: &Named, ruling: Ruling) -> Result<(), ApiError> {
    let Some(mut object) = current(writer, request, Step::Decision).await? else {
        return Ok(());
    };
    let kind = if ruling.approved {
        "Approved"
    } else {
        "Denied"
    };
    if ruling.approved {
        let message = &ruling.message;
        tracing::warn!(
            request = request.name,
            user = object.spec.username,
            "{message}"
        );
    }
    let conditions = &mut object.status.get_or_insert_default().conditions;
    let decision = condition(kind, ruling.reason, ruling.message, writer.now().wall);
    conditions.get_or_insert_default().push(decision);
    let written = writer.update_subresource(&object, "approval").await;
    written.map(drop)
}

/// Signs a request, or records in it why it is not signed.
async fn sign(signing: &Signing, writer: &Writer, request: &Named) -> Result<(), ApiError> {
    let Some(mut object) = current(writer, request, Step::Certificate).await? else {
        return Ok(());
    };
    let authority = &signing.authority;
    let issued = match ApprovedRequest::from_object(&object) {
        Ok(None) => match static_machines::sign(writer, authority, &object).await? {
            Ok(None) => return Ok(()),
            Ok(Some(issued)) => Ok(issued),
            Err(error) => Err(error),
        },
        Ok(Some(approved)) => match why_not(signing, writer, &approved).await? {
            Some(why) => Err(master_ca::Error::Request(why)),
            None => authority.issue_approved(&approved, SystemTime::now()),
        },
        Err(error) => Err(error),
    };
    let status = object.status.get_or_insert_default();
    match issued {
        // A client expects only its certificate there, and the API server knows the
        // intermediates. The callers of a kubelet know only the root, so its chain is included.
        Ok(issued) if object.spec.signer_name == CLIENT_SIGNER => {
            let leaf = master_ca::pem("CERTIFICATE", &issued.certificate);
            status.certificate = Some(ByteString(leaf.into_bytes()));
        }
        Ok(issued) => status.certificate = Some(ByteString(issued.chain_pem().into_bytes())),
        Err(error) => {
            let text = config_errors::chain(&error);
            let now = writer.now().wall;
            let failed = condition("Failed", "SignerValidationFailure", text, now);
            status.conditions.get_or_insert_default().push(failed);
        }
    }
    let written = writer.update_subresource(&object, "status").await;
    written.map(drop)
}

/// Why an approved request is not signed, even if a person approved it. Without this check, a
/// bootstrap token and a careless approval would be enough for a certificate that only an
/// attestation may give, or for one that clients accept as the API server's.
async fn why_not(
    signing: &Signing,
    writer: &Writer,
    approved: &ApprovedRequest,
) -> Result<Option<String>, ApiError> {
    let api_names = signing.api_names.iter();
    let api: BTreeSet<San> = api_names.map(|name| San::from_text(name)).collect();
    let mut names = approved.names().iter();
    if let Some(name) = names.find(|name| San::from_text(name).is_api_server(&api)) {
        return Ok(Some(format!("`{name}` is a name of the API server")));
    }
    let Some(node) = approved.node() else {
        return Ok(None);
    };
    let client = writer.client();
    // Read from the API: an admin may have created the Machine a moment ago, before the watch
    // delivers it.
    let machines = client.list::<Machine>(None, &ListParams::default()).await?;
    let mut machines = machines.items.iter();
    let is_machine = machines.any(|machine| machine.node_name() == node);
    // The Node of a deleted Machine stays a Machine's until it is deleted too.
    if !is_machine && !is_made_for_a_machine(client.get_opt::<Node>(None, node).await?.as_ref()) {
        return Ok(None);
    }
    Ok(Some(format!(
        "node {node} belongs to a Machine, which gets its certificates by attestation, not by a request"
    )))
}

/// Whether a Node was made for a Machine: by a label that only the master sets.
fn is_made_for_a_machine(node: Option<&Node>) -> bool {
    let labels = node.and_then(|node| node.metadata.labels.as_ref());
    labels.is_some_and(|labels| labels.contains_key(ROLE_LABEL))
}
