//! Converts the configuration into settings of the master's parts.

use crate::Error;
use config_model::network::Interface;
use config_model::scheduler::{SchedulerProfile, ScoringStrategy, ShapePoint};
use config_model::{ClusterConfig, Document, MachineConfig};
use master_schedule::{Options, Point, Profile, Strategy};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;

/// Names that every API certificate carries.
const FIXED_NAMES: [&str; 7] = [
    "127.0.0.1",
    "::1",
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// The master's configuration.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The cluster.
    pub(crate) cluster: ClusterConfig,
    /// IP addresses and DNS names of the API.
    pub(crate) api_names: Vec<String>,
    /// The machine's name, where it is a machine's document.
    pub(crate) name: Option<String>,
    /// The addresses that the machine claims.
    pub(crate) addresses: Vec<String>,
}

impl Settings {
    /// The scheduler's options. A configured profile with the default profile's name
    /// replaces it.
    pub(crate) fn scheduling(&self) -> Options {
        let own = self.cluster.schedulers.iter().map(profile);
        let mut profiles: Vec<Arc<Profile>> = own.map(Arc::new).collect();
        if !profiles.iter().any(|own| own.name == master_schedule::NAME) {
            profiles.push(Profile::default_profile());
        }
        Options {
            profiles,
            ..Options::default()
        }
    }
}

fn profile(written: &SchedulerProfile) -> Profile {
    let strategy = match &written.strategy {
        ScoringStrategy::LeastAllocated => Strategy::LeastAllocated,
        ScoringStrategy::MostAllocated => Strategy::MostAllocated,
        ScoringStrategy::RequestedToCapacityRatio(shape) => {
            let point =
                |&ShapePoint { utilization, score }: &ShapePoint| Point { utilization, score };
            Strategy::RequestedToCapacityRatio(shape.iter().map(point).collect())
        }
    };
    let weights = written.weights.iter();
    Profile {
        name: written.name.to_string(),
        strategy,
        weights: weights
            .map(|(name, weight)| (name.to_string(), *weight))
            .collect(),
    }
}

/// Reads and checks the configuration.
pub(crate) fn load(path: &Path) -> Result<Settings, Error> {
    let bytes = std::fs::read(path).map_err(|source| Error::File {
        what: "read",
        path: path.to_owned(),
        source,
    })?;
    let document =
        config_model::parse(&bytes, &path.display().to_string()).map_err(Error::Faults)?;
    match document {
        Document::Cluster(cluster) => Ok(settings(*cluster, None)),
        Document::Machine(machine) => {
            let cluster = machine
                .cluster()
                .cloned()
                .ok_or_else(|| Error::NotAMaster(path.to_owned()))?;
            Ok(settings(cluster, Some(&machine)))
        }
        Document::Image(_) | Document::Policy(_) => Err(Error::NotAMaster(path.to_owned())),
    }
}

fn settings(cluster: ClusterConfig, machine: Option<&MachineConfig>) -> Settings {
    let name = machine
        .and_then(|m| m.name.as_ref())
        .map(|name| name.as_str().to_owned());
    let own = machine
        .map(|m| m.network.interfaces.as_slice())
        .unwrap_or_default();
    let addresses: Vec<String> = own
        .iter()
        .flat_map(|interface: &Interface| &interface.addresses)
        .map(|cidr| cidr.address.to_string())
        .collect();
    let mut names: BTreeSet<String> = FIXED_NAMES.iter().map(|name| (*name).to_owned()).collect();
    let own = cluster.service_cidrs.iter();
    names.extend(own.map(|range| first_address(range.network()).to_string()));
    names.extend(
        cluster
            .api_names
            .iter()
            .map(|host| host.to_string().to_ascii_lowercase()),
    );
    names.extend(name.clone());
    names.extend(addresses.iter().cloned());
    Settings {
        cluster,
        api_names: names.into_iter().collect(),
        name,
        addresses,
    }
}

/// The service address of the API itself: the first of a range (upstream's choice).
fn first_address(network: IpAddr) -> IpAddr {
    match network {
        IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from(u32::from(v4).saturating_add(1))),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from(u128::from(v6).saturating_add(1))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load_text(text: &str) -> Result<Settings, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        load(&path)
    }

    #[test]
    fn profiles_stand_beside_the_default_one_or_in_its_place() {
        let text = |name: &str| {
            format!(
                "version = 1\nkind = \"cluster\"\n[[cluster.scheduler]]\nname = \"{name}\"\nstrategy = \"MostAllocated\"\n\
                 resources = {{ cpu = 2 }}\n"
            )
        };
        let profiles = |name| load_text(&text(name)).unwrap().scheduling().profiles;
        let packed = |name: &str| {
            Arc::new(Profile {
                name: name.to_owned(),
                strategy: Strategy::MostAllocated,
                weights: vec![("cpu".to_owned(), 2)],
            })
        };
        assert_eq!(
            profiles("packed"),
            [packed("packed"), Profile::default_profile()]
        );
        assert_eq!(profiles("default-scheduler"), [packed("default-scheduler")]);
    }

    #[test]
    fn the_api_is_named_by_all_its_names() {
        let settings = load_text(
            "version = 1\n[machine]\nname = \"m-1\"\n[[network.interface]]\nname = \"eth1\"\n\
             addresses = [\"192.0.2.10/24\"]\n[cluster]\nname = \"lab\"\nadmin_key = \
             \"sha256:0000000000000000000000000000000000000000000000000000000000000000\"\n\
             api_names = [\"api.example\"]\n",
        )
        .unwrap();
        for name in [
            "127.0.0.1",
            "m-1",
            "192.0.2.10",
            "api.example",
            "10.96.0.1",
            "kubernetes.default.svc",
        ] {
            assert!(
                settings.api_names.iter().any(|n| n == name),
                "{name} in {:?}",
                settings.api_names
            );
        }
    }

    #[test]
    fn a_worker_gets_an_error_that_it_is_not_a_master() {
        let error = load_text(
            "version = 1\n[master]\nendpoints = [\"https://192.0.2.10:6443\"]\nca_pins = \
             [\"sha256:0000000000000000000000000000000000000000000000000000000000000000\"]\n",
        )
        .unwrap_err();
        assert!(matches!(error, Error::NotAMaster(_)), "{error}");
    }
}
