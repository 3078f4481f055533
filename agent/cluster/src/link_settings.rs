//! Sets up the links that packets of pods pass, and forwarding on the machine (sysctls).

use agent_sys::namespace;
use agent_sys::netlink::Family;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

/// Settings of the node's end of a veth pair: packets from it are forwarded, except those whose
/// answers would leave by another link.
const NEAR_SETTINGS: [(&str, &str); 4] = [
    ("forwarding", "1"),
    ("rp_filter", "1"),
    ("send_redirects", "0"),
    ("accept_redirects", "0"),
];
/// Settings of IPv6 at either end of a veth pair and at the tunnel: no automatic address, not even
/// a link-local one, and no router advertisements. The first is set before the second, which turns
/// on IPv6.
const IPV6_SETTINGS: [(&str, &str); 5] = [
    ("addr_gen_mode", "1"),
    ("disable_ipv6", "0"),
    ("accept_ra", "0"),
    ("autoconf", "0"),
    ("accept_redirects", "0"),
];

/// Sets up a link from which packets are forwarded.
pub(crate) fn set_link(name: &str) -> agent_sys::Result<()> {
    for (setting, value) in NEAR_SETTINGS {
        namespace::set(&format!("net/ipv4/conf/{name}/{setting}"), value)?;
    }
    Ok(())
}

/// Turns on IPv6 on a link if one of its addresses is of that family. Else turns it off: a link
/// gets IPv6 addresses automatically, by which the node's own services would be reached.
pub(crate) fn set_ipv6(link: &str, addresses: &[IpAddr]) -> agent_sys::Result<()> {
    let setting = |name: &str| format!("net/ipv6/conf/{link}/{name}");
    if addresses.iter().any(IpAddr::is_ipv6) {
        let mut settings = IPV6_SETTINGS.iter();
        return settings.try_for_each(|(name, value)| namespace::set(&setting(name), value));
    }
    let off = setting("disable_ipv6");
    if Path::new("/proc/sys").join(&off).exists() {
        namespace::set(&off, "1")?;
    }
    Ok(())
}

/// Turns on forwarding of packets of a family.
pub(crate) fn pass_on(family: Family) -> agent_sys::Result<()> {
    match family {
        Family::V4 => namespace::set("net/ipv4/ip_forward", "1"),
        Family::V6 => {
            believe_routers()?;
            namespace::set("net/ipv6/conf/all/forwarding", "1")
        }
    }
}

/// With IPv6 forwarding, the kernel ignores router advertisements and forgets their routes unless
/// `accept_ra` of a link is 2 instead of 1. The machine's own addresses and default route may come
/// from such advertisements.
fn believe_routers() -> agent_sys::Result<()> {
    let folder = Path::new("/proc/sys/net/ipv6/conf");
    let fault = |error| agent_sys::Error::new("list", folder.display().to_string(), error);
    for entry in fs::read_dir(folder).map_err(fault)? {
        let link = entry.map_err(fault)?.file_name();
        let link = link.to_string_lossy();
        let setting = format!("net/ipv6/conf/{link}/accept_ra");
        // A link may have been removed meanwhile.
        let value = fs::read_to_string(Path::new("/proc/sys").join(&setting));
        if value.is_ok_and(|value| value.trim() == "1") {
            namespace::set(&setting, "2")?;
        }
    }
    Ok(())
}
