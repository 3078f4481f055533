//! The `agent` as a process, with a real software TPM.

use config_model::format::Pin;
use config_protocol::attestor::{
    EvidenceAnswer, EvidenceRequest, HelloAnswer, MAX_SEAL, Refused, Request, SealAnswer,
    StatusAnswer, UnsealAnswer,
};
use config_protocol::question::{mac, question};
use config_protocol::wire::{Blob, Challenge, ConfigEvent, SessionId};
use config_protocol::{Purpose, prover};
use config_state::generation::{Generation, GenerationKey};
use config_tpm::{Digest, pcr};
use config_tpm::{Public, make_credential};
use config_unlock::approvals::{AREA, Role};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use p256::ecdsa::{SigningKey, VerifyingKey};
use p256::pkcs8::EncodePublicKey as _;
use rand_core::OsRng;
use serde::de::DeserializeOwned;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use tests_harness::lifetime;
use tests_harness::swtpm::Swtpm;
use tests_support::images;
use tests_support::master::{Behaviour, Booted, Master};
use zeroize::Zeroizing;

/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(180);

/// How a fault of the configuration begins on the console.
const CONFIGURATION: &str = "pratique: REFUSED CONFIGURATION: ";

/// A running agent; killed when dropped.
struct Agent {
    process: Child,
    lines: Receiver<String>,
    dir: TempDir,
}

impl Agent {
    fn start(config: &str, tcti: &str, more: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("config.toml"), config).expect("a configuration");
        let mut command = Command::new(env!("CARGO_BIN_EXE_agent"));
        command
            .args(["run", "--tcti", tcti])
            .arg("--config")
            .arg(at("config.toml"))
            .arg("--data")
            .arg(at("data"))
            .arg("--run")
            .arg(at("run"))
            // There is no engine here: other tests cover containers.
            .args(["--kubelet-port", "0", "--containerd", "/nonexistent"])
            .arg("--kubelet-data")
            .arg(at("kubelet"))
            .arg("--pod-logs")
            .arg(at("logs"))
            .args(if more.contains(&"--image") {
                &[][..]
            } else {
                &["--image", "/nonexistent"]
            })
            .args(more)
            .stdout(Stdio::piped());
        let mut process = lifetime::bind(&mut command)
            .expect("a guard")
            .spawn()
            .expect("the agent");
        let (send, lines) = channel();
        let out = BufReader::new(process.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            process,
            lines,
            dir,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("run").join(name)
    }

    /// The first line that begins with `prefix`.
    fn line(&self, prefix: &str) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).expect("the line in time");
            if line.starts_with(prefix) {
                return line;
            }
        }
    }

    fn end(&mut self) -> Option<i32> {
        let pid = Pid::from_raw(i32::try_from(self.process.id()).expect("a pid"));
        kill(pid, Signal::SIGTERM).expect("a running agent");
        self.process.wait().expect("a child").code()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Where a machine's logs are, as arguments.
fn logs(booted: &Booted) -> [String; 4] {
    let (log, event) = (
        booted.firmware().display().to_string(),
        booted.config_event().display().to_string(),
    );
    [
        "--event-log".to_owned(),
        log,
        "--config-event".to_owned(),
        event,
    ]
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} in time");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn hex(bytes: &[u8]) -> String {
    Digest::from_slice(bytes).expect("32 bytes").to_hex()
}

/// The user-data of a first master.
fn founding() -> String {
    format!(
        "version = 1\n[machine]\nname = \"master-1\"\n[cluster]\nname = \"lab\"\nadmin_key = \"sha256:{}\"\n",
        "ab".repeat(32)
    )
}

fn joining(master: &Master) -> String {
    format!(
        "version = 1\n[machine]\nname = \"worker-1\"\n[master]\nendpoints = [\"https://127.0.0.1:{}\"]\nca_pins = [\"sha256:{}\"]\n",
        master.port,
        hex(&master.pin)
    )
}

fn exchange(socket: &Path, line: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).expect("the socket");
    stream.write_all(line).expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

fn ask<T: DeserializeOwned>(socket: &Path, request: &Request) -> T {
    let line = serde_json::to_string(request).expect("JSON") + "\n";
    serde_json::from_str(&exchange(socket, line.as_bytes())).expect("the answer of the operation")
}

#[test]
fn faults_of_the_configuration_are_printed_with_their_place() {
    let mut agent = Agent::start(
        "version = 1\n[master]\nendpoint = []\n",
        "device:/nonexistent",
        &[],
    );
    let faults = [agent.line(CONFIGURATION), agent.line(CONFIGURATION)].join("\n");
    assert!(
        faults.contains("config.toml:2:1: master.ca_pins") && faults.contains("config.toml:3:1"),
        "{faults}"
    );
    assert_eq!(agent.process.wait().expect("a child").code(), Some(78));
}

#[test]
fn a_machine_without_a_tpm_reports_it_and_waits_for_its_end() {
    let mut agent = Agent::start(
        &founding(),
        "device:/nonexistent",
        &["--manage-network", "true", "--sys", "/nonexistent"],
    );
    agent.line("pratique: REFUSED NO_TPM: ");
    assert_eq!(agent.end(), Some(0));
}

/// Where the kernel would show a TPM, in a folder.
fn sys(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (path, text) in files {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a directory");
        std::fs::write(path, text).expect("a file");
    }
    dir
}

/// What the kernel shows of a TPM, the user-data's setting, and the expected line with its words.
struct Lack {
    kernel: &'static [(&'static str, &'static str)],
    goes_without: bool,
    line: &'static str,
    words: &'static str,
}

const NONE: &[(&str, &str)] = &[];
const OLD: &[(&str, &str)] = &[("class/tpm/tpm0/tpm_version_major", "1\n")];
const SILENT: &[(&str, &str)] = &[("firmware/acpi/tables/TPM2", "")];
const DEAF: &[(&str, &str)] = &[("class/tpm/tpm0/tpm_version_major", "2\n")];

/// Each kind of missing TPM with the expected result: the agent never uses less than the machine
/// has, and never without reporting it.
const LACKS: &[Lack] = &[
    Lack {
        kernel: NONE,
        goes_without: false,
        line: "REFUSED NO_TPM: this machine has no TPM",
        words: "insecure_no_tpm = true",
    },
    Lack {
        kernel: OLD,
        goes_without: false,
        line: "REFUSED NO_TPM: this machine has a TPM 1.2",
        words: "make it a TPM 2.0",
    },
    Lack {
        kernel: SILENT,
        goes_without: false,
        line: "REFUSED NO_TPM: the firmware names a TPM 2.0",
        words: "tpm_crb",
    },
    Lack {
        kernel: SILENT,
        goes_without: true,
        line: "REFUSED NO_TPM: the firmware names a TPM 2.0",
        words: "for machines that have none",
    },
    Lack {
        kernel: DEAF,
        goes_without: true,
        line: "REFUSED TPM: the TPM cannot be used",
        words: "cannot be opened",
    },
    Lack {
        kernel: NONE,
        goes_without: true,
        line: "WARNING: this machine has no TPM",
        words: "NOTHING CAN BE PROVEN",
    },
    Lack {
        kernel: OLD,
        goes_without: true,
        line: "WARNING: this machine has a TPM 1.2",
        words: "NOTHING CAN BE PROVEN",
    },
];

#[test]
fn each_missing_tpm_is_reported_and_only_a_machine_without_one_joins_without_it() {
    let worker = |more: &str| {
        format!(
            "version = 1\n[machine]\nname = \"edge-1\"\n{more}[master]\nendpoints = [\"https://127.0.0.1:1\"]\n\
             ca_pins = [\"sha256:{}\"]\n",
            "ab".repeat(32)
        )
    };
    let (plain, insecure) = (worker(""), worker("insecure_no_tpm = true\n"));
    for lack in LACKS {
        let sys = sys(lack.kernel);
        let path = sys.path().display().to_string();
        // On a machine the failure is printed and the agent stays; there it would also bring up the
        // network.
        let refused = lack.line.starts_with("REFUSED");
        let more = [
            "--manage-network",
            if refused { "true" } else { "false" },
            "--sys",
            &path,
        ];
        let config = if lack.goes_without { &insecure } else { &plain };
        let mut agent = Agent::start(config, "device:/nonexistent", &more);
        let found = agent.line(&format!("pratique: {}", lack.line));
        assert!(found.contains(lack.words), "{found}");
        if !refused {
            assert!(agent.line("pratique: node key of this boot: sha256:").len() > 64);
            let failed = agent.line("pratique: not enrolled yet: 127.0.0.1:1 cannot be reached");
            assert!(
                failed.contains("(step 1, hello; next attempt in"),
                "{failed}"
            );
        }
        assert_eq!(agent.end(), Some(0));
    }
}

/// A machine with a TPM and `insecure_no_tpm` attests with the TPM all the same, and prints that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_with_a_tpm_never_joins_without_it() {
    let master = Master::start(Behaviour::Good).await;
    let config = joining(&master).replace(
        "name = \"worker-1\"\n",
        "name = \"worker-1\"\ninsecure_no_tpm = true\n",
    );
    let ended = tokio::task::spawn_blocking(move || {
        let swtpm = Swtpm::new();
        let booted = master.register("worker-1", "worker", &swtpm.tcti(), &swtpm.issuer_pem());
        let mut agent = Agent::start(
            &config,
            &swtpm.tcti(),
            &logs(&booted).each_ref().map(String::as_str),
        );
        agent.line("pratique: `insecure_no_tpm` is not used: this machine has a TPM");
        agent.line("pratique: enrolled as worker-1");
        agent.end()
    });
    assert_eq!(ended.await.expect("the agent"), Some(0));
}

#[test]
fn the_first_masters_attestor_seals_and_proves() {
    let swtpm = Swtpm::new();
    let mut agent = Agent::start(&founding(), &swtpm.tcti(), &["--seal-for-any-boot"]);
    let socket = agent.path("attestor.sock");
    agent.line("pratique: WARNING: `--seal-for-any-boot`");
    agent.line("pratique: waiting for this machine's master");
    let mode = std::fs::metadata(&socket)
        .expect("the socket")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    // As the master does to check that the socket exists.
    drop(UnixStream::connect(&socket).expect("the socket"));
    let secret = Blob::new(vec![7; 300]).expect("short");
    let SealAnswer { sealed } = ask(
        &socket,
        &Request::Seal {
            data: secret.clone(),
        },
    );
    let UnsealAnswer { data } = ask(&socket, &unseal(&sealed, false));
    assert_eq!(data, secret);
    assert!(exchange(&socket, b"{\"op\":\"status\"}\n").contains("true"));
    assert!(exchange(&socket, b"{\"op\":\"sign\"}\n").contains("MALFORMED"));
    assert!(exchange(&socket, b"{\"op\":\"unseal\",\"sealed\":\"AAAA\"}\n").contains("TPM"));
    let event = ConfigEvent {
        pcr: 13,
        label: "nocloud".to_owned(),
        length: 3,
        digest: Digest::of(b"x"),
    };
    std::fs::write(
        agent.path("config-event.json"),
        serde_json::to_vec(&event).expect("JSON"),
    )
    .expect("the record");
    prove(&socket, &event);
    assert_eq!(agent.end(), Some(0));
}

type Sealed = Blob<{ 2 * MAX_SEAL }>;

fn unseal(sealed: &Sealed, unbound: bool) -> Request {
    let sealed = sealed.clone();
    Request::Unseal { sealed, unbound }
}

/// Waits until the attestor answers.
fn founded(config: &str, tcti: &str, more: &[&str]) -> (Agent, PathBuf) {
    let agent = Agent::start(config, tcti, more);
    let socket = agent.path("attestor.sock");
    until("the attestor's socket", || {
        UnixStream::connect(&socket).is_ok()
    });
    (agent, socket)
}

/// The code by which a request is refused.
fn refusal(socket: &Path, request: &Request) -> String {
    let Refused { error } = ask(socket, request);
    error.code
}

#[test]
fn nothing_is_sealed_without_approvals_or_a_flag() {
    let swtpm = Swtpm::new();
    let (mut agent, socket) = founded(&founding(), &swtpm.tcti(), &[]);
    let data = Blob::new(vec![7; 300]).expect("short");
    assert_eq!(refusal(&socket, &Request::Seal { data }), "NO_APPROVALS");
    let sealed = Blob::new(vec![7; 300]).expect("short");
    assert_eq!(refusal(&socket, &unseal(&sealed, true)), "NO_APPROVALS");
    assert_eq!(agent.end(), Some(0));
}

/// A board and an image on it, as files that the agent reads.
struct Board {
    dir: TempDir,
    swtpm: Swtpm,
}

impl Board {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a folder"),
            swtpm: Swtpm::new(),
        }
    }

    /// Boots an image, signed by a release key, that measures a seed. Returns the agent on it, and
    /// its attestor's socket.
    fn boot(&mut self, key: u8, svn: u64, approved: u8, measured: u8) -> (Agent, PathBuf) {
        drop(images::boot(&mut self.swtpm, measured));
        let key = images::release_key(key);
        let unlock = images::image_of(Role::Master, &key, svn, approved);
        let mut area = unlock.approvals.to_bytes().expect("they fit");
        area.resize(AREA, 0);
        let path = |name: &str| self.dir.path().join(name);
        std::fs::write(path("approvals"), [&[7; 4096][..], &area].concat()).expect("written");
        let point = unlock.approver.to_hex();
        let text =
            format!("id = \"x\"\nrole = \"master\"\nsvn = {svn}\nrelease_key = \"{point}\"\n");
        std::fs::write(path("image.toml"), text).expect("written");
        let [image, approvals] =
            ["image.toml", "approvals"].map(|name| path(name).display().to_string());
        let arguments = ["--image", &image, "--approvals", &approvals];
        let host = ["--manage-network", "false"];
        founded(
            &founding(),
            &self.swtpm.tcti(),
            &[&arguments[..], &host].concat(),
        )
    }
}

#[test]
fn the_attestor_seals_for_the_booted_image_and_names_why_a_seal_does_not_open() {
    let mut board = Board::new();
    let unbound = {
        let tpm = agent_tpm::Tpm::open(&board.swtpm.tcti()).expect("open");
        let secret = Zeroizing::new(vec![8; 300]);
        let sealed = tpm.seal(&agent_tpm::Sealing::AnyBoot, secret);
        Sealed::new(sealed.expect("sealed")).expect("short")
    };
    let data = Blob::new(vec![7; 300]).expect("short");
    let (mut agent, socket) = board.boot(1, 3, 1, 1);
    let StatusAnswer { ready, floor } = ask(&socket, &Request::Status);
    assert!(ready && floor == Some(3));
    let SealAnswer { sealed } = ask(&socket, &Request::Seal { data: data.clone() });
    let UnsealAnswer { data: opened } = ask(&socket, &unseal(&sealed, false));
    assert_eq!(opened, data);
    assert_eq!(refusal(&socket, &unseal(&sealed, true)), "BOUND");
    assert_eq!(refusal(&socket, &unseal(&unbound, false)), "UNBOUND");
    let UnsealAnswer { data: opened } = ask(&socket, &unseal(&unbound, true));
    assert_eq!(opened.as_bytes(), [8; 300]);
    assert_eq!(agent.end(), Some(0));
    drop(agent);
    // An update; a foreign system with the image's files; an image of another release key; an older
    // image; an image far ahead.
    let boots = [
        ((1, 4, 2, 2), None),
        ((1, 3, 1, 9), Some("NOT_APPROVED")),
        ((2, 3, 9, 9), Some("OTHER_RELEASE_KEY")),
        ((1, 2, 3, 3), Some("FLOOR")),
        ((1, 35, 4, 4), Some("FLOOR")),
    ];
    for ((key, svn, approved, measured), code) in boots {
        let (mut agent, socket) = board.boot(key, svn, approved, measured);
        if let Some(code) = code {
            assert_eq!(refusal(&socket, &unseal(&sealed, false)), code);
        } else {
            let UnsealAnswer { data: opened } = ask(&socket, &unseal(&sealed, false));
            assert_eq!(opened, data);
        }
        assert_eq!(agent.end(), Some(0));
    }
    // Another board with the same image.
    let mut other = Board::new();
    let (mut agent, socket) = other.boot(1, 3, 1, 1);
    assert_eq!(refusal(&socket, &unseal(&sealed, false)), "NOT_SEALED_HERE");
    assert_eq!(agent.end(), Some(0));
}

/// Challenges the attestor as an admin does.
fn prove(socket: &Path, event: &ConfigEvent) {
    let HelloAnswer { keys, claims } = ask(socket, &Request::Hello);
    assert_eq!(
        (claims.name.as_str(), claims.role.as_str()),
        ("master-1", "master")
    );
    let names = prover::names(&keys).expect("keys");
    let ek = Public::parse(keys.ek.as_bytes()).expect("an EK");
    let challenge = Challenge {
        session: SessionId([3; 16]),
        nonce: Digest([4; 32]),
        credential: make_credential(&ek, &names.ak, &[5; 32], &mut OsRng)
            .expect("a credential")
            .try_into()
            .expect("short enough"),
        pcrs: pcr::QUOTE_PCRS.to_vec(),
        expires_in_seconds: 30,
    };
    let request = EvidenceRequest {
        csr_hash: Digest([6; 32]),
        claims,
        challenge,
        server_spki: Digest([7; 32]),
        exporter: Digest([8; 32]),
    };
    let EvidenceAnswer { proof } = ask(socket, &Request::Evidence(Box::new(request)));
    let q = question(
        Purpose::Bootstrap,
        &SessionId([3; 16]),
        &names,
        &proof.transcript,
    );
    assert_eq!(proof.mac, mac(&[5; 32], &q));
    assert_eq!(proof.config_event.as_ref(), Some(event));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_enrols_and_ends_when_asked() {
    let master = Master::start(Behaviour::Good).await;
    let config = joining(&master);
    let ended = tokio::task::spawn_blocking(move || {
        let swtpm = Swtpm::new();
        let booted = master.register("worker-1", "worker", &swtpm.tcti(), &swtpm.issuer_pem());
        let mut agent = Agent::start(
            &config,
            &swtpm.tcti(),
            &logs(&booted).each_ref().map(String::as_str),
        );
        agent.line("pratique: enrolling with 127.0.0.1:");
        agent.line("pratique: enrolled as worker-1, certificate until 2033-05-18T03:33:20Z");
        agent.line("pratique: node worker-1 is served");
        agent.end()
    });
    assert_eq!(ended.await.expect("the agent"), Some(0));
}

/// What pods leave on the state must not be taken for another cluster's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_state_cannot_keep_its_cluster_runs_no_pod() {
    let master = Master::start(Behaviour::Good).await;
    let config = joining(&master);
    let (said, code) = tokio::task::spawn_blocking(move || {
        let state = tempfile::tempdir().expect("a directory");
        let at = |name: &str| state.path().join(name).display().to_string();
        let key = GenerationKey::of(&Zeroizing::new([7; 64]));
        std::fs::write(at("key"), key.bytes()).expect("written");
        let fresh = Generation {
            number: 7,
            ..Generation::default()
        };
        std::fs::write(at("generation"), fresh.text(&key)).expect("written");
        // In the way of its next text.
        std::fs::create_dir(at("generation.new")).expect("made");
        let swtpm = Swtpm::new();
        let booted = master.register("worker-1", "worker", &swtpm.tcti(), &swtpm.issuer_pem());
        let (logs, places) = (logs(&booted), [at("generation"), at("key")]);
        let mut more: Vec<&str> = logs.iter().map(String::as_str).collect();
        more.extend(["--state-generation", &places[0]]);
        more.extend(["--state-generation-key", &places[1]]);
        let mut agent = Agent::start(&config, &swtpm.tcti(), &more);
        agent.line("pratique: enrolled as worker-1");
        let is_served = |line: &String| line.contains("is served");
        // Without such a line it goes on to the end of the output.
        let said = agent.lines.iter().find(is_served);
        (said, agent.end())
    })
    .await
    .expect("the agent");
    assert_eq!((said, code), (None, Some(74)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_masters_agent_joins_by_the_pin_that_its_master_wrote() {
    let master = Master::start(Behaviour::RefusesRsa).await;
    let (port, pin) = (master.port, hex(&master.pin));
    let ended = tokio::task::spawn_blocking(move || {
        let swtpm = Swtpm::new();
        let own = format!("127.0.0.1:{port}");
        let booted = master.register("master-1", "master", &swtpm.tcti(), &swtpm.issuer_pem());
        let logs = logs(&booted);
        let more: Vec<&str> = logs
            .iter()
            .map(String::as_str)
            .chain(["--own-master", &own])
            .collect();
        let mut agent = Agent::start(&founding(), &swtpm.tcti(), &more);
        agent.line("pratique: waiting for this machine's master");
        until("the run folder", || agent.path("").exists());
        std::fs::write(agent.path("ca-pin"), format!("sha256:{pin}\n")).expect("the pin");
        let refusal = agent.line("pratique: REFUSED: ");
        assert!(!refusal.contains('\n'));
        agent.line("pratique: enrolled as master-1");
        agent.end()
    });
    assert_eq!(ended.await.expect("the agent"), Some(0));
}

/// A discovery endpoint that serves the given document, and the `[discovery]` for it.
fn discovery(serves: Arc<Mutex<Vec<u8>>>, pin: Pin) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().expect("a stream"))
                .lines()
                .map_while(Result::ok);
            lines.find(String::is_empty);
            let body = serves.lock().expect("the body").clone();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            stream.write_all(&[head.as_bytes(), &body].concat()).ok();
        }
    });
    format!(
        "version = 1\n[machine]\nname = \"worker-1\"\n[discovery]\nuris = [\"http://{address}/v1/clusters/{}\"]\npins = [\"{pin}\"]\n",
        "a".repeat(32)
    )
}

fn signed(key: &SigningKey, generation: u64, port: u16, pin: [u8; 32]) -> Vec<u8> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_secs();
    let document = config_discovery::Document {
        cluster: "a".repeat(32).parse().expect("an id"),
        generation,
        issued: now,
        expires: now + 3600,
        endpoints: vec![
            format!("https://127.0.0.1:{port}")
                .parse()
                .expect("an endpoint"),
        ],
        ca_pins: vec![Pin(pin)],
    };
    document.sign(key).expect("a document")
}

/// The document names a missing master and a wrong root; the agent asks again, finds the new
/// document, and joins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_finds_its_master_by_discovery_and_again_after_it_moved() {
    let master = Master::start(Behaviour::Good).await;
    let swtpm = Swtpm::new();
    let booted = master.register("worker-1", "worker", &swtpm.tcti(), &swtpm.issuer_pem());
    let key = SigningKey::from_slice(&[1; 32]).expect("a scalar");
    let spki = VerifyingKey::from(&key).to_public_key_der().expect("a key");
    // Nothing listens there.
    let gone = 1;
    let serves = Arc::new(Mutex::new(signed(&key, 7, gone, [9; 32])));
    let config = discovery(
        Arc::clone(&serves),
        config_discovery::pin_of(spki.as_bytes()),
    );
    let mut agent = Agent::start(
        &config,
        &swtpm.tcti(),
        &logs(&booted).each_ref().map(String::as_str),
    );
    agent.line(&format!(
        "pratique: master by discovery: https://127.0.0.1:{gone}, generation 7"
    ));
    *serves.lock().expect("the body") = signed(&key, 8, master.port, master.pin);
    agent.line("pratique: not enrolled yet: ");
    agent.line("pratique: enrolled as worker-1");
    assert_eq!(agent.end(), Some(0));
    let memory =
        std::fs::read_to_string(agent.dir.path().join("data/discovery.json")).expect("the memory");
    assert!(memory.contains("\"generation\":8"), "{memory}");
}
