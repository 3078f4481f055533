//! A state that an attacker made for a machine, with a trap for everything that reads the state and
//! would show it:
//!
//! | planted | a machine that believes it |
//! |---|---|
//! | programs, libraries and plugins in containerd's folders | prints [`WORD`] on its console |
//! | an image in containerd's metadata, and an archive of it for the agent | lists [`IMAGE`] on its Node |
//! | a container of the pod's, with its snapshot and the agent's labels | counts its [`RESTARTS`] for the pod |
//! | a file in the pod's emptyDir | shows it in the pod's log, as the container lists that volume |
//! | a log of the pod's container, and links in its place | shows it by `kubectl logs` |
//! | the record of an eviction of the pod | ends the pod |
//! | the pod's addresses | gives them to the pod |
//! | the machine's own logs | shows them to admins |
//! | a count of unhealthy boots | is held and never Ready |
//! | the roots of another cluster, with the note that the machine joined it | refuses its masters and is never Ready |
//! | the highest generation of discovery that there is | finds no master by discovery and is never Ready |
//!
//! The floor of a last admission is not among them: init bounds it by the image's own version,
//! which is the machine's floor here. Nor are volumes of claims, which are folders as an emptyDir
//! is, nor those of CSI drivers, as there is none that a machine could ask about them. All else
//! that the agent reads of the state is in this table.

use agent_volume::generation::{Generation, GenerationKey, Joined};
use agent_volume::header::VolumeKey;
use agent_volume::kept::MADE;
use serde_json::json;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use tests_harness::engine::Engine;
use tests_harness::process::run;
use tests_harness::tools::Tools;
use tests_harness::{Error, Result, file_error, oci};

/// The image that containerd's planted metadata name, complete and unpacked.
pub(crate) const IMAGE: &str = "planted.example/busybox:1";
/// A word that planted files hold.
pub(crate) const WORD: &str = "planted";
/// How often the planted container was started again, by its labels.
pub(crate) const RESTARTS: u32 = 4100;
/// Bytes of the planted file system.
const SIZE: u64 = 96 << 20;

/// The pod for which a state is planted. It has the emptyDir `scratch` and the container `main`.
#[derive(Debug)]
pub(crate) struct Pod<'a> {
    pub(crate) name: &'a str,
    pub(crate) uid: &'a str,
    /// Addresses of the node's ranges that it does not have.
    pub(crate) addresses: &'a [IpAddr],
}

/// Makes an ext4 file system with a whole state in it, and returns its file.
/// `key` is that of the volume in which it will lie.
pub(crate) fn state(tools: &Tools, dir: &Path, pod: &Pod<'_>, key: &VolumeKey) -> Result<PathBuf> {
    let (name, uid) = (pod.name, pod.uid);
    let tree = dir.join("state");
    containerd(tools, dir, &tree.join("lib/containerd"), pod)?;
    agent(&tree, pod, key)?;
    let text = |path: &str, text: &str| write(&tree.join(path), text, 0o600);
    let program = |path: &str| {
        let script = format!("#!/bin/sh\necho {WORD} > /dev/console\n");
        write(&tree.join(path), &script, 0o755)
    };
    for name in ["containerd-shim-runc-v2", "crun", "ctr"] {
        program(&format!("lib/containerd/opt/bin/{name}"))?;
    }
    for path in ["opt/lib/libseccomp.so.2", "plugins/planted-linux-amd64.so"] {
        text(&format!("lib/containerd/{path}"), WORD)?;
    }
    let archive = tree.join("lib/pratique/agent/images/busybox.tar");
    busybox(tools)?.into_archive(&archive, IMAGE)?;
    text("lib/pratique/init/unhealthy-boots", "1000\n")?;
    let volumes = format!("lib/kubelet/pods/{uid}/volumes/empty-dir/scratch");
    text(&format!("{volumes}/{WORD}"), WORD)?;
    // Logs of the pod's container, and links in their place.
    let logs = format!("log/pods/default_{name}_{uid}/main");
    let line = format!("2026-01-01T00:00:00Z stdout F {WORD}\n");
    text(&format!("{logs}/0.log"), &line)?;
    for (name, target) in [
        ("1.log", "/etc/pratique/image.toml"),
        ("2.log", "/dev/zero"),
    ] {
        let path = tree.join(&logs).join(name);
        symlink(target, &path).map_err(file_error("cannot link", &path))?;
    }
    let file = dir.join("state.ext4");
    let made = fs::File::create(&file).and_then(|file| file.set_len(SIZE));
    made.map_err(file_error("cannot make", &file))?;
    let mut format = tools.command("mke2fs");
    format.args(["-q", "-F", "-t", "ext4", "-b", "4096"]);
    format.args(["-L", "pratique-state", "-d"]);
    format.arg(&tree).arg(&file);
    run(format)?;
    Ok(file)
}

/// What the agent has kept on the state for the next boot, and what init has that belongs to it.
fn agent(tree: &Path, pod: &Pod<'_>, key: &VolumeKey) -> Result<()> {
    let text = |path: &str, text: &str| write(&tree.join(path), text, 0o600);
    // As the header's, and authentic: who plants a volume has its key.
    let generation = Generation {
        number: MADE,
        joined: Some(Joined::Admitted),
        ..Generation::default()
    };
    let generation = generation.text(&GenerationKey::of(key));
    text("lib/pratique/init/generation", &generation)?;
    let roots = format!("sha256:{}\n", "00".repeat(32));
    text("lib/pratique/agent/cluster-roots", &roots)?;
    let memory = json!({"generation": u64::MAX, "key": null, "uri": "", "signed": ""});
    text("lib/pratique/agent/discovery.json", &memory.to_string())?;
    let addresses = json!({"given": {pod.uid: pod.addresses}, "last": pod.addresses});
    let ledger = "lib/pratique/agent/pod-addresses.json";
    text(ledger, &addresses.to_string())?;
    let eviction = format!("lib/kubelet/pods/{}/eviction", pod.uid);
    text(&eviction, &format!("0 Evicted\n{WORD}"))?;
    let line = format!("00c0ffee 1767225600000 1 {WORD}\n");
    text("log/pratique/agent.log", &line)
}

/// A root of containerd's in which [`IMAGE`] was imported and unpacked and a container of it was
/// made, as containerd itself left it.
fn containerd(tools: &Tools, dir: &Path, root: &Path, pod: &Pod<'_>) -> Result<()> {
    let share = dir.join("share");
    let archive = share.join("busybox.tar");
    busybox(tools)?.into_archive(&archive, IMAGE)?;
    let engine = Engine::start(tools, &share)?;
    let ctr = |words: &[&str]| {
        let mut ctr = tools.command("ctr");
        ctr.arg("--address").arg(engine.socket());
        ctr.args(["--namespace", "k8s.io"]).args(words);
        run(ctr)
    };
    ctr(&["images", "import", &archive.display().to_string()])?;
    let listed = ctr(&["images", "ls", "-q"])?;
    if !listed.lines().any(|line| line == IMAGE) {
        return Err(Error::Missing(format!("containerd lists {listed:?}")));
    }
    let mut words = vec!["containers".to_owned(), "create".to_owned()];
    for (label, value) in labels(pod) {
        words.extend(["--label".to_owned(), format!("{label}={value}")]);
    }
    words.extend([IMAGE.to_owned(), WORD.to_owned()]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    ctr(&words)?;
    let made = engine.state();
    drop(engine);
    let parent = root.parent().unwrap_or(root);
    fs::create_dir_all(parent).map_err(file_error("cannot make", parent))?;
    fs::rename(&made, root).map_err(file_error("cannot move", &made))
}

/// The agent's labels of a container of the pod that ran in an earlier boot.
fn labels(pod: &Pod<'_>) -> [(&'static str, String); 13] {
    let past = "2026-01-01T00:00:00Z";
    [
        ("io.kubernetes.pod.uid", pod.uid.to_owned()),
        ("io.kubernetes.pod.name", pod.name.to_owned()),
        ("io.kubernetes.pod.namespace", "default".to_owned()),
        ("io.kubernetes.container.name", "main".to_owned()),
        ("pratique.dev/kind", "main".to_owned()),
        ("pratique.dev/attempt", RESTARTS.to_string()),
        ("pratique.dev/image", IMAGE.to_owned()),
        ("pratique.dev/image-id", IMAGE.to_owned()),
        ("pratique.dev/log", format!("main/{RESTARTS}.log")),
        ("pratique.dev/boot-id", "00c0ffee".to_owned()),
        ("pratique.dev/created-at", past.to_owned()),
        ("pratique.dev/finished-at", past.to_owned()),
        ("pratique.dev/exit-code", "77".to_owned()),
    ]
}

fn busybox(tools: &Tools) -> Result<oci::Image> {
    oci::Image::busybox(&oci::find_busybox(Some(tools))?)
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(file_error("cannot make", parent))?;
    fs::write(path, text)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .map_err(file_error("cannot write", path))
}
