//! A machine without a TPM: refused until a rule explicitly admits it with a person's approval.

use crate::world::{World, expect};
use serde_json::{Value, json};
use std::time::Duration;
use tests_harness::cluster::BOOT_LIMIT;
use tests_harness::{Error, Result};

/// For what a running machine does next: a few seconds of backing off, and an exchange.
const NEXT: Duration = Duration::from_secs(600);
const NODE: &str = "worker-bare";

/// The console says what cannot be proven and that the master refuses. Under a rule with
/// `insecure_no_tpm` the machine waits for approval under the key that its console shows, and is
/// then Ready; everything that shows it says that nothing is proven.
pub(crate) fn a_machine_without_a_tpm_joins_where_a_rule_allows_it(
    world: &mut World,
) -> Result<()> {
    let cluster = world.cluster()?;
    let (mut blueprint, text) = cluster.unregistered(NODE)?;
    blueprint.has_tpm = false;
    let name = format!("name = \"{NODE}\"\n");
    expect(
        text.contains(&name),
        &format!("the user-data has no line {name:?}:\n{text}"),
    )?;
    cluster.lab.give_user_data(
        &mut blueprint,
        &text.replacen(&name, &format!("{name}insecure_no_tpm = true\n"), 1),
    )?;
    let machine = world.guest(&blueprint)?;
    machine.wait("NOTHING CAN BE PROVEN", BOOT_LIMIT)?;
    let key = machine.wait("node key of this boot: sha256:", NEXT)?;
    let key = key
        .split("sha256:")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next())
        .unwrap_or_default()
        .to_owned();
    machine.wait("pratique: REFUSED: ", NEXT)?;
    let lab = &world.cluster()?.lab;
    let code = [
        "get",
        "nodeattestations",
        "-o",
        "jsonpath={.items[*].status.code}",
    ];
    lab.kubectl_until(&code, "the refusal on record", NEXT, |text| {
        text.split_whitespace().any(|code| code == "NO_TPM")
    })?;
    world.cluster()?.never_ready(NODE)?;

    let before = policy(world)?;
    set_policy(
        world,
        &json!([{
            "name": "people", "policy": "queue", "insecureNoTpm": true,
            "signers": ["pratique.dev/node-client", "pratique.dev/node-serving"],
            "certificate": { "ttlSeconds": 180, "sans": "", "roles": ["worker", "master"] },
        }]),
    )?;
    let outcome = let_in(world, &key);
    set_policy(world, &before)?;
    outcome?;
    world
        .cluster()?
        .lab
        .kubectl(&["delete", "node,machine", NODE, "--timeout=600s"])
        .map(drop)
}

fn let_in(world: &mut World, key: &str) -> Result<()> {
    let cluster = world.cluster()?;
    let lab = &cluster.lab;
    let requests = ["get", "csr", "-o", "name"];
    let start = format!("certificatesigningrequest.certificates.k8s.io/{NODE}-no-tpm-");
    let listed = lab.kubectl_until(&requests, "a request that waits", NEXT, |text| {
        text.contains(&start)
    })?;
    let request = listed
        .lines()
        .find(|line| line.starts_with(&start))
        .unwrap_or_default();
    let request = request.rsplit('/').next().unwrap_or_default();
    let shown = lab.kubectl(&["describe", "csr", request])?;
    let is_shown = shown.contains("NOTHING: it has no TPM") && shown.contains(key);
    expect(
        is_shown,
        &format!("`kubectl describe csr` does not show the console's key {key}:\n{shown}"),
    )?;
    lab.kubectl(&["certificate", "approve", request])?;
    lab.wait_ready(NODE, BOOT_LIMIT)?;
    expect(
        cluster.machine_field(NODE, ".status.state")? == "Unproven",
        "the Machine is not Unproven",
    )?;
    let described = lab.kubectl(&["describe", "machine", NODE])?;
    let said = described.contains("NOT_PROVEN")
        && described.contains("the machine has no TPM and proves nothing");
    expect(
        said,
        &format!("`kubectl describe machine` does not say what is not proven:\n{described}"),
    )?;
    let labels = lab.kubectl(&["get", "node", NODE, "-o", "jsonpath={.metadata.labels}"])?;
    expect(
        labels.contains("\"pratique.dev/insecure\":\"no-tpm\""),
        &format!("the Node's labels do not say it: {labels}"),
    )
}

fn policy(world: &mut World) -> Result<Value> {
    let text =
        world
            .cluster()?
            .lab
            .kubectl(&["get", "certificatepolicy", "cluster", "-o", "json"])?;
    let object: Value = serde_json::from_str(&text)
        .map_err(|error| Error::Missing(format!("a policy: {error}")))?;
    Ok(object["spec"]["rules"].clone())
}

fn set_policy(world: &mut World, rules: &Value) -> Result<()> {
    let patch = json!({ "spec": { "rules": rules } }).to_string();
    world
        .cluster()?
        .lab
        .kubectl(&[
            "patch",
            "certificatepolicy",
            "cluster",
            "--type=merge",
            "-p",
            &patch,
        ])
        .map(drop)
}
