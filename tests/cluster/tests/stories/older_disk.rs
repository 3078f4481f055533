//! Attacks on the disk while the machine is off.

use crate::world::{World, expect};
use tests_harness::cluster::BOOT_LIMIT;
use tests_harness::{Result, file_error};

/// The status and reason of a Node's condition `StateRenewed`, as kubectl's output format.
pub(crate) const STATE_RENEWED: &str = "jsonpath={.status.conditions[?(@.type==\"StateRenewed\")].status} {.status.conditions[?(@.type==\"StateRenewed\")].reason}";

/// The whole disk is set back to an older copy, with whatever certificates, images and pods it had:
/// the machine does not trust it, makes a new state, reports why on console and Node, and is Ready
/// again.
pub(crate) fn an_older_copy_of_the_whole_disk_is_not_trusted(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    let blueprint = cluster.worker_blueprint.clone();
    let disk = blueprint.overlay_path();
    let past = disk.with_extension("past");
    cluster.worker.cut_power()?;
    std::fs::copy(&disk, &past).map_err(file_error("cannot copy", &disk))?;
    let mark = cluster.worker.mark();
    cluster.restart_worker(&blueprint)?;
    // From this line on the copy is older than what the TPM knows.
    cluster
        .worker
        .wait_after(mark, "state opened generation=", BOOT_LIMIT)?;
    cluster.lab.wait_ready("worker-1", BOOT_LIMIT)?;
    let state = ["get", "node", "worker-1", "-o", STATE_RENEWED];
    cluster
        .lab
        .kubectl_until(&state, "the state to be kept", BOOT_LIMIT, |text| {
            text == "False StateKept"
        })?;

    cluster.worker.cut_power()?;
    std::fs::rename(&past, &disk).map_err(file_error("cannot put back", &past))?;
    let mark = cluster.worker.mark();
    cluster.restart_worker(&blueprint)?;
    cluster
        .lab
        .kubectl_until(&state, "the older copy to be noticed", BOOT_LIMIT, |text| {
            text == "True OlderCopy"
        })?;
    cluster.lab.wait_ready("worker-1", BOOT_LIMIT)?;
    let console = cluster.worker.console_text();
    let is_noticed = console
        .get(mark..)
        .unwrap_or(&console)
        .contains("it is an older copy of the disk");
    expect(
        is_noticed,
        "the console does not say that the disk is an older copy",
    )
}
