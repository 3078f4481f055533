//! An unmodified kubectl against a listening server: single commands or whole transcripts.

use super::Server;
use master_api::Options;
use master_listener::ServeOptions;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// The one whose absolute path `PRATIQUE_KUBECTL` has, the one that the test command unpacked, or
/// the host's.
pub(crate) fn kubectl() -> PathBuf {
    if let Some(other) = std::env::var_os("PRATIQUE_KUBECTL") {
        return other.into();
    }
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.pratique/tools/bin/kubectl");
    if unpacked.exists() {
        return unpacked;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join("kubectl"))
        .find(|file| file.exists());
    found.expect(
        "kubectl is needed: `cargo xtask test` unpacks it, or install Debian's kubernetes-client",
    )
}

/// A listening server and a kubectl with admin credentials.
pub(crate) struct Cluster {
    pub(crate) server: Server,
    pub(crate) folder: TempDir,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let server = Server::start(Options::default(), ServeOptions::default()).await;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(
            folder.path().join("config"),
            server.kubeconfig().to_string(),
        )
        .unwrap();
        Self { server, folder }
    }

    /// Writes a file for kubectl; commands run in its folder.
    pub(crate) fn file(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(kubectl());
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("KUBECONFIG", self.folder.path().join("config"))
            .env("HOME", self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs kubectl; returns whether it succeeded, and its output.
    pub(crate) async fn run(&self, arguments: &[&str], input: &str) -> (bool, String) {
        finish(self.command(arguments), input).await
    }

    /// Runs kubectl, which must succeed and print `expected`.
    pub(crate) async fn says(&self, line: &str, input: &str, expected: &[&str]) -> String {
        let arguments: Vec<&str> = line.split(' ').collect();
        let (success, said) = self.run(&arguments, input).await;
        assert!(success, "kubectl {line}: {said}");
        for text in expected {
            assert!(
                said.contains(text),
                "kubectl {line}: {text:?} is not in: {said}"
            );
        }
        said
    }

    pub(crate) async fn refuses(&self, line: &str, input: &str, expected: &str) {
        let arguments: Vec<&str> = line.split(' ').collect();
        let (success, said) = self.run(&arguments, input).await;
        assert!(
            !success && said.contains(expected),
            "kubectl {line}: {said}"
        );
    }

    /// Runs a transcript. A line that begins with `$` is a command that must succeed, with `!` one
    /// that must fail; the command must print each line below it (with any spaces between words),
    /// and must not print a line with `~` in front. `NAME=value` before the command sets its
    /// environment, quotes group words, and `< NAME` at its end feeds it the document of that name.
    /// All differences are reported at the end.
    pub(crate) async fn run_transcript(&self, documents: &[(&str, &str)], transcript: &str) {
        let mut faults = Vec::new();
        let (mut said, mut asked) = (String::new(), "");
        for line in transcript
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
        {
            if let Some(command) = line.strip_prefix("$ ").or_else(|| line.strip_prefix("! ")) {
                let (success, text) = self.plays_one(documents, command).await;
                (asked, said) = (line, even(&text));
                if success != line.starts_with('$') {
                    faults.push(format!("{asked}\n{said}"));
                }
                continue;
            }
            let (unwanted, text) = line
                .strip_prefix("~ ")
                .map_or((false, line), |text| (true, text));
            if said.contains(&even(text)) == unwanted {
                faults.push(format!(
                    "{asked}\n{line} is {} in: {said}",
                    if unwanted { "" } else { "not" }
                ));
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    }

    async fn plays_one(&self, documents: &[(&str, &str)], line: &str) -> (bool, String) {
        let (line, input) = match line.rsplit_once(" < ") {
            Some((line, name)) => {
                let document = documents.iter().find(|(known, _)| *known == name);
                (
                    line,
                    document
                        .expect("the transcript names a document that there is")
                        .1,
                )
            }
            None => (line, ""),
        };
        let words = words(line);
        let set = words.iter().take_while(|word| is_variable(word)).count();
        let (variables, arguments) = words.split_at(set);
        let mut command = self.command(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        command.envs(variables.iter().filter_map(|word| word.split_once('=')));
        finish(command, input).await
    }
}

async fn finish(mut command: Command, input: &str) -> (bool, String) {
    let mut child = command.spawn().unwrap();
    // A command that reads nothing may end before it is fed.
    let fed = child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .await;
    fed.or_else(|error| {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            Ok(())
        } else {
            Err(error)
        }
    })
    .unwrap();
    let output = child.wait_with_output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), said)
}

/// A text with every run of spaces replaced by one.
fn even(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("\n")
}

fn is_variable(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        name.bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    })
}

/// Words as a shell splits them: at spaces, except between single quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    for letter in line.chars() {
        match letter {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            ' ' if !quoted => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}
