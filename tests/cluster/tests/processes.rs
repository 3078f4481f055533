//! The master as a process on a plain host, driven by the real kubectl: what it acknowledged survives a power cut.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may stop at the first surprise")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tests_harness::process::{Owned, run};
use tests_harness::tools::Tools;
use tests_harness::wait::eventually;

const CLUSTER: &str = "version = 1\nkind = \"cluster\"\n\n[cluster]\nname = \"processes\"\n";
const LIMIT: Duration = Duration::from_secs(60);

/// A master's folder and port.
struct Site {
    tools: Tools,
    program: PathBuf,
    dir: tempfile::TempDir,
    port: u16,
}

impl Site {
    fn new() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let program = root.join(".pratique/bin/master");
        assert!(program.exists(), "no {}: run `cargo xtask test build` first", program.display());
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cluster.toml"), CLUSTER).unwrap();
        let port = tests_harness::port::free().unwrap();
        Self { tools: Tools::find(root).unwrap(), program, dir, port }
    }

    fn start(&self) -> Owned {
        let mut master = Command::new(&self.program);
        master.arg("run").arg("--config").arg(self.dir.path().join("cluster.toml"));
        master.arg("--data").arg(self.dir.path().join("data")).arg("--listen").arg(format!("127.0.0.1:{}", self.port));
        let log = self.dir.path().join("master.log");
        let process = Owned::start(master, &log).unwrap();
        let ready =
            eventually("the master to be ready", LIMIT, "", || Ok(self.kubectl(&["get", "--raw", "/readyz"]).ok()));
        if let Err(error) = ready {
            process.kill().unwrap();
            panic!("{error}\n{}", std::fs::read_to_string(log).unwrap_or_default());
        }
        process
    }

    fn kubectl(&self, words: &[&str]) -> tests_harness::Result<String> {
        let mut kubectl = self.tools.command("kubectl");
        kubectl.arg("--kubeconfig").arg(self.dir.path().join("data/admin.kubeconfig")).args(words);
        kubectl.env("HOME", self.dir.path()).env_remove("KUBECONFIG");
        run(kubectl)
    }

    fn config_maps(&self) -> BTreeSet<String> {
        let printed = self.kubectl(&["get", "configmaps", "-o", "jsonpath={.items[*].metadata.name}"]).unwrap();
        printed.split_whitespace().map(str::to_owned).collect()
    }
}

/// Clients create and delete without pause; the master is killed in the middle, three times over. Every creation that
/// was acknowledged is there, and nothing whose deletion was acknowledged.
#[test]
fn a_killed_master_loses_nothing_that_it_acknowledged() {
    let site = Site::new();
    let created = Mutex::new(BTreeSet::new());
    let deleted = Mutex::new(BTreeSet::new());
    for round in 0..3 {
        let master = site.start();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for client in 0..4 {
                let (site, stop, created, deleted) = (&site, &stop, &created, &deleted);
                scope.spawn(move || {
                    for number in 0.. {
                        let name = format!("c{round}-{client}-{number}");
                        if stop.load(Ordering::Relaxed) || site.kubectl(&["create", "configmap", &name]).is_err() {
                            return;
                        }
                        created.lock().unwrap().insert(name.clone());
                        if number % 3 == 0 {
                            // Once asked for, it may be gone whether or not we hear of it.
                            created.lock().unwrap().remove(&name);
                            if site.kubectl(&["delete", "configmap", &name]).is_err() {
                                return;
                            }
                            deleted.lock().unwrap().insert(name);
                        }
                    }
                });
            }
            eventually(
                "some writes",
                LIMIT,
                "",
                || Ok((created.lock().unwrap().len() > 8 * (round + 1)).then_some(())),
            )
            .unwrap();
            master.kill().unwrap();
            stop.store(true, Ordering::Relaxed);
        });
    }
    let master = site.start();
    let left = site.config_maps();
    let (created, deleted) = (created.into_inner().unwrap(), deleted.into_inner().unwrap());
    let lost: Vec<_> = created.difference(&left).collect();
    let risen: Vec<_> = deleted.intersection(&left).collect();
    master.stop(Duration::from_secs(20)).unwrap();
    assert!(
        created.len() > 24 && !deleted.is_empty(),
        "too little was written to tell: {} {}",
        created.len(),
        deleted.len()
    );
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    assert!(risen.is_empty(), "deleted and back: {risen:?}");
}
