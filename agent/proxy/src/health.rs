//! Answers load balancers' health checks of a service (`healthCheckNodePort`): whether this node
//! has endpoints of it, so that they send callers only to nodes that need no further hop.
//!
//! The answers are upstream's, for any path: `200` with the number of endpoints here, or `503` if
//! there is none, if nftables is too far behind the view, or if the service is left out.

use crate::left_out::LeftOut;
use crate::status::Freshness;
use crate::view::{Key, Known, Objects, Service, View};
use agent_port::{Limits, StrangerSlot, StrangerSlots};
use bytes::Bytes;
use config_errors::chain;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

/// Pause after a port could not be opened, before it is tried again.
pub(crate) const RETRY: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted, mostly for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(200);
/// Longest life of a connection: one request, one response.
const LONGEST: Duration = Duration::from_secs(10);
/// Connections at once: a balancer checks every few seconds from a handful of addresses.
pub(crate) const LIMITS: Limits = Limits {
    strangers: 128,
    per_host: 16,
    per_block: 64,
    master: 0,
    patience: Duration::from_secs(5),
    kept: Duration::from_secs(5),
};
/// Upstream's header, by which balancers weigh nodes.
const WEIGHT: &str = "x-load-balancing-endpoint-weight";

/// The answer at a service's health port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Health {
    /// The service.
    pub(crate) service: Key,
    /// Its endpoints on this node that take connections.
    pub(crate) endpoints: usize,
    /// Whether it is served: its namespace does not exceed its share.
    pub(crate) served: bool,
}

/// What the answers are computed from.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) view: View,
    pub(crate) node: String,
    pub(crate) left_out: watch::Receiver<LeftOut>,
    pub(crate) freshness: Freshness,
}

/// The answers of all health ports.
pub(crate) type Healths = BTreeMap<u16, Health>;

/// The ports at which the node answers load balancers.
pub(crate) fn health_ports(services: Option<&Objects<Service>>) -> BTreeSet<u16> {
    let all = services.into_iter().flat_map(BTreeMap::values);
    let own = all.filter(|service| !service.foreign);
    own.filter_map(|service| service.health_port).collect()
}

/// The answer of each health port. If two services have the same port, the first by name gets it.
pub(crate) fn healths(known: &Known, node: &str, left_out: &LeftOut) -> Healths {
    let Some((services, slices)) = known.whole() else {
        return Healths::new();
    };
    let mut ports: BTreeMap<&Key, u16> = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for (key, service) in services.iter().filter(|(_, service)| !service.foreign) {
        if let Some(port) = service.health_port
            && taken.insert(port)
        {
            ports.insert(key, port);
        }
    }
    if ports.is_empty() {
        return Healths::new();
    }
    let mut here: BTreeMap<u16, BTreeSet<IpAddr>> = BTreeMap::new();
    for (key, slice) in slices.iter().filter(|(_, slice)| !slice.foreign) {
        let service = Key {
            namespace: key.namespace.clone(),
            name: slice.service.clone(),
        };
        if let Some(port) = ports.get(&service) {
            let ready = slice.endpoints.iter();
            let ready = ready.filter(|one| one.ready && one.node.as_deref() == Some(node));
            here.entry(*port)
                .or_default()
                .extend(ready.map(|one| one.address));
        }
    }
    let health = |(service, port): (&Key, u16)| {
        let health = Health {
            service: service.clone(),
            endpoints: here.get(&port).map_or(0, pods),
            served: !left_out.has(service),
        };
        (port, health)
    };
    ports.into_iter().map(health).collect()
}

/// The number of pods with these addresses: a pod has at most one of each family.
fn pods(addresses: &BTreeSet<IpAddr>) -> usize {
    let six = addresses.iter().filter(|one| one.is_ipv6()).count();
    six.max(addresses.len() - six)
}

/// `fresh`: nftables is not too far behind the view.
fn response(health: Option<&Health>, fresh: bool) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    let Some(health) = health else {
        // The service was deleted while the request was on its way.
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    };
    let works = fresh && health.served;
    if health.endpoints == 0 || !works {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    let body = serde_json::json!({
        "service": {"namespace": health.service.namespace, "name": health.service.name},
        "localEndpoints": health.endpoints,
        "serviceProxyHealthy": works,
    });
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/json"),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        header::HeaderValue::from_static("nosniff"),
    );
    headers.insert(WEIGHT, health.endpoints.into());
    *response.body_mut() = Full::from(body.to_string());
    response
}

/// Keeps the ports open that services ask for, at these addresses of the node, until it is dropped.
pub(crate) async fn serve(asked: Asked, mut addresses: watch::Receiver<Vec<IpAddr>>) {
    let Asked {
        view,
        node,
        mut left_out,
        freshness,
    } = asked;
    let mut changes = view.changes();
    let (answers, _) = watch::channel(Healths::new());
    let mut listening: BTreeMap<SocketAddr, AbortHandle> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    let slots = StrangerSlots::new(LIMITS);
    loop {
        let known = Arc::clone(&changes.borrow_and_update());
        let now = healths(&known, &node, &left_out.borrow_and_update());
        let own = addresses.borrow_and_update().clone();
        let wanted: BTreeSet<SocketAddr> = now
            .keys()
            .flat_map(|port| own.iter().map(|own| SocketAddr::new(*own, *port)))
            .collect();
        answers.send_replace(now);
        listening.retain(|at, task| {
            let stays = wanted.contains(at);
            if !stays {
                task.abort();
            }
            stays
        });
        let mut failed = false;
        for at in wanted {
            if listening.contains_key(&at) {
                continue;
            }
            match TcpListener::bind(at).await {
                Ok(listener) => {
                    let task = tasks.spawn(listen(
                        listener,
                        slots.clone(),
                        answers.subscribe(),
                        freshness.clone(),
                    ));
                    listening.insert(at, task);
                }
                Err(error) => {
                    tracing::warn!(address = %at, error = chain(&error), "cannot listen on a Service's healthCheckNodePort");
                    failed = true;
                }
            }
        }
        while tasks.try_join_next().is_some() {}
        let next = async {
            tokio::select! {
                // Cancel-safe: all arms only wait. Addresses, or what is left out, keep their last
                // value once their sender is gone.
                outcome = changes.changed() => outcome,
                Ok(()) = addresses.changed() => Ok(()),
                Ok(()) = left_out.changed() => Ok(()),
            }
        };
        let outcome = if failed {
            timeout(RETRY, next).await.unwrap_or(Ok(()))
        } else {
            next.await
        };
        if outcome.is_err() {
            return;
        }
    }
}

async fn listen(
    listener: TcpListener,
    slots: StrangerSlots,
    answers: watch::Receiver<Healths>,
    freshness: Freshness,
) {
    let Ok(port) = listener.local_addr().map(|own| own.port()) else {
        return;
    };
    let answer = move |_: &str| {
        let fresh = freshness.is_fresh(Instant::now());
        response(answers.borrow().get(&port), fresh)
    };
    accept(listener, slots, Arc::new(answer)).await;
}

/// Answers a request for a path.
pub(crate) type Answer = Arc<dyn Fn(&str) -> Response<Full<Bytes>> + Send + Sync>;

/// Answers one request on each connection, until it is dropped.
pub(crate) async fn accept(listener: TcpListener, slots: StrangerSlots, answer: Answer) {
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let answer = Arc::clone(&answer);
                slots.admit(from.ip(), &mut connections, move |slot| {
                    connection(stream, slot, answer)
                });
            }
            Err(error) => {
                tracing::warn!(
                    error = chain(&error),
                    "cannot accept a connection to a health or status port; trying again"
                );
                tokio::time::sleep(PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(stream: TcpStream, slot: StrangerSlot, answer: Answer) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer(request.uri().path());
        async move { Ok::<_, Infallible>(answer) }
    });
    let http = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(LIMITS.patience)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Ok(Err(error)) = timeout(LONGEST, http).await {
        tracing::debug!(
            error = chain(&error),
            "a connection to a health or status port failed"
        );
    }
    drop(slot);
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
