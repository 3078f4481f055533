//! Power cuts, after which what was acknowledged is there, and ends of a machine by an admin's
//! order.

use crate::join::{pod, pod_anywhere};
use crate::network::until;
use crate::world::{Cluster, World, expect};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tests_harness::Result;
use tests_harness::cluster::BOOT_LIMIT;

/// 60 % of the stories' lifetime of three minutes: how long a master may be away.
const AWAY: Duration = Duration::from_secs(108);
/// For the renewal that follows.
const RENEWAL_LIMIT: Duration = Duration::from_secs(900);
/// How many pods come and go before the plug is pulled.
const CHURN: usize = 4;
/// The Service of these pods.
const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: churn}\nspec:\n  selector: {part: churn}\n  \
                       ports: [{port: 80, targetPort: 8080}]\n";

/// A pod's manifest without the host's network: the pod has one of its own.
fn on_its_own_network(manifest: &str) -> String {
    manifest.replacen("hostNetwork: true\n  ", "", 1)
}

/// A pod on the worker that serves its name, as an endpoint of [`SERVICE`].
fn server(name: &str) -> String {
    let script = format!(
        "/bin/busybox mkdir -p /tmp/www; echo I am {name} > /tmp/www/index.html; exec /bin/busybox httpd -f -p 8080 -h /tmp/www"
    );
    let manifest = on_its_own_network(&pod(name, "worker-1", &script));
    manifest.replacen("labels: {", "labels: {part: churn, ", 1)
}

/// Each of these pods answers by the Service, to a pod of its own machine and to one of another,
/// and each of the worker's pods has addresses of its own.
fn are_served(cluster: &Cluster, servers: &[String]) -> Result<()> {
    let get = "/bin/busybox wget -q -T 5 -O - http://churn.default.svc.cluster.local/";
    let asks = servers.iter();
    let asks = asks.map(|name| until(name, &format!("{get} | /bin/busybox grep {name}")));
    let asks: Vec<String> = asks.collect();
    let script = format!(
        "{}; echo each is reached; exec /bin/busybox sleep 100000",
        asks.join("; ")
    );
    let callers = ["worker-1", "master-1"].map(|node| (format!("calls-{node}"), node));
    for (name, node) in &callers {
        let manifest = on_its_own_network(&pod_anywhere(name, node, &script));
        cluster.apply(name, &manifest)?;
    }
    for (name, _) in &callers {
        cluster.pod_log(name, "each is reached")?;
    }
    let [(near, _), (far, _)] = &callers;
    let mut words = vec!["get", "pods", near];
    words.extend(servers.iter().map(String::as_str));
    words.extend(["-o", "jsonpath={.items[*].status.podIPs[*].ip}"]);
    let count = 2 * (1 + servers.len());
    let what = "two addresses of each pod";
    let shown = cluster
        .lab
        .kubectl_until(&words, what, BOOT_LIMIT, |text| {
            text.split_whitespace().count() == count
        })?;
    let different: BTreeSet<&str> = shown.split_whitespace().collect();
    expect(
        different.len() == count,
        &format!("two pods of the worker have one address: {shown}"),
    )?;
    let words = ["delete", "pod", near, far, "--wait=false"];
    cluster.lab.kubectl(&words)?;
    let words = ["delete", "service", "churn", "--wait=false"];
    cluster.lab.kubectl(&words).map(drop)
}

/// The worker loses power while pods come and go; it comes back under its name, pods that were to
/// run run, pods that were deleted do not come back. Those that run have addresses of their own and
/// answer by their Service.
pub(crate) fn a_power_cut_of_a_worker_loses_no_pod(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    let names: Vec<String> = (0..CHURN).map(|index| format!("churn-{index}")).collect();
    cluster.apply("churn", SERVICE)?;
    for name in &names {
        cluster.apply(name, &server(name))?;
    }
    cluster.pod_phase(&names[0], "Running")?;
    let (gone, stay) = names.split_at(CHURN / 2);
    for name in gone {
        cluster
            .lab
            .kubectl(&["delete", "pod", name, "--wait=false"])?;
    }
    let (blueprint, mark) = (cluster.worker_blueprint.clone(), cluster.worker.mark());
    cluster.restart_worker(&blueprint)?;
    // The encrypted state survives a power cut.
    cluster
        .worker
        .wait_after(mark, "state opened generation=", BOOT_LIMIT)?;
    for name in stay {
        let words = [
            "get",
            "pod",
            name,
            "-o",
            "jsonpath={.status.phase} {.status.containerStatuses[0].ready}",
        ];
        cluster.lab.kubectl_until(
            &words,
            &format!("{name} to run after the power cut"),
            BOOT_LIMIT,
            |text| text == "Running true",
        )?;
    }
    cluster.lab.wait_ready("worker-1", BOOT_LIMIT)?;
    let words = ["get", "pods", "-o", "jsonpath={.items[*].metadata.name}"];
    let expected: BTreeSet<&str> = stay.iter().map(String::as_str).collect();
    let left =
        cluster
            .lab
            .kubectl_until(&words, "deleted pods to be gone", BOOT_LIMIT, |text| {
                text.split_whitespace()
                    .filter(|name| name.starts_with("churn-"))
                    .collect::<BTreeSet<_>>()
                    == expected
            })?;
    expect(!left.is_empty(), "no pod is left")?;
    are_served(cluster, stay)?;
    for name in stay {
        cluster
            .lab
            .kubectl(&["delete", "pod", name, "--timeout=600s"])?;
    }
    Ok(())
}

/// The master loses power and comes back: the worker's pod goes on, its certificate is renewed by
/// the same key without another enrolment, and it is Ready.
pub(crate) fn a_power_cut_of_the_master_lets_nodes_go_on(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    cluster.apply(
        "outage",
        &pod(
            "outage",
            "worker-1",
            "echo up; exec /bin/busybox sleep 100000",
        ),
    )?;
    cluster.pod_phase("outage", "Running")?;
    let key = cluster.machine_field("worker-1", ".status.nkName")?;
    let serial = cluster.machine_field("worker-1", ".status.certificate.serial")?;
    let mark = cluster.worker.mark();
    let start = Instant::now();
    cluster.master.cut_power()?;
    cluster.master = cluster.master_blueprint.start(&cluster.lab.tools)?;
    let lab = &cluster.lab;
    lab.kubectl_until(
        &["get", "--raw", "/readyz"],
        "the master to be back",
        BOOT_LIMIT,
        |text| text == "ok",
    )?;
    let away = start.elapsed();
    let renewed = [
        "get",
        "machine",
        "worker-1",
        "-o",
        "jsonpath={.status.certificate.serial}",
    ];
    lab.kubectl_until(
        &renewed,
        "a certificate of after the outage",
        RENEWAL_LIMIT,
        |text| {
            !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit()) && text != serial
        },
    )?;
    for node in ["worker-1", "master-1"] {
        lab.wait_ready(node, BOOT_LIMIT)?;
    }
    expect(
        cluster.machine_field("worker-1", ".status.state")? == "Trusted",
        "the worker is not Trusted",
    )?;
    let pod = [
        "get",
        "pod",
        "outage",
        "-o",
        "jsonpath={.status.containerStatuses[0].restartCount} {.status.phase}",
    ];
    lab.kubectl_until(&pod, "the pod that ran all the while", BOOT_LIMIT, |text| {
        text == "0 Running"
    })?;
    lab.kubectl(&["delete", "pod", "outage", "--timeout=600s"])?;
    if away >= AWAY {
        println!(
            "the master was away for {} s, which is more than a certificate has to outlive",
            away.as_secs()
        );
        return Ok(());
    }
    let console = cluster.worker.console_text();
    let since = console.get(mark..).unwrap_or_default();
    expect(
        !since.contains("pratique: enroll"),
        &format!("the worker enrolled anew: {since}"),
    )?;
    expect(
        cluster.machine_field("worker-1", ".status.nkName")? == key,
        "the worker has another key",
    )
}

/// `pratique node reboot` gives pods their grace and ends them, and the machine comes back by a new
/// proof; `pratique node poweroff` ends it. Both orders are in the verdict log.
pub(crate) fn an_admins_order_reboots_a_machine_and_turns_it_off(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    let script = "trap '/bin/busybox sleep 3; echo in peace; exit 0' TERM; echo up; while :; do /bin/busybox sleep 1; done";
    let patient = pod("ordered", "worker-1", script).replace(
        "terminationGracePeriodSeconds: 1\n",
        "terminationGracePeriodSeconds: 60\n",
    );
    cluster.apply("ordered", &patient)?;
    cluster.pod_log("ordered", "up")?;
    let key = cluster.machine_field("worker-1", ".status.nkName")?;
    let mark = cluster.worker.mark();
    let lab = &cluster.lab;
    lab.end_machine("reboot", "worker-1")?;
    cluster
        .worker
        .wait_after(mark, "state opened generation=", BOOT_LIMIT)?;
    let words = [
        "get",
        "machine",
        "worker-1",
        "-o",
        "jsonpath={.status.nkName}",
    ];
    lab.kubectl_until(&words, "a new node key", BOOT_LIMIT, |text| {
        text != key && !text.is_empty()
    })?;
    lab.wait_ready("worker-1", BOOT_LIMIT)?;
    let words = [
        "get",
        "pod",
        "ordered",
        "-o",
        "jsonpath={.status.phase} {.status.reason}",
    ];
    lab.kubectl_until(&words, "the pod to be over", BOOT_LIMIT, |text| {
        text == "Failed Terminated"
    })?;
    let before = lab.kubectl(&["logs", "ordered"])?;
    expect(
        before.contains("in peace"),
        &format!("the pod was not given its grace:\n{before}"),
    )?;
    lab.kubectl(&["delete", "pod", "ordered", "--timeout=600s"])?;
    lab.end_machine("poweroff", "worker-1")?;
    cluster.worker.wait_off(BOOT_LIMIT)?;
    let verdicts = lab.kubectl(&["get", "--raw", "/verdicts"])?;
    for order in ["reboot: ", "poweroff: "] {
        let record =
            |line: &&str| line.contains(&format!("\"{order}")) && line.contains("worker-1");
        expect(
            verdicts.lines().filter(record).count() == 1,
            &format!("no single record of {order}in the verdict log:\n{verdicts}"),
        )?;
    }
    let blueprint = cluster.worker_blueprint.clone();
    cluster.restart_worker(&blueprint)?;
    cluster.lab.wait_ready("worker-1", BOOT_LIMIT)
}
