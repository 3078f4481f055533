//! rtnetlink: links, addresses, routes. Each call states what should be, and repeating it changes
//! nothing.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use rtnetlink::packet_route::route::{RouteMessage, RouteScope};
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};

use crate::dhcp::Lease;
use crate::error::NetError;
use crate::plan::{Link, Setup};

/// Most interfaces that are read.
const MOST: usize = 4096;
const LOOPBACK: u32 = 1;
/// Distance of default routes: those of the configuration win over those of DHCP, lower interfaces
/// over higher.
const FIXED_METRIC: u32 = 512;
const LEASED_METRIC: u32 = 1024;

/// The kernel's configuration socket.
#[derive(Debug, Clone)]
pub(crate) struct Netlink(Handle);

impl Netlink {
    /// Opens it. The future carries its traffic and must be polled beside the calls; it ends when
    /// the socket does.
    pub(crate) fn open() -> Result<(impl Future<Output = ()>, Self), NetError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(NetError::Open)?;
        Ok((connection, Self(handle)))
    }

    /// All Ethernet-like interfaces.
    pub(crate) async fn links(&self) -> Result<Vec<Link>, NetError> {
        let refused = |error| NetError::Refused("list interfaces".to_owned(), error);
        let mut messages = self.0.link().get().execute();
        let mut links = Vec::new();
        while let Some(message) = messages.try_next().await.map_err(refused)? {
            links.extend(link(&message).filter(|_| links.len() < MOST));
        }
        Ok(links)
    }

    /// Switches the loopback interface on.
    pub(crate) async fn loopback_up(&self) -> Result<(), NetError> {
        let message = LinkUnspec::new_with_index(LOOPBACK).up().build();
        let done = self.0.link().change(message).execute().await;
        done.map_err(|error| {
            NetError::Refused("switch the loopback interface on".to_owned(), error)
        })
    }

    /// Switches an interface on and gives it its fixed addresses and route.
    pub(crate) async fn set_up(&self, setup: &Setup) -> Result<(), NetError> {
        let Link { index, name, .. } = &setup.link;
        let mut message = LinkUnspec::new_with_index(*index).up();
        if let Some(mtu) = setup.mtu {
            message = message.mtu(mtu.into());
        }
        let done = self.0.link().change(message.build()).execute().await;
        done.map_err(|error| NetError::Refused(format!("switch {name} on"), error))?;
        for cidr in &setup.addresses {
            self.add_address(*index, cidr.address, cidr.prefix).await?;
        }
        match setup.gateway {
            Some(gateway) => self.add_default_route(*index, gateway, FIXED_METRIC).await,
            None => Ok(()),
        }
    }

    /// Gives an interface its leased address.
    pub(crate) async fn apply_lease(&self, index: u32, lease: &Lease) -> Result<(), NetError> {
        self.add_address(index, lease.address.into(), lease.prefix)
            .await
    }

    /// Sets the default route of a lease, if it has one.
    pub(crate) async fn apply_route(&self, index: u32, lease: &Lease) -> Result<(), NetError> {
        match lease.gateway {
            Some(gateway) => {
                self.add_default_route(index, gateway.into(), LEASED_METRIC)
                    .await
            }
            None => Ok(()),
        }
    }

    /// Takes a leased address away; the kernel takes the routes that need it along.
    pub(crate) async fn remove_lease(&self, index: u32, lease: &Lease) -> Result<(), NetError> {
        self.remove_address(index, lease.address, lease.prefix)
            .await
    }

    /// Takes an address away.
    pub(crate) async fn remove_address(
        &self,
        index: u32,
        address: Ipv4Addr,
        prefix: u8,
    ) -> Result<(), NetError> {
        let mut message = AddressMessage::default();
        message.header.family = rtnetlink::packet_route::AddressFamily::Inet;
        message.header.index = index;
        message.header.prefix_len = prefix;
        message
            .attributes
            .push(AddressAttribute::Local(address.into()));
        let done = self.0.address().del(message).execute().await;
        done.map_err(|error| NetError::Refused(format!("remove {address}"), error))
    }

    /// Switches an interface on or off, and nothing else.
    pub(crate) async fn switch(&self, link: &Link, on: bool) -> Result<(), NetError> {
        let message = LinkUnspec::new_with_index(link.index);
        let message = if on { message.up() } else { message.down() }.build();
        let done = self.0.link().change(message).execute().await;
        let what = if on { "on" } else { "off" };
        done.map_err(|error| NetError::Refused(format!("switch {} {what}", link.name), error))
    }

    /// Sets a route to one host alone, by a gateway or on the segment itself.
    pub(crate) async fn add_host_route(
        &self,
        index: u32,
        host: Ipv4Addr,
        gateway: Option<Ipv4Addr>,
    ) -> Result<(), NetError> {
        let route = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(host, 32)
            .output_interface(index);
        let route: RouteMessage = match gateway {
            Some(gateway) => route.gateway(gateway).onlink().build(),
            None => route.scope(RouteScope::Link).build(),
        };
        let done = self.0.route().add(route).replace().execute().await;
        done.map_err(|error| NetError::Refused(format!("add the route to {host}"), error))
    }

    /// Gives an interface an address.
    pub(crate) async fn add_address(
        &self,
        index: u32,
        address: IpAddr,
        prefix: u8,
    ) -> Result<(), NetError> {
        let done = self
            .0
            .address()
            .add(index, address, prefix)
            .replace()
            .execute()
            .await;
        done.map_err(|error| NetError::Refused(format!("add {address}/{prefix}"), error))
    }

    async fn add_default_route(
        &self,
        index: u32,
        gateway: IpAddr,
        metric: u32,
    ) -> Result<(), NetError> {
        let metric = metric.saturating_add(index);
        let route: RouteMessage = match gateway {
            IpAddr::V4(gateway) => {
                let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway);
                route
                    .output_interface(index)
                    .priority(metric)
                    .onlink()
                    .build()
            }
            IpAddr::V6(gateway) => {
                let route = RouteMessageBuilder::<Ipv6Addr>::new().gateway(gateway);
                route
                    .output_interface(index)
                    .priority(metric)
                    .onlink()
                    .build()
            }
        };
        let done = self.0.route().add(route).replace().execute().await;
        done.map_err(|error| {
            NetError::Refused(format!("add the default route by {gateway}"), error)
        })
    }
}

/// An Ethernet-like interface, `None` for others.
fn link(message: &LinkMessage) -> Option<Link> {
    let is_ethernet = message.header.link_layer_type == LinkLayerType::Ether;
    if !is_ethernet || message.header.flags.contains(LinkFlags::Loopback) {
        return None;
    }
    let mut name = None;
    let mut mac = None;
    for attribute in &message.attributes {
        if let LinkAttribute::IfName(text) = attribute {
            name = Some(text.clone());
        }
        if let LinkAttribute::Address(bytes) = attribute {
            mac = <[u8; 6]>::try_from(bytes.as_slice()).ok();
        }
    }
    let name = name?;
    let is_card = Path::new("/sys/class/net")
        .join(&name)
        .join("device")
        .exists();
    Some(Link {
        index: message.header.index,
        name,
        mac: mac?,
        is_card,
    })
}
