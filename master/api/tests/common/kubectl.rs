//! An unmodified kubectl against a listening server.

use super::Server;
use master_api::{Options, ServeOptions};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// The tools that the test command unpacked, or the machine's own.
pub(crate) fn kubectl() -> PathBuf {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.pratique/tools/bin/kubectl");
    if unpacked.exists() {
        return unpacked;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("kubectl")).find(|file| file.exists());
    found.expect("kubectl is needed: `cargo xtask test` unpacks it, or install Debian's kubernetes-client")
}

/// A listening server, and a kubectl that is its admin's.
pub(crate) struct Cluster {
    pub(crate) server: Server,
    pub(crate) folder: TempDir,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let server = Server::start(Options::default(), ServeOptions::default()).await;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config"), server.kubeconfig().to_string()).unwrap();
        Self { server, folder }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(kubectl());
        command
            .args(arguments)
            .env("KUBECONFIG", self.folder.path().join("config"))
            .env("HOME", self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs kubectl; whether it succeeded, and all it said.
    pub(crate) async fn run(&self, arguments: &[&str], input: &str) -> (bool, String) {
        let mut child = self.command(arguments).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).await.unwrap();
        let output = child.wait_with_output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), said)
    }

    /// Runs kubectl, which must succeed and say `expected`.
    pub(crate) async fn says(&self, line: &str, input: &str, expected: &[&str]) -> String {
        let arguments: Vec<&str> = line.split(' ').collect();
        let (success, said) = self.run(&arguments, input).await;
        assert!(success, "kubectl {line}: {said}");
        for text in expected {
            assert!(said.contains(text), "kubectl {line}: {text:?} is not in: {said}");
        }
        said
    }

    pub(crate) async fn refuses(&self, line: &str, input: &str, expected: &str) {
        let arguments: Vec<&str> = line.split(' ').collect();
        let (success, said) = self.run(&arguments, input).await;
        assert!(!success && said.contains(expected), "kubectl {line}: {said}");
    }
}
