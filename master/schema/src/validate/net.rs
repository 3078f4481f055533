//! Addresses, ranges and ports (apimachinery `util/validation`), with upstream's error texts.

use super::{Faults, FieldPath, names};
use serde_json::Value;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Upstream's text for an invalid address.
pub const NO_ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
/// Upstream's text for an invalid range.
pub const NO_RANGE: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
/// Upstream's text for an invalid port.
pub const NO_PORT: &str = "must be between 1 and 65535, inclusive";

/// A range of addresses, with host bits zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    first: IpAddr,
    prefix: u8,
}

impl Range {
    /// Parses `address/prefix`; host bits are cleared.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        // Some parsers read leading zeros as octal.
        if prefix.len() > 1 && prefix.starts_with('0')
            || !prefix.bytes().all(|digit| digit.is_ascii_digit())
        {
            return None;
        }
        Self::new(address.parse().ok()?, prefix.parse().ok()?)
    }

    /// The range of an address and a prefix length; `None` if the prefix is longer than the
    /// address.
    pub fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if prefix > bits {
            return None;
        }
        // For `::/0` the shift is by all 128 bits, which overflows: no bit of the mask is left.
        let mask = u128::MAX
            .checked_shl(u32::from(bits - prefix))
            .unwrap_or_default();
        Some(Self {
            first: address_of(number(address) & mask, address.is_ipv6()),
            prefix,
        })
    }

    /// The first address.
    pub fn first(self) -> IpAddr {
        self.first
    }

    /// Whether it is an IPv6 range.
    pub fn is_ipv6(self) -> bool {
        self.first.is_ipv6()
    }

    /// The number of addresses, saturating.
    pub fn size(self) -> u128 {
        let bits = if self.is_ipv6() { 128 } else { 32 };
        1u128
            .checked_shl(bits - u32::from(self.prefix))
            .unwrap_or(u128::MAX)
    }

    /// The address at an offset from the first.
    pub fn at(self, offset: u128) -> IpAddr {
        address_of(number(self.first).wrapping_add(offset), self.is_ipv6())
    }

    /// Whether it contains an address.
    pub fn contains(self, address: IpAddr) -> bool {
        self.offset(address).is_some()
    }

    /// The offset of an address from the first one, if it is in the range.
    pub fn offset(self, address: IpAddr) -> Option<u128> {
        if address.is_ipv6() != self.is_ipv6() {
            return None;
        }
        number(address)
            .checked_sub(number(self.first))
            .filter(|offset| *offset < self.size())
    }

    /// Length of the prefix.
    pub fn prefix(self) -> u8 {
        self.prefix
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

fn address_of(number: u128, ipv6: bool) -> IpAddr {
    if ipv6 {
        return IpAddr::V6(Ipv6Addr::from(number));
    }
    IpAddr::V4(Ipv4Addr::from(
        u32::try_from(number & u128::from(u32::MAX)).unwrap_or_default(),
    ))
}

/// Parses a value as an address; reports a fault if it is none, or has a form that programs read as
/// different addresses (upstream's `StrictIPCIDRValidation`). Such a value that is stored may stay.
pub fn address(value: &Value, at: &FieldPath<'_>, faults: &mut Faults) -> Option<IpAddr> {
    let text = value.as_str().unwrap_or_default();
    let parsed: Option<IpAddr> = text.parse().ok();
    match parsed {
        None if without_leading_zeros(text).is_some() => {
            faults.invalid(at, value, "must not have leading 0s");
        }
        None => faults.invalid(at, value, NO_ADDRESS),
        Some(address) if mapped(address).is_some() => {
            faults.invalid_form(at, value, "must not be an IPv4-mapped IPv6 address");
        }
        Some(_) => {}
    }
    parsed
}

/// Parses a value as a range; reports a fault if it is none, or has a form that programs read as
/// different ranges. Such a value that is stored may stay.
pub fn range(value: &Value, at: &FieldPath<'_>, faults: &mut Faults) -> Option<Range> {
    let text = value.as_str().unwrap_or_default();
    let parsed = Range::parse(text);
    let (address, prefix) = text.split_once('/').unwrap_or((text, ""));
    let Some(range) = parsed else {
        let plain = without_leading_zeros(address).or_else(|| address.parse().ok());
        let prefix = prefix.trim_start_matches('0');
        let prefix = if prefix.is_empty() { "0" } else { prefix };
        let sloppy = plain.filter(|_| text.contains('/') && !text.ends_with('/'));
        let sloppy = sloppy.and_then(|plain| Range::parse(&format!("{plain}/{prefix}")));
        let fault = sloppy.map_or(
            NO_RANGE,
            |_| "must not have leading 0s in IP or prefix length",
        );
        faults.invalid(at, value, fault);
        return None;
    };
    let first = address.parse().unwrap_or(range.first);
    if mapped(first).is_some() {
        faults.invalid_form(at, value, "must not have an IPv4-mapped IPv6 address");
    } else if first != range.first {
        faults.invalid_form(at, value, "must not have bits set beyond the prefix length");
    }
    parsed
}

/// An IPv4 address whose numbers may have leading zeros, which some programs read as octal.
fn without_leading_zeros(text: &str) -> Option<IpAddr> {
    let plain = |part: &str| {
        let digits = part.trim_start_matches('0');
        let is_zero = digits.is_empty() && !part.is_empty();
        (if is_zero { "0" } else { digits }).to_owned()
    };
    let parts: Vec<String> = text.split('.').map(plain).collect();
    parts.join(".").parse::<Ipv4Addr>().ok().map(IpAddr::V4)
}

/// Reports an address that no host can have: unspecified, loopback, link-local, multicast.
pub fn no_special(address: IpAddr, value: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    let (local, multicast) = match address {
        IpAddr::V4(address) => (
            address.is_link_local(),
            address.octets().starts_with(&[224, 0, 0]),
        ),
        IpAddr::V6(address) => (
            address.is_unicast_link_local(),
            // The digit between is flags; the last one is the scope (RFC 4291, 2.7).
            address.segments()[0] & 0xff0f == 0xff02,
        ),
    };
    if address.is_unspecified() {
        faults.invalid(at, value, "may not be unspecified (0.0.0.0 or ::)");
    }
    if address.is_loopback() {
        faults.invalid(
            at,
            value,
            "may not be in the loopback range (127.0.0.0/8, ::1/128)",
        );
    }
    if local {
        faults.invalid(
            at,
            value,
            "may not be in the link-local range (169.254.0.0/16, fe80::/10)",
        );
    }
    if multicast {
        faults.invalid(
            at,
            value,
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        );
    }
}

/// The warning about an address in another than the canonical form; `None` for a canonical or
/// invalid one.
pub fn address_warning(text: &str, at: &FieldPath<'_>) -> Option<String> {
    let address: IpAddr = text.parse().ok()?;
    match mapped(address) {
        Some(plain) => Some(format!(
            "{at}: non-standard IP address {text:?} is invalid: use \"{plain}\""
        )),
        None if address.to_string() == text => None,
        None => Some(format!(
            "{at}: IPv6 address {text:?} should be in RFC 5952 canonical format (\"{address}\")"
        )),
    }
}

/// The warning about a range in another than the canonical form; `None` for a canonical or invalid
/// one.
pub fn range_warning(text: &str, at: &FieldPath<'_>) -> Option<String> {
    let range = Range::parse(text)?;
    let address: IpAddr = text.split_once('/')?.0.parse().ok()?;
    if address != range.first {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        return Some(format!(
            "{at}: CIDR value {text:?} is ambiguous in this context (should be \"{range}\" or \"{address}/{bits}\"?)"
        ));
    }
    if range.to_string() == text {
        return None;
    }
    Some(format!(
        "{at}: IPv6 CIDR value {text:?} should be in RFC 5952 canonical format (\"{range}\")"
    ))
}

/// The IPv4 address in an IPv4-mapped IPv6 address.
fn mapped(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => address.to_ipv4_mapped(),
    }
}

/// Validates a port number.
pub fn port(value: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    if !value
        .as_i64()
        .is_some_and(|port| (1..=65535).contains(&port))
    {
        faults.invalid(at, &shown_number(value), NO_PORT);
    }
}

/// Validates a port's number or name.
pub fn port_or_name(value: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    let Some(name) = value.as_str() else {
        return port(value, at, faults);
    };
    if let Err(fault) = names::port_name(name) {
        faults.invalid(at, value, fault);
    }
}

/// An absent number is shown as zero.
fn shown_number(value: &Value) -> Value {
    if value.is_null() {
        0.into()
    } else {
        value.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusual_forms_of_addresses_cause_warnings() {
        let at = FieldPath::root("a");
        let range = |text| range_warning(text, &at);
        assert_eq!(range("10.0.0.0/8"), None);
        assert_eq!(
            range("10.1.0.0/8").unwrap(),
            "a: CIDR value \"10.1.0.0/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.1.0.0/32\"?)"
        );
        assert_eq!(
            range("FD00::/64").unwrap(),
            "a: IPv6 CIDR value \"FD00::/64\" should be in RFC 5952 canonical format (\"fd00::/64\")"
        );
        assert_eq!(address_warning("1.2.3.4", &at), None);
        assert_eq!(address_warning("None", &at), None);
        assert_eq!(
            address_warning("::ffff:1.2.3.4", &at).unwrap(),
            "a: non-standard IP address \"::ffff:1.2.3.4\" is invalid: use \"1.2.3.4\""
        );
    }

    #[test]
    fn forms_that_programs_read_differently_are_refused_in_upstreams_words() {
        let messages = |text: &str, of: fn(&Value, &mut Faults)| {
            let mut faults = Faults::default();
            of(&text.into(), &mut faults);
            let found = faults.found().map(|(_, _, message)| message.to_owned());
            found.collect::<Vec<_>>().join("; ")
        };
        let address = |text: &str| {
            messages(text, |value, faults| {
                address(value, &FieldPath::root("a"), faults);
            })
        };
        let range = |text: &str| {
            messages(text, |value, faults| {
                range(value, &FieldPath::root("a"), faults);
            })
        };
        for fine in ["10.0.0.5", "0.0.0.0", "FD00::1", "::1"] {
            assert_eq!(address(fine), "", "{fine}");
        }
        for fine in ["10.0.0.0/8", "0.0.0.0/0", "FD00::/64", "10.0.0.5/32"] {
            assert_eq!(range(fine), "", "{fine}");
        }
        let zeros = "must not have leading 0s";
        let both = "must not have leading 0s in IP or prefix length";
        let mapped = "must not be an IPv4-mapped IPv6 address";
        let bits = "must not have bits set beyond the prefix length";
        for (text, words) in [
            ("010.000.000.005", zeros),
            ("::ffff:10.0.0.5", mapped),
            ("10.0.0", NO_ADDRESS),
            ("", NO_ADDRESS),
            ("10.0.0.5.", NO_ADDRESS),
        ] {
            assert_eq!(address(text), format!("Invalid value: {text:?}: {words}"));
        }
        for (text, words) in [
            ("192.168.0.5/24", bits),
            ("fd00::1/64", bits),
            ("10.0.0.0/08", both),
            ("010.0.0.0/8", both),
            (
                "::ffff:10.0.0.0/104",
                "must not have an IPv4-mapped IPv6 address",
            ),
            ("10.0.0.0", NO_RANGE),
            ("10.0.0.0/", NO_RANGE),
            ("10.0.0.0/33", NO_RANGE),
        ] {
            assert_eq!(range(text), format!("Invalid value: {text:?}: {words}"));
        }
    }

    #[test]
    fn a_form_that_is_stored_may_stay_wherever_it_is_now() {
        let faults = |texts: &[&str]| {
            let (mut faults, at) = (Faults::default(), FieldPath::root("a"));
            for (number, text) in texts.iter().enumerate() {
                range(&(*text).into(), &at.index(number), &mut faults);
            }
            faults
        };
        let left = |new: &[&str], old: &[&str]| {
            let mut all = faults(new);
            all.forgive(&faults(old));
            all.found().count()
        };
        let old = ["10.0.0.0/8", "192.168.0.5/24"];
        assert_eq!(left(&old, &old), 0);
        assert_eq!(left(&["192.168.0.5/24"], &old), 0, "it has moved");
        assert_eq!(left(&["192.168.0.6/24"], &old), 1);
        assert_eq!(left(&["ten"], &["10.0.0.0/8", "ten"]), 1, "that is no form");
    }

    #[test]
    fn ranges_count_their_addresses() {
        let range = Range::parse("10.96.0.7/16").unwrap();
        assert_eq!(
            (range.to_string().as_str(), range.size()),
            ("10.96.0.0/16", 65536)
        );
        assert_eq!(range.at(1).to_string(), "10.96.0.1");
        assert_eq!(range.offset("10.96.1.0".parse().unwrap()), Some(256));
        assert!(!range.contains("10.97.0.0".parse().unwrap()));
        assert!(!range.contains("::1".parse().unwrap()));
        assert_eq!(Range::parse("::/0").unwrap().size(), u128::MAX);
        assert_eq!(
            Range::parse("fd00::/112").unwrap().at(10).to_string(),
            "fd00::a"
        );
        for bad in [
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0/8",
            "10.0.0.0/08",
            "10.0.0.0/+8",
            "x/8",
        ] {
            assert!(Range::parse(bad).is_none(), "{bad}");
        }
    }
}
