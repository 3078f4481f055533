//! Formats of single values: each type proves that its text has the format, and prints in that
//! format.

use crate::suggest::nearest;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

/// A text does not have the expected format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}")]
pub struct FormatError {
    /// The format in words.
    pub expected: String,
    /// What to do, if there is a likely cause.
    pub suggestion: Option<String>,
}

impl FormatError {
    /// An error without a suggestion.
    pub(crate) fn new(expected: &str) -> Self {
        Self {
            expected: expected.to_owned(),
            suggestion: None,
        }
    }

    /// The same error with a suggestion.
    pub(crate) fn hint(self, suggestion: impl Into<String>) -> Self {
        Self {
            suggestion: Some(suggestion.into()),
            ..self
        }
    }
}

/// A string type with one validation function.
macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident, $check:path) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::format::FormatError;

            fn from_str(text: &str) -> Result<Self, crate::format::FormatError> {
                $check(text).map(|()| Self(text.to_owned()))
            }
        }
    };
}
pub(crate) use text_type;

text_type!(
    /// An RFC 1123 label: at most 63 of `a-z`, `0-9` and `-`, starting and ending with a letter or
    /// digit.
    DnsLabel,
    label
);
text_type!(
    /// A DNS name: RFC 1123 labels joined by dots, at most 253 characters.
    DnsName,
    dns_name
);
text_type!(
    /// A node's name: a DNS name of at most 63 characters, because it is also the machine's host
    /// name.
    NodeName,
    node_name
);

fn label(text: &str) -> Result<(), FormatError> {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()]
        .iter()
        .all(|end| end.is_some_and(|b| *b != b'-'));
    if bytes.len() <= 63 && ends && bytes.iter().all(|b| inner(*b)) {
        return Ok(());
    }
    let error = FormatError::new(
        "a name of 1 to 63 lower-case letters, digits and `-`, with `-` only inside (RFC 1123)",
    );
    Err(match propose(text, false) {
        Some(proposal) => error.hint(format!("for example `{proposal}`")),
        None => error,
    })
}

fn dns_name(text: &str) -> Result<(), FormatError> {
    if text.len() <= 253 && !text.is_empty() && text.split('.').all(|part| label(part).is_ok()) {
        return Ok(());
    }
    let error =
        FormatError::new("a DNS name in lower case, such as `worker-1` or `master.example`");
    Err(match propose(text, true) {
        Some(proposal) => error.hint(format!("for example `{proposal}`")),
        None => error,
    })
}

fn node_name(text: &str) -> Result<(), FormatError> {
    dns_name(text)?;
    if text.len() > 63 {
        return Err(FormatError::new(
            "at most 63 characters, because it is also the machine's host name",
        ));
    }
    Ok(())
}

/// The name that was probably meant, if it differs only in case and separators.
fn propose(text: &str, dots: bool) -> Option<String> {
    let mapped: String = text
        .chars()
        .map(|c| match c {
            'A'..='Z' => c.to_ascii_lowercase(),
            '_' | ' ' => '-',
            _ => c,
        })
        .collect();
    let trimmed = mapped.trim_matches('-').to_owned();
    let valid = |name: &str| {
        if dots {
            dns_name(name).is_ok()
        } else {
            label(name).is_ok()
        }
    };
    (trimmed != text && trimmed.len() <= 63 && !trimmed.contains("..") && !trimmed.is_empty())
        .then_some(trimmed)
        .filter(|name| {
            name.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || (dots && b == b'.'))
        })
        .filter(|name| valid(name))
}

/// A host: an address or a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// An IP address.
    Ip(IpAddr),
    /// A DNS name.
    Name(DnsName),
}

impl fmt::Display for Host {
    /// As in a certificate: IPv6 without brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl FromStr for Host {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        if let Ok(ip) = text.parse() {
            return Ok(Self::Ip(ip));
        }
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if text.contains(':') || text.rsplit('.').next().is_some_and(digits) {
            return Err(FormatError::new(
                "an IP address, such as 192.168.77.10 or fd00::10, or a DNS name",
            ));
        }
        text.parse()
            .map(Self::Name)
            .map_err(|error: FormatError| FormatError {
                expected: "an IP address or a DNS name".to_owned(),
                ..error
            })
    }
}

/// `host:port`, as registries and mirrors are named.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// The host.
    pub host: Host,
    /// The port, if it was given.
    pub port: Option<u16>,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]")?,
            Host::Ip(IpAddr::V4(ip)) => write!(f, "{ip}")?,
            Host::Name(name) => write!(f, "{name}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl FromStr for HostPort {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let bracketed = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let (host, rest) = if let Some((host, rest)) = bracketed {
            (
                host.parse::<Ipv6Addr>().map(|ip| Host::Ip(ip.into())).ok(),
                rest,
            )
        } else {
            let end = text.find(':').unwrap_or(text.len());
            (text[..end].parse::<Host>().ok(), &text[end..])
        };
        let host = host
            .ok_or_else(|| FormatError::new("a host, with a port after `:` where it needs one"))?;
        let port = match rest.strip_prefix(':') {
            Some(port) => Some(
                number::<u16>(port)
                    .filter(|p| *p != 0)
                    .ok_or_else(|| FormatError::new("a port from 1 to 65535 after `:`"))?,
            ),
            None if rest.is_empty() => None,
            None => {
                return Err(FormatError::new(
                    "a host, with a port after `:` where it needs one",
                ));
            }
        };
        Ok(Self { host, port })
    }
}

/// The address of a master: https, with a port and nothing after it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The host.
    pub host: Host,
    /// The port.
    pub port: u16,
}

impl Endpoint {
    /// `host:port`, with IPv6 in brackets, as for a connection or a Host header.
    pub fn authority(&self) -> String {
        HostPort {
            host: self.host.clone(),
            port: Some(self.port),
        }
        .to_string()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}", self.authority())
    }
}

impl FromStr for Endpoint {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let error = || FormatError::new("an address of the form https://HOST:PORT");
        let Some(rest) = text.strip_prefix("https://") else {
            let bare = text.strip_prefix("http://").unwrap_or(text);
            let meant = format!("https://{bare}")
                .parse::<Self>()
                .ok()
                .filter(|_| !bare.starts_with("https"));
            return Err(match meant {
                Some(meant) => error().hint(format!("write \"{meant}\": a master speaks TLS only")),
                None => error(),
            });
        };
        let plain = rest.strip_suffix('/').unwrap_or(rest);
        if plain.contains(['/', '?', '#', '@']) {
            return Err(error().hint("leave out what follows the port"));
        }
        let HostPort { host, port } = plain.parse().map_err(|inner: FormatError| FormatError {
            expected: format!("{} ({})", error().expected, inner.expected),
            suggestion: inner.suggestion,
        })?;
        let port =
            port.ok_or_else(|| error().hint(format!("add the port: \"https://{plain}:6443\"")))?;
        Ok(Self { host, port })
    }
}

/// The address of a registry mirror: http or https, without a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MirrorUrl {
    /// Whether it is https.
    pub tls: bool,
    /// Host and port.
    pub address: HostPort,
}

impl fmt::Display for MirrorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "http{}://{}",
            if self.tls { "s" } else { "" },
            self.address
        )
    }
}

impl FromStr for MirrorUrl {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let error = || FormatError::new("an address of the form https://HOST or http://HOST:PORT");
        let (tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(error()),
        };
        let plain = rest.strip_suffix('/').unwrap_or(rest);
        if plain.contains(['/', '?', '#', '@']) {
            return Err(error().hint("leave out what follows the port"));
        }
        Ok(Self {
            tls,
            address: plain.parse()?,
        })
    }
}

/// `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pin(pub [u8; 32]);

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex::encode(self.0))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Pin {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let error = || FormatError::new("`sha256:` and 64 hexadecimal digits");
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        let mut pin = [0; 32];
        if digits.len() != 64 {
            let count = digits.chars().count();
            return Err(error().hint(format!(
                "there are {count} characters after `sha256:`, not 64"
            )));
        }
        hex::decode_to_slice(digits, &mut pin)
            .map_err(|_not_hex| error().hint("only the digits 0-9 and a-f may follow `sha256:`"))?;
        if digits.len() == text.len() {
            return Err(error().hint("put `sha256:` before the digits"));
        }
        Ok(Self(pin))
    }
}

/// A hardware address: six bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if index > 0 { ":" } else { "" })?;
        }
        Ok(())
    }
}

impl FromStr for Mac {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let error =
            || FormatError::new("a hardware address of six bytes, such as 52:54:00:12:34:56");
        let mut mac = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut mac {
            let part = parts
                .next()
                .filter(|part| part.len() == 2)
                .ok_or_else(error)?;
            hex::decode_to_slice(part, std::slice::from_mut(byte)).map_err(|_not_hex| error())?;
        }
        if parts.next().is_some() || mac[0] & 1 == 1 {
            return Err(error());
        }
        Ok(Self(mac))
    }
}

/// An address with a prefix length, such as `192.168.77.11/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    /// The address, host bits as written.
    pub address: IpAddr,
    /// Bits of the network.
    pub prefix: u8,
}

impl Cidr {
    /// The first address of the network.
    pub fn network(&self) -> IpAddr {
        match self.address {
            IpAddr::V4(ip) => {
                let mask = u32::MAX
                    .checked_shl(32 - u32::from(self.prefix))
                    .unwrap_or(0);
                Ipv4Addr::from(u32::from(ip) & mask).into()
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.prefix))
                    .unwrap_or(0);
                Ipv6Addr::from(u128::from(ip) & mask).into()
            }
        }
    }

    /// Whether an address is in the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4()
            && Self {
                address,
                prefix: self.prefix,
            }
            .network()
                == self.network()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Cidr {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let error =
            || FormatError::new("an address with a prefix length, such as 192.168.77.11/24");
        let Some((address, prefix)) = text.split_once('/') else {
            let alone = text.parse::<IpAddr>().ok();
            return Err(match alone {
                Some(ip) => error().hint(format!(
                    "add the prefix length, for example {ip}/{}",
                    if ip.is_ipv4() { 24 } else { 64 }
                )),
                None => error(),
            });
        };
        let address: IpAddr = address.parse().map_err(|_not_an_address| error())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = number::<u8>(prefix)
            .filter(|bits| *bits <= longest)
            .ok_or_else(|| {
                FormatError::new(&format!(
                    "a prefix length from 0 to {longest} after the address"
                ))
            })?;
        Ok(Self { address, prefix })
    }
}

/// A duration such as `90s`, `30m`, `1h30m`, `2d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HumanDuration(pub Duration);

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_secs();
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, seconds) in [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)] {
            if rest >= seconds {
                write!(f, "{}{unit}", rest / seconds)?;
                rest %= seconds;
            }
        }
        Ok(())
    }
}

impl FromStr for HumanDuration {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let error = || FormatError::new("a duration such as \"90s\", \"30m\", \"1h30m\" or \"2d\"");
        let mut total = 0_u64;
        let mut last = u64::MAX;
        let mut rest = text;
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(error().hint(format!("add a unit, for example \"{text}s\"")));
        }
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(error)?;
            let count = number::<u64>(&rest[..end]).ok_or_else(error)?;
            let unit = match rest.as_bytes()[end] {
                b'd' => 86_400,
                b'h' => 3600,
                b'm' => 60,
                b's' => 1,
                _ => return Err(error()),
            };
            if unit >= last {
                return Err(error().hint("write the larger unit first, each once"));
            }
            last = unit;
            let part = count.checked_mul(unit).ok_or_else(error)?;
            total = total.checked_add(part).ok_or_else(error)?;
            rest = &rest[end + 1..];
        }
        if last == u64::MAX {
            return Err(error());
        }
        Ok(Self(Duration::from_secs(total)))
    }
}

/// Digits only, without a sign, and in range.
fn number<T: FromStr>(text: &str) -> Option<T> {
    text.bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

/// One of several words, or the one that was probably meant.
pub(crate) fn one_of<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, FormatError> {
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(*value);
    }
    let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let quoted: Vec<String> = names.iter().map(|word| format!("\"{word}\"")).collect();
    let listed = if quoted.len() > 2 {
        format!("one of {}", quoted.join(", "))
    } else {
        quoted.join(" or ")
    };
    let error = FormatError::new(&listed);
    Err(match nearest(text, &names) {
        Some(near) => error.hint(format!("did you mean \"{near}\"?")),
        None => error,
    })
}
