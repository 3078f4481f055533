//! A temporary network for reaching one host (a metadata service) before the machine has a
//! configuration: an address and a route to that host alone; afterwards everything is as before.
//!
//! Guarantees while it lasts: the address has no network (32 bits) and there is no other route, so
//! that the machine can send to no address but the host's; IPv6 is off on the cards.

use config_errors::chain;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::Change;
use crate::driver;
use crate::error::NetError;
use crate::link::Netlink;
use crate::plan::Link;

/// How often cards are looked for.
const SCAN: Duration = Duration::from_millis(250);
/// All bits: an address without a network.
const ALONE: u8 = 32;
/// Reports of leases on their way; the first is taken.
const REPORTS: usize = 4;

/// Which host is to be reached, and how.
#[derive(Debug, Clone)]
pub struct Errand {
    /// The host.
    pub host: Ipv4Addr,
    /// Whether to ask for an address by DHCP; else a link-local one is taken.
    pub dhcp: bool,
    /// The only interface to use; every Ethernet card where none is named.
    pub interface: Option<String>,
    /// How long it may take until there is an address.
    pub limit: Duration,
}

/// A way to the host that was set up.
struct Path {
    link: Link,
    address: Ipv4Addr,
}

/// Does `work` while the host can be reached. Also where it fails, the cards are switched off again
/// afterwards and have no address.
///
/// Not cancel-safe: dropped, it leaves what is set up.
///
/// # Errors
/// The kernel's netlink socket cannot be opened or is closed, or the host could not be reached in
/// time.
pub async fn run<F: Future>(
    errand: &Errand,
    work: impl FnOnce() -> F,
) -> Result<F::Output, NetError> {
    let (connection, netlink) = Netlink::open()?;
    // The first arm only ends when the kernel closed the socket, and then nothing can be taken down
    // any more either.
    tokio::select! {
        () = connection => Err(NetError::Closed),
        result = go(errand, &netlink, work) => result,
    }
}

async fn go<F: Future>(
    errand: &Errand,
    netlink: &Netlink,
    work: impl FnOnce() -> F,
) -> Result<F::Output, NetError> {
    let cards = cards(errand, netlink).await?;
    for card in &cards {
        ipv6(card, false);
    }
    let path = open(errand, netlink, &cards).await;
    let result = match &path {
        Ok(_) => Ok(work().await),
        Err(_) => Err(()),
    };
    if let Ok(Path { link, address }) = &path
        && let Err(error) = netlink.remove_address(link.index, *address, ALONE).await
    {
        tracing::warn!(
            error = chain(&error),
            "cannot remove the temporary address used to fetch user-data"
        );
    }
    for card in &cards {
        if let Err(error) = netlink.switch(card, false).await {
            tracing::warn!(
                error = chain(&error),
                "cannot take an interface down after fetching user-data"
            );
        }
        ipv6(card, true);
    }
    path.and_then(|_| result.map_err(|()| NetError::Closed))
}

async fn cards(errand: &Errand, netlink: &Netlink) -> Result<Vec<Link>, NetError> {
    let look = async {
        loop {
            let mut links = netlink.links().await?;
            links.retain(|link| match &errand.interface {
                Some(name) => *name == link.name,
                None => link.is_card,
            });
            if !links.is_empty() {
                return Ok(links);
            }
            sleep(SCAN).await;
        }
    };
    timeout(errand.limit, look)
        .await
        .unwrap_or(Err(NetError::NoCard(errand.limit.as_secs())))
}

/// Sets up the address and the one route.
async fn open(errand: &Errand, netlink: &Netlink, cards: &[Link]) -> Result<Path, NetError> {
    for card in cards {
        netlink.switch(card, true).await?;
    }
    let (link, address, gateway) = if errand.dhcp {
        let lease = timeout(errand.limit, lease(cards)).await.ok().flatten();
        lease.ok_or(NetError::NoLease(errand.limit.as_secs()))?
    } else {
        let first = cards.iter().min_by_key(|card| card.index).cloned();
        let link = first.ok_or(NetError::NoCard(errand.limit.as_secs()))?;
        let address = link_local(link.mac, errand.host);
        (link, address, None)
    };
    netlink
        .add_address(link.index, address.into(), ALONE)
        .await?;
    let path = Path { link, address };
    if let Err(error) = netlink
        .add_host_route(path.link.index, errand.host, gateway)
        .await
    {
        drop(
            netlink
                .remove_address(path.link.index, address, ALONE)
                .await,
        );
        return Err(error);
    }
    Ok(path)
}

/// The first lease that comes on any card, with its gateway.
async fn lease(cards: &[Link]) -> Option<(Link, Ipv4Addr, Option<Ipv4Addr>)> {
    let (sender, mut changes) = mpsc::channel(REPORTS);
    let mut drivers: FuturesUnordered<_> = cards
        .iter()
        .map(|card| driver::drive(card.clone(), None, sender.clone()).boxed())
        .collect();
    drop(sender);
    loop {
        // Cancel-safe: a received change and a driver's end are each taken whole or not at all.
        tokio::select! {
            change = changes.recv() => if let Change { index, lease: Some(lease) } = change? {
                let link = cards.iter().find(|card| card.index == index)?.clone();
                return Some((link, lease.address, lease.gateway));
            },
            Some(()) = drivers.next(), if !drivers.is_empty() => {}
        }
    }
}

/// A link-local address made from the hardware's: the same at every boot, and never the host's. Not
/// probed for (RFC 3927, 2.2): clouds that need it give each machine a segment of its own.
fn link_local(mac: [u8; 6], host: Ipv4Addr) -> Ipv4Addr {
    let [.., third, fourth] = mac;
    // The first and last 256 addresses are reserved.
    let address = Ipv4Addr::new(169, 254, third.clamp(1, 254), fourth.clamp(1, 254));
    if address == host {
        Ipv4Addr::new(169, 254, 1, fourth.clamp(1, 254))
    } else {
        address
    }
}

/// Lets a card have IPv6 addresses or not. A kernel without IPv6 has no such file, and no such
/// address.
fn ipv6(card: &Link, on: bool) {
    let file: PathBuf = ["/proc/sys/net/ipv6/conf", &card.name, "disable_ipv6"]
        .iter()
        .collect();
    drop(std::fs::write(file, if on { "0" } else { "1" }));
}

#[cfg(test)]
mod tests {
    use super::link_local;
    use std::net::Ipv4Addr;

    #[test]
    fn link_local_addresses_are_legal_and_never_the_hosts() {
        let host = Ipv4Addr::new(169, 254, 169, 254);
        let of = |third, fourth| link_local([2, 0, 0, 0, third, fourth], host);
        assert_eq!(of(0, 0), Ipv4Addr::new(169, 254, 1, 1));
        assert_eq!(of(255, 255), Ipv4Addr::new(169, 254, 254, 254));
        assert_eq!(of(7, 9), Ipv4Addr::new(169, 254, 7, 9));
        assert_ne!(of(169, 254), host);
    }
}
