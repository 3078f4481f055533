//! Plans which interfaces are set up, and with which addresses (pure).

use std::collections::BTreeMap;
use std::net::IpAddr;

use config_model::format::Cidr;
use config_model::network::{Interface, Network, Selector};

/// An interface as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The kernel's number for it.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// Whether it is an Ethernet card, not something made of software.
    pub is_card: bool,
}

/// What one interface gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// Which one.
    pub link: Link,
    /// Fixed addresses.
    pub addresses: Vec<Cidr>,
    /// Where the default route goes.
    pub gateway: Option<IpAddr>,
    /// Whether to ask for an address.
    pub dhcp: bool,
    /// Largest packet in bytes, where it is not the card's own.
    pub mtu: Option<u16>,
}

/// The set-ups for these interfaces: those that the configuration names or, where it names none,
/// every card by DHCP.
pub fn setups(network: &Network, links: &[Link]) -> Vec<Setup> {
    if network.dhcp_everywhere() {
        let cards = links.iter().filter(|link| link.is_card);
        return cards
            .map(|link| Setup {
                link: link.clone(),
                addresses: vec![],
                gateway: None,
                dhcp: true,
                mtu: None,
            })
            .collect();
    }
    let setup = |wanted: &Interface| {
        let link = links.iter().find(|link| is_meant(&wanted.selector, link))?;
        Some(Setup {
            link: link.clone(),
            addresses: wanted.addresses.clone(),
            gateway: wanted.gateway,
            dhcp: wanted.dhcp,
            mtu: wanted.mtu,
        })
    };
    network.interfaces.iter().filter_map(setup).collect()
}

/// The set-ups that are still to be made, where those of `made` are (by their links' indexes). An
/// interface that is set up is preferred to a later one with its hardware address, such as a
/// bridge over it.
pub fn missing(network: &Network, mut links: Vec<Link>, made: &BTreeMap<u32, Setup>) -> Vec<Setup> {
    links.sort_by_key(|link| !made.contains_key(&link.index));
    let mut all = setups(network, &links);
    all.retain(|setup| !made.contains_key(&setup.link.index));
    all
}

fn is_meant(selector: &Selector, link: &Link) -> bool {
    match selector {
        Selector::Name(name) => name.as_str() == link.name,
        Selector::Mac(mac) => mac.to_string().eq_ignore_ascii_case(&mac_text(link.mac)),
    }
}

/// A hardware address as text, `02:00:00:00:00:01`.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::{Link, missing, setups};
    use config_model::network::{Interface, Network, Selector};
    use std::collections::BTreeMap;

    fn link(index: u32, name: &str, is_card: bool) -> Link {
        Link {
            index,
            name: name.to_owned(),
            mac: [2, 0, 0, 0, 0, u8::try_from(index).expect("small")],
            is_card,
        }
    }

    fn wanted(selector: Selector) -> Interface {
        let addresses = vec!["192.0.2.7/24".parse().expect("an address")];
        Interface {
            selector,
            addresses,
            gateway: None,
            dhcp: false,
            mtu: None,
        }
    }

    #[test]
    fn without_a_list_every_card_asks_by_dhcp() {
        let links = [
            link(1, "lo", false),
            link(2, "eth0", true),
            link(3, "veth0", false),
        ];
        let all = setups(&Network::default(), &links);
        assert_eq!(all.len(), 1);
        assert!(
            all.iter()
                .all(|setup| setup.dhcp && setup.link.name == "eth0")
        );
    }

    #[test]
    fn listed_interfaces_are_found_by_name_or_hardware_address_and_others_left_alone() {
        let by_name = wanted(Selector::Name("eth1".parse().expect("a name")));
        let by_mac = wanted(Selector::Mac(
            "02:00:00:00:00:02".parse().expect("an address"),
        ));
        let network = Network {
            interfaces: vec![by_name, by_mac],
            ..Network::default()
        };
        let links = [
            link(2, "eth0", true),
            link(3, "eth1", true),
            link(4, "eth2", true),
        ];
        let names: Vec<String> = setups(&network, &links)
            .into_iter()
            .map(|setup| setup.link.name)
            .collect();
        assert_eq!(names, ["eth1", "eth0"]);
    }

    #[test]
    fn an_interface_that_came_back_is_missing_and_a_bridge_with_its_hardware_address_is_not() {
        let by_mac = "02:00:00:00:00:02".parse().expect("an address");
        let network = Network {
            interfaces: vec![wanted(Selector::Mac(by_mac))],
            ..Network::default()
        };
        let card = link(2, "eth0", true);
        let bridge = Link {
            index: 1,
            name: "bridge".to_owned(),
            is_card: false,
            ..card.clone()
        };
        let first = missing(&network, vec![card.clone()], &BTreeMap::new());
        assert_eq!(first.len(), 1);
        let made = first.into_iter().map(|setup| (setup.link.index, setup));
        let made: BTreeMap<_, _> = made.collect();
        assert!(missing(&network, vec![bridge, card.clone()], &made).is_empty());
        let back = Link { index: 7, ..card };
        let again = missing(&network, vec![back.clone()], &made);
        assert_eq!(again.first().map(|setup| &setup.link), Some(&back));
    }
}
