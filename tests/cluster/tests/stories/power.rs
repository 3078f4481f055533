//! Power cuts: what was acknowledged is there afterwards.

use crate::join::pod;
use crate::world::{World, expect};
use std::collections::BTreeSet;
use tests_harness::Result;
use tests_harness::cluster::BOOT_LIMIT;

/// How many pods come and go before the plug is pulled.
const CHURN: usize = 4;

/// The worker loses power while pods come and go; it comes back under its name, pods that were to run run, pods that
/// were deleted do not come back.
pub(crate) fn cut_worker(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    let names: Vec<String> = (0..CHURN).map(|index| format!("churn-{index}")).collect();
    for name in &names {
        cluster.apply(name, &pod(name, "worker-1", "echo up; exec /bin/busybox sleep 100000"))?;
    }
    cluster.pod_phase(&names[0], "Running")?;
    let (gone, stay) = names.split_at(CHURN / 2);
    for name in gone {
        cluster.lab.kubectl(&["delete", "pod", name, "--wait=false"])?;
    }
    cluster.worker.cut_power()?;
    cluster.worker = cluster.worker_blueprint.start(&cluster.lab.tools)?;
    for name in stay {
        let words = ["get", "pod", name, "-o", "jsonpath={.status.phase} {.status.containerStatuses[0].ready}"];
        cluster.lab.kubectl_until(&words, &format!("{name} to run after the power cut"), BOOT_LIMIT, |text| {
            text == "Running true"
        })?;
    }
    cluster.lab.wait_ready("worker-1", BOOT_LIMIT)?;
    let words = ["get", "pods", "-o", "jsonpath={.items[*].metadata.name}"];
    let expected: BTreeSet<&str> = stay.iter().map(String::as_str).collect();
    let left = cluster.lab.kubectl_until(&words, "deleted pods to be gone", BOOT_LIMIT, |text| {
        text.split_whitespace().filter(|name| name.starts_with("churn-")).collect::<BTreeSet<_>>() == expected
    })?;
    expect(!left.is_empty(), "no pod is left")?;
    for name in stay {
        cluster.lab.kubectl(&["delete", "pod", name, "--timeout=60s"])?;
    }
    Ok(())
}
