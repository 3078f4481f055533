//! A pod's `/etc/resolv.conf` (pure), as upstream's kubelet forms it (`pkg/kubelet/network/dns`).

use crate::network::wants_cluster_dns;
use agent_proxy::DOMAIN;
use config_kube::k8s_openapi::api::core::v1::{Pod, PodDNSConfig, PodDNSConfigOption};
use std::net::IpAddr;

/// Most name servers: as many as C libraries read (`MAXNS`).
const MOST_SERVERS: usize = 3;
/// Most search paths, and the longest line of them in bytes: upstream's, by what resolvers can do.
const MOST_SEARCHES: usize = 32;
const LONGEST_SEARCHES: usize = 2048;
/// Longest search path: some versions of glibc abort where one is longer.
const LONGEST_SEARCH: usize = 253;

/// What is in a resolver file.
#[derive(Debug, Default)]
pub struct Resolver {
    servers: Vec<String>,
    searches: Vec<String>,
    options: Vec<String>,
    /// What was left out, in upstream's words, for an event `DNSConfigForming` of the pod.
    pub faults: Vec<String>,
}

impl Resolver {
    /// The name servers of the cluster, or the machine's own, and what the pod adds; only the
    /// latter with `dnsPolicy: None`. `machine`: the text of the machine's file. `dns`: the node's
    /// address at which it answers names of the cluster, if it does.
    pub fn of(pod: &Pod, machine: &str, dns: Option<IpAddr>) -> Self {
        let spec = pod.spec.as_ref();
        let own_only = spec.and_then(|spec| spec.dns_policy.as_deref()) == Some("None");
        let mut resolver = match dns.filter(|_| wants_cluster_dns(pod)) {
            _ if own_only => Self::default(),
            Some(dns) => Self::parse(machine).for_cluster(pod, dns),
            None => Self::parse(machine),
        };
        if let Some(config) = spec.and_then(|spec| spec.dns_config.as_ref()) {
            resolver.add(config);
        }
        resolver.limit();
        resolver
    }

    /// Servers and options add up; of search paths the last line counts. The root of all names
    /// (`.`) is no search path, and a dot at the end of one has no meaning (upstream's rules).
    fn parse(text: &str) -> Self {
        let mut read = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => read.servers.extend(words.next().map(str::to_owned)),
                Some("search") => {
                    let paths = words.filter(|path| *path != ".");
                    let paths = paths.map(|path| path.strip_suffix('.').unwrap_or(path));
                    read.searches = paths.map(str::to_owned).collect();
                }
                Some("options") => {
                    for option in words {
                        let name = option.split(':').next().unwrap_or_default();
                        read.put(name, option.to_owned());
                    }
                }
                Some(_) | None => {}
            }
        }
        read
    }

    /// The node answers, and names are searched for in the pod's own namespace first.
    fn for_cluster(self, pod: &Pod, dns: IpAddr) -> Self {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let own = [
            format!("{namespace}.svc.{DOMAIN}"),
            format!("svc.{DOMAIN}"),
            DOMAIN.to_owned(),
        ];
        Self {
            servers: vec![dns.to_string()],
            searches: distinct(own.into_iter().chain(self.searches)),
            options: vec!["ndots:5".to_owned()],
            faults: Vec::new(),
        }
    }

    fn add(&mut self, config: &PodDNSConfig) {
        let more = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
        self.servers = distinct(self.servers.drain(..).chain(more(&config.nameservers)));
        self.searches = distinct(self.searches.drain(..).chain(more(&config.searches)));
        for option in config.options.iter().flatten() {
            self.set(option);
        }
    }

    fn set(&mut self, option: &PodDNSConfigOption) {
        let name = option.name.as_deref().unwrap_or_default();
        let value = option.value.as_deref().filter(|value| !value.is_empty());
        let text = value.map_or_else(|| name.to_owned(), |value| format!("{name}:{value}"));
        self.put(name, text);
    }

    /// Puts an option into the place that it has: musl takes the first of one name, glibc the last.
    fn put(&mut self, name: &str, text: String) {
        let is_same = |one: &String| one.split(':').next() == Some(name);
        let place = self.options.iter().position(is_same);
        self.options.retain(|one| !is_same(one));
        self.options
            .insert(place.unwrap_or(self.options.len()), text);
    }

    fn limit(&mut self) {
        if self.servers.len() > MOST_SERVERS {
            self.servers.truncate(MOST_SERVERS);
            let line = self.servers.join(" ");
            self.faults.push(format!("Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {line}"));
        }
        let all = self.searches.len();
        self.searches.truncate(MOST_SEARCHES);
        self.searches.retain(|path| path.len() <= LONGEST_SEARCH);
        while self.searches.join(" ").len() > LONGEST_SEARCHES {
            self.searches.pop();
        }
        if self.searches.len() < all {
            let line = self.searches.join(" ");
            self.faults.push(format!("Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {line}"));
        }
    }

    /// The file.
    pub(crate) fn text(&self) -> String {
        let server = |server: &String| format!("nameserver {server}\n");
        let mut lines: Vec<String> = self.servers.iter().map(server).collect();
        for (key, list) in [("search", &self.searches), ("options", &self.options)] {
            if !list.is_empty() {
                lines.push(format!("{key} {}\n", list.join(" ")));
            }
        }
        lines.concat()
    }
}

/// The first of each.
fn distinct(all: impl Iterator<Item = String>) -> Vec<String> {
    let mut kept = Vec::new();
    for one in all {
        if !kept.contains(&one) {
            kept.push(one);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: Value) -> Pod {
        let meta = json!({"name": "web-0", "namespace": "shop"});
        let mut spec = spec;
        spec["containers"] = json!([]);
        serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
    }

    fn text_of(pod: &Pod, machine: &str, dns: Option<IpAddr>) -> String {
        Resolver::of(pod, machine, dns).text()
    }

    #[test]
    fn names_are_resolved_as_the_pod_says() {
        let machine = "nameserver 192.0.2.1\nsearch example\n";
        assert_eq!(text_of(&pod(json!({})), machine, None), machine);
        let dns = Some("10.1.0.1".parse().unwrap());
        let of_cluster = "nameserver 10.1.0.1\nsearch shop.svc.cluster.local svc.cluster.local cluster.local example\noptions ndots:5\n";
        assert_eq!(text_of(&pod(json!({})), machine, dns), of_cluster);
        let default = pod(json!({"dnsPolicy": "Default"}));
        assert_eq!(text_of(&default, machine, dns), machine);
        let on_host = pod(json!({"hostNetwork": true, "dnsPolicy": "ClusterFirst"}));
        assert_eq!(text_of(&on_host, machine, dns), machine);
        let on_host = pod(json!({"hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"}));
        assert_eq!(text_of(&on_host, machine, dns), of_cluster);
        let own = json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.2"], "options": [{"name": "ndots", "value": "2"}]}});
        assert_eq!(
            text_of(&pod(own), machine, dns),
            "nameserver 192.0.2.2\noptions ndots:2\n"
        );
        assert!(wants_cluster_dns(&pod(
            json!({"dnsPolicy": "ClusterFirst"})
        )));
        assert!(!wants_cluster_dns(&pod(json!({"dnsPolicy": "Default"}))));
        assert!(!wants_cluster_dns(&pod(json!({"hostNetwork": true}))));
    }

    #[test]
    fn what_a_pod_sets_takes_the_place_of_what_is_there_and_comes_once() {
        let option = |name: &str, value: &str| json!({"name": name, "value": value});
        let config = json!({
            "nameservers": ["10.1.0.1", "192.0.2.2"],
            "searches": ["example", "svc.cluster.local", "own.example"],
            "options": [option("ndots", "2"), {"name": "edns0"}, option("timeout", "1"), option("ndots", "3")],
        });
        let own = pod(json!({"dnsConfig": config}));
        let dns = Some("10.1.0.1".parse().unwrap());
        assert_eq!(
            text_of(&own, "search example\noptions rotate ndots:1\n", dns),
            "nameserver 10.1.0.1\nnameserver 192.0.2.2\nsearch shop.svc.cluster.local svc.cluster.local cluster.local example own.example\noptions ndots:3 edns0 timeout:1\n"
        );
        let own = pod(json!({"dnsPolicy": "Default", "dnsConfig": config}));
        let machine = "# a comment\nnameserver\t192.0.2.2\noptions rotate ndots:1 ndots:9\n";
        assert_eq!(
            text_of(&own, machine, dns),
            "nameserver 192.0.2.2\nnameserver 10.1.0.1\nsearch example svc.cluster.local own.example\noptions rotate ndots:3 edns0 timeout:1\n"
        );
    }

    #[test]
    fn the_machines_file_is_read_as_upstream_reads_it() {
        let machine = "nameserver 192.0.2.1\noptions edns0 ndots:1\nsearch a\nsearch . example. cluster.local.\noptions ndots:2\n";
        let default = pod(json!({"dnsPolicy": "Default"}));
        assert_eq!(
            text_of(&default, machine, None),
            "nameserver 192.0.2.1\nsearch example cluster.local\noptions edns0 ndots:2\n"
        );
        let text = text_of(&pod(json!({})), machine, Some("10.1.0.1".parse().unwrap()));
        let searches =
            "search shop.svc.cluster.local svc.cluster.local cluster.local example\noptions ";
        assert!(text.contains(searches), "{text}");
        // As hosts have it that search nothing.
        let nothing = "nameserver 192.0.2.1\nsearch .\n";
        assert_eq!(text_of(&default, nothing, None), "nameserver 192.0.2.1\n");
    }

    #[test]
    fn what_resolvers_cannot_take_is_left_out_and_reported() {
        let resolver = |servers: &[&str], searches: &[String]| {
            let config = json!({"nameservers": servers, "searches": searches});
            Resolver::of(
                &pod(json!({"dnsPolicy": "None", "dnsConfig": config})),
                "",
                None,
            )
        };
        let servers = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"];
        let cut = resolver(&servers, &[]);
        assert_eq!(cut.servers, servers[..3]);
        let words = "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: 192.0.2.1 192.0.2.2 192.0.2.3";
        assert_eq!(cut.faults, [words]);
        let many: Vec<String> = (0..33).map(|number| format!("s{number}")).collect();
        let cut = resolver(&servers[..3], &many);
        assert_eq!(cut.searches, many[..32]);
        let words = "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: s0 s1 ";
        assert!(cut.faults[0].starts_with(words), "{:?}", cut.faults);
        // Eight of 253 bytes fit with the spaces between them (2,031), a ninth does not.
        let long: Vec<String> = (0..9)
            .map(|number| number.to_string().repeat(253))
            .collect();
        assert_eq!(resolver(&[], &long).searches, long[..8]);
        let longer = ["a".to_owned(), "b".repeat(254), "c".to_owned()];
        assert_eq!(resolver(&[], &longer).searches, ["a", "c"]);
        let fine = resolver(&servers[..3], &many[..32]);
        assert_eq!((fine.searches.len(), fine.faults.len()), (32, 0));
    }
}
