//! Follows certificate requests: signs what was approved under upstream's signers, decides there by the policy's rules, and
//! keeps what waits for a person.

use crate::inventory::Inventory;
use crate::issued;
use crate::policy::{policy_of, upstream};
use crate::queue_writer;
use crate::request::condition;
use crate::request_queue::RequestQueue;
use config_attest::San;
use config_kube::k8s_openapi::ByteString;
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use config_kube::{Decides, Machine, Rule};
use jiff::Timestamp;
use master_ca::{ApprovedRequest, Authority, UPSTREAM_SIGNERS};
use master_client::{ApiError, Change, Client, Follower, ListParams};
use master_journal::Journal;
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

/// Between two looks for requests past their time.
const SWEEP: Duration = Duration::from_secs(5);

/// What signs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Signer<'a> {
    pub(crate) client: &'a Client,
    pub(crate) authority: &'a Authority,
    pub(crate) inventory: &'a Inventory,
    pub(crate) queue: &'a RequestQueue,
    pub(crate) journal: &'a Journal,
    /// DNS names and addresses of the API server.
    pub(crate) api_names: &'a [String],
}

/// Follows the requests. Drop it to stop.
pub(crate) async fn keep_requests(signer: Signer<'_>) {
    // Beside each other and not arms of one select: a follower that is looked away from in the middle of its list may hold
    // what the other's request waits for.
    tokio::join!(
        follow(signer),
        follow_rules(signer),
        sweep(signer.client, signer.queue),
    );
}

async fn follow(signer: Signer<'_>) {
    let mut follower = Follower::<CertificateSigningRequest>::new(
        signer.client.clone(),
        None,
        ListParams::default(),
    );
    loop {
        let change = follower.next().await;
        let decision = signer.queue.take(&change);
        if let (Some(decision), Change::Set(object)) = (decision, &change) {
            signer
                .journal
                .request_decided(&decision.for_journal(), object)
                .await;
        }
        let objects = match change {
            Change::Listed(objects) => objects,
            Change::Set(object) => vec![object],
            Change::Gone(_) => continue,
        };
        handle(signer, objects).await;
    }
}

/// What waited under the rules before is decided by the new ones.
async fn follow_rules(signer: Signer<'_>) {
    let mut rules = signer.inventory.rules_changed();
    // The sender lives in the inventory.
    while rules.changed().await.is_ok() {
        again(signer).await;
    }
}

async fn sweep(client: &Client, queue: &RequestQueue) {
    let mut tick = tokio::time::interval(SWEEP);
    loop {
        tick.tick().await;
        drop_expired(client, queue).await;
    }
}

/// What waited under the rules before.
async fn again(signer: Signer<'_>) {
    match signer
        .client
        .list::<CertificateSigningRequest>(None, &ListParams::default())
        .await
    {
        Ok(list) => handle(signer, list.items).await,
        Err(error) => {
            tracing::warn!(error = %error, "cannot list requests after the policy changed");
        }
    }
}

async fn handle(signer: Signer<'_>, objects: Vec<CertificateSigningRequest>) {
    for object in objects {
        let outcome = match decide(signer.client, signer.inventory, &object).await {
            Ok(true) => Ok(()),
            Ok(false) => sign(signer, &object).await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => {}
            // It changed meanwhile, and comes again.
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            Err(error) => {
                tracing::warn!(error = %error, request = object.metadata.name, "a request is not decided or signed");
            }
        }
    }
}

/// Decides an undecided request where a rule says so; whether it did.
async fn decide(
    client: &Client,
    inventory: &Inventory,
    object: &CertificateSigningRequest,
) -> Result<bool, ApiError> {
    let signer = object.spec.signer_name.as_str();
    let decided = object
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    if !UPSTREAM_SIGNERS.contains(&signer)
        || decided.is_some_and(|conditions| !conditions.is_empty())
    {
        return Ok(false);
    }
    let Some(policy) = inventory.policy() else {
        return Ok(false);
    };
    let Some(Rule {
        name: rule, policy, ..
    }) = upstream(&policy.spec, signer)
    else {
        return Ok(false);
    };
    let (kind, message) = match policy.decides() {
        Decides::Person | Decides::Verifier => return Ok(false),
        Decides::Never => (
            "Denied",
            format!("rule `{rule}` rejects whatever comes for {signer}"),
        ),
        Decides::Nobody => {
            let name = policy.as_str();
            let message = format!(
                "rule `{rule}` ({name}) approves whatever comes for {signer}; nobody looked"
            );
            tracing::warn!(
                request = object.metadata.name,
                by = object.spec.username,
                "{message}"
            );
            ("Approved", message)
        }
    };
    let mut object = object.clone();
    let conditions = &mut object.status.get_or_insert_default().conditions;
    conditions
        .get_or_insert_default()
        .push(condition(kind, policy_of(*policy).reason(), message));
    client
        .update_subresource(&object, "approval")
        .await
        .map(|_| true)
}

async fn sign(signer: Signer<'_>, object: &CertificateSigningRequest) -> Result<(), ApiError> {
    let Signer {
        client, authority, ..
    } = signer;
    let issued = match ApprovedRequest::from_object(object) {
        Ok(None) => match issued::sign(client, authority, object).await? {
            Ok(None) => return Ok(()),
            Ok(Some(issued)) => Ok(issued),
            Err(error) => Err(error),
        },
        Ok(Some(approved)) => match beyond_approval(signer, &approved).await? {
            Some(refusal) => Err(refusal),
            None => authority.issue_approved(&approved, SystemTime::now()),
        },
        Err(error) => Err(error),
    };
    let mut object = object.clone();
    let status = object.status.get_or_insert_default();
    match issued {
        Ok(issued) => status.certificate = Some(ByteString(issued.chain_pem().into_bytes())),
        Err(error) => {
            let failed = condition(
                "Failed",
                "SignerValidationFailure",
                config_errors::chain(&error),
            );
            status.conditions.get_or_insert_default().push(failed);
        }
    }
    client.update_status(&object).await.map(drop)
}

/// Why a request is not signed, whoever approved it: else a bootstrap token, and a person who looks at the request's name
/// alone, give away what only a machine's own proof gives, or a certificate that clients take for the API server's.
async fn beyond_approval(
    Signer {
        client,
        inventory,
        api_names,
        ..
    }: Signer<'_>,
    approved: &ApprovedRequest,
) -> Result<Option<master_ca::Error>, ApiError> {
    let refuse = |why: String| Ok(Some(master_ca::Error::Request(why)));
    let api: BTreeSet<San> = api_names.iter().map(|name| San::from_text(name)).collect();
    if let Some(name) = approved
        .names()
        .iter()
        .find(|name| San::from_text(name).is_api_server(&api))
    {
        return refuse(format!("`{name}` is the API server's"));
    }
    let Some(node) = approved.node() else {
        return Ok(None);
    };
    // Read anew: the inventory's watch may be behind, or not filled yet.
    let machines = client.list::<Machine>(None, &ListParams::default()).await?;
    // What was a Machine's node stays one until its Node is deleted.
    if !machines
        .items
        .iter()
        .any(|machine| machine.node_name() == node)
        && !inventory.made_node(node)
    {
        return Ok(None);
    }
    refuse(format!(
        "node {node} is a Machine's, which gets its certificates by its own proof, not by a request"
    ))
}

async fn drop_expired(client: &Client, queue: &RequestQueue) {
    for name in queue.expired(Timestamp::now()) {
        match queue_writer::drop_request(client, queue, &name).await {
            Ok(()) => tracing::info!(
                request = name,
                "nobody decided in time; the request is dropped"
            ),
            Err(error) => {
                tracing::warn!(error = %error, request = name, "cannot drop a request past its time");
            }
        }
    }
}
