//! Facts about the machine on which the agent runs.

use agent_cluster::rules::{LINKS, TUNNEL};
use config_model::MachineConfig;
use config_protocol::wire::{Claims, MAX_ADDRESSES};
use nix::ifaddrs::getifaddrs;
use std::fs::File;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

/// Largest small file that is read (the image's description, an identifier of the platform).
const FILE_LIMIT: u64 = 64 * 1024;
/// The platform's own identifier, where firmware gives one.
const PLATFORM_ID: &str = "/sys/class/dmi/id/product_uuid";

/// The booted image's description of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ImageDescription {
    pub(crate) id: String,
    pub(crate) role: String,
    pub(crate) svn: Option<i64>,
    pub(crate) build_time: Option<i64>,
    /// The public point of the release key that approves the image's boots, in hexadecimal.
    pub(crate) release_key: Option<String>,
}

impl ImageDescription {
    /// `None` if the machine was not booted from an image.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let table: toml::Table = small_file(path)?.parse().ok()?;
        let text = |key: &str| {
            table
                .get(key)
                .and_then(toml::Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let svn = table.get("svn").and_then(toml::Value::as_integer);
        let build_time = table.get("build_time").and_then(toml::Value::as_integer);
        let release_key = table
            .get("release_key")
            .and_then(toml::Value::as_str)
            .map(str::to_owned);
        Some(Self {
            id: text("id"),
            role: text("role"),
            svn,
            build_time,
            release_key,
        })
    }

    /// When it was built, since 1970; 1970 if that is not known.
    pub(crate) fn built(&self) -> Duration {
        Duration::from_secs(
            self.build_time
                .and_then(|time| u64::try_from(time).ok())
                .unwrap_or(0),
        )
    }

    /// As `kubectl get nodes -o wide` shows it.
    pub(crate) fn os_image(&self) -> String {
        let svn = self
            .svn
            .map(|svn| format!(", SVN {svn}"))
            .unwrap_or_default();
        format!("Pratique {} {}{svn}", self.role, self.id)
    }
}

/// Addresses of the machine: those of the configuration first, in its order, then what the
/// interfaces have, IPv4 first as upstream's kubelet prefers it.
pub(crate) fn addresses(machine: &MachineConfig) -> Vec<IpAddr> {
    let fixed = machine
        .network
        .interfaces
        .iter()
        .flat_map(|interface| &interface.addresses)
        .map(|cidr| cidr.address);
    let mut all: Vec<IpAddr> = Vec::new();
    for address in fixed.chain(assigned()).filter(reachable) {
        if !all.contains(&address) && all.len() < MAX_ADDRESSES {
            all.push(address);
        }
    }
    all
}

/// An address of one of the machine's links.
struct LinkAddress {
    /// The link's name.
    link: String,
    ip: IpAddr,
}

/// Addresses of the machine's network cards; on a host without cards, of all links but those of
/// pods and tunnels.
fn assigned() -> Vec<IpAddr> {
    let all: Vec<LinkAddress> = getifaddrs()
        .into_iter()
        .flatten()
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            let v6 = || address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()));
            Some(LinkAddress {
                link: interface.interface_name,
                ip: v4.or_else(v6)?,
            })
        })
        .collect();
    let is_card = |name: &str| {
        Path::new("/sys/class/net")
            .join(name)
            .join("device")
            .exists()
    };
    of_machine(&all, is_card)
}

/// Addresses of the machine's own links: bridges, tunnels and veth pairs of pods don't count.
fn of_machine(all: &[LinkAddress], is_card: impl Fn(&str) -> bool) -> Vec<IpAddr> {
    let cards = all
        .iter()
        .any(|one| is_card(&one.link) && reachable(&one.ip));
    let own = |one: &&LinkAddress| {
        if cards {
            is_card(&one.link)
        } else {
            !one.link.starts_with(LINKS) && !one.link.starts_with(TUNNEL)
        }
    };
    let mut addresses: Vec<IpAddr> = all.iter().filter(own).map(|one| one.ip).collect();
    // Stable: the interfaces' own order stays within each kind.
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses
}

/// Whether other machines could reach this address.
fn reachable(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(address.is_loopback() || address.is_unspecified() || address.is_multicast() || link_local)
}

/// What the machine claims of itself in the hello: nothing here is proven.
pub(crate) fn claims(
    name: String,
    image: &ImageDescription,
    addresses: &[IpAddr],
    machine: &MachineConfig,
) -> Claims {
    let founds = machine.cluster().is_some();
    let role = if image.role.is_empty() {
        if founds {
            "master".to_owned()
        } else {
            String::new()
        }
    } else {
        image.role.clone()
    };
    let mut claims = Claims {
        name,
        role,
        addresses: addresses.iter().map(ToString::to_string).collect(),
        instance: small_file(Path::new(PLATFORM_ID))
            .unwrap_or_default()
            .trim()
            .to_owned(),
        image: image.id.clone(),
        privileged_pods: machine.node.privileged,
    };
    if !claims.within_limits() {
        // A platform's identifier is only a hint; one that is not printable is left out.
        claims.instance.clear();
    }
    claims
}

fn small_file(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path)
        .ok()?
        .take(FILE_LIMIT)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_images_description_is_read_and_shown() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("image.toml");
        assert_eq!(ImageDescription::read(&path), None);
        std::fs::write(
            &path,
            "id = \"w-1\"\nrole = \"worker\"\nsvn = 7\nbuild_time = 1\nkernel = \"6.12\"\n",
        )
        .expect("a file");
        let image = ImageDescription::read(&path).expect("a description");
        assert_eq!(image.os_image(), "Pratique worker w-1, SVN 7");
        assert_eq!(image.built(), Duration::from_secs(1));
    }

    #[test]
    fn a_machine_has_the_addresses_of_its_cards_and_of_no_bridge_or_pod() {
        let all = |links: &[(&str, &str)]| -> Vec<LinkAddress> {
            let address = |(link, ip): &(&str, &str)| LinkAddress {
                link: (*link).to_owned(),
                ip: ip.parse().expect("an address"),
            };
            links.iter().map(address).collect()
        };
        let links = [
            ("pod-1", "10.1.0.1"),
            ("pratique-wg1", "10.1.0.1"),
            ("bridge", "172.17.0.1"),
            ("ens3", "192.0.2.7"),
            ("ens3", "2001:db8::7"),
        ];
        let text =
            |found: Vec<IpAddr>| -> Vec<String> { found.iter().map(ToString::to_string).collect() };
        let found = of_machine(&all(&links), |link| link == "ens3");
        assert_eq!(text(found), ["192.0.2.7", "2001:db8::7"]);
        let found = of_machine(&all(&links[..3]), |_| false);
        assert_eq!(text(found), ["172.17.0.1"], "a host without cards");
    }

    #[test]
    fn addresses_that_others_cannot_reach_are_left_out() {
        for text in [
            "127.0.0.1",
            "::1",
            "0.0.0.0",
            "169.254.1.1",
            "fe80::1",
            "224.0.0.1",
        ] {
            assert!(!reachable(&text.parse().expect("an address")), "{text}");
        }
        assert!(reachable(&"192.168.77.11".parse().expect("an address")));
    }
}
