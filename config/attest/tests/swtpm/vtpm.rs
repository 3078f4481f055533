//! A software TPM for one test, spoken to with raw commands, so that nothing stands between the
//! verifier and the TPM's bytes.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(180);
/// Password session.
const PASSWORD: u32 = 0x4000_0009;
/// The hierarchies.
pub(crate) const ENDORSEMENT: u32 = 0x4000_000b;
pub(crate) const NULL: u32 = 0x4000_0007;

/// A running software TPM; its process ends when this is dropped.
pub(crate) struct Vtpm {
    dir: TempDir,
    process: Child,
    port: u16,
    stream: Option<TcpStream>,
}

impl Drop for Vtpm {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn run(command: &mut Command, package: &str) -> Vec<u8> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .unwrap_or_else(|fault| panic!("{name}: {fault}: install {package}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
    output.stdout
}

impl Vtpm {
    /// A new TPM with EKs and certificates by an issuer of its own.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        manufacture(dir.path());
        let deadline = Instant::now() + LIMIT;
        loop {
            let port = free_ports();
            let mut command = Command::new("swtpm");
            command
                .args(["socket", "--tpm2", "--flags", "not-need-init,startup-clear"])
                .args([
                    "--tpmstate",
                    &format!("dir={}", dir.path().join("state").display()),
                ])
                .args([
                    "--server",
                    &format!("type=tcp,port={port},bindaddr=127.0.0.1"),
                ])
                .args([
                    "--ctrl",
                    &format!("type=tcp,port={},bindaddr=127.0.0.1", port + 1),
                ])
                .args([
                    "--pid",
                    &format!("file={}", dir.path().join("pid").display()),
                ])
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let process = tests_harness::lifetime::bind(&mut command)
                .expect("a guard")
                .spawn();
            let mut process = process.expect("swtpm must be in PATH: install the package swtpm");
            // The pid file appears once both ports are bound; a taken port ends the process and
            // another pair is tried.
            while Instant::now() < deadline {
                let pid = std::fs::read_to_string(dir.path().join("pid"));
                if pid.is_ok_and(|pid| pid.trim() == process.id().to_string()) {
                    return Self {
                        dir,
                        process,
                        port,
                        stream: None,
                    };
                }
                if process.try_wait().expect("a child").is_some() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            process.kill().ok();
            process.wait().ok();
            assert!(
                Instant::now() < deadline,
                "swtpm did not listen within {LIMIT:?}"
            );
        }
    }

    /// PEM of the issuer of the EK certificates.
    pub(crate) fn issuer_pem(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("ca/issuercert.pem"))
            .expect("the issuer's certificate")
    }

    /// A path in the test's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs one of tpm2-tools against this TPM, in the test's directory. This closes our own
    /// connection.
    pub(crate) fn tool(&mut self, name: &str, arguments: &[&str]) -> Vec<u8> {
        self.stream = None;
        let tcti = format!("swtpm:host=127.0.0.1,port={}", self.port);
        let mut command = Command::new(name);
        command
            .args(arguments)
            .current_dir(self.dir.path())
            .env("TPM2TOOLS_TCTI", tcti);
        run(&mut command, "tpm2-tools")
    }

    /// Sends a command until the TPM no longer asks for a retry; returns what follows the
    /// response's header.
    fn send(&mut self, tag: u16, code: u32, body: &[u8]) -> Vec<u8> {
        const TPM_RC_RETRY: u32 = 0x922;
        for _ in 0..5 {
            match self.once(tag, code, body) {
                (0, response) => return response,
                (TPM_RC_RETRY, _) => {}
                (result, _) => panic!("command {code:#x} gave {result:#x}"),
            }
        }
        panic!("command {code:#x}: the TPM asks for a retry again and again");
    }

    fn once(&mut self, tag: u16, code: u32, body: &[u8]) -> (u32, Vec<u8>) {
        let port = self.port;
        let stream = self.stream.get_or_insert_with(|| {
            TcpStream::connect(("127.0.0.1", port)).expect("the software TPM listens")
        });
        let size = u32::try_from(body.len() + 10).expect("a small command");
        let mut bytes = tag.to_be_bytes().to_vec();
        bytes.extend_from_slice(&size.to_be_bytes());
        bytes.extend_from_slice(&code.to_be_bytes());
        bytes.extend_from_slice(body);
        stream.write_all(&bytes).expect("the software TPM reads");
        let mut header = [0; 10];
        stream.read_exact(&mut header).expect("a response");
        let size = u32::from_be_bytes([header[2], header[3], header[4], header[5]]) as usize;
        let result = u32::from_be_bytes([header[6], header[7], header[8], header[9]]);
        let mut rest = vec![0; size - 10];
        stream.read_exact(&mut rest).expect("a whole response");
        (result, rest)
    }

    /// A command with sessions: handles, one authorization each, parameters. Returns the response's
    /// handle part of `out_handles` handles and its parameters.
    fn authorized(
        &mut self,
        code: u32,
        handles: &[u32],
        sessions: &[u32],
        parameters: &[u8],
    ) -> Vec<u8> {
        let mut body = Vec::new();
        for handle in handles {
            body.extend_from_slice(&handle.to_be_bytes());
        }
        let mut area = Vec::new();
        for session in sessions {
            area.extend_from_slice(&session.to_be_bytes());
            area.extend_from_slice(&[0, 0, u8::from(*session != PASSWORD), 0, 0]);
        }
        body.extend_from_slice(&u32::try_from(area.len()).expect("small").to_be_bytes());
        body.extend_from_slice(&area);
        body.extend_from_slice(parameters);
        self.send(0x8002, code, &body)
    }

    /// TPM2_CreatePrimary: handle and TPMT_PUBLIC.
    pub(crate) fn create_primary(&mut self, hierarchy: u32, template: &[u8]) -> (u32, Vec<u8>) {
        let mut parameters = vec![0, 4, 0, 0, 0, 0];
        parameters.extend_from_slice(template);
        parameters.extend_from_slice(&[0, 0, 0, 0, 0, 0]);
        let response = self.authorized(0x131, &[hierarchy], &[PASSWORD], &parameters);
        let handle = u32::from_be_bytes(response[..4].try_into().expect("a handle"));
        (handle, sized(&response[8..]).0.to_vec())
    }

    /// TPM2_ReadPublic: TPMT_PUBLIC and the TPM's own value of the Name.
    pub(crate) fn read_public(&mut self, handle: u32) -> (Vec<u8>, Vec<u8>) {
        let response = self.send(0x8001, 0x173, &handle.to_be_bytes());
        let (public, rest) = sized(&response);
        (public.to_vec(), sized(rest).0.to_vec())
    }

    /// TPM2_PCR_Extend in the SHA-256 bank.
    pub(crate) fn extend(&mut self, pcr: u8, digest: &[u8; 32]) {
        let mut parameters = 1_u32.to_be_bytes().to_vec();
        parameters.extend_from_slice(&[0, 0x0b]);
        parameters.extend_from_slice(digest);
        self.authorized(0x182, &[u32::from(pcr)], &[PASSWORD], &parameters);
    }

    /// TPM2_ActivateCredential by the EK's policy (PolicySecret of the endorsement hierarchy), or
    /// by its empty auth.
    pub(crate) fn activate(
        &mut self,
        ak: u32,
        ek: u32,
        by_policy: bool,
        id_object: &[u8],
        secret: &[u8],
    ) -> Vec<u8> {
        let session = if by_policy {
            self.policy_secret()
        } else {
            PASSWORD
        };
        let parameters = [put(id_object), put(secret)].concat();
        let response = self.authorized(0x147, &[ak, ek], &[PASSWORD, session], &parameters);
        sized(&response[4..]).0.to_vec()
    }

    fn policy_secret(&mut self) -> u32 {
        let mut body = [NULL.to_be_bytes(), NULL.to_be_bytes()].concat();
        body.extend_from_slice(&put(&[0; 16]));
        body.extend_from_slice(&[0, 0, 1, 0, 0x10, 0, 0x0b]);
        let response = self.send(0x8001, 0x176, &body);
        let session = u32::from_be_bytes(response[..4].try_into().expect("a handle"));
        self.authorized(0x151, &[ENDORSEMENT, session], &[PASSWORD], &[0; 10]);
        session
    }

    /// TPM2_Quote: TPMS_ATTEST and TPMT_SIGNATURE.
    pub(crate) fn quote(&mut self, ak: u32, data: &[u8], selection: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let parameters = [put(data), vec![0, 0x10], selection.to_vec()].concat();
        attested(&self.authorized(0x158, &[ak], &[PASSWORD], &parameters))
    }

    /// TPM2_Certify with empty auth: TPMS_ATTEST and TPMT_SIGNATURE.
    pub(crate) fn certify(&mut self, key: u32, ak: u32, data: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let parameters = [put(data), vec![0, 0x10]].concat();
        attested(&self.authorized(0x148, &[key, ak], &[PASSWORD, PASSWORD], &parameters))
    }

    /// TPM2_FlushContext.
    pub(crate) fn flush(&mut self, handle: u32) {
        self.send(0x8001, 0x165, &handle.to_be_bytes());
    }
}

/// TPM2B_ATTEST and TPMT_SIGNATURE (ECDSA) of a response with sessions.
fn attested(response: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (attest, rest) = sized(&response[4..]);
    let (r, after) = sized(&rest[4..]);
    let (s, _) = sized(after);
    (attest.to_vec(), rest[..8 + r.len() + s.len()].to_vec())
}

fn sized(bytes: &[u8]) -> (&[u8], &[u8]) {
    let size = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    bytes[2..].split_at(size)
}

fn put(bytes: &[u8]) -> Vec<u8> {
    let mut out = u16::try_from(bytes.len())
        .expect("a small parameter")
        .to_be_bytes()
        .to_vec();
    out.extend_from_slice(bytes);
    out
}

fn manufacture(dir: &Path) {
    let at = |name: &str| dir.join(name).display().to_string();
    for name in ["state", "ca"] {
        std::fs::create_dir(dir.join(name)).expect("a directory");
    }
    let tool = format!(
        "create_certs_tool=swtpm_localca\ncreate_certs_tool_config={}\ncreate_certs_tool_options={}\n",
        at("localca.conf"),
        at("options")
    );
    let issuer = format!(
        "statedir={0}\nsigningkey={0}/signkey.pem\nissuercert={0}/issuercert.pem\ncertserial={0}/certserial\n",
        at("ca")
    );
    let options =
        "--platform-manufacturer Example\n--platform-version 1\n--platform-model Test\n".to_owned();
    for (name, text) in [
        ("setup.conf", tool),
        ("localca.conf", issuer),
        ("options", options),
    ] {
        std::fs::write(dir.join(name), text).expect("a setting");
    }
    let mut setup = Command::new("swtpm_setup");
    setup
        .args([
            "--tpm2",
            "--create-ek-cert",
            "--create-platform-cert",
            "--pcr-banks",
            "sha256",
        ])
        .args(["--tpmstate", &at("state"), "--config", &at("setup.conf")]);
    run(&mut setup, "swtpm and swtpm-tools");
}

fn free_ports() -> u16 {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let port = first.local_addr().expect("an address").port();
        if port < u16::MAX && TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            return port;
        }
    }
}
