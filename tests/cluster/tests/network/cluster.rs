//! The cluster: a master on the host outside, and machines with an agent and a containerd each.

use crate::api::{Api, IMAGE, Pod, Service};
use agent_sys::namespace::{Kind, inside};
use http::Method;
use serde_json::{Value, json};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, Once};
use std::thread;
use std::time::Duration;
use tests_harness::engine::Engine;
use tests_harness::process::{Owned, run, tail};
use tests_harness::tools::Tools;
use tests_harness::{oci, programs, wait};
use tests_support::programs::pack;
use tests_support::switch::Switch;

/// Longest wait for anything; the master waits for 40 s until it holds a silent machine for lost.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);
/// The number of the host outside, which is no node, and is the master's.
const OUTSIDE: u8 = 1;
const API_PORT: u16 = 6443;
/// Lines of each log that are shown after a failure.
const LINES: usize = 25;

const CLUSTER: &str = "version = 1\nkind = \"cluster\"\n\n[cluster]\nname = \"network\"\napi_names = [\"192.0.2.1\"]\n\
    pod_cidrs = [\"10.244.0.0/16\", \"fd00:10:244::/48\"]\nservice_cidr = [\"10.96.0.0/16\", \"fd00:10:96::/112\"]\n";
/// The folder of the program that pods have of this host.
const PROGRAM: &str = "program";
/// What a machine's user-data has beside its identity and that folder. What this host has left of
/// its resources must not affect it.
const USER_DATA: &str = "\n[network]\npod_routes = \"plain\"\n\n[node.eviction]\nthreshold = [\n\
    { signal = \"memory.available\", value = \"0%\" },\n{ signal = \"pid.available\", value = \"0%\" },\n\
    { signal = \"nodefs.available\", value = \"0%\" },\n{ signal = \"nodefs.inodesFree\", value = \"0%\" },\n\
    { signal = \"imagefs.available\", value = \"0%\" },\n{ signal = \"imagefs.inodesFree\", value = \"0%\" },\n]\n";

/// A host's addresses on the segment, one of each family (RFC 5737, RFC 3849).
fn addresses(host: u8) -> [(IpAddr, u8); 2] {
    let four = Ipv4Addr::new(192, 0, 2, host);
    let six = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host.into());
    [(four.into(), 24), (six.into(), 64)]
}

/// The addresses of the host outside.
pub(crate) fn outside() -> [(IpAddr, u8); 2] {
    addresses(OUTSIDE)
}

/// Waits for a condition, or fails the test.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let found = wait::eventually(what, LIMIT, "", || Ok(look()));
    found.unwrap_or_else(|error| panic!("{error}"))
}

/// A machine: a network namespace with a containerd and an agent.
pub(crate) struct Machine {
    pub(crate) node: String,
    pub(crate) addresses: [IpAddr; 2],
    network: PathBuf,
    folder: PathBuf,
    agent: Mutex<Owned>,
    /// Dropped after the agent.
    _engine: Engine,
}

impl Machine {
    /// Has the master certify it, and starts it. Beside its folder is that of the program that pods
    /// have.
    fn start(number: u8, network: PathBuf, folder: PathBuf, kubeconfig: &Path) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
        let tools = Tools::find(root.unwrap()).unwrap();
        let node = format!("worker-{number}");
        let addresses = addresses(10 + number).map(|(address, _)| address);
        let images = folder.join("data/images");
        fs::create_dir_all(&images).unwrap();
        let busybox = oci::Image::busybox(&oci::find_busybox(Some(&tools)).unwrap()).unwrap();
        let archive = images.join("busybox.tar");
        busybox.into_archive(&archive, IMAGE).unwrap();

        let user_data = folder.join("user-data.toml");
        let mut issue = Command::new(programs::built("pratique").unwrap());
        issue.args(["issue", "--insecure-plaintext-key", "--name", &node]);
        issue.arg("--address").arg(addresses[0].to_string());
        issue.arg("--kubeconfig").arg(kubeconfig);
        issue.arg("--out").arg(&user_data);
        run(issue).unwrap();
        let program = folder.with_file_name(PROGRAM);
        let paths = format!("\n[node]\nhost_paths = [\"{}\"]\n", program.display());
        let text = fs::read_to_string(&user_data).unwrap() + &paths + USER_DATA;
        fs::write(&user_data, text).unwrap();

        let start = || Ok(Engine::start(&tools, &folder));
        let engine = inside(&[(Kind::Network, network.as_path())], start).unwrap();
        let agent = Mutex::new(start_agent(&network, &folder));
        Self {
            node,
            addresses,
            network,
            folder,
            agent,
            _engine: engine.unwrap(),
        }
    }

    /// Kills its agent (SIGKILL).
    pub(crate) fn kill_agent(&self) {
        self.agent.lock().unwrap().kill().unwrap();
    }

    /// Starts another agent in the place of one that was killed.
    pub(crate) fn start_agent(&self) {
        *self.agent.lock().unwrap() = start_agent(&self.network, &self.folder);
    }

    /// Where its agent holds the namespaces of pods.
    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.folder.join("run/pods")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // A process that can't be ended here shows in the next test.
        if let Ok(agent) = self.agent.lock() {
            agent.kill().ok();
        }
    }
}

fn start_agent(network: &Path, folder: &Path) -> Owned {
    let mut agent = Command::new(programs::built("agent").unwrap());
    agent.args(["run", "--image", "/nonexistent"]);
    agent.args(["--tcti", "device:/nonexistent"]);
    for (flag, name) in [
        ("--config", "user-data.toml"),
        ("--data", "data"),
        ("--run", "run"),
        ("--kubelet-data", "kubelet"),
        ("--pod-logs", "pods"),
        ("--machine-logs", "machine-logs"),
        ("--containerd", "engine/containerd.sock"),
        ("--containerd-root", "engine/root"),
    ] {
        agent.arg(flag).arg(folder.join(name));
    }
    let start = || Ok(Owned::start(agent, &folder.join("agent.log")).unwrap());
    inside(&[(Kind::Network, network)], start).unwrap()
}

/// All of it. Each machine has a pod, `web-1` to `web-3`, labelled `app=web` and by its name; the
/// service `web` leads to all three.
pub(crate) struct Cluster {
    pub(crate) api: Api,
    pub(crate) machines: [Machine; 3],
    pub(crate) pods: [Pod; 3],
    pub(crate) web: Service,
    /// The network namespace of the host outside.
    pub(crate) outside: PathBuf,
    lost: Once,
    master: Owned,
    folder: tempfile::TempDir,
    /// Dropped after all that uses it.
    _switch: Switch,
}

impl Cluster {
    /// Starts all of it, from the host outside.
    pub(crate) fn start(mut switch: Switch, place: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cluster.toml"), CLUSTER).unwrap();
        let client = Path::new(env!("CARGO_BIN_EXE_in-cluster"));
        pack(client, &folder.path().join(PROGRAM));
        let listen = SocketAddr::new(outside()[0].0, API_PORT);
        let master = programs::built("master").unwrap();
        let master = programs::master(&master, folder.path(), listen);
        let master = Owned::start(master, &folder.path().join("master.log")).unwrap();
        let kubeconfig = folder.path().join("data/admin.kubeconfig");
        let api = Api::open(&kubeconfig);
        let machines = [1, 2, 3].map(|number| {
            let network = folder.path().join(format!("network-{number}"));
            switch.add_host(&network, &addresses(10 + number));
            let own = folder.path().join(format!("worker-{number}"));
            let kubeconfig = kubeconfig.clone();
            thread::spawn(move || Machine::start(number, network, own, &kubeconfig))
        });
        let machines = machines.map(|machine| machine.join().unwrap());
        eventually("what pods need to be made", || {
            let account = "/api/v1/namespaces/default/serviceaccounts/default";
            api.ask(Method::GET, account, &Value::Null).ok()
        });
        let labels = json!({"app": "web"});
        let web = api.service("web", &labels, &json!({}));
        let names = ["web-1", "web-2", "web-3"];
        for (name, machine) in names.iter().zip(&machines) {
            api.create_pod(name, machine, &labels);
        }
        let pods = [0, 1, 2].map(|at| api.ready(names[at], &machines[at]));
        Self {
            api,
            machines,
            pods,
            web,
            outside: place.to_owned(),
            lost: Once::new(),
            master,
            folder,
            _switch: switch,
        }
    }

    /// Has the third machine be lost, once: its agent is killed and its cable pulled. Tests that
    /// need two machines begin with it.
    pub(crate) fn lose_third(&self) {
        self.lost.call_once(|| {
            let [_, _, third] = &self.machines;
            third.kill_agent();
            Switch::pull(&third.network);
        });
    }

    /// The folder of the program that pods have of this host.
    pub(crate) fn program(&self) -> PathBuf {
        self.folder.path().join(PROGRAM)
    }

    /// The ends of the programs' logs.
    pub(crate) fn logs(&self) -> String {
        let folder = self.folder.path();
        let agents = self.machines.iter().map(|one| one.folder.join("agent.log"));
        let show = |path: PathBuf| {
            let text = fs::read_to_string(&path).unwrap_or_default();
            format!("{}:\n{}\n", path.display(), tail(&text, LINES))
        };
        agents
            .chain([folder.join("master.log")])
            .map(show)
            .collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // As with a machine's agent.
        self.master.kill().ok();
    }
}
