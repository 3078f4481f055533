//! What pods get of a real machine: its control groups of version 2, its mounts and its read-only
//! root.

use crate::world::{World, expect};
use tests_harness::Result;

/// A pod of two containers that share their process ids, with limits as a whole, and with the files
/// of an image.
const POD: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: whole}
spec:
  restartPolicy: Never
  shareProcessNamespace: true
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: worker-1}
  resources: {requests: {memory: 48Mi}, limits: {memory: 64Mi}}
  volumes:
  - name: files
    image: {reference: "registry.example/busybox:1"}
  containers:
  - name: main
    image: registry.example/busybox:1
    volumeMounts: [{name: files, mountPath: /image}]
    command:
    - /bin/busybox
    - sh
    - -c
    - |
      find() { for p in /proc/[0-9]*; do
        case "$(/bin/busybox tr '\0' ' ' < $p/cmdline 2>/dev/null)" in '/bin/busybox sleep 4321 '*) echo ${p#/proc/};; esac
      done; }
      until other=$(find); [ -n "$other" ]; do /bin/busybox sleep 1; done
      echo first $(/bin/busybox cat /proc/1/comm)
      echo limit $(/bin/busybox cat /sys/fs/cgroup/memory.max)
      [ -e /image/bin/busybox ] && echo shown
      /image/bin/busybox true || echo not executed
      echo x > /image/x || echo not written
      kill $other
  - name: other
    image: registry.example/busybox:1
    command: [/bin/busybox, sleep, "4321"]
"#;

/// Containers of a pod share process ids with a first process of the node's own, have the pod's
/// limits, and read an image's files.
pub(crate) fn a_pod_shares_process_ids_has_limits_as_a_whole_and_reads_an_image(
    world: &mut World,
) -> Result<()> {
    let cluster = world.cluster()?;
    cluster.apply("whole", POD)?;
    // The other container is ended by a signal of the first.
    cluster.pod_phase("whole", "Failed")?;
    let log = cluster.lab.kubectl(&["logs", "whole", "-c", "main"])?;
    for line in [
        "first pause",
        "limit 67108864",
        "shown",
        "not executed",
        "not written",
    ] {
        expect(
            log.lines().any(|said| said == line),
            &format!("{line:?} is not in the log:\n{log}"),
        )?;
    }
    cluster
        .lab
        .kubectl(&["delete", "pod", "whole", "--timeout=600s"])
        .map(drop)
}
