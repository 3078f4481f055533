//! The API's proxy: one connection of the master to a port of a pod's own address.
//!
//! The address is the one that the node gave the pod's sandbox, never one that a status or an
//! endpoint slice claims, and it is looked up again once the connection is made: an address that
//! meanwhile serves another pod leads nowhere. A pod on the machine's network has the machine's
//! address. There only a port that the pod declares is the pod's; every other one belongs to the
//! machine, or is unused.

use crate::handshake::{TunnelRefusal, has};
use crate::{Tunnel, Tunnels};
use agent_runtime::PodRef;
use config_errors::chain;
use config_kube::k8s_openapi::api::core::v1::Pod;
use config_tunnel::port::PROTOCOL;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longest wait for a connection to a pod of this machine.
const LIMIT: Duration = Duration::from_secs(10);
/// Time for the master to close its side, so that a pod's last bytes reach it.
const LINGER: Duration = Duration::from_secs(10);
/// Bytes that are held of each direction.
const BUFFER: usize = 16 << 10;

/// Where a port of a pod is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// At the pod's own address.
    Own(IpAddr),
    /// At the machine's address, which the pod shares.
    Machine(IpAddr),
}

impl Reach {
    /// The address and port to connect to.
    ///
    /// # Errors
    /// 403: the pod is on the machine's network and does not declare this port.
    fn to(self, pod: &Pod, port: u16) -> Result<SocketAddr, TunnelRefusal> {
        match self {
            Self::Own(address) => Ok(SocketAddr::new(address, port)),
            Self::Machine(address) if declares(pod, port) => Ok(SocketAddr::new(address, port)),
            Self::Machine(_) => Err(TunnelRefusal::new(
                StatusCode::FORBIDDEN,
                format!(
                    "port {port} is not proxied: the pod is on its machine's network, where only TCP ports that its containers \
                     declare are the pod's"
                ),
            )),
        }
    }
}

/// Whether a container of the pod declares a TCP port.
fn declares(pod: &Pod, port: u16) -> bool {
    let spec = pod.spec.iter();
    let all = spec.flat_map(|spec| {
        spec.containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
    });
    all.flat_map(|container| container.ports.iter().flatten())
        .any(|one| {
            one.container_port == i32::from(port)
                && one.protocol.as_deref().is_none_or(|name| name == "TCP")
        })
}

impl Tunnels {
    /// A connection to a port of a pod. `reach` looks up where the pod is reached at that moment;
    /// it is called once before and once after the connection is made.
    ///
    /// # Errors
    /// The request is invalid, the pod has no network, the port is not the pod's, nothing answers
    /// there, or the node has as many of these connections as it may.
    pub async fn reach<B>(
        &self,
        request: &mut Request<B>,
        reference: PodRef,
        pod: &Pod,
        port: u16,
        reach: impl Fn() -> Option<Reach>,
    ) -> Result<Tunnel, TunnelRefusal> {
        let headers = request.headers();
        if request.method() != Method::GET
            || !has(headers, &CONNECTION, "upgrade")
            || !has(headers, &UPGRADE, PROTOCOL)
        {
            return Err(TunnelRefusal::bad("Upgrade request required"));
        }
        let permit = self.proxied.clone().try_acquire_owned();
        let permit = permit.map_err(|_full| TunnelRefusal::too_many())?;
        let gone = || {
            let text = format!("pod {:?} has no network", reference.name);
            TunnelRefusal::new(StatusCode::SERVICE_UNAVAILABLE, text)
        };
        let before = reach().ok_or_else(gone)?;
        let to = before.to(pod, port)?;
        let stream = connect(to).await?;
        if reach() != Some(before) {
            return Err(gone());
        }
        let upgrade = hyper::upgrade::on(request);
        let work = Box::pin(async move {
            let _permit = permit;
            let Ok(client) = upgrade.await else {
                return;
            };
            if let Err(error) = carry(TokioIo::new(client), stream).await {
                tracing::debug!(
                    pod = reference.uid,
                    port,
                    error = chain(&error),
                    "connection to a pod broke"
                );
            }
        });
        Ok(Tunnel {
            head: agreed(),
            work,
        })
    }
}

fn agreed() -> Response<()> {
    let mut head = Response::new(());
    *head.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = head.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
    head
}

/// Connects; a failure is reported in the words of upstream's API server, which dials pods itself.
async fn connect(to: SocketAddr) -> Result<TcpStream, TunnelRefusal> {
    let connected = timeout(LIMIT, TcpStream::connect(to)).await;
    let failed = |why: &str| {
        let text = format!("dial tcp {to}: {why}");
        TunnelRefusal::new(StatusCode::SERVICE_UNAVAILABLE, text)
    };
    let stream = match connected {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(failed(&format!("connect: {}", crate::dial::words(&error)))),
        Err(_elapsed) => return Err(failed("i/o timeout")),
    };
    // What a program writes goes to the client at once. Without it, it goes later.
    stream.set_nodelay(true).ok();
    Ok(stream)
}

/// Passes bytes on. A master that ends its side does not need the pod any more. What a pod has sent
/// before its end is passed on, also where it takes no more bytes itself.
async fn carry(client: impl AsyncRead + AsyncWrite, pod: TcpStream) -> io::Result<()> {
    let (from_client, mut to_client) = tokio::io::split(client);
    let (from_pod, mut to_pod) = pod.into_split();
    let mut from_client = BufReader::with_capacity(BUFFER, from_client);
    let mut from_pod = BufReader::with_capacity(BUFFER, from_pod);
    // Cancel-safe: the direction that goes on is not needed any more, or only to be drained.
    tokio::select! {
        sent = send(&mut from_client, &mut to_pod) => return sent,
        answered = tokio::io::copy_buf(&mut from_pod, &mut to_client) => answered?,
    };
    to_client.shutdown().await?;
    let mut unread = tokio::io::sink();
    // A master that does not close in time has had its time.
    timeout(LINGER, tokio::io::copy_buf(&mut from_client, &mut unread))
        .await
        .map_or(Ok(()), |copied| copied.map(drop))
}

/// Passes on what the client sends, until it ends; what the pod does not take is dropped.
async fn send(
    from: &mut (impl AsyncBufRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let mut taken = true;
    loop {
        let bytes = from.fill_buf().await?;
        let length = bytes.len();
        if length == 0 {
            return Ok(());
        }
        taken = taken && to.write_all(bytes).await.is_ok();
        from.consume(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::net::Ipv4Addr;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn pod() -> Pod {
        serde_json::from_value(json!({"spec": {"hostNetwork": true, "containers": [
            {"name": "a", "ports": [{"containerPort": 8080}, {"containerPort": 53, "protocol": "UDP"}]},
        ]}}))
        .unwrap()
    }

    fn request() -> Request<()> {
        let request = Request::get("/podPort/a/b/c/1")
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, PROTOCOL);
        request.body(()).unwrap()
    }

    async fn ask(
        tunnels: &Tunnels,
        port: u16,
        reach: impl Fn() -> Option<Reach>,
    ) -> Result<Tunnel, TunnelRefusal> {
        let reference = PodRef {
            namespace: "a".to_owned(),
            name: "b".to_owned(),
            uid: "c".to_owned(),
        };
        tunnels
            .reach(&mut request(), reference, &pod(), port, reach)
            .await
    }

    #[test]
    fn on_the_machines_network_only_declared_tcp_ports_are_the_pods() {
        let machine = Reach::Machine(HERE);
        assert_eq!(machine.to(&pod(), 8080), Ok(SocketAddr::new(HERE, 8080)));
        for port in [10_250, 6443, 22, 53] {
            let refusal = machine.to(&pod(), port).unwrap_err();
            assert_eq!(refusal.status, StatusCode::FORBIDDEN, "{port}");
            assert!(Reach::Own(HERE).to(&pod(), port).is_ok(), "{port}");
        }
    }

    #[tokio::test]
    async fn an_address_that_serves_another_pod_by_now_leads_nowhere() {
        let listener = TcpListener::bind((HERE, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let tunnels = Tunnels::new(1);
        assert!(ask(&tunnels, port, || Some(Reach::Own(HERE))).await.is_ok());
        let calls = std::cell::Cell::new(0);
        let once = || {
            calls.set(calls.get() + 1);
            (calls.get() == 1).then_some(Reach::Own(HERE))
        };
        let refusal = ask(&tunnels, port, once).await.unwrap_err();
        assert_eq!(refusal.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refusal.message, "pod \"b\" has no network");
    }

    #[tokio::test]
    async fn a_closed_port_is_reported_and_places_are_bounded() {
        let listener = TcpListener::bind((HERE, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut tunnels = Tunnels::new(1);
        tunnels.proxied = std::sync::Arc::new(tokio::sync::Semaphore::new(1));
        let own = || Some(Reach::Own(HERE));
        let held = ask(&tunnels, port, own).await.unwrap();
        let full = ask(&tunnels, port, own).await.unwrap_err();
        assert_eq!(full.status, StatusCode::TOO_MANY_REQUESTS);
        drop((held, listener));
        let closed = ask(&tunnels, port, own).await.unwrap_err();
        let words = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
        assert_eq!(closed.message, words);
    }

    #[tokio::test]
    async fn the_last_bytes_of_a_pod_that_reads_no_more_reach_the_master() {
        let listener = TcpListener::bind((HERE, 0)).await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap());
        let (near, accepted) = tokio::join!(near, listener.accept());
        let (mut master, far) = tokio::io::duplex(64);
        let carrying = tokio::spawn(carry(far, near.unwrap()));
        let mut program = accepted.unwrap().0;
        master.write_all(b"ask").await.unwrap();
        program.read_exact(&mut [0; 3]).await.unwrap();
        program.write_all(b"last words").await.unwrap();
        drop(program);
        let mut words = String::new();
        master.read_to_string(&mut words).await.unwrap();
        assert_eq!(words, "last words");
        drop(master);
        carrying.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_master_that_ends_ends_the_connection_to_a_silent_pod() {
        let listener = TcpListener::bind((HERE, 0)).await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap());
        let (near, accepted) = tokio::join!(near, listener.accept());
        let (master, far) = tokio::io::duplex(64);
        let carrying = tokio::spawn(carry(far, near.unwrap()));
        drop(master);
        let mut program = accepted.unwrap().0;
        assert_eq!(program.read(&mut [0; 8]).await.unwrap(), 0);
        carrying.await.unwrap().unwrap();
    }
}
