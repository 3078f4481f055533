//! The first master: attested and taken over by its admin with the real tools, once; its machine's
//! TPM is in software behind the real attestor socket's protocol.

use crate::lab::{EK_USAGE, chain, issuer};
use crate::takeover;
use crate::wire::{Answer, Connection, config};
use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::{ImageRelease, Machine, MachineState};
use config_protocol::attestor::{
    EvidenceAnswer, EvidenceRequest, HelloAnswer, Request, SealAnswer, StatusAnswer, UnsealAnswer,
};
use config_protocol::wire::{Blob, Certificates, Challenge, SESSIONS_PATH, evidence_path};
use config_protocol::{Channel, Code, Purpose};
use http::{Method, StatusCode};
use p256::ecdsa::SigningKey;
use p256::pkcs8::{EncodePublicKey as _, LineEnding};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use serde::Serialize;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests_harness::process::Owned;
use tests_machines::{EkKind, SoftImage, SoftMachine, ek_certificate};

/// Time for the master to come up.
const LIMIT: Duration = Duration::from_secs(180);

/// A machine with its files, and the master process on it.
pub(crate) struct FirstMaster {
    dir: tempfile::TempDir,
    bin: PathBuf,
    machine: SoftMachine,
    pub(crate) address: SocketAddr,
    process: Owned,
}

/// Serves the attestor socket for a machine in software. What it seals is only marked: the real
/// TPM's sealing has tests of its own.
fn attestor(path: &Path, machine: SoftMachine) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut line = String::new();
            if BufReader::new(&stream).read_line(&mut line).unwrap_or(0) > 0 {
                answer(stream, &serde_json::from_str(&line).unwrap(), &machine);
            }
        }
    });
}

fn answer(mut stream: UnixStream, request: &Request, machine: &SoftMachine) {
    let line = match request {
        Request::Status => text(&StatusAnswer {
            ready: true,
            floor: None,
        }),
        Request::Hello => text(&HelloAnswer {
            keys: machine.keys(),
            claims: machine.claims.clone(),
        }),
        Request::Evidence(asked) => {
            let EvidenceRequest {
                csr_hash,
                claims,
                challenge,
                server_spki,
                exporter,
            } = &**asked;
            let channel = Channel {
                server_spki: *server_spki,
                exporter: *exporter,
            };
            let keys = machine.keys();
            let proof = machine.proof(
                Purpose::Bootstrap,
                &keys,
                *csr_hash,
                claims,
                challenge,
                &channel,
            );
            text(&EvidenceAnswer { proof })
        }
        Request::Seal { data } => text(&SealAnswer {
            sealed: Blob::new([b"sealed:", data.as_bytes()].concat()).unwrap(),
        }),
        Request::Unseal { sealed, .. } => text(&UnsealAnswer {
            data: Blob::new(sealed.as_bytes().strip_prefix(b"sealed:").unwrap()).unwrap(),
        }),
    };
    stream.write_all(line.as_bytes()).unwrap();
}

fn text(answer: &impl Serialize) -> String {
    serde_json::to_string(answer).unwrap() + "\n"
}

impl FirstMaster {
    fn new() -> Self {
        Self::of(SoftMachine::new("master-1", EkKind::P256), |data| data)
    }

    /// With this machine, and with the user-data as `tell` changes it.
    fn of(mut machine: SoftMachine, tell: impl FnOnce(String) -> String) -> Self {
        let bin = tests_harness::programs::folder();
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let key = Command::new(bin.join("pratique"))
            .arg("admin-key")
            .arg("--out")
            .arg(at("admin.key"))
            .output()
            .unwrap();
        assert!(key.status.success(), "{key:?}");
        let signer = SoftMachine::new("release key of the first master", EkKind::P256).ak;
        std::fs::write(at("release.pub"), public(&signer)).unwrap();
        let image = SoftImage::new("master-7", "master", 7);
        for image in [&image, &SoftImage::new("worker-7", "worker", 7)] {
            let release = image.manifest().sign(&[&signer]).unwrap();
            std::fs::write(
                at(&format!("{}.json", image.id)),
                serde_json::to_vec(&release).unwrap(),
            )
            .unwrap();
        }
        let user_data = user_data(&String::from_utf8(key.stdout).unwrap(), &public(&signer));
        let user_data = tell(user_data);
        std::fs::write(at("user-data.toml"), &user_data).unwrap();
        "master".clone_into(&mut machine.claims.role);
        machine.claims.addresses = vec!["192.168.77.10".to_owned()];
        machine.serving_request.names = vec!["master-1".to_owned(), "192.168.77.10".to_owned()];
        machine.boot(&image, "nocloud", user_data.as_bytes());
        attestor(&at("attestor.sock"), machine.clone());
        let port = tests_harness::port::free().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let process = Self::spawn(&bin, dir.path(), address);
        Self {
            dir,
            bin,
            machine,
            address,
            process,
        }
    }

    fn spawn(bin: &Path, dir: &Path, address: SocketAddr) -> Owned {
        let mut master = Command::new(bin.join("master"));
        master
            .arg("run")
            .arg("--config")
            .arg(dir.join("user-data.toml"))
            .arg("--data")
            .arg(dir.join("data"));
        master
            .arg("--listen")
            .arg(address.to_string())
            .arg("--attestor")
            .arg(dir.join("attestor.sock"));
        master.arg("--ca-pin").arg(dir.join("ca-pin"));
        Owned::start(master, &dir.join("master.log")).unwrap()
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.at("master.log")).unwrap_or_default()
    }

    /// `pratique bootstrap` with the admin's files, right or wrong.
    fn bootstrap(&self, ek: &str, user_data: &str) -> Output {
        self.bootstrap_at(self.address, ek, user_data)
    }

    /// The same of any server that listens at an address.
    pub(crate) fn bootstrap_at(&self, address: SocketAddr, ek: &str, user_data: &str) -> Output {
        let mut command = Command::new(self.bin.join("pratique"));
        command
            .arg("bootstrap")
            .arg("--endpoint")
            .arg(format!("https://{address}"))
            .arg("--ek-hash")
            .arg(ek);
        command
            .arg("--release")
            .arg(self.at("master-7.json"))
            .arg("--release")
            .arg(self.at("worker-7.json"));
        command
            .arg("--release-key")
            .arg(self.at("release.pub"))
            .arg("--user-data")
            .arg(self.at(user_data));
        command
            .arg("--admin-key")
            .arg(self.at("admin.key"))
            .arg("--kubeconfig")
            .arg(self.at("kubeconfig"));
        command.output().unwrap()
    }

    /// A bootstrap that fails with these words, and leaves no kubeconfig.
    fn refused(&self, ek: &str, user_data: &str, words: &str) {
        self.failed(&self.bootstrap(ek, user_data), words);
    }

    pub(crate) fn failed(&self, output: &Output, words: &str) {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains(words),
            "{words}: {said}\n{}",
            self.log()
        );
        assert!(
            output.stdout.is_empty(),
            "a pin was printed: {:?}",
            output.stdout
        );
    }

    /// One request by anyone; the answer.
    async fn ask(&self, tls: Arc<ClientConfig>, method: Method, path: &str) -> Answer {
        let start = Instant::now();
        loop {
            match Connection::open(self.address, tls.clone()).await {
                Ok(mut connection) => return connection.send(method, path, Vec::new()).await,
                Err(error) => assert!(start.elapsed() < LIMIT, "{error}\n{}", self.log()),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A TLS client that trusts the root on disk, which is public.
    pub(crate) async fn anonymous(&self) -> Arc<ClientConfig> {
        let start = Instant::now();
        loop {
            if let Ok(pem) = std::fs::read(self.at("data/ca/root.crt")) {
                let root = rustls::pki_types::CertificateDer::from_pem_slice(&pem).unwrap();
                return config(&root, None);
            }
            assert!(start.elapsed() < LIMIT, "no root:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A TLS client with the admin's kubeconfig.
    fn admin(&self) -> Arc<ClientConfig> {
        let (root, admin) = crate::site::first(&std::fs::read(self.at("kubeconfig")).unwrap());
        config(&root, Some(&admin))
    }
}

fn public(key: &SigningKey) -> String {
    key.verifying_key()
        .to_public_key_pem(LineEnding::LF)
        .unwrap()
}

fn user_data(admin_key: &str, release: &str) -> String {
    format!(
        "version = 1\n\n[machine]\nname = \"master-1\"\n\n[[network.interface]]\nname = \"eth1\"\n\
         addresses = [\"192.168.77.10/24\"]\n\n[cluster]\nname = \"lab\"\n{admin_key}api_names = [\"192.168.77.10\"]\n\n\
         [[cluster.release_key]]\nname = \"release\"\npublic_key = '''\n{release}'''\n\n\
         [[rule]]\nname = \"machines\"\nsigners = [\"pratique.dev/node-client\", \"pratique.dev/node-serving\"]\n\
         policy = \"cloud-verify\"\nek = {{ hashes = \"inventory\" }}\nimages = {{ release_keys = [\"release\"], min_svn = 7 }}\n\
         events = {{ secure_boot = true }}\nconfig = {{ measured = true, digests = \"inventory\" }}\n\
         certificate = {{ sans = \"inventory\", roles = [\"worker\", \"master\"] }}\n"
    )
}

/// Before its admin comes, a master answers health and bootstrap only; a wrong machine, image or
/// configuration is not admitted; the right one is, once, though the answer is lost on its way.
pub(crate) async fn the_first_master_is_taken_over_once_by_its_admin_alone() {
    let mut first = FirstMaster::new();
    let anonymous = first.anonymous().await;
    assert_eq!(
        first
            .ask(anonymous.clone(), Method::GET, "/livez")
            .await
            .status,
        StatusCode::OK,
        "{}",
        first.log()
    );
    for path in ["/api/v1/nodes", "/apis", SESSIONS_PATH] {
        let answer = first.ask(anonymous.clone(), Method::GET, path).await;
        assert_eq!(
            answer.json["code"], "NOT_BOOTSTRAPPED",
            "{path}: {answer:?}"
        );
    }
    let ek = first.machine.ek_hash().to_text();
    let data = std::fs::read_to_string(first.at("user-data.toml")).unwrap();
    std::fs::write(first.at("other.toml"), format!("{data}\n# another\n")).unwrap();
    let other = SoftMachine::new("another machine", EkKind::P256)
        .ek_hash()
        .to_text();
    first.refused(&other, "user-data.toml", Code::MachineUnknown.as_str());
    first.refused(&ek, "other.toml", Code::ConfigChanged.as_str());
    std::fs::write(
        first.at("cluster.toml"),
        data.replace("name = \"lab\"", "name = \"lab-2\""),
    )
    .unwrap();
    first.refused(&ek, "cluster.toml", Code::BootstrapVerdict.as_str());
    takeover::no_attacker_between_the_admin_and_a_fresh_master_takes_it_over(&first, &ek).await;
    takeover::nobody_else_takes_it(&first).await;
    let way = takeover::losing_the_answer(&first);
    let good = first.bootstrap_at(way, &ek, "user-data.toml");
    assert!(
        good.status.success() && first.log().contains("the bootstrap was answered once more"),
        "{}\n{}",
        String::from_utf8_lossy(&good.stderr),
        first.log()
    );
    let pin = std::fs::read_to_string(first.at("ca-pin")).unwrap();
    assert_eq!(
        String::from_utf8(good.stdout).unwrap(),
        format!("ca_pins = [\"{}\"]\n", pin.trim())
    );
    first.refused(&ek, "user-data.toml", "ALREADY_BOOTSTRAPPED");
    takeover::the_statement_of_the_takeover_opens_nothing(&first).await;
    the_objects_are_there(&first).await;
    the_master_joins_as_a_node(&first).await;
    the_recovery_copy_opens(&first);
    the_keys_are_sealed(&mut first).await;
    first.process.stop(Duration::from_secs(20)).unwrap();
}

/// The first master's own rule sets a minimum for the firmware of a manufacturer's TPMs: the
/// bootstrap already checks the master by it.
pub(crate) async fn the_first_masters_tpm_firmware_must_reach_the_minimum() {
    let maker = SoftMachine::new("the maker of TPMs", EkKind::P256).nk;
    let issuer = issuer(&maker);
    let floor = |least: &str| {
        let (issuer, least) = (issuer.clone(), least.to_owned());
        move |data: String| {
            let ek = format!(
                "ek = {{ issuers = [\"lab-ca\"], hashes = \"inventory\", require = \"all\", min_firmware = {{ lab-ca = \"{least}\" }} }}"
            );
            let data = data.replace("ek = { hashes = \"inventory\" }", &ek);
            data.replace(
                "[[rule]]",
                &format!(
                    "[[cluster.ek_issuer]]\nname = \"lab-ca\"\ncertificates = '''\n{issuer}'''\n\n[[rule]]"
                ),
            )
        }
    };
    let machine = |endorsed: bool| {
        let mut machine = SoftMachine::new("master-1", EkKind::P256);
        machine.tpm_firmware = 7 << 48 | 85 << 32;
        machine.ek_certificate =
            endorsed.then(|| ek_certificate("lab-ca", &maker, &machine.ek_spki(), EK_USAGE, 2090));
        machine
    };
    for (endorsed, least, code) in [
        (true, "7.86", Code::TpmFirmware),
        (false, "7.85", Code::EkCertificateMissing),
    ] {
        let first = FirstMaster::of(machine(endorsed), floor(least));
        first.anonymous().await;
        let ek = first.machine.ek_hash().to_text();
        first.refused(&ek, "user-data.toml", code.as_str());
    }
    let first = FirstMaster::of(machine(true), floor("7.85"));
    first.anonymous().await;
    let good = first.bootstrap(&first.machine.ek_hash().to_text(), "user-data.toml");
    assert!(
        good.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&good.stderr),
        first.log()
    );
}

async fn the_objects_are_there(first: &FirstMaster) {
    let admin = first.admin();
    let path = "/apis/pratique.dev/v1alpha1/machines/master-1";
    let machine: Machine =
        serde_json::from_value(first.ask(admin.clone(), Method::GET, path).await.json).unwrap();
    assert_eq!(machine.spec.role, "master");
    assert!(machine.status.unwrap_or_default().admin_verdict.is_some());
    let start = Instant::now();
    loop {
        let path = "/apis/pratique.dev/v1alpha1/imagereleases/worker-7";
        let answer = first.ask(admin.clone(), Method::GET, path).await;
        let release: ImageRelease = serde_json::from_value(answer.json).unwrap();
        if release
            .status
            .is_some_and(|status| status.verified_by == ["release"])
        {
            break;
        }
        assert!(
            start.elapsed() < LIMIT,
            "the release's status is not set:\n{}",
            first.log()
        );
    }
    let policy = first
        .ask(
            admin,
            Method::GET,
            "/apis/pratique.dev/v1alpha1/certificatepolicies/cluster",
        )
        .await;
    assert_eq!(policy.json["spec"]["rules"][0]["name"], "machines");
}

/// The master's machine is a node like any other, with the taint of its role.
async fn the_master_joins_as_a_node(first: &FirstMaster) {
    let machine = &first.machine;
    let mut connection = Connection::open(first.address, first.anonymous().await)
        .await
        .unwrap();
    let greeting = machine.hello();
    let answer = connection.post(SESSIONS_PATH, &greeting.0).await;
    let challenge: Challenge = serde_json::from_value(answer.json).unwrap();
    let evidence = machine.evidence(Purpose::Join, &greeting, &challenge, &connection.channel);
    let answer = connection
        .post(&evidence_path(SESSIONS_PATH, &challenge.session), &evidence)
        .await;
    assert_eq!(
        answer.status,
        StatusCode::OK,
        "{:?}\n{}",
        answer.json,
        first.log()
    );
    let certificates: Certificates = serde_json::from_value(answer.json).unwrap();
    assert!(!chain(&certificates.client).is_empty());
    let admin = first.admin();
    let node: Node = serde_json::from_value(
        first
            .ask(admin.clone(), Method::GET, "/api/v1/nodes/master-1")
            .await
            .json,
    )
    .unwrap();
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    assert!(
        taints
            .iter()
            .any(|taint| taint.key == "node-role.kubernetes.io/control-plane"),
        "{taints:?}"
    );
    let path = "/apis/pratique.dev/v1alpha1/machines/master-1";
    let machine: Machine =
        serde_json::from_value(first.ask(admin, Method::GET, path).await.json).unwrap();
    let status = machine.status.unwrap_or_default();
    assert_eq!(status.state, MachineState::Trusted);
    assert!(status.admin_verdict.is_some(), "the admin's verdict stays");
}

fn the_recovery_copy_opens(first: &FirstMaster) {
    let mut recover = Command::new(first.bin.join("pratique"));
    recover
        .arg("recover")
        .arg("--admin-key")
        .arg(first.at("admin.key"))
        .arg("--out")
        .arg(first.at("recovered.pem"));
    let output = recover
        .arg(first.at("data/ca/recovery.json"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(first.at("recovered.pem")).unwrap();
    let key = rcgen::KeyPair::from_pem(&text).unwrap();
    let pin = master_ca::spki_hash(&rcgen::PublicKeyData::subject_public_key_info(&key));
    assert_eq!(
        pin,
        std::fs::read_to_string(first.at("ca-pin")).unwrap().trim()
    );
}

/// No private key lies in the data folder in the clear; a restarted master has them opened by its
/// TPM.
async fn the_keys_are_sealed(first: &mut FirstMaster) {
    for name in [
        "root.key",
        "intermediate.key",
        "service-account.key",
        "discovery.key",
    ] {
        let kept: Value =
            serde_json::from_slice(&std::fs::read(first.at("data/ca").join(name)).unwrap())
                .unwrap();
        assert_eq!(kept["keeper"], "tpm", "{name}");
    }
    first.process.kill().unwrap();
    first.process = FirstMaster::spawn(&first.bin, first.dir.path(), first.address);
    let answer = first
        .ask(
            first.admin(),
            Method::GET,
            "/apis/pratique.dev/v1alpha1/machines/master-1",
        )
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{}", first.log());
}
