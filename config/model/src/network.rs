//! `[network]`: interfaces, name servers and time servers of a machine.

use crate::check::{Names, quoted};
use crate::defaults::{
    MTU_MAX, MTU_MIN, WIREGUARD_KEY_PERIOD, WIREGUARD_KEY_PERIOD_MAX, WIREGUARD_KEY_PERIOD_MIN,
};
use crate::fault::{FaultKind, Position, Sink};
use crate::format::{Cidr, FormatError, Host, HumanDuration, Mac, one_of, text_type};
use crate::raw::{RawInterface, RawNetwork};
use crate::read::At;
use crate::stub_domain::{self, StubDomain};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

/// The network settings of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Network {
    /// The interfaces to configure. Empty: DHCP on every Ethernet interface. Otherwise only these
    /// are brought up.
    pub interfaces: Vec<Interface>,
    /// Name servers, before those from DHCP.
    pub nameservers: Vec<IpAddr>,
    /// Time servers (SNTP), in place of those from DHCP.
    pub ntp: Vec<Host>,
    /// Domains whose names pods ask of other servers.
    pub stub_domains: Vec<StubDomain>,
    /// How pods' packets go to other machines.
    pub pod_routes: PodRoutes,
    /// How often WireGuard's keys are renewed.
    pub key_period: KeyPeriod,
}

/// How often WireGuard's keys are renewed within a boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPeriod {
    /// One of a node's two keys in each of these times.
    Every(Duration),
    /// Each key lasts as long as the boot.
    Never,
}

impl KeyPeriod {
    /// The time, if there is one.
    pub fn period(self) -> Option<Duration> {
        match self {
            Self::Every(period) => Some(period),
            Self::Never => None,
        }
    }
}

impl Default for KeyPeriod {
    fn default() -> Self {
        Self::Every(WIREGUARD_KEY_PERIOD)
    }
}

/// How pods' packets go to other machines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PodRoutes {
    /// By WireGuard tunnels between machines that the master trusts: no one in between can read,
    /// change or forge packets. The default, because the network between machines is not trusted.
    #[default]
    WireGuard,
    /// Not at all: pods reach the pods of their own machine, and addresses outside of the cluster.
    None,
    /// Unencrypted over the machine's segment: everyone there can read, change and forge packets.
    /// Only for trusted segments.
    Plain,
}

impl Network {
    /// Whether every Ethernet interface uses DHCP.
    pub fn dhcp_everywhere(&self) -> bool {
        self.interfaces.is_empty()
    }
}

/// One interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// How it is found.
    pub selector: Selector,
    /// Static addresses.
    pub addresses: Vec<Cidr>,
    /// The default gateway.
    pub gateway: Option<IpAddr>,
    /// Whether to use DHCP too.
    pub dhcp: bool,
    /// MTU in bytes, if it differs from the device's default.
    pub mtu: Option<u16>,
}

/// How an interface is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// The kernel's name.
    Name(InterfaceName),
    /// The hardware address.
    Mac(Mac),
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Mac(mac) => mac.fmt(f),
        }
    }
}

text_type!(
    /// A kernel interface name: 1 to 15 printable characters without `/`, `:` or blanks.
    InterfaceName,
    interface_name
);

fn interface_name(text: &str) -> Result<(), FormatError> {
    let plain = |b: u8| b.is_ascii_graphic() && b != b'/' && b != b':' && b != b'%';
    if matches!(text.len(), 1..=15) && text != "." && text != ".." && text.bytes().all(plain) {
        return Ok(());
    }
    Err(FormatError::new(
        "an interface name of 1 to 15 characters, such as `eth0`",
    ))
}

/// An IP address of a single host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnicastIp(IpAddr);

impl UnicastIp {
    /// The address.
    pub(crate) fn address(self) -> IpAddr {
        self.0
    }
}

impl fmt::Display for UnicastIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for UnicastIp {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let error = || FormatError::new("an IP address, such as 192.168.77.1 or fd00::1");
        let ip: IpAddr = text
            .parse()
            .map_err(|_not_an_address| match text.split_once('/') {
                Some((address, _)) if address.parse::<IpAddr>().is_ok() => {
                    error().hint(format!("write \"{address}\""))
                }
                Some(_) | None => error(),
            })?;
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(error().hint(format!("{ip} is not the address of one machine")));
        }
        Ok(Self(ip))
    }
}

/// Checks `[network]`.
pub(crate) fn check(raw: Option<At<RawNetwork>>, sink: &mut Sink<'_>) -> Network {
    let Some(At { value: raw, .. }) = raw else {
        return Network::default();
    };
    let mut names = Names::default();
    let entries = raw.interface.map(|list| list.value).unwrap_or_default();
    let interfaces = entries
        .into_iter()
        .filter_map(|entry| interface(entry, &mut names, sink))
        .collect();
    let nameservers: Vec<UnicastIp> = sink.parse_list(raw.nameservers.as_ref());
    let ntp = sink.parse_list(raw.ntp.as_ref());
    let words = [
        ("wireguard", PodRoutes::WireGuard),
        ("plain", PodRoutes::Plain),
        ("none", PodRoutes::None),
    ];
    let pod_routes = raw
        .pod_routes
        .and_then(|text| sink.parsed(&text, one_of(&text.value, &words)))
        .unwrap_or_default();
    let key_period = raw.wireguard_key_period.as_ref();
    if let Some(text) = key_period.filter(|_| pod_routes != PodRoutes::WireGuard) {
        sink.fault(
            FaultKind::Conflict,
            &text.place,
            "`wireguard_key_period` without WireGuard",
            "`pod_routes = \"wireguard\"` beside it",
        );
    }
    let key_period = key_period.and_then(|text| self::key_period(text, sink));
    Network {
        interfaces,
        nameservers: nameservers.into_iter().map(|ip| ip.0).collect(),
        ntp,
        stub_domains: stub_domain::check(raw.stub_domain, sink),
        pod_routes,
        key_period: key_period.unwrap_or_default(),
    }
}

fn key_period(text: &At<String>, sink: &mut Sink<'_>) -> Option<KeyPeriod> {
    if text.value == "never" {
        return Some(KeyPeriod::Never);
    }
    let HumanDuration(given) = sink.parse(text)?;
    if !(WIREGUARD_KEY_PERIOD_MIN..=WIREGUARD_KEY_PERIOD_MAX).contains(&given) {
        let limits = [WIREGUARD_KEY_PERIOD_MIN, WIREGUARD_KEY_PERIOD_MAX];
        let [least, most] = limits.map(HumanDuration);
        sink.fault(
            FaultKind::BadValue,
            &text.place,
            quoted(&text.value),
            &format!("a duration from {least} to {most}, or \"never\""),
        );
        return None;
    }
    Some(KeyPeriod::Every(given))
}

fn interface(entry: At<RawInterface>, names: &mut Names, sink: &mut Sink<'_>) -> Option<Interface> {
    let At { value: raw, place } = entry;
    let selector = selector(&raw, &place, names, sink);
    let addresses: Vec<Cidr> = sink.parse_list(raw.addresses.as_ref());
    for text in raw.addresses.iter().flat_map(|list| &list.value) {
        let Ok(address) = text.value.parse::<Cidr>() else {
            continue;
        };
        if address.prefix == 0 || UnicastIp::from_str(&address.address.to_string()).is_err() {
            let found = address.to_string();
            sink.fault(
                FaultKind::BadValue,
                &text.place,
                found,
                "an address of this machine with its network's prefix",
            );
        }
    }
    let gateway = raw
        .gateway
        .as_ref()
        .and_then(|text| Some((text, sink.parse::<UnicastIp>(text)?.0)));
    if let Some((text, gateway)) = gateway
        && !addresses.is_empty()
        && !addresses
            .iter()
            .any(|address| address.contains(gateway) && address.address != gateway)
    {
        let expected =
            "an address in the network of one of the interface's own, and not that one itself";
        sink.fault(
            FaultKind::Conflict,
            &text.place,
            gateway.to_string(),
            expected,
        );
    }
    let dhcp = raw
        .dhcp
        .as_ref()
        .map_or(raw.addresses.is_none(), |dhcp| dhcp.value);
    if !dhcp
        && raw
            .addresses
            .as_ref()
            .is_none_or(|list| list.value.is_empty())
    {
        let suggestion = Some("give it `addresses` or `dhcp = true`".to_owned());
        let found = "an interface without any address";
        sink.suggest(
            FaultKind::Conflict,
            &place,
            found,
            "fixed addresses, DHCP or both",
            suggestion,
        );
    }
    let mtu = raw
        .mtu
        .as_ref()
        .and_then(|mtu| sink.number(mtu, &(MTU_MIN.into()..=MTU_MAX.into())));
    Some(Interface {
        selector: selector?,
        addresses,
        gateway: gateway.map(|(_, ip)| ip),
        dhcp,
        mtu,
    })
}

fn selector(
    raw: &RawInterface,
    place: &Position,
    names: &mut Names,
    sink: &mut Sink<'_>,
) -> Option<Selector> {
    let (selector, at) = match (&raw.name, &raw.mac) {
        (Some(name), None) => (Selector::Name(sink.parse(name)?), name),
        (None, Some(mac)) => (Selector::Mac(sink.parse(mac)?), mac),
        (Some(_), Some(mac)) => {
            sink.fault(
                FaultKind::Conflict,
                &mac.place,
                "`name` and `mac` of one interface",
                "one of the two",
            );
            return None;
        }
        (None, None) => {
            let wrong = ["name", "mac"]
                .iter()
                .any(|key| sink.has_fault_at(&place.below(key, 0..0).key));
            if !wrong {
                let place = place.below("name", place.span.clone());
                sink.fault(
                    FaultKind::Missing,
                    &place,
                    "neither `name` nor `mac`",
                    "one of the two",
                );
            }
            return None;
        }
    };
    names.add(&selector.to_string(), &at.place, sink);
    Some(selector)
}
