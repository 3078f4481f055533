//! Which port of which pod a proxied request goes to.
//!
//! Guarantee: a request goes to a pod, by its uid, and the pod's node connects to the address that
//! it gave that pod itself. What a pod's status and an endpoint slice say of addresses is written
//! by others, so that it is compared and never dialled: nothing in it leads to a loopback, to
//! metadata of a cloud, to a node, to this server or into a network behind it. An endpoint that is
//! no pod of the service's namespace is passed over.

use crate::target::ProxyTarget;
use config_kube::k8s_openapi::api::core::v1::{Pod, Service};
use config_kube::k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use master_client::{Client, ListParams};
use master_schema::error::{ApiError, Reason};
use std::net::IpAddr;

/// Label of a slice with its service's name.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Endpoints of a service whose pods are looked up for one request.
const TRIES: usize = 16;

/// A pod's port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's uid.
    pub uid: String,
    /// The node that it runs on.
    pub node: String,
    /// The port.
    pub port: u16,
    /// The address in the pod's status, for links of its pages alone.
    pub address: IpAddr,
}

impl Backend {
    /// A port of a pod that runs on a node.
    ///
    /// # Errors
    /// 400: the pod has no node, or its status names no address or one that is no pod's.
    fn new(pod: &Pod, port: u16) -> Result<Self, ApiError> {
        let meta = &pod.metadata;
        let name = meta.name.clone().unwrap_or_default();
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let node = node
            .filter(|node| !node.is_empty())
            .ok_or_else(|| bad(format!("pod {name} does not have a host assigned")))?;
        let address = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
        let address: Option<IpAddr> = address.and_then(|address| address.parse().ok());
        Ok(Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            pod: name,
            uid: meta.uid.clone().unwrap_or_default(),
            node,
            port,
            address: address
                .filter(is_proxyable)
                .ok_or_else(|| bad("address not allowed".to_owned()))?,
        })
    }
}

fn bad(text: String) -> ApiError {
    ApiError::new(Reason::BadRequest, text)
}

/// Whether an address can be a pod's or a node's: none of the caller's own host, and none that
/// means another host on each link (upstream's `IsProxyableIP`).
pub fn is_proxyable(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => {
            !(four.is_unspecified()
                || four.is_loopback()
                || four.is_link_local()
                || four.is_multicast()
                || four.is_broadcast())
        }
        IpAddr::V6(six) => match six.to_ipv4_mapped() {
            Some(four) => is_proxyable(&IpAddr::V4(four)),
            None => {
                !(six.is_unspecified()
                    || six.is_loopback()
                    || six.is_unicast_link_local()
                    || six.is_multicast())
            }
        },
    }
}

/// The port of a pod that a path names: by number, by its name in a container, or the first one
/// that a container declares.
///
/// # Errors
/// The pod does not exist, has no such port, or does not run.
pub async fn of_pod(
    client: &Client,
    namespace: &str,
    target: &ProxyTarget<'_>,
) -> Result<Backend, ApiError> {
    let pod: Pod = client.get(Some(namespace), target.name).await?;
    let port = pod_port(&pod, target);
    let text = || format!("invalid port {:?} in a pod request", target.port);
    Backend::new(&pod, port.ok_or_else(|| bad(text()))?)
}

fn pod_port(pod: &Pod, target: &ProxyTarget<'_>) -> Option<u16> {
    if let Ok(port) = target.port.parse::<u16>() {
        return Some(port).filter(|port| *port > 0);
    }
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    if target.port.is_empty() {
        let usual = if target.tls == Some(true) { 443 } else { 80 };
        return ports
            .next()
            .map_or(Some(usual), |port| u16::try_from(port.container_port).ok());
    }
    let named = ports.find(|port| port.name.as_deref() == Some(target.port));
    named.and_then(|port| u16::try_from(port.container_port).ok())
}

/// A port of one of a service's ready pods.
///
/// # Errors
/// The service does not exist, has no such port, or no endpoint of its is a ready pod.
pub async fn of_service(
    client: &Client,
    namespace: &str,
    target: &ProxyTarget<'_>,
) -> Result<Backend, ApiError> {
    let service: Service = client.get(Some(namespace), target.name).await?;
    let port = service_port(&service, target)?;
    let params = ListParams {
        labels: Some(format!("{SERVICE_NAME}={}", target.name)),
        ..ListParams::default()
    };
    let slices = client
        .list::<EndpointSlice>(Some(namespace), &params)
        .await?;
    let mut found: Vec<(&Endpoint, u16)> = slices
        .items
        .iter()
        .filter_map(|slice| Some((slice, slice_port(slice, &port)?)))
        .flat_map(|(slice, port)| {
            let all = slice.endpoints.iter().flatten();
            all.map(move |one| (one, port))
        })
        .filter(|(endpoint, _)| is_ready(endpoint))
        .collect();
    let all = found.len();
    if all > 0 {
        // Requests are spread by chance.
        let chance = uuid::Uuid::new_v4().as_u128() % all as u128;
        found.rotate_left(usize::try_from(chance).unwrap_or_default());
    }
    for (endpoint, port) in found.into_iter().take(TRIES) {
        if let Some(pod) = its_pod(client, namespace, endpoint).await?
            && let Ok(backend) = Backend::new(&pod, port)
        {
            return Ok(backend);
        }
    }
    let mut text = format!("no endpoints available for service {:?}", target.name);
    if all > 0 {
        text.push_str(": only pods are proxied to, and none of its endpoints is one");
    }
    Err(ApiError::new(Reason::ServiceUnavailable, text))
}

/// The name of the service's port.
fn service_port(service: &Service, target: &ProxyTarget<'_>) -> Result<String, ApiError> {
    let Ok(number) = target.port.parse::<i64>() else {
        return Ok(target.port.to_owned());
    };
    let ports = service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten());
    let found = ports
        .into_iter()
        .find(|port| i64::from(port.port) == number)
        .map(|port| port.name.clone().unwrap_or_default());
    let (number, name) = (number, target.name);
    let text = || format!("no service port {number} found for service {name:?}");
    found.ok_or_else(|| ApiError::new(Reason::ServiceUnavailable, text()))
}

/// The number of a named TCP port in a slice.
fn slice_port(slice: &EndpointSlice, name: &str) -> Option<u16> {
    let mut ports = slice.ports.iter().flatten();
    let found = ports.find(|port| {
        port.name.as_deref().unwrap_or_default() == name
            && port.protocol.as_deref().is_none_or(|name| name == "TCP")
    });
    let number = found.and_then(|port| u16::try_from(port.port?).ok());
    number.filter(|number| *number > 0)
}

fn is_ready(endpoint: &Endpoint) -> bool {
    let ready = endpoint.conditions.as_ref().and_then(|all| all.ready);
    ready != Some(false)
}

/// The pod that an endpoint says it is, if that is so.
async fn its_pod(
    client: &Client,
    namespace: &str,
    endpoint: &Endpoint,
) -> Result<Option<Pod>, ApiError> {
    let Some(reference) = endpoint.target_ref.as_ref().filter(|one| {
        one.kind.as_deref() == Some("Pod")
            && one.namespace.as_deref().is_none_or(|own| own == namespace)
    }) else {
        return Ok(None);
    };
    let name = reference.name.clone().unwrap_or_default();
    let pod: Option<Pod> = client.get_opt(Some(namespace), &name).await?;
    Ok(pod.filter(|pod| {
        let addresses = pod
            .status
            .iter()
            .flat_map(|status| status.pod_ips.iter().flatten());
        let same = reference.uid.is_none() || reference.uid == pod.metadata.uid;
        let mut addresses = addresses.map(|one| &one.ip);
        same && addresses.any(|own| endpoint.addresses.first() == Some(own))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(status: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "a", "uid": "u"},
            "spec": {"nodeName": "n", "containers": [
                {"name": "a", "ports": [{"name": "web", "containerPort": 8080}]},
                {"name": "b", "ports": [{"name": "tls", "containerPort": 8443}]},
            ]},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_pods_claimed_address_must_be_one_that_a_pod_can_have() {
        for bad in [
            "127.0.0.1",
            "169.254.169.254",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "localhost",
            "",
        ] {
            let refused = Backend::new(&pod(&json!({"podIP": bad})), 80).unwrap_err();
            assert_eq!(refused.message, "address not allowed", "{bad}");
        }
        let backend = Backend::new(&pod(&json!({"podIP": "10.1.0.2"})), 80).unwrap();
        assert_eq!(
            (&*backend.uid, &*backend.node, backend.port),
            ("u", "n", 80)
        );
    }

    #[test]
    fn a_pods_port_is_known_by_number_by_name_and_by_default() {
        let pod = pod(&json!({}));
        for (port, expected) in [
            ("", Some(8080)),
            ("web", Some(8080)),
            ("tls", Some(8443)),
            ("1", Some(1)),
            ("0", None),
            ("65536", None),
            ("none", None),
        ] {
            let target = ProxyTarget {
                tls: None,
                name: "p",
                port,
            };
            assert_eq!(pod_port(&pod, &target), expected, "{port}");
        }
    }
}
