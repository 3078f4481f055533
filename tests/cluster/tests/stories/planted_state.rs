//! A state that an attacker made for a machine, with a trap for everything that reads the state and
//! would show it:
//!
//! | planted | a machine that believes it |
//! |---|---|
//! | programs, libraries and plugins in containerd's folders | prints [`WORD`] on its console |
//! | an image in containerd's metadata, and an archive of it for the agent | lists [`IMAGE`] on its Node |
//! | a file in the pod's emptyDir | shows it in the pod's log, as the container lists that volume |
//! | a log of the pod's container, and links in its place | shows it by `kubectl logs` |
//! | a count of unhealthy boots | is held and never Ready |
//!
//! The floor of a last admission is not among them: init bounds it by the image's own version,
//! which is the machine's floor here. A planted memory of discovery is a test of `agent/discover`.

use std::fs;
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
/// Bytes of the planted file system.
const SIZE: u64 = 96 << 20;

/// Makes an ext4 file system with a whole state in it, for a pod with the emptyDir `scratch`, and
/// returns its file.
pub(crate) fn state(tools: &Tools, dir: &Path, pod: &str, uid: &str) -> Result<PathBuf> {
    let tree = dir.join("state");
    containerd(tools, dir, &tree.join("lib/containerd"))?;
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
    let logs = format!("log/pods/default_{pod}_{uid}/main");
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

/// A root of containerd's in which [`IMAGE`] was imported and unpacked, as containerd itself left
/// it.
fn containerd(tools: &Tools, dir: &Path, root: &Path) -> Result<()> {
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
    let made = engine.state();
    drop(engine);
    let parent = root.parent().unwrap_or(root);
    fs::create_dir_all(parent).map_err(file_error("cannot make", parent))?;
    fs::rename(&made, root).map_err(file_error("cannot move", &made))
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
