//! The resolvers of glibc and musl as a pod's: names as programs ask for them, through a pod's
//! search paths. Needs root.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use agent_proxy::dns::{self, Settings};
use agent_proxy::{Key, Known, Rules, Service, Slice, View};
use agent_sys::namespace::{Kind, in_new};
use agent_sys::netlink::links::{LOOPBACK, Links};
use config_kube::k8s_openapi::api::core::v1 as core;
use config_kube::k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// The machine's address, from which its programs call services.
const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));
/// Where the cluster's service for names is.
const SERVICE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10));
/// As the kubelet writes it for a pod of namespace `shop`.
const RESOLV_CONF: &str = "nameserver 127.0.0.1\nsearch shop.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n";
/// Endpoints of the largest service: their addresses do not fit an answer by UDP.
const MANY: u8 = 200;

fn service(name: &str, spec: &Value) -> (Arc<Key>, Arc<Service>) {
    let object = json!({"metadata": {"namespace": "shop", "name": name}, "spec": spec});
    let object: core::Service = serde_json::from_value(object).unwrap();
    (
        Arc::new(Key::of(&object.metadata)),
        Arc::new(Service::read(object)),
    )
}

/// The slice of a headless service: pods that have names, and addresses of 10.1.0.0/24.
fn slice(service: &str, pods: u8) -> (Arc<Key>, Arc<Slice>) {
    let endpoint = |number: u8| {
        json!({
            "addresses": [format!("10.1.0.{number}")], "hostname": format!("pod-{number}"),
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
        service("alias", &alias),
        (key, Arc::new(Service::read(kube_dns))),
    ];
    let view = View::default();
    view.change(
        |_| true,
        |known: &mut Known| {
            known.services = Some(services.iter().cloned().collect());
            known.slices = Some(BTreeMap::from([slice("many", MANY)]));
            known.name_servers = vec![SERVER];
        },
    );
    view
}

/// Prints the addresses of a name, as musl's resolver finds them.
const BY_MUSL: &str = r#"
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
int main(int count, char **words) {
    struct addrinfo want = {.ai_family = strchr(words[1], '4') ? AF_INET : strchr(words[1], '6') ? AF_INET6 : AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *one;
    int fault = getaddrinfo(words[2], 0, &want, &one);
    if (fault) return fprintf(stderr, "%s\n", gai_strerror(fault)), 2;
    for (; one; one = one->ai_next) {
        char text[64];
        getnameinfo(one->ai_addr, one->ai_addrlen, text, sizeof text, 0, 0, NI_NUMERICHOST);
        puts(text);
    }
}
"#;

/// That program, which takes a database and a name as `getent` does.
fn by_musl(dir: &Path) -> PathBuf {
    let (source, program) = (dir.join("by-musl.c"), dir.join("by-musl"));
    std::fs::write(&source, BY_MUSL).unwrap();
    let made = Command::new("musl-gcc")
        .args(["-static", "-o"])
        .args([&program, &source])
        .status();
    let made = made.expect("musl-gcc, of the package musl-tools (`cargo xtask test` installs it)");
    assert!(made.success());
    program
}

/// What `getent`, or a program like it, finds, one address a line; nothing where it finds none.
fn found(program: &Path, files: &Path, database: &str, name: &str) -> BTreeSet<String> {
    // The files are this program's alone.
    let script = "for file in resolv.conf nsswitch.conf; do mount --bind \"$0/$file\" /etc/$file || exit 9; done; exec \"$@\"";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(files)
        .arg(program)
        .args([database, name])
        .output()
        .unwrap();
    let code = output.status.code().unwrap();
    // 2: not found.
    assert!(matches!(code, 0 | 2), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines();
    if database == "hosts" {
        return lines
            .map(|line| line.split_whitespace().nth(1).unwrap().to_owned())
            .collect();
    }
    let first = lines.map(|line| line.split_whitespace().next().unwrap().to_owned());
    first.collect()
}

#[test]
fn glibc_and_musl_find_services_and_pods_by_every_name_that_they_have() {
    let programs = tempfile::tempdir().unwrap();
    let (getent, by_musl) = (Path::new("getent"), by_musl(programs.path()));
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
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let settings = Settings {
                    addresses: vec![SERVER],
                    own: tokio::sync::watch::channel(vec![OWN]).1,
                    clients: vec!["127.0.0.0/8".parse().unwrap()],
                    resolv_conf: "/dev/null".into(),
                    stub_domains: Vec::new(),
                };
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                runtime.unwrap().block_on(async {
                    tokio::select! {
                        served = dns::serve(settings, view) => served.unwrap(),
                        _ = stopped => {}
                    }
                });
            });
            while TcpStream::connect((SERVER, 53)).is_err() {
                std::thread::yield_now();
            }
            let with = |program: &Path, database: &str, name: &str| -> Vec<String> {
                let all = found(program, files.path(), database, name);
                all.into_iter().collect()
            };
            let found = |database: &str, name: &str| with(getent, database, name);
            let names = [
                "web",
                "web.shop",
                "web.shop.svc",
                "web.shop.svc.cluster.local",
                "web.shop.svc.cluster.local.",
                "alias",
            ];
            for program in [getent, by_musl.as_path()] {
                for name in names {
                    let found = |database: &str| with(program, database, name);
                    assert_eq!(found("ahostsv4"), ["10.96.0.7"], "{name}");
                    assert_eq!(found("ahostsv6"), ["fd00:96::7"], "{name}");
                    assert_eq!(found("ahosts"), ["10.96.0.7", "fd00:96::7"], "{name}");
                }
                assert_eq!(with(program, "ahostsv4", "pod-7.many"), ["10.1.0.7"]);
                assert!(with(program, "ahostsv4", "nobody").is_empty());
            }
            // Before 1.2.4 musl takes what a datagram holds.
            let some = with(&by_musl, "ahostsv4", "many");
            assert!(some.len() >= 25, "{some:?}");
            // More than an answer by UDP holds: the resolver asks again by TCP.
            assert_eq!(found("ahostsv4", "many").len(), usize::from(MANY));
            // By the name of the cluster's own service, as programs have it in their configuration.
            assert_eq!(found("ahostsv4", "kube-dns.kube-system"), ["10.96.0.10"]);
            let back = |address| found("hosts", address);
            assert_eq!(back("10.96.0.7"), ["web.shop.svc.cluster.local"]);
            assert_eq!(back("fd00:96::7"), ["web.shop.svc.cluster.local"]);
            assert_eq!(back("10.1.0.7"), ["pod-7.many.shop.svc.cluster.local"]);
            std::fs::write(
                files.path().join("resolv.conf"),
                RESOLV_CONF.replace("127.0.0.1", "10.96.0.10"),
            )
            .unwrap();
            assert_eq!(found("ahosts", "web"), ["10.96.0.7", "fd00:96::7"]);
            assert_eq!(found("ahostsv4", "many").len(), usize::from(MANY), "by TCP");
            stop.send(()).unwrap();
        });
        Ok(())
    })
    .unwrap();
}
