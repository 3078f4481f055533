//! A node that answers names, on the loopback link of a network of its own.

use agent_names::{Settings, serve};
use agent_proxy::{Key, Known, Rules, Service, Slice, View};
use agent_sys::namespace::{Kind, in_new};
use agent_sys::netlink::links::{LOOPBACK, Links};
use config_kube::k8s_openapi::api::core::v1 as core;
use config_kube::k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const SERVER_V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
/// The machine's address, from which its programs call services.
const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));
/// Where the cluster's service for names is.
const SERVICE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10));
/// As the kubelet writes it for a pod of namespace `shop`.
pub(crate) const RESOLV_CONF: &str = "nameserver 127.0.0.1\nsearch shop.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n";
/// Endpoints of the largest service: their addresses do not fit an answer by UDP.
pub(crate) const MANY: u8 = 200;

fn service(name: &str, spec: &Value) -> (Arc<Key>, Arc<Service>) {
    let object = json!({"metadata": {"namespace": "shop", "name": name}, "spec": spec});
    let object: core::Service = serde_json::from_value(object).unwrap();
    (
        Arc::new(Key::of(&object.metadata)),
        Arc::new(Service::read(object)),
    )
}

/// The slice of a service: pods that have names, and addresses of 10.1.`net`.0/24.
fn slice(service: &str, net: u8, pods: u8) -> (Arc<Key>, Arc<Slice>) {
    let endpoint = |number: u8| {
        json!({
            "addresses": [format!("10.1.{net}.{number}")], "hostname": format!("pod-{number}"),
            "conditions": {"ready": true},
        })
    };
    let endpoints: Vec<Value> = (1..=pods).map(endpoint).collect();
    let metadata = json!({
        "namespace": "shop", "name": format!("{service}-abcde"),
        "labels": {"kubernetes.io/service-name": service},
    });
    let object = json!({
        "metadata": metadata, "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    });
    let object: EndpointSlice = serde_json::from_value(object).unwrap();
    let key = Arc::new(Key::of(&object.metadata));
    (key, Arc::new(Slice::read(object).unwrap()))
}

fn view() -> View {
    let ports = json!([{"name": "http", "port": 80}]);
    let both = json!(["10.96.0.7", "fd00:96::7"]);
    let web = json!({"clusterIP": "10.96.0.7", "clusterIPs": both, "ports": ports});
    let headless = json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": ports});
    let alias = json!({"type": "ExternalName", "externalName": "web.shop.svc.cluster.local"});
    let kube_dns = core::Service {
        metadata: serde_json::from_value(json!({
            "namespace": "kube-system", "name": "kube-dns",
            "labels": {"service.kubernetes.io/service-proxy-name": "pratique-name-server"},
        }))
        .unwrap(),
        spec: serde_json::from_value(json!({
            "clusterIP": SERVICE, "clusterIPs": [SERVICE],
            "ports": [
                {"name": "dns", "protocol": "UDP", "port": 53},
                {"name": "dns-tcp", "protocol": "TCP", "port": 53},
            ],
        }))
        .unwrap(),
        status: None,
    };
    let key = Arc::new(Key::of(&kube_dns.metadata));
    let services = [
        service("web", &web),
        service("many", &headless),
        service("idle", &headless),
        service("alias", &alias),
        (key, Arc::new(Service::read(kube_dns))),
    ];
    let view = View::default();
    view.change(
        |_| true,
        |known: &mut Known| {
            known.services = Some(services.iter().cloned().collect());
            let slices = [
                slice("many", 0, MANY),
                slice("web", 1, 3),
                slice("idle", 2, 0),
            ];
            known.slices = Some(slices.into());
            known.name_servers = vec![SERVER];
        },
    );
    view
}

/// Runs a test in a network in which a node answers names; it is given the folder of the files that
/// programs have in place of the machine's.
pub(crate) fn on_a_node(test: impl FnOnce(&Path) + Send) {
    in_new(&[Kind::Network], || {
        let mut links = Links::open()?;
        links.switch_on(LOOPBACK)?;
        // glibc asks for addresses of the families that the machine has beyond its loopback
        // addresses.
        links.add_address(LOOPBACK, "10.2.0.1".parse().unwrap(), 32)?;
        links.add_address(LOOPBACK, "fd00:2::1".parse().unwrap(), 128)?;
        // The way to services; the packet filter leads on from there.
        links.add_address(LOOPBACK, OWN, 16)?;
        let view = view();
        Rules::default().apply(&view.now(), "n1", &[])?;
        let files = tempfile::tempdir().unwrap();
        std::fs::write(files.path().join("resolv.conf"), RESOLV_CONF).unwrap();
        std::fs::write(files.path().join("nsswitch.conf"), "hosts: dns\n").unwrap();
        let settings = Settings {
            addresses: vec![SERVER, SERVER_V6],
            own: tokio::sync::watch::channel(vec![OWN]).1,
            clients: ["127.0.0.0/8", "::1/128"]
                .map(|range| range.parse().unwrap())
                .into(),
            resolv_conf: "/dev/null".into(),
            stub_domains: Vec::new(),
        };
        while_answering(settings, view, || {
            for server in [SERVER, SERVER_V6] {
                while TcpStream::connect((server, 53)).is_err() {
                    std::thread::yield_now();
                }
            }
            test(files.path());
        });
        Ok(())
    })
    .unwrap();
}

/// Answers names in the network of the calling thread until `clients` ends.
pub(crate) fn while_answering(settings: Settings, view: View, clients: impl FnOnce()) {
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                tokio::select! {
                    served = serve(settings, view) => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        clients();
        stop.send(()).unwrap();
    });
}

/// Runs a program that has these files in place of the machine's.
pub(crate) fn run(program: &Path, files: &Path, words: &[&str]) -> Output {
    // The files are this program's alone.
    let script = "for file in resolv.conf nsswitch.conf; do mount --bind \"$0/$file\" /etc/$file || exit 99; done; exec \"$@\"";
    Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(files)
        .arg(program)
        .args(words)
        .output()
        .unwrap()
}
