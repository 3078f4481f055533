//! Routes of one network namespace (rtnetlink(7)).

use std::net::IpAddr;

use nix::libc;

use super::Family;
use super::links::{Links, address, number, octets};
use super::message::{Attributes, CREATE, DUMP, Message, Part, REPLACE, attributes_of};
use crate::error::Result;

/// Bytes of the headers of routes.
const ROUTE_HEADER: usize = 12;
/// The origin of routes by a router (`rtm_protocol`): a number that no other program is known to
/// use.
const BY_ROUTER: u8 = 80;
/// The largest packet of a route, among its other numbers (`RTAX_MTU`, linux/rtnetlink.h).
const LARGEST_PACKET: u16 = 2;

/// A route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The first address of a range.
    pub destination: IpAddr,
    /// Bits that addresses of the range have in common.
    pub prefix: u8,
    /// The router; none where the addresses are on the link itself.
    pub gateway: Option<IpAddr>,
    /// The link; 0 leaves it to the router's address. With neither, nothing is sent there, and
    /// senders get an error.
    pub link: u32,
}

impl Route {
    fn is_unreachable(&self) -> bool {
        self.gateway.is_none() && self.link == 0
    }

    fn kind(&self) -> u8 {
        if self.is_unreachable() {
            libc::RTN_UNREACHABLE
        } else {
            libc::RTN_UNICAST
        }
    }
}

impl Links {
    /// The links that packets leave by where no other route is known.
    ///
    /// # Errors
    /// The kernel refuses to list its routes, they are more than 65,536, or none comes for 10 s.
    pub fn default_links(&mut self) -> Result<Vec<u32>> {
        Ok(self.routes()?.iter().filter_map(default_link).collect())
    }

    /// Whether packets for an address are for this machine.
    pub(super) fn is_own(&mut self, address: IpAddr) -> Result<bool> {
        match self.route_to(address) {
            Ok(parts) => Ok(parts.iter().any(|part| {
                let header = part.header(ROUTE_HEADER);
                header.and_then(|header| header.get(7)) == Some(&libc::RTN_LOCAL)
            })),
            Err(error) if error.errno() == Some(libc::ENETUNREACH) => Ok(false),
            Err(error) if error.errno() == Some(libc::EHOSTUNREACH) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The largest packet, in bytes, that the route to an address takes: of its own, or its link's;
    /// none where it leads nowhere.
    ///
    /// # Errors
    /// If there is no route, or the kernel refuses.
    pub fn largest_packet_to(&mut self, address: IpAddr) -> Result<Option<u32>> {
        let parts = self.route_to(address)?;
        let value = |attributes: &[(u16, &[u8])], wanted: u16| {
            let found = attributes.iter().find(|(kind, _)| *kind == wanted);
            found.map(|(_, value)| value.to_vec())
        };
        let Some(part) = parts.first() else {
            return Ok(None);
        };
        let route = part.attributes(ROUTE_HEADER);
        let own = value(&route, libc::RTA_METRICS).and_then(|numbers| {
            let own = value(&attributes_of(&numbers), LARGEST_PACKET);
            own.and_then(|own| number(&own))
        });
        if own.is_some() {
            return Ok(own);
        }
        let link = value(&route, libc::RTA_OIF).and_then(|link| number(&link));
        let mut links = self.all()?.into_iter();
        let by = links.find(|one| Some(one.index) == link);
        Ok(by.map(|link| link.mtu))
    }

    /// The route that packets for an address take.
    fn route_to(&mut self, address: IpAddr) -> Result<Vec<Part>> {
        let family = Family::of(address);
        let mut header = [0_u8; ROUTE_HEADER];
        let [own_family, length, ..] = &mut header;
        (*own_family, *length) = (family.number(), family.bits());
        let attributes = Attributes::new().bytes(libc::RTA_DST, &octets(address));
        let request = Message::new(libc::RTM_GETROUTE, 0, &header, attributes).answered();
        self.0
            .send(&[request], "find the route to", &address.to_string())
    }

    /// Adds a route, in place of one to the same addresses, also by another link: no packet is
    /// without a way meanwhile.
    ///
    /// # Errors
    /// The kernel refuses: the link is off (`ENETDOWN`), or the gateway can't be reached by it
    /// (`ENETUNREACH`, `EHOSTUNREACH`).
    pub fn add_route(&mut self, route: &Route) -> Result<()> {
        self.put_route(route, route_attributes(route))
    }

    /// The same, for packets of at most `largest` bytes: fewer than the link takes.
    ///
    /// # Errors
    /// As [`Self::add_route`].
    pub fn add_route_for(&mut self, route: &Route, largest: u32) -> Result<()> {
        let numbers = Attributes::new().number(LARGEST_PACKET, largest);
        let attributes = route_attributes(route).nest(libc::RTA_METRICS, &numbers);
        self.put_route(route, attributes)
    }

    fn put_route(&mut self, route: &Route, attributes: Attributes) -> Result<()> {
        let scope = if route.gateway.is_some() || route.is_unreachable() {
            libc::RT_SCOPE_UNIVERSE
        } else {
            libc::RT_SCOPE_LINK
        };
        // What was made by a router's address alone is found again by its origin.
        let origin = if route.link == 0 {
            BY_ROUTER
        } else {
            libc::RTPROT_STATIC
        };
        let header = [
            Family::of(route.destination).number(),
            route.prefix,
            0,
            0,
            libc::RT_TABLE_MAIN,
            origin,
            scope,
            route.kind(),
            0,
            0,
            0,
            0,
        ];
        let flags = CREATE | REPLACE;
        let request = Message::new(libc::RTM_NEWROUTE, flags, &header, attributes);
        self.act(request, "add the route to", &route.destination.to_string())
    }

    /// Removes a route; true where there was one.
    ///
    /// # Errors
    /// The kernel refuses for another reason than that there is no such route (`ESRCH`).
    pub fn remove_route(&mut self, route: &Route) -> Result<bool> {
        let mut header = [0_u8; ROUTE_HEADER];
        let [own_family, prefix, _, _, table, origin, scope, kind, ..] = &mut header;
        *own_family = Family::of(route.destination).number();
        *prefix = route.prefix;
        *table = libc::RT_TABLE_MAIN;
        // Of whichever scope: with 0 the kernel finds none that leads into a link without a router.
        *scope = libc::RT_SCOPE_NOWHERE;
        // Nothing else tells it from another route to the same addresses.
        if route.is_unreachable() {
            (*origin, *kind) = (BY_ROUTER, libc::RTN_UNREACHABLE);
        }
        let attributes = route_attributes(route);
        let request = Message::new(libc::RTM_DELROUTE, 0, &header, attributes);
        let subject = route.destination.to_string();
        match self.act(request, "remove the route to", &subject) {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(libc::ESRCH) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The routes that were added without a link, by whichever process: by routers, and where
    /// nothing is sent.
    ///
    /// # Errors
    /// As [`Self::default_links`].
    pub fn routes_by_routers(&mut self) -> Result<Vec<Route>> {
        Ok(self.routes()?.iter().filter_map(routed).collect())
    }

    /// The routes of the main table that lead into a link, without a router.
    ///
    /// # Errors
    /// As [`Self::default_links`].
    pub fn routes_into(&mut self, link: u32) -> Result<Vec<Route>> {
        let parts = self.routes()?;
        let into = |part: &Part| into_link(part).filter(|route| route.link == link);
        Ok(parts.iter().filter_map(into).collect())
    }

    /// All routes, of every table.
    fn routes(&mut self) -> Result<Vec<Part>> {
        let header = [0_u8; ROUTE_HEADER];
        let request = Message::new(libc::RTM_GETROUTE, DUMP, &header, Attributes::new());
        self.0.send(&[request], "list", "routes")
    }
}

/// The attributes by which the kernel knows a route.
fn route_attributes(route: &Route) -> Attributes {
    let mut attributes = Attributes::new();
    if route.link > 0 {
        attributes = attributes.number(libc::RTA_OIF, route.link);
    }
    if route.prefix > 0 {
        attributes = attributes.bytes(libc::RTA_DST, &octets(route.destination));
    }
    match route.gateway {
        Some(gateway) => attributes.bytes(libc::RTA_GATEWAY, &octets(gateway)),
        None => attributes,
    }
}

/// A route without a link, as this program adds them.
fn routed(part: &Part) -> Option<Route> {
    let header = part.header(ROUTE_HEADER)?;
    let (prefix, table, origin) = (header.get(1)?, header.get(4)?, header.get(5)?);
    let is_ours = *table == libc::RT_TABLE_MAIN && *origin == BY_ROUTER;
    let attributes = part.attributes(ROUTE_HEADER);
    let value = |wanted: u16| {
        let found = attributes.iter().find(|(kind, _)| *kind == wanted)?;
        address(found.1)
    };
    is_ours.then_some(())?;
    let gateway = match *header.get(7)? {
        libc::RTN_UNREACHABLE => None,
        _ => Some(value(libc::RTA_GATEWAY)?),
    };
    Some(Route {
        destination: value(libc::RTA_DST)?,
        prefix: *prefix,
        gateway,
        link: 0,
    })
}

/// A route into a link, as this program adds them.
fn into_link(part: &Part) -> Option<Route> {
    let header = part.header(ROUTE_HEADER)?;
    let (prefix, table) = (header.get(1)?, header.get(4)?);
    let attributes = part.attributes(ROUTE_HEADER);
    let value = |wanted: u16| {
        let found = attributes.iter().find(|(kind, _)| *kind == wanted);
        found.map(|(_, value)| *value)
    };
    let is_ours = *table == libc::RT_TABLE_MAIN
        && header.get(5) == Some(&libc::RTPROT_STATIC)
        && header.get(7) == Some(&libc::RTN_UNICAST)
        && value(libc::RTA_GATEWAY).is_none();
    is_ours.then_some(())?;
    Some(Route {
        destination: address(value(libc::RTA_DST)?)?,
        prefix: *prefix,
        gateway: None,
        link: number(value(libc::RTA_OIF)?)?,
    })
}

/// The link of a default route of the main table.
fn default_link(part: &Part) -> Option<u32> {
    let header = part.header(ROUTE_HEADER)?;
    let (prefix, table, kind) = (header.get(1)?, header.get(4)?, header.get(7)?);
    if (*prefix, *table, *kind) != (0, libc::RT_TABLE_MAIN, libc::RTN_UNICAST) {
        return None;
    }
    let attributes = part.attributes(ROUTE_HEADER);
    let link = attributes.iter().find(|(kind, _)| *kind == libc::RTA_OIF);
    link.and_then(|(_, value)| number(value))
}
