//! An admin's removal is in effect at the master's answer: a key of a Machine, a node's name, a
//! machine. And no machine gets the address or the node name of another.

use crate::after_join::{ask, joined, own_node};
use crate::approval::{code, comes_by, eventually, note, request_of, say, set_policy};
use crate::drift::token;
use crate::lab::{LIMIT, Lab, Outcome, client_request, identity};
use crate::site::collection;
use crate::wire::{Answer, Connection, Identity, config};
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::{Machine, MachineState};
use config_protocol::wire::SESSIONS_PATH;
use config_protocol::{Code, Purpose, name};
use http::header::DATE;
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tests_machines::SoftMachine;

/// Rounds of an attack that depends on timing.
const ROUNDS: usize = 12;
/// Concurrent connections.
const VOICES: usize = 8;

/// A rule that verifies, and asks for endorsement keys by their issuer alone.
fn by_issuer(sans: &str) -> Value {
    json!({
        "ek": { "issuers": ["lab-ca"], "hashes": "", "require": "all" },
        "images": { "releaseKeys": ["rel-2026"], "minSvn": 7, "maxConcurrent": 0 },
        "events": { "secureBoot": true, "allowUnknown": false },
        "config": { "measured": true, "digests": "" },
        "certificate": { "ttlSeconds": 1800, "sans": sans, "roles": ["worker"] },
    })
}

async fn renewed(lab: &Lab, machine: &SoftMachine, who: &Identity) -> Outcome {
    let mut machine = machine.clone();
    machine.clock.clock += 1000;
    lab.renew(&machine, who).await
}

/// It neither joins nor renews, and does not count as a machine of the inventory.
async fn stays_out(lab: &Lab, machine: &SoftMachine, who: &Identity) {
    let mut machine = machine.clone();
    machine.clock.clock += 1000;
    let outcome = lab.join(&machine).await;
    lab.refused(&outcome, Code::MachineUnknown, false).await;
    match lab.connect_as(who).await {
        // The certificate that it has is denied with it, or not yet; it gets no other.
        Ok(connection) => {
            let renewals = config_protocol::wire::RENEWALS_PATH;
            let outcome = lab
                .exchange(
                    &machine,
                    connection,
                    renewals,
                    Purpose::Renew,
                    |_| {},
                    |_| {},
                )
                .await;
            assert!(
                !outcome.answer.status.is_success(),
                "renewed: {:?}",
                outcome.answer
            );
        }
        Err(_cut) => {}
    }
}

/// A machine that was admitted without a decision, and one whose key an admin removed, under a rule
/// that names only issuers.
pub(crate) async fn a_key_that_no_admin_listed_is_refused_by_an_enforcing_rule() {
    let lab = Lab::start().await;
    set_policy(&lab, "insecure-always-approve", &json!({})).await;
    let machine = lab.stranger();
    let who = identity(&machine, &lab.until_accepted(&machine).await);
    set_policy(&lab, "cloud-verify", &by_issuer("")).await;
    let outcome = lab.until(Code::MachineUnknown, || lab.join(&machine)).await;
    lab.refused(&outcome, Code::MachineUnknown, false).await;
    let outcome = renewed(&lab, &machine, &who).await;
    lab.refused(&outcome, Code::MachineUnknown, false).await;
    // Control: an admin lists it.
    let listed = json!({ "spec": { "ek": { "hashes": [machine.ek_hash().to_text()] } } });
    lab.site.patch::<Machine>(&machine.node, &listed).await;
    let mut machine = machine;
    machine.clock.clock += 1000;
    let mut who = identity(&machine, &lab.until_accepted(&machine).await);
    let spare = lab.stranger().ek_hash().to_text();
    let taken = [
        json!({ "hashes": [spare], "issuers": null }),
        json!({ "hashes": null, "issuers": null }),
        json!({ "hashes": null, "issuers": null, "seen": null }),
    ];
    for ek in taken {
        lab.site
            .patch::<Machine>(&machine.node, &json!({ "spec": { "ek": ek } }))
            .await;
        stays_out(&lab, &machine, &who).await;
        // By its issuer, and off again.
        let issuer = json!({ "spec": { "ek": { "hashes": null, "issuers": ["lab-ca"] } } });
        lab.site.patch::<Machine>(&machine.node, &issuer).await;
        machine.clock.clock += 5000;
        who = identity(&machine, &lab.until_accepted(&machine).await);
        lab.site
            .patch::<Machine>(&machine.node, &json!({ "spec": { "ek": ek } }))
            .await;
        stays_out(&lab, &machine, &who).await;
        lab.site.patch::<Machine>(&machine.node, &listed).await;
        machine.clock.clock += 5000;
        who = identity(&machine, &lab.until_accepted(&machine).await);
    }
    lab.site.stop();
}

/// A Machine that becomes another node: its certificates with the old name, and tokens of pods
/// there, are denied from the answer on, also after a restart.
pub(crate) async fn a_renamed_machine_loses_certificates_and_tokens_of_its_old_name() {
    let lab = &Lab::start().await;
    let (machine, who) = joined(lab).await;
    let (_, good) = joined(lab).await;
    let token = token(lab, &machine.node).await;
    let path = own_node(&machine);
    let mut kept = lab.connect_as(&who).await.unwrap();
    let mut bearer = lab.connect().await.with_token(&token);
    assert_eq!(
        kept.status(Method::GET, &path, Vec::new()).await,
        StatusCode::OK
    );
    assert_eq!(
        bearer.status(Method::GET, "/api/v1", Vec::new()).await,
        StatusCode::OK
    );
    let watch = format!(
        "{}?watch=true&fieldSelector=metadata.name={}",
        collection::<Node>(),
        machine.node
    );
    let mut watching = lab.connect_as(&who).await.unwrap();
    let mut watch = watching
        .request(Method::GET, &watch, "application/json", Vec::new())
        .await
        .unwrap()
        .into_body();
    let renamed = format!("{}-renamed", machine.node);
    lab.site
        .patch::<Machine>(&machine.node, &json!({ "spec": { "nodeName": renamed } }))
        .await;
    assert_eq!(
        kept.status(Method::GET, &path, Vec::new()).await,
        StatusCode::UNAUTHORIZED,
        "the old certificate"
    );
    assert_eq!(
        ask(lab, &who, Method::GET, &path, json!(null)).await,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        bearer.status(Method::GET, "/api/v1", Vec::new()).await,
        StatusCode::UNAUTHORIZED,
        "a pod's token"
    );
    let ended = async { while let Some(Ok(_)) = watch.frame().await {} };
    tokio::time::timeout(LIMIT, ended)
        .await
        .expect("the watch ends");
    lab.site.cut_and_restart().await;
    assert_eq!(
        ask(lab, &who, Method::GET, &path, json!(null)).await,
        StatusCode::UNAUTHORIZED,
        "after a restart"
    );
    let mut bearer = lab.connect().await.with_token(&token);
    assert_eq!(
        bearer.status(Method::GET, "/api/v1", Vec::new()).await,
        StatusCode::UNAUTHORIZED
    );
    // Under the new name it proves itself again; objects of the old name stay as they are.
    let mut machine = machine;
    machine.claims.name.clone_from(&renamed);
    machine.client_request.common_name = format!("system:node:{renamed}");
    machine.serving_request.common_name = format!("system:node:{renamed}");
    machine.serving_request.names[0].clone_from(&renamed);
    let own = identity(&machine, &lab.join(&machine).await.accepted());
    let node = format!("{}/{renamed}", collection::<Node>());
    assert_eq!(
        ask(lab, &own, Method::GET, &node, json!(null)).await,
        StatusCode::OK
    );
    assert_eq!(
        ask(lab, &who, Method::GET, &path, json!(null)).await,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        bearer.status(Method::GET, "/api/v1", Vec::new()).await,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        ask(lab, &good, Method::GET, "/version", json!(null)).await,
        StatusCode::OK,
        "the control"
    );
    lab.site.stop();
}

/// A request of upstream's client signer.
async fn approved_client(lab: &Lab, name: &str, user: &str, groups: &[&str]) {
    lab.site.create(&client_request(name, user, groups)).await;
    say(lab, name, "Approved").await;
}

/// A person approves a client's request that has a machine's node for its name, in whatever
/// organization: it is not signed.
pub(crate) async fn a_client_request_with_a_machines_node_name_is_not_signed(lab: &Lab) {
    let (machine, _) = joined(lab).await;
    let user = format!("system:node:{}", machine.node);
    for (kind, groups) in [
        ("none", &[][..]),
        ("dev", &["dev"][..]),
        ("nodes", &["system:nodes"][..]),
    ] {
        let name = format!("{}-{kind}", machine.node);
        approved_client(lab, &name, &user, groups).await;
        let why = eventually("a word of the signer", lab, || async {
            let object: CertificateSigningRequest = lab.site.get(&name).await;
            let status = object.status.unwrap_or_default();
            assert!(
                status.certificate.is_none(),
                "signed for {user} in {groups:?}"
            );
            let failed = status
                .conditions
                .unwrap_or_default()
                .into_iter()
                .find(|one| one.type_ == "Failed");
            failed.and_then(|failed| failed.message)
        })
        .await;
        assert!(why.contains("belongs to a Machine"), "{why}");
    }
    let control = format!("{}-control", machine.node);
    approved_client(lab, &control, "jane", &["dev"]).await;
    eventually("the control's certificate", lab, || async {
        let object: CertificateSigningRequest = lab.site.get(&control).await;
        object.status.unwrap_or_default().certificate
    })
    .await;
}

/// Sends requests until stopped; counts the answers to requests that were sent after the change was
/// in force.
async fn insist(
    mut connection: Connection,
    path: String,
    after: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
) -> usize {
    let mut answered = 0;
    while !stop.load(Ordering::SeqCst) {
        let late = after.load(Ordering::SeqCst);
        let status = connection.status(Method::GET, &path, Vec::new()).await;
        if late && status != StatusCode::UNAUTHORIZED {
            answered += 1;
        }
        if status == StatusCode::UNAUTHORIZED {
            break;
        }
    }
    answered
}

/// From the moment in which the admin has the answer to `retired`, no request of the machine is
/// answered: not on connections that are open, not on new ones, not with a pod's token; and its
/// watches deliver nothing more.
pub(crate) async fn no_request_of_a_retired_machine_is_answered(lab: &Lab) {
    let late = AtomicUsize::new(0);
    let notified = AtomicUsize::new(0);
    for _ in 0..ROUNDS {
        let (machine, who) = joined(lab).await;
        let path = own_node(&machine);
        let tls = config(&lab.site.root, Some(&who));
        let watch = format!(
            "{}?watch=true&fieldSelector=metadata.name={}",
            collection::<Node>(),
            machine.node
        );
        let mut watching = Connection::open(lab.site.address, tls.clone())
            .await
            .unwrap();
        let answer = watching
            .request(Method::GET, &watch, "application/json", Vec::new())
            .await
            .unwrap();
        let mut frames = answer.into_body();
        frames.frame().await.unwrap().unwrap();
        let (after, stop) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let mut voices = Vec::new();
        for _ in 0..VOICES {
            let connection = Connection::open(lab.site.address, tls.clone())
                .await
                .unwrap();
            voices.push(tokio::spawn(insist(
                connection,
                path.clone(),
                after.clone(),
                stop.clone(),
            )));
        }
        let mut fresh = Connection::open(lab.site.address, tls.clone())
            .await
            .unwrap();
        lab.site
            .patch::<Machine>(&machine.node, &json!({ "spec": { "retired": true } }))
            .await;
        after.store(true, Ordering::SeqCst);
        if fresh.status(Method::GET, &path, Vec::new()).await != StatusCode::UNAUTHORIZED {
            late.fetch_add(1, Ordering::SeqCst);
        }
        let mark = json!({ "metadata": { "annotations": { "after": "retired" } } });
        lab.site.patch::<Node>(&machine.node, &mark).await;
        let joins = lab.join(&machine).await;
        assert!(
            !joins.answer.status.is_success(),
            "a retired machine joins: {:?}",
            joins.answer
        );
        let mut text = Vec::new();
        let read = async {
            while let Some(Ok(frame)) = frames.frame().await {
                text.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            }
        };
        tokio::time::timeout(LIMIT, read)
            .await
            .expect("the watch of a retired machine ends");
        let text = String::from_utf8_lossy(&text).into_owned();
        notified.fetch_add(
            usize::from(text.contains("\"after\":\"retired\"")),
            Ordering::SeqCst,
        );
        stop.store(true, Ordering::SeqCst);
        for voice in voices {
            late.fetch_add(voice.await.unwrap(), Ordering::SeqCst);
        }
    }
    let (late, notified) = (late.into_inner(), notified.into_inner());
    assert_eq!(
        (late, notified),
        (0, 0),
        "answers to, and events of watches for, machines that were retired before"
    );
}

/// What a caller sees of the answer to its hello, without its random values: its status, its
/// headers, and of its body every name and number and the length of every text.
async fn seen(lab: &Lab, machine: &SoftMachine) -> (StatusCode, BTreeMap<String, String>, Value) {
    let hello = serde_json::to_vec(&machine.hello().0).unwrap();
    let mut connection = lab.connect().await;
    let answer = connection
        .request(Method::POST, SESSIONS_PATH, "application/json", hello)
        .await
        .unwrap();
    let status = answer.status();
    let headers = answer.headers().iter().map(|(name, value)| {
        let value = if name == DATE {
            "a date"
        } else {
            value.to_str().unwrap()
        };
        (name.to_string(), value.to_owned())
    });
    let headers = headers.collect();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let mut body = serde_json::from_slice(&body).unwrap();
    measure(&mut body);
    (status, headers, body)
}

/// Puts its length in the place of each text.
fn measure(value: &mut Value) {
    match value {
        Value::String(text) => *value = json!(text.len()),
        Value::Array(all) => all.iter_mut().for_each(measure),
        Value::Object(all) => all.values_mut().for_each(measure),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A hello of a caller with a machine's public keys and without its TPM: right and guessed names
/// get the same answers.
pub(crate) async fn a_guessed_name_gets_the_answer_of_the_right_one(lab: &Lab) {
    let (machine, _) = joined(lab).await;
    let (other, _) = joined(lab).await;
    let mut heard = Vec::new();
    for claimed in [machine.node.as_str(), other.node.as_str(), "nobody", ""] {
        let mut thief = machine.clone();
        claimed.clone_into(&mut thief.claims.name);
        let to_hello = seen(lab, &thief).await;
        // Without the TPM every name fails.
        let outcome = lab
            .join_with(&thief, |evidence| {
                evidence.proof.mac = config_tpm::Digest::ZERO;
            })
            .await;
        lab.refused(&outcome, Code::CredentialNotActivated, false)
            .await;
        let Answer { status, json } = outcome.answer;
        heard.push((to_hello, status, json));
    }
    assert_eq!(heard[0].0.0, StatusCode::OK, "the control");
    for (other, claimed) in heard.iter().zip(["right", "another's", "nobody's", "none"]) {
        assert_eq!(*other, heard[0], "the name is {claimed}");
    }
    // The machine itself is refused for another's name, once it has proved which it is.
    let mut wrong = machine.clone();
    wrong.claims.name.clone_from(&other.node);
    lab.refused(&lab.join(&wrong).await, Code::NameMismatch, false)
        .await;
}

/// An approval covers the claims: another address, in the same boot and with the same registers,
/// needs a new approval.
pub(crate) async fn a_claim_beyond_its_approval_waits_for_a_new_one() {
    let lab = Lab::start().await;
    set_policy(&lab, "queue", &json!({})).await;
    let mut machine = lab.stranger();
    machine.claims.addresses.clear();
    machine.serving_request.names.truncate(1);
    comes_by(&lab, Code::Queued, || lab.join(&machine)).await;
    let requests = async || -> Vec<CertificateSigningRequest> {
        let all: Vec<CertificateSigningRequest> = lab.site.list().await;
        all.into_iter()
            .filter(|one| !note(one, "pratique.dev/evidence").is_empty())
            .collect()
    };
    let [request] = &requests().await[..] else {
        panic!("one request")
    };
    say(&lab, request.metadata.name.as_deref().unwrap(), "Approved").await;
    let who = identity(&machine, &lab.until_accepted(&machine).await);
    machine.clock.clock += 1000;
    lab.renew(&machine, &who).await.accepted();
    let mut greedy = machine.clone();
    greedy.claims.addresses = vec!["10.99.0.1".to_owned()];
    greedy.serving_request.names.push("10.99.0.1".to_owned());
    greedy.clock.clock += 1000;
    let outcome = lab.renew(&greedy, &who).await;
    assert_eq!(
        outcome.answer.status,
        StatusCode::ACCEPTED,
        "a renewal with a further address: {:?}",
        outcome.answer
    );
    greedy.clock.clock += 1000;
    let outcome = lab.join(&greedy).await;
    assert_eq!(
        outcome.answer.status,
        StatusCode::ACCEPTED,
        "a join with a further address: {:?}",
        outcome.answer
    );
    // Its state is unchanged, and it continues with the approved claims.
    assert_eq!(lab.status(&machine.node).await.state, MachineState::Trusted);
    machine.clock.clock += 5000;
    lab.renew(&machine, &who).await.accepted();
    let all = requests().await;
    let asked = all
        .iter()
        .find(|one| note(one, "pratique.dev/changed").contains("10.99.0.1"))
        .expect("it is said");
    assert!(
        note(asked, "pratique.dev/claimed").contains("10.99.0.1"),
        "{asked:?}"
    );
    say(&lab, asked.metadata.name.as_deref().unwrap(), "Approved").await;
    greedy.clock.clock += 10_000;
    let who = identity(&greedy, &lab.until_accepted(&greedy).await);
    greedy.clock.clock += 1000;
    lab.renew(&greedy, &who).await.accepted();
    lab.site.stop();
}

/// How an admin removes a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Removal {
    /// Its Machine and its Node are deleted.
    Deleted,
    /// It was retired before.
    RetiredFirst,
    /// The master starts again after it.
    MasterRestarts,
}

/// A stranger that a person approved has its certificates also where the first answer was lost.
/// Once an admin removed it, its approval admits it no more: it waits for a person as any stranger.
/// So does an approval of more names and addresses, which the Machine asked for and never used.
pub(crate) async fn a_removed_machine_does_not_come_back_by_its_old_approval() {
    let lab = &Lab::start().await;
    set_policy(lab, "queue", &json!({})).await;
    for removal in [
        Removal::Deleted,
        Removal::RetiredFirst,
        Removal::MasterRestarts,
    ] {
        let mut machine = lab.stranger();
        comes_by(lab, Code::Queued, || lab.join(&machine)).await;
        let approved = request_of(lab, &machine.node).await;
        approve(lab, &approved).await;
        let who = loses_its_answer(lab, &mut machine).await;
        let same = request_of(lab, &machine.node).await;
        assert_eq!(same.metadata.uid, approved.metadata.uid, "{removal:?}");
        remove(lab, &machine, removal).await;
        assert_eq!(
            ask(lab, &who, Method::GET, &own_node(&machine), json!(null)).await,
            StatusCode::UNAUTHORIZED
        );
        waits_as_a_stranger(lab, &mut machine, &approved).await;
    }
    // A second approval, for more than the first.
    let mut machine = lab.stranger();
    comes_by(lab, Code::Queued, || lab.join(&machine)).await;
    let first = request_of(lab, &machine.node).await;
    approve(lab, &first).await;
    lab.until_accepted(&machine).await;
    machine.claims.addresses.push("10.99.0.2".to_owned());
    machine.serving_request.names.push("10.99.0.2".to_owned());
    machine.clock.clock += 1000;
    comes_by(lab, Code::Queued, || lab.join(&machine)).await;
    lab.site
        .delete::<CertificateSigningRequest>(first.metadata.name.as_deref().unwrap())
        .await;
    let second = request_of(lab, &machine.node).await;
    approve(lab, &second).await;
    remove(lab, &machine, Removal::Deleted).await;
    waits_as_a_stranger(lab, &mut machine, &second).await;
    lab.site.stop();
}

pub(crate) async fn approve(lab: &Lab, request: &CertificateSigningRequest) {
    say(lab, request.metadata.name.as_deref().unwrap(), "Approved").await;
}

/// The machine's connection ends before the answer, once its Machine is there; it asks again and
/// has its certificates.
async fn loses_its_answer(lab: &Lab, machine: &mut SoftMachine) -> Identity {
    let made = eventually("the Machine", lab, || async {
        let all: Vec<Machine> = lab.site.list().await;
        let made = |one: &Machine| one.metadata.name.as_deref() == Some(&machine.node);
        all.iter().any(made).then_some(())
    });
    let joins = async {
        // The approval is known a moment later.
        while lab.join(machine).await.answer.status != StatusCode::OK {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // The one that ends first ends the other, and with it its connection.
    tokio::select! {
        () = made => {}
        () = joins => {}
    }
    machine.clock.clock += 1000;
    identity(machine, &lab.until_accepted(machine).await)
}

pub(crate) async fn remove(lab: &Lab, machine: &SoftMachine, removal: Removal) {
    if removal == Removal::RetiredFirst {
        let retired = json!({ "spec": { "retired": true } });
        lab.site.patch::<Machine>(&machine.node, &retired).await;
    }
    lab.site.delete::<Machine>(&machine.node).await;
    lab.site.delete::<Node>(&machine.node).await;
    if removal == Removal::MasterRestarts {
        lab.site.cut_and_restart().await;
    }
}

/// It joins and is queued: it has no Machine again.
pub(crate) async fn is_queued_without_a_machine(lab: &Lab, machine: &SoftMachine) {
    let outcome = lab.join(machine).await;
    assert_eq!(
        (outcome.answer.status, code(&outcome)),
        (StatusCode::ACCEPTED, Code::Queued.as_str()),
        "{:?}",
        outcome.answer
    );
    let machines: Vec<Machine> = lab.site.list().await;
    let named = |one: &Machine| one.metadata.name.as_deref() == Some(&machine.node);
    assert!(!machines.iter().any(named), "it has a Machine again");
}

/// It is asked about in a new request, and has nothing until that is approved.
async fn waits_as_a_stranger(
    lab: &Lab,
    machine: &mut SoftMachine,
    before: &CertificateSigningRequest,
) {
    machine.clock.clock += 1000;
    is_queued_without_a_machine(lab, machine).await;
    let asked = request_of(lab, &machine.node).await;
    assert_ne!(asked.metadata.uid, before.metadata.uid, "the old request");
    // The control.
    approve(lab, &asked).await;
    machine.clock.clock += 1000;
    lab.until_accepted(machine).await;
}

/// Two machines under a rule that takes claimed addresses: one of them holds the address, also
/// where they come at once and after a restart, until it gives it up.
pub(crate) async fn an_address_that_two_machines_claim_is_given_to_one() {
    let lab = Lab::start().await;
    set_policy(&lab, "cloud-verify", &by_issuer("")).await;
    let claims = async |address: &str| {
        let mut machine = lab.stranger();
        machine.claims.addresses.clear();
        lab.register(&machine, &machine.node).await;
        machine.claims.addresses = vec![address.to_owned()];
        address.clone_into(&mut machine.serving_request.names[1]);
        machine
    };
    let (first, second) = (claims("10.88.0.1").await, claims("10.88.0.1").await);
    lab.until_accepted(&first).await;
    let outcome = lab.join(&second).await;
    lab.refused(&outcome, Code::AddressTaken, true).await;
    assert_eq!(
        lab.status(&second.node).await.state,
        MachineState::Pending,
        "it may be innocent"
    );
    lab.site.cut_and_restart().await;
    lab.refused(&lab.join(&second).await, Code::AddressTaken, true)
        .await;
    lab.site
        .patch::<Machine>(&first.node, &json!({ "spec": { "retired": true } }))
        .await;
    lab.join(&second).await.accepted();
    for round in 0..ROUNDS {
        let address = format!("10.88.1.{round}");
        let (one, other) = (claims(&address).await, claims(&address).await);
        let (left, right) = tokio::join!(lab.join(&one), lab.join(&other));
        let got =
            [&left, &right].map(|outcome| usize::from(outcome.answer.status == StatusCode::OK));
        assert_eq!(
            got.iter().sum::<usize>(),
            1,
            "round {round}: {:?} and {:?}",
            left.answer,
            right.answer
        );
        let loser = if got[0] == 1 { &other } else { &one };
        lab.refused(&lab.join(loser).await, Code::AddressTaken, true)
            .await;
    }
    // Strangers under the other policies get no address of another either.
    set_policy(&lab, "insecure-always-approve", &json!({})).await;
    let mut stranger = lab.stranger();
    stranger.claims.addresses = vec!["10.88.0.1".to_owned()];
    "10.88.0.1".clone_into(&mut stranger.serving_request.names[1]);
    let start = Instant::now();
    let outcome = lab.until(Code::AddressTaken, || lab.join(&stranger)).await;
    assert!(start.elapsed() < LIMIT);
    lab.refused(&outcome, Code::AddressTaken, false).await;
    let machines: Vec<Machine> = lab.site.list().await;
    assert!(
        machines
            .iter()
            .all(|machine| machine.node_name() != name::derived(&stranger.ek_hash()))
    );
    assert!(
        machines
            .iter()
            .all(|machine| machine.node_name() != stranger.node),
        "no Machine of a refused stranger"
    );
    lab.site.stop();
}

/// A TPM whose firmware is below the minimum for its manufacturer.
pub(crate) async fn tpm_firmware_below_the_minimum_is_refused() {
    let lab = Lab::start().await;
    let mut rule = by_issuer("inventory");
    rule["ek"]["minFirmware"] = json!({ "lab-ca": "7.85.4555.0" });
    set_policy(&lab, "cloud-verify", &rule).await;
    let (good, mut old) = (lab.machine().await, lab.machine().await);
    lab.until_accepted(&good).await;
    assert_eq!(lab.status(&good.node).await.tpm_firmware, "7.85.4555.0");
    old.tpm_firmware -= 1;
    lab.refused(&lab.join(&old).await, Code::TpmFirmware, true)
        .await;
    lab.site.stop();
}
