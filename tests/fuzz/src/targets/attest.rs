//! Messages to the attestation service, and messages to a node or an admin.

use crate::run::{Shape, Target};
use config_attest::bootstrap::{AdminStatement, Root};
use config_attest::release::{KnownRelease, Manifest};
use config_attest::sessions::Sessions;
use config_attest::verifier::{check_evidence, check_hello, check_unproven, check_unproven_hello};
use config_certificates::EkIssuer;
use config_protocol::wire::{
    self, BootstrapAdmit, BootstrapHello, Certificates, Challenge, Der, Evidence, Hello,
};
use config_protocol::{Purpose, attestor, unproven};
use config_tpm::Digest;
use config_tpm::eventlog::EventLog;
use config_tpm::{Attest, Duplicate, EcdsaSignature, Public, template};
use serde_json::Value;
use tests_machines::{EkKind, References, SeededRng, SoftKeyed, SoftMachine, World};

const VECTORS: [&str; 2] = [
    include_str!("../../../../config/attest/vectors/swtpm-rsa-2048.json"),
    include_str!("../../../../config/attest/vectors/swtpm-p-384.json"),
];

/// One part of both captured exchanges, as bytes.
fn captured(pointer: &str) -> Vec<Vec<u8>> {
    let part = |text: &str| {
        let vector: Value = serde_json::from_str(text).ok()?;
        let value = vector.pointer(pointer)?.clone();
        match &value {
            Value::String(text) => {
                use base64::Engine as _;
                base64::engine::general_purpose::STANDARD.decode(text).ok()
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => serde_json::to_vec(&value).ok(),
        }
    };
    VECTORS.iter().filter_map(|text| part(text)).collect()
}

fn target(
    name: &'static str,
    shape: Shape,
    seeds: Vec<Vec<u8>>,
    decode: impl Fn(&[u8]) + 'static,
) -> Target {
    Target {
        name,
        shape,
        seeds,
        decode: Box::new(decode),
    }
}

/// A decoded value encodes to the same bytes.
fn same(written: &[u8], input: &[u8]) {
    assert!(written == input, "parsing lost something");
}

pub(super) fn targets() -> Vec<Target> {
    let mut targets = structures();
    targets.extend(documents());
    targets.extend(messages());
    targets.extend(releases_and_manifests());
    targets.extend(whole());
    targets.extend(without_tpm());
    targets.push(target(
        "config-verdicts/log",
        Shape::Bytes,
        vec![verdict_log()],
        |input| {
            let log = config_verdicts::LogFile::new("log", input.to_vec());
            config_verdicts::verify(&[log], &[Digest::ZERO], &[]).ok();
            config_verdicts::resume(input).ok();
        },
    ));
    targets
}

/// The form of a log of verdicts, with invalid signatures.
fn verdict_log() -> Vec<u8> {
    let segment = config_verdicts::Segment {
        format: config_verdicts::FORMAT.to_owned(),
        cluster: "lab".to_owned(),
        time: "2026-01-01T00:00:00Z".to_owned(),
        next: 1,
        previous: Digest::ZERO,
        certificate: "MAA=".to_owned(),
        root: "MAA=".to_owned(),
    };
    let record = config_verdicts::Record {
        number: 1,
        previous: Digest::ZERO,
        time: "2026-01-01T00:00:00Z".to_owned(),
        verdict: config_verdicts::Entry::of(config_verdicts::Kind::Joined, "worker-1"),
    };
    let lines = [serde_json::to_vec(&segment), serde_json::to_vec(&record)];
    lines
        .into_iter()
        .flatten()
        .flat_map(|json| config_verdicts::line(&json, b"signature"))
        .collect()
}

fn structures() -> Vec<Target> {
    let keys = ["/hello/keys/ek", "/hello/keys/ak", "/hello/keys/nk"];
    vec![
        target(
            "config-tpm/public",
            Shape::Bytes,
            keys.into_iter().flat_map(captured).collect(),
            |input| {
                if let Ok(public) = Public::parse(input) {
                    same(&public.to_bytes(), input);
                    public.spki().ok();
                    public.name();
                }
                Public::parse_sized(input).ok();
            },
        ),
        target(
            "config-attest/issued-key",
            Shape::Bytes,
            vec![template::issued_key(vec![1; 32], vec![2; 32]).to_bytes()],
            |input| {
                let wrapped = Duplicate {
                    public: input.to_vec(),
                    private: vec![0; 100],
                    seed: vec![0; 64],
                };
                if let Ok(public) = wrapped.check() {
                    same(&public.to_bytes(), input);
                }
                template::ek_of_spki(input);
            },
        ),
        target(
            "config-tpm/attest",
            Shape::Bytes,
            [
                "/evidence/proof/quote/attest",
                "/evidence/proof/certify/attest",
            ]
            .into_iter()
            .flat_map(captured)
            .collect(),
            |input| {
                if let Ok(attest) = Attest::parse(input) {
                    same(&attest.to_bytes(), input);
                }
            },
        ),
        target(
            "config-tpm/signature",
            Shape::Bytes,
            captured("/evidence/proof/quote/signature"),
            |input| {
                if let Ok(signature) = EcdsaSignature::parse(input) {
                    same(&signature.to_bytes(), input);
                    signature.to_der();
                }
            },
        ),
    ]
}

/// The firmware's log, and certificates of endorsement keys and their issuers.
fn documents() -> Vec<Target> {
    vec![
        target("config-tpm/event-log", Shape::Bytes, logs(), |input| {
            if let Ok(log) = EventLog::parse(input) {
                log.replay();
                assert!(
                    EventLog::parse(&log.to_bytes()) == Ok(log),
                    "a written log parses to itself"
                );
            }
        }),
        target(
            "config-certificates/ek-certificate",
            Shape::Bytes,
            captured("/hello/keys/ekCertificate"),
            |input| {
                EkIssuer::from_der("fuzz", vec![input.to_vec()]).ok();
                Root::from_der(input);
            },
        ),
        target(
            "config-certificates/ek-issuer-pem",
            Shape::Bytes,
            issuers(),
            |input| {
                EkIssuer::from_pem("fuzz", &String::from_utf8_lossy(input)).ok();
            },
        ),
        // The lists of authorities in configurations.
        target("config-model/pem", Shape::Bytes, issuers(), |input| {
            let text = String::from_utf8_lossy(input);
            config_model::pem::certificates(&text).ok();
            config_model::pem::public_key(&text).ok();
        }),
    ]
}

/// Logs of real boots beside the captured ones.
fn logs() -> Vec<Vec<u8>> {
    let mut logs = captured("/evidence/proof/eventLog");
    logs.push(
        include_bytes!("../../../../config/attest/vectors/guest-secure-boot-on.eventlog").to_vec(),
    );
    logs.push(
        include_bytes!("../../../../config/attest/vectors/guest-secure-boot-off.eventlog").to_vec(),
    );
    logs
}

fn issuers() -> Vec<Vec<u8>> {
    let issuer = |text: &&str| {
        let vector: Value = serde_json::from_str(text).ok()?;
        vector
            .pointer("/issuer")
            .and_then(Value::as_str)
            .map(|pem| pem.as_bytes().to_vec())
    };
    VECTORS.iter().filter_map(issuer).collect()
}

fn messages() -> Vec<Target> {
    let statement = AdminStatement {
        cluster: "lab".to_owned(),
        ..AdminStatement::default()
    };
    let certificates = Certificates {
        node_name: "worker-1".to_owned(),
        client: "pem".to_owned(),
        serving: "pem".to_owned(),
        roots: "pem".to_owned(),
        not_after: 1,
        renew_after_seconds: 1,
    };
    vec![
        target(
            "config-protocol/challenge",
            Shape::Json,
            captured("/challenge"),
            |input| {
                wire::parse::<Challenge>(input).ok();
            },
        ),
        target(
            "config-protocol/certificates",
            Shape::Json,
            serde_json::to_vec(&certificates).into_iter().collect(),
            |input| {
                wire::parse::<Certificates>(input).ok();
            },
        ),
        target(
            "config-attest/statement",
            Shape::Json,
            serde_json::to_vec(&statement).into_iter().collect(),
            |input| {
                AdminStatement::open(input, &[0x30, 0], &Digest::ZERO).ok();
            },
        ),
        target(
            "config-protocol/bootstrap",
            Shape::Json,
            captured("/hello"),
            |input| {
                wire::parse::<BootstrapHello>(input).ok();
                wire::parse::<BootstrapAdmit>(input).ok();
            },
        ),
        target(
            "config-protocol/attestor",
            Shape::Json,
            vec![br#"{"op":"seal","data":"AAAA"}"#.to_vec()],
            |input| {
                serde_json::from_slice::<attestor::Request>(input).ok();
            },
        ),
    ]
}

/// Manifests, and the releases that carry them.
fn releases_and_manifests() -> Vec<Target> {
    let world = World::new();
    let (manifest, release_keys) = (world.image.manifest(), world.release_keys.clone());
    vec![
        target(
            "config-attest/manifest",
            Shape::Json,
            serde_json::to_vec(&manifest).into_iter().collect(),
            |input| {
                Manifest::parse(&String::from_utf8_lossy(input)).ok();
            },
        ),
        target(
            "config-attest/release",
            Shape::Json,
            releases(&world),
            move |input| {
                if let Ok(release) = serde_json::from_slice(input) {
                    KnownRelease::open(&release, &release_keys).ok();
                }
            },
        ),
    ]
}

fn releases(world: &World) -> Vec<Vec<u8>> {
    world
        .releases
        .iter()
        .filter_map(|release| serde_json::to_vec(release).ok())
        .collect()
}

/// One machine of one world with an open exchange.
struct Scene {
    world: World,
    references: References,
    machine: SoftMachine,
    hello: (Hello, Vec<u8>, Vec<u8>),
}

impl Scene {
    fn new() -> Self {
        let mut world = World::new();
        let machine = world.machine("worker-1", "192.168.77.11", EkKind::P256);
        let references = world.references();
        let hello = machine.hello();
        Self {
            world,
            references,
            machine,
            hello,
        }
    }

    /// Runs the master's side; `answer` makes the evidence for the challenge.
    fn exchange(
        &self,
        hello: &Hello,
        answer: impl FnOnce(&Challenge) -> Option<Evidence>,
    ) -> Option<bool> {
        let (reference, world) = (self.references.get(), &self.world);
        let admitted = check_hello(hello, &reference, &world.channel, world.now).ok()?;
        let mut sessions = Sessions::default();
        let challenge = sessions
            .open(admitted, world.now, &mut SeededRng::new("fuzz"))
            .ok()?;
        let evidence = answer(&challenge)?;
        let pending = sessions.take(&challenge.session, world.now).ok()?;
        Some(check_evidence(pending, &evidence, &reference, &world.channel, world.now).is_ok())
    }

    fn evidence(&self, challenge: &Challenge) -> Evidence {
        self.machine
            .evidence(Purpose::Join, &self.hello, challenge, &self.world.channel)
    }
}

/// A request without its length and the value of its signature, which differ at every run. `None`
/// unless it is exactly the signed part, the algorithm and one bit string.
fn but_its_signature(request: &[u8]) -> Option<&[u8]> {
    const ECDSA_WITH_SHA256: [u8; 12] = [
        0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02,
    ];
    let end = request
        .windows(ECDSA_WITH_SHA256.len())
        .rposition(|bytes| bytes == ECDSA_WITH_SHA256)?;
    let (body, rest) = request.split_at_checked(end + ECDSA_WITH_SHA256.len())?;
    let [0x03, length, 0, signature @ ..] = rest else {
        return None;
    };
    body.get(3..)
        .filter(|_| usize::from(*length) == signature.len() + 1)
}

/// Through the whole verifier.
fn whole() -> Vec<Target> {
    let scene = Scene::new();
    let hellos = serde_json::to_vec(&scene.hello.0).into_iter().collect();
    let mut evidence = Vec::new();
    scene.exchange(&scene.hello.0, |challenge| {
        evidence = serde_json::to_vec(&scene.evidence(challenge))
            .into_iter()
            .collect();
        None
    });
    let (first, second, third) = (scene, Scene::new(), Scene::new());
    let (client, serving) = (third.hello.1.clone(), third.hello.2.clone());
    vec![
        target("config-attest/hello", Shape::Json, hellos, move |input| {
            if let Ok(hello) = wire::parse::<Hello>(input) {
                first.exchange(&hello, |_| None);
            }
        }),
        target(
            "config-attest/evidence",
            Shape::Json,
            evidence,
            move |input| {
                if let Ok(evidence) = wire::parse::<Evidence>(input) {
                    second.exchange(&second.hello.0, |_| Some(evidence));
                }
            },
        ),
        // A machine that proves itself and sends mutated requests.
        target(
            "config-attest/requests",
            Shape::Bytes,
            vec![client, serving],
            move |input| {
                let Ok(client) = Der::new(input) else { return };
                let (mut hello, _, serving) = third.hello.clone();
                hello.csr_hash = wire::csr_hash(client.as_bytes(), &serving);
                let announced = (hello, input.to_vec(), serving);
                let accepted = third.exchange(&announced.0, |challenge| {
                    Some(third.machine.evidence(
                        Purpose::Join,
                        &announced,
                        challenge,
                        &third.world.channel,
                    ))
                });
                assert!(
                    accepted != Some(true)
                        || but_its_signature(&announced.1) == but_its_signature(&third.hello.1),
                    "a changed request under an unchanged signature was accepted"
                );
            },
        ),
    ]
}

/// A world that lets machines without a TPM in, and one such machine.
struct Bare {
    references: References,
    world: World,
    machine: SoftKeyed,
    hello: (unproven::Hello, Vec<u8>, Vec<u8>),
}

impl Bare {
    fn new() -> Self {
        let mut world = World::new();
        world.rule.policy = config_kube::PolicyName::Queue;
        world.rule.insecure_no_tpm = true;
        let machine = SoftKeyed::new("edge-1", "192.168.77.31", "1");
        let (references, hello) = (world.references(), machine.hello());
        Self {
            references,
            world,
            machine,
            hello,
        }
    }

    /// Runs the master's side; `answer` makes the evidence for the challenge.
    fn exchange(
        &self,
        hello: &unproven::Hello,
        answer: impl FnOnce(&unproven::Challenge) -> Option<unproven::Evidence>,
    ) -> Option<bool> {
        let (reference, world) = (self.references.get(), &self.world);
        let admitted = check_unproven_hello(hello, &reference, &world.channel, world.now).ok()?;
        let mut sessions = Sessions::default();
        let challenge = sessions
            .open(admitted, world.now, &mut SeededRng::new("fuzz"))
            .ok()?;
        let evidence = answer(&challenge)?;
        let pending = sessions.take(&challenge.session, world.now).ok()?;
        Some(check_unproven(pending, &evidence, &reference, &world.channel, world.now).is_ok())
    }
}

/// The other protocol, through the whole verifier.
fn without_tpm() -> Vec<Target> {
    let bare = Bare::new();
    let hellos = serde_json::to_vec(&bare.hello.0).into_iter().collect();
    let mut evidence = Vec::new();
    bare.exchange(&bare.hello.0, |challenge| {
        let made =
            bare.machine
                .evidence(Purpose::Join, &bare.hello, challenge, &bare.world.channel);
        evidence = serde_json::to_vec(&made).into_iter().collect();
        None
    });
    let second = Bare::new();
    vec![
        target(
            "config-attest/unproven-hello",
            Shape::Json,
            hellos,
            move |input| {
                if let Ok(hello) = wire::parse::<unproven::Hello>(input) {
                    bare.exchange(&hello, |_| None);
                }
            },
        ),
        target(
            "config-attest/unproven-evidence",
            Shape::Json,
            evidence,
            move |input| {
                if let Ok(evidence) = wire::parse::<unproven::Evidence>(input) {
                    second.exchange(&second.hello.0, |_| Some(evidence));
                }
            },
        ),
    ]
}
