//! An unknown machine waits for an admin, who approves it with stock kubectl.

use crate::world::{Cluster, World, expect};
use std::time::Duration;
use tests_harness::cluster::BOOT_LIMIT;
use tests_harness::machine::Machine;
use tests_harness::{Error, Result};

/// A node that waits looks again within this time, and joins.
const JOIN_LIMIT: Duration = Duration::from_secs(600);

/// Every machine that comes waits; the machines that were verified before renew meanwhile as ever.
const POLICY: &str = r#"version = 1
kind = "policy"
[[rule]]
name = "by-hand"
signers = ["pratique.dev/node-client", "pratique.dev/node-serving"]
policy = "queue"
queue = { expires = "1h", max_waiting = 5 }
node = { labels = { "example.com/approved" = "by-hand" }, taints = ["example.com/new:PreferNoSchedule"] }
certificate = { ttl = "3m", roles = ["worker", "master"] }
"#;

/// A machine without a name in its user-data and without a Machine in the inventory waits, is shown
/// with what it proved and what not, is approved, and becomes Ready under the name that its key
/// gives, with the labels and taints of the rule.
pub(crate) fn a_machine_without_a_name_joins_after_approval(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    let before = cluster.lab.kubectl(&[
        "get",
        "certificatepolicy",
        "cluster",
        "-o",
        "jsonpath={.spec}",
    ])?;
    cluster.lab.policy(POLICY)?;
    let outcome = joins_nameless(world);
    let cluster = world.cluster()?;
    let restored = format!("[{{\"op\":\"replace\",\"path\":\"/spec\",\"value\":{before}}}]");
    cluster.lab.kubectl(&[
        "patch",
        "certificatepolicy",
        "cluster",
        "--type=json",
        "-p",
        &restored,
    ])?;
    outcome
}

fn joins_nameless(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    let (mut blueprint, text) = cluster.unregistered("nameless")?;
    let unnamed = text.replace("[machine]\nname = \"nameless\"\n", "");
    expect(
        unnamed != text,
        &format!("no name to take out of the user-data:\n{text}"),
    )?;
    cluster.lab.give_user_data(&mut blueprint, &unnamed)?;
    let machine = world.guest(&blueprint)?;
    let cluster = world.cluster()?;
    let node = approved(cluster, &machine)?;
    cluster.lab.wait_ready(&node, JOIN_LIMIT)?;
    shown(cluster, &node)?;
    cluster
        .lab
        .kubectl(&["delete", "node,machine", &node, "--timeout=600s"])
        .map(drop)
}

/// Waits for the request, looks at it and approves it as a person would; the node's name.
fn approved(cluster: &Cluster, machine: &Machine) -> Result<String> {
    let console = machine.wait("pratique: QUEUED", BOOT_LIMIT)?;
    let word = console
        .split("kubectl certificate approve ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next());
    let request =
        word.ok_or_else(|| Error::Missing(format!("the console names no request:\n{console}")))?;
    let words = ["get", "csr", "-l", "pratique.dev/queue", "-o", "name"];
    cluster.lab.kubectl_until(
        &words,
        "the request among those that wait",
        JOIN_LIMIT,
        |text| text.contains(request),
    )?;
    let row = cluster
        .lab
        .kubectl(&["get", "csr", request, "--no-headers"])?;
    expect(
        row.contains("pratique.dev/node-client") && row.contains("Pending"),
        &format!("kubectl shows {row}"),
    )?;
    let described = cluster.lab.kubectl(&["describe", "csr", request])?;
    for text in [
        "pratique.dev/proved",
        "Secure Boot",
        "pratique.dev/not-proved",
        "EK hash",
    ] {
        expect(
            described.contains(text),
            &format!("`kubectl describe csr` does not show {text:?}:\n{described}"),
        )?;
    }
    let name = "jsonpath={.metadata.annotations.pratique\\.dev/node}";
    let node = cluster.lab.kubectl(&["get", "csr", request, "-o", name])?;
    let derived = node.strip_prefix("node-").filter(|hex| hex.len() == 10);
    derived.ok_or_else(|| {
        Error::Missing(format!(
            "the assigned name is {node:?}, not node- and ten digits"
        ))
    })?;
    cluster.never_ready(&node)?;
    cluster.lab.kubectl(&["certificate", "approve", request])?;
    Ok(node)
}

/// Who let it in, and what the rule put on its Node.
fn shown(cluster: &Cluster, node: &str) -> Result<()> {
    let state = cluster.machine_field(node, ".status.state")?;
    expect(state == "Trusted", &format!("{node} is {state}"))?;
    let admin = cluster.lab.kubectl(&[
        "auth",
        "whoami",
        "-o",
        "jsonpath={.status.userInfo.username}",
    ])?;
    let by = cluster.machine_field(node, ".status.admission.by")?;
    expect(
        by.starts_with(&admin) && !admin.is_empty(),
        &format!("approved by {by:?}, and I am {admin:?}"),
    )?;
    let labels = cluster
        .lab
        .kubectl(&["get", "node", node, "--show-labels", "--no-headers"])?;
    expect(
        labels.contains("example.com/approved=by-hand"),
        &format!("the rule's label is not there: {labels}"),
    )?;
    let taints =
        cluster
            .lab
            .kubectl(&["get", "node", node, "-o", "jsonpath={.spec.taints[*].key}"])?;
    expect(
        taints.contains("example.com/new"),
        &format!("the rule's taint is not there: {taints}"),
    )
}
