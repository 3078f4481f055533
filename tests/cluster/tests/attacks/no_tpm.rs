//! Machines without a TPM against a running master: admitted only where the rule allows it, never
//! in place of one that has a TPM, and no message of one protocol is accepted by the other.

use crate::approval::{code, comes_by, eventually, note, request_of, say, set_policy};
use crate::lab::{Lab, Outcome, identity};
use crate::wire::{Connection, Identity, config};
use agent_enroll::{
    Endpoint, Endpoints, Enroller, Milestone, MilestoneCallback, NodeKey, Settings,
};
use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::{Machine, MachineState, NodeAttestation};
use config_protocol::unproven::{Challenge, Evidence, RENEWALS_PATH, SESSIONS_PATH};
use config_protocol::wire::{self, Certificates, Claims, evidence_path};
use config_protocol::{Code, Purpose};
use config_tpm::Digest;
use http::{Method, StatusCode};
use p256::pkcs8::EncodePrivateKey as _;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tests_machines::SoftKeyed;

/// Time for an enrolment by the agent's own code, including a person's approval.
const LIMIT: Duration = Duration::from_secs(180);

/// A machine without a TPM, at an address of its name's own, in one boot.
fn edge(node: &str, boot: &str) -> SoftKeyed {
    let [high, low, ..] = Digest::of(node.as_bytes()).0;
    SoftKeyed::new(node, &format!("10.8.{high}.{low}"), boot)
}

/// A whole exchange on a connection; something in between changes the evidence.
async fn exchange(
    machine: &SoftKeyed,
    mut connection: Connection,
    sessions: &str,
    change: impl FnOnce(&mut Evidence),
) -> Outcome {
    let purpose = if sessions == RENEWALS_PATH {
        Purpose::Renew
    } else {
        Purpose::Join
    };
    let greeting = machine.hello();
    let mut answer = connection.post(sessions, &greeting.0).await;
    if answer.status == StatusCode::OK {
        let challenge: Challenge = serde_json::from_value(answer.json).unwrap();
        let mut evidence = machine.evidence(purpose, &greeting, &challenge, &connection.channel);
        change(&mut evidence);
        answer = connection
            .post(&evidence_path(sessions, &challenge.session), &evidence)
            .await;
    }
    Outcome {
        answer,
        local: connection.local,
        node: machine.node.clone(),
    }
}

async fn join(lab: &Lab, machine: &SoftKeyed) -> Outcome {
    exchange(machine, lab.connect().await, SESSIONS_PATH, |_| {}).await
}

async fn join_until_accepted(lab: &Lab, machine: &SoftKeyed) -> Certificates {
    let joined = eventually("an admission", lab, || async {
        let outcome = join(lab, machine).await;
        (outcome.answer.status == StatusCode::OK).then_some(outcome)
    });
    joined.await.accepted()
}

fn identity_of(machine: &SoftKeyed, certificates: &Certificates) -> Identity {
    let chain = crate::lab::chain(&certificates.client);
    Identity {
        chain,
        key: machine.key.to_pkcs8_der().unwrap().as_bytes().to_vec(),
    }
}

async fn renew(lab: &Lab, machine: &SoftKeyed, identity: &Identity) -> Outcome {
    exchange(
        machine,
        lab.connect_as(identity).await.unwrap(),
        RENEWALS_PATH,
        |_| {},
    )
    .await
}

/// Without `insecureNoTpm` the master records `NO_TPM` and tells the caller only that it is
/// refused. With it, a person must approve; the request and all objects name what is not proven. A
/// reboot asks again.
pub(crate) async fn a_machine_without_a_tpm_joins_only_where_the_rule_allows_it() {
    let lab = Lab::start().await;
    let machine = edge("edge-1", "1");
    lab.refused(&join(&lab, &machine).await, Code::NoTpm, false)
        .await;
    set_policy(&lab, "queue", &json!({})).await;
    // The rule is another now, which a machine with a TPM shows; one without is refused as before.
    comes_by(&lab, Code::Queued, || lab.join_stranger()).await;
    lab.refused(&join(&lab, &machine).await, Code::NoTpm, false)
        .await;

    set_policy(&lab, "queue", &json!({ "insecureNoTpm": true })).await;
    comes_by(&lab, Code::Queued, || join(&lab, &machine)).await;
    let request = request_of(&lab, "edge-1").await;
    let name = request.metadata.name.clone().unwrap();
    assert!(name.starts_with("edge-1-no-tpm-"), "{name}");
    assert!(
        note(&request, "pratique.dev/proved").starts_with("NOTHING: it has no TPM"),
        "{request:?}"
    );
    assert!(
        note(&request, "pratique.dev/ek").contains(&machine.key_hash().to_text()),
        "{request:?}"
    );
    for what in [
        "boot registers",
        "event log",
        "image",
        "Secure Boot",
        "configuration",
    ] {
        assert!(
            note(&request, "pratique.dev/not-proved").contains(what),
            "{what}: {request:?}"
        );
    }
    say(&lab, &name, "Approved").await;
    let certificates = join_until_accepted(&lab, &machine).await;
    is_shown(&lab, &name).await;

    // It is a node like any other, and renews by its key.
    let holder = identity_of(&machine, &certificates);
    let own = async |identity: &Identity| {
        let mut connection =
            Connection::open(lab.site.address, config(&lab.site.root, Some(identity)))
                .await
                .unwrap();
        connection
            .status(Method::GET, "/api/v1/nodes/edge-1", Vec::new())
            .await
    };
    assert_eq!(own(&holder).await, StatusCode::OK);
    let renewed = renew(&lab, &machine, &holder).await.accepted();
    let holder = identity_of(&machine, &renewed);

    // After a reboot the key is another: without a decision nothing changes, with a person's
    // approval it replaces the first.
    let rebooted = edge("edge-1", "2");
    comes_by(&lab, Code::Queued, || join(&lab, &rebooted)).await;
    assert_eq!(
        lab.status("edge-1").await.state,
        MachineState::Unproven,
        "nobody can denounce it"
    );
    assert_eq!(own(&holder).await, StatusCode::OK);
    let all: Vec<_> = lab.site.list().await;
    let asks = all
        .iter()
        .find(|request| note(request, "pratique.dev/changed").contains("node key"))
        .unwrap();
    say(&lab, asks.metadata.name.as_deref().unwrap(), "Approved").await;
    let certificates = join_until_accepted(&lab, &rebooted).await;
    eventually("the first key to be worthless", &lab, || async {
        (own(&holder).await == StatusCode::UNAUTHORIZED).then_some(())
    })
    .await;
    let second = identity_of(&rebooted, &certificates);
    assert_eq!(own(&second).await, StatusCode::OK);
    // The approval of the first key counted once.
    comes_by(&lab, Code::NodeKeyInUse, || join(&lab, &machine)).await;
    assert_eq!(own(&second).await, StatusCode::OK);

    // The rule no longer admits it: no renewal. Retired: nothing at all.
    set_policy(&lab, "queue", &json!({})).await;
    eventually("the end of renewals", &lab, || async {
        let outcome = renew(&lab, &rebooted, &second).await;
        (code(&outcome) == "REFUSED").then_some(())
    })
    .await;
    lab.site
        .patch::<Machine>("edge-1", &json!({ "spec": { "retired": true } }))
        .await;
    eventually("the end of the retired machine", &lab, || async {
        (own(&second).await == StatusCode::UNAUTHORIZED).then_some(())
    })
    .await;
    lab.site.stop();
}

/// Machine, Node, condition, record and log all say that nothing is proven.
async fn is_shown(lab: &Lab, request: &str) {
    let object: Machine = lab.site.get("edge-1").await;
    assert!(object.spec.insecure_no_tpm && object.spec.ek.hashes.is_empty());
    let status = object.status.unwrap_or_default();
    assert_eq!(
        (status.state, status.bound_ek, status.image),
        (MachineState::Unproven, None, None)
    );
    let unproven = |name: &str| {
        status
            .checks
            .iter()
            .any(|c| c.name == name && c.code == "NOT_PROVEN" && !c.ok)
    };
    assert!(
        unproven("TPM") && unproven("image") && unproven("configuration"),
        "{:?}",
        status.checks
    );
    let condition = &status.conditions[0];
    assert_eq!(
        (condition.status.as_str(), condition.reason.as_str()),
        ("False", "NoTpm")
    );
    assert!(condition.message.contains(request), "{}", condition.message);
    let node: Node = lab.site.get("edge-1").await;
    let labels = node.metadata.labels.unwrap_or_default();
    let shown = [
        "pratique.dev/join",
        "pratique.dev/insecure",
        "pratique.dev/image",
    ]
    .map(|key| labels[key].as_str());
    assert_eq!(shown, ["no-tpm", "no-tpm", "unproven"]);
    // Written after the answer.
    eventually("the record of the admission", lab, || async {
        let records: Vec<NodeAttestation> = lab.site.list().await;
        let said = |record: &NodeAttestation| {
            let status = record.status.clone().unwrap_or_default();
            status.verdict == "Accepted" && status.message.contains("not proven: TPM")
        };
        let logged = lab.site.log().contains("without a TPM");
        (records.iter().any(said) && logged).then_some(())
    })
    .await;
}

/// A machine that has a TPM, or ever had one, is never admitted by the claim that it has none, by
/// any caller and under any rule; and such a claim changes nothing for it.
pub(crate) async fn a_machine_with_a_tpm_never_joins_by_the_claim_of_having_none() {
    let lab = Lab::start().await;
    let machine = lab.machine().await;
    let certificates = lab.join(&machine).await.accepted();
    let listed = lab.machine().await;
    for policy in ["queue", "insecure-always-approve"] {
        set_policy(&lab, policy, &json!({ "insecureNoTpm": true })).await;
        let control = edge(&format!("edge-{policy}"), "1");
        if policy == "queue" {
            comes_by(&lab, Code::Queued, || join(&lab, &control)).await;
        } else {
            join_until_accepted(&lab, &control).await;
        }
        let before: Machine = lab.site.get(&machine.node).await;
        for hidden in [
            SoftKeyed::hiding(&machine),
            edge(&machine.node, "1"),
            SoftKeyed::hiding(&listed),
        ] {
            lab.refused(&join(&lab, &hidden).await, Code::TpmExpected, false)
                .await;
        }
        let own = identity(&machine, &certificates);
        lab.refused(
            &renew(&lab, &SoftKeyed::hiding(&machine), &own).await,
            Code::TpmExpected,
            false,
        )
        .await;
        let after: Machine = lab.site.get(&machine.node).await;
        assert_eq!((before.spec, before.status), (after.spec, after.status));
    }
    // An admin's mistake is refused at the write, and would not help if it were not.
    let path = format!("{}/{}", crate::site::collection::<Machine>(), machine.node);
    let mistake = serde_json::to_vec(&json!({ "spec": { "insecureNoTpm": true } })).unwrap();
    let answer = lab.site.api(Method::PATCH, &path, mistake).await;
    assert_eq!(
        answer.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{:?}",
        answer.json
    );
    assert!(
        answer.json["message"]
            .as_str()
            .unwrap()
            .contains("spec.ek.hashes"),
        "{:?}",
        answer.json
    );
    lab.site
        .patch::<Machine>(
            &machine.node,
            &json!({ "spec": { "ek": null, "insecureNoTpm": true } }),
        )
        .await;
    eventually("the mistake to be known", &lab, || async {
        let outcome = join(&lab, &edge(&machine.node, "1")).await;
        lab.refused(&outcome, Code::TpmExpected, false).await;
        let records: Vec<NodeAttestation> = lab.site.list().await;
        let said = |record: &NodeAttestation| {
            let checks = record
                .status
                .as_ref()
                .map(|status| status.checks.clone())
                .unwrap_or_default();
            checks
                .iter()
                .any(|check| check.actual == "it was bound to an endorsement key")
        };
        records.iter().any(said).then_some(())
    })
    .await;
    lab.site.stop();
}

/// Replays, splices, and messages made for the other protocol; and without a person's decision no
/// key replaces one with a valid certificate.
pub(crate) async fn replayed_spliced_and_cross_protocol_messages_are_refused() {
    let lab = Lab::start().await;
    set_policy(
        &lab,
        "insecure-always-approve",
        &json!({ "insecureNoTpm": true }),
    )
    .await;
    let machine = edge("edge-1", "1");
    let certificates = join_until_accepted(&lab, &machine).await;
    let node: Node = lab.site.get("edge-1").await;
    assert_eq!(
        node.metadata.labels.unwrap_or_default()["pratique.dev/insecure"],
        "always-approve"
    );

    // A key in another encoding, by which one key would be two; and no name, where the name is all
    // that there is.
    let (mut longer, mut nameless) = (machine.clone(), machine.clone());
    longer.announced.push(0);
    lab.refused(&join(&lab, &longer).await, Code::UnprovenKey, false)
        .await;
    nameless.claims.name.clear();
    lab.refused(&join(&lab, &nameless).await, Code::NameInvalid, false)
        .await;

    // Evidence of one connection on another, an earlier answer, a second answer.
    let (mut first, mut second) = (lab.connect().await, lab.connect().await);
    let greeting = machine.hello();
    let challenge: Challenge =
        serde_json::from_value(first.post(SESSIONS_PATH, &greeting.0).await.json).unwrap();
    let evidence = machine.evidence(Purpose::Join, &greeting, &challenge, &first.channel);
    let path = evidence_path(SESSIONS_PATH, &challenge.session);
    let answer = second.post(&path, &evidence).await;
    let moved = Outcome {
        answer,
        local: second.local,
        node: machine.node.clone(),
    };
    lab.refused(&moved, Code::Channel, false).await;
    let answer = first.post(&path, &evidence).await;
    lab.refused(
        &Outcome {
            answer,
            local: first.local,
            node: machine.node.clone(),
        },
        Code::SessionUsed,
        false,
    )
    .await;
    let fresh: Challenge =
        serde_json::from_value(second.post(SESSIONS_PATH, &greeting.0).await.json).unwrap();
    let answer = second
        .post(&evidence_path(SESSIONS_PATH, &fresh.session), &evidence)
        .await;
    let replayed = Outcome {
        answer,
        local: second.local,
        node: machine.node.clone(),
    };
    lab.refused(&replayed, Code::NonceReplayed, false).await;
    let stranger = edge("edge-1", "another");
    let foreign = |evidence: &mut Evidence| evidence.signature = stranger.sign(b"anything");
    let foreign = exchange(&machine, lab.connect().await, SESSIONS_PATH, foreign).await;
    lab.refused(&foreign, Code::UnprovenSignature, false).await;
    let taken = join(&lab, &stranger).await;
    assert_eq!(
        (taken.answer.status, code(&taken)),
        (StatusCode::FORBIDDEN, "NODE_KEY_IN_USE")
    );
    join_until_accepted(&lab, &machine).await;

    other_protocols(&lab, &machine).await;
    // Another node's certificate renews nothing here.
    let other = edge("edge-2", "1");
    let theirs = identity_of(&other, &join_until_accepted(&lab, &other).await);
    lab.refused(
        &renew(&lab, &machine, &theirs).await,
        Code::RenewalIdentity,
        false,
    )
    .await;
    renew(&lab, &machine, &identity_of(&machine, &certificates))
        .await
        .accepted();
    lab.site.stop();
}

/// Messages of one protocol, posted to the other's paths.
async fn other_protocols(lab: &Lab, machine: &SoftKeyed) {
    let proves = lab.machine().await;
    let (theirs, own) = (proves.hello(), machine.hello());
    let mut connection = lab.connect().await;
    assert_eq!(
        connection.post(SESSIONS_PATH, &theirs.0).await.json["code"],
        "MALFORMED"
    );
    assert_eq!(
        connection.post(wire::SESSIONS_PATH, &own.0).await.json["code"],
        "MALFORMED"
    );
    let mut renamed = own.clone();
    wire::PROTOCOL.clone_into(&mut renamed.0.protocol);
    assert_eq!(
        connection.post(SESSIONS_PATH, &renamed.0).await.json["code"],
        "PROTOCOL_VERSION"
    );
    // A session of one, answered at the other's window, with evidence of either form.
    let hello = connection.post(wire::SESSIONS_PATH, &theirs.0).await;
    let challenge: wire::Challenge = serde_json::from_value(hello.json).unwrap();
    let proof = proves.evidence(Purpose::Join, &theirs, &challenge, &connection.channel);
    let path = evidence_path(SESSIONS_PATH, &challenge.session);
    assert_eq!(
        connection.post(&path, &proof).await.json["code"],
        "REFUSED",
        "a session of this window comes first"
    );
    let spliced = Challenge {
        session: challenge.session,
        nonce: challenge.nonce,
        expires_in_seconds: 30,
    };
    let answer = connection
        .post(
            &path,
            &machine.evidence(Purpose::Join, &own, &spliced, &connection.channel),
        )
        .await;
    let outcome = Outcome {
        answer,
        local: connection.local,
        node: machine.node.clone(),
    };
    lab.refused(&outcome, Code::SessionUnknown, false).await;
    // The control: the session was not hurt by what came for it elsewhere.
    let path = evidence_path(wire::SESSIONS_PATH, &challenge.session);
    assert_eq!(connection.post(&path, &proof).await.status, StatusCode::OK);
    let hello = connection
        .post(wire::SESSIONS_PATH, &proves.hello().0)
        .await;
    let challenge: wire::Challenge = serde_json::from_value(hello.json).unwrap();
    let spliced = Challenge {
        session: challenge.session,
        nonce: challenge.nonce,
        expires_in_seconds: 30,
    };
    let bare = machine.evidence(Purpose::Join, &own, &spliced, &connection.channel);
    let path = evidence_path(wire::SESSIONS_PATH, &challenge.session);
    assert_eq!(
        connection.post(&path, &bare).await.json["code"],
        "MALFORMED"
    );
}

/// The agent's own code without a TPM: it asks, a person approves the key that the console shows,
/// the node uses the API and renews.
pub(crate) async fn an_agent_without_a_tpm_joins_after_approval_and_renews() {
    let lab = Lab::start_with("", "30s").await;
    let rule = json!({ "insecureNoTpm": true, "certificate": { "ttlSeconds": 30, "sans": "", "roles": ["worker"] } });
    set_policy(&lab, "queue", &rule).await;
    let key = NodeKey::in_memory().unwrap();
    let shown = Digest::of(key.spki()).to_text();
    let endpoint = Endpoint::new("127.0.0.1", lab.site.address.port()).unwrap();
    let settings = Settings {
        endpoints: Endpoints::new(vec![endpoint]).unwrap(),
        pins: vec![agent_enroll::spki_hash(&lab.site.root).unwrap()].into(),
        claims: Claims {
            name: "edge-9".to_owned(),
            ..Claims::default()
        },
    };
    let (sender, mut milestones) = tokio::sync::mpsc::unbounded_channel();
    let report: MilestoneCallback = Arc::new(move |milestone: &Milestone<'_>| {
        let line = match milestone {
            Milestone::Queued { message, .. } => format!("queued {message}"),
            Milestone::Renewed { .. } => "renewed".to_owned(),
            Milestone::Enrolling { .. }
            | Milestone::Refused { .. }
            | Milestone::Failed { .. }
            | Milestone::Enrolled { .. }
            | Milestone::Expired => return,
        };
        drop(sender.send(line));
    });
    let enrolling = tokio::spawn(Enroller::without_tpm(key, settings, report).enroll());
    let line = tokio::time::timeout(LIMIT, milestones.recv())
        .await
        .unwrap()
        .unwrap();
    let request = request_of(&lab, "edge-9").await;
    let name = request.metadata.name.clone().unwrap();
    assert!(
        line.contains(&format!("certificate approve {name}")),
        "{line}"
    );
    assert!(
        note(&request, "pratique.dev/ek").contains(&shown),
        "{request:?}"
    );
    say(&lab, &name, "Approved").await;
    let (identity, keeper) = tokio::time::timeout(LIMIT, enrolling)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let own = identity
        .client
        .request(Method::GET, "/api/v1/nodes/edge-9", "", bytes::Bytes::new())
        .await
        .unwrap();
    assert_eq!(own.status, 200);
    let keeping = tokio::spawn(keeper.keep());
    let renewed = async { while milestones.recv().await.unwrap() != "renewed" {} };
    tokio::time::timeout(LIMIT, renewed).await.unwrap();
    keeping.abort();
    lab.site.stop();
}
