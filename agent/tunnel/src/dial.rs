//! Connections to a pod's own loopback, made from outside of it.
//!
//! A socket belongs to the network in which it is made, also if another thread uses it: two sockets
//! are made there, by a thread that enters the pod's network and ends, and are connected from here.

use agent_runtime::PodRef;
use agent_sys::namespace::{self, Kind};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// Longest wait for a connection. Loopback answers at once; a program whose queue is full does not.
const LIMIT: Duration = Duration::from_secs(10);

/// The pod whose ports are forwarded.
#[derive(Debug, Clone)]
pub struct ForwardTarget {
    /// The pod.
    pub pod: PodRef,
    /// The file that holds its network namespace; `None` for a pod on the machine's network.
    pub network: Option<PathBuf>,
}

impl ForwardTarget {
    /// Connects to a port of the pod, at 127.0.0.1 or, if no process listens there, at ::1.
    ///
    /// # Errors
    /// No process listens, or the pod's network is gone; with upstream's message, for the client.
    pub(crate) async fn dial(&self, port: u16) -> Result<TcpStream, String> {
        let failed = |why: String| {
            let PodRef {
                namespace,
                name,
                uid,
            } = &self.pod;
            format!("error forwarding port {port} to pod {namespace}/{name}, uid {uid}: {why}")
        };
        let network = self.network.clone();
        let made = tokio::task::spawn_blocking(move || sockets(network)).await;
        let sockets = match made {
            Ok(Ok(sockets)) => sockets,
            Ok(Err(error)) => {
                tracing::debug!(
                    error = config_errors::chain(&error),
                    "cannot enter a pod's network namespace"
                );
                return Err(failed("the pod's network is gone".to_owned()));
            }
            Err(_ended) => return Err(failed("the agent ends".to_owned())),
        };
        let mut faults = Vec::new();
        let loopback: [(&str, IpAddr); 2] = [
            ("IPv4", Ipv4Addr::LOCALHOST.into()),
            ("IPv6", Ipv6Addr::LOCALHOST.into()),
        ];
        for ((name, address), socket) in loopback.into_iter().zip(sockets) {
            match connect(socket, SocketAddr::new(address, port)).await {
                Ok(stream) => return Ok(stream),
                Err(error) => faults.push(format!("{name}: connect: {}", words(&error))),
            }
        }
        Err(failed(format!(
            "failed to connect to localhost:{port} inside the pod's network namespace, {}",
            faults.join(" ")
        )))
    }
}

/// A socket for IPv4 and one for IPv6, made in a network. A kernel may do without IPv6.
fn sockets(network: Option<PathBuf>) -> Result<[io::Result<TcpSocket>; 2], agent_sys::Error> {
    let make = || [TcpSocket::new_v4(), TcpSocket::new_v6()];
    match network {
        Some(path) => namespace::inside(&[(Kind::Network, &path)], || Ok(make())),
        None => Ok(make()),
    }
}

async fn connect(socket: io::Result<TcpSocket>, to: SocketAddr) -> io::Result<TcpStream> {
    let connected = timeout(LIMIT, socket?.connect(to)).await;
    let stream = connected.unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()))?;
    // What a program writes goes to the client at once.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// An error as C's library words it, as upstream does: `connection refused`.
pub(crate) fn words(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_lowercase().chain(letters).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    fn here() -> ForwardTarget {
        ForwardTarget {
            pod: PodRef {
                namespace: "default".to_owned(),
                name: "web".to_owned(),
                uid: "u1".to_owned(),
            },
            network: None,
        }
    }

    #[tokio::test]
    async fn both_loopbacks_are_tried_and_a_closed_port_is_reported_in_upstreams_words() {
        let six = TcpListener::bind("[::1]:0").await.unwrap();
        let port = six.local_addr().unwrap().port();
        let reached = here().dial(port).await.unwrap();
        assert_eq!(reached.peer_addr().unwrap(), six.local_addr().unwrap());
        drop((six, reached));
        let fault = here().dial(port).await.unwrap_err();
        let start = format!(
            "error forwarding port {port} to pod default/web, uid u1: failed to connect to localhost:{port}"
        );
        assert!(fault.starts_with(&start), "{fault}");
        let end = "IPv4: connect: connection refused IPv6: connect: connection refused";
        assert!(fault.ends_with(end), "{fault}");
    }

    #[tokio::test]
    async fn a_pod_without_a_network_any_more_is_reported_without_a_path_of_the_machine() {
        let gone = ForwardTarget {
            network: Some("/run/no/such/net".into()),
            ..here()
        };
        let fault = gone.dial(80).await.unwrap_err();
        assert_eq!(
            fault,
            "error forwarding port 80 to pod default/web, uid u1: the pod's network is gone"
        );
    }
}
