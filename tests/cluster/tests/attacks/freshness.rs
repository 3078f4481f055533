//! Replays, splices, late and second answers, other versions, floods, and forged evidence against
//! good machines.

use crate::lab::{Greeting, LIMIT, Lab, Outcome, identity};
use crate::wire::{Answer, Connection, config};
use config_protocol::wire::{
    Challenge, Evidence, RENEWALS_PATH, SESSION_SECONDS, SESSIONS_PATH, SessionId, evidence_path,
};
use config_protocol::{Channel, Code, Purpose};
use config_tpm::Digest;
use http::{Method, StatusCode};
use std::time::{Duration, Instant};
use tests_machines::{EkKind, SoftMachine};

/// A half-open exchange.
pub(crate) struct Open {
    connection: Connection,
    greeting: Greeting,
    challenge: Challenge,
    node: String,
}

impl Open {
    pub(crate) async fn new(lab: &Lab, machine: &SoftMachine) -> Self {
        Self::with(lab, machine, machine.hello()).await
    }

    pub(crate) async fn with(lab: &Lab, machine: &SoftMachine, greeting: Greeting) -> Self {
        let mut connection = lab.connect().await;
        let answer = connection.post(SESSIONS_PATH, &greeting.0).await;
        assert_eq!(answer.status, StatusCode::OK, "{:?}", answer.json);
        let challenge = serde_json::from_value(answer.json).unwrap();
        Self {
            connection,
            greeting,
            challenge,
            node: machine.node.clone(),
        }
    }

    pub(crate) fn evidence(&self, machine: &SoftMachine, purpose: Purpose) -> Evidence {
        machine.evidence(
            purpose,
            &self.greeting,
            &self.challenge,
            &self.connection.channel,
        )
    }

    pub(crate) async fn answer(&mut self, evidence: &Evidence) -> Outcome {
        let path = evidence_path(SESSIONS_PATH, &self.challenge.session);
        let answer = self.connection.post(&path, evidence).await;
        Outcome {
            answer,
            local: self.connection.local,
            node: self.node.clone(),
        }
    }
}

pub(crate) async fn evidence_with_a_replayed_nonce_is_refused(lab: &Lab) {
    let machine = lab.machine().await;
    let first = Open::new(lab, &machine).await;
    let replayed = first.evidence(&machine, Purpose::Join);
    let mut second = Open::with(lab, &machine, first.greeting.clone()).await;
    let outcome = second.answer(&replayed).await;
    lab.refused(&outcome, Code::NonceReplayed, false).await;
    lab.join(&machine).await.accepted();
}

pub(crate) async fn evidence_for_an_expired_session_is_refused(lab: &Lab) {
    let machine = lab.machine().await;
    let mut late = Open::new(lab, &machine).await;
    let evidence = late.evidence(&machine, Purpose::Join);
    let opened = Instant::now();
    // The condition is the passing of the session's own time.
    let end = opened + Duration::from_secs(SESSION_SECONDS) + Duration::from_secs(2);
    tokio::time::sleep_until(end.into()).await;
    let outcome = late.answer(&evidence).await;
    lab.refused(&outcome, Code::SessionExpired, false).await;
    lab.join(&machine).await.accepted();
}

pub(crate) async fn a_second_answer_in_a_session_is_refused(lab: &Lab) {
    let machine = lab.machine().await;
    let mut open = Open::new(lab, &machine).await;
    let evidence = open.evidence(&machine, Purpose::Join);
    open.answer(&evidence).await.accepted();
    let outcome = open.answer(&evidence).await;
    lab.refused(&outcome, Code::SessionUsed, false).await;
}

pub(crate) async fn evidence_for_an_invented_session_is_refused(lab: &Lab) {
    let machine = lab.machine().await;
    let mut open = Open::new(lab, &machine).await;
    let evidence = open.evidence(&machine, Purpose::Join);
    let honest = open.challenge.session;
    open.challenge.session = SessionId([7; 16]);
    let outcome = open.answer(&evidence).await;
    lab.refused(&outcome, Code::SessionUnknown, false).await;
    open.challenge.session = honest;
    open.answer(&evidence).await.accepted();
}

/// A man in the middle: the machine's evidence names the connection to him, not his connection to
/// the master.
pub(crate) async fn evidence_bound_to_another_tls_connection_is_refused(lab: &Lab) {
    let between = lab.connect().await.channel;
    let splice = move |channel: &mut Channel| channel.exporter = between.exporter;
    refused_as_seen(lab, Purpose::Join, splice, Code::Channel).await;
}

/// The evidence comes on another connection than the hello did.
pub(crate) async fn evidence_on_another_connection_than_its_hello_is_refused(lab: &Lab) {
    let machine = lab.machine().await;
    let mut open = Open::new(lab, &machine).await;
    let evidence = open.evidence(&machine, Purpose::Join);
    open.connection = lab.connect().await;
    let outcome = open.answer(&evidence).await;
    lab.refused(&outcome, Code::Channel, false).await;
    lab.join(&machine).await.accepted();
}

pub(crate) async fn evidence_for_an_impostors_tls_key_is_refused(lab: &Lab) {
    let impostor = |channel: &mut Channel| channel.server_spki = Digest::of(b"impostor");
    refused_as_seen(lab, Purpose::Join, impostor, Code::MasterKey).await;
}

/// A proof that was made for the admin's bootstrap does not admit a node.
pub(crate) async fn a_proof_for_the_bootstrap_admits_no_node(lab: &Lab) {
    refused_as_seen(
        lab,
        Purpose::Bootstrap,
        |_| {},
        Code::CredentialNotActivated,
    )
    .await;
}

/// A join whose evidence is made for another purpose, or for the connection as the machine sees it,
/// is refused with this code; an honest one of the same machine is accepted.
async fn refused_as_seen(lab: &Lab, purpose: Purpose, seen: impl FnOnce(&mut Channel), code: Code) {
    let machine = lab.machine().await;
    let connection = lab.connect().await;
    let outcome = lab
        .exchange(&machine, connection, SESSIONS_PATH, purpose, seen, |_| {})
        .await;
    lab.refused(&outcome, code, false).await;
    lab.join(&machine).await.accepted();
}

pub(crate) async fn an_older_protocol_version_is_refused(lab: &Lab) {
    let machine = lab.machine().await;
    let mut connection = lab.connect().await;
    let mut hello = machine.hello().0;
    "cloud-verify/v0".clone_into(&mut hello.protocol);
    let answer = connection.post(SESSIONS_PATH, &hello).await;
    let outcome = Outcome {
        answer,
        local: connection.local,
        node: machine.node.clone(),
    };
    lab.refused(&outcome, Code::ProtocolVersion, false).await;
    lab.join(&machine).await.accepted();
}

/// Forged evidence in the name of a good machine changes nothing for it, and a flood of hellos does
/// not evict its session.
pub(crate) async fn forged_evidence_in_a_machines_name_changes_nothing_for_it(lab: &Lab) {
    let machine = lab.machine().await;
    lab.join(&machine).await.accepted();
    let before = lab.status(&machine.node).await;
    // The EK and its certificate are not secret: an attacker can send them with other keys.
    let mut attacker = SoftMachine::new("attacker", EkKind::P256);
    attacker.node.clone_from(&machine.node);
    attacker.ek_public = machine.ek_public.clone();
    attacker.ek_certificate.clone_from(&machine.ek_certificate);
    attacker.claims = machine.claims.clone();
    attacker.client_request = machine.client_request.clone();
    attacker.serving_request = machine.serving_request.clone();
    attacker.bank = machine.bank.clone();
    attacker.log = machine.log.clone();
    attacker.bind_nk();
    let outcome = lab.join(&attacker).await;
    lab.refused(&outcome, Code::CredentialNotActivated, false)
        .await;
    let mut good = Open::new(lab, &machine).await;
    // From one address; the machine has another.
    let mut connection = Connection::open_from(
        [127, 1, 0, 1].into(),
        lab.site.address,
        lab.site.anonymous.clone(),
    )
    .await
    .unwrap();
    let mut full = None;
    for _ in 0..8 {
        let answer = connection.post(SESSIONS_PATH, &attacker.hello().0).await;
        if answer.status != StatusCode::OK {
            full = Some(Outcome {
                answer,
                local: connection.local,
                node: machine.node.clone(),
            });
            break;
        }
    }
    lab.refused(
        &full.expect("a bound on the sessions of one EK"),
        Code::SessionsFullForEk,
        false,
    )
    .await;
    assert_eq!(lab.status(&machine.node).await, before);
    let evidence = good.evidence(&machine, Purpose::Join);
    good.answer(&evidence).await.accepted();
    let (_, again) = lab.hello(&machine).await;
    assert_eq!(
        again.status,
        StatusCode::OK,
        "a flood in its name keeps a machine out: {:?}",
        again.json
    );
}

/// One TPM that answers as two machines at once, where an admin lists its EK for both by mistake,
/// is one node.
pub(crate) async fn one_tpm_that_answers_as_two_machines_is_one_node(lab: &Lab) {
    let machine = lab.machine().await;
    let mut second = machine.clone();
    second.node = format!("{}-too", machine.node);
    second.claims.name.clone_from(&second.node);
    second.claims.addresses.clear();
    for request in [&mut second.client_request, &mut second.serving_request] {
        request.common_name = format!("system:node:{}", second.node);
    }
    second.serving_request.names = vec![second.node.clone()];
    lab.register(&second, &second.node).await;
    let (mut one, mut two) = (
        Open::new(lab, &machine).await,
        Open::new(lab, &second).await,
    );
    let (first, other) = (
        one.evidence(&machine, Purpose::Join),
        two.evidence(&second, Purpose::Join),
    );
    // Control: the first of them is accepted.
    one.answer(&first).await.accepted();
    lab.refused(&two.answer(&other).await, Code::EkBoundElsewhere, false)
        .await;
    assert!(lab.status(&second.node).await.certificate.is_none());
}

/// Traffic of others from a node's address, such as its pods', does not keep the node from
/// renewing.
pub(crate) async fn a_flood_from_its_own_address_does_not_stop_a_node(lab: &Lab) {
    let mut machine = lab.machine().await;
    let who = identity(&machine, &lab.join(&machine).await.accepted());
    machine.clock.clock += 1000;
    let place = [127, 1, 0, 2].into();
    let mut pod = Connection::open_from(place, lab.site.address, lab.site.anonymous.clone())
        .await
        .unwrap();
    let start = Instant::now();
    while pod
        .send(Method::POST, SESSIONS_PATH, b"{}".to_vec())
        .await
        .status
        != StatusCode::TOO_MANY_REQUESTS
    {
        assert!(
            start.elapsed() < LIMIT,
            "no request of a flood was turned away"
        );
    }
    let mtls = config(&lab.site.root, Some(&who));
    // The flood goes on all the while.
    let flood = tokio::spawn(async move {
        loop {
            pod.send(Method::POST, SESSIONS_PATH, b"{}".to_vec()).await;
        }
    });
    for _ in 0..5 {
        let node = Connection::open_from(place, lab.site.address, mtls.clone())
            .await
            .unwrap();
        lab.exchange(
            &machine,
            node,
            RENEWALS_PATH,
            Purpose::Renew,
            |_| {},
            |_| {},
        )
        .await
        .accepted();
        machine.clock.clock += 1000;
    }
    assert!(
        !flood.is_finished(),
        "the flood was over when the node renewed"
    );
    flood.abort();
}

/// Malformed, truncated and oversized bodies get a plain answer, and the process lives on.
pub(crate) async fn malformed_and_oversized_bodies_are_refused(lab: &Lab) {
    let machine = lab.machine().await;
    let hello = serde_json::to_vec(&machine.hello().0).unwrap();
    for body in malformed(&machine, &hello) {
        let answer = lab
            .connect()
            .await
            .send(Method::POST, SESSIONS_PATH, body)
            .await;
        let found = (answer.status, answer.json["code"].as_str());
        assert_eq!(
            found,
            (StatusCode::BAD_REQUEST, Some("MALFORMED")),
            "{:?}",
            answer.json
        );
    }
    let mut large: serde_json::Value = serde_json::from_slice(&hello).unwrap();
    large["keys"]["ak"] = "A".repeat(1400).into();
    let answer = lab
        .connect()
        .await
        .send(
            Method::POST,
            SESSIONS_PATH,
            serde_json::to_vec(&large).unwrap(),
        )
        .await;
    assert_eq!(
        (answer.status, answer.json["code"].as_str()),
        (StatusCode::PAYLOAD_TOO_LARGE, Some("TOO_LARGE"))
    );
    a_malformed_answer_is_the_sessions_one(lab, &machine).await;
    huge_evidence_is_refused(lab, &machine).await;
    lab.join(&machine).await.accepted();
}

/// Bodies that are no hello: not JSON, not whole, nested too deep, with a key too many or twice,
/// with a text too long.
fn malformed(machine: &SoftMachine, hello: &[u8]) -> Vec<Vec<u8>> {
    let mut bodies = vec![
        Vec::new(),
        b"{".to_vec(),
        b"[]".to_vec(),
        vec![0xff; 1000],
        hello[..hello.len() / 2].to_vec(),
    ];
    bodies.push(serde_json::to_vec(&serde_json::json!({ "protocol": [[[[]]]] })).unwrap());
    bodies.push("[".repeat(20_000).into_bytes());
    let text = String::from_utf8(hello.to_vec()).unwrap();
    let sent: serde_json::Value = serde_json::from_slice(hello).unwrap();
    let hash = sent["csrHash"].as_str().unwrap().to_owned();
    bodies.push(text.replace(&hash, &hash.to_uppercase()).into_bytes());
    bodies.push(text.replacen('{', "{\"more\":1,", 1).into_bytes());
    bodies.push(
        text.replacen('{', "{\"protocol\":\"cloud-verify/v1\",", 1)
            .into_bytes(),
    );
    bodies.push(format!("{text}{text}").into_bytes());
    let mut long = machine.clone();
    long.claims.instance = "i".repeat(254);
    bodies.push(serde_json::to_vec(&long.hello().0).unwrap());
    // A list is no object, and a key that comes twice is not taken once.
    let good = String::from_utf8(hello.to_vec()).unwrap();
    let twice = good.replacen(
        "{\"protocol\"",
        "{\"protocol\":\"cloud-verify/v1\",\"protocol\"",
        1,
    );
    let text = |value: &serde_json::Value| {
        value
            .as_object()
            .unwrap()
            .values()
            .cloned()
            .collect::<Vec<_>>()
    };
    let list = serde_json::json!(text(&serde_json::from_slice(hello).unwrap())).to_string();
    bodies.extend([twice.into_bytes(), list.into_bytes()]);
    bodies
}

async fn a_malformed_answer_is_the_sessions_one(lab: &Lab, machine: &SoftMachine) {
    let mut open = Open::new(lab, machine).await;
    let good = open.evidence(machine, Purpose::Join);
    let path = evidence_path(SESSIONS_PATH, &open.challenge.session);
    let answer = open
        .connection
        .send(Method::POST, &path, b"{}".to_vec())
        .await;
    assert_eq!(
        (answer.status, answer.json["code"].as_str()),
        (StatusCode::BAD_REQUEST, Some("MALFORMED"))
    );
    let outcome = open.answer(&good).await;
    lab.refused(&outcome, Code::SessionUsed, false).await;
}

async fn huge_evidence_is_refused(lab: &Lab, machine: &SoftMachine) {
    let open = Open::new(lab, machine).await;
    let path = evidence_path(SESSIONS_PATH, &open.challenge.session);
    for (path, size) in [(SESSIONS_PATH, 33 * 1024), (path.as_str(), 513 * 1024)] {
        let answer = lab
            .connect()
            .await
            .send(Method::POST, path, vec![b' '; size])
            .await;
        assert_eq!(
            (answer.status, answer.json["code"].as_str()),
            (StatusCode::PAYLOAD_TOO_LARGE, Some("TOO_LARGE"))
        );
    }
    // For a session that does not exist, that is the reason on record.
    let path = evidence_path(SESSIONS_PATH, &SessionId([1; 16]));
    let mut connection = lab.connect().await;
    let answer = connection
        .send(Method::POST, &path, vec![b' '; 513 * 1024])
        .await;
    let outcome = Outcome {
        answer,
        local: connection.local,
        node: machine.node.clone(),
    };
    lab.refused(&outcome, Code::SessionUnknown, false).await;
}

/// An attacker who delays a machine's evidence until the machine has proved something newer does
/// not make it Untrusted.
pub(crate) async fn evidence_that_was_held_back_makes_no_machine_untrusted(lab: &Lab) {
    let mut machine = lab.machine().await;
    let mut held_back = Open::new(lab, &machine).await;
    let evidence = held_back.evidence(&machine, Purpose::Join);
    machine.clock.clock += 1000;
    lab.join(&machine).await.accepted();
    let before = lab.status(&machine.node).await;
    lab.refused(&held_back.answer(&evidence).await, Code::Overtaken, true)
        .await;
    assert_eq!(lab.status(&machine.node).await, before);
    lab.join(&machine).await.accepted();
}

/// Half-open sessions and requests are bounded, no matter who floods; the machine in whose name it
/// is, and others, join all the while, from elsewhere.
pub(crate) async fn a_flood_of_hellos_is_limited_and_machines_still_join(lab: &Lab) {
    let (machine, other) = (lab.machine().await, lab.machine().await);
    let before = lab.site.resident();
    let hello = serde_json::to_vec(&machine.hello().0).unwrap();
    let mut connection = Connection::open_from(
        [127, 1, 0, 3].into(),
        lab.site.address,
        lab.site.anonymous.clone(),
    )
    .await
    .unwrap();
    let limited = |answer: &Answer| {
        let found = (answer.status, answer.json["code"].as_str());
        found
            == (
                StatusCode::TOO_MANY_REQUESTS,
                Some(Code::RateLimited.as_str()),
            )
    };
    let mut turned_away = 0;
    for _ in 0..2000 {
        turned_away += u32::from(limited(
            &connection
                .send(Method::POST, SESSIONS_PATH, hello.clone())
                .await,
        ));
    }
    assert!(
        turned_away > 1000,
        "{turned_away} requests of a flood of 2000 were turned away"
    );
    let grown = lab.site.resident().saturating_sub(before);
    assert!(grown < 32 * 1024, "a flood cost {grown} KiB");
    // The flood goes on all the while; the limit is of its address.
    let flood = tokio::spawn(async move {
        while limited(
            &connection
                .send(Method::POST, SESSIONS_PATH, hello.clone())
                .await,
        ) {}
    });
    lab.join(&other).await.accepted();
    lab.join(&machine).await.accepted();
    assert!(
        !flood.is_finished(),
        "the flood was over, or taken, when the machines joined"
    );
    flood.abort();
}
