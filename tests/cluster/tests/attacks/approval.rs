//! Policies that do not verify: no machine is admitted, a person decides, or every machine is
//! admitted; and the same for upstream's signers.

use crate::lab::{CONFIG, LIMIT, Lab, Outcome, client_request, identity};
use crate::site::collection;
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use config_kube::k8s_openapi::api::core::v1::{Event, Node};
use config_kube::{CertificatePolicy, Machine, MachineState, NodeAttestation};
use config_protocol::{Code, name};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use std::future::Future;
use std::time::{Duration, Instant};
use tests_machines::{EkKind, SoftMachine};

/// The policy with one rule for machines, and a test's further rules.
pub(crate) async fn set_policy(lab: &Lab, name: &str, more: &Value) {
    let rule = json!({
        "name": "machines", "policy": name, "certificate": { "ttlSeconds": 1800, "sans": "", "roles": ["worker"] },
        "signers": ["pratique.dev/node-client", "pratique.dev/node-serving"],
    });
    let mut rule = rule;
    rule.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    lab.site
        .patch::<CertificatePolicy>("cluster", &json!({ "spec": { "rules": [rule] } }))
        .await;
}

pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    lab: &Lab,
    attempt: impl Fn() -> F,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = attempt().await {
            return found;
        }
        assert!(
            start.elapsed() < LIMIT,
            "{what} does not happen:\n{}",
            lab.site.log()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn code(outcome: &Outcome) -> &str {
    outcome.answer.json["code"].as_str().unwrap_or_default()
}

/// Tries until the answer has this code.
async fn comes(lab: &Lab, machine: &SoftMachine, wanted: Code) -> Outcome {
    comes_by(lab, wanted, || lab.join(machine)).await
}

/// The same, for any kind of join.
pub(crate) async fn comes_by<F: Future<Output = Outcome>>(
    lab: &Lab,
    wanted: Code,
    join: impl Fn() -> F,
) -> Outcome {
    eventually(wanted.as_str(), lab, || async {
        let outcome = join().await;
        (code(&outcome) == wanted.as_str()).then_some(outcome)
    })
    .await
}

/// The request that waits for a node, which a person would see.
pub(crate) async fn request_of(lab: &Lab, node: &str) -> CertificateSigningRequest {
    let start = format!("{node}-");
    let all: Vec<CertificateSigningRequest> = lab.site.list().await;
    let queued = |request: &CertificateSigningRequest| {
        let meta = &request.metadata;
        let labelled = meta
            .labels
            .as_ref()
            .is_some_and(|labels| labels.contains_key("pratique.dev/queue"));
        labelled
            && meta
                .name
                .as_deref()
                .is_some_and(|name| name.starts_with(&start))
    };
    let mut own: Vec<_> = all.into_iter().filter(queued).collect();
    assert_eq!(own.len(), 1, "one request for one machine");
    own.remove(0)
}

/// What `kubectl certificate approve` and `deny` send.
pub(crate) async fn say(lab: &Lab, request: &str, word: &str) {
    let mut object: CertificateSigningRequest = lab.site.get(request).await;
    let said =
        json!([{ "type": word, "status": "True", "reason": "KubectlSays", "message": "by hand" }]);
    object.status.get_or_insert_default().conditions = serde_json::from_value(said).unwrap();
    let path = format!(
        "{}/{request}/approval",
        collection::<CertificateSigningRequest>()
    );
    let answer = lab
        .site
        .api(Method::PUT, &path, serde_json::to_vec(&object).unwrap())
        .await;
    assert!(answer.status.is_success(), "{:?}", answer.json);
}

pub(crate) fn note<'a>(request: &'a CertificateSigningRequest, name: &str) -> &'a str {
    request
        .metadata
        .annotations
        .as_ref()
        .and_then(|notes| notes.get(name))
        .map_or("", String::as_str)
}

/// An unknown machine without a name waits, is shown with what it did not prove, is approved,
/// renews and reboots without a new approval, and waits again once it boots another image. A denied
/// machine stays out, the queue is bounded, requests of other users do not count, and without any
/// rule no machine is admitted.
pub(crate) async fn a_person_approves_or_denies_each_machine() {
    let lab = Lab::start().await;
    set_policy(&lab, "always-reject", &json!({})).await;
    let mut machine = lab.stranger();
    let outcome = lab.until(Code::PolicyRejects, || lab.join(&machine)).await;
    lab.refused(&outcome, Code::PolicyRejects, false).await;

    set_policy(&lab, "queue", &json!({ "queue": { "maxWaiting": 2 } })).await;
    let node = name::derived(&machine.ek_hash());
    unnamed(&mut machine);
    let queued = comes(&lab, &machine, Code::Queued).await;
    assert_eq!(queued.answer.status, StatusCode::ACCEPTED);
    let request = request_of(&lab, &node).await;
    let request_name = request.metadata.name.clone().unwrap();
    the_request_shows_what_is_proved(&queued, &request);
    comes(&lab, &machine, Code::Queued).await;
    assert_eq!(
        request_of(&lab, &node).await.metadata.name,
        request.metadata.name,
        "the same request again"
    );
    let machines: Vec<Machine> = lab.site.list().await;
    assert!(machines.is_empty(), "no Machine before the approval");

    say(&lab, &request_name, "Approved").await;
    let certificates = eventually("the approval", &lab, || joins(&lab, &machine))
        .await
        .accepted();
    assert_eq!(certificates.node_name, node);
    let object: Machine = lab.site.get(&node).await;
    assert_eq!(object.spec.ek.hashes, [machine.ek_hash().to_text()]);
    assert_eq!(
        object.status.clone().unwrap_or_default().state,
        MachineState::Trusted
    );
    let said = object.metadata.annotations.clone().unwrap_or_default();
    let approved = &said["pratique.dev/approved-request"];
    assert!(
        approved.contains("KubectlSays: by hand") && approved.starts_with("admin at "),
        "{said:?}"
    );
    who_it_was(&lab, &object, &request_name).await;
    let signed: CertificateSigningRequest = lab.site.get(&request_name).await;
    assert!(
        signed.status.unwrap_or_default().certificate.is_some(),
        "kubectl shows Approved,Issued"
    );
    lab.site.get::<Node>(&node).await;

    machine.node.clone_from(&node);
    machine.clock.clock += 1000;
    lab.renew(&machine, &identity(&machine, &certificates))
        .await
        .accepted();
    machine.boot(&lab.image, "nocloud", CONFIG);
    lab.join(&machine).await.accepted();

    another_configuration_is_asked_about(&lab, &mut machine, &node).await;

    denied_and_bounded(&lab).await;
    others_requests_count_for_nothing(&lab).await;
    expires(&lab).await;
    lab.site.stop();
}

/// In the answer how to approve it, in the request what is known of the machine and what is not.
fn the_request_shows_what_is_proved(queued: &Outcome, request: &CertificateSigningRequest) {
    let request_name = request.metadata.name.as_deref().unwrap();
    assert!(
        queued.answer.json["message"]
            .as_str()
            .unwrap()
            .contains(&format!("certificate approve {request_name}"))
    );
    assert_eq!(
        note(request, "pratique.dev/role"),
        "worker",
        "what the machine would become is shown"
    );
    assert!(
        note(request, "pratique.dev/proved").contains("EK certificate: lab-ca"),
        "{request:?}"
    );
    assert!(
        note(request, "pratique.dev/not-proved").contains("EK hash"),
        "{request:?}"
    );
}

async fn another_configuration_is_asked_about(lab: &Lab, machine: &mut SoftMachine, node: &str) {
    machine.boot(&lab.image, "nocloud", b"version = 1\n# another\n");
    comes(lab, machine, Code::Queued).await;
    let status = lab.status(node).await;
    assert_eq!(
        (status.state, status.reason.as_str()),
        (MachineState::Suspect, "QUEUED")
    );
    assert!(status.message.contains("PCR 13"), "{}", status.message);
    let all: Vec<CertificateSigningRequest> = lab.site.list().await;
    let changed = all
        .iter()
        .find(|request| note(request, "pratique.dev/changed").contains("PCR 13"))
        .unwrap();
    say(lab, changed.metadata.name.as_deref().unwrap(), "Approved").await;
    eventually("the second approval", lab, || joins(lab, machine))
        .await
        .accepted();
    assert_eq!(lab.status(node).await.state, MachineState::Trusted);
}

/// Who approved is on the request, on the Machine, in the record of the exchange and in the log of
/// verdicts, as the API knows it, and no client can write another name there.
async fn who_it_was(lab: &Lab, machine: &Machine, request: &str) {
    let admission = machine
        .status
        .clone()
        .unwrap_or_default()
        .admission
        .unwrap_or_default();
    assert_eq!(admission.request, request);
    assert!(admission.by.starts_with("admin at "), "{admission:?}");
    let forged =
        json!({ "metadata": { "annotations": { "pratique.dev/decided-by": "somebody else" } } });
    lab.site
        .patch::<CertificateSigningRequest>(request, &forged)
        .await;
    let object: CertificateSigningRequest = lab.site.get(request).await;
    assert_eq!(note(&object, "pratique.dev/decided-by"), admission.by);
    let condition = machine
        .status
        .clone()
        .unwrap_or_default()
        .conditions
        .remove(0);
    assert!(
        condition
            .message
            .contains(&format!("approved by {}", admission.by)),
        "{}",
        condition.message
    );
    eventually("the record of the exchange", lab, || async {
        let all: Vec<NodeAttestation> = lab.site.list().await;
        let recorded = |one: &NodeAttestation| {
            one.status
                .as_ref()
                .is_some_and(|s| s.message.contains(&admission.by))
        };
        all.iter().any(recorded).then_some(())
    })
    .await;
    eventually("the word in the log", lab, || async {
        let text = String::from_utf8(crate::drift::log(lab).await).unwrap();
        let said = |line: &&str| {
            line.contains("\"decision\"") && line.contains(request) && line.contains(&admission.by)
        };
        text.lines().any(|line| said(&line)).then_some(())
    })
    .await;
}

async fn joins(lab: &Lab, machine: &SoftMachine) -> Option<Outcome> {
    let outcome = lab.join(machine).await;
    (outcome.answer.status == StatusCode::OK).then_some(outcome)
}

/// A machine whose user-data gives no name asks under the one of its key.
fn unnamed(machine: &mut SoftMachine) {
    let derived = name::derived(&machine.ek_hash());
    machine.claims.name.clear();
    machine.client_request.common_name = format!("system:node:{derived}");
    machine.serving_request.common_name = format!("system:node:{derived}");
    machine.serving_request.names = vec![derived];
}

async fn denied_and_bounded(lab: &Lab) {
    let machine = lab.stranger();
    comes(lab, &machine, Code::Queued).await;
    let request = request_of(lab, &machine.node).await.metadata.name.unwrap();
    say(lab, &request, "Denied").await;
    let outcome = comes(lab, &machine, Code::RequestDenied).await;
    assert_eq!(outcome.answer.status, StatusCode::FORBIDDEN);
    let denied: CertificateSigningRequest = lab.site.get(&request).await;
    assert!(
        note(&denied, "pratique.dev/decided-by").starts_with("admin at "),
        "{denied:?}"
    );
    // Two wait; the third is refused, and the two keep waiting.
    let (first, second, third) = (lab.stranger(), lab.stranger(), lab.stranger());
    comes(lab, &first, Code::Queued).await;
    comes(lab, &second, Code::Queued).await;
    assert_eq!(
        comes(lab, &third, Code::QueueFull).await.answer.status,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(code(&lab.join(&first).await), "QUEUED");
    for waiting in [&first, &second] {
        say(
            lab,
            &request_of(lab, &waiting.node).await.metadata.name.unwrap(),
            "Denied",
        )
        .await;
    }
    comes(lab, &third, Code::Queued).await;
    say(
        lab,
        &request_of(lab, &third.node).await.metadata.name.unwrap(),
        "Denied",
    )
    .await;
}

/// An approved request of the same name, made by another user, does not count; the master replaces
/// it by its own.
async fn others_requests_count_for_nothing(lab: &Lab) {
    let machine = lab.stranger();
    comes(lab, &machine, Code::Queued).await;
    let mut forged = request_of(lab, &machine.node).await;
    let path = format!(
        "{}/{}",
        collection::<CertificateSigningRequest>(),
        forged.metadata.name.as_deref().unwrap()
    );
    assert!(
        lab.site
            .api(Method::DELETE, &path, Vec::new())
            .await
            .status
            .is_success()
    );
    (
        forged.metadata.uid,
        forged.metadata.resource_version,
        forged.status,
    ) = (None, None, None);
    let notes = forged.metadata.annotations.get_or_insert_default();
    notes.insert(
        "pratique.dev/decided-by".to_owned(),
        "somebody else".to_owned(),
    );
    lab.site.create(&forged).await;
    let made: CertificateSigningRequest =
        lab.site.get(forged.metadata.name.as_deref().unwrap()).await;
    assert_eq!(
        note(&made, "pratique.dev/decided-by"),
        "",
        "nobody has decided yet"
    );
    say(lab, forged.metadata.name.as_deref().unwrap(), "Approved").await;
    comes(lab, &machine, Code::Queued).await;
    let own = request_of(lab, &machine.node).await;
    assert_eq!(
        own.spec.username.as_deref(),
        Some("system:pratique:attestation")
    );
    say(lab, own.metadata.name.as_deref().unwrap(), "Approved").await;
    eventually("the approval", lab, || joins(lab, &machine))
        .await
        .accepted();
}

/// An undecided request is dropped when it expires.
async fn expires(lab: &Lab) {
    set_policy(lab, "queue", &json!({ "queue": { "expiresSeconds": 20 } })).await;
    let name = eventually("a request under the new rule", lab, || async {
        let machine = lab.stranger();
        comes(lab, &machine, Code::Queued).await;
        let request = request_of(lab, &machine.node).await;
        let expires: jiff::Timestamp = note(&request, "pratique.dev/expires").parse().unwrap();
        let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(60);
        (expires < soon).then_some(request.metadata.name.unwrap())
    })
    .await;
    eventually("the end of the request", lab, || async {
        let all: Vec<CertificateSigningRequest> = lab.site.list().await;
        all.iter()
            .all(|request| request.metadata.name.as_deref() != Some(&name))
            .then_some(())
    })
    .await;
}

/// Every machine is admitted, and log, event, label and Machine say so; a bad proof of a TPM's keys
/// is refused as always.
pub(crate) async fn an_admission_without_a_check_is_shown_everywhere() {
    let lab = Lab::start().await;
    set_policy(&lab, "insecure-always-approve", &json!({})).await;
    let mut machine = lab.stranger();
    machine.ek_certificate = None;
    let mut bad = lab.image.clone();
    bad.kernel[0] ^= 1;
    machine.boot(&bad, "nocloud", b"whatever");
    eventually("an admission", &lab, || joins(&lab, &machine))
        .await
        .accepted();
    let object: Machine = lab.site.get(&machine.node).await;
    assert!(object.spec.ek.hashes.is_empty() && !object.spec.ek.seen.is_empty());
    let condition = object.status.unwrap_or_default().conditions.remove(0);
    assert_eq!(
        (condition.status.as_str(), condition.reason.as_str()),
        ("False", "InsecureAlwaysApprove")
    );
    assert!(
        condition.message.contains("EK certificate"),
        "{}",
        condition.message
    );
    let node: Node = lab.site.get(&machine.node).await;
    assert_eq!(
        node.metadata.labels.unwrap_or_default()["pratique.dev/insecure"],
        "always-approve"
    );
    eventually("an event", &lab, || async {
        let answer = lab
            .site
            .api(Method::GET, "/api/v1/events", Vec::new())
            .await;
        let events: Vec<Event> = serde_json::from_value(answer.json["items"].clone()).unwrap();
        let own = |event: &Event| event.involved_object.name.as_ref() == Some(&machine.node);
        let warned = |event: &Event| event.type_.as_deref() == Some("Warning") && own(event);
        events.iter().any(warned).then_some(())
    })
    .await;
    eventually("a line in the log", &lab, || async {
        lab.site.log().contains("without a decision").then_some(())
    })
    .await;
    // Another TPM under the same name, and a TPM whose keys are not its own.
    let mut other = SoftMachine::new("another board", EkKind::P256);
    other.claims = machine.claims.clone();
    other.boot(&lab.image, "nocloud", CONFIG);
    lab.refused(&lab.join(&other).await, Code::MachineBoundToOtherEk, false)
        .await;
    let mut split = lab.stranger();
    split.ek_public = other.ek_public.clone();
    lab.refused(&lab.join(&split).await, Code::CredentialNotActivated, false)
        .await;
    // A name that leads elsewhere; its own lets the same machine in.
    let mut nameless = lab.stranger();
    for name in ["../nodes", "Worker", "a/b"] {
        name.clone_into(&mut nameless.claims.name);
        lab.refused(&lab.join(&nameless).await, Code::NameInvalid, false)
            .await;
    }
    nameless.claims.name.clone_from(&nameless.node);
    lab.join(&nameless).await.accepted();
    // The name of a Node that is there without a Machine: an ordinary kubelet's.
    let taken = lab.stranger();
    let mut kubelet = Node::default();
    kubelet.metadata.name = Some(taken.node.clone());
    lab.site.create(&kubelet).await;
    lab.refused(&lab.join(&taken).await, Code::NameMismatch, false)
        .await;
    // Once the rule verifies again, a machine admitted without a decision is not in the inventory.
    set_policy(&lab, "queue", &json!({})).await;
    comes(&lab, &machine, Code::Queued).await;
    lab.site.stop();
}

/// Requests to upstream's signers wait for a person unless a rule decides.
pub(crate) async fn requests_to_upstreams_signers_wait_for_approval_unless_a_rule_decides() {
    const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
    let lab = Lab::start().await;
    let ask = async |name: &str| {
        lab.site.create(&client_request(name, "jane", &[])).await;
    };
    let decided = async |name: &str| {
        eventually("a decision", &lab, || async {
            let found: CertificateSigningRequest = lab.site.get(name).await;
            let condition = found
                .status
                .unwrap_or_default()
                .conditions
                .unwrap_or_default()
                .into_iter()
                .next()?;
            Some((condition.type_, condition.reason.unwrap_or_default()))
        })
        .await
    };
    let rules = |policy: &str| json!({ "spec": { "rules": [{ "name": "people", "signers": [SIGNER], "policy": policy, "certificate": { "roles": ["worker"] } }] } });
    // The control: under no rule, and under queue, it waits.
    lab.site
        .patch::<CertificatePolicy>("cluster", &rules("queue"))
        .await;
    ask("jane-waits").await;
    lab.site
        .patch::<CertificatePolicy>("cluster", &rules("always-reject"))
        .await;
    ask("jane-rejected").await;
    let rejected = ("Denied".to_owned(), "PolicyRejects".to_owned());
    assert_eq!(decided("jane-rejected").await, rejected);
    assert_eq!(
        decided("jane-waits").await,
        rejected,
        "a changed policy decides what waited until then"
    );
    lab.site
        .patch::<CertificatePolicy>("cluster", &rules("insecure-always-approve"))
        .await;
    eventually("the new rule", &lab, || async {
        let name = format!("jane-{}", jiff::Timestamp::now().as_nanosecond());
        ask(&name).await;
        (decided(&name).await.0 == "Approved").then_some(())
    })
    .await;
    lab.site
        .patch::<CertificatePolicy>("cluster", &rules("queue"))
        .await;
    let open: Vec<NodeAttestation> = lab.site.list().await;
    assert!(open.is_empty(), "no machine came");
    lab.site.stop();
}

/// A draft shows its verdict on the last exchange of each machine, and decides nothing; a faulty
/// policy is refused at the write, with the paths of all faults.
pub(crate) async fn a_draft_policy_shows_its_verdicts_and_decides_nothing() {
    let lab = Lab::start().await;
    let machine = lab.machine().await;
    lab.join(&machine).await.accepted();
    let policy: CertificatePolicy = lab.site.get("cluster").await;
    let mut stricter = policy.spec.clone();
    stricter.rules[0].images.min_svn = 100;
    stricter.rules[0]
        .images
        .release_keys
        .push("rel-2099".to_owned());
    for (name, spec) in [("as-it-is", &policy.spec), ("stricter", &stricter)] {
        lab.site
            .create(&CertificatePolicy::named(name, spec.clone()))
            .await;
    }
    let said = async |name: &str| {
        eventually("a dry run", &lab, || async {
            let draft: CertificatePolicy = lab.site.get(name).await;
            let status = draft.status.unwrap_or_default();
            let run = status
                .dry_run
                .into_iter()
                .find(|run| run.machine == machine.node)?;
            Some((run.verdict, run.code, status.unknown))
        })
        .await
    };
    let (verdict, code, unknown) = said("as-it-is").await;
    assert_eq!(
        (verdict.as_str(), code.as_str(), unknown.len()),
        ("Accepted", "", 0)
    );
    let (verdict, code, unknown) = said("stricter").await;
    assert_eq!((verdict.as_str(), code.as_str()), ("Refused", "IMAGE_SVN"));
    assert!(unknown[0].contains("rel-2099"), "{unknown:?}");
    lab.join(&machine).await.accepted();
    // The verifier decides the same once the draft is in force.
    lab.site
        .patch::<CertificatePolicy>(
            "cluster",
            &serde_json::to_value(json!({ "spec": stricter })).unwrap(),
        )
        .await;
    let outcome = lab.until(Code::ImageSvn, || lab.join(&machine)).await;
    lab.refused(&outcome, Code::ImageSvn, true).await;

    let mut faulty = policy.spec.clone();
    "cloud-verfy".clone_into(&mut faulty.rules[0].config.digests);
    faulty.rules[0].certificate.ttl_seconds = 1;
    let object = CertificatePolicy::named("faulty", faulty);
    let answer = lab
        .site
        .api(
            Method::POST,
            &collection::<CertificatePolicy>(),
            serde_json::to_vec(&object).unwrap(),
        )
        .await;
    assert_eq!(
        answer.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{:?}",
        answer.json
    );
    let message = answer.json["message"].as_str().unwrap();
    for place in [
        "spec.rules[0].config.digests",
        "spec.rules[0].certificate.ttlSeconds",
    ] {
        assert!(message.contains(place), "{message}");
    }
    lab.site.stop();
}
