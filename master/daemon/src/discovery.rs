//! The addresses of this master for nodes, and the client of the discovery programs that publish
//! them.

use crate::chain;
use config_model::discovery::DiscoveryUri;
use config_model::format::{Endpoint, Host};
use master_client::BoxFuture;
use master_control::options::Publish;

/// Most endpoints of a document.
const MAX_ENDPOINTS: usize = config_discovery::MAX_LIST;

/// Sets documents over HTTP.
#[derive(Debug)]
pub(crate) struct Publisher;

impl Publish for Publisher {
    fn set<'a>(
        &'a self,
        uri: &'a DiscoveryUri,
        credential: &'a str,
        document: Vec<u8>,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let set = master_bootstrap::Client::set(uri, credential, document).await;
            set.map_err(|error| chain(&error))
        })
    }
}

/// Where nodes find this master: the names that the configuration gives the API, then the machine's
/// own addresses, without loopback and similar ones.
pub(crate) fn endpoints(
    hosts: &[Host],
    addresses: &[std::net::SocketAddr],
    port: u16,
) -> Vec<Endpoint> {
    let named = hosts.iter().cloned();
    let own = addresses.iter().map(|address| Host::Ip(address.ip()));
    let mut all: Vec<Endpoint> = Vec::new();
    let elsewhere = |host: &Host| match host {
        Host::Ip(ip) => !ip.is_loopback() && !ip.is_unspecified(),
        Host::Name(name) => name.as_str() != "localhost",
    };
    for host in named.chain(own).filter(elsewhere) {
        let endpoint = Endpoint { host, port };
        if !all.contains(&endpoint) && all.len() < MAX_ENDPOINTS {
            all.push(endpoint);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_are_named_before_they_are_numbered() {
        let names = ["127.0.0.1", "localhost", "api.example", "192.168.77.10"]
            .map(|host| host.parse().unwrap());
        let all = endpoints(&names, &["192.168.77.10:6443".parse().unwrap()], 6443);
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(
            all,
            ["https://api.example:6443", "https://192.168.77.10:6443"]
        );
    }
}
