//! The life of an attested identity: renewal and reboot.

use crate::join::pod;
use crate::world::{World, expect};
use std::time::Duration;
use tests_harness::Result;
use tests_harness::cluster::BOOT_LIMIT;

/// A `StatefulSet` whose pod counts its starts in a volume of its own.
const KEPT: &str = r"apiVersion: apps/v1
kind: StatefulSet
metadata: {name: kept}
spec:
  serviceName: kept
  selector: {matchLabels: {app: kept}}
  template:
    metadata: {labels: {app: kept}}
    spec:
      nodeSelector: {kubernetes.io/hostname: worker-1}
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: registry.example/busybox:1
        command:
        - /bin/busybox
        - sh
        - -c
        - echo start >> /data/starts; echo starts=$(/bin/busybox wc -l < /data/starts); exec /bin/busybox sleep 100000
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 1Mi}}
";

/// Two renewals fit into this with the stories' lifetime of three minutes, on a busy host.
const RENEWAL_LIMIT: Duration = Duration::from_secs(900);

/// The longest grace period of a machine's containers, the time of the agent and init, and a
/// reserve for a busy host.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(900);

/// The certificate is renewed by a fresh quote, and the node is Ready all the while.
pub(crate) fn a_certificate_is_renewed_without_a_lapse(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    let serial = || cluster.machine_field("worker-1", ".status.certificate.serial");
    let attested = || cluster.machine_field("worker-1", ".status.lastAttestation");
    let (first_serial, first_time) = (serial()?, attested()?);
    expect(!first_serial.is_empty(), "the Machine shows no certificate")?;
    let lapse = std::cell::RefCell::new(None);
    tests_harness::wait::eventually_costly(
        "a renewed certificate",
        RENEWAL_LIMIT,
        "see worker-1/console.log",
        || {
            let nodes = cluster
                .lab
                .kubectl(&["get", "node", "worker-1", "--no-headers"])?;
            if nodes.split_whitespace().nth(1) != Some("Ready") {
                lapse.replace(Some(nodes));
            }
            Ok((serial()? != first_serial).then_some(()))
        },
    )?;
    expect(
        attested()? != first_time,
        "a new certificate without a fresh attestation",
    )?;
    let lapse = lapse.into_inner();
    expect(
        lapse.is_none(),
        &format!("the node lapsed during the renewal: {lapse:?}"),
    )?;
    expect(
        cluster.machine_field("worker-1", ".status.state")? == "Trusted",
        "the renewed machine is not Trusted",
    )
}

/// The power button gives a pod the time that it asked for, and the master learns that it was
/// terminated; the next start makes a new key and a new exchange under the same name, and a
/// `StatefulSet`'s pod has the volume that it had.
pub(crate) fn pods_get_their_grace_at_power_off_and_a_reboot_proves_anew(
    world: &mut World,
) -> Result<()> {
    let cluster = world.cluster()?;
    // It needs longer to end than init gives strangers, and shorter than its grace.
    let script = "trap '/bin/busybox sleep 6; echo in peace; exit 0' TERM; echo up; while :; do /bin/busybox sleep 1; done";
    let patient = pod("stay", "worker-1", script).replace(
        "terminationGracePeriodSeconds: 1\n",
        "terminationGracePeriodSeconds: 60\n",
    );
    cluster.apply("stay", &patient)?;
    cluster.pod_log("stay", "up")?;
    cluster.apply("kept", KEPT)?;
    cluster.pod_log("kept-0", "starts=1")?;
    let key = cluster.machine_field("worker-1", ".status.nkName")?;
    let uid = cluster
        .lab
        .kubectl(&["get", "pod", "stay", "-o", "jsonpath={.metadata.uid}"])?;
    cluster.worker.power_off(POWER_OFF_LIMIT)?;
    let mark = cluster.worker.mark();
    let blueprint = cluster.worker_blueprint.clone();
    cluster.restart_worker(&blueprint)?;
    cluster
        .worker
        .wait_after(mark, "services started", BOOT_LIMIT)?;
    let words = [
        "get",
        "machine",
        "worker-1",
        "-o",
        "jsonpath={.status.nkName}",
    ];
    cluster.lab.kubectl_until(
        &words,
        "a new node key after the reboot",
        BOOT_LIMIT,
        |text| text != key && !text.is_empty(),
    )?;
    cluster.lab.wait_ready("worker-1", BOOT_LIMIT)?;
    let over = [
        "get",
        "pod",
        "stay",
        "-o",
        "jsonpath={.status.phase} {.status.reason} {.metadata.uid}",
    ];
    let wanted = format!("Failed Terminated {uid}");
    cluster
        .lab
        .kubectl_until(&over, "the pod to be over", BOOT_LIMIT, |text| {
            text == wanted
        })?;
    let before = cluster.lab.kubectl(&["logs", "stay"])?;
    expect(
        before.contains("in peace"),
        &format!("the pod was not given its grace at power-off:\n{before}"),
    )?;
    cluster.pod_log("kept-0", "starts=2")?;
    let words = [
        "delete",
        "statefulset/kept",
        "pvc/data-kept-0",
        "--wait=false",
    ];
    cluster.lab.kubectl(&words)?;
    cluster
        .lab
        .kubectl(&["delete", "pod", "stay", "--timeout=600s"])
        .map(drop)
}

/// While the root is rotated, the master's own machine follows, and a worker that has the old pin
/// alone goes on and says what it lacks; the end of the old root is refused for its sake, and the
/// rotation is given up.
pub(crate) fn a_root_rotation_that_would_lock_out_a_node_is_refused_and_given_up(
    world: &mut World,
) -> Result<()> {
    let cluster = world.cluster()?;
    let lab = &cluster.lab;
    let said = lab.root("rotate")?;
    let pins = said
        .lines()
        .find(|line| line.starts_with("ca_pins = ["))
        .unwrap_or_default();
    let pin = pins
        .split('"')
        .filter(|part| part.starts_with("sha256:"))
        .nth(1)
        .unwrap_or_default()
        .to_owned();
    expect(!pin.is_empty(), &format!("no new pin was printed:\n{said}"))?;
    let condition = |node: &str, what: &str, wanted: &dyn Fn(&str) -> bool| {
        let path = "jsonpath={.status.conditions[?(@.type=='RootUnknown')]['status','message']}";
        lab.kubectl_until(
            &["get", "node", node, "-o", path],
            what,
            RENEWAL_LIMIT,
            wanted,
        )
        .map(drop)
    };
    condition("master-1", "the master's machine to be ready", &|text| {
        text.starts_with("False") && text.contains(&pin)
    })?;
    condition("worker-1", "the worker to lack the pin", &|text| {
        text.starts_with("True") && text.contains(&pin)
    })?;
    let refusal = lab
        .root("finish")
        .err()
        .map(|error| tests_harness::chain(&error))
        .unwrap_or_default();
    expect(
        refusal.contains("worker-1"),
        &format!("the old root was ended, or refused for another reason: {refusal}"),
    )?;
    lab.root("abandon")?;
    condition("worker-1", "the worker to lack nothing", &|text| {
        text.starts_with("False") && !text.contains(&pin)
    })?;
    for node in ["master-1", "worker-1"] {
        lab.wait_ready(node, BOOT_LIMIT)?;
    }
    Ok(())
}
