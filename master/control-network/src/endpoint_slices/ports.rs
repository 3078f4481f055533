//! Resolves the ports of a service in the pods behind it, and finds lists of ports by their content
//! (pure).
//!
//! A service can have a thousand ports, and thousands of pods: names are resolved once for all pods
//! of one template, and no list is compared with all others.

use super::views::{Backend, NamedPort, PortView, Target};
use config_kube::k8s_openapi::api::discovery::v1::EndpointPort;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc;

/// The numbers of a service's ports in a pod, in the service's order; `None` where the pod has no
/// port of the name.
pub(crate) type Numbers = Arc<[Option<i32>]>;

/// The different lists of numbers that the pods of a service have.
#[derive(Debug)]
pub(crate) struct PortLists<'a> {
    ports: &'a [PortView],
    /// In the order in which they were found.
    lists: Vec<Numbers>,
    by_numbers: HashMap<Numbers, usize>,
    /// By the address in memory of a pod's named ports, which the pods of a template share
    /// ([`Backend`]). The pods outlive this map.
    by_pod: HashMap<*const [NamedPort], usize>,
}

impl<'a> PortLists<'a> {
    pub(crate) fn of(ports: &'a [PortView]) -> Self {
        Self {
            ports,
            lists: Vec::new(),
            by_numbers: HashMap::new(),
            by_pod: HashMap::new(),
        }
    }

    /// The index of a pod's list; a new list is appended.
    pub(crate) fn of_pod(&mut self, pod: &'a Backend) -> usize {
        let place = Arc::as_ptr(&pod.ports);
        if let Some(known) = self.by_pod.get(&place) {
            return *known;
        }
        let numbers = self.numbers(&pod.ports);
        let list = *self.by_numbers.entry(numbers).or_insert_with_key(|new| {
            self.lists.push(Arc::clone(new));
            self.lists.len() - 1
        });
        self.by_pod.insert(place, list);
        list
    }

    fn numbers(&self, named: &[NamedPort]) -> Numbers {
        // Of several ports with one name and protocol the first counts.
        let mut known: HashMap<[&str; 2], i32> = HashMap::with_capacity(named.len());
        for (name, protocol, number) in named {
            known.entry([name, protocol]).or_insert(*number);
        }
        let number = |port: &PortView| match &port.target {
            Target::Number(number) => Some(*number),
            Target::Name(name) => {
                let found = known.get(&[name.as_str(), port.protocol.as_str()]);
                found.copied()
            }
        };
        self.ports.iter().map(number).collect()
    }

    /// A list by its index.
    pub(crate) fn get(&self, list: usize) -> Numbers {
        self.lists.get(list).cloned().unwrap_or_default()
    }
}

/// Positions by a hash of an address family and a list of ports. The hash is keyed, so that nobody
/// can choose lists of one hash.
#[derive(Debug, Default)]
pub(crate) struct PortIndex {
    places: HashMap<u64, Vec<usize>>,
    hasher: RandomState,
}

impl PortIndex {
    /// The positions that were added for lists of this hash, in their order: those of this list,
    /// and hardly ever one of another.
    pub(crate) fn places(&mut self, family: &str, ports: &[EndpointPort]) -> &mut Vec<usize> {
        let hash = self.hasher.hash_one((family, PortsKey(ports)));
        self.places.entry(hash).or_default()
    }
}

/// A list of ports that can be hashed: the generated type cannot.
struct PortsKey<'a>(&'a [EndpointPort]);

impl Hash for PortsKey<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for port in self.0 {
            let texts = (&port.name, &port.protocol, &port.app_protocol);
            (texts, port.port).hash(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(count: usize) -> Vec<PortView> {
        let port = |number: usize| PortView {
            name: format!("p{number}"),
            protocol: "TCP".to_owned(),
            app_protocol: None,
            target: Target::Name(format!("n{number}")),
        };
        (0..count).map(port).collect()
    }

    fn pod(named: &[(&str, &str, i32)]) -> Backend {
        let own = |(name, protocol, number): &(&str, &str, i32)| {
            ((*name).to_owned(), (*protocol).to_owned(), *number)
        };
        Backend {
            ports: named.iter().map(own).collect(),
            ..Backend::default()
        }
    }

    #[test]
    fn a_name_means_the_first_port_of_its_protocol() {
        let mut ports = ports(3);
        ports[2].target = Target::Number(9);
        let one = pod(&[("n0", "UDP", 1), ("n0", "TCP", 2), ("n0", "TCP", 3)]);
        let (same, other) = (pod(&[("n0", "TCP", 2)]), pod(&[]));
        let mut lists = PortLists::of(&ports);
        assert_eq!(
            [&one, &same, &other, &one].map(|pod| lists.of_pod(pod)),
            [0, 0, 1, 0]
        );
        assert_eq!(*lists.get(0), [Some(2), None, Some(9)]);
        assert_eq!(*lists.get(1), [None, None, Some(9)]);
    }

    /// A linear search for each name would take longer than any test may run.
    #[test]
    fn many_names_are_looked_up_once_for_all_pods_of_a_template() {
        const COUNT: usize = 100_000;
        let ports = ports(COUNT);
        let named = |number: usize| (format!("n{number}"), "TCP".to_owned(), 1);
        let named: Arc<[NamedPort]> = (0..COUNT).rev().map(named).collect();
        let of_template = || Backend {
            ports: Arc::clone(&named),
            ..Backend::default()
        };
        let pods: Vec<Backend> = (0..10_000).map(|_| of_template()).collect();
        let mut lists = PortLists::of(&ports);
        assert!(pods.iter().all(|pod| lists.of_pod(pod) == 0));
        assert_eq!(lists.get(0).iter().flatten().count(), COUNT);
    }
}
