//! Controller of ServiceCIDRs: keeps a finalizer on each range and the condition `Ready` in its
//! status. A deleted range loses the finalizer once no IPAddress depends on it alone; until then
//! its condition is false, and no address is allocated from it.
//!
//! No address can be allocated from a range while it is removed: a service is written only if the
//! range has not changed since it was read.

use config_kube::k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use master_client::{ApiError, Client, Delta, Index, Key, ListParams, Patch, Store, View};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::{is_held_by, uid};
use master_control::writer::Writer;
use master_schema::validate::net::Range;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::sync::Arc;

/// Keeps a deleted range while addresses of it are in use (upstream's).
const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
const READY: &str = "Ready";
const SERVES: &str = "Kubernetes Service CIDR is ready";
const WAITS: &str = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";

/// The fields of a range that matter here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeView {
    /// Its UID.
    pub uid: String,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// Whether it has the finalizer.
    pub held: bool,
    /// Whether its condition `Ready` is true.
    pub ready: bool,
}

impl View for RangeView {
    type Object = ServiceCIDR;

    fn read(range: ServiceCIDR) -> Self {
        Self {
            uid: uid(&range.metadata),
            terminating: range.metadata.deletion_timestamp.is_some(),
            held: is_held_by(&range.metadata, FINALIZER),
            ready: has_ready(&range, "True"),
        }
    }
}

/// An allocated address: only its existence matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressView;

impl View for AddressView {
    type Object = IPAddress;

    fn read(_: IPAddress) -> Self {
        Self
    }
}

/// Ranges that are being deleted, all under one index value.
static TERMINATING: Index<RangeView> = Index::new("going", |_, range| {
    range.terminating.then(String::new).into_iter().collect()
});

/// The controller. Its keys are ranges.
#[derive(Debug)]
pub struct ServiceRanges {
    ranges: Store<RangeView>,
}

/// A range and the facts about it.
#[derive(Debug)]
pub struct Facts {
    name: String,
    range: Arc<RangeView>,
}

/// Brings finalizer and condition of a range up to date.
#[derive(Debug, PartialEq, Eq)]
pub struct Reconcile {
    /// The object's name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl Controller for ServiceRanges {
    const NAME: &'static str = "service-cidrs-controller";
    const RIGHTS: &'static [Right] = &[
        right(
            "networking.k8s.io",
            "servicecidrs",
            &["get", "list", "watch", "patch"],
        ),
        right(
            "networking.k8s.io",
            "servicecidrs/finalizers",
            &["patch", "update"],
        ),
        right(
            "networking.k8s.io",
            "servicecidrs/status",
            &["patch", "update"],
        ),
        right(
            "networking.k8s.io",
            "ipaddresses",
            &["get", "list", "watch"],
        ),
    ];
    type Facts = Facts;
    type Action = Reconcile;

    fn new(setup: &mut Setup<'_>) -> Self {
        let known: Store<RangeView> = setup.read();
        let terminating = known.index(&TERMINATING);
        // A new or removed range decides whether deleted ranges are still needed for their
        // addresses.
        let others = terminating.clone();
        let ranges = setup.follow(move |delta: &Delta<RangeView>, keys| {
            keys.push((*delta.key).clone());
            keys.extend(others.keys("").iter().map(|key| (**key).clone()));
        });
        setup.follow(move |delta: &Delta<AddressView>, keys| {
            if delta.after.is_none() {
                keys.extend(terminating.keys("").iter().map(|key| (**key).clone()));
            }
        });
        Self { ranges }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let (name, range) = (key.name.clone(), self.ranges.get(key)?);
        Some(Facts { name, range })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Reconcile> {
        let range = &facts.range;
        let open = if range.terminating {
            range.held
        } else {
            !range.held || !range.ready
        };
        let action = open.then(|| Reconcile {
            name: facts.name.clone(),
            uid: range.uid.clone(),
        });
        action.into()
    }

    async fn carry_out(&self, range: Reconcile, writer: &Writer) -> Result<(), ApiError> {
        reconcile(writer, &range.name, &range.uid).await
    }
}

fn has_ready(range: &ServiceCIDR, status: &str) -> bool {
    let conditions = range
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == READY && condition.status == status)
}

/// Sets finalizer and condition of a range. If the range is being deleted, removes the finalizer,
/// or sets the condition that says why it waits.
async fn reconcile(writer: &Writer, name: &str, uid: &str) -> Result<(), ApiError> {
    let range: ServiceCIDR = writer.client().get(None, name).await?;
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
            return finalize(writer, &range, &all).await;
        }
        return if has_ready(&range, "True") {
            Ok(())
        } else {
            set_ready(writer, &range, "True", "", SERVES).await
        };
    }
    if !held {
        return Ok(());
    }
    if is_needed(writer.client(), &range).await? {
        return if has_ready(&range, "False") {
            Ok(())
        } else {
            set_ready(writer, &range, "False", "Terminating", WAITS).await
        };
    }
    let rest: Vec<String> = finalizers
        .into_iter()
        .filter(|own| own != FINALIZER)
        .collect();
    finalize(writer, &range, &rest).await
}

/// Whether an allocated address is in this range and in no other that is not being deleted.
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
    writer: &Writer,
    range: &ServiceCIDR,
    finalizers: &[String],
) -> Result<(), ApiError> {
    let patch = json!({"metadata": {"resourceVersion": range.metadata.resource_version, "finalizers": finalizers}});
    writer
        .patch::<ServiceCIDR>(&Key::of(&range.metadata), &Patch::Merge(patch))
        .await
        .map(drop)
}

async fn set_ready(
    writer: &Writer,
    range: &ServiceCIDR,
    status: &str,
    reason: &str,
    message: &str,
) -> Result<(), ApiError> {
    let condition: Value = json!({
        "type": READY, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": Time(writer.now().wall),
    });
    let patch = json!({
        "metadata": {"resourceVersion": range.metadata.resource_version}, "status": {"conditions": [condition]},
    });
    writer
        .patch_status::<ServiceCIDR>(&Key::of(&range.metadata), &Patch::Merge(patch))
        .await
        .map(drop)
}
