//! `network.stub_domain`: domains whose names other servers know than the machine's own.

use crate::fault::{FaultKind, Sink};
use crate::format::DnsName;
use crate::network::UnicastIp;
use crate::raw::RawStubDomain;
use crate::read::At;
use std::net::IpAddr;

/// The cluster's own domain, whose names nodes know themselves.
const OWN: &str = "cluster.local";
/// Most servers of a domain: a query is sent to one after another, and its client's timeout ends
/// the wait.
const MOST_SERVERS: usize = 3;

/// A domain, and the DNS servers for the names in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StubDomain {
    /// The domain; all names below it are meant, too.
    pub domain: DnsName,
    /// Its servers, asked in this order; at least one.
    pub servers: Vec<IpAddr>,
}

/// Checks the list.
pub(crate) fn check(
    raw: Option<At<Vec<At<RawStubDomain>>>>,
    sink: &mut Sink<'_>,
) -> Vec<StubDomain> {
    let mut all: Vec<StubDomain> = Vec::new();
    for At { value: raw, place } in raw.map(|list| list.value).unwrap_or_default() {
        let text = sink.required(
            raw.domain,
            &place,
            "domain",
            "a domain such as `corp.example`",
        );
        let servers = sink.required_list(
            raw.servers.as_ref(),
            &place,
            "servers",
            "addresses of name servers",
        );
        let (Some(text), Some(servers)) = (text, servers) else {
            continue;
        };
        let Some(domain) = sink.parse::<DnsName>(&text) else {
            continue;
        };
        let servers: Vec<UnicastIp> = servers;
        let is_own = domain.as_str() == OWN || domain.as_str().ends_with(&format!(".{OWN}"));
        if is_own {
            let expected = "a domain outside of the cluster's, whose names nodes know themselves";
            sink.fault(
                FaultKind::Conflict,
                &text.place,
                domain.to_string(),
                expected,
            );
        } else if all.iter().any(|other| other.domain == domain) {
            sink.fault(
                FaultKind::Duplicate,
                &text.place,
                format!("{domain} a second time"),
                "each domain once",
            );
        } else if let Some(more) = raw
            .servers
            .iter()
            .flat_map(|list| &list.value)
            .nth(MOST_SERVERS)
        {
            let expected = format!("at most {MOST_SERVERS} servers of a domain");
            sink.fault(
                FaultKind::BadValue,
                &more.place,
                "one more server",
                &expected,
            );
        } else {
            let servers = servers.into_iter().map(UnicastIp::address).collect();
            all.push(StubDomain { domain, servers });
        }
    }
    all
}
