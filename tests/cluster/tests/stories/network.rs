//! Pods with a network of their own, on machines: addresses, and what they reach by them.

use crate::drift::{moment, readmit};
use crate::world::{Cluster, World, expect};
use std::cell::Cell;
use std::time::{Duration, Instant};
use tests_harness::tap::Tap;
use tests_harness::wait::eventually_costly;
use tests_harness::{Error, Result, demo};

/// A pod under emulation: pull, unpack, start, and what its script waits for.
const LIMIT: Duration = Duration::from_secs(900);

/// How long after its retirement, or a verdict against it, is on record a machine may answer on a
/// host that is busy. On one that is not it is two seconds, and the story prints how long it was; a
/// machine that is not cut off answers for ever.
const CUT_OFF: jiff::SignedDuration = jiff::SignedDuration::from_secs(20);

/// More answers than this, five a second from each address, show that none is lost.
const QUESTIONS: usize = 500;

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
pub(crate) fn until(word: &str, command: &str) -> String {
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
    cluster.lab.kubectl(&words)?;
    world.asking = Some(Asking::begin(world.cluster()?, "master-1")?);
    Ok(())
}

/// A service of pods on two machines is reached by its name from a pod on one of them, and so is
/// the API. An eavesdropper between the machines reads nothing of it.
pub(crate) fn a_service_is_reached_by_its_name_across_machines(world: &mut World) -> Result<()> {
    let tap = world.tap()?;
    world.companion()?;
    let cluster = world.cluster()?;
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: shop}\nspec:\n  selector: {part: shop}\n  \
                   ipFamilyPolicy: RequireDualStack\n  ports: [{name: http, port: 80, targetPort: 8080}]\n";
    cluster.apply("shop", service)?;
    for number in 1..=2 {
        let (name, node) = (format!("shop-{number}"), format!("worker-{number}"));
        let labelled = server(&name, &node).replace("labels: {", "labels: {part: shop, ");
        cluster.apply(&name, &labelled)?;
    }
    let get = "/bin/busybox wget -q -T 5 -O - http://shop.default.svc.cluster.local/";
    let short = "/bin/busybox wget -q -T 5 -O - http://shop/";
    // The record of IPv6 alone, and the address in it.
    let six = "six=$(/bin/busybox nslookup -type=aaaa shop.default.svc.cluster.local | /bin/busybox sed -n 's/^Address: //p')";
    let by_six = format!("{six}; /bin/busybox wget -q -T 5 -O - http://[$six]/");
    let asks = [
        until(
            "the first by IPv6",
            &format!("{by_six} | /bin/busybox grep shop-1"),
        ),
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
    cluster.apply("caller", &pod("caller", "worker-2", refused))?;
    cluster.pod_log("caller", "refused")?;
    let words = ["delete", "pod/caller", "service/shop", "--wait=false"];
    cluster.lab.kubectl(&words)?;
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

/// A pod on another machine is reached by that machine's address, at a port of the node and at a
/// port of the host. A policy lets one of two clients on this machine pass, from a connection that
/// was open to the next one, and ends with its removal.
pub(crate) fn ports_of_a_node_are_reached_and_a_policy_holds_between_machines(
    world: &mut World,
) -> Result<()> {
    world.companion()?;
    let cluster = world.cluster()?;
    let lab = &cluster.lab;
    let gate = server("gate", "worker-2").replacen(
        "    command:",
        "    ports: [{containerPort: 8080, hostPort: 8088}]\n    command:",
        1,
    );
    cluster.apply("gate", &gate)?;
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: gate}\nspec:\n  type: NodePort\n  \
                   selector: {app: gate}\n  ports: [{port: 80, targetPort: 8080}]\n";
    cluster.apply("gate-service", service)?;
    let words = [
        "get",
        "service",
        "gate",
        "-o",
        "jsonpath={.spec.ports[0].nodePort}",
    ];
    let port = lab.kubectl(&words)?;
    let by = |port: &str| format!("/bin/busybox wget -q -T 5 -O - http://192.168.77.12:{port}/");
    let asks = [
        until("the port of the node", &by(&port)),
        until("the port of the host", &by("8088")),
    ];
    let outsider = crate::join::pod("outsider", "worker-1", &asks.join("; "));
    cluster.apply("outsider", &outsider)?;
    // Each says how its requests end, once for each change. The friend is patient: a slow host is
    // no policy.
    for (client, patience) in [("friend", 60), ("stranger", 10)] {
        let get = format!("/bin/busybox wget -q -T {patience} -O /dev/null http://gate/");
        let asks = format!(
            "while :; do until {get}; do /bin/busybox sleep 1; done; echo reached; \
             while {get}; do echo answered; /bin/busybox sleep 1; done; echo denied; done"
        );
        cluster.apply(client, &pod(client, "worker-1", &asks))?;
    }
    for client in ["friend", "stranger"] {
        cluster.pod_log(client, "reached")?;
    }
    let policy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: gate}\nspec:\n  \
                  podSelector: {matchLabels: {app: gate}}\n  \
                  ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]\n";
    cluster.apply("gate-policy", policy)?;
    let answers = |log: &str| log.matches("answered").count() + log.matches("reached").count();
    let denied = answers(&cluster.pod_log("stranger", "denied")?);
    let words = ["logs", "friend"];
    let before = answers(&lab.kubectl(&words)?);
    let what = "further answers for the friend";
    let log = lab.kubectl_until(&words, what, LIMIT, |log| answers(log) > before + 2)?;
    expect(
        !log.contains("denied"),
        &format!("the policy's friend:\n{log}"),
    )?;
    let log = lab.kubectl(&["logs", "stranger"])?;
    expect(
        answers(&log) == denied,
        &format!("the stranger was answered under the policy:\n{log}"),
    )?;
    lab.kubectl(&["delete", "networkpolicy", "gate"])?;
    let again = |log: &str| answers(log) > denied;
    lab.kubectl_until(
        &["logs", "stranger"],
        "answers without the policy",
        LIMIT,
        again,
    )?;
    cluster.pod_log("outsider", "the port of the host is reached")?;
    let words = [
        "delete",
        "service/gate",
        "pod/gate",
        "pod/friend",
        "pod/stranger",
        "pod/outsider",
        "--wait=false",
    ];
    lab.kubectl(&words).map(drop)
}

/// A machine that is retired while a pod elsewhere speaks with one of its pods is reached no more.
pub(crate) fn a_machine_that_is_retired_is_cut_off(world: &mut World) -> Result<()> {
    world.companion()?;
    let cluster = world.cluster()?;
    let asking = Asking::begin(cluster, "worker-2")?;
    asking.cut_off(cluster, "{\"retired\":true}", "decision")?;
    asking.end(cluster)?;
    world.end_companion()
}

/// A machine that is Untrusted after its next renewal, since its inventory lists other user-data,
/// is reached no more by the pod elsewhere that speaks with one of its pods. It comes back by an
/// admin's act, without a boot.
pub(crate) fn a_machine_that_is_not_trusted_is_cut_off(world: &mut World) -> Result<()> {
    world.companion()?;
    let cluster = world.cluster()?;
    let own = cluster.machine_field("worker-2", ".spec.configDigests")?;
    let lists = |digests: &str| format!("{{\"configDigests\":{digests}}}");
    let other = lists(&format!("[\"sha256:{}\"]", "0".repeat(64)));
    let asking = Asking::begin(cluster, "worker-2")?;
    asking.cut_off(cluster, &other, "state")?;
    change(cluster, "worker-2", &lists(&own))?;
    readmit(cluster, "worker-2")?;
    // The next story makes pods of these names.
    let [asking, asked] = &asking.pods();
    let words = ["delete", "pod", asking, asked, "--timeout=900s"];
    cluster.lab.kubectl(&words).map(drop)
}

/// Changes a Machine's spec, as an admin does.
fn change(cluster: &Cluster, machine: &str, spec: &str) -> Result<()> {
    let patch = format!("{{\"spec\":{spec}}}");
    let words = ["patch", "machine", machine, "--type=merge", "-p", &patch];
    cluster.lab.kubectl(&words).map(drop)
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

/// A pod on the good worker that asks a pod on another machine five times a second, by both
/// families.
#[derive(Debug)]
pub(crate) struct Asking {
    /// The other machine.
    node: &'static str,
    /// The keys of both machines when it began.
    keys: [[String; 2]; 2],
    /// Of the pod that is asked, one of each family.
    addresses: [String; 2],
    since: Instant,
}

impl Asking {
    fn begin(cluster: &Cluster, node: &'static str) -> Result<Self> {
        let name = format!("asked-{node}");
        // No taint of its machine ends it.
        let asked =
            server(&name, node).replacen("spec:", "spec:\n  tolerations: [{operator: Exists}]", 1);
        cluster.apply(&name, &asked)?;
        let path = "jsonpath={.status.podIPs[*].ip}";
        let words = ["get", "pod", &name, "-o", path];
        let text = cluster
            .lab
            .kubectl_until(&words, "two addresses of a pod", LIMIT, |text| {
                text.split_whitespace().count() == 2
            })?;
        let mut words = text.split_whitespace().map(str::to_owned);
        let addresses = [(); 2].map(|()| words.next().unwrap_or_default());
        let [one, other] = &addresses;
        let ping = |address: &str| format!("/bin/busybox ping -c 1 {address}");
        let get = format!("/bin/busybox wget -q -T 5 -O - http://{one}:8080/");
        // What is counted begins once all ways are there.
        let asks = [
            until("the one address", &ping(one)),
            until("the other", &ping(other)),
            until("the pod", &get),
            format!(
                "echo begins; /bin/busybox ping -i 0.2 {one} & /bin/busybox ping -i 0.2 {other} & \
                 while {get} > /dev/null; do /bin/busybox sleep 1; done; echo the way is cut"
            ),
        ];
        let name = format!("asking-{node}");
        cluster.apply(&name, &pod(&name, "worker-1", &asks.join("; ")))?;
        cluster.pod_log(&name, "begins")?;
        Ok(Self {
            node,
            keys: [keys(cluster, "worker-1")?, keys(cluster, node)?],
            addresses,
            since: Instant::now(),
        })
    }

    fn log(&self, cluster: &Cluster) -> Result<String> {
        let name = format!("asking-{}", self.node);
        cluster.lab.kubectl(&["logs", &name])
    }

    /// Waits until packets go by a link of which both machines have new keys, and checks that each
    /// question was answered. An eavesdropper sees by which link they go.
    fn keys_are_renewed(&self, cluster: &Cluster, tap: &Tap) -> Result<()> {
        let mut seen = tap.sealed();
        let what = "packets by a link whose keys are new on both machines";
        let hint = "see the agents' logs";
        let link = eventually_costly(what, LIMIT, hint, || {
            let now = [keys(cluster, "worker-1"), keys(cluster, self.node)];
            let [Ok(one), Ok(other)] = now else {
                return Ok(None);
            };
            let now = [one, other];
            let counts = tap.sealed();
            let [first, second] = [counts[0] - seen[0], counts[1] - seen[1]];
            // Between two looks; what keeps a link without traffic alive is far less.
            let enough = first + second > 50;
            let by = [first > 10 * second, second > 10 * first];
            if enough {
                seen = counts;
            }
            let renewed = |link: usize| {
                let mut both = self.keys.iter().zip(&now);
                enough && by[link] && both.all(|(old, new)| old[link] != new[link])
            };
            Ok((0..2).find(|link| renewed(*link)))
        })?;
        let passed = self.since.elapsed().as_secs_f64();
        println!("packets by new keys of link {link}, {passed:.0} s after the first");
        // The story about signals ends the pod that asks, which then begins anew.
        let name = format!("asking-{}", self.node);
        let many = |log: &str, address: &String| answered(log, address).len() > QUESTIONS;
        let log = cluster.lab.kubectl_until(
            &["logs", &name],
            "some hundred answers of each address",
            LIMIT,
            |log| self.addresses.iter().all(|address| many(log, address)),
        )?;
        let mut addresses = self.addresses.iter();
        addresses.try_for_each(|address| all_answered(&log, address))
    }

    /// After this change of its Machine's spec the other machine is reached no more. `kind`: of the
    /// record in the log of verdicts by which it is no longer trusted. The times of both ends are
    /// the machines' own: of that record, and of the last answer in the pod's log.
    fn cut_off(&self, cluster: &Cluster, spec: &str, kind: &str) -> Result<()> {
        let count = |log: &str| self.addresses.each_ref().map(|of| answered(log, of).len());
        let before = count(&self.log(cluster)?);
        expect(
            before.iter().all(|count| *count > 0),
            &format!("answers before it was cut off: {before:?}"),
        )?;
        change(cluster, self.node, spec)?;
        let path = "jsonpath={.spec.taints[*].key}";
        let words = ["get", "node", self.node, "-o", path];
        cluster
            .lab
            .kubectl_until(&words, "the Node's taint", LIMIT, |text| {
                text.contains("pratique.dev/untrusted")
            })?;
        let [name, _] = self.pods();
        cluster.pod_log(&name, "the way is cut")?;
        let last = Cell::new([0; 2]);
        let words = ["logs", &name, "--timestamps"];
        let what = "no answer any more";
        let log = cluster.lab.kubectl_until(&words, what, LIMIT, |log| {
            let count = [&self.addresses[0], &self.addresses[1]].map(|of| answers(log, of).count());
            last.replace(count) == count && count != [0; 2]
        })?;
        let since = self.recorded(cluster, kind)?;
        for address in &self.addresses {
            let last = answers(&log, address).last();
            let last = moment(last.unwrap_or_default())?;
            let after = last.duration_since(since);
            println!("the last answer of {address} came {after:#} after the record ({kind})");
            expect(
                after <= CUT_OFF,
                &format!("on record ({kind}) at {since}, and {address} answered until {last}"),
            )?;
        }
        Ok(())
    }

    /// The time of the last record of a kind about the other machine.
    fn recorded(&self, cluster: &Cluster, kind: &str) -> Result<jiff::Timestamp> {
        let log = cluster.lab.kubectl(&["get", "--raw", "/verdicts"])?;
        let records = log.lines().rev().filter_map(|line| {
            serde_json::from_str::<serde_json::Value>(line.split_once(' ')?.1).ok()
        });
        let mut own = records.filter(|record| {
            let verdict = &record["verdict"];
            verdict["kind"] == kind && verdict["name"] == self.node
        });
        let record = own.next().unwrap_or_default();
        moment(record["time"].as_str().unwrap_or_default())
    }

    /// The names of both pods: of the one that asks, and of the one that is asked.
    fn pods(&self) -> [String; 2] {
        ["asking", "asked"].map(|what| format!("{what}-{}", self.node))
    }

    fn end(&self, cluster: &Cluster) -> Result<()> {
        let [asking, asked] = &self.pods();
        let words = ["delete", "pod", asking, asked, "--wait=false"];
        let words = [words.as_slice(), &["--ignore-not-found"]].concat();
        cluster.lab.kubectl(&words).map(drop)
    }
}

/// A pod asks a pod on another machine while both machines' keys are renewed and packets go over to
/// a link with new ones: each question is answered. It has been asking since an earlier story, as
/// keys take their time.
pub(crate) fn no_packet_is_lost_while_wireguards_keys_are_renewed(world: &mut World) -> Result<()> {
    let tap = world.tap()?;
    let asking = world.asking.take();
    let cluster = world.cluster()?;
    let asking = match asking {
        Some(asking) => asking,
        None => Asking::begin(cluster, "master-1")?,
    };
    asking.keys_are_renewed(cluster, &tap)?;
    asking.end(cluster)
}

/// The times at which an address answered, of a log with times.
fn answers<'a>(log: &'a str, address: &str) -> impl Iterator<Item = &'a str> {
    let from = format!(" bytes from {address}: seq=");
    log.lines()
        .filter(move |line| line.contains(&from))
        .filter_map(|line| line.split_once(' ').map(|(time, _)| time))
}

/// The numbers of the questions that an address answered.
fn answered(log: &str, address: &str) -> Vec<usize> {
    let from = format!("bytes from {address}: seq=");
    let begins = log.lines().skip_while(|line| *line != "begins");
    let answers = begins.filter_map(|line| {
        let (_, rest) = line.split_once(&from)?;
        rest.split_once(' ')?.0.parse().ok()
    });
    let mut numbers: Vec<usize> = answers.collect();
    numbers.sort_unstable();
    numbers
}

fn all_answered(log: &str, address: &str) -> Result<()> {
    let numbers = answered(log, address);
    let mut places = (0..).zip(numbers.iter().copied());
    let lost = places.find(|(place, number)| place != number);
    println!("{} answers of {address}", numbers.len());
    expect(
        numbers.len() > QUESTIONS && lost.is_none(),
        &format!("{} answers of {address}; lost: {lost:?}", numbers.len()),
    )
}

/// A Deployment on two machines is rolled to another version while a client in a pod asks its
/// Service by name: no request fails, and none of a pod that the policy keeps out is answered.
pub(crate) fn a_deployment_is_rolled_under_traffic_without_a_failed_request(
    world: &mut World,
) -> Result<()> {
    let lab = &world.cluster()?.lab;
    demo::begin(lab)?;
    demo::crossed(lab)?;
    let counted = demo::roll(lab)?;
    expect(
        counted.failed == 0,
        &format!("{} of {} requests failed", counted.failed, counted.asked),
    )?;
    let denied = demo::denied(lab)?;
    expect(
        denied.failed == denied.asked,
        &format!("the stranger: {denied:?}"),
    )?;
    let words = [
        "delete",
        "deployment/hello",
        "service/hello",
        "networkpolicy/hello",
        "pod/client",
        "pod/stranger",
        "--wait=false",
    ];
    lab.kubectl(&words).map(drop)
}
