//! The master as a process on a plain host, driven by the real kubectl: what it acknowledged
//! survives a power cut.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests may stop at the first surprise"
)]

#[path = "processes/full_disk.rs"]
mod full_disk;
#[path = "processes/workloads.rs"]
mod workloads;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tests_harness::process::{Owned, run};
use tests_harness::programs;
use tests_harness::tools::Tools;
use tests_harness::wait::eventually;

const CLUSTER: &str =
    "version = 1\nkind = \"cluster\"\n\n[cluster]\nname = \"processes\"\npod_cidrs = []\n";
const LIMIT: Duration = Duration::from_secs(300);

/// A master's folder and port.
struct Site {
    tools: Tools,
    program: PathBuf,
    dir: tempfile::TempDir,
    port: u16,
}

impl Site {
    fn new() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .unwrap();
        let program = programs::built("master").unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cluster.toml"), CLUSTER).unwrap();
        let port = tests_harness::port::free().unwrap();
        Self {
            tools: Tools::find(root).unwrap(),
            program,
            dir,
            port,
        }
    }

    fn command(&self) -> Command {
        let listen = SocketAddr::from(([127, 0, 0, 1], self.port));
        programs::master(&self.program, self.dir.path(), listen)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("master.log")).unwrap_or_default()
    }

    fn start(&self) -> Owned {
        let process = Owned::start(self.command(), &self.dir.path().join("master.log")).unwrap();
        if let Err(error) = self.ready() {
            process.kill().unwrap();
            panic!("{error}\n{}", self.log());
        }
        process
    }

    fn ready(&self) -> tests_harness::Result<String> {
        eventually("the master to be ready", LIMIT, "", || {
            Ok(self.kubectl(&["get", "--raw", "/readyz"]).ok())
        })
    }

    fn kubectl(&self, words: &[&str]) -> tests_harness::Result<String> {
        let mut kubectl = self.tools.command("kubectl");
        kubectl
            .arg("--kubeconfig")
            .arg(self.dir.path().join("data/admin.kubeconfig"))
            .args(words);
        kubectl
            .env("HOME", self.dir.path())
            .env_remove("KUBECONFIG");
        run(kubectl)
    }

    /// Creates an object of 600 KiB; its name.
    fn large(&self, number: u32) -> tests_harness::Result<String> {
        let document = self.dir.path().join("large.json");
        let object = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"large-{number}"}},"data":{{"x":"{}"}}}}"#,
            "x".repeat(600 << 10)
        );
        std::fs::write(&document, object).unwrap();
        self.kubectl(&["create", "-f", &document.to_string_lossy()])
            .map(|_| format!("large-{number}"))
    }

    fn config_maps(&self) -> BTreeSet<String> {
        let printed = self
            .kubectl(&[
                "get",
                "configmaps",
                "-o",
                "jsonpath={.items[*].metadata.name}",
            ])
            .unwrap();
        printed.split_whitespace().map(str::to_owned).collect()
    }
}

/// Clients create and delete without pause; the master is killed in the middle, three times over.
/// Every creation that was acknowledged is there, and nothing whose deletion was acknowledged.
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
                        if stop.load(Ordering::Relaxed)
                            || site.kubectl(&["create", "configmap", &name]).is_err()
                        {
                            return;
                        }
                        created.lock().unwrap().insert(name.clone());
                        if number % 3 == 0 {
                            // Once the deletion is sent, the object may be gone even without an
                            // answer.
                            created.lock().unwrap().remove(&name);
                            if site.kubectl(&["delete", "configmap", &name]).is_err() {
                                return;
                            }
                            deleted.lock().unwrap().insert(name);
                        }
                    }
                });
            }
            eventually("some writes", LIMIT, "", || {
                Ok((created.lock().unwrap().len() > 8 * (round + 1)).then_some(()))
            })
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

/// The kernel shows it by an owner: what is in /proc of a process that keeps to itself belongs to
/// root, no matter who runs it (proc(5)).
#[test]
fn agent_and_master_keep_their_memory_to_themselves() {
    const NOBODY: u32 = 65534;
    let programs = programs::folder();
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // A configuration that never comes: the program waits for it for the whole test.
    let config = dir.path().join("config");
    let mut mkfifo = Command::new("mkfifo");
    mkfifo.arg("-m").arg("644").arg(&config);
    run(mkfifo).unwrap();
    let whose = |pid: i32| {
        std::fs::metadata(format!("/proc/{pid}/environ"))
            .map(|data| data.uid())
            .ok()
    };
    for (name, more) in [
        ("agent", ["--run", "/nonexistent"]),
        ("master", ["--listen", "127.0.0.1:0"]),
    ] {
        let program = dir.path().join(name);
        std::fs::copy(programs.join(name), &program).unwrap();
        let mut command = Command::new(&program);
        command
            .arg("run")
            .arg("--config")
            .arg(&config)
            .args(["--data", "/nonexistent"])
            .args(more);
        command.uid(NOBODY).gid(NOBODY);
        let process = Owned::start(command, &dir.path().join("log")).unwrap();
        let kept = eventually("its memory to be its own", LIMIT, "", || {
            Ok((whose(process.pid) == Some(0)).then_some(()))
        });
        let (left, alive) = (whose(process.pid), process.alive());
        process.kill().unwrap();
        assert!(
            kept.is_ok() && alive,
            "{name} runs: {alive}; its memory is user {left:?}'s"
        );
    }
}

/// A child of this test, ended with it.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        // One that has ended is only reaped.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The store's folder is moved away under a running master, so that it can create no file there:
/// the master ends with a failure and names the cause in its last line. Restarted on the same
/// folder it has all that it acknowledged.
#[test]
fn a_master_whose_store_fails_ends_and_says_why() {
    let site = Site::new();
    let log = std::fs::File::create(site.dir.path().join("master.log")).unwrap();
    let mut master = Child(site.command().stderr(log).spawn().unwrap());
    site.ready().unwrap();
    let (store, away) = (
        site.dir.path().join("data/store"),
        site.dir.path().join("away"),
    );
    let mut acknowledged = BTreeSet::from([site.large(0).unwrap()]);
    std::fs::rename(&store, &away).unwrap();
    let mut number = 0;
    let status = eventually("the master to end", LIMIT, &site.log(), || {
        number += 1;
        acknowledged.extend(site.large(number).ok());
        Ok(master.0.try_wait().unwrap())
    });
    let text = site.log();
    let status = status.unwrap_or_else(|error| panic!("{error}\n{text}"));
    let last = text.lines().last().unwrap_or_default();
    assert!(!status.success(), "it failed, and says that all is well");
    assert!(
        last.contains("the store can't write any more") && last.contains("os error 2"),
        "{last}"
    );
    std::fs::rename(&away, &store).unwrap();
    let again = site.start();
    let there = site.config_maps();
    again.stop(Duration::from_secs(20)).unwrap();
    let missing: Vec<_> = acknowledged.difference(&there).collect();
    assert!(missing.is_empty(), "acknowledged and lost: {missing:?}");
}
