//! Pods with a network of their own, on machines: addresses, and what they reach by them.

use crate::world::{Cluster, World, expect};
use std::time::{Duration, Instant};
use tests_harness::cluster::BOOT_LIMIT;
use tests_harness::tap::Tap;
use tests_harness::{Error, Result, demo, eventually};

/// A pod under emulation: pull, unpack, start, and what its script waits for.
const LIMIT: Duration = Duration::from_secs(900);

/// A pod with a network of its own, made to stay where its script ends.
fn pod(name: &str, node: &str, script: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {name}}}}}\nspec:\n  \
         terminationGracePeriodSeconds: 1\n  nodeSelector: {{kubernetes.io/hostname: {node}}}\n  containers:\n  - name: main\n    \
         image: registry.example/busybox:1\n    command: [\"/bin/busybox\", \"sh\", \"-c\", \"{script}; exec /bin/busybox sleep 100000\"]\n"
    )
}

/// A pod that serves its own name on port 8080.
fn server(name: &str, node: &str) -> String {
    let script = format!(
        "/bin/busybox mkdir -p /tmp/www; echo I am {name} > /tmp/www/index.html; /bin/busybox httpd -p 8080 -h /tmp/www"
    );
    pod(name, node, &script)
}

/// Shell words that try a command until it succeeds, and say so.
fn until(word: &str, command: &str) -> String {
    format!("until {command}; do /bin/busybox sleep 1; done; echo {word} is reached")
}

impl Cluster {
    fn pod_address(&self, name: &str) -> Result<String> {
        let words = ["get", "pod", name, "-o", "jsonpath={.status.podIP}"];
        let what = format!("the address of {name}");
        self.lab
            .kubectl_until(&words, &what, LIMIT, |text| !text.is_empty())
    }

    fn node_range(&self, name: &str) -> Result<String> {
        let words = ["get", "node", name, "-o", "jsonpath={.spec.podCIDR}"];
        let what = format!("the range of {name}");
        self.lab
            .kubectl_until(&words, &what, LIMIT, |text| !text.is_empty())
    }
}

/// Pods on a worker have addresses of its range, and reach each other and the API by them.
pub(crate) fn pods_of_a_node_reach_each_other_and_the_api(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    let (range, masters) = (
        cluster.node_range("worker-1")?,
        cluster.node_range("master-1")?,
    );
    expect(range != masters, &format!("two nodes have {range}"))?;
    cluster.apply("served", &server("served", "worker-1"))?;
    let address = cluster.pod_address("served")?;
    let prefix = range.rsplit_once('.').map_or("", |(prefix, _)| prefix);
    expect(
        address.starts_with(&format!("{prefix}.")),
        &format!("{address} is not of {range}"),
    )?;
    let asks = format!(
        "{}; {}",
        until(
            "the pod",
            &format!("/bin/busybox wget -q -O - http://{address}:8080/")
        ),
        until(
            "the API",
            "/bin/busybox nc -w 5 192.168.77.10 6443 < /dev/null"
        ),
    );
    cluster.apply("asking", &pod("asking", "worker-1", &asks))?;
    let log = cluster.pod_log("asking", "the API is reached")?;
    expect(log.contains("I am served"), &log)?;
    let words = ["delete", "pod", "served", "asking", "--wait=false"];
    cluster.lab.kubectl(&words).map(drop)
}

/// A service of pods on two machines is reached by its name from a pod on one of them, and so is the API. An eavesdropper
/// between the machines reads nothing of it, and a machine that is trusted no more is cut off.
pub(crate) fn a_service_is_reached_by_its_name_across_machines(world: &mut World) -> Result<()> {
    let tap = world.cluster()?.lab.tap()?;
    let (blueprint, _) = world.second_worker("worker-2")?;
    world.guest(&blueprint)?;
    let cluster = world.cluster()?;
    cluster.lab.wait_ready("worker-2", BOOT_LIMIT)?;
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: shop}\nspec:\n  selector: {part: shop}\n  \
                   ports: [{name: http, port: 80, targetPort: 8080}]\n";
    cluster.apply("shop", service)?;
    for number in 1..=2 {
        let (name, node) = (format!("shop-{number}"), format!("worker-{number}"));
        let labelled = server(&name, &node).replace("labels: {", "labels: {part: shop, ");
        cluster.apply(&name, &labelled)?;
    }
    let get = "/bin/busybox wget -q -T 5 -O - http://shop.default.svc.cluster.local/";
    let short = "/bin/busybox wget -q -T 5 -O - http://shop/";
    let asks = [
        until("the first", &format!("{get} | /bin/busybox grep shop-1")),
        until("the second", &format!("{short} | /bin/busybox grep shop-2")),
        until(
            "the API by name",
            "/bin/busybox nc -w 5 kubernetes.default 443 < /dev/null",
        ),
        until(
            "the API by variables",
            "/bin/busybox nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT < /dev/null",
        ),
    ];
    cluster.apply("client", &pod("client", "worker-2", &asks.join("; ")))?;
    let log = cluster.pod_log("client", "the API by variables is reached")?;
    expect(
        log.contains("I am shop-1") && log.contains("I am shop-2"),
        &log,
    )?;
    // Without endpoints a caller is refused, and does not wait.
    cluster
        .lab
        .kubectl(&["delete", "pod", "shop-1", "shop-2", "client", "--now"])?;
    let refused = "until /bin/busybox wget -T 60 -O - http://shop/ 2>&1 | /bin/busybox grep refused; do /bin/busybox sleep 1; done";
    cluster.apply("told", &pod("told", "worker-2", refused))?;
    cluster.pod_log("told", "refused")?;
    let words = ["delete", "pod/told", "service/shop", "--wait=false"];
    cluster.lab.kubectl(&words)?;
    keys_are_renewed(cluster, &tap)?;
    cut_off(cluster)?;
    let (plain, sealed) = (tap.plain(), tap.sealed());
    expect(
        plain.is_empty(),
        &format!("pods' packets in the clear: {plain:?}"),
    )?;
    expect(
        sealed.iter().sum::<usize>() > 0,
        "no packet of a tunnel was captured",
    )
}

/// The keys of both links that a node has published.
fn keys(cluster: &Cluster, node: &str) -> Result<[String; 2]> {
    let path = "jsonpath={.metadata.annotations.pratique\\.dev/tunnel-keys}";
    let text = cluster.lab.kubectl(&["get", "node", node, "-o", path])?;
    let mut words = text.split('.').skip(1).map(str::to_owned);
    match (words.next(), words.next()) {
        (Some(first), Some(second)) => Ok([first, second]),
        _ => Err(Error::Missing(format!("keys in {text:?} of {node}"))),
    }
}

/// A pod asks a pod on another machine five times a second while a link of both machines gets new keys and their packets go
/// over to it: each is answered. An eavesdropper sees by which link they go.
fn keys_are_renewed(cluster: &mut Cluster, tap: &Tap) -> Result<()> {
    let before = [keys(cluster, "worker-1")?, keys(cluster, "worker-2")?];
    cluster.apply("pinged", &server("pinged", "worker-2"))?;
    let address = cluster.pod_address("pinged")?;
    let asks = format!(
        "{}; /bin/busybox ping -i 0.2 {address}",
        until("the pod", &format!("/bin/busybox ping -c 1 {address}"))
    );
    cluster.apply("pinger", &pod("pinger", "worker-1", &asks))?;
    cluster.pod_log("pinger", "the pod is reached")?;
    let begin = Instant::now();
    let mut seen = tap.sealed();
    let what = "packets by a link whose keys are new on both machines";
    eventually(what, LIMIT, "see the agents' logs", || {
        let now = [keys(cluster, "worker-1")?, keys(cluster, "worker-2")?];
        let counts = tap.sealed();
        let [first, second] = [counts[0] - seen[0], counts[1] - seen[1]];
        // Between two looks; what keeps a link without traffic alive is far less.
        let enough = first + second > 50;
        let by = [first > 10 * second, second > 10 * first];
        if enough {
            seen = counts;
        }
        let renewed = |link: usize| {
            let both = before.iter().zip(&now);
            enough && by[link] && both.clone().all(|(old, new)| old[link] != new[link])
        };
        Ok((0..2).find(|link| renewed(*link)))
    })?;
    println!("new keys after {:.0} s", begin.elapsed().as_secs_f64());
    let log = cluster.lab.kubectl(&["logs", "pinger"])?;
    let answered: Vec<usize> = log.lines().filter_map(sequence).collect();
    // The first is of the question before.
    let lost = answered.windows(2).skip(1).find(|two| two[1] != two[0] + 1);
    expect(
        answered.len() > 500 && lost.is_none(),
        &format!(
            "{} answers; a packet is lost after {lost:?}",
            answered.len()
        ),
    )?;
    let words = ["delete", "pod", "pinger", "pinged", "--now"];
    cluster.lab.kubectl(&words).map(drop)
}

/// The number in a line such as `64 bytes from 10.244.1.2: seq=7 ttl=62 time=1.234 ms`.
fn sequence(line: &str) -> Option<usize> {
    let (_, rest) = line.split_once(" seq=")?;
    rest.split_once(' ')?.0.parse().ok()
}

/// A machine that is retired while a pod elsewhere speaks with one of its pods is reached no more.
fn cut_off(cluster: &mut Cluster) -> Result<()> {
    cluster.apply("kept", &server("kept", "worker-2"))?;
    let address = cluster.pod_address("kept")?;
    let get = format!("/bin/busybox wget -q -T 5 -O - http://{address}:8080/");
    let asks = format!(
        "{}; while {get}; do /bin/busybox sleep 1; done; echo the way is cut",
        until("the pod", &get)
    );
    cluster.apply("asker", &pod("asker", "worker-1", &asks))?;
    cluster.pod_log("asker", "the pod is reached")?;
    let retire = "{\"spec\":{\"retired\":true}}";
    let words = ["patch", "machine", "worker-2", "--type=merge", "-p", retire];
    cluster.lab.kubectl(&words)?;
    let begin = Instant::now();
    cluster.pod_log("asker", "the way is cut")?;
    println!(
        "cut off after {:.1} s, as kubectl sees it",
        begin.elapsed().as_secs_f64()
    );
    let words = [
        "delete",
        "pod",
        "asker",
        "kept",
        "--wait=false",
        "--ignore-not-found",
    ];
    cluster.lab.kubectl(&words).map(drop)
}

/// A Deployment is rolled to another version while a client in a pod asks its Service by name: no request fails.
pub(crate) fn a_deployment_is_rolled_under_traffic_without_a_failed_request(
    world: &mut World,
) -> Result<()> {
    let lab = &world.cluster()?.lab;
    demo::begin(lab)?;
    let counted = demo::roll(lab)?;
    expect(
        counted.failed == 0,
        &format!("{} of {} requests failed", counted.failed, counted.asked),
    )?;
    let words = [
        "delete",
        "deployment/hello",
        "service/hello",
        "pod/client",
        "--wait=false",
    ];
    lab.kubectl(&words).map(drop)
}
