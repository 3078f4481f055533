//! Loopback ports for servers that get their port from the test.
//!
//! A port that the kernel chose and that was closed again is not reserved: before the server binds
//! it, the kernel may give it to another test or to an outgoing connection. The ports here are
//! outside the range from which the kernel chooses, and each is held for this process by an
//! abstract Unix socket of its name, which ends with the process and leaves no file.

use crate::{Error, Result, file_error};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::RangeInclusive;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The kernel's own range (ip-sysctl.rst).
const KERNELS: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Ports that are tried.
const TRIED: RangeInclusive<u16> = 17_000..=65_000;

/// What holds the ports of this process.
static HELD: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// A port on which a server of this process can listen at 127.0.0.1, by TCP or by UDP, now and
/// again: no other test gets it while this process lives, and the kernel never chooses it.
///
/// # Errors
/// Where every port is taken.
pub fn free() -> Result<u16> {
    let text =
        std::fs::read_to_string(KERNELS).map_err(file_error("cannot read", Path::new(KERNELS)))?;
    let kernels = range(&text).unwrap_or(0..=0);
    let found = TRIED
        .filter(|port| !kernels.contains(port))
        .find_map(|port| {
            // Held first, then checked: another process that checks meanwhile finds it held.
            let held = SocketAddr::from_abstract_name(format!("pratique-port-{port}"))
                .and_then(|name| UnixListener::bind_addr(&name));
            let held = held.ok()?;
            let address = (Ipv4Addr::LOCALHOST, port);
            drop(TcpListener::bind(address).ok()?);
            drop(UdpSocket::bind(address).ok()?);
            HELD.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(held);
            Some(port)
        });
    found.ok_or_else(|| {
        Error::Missing(format!(
            "no port on 127.0.0.1 is free outside the kernel's own range {kernels:?}"
        ))
    })
}

/// Two neighbouring ports, the lower one of them.
///
/// # Errors
/// As [`free`].
pub fn free_pair() -> Result<u16> {
    let mut lower = free()?;
    loop {
        let next = free()?;
        if lower.checked_add(1) == Some(next) {
            return Ok(lower);
        }
        lower = next;
    }
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let mut numbers = text.split_whitespace().map(str::parse);
    Some(numbers.next()?.ok()?..=numbers.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice_and_none_is_the_kernels() {
        let ports: Vec<u16> = (0..50).map(|_| free().unwrap()).collect();
        let different: std::collections::BTreeSet<u16> = ports.iter().copied().collect();
        assert_eq!(different.len(), ports.len());
        let kernels = range(&std::fs::read_to_string(KERNELS).unwrap()).unwrap();
        assert!(
            ports.iter().all(|port| !kernels.contains(port)),
            "{kernels:?}"
        );
        drop(TcpListener::bind((Ipv4Addr::LOCALHOST, ports[0])).unwrap());
    }

    #[test]
    fn the_kernels_range_is_read() {
        assert_eq!(range("32768\t60999\n"), Some(32_768..=60_999));
        assert_eq!(range("all"), None);
    }
}
