//! The end of a machine by its master's order: the real programs, from `pratique node reboot` to
//! the exit code for init.

use crate::lab::{LIMIT, Lab};
use crate::wire::Identity;
use config_kube::k8s_openapi::api::core::v1::Node;
use http::{Method, StatusCode};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;
use tests_harness::lifetime;

/// An agent, which is killed when this is dropped.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Agent {
    /// Makes the machine a static one, and starts its agent; `arguments` say what it may.
    fn start(lab: &Lab, dir: &Path, name: &str, arguments: &[&str]) -> Self {
        let document = dir.join("user-data.toml");
        let mut issue = lab.site.program("pratique");
        issue
            .args(["issue", "--name", name, "--address", "192.0.2.7"])
            .args(["--insecure-plaintext-key", "--kubeconfig"])
            .arg(lab.site.kubeconfig())
            .arg("--out")
            .arg(&document);
        let issued = issue.output().unwrap();
        assert!(issued.status.success(), "{}", said(&issued));
        let port = tests_harness::port::free().unwrap().to_string();
        let mut agent: Command = lab.site.program("agent");
        agent
            .args(["run", "--tcti", "none", "--image", "/nonexistent"])
            .args(["--containerd", "/nonexistent", "--kubelet-port", &port])
            .args(arguments)
            .arg("--config")
            .arg(&document);
        for (flag, name) in [
            ("--data", "data"),
            ("--run", "run"),
            ("--kubelet-data", "kubelet"),
            ("--pod-logs", "logs"),
        ] {
            agent.arg(flag).arg(dir.join(name));
        }
        let log = std::fs::File::create(dir.join("agent.log")).unwrap();
        agent
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        lifetime::bind(&mut agent).unwrap();
        Self(agent.spawn().unwrap())
    }

    /// Waits for its exit code.
    async fn code(mut self, dir: &Path) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            let log = std::fs::read_to_string(dir.join("agent.log")).unwrap_or_default();
            assert!(start.elapsed() < LIMIT, "the agent goes on:\n{log}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits until the master knows where the node's kubelet is.
async fn reachable(lab: &Lab, name: &str, dir: &Path) {
    let start = Instant::now();
    loop {
        let nodes: Vec<Node> = lab.site.list().await;
        let mut nodes = nodes.into_iter();
        let node = nodes.find(|node| node.metadata.name.as_deref() == Some(name));
        let status = node.and_then(|node| node.status).unwrap_or_default();
        if status.addresses.is_some_and(|all| !all.is_empty()) && status.daemon_endpoints.is_some()
        {
            return;
        }
        let log = std::fs::read_to_string(dir.join("agent.log")).unwrap_or_default();
        assert!(
            start.elapsed() < LIMIT,
            "the node never reported its address:\n{log}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// `pratique node WORD NAME`.
async fn pratique(lab: &Lab, word: &str, name: &str) -> Output {
    let mut command = lab.site.program("pratique");
    command.args(["node", word, name, "--kubeconfig"]);
    command.arg(lab.site.kubeconfig());
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

/// The messages of the log of verdicts about a machine's end, with the user that ordered it.
async fn recorded(lab: &Lab, name: &str) -> Vec<(String, String)> {
    let log = lab.site.text("/verdicts").await;
    let records = log.lines().filter_map(|line| line.split_once(' '));
    let records = records.filter_map(|(_, json)| serde_json::from_str::<Value>(json).ok());
    let verdicts = records.map(|record| record["verdict"].clone());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    verdicts
        .filter(|verdict| verdict["kind"] == "decision" && verdict["name"] == name)
        .map(|verdict| (text(&verdict["by"]), text(&verdict["message"])))
        .filter(|(_, message)| message.starts_with("reboot") || message.starts_with("poweroff"))
        .collect()
}

/// The order of an admin ends the agent with init's exit code; orders of other users do not, and on
/// a host without our init the agent answers that it cannot.
pub(crate) async fn only_a_logged_order_of_an_admin_reboots_a_machine(lab: &Lab) {
    for (name, word, code) in [("ends-1", "reboot", 100), ("ends-2", "poweroff", 101)] {
        let dir = tempfile::tempdir().unwrap();
        let agent = Agent::start(lab, dir.path(), name, &["--ends-machine", "true"]);
        reachable(lab, name, dir.path()).await;
        let own = crate::static_join::bare(lab, &format!("{name}-other"));
        nobody_else_ends_it(lab, name, &own).await;
        assert_eq!(recorded(lab, name).await, []);
        let output = pratique(lab, word, name).await;
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(agent.code(dir.path()).await, Some(code));
        let records = recorded(lab, name).await;
        let [(by, message)] = &records[..] else {
            panic!("one record: {records:?}")
        };
        assert!(
            !by.is_empty() && message.starts_with(&format!("{word}: ")),
            "{records:?}"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let mut agent = Agent::start(lab, dir.path(), "host-1", &[]);
    reachable(lab, "host-1", dir.path()).await;
    let output = pratique(lab, "reboot", "host-1").await;
    let words = "this host was not booted from an image of Pratique";
    assert!(
        !output.status.success() && said(&output).contains(words),
        "{}",
        said(&output)
    );
    assert!(agent.0.try_wait().unwrap().is_none(), "the agent goes on");
    let records = recorded(lab, "host-1").await;
    assert!(
        records.len() == 2 && records[1].1.starts_with("reboot: not done: this host"),
        "{records:?}"
    );
}

/// Another node, and the machine itself, ask for the end by the API.
async fn nobody_else_ends_it(lab: &Lab, name: &str, who: &Identity) {
    for action in ["reboot", "poweroff"] {
        let path = format!("/api/v1/nodes/{name}/power?action={action}");
        let mut connection = lab.connect_as(who).await.unwrap();
        let status = connection.status(Method::POST, &path, Vec::new()).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{action}");
    }
}
