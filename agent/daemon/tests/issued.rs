//! The agent with an identity that an admin issued: what it refuses, and what it prints.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_state::generation::{Generation, GenerationKey, Joined};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output};
use zeroize::Zeroizing;

const NAME: &str = "edge-1";
/// Part of the line by which an agent says that it goes on as a node.
const IS_A_NODE: &str = "by issued certificates until";

/// A cluster's root, and certificates under it as `pratique issue` has them.
struct Cluster {
    root: String,
    pin: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Cluster {
    fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a root");
        let (root, der) = (certificate.pem(), certificate.der().to_vec());
        let pin = agent_enroll::spki_hash(&der).expect("a hash");
        let issuer = Issuer::from_ca_cert_der(certificate.der(), key).expect("an issuer");
        Self {
            root,
            pin: pin
                .iter()
                .fold(String::new(), |text, byte| text + &format!("{byte:02x}")),
            issuer,
        }
    }

    fn certificate(&self, key: &KeyPair, node: &str, until: i32) -> String {
        let mut params = CertificateParams::default();
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, "system:nodes");
        params
            .distinguished_name
            .push(DnType::CommonName, format!("system:node:{node}"));
        params
            .signed_by(key, &self.issuer)
            .expect("a certificate")
            .pem()
    }

    /// A document with this key and certificate.
    fn document(&self, key: &str, certificate: &str) -> String {
        let Self { root, pin, .. } = self;
        format!(
            "version = 1\n[machine]\nname = \"{NAME}\"\n[master]\nendpoints = [\"https://127.0.0.1:1\"]\nca_pins = [\"sha256:{pin}\"]\n\
             [identity]\ncertificate = \"\"\"\n{certificate}\"\"\"\nserving_certificate = \"\"\"\n{certificate}\"\"\"\nroots = \"\"\"\n{root}\"\"\"\n{key}"
        )
    }
}

fn bare(key: &KeyPair) -> String {
    format!(
        "insecure_plaintext_key = true\nkey = \"\"\"\n{}\"\"\"\n",
        key.serialize_pem()
    )
}

/// Runs the agent until it exits by itself.
fn run(document: &str, source: Option<&str>) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("config.toml"), document).expect("written");
    std::fs::create_dir(at("run")).expect("made");
    if let Some(label) = source {
        let digest = "00".repeat(32);
        let record = format!(
            "{{\"pcr\":13,\"label\":\"{label}\",\"length\":1,\"digest\":\"{digest}\",\"measured\":true}}\n"
        );
        std::fs::write(at("run/config-event.json"), record).expect("written");
    }
    let Output {
        status,
        stdout,
        stderr,
    } = command(dir.path()).output().expect("the agent");
    (
        status.code(),
        String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned(),
    )
}

fn command(dir: &Path) -> Command {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_agent"));
    agent.args([
        "run",
        "--image",
        "/nonexistent",
        "--containerd",
        "/nonexistent",
        "--tcti",
        "device:/nonexistent",
    ]);
    for (flag, name) in [
        ("--config", "config.toml"),
        ("--data", "data"),
        ("--run", "run"),
        ("--kubelet-data", "kubelet"),
        ("--state-generation", "generation"),
        ("--state-generation-key", "generation-key"),
    ] {
        agent.arg(flag).arg(dir.join(name));
    }
    // A port that can't be opened, so that an agent that goes on ends there.
    agent
        .args(["--kubelet-port", "0", "--pod-logs"])
        .arg(dir.join("logs"));
    agent
}

#[test]
fn a_bare_key_from_a_metadata_service_is_refused() {
    let (cluster, key) = (Cluster::new(), KeyPair::generate().expect("a key"));
    // The certificates have expired, so that the negative control ends too, with another error.
    let document = cluster.document(&bare(&key), &cluster.certificate(&key, NAME, 2021));
    for label in [
        "ec2",
        "gce",
        "azure",
        "openstack",
        "hetzner",
        "digitalocean",
    ] {
        let (code, text) = run(&document, Some(label));
        assert_eq!(code, Some(78), "{text}");
        assert!(
            text.contains("in the clear came from a metadata service") && text.contains(label),
            "{text}"
        );
    }
    let (_, text) = run(&document, Some("nocloud"));
    assert!(
        !text.contains("metadata service") && text.contains("days ago"),
        "the negative control: {text}"
    );
    assert!(
        text.contains("WARNING: this node's private key is unencrypted in its user-data"),
        "{text}"
    );
    assert!(!text.contains("PRIVATE KEY"), "{text}");
}

#[test]
fn registry_credentials_are_refused_from_a_metadata_service_and_warned_of_elsewhere() {
    let (cluster, key) = (Cluster::new(), KeyPair::generate().expect("a key"));
    let registry = "[[registry]]\nhost = \"registry.example\"\nusername = \"puller\"\npassword = \"hunter2\"\n";
    // The certificates have expired, so that the agent ends there if not before.
    let document = cluster.document(&wrapped(), &cluster.certificate(&key, NAME, 2021)) + registry;
    for label in [
        "ec2",
        "gce",
        "azure",
        "openstack",
        "hetzner",
        "digitalocean",
    ] {
        let (code, text) = run(&document, Some(label));
        assert_eq!(code, Some(78), "{text}");
        assert!(
            text.contains("credentials of registries came from a metadata service")
                && text.contains(label),
            "{text}"
        );
        assert!(!text.contains("hunter2"), "{text}");
    }
    let (_, text) = run(&document, Some("nocloud"));
    assert!(
        !text.contains("metadata service"),
        "the negative control: {text}"
    );
    assert!(
        text.contains("WARNING: credentials of registries are in"),
        "{text}"
    );
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn an_issued_identity_that_does_not_fit_ends_the_agent_with_the_reason() {
    let (cluster, key) = (Cluster::new(), KeyPair::generate().expect("a key"));
    let other = KeyPair::generate().expect("a key");
    let good = cluster.certificate(&key, NAME, 2090);
    let stranger = Cluster {
        root: Cluster::new().root,
        pin: cluster.pin.clone(),
        issuer: Cluster::new().issuer,
    };
    for (document, words) in [
        (
            cluster.document(&bare(&key), &cluster.certificate(&key, NAME, 2021)),
            "pratique issue",
        ),
        (
            cluster.document(&bare(&key), &cluster.certificate(&key, "edge-2", 2090)),
            "not one of node edge-1",
        ),
        (cluster.document(&bare(&other), &good), "for another key"),
        (
            stranger.document(&bare(&key), &good),
            "none of its roots is among `ca_pins`",
        ),
        (
            cluster.document(&wrapped(), &good),
            "the TPM cannot be used",
        ),
    ] {
        let (code, text) = run(&document, None);
        assert!(matches!(code, Some(78 | 69)), "{words}: {text}");
        assert!(text.contains(words), "{words}: {text}");
    }
}

/// Runs the agent on what lies in a folder, until it exits or is a node: its output, and its code
/// if it exited.
fn start(dir: &Path, document: &str) -> (Option<i32>, String) {
    std::fs::write(dir.join("config.toml"), document).expect("written");
    std::fs::create_dir_all(dir.join("run")).expect("made");
    let (output, input) = std::io::pipe().expect("a pipe");
    let mut agent = command(dir);
    agent
        .stdout(input.try_clone().expect("a pipe"))
        .stderr(input);
    let mut running = agent.spawn().expect("the agent");
    // Its ends of the pipe.
    drop(agent);
    let (mut output, mut text) = (BufReader::new(output), String::new());
    while !text.contains(IS_A_NODE) && output.read_line(&mut text).expect("text") > 0 {}
    if text.contains(IS_A_NODE) {
        running.kill().expect("a running agent");
        running.wait().expect("an end");
        return (None, text);
    }
    (running.wait().expect("an end").code(), text)
}

fn key_of_state() -> GenerationKey {
    GenerationKey::of(&Zeroizing::new([7; 64]))
}

/// Writes how the machine joined the cluster of the state, which lasts, into a folder.
fn note(dir: &Path, joined: Option<Joined>) {
    let key = key_of_state();
    let state = Generation {
        number: 7,
        joined,
        ..Generation::default()
    };
    std::fs::write(dir.join("generation-key"), key.bytes()).expect("written");
    std::fs::write(dir.join("generation"), state.text(&key)).expect("written");
}

/// Who has the board boots the genuine image with user-data of their own: with an issued identity
/// of the same cluster in the place of an attested join, or with more than the machine's own
/// user-data says. No master is asked before static pods start.
#[test]
fn an_issued_identity_opens_no_state_but_the_one_of_its_own_user_data() {
    let (cluster, key) = (Cluster::new(), KeyPair::generate().expect("a key"));
    let document = cluster.document(&bare(&key), &cluster.certificate(&key, NAME, 2090));
    let dir = tempfile::tempdir().expect("a directory");
    let generation = dir.path().join("generation");
    let noted = || {
        let text = std::fs::read(&generation).expect("read");
        let state = Generation::read(&text, &key_of_state()).expect("a generation");
        state.joined
    };

    note(dir.path(), Some(Joined::Admitted));
    let (code, text) = start(dir.path(), &document);
    assert_eq!(code, Some(78), "{text}");
    assert!(
        text.contains("joined by its master's admission") && text.contains("whole image"),
        "{text}"
    );
    assert_eq!(noted(), Some(Joined::Admitted));
    // The same, as an image wrote it that knows no authentication of it; and from before the join,
    // with the number of now.
    let before = "7\n";
    for other in ["7\njoined admitted\n", before] {
        std::fs::write(&generation, other).expect("written");
        let (code, text) = start(dir.path(), &document);
        assert!(
            code.is_some() && text.contains("no authentication code"),
            "{text}"
        );
    }

    // A new state.
    note(dir.path(), None);
    let (code, text) = start(dir.path(), &document);
    assert_eq!(code, None, "{text}");
    assert!(matches!(noted(), Some(Joined::Issued(_))), "{:?}", noted());
    let privileged = format!("{document}[node]\nprivileged = true\n");
    let (code, text) = start(dir.path(), &privileged);
    assert_eq!(code, Some(78), "{text}");
    assert!(
        text.contains("an `[identity]` beside earlier user-data"),
        "{text}"
    );
    let other = KeyPair::generate().expect("a key");
    let renewed = cluster.document(&bare(&other), &cluster.certificate(&other, NAME, 2091));
    let (code, text) = start(dir.path(), &renewed);
    assert_eq!(code, None, "{text}");

    // The agent's folder put back as it was before the machine joined.
    std::fs::remove_dir_all(dir.path().join("data")).expect("removed");
    let (code, text) = start(dir.path(), &renewed);
    assert_eq!(code, Some(78), "{text}");
    assert!(text.contains("the record of which one"), "{text}");
}

/// The cluster's roots change while the disk is full, and the agent starts again: nothing but its
/// evictions makes room.
#[test]
fn a_state_that_can_t_keep_other_roots_runs_its_node_where_it_is_bound_already() {
    let (cluster, key) = (Cluster::new(), KeyPair::generate().expect("a key"));
    let document = cluster.document(&bare(&key), &cluster.certificate(&key, NAME, 2090));
    let dir = tempfile::tempdir().expect("a directory");
    let roots = dir.path().join("data/cluster-roots");
    // No roots can be written where they are written first.
    let full = dir.path().join("data/cluster-roots.new");
    let is_refused = || {
        let (code, text) = start(dir.path(), &document);
        assert_eq!(code, Some(74), "{text}");
        assert!(text.contains("cannot write"), "{text}");
    };
    let is_a_node = || {
        let (code, text) = start(dir.path(), &document);
        assert_eq!(code, None, "{text}");
    };

    // A new state.
    note(dir.path(), None);
    std::fs::create_dir_all(&full).expect("made");
    is_refused();
    std::fs::remove_dir(&full).expect("removed");
    is_a_node();
    let own = std::fs::read_to_string(&roots).expect("its roots");
    assert!(own.contains(&cluster.pin), "{own}");

    let before = format!("{}\nsha256:{}\n", own.trim_end(), "ab".repeat(32));
    std::fs::write(&roots, &before).expect("written");
    std::fs::create_dir(&full).expect("made");
    is_a_node();
    let kept = std::fs::read_to_string(&roots).expect("its roots");
    assert_eq!(kept, before);
    // A state without the note takes an issued identity and an admission alike.
    note(dir.path(), None);
    is_refused();
    std::fs::remove_dir(&full).expect("removed");
    is_a_node();
    let kept = std::fs::read_to_string(&roots).expect("its roots");
    assert_eq!(kept, own);
}

/// A wrapped key of the right form, for no TPM.
fn wrapped() -> String {
    let part = STANDARD.encode([1; 64]);
    let hash = "ab".repeat(32);
    format!(
        "ek = \"sha256:{hash}\"\npublic = \"{part}\"\nprivate = \"{part}\"\nseed = \"{part}\"\n"
    )
}
