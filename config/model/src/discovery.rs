//! `[discovery]`: the endpoints at which a machine without `[master]` looks for its master, and the
//! keys that it trusts.

use crate::fault::{FaultKind, Sink};
use crate::format::{FormatError, Host, HostPort, Pin, text_type};
use crate::raw::RawDiscovery;
use crate::read::At;
use std::fmt;
use std::str::FromStr;

/// Bytes of the URI of a discovery endpoint: a host name, a path and an id fit twice.
const URI_LENGTH: usize = 600;
/// Prefix of the paths of all clusters, after the endpoint's base path.
const CLUSTERS: &str = "/v1/clusters";

/// How a machine finds its master through a signed document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovery {
    /// URIs of the document, tried in order; at least one.
    pub uris: Vec<DiscoveryUri>,
    /// The trusted keys.
    pub trust: DiscoveryTrust,
    /// The lowest accepted generation.
    pub min_generation: u64,
}

/// The keys whose signature a machine trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiscoveryTrust {
    /// Keys with these hashes (SHA-256 of the SubjectPublicKeyInfo); at least one.
    Pins(Vec<Pin>),
    /// The first key that it sees, if the configuration allows this explicitly.
    FirstUse,
}

text_type!(
    /// A cluster's name at a discovery endpoint: 16 random bytes as 32 lower-case hex digits.
    ClusterId,
    cluster_id
);

fn cluster_id(text: &str) -> Result<(), FormatError> {
    let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if text.len() == 32 && text.bytes().all(digit) {
        return Ok(());
    }
    Err(FormatError::new(
        "the id of a cluster, 32 of the digits 0-9 and a-f",
    ))
}

impl ClusterId {
    /// An id from 16 random bytes.
    pub fn of(bytes: [u8; 16]) -> Option<Self> {
        hex::encode(bytes).parse().ok()
    }
}

/// A discovery endpoint: `http://HOST[:PORT][/PATH]`, or https.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryEndpoint {
    /// Whether it is https.
    pub tls: bool,
    /// The host, and the port if it is not the scheme's default.
    pub address: HostPort,
    /// Prefix of all paths: empty, or a slash and more.
    pub base: String,
}

impl DiscoveryEndpoint {
    /// Host.
    pub fn host(&self) -> &Host {
        &self.address.host
    }

    /// Port.
    pub fn port(&self) -> u16 {
        self.address.port.unwrap_or(if self.tls { 443 } else { 80 })
    }

    /// The path at which clusters are created.
    pub fn clusters(&self) -> String {
        format!("{}{CLUSTERS}", self.base)
    }
}

impl fmt::Display for DiscoveryEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "http{}://{}{}",
            if self.tls { "s" } else { "" },
            self.address,
            self.base
        )
    }
}

impl FromStr for DiscoveryEndpoint {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let error = || FormatError::new("an address of the form http://HOST:PORT or https://HOST");
        let (tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(error()),
        };
        let (address, base) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let base = base.trim_end_matches('/');
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"/-_.~".contains(&b);
        if !base.bytes().all(plain) || base.contains("//") || text.len() > URI_LENGTH {
            return Err(error());
        }
        Ok(Self {
            tls,
            address: address.parse()?,
            base: base.to_owned(),
        })
    }
}

/// A cluster at a discovery endpoint: `http://HOST[:PORT]/v1/clusters/ID`, or https.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryUri {
    /// The endpoint.
    pub endpoint: DiscoveryEndpoint,
    /// The cluster.
    pub cluster: ClusterId,
}

impl DiscoveryUri {
    /// The path of the cluster's document.
    pub fn master(&self) -> String {
        format!("{}/{}/master", self.endpoint.clusters(), self.cluster)
    }
}

impl fmt::Display for DiscoveryUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{CLUSTERS}/{}", self.endpoint, self.cluster)
    }
}

impl FromStr for DiscoveryUri {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let error =
            || FormatError::new("a cluster's address of the form http://HOST:PORT/v1/clusters/ID");
        let hint = || error().hint("`pratique discovery create` prints it");
        let (rest, id) = text.rsplit_once('/').ok_or_else(hint)?;
        let endpoint = rest.strip_suffix(CLUSTERS).ok_or_else(hint)?;
        Ok(Self {
            endpoint: endpoint.parse()?,
            cluster: id.parse()?,
        })
    }
}

/// Checks `[discovery]`.
pub(crate) fn check(section: &At<RawDiscovery>, sink: &mut Sink<'_>) -> Option<Discovery> {
    let At { value: raw, place } = section;
    let expected = "at least one address of the form http://HOST:PORT/v1/clusters/ID; `pratique discovery create` prints it";
    let uris = sink.required_list(raw.uris.as_ref(), place, "uris", expected);
    let min_generation = raw
        .min_generation
        .as_ref()
        .map(|number| sink.number(number, &(0..=i64::MAX)));
    let first_use = raw.insecure_trust_on_first_use.as_ref();
    let insecure = first_use.is_some_and(|flag| flag.value);
    let trust = if let (Some(flag), Some(_), true) = (first_use, &raw.pins, insecure) {
        let found = "`insecure_trust_on_first_use` beside `pins`";
        sink.fault(
            FaultKind::Conflict,
            &flag.place,
            found,
            "one of the two; with `pins` nothing else is trusted",
        );
        None
    } else if insecure {
        Some(DiscoveryTrust::FirstUse)
    } else {
        let expected = "at least one `sha256:…` of the cluster's discovery key, which `pratique discovery create` prints; \
                        without pins any endpoint would be trusted, which only `insecure_trust_on_first_use = true` allows";
        sink.required_list(raw.pins.as_ref(), place, "pins", expected)
            .map(DiscoveryTrust::Pins)
    };
    Some(Discovery {
        uris: uris?,
        trust: trust?,
        min_generation: min_generation.unwrap_or(Some(0))?,
    })
}
