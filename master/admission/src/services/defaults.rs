//! Creates the default ServiceCIDR, the service `kubernetes`, through which pods reach the API, and
//! the service `kube-dns`, at which each node's own name server answers.

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

/// Where the service and its endpoints are, and their name, which the ServiceCIDR has, too.
const NAMESPACE: &str = API_SERVICE.0;
const NAME: &str = API_SERVICE.1;

/// The service for names, and its place in each range: programs have both in their configuration.
const DNS_NAMESPACE: &str = NAMES_SERVICE.0;
const DNS_NAME: &str = NAMES_SERVICE.1;
const DNS_OFFSET: u128 = 10;

/// Creates what is missing and updates what is stale. The namespace `default` must exist.
///
/// # Errors
/// The API refuses one of the writes.
pub async fn prepare(ranges: &Ranges, client: &Client) -> Result<(), ApiError> {
    let cidrs: Vec<String> = ranges.services.iter().map(ToString::to_string).collect();
    if cidrs.is_empty() {
        return Ok(());
    }
    let range: ServiceCIDR = typed(&json!({"metadata": {"name": NAME}, "spec": {"cidrs": cidrs}}))?;
    match client.create(&range).await {
        Ok(_) => {}
        Err(error) if error.is_already_exists() => {
            let found: ServiceCIDR = client.get(None, NAME).await?;
            if found.spec.and_then(|spec| spec.cidrs).as_ref() != Some(&cidrs) {
                tracing::warn!(
                    configured = cidrs.join(", "),
                    "the ServiceCIDR `kubernetes` has other ranges than the configuration; the object takes precedence"
                );
            }
        }
        Err(error) => return Err(error),
    }
    service(ranges, client).await?;
    names(ranges, client).await?;
    if ranges.advertise.is_empty() {
        Ok(())
    } else {
        endpoints(ranges, client).await
    }
}

fn typed<T: FromJson>(object: &Value) -> Result<T, ApiError> {
    T::from_tree(object).map_err(|error| {
        ApiError::new(
            Reason::InternalError,
            format!("an object of the server's own: {error}"),
        )
    })
}

/// The service's address is the first of the range, which the server's certificate contains.
async fn service(ranges: &Ranges, client: &Client) -> Result<(), ApiError> {
    let Some(range) = ranges.services.first() else {
        return Ok(());
    };
    let port = ranges
        .advertise
        .first()
        .map_or(6443, std::net::SocketAddr::port);
    let address = range.at(1).to_string();
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
    let ports = |service: &Service| service.spec.as_ref().and_then(|spec| spec.ports.clone());
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
    let has_it = |range: &&Range| range.size() > DNS_OFFSET + 1;
    let fixed = ranges.services.iter().filter(has_it);
    let fixed: Vec<String> = fixed
        .map(|range| range.at(DNS_OFFSET).to_string())
        .collect();
    if fixed.len() == families.len() {
        match client.create(&wanted(&fixed)?).await {
            Ok(_) => return Ok(()),
            Err(error) => tracing::warn!(
                namespace = DNS_NAMESPACE,
                name = DNS_NAME,
                address = fixed.join(", "),
                reason = error.message,
                "the service for names cannot have its usual address; trying another"
            ),
        }
    }
    // Without it, pods find names at their node's own address, still.
    if let Err(error) = client.create(&wanted(&[])?).await {
        let reason = error.message;
        tracing::warn!(
            namespace = DNS_NAMESPACE,
            name = DNS_NAME,
            reason,
            "cannot create the service for names"
        );
    }
    Ok(())
}

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
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": if ipv6 { "IPv6" } else { "IPv4" },
        "endpoints": [{"addresses": addresses, "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }))?;
    match client
        .get_opt::<EndpointSlice>(Some(NAMESPACE), NAME)
        .await?
    {
        None => drop(client.create(&wanted).await?),
        Some(mut found) if found.endpoints != wanted.endpoints || found.ports != wanted.ports => {
            found.endpoints = wanted.endpoints;
            found.ports = wanted.ports;
            client.update(&found).await?;
        }
        Some(_) => {}
    }
    Ok(())
}
