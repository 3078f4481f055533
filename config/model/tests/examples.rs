//! Every example parses to what its comments say.

use config_model::machine::Membership;
use config_model::pod_range::PodRange;
use config_model::{ClusterConfig, Document, MachineConfig, parse};
use std::path::Path;

fn example(name: &str) -> Document {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples")
        .join(name);
    let text = std::fs::read(path).expect("the example is there");
    parse(text, name).unwrap_or_else(|faults| unreachable!("{faults}"))
}

fn machine(name: &str) -> MachineConfig {
    let document = example(name);
    let Document::Machine(config) = document else {
        unreachable!("{name} is of kind {}", document.kind())
    };
    *config
}

fn check_rules(cluster: &ClusterConfig) {
    for rule in &cluster.policy.rules {
        for key in &rule.images.release_keys {
            assert!(cluster.release_key(key).is_some(), "{key}");
        }
        for issuer in &rule.ek.issuers {
            assert!(cluster.ek_issuer(issuer).is_some(), "{issuer}");
        }
    }
}

#[test]
fn every_example_parses() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        example(&name);
        count += 1;
    }
    assert_eq!(count, 10);
}

#[test]
fn a_worker_needs_only_its_master() {
    let worker = machine("worker.toml");
    let master = worker.master().unwrap();
    assert_eq!(
        master.endpoints[0].to_string(),
        "https://192.168.77.10:6443"
    );
    assert_eq!(master.ca_pins.len(), 1);
    assert!(
        worker.name.is_none()
            && worker.network.dhcp_everywhere()
            && worker.registries.list.is_empty()
    );
    assert_eq!(
        (
            worker.registries.default.as_str(),
            worker.registries.has_credentials()
        ),
        ("docker.io", false)
    );
    assert_eq!(worker.node.max_pods, 110);
    assert_eq!(worker.node.reserved.memory.to_string(), "256Mi");
}

#[test]
fn a_cloud_config_carries_the_same_document() {
    assert_eq!(machine("worker.cloud-config.yaml"), machine("worker.toml"));
}

#[test]
fn a_worker_may_set_up_its_network() {
    let worker = machine("worker-static-network.toml");
    let [fixed, dhcp] = worker.network.interfaces.as_slice() else {
        panic!("{:?}", worker.network)
    };
    assert_eq!(fixed.selector.to_string(), "52:54:00:12:34:56");
    assert!(!fixed.dhcp && dhcp.dhcp);
    assert_eq!(fixed.addresses[1].to_string(), "fd00:77::11/64");
    assert_eq!(fixed.gateway.unwrap().to_string(), "192.168.77.1");
    assert_eq!(
        worker.registries.list[0].mirrors[1].to_string(),
        "http://192.168.77.1:5000"
    );
    assert!(worker.registries.list[0].insecure);
    let allows = |path: &str, writable| {
        config_model::host_path::allows(&worker.node.host_paths, path, writable)
    };
    assert!(
        allows("/etc/ssl/certs/ca.pem", false).is_ok() && allows("/etc/ssl/certs", true).is_err()
    );
    assert!(allows("/var/lib/cache/a", true).is_ok() && allows("/var/lib", false).is_err());
}

#[test]
fn pods_are_privileged_only_where_the_user_data_says_so() {
    assert!(machine("worker-privileged.toml").node.privileged);
    for other in [
        "worker.toml",
        "worker-static-network.toml",
        "worker-discovery.toml",
        "master.toml",
    ] {
        assert!(!machine(other).node.privileged, "{other}");
    }
}

#[test]
fn a_worker_may_configure_registries() {
    use config_model::registry::Credential;
    let registries = machine("worker-registries.toml").registries;
    assert_eq!(
        (registries.default.as_str(), registries.ca.len()),
        ("registry.example", 1)
    );
    let [own, hub, mirror] = registries.list.as_slice() else {
        panic!("{registries:?}")
    };
    let Some(Credential::Password { username, password }) = &own.credential else {
        panic!("{own:?}")
    };
    assert_eq!(
        (username.as_str(), password.reveal()),
        ("puller", "not a real one")
    );
    assert_eq!(own.token_hosts[0].to_string(), "auth.example");
    assert!(hub.mirrors_only && hub.mirrors[0].to_string() == "https://mirror.example");
    assert!(
        matches!(&mirror.credential, Some(Credential::IdentityToken(_))) && mirror.ca.len() == 1
    );
    assert!(
        !format!("{registries:?}").contains("real"),
        "{registries:?}"
    );
}

#[test]
fn the_first_master_founds_a_cluster() {
    let master = machine("master.toml");
    let Membership::Founds(cluster) = &master.membership else {
        panic!("{:?}", master.membership)
    };
    check_rules(cluster);
    assert_eq!(cluster.name.as_str(), "lab");
    assert!(cluster.admin_key.is_some());
    let [machines, others] = cluster.policy.rules.as_slice() else {
        panic!("{:?}", cluster.policy)
    };
    assert_eq!(
        (machines.certificate.ttl_seconds, machines.images.min_svn),
        (1800, 7)
    );
    assert_eq!(machines.ek.issuers, ["lab-ca"]);
    // The master's own node renews by the same rule.
    assert_eq!(machines.certificate.roles, ["worker", "master"]);
    assert!(
        machines.events.secure_boot && !machines.events.allow_unknown && machines.config.measured
    );
    assert_eq!(
        (
            machines.ek.hashes.as_str(),
            machines.config.digests.as_str()
        ),
        ("inventory", "inventory")
    );
    assert_eq!(others.policy, config_kube::PolicyName::Queue);
}

#[test]
fn a_master_on_a_plain_host_needs_no_machine() {
    let document = example("cluster.toml");
    let Document::Cluster(cluster) = document else {
        panic!("{document:?}")
    };
    check_rules(&cluster);
    assert_eq!(cluster.admin_key, None);
    let services = |cluster: &ClusterConfig| -> Vec<String> {
        let all = cluster.service_cidrs.iter();
        all.map(ToString::to_string).collect()
    };
    assert_eq!(services(&cluster), ["10.96.0.0/12"]);
    assert_eq!(cluster.node_ports, 30000..=32767);
    let pods = |range: &str, node_prefix| {
        let range = range.parse().unwrap();
        PodRange { range, node_prefix }
    };
    assert_eq!(cluster.pod_ranges, [pods("10.244.0.0/16", 24)]);
    let read = |keys: &str| {
        let text = format!("version = 1\nkind = \"cluster\"\n[cluster]\n{keys}\n");
        let Document::Cluster(cluster) = parse(text.into_bytes(), "x").unwrap() else {
            panic!("no cluster")
        };
        cluster
    };
    let ranges = |keys: &str| read(keys).pod_ranges;
    assert_eq!(ranges("pod_cidrs = []"), []);
    let small = "pod_cidrs = [\"10.0.0.0/26\"]\nnode_cidr_mask_ipv4 = 28";
    assert_eq!(ranges(small), [pods("10.0.0.0/26", 28)]);
    // Without a mask a node's part is as large as the range allows.
    let small = "pod_cidrs = [\"10.0.0.0/26\"]";
    assert_eq!(ranges(small), [pods("10.0.0.0/26", 26)]);
    let both = read(
        "pod_cidrs = [\"10.0.0.0/16\", \"fd00:1::/56\"]\nnode_cidr_mask_ipv6 = 72\n\
         service_cidr = [\"fd00:2::/112\", \"10.96.0.0/16\"]",
    );
    assert_eq!(services(&both), ["fd00:2::/112", "10.96.0.0/16"]);
    let wanted = [pods("10.0.0.0/16", 24), pods("fd00:1::/56", 72)];
    assert_eq!(both.pod_ranges, wanted);
    let six = read("pod_cidrs = [\"fd00:1::/56\"]\nservice_cidr = \"fd00:2::/112\"");
    assert_eq!(six.pod_ranges, [pods("fd00:1::/56", 64)]);
    assert_eq!(cluster.policy.rules[0].config.digests, "");
}

#[test]
fn policies_and_images_are_documents_too() {
    let Document::Policy(policy) = example("policy.toml") else {
        panic!("not a policy")
    };
    assert_eq!(
        (policy.name.as_str(), policy.spec.rules.len()),
        ("cluster", 2)
    );
    let Document::Image(image) = example("image.toml") else {
        panic!("not an image")
    };
    assert_eq!(image.role, Some(config_model::rule::Role::Worker));
    assert_eq!(image.cmdline_extra.as_str(), "quiet loglevel=4");
    assert_eq!(
        image.lockdown,
        config_model::image::Lockdown::Confidentiality
    );
}
