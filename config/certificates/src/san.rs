//! Names that a serving certificate may have.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// A name in a serving certificate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum San {
    /// DNS name, lower case.
    Dns(String),
    /// Address.
    Ip(IpAddr),
}

impl std::fmt::Display for San {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dns(name) => write!(f, "DNS:{name}"),
            Self::Ip(address) => write!(f, "IP:{address}"),
        }
    }
}

impl San {
    /// An address if the text is one, else a DNS name. An IPv4-mapped IPv6 address becomes the IPv4
    /// address: clients treat the two as equal.
    pub fn from_text(text: &str) -> Self {
        match text.parse::<IpAddr>() {
            Ok(address) => Self::Ip(address.to_canonical()),
            Err(_) => Self::Dns(text.to_ascii_lowercase()),
        }
    }

    /// The name or address alone, as [`San::from_text`] reads it.
    pub fn text(&self) -> String {
        match self {
            Self::Dns(name) => name.clone(),
            Self::Ip(address) => address.to_string(),
        }
    }

    /// Whether it is the API server's: one of `names`, or `kubernetes` and its subdomains, which
    /// belong to the API server in every cluster.
    pub fn is_api_server(&self, names: &BTreeSet<San>) -> bool {
        let stock = |name: &str| name == "kubernetes" || name.starts_with("kubernetes.default");
        matches!(self, Self::Dns(name) if stock(name)) || names.contains(self)
    }
}
