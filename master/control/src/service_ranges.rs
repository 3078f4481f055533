//! Ranges of services' addresses (`ServiceCIDR`): each is held by a finalizer and says whether it serves. One that is deleted
//! goes once no address is of it alone; until then it gives no further addresses and says that it waits.
//!
//! No address can be taken from a range on its way out: a service is written only if the range is as it was read.

use crate::driver::{Controller, Now, Plan, Right};
use crate::observe::{Kind, Observed};
use crate::write::Write;
use config_kube::k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::Timestamp;
use master_client::{ApiError, Client, ListParams, Patch};
use master_kinds::validate::net::Range;
use serde_json::{Value, json};
use std::net::IpAddr;

/// Holds a range.
const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
const READY: &str = "Ready";
const SERVES: &str = "Kubernetes Service CIDR is ready";
const WAITS: &str = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";

/// What it does, for whoever grants it.
pub(crate) const RIGHTS: &[Right] = &[
    Right {
        group: "networking.k8s.io",
        resource: "servicecidrs",
        verbs: &["get", "list", "watch", "patch"],
    },
    Right {
        group: "networking.k8s.io",
        resource: "servicecidrs/finalizers",
        verbs: &["patch", "update"],
    },
    Right {
        group: "networking.k8s.io",
        resource: "servicecidrs/status",
        verbs: &["patch", "update"],
    },
    Right {
        group: "networking.k8s.io",
        resource: "ipaddresses",
        verbs: &["get", "list", "watch"],
    },
];

/// What is known of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeFacts {
    /// Its UID.
    pub uid: String,
    /// Whether it is being deleted.
    pub going: bool,
    /// Whether the finalizer holds it.
    pub held: bool,
    /// Whether it says that it serves.
    pub ready: bool,
}

/// What the controller needs of a range.
pub(crate) fn facts(range: &ServiceCIDR) -> RangeFacts {
    let meta = &range.metadata;
    RangeFacts {
        uid: meta.uid.clone().unwrap_or_default(),
        going: meta.deletion_timestamp.is_some(),
        held: meta.finalizers.iter().flatten().any(|own| own == FINALIZER),
        ready: says(range, "True"),
    }
}

fn says(range: &ServiceCIDR, status: &str) -> bool {
    let conditions = range
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == READY && condition.status == status)
}

/// The controller.
#[derive(Debug, Default)]
pub(crate) struct ServiceRanges;

impl Controller for ServiceRanges {
    fn name(&self) -> &'static str {
        "service-cidrs-controller"
    }

    fn follows(&self) -> &'static [Kind] {
        // A range on its way out waits for objects of another kind.
        &[Kind::ServiceRange, Kind::Object]
    }

    fn plan(&mut self, observed: &Observed, _: Now) -> Plan {
        let open = observed.service_ranges.iter().filter(|(_, facts)| {
            if facts.going {
                facts.held
            } else {
                !facts.held || !facts.ready
            }
        });
        let write = |(name, facts): (&String, &RangeFacts)| Write::SettleRange {
            name: name.clone(),
            uid: facts.uid.clone(),
        };
        Plan {
            writes: open.map(write).collect(),
            again: None,
        }
    }
}

/// Holds a range and says that it serves; or lets it go, or says that it waits.
pub(crate) async fn settle(client: &Client, name: &str, uid: &str) -> Result<(), ApiError> {
    let range: ServiceCIDR = client.get(None, name).await?;
    if range.metadata.uid.as_deref() != Some(uid) {
        return Ok(());
    }
    let finalizers = range.metadata.finalizers.clone().unwrap_or_default();
    let held = finalizers.iter().any(|own| own == FINALIZER);
    if range.metadata.deletion_timestamp.is_none() {
        if !held {
            let all: Vec<String> = finalizers
                .into_iter()
                .chain([FINALIZER.to_owned()])
                .collect();
            return finalize(client, &range, &all).await;
        }
        return if says(&range, "True") {
            Ok(())
        } else {
            say(client, &range, ("True", "", SERVES)).await
        };
    }
    if !held {
        return Ok(());
    }
    if is_needed(client, &range).await? {
        return if says(&range, "False") {
            Ok(())
        } else {
            say(client, &range, ("False", "Terminating", WAITS)).await
        };
    }
    let rest: Vec<String> = finalizers
        .into_iter()
        .filter(|own| own != FINALIZER)
        .collect();
    finalize(client, &range, &rest).await
}

/// Whether an address is of this range and of no other that stays.
async fn is_needed(client: &Client, range: &ServiceCIDR) -> Result<bool, ApiError> {
    let ranges = client
        .list::<ServiceCIDR>(None, &ListParams::default())
        .await?
        .items;
    let staying = ranges.iter().filter(|other| {
        other.metadata.name != range.metadata.name && other.metadata.deletion_timestamp.is_none()
    });
    let (own, others) = (
        cidrs(range),
        staying.flat_map(cidrs).collect::<Vec<Range>>(),
    );
    let addresses = client
        .list::<IPAddress>(None, &ListParams::default())
        .await?
        .items;
    let mut addresses = addresses
        .iter()
        .filter_map(|address| address.metadata.name.as_ref()?.parse::<IpAddr>().ok());
    let within =
        |ranges: &[Range], address: IpAddr| ranges.iter().any(|range| range.contains(address));
    Ok(addresses.any(|address| within(&own, address) && !within(&others, address)))
}

fn cidrs(range: &ServiceCIDR) -> Vec<Range> {
    let list = range.spec.as_ref().and_then(|spec| spec.cidrs.as_ref());
    list.into_iter()
        .flatten()
        .filter_map(|text| Range::parse(text))
        .collect()
}

async fn finalize(
    client: &Client,
    range: &ServiceCIDR,
    finalizers: &[String],
) -> Result<(), ApiError> {
    let patch = json!({"metadata": {"resourceVersion": range.metadata.resource_version, "finalizers": finalizers}});
    client
        .patch::<ServiceCIDR>(None, name(range), &Patch::Merge(patch))
        .await
        .map(drop)
}

async fn say(
    client: &Client,
    range: &ServiceCIDR,
    (status, reason, message): (&str, &str, &str),
) -> Result<(), ApiError> {
    let condition: Value = json!({
        "type": READY, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": Time(Timestamp::now()),
    });
    let patch = json!({
        "metadata": {"resourceVersion": range.metadata.resource_version}, "status": {"conditions": [condition]},
    });
    client
        .patch_status::<ServiceCIDR>(None, name(range), &Patch::Merge(patch))
        .await
        .map(drop)
}

fn name(range: &ServiceCIDR) -> &str {
    range.metadata.name.as_deref().unwrap_or_default()
}
