//! What the services and names of a large cluster cost one node. Run by hand, it measures; in the
//! test command a small cluster shows that it runs. Needs root.
//!
//! `PACE_SERVICES=10000 cargo test --release -p agent-names --test pace -- --nocapture
//! --test-threads 1`. Processor time is that of the thread which does the work; the kernel's part
//! of a transaction is in it.

use agent_names::{Settings, serve};
use agent_proxy::{Key, Known, Rules, Service, Slice, View};
use agent_sys::namespace::{Kind, in_new};
use agent_sys::netlink::links::{LOOPBACK, Links};
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use serde_json::json;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tests_harness::pace::{number, percentile, spent_by_thread, timed};

/// Services of one namespace.
const EACH: usize = 100;
const NODE: &str = "node-1";
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PATIENCE: Duration = Duration::from_secs(60);

/// Resident memory of this process in KiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let words = line.and_then(|line| line.split_whitespace().nth(1));
    words.and_then(|word| word.parse().ok()).expect("a number")
}

fn octets(number: usize) -> [u8; 2] {
    let number = u16::try_from(number % 65_536).expect("a remainder");
    number.to_be_bytes()
}

/// A Service as the API shows it, with an address or headless.
fn service(at: usize, is_headless: bool) -> (Arc<Key>, Arc<Service>) {
    let [high, low] = octets(at);
    let address = if is_headless {
        "None".to_owned()
    } else {
        format!("10.96.{high}.{low}")
    };
    let object = json!({
        "metadata": {
            "namespace": format!("team-{}", at / EACH), "name": format!("service-{at}"),
            "labels": {"app": format!("service-{at}")},
        },
        "spec": {
            "clusterIP": address, "clusterIPs": [address], "type": "ClusterIP", "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster", "selector": {"app": format!("service-{at}")},
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
        },
    });
    let object: config_kube::k8s_openapi::api::core::v1::Service =
        serde_json::from_value(object).expect("a service");
    let key = Arc::new(Key::of(&object.metadata));
    (key, Arc::new(Service::read(object)))
}

/// The address of a pod.
fn pod_address(pod: usize) -> Ipv4Addr {
    let [high, low] = octets(pod);
    let second = u8::try_from(128 + pod / 65_536).expect("a pod of few millions");
    Ipv4Addr::new(10, second, high, low)
}

/// The slice of a service, whose two pods are the numbers that follow `first`.
fn slice(at: usize, first: usize) -> (Arc<Key>, Arc<Slice>) {
    let endpoint = |pod: usize| {
        json!({
            "addresses": [pod_address(pod)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("node-{}", pod % 100),
            "targetRef": {"kind": "Pod", "namespace": format!("team-{}", at / EACH), "name": format!("pod-{pod}")},
        })
    };
    let object = json!({
        "metadata": {
            "namespace": format!("team-{}", at / EACH), "name": format!("service-{at}-abcde"),
            "labels": {"kubernetes.io/service-name": format!("service-{at}")},
        },
        "addressType": "IPv4", "endpoints": [endpoint(first), endpoint(first + 1)],
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    });
    let object: config_kube::k8s_openapi::api::discovery::v1::EndpointSlice =
        serde_json::from_value(object).expect("a slice");
    let key = Arc::new(Key::of(&object.metadata));
    (key, Arc::new(Slice::read(object).expect("of a service")))
}

/// A node's view of a cluster with `count` Services of two endpoints each.
fn cluster(count: usize, is_headless: bool) -> View {
    let view: View = View::default();
    let services: BTreeMap<_, _> = (0..count).map(|at| service(at, is_headless)).collect();
    let slices: BTreeMap<_, _> = (0..count).map(|at| slice(at, 2 * at)).collect();
    view.change(
        |_| true,
        |known: &mut Known| {
            known.services = Some(services);
            known.slices = Some(slices);
        },
    );
    view
}

#[test]
fn services_of_a_large_cluster() {
    let count = number("PACE_SERVICES", 200_usize);
    in_new(&[Kind::Network], || {
        let before = resident();
        let view = cluster(count, false);
        let mut rules = Rules::default();
        let put = |rules: &mut Rules| rules.apply(&view.now(), NODE, &[HOST]).expect("the kernel");
        let ((), wall, cpu) = timed(spent_by_thread, || put(&mut rules));
        let memory = resident().saturating_sub(before);
        println!(
            "{count} services of 2 endpoints, cold: {wall:?}, CPU {cpu:?}; {memory} KiB more resident"
        );

        let (mut walls, mut cpus) = (Vec::new(), Vec::new());
        for at in 0..number("PACE_CHANGES", 50_usize) {
            let at = at * 7919 % count;
            let ((), wall, cpu) = timed(spent_by_thread, || {
                let (key, changed) = slice(at, 100_000 + 2 * at);
                view.change(
                    |_| true,
                    |known| {
                        let slices = known.slices.get_or_insert_default();
                        drop(slices.insert(key, changed));
                    },
                );
                put(&mut rules);
            });
            walls.push(wall);
            cpus.push(cpu);
        }
        println!(
            "one slice, from its JSON to the commit: p50 {:?}, p99 {:?}; CPU p50 {:?}, p99 {:?}; {} KiB more resident",
            percentile(&mut walls, 50),
            percentile(&mut walls, 99),
            percentile(&mut cpus, 50),
            percentile(&mut cpus, 99),
            resident().saturating_sub(before),
        );

        drop(rules);
        let ((), wall, cpu) = timed(spent_by_thread, || put(&mut Rules::default()));
        println!("a new agent, with the rules of the old one in place: {wall:?}, CPU {cpu:?}");
        Ok(())
    })
    .expect("a network");
}

fn question(name: &str, kind: RecordType, id: u16) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.id = id;
    message.metadata.recursion_desired = true;
    let name = Name::from_ascii(name).expect("a name");
    message.add_query(Query::query(name, kind));
    message.to_vec().expect("a message")
}

/// What clients ask for: a service among all by its number, and the questions before it.
type Asked = fn(service: usize, before: usize) -> (String, RecordType);

/// A service's name. Every fourth is one that a search path leads to, and that is not there.
fn service_name(service: usize, before: usize) -> (String, RecordType) {
    let suffix = if before % 4 == 3 {
        ".cluster.local.svc.cluster.local."
    } else {
        ".cluster.local."
    };
    let namespace = service / EACH;
    let name = format!("service-{service}.team-{namespace}.svc{suffix}");
    (name, RecordType::A)
}

/// The name of the address of a service's first or second pod.
fn address_of_pod(service: usize, before: usize) -> (String, RecordType) {
    let [a, b, c, d] = pod_address(2 * service + before % 2).octets();
    (format!("{d}.{c}.{b}.{a}.in-addr.arpa."), RecordType::PTR)
}

/// The name of a service's first or second pod.
fn name_of_pod(service: usize, before: usize) -> (String, RecordType) {
    let pod = pod_address(2 * service + before % 2).to_string();
    let (pod, namespace) = (pod.replace('.', "-"), service / EACH);
    let name = format!("{pod}.service-{service}.team-{namespace}.svc.cluster.local.");
    (name, RecordType::A)
}

/// Asks for names, each after the last answer; how long each took, and how many records there were.
fn ask(from: usize, questions: usize, services: usize, asked: Asked) -> (Vec<Duration>, usize) {
    let socket = UdpSocket::bind((HOST, 0)).expect("a socket");
    socket.connect((HOST, 53)).expect("a server");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let mut buffer = [0; 1500];
    let (mut times, mut records) = (Vec::with_capacity(questions), 0);
    for at in 0..questions {
        let (name, kind) = asked((from + at * 7919) % services, at);
        let id = u16::try_from(at % 65_536).expect("a remainder");
        let bytes = question(&name, kind, id);
        let begun = Instant::now();
        socket.send(&bytes).expect("a question");
        let length = socket.recv(&mut buffer).expect("an answer");
        times.push(begun.elapsed());
        let answer = Message::from_vec(&buffer[..length]).expect("an answer");
        records += answer.answers.len();
    }
    (times, records)
}

/// Has four clients ask a server for names; its pace in words. For each four questions `expected`
/// records are to come.
fn answered(what: &str, is_headless: bool, asked: Asked, expected: usize) -> String {
    let (services, questions) = (
        number("PACE_SERVICES", 200_usize),
        number("PACE_QUESTIONS", 400_usize),
    );
    let clients = 4;
    let mut pace = String::new();
    in_new(&[Kind::Network], || {
        Links::open()?.switch_on(LOOPBACK)?;
        let view = cluster(services, is_headless);
        let (costs, cost) = mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let settings = Settings {
                    addresses: vec![HOST],
                    own: tokio::sync::watch::channel(Vec::new()).1,
                    clients: vec!["127.0.0.0/8".parse().expect("a range")],
                    resolv_conf: PathBuf::from("/dev/null"),
                    stub_domains: Vec::new(),
                };
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let before = spent_by_thread();
                runtime.expect("a runtime").block_on(async {
                    tokio::select! {
                        served = serve(settings, view) => served.expect("it listens"),
                        _ = stopped => {}
                    }
                });
                costs.send(spent_by_thread().saturating_sub(before)).expect("the test waits");
            });
            until_it_answers();
            let begun = Instant::now();
            let asking: Vec<_> = (0..clients)
                .map(|from| scope.spawn(move || ask(from, questions, services, asked)))
                .collect();
            let (mut times, mut records) = (Vec::new(), 0);
            for one in asking {
                let (own, found) = one.join().expect("a client");
                times.extend(own);
                records += found;
            }
            let wall = begun.elapsed();
            stop.send(()).expect("the server runs");
            let cpu = cost.recv().expect("the server's time");
            let all = times.len();
            assert_eq!(records, all / 4 * expected, "{what}");
            let rate = f64::from(u32::try_from(all).expect("fewer")) / cpu.as_secs_f64();
            pace = format!(
                "{what}, {all} answers with {services} services: {rate:.0} in a second of the server's processor time; \
                 {:?} each in all; p50 {:?}, p99 {:?} beside {clients} clients",
                wall / u32::try_from(all).expect("fewer"),
                percentile(&mut times, 50),
                percentile(&mut times, 99),
            );
        });
        Ok(())
    })
    .expect("a network");
    pace
}

#[test]
fn names_of_a_large_cluster() {
    // Of each four one is missing.
    println!("{}", answered("services", false, service_name, 3));
}

#[test]
fn names_of_endpoints_of_a_large_cluster() {
    // Of each four one is missing, and the others have two endpoints.
    println!("{}", answered("headless services", true, service_name, 6));
    println!("{}", answered("names of pods", true, name_of_pod, 4));
    println!(
        "{}",
        answered("addresses of pods", false, address_of_pod, 4)
    );
}

/// Waits for the server's first answer.
fn until_it_answers() {
    let socket = UdpSocket::bind((HOST, 0)).expect("a socket");
    socket.connect((HOST, 53)).expect("an address");
    socket
        .set_read_timeout(Some(Duration::from_millis(100)))
        .expect("a socket");
    let bytes = question("dns-version.cluster.local.", RecordType::TXT, 1);
    let begun = Instant::now();
    // A refusal is the answer of a port that nobody has yet.
    while socket.send(&bytes).is_err() || socket.recv(&mut [0; 512]).is_err() {
        assert!(begun.elapsed() < PATIENCE, "no answer");
    }
}
