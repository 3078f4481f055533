//! A pod's network, host name and names (pure): the specification of its sandbox, and its
//! `/etc/hosts`. Its `/etc/resolv.conf` is [`crate::resolver`]'s.

use agent_cluster::SandboxSpec;
use agent_cluster::settings::{SAFE, dotted, path};
use agent_pods::is_on_host;
use agent_proxy::{DOMAIN, Key, Known, Service};
use config_kube::identity::API_SERVICE;
use config_kube::k8s_openapi::api::core::v1::{Pod, PodSpec};
use config_model::sysctl::{Namespace, Sysctls};
use std::net::IpAddr;

/// Longest host name (`HOST_NAME_MAX` less one, upstream's and DNS's limit of a label).
const LONGEST_NAME: usize = 63;
/// Longest name that the kernel takes for a host (`HOST_NAME_MAX`).
const LONGEST_KERNEL_NAME: usize = 64;
/// Bytes of variables of services beyond which no more are made: twice a container's limit, so that
/// one whose own variables replace some of these is still refused. A port of a few bytes has five
/// variables.
const MOST_VARIABLES: usize = 4 << 20;
/// The head of a hosts file, as upstream's kubelet writes it.
const HOSTS: &str = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\n\
    fe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n";

fn spec(pod: &Pod) -> Option<&PodSpec> {
    pod.spec.as_ref()
}

/// What a pod asks of its sandbox. `listed`: kernel settings that this machine's configuration
/// allows beside the safe ones. They may be others than those by which the pod was admitted: a pod
/// gets a new sandbox after a reboot.
///
/// # Errors
/// Its host's name is too long, or it does not get a kernel setting that it asks for.
pub fn wanted(pod: &Pod, uid: &str, listed: &[Sysctls]) -> Result<SandboxSpec, String> {
    if let Some(fault) = spec(pod).and_then(|spec| setting_fault(spec, listed)) {
        return Err(fault);
    }
    let network = !is_on_host(pod);
    let name = kernel_name(pod)?;
    let sysctls = spec(pod).and_then(|spec| spec.security_context.as_ref()?.sysctls.as_ref());
    let settings = sysctls
        .into_iter()
        .flatten()
        .map(|one| (path(&one.name), one.value.clone()));
    Ok(SandboxSpec {
        uid: uid.to_owned(),
        network,
        ipc: spec(pod).is_none_or(|spec| spec.host_ipc != Some(true)),
        users: spec(pod).is_some_and(|spec| spec.host_users == Some(false)),
        hostname: network.then_some(name),
        settings: settings.collect(),
    })
}

/// Why a pod does not get a kernel setting that it asks for, in upstream's words. `listed`: those
/// that this machine's configuration allows beside the safe ones.
pub(crate) fn setting_fault(spec: &PodSpec, listed: &[Sysctls]) -> Option<String> {
    let asked = spec.security_context.as_ref()?.sysctls.as_ref()?;
    asked.iter().find_map(|one| {
        let name = dotted(&one.name);
        let is_path = |part: &str| !part.is_empty() && part != "." && part != "..";
        let is_plain = path(&name).split('/').all(is_path);
        let is_listed = || listed.iter().any(|listed| listed.means(&name));
        let allowed = is_plain && (SAFE.contains(&name.as_str()) || is_listed());
        let (word, with_host) = match Namespace::of(&name).filter(|_| allowed) {
            None => return Some(format!("forbidden sysctl: {name:?} not allowlisted")),
            Some(Namespace::Network) => ("net", spec.host_network),
            Some(Namespace::Ipc) => ("ipc", spec.host_ipc),
        };
        let refused = || format!("forbidden sysctl: {name:?} not allowed with host {word} enabled");
        (with_host == Some(true)).then(refused)
    })
}

/// Why a pod does not get a port of the node that it asks for: it names an address of a family of
/// which the node's pods have none. `own`: the node's addresses in its ranges of pod addresses.
pub fn port_fault(pod: &Pod, own: &[IpAddr]) -> Option<String> {
    let spec = spec(pod).filter(|_| !is_on_host(pod))?;
    let beside = spec.init_containers.iter().flatten();
    let containers = spec.containers.iter().chain(beside);
    let mut ports = containers.flat_map(|one| one.ports.iter().flatten());
    ports.find_map(|port| {
        let number = port.host_port.filter(|number| *number > 0)?;
        let at: IpAddr = port.host_ip.as_deref()?.parse().ok()?;
        let family = if at.is_ipv6() { "IPv6" } else { "IPv4" };
        let served = at.is_unspecified() || own.iter().any(|one| one.is_ipv6() == at.is_ipv6());
        (!served).then(|| format!("hostPort {number} at {at}: pods of this node have no {family}"))
    })
}

/// What `uname` says in a pod with a network of its own: its host name, or the whole name where it
/// asks for that.
///
/// # Errors
/// In upstream's words, if the kernel does not take a name of that length.
pub(crate) fn kernel_name(pod: &Pod) -> Result<String, String> {
    let (name, domain) = (hostname(pod), domain(pod));
    let whole = spec(pod).is_some_and(|spec| spec.set_hostname_as_fqdn == Some(true));
    let Some(domain) = domain.filter(|_| whole) else {
        return Ok(name);
    };
    let name = format!("{name}.{domain}");
    let (most, length) = (LONGEST_KERNEL_NAME, name.len());
    if length > most {
        return Err(format!(
            "Failed to construct FQDN from pod hostname and cluster domain, FQDN {name} is too long ({most} characters is the max, \
             {length} characters requested)"
        ));
    }
    Ok(name)
}

fn overridden(pod: &Pod) -> Option<String> {
    spec(pod)?.hostname_override.clone()
}

/// The domain of a pod that names a subdomain.
fn domain(pod: &Pod) -> Option<String> {
    let subdomain = spec(pod)?.subdomain.clone();
    let subdomain = subdomain.filter(|subdomain| !subdomain.is_empty())?;
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    overridden(pod)
        .is_none()
        .then(|| format!("{subdomain}.{namespace}.svc.{DOMAIN}"))
}

/// The host name of a pod with a network of its own: what it asks for, or its own name, cut where
/// that is too long.
pub(crate) fn hostname(pod: &Pod) -> String {
    if let Some(name) = overridden(pod) {
        return name;
    }
    let asked = spec(pod).and_then(|spec| spec.hostname.clone());
    let name = asked
        .filter(|name| !name.is_empty())
        .or_else(|| pod.metadata.name.clone())
        .unwrap_or_default();
    let short: String = name.chars().take(LONGEST_NAME).collect();
    short.trim_end_matches(['-', '.']).to_owned()
}

/// A pod's `/etc/hosts`: the machine's where it is on that network, else the pod's own; its aliases
/// are added to either. `name`: the machine's. `addresses`: the pod's, which on the machine's
/// network are the machine's.
pub(crate) fn hosts_text(pod: &Pod, machine: &str, name: &str, addresses: &[IpAddr]) -> String {
    let (mut text, names) = if is_on_host(pod) {
        (machine.to_owned(), name.to_owned())
    } else {
        (HOSTS.to_owned(), names(pod))
    };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    // An image's file is the same on all machines: it lacks the name of this one.
    let has_name = text
        .lines()
        .any(|line| line.split_whitespace().skip(1).any(|one| one == names));
    if !has_name && !names.is_empty() {
        let line = |address: &IpAddr| format!("{address}\t{names}\n");
        text.extend(addresses.iter().map(line));
    }
    let aliases = spec(pod).and_then(|spec| spec.host_aliases.as_deref());
    let lines = aliases.unwrap_or_default().iter().map(|alias| {
        let names: Vec<&str> = alias
            .hostnames
            .iter()
            .flatten()
            .map(String::as_str)
            .collect();
        format!("{}\t{}\n", alias.ip, names.join("\t"))
    });
    lines.fold(text, |text, line| text + &line)
}

/// The names by which a pod knows itself: with a subdomain the whole name first.
fn names(pod: &Pod) -> String {
    let name = hostname(pod);
    match domain(pod) {
        Some(domain) => format!("{name}.{domain}\t{name}"),
        None => name,
    }
}

/// Whether a pod asks for names of the cluster. One on the machine's network has to say so by a
/// policy of its own.
pub fn wants_cluster_dns(pod: &Pod) -> bool {
    match spec(pod).and_then(|spec| spec.dns_policy.as_deref()) {
        None | Some("ClusterFirst") => !is_on_host(pod),
        Some(policy) => policy == "ClusterFirstWithHostNet",
    }
}

/// The variables by which a pod finds the services of its namespace, and the API: upstream's, which
/// are Docker's links. None before the services are known.
pub fn service_variables(known: &Known, pod: &Pod) -> Option<Vec<(String, String)>> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let all = spec(pod).and_then(|spec| spec.enable_service_links) != Some(false);
    let services = known.services.as_ref()?;
    let is_api = |key: &Key| (&*key.namespace, &*key.name) == API_SERVICE;
    let api = services.iter().filter(|(key, _)| is_api(key));
    // After the API's: one of this name in the pod's own namespace stands for itself.
    let own = services
        .iter()
        .filter(|(key, _)| all && key.namespace == namespace && !is_api(key));
    let mut found = Vec::new();
    let mut bytes = 0;
    for (key, service) in api.chain(own) {
        // A container that would have more is refused.
        if bytes > MOST_VARIABLES {
            break;
        }
        for (name, value) in variables(&key.name, service) {
            bytes += name.len() + value.len();
            found.push((name, value));
        }
    }
    Some(found)
}

fn variables(name: &str, service: &Service) -> Vec<(String, String)> {
    let name = name.to_uppercase().replace('-', "_");
    // In their order in the service.
    let mut ports: Vec<(&str, &str, u16)> = Vec::new();
    let mut sctp = service.sctp_ports.iter().peekable();
    for port in &service.ports {
        while let Some((_, own, number)) = sctp.next_if(|(place, ..)| *place <= ports.len()) {
            ports.push((own.as_str(), "SCTP", *number));
        }
        ports.push((port.name.as_str(), port.protocol.name(), port.port));
    }
    ports.extend(sctp.map(|(_, own, number)| (own.as_str(), "SCTP", *number)));
    let (Some(address), Some((_, _, first))) = (service.addresses.first(), ports.first()) else {
        return Vec::new();
    };
    let host = if address.is_ipv6() {
        format!("[{address}]")
    } else {
        address.to_string()
    };
    let mut all = vec![
        (format!("{name}_SERVICE_HOST"), address.to_string()),
        (format!("{name}_SERVICE_PORT"), first.to_string()),
    ];
    for (port, _, number) in ports.iter().filter(|(port, ..)| !port.is_empty()) {
        let own = port.to_uppercase().replace('-', "_");
        all.push((format!("{name}_SERVICE_PORT_{own}"), number.to_string()));
    }
    for (place, (_, protocol, number)) in ports.iter().enumerate() {
        let small = protocol.to_lowercase();
        let url = format!("{small}://{host}:{number}");
        if place == 0 {
            all.push((format!("{name}_PORT"), url.clone()));
        }
        let prefix = format!("{name}_PORT_{number}_{protocol}");
        all.push((prefix.clone(), url));
        all.push((format!("{prefix}_PROTO"), small));
        all.push((format!("{prefix}_PORT"), number.to_string()));
        all.push((format!("{prefix}_ADDR"), address.to_string()));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::k8s_openapi::api::core::v1 as core;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn pod(spec: Value) -> Pod {
        let meta = json!({"name": "web-0", "namespace": "shop"});
        let mut spec = spec;
        spec["containers"] = json!([]);
        serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
    }

    #[test]
    fn hosts_are_the_machines_on_its_network_and_else_the_pods_own() {
        let aliases = json!([{"ip": "192.0.2.9", "hostnames": ["a", "b"]}]);
        let on_host = pod(json!({"hostNetwork": true, "hostAliases": aliases}));
        assert_eq!(
            hosts_text(&on_host, "127.0.0.1 localhost", "node-1", &[]),
            "127.0.0.1 localhost\n192.0.2.9\ta\tb\n"
        );
        let own = [
            "198.51.100.7".parse().unwrap(),
            "2001:db8::7".parse().unwrap(),
        ];
        let on_host = pod(json!({"hostNetwork": true}));
        assert_eq!(
            hosts_text(&on_host, "127.0.0.1 localhost\n", "node-1", &own),
            "127.0.0.1 localhost\n198.51.100.7\tnode-1\n2001:db8::7\tnode-1\n"
        );
        let named = "127.0.1.1 node-1.example node-1\n";
        assert_eq!(hosts_text(&on_host, named, "node-1", &own), named);
        let own = pod(json!({"hostAliases": aliases}));
        let address = ["10.1.0.2".parse().unwrap()];
        let text = hosts_text(&own, "192.0.2.1 secret-of-the-machine", "node-1", &address);
        assert_eq!(text, format!("{HOSTS}10.1.0.2\tweb-0\n192.0.2.9\ta\tb\n"));
        let named = pod(json!({"hostname": "first", "subdomain": "db"}));
        let text = hosts_text(&named, "", "", &address);
        assert!(
            text.ends_with("10.1.0.2\tfirst.db.shop.svc.cluster.local\tfirst\n"),
            "{text}"
        );
    }

    #[test]
    fn a_long_name_is_cut_where_a_label_ends() {
        let mut long = pod(json!({}));
        long.metadata.name = Some(format!("{}.{}", "a".repeat(62), "b".repeat(20)));
        assert_eq!(hostname(&long), "a".repeat(62));
    }

    #[test]
    fn a_sandbox_has_what_the_pod_does_not_share_with_the_machine() {
        let own = wanted(&pod(json!({"hostname": "h"})), "u", &[]).unwrap();
        assert_eq!(
            (own.network, own.ipc, own.hostname.as_deref()),
            (true, true, Some("h"))
        );
        let shared = pod(json!({"hostNetwork": true, "hostIPC": true}));
        let shared = wanted(&shared, "u", &[]).unwrap();
        assert_eq!(
            (shared.network, shared.ipc, shared.hostname),
            (false, false, None)
        );
        let sysctls = json!([{"name": "net/ipv4/tcp_fin_timeout", "value": "5"}]);
        let set = pod(json!({"securityContext": {"sysctls": sysctls}}));
        let set = wanted(&set, "u", &[]).unwrap();
        assert_eq!(
            set.settings,
            [("net/ipv4/tcp_fin_timeout".to_owned(), "5".to_owned())]
        );
    }

    #[test]
    fn a_sandbox_has_no_setting_that_the_machine_does_not_allow_any_more() {
        let sysctls = json!([{"name": "net.core.somaxconn", "value": "4096"}]);
        let asks = pod(json!({"securityContext": {"sysctls": sysctls}}));
        let listed: [Sysctls; 1] = ["net.core.somaxconn".parse().unwrap()];
        assert_eq!(wanted(&asks, "u", &listed).unwrap().settings.len(), 1);
        let refused = wanted(&asks, "u", &[]).unwrap_err();
        assert!(refused.contains("not allowlisted"), "{refused}");
    }

    #[test]
    fn a_pod_may_have_its_whole_name_or_another_as_its_hosts() {
        let named = |spec: Value| {
            let pod = pod(spec);
            let address = ["10.1.0.2".parse().unwrap()];
            let hosts = hosts_text(&pod, "", "", &address);
            kernel_name(&pod).map(|name| (name, hosts.replace(HOSTS, "")))
        };
        let whole = "web-0.db.shop.svc.cluster.local";
        let line = format!("10.1.0.2\t{whole}\tweb-0\n");
        let short = json!({"subdomain": "db"});
        assert_eq!(named(short), Ok(("web-0".to_owned(), line.clone())));
        let full = json!({"subdomain": "db", "setHostnameAsFQDN": true});
        assert_eq!(named(full), Ok((whole.to_owned(), line)));
        let none = json!({"setHostnameAsFQDN": true});
        assert_eq!(named(none).unwrap().0, "web-0");
        let own = json!({"subdomain": "db", "hostname": "x", "hostnameOverride": "a.example"});
        let line = "10.1.0.2\ta.example\n".to_owned();
        assert_eq!(named(own), Ok(("a.example".to_owned(), line)));
        let long = json!({"subdomain": "d".repeat(40), "setHostnameAsFQDN": true});
        let words = named(long).unwrap_err();
        assert!(
            words.contains("is too long (64 characters is the max, 69 characters"),
            "{words}"
        );
    }

    #[test]
    fn a_port_at_an_address_of_a_family_that_pods_lack_is_refused() {
        let fault = |own: &[&str], port: Value, on_host: bool| {
            let ports = json!([{"name": "c", "ports": [port]}]);
            let spec = json!({"containers": ports, "hostNetwork": on_host});
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            let own: Vec<IpAddr> = own.iter().map(|at| at.parse().unwrap()).collect();
            port_fault(&pod, &own)
        };
        let at = |at: &str| json!({"containerPort": 80, "hostPort": 8080, "hostIP": at});
        let (v4, both) = (["10.1.0.1"], ["10.1.0.1", "fd00:1::1"]);
        for fine in ["192.0.2.1", "0.0.0.0", "::", ""] {
            assert_eq!(fault(&v4, at(fine), false), None, "{fine}");
        }
        let text = fault(&v4, at("2001:db8::1"), false).unwrap();
        assert!(text.contains("have no IPv6"), "{text}");
        assert_eq!(fault(&v4, at("2001:db8::1"), true), None);
        assert_eq!(fault(&both, at("2001:db8::1"), false), None);
        let text = fault(&both[1..], at("192.0.2.1"), false).unwrap();
        assert!(text.contains("have no IPv4"), "{text}");
    }

    /// The last value of each variable, as a container sees them.
    fn variables_of(services: &[(&str, &str, Value)], pod: &Pod) -> Vec<String> {
        let services = services.iter().map(|(namespace, name, spec)| {
            let meta = json!({"namespace": namespace, "name": name});
            let service = json!({"metadata": meta, "spec": spec});
            let service: core::Service = serde_json::from_value(service).unwrap();
            let key = Arc::new(Key::of(&service.metadata));
            (key, Arc::new(Service::read(service)))
        });
        let known = Known {
            services: Some(services.collect()),
            ..Known::default()
        };
        let all: BTreeMap<_, _> = service_variables(&known, pod)
            .unwrap()
            .into_iter()
            .collect();
        let lines = all
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"));
        lines.collect()
    }

    #[test]
    fn services_of_the_pods_namespace_are_in_its_variables_as_upstream_writes_them() {
        let ports = json!([
            {"name": "http-alt", "port": 8080},
            {"name": "dns", "port": 53, "protocol": "UDP"},
        ]);
        let services = [
            (
                "other",
                "web",
                json!({"clusterIP": "10.96.0.8", "clusterIPs": ["10.96.0.8"], "ports": ports}),
            ),
            (
                "shop",
                "headless",
                json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": ports}),
            ),
            (
                "shop",
                "my-web",
                json!({"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9", "fd00::9"], "ports": ports}),
            ),
            (
                "shop",
                "six",
                json!({"clusterIP": "fd00::6", "clusterIPs": ["fd00::6"], "ports": [{"port": 1}]}),
            ),
        ];
        assert_eq!(
            variables_of(&services, &pod(json!({}))),
            [
                "MY_WEB_PORT=tcp://10.96.0.9:8080",
                "MY_WEB_PORT_53_UDP=udp://10.96.0.9:53",
                "MY_WEB_PORT_53_UDP_ADDR=10.96.0.9",
                "MY_WEB_PORT_53_UDP_PORT=53",
                "MY_WEB_PORT_53_UDP_PROTO=udp",
                "MY_WEB_PORT_8080_TCP=tcp://10.96.0.9:8080",
                "MY_WEB_PORT_8080_TCP_ADDR=10.96.0.9",
                "MY_WEB_PORT_8080_TCP_PORT=8080",
                "MY_WEB_PORT_8080_TCP_PROTO=tcp",
                "MY_WEB_SERVICE_HOST=10.96.0.9",
                "MY_WEB_SERVICE_PORT=8080",
                "MY_WEB_SERVICE_PORT_DNS=53",
                "MY_WEB_SERVICE_PORT_HTTP_ALT=8080",
                "SIX_PORT=tcp://[fd00::6]:1",
                "SIX_PORT_1_TCP=tcp://[fd00::6]:1",
                "SIX_PORT_1_TCP_ADDR=fd00::6",
                "SIX_PORT_1_TCP_PORT=1",
                "SIX_PORT_1_TCP_PROTO=tcp",
                "SIX_SERVICE_HOST=fd00::6",
                "SIX_SERVICE_PORT=1",
            ]
        );
    }

    #[test]
    fn no_more_variables_of_services_are_made_than_a_container_may_have() {
        let port = |number: u16| json!({"name": format!("p{number}"), "port": number});
        let ports: Vec<Value> = (1..=5000).map(port).collect();
        let spec = json!({"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ports": ports});
        let service = json!({"metadata": {"namespace": "shop"}, "spec": spec});
        let service: core::Service = serde_json::from_value(service).unwrap();
        let service = Arc::new(Service::read(service));
        let many = (0..200).map(|number| {
            let (namespace, name) = ("shop".to_owned(), format!("web-{number}"));
            (Arc::new(Key { namespace, name }), Arc::clone(&service))
        });
        let known = Known {
            services: Some(many.collect()),
            ..Known::default()
        };
        let of_one: usize = variables("web-199", &service)
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        let all = service_variables(&known, &pod(json!({}))).unwrap();
        let bytes: usize = all
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        assert!(bytes > MOST_VARIABLES, "the container is refused");
        assert!(bytes <= MOST_VARIABLES + of_one, "{bytes}");
    }

    #[test]
    fn ports_of_sctp_have_variables_in_their_place() {
        let ports = json!([
            {"name": "a", "port": 1, "protocol": "SCTP"}, {"name": "b", "port": 2, "protocol": "TCP"},
            {"name": "c", "port": 3, "protocol": "SCTP"},
        ]);
        let spec = json!({"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ports": ports});
        let all = variables_of(&[("shop", "db", spec)], &pod(json!({})));
        for line in [
            "DB_SERVICE_PORT=1",
            "DB_SERVICE_PORT_A=1",
            "DB_SERVICE_PORT_B=2",
            "DB_SERVICE_PORT_C=3",
            "DB_PORT=sctp://10.96.0.9:1",
            "DB_PORT_1_SCTP_PROTO=sctp",
            "DB_PORT_2_TCP=tcp://10.96.0.9:2",
            "DB_PORT_3_SCTP_PORT=3",
        ] {
            assert!(all.iter().any(|own| own == line), "{line}: {all:?}");
        }
    }

    #[test]
    fn without_service_links_a_pod_has_the_variables_of_the_api_alone() {
        let at = |address: &str| {
            let port = json!({"name": "https", "port": 443});
            json!({"clusterIP": address, "clusterIPs": [address], "ports": [port]})
        };
        let services = [
            ("default", "kubernetes", at("10.96.0.1")),
            ("default", "web", at("10.96.0.2")),
            ("shop", "web", at("10.96.0.3")),
        ];
        let hosts = |services: &[(&str, &str, Value)], namespace: &str, spec: Value| {
            let mut pod = pod(spec);
            pod.metadata.namespace = Some(namespace.to_owned());
            let all = variables_of(services, &pod).into_iter();
            let hosts = all.filter(|line| line.contains("_SERVICE_HOST="));
            hosts.collect::<Vec<_>>()
        };
        let api = "KUBERNETES_SERVICE_HOST=10.96.0.1";
        for (namespace, own) in [("shop", "10.96.0.3"), ("default", "10.96.0.2")] {
            let web = format!("WEB_SERVICE_HOST={own}");
            assert_eq!(hosts(&services, namespace, json!({})), [api, &web]);
            let alone = json!({"enableServiceLinks": false});
            assert_eq!(hosts(&services, namespace, alone), [api], "{namespace}");
        }
        // Whatever the order of their namespaces.
        for namespace in ["a", "shop"] {
            let both = [
                ("default", "kubernetes", at("10.96.0.1")),
                (namespace, "kubernetes", at("10.96.0.4")),
            ];
            let own = "KUBERNETES_SERVICE_HOST=10.96.0.4";
            assert_eq!(hosts(&both, namespace, json!({})), [own]);
            let alone = json!({"enableServiceLinks": false});
            assert_eq!(hosts(&both, namespace, alone), [api]);
        }
        assert_eq!(service_variables(&Known::default(), &pod(json!({}))), None);
    }

    #[test]
    fn settings_that_reach_beyond_the_pod_are_refused_by_name() {
        let fault = |spec: Value, name: &str| {
            let mut spec = spec;
            spec["securityContext"] = json!({"sysctls": [{"name": name, "value": "1"}]});
            let listed = ["kernel.msg*", "net.ipv4.conf.*"].map(|listed| listed.parse().unwrap());
            setting_fault(pod(spec).spec.as_ref().unwrap(), &listed)
        };
        assert_eq!(fault(json!({}), "net.ipv4.tcp_syncookies"), None);
        assert_eq!(
            fault(json!({"hostNetwork": true}), "kernel.shm_rmid_forced"),
            None
        );
        for listed in ["kernel.msgmax", "net/ipv4/conf/eth0.1/forwarding"] {
            assert_eq!(fault(json!({}), listed), None);
        }
        for name in [
            "net.core.somaxconn",
            "kernel/core_pattern",
            "net.ipv4.ip_forward",
            "net/ipv4/conf/../../../kernel/core_pattern",
            "net.ipv4.conf...x",
        ] {
            let text = format!("forbidden sysctl: {:?} not allowlisted", dotted(name));
            assert_eq!(fault(json!({}), name), Some(text));
        }
        for (shared, namespace, name) in [
            ("hostNetwork", "net", "net.ipv4.tcp_syncookies"),
            ("hostIPC", "ipc", "kernel.shm_rmid_forced"),
            ("hostIPC", "ipc", "kernel.msgmax"),
        ] {
            let text =
                format!("forbidden sysctl: {name:?} not allowed with host {namespace} enabled");
            assert_eq!(fault(json!({shared: true}), name), Some(text));
        }
    }
}
