//! Pods with a network of their own: real containers in namespaces of a machine that is a namespace
//! itself. What the packet filter keeps pods from is tested beside it (`agent/cluster`).

use crate::cluster::{Cluster, shell};
use crate::site::{eventually, texts};
use agent_sys::namespace::{Kind, in_new};
use agent_sys::netlink::links::{LOOPBACK, Links};
use config_kube::k8s_openapi::api::core::v1::{Node, Pod};
use http::Method;
use master_client::Patch;
use serde_json::{Value, json};

/// Runs a test on threads of its own, whose network is that of no other: the machine's, as far as
/// its parts see.
pub(crate) fn on_a_machine<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send) {
    in_new(&[Kind::Network], || {
        Links::open()?.switch_on(LOOPBACK)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(test());
        Ok(())
    })
    .unwrap();
}

/// A cluster whose node has a range of pod addresses.
pub(crate) async fn with_addresses() -> Cluster {
    with_ranges(&["10.1.0.0/24"]).await
}

async fn with_ranges(ranges: &[&str]) -> Cluster {
    let cluster = Cluster::new().await;
    let ranges = json!({"spec": {"podCIDR": ranges[0], "podCIDRs": ranges}});
    cluster
        .admin
        .patch::<Node>(None, "worker-1", &Patch::Merge(ranges))
        .await
        .unwrap();
    cluster.following().await
}

/// A pod with a network of its own.
pub(crate) async fn create(cluster: &Cluster, name: &str, spec: Value) {
    let mut spec = spec;
    spec["hostNetwork"] = json!(false);
    cluster.create(name, spec).await;
}

async fn address(cluster: &Cluster, name: &str) -> String {
    let what = format!("the address of {name}");
    eventually(&what, || async { cluster.pod(name).await?.status?.pod_ip }).await
}

/// The output of a completed pod.
async fn said(cluster: &Cluster, name: &str) -> Vec<String> {
    cluster.reaches(name, "/phase", json!("Succeeded")).await;
    let pod = cluster.pod(name).await.unwrap();
    let log = cluster.log(&pod, 0);
    texts(&log).into_iter().map(str::to_owned).collect()
}

async fn gone(cluster: &Cluster, name: &str) {
    cluster.delete(name, 1).await;
    eventually(name, || async {
        cluster.pod(name).await.is_none().then_some(())
    })
    .await;
}

/// A pod that serves its own folder on port 8080, with a probe that asks it there.
pub(crate) fn server() -> Value {
    let mut main = shell(
        "mkdir -p /tmp/www; echo $IP > /tmp/www/ip; exec busybox httpd -f -p 8080 -h /tmp/www",
    );
    main["env"] = json!([{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]);
    main["readinessProbe"] = json!({"httpGet": {"path": "/ip", "port": 8080}, "periodSeconds": 1});
    json!({"containers": [main]})
}

fn links() -> Vec<String> {
    let all = Links::open().unwrap().all().unwrap();
    all.into_iter()
        .map(|link| link.name)
        .filter(|name| name != "lo")
        .collect()
}

#[test]
fn pods_have_addresses_by_which_pods_probes_and_the_node_reach_them() {
    on_a_machine(|| async {
        let cluster = with_addresses().await;
        create(&cluster, "web", server()).await;
        // The probe uses the pod's address: nothing listens on the machine's own.
        let ready = json!(true);
        let status = cluster
            .reaches("web", "/containerStatuses/0/ready", ready)
            .await;
        let web = address(&cluster, "web").await;
        assert!(web.starts_with("10.1.0."), "{web}");
        assert_eq!(
            (&status["hostIP"], &status["podIPs"]),
            (&json!("127.0.0.1"), &json!([{"ip": web}]))
        );
        let ask = format!("busybox wget -q -O - http://{web}:8080/ip");
        create(
            &cluster,
            "asks",
            json!({"restartPolicy": "Never", "containers": [shell(&ask)]}),
        )
        .await;
        assert_eq!(
            said(&cluster, "asks").await,
            *std::slice::from_ref(&web),
            "pod to pod"
        );
        let on_host = json!({"restartPolicy": "Never", "containers": [shell(&ask)]});
        cluster.create("on-host", on_host).await;
        assert_eq!(
            said(&cluster, "on-host").await,
            *std::slice::from_ref(&web),
            "the machine's network to a pod"
        );
        // An ended pod has released its address and still shows it in its status.
        let asked = address(&cluster, "asks").await;
        assert_ne!(asked, web);
        eventually("one cable left", || async {
            (links().len() == 1).then_some(())
        })
        .await;

        let before = cluster.pod("web").await.unwrap();
        let cluster = cluster.again(Vec::new()).await;
        create(
            &cluster,
            "asks-again",
            json!({"restartPolicy": "Never", "containers": [shell(&ask)]}),
        )
        .await;
        assert_eq!(
            said(&cluster, "asks-again").await,
            *std::slice::from_ref(&web),
            "after the agent's restart"
        );
        let after = cluster.pod("web").await.unwrap();
        let starts = |pod: &Pod| {
            let status = pod.status.clone().unwrap();
            (
                status.pod_ip,
                status.container_statuses.unwrap()[0].container_id.clone(),
            )
        };
        assert_eq!(starts(&before), starts(&after), "the pod ran on");
        for name in ["web", "asks", "on-host", "asks-again"] {
            gone(&cluster, name).await;
        }
        assert_eq!(links(), Vec::<String>::new());
        let left = std::fs::read_dir(cluster.site.dir.path().join("run/pods")).unwrap();
        assert_eq!(left.count(), 0);
    });
}

#[test]
fn pods_have_an_address_of_each_family_and_are_reached_by_both() {
    on_a_machine(|| async {
        let cluster = with_ranges(&["10.1.0.0/24", "fd00:1::/64"]).await;
        create(&cluster, "web", server()).await;
        let ready = json!(true);
        let status = cluster
            .reaches("web", "/containerStatuses/0/ready", ready)
            .await;
        let [four, six] = [0, 1].map(|place| status["podIPs"][place]["ip"].as_str().unwrap());
        assert!(
            four.starts_with("10.1.0.") && six.starts_with("fd00:1::"),
            "{status}"
        );
        assert_eq!(status["podIP"], json!(four));
        // A Pod's own addresses in its environment and its hosts file, and the other's by both.
        let ask = format!(
            "echo $IPS; busybox grep -c asks /etc/hosts; for at in {four} [{six}]; do busybox wget -q -O - http://$at:8080/ip; done"
        );
        let mut asks = shell(&ask);
        asks["env"] =
            json!([{"name": "IPS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIPs"}}}]);
        let asks = json!({"restartPolicy": "Never", "containers": [asks]});
        create(&cluster, "asks", asks).await;
        let lines = said(&cluster, "asks").await;
        let own = cluster.pod("asks").await.unwrap().status.unwrap().pod_ips;
        let own: Vec<String> = own.unwrap().into_iter().map(|one| one.ip).collect();
        assert_eq!(lines, [&own.join(","), "2", four, four]);
        gone(&cluster, "web").await;
        gone(&cluster, "asks").await;
        assert!(links().is_empty());
    });
}

#[test]
fn containers_of_a_pod_share_network_host_name_and_memory_and_nothing_of_the_machines() {
    on_a_machine(|| async {
        let cluster = with_addresses().await;
        let service = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = service.local_addr().unwrap().port();
        let first =
            shell("echo shared > /dev/shm/note; busybox nc -l -p 7000 -e busybox echo inside");
        let script = format!(
            "while [ ! -e /dev/shm/note ]; do sleep 0.1; done; cat /dev/shm/note; \
             until busybox nc 127.0.0.1 7000; do sleep 0.1; done; busybox hostname; \
             busybox tail -n 2 /etc/hosts; cat /proc/sys/net/ipv4/tcp_fin_timeout; ls /sys/class/net; \
             busybox nc -w 5 127.0.0.1 {port} < /dev/null || echo refused"
        );
        let mut second = shell(&script);
        second["name"] = json!("second");
        let mut first = first;
        first["name"] = json!("first");
        let spec = json!({
            "restartPolicy": "Never",
            "hostname": "db-0",
            "subdomain": "db",
            "hostAliases": [{"ip": "192.0.2.9", "hostnames": ["else"]}],
            "securityContext": {"sysctls": [{"name": "net.ipv4.tcp_fin_timeout", "value": "17"}]},
            "containers": [first, second],
        });
        create(&cluster, "pair", spec).await;
        cluster.reaches("pair", "/phase", json!("Succeeded")).await;
        let pod = cluster.pod("pair").await.unwrap();
        let ip = pod.status.clone().unwrap().pod_ip.unwrap();
        let uid = pod.metadata.uid.unwrap();
        let log = cluster
            .site
            .dir
            .path()
            .join(format!("pods/default_pair_{uid}/second/0.log"));
        let log = std::fs::read_to_string(log).unwrap();
        let named = format!("{ip}\tdb-0.db.default.svc.cluster.local\tdb-0");
        let expected = [
            "shared",
            "inside",
            "db-0",
            &named,
            "192.0.2.9\telse",
            "17",
            "eth0",
            "lo",
            "refused",
        ];
        let stdout: Vec<&str> = log
            .lines()
            .filter(|line| line.contains(" stdout "))
            .collect();
        assert_eq!(texts(&stdout.join("\n")), expected, "{log}");
        service.set_nonblocking(true).unwrap();
        assert!(
            service.accept().is_err(),
            "the machine's loopback was reached"
        );
        gone(&cluster, "pair").await;
    });
}

#[test]
fn policies_of_the_api_decide_who_reaches_a_pod_from_its_start() {
    on_a_machine(|| async {
        let cluster = with_addresses().await;
        let policy = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}], "ports": [{"port": 8080}]}],
        }});
        let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
        cluster.ask(Method::POST, policies, &policy).await;
        create(&cluster, "web", server()).await;
        // The node reaches its own pod under any policy.
        cluster
            .reaches("web", "/containerStatuses/0/ready", json!(true))
            .await;
        let web = address(&cluster, "web").await;
        let once = |script: String| json!({"restartPolicy": "Never", "dnsPolicy": "Default", "containers": [shell(&script)]});
        let ask = format!("busybox wget -q -T 2 -O - http://{web}:8080/ip 2>/dev/null");
        create(
            &cluster,
            "stranger",
            once(format!("{ask} || echo kept out")),
        )
        .await;
        assert_eq!(said(&cluster, "stranger").await, ["kept out"]);
        let until = format!("until {ask}; do busybox sleep 1; done");
        create(&cluster, "friend", once(until.clone())).await;
        assert_eq!(said(&cluster, "friend").await, *std::slice::from_ref(&web));
        // After the policy is deleted every connection passes, also waiting ones.
        create(&cluster, "waiting", once(until)).await;
        let running = json!("Running");
        cluster.reaches("waiting", "/phase", running).await;
        let of_web = format!("{policies}/web");
        cluster.ask(Method::DELETE, &of_web, &json!({})).await;
        assert_eq!(said(&cluster, "waiting").await, [web]);
        for name in ["web", "stranger", "friend", "waiting"] {
            gone(&cluster, name).await;
        }
    });
}
