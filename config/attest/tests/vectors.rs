//! Exchanges captured from swtpm (see `tests/swtpm`), replayed without a TPM: what another
//! implementation must reproduce.

#![allow(clippy::panic, reason = "helpers of tests stop at the first surprise")]

use config_attest::sessions::Sessions;
use config_attest::verifier::{check_evidence, check_hello};
use config_certificates::EkIssuer;
use config_kube::machine::EkSelector;
use config_protocol::wire::{Challenge, Evidence, Hello};
use config_protocol::{Channel, Purpose, prover, question};
use config_tpm::Digest;
use config_tpm::Public;
use serde::Deserialize;
use tests_machines::{EkKind, SeededRng, World};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Vector {
    seed: String,
    issuer: String,
    server_spki: Digest,
    exporter: Digest,
    now: u64,
    hello: Hello,
    challenge: Challenge,
    secret: String,
    question: Digest,
    evidence: Evidence,
}

fn vectors() -> Vec<Vector> {
    [
        include_str!("../vectors/swtpm-rsa-2048.json"),
        include_str!("../vectors/swtpm-p-384.json"),
    ]
    .into_iter()
    .map(|text| serde_json::from_str(text).expect("a vector"))
    .collect()
}

#[test]
fn q_and_the_mac_are_as_the_wire_says() {
    for vector in vectors() {
        let channel = Channel {
            server_spki: vector.server_spki,
            exporter: vector.exporter,
        };
        let Vector {
            hello, challenge, ..
        } = &vector;
        let answer = prover::answer(
            Purpose::Join,
            &hello.keys,
            hello.csr_hash,
            &hello.claims,
            challenge,
            &channel,
        )
        .expect("Q");
        assert_eq!(*answer.question(), vector.question);
        // Written out once more, field by field, as WIRE.md says.
        let name = |area: &[u8]| {
            Public::parse(area)
                .expect("a key")
                .name()
                .as_bytes()
                .to_vec()
        };
        let fields: [Vec<u8>; 10] = [
            b"cloud-verify/v1".to_vec(),
            challenge.session.0.to_vec(),
            challenge.nonce.0.to_vec(),
            name(hello.keys.ek.as_bytes()),
            name(hello.keys.ak.as_bytes()),
            name(hello.keys.nk.as_bytes()),
            hello.csr_hash.0.to_vec(),
            hello.claims.hash().0.to_vec(),
            vector.server_spki.0.to_vec(),
            vector.exporter.0.to_vec(),
        ];
        let mut bytes = Vec::new();
        for field in fields {
            bytes.extend_from_slice(&u16::try_from(field.len()).expect("short").to_be_bytes());
            bytes.extend_from_slice(&field);
        }
        assert_eq!(Digest::of(&bytes), vector.question);
        let secret = hex::decode(&vector.secret).expect("hex");
        assert_eq!(
            question::mac(&secret, &vector.question),
            vector.evidence.proof.mac
        );
    }
}

#[test]
fn what_a_real_tpm_said_is_accepted_and_the_challenge_is_reproduced() {
    for vector in vectors() {
        let mut world = World::new();
        world.machine("worker-1", "192.168.77.11", EkKind::P256);
        world.issuers = vec![EkIssuer::from_pem("lab-ca", &vector.issuer).expect("an issuer")];
        let ek = Public::parse(vector.hello.keys.ek.as_bytes()).expect("an EK");
        let hash = Digest::of(&ek.spki().expect("an EK")).to_text();
        world.object("worker-1").spec.ek = EkSelector {
            hashes: vec![hash],
            issuers: Vec::new(),
            ..EkSelector::default()
        };
        let references = world.references();
        let channel = Channel {
            server_spki: vector.server_spki,
            exporter: vector.exporter,
        };
        let admitted = check_hello(&vector.hello, &references.get(), &channel, vector.now)
            .unwrap_or_else(|refusal| panic!("{refusal}"));
        let mut sessions = Sessions::default();
        let challenge = sessions
            .open(admitted, vector.now, &mut SeededRng::new(&vector.seed))
            .expect("a challenge");
        assert_eq!(
            challenge, vector.challenge,
            "MakeCredential with the same randomness"
        );
        let pending = sessions
            .take(&challenge.session, vector.now)
            .expect("the session");
        let refusal = check_evidence(
            pending,
            &vector.evidence,
            &references.get(),
            &channel,
            vector.now,
        )
        .expect_err("the captured request is signed by a key outside the TPM");
        let failed: Vec<&str> = refusal
            .verdict()
            .checks
            .iter()
            .filter(|check| !check.ok)
            .map(|check| check.name.as_str())
            .collect();
        assert_eq!(failed, ["client request: key"], "{:#?}", refusal.verdict());
    }
}
