//! A connection to one port of a pod's own address, from the master through the kubelet's port.
//!
//! The master asks `GET` of a [`PortPath`] with `Connection: Upgrade` and `Upgrade:` [`PROTOCOL`].
//! The node connects, answers 101, and from then on passes bytes on as they come. The pod is named
//! by its uid, so that no other pod of that name, and no address, takes its place.

use std::fmt;

/// The protocol in the `Upgrade` header.
pub const PROTOCOL: &str = "pratique-pod-port";
/// The first part of the kubelet's path.
pub const FOLDER: &str = "podPort";

/// A pod's port as the kubelet's path names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortPath<'a> {
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The pod's name.
    pub pod: &'a str,
    /// The pod's uid.
    pub uid: &'a str,
    /// The port, from 1.
    pub port: u16,
}

impl<'a> PortPath<'a> {
    /// From the parts of a path; `None` where it is not the path of a port.
    pub fn parse(parts: &[&'a str]) -> Option<Self> {
        match parts {
            [FOLDER, namespace, pod, uid, port] => Some(Self {
                namespace,
                pod,
                uid,
                port: port.parse().ok().filter(|port| *port > 0)?,
            }),
            _ => None,
        }
    }
}

impl fmt::Display for PortPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            namespace,
            pod,
            uid,
            port,
        } = self;
        write!(f, "/{FOLDER}/{namespace}/{pod}/{uid}/{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_as_it_was_written_and_port_zero_is_none() {
        let path = PortPath {
            namespace: "default",
            pod: "web",
            uid: "u1",
            port: 8080,
        }
        .to_string();
        assert_eq!(path, "/podPort/default/web/u1/8080");
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let read = PortPath::parse(&parts).unwrap();
        assert_eq!((read.pod, read.uid, read.port), ("web", "u1", 8080));
        for bad in ["0", "65536", "-1", "http", ""] {
            assert_eq!(PortPath::parse(&["podPort", "a", "b", "c", bad]), None);
        }
    }
}
