//! The admin's kubeconfig of a development master.

use crate::Error;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_kube::Kubeconfig;
use master_ca::{Authority, pem};
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::SystemTime;

/// Writes a kubeconfig with a fresh admin certificate, mode 0600.
pub(crate) fn write(
    path: &Path,
    authority: &Authority,
    cluster: &str,
    listen: SocketAddr,
) -> Result<(), Error> {
    let admin = authority
        .make_development_admin(SystemTime::now())
        .map_err(Error::Issue)?;
    let key = pem("PRIVATE KEY", admin.key.secret_pkcs8_der());
    let text = Kubeconfig {
        cluster,
        server: &server(listen),
        ca: &STANDARD.encode(authority.roots_pem()),
        certificate: &STANDARD.encode(admin.issued.chain_pem()),
        key: &STANDARD.encode(key),
    }
    .text();
    put(path, text.as_bytes()).map_err(|source| Error::File {
        what: "write",
        path: path.to_owned(),
        source,
    })
}

/// Replaces a file (mode 0600) by writing a temporary file beside it and renaming that: no reader
/// sees a part of it.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut neighbour = path.as_os_str().to_owned();
    neighbour.push(".new");
    // Removes what an earlier run left first; an existing file would keep its mode.
    match std::fs::remove_file(&neighbour) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&neighbour)?;
    file.write_all(bytes).and_then(|()| file.sync_all())?;
    std::fs::rename(&neighbour, path)
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
        assert_eq!(
            server("0.0.0.0:6443".parse().unwrap()),
            "https://127.0.0.1:6443"
        );
        assert_eq!(server("[::]:6443".parse().unwrap()), "https://[::1]:6443");
        assert_eq!(
            server("192.0.2.1:1".parse().unwrap()),
            "https://192.0.2.1:1"
        );
    }

    #[test]
    fn a_file_is_replaced_atomically_and_only_its_owner_reads_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.kubeconfig");
        for left in ["admin.kubeconfig", "admin.kubeconfig.new"] {
            std::fs::write(
                dir.path().join(left),
                "what an earlier run left, and longer",
            )
            .unwrap();
            std::fs::set_permissions(
                dir.path().join(left),
                std::fs::Permissions::from_mode(0o644),
            )
            .unwrap();
        }
        put(&path, b"fresh").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"fresh");
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no neighbour is left"
        );
    }
}
