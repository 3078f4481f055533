//! The caller of an exchange: its address, its certificate, its endorsement key.

use config_attest::verifier::RenewingPeer;
use config_kube::identity::node_of_user;
use config_protocol::wire::Keys;
use config_tpm::Digest;
use config_tpm::Public;
use master_ca::NodeExtension;
use master_listener::Peer;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// The endorsement key of a hello if a Machine lists it. It proves nothing about the caller: public
/// keys are no secrets.
pub(crate) fn listed_key(keys: &Keys, machines: &config_attest::Inventory) -> Option<Digest> {
    let key = Digest::of(&Public::parse(keys.ek.as_bytes()).ok()?.spki().ok()?);
    machines.has_ek(&key).then_some(key)
}

/// The caller's IP address.
pub(crate) fn address(peer: &Peer) -> IpAddr {
    peer.remote
        .map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |remote| {
            remote.ip().to_canonical()
        })
}

/// The caller's address and port as text, for records.
pub(crate) fn remote(peer: &Peer) -> String {
    // A dual-stack listener reports IPv4 addresses in their IPv6-mapped form.
    let plain = |remote: SocketAddr| SocketAddr::new(remote.ip().to_canonical(), remote.port());
    peer.remote
        .map(|remote| plain(remote).to_string())
        .unwrap_or_default()
}

/// The node that renews, from the client certificate that TLS verified; `None` where it is not a
/// node's.
pub(crate) fn renewing_peer(peer: &Peer) -> Option<RenewingPeer> {
    let leaf = peer.certificates.first()?;
    let extension = NodeExtension::of_certificate(leaf)?;
    let (_, parsed) = X509Certificate::from_der(leaf).ok()?;
    let user = parsed.subject().iter_common_name().next()?.as_str().ok()?;
    Some(RenewingPeer {
        machine_uid: extension.machine_uid,
        node_name: node_of_user(user)?.to_owned(),
        spki: parsed.public_key().raw.to_vec(),
    })
}
