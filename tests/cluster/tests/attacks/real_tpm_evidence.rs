//! Attacks with a real TPM stack: a software TPM driven by the agent's own prover, with an attacker
//! between it and the wire. Each is refused with its own code, and each time the same machine was
//! admitted by an honest proof just before.

use crate::lab::{Greeting, Lab, Outcome};
use crate::real_tpm;
use crate::seized_tpm::Seized;
use crate::site::collection;
use crate::wire::Connection;
use agent_enroll::{Logs, NodeKey, Prover};
use agent_tpm::{Attestation, EndorsementKey, Error, Tpm};
use config_kube::Machine;
use config_protocol::prover::{self, TpmOutputs};
use config_protocol::wire::{
    Blob, Challenge, Claims, Der, Evidence, Hello, Keys, Proof, SESSIONS_PATH, Signed,
    evidence_path,
};
use config_protocol::{Channel, Code, Purpose};
use config_tpm::Attest;
use config_tpm::Digest;
use config_tpm::eventlog::{EventLog, kind};
use config_tpm::pcr::{CONFIG_PCR, QUOTE_PCRS};
use http::{Method, StatusCode};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use tests_harness::swtpm::Swtpm;
use tests_machines::SoftImage;

/// Time for a Machine to become known.
const LIMIT: Duration = Duration::from_secs(180);

/// The requests of a node of this name with its two keys.
pub(crate) fn requests(key: &impl rcgen::SigningKey, node: &str) -> (Vec<u8>, Vec<u8>) {
    let serving = KeyPair::generate().unwrap();
    (
        request(key, node, Vec::new()),
        request(&serving, node, vec![node.to_owned()]),
    )
}

fn request(key: &impl rcgen::SigningKey, node: &str, names: Vec<String>) -> Vec<u8> {
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "system:nodes");
    params
        .distinguished_name
        .push(DnType::CommonName, format!("system:node:{node}"));
    params.serialize_request(key).unwrap().der().to_vec()
}

/// Step 1.
pub(crate) fn greeting(keys: Keys, (client, serving): (Vec<u8>, Vec<u8>), node: &str) -> Greeting {
    let claims = Claims {
        name: node.to_owned(),
        ..Claims::default()
    };
    (
        prover::hello(keys, &client, &serving, claims),
        client,
        serving,
    )
}

/// A whole join.
pub(crate) async fn join(
    lab: &Lab,
    (hello, client, serving): Greeting,
    prove: impl FnOnce(&Hello, &Challenge, &Channel) -> Proof,
) -> Outcome {
    let mut connection = lab.connect().await;
    let mut answer = connection.post(SESSIONS_PATH, &hello).await;
    if answer.status == StatusCode::OK {
        let challenge: Challenge = serde_json::from_value(answer.json).unwrap();
        let proof = prove(&hello, &challenge, &connection.channel);
        let evidence = Evidence {
            proof,
            client_csr: Der::new(client).unwrap(),
            serving_csr: Der::new(serving).unwrap(),
        };
        answer = connection
            .post(&evidence_path(SESSIONS_PATH, &challenge.session), &evidence)
            .await;
    }
    Outcome {
        answer,
        local: connection.local,
        node: hello.claims.name,
    }
}

/// Tries until the master, which learns of a Machine a moment after the admin, lets it in.
pub(crate) async fn honestly<F: Future<Output = Outcome>>(lab: &Lab, attempt: impl Fn() -> F) {
    let start = Instant::now();
    loop {
        let outcome = attempt().await;
        if outcome.answer.status == StatusCode::OK {
            return;
        }
        assert!(
            start.elapsed() < LIMIT,
            "{}: {:?}\n{}",
            outcome.node,
            outcome.answer.json,
            lab.site.log()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A node's name by what is done to it, which a failure then tells.
pub(crate) fn named(number: usize, what: &str) -> String {
    let what = what
        .to_lowercase()
        .replace(|other: char| !other.is_ascii_alphanumeric(), "-");
    format!("{number}-{what}")
}

/// Takes a Machine out of the inventory, so that its TPM is free for the next.
pub(crate) async fn take_out(lab: &Lab, node: &str) {
    let path = format!("{}/{node}", collection::<Machine>());
    assert!(
        lab.site
            .api(Method::DELETE, &path, Vec::new())
            .await
            .status
            .is_success()
    );
}

/// A booted machine with the agent's own rooms.
struct Agent {
    prover: Prover,
    key: NodeKey,
    ek: EndorsementKey,
    logs: Logs,
    _dir: tempfile::TempDir,
}

impl Agent {
    /// Boots an image; `late` happens before the agent makes its node key.
    fn boot(swtpm: &Swtpm, image: &SoftImage, late: impl FnOnce(&Tpm)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tpm = Tpm::open(&swtpm.tcti()).unwrap();
        let logs = real_tpm::boot(&tpm, image, dir.path());
        late(&tpm);
        let prover = Prover::new(tpm.clone(), logs.clone());
        let ek = prover.endorsement_key(0).unwrap();
        Self {
            key: NodeKey::new(tpm).unwrap(),
            prover,
            ek,
            logs,
            _dir: dir,
        }
    }

    fn tpm(&self) -> &Tpm {
        self.prover.tpm()
    }

    fn greeting(&self, node: &str) -> Greeting {
        greeting(
            self.prover.keys(&self.ek).unwrap(),
            requests(&self.key, node),
            node,
        )
    }

    fn prove(&self, hello: &Hello, challenge: &Challenge, channel: &Channel) -> Proof {
        self.prover
            .prove(
                Purpose::Join,
                &self.ek,
                hello.csr_hash,
                &hello.claims,
                challenge,
                channel,
            )
            .unwrap()
    }

    /// A join with a proof that is changed in transit.
    async fn join_with(&self, lab: &Lab, node: &str, change: impl FnOnce(&mut Proof)) -> Outcome {
        let prove = |hello: &Hello, challenge: &Challenge, channel: &Channel| {
            let mut proof = self.prove(hello, challenge, channel);
            change(&mut proof);
            proof
        };
        join(lab, self.greeting(node), prove).await
    }

    async fn join(&self, lab: &Lab, node: &str) -> Outcome {
        self.join_with(lab, node, |_| {}).await
    }

    /// Its line of the inventory, and an honest join.
    async fn admitted(&self, lab: &Lab, node: &str) {
        real_tpm::list(lab, self.tpm(), node).await;
        honestly(lab, || self.join(lab, node)).await;
    }
}

/// A TPM's outputs for a question.
pub(crate) struct Said {
    /// The credential's secret; `None` if the TPM didn't open it.
    pub(crate) secret: Option<Vec<u8>>,
    pub(crate) quote: Signed,
    pub(crate) certify: Signed,
    pub(crate) pcrs: BTreeMap<u8, Digest>,
}

/// A proof from any outputs of a TPM.
pub(crate) fn assembled(
    hello: &Hello,
    challenge: &Challenge,
    channel: &Channel,
    logs: &Logs,
    ask: impl FnOnce(&Digest) -> Said,
) -> Proof {
    let Hello {
        keys,
        csr_hash,
        claims,
        ..
    } = hello;
    let answer =
        prover::answer(Purpose::Join, keys, *csr_hash, claims, challenge, channel).unwrap();
    let Said {
        secret,
        quote,
        certify,
        pcrs,
    } = ask(answer.question());
    let outputs = TpmOutputs {
        secret: secret.unwrap_or_else(|| vec![0; 32]),
        quote: quote.attest.as_bytes().to_vec(),
        quote_signature: quote.signature.as_bytes().to_vec(),
        certify: certify.attest.as_bytes().to_vec(),
        certify_signature: certify.signature.as_bytes().to_vec(),
        pcrs,
        event_log: std::fs::read(&logs.firmware).unwrap(),
        config_event: Some(
            serde_json::from_slice(&std::fs::read(&logs.config_event).unwrap()).unwrap(),
        ),
    };
    answer.proof(outputs).unwrap()
}

/// A change of a proof.
type Change = fn(&Machines, &mut Proof);

/// The machine whose proof it is, and another one that has booted the same.
struct Machines {
    own: Agent,
    other: Agent,
}

fn signed(Attestation { attest, signature }: Attestation) -> Signed {
    Signed {
        attest: Blob::new(attest).unwrap(),
        signature: Blob::new(signature).unwrap(),
    }
}

/// The question of a quote or a certification.
fn question(signed: &Signed) -> [u8; 32] {
    let attest = Attest::parse(signed.attest.as_bytes()).unwrap();
    Digest::from_slice(&attest.extra_data).unwrap().0
}

fn log(proof: &mut Proof, change: impl FnOnce(&mut EventLog)) {
    let mut log = EventLog::parse(proof.event_log.as_bytes()).unwrap();
    change(&mut log);
    proof.event_log = Blob::new(log.to_bytes()).unwrap();
}

fn last_of(log: &EventLog, pcr: u8) -> usize {
    log.events
        .iter()
        .rposition(|event| event.pcr == pcr)
        .unwrap()
}

/// Attacks on the logs: they say something else than was measured.
const LOGS: [(Code, &str, Change); 7] = [
    (Code::EventLogTruncated, "the log is cut", |_, proof| {
        let bytes = proof.event_log.as_bytes();
        proof.event_log = Blob::new(bytes[..bytes.len() - 5].to_vec()).unwrap();
    }),
    (
        Code::EventLogReplay,
        "two events are swapped",
        |_, proof| {
            log(proof, |log| {
                let last = last_of(log, 11);
                log.events.swap(last, last - 1);
            });
        },
    ),
    (Code::EventLogReplay, "an event is left out", |_, proof| {
        log(proof, |log| drop(log.events.remove(last_of(log, 4))));
    }),
    (
        Code::EventUnknown,
        "an event has another type",
        |_, proof| {
            log(proof, |log| {
                let last = last_of(log, 4);
                log.events[last].kind = 0x8000_0002;
            });
        },
    ),
    (Code::EventData, "an event has other data", |_, proof| {
        log(proof, |log| {
            let event = log.events.iter().position(|event| event.pcr == 7).unwrap();
            *log.events[event].data.last_mut().unwrap() ^= 1;
        });
    }),
    (
        Code::EventLogReplay,
        "the log is another boot's",
        |_, proof| {
            log(proof, |log| {
                *log = SoftImage::new("worker-6", "worker", 6).log();
                log.events.retain(|event| event.kind != kind::NO_ACTION);
            });
        },
    ),
    (
        Code::ConfigEvent,
        "the configuration's event is another's",
        |_, proof| {
            proof.config_event.as_mut().unwrap().digest = Digest::of(b"another configuration");
        },
    ),
];

/// Attacks on what the TPM signed; true: the machine has proved by then that it is itself.
const ATTESTATIONS: [(Code, bool, &str, Change); 9] = [
    (
        Code::PcrSelection,
        true,
        "a quote of fewer registers",
        |Machines { own, .. }, proof| {
            let fewer: Vec<u8> = QUOTE_PCRS
                .iter()
                .copied()
                .filter(|pcr| *pcr != 12)
                .collect();
            let quote = own.tpm().quote(question(&proof.quote), &fewer).unwrap();
            (proof.quote, proof.pcrs) = (signed(quote.attestation), quote.pcrs);
        },
    ),
    (
        Code::PcrDigest,
        true,
        "other values than were quoted",
        |_, proof| {
            proof.pcrs.insert(11, Digest::of(b"another image"));
        },
    ),
    (
        Code::QuoteExtraData,
        false,
        "a quote of another exchange",
        |Machines { own, .. }, proof| {
            proof.quote = signed(own.tpm().quote([7; 32], QUOTE_PCRS).unwrap().attestation);
        },
    ),
    (
        Code::CertifyExtraData,
        true,
        "a certification of another exchange",
        |Machines { own, .. }, proof| {
            proof.certify = signed(own.tpm().certify([7; 32]).unwrap());
        },
    ),
    (
        Code::AttestType,
        true,
        "a quote in the certification's place",
        |_, proof| {
            proof.certify = proof.quote.clone();
        },
    ),
    (
        Code::AttestType,
        false,
        "a certification in the quote's place",
        |_, proof| {
            proof.quote = proof.certify.clone();
        },
    ),
    (
        Code::QuoteSignature,
        false,
        "a quote by a second TPM",
        |Machines { other, .. }, proof| {
            let quote = other
                .tpm()
                .quote(question(&proof.quote), QUOTE_PCRS)
                .unwrap();
            assert_eq!(quote.pcrs, proof.pcrs, "it has booted the same");
            proof.quote = signed(quote.attestation);
        },
    ),
    (
        Code::CertifySignature,
        true,
        "a certification by a second TPM",
        |Machines { other, .. }, proof| {
            proof.certify = signed(other.tpm().certify(question(&proof.certify)).unwrap());
        },
    ),
    (
        Code::QuoteSignature,
        false,
        "a bit of the quote's signature",
        |_, proof| {
            let mut bytes = proof.quote.signature.as_bytes().to_vec();
            *bytes.last_mut().unwrap() ^= 1;
            proof.quote.signature = Blob::new(bytes).unwrap();
        },
    ),
];

/// Everything that is done to a proof on its way, to two TPMs, to registers after and before the
/// node key was made, and to what a TPM keeps.
pub(crate) async fn altered_evidence_of_a_real_tpm_is_refused() {
    let (mut swtpm, second) = (Swtpm::new(), Swtpm::blank());
    let lab = Lab::start_with(&swtpm.issuer_pem(), "30m").await;
    let own = Agent::boot(&swtpm, &lab.image, |_| {});
    let machines = Machines {
        own,
        other: Agent::boot(&second, &lab.image, |_| {}),
    };
    let logs = LOGS
        .iter()
        .map(|(code, what, change)| (*code, true, *what, *change));
    for (number, (code, proven, what, change)) in logs.chain(ATTESTATIONS).enumerate() {
        let node = named(number, what);
        machines.own.admitted(&lab, &node).await;
        let outcome = machines
            .own
            .join_with(&lab, &node, |proof| change(&machines, proof))
            .await;
        lab.refused(&outcome, code, proven).await;
        take_out(&lab, &node).await;
    }
    another_tpms_keys(&lab, &machines).await;
    used_before(&lab, &machines.own).await;
    registers_change(&lab, &mut swtpm, machines.own).await;
    put_back(&lab, &mut swtpm).await;
    lab.site.stop();
}

/// Another TPM's keys beside this one's endorsement key: it can't open the credential made for the
/// two.
async fn another_tpms_keys(lab: &Lab, Machines { own, other }: &Machines) {
    own.admitted(lab, "mixed").await;
    let keys = other.prover.keys(&own.ek).unwrap();
    let outcome = join(
        lab,
        greeting(keys, requests(&other.key, "mixed"), "mixed"),
        |hello, challenge, channel| {
            let credential = &challenge.credential;
            let (id, secret) = (
                credential.id_object.as_bytes(),
                credential.encrypted_secret.as_bytes(),
            );
            assert!(
                own.tpm().activate(&own.ek, id, secret).is_err(),
                "the TPM opened what is for another's key"
            );
            assembled(hello, challenge, channel, &own.logs, |question| {
                let quote = other.tpm().quote(question.0, QUOTE_PCRS).unwrap();
                let (pcrs, quote) = (quote.pcrs, signed(quote.attestation));
                Said {
                    secret: None,
                    quote,
                    certify: signed(other.tpm().certify(question.0).unwrap()),
                    pcrs,
                }
            })
        },
    )
    .await;
    lab.refused(&outcome, Code::CredentialNotActivated, false)
        .await;
    own.join(lab, "mixed").await.accepted();
    take_out(lab, "mixed").await;
}

/// Evidence of an exchange in another, on another connection, and a second time.
async fn used_before(lab: &Lab, own: &Agent) {
    own.admitted(lab, "replayed").await;
    let (hello, client, serving) = own.greeting("replayed");
    let (mut first, mut second) = (lab.connect().await, lab.connect().await);
    let mut challenges = Vec::new();
    for connection in [&mut first, &mut second] {
        let answer = connection.post(SESSIONS_PATH, &hello).await;
        challenges.push(serde_json::from_value::<Challenge>(answer.json).unwrap());
    }
    let sent = |proof: Proof| {
        let (client_csr, serving_csr) = (
            Der::new(client.clone()).unwrap(),
            Der::new(serving.clone()).unwrap(),
        );
        Evidence {
            proof,
            client_csr,
            serving_csr,
        }
    };
    let evidence = sent(own.prove(&hello, &challenges[0], &first.channel));
    let post = async |connection: &mut Connection, session: usize, evidence: &Evidence| {
        let path = evidence_path(SESSIONS_PATH, &challenges[session].session);
        let answer = connection.post(&path, evidence).await;
        Outcome {
            answer,
            local: connection.local,
            node: "replayed".to_owned(),
        }
    };
    lab.refused(
        &post(&mut second, 1, &evidence).await,
        Code::NonceReplayed,
        false,
    )
    .await;
    post(&mut first, 0, &evidence).await.accepted();
    lab.refused(
        &post(&mut first, 0, &evidence).await,
        Code::SessionUsed,
        false,
    )
    .await;
    // The nonce is right, and what was signed is of another connection.
    let (mut third, other) = (lab.connect().await, lab.connect().await);
    let challenge: Challenge =
        serde_json::from_value(third.post(SESSIONS_PATH, &hello).await.json).unwrap();
    let evidence = sent(own.prove(&hello, &challenge, &other.channel));
    let answer = third
        .post(&evidence_path(SESSIONS_PATH, &challenge.session), &evidence)
        .await;
    let spliced = Outcome {
        answer,
        local: third.local,
        node: "replayed".to_owned(),
    };
    lab.refused(&spliced, Code::Channel, false).await;
    take_out(lab, "replayed").await;
}

/// An orderly reboot; something happens meanwhile to the folder of what the TPM keeps.
fn reboot(swtpm: &mut Swtpm, meanwhile: impl FnOnce(&Path)) {
    Seized::open(&swtpm.tcti()).shut_down();
    swtpm.power_cycle_with(meanwhile);
}

/// Something is measured after the node key was made, before, and a second time; each boot between
/// them is honest.
async fn registers_change(lab: &Lab, swtpm: &mut Swtpm, own: Agent) {
    own.admitted(lab, "late").await;
    let greeting = own.greeting("late");
    own.tpm()
        .extend_pcr(12, Digest::of(b"init=/bin/sh"))
        .unwrap();
    assert!(
        matches!(own.tpm().sign([1; 32]), Err(Error::PolicyBroken { .. })),
        "the TPM itself holds the key back"
    );
    let outcome = join(lab, greeting, |hello, challenge, channel| {
        own.prove(hello, challenge, channel)
    })
    .await;
    lab.refused(&outcome, Code::NkAuthPolicy, true).await;
    take_out(lab, "late").await;
    drop(own);
    for (node, pcr, code) in [
        ("outside", 12, Code::OutsideArguments),
        ("twice", CONFIG_PCR, Code::ConfigEvent),
    ] {
        reboot(swtpm, |_| {});
        Agent::boot(swtpm, &lab.image, |_| {})
            .admitted(lab, node)
            .await;
        reboot(swtpm, |_| {});
        let bad = Agent::boot(swtpm, &lab.image, |tpm| {
            tpm.extend_pcr(pcr, Digest::of(b"more")).unwrap();
        });
        lab.refused(&bad.join(lab, node).await, code, true).await;
        take_out(lab, node).await;
    }
}

/// The TPM's persistent state is copied and restored: its counters reveal that. Unchanged, the same
/// machine comes back.
async fn put_back(lab: &Lab, swtpm: &mut Swtpm) {
    let saved = tempfile::tempdir().unwrap();
    let copy = |from: &Path, to: &Path| {
        for file in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    };
    reboot(swtpm, |state| copy(state, saved.path()));
    Agent::boot(swtpm, &lab.image, |_| {})
        .admitted(lab, "restored")
        .await;
    reboot(swtpm, |_| {});
    Agent::boot(swtpm, &lab.image, |_| {})
        .join(lab, "restored")
        .await
        .accepted();
    reboot(swtpm, |state| copy(saved.path(), state));
    let before = Agent::boot(swtpm, &lab.image, |_| {});
    lab.refused(
        &before.join(lab, "restored").await,
        Code::CountersWentBack,
        true,
    )
    .await;
}
