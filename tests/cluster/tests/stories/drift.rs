//! A machine that was good boots something else, is shut out, and comes back by an admin's act.

use crate::older_disk::STATE_RENEWED;
use crate::world::{Cluster, World, expect};
use serde_json::Value;
use std::time::Duration;
use tests_harness::cluster::BOOT_LIMIT;
use tests_harness::machine::Blueprint;
use tests_harness::{Error, Result};

/// What follows from a verdict: a taint, an event, the node's next try.
const NEXT: Duration = Duration::from_secs(600);
const CODE: &str = "OUTSIDE_ARGUMENTS";

/// How the command begins by which `kubectl describe` says what to do about a machine.
fn command(name: &str) -> String {
    format!("kubectl patch machine {name} ")
}

/// The good worker boots with a kernel argument from outside, while its certificate lives: it is
/// Untrusted, its Node tainted, and everything that shows it says why. A proper boot alone does not
/// bring it back, the printed command does, under its name.
pub(crate) fn a_machine_that_drifts_is_shut_out_until_an_admin_readmits_it(
    world: &mut World,
) -> Result<()> {
    let cluster = world.cluster()?;
    let good = cluster.worker_blueprint.clone();
    let mut bad = good.clone();
    bad.smbios.push(format!(
        "io.systemd.stub.kernel-cmdline-extra={}",
        "init=/bin/sh"
    ));
    let uid =
        cluster
            .lab
            .kubectl(&["get", "node", "worker-1", "-o", "jsonpath={.metadata.uid}"])?;
    let out = out(cluster, &bad);
    // Whatever came of it, the stories that follow need their good worker.
    let back = back(cluster, &good);
    out?;
    back?;
    // A boot that may not open the machine's state leaves it as it was.
    let renewed = cluster
        .lab
        .kubectl(&["get", "node", "worker-1", "-o", STATE_RENEWED])?;
    expect(
        !renewed.starts_with("True"),
        &format!("the state was made anew: {renewed}"),
    )?;
    let now =
        cluster
            .lab
            .kubectl(&["get", "node", "worker-1", "-o", "jsonpath={.metadata.uid}"])?;
    expect(
        now == uid && !uid.is_empty(),
        &format!("another Node of the same name: {now:?}, and it was {uid:?}"),
    )
}

fn out(cluster: &mut Cluster, bad: &Blueprint) -> Result<()> {
    expect(
        cluster.machine_field("worker-1", ".status.state")? == "Trusted",
        "the good worker is not Trusted",
    )?;
    let ends = moment(&cluster.machine_field("worker-1", ".status.certificate.notAfter")?)?;
    refused_boot(cluster, bad)?;
    let words = [
        "get",
        "machine",
        "worker-1",
        "-o",
        "jsonpath={.status.state} {.status.reason}",
    ];
    let wanted = format!("Untrusted {CODE}");
    cluster.lab.kubectl_until(
        &words,
        "the drifted machine to be Untrusted",
        NEXT,
        |text| text == wanted,
    )?;
    let since = cluster.machine_field(
        "worker-1",
        ".status.conditions[?(@.type==\"Attested\")].lastTransitionTime",
    )?;
    expect(
        moment(&since)? < ends,
        &format!("the previous certificate had ended at {ends}, before the verdict of {since}"),
    )?;
    let taints = [
        "get",
        "node",
        "worker-1",
        "-o",
        "jsonpath={range .spec.taints[*]}{.key}:{.effect} {end}",
    ];
    let tainted = |text: &str| text.contains("pratique.dev/untrusted:NoExecute");
    cluster
        .lab
        .kubectl_until(&taints, "the Node's taint", NEXT, tainted)?;
    let events = [
        "get",
        "events",
        "-A",
        "--field-selector",
        "reason=Untrusted",
        "-o",
    ];
    let events = [
        &events[..],
        &["jsonpath={range .items[*]}{.involvedObject.name} {.message}{\"\\n\"}{end}"],
    ]
    .concat();
    cluster
        .lab
        .kubectl_until(&events, "an event that says it", NEXT, |text| {
            text.lines()
                .any(|line| line.starts_with("worker-1 ") && line.contains(CODE))
        })?;
    status_names_the_check(cluster)
}

/// The check that failed, what it expected and found, and what to do.
fn status_names_the_check(cluster: &Cluster) -> Result<()> {
    let text = cluster
        .lab
        .kubectl(&["get", "machine", "worker-1", "-o", "json"])?;
    let object: Value = serde_json::from_str(&text).unwrap_or_default();
    let checks = object["status"]["checks"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let failed = checks
        .iter()
        .find(|check| check["name"] == "PCR 12" && check["ok"] == false);
    let check =
        failed.ok_or_else(|| Error::Missing(format!("no failed check of PCR 12 in\n{text}")))?;
    let said = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
    let (name, expected, actual) = (said("name"), said("expected"), said("actual"));
    let whole =
        check["code"] == CODE && name == "PCR 12" && expected == "zero" && actual.len() == 64;
    expect(whole, &format!("the failed check is {check}"))?;
    let described = cluster.lab.kubectl(&["describe", "machine", "worker-1"])?;
    let command = command("worker-1");
    for shown in [CODE, &name, &expected, &actual, "Next Step:", &command] {
        expect(
            described.contains(shown),
            &format!("`kubectl describe machine` does not show {shown:?}:\n{described}"),
        )?;
    }
    Ok(())
}

fn back(cluster: &mut Cluster, good: &Blueprint) -> Result<()> {
    refused_boot(cluster, good)?;
    let state = cluster.machine_field("worker-1", ".status.state")?;
    expect(
        state == "Untrusted",
        &format!("a proper boot alone made it {state}"),
    )?;
    readmit(cluster, "worker-1")
}

/// Lets an Untrusted machine prove itself again, by the command that its Machine shows, and waits
/// until it is Trusted and its Node Ready.
pub(crate) fn readmit(cluster: &Cluster, name: &str) -> Result<()> {
    let described = cluster.lab.kubectl(&["describe", "machine", name])?;
    let command = command(name);
    let line = described
        .lines()
        .find_map(|line| line.find(&command).and_then(|start| line.get(start..)));
    let line = line.ok_or_else(|| Error::Missing(format!("no command in\n{described}")))?;
    cluster.lab.typed(line)?;
    let words = ["get", "machine", name, "-o", "jsonpath={.status.state}"];
    cluster
        .lab
        .kubectl_until(&words, "the machine to be Trusted again", NEXT, |text| {
            text == "Trusted"
        })?;
    let keys = "jsonpath={.spec.taints[*].key}";
    let taints = ["get", "node", name, "-o", keys];
    cluster
        .lab
        .kubectl_until(&taints, "the taint to go", NEXT, |text| {
            !text.contains("pratique.dev/")
        })?;
    cluster.lab.wait_ready(name, NEXT)
}

/// Reboots the worker, and waits until it was refused.
fn refused_boot(cluster: &mut Cluster, blueprint: &Blueprint) -> Result<()> {
    let mark = cluster.worker.mark();
    cluster.restart_worker(blueprint)?;
    cluster
        .worker
        .wait_after(mark, "pratique: REFUSED", BOOT_LIMIT)
        .map(drop)
}

pub(crate) fn moment(text: &str) -> Result<jiff::Timestamp> {
    text.parse()
        .map_err(|error| Error::Missing(format!("{text:?} is no time: {error}")))
}
