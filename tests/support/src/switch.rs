//! Hosts on one segment: network namespaces with a cable each to a bridge, in a namespace of its
//! own.
#![allow(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

use crate::network::{index, runtime};
use agent_sys::namespace::{Kind, hold, in_new, inside, release};
use agent_sys::netlink::links::{LOOPBACK, Links, VethPair};
use rtnetlink::{LinkBridge, LinkUnspec};
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

/// The bridge's name.
const BRIDGE: &str = "switch";
/// The name of each host's link. No card of the machine that runs the test has it: by that the
/// agent takes it for one of a host without cards.
const CABLE: &str = "cable";
/// Largest packet of the segment.
const MTU: u32 = 1500;

/// A switch. It and the hosts that were made for it end when it is dropped; a host's namespace
/// lives on as long as a process is in it.
#[derive(Debug)]
pub struct Switch {
    place: PathBuf,
    hosts: Vec<PathBuf>,
}

impl Switch {
    /// Makes a switch, whose namespace is held at this path.
    pub fn new(place: PathBuf) -> Self {
        let make = || {
            hold(Kind::Network, &place)?;
            runtime().block_on(async {
                let (connection, handle, _) = rtnetlink::new_connection().unwrap();
                let connection = tokio::spawn(connection);
                let bridge = LinkBridge::new(BRIDGE).build();
                handle.link().add(bridge).execute().await.unwrap();
                connection.abort();
            });
            Ok(())
        };
        in_new(&[Kind::Network], make).unwrap();
        Self {
            place,
            hosts: Vec::new(),
        }
    }

    /// Makes a host on the segment, whose network namespace is held at this path, with these
    /// addresses.
    pub fn add_host(&mut self, host: &Path, addresses: &[(IpAddr, u8)]) {
        in_new(&[Kind::Network], || hold(Kind::Network, host)).unwrap();
        self.hosts.push(host.to_owned());
        let number = u8::try_from(self.hosts.len()).unwrap();
        let far = File::open(host).unwrap();
        let port = format!("port-{number}");
        let plug = || {
            Links::open()?.add_veth_pair(&VethPair {
                name: &port,
                mac: [2, 0, 0, 0, number, 1],
                far_name: CABLE,
                far_mac: [2, 0, 0, 0, number, 2],
                far: far.as_fd(),
                mtu: MTU,
            })?;
            runtime().block_on(async {
                let (connection, handle, _) = rtnetlink::new_connection().unwrap();
                let connection = tokio::spawn(connection);
                let (bridge, port) = (index(&handle, BRIDGE).await, index(&handle, &port).await);
                let change = LinkUnspec::new_with_index(port).controller(bridge).up();
                let change = handle.link().change(change.build());
                change.execute().await.unwrap();
                connection.abort();
            });
            Ok(())
        };
        inside(&[(Kind::Network, &self.place)], plug).unwrap();
        let join = || {
            let mut links = Links::open()?;
            let cable = links.named(CABLE)?.unwrap().index;
            links.switch_on(LOOPBACK)?;
            links.switch_on(cable)?;
            let mut all = addresses.iter();
            all.try_for_each(|(address, prefix)| links.add_address(cable, *address, *prefix))
        };
        inside(&[(Kind::Network, host)], join).unwrap();
    }

    /// Pulls a host's cable, for good.
    pub fn pull(host: &Path) {
        let pull = || Links::open()?.remove(CABLE);
        assert!(inside(&[(Kind::Network, host)], pull).unwrap());
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        for place in self.hosts.iter().chain([&self.place]) {
            // What can't be released keeps its folder, which shows.
            release(place).ok();
        }
    }
}
