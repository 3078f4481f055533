//! Keeps the default ServiceCIDR, the service `kubernetes`, through which pods reach the API, and
//! the service `kube-dns`, at which each node's own name server answers. Their addresses are kept
//! for them while they are gone.

use super::{Ranges, family};
use config_kube::FromJson;
use config_kube::identity::{API_SERVICE, NAME_SERVER_PROXY, NAMES_SERVICE, SERVICE_PROXY_LABEL};
use config_kube::k8s_openapi::api::core::v1::{Endpoints, Service};
use config_kube::k8s_openapi::api::discovery::v1::EndpointSlice;
use config_kube::k8s_openapi::api::networking::v1::ServiceCIDR;
use master_client::Client;
use master_schema::error::{ApiError, Reason};
use master_schema::validate::net::Range;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::time::Duration;

/// Where the service and its endpoints are, and their name, which the ServiceCIDR has, too.
const NAMESPACE: &str = API_SERVICE.0;
const NAME: &str = API_SERVICE.1;

/// The label of a slice that names its service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The service for names, and its place in each range: programs have both in their configuration.
const DNS_NAMESPACE: &str = NAMES_SERVICE.0;
const DNS_NAME: &str = NAMES_SERVICE.1;
const DNS_OFFSET: u128 = 10;

/// The service for which an address is kept, as namespace and name.
pub(super) fn keeper(ranges: &Ranges, address: IpAddr) -> Option<(&'static str, &'static str)> {
    if api_address(ranges) == Some(address) {
        return Some(API_SERVICE);
    }
    let mut of_names = ranges.services.iter().filter_map(names_address);
    of_names.any(|own| own == address).then_some(NAMES_SERVICE)
}

/// The address of the API's service: the first of the range, which the server's certificate has.
fn api_address(ranges: &Ranges) -> Option<IpAddr> {
    ranges.services.first().map(|range| range.at(1))
}

/// The usual address of the service for names; none where the range is too small for it.
fn names_address(range: &Range) -> Option<IpAddr> {
    (range.size() > DNS_OFFSET + 1).then(|| range.at(DNS_OFFSET))
}

/// Makes them once. A refusal of the API, for instance because another service has an address, is
/// logged and does not keep a master from starting: [`keep`] tries again. The namespaces must
/// exist.
pub async fn prepare(ranges: &Ranges, client: &Client) {
    log_failure(make(ranges, client).await, None);
    let Ok(Some(found)) = client.get_opt::<ServiceCIDR>(None, NAME).await else {
        return;
    };
    let configured = cidrs(ranges);
    if found.spec.and_then(|spec| spec.cidrs).as_ref() != Some(&configured) {
        tracing::warn!(
            configured = configured.join(", "),
            "the ServiceCIDR `kubernetes` has other ranges than the configuration; the object takes precedence"
        );
    }
}

/// Makes them again and again, with this pause, where they are missing or stale.
pub async fn keep(ranges: &Ranges, client: &Client, pause: Duration) {
    let mut before = None;
    loop {
        before = log_failure(make(ranges, client).await, before.as_deref());
        tokio::time::sleep(pause).await;
    }
}

/// Logs why something could not be made, unless the reason was the same before; returns the reason.
fn log_failure(made: Result<(), ApiError>, before: Option<&str>) -> Option<String> {
    let reason = made.err()?.message;
    if before != Some(&reason) {
        tracing::warn!(
            reason,
            "cannot make the default ServiceCIDR, Services and endpoints; trying again"
        );
    }
    Some(reason)
}

/// Creates what is missing and updates what is stale.
///
/// # Errors
/// The API refuses one of the writes, the first of them; the others are done.
async fn make(ranges: &Ranges, client: &Client) -> Result<(), ApiError> {
    if ranges.services.is_empty() {
        return Ok(());
    }
    let parts = [
        range(ranges, client).await,
        service(ranges, client).await,
        endpoints(ranges, client).await,
        names(ranges, client).await,
    ];
    parts.into_iter().collect()
}

fn cidrs(ranges: &Ranges) -> Vec<String> {
    ranges.services.iter().map(ToString::to_string).collect()
}

async fn range(ranges: &Ranges, client: &Client) -> Result<(), ApiError> {
    if client.get_opt::<ServiceCIDR>(None, NAME).await?.is_some() {
        return Ok(());
    }
    let wanted: ServiceCIDR =
        typed(&json!({"metadata": {"name": NAME}, "spec": {"cidrs": cidrs(ranges)}}))?;
    client.create(&wanted).await.map(drop)
}

fn typed<T: FromJson>(object: &Value) -> Result<T, ApiError> {
    T::from_tree(object).map_err(|error| {
        ApiError::new(
            Reason::InternalError,
            format!("an object of the server's own: {error}"),
        )
    })
}

async fn service(ranges: &Ranges, client: &Client) -> Result<(), ApiError> {
    let Some((range, address)) = ranges.services.first().zip(api_address(ranges)) else {
        return Ok(());
    };
    let port = ranges
        .advertise
        .first()
        .map_or(6443, std::net::SocketAddr::port);
    let address = address.to_string();
    let wanted: Service = typed(&json!({
        "metadata": {
            "name": NAME, "namespace": NAMESPACE, "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ipFamilies": [family(*range)],
            "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
        },
    }))?;
    let Some(mut found) = client.get_opt::<Service>(Some(NAMESPACE), NAME).await? else {
        return client.create(&wanted).await.map(drop);
    };
    // Somebody may have opened it at a port of nodes, too.
    let ports = |service: &Service| {
        let mut ports = service.spec.as_ref()?.ports.clone()?;
        for port in &mut ports {
            port.node_port = None;
        }
        Some(ports)
    };
    if ports(&found) != ports(&wanted) {
        if let Some(spec) = &mut found.spec {
            spec.ports = ports(&wanted);
        }
        client.update(&found).await?;
    }
    Ok(())
}

/// The service by whose name or address programs find the cluster's name server, as upstream's
/// clusters have it. It has no endpoints: nodes know it by its label. One that is there stays as it
/// is, also where it is another's.
async fn names(ranges: &Ranges, client: &Client) -> Result<(), ApiError> {
    if client
        .get_opt::<Service>(Some(DNS_NAMESPACE), DNS_NAME)
        .await?
        .is_some()
    {
        return Ok(());
    }
    let families: Vec<&str> = ranges.services.iter().map(|range| family(*range)).collect();
    let wanted = |addresses: &[String]| {
        let port = |name: &str, protocol: &str| json!({"name": name, "protocol": protocol, "port": 53, "targetPort": 53});
        let mut object = json!({
            "metadata": {"name": DNS_NAME, "namespace": DNS_NAMESPACE, "labels": {
                "k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true",
                "kubernetes.io/name": "CoreDNS", SERVICE_PROXY_LABEL: NAME_SERVER_PROXY,
            }},
            "spec": {
                "type": "ClusterIP", "ipFamilies": families, "ipFamilyPolicy": "PreferDualStack",
                "ports": [port("dns", "UDP"), port("dns-tcp", "TCP")],
            },
        });
        if let Some(first) = addresses.first() {
            object["spec"]["clusterIP"] = first.as_str().into();
            object["spec"]["clusterIPs"] = json!(addresses);
        }
        typed::<Service>(&object)
    };
    let fixed = ranges.services.iter().filter_map(names_address);
    let fixed: Vec<String> = fixed.map(|address| address.to_string()).collect();
    if fixed.len() != families.len() {
        return client.create(&wanted(&[])?).await.map(drop);
    }
    let Err(error) = client.create(&wanted(&fixed)?).await else {
        return Ok(());
    };
    // Without it, pods find names at their node's own address, still.
    client.create(&wanted(&[])?).await?;
    tracing::warn!(
        namespace = DNS_NAMESPACE,
        name = DNS_NAME,
        address = fixed.join(", "),
        reason = error.message,
        "the service for names cannot have its usual address; it has another"
    );
    Ok(())
}

/// Where the service leads: to this server, if it tells where it is.
async fn endpoints(ranges: &Ranges, client: &Client) -> Result<(), ApiError> {
    let port = ranges
        .advertise
        .first()
        .map_or(6443, std::net::SocketAddr::port);
    let ipv6 = ranges.services.first().is_some_and(|range| range.is_ipv6());
    let fitting = ranges
        .advertise
        .iter()
        .filter(|address| address.is_ipv6() == ipv6);
    let addresses: Vec<String> = fitting.map(|address| address.ip().to_string()).collect();
    if addresses.is_empty() {
        return Ok(());
    }
    let list: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"ip": address}))
        .collect();
    let wanted: Endpoints = typed(&json!({
        "metadata": {
            "name": NAME, "namespace": NAMESPACE, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": [{"addresses": list, "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}],
    }))?;
    match client.get_opt::<Endpoints>(Some(NAMESPACE), NAME).await? {
        None => drop(client.create(&wanted).await?),
        Some(mut found) if found.subsets != wanted.subsets => {
            found.subsets = wanted.subsets;
            client.update(&found).await?;
        }
        Some(_) => {}
    }
    let wanted: EndpointSlice = typed(&json!({
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {SERVICE_NAME: NAME}},
        "addressType": if ipv6 { "IPv6" } else { "IPv4" },
        "endpoints": [{"addresses": addresses, "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }))?;
    let is_of_service =
        |label: (&String, &String)| (&**label.0, &**label.1) == (SERVICE_NAME, NAME);
    match client
        .get_opt::<EndpointSlice>(Some(NAMESPACE), NAME)
        .await?
    {
        None => drop(client.create(&wanted).await?),
        Some(mut found)
            if found.endpoints != wanted.endpoints
                || found.ports != wanted.ports
                || !found.metadata.labels.iter().flatten().any(is_of_service) =>
        {
            found.endpoints = wanted.endpoints;
            found.ports = wanted.ports;
            let labels = found.metadata.labels.get_or_insert_default();
            labels.extend(wanted.metadata.labels.into_iter().flatten());
            client.update(&found).await?;
        }
        Some(_) => {}
    }
    Ok(())
}
