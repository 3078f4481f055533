//! A machine runs out of memory, and then of disk.

use crate::world::{Cluster, World, expect};
use std::time::Duration;
use tests_harness::cluster::BOOT_LIMIT;
use tests_harness::{Error, Result};

/// Pull and start under emulation, a look at what is left, and the time of the transition.
const LIMIT: Duration = Duration::from_secs(900);
const NODE: &str = "worker-low";
/// The pod that takes nothing. It shows what the machine has left.
const INNOCENT: &str = "innocent";
/// Thresholds that a pod can meet on a small machine without harm to the programs beside it.
const SETTINGS: &str = r#"
[node.reserved]
memory = "64Mi"

[node.eviction]
transition = "1m"

[[node.eviction.threshold]]
signal = "memory.available"
value = "200Mi"

[[node.eviction.threshold]]
signal = "nodefs.available"
value = "60%"
"#;

/// What the machine runs out of.
struct Resource {
    /// The Node's condition meanwhile.
    condition: &'static str,
    /// The pod that takes it, and the medium of that pod's volume.
    eater: &'static str,
    medium: &'static str,
    /// A command that prints how much is left, in the threshold's unit.
    left: &'static str,
    /// The threshold, and what the pod leaves: a little less, so that nothing else runs into it.
    threshold: u64,
    leaves: u64,
    /// A command that takes a piece of it, into a new file `$file`.
    take: &'static str,
}

/// In MiB, as the node counts it.
const MEMORY: Resource = Resource {
    condition: "MemoryPressure",
    eater: "eats-memory",
    medium: "Memory",
    left: "/bin/busybox awk '/^MemFree|^Inactive.file/ {sum += $2} END {print int(sum / 1024)}' /proc/meminfo",
    threshold: 200,
    leaves: 160,
    take: "/bin/busybox dd if=/dev/zero of=$file bs=32M count=1 2>/dev/null",
};

/// In per cent.
const DISK: Resource = Resource {
    condition: "DiskPressure",
    eater: "eats-disk",
    medium: "",
    left: "/bin/busybox df -P /data | /bin/busybox awk 'NR == 2 {print int($4 * 100 / $2)}'",
    threshold: 60,
    leaves: 50,
    take: "/bin/busybox fallocate -l 134217728 $file",
};

/// A pod on the machine that runs once, with a volume at `/data`.
fn pod(name: &str, medium: &str, script: &str) -> String {
    let script = script.replace('\n', "\n      ");
    format!(
        r#"apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: Never
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  nodeSelector: {{kubernetes.io/hostname: {NODE}}}
  volumes: [{{name: data, emptyDir: {{medium: "{medium}"}}}}]
  containers:
  - name: main
    image: registry.example/busybox:1
    volumeMounts: [{{name: data, mountPath: /data}}]
    command:
    - /bin/busybox
    - sh
    - -c
    - |
      {script}
"#
    )
}

impl Resource {
    /// The pod that takes pieces of it until less is left than the threshold says, and stays.
    fn eater(&self) -> String {
        let Self {
            left, leaves, take, ..
        } = self;
        let script = format!(
            "echo begins\nn=0\nwhile [ \"$({left})\" -ge {leaves} ]; do\n  n=$((n + 1))\n  file=/data/$n\n  \
             {take} || break\ndone\nexec /bin/busybox sleep 100000"
        );
        pod(self.eater, self.medium, &script)
    }

    /// How much is left.
    fn left(&self, cluster: &Cluster) -> Result<u64> {
        let words = [
            "exec",
            INNOCENT,
            "--",
            "/bin/busybox",
            "sh",
            "-c",
            self.left,
        ];
        let printed = cluster.lab.kubectl(&words)?;
        let left = printed.trim().parse().ok();
        left.ok_or_else(|| Error::Missing(format!("what is left, in {printed:?}")))
    }

    /// Waits until the Node's condition is as `wanted`: its status, and the time of its last
    /// change.
    fn condition(
        &self,
        cluster: &Cluster,
        what: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let path = format!(
            "jsonpath={{.status.conditions[?(@.type=='{}')]['status','lastTransitionTime']}}",
            self.condition
        );
        let words = ["get", "node", NODE, "-o", &path];
        let what = format!("{} to {what}", self.condition);
        cluster.lab.kubectl_until(&words, &what, LIMIT, wanted)
    }

    /// A pod takes it: the pod goes, the machine has it back, and the innocent pod runs on.
    fn runs_out(&self, cluster: &Cluster) -> Result<()> {
        let at_first = |text: &str| text.starts_with("False ");
        let before = self.condition(cluster, "be there", at_first)?;
        let free = self.left(cluster)?;
        expect(
            free > self.threshold,
            &format!("{free} are left before any pod took something"),
        )?;
        cluster.apply(self.eater, &self.eater())?;
        // A condition that ended before the first look shows by its later transition time.
        let again = |text: &str| text.starts_with("False ") && text != before;
        let holds = |text: &str| text.starts_with("True ") || again(text);
        self.condition(cluster, "hold", holds)?;
        let path = "jsonpath={.status.phase} {.status.reason}";
        let words = ["get", "pod", self.eater, "-o", path];
        let what = format!("{} to be evicted", self.eater);
        cluster
            .lab
            .kubectl_until(&words, &what, LIMIT, |text| text == "Failed Evicted")?;
        self.condition(cluster, "be over", again)?;
        // The pod and its log are still there.
        cluster.pod_log(self.eater, "begins")?;
        let (freed, wanted) = (self.left(cluster)?, u64::midpoint(free, self.threshold));
        expect(
            freed >= wanted,
            &format!("{free} were left at first, and {freed} are after the eviction"),
        )?;
        let path = "jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}";
        let innocent = cluster.lab.kubectl(&["get", "pod", INNOCENT, "-o", path])?;
        expect(
            innocent == "Running 0",
            &format!("the innocent pod is {innocent}"),
        )
    }
}

/// A pod fills the machine's memory with a volume, another its disk: each is evicted, what it took
/// is free when its eviction is over, although the pod is still there, and no other pod goes.
pub(crate) fn a_machine_low_on_memory_or_disk_evicts_the_pod_that_took_it_and_recovers(
    world: &mut World,
) -> Result<()> {
    world.end_companion()?;
    let cluster = world.cluster()?;
    let (mut blueprint, text) = cluster.unregistered(NODE)?;
    let text = format!("{text}{SETTINGS}");
    let data = cluster.lab.give_user_data(&mut blueprint, &text)?;
    cluster
        .lab
        .register(NODE, &blueprint, &data, "192.168.77.12")?;
    world.guest(&blueprint)?;
    let cluster = world.cluster()?;
    cluster.lab.wait_ready(NODE, BOOT_LIMIT)?;
    let idle = pod(INNOCENT, "", "exec /bin/busybox sleep 100000");
    cluster.apply(INNOCENT, &idle)?;
    cluster.pod_phase(INNOCENT, "Running")?;
    for resource in [MEMORY, DISK] {
        resource.runs_out(cluster)?;
    }
    let pods = [MEMORY.eater, DISK.eater, INNOCENT];
    let words = [&["delete", "pod", "--timeout=600s"][..], &pods].concat();
    cluster.lab.kubectl(&words)?;
    cluster
        .lab
        .kubectl(&["delete", "node,machine", NODE, "--timeout=600s"])
        .map(drop)
}
