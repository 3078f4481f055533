//! The admin's kubeconfig of a development master.

use crate::Error;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_kube::Kubeconfig;
use master_ca::{Authority, pem};
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::SystemTime;

/// Writes a kubeconfig with a fresh admin certificate, mode 0600.
pub(crate) fn write(path: &Path, authority: &Authority, cluster: &str, listen: SocketAddr) -> Result<(), Error> {
    let admin = authority.make_development_admin(SystemTime::now()).map_err(Error::Issue)?;
    let key = pem("PRIVATE KEY", admin.key.secret_pkcs8_der());
    let text = Kubeconfig {
        cluster,
        server: &server(listen),
        ca: &STANDARD.encode(authority.roots_pem()),
        certificate: &STANDARD.encode(admin.issued.chain_pem()),
        key: &STANDARD.encode(key),
    }
    .text();
    let fail = |source| Error::File { what: "write", path: path.to_owned(), source };
    // A file that is there keeps its mode, so it goes first.
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(fail(error)),
    }
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(fail)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(fail)
}

/// The address by which a caller on this host reaches a listener.
fn server(listen: SocketAddr) -> String {
    let host = match listen.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(_) => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
    };
    format!("https://{}", SocketAddr::new(host, listen.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_all_addresses_is_reached_by_loopback() {
        assert_eq!(server("0.0.0.0:6443".parse().unwrap()), "https://127.0.0.1:6443");
        assert_eq!(server("[::]:6443".parse().unwrap()), "https://[::1]:6443");
        assert_eq!(server("192.0.2.1:1".parse().unwrap()), "https://192.0.2.1:1");
    }
}
