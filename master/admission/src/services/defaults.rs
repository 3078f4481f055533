//! Creates the default ServiceCIDR and the service `kubernetes`, through which pods reach the API.

use super::{Ranges, family};
use config_kube::FromJson;
use config_kube::k8s_openapi::api::core::v1::{Endpoints, Service};
use config_kube::k8s_openapi::api::discovery::v1::EndpointSlice;
use config_kube::k8s_openapi::api::networking::v1::ServiceCIDR;
use master_client::Client;
use master_schema::error::{ApiError, Reason};
use serde_json::{Value, json};

/// Name of the ServiceCIDR, of the service and of its endpoints.
const NAME: &str = "kubernetes";

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
            "name": NAME, "namespace": "default", "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ipFamilies": [family(*range)],
            "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
        },
    }))?;
    let Some(mut found) = client.get_opt::<Service>(Some("default"), NAME).await? else {
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
            "name": NAME, "namespace": "default", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": [{"addresses": list, "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}],
    }))?;
    match client.get_opt::<Endpoints>(Some("default"), NAME).await? {
        None => drop(client.create(&wanted).await?),
        Some(mut found) if found.subsets != wanted.subsets => {
            found.subsets = wanted.subsets;
            client.update(&found).await?;
        }
        Some(_) => {}
    }
    let wanted: EndpointSlice = typed(&json!({
        "metadata": {"name": NAME, "namespace": "default", "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": if ipv6 { "IPv6" } else { "IPv4" },
        "endpoints": [{"addresses": addresses, "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }))?;
    match client
        .get_opt::<EndpointSlice>(Some("default"), NAME)
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
