//! The verifier against a real TPM implementation (swtpm), with tpm2-tools as second opinion.
//!
//! With `PRATIQUE_CAPTURE=1` the exchanges are also written to `vectors/`, from where
//! `tests/vectors.rs` replays them without a TPM.

#![allow(clippy::panic, reason = "helpers of tests stop at the first surprise")]

mod vtpm;

use config_attest::Refusal;
use config_attest::sessions::Sessions;
use config_attest::verifier::{check_evidence, check_hello};
use config_certificates::EkIssuer;
use config_kube::machine::EkSelector;
use config_protocol::Purpose;
use config_protocol::prover::{self, TpmOutputs};
use config_protocol::wire::{Challenge, Claims, ConfigEvent, Der, Evidence, Hello};
use config_tpm::eventlog::EventLog;
use config_tpm::pcr::{CONFIG_PCR, NK_PCRS, QUOTE_PCRS, Selection, config_event_digest};
use config_tpm::{Public, template};
use serde_json::json;
use tests_machines::{EkKind, Requester, SeededRng, SoftMachine, World};
use vtpm::{ENDORSEMENT, NULL, Vtpm};

const CONFIG: &[u8] = b"version = 1\n";

/// A software TPM whose registers are as after a boot of the world's image.
struct Booted {
    tpm: Vtpm,
    world: World,
    log: EventLog,
    config_event: ConfigEvent,
}

fn boot() -> Booted {
    let mut tpm = Vtpm::new();
    let mut world = World::new();
    world.machine("worker-1", "192.168.77.11", EkKind::P256);
    world.issuers = vec![EkIssuer::from_pem("lab-ca", &tpm.issuer_pem()).expect("swtpm's issuer")];
    let mut log = world.image.log();
    // swtpm is started up in locality 0.
    log.events.remove(0);
    for event in log.measured() {
        tpm.extend(event.pcr, &event.digest.0);
    }
    let digest = config_event_digest("nocloud", CONFIG);
    tpm.extend(CONFIG_PCR, &digest.0);
    let config_event = ConfigEvent {
        pcr: CONFIG_PCR,
        label: "nocloud".to_owned(),
        length: 12,
        digest,
    };
    Booted {
        tpm,
        world,
        log,
        config_event,
    }
}

/// One exchange as it went over the wire.
struct Exchange {
    hello: Hello,
    challenge: Challenge,
    evidence: Evidence,
    secret: Vec<u8>,
    question: config_tpm::Digest,
}

/// The public area of the TPM's endorsement key, which the inventory lists from now on.
fn listed_endorsement_key(tpm: &mut Vtpm, world: &mut World, ek: u32) -> Vec<u8> {
    let (ek_public, ek_name) = tpm.read_public(ek);
    let parsed = Public::parse(&ek_public).expect("an EK");
    assert_eq!(parsed.to_bytes(), ek_public, "parsing loses nothing");
    assert_eq!(parsed.name().as_bytes(), ek_name, "the Name is the TPM's");
    let hash = config_tpm::Digest::of(&parsed.spki().expect("an EK")).to_text();
    world.object("worker-1").spec.ek = EkSelector {
        hashes: vec![hash],
        issuers: Vec::new(),
        ..EkSelector::default()
    };
    ek_public
}

fn claims(world: &World) -> Claims {
    Claims {
        name: "worker-1".to_owned(),
        image: world.image.id.clone(),
        ..Claims::default()
    }
}

fn only_the_requests_key_fails(refusal: &Refusal) {
    let failed: Vec<&str> = refusal
        .verdict()
        .checks
        .iter()
        .filter(|check| !check.ok)
        .map(|check| check.name.as_str())
        .collect();
    assert_eq!(failed, ["client request: key"], "{:#?}", refusal.verdict());
}

fn exchange(
    booted: &mut Booted,
    ek: u32,
    certificate: u32,
    by_policy: bool,
    seed: &str,
) -> Exchange {
    let Booted {
        tpm,
        world,
        log,
        config_event,
    } = booted;
    let der = tpm.tool("tpm2_nvread", &["-C", "o", &format!("{certificate:#x}")]);
    let ek_public = listed_endorsement_key(tpm, world, ek);
    let mut bank = log.replay();
    bank.extend(CONFIG_PCR, &config_event.digest);
    let nk_values = bank.values(Selection::of(NK_PCRS));
    let (ak, ak_public) = tpm.create_primary(ENDORSEMENT, &template::ak().to_sized_bytes());
    let (nk, nk_public) = tpm.create_primary(NULL, &template::nk(&nk_values).to_sized_bytes());
    assert_eq!(
        tpm.read_public(ak).1,
        Public::parse(&ak_public).expect("an AK").name().as_bytes()
    );

    // The TPM signs the client request elsewhere (agent/tpm); here the request only
    // contains its key.
    let requester = SoftMachine::new("requester", EkKind::P256);
    let client = Requester::node("worker-1", &[]).request(&requester.nk);
    let serving = Requester::node("worker-1", &["worker-1".to_owned()]).request(&requester.serving);
    let keys = prover::keys(&ek_public, &ak_public, &nk_public, Some(&der)).expect("keys");
    let hello = prover::hello(keys, &client, &serving, claims(world));

    let references = world.references();
    let admitted = check_hello(&hello, &references.get(), &world.channel, world.now)
        .unwrap_or_else(|refusal| panic!("{refusal}\n{:#?}", refusal.verdict()));
    let mut sessions = Sessions::default();
    let challenge = sessions
        .open(admitted, world.now, &mut SeededRng::new(seed))
        .expect("a challenge");
    let answer = prover::answer(
        Purpose::Join,
        &hello.keys,
        hello.csr_hash,
        &hello.claims,
        &challenge,
        &world.channel,
    )
    .expect("an answer");
    let credential = &challenge.credential;
    let secret = tpm.activate(
        ak,
        ek,
        by_policy,
        credential.id_object.as_bytes(),
        credential.encrypted_secret.as_bytes(),
    );
    let question = answer.question().as_bytes();
    let (quote, quote_signature) = tpm.quote(ak, question, &answer.selection().to_tpm());
    let (certify, certify_signature) = tpm.certify(nk, ak, question);
    tpm.flush(nk);
    tpm.flush(ak);
    let outputs = TpmOutputs {
        secret: secret.clone(),
        quote,
        quote_signature,
        certify,
        certify_signature,
        pcrs: bank.values(Selection::of(QUOTE_PCRS)),
        event_log: log.to_bytes(),
        config_event: Some(config_event.clone()),
    };
    let evidence = Evidence {
        proof: answer.proof(outputs).expect("a proof"),
        client_csr: Der::new(client).expect("within the limit"),
        serving_csr: Der::new(serving).expect("within the limit"),
    };
    // All that the TPM said is accepted; only the request is not signed by the TPM's NK here.
    let pending = sessions
        .take(&challenge.session, world.now)
        .expect("the session");
    let outcome = check_evidence(
        pending,
        &evidence,
        &references.get(),
        &world.channel,
        world.now,
    );
    only_the_requests_key_fails(&outcome.expect_err("the request's key is not the NK"));
    Exchange {
        hello,
        challenge,
        evidence,
        secret,
        question: *answer.question(),
    }
}

fn capture(name: &str, seed: &str, booted: &Booted, exchange: &Exchange) {
    if std::env::var_os("PRATIQUE_CAPTURE").is_none() {
        return;
    }
    let vector = json!({
        "seed": seed,
        "issuer": booted.tpm.issuer_pem(),
        "serverSpki": booted.world.channel.server_spki,
        "exporter": booted.world.channel.exporter,
        "now": booted.world.now,
        "hello": exchange.hello,
        "challenge": exchange.challenge,
        "secret": hex::encode(&exchange.secret),
        "question": exchange.question,
        "evidence": exchange.evidence,
    });
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("vectors")
        .join(format!("{name}.json"));
    let text = serde_json::to_string_pretty(&vector).expect("JSON");
    std::fs::write(path, text + "\n").expect("the vector is written");
}

#[test]
fn an_rsa_endorsement_key_proves_an_exchange() {
    let mut booted = boot();
    let exchange = exchange(
        &mut booted,
        0x8101_0001,
        0x01c0_0002,
        true,
        "vector rsa-2048",
    );
    capture("swtpm-rsa-2048", "vector rsa-2048", &booted, &exchange);
    second_opinion(&mut booted, &exchange);
}

#[test]
fn a_p384_endorsement_key_proves_an_exchange() {
    let mut booted = boot();
    let exchange = exchange(&mut booted, 0x8101_0016, 0x01c0_0016, false, "vector p-384");
    capture("swtpm-p-384", "vector p-384", &booted, &exchange);
}

/// Verifies the same bytes by tpm2-tools.
fn second_opinion(booted: &mut Booted, exchange: &Exchange) {
    let tpm = &mut booted.tpm;
    // The policy of the node key, computed by the TPM in a trial session.
    let list = NK_PCRS
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",");
    tpm.tool(
        "tpm2_createpolicy",
        &[
            "--policy-pcr",
            "-l",
            &format!("sha256:{list}"),
            "-L",
            "nk.policy",
        ],
    );
    let policy = std::fs::read(tpm.path("nk.policy")).expect("a policy");
    let nk = Public::parse(exchange.hello.keys.nk.as_bytes()).expect("an NK");
    assert_eq!(nk.auth_policy, policy);

    // The quote, checked by another implementation.
    let write = |tpm: &Vtpm, name: &str, bytes: &[u8]| {
        std::fs::write(tpm.path(name), bytes).expect("a file");
    };
    let ak = Public::parse(exchange.hello.keys.ak.as_bytes()).expect("an AK");
    write(tpm, "ak.pub", &ak.to_sized_bytes());
    write(
        tpm,
        "quote",
        exchange.evidence.proof.quote.attest.as_bytes(),
    );
    write(
        tpm,
        "quote.sig",
        exchange.evidence.proof.quote.signature.as_bytes(),
    );
    let question = config_tpm::Attest::parse(exchange.evidence.proof.quote.attest.as_bytes())
        .expect("a quote")
        .extra_data;
    let hex = hex::encode(question);
    tpm.tool(
        "tpm2_checkquote",
        &[
            "-u",
            "ak.pub",
            "-m",
            "quote",
            "-s",
            "quote.sig",
            "-g",
            "sha256",
            "-q",
            &hex,
        ],
    );

    // The event log, parsed and replayed by another implementation.
    write(tpm, "log", &booted.log.to_bytes());
    let text = String::from_utf8(tpm.tool("tpm2_eventlog", &["log"])).expect("text");
    let replayed = text
        .split_once("pcrs:")
        .map(|(_, pcrs)| pcrs.to_lowercase())
        .expect("replayed registers");
    for (pcr, value) in booted
        .log
        .replay()
        .values(Selection::of(&[0, 2, 4, 7, 9, 11]))
    {
        assert!(
            replayed.contains(&format!(": 0x{value}")),
            "PCR {pcr} {value} in {replayed}"
        );
    }
}
