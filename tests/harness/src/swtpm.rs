//! A software TPM for one test: its own state, process and ports. The TPMs of a test program have
//! one issuer of EK certificates, unless a test wants another.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long swtpm may take to listen.
const START_LIMIT: Duration = Duration::from_secs(180);

/// A running software TPM; ended when dropped.
#[derive(Debug)]
pub struct Swtpm {
    dir: TempDir,
    process: Child,
    port: u16,
}

impl Swtpm {
    /// A new TPM with RSA 2048 and ECC P-384 endorsement keys and certificates, started up.
    pub fn new() -> Self {
        Self::with_banks("sha256")
    }

    /// As [`Swtpm::new`], with these PCR banks active.
    pub fn with_banks(banks: &str) -> Self {
        // The issuer's two RSA keys take longer than the TPM's own.
        static ISSUER: OnceLock<Issuer> = OnceLock::new();
        let dir = tempfile::tempdir().expect("a temporary directory");
        // The first caller makes the issuer with its TPM; the others wait until it is there.
        let mut made = false;
        let issuer = ISSUER.get_or_init(|| {
            made = true;
            manufacture(dir.path(), banks, &[])
        });
        if !made {
            manufacture(dir.path(), banks, issuer);
        }
        Self::manufactured(dir)
    }

    /// As [`Swtpm::new`], with an issuer of its own.
    pub fn of_another_maker() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        manufacture(dir.path(), "sha256", &[]);
        Self::manufactured(dir)
    }

    fn manufactured(dir: TempDir) -> Self {
        let (process, port) = power_on(dir.path());
        Self { dir, process, port }
    }

    /// A TPM without certificates or persisted keys, started up.
    pub fn blank() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(dir.path().join("state")).expect("a state directory");
        Self::manufactured(dir)
    }

    /// The name of this TPM for tpm2-tss.
    pub fn tcti(&self) -> String {
        format!("swtpm:host=127.0.0.1,port={}", self.port)
    }

    /// The port on loopback that takes commands.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The certificate of the authority that issued the EK certificates, as PEM.
    pub fn issuer_pem(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("ca/issuercert.pem"))
            .expect("the issuer's certificate")
    }

    /// Cuts the power and switches on again: a TPM reset.
    pub fn power_cycle(&mut self) {
        self.power_cycle_with(|_| {});
    }

    /// As [`Swtpm::power_cycle`]; while the power is off, `meanwhile` gets the folder of the TPM's
    /// state.
    pub fn power_cycle_with(&mut self, meanwhile: impl FnOnce(&Path)) {
        self.end();
        meanwhile(&self.dir.path().join("state"));
        (self.process, self.port) = power_on(self.dir.path());
    }

    fn end(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl Default for Swtpm {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Swtpm {
    fn drop(&mut self) {
        self.end();
    }
}

/// The files of an issuer: its keys and certificates, by name.
type Issuer = Vec<(OsString, Vec<u8>)>;

/// Makes a TPM whose certificates come from this issuer, or from a new one if there are no files;
/// returns the issuer.
fn manufacture(dir: &Path, banks: &str, issuer: &[(OsString, Vec<u8>)]) -> Issuer {
    let at = |name: &str| dir.join(name).display().to_string();
    for name in ["state", "ca"] {
        std::fs::create_dir(dir.join(name)).expect("a state directory");
    }
    for (name, content) in issuer {
        std::fs::write(dir.join("ca").join(name), content).expect("a file of the issuer");
    }
    let setup = format!(
        "create_certs_tool=swtpm_localca\ncreate_certs_tool_config={}\ncreate_certs_tool_options={}\n",
        at("localca.conf"),
        at("options")
    );
    let localca = format!(
        "statedir={0}\nsigningkey={0}/signkey.pem\nissuercert={0}/issuercert.pem\ncertserial={0}/certserial\n",
        at("ca")
    );
    let options = "--platform-manufacturer Example\n--platform-version 1\n--platform-model Test\n";
    for (name, text) in [
        ("setup.conf", setup),
        ("localca.conf", localca),
        ("options", options.to_owned()),
    ] {
        std::fs::write(dir.join(name), text).expect("a setting of swtpm_setup");
    }
    let made = Command::new("swtpm_setup")
        .args([
            "--tpm2",
            "--create-ek-cert",
            "--create-platform-cert",
            "--pcr-banks",
            banks,
        ])
        .args([
            "--tpmstate",
            &at("state"),
            "--config",
            &at("setup.conf"),
            "--log",
            &at("setup.log"),
        ])
        .stdout(Stdio::null())
        .status()
        .expect("swtpm_setup must be in PATH: install the packages swtpm and swtpm-tools");
    let log = std::fs::read_to_string(dir.join("setup.log")).unwrap_or_default();
    assert!(made.success(), "swtpm_setup failed: {log}");
    let files = std::fs::read_dir(dir.join("ca")).expect("the issuer's files");
    let files = files.map(|file| {
        let file = file.expect("a file of the issuer");
        let content = std::fs::read(file.path()).expect("a file of the issuer");
        (file.file_name(), content)
    });
    files.collect()
}

fn power_on(dir: &Path) -> (Child, u16) {
    let deadline = Instant::now() + START_LIMIT;
    loop {
        let port = free_port_pair();
        let mut command = Command::new("swtpm");
        command
            .args(["socket", "--tpm2", "--flags", "not-need-init,startup-clear"])
            .args([
                "--tpmstate",
                &format!("dir={}", dir.join("state").display()),
            ])
            .args([
                "--server",
                &format!("type=tcp,port={port},bindaddr=127.0.0.1"),
            ])
            .args([
                "--ctrl",
                &format!("type=tcp,port={},bindaddr=127.0.0.1", port + 1),
            ])
            .args(["--pid", &format!("file={}", dir.join("pid").display())])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = crate::lifetime::bind(&mut command)
            .expect("a guard")
            .spawn();
        let mut process = process.expect("swtpm must be in PATH: install the package swtpm");
        // The pid file appears once both ports are bound; a taken port ends the process and another
        // pair is tried.
        while Instant::now() < deadline {
            if std::fs::read_to_string(dir.join("pid"))
                .is_ok_and(|pid| pid.trim() == process.id().to_string())
            {
                return (process, port);
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
            "swtpm did not listen within {START_LIMIT:?}"
        );
    }
}

/// Two neighbouring ports that were free a moment ago.
fn free_port_pair() -> u16 {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let port = first.local_addr().expect("an address").port();
        if port < u16::MAX && TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            return port;
        }
    }
}
