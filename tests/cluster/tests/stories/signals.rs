//! Signals from a pod that shares its machine's process ids: none reaches init, agent or master.

use crate::join::pod_anywhere;
use crate::world::{Cluster, World, expect};
use std::time::Duration;
use tests_harness::Result;
use tests_harness::cluster::BOOT_LIMIT;
use tests_harness::machine::Machine;

/// Pull and start under emulation, and some thousand signals.
const LIMIT: Duration = Duration::from_secs(900);
/// Signals that end a program, or that an init takes for a request: HUP, INT, QUIT, KILL, USR1,
/// USR2, TERM, PWR and systemd's request for a power-off.
const TO_INIT: &str = "1 2 3 9 10 12 15 30 38";

/// On the worker and on the master's machine, root in a pod with `hostPID` sends SIGKILL to every
/// process id from init's to its own shim's (whose end would be the pod's), and to init every
/// signal that an init might heed. Agent and master go on in the same processes, init stops
/// nothing; containerd, which is in the pod's reach, comes back and runs the next pod.
pub(crate) fn no_signal_of_a_pod_reaches_init_agent_or_master(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    let machines = [
        ("worker-1", cluster.worker.clone()),
        ("master-1", cluster.master.clone()),
    ];
    let mut reached = Vec::new();
    for (node, machine) in machines {
        reached.extend(attack(cluster, node, &machine)?);
    }
    expect(
        reached.is_empty(),
        &format!("signals of a pod reached the machine: {reached:#?}"),
    )?;
    for node in ["worker-1", "master-1"] {
        let name = format!("after-{node}");
        cluster.apply(&name, &pod_anywhere(&name, node, "echo again"))?;
        cluster.pod_log(&name, "again")?;
        cluster
            .lab
            .kubectl(&["delete", "pod", &name, "--timeout=600s"])?;
        cluster.lab.wait_ready(node, BOOT_LIMIT)?;
    }
    Ok(())
}

/// Runs the hostile pod on one machine. Returns the console lines about programs that were
/// restarted, or about a request to stop.
fn attack(cluster: &Cluster, node: &str, machine: &Machine) -> Result<Vec<String>> {
    let name = format!("signals-{node}");
    // All services are older than the shim, and have lower process ids. The pod waits for a file
    // before it begins, as signals to a containerd that has not answered for its start yet would
    // end it by themselves; and then until the end of the command that made the file was reported.
    let script = format!(
        "until [ -e /tmp/go ]; do /bin/busybox sleep 1; done; /bin/busybox sleep 5; i=2; while [ $i -lt $PPID ]; do \
         kill -9 $i 2>/dev/null; i=$((i + 1)); done; for s in {TO_INIT}; do kill -$s 1 2>/dev/null; done; echo all sent; \
         exec /bin/busybox sleep 100000"
    );
    let manifest = pod_anywhere(&name, node, &script).replace(
        "  hostNetwork: true\n",
        "  hostNetwork: true\n  hostPID: true\n  restartPolicy: Never\n",
    );
    let mark = machine.mark();
    cluster.apply(&name, &manifest)?;
    cluster.pod_phase(&name, "Running")?;
    let go = "/bin/busybox mkdir -p /tmp && : >/tmp/go";
    cluster
        .lab
        .kubectl(&["exec", &name, "--", "/bin/busybox", "sh", "-c", go])?;
    cluster.lab.kubectl_until(
        &["logs", &name],
        &format!("every signal sent on {node}"),
        LIMIT,
        |log| log.contains("all sent") || !damage(machine, mark).is_empty(),
    )?;
    // The control: the signals were sent, as containerd is within their reach.
    machine.wait_after(mark, "containerd ended (Signal(9))", LIMIT)?;
    // The removal comes back from the node's agent, so that what a signal did before is on the
    // console by then.
    cluster
        .lab
        .kubectl(&["delete", "pod", &name, "--timeout=600s"])?;
    Ok(damage(machine, mark)
        .into_iter()
        .map(|line| format!("{node}: {line}"))
        .collect())
}

/// Lines of a console since `mark` that a signal to init, agent or master leads to.
fn damage(machine: &Machine, mark: usize) -> Vec<String> {
    let console = machine.console_text();
    let since = console.get(mark..).unwrap_or_default();
    since
        .lines()
        .filter(|line| {
            ["agent ended (", "master ended (", "stopping for ", "panic"]
                .iter()
                .any(|word| line.contains(word))
        })
        .map(str::to_owned)
        .collect()
}
