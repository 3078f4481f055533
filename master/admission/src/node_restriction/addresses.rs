//! The addresses in a pod's status. Network policies and services send traffic to the addresses in
//! this status, so a node may write only addresses of its own there.
//!
//! A node reports the addresses of its machine itself, as they change with network cards, DHCP
//! leases and router advertisements, and the master cannot verify them. So a pod on the machine's
//! network must not get an address that has another owner ([`AddressOwners`]). An address outside
//! the cluster gives a compromised node nothing that it could not have anyway: it can forward the
//! traffic of its pods to any such address.

use super::address_owners::{AddressOwners, address, pod_ranges};
use crate::plugin::{Request, read};
use master_schema::error::ApiError;
use master_schema::validate::net::Range;
use master_schema::validate::{Fields, get, items, object, text};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Checks each address that the status did not have before. A pod's address must be in the Node's
/// pod ranges or, for a pod on the machine's network, be an address of the Node without another
/// owner. A host's address must be an address of the Node; no traffic is sent to it. Addresses that
/// the status had before may stay, as the pods of a machine whose addresses changed go on.
pub(super) async fn check(
    address_owners: &AddressOwners,
    request: &Request<'_>,
    node: &str,
    new: &Fields,
    old: &Fields,
) -> Result<(), ApiError> {
    let added = |single: &str, list: &str| -> BTreeSet<String> {
        let before = addresses(old, single, list);
        let mut added = addresses(new, single, list);
        added.retain(|address| !before.contains(address));
        added
    };
    let (of_pod, of_host) = (added("podIP", "podIPs"), added("hostIP", "hostIPs"));
    if of_pod.is_empty() && of_host.is_empty() {
        return Ok(());
    }
    let stored = request.get(&format!("nodes/{node}")).await?;
    let stored = stored.as_ref().and_then(read).unwrap_or_default();
    let machine = Machine::read(&stored);
    let shared = object(old, "spec").is_some_and(|spec| get(spec, "hostNetwork") == true);
    let refuse = |address: &str, what: &str, own: String| {
        let (namespace, pod) = (request.namespace, request.name);
        let own = if own.is_empty() {
            "none".to_owned()
        } else {
            own
        };
        let why = format!(
            "node {node:?} cannot set the address {address} in the status of pod {namespace}/{pod}: {what} {own}"
        );
        Err(request.forbidden(pod, &why))
    };
    for address in &of_pod {
        if shared && !machine.has(address) {
            let what = "the pod is on the machine's network, and the Node's addresses are";
            return refuse(address, what, machine.own());
        }
        if !shared && !machine.gives(address) {
            return refuse(address, "the Node's podCIDRs are", machine.ranges());
        }
    }
    if shared && !of_pod.is_empty() {
        let given: Vec<IpAddr> = of_pod.iter().filter_map(|text| address(text)).collect();
        if let Some((at, holder)) = address_owners.other(request, node, &given).await? {
            let cure = "if it is this node's, an admin lists it in spec.addresses of its Machine";
            return refuse(
                &at.to_string(),
                "it is an address of",
                format!("{holder} ({cure})"),
            );
        }
    }
    match of_host.iter().find(|address| !machine.has(address)) {
        Some(address) => refuse(address, "the Node's addresses are", machine.own()),
        None => Ok(()),
    }
}

/// The addresses in a field of a pod's status, and in the list beside it.
fn addresses(pod: &Fields, single: &str, list: &str) -> BTreeSet<String> {
    let Some(status) = object(pod, "status") else {
        return BTreeSet::new();
    };
    let listed = items(status, list).iter();
    let listed = listed.filter_map(|one| one.get("ip").and_then(Value::as_str));
    let all = listed.chain([text(status, single)]);
    all.filter(|text| !text.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The addresses of a Node and its ranges of pod addresses.
struct Machine {
    addresses: Vec<IpAddr>,
    ranges: Vec<Range>,
}

impl Machine {
    fn read(node: &Fields) -> Self {
        let status = object(node, "status").map_or(&[][..], |status| items(status, "addresses"));
        let of = |one: &Value| address(one.get("address")?.as_str()?);
        Self {
            addresses: status.iter().filter_map(of).collect(),
            ranges: pod_ranges(node),
        }
    }

    fn has(&self, text: &str) -> bool {
        address(text).is_some_and(|address| self.addresses.contains(&address))
    }

    fn gives(&self, text: &str) -> bool {
        address(text).is_some_and(|address| self.ranges.iter().any(|range| range.contains(address)))
    }

    fn own(&self) -> String {
        let all: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        all.join(", ")
    }

    fn ranges(&self) -> String {
        let all: Vec<String> = self.ranges.iter().map(ToString::to_string).collect();
        all.join(", ")
    }
}
