//! A cluster of virtual machines, set up the way an admin would: keys, user-data,
//! `pratique bootstrap`, `kubectl`.
//!
//! Shared by `cargo xtask up` and by the stories. The machines share one segment, 192.168.77.0/24,
//! on which the master has .10 and workers .11 and up; each has a second card towards the host for
//! the API and the registry.

use crate::machine::{Blueprint, Cable, HOST_DISCOVERY, HOST_SERVICE, Machine, Segment};
use crate::process::{Owned, run};
use crate::tap::Tap;
use crate::time::TimeServer;
use crate::tools::Tools;
use crate::wait::{eventually, eventually_costly};
use crate::{Error, Result, file_error};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How many machines can be connected to the master's hub. Stories use the last two for the time
/// server and the eavesdropper.
const SLOTS: usize = 5;
/// The time server's slot.
const TIME_SERVER: usize = SLOTS - 1;
/// The eavesdropper's slot.
const TAP: usize = SLOTS;
/// Time for a UEFI machine to boot under emulation, on a host that gives it a fifth of its
/// processor time. A machine that stops is reported at once.
pub const BOOT_LIMIT: Duration = Duration::from_secs(900);

/// The folder of one cluster.
#[derive(Debug, Clone)]
pub struct Lab {
    /// Tools tree.
    pub tools: Tools,
    /// Folder with `pratique` and `image-build`.
    pub programs: PathBuf,
    /// Folder with the images and their releases.
    pub images: PathBuf,
    /// Folder with the development keys.
    pub keys: PathBuf,
    /// Folder for this cluster's files.
    pub dir: PathBuf,
    /// Host port of the API.
    pub api_port: u16,
    /// Host port of the registry, which machines reach at [`crate::machine::HOST_SERVICE`].
    pub registry_port: u16,
    /// Host port of the discovery endpoint, which machines reach at
    /// [`crate::machine::HOST_DISCOVERY`]; unused where none is started.
    pub discovery_port: u16,
    /// Cables from the master's machine to the others, one for each slot; [`Lab::cables`] makes
    /// them.
    pub cables: Vec<Cable>,
    /// Further keys of the section `[network]` in every machine's user-data, as lines of TOML; may
    /// be empty.
    pub network: &'static str,
}

/// The settings of a cluster that differ between stories.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Lifetime of node certificates, as in TOML.
    pub ttl: &'static str,
    /// Whether policy asks for Secure Boot.
    pub secure_boot: bool,
    /// Smallest accepted security version number.
    pub min_svn: u64,
    /// Ranges of pods' and services' addresses, as lines of TOML; may be empty.
    pub ranges: &'static str,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            ttl: "30m",
            secure_boot: true,
            min_svn: 1,
            ranges: "",
        }
    }
}

impl Lab {
    /// Cables for one lab's segment.
    pub fn cables() -> Result<Vec<Cable>> {
        (0..SLOTS).map(|_| Cable::new()).collect()
    }

    /// The admin's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// Makes the admin's key and the user-data of the first master, which holds public values only.
    pub fn master_user_data(&self, terms: &Terms) -> Result<String> {
        std::fs::create_dir_all(&self.dir).map_err(file_error("cannot make", &self.dir))?;
        let mut key = self.pratique();
        key.arg("admin-key").arg("--out").arg(self.admin_key());
        let printed = run(key)?;
        let hash = digest_in(&printed).ok_or_else(|| {
            Error::Missing(format!("`pratique admin-key` printed no hash: {printed}"))
        })?;
        // The TPM is made now, so that the issuer of its EK certificate exists.
        self.master()?.tpm(&self.tools)?;
        let release = read(&self.keys.join("release.pub"))?;
        let mut issuers = read(&self.authority().join("issuercert.pem"))?;
        if let Ok(root) = read(&self.authority().join("swtpm-localca-rootca-cert.pem")) {
            issuers.push_str(&root);
        }
        let mut text = String::from("version = 1\n\n");
        let (ttl, svn, secure) = (terms.ttl, terms.min_svn, terms.secure_boot);
        let ranges = terms.ranges;
        write!(
            text,
            "[machine]\nname = \"master-1\"\n\n{}\n[cluster]\nname = \"lab\"\nadmin_key = \"{hash}\"\n\
             api_names = [\"127.0.0.1\", \"192.168.77.10\", \"localhost\"]\n{ranges}\n\
             [[cluster.release_key]]\nname = \"dev\"\npublic_key = '''\n{release}'''\n\n\
             [[cluster.ek_issuer]]\nname = \"lab-ca\"\ncertificates = '''\n{issuers}'''\n\n\
             [[rule]]\nname = \"machines\"\nsigners = [\"pratique.dev/node-client\", \"pratique.dev/node-serving\"]\n\
             policy = \"cloud-verify\"\nek = {{ issuers = [\"lab-ca\"], hashes = \"inventory\", require = \"all\" }}\n\
             images = {{ release_keys = [\"dev\"], min_svn = {svn} }}\n\
             events = {{ secure_boot = {secure}, allow_unknown = false }}\n\
             config = {{ measured = true, digests = \"inventory\" }}\n\
             certificate = {{ ttl = \"{ttl}\", sans = \"inventory\", roles = [\"worker\", \"master\"] }}\n\n{}",
            self.interfaces(10),
            registry()
        )
        .map_err(|error| Error::Missing(error.to_string()))?;
        Ok(text)
    }

    /// The network of a machine that has this number on the segment.
    fn interfaces(&self, host: u8) -> String {
        let settings = self.network;
        format!(
            "[network]\n{settings}\n[[network.interface]]\nname = \"eth0\"\ndhcp = true\n\n[[network.interface]]\nname = \"eth1\"\naddresses = [\"192.168.77.{host}/24\"]\n"
        )
    }

    /// The user-data of a worker, from what bootstrap learned.
    pub fn worker_user_data(&self, number: u8, pin: &str) -> String {
        format!(
            "version = 1\n\n[machine]\nname = \"worker-{number}\"\n\n[master]\nendpoints = [\"https://192.168.77.10:6443\"]\n\
             ca_pins = [\"{pin}\"]\n\n{}\n{}",
            self.interfaces(10 + number),
            registry()
        )
    }

    /// Starts a discovery endpoint on the host and puts the cluster on it; the process, and the
    /// `[discovery]` of workers.
    pub fn discovery(&self) -> Result<(Owned, String)> {
        let mut command = Command::new(self.programs.join("discovery"));
        command
            .arg("--listen")
            .arg(format!("127.0.0.1:{}", self.discovery_port));
        command
            .arg("--url")
            .arg(format!("http://{HOST_DISCOVERY}"))
            .arg("--data")
            .arg(self.dir.join("discovery"));
        let process = Owned::start(command, &self.dir.join("discovery.log"))?;
        eventually(
            "the discovery endpoint",
            Duration::from_secs(300),
            "see discovery.log",
            || {
                Ok(
                    std::net::TcpStream::connect(("127.0.0.1", self.discovery_port))
                        .is_ok()
                        .then_some(()),
                )
            },
        )?;
        let mut create = self.pratique();
        create
            .args(["discovery", "create", "--endpoint"])
            .arg(format!("http://127.0.0.1:{}", self.discovery_port));
        create
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(["--master", "https://192.168.77.10:6443"]);
        match run(create) {
            Ok(block) => Ok((process, block)),
            Err(error) => {
                process.kill()?;
                Err(error)
            }
        }
    }

    /// A time server on the segment.
    pub fn time_server(&self) -> Result<TimeServer> {
        TimeServer::start(self.cable(TIME_SERVER)?)
    }

    /// An eavesdropper on the segment.
    pub fn tap(&self) -> Result<Tap> {
        Tap::start(self.cable(TAP)?)
    }

    /// Builds another worker image of the same programs, with these arguments of `image-build
    /// build`; the folder with `worker.raw` and its release.
    pub fn worker_image(&self, name: &str, arguments: &[&str]) -> Result<PathBuf> {
        let out = self.dir.join(format!("worker-image-{name}"));
        let mut build = Command::new(self.programs.join("image-build"));
        build
            .args(["build", "--role", "worker", "--compress", "dev"])
            .args(arguments)
            .arg("--out")
            .arg(&out);
        build.arg("--bin-dir").arg(&self.programs);
        build
            .arg("--release-key")
            .arg(self.keys.join("release.key"));
        build
            .arg("--sb-key")
            .arg(self.keys.join("sb.key"))
            .arg("--sb-cert")
            .arg(self.keys.join("sb.crt"));
        run(build)?;
        Ok(out)
    }

    /// The master's machine.
    pub fn master(&self) -> Result<Blueprint> {
        let hub = Segment::Hub(self.cables.clone());
        let mut blueprint = self.blueprint("master-1", "master", hub)?;
        blueprint.forwards = vec![(self.api_port, 6443)];
        Ok(blueprint)
    }

    /// A worker's machine on a slot of the segment, 1 to 4.
    pub fn worker(&self, name: &str, slot: usize) -> Result<Blueprint> {
        self.blueprint(name, "worker", Segment::Port(self.cable(slot)?))
    }

    /// Writes user-data and its NoCloud volume into the machine's folder, and gives the machine the
    /// volume.
    pub fn give_user_data(&self, blueprint: &mut Blueprint, text: &str) -> Result<PathBuf> {
        let file = blueprint.dir.join("user-data.toml");
        std::fs::create_dir_all(&blueprint.dir)
            .map_err(file_error("cannot make", &blueprint.dir))?;
        std::fs::write(&file, text).map_err(file_error("cannot write", &file))?;
        let volume = blueprint.dir.join("cidata.img");
        let mut make = Command::new(self.programs.join("image-build"));
        make.arg("cidata")
            .arg("--out")
            .arg(&volume)
            .arg("--user-data")
            .arg(&file);
        run(make)?;
        blueprint.cidata = Some(volume);
        Ok(file)
    }

    /// `pratique bootstrap`, as an admin would; returns the cluster's CA pin.
    pub fn bootstrap(&self, master: &Blueprint, user_data: &Path) -> Result<String> {
        let mut bootstrap = self.pratique();
        bootstrap
            .arg("bootstrap")
            .arg("--endpoint")
            .arg(format!("https://127.0.0.1:{}", self.api_port));
        bootstrap
            .arg("--ek")
            .arg(master.tpm(&self.tools)?.ek_certificate());
        for role in ["master", "worker"] {
            bootstrap
                .arg("--release")
                .arg(self.images.join(format!("{role}.release.json")));
        }
        bootstrap
            .arg("--release-key")
            .arg(self.keys.join("release.pub"));
        bootstrap
            .arg("--user-data")
            .arg(user_data)
            .arg("--admin-key")
            .arg(self.admin_key());
        bootstrap.arg("--kubeconfig").arg(self.kubeconfig());
        let printed = run(bootstrap)?;
        std::fs::write(self.dir.join("bootstrap.log"), &printed)
            .map_err(file_error("cannot write", &self.dir))?;
        let pin = digest_in(&printed).map(str::to_owned);
        pin.ok_or_else(|| {
            Error::Missing(format!("`pratique bootstrap` printed no pin:\n{printed}"))
        })
    }

    /// Puts a machine into the inventory.
    pub fn register(
        &self,
        name: &str,
        blueprint: &Blueprint,
        user_data: &Path,
        address: &str,
    ) -> Result<()> {
        let mut describe = self.pratique();
        describe.args([
            "machine",
            "--name",
            name,
            "--role",
            "worker",
            "--address",
            address,
        ]);
        describe
            .arg("--ek")
            .arg(blueprint.tpm(&self.tools)?.ek_certificate())
            .arg("--user-data")
            .arg(user_data);
        describe.args(["--source", blueprint.source()]);
        let manifest = blueprint.dir.join("machine.yaml");
        std::fs::write(&manifest, run(describe)?).map_err(file_error("cannot write", &manifest))?;
        self.kubectl(&["apply", "-f", &manifest.display().to_string()])
            .map(drop)
    }

    /// Puts a policy document in force, as an admin would.
    pub fn policy(&self, document: &str) -> Result<()> {
        let (file, manifest) = (self.dir.join("policy.toml"), self.dir.join("policy.yaml"));
        std::fs::write(&file, document).map_err(file_error("cannot write", &file))?;
        let mut print = self.pratique();
        print.arg("policy").arg(&file);
        std::fs::write(&manifest, run(print)?).map_err(file_error("cannot write", &manifest))?;
        self.kubectl(&["apply", "-f", &manifest.display().to_string()])
            .map(drop)
    }

    /// `pratique issue`: certificates and a key wrapped to the machine's TPM, added to its
    /// document; the new document.
    pub fn issue(
        &self,
        name: &str,
        blueprint: &Blueprint,
        document: &str,
        address: &str,
    ) -> Result<String> {
        let (base, out) = (
            blueprint.dir.join("base.toml"),
            blueprint.dir.join("issued.toml"),
        );
        std::fs::write(&base, document).map_err(file_error("cannot write", &base))?;
        std::fs::remove_file(&out).ok();
        let mut issue = self.pratique();
        issue
            .args([
                "issue",
                "--name",
                name,
                "--address",
                address,
                "--kubeconfig",
            ])
            .arg(self.kubeconfig());
        issue
            .arg("--ek")
            .arg(blueprint.tpm(&self.tools)?.ek_certificate());
        issue.arg("--user-data").arg(&base).arg("--out").arg(&out);
        run(issue)?;
        read(&out)
    }

    /// Runs a subcommand of `pratique root`, and returns its output.
    pub fn root(&self, act: &str) -> Result<String> {
        let mut root = self.pratique();
        root.args(["root", act, "--kubeconfig"])
            .arg(self.kubeconfig());
        run(root)
    }

    /// `pratique logs`: the logs of a node's own programs and its kernel.
    pub fn logs(&self, words: &[&str]) -> Result<String> {
        let mut logs = self.pratique();
        logs.arg("logs").args(words).arg("--kubeconfig");
        logs.arg(self.kubeconfig());
        run(logs)
    }

    /// `pratique node reboot` or `poweroff`.
    pub fn end_machine(&self, word: &str, node: &str) -> Result<String> {
        let mut order = self.pratique();
        order.args(["node", word, node, "--kubeconfig"]);
        order.arg(self.kubeconfig());
        run(order)
    }

    /// Runs kubectl with the admin's kubeconfig and returns what it printed.
    pub fn kubectl(&self, words: &[&str]) -> Result<String> {
        let mut kubectl = self.tools.command("kubectl");
        kubectl
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(words)
            .env("HOME", &self.dir);
        run(kubectl)
    }

    /// Runs a command line in a shell, as an admin would type it.
    pub fn typed(&self, line: &str) -> Result<String> {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).env("PATH", self.tools.path());
        shell
            .env("KUBECONFIG", self.kubeconfig())
            .env("HOME", &self.dir);
        run(shell)
    }

    /// Waits until kubectl prints what `wanted` accepts, and returns it.
    pub fn kubectl_until(
        &self,
        words: &[&str],
        what: &str,
        limit: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let last = std::cell::RefCell::new(String::new());
        let found = eventually_costly(what, limit, "", || {
            // A connection is refused while the master restarts: try again.
            let printed = self
                .kubectl(words)
                .unwrap_or_else(|error| crate::chain(&error));
            let good = wanted(&printed);
            last.replace(printed);
            Ok(good.then_some(()))
        });
        let last = last.into_inner();
        found.map(|()| last.clone()).map_err(|error| {
            Error::Missing(format!(
                "{error}; `kubectl {}` printed last:\n{last}",
                words.join(" ")
            ))
        })
    }

    /// Waits until a node is Ready.
    pub fn wait_ready(&self, node: &str, limit: Duration) -> Result<()> {
        let path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
        self.kubectl_until(
            &["get", "node", node, "-o", path],
            &format!("node {node} to be Ready"),
            limit,
            |text| text.trim() == "True",
        )
        .map(drop)
    }

    fn blueprint(&self, name: &str, role: &str, segment: Segment) -> Result<Blueprint> {
        let dir = self.dir.join(name);
        std::fs::create_dir_all(&dir).map_err(file_error("cannot make", &dir))?;
        Ok(Blueprint {
            name: name.to_owned(),
            dir,
            image: self.images.join(format!("{role}.raw")),
            vars: self.keys.join("vars.fd"),
            authority: self.authority(),
            has_tpm: true,
            has_serial: true,
            cidata: None,
            fw_cfg: None,
            smbios: Vec::new(),
            cloud: None,
            clock: None,
            forwards: Vec::new(),
            host_service: Some(self.registry_port),
            host_discovery: Some(self.discovery_port),
            segment,
            memory: 1024,
            disk: 4,
        })
    }

    /// The admin's tool.
    pub fn pratique(&self) -> Command {
        Command::new(self.programs.join("pratique"))
    }

    /// The admin's key.
    pub fn admin_key(&self) -> PathBuf {
        self.dir.join("admin.key")
    }

    fn authority(&self) -> PathBuf {
        self.dir.join("tpm-authority")
    }

    /// The cable of a slot, 1 to [`SLOTS`].
    fn cable(&self, slot: usize) -> Result<Cable> {
        let cable = slot.checked_sub(1).and_then(|index| self.cables.get(index));
        cable
            .copied()
            .ok_or_else(|| Error::Missing(format!("the segment has no slot {slot}")))
    }
}

impl Machine {
    /// Waits for the milestone by which init says that its services run.
    pub fn wait_services(&self) -> Result<String> {
        self.wait("services started", BOOT_LIMIT)
    }
}

fn registry() -> String {
    format!(
        "[[registry]]\nhost = \"registry.example\"\nmirrors = [\"http://{HOST_SERVICE}\"]\ninsecure = true\n"
    )
}

/// The first digest in a text.
fn digest_in(text: &str) -> Option<&str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == ':'))
        .find(|word| word.starts_with("sha256:"))
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(file_error("cannot read", path))
}
