//! Keeps the node's own objects: the Node's status, and the Lease by which the master knows that
//! the node is alive.
//!
//! The master makes the Node with the labels that it knows; the kubelet adds missing ones of
//! operating system and architecture, by which charts select nodes. The status is measured every
//! ten seconds and written when it has changed or another writer has changed it, at the latest
//! after five minutes; the Lease is renewed every ten seconds (upstream's periods). Extended
//! resources that others add to its capacity stay, and are allocatable as a whole.

use crate::capacity;
use crate::config::Config;
use crate::sandbox::HANDLERS;
use crate::shared::Shared;
use crate::shutdown;
use agent_api::{ApiError, JSON, STRATEGIC_MERGE, get, send};
use agent_pressure::{Condition, Notice, news, node_events};
use agent_resources::machine::Facts;
use agent_runtime::Image;
use config_kube::identity::{ARCH_LABELS, NODE_LEASE_NAMESPACE, OS, OS_LABELS};
use config_kube::k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use config_kube::k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints,
    NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeStatus, NodeSystemInfo,
};
use config_kube::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    MicroTime, ObjectMeta, OwnerReference, Time,
};
use config_kube::quantity::Amount;
use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The version of Kubernetes whose behaviour this is.
pub(crate) const KUBELET_VERSION: &str = "v1.36.0";
/// Period of measuring and of renewing.
pub(crate) const PERIOD: Duration = Duration::from_secs(10);
/// Period while the node isn't ready or its status can't be written: short, so that readiness is
/// reported quickly.
const HASTE: Duration = Duration::from_millis(500);
/// Images are listed again after this time.
const IMAGES_PERIOD: Duration = Duration::from_secs(60);
/// The status is written at the latest after this time.
pub(crate) const REPORT: Duration = Duration::from_secs(300);
/// Pause after the lease could not be renewed.
const LEASE_RETRY: Duration = Duration::from_secs(2);
/// Duration of the Lease in seconds: after that, a node that does not renew it counts as failed.
pub(crate) const LEASE_SECONDS: i32 = 40;
/// Images that are listed (upstream's limit).
pub(crate) const MAX_IMAGES: usize = 50;
/// Names of an image that are listed (upstream's limit).
const MAX_NAMES: usize = 5;
/// Declared features (KEP-5328), by upstream's names: schedulers and API servers of other versions
/// check for them.
const DECLARED: [&str; 5] = [
    "ExtendWebSocketsToKubelet",
    "GuaranteedQoSPodCPUResize",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

/// Keeps the Node's status up to date, for ever.
pub(crate) async fn keep_status(shared: Arc<Shared>) {
    let mut addresses = shared.config.addresses.clone();
    let mut reporter = Reporter {
        shared: Arc::clone(&shared),
        node: None,
        reported: BTreeMap::new(),
        written: None,
        images: None,
    };
    let mut ends = reporter.shared.ends.subscribe();
    loop {
        let well = match reporter.report().await {
            Ok(ready) => ready,
            Err(error) => {
                tracing::warn!(error = error.chain(), "cannot update the Node's status");
                false
            }
        };
        tokio::select! {
            // Cancel-safe: each arm only means that it is time to measure. The addresses keep their
            // last value once their sender is gone.
            () = tokio::time::sleep(if well { PERIOD } else { HASTE }) => {}
            _ = ends.changed() => {}
            // Pods' statuses show the machine's addresses as `hostIPs`.
            Ok(()) = addresses.changed() => shared.wake_all(),
        }
    }
}

/// Reports the Node's status: what was written last, and what is costly to determine.
struct Reporter {
    shared: Arc<Shared>,
    /// The Node as last read from the master.
    node: Option<Node>,
    /// The conditions reported for other parts.
    reported: BTreeMap<&'static str, Notice>,
    written: Option<(NodeStatus, Instant)>,
    images: Option<(Vec<ContainerImage>, Instant)>,
}

impl Reporter {
    /// Measures, and writes what changed; true if the node is ready.
    async fn report(&mut self) -> Result<bool, ApiError> {
        let shared = self.shared.clone();
        let runtime = shared.runtime.version().await;
        let node = self.live().await?;
        if self.written.is_none() {
            label(&shared, &node).await?;
            shared
                .events
                .node(&node, false, "Starting", "Starting kubelet.");
        }
        let notices = shared.config.notices.all();
        for Notice {
            on,
            reason,
            message,
        } in news(&self.reported, &notices)
        {
            shared.events.node(&node, on, reason, message);
        }
        self.reported.clone_from(&notices);
        let fault = runtime.as_ref().err().map(agent_runtime::Error::chain);
        let fault = fault.map(|fault| format!("container runtime is down: {fault}"));
        let fault = fault.or_else(|| shared.is_ending().then(|| shutdown::NOT_READY.to_owned()));
        let ready = fault.is_none();
        let mut status = status(&shared.config, &shared.facts, runtime.ok().as_deref());
        let now = Timestamp::now();
        let live = node.status.clone().unwrap_or_default();
        let old = live.conditions.as_deref().unwrap_or_default();
        status.conditions = Some(conditions(&shared, fault.as_deref(), old, now));
        status.images = Some(self.images().await);
        advertise(&live, &mut status);
        let known = self.written.as_ref();
        if known.is_some_and(|(old, at)| at.elapsed() < REPORT && same(old, &status))
            && holds(&live, &status)
        {
            return Ok(ready);
        }
        send(
            &*shared.api,
            Method::PATCH,
            format!("{}/status", path(&shared)),
            STRATEGIC_MERGE,
            &patch(&live, &status),
        )
        .await?;
        if self.written.is_none() {
            tracing::info!(
                node = shared.config.node_name,
                ready,
                "updated the Node's status"
            );
        }
        for event in node_events(&shared.config.node_name, &live, &status) {
            shared
                .events
                .node(&node, event.is_warning, event.reason, event.message);
        }
        self.written = Some((status, Instant::now()));
        Ok(ready)
    }

    /// The Node as the master has it; while the master does not answer, as last read.
    async fn live(&mut self) -> Result<Node, ApiError> {
        match (
            get::<Node>(&*self.shared.api, path(&self.shared)).await,
            &self.node,
        ) {
            (Ok(node), _) => Ok(self.node.insert(node).clone()),
            (Err(_), Some(node)) if self.written.is_some() => Ok(node.clone()),
            (Err(error), _) => Err(error),
        }
    }

    /// The images on the machine, listed once in a while: each costs the engine a few reads.
    async fn images(&mut self) -> Vec<ContainerImage> {
        let fresh = self
            .images
            .as_ref()
            .filter(|(_, at)| at.elapsed() < IMAGES_PERIOD);
        if let Some((images, _)) = fresh {
            return images.clone();
        }
        let Ok(images) = self.shared.runtime.images().await else {
            return Vec::new();
        };
        let images = listed(images);
        self.images = Some((images.clone(), Instant::now()));
        images
    }
}

/// Images as the Node lists them: the largest first, so that the limit leaves out the small ones,
/// each once with its digests and its tags.
fn listed(images: Vec<Image>) -> Vec<ContainerImage> {
    let mut all: BTreeMap<String, (u64, BTreeSet<String>, BTreeSet<String>)> = BTreeMap::new();
    for image in images {
        let (size, digests, tags) = all.entry(image.digest.clone()).or_default();
        *size = image.size.max(*size);
        if let Some((repository, _)) = image.name.split_once('@') {
            digests.insert(format!("{repository}@{}", image.digest));
        } else {
            digests.insert(format!("{}@{}", repository(&image.name), image.digest));
            tags.insert(image.name);
        }
    }
    let mut all: Vec<_> = all.into_values().collect();
    all.sort_by_key(|(size, ..)| Reverse(*size));
    let named = |(size, digests, tags): (u64, BTreeSet<String>, BTreeSet<String>)| ContainerImage {
        names: Some(digests.into_iter().chain(tags).take(MAX_NAMES).collect()),
        size_bytes: i64::try_from(size).ok(),
    };
    all.into_iter().take(MAX_IMAGES).map(named).collect()
}

/// The name of an image without its tag.
fn repository(name: &str) -> &str {
    match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        Some(_) | None => name,
    }
}

/// Adds labels that upstream's kubelet sets on its Node, if they are missing.
async fn label(shared: &Shared, node: &Node) -> Result<(), ApiError> {
    let missing = missing_labels(node);
    if missing.is_empty() {
        return Ok(());
    }
    let change = json!({"metadata": {"labels": missing}});
    match send(
        &*shared.api,
        Method::PATCH,
        path(shared),
        STRATEGIC_MERGE,
        &change,
    )
    .await
    {
        // This master does not let nodes set labels; the node works without them.
        Err(error @ ApiError::Status { code: 403, .. }) => {
            tracing::warn!(
                error = error.chain(),
                "cannot add the os and arch labels to the Node"
            );
            Ok(())
        }
        other => other,
    }
}

fn missing_labels(node: &Node) -> BTreeMap<&'static str, &'static str> {
    let all = OS_LABELS
        .map(|label| (label, OS))
        .into_iter()
        .chain(ARCH_LABELS.map(|label| (label, architecture())));
    let has = |label: &str| {
        node.metadata
            .labels
            .as_ref()
            .is_some_and(|labels| labels.contains_key(label))
    };
    all.filter(|(label, _)| !has(label)).collect()
}

/// The processor's architecture by Go's name, as everywhere in Kubernetes.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn path(shared: &Shared) -> String {
    format!("/api/v1/nodes/{}", shared.config.node_name)
}

/// Equal except for heartbeats.
fn same(old: &NodeStatus, new: &NodeStatus) -> bool {
    let without = |status: &NodeStatus| {
        let mut status = status.clone();
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
        status
    };
    without(old) == without(new)
}

/// Whether this is an extended resource, which others advertise: its name has a domain.
fn is_extended(name: &str) -> bool {
    name.contains('/')
}

/// Copies extended resources from the Node's capacity to capacity and allocatable: pods may have
/// all of each.
fn advertise(live: &NodeStatus, status: &mut NodeStatus) {
    let extended = live.capacity.iter().flatten();
    let extended = extended.filter(|(name, _)| is_extended(name));
    for (name, amount) in extended.map(|(name, amount)| (name.clone(), amount.clone())) {
        for amounts in [&mut status.capacity, &mut status.allocatable] {
            amounts
                .get_or_insert_default()
                .insert(name.clone(), amount.clone());
        }
    }
}

/// Extended resources that are still allocatable in the Node, although nobody advertises them any
/// more.
fn withdrawn<'a>(live: &'a NodeStatus, status: &NodeStatus) -> Vec<&'a str> {
    let kept = status.allocatable.as_ref();
    let kept = |name: &str| kept.is_some_and(|all| all.contains_key(name));
    let names = live.allocatable.iter().flatten();
    let names = names.map(|(name, _)| name.as_str());
    names
        .filter(|name| is_extended(name) && !kept(name))
        .collect()
}

/// The status as a patch. It leaves out extended resources that the Node has already: a count that
/// somebody else has changed since `live` was read stays.
fn patch(live: &NodeStatus, status: &NodeStatus) -> Value {
    let mut change = json!({"status": status});
    let had = json!({"capacity": live.capacity, "allocatable": live.allocatable});
    for list in ["capacity", "allocatable"] {
        if let Some(amounts) = change["status"][list].as_object_mut() {
            amounts.retain(|name, amount| !is_extended(name) || had[list][name] != *amount);
        }
    }
    for name in withdrawn(live, status) {
        change["status"]["allocatable"][name] = Value::Null;
    }
    // The merge key of addresses is their type, of which a node has several: the list is replaced
    // as a whole.
    if let Some(addresses) = change["status"]["addresses"].as_array_mut() {
        addresses.push(json!({"$patch": "replace"}));
    }
    change
}

/// Whether the Node still has what was written: others may write its status, too, and a wrong
/// value, such as the port of this server, would cut the node off.
fn holds(live: &NodeStatus, status: &NodeStatus) -> bool {
    type Amounts = Option<BTreeMap<String, Quantity>>;
    let amount = |all: &Amounts, name: &str| Amount::try_from(all.as_ref()?.get(name)?).ok();
    let same = |live: &Amounts, own: &Amounts| {
        let mut names = own.iter().flatten();
        names.all(|(name, _)| amount(live, name) == amount(own, name))
    };
    let is_said = |own: &NodeCondition| {
        let mut said = live.conditions.iter().flatten();
        said.any(|one| one.type_ == own.type_ && one.status == own.status)
    };
    same(&live.capacity, &status.capacity)
        && same(&live.allocatable, &status.allocatable)
        && withdrawn(live, status).is_empty()
        && live.addresses == status.addresses
        && live.daemon_endpoints == status.daemon_endpoints
        && live.node_info == status.node_info
        && live.declared_features == status.declared_features
        && status.conditions.iter().flatten().all(is_said)
}

fn status(config: &Config, facts: &Facts, runtime: Option<&str>) -> NodeStatus {
    let quantities = |amounts: BTreeMap<&'static str, Amount>| -> BTreeMap<String, Quantity> {
        amounts
            .into_iter()
            .map(|(name, amount)| (name.to_owned(), amount.to_quantity()))
            .collect()
    };
    let own = config.addresses.borrow().clone();
    let addresses = own
        .iter()
        .map(|address| ("InternalIP", address.to_string()));
    let addresses = addresses.chain([("Hostname", facts.hostname.clone())]);
    NodeStatus {
        capacity: Some(quantities(capacity::of(config, facts))),
        allocatable: Some(quantities(capacity::allocatable(config, facts))),
        addresses: Some(
            addresses
                .map(|(type_, address)| NodeAddress {
                    address,
                    type_: type_.to_owned(),
                })
                .collect(),
        ),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint {
                port: i32::from(config.port),
            }),
        }),
        node_info: Some(NodeSystemInfo {
            architecture: architecture().to_owned(),
            boot_id: facts.boot_id.clone(),
            container_runtime_version: runtime.unwrap_or("containerd://unknown").to_owned(),
            kernel_version: facts.kernel.clone(),
            kube_proxy_version: String::new(),
            kubelet_version: KUBELET_VERSION.to_owned(),
            machine_id: facts.machine_id.clone(),
            operating_system: OS.to_owned(),
            os_image: config.os_image.clone(),
            system_uuid: facts.system_uuid.clone(),
            swap: None,
        }),
        features: Some(NodeFeatures {
            supplemental_groups_policy: Some(true),
        }),
        declared_features: Some(DECLARED.map(str::to_owned).to_vec()),
        runtime_handlers: Some(["", HANDLERS[0], HANDLERS[1]].map(handler).to_vec()),
        ..NodeStatus::default()
    }
}

/// The features of a RuntimeClass' handler; the empty name is that of pods without a class.
fn handler(name: &str) -> NodeRuntimeHandler {
    NodeRuntimeHandler {
        name: Some(name.to_owned()),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(true),
            user_namespaces: Some(true),
        }),
    }
}

fn conditions(
    shared: &Shared,
    fault: Option<&str>,
    old: &[NodeCondition],
    now: Timestamp,
) -> Vec<NodeCondition> {
    let pressures = shared.pressures();
    let low = |condition| pressures.contains(&condition);
    let ready = match fault {
        None => notice(true, "KubeletReady", "kubelet is posting ready status"),
        Some(fault) => notice(false, "KubeletNotReady", fault),
    };
    let memory = if low(Condition::MemoryPressure) {
        notice(
            true,
            "KubeletHasInsufficientMemory",
            "kubelet has insufficient memory available",
        )
    } else {
        notice(
            false,
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        )
    };
    let disk = if low(Condition::DiskPressure) {
        notice(true, "KubeletHasDiskPressure", "kubelet has disk pressure")
    } else {
        notice(
            false,
            "KubeletHasNoDiskPressure",
            "kubelet has no disk pressure",
        )
    };
    let pids = if low(Condition::PidPressure) {
        notice(
            true,
            "KubeletHasInsufficientPID",
            "kubelet has insufficient PID available",
        )
    } else {
        notice(
            false,
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
        )
    };
    let all = [
        ("MemoryPressure", memory),
        ("DiskPressure", disk),
        ("PIDPressure", pids),
        ("Ready", ready),
    ];
    all.into_iter()
        .chain(shared.config.notices.all())
        .map(|(name, notice)| condition(name, notice, old, now))
        .collect()
}

fn notice(on: bool, reason: &'static str, message: &str) -> Notice {
    let message = message.to_owned();
    Notice {
        on,
        reason,
        message,
    }
}

fn condition(name: &str, notice: Notice, old: &[NodeCondition], now: Timestamp) -> NodeCondition {
    let status = if notice.on { "True" } else { "False" };
    let before = old
        .iter()
        .find(|old| old.type_ == name && old.status == status);
    NodeCondition {
        type_: name.to_owned(),
        status: status.to_owned(),
        reason: Some(notice.reason.to_owned()),
        message: Some(notice.message),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: before
            .and_then(|before| before.last_transition_time.clone())
            .or(Some(Time(now))),
    }
}

/// Renews the node's lease for ever.
pub(crate) async fn keep_lease(shared: Arc<Shared>) {
    let mut known: Option<Lease> = None;
    loop {
        let pause = match renew(&shared, known.take()).await {
            Ok(lease) => {
                known = Some(lease);
                PERIOD
            }
            Err(error) => {
                tracing::warn!(error = error.chain(), "cannot renew the node's Lease");
                LEASE_RETRY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Writes the Lease with the present time. After a conflict or deletion, the next call reads it
/// again.
async fn renew(shared: &Shared, known: Option<Lease>) -> Result<Lease, ApiError> {
    let name = &shared.config.node_name;
    let all = format!("/apis/coordination.k8s.io/v1/namespaces/{NODE_LEASE_NAMESPACE}/leases");
    let one = format!("{all}/{name}");
    let found = match known {
        Some(lease) => Some(lease),
        None => match get::<Lease>(&*shared.api, one.clone()).await {
            Ok(lease) => Some(lease),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        },
    };
    let (method, path, mut lease) = match found {
        Some(lease) => (Method::PUT, one, lease),
        None => (Method::POST, all, new_lease(shared).await?),
    };
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some(name.clone());
    spec.lease_duration_seconds = Some(LEASE_SECONDS);
    spec.renew_time = Some(MicroTime(Timestamp::now()));
    let body = serde_json::to_vec(&lease).map_err(ApiError::Encode)?;
    let call = agent_api::Call {
        method,
        path,
        content_type: JSON,
        body: body.into(),
    };
    serde_json::from_slice(&shared.api.call(call).await?).map_err(ApiError::Decode)
}

/// A Lease that is deleted with its Node.
async fn new_lease(shared: &Shared) -> Result<Lease, ApiError> {
    let node: Node = get(&*shared.api, path(shared)).await?;
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: shared.config.node_name.clone(),
        uid: node.metadata.uid.unwrap_or_default(),
        ..OwnerReference::default()
    };
    let metadata = ObjectMeta {
        name: Some(shared.config.node_name.clone()),
        namespace: Some(NODE_LEASE_NAMESPACE.to_owned()),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    };
    Ok(Lease {
        metadata,
        spec: Some(LeaseSpec::default()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: Value) -> NodeStatus {
        serde_json::from_value(status).unwrap()
    }

    fn own() -> NodeStatus {
        read(
            json!({"capacity": {"cpu": "4"}, "allocatable": {"cpu": "3500m"},
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "conditions": [{"type": "Ready", "status": "True"}]}),
        )
    }

    #[test]
    fn resources_that_others_advertise_are_the_pods_while_they_are_advertised() {
        let mut live = own();
        let chips = ("example.com/chip".to_owned(), Quantity("5".to_owned()));
        live.capacity.as_mut().unwrap().extend([chips.clone()]);
        let huge = ("hugepages-2Mi".to_owned(), Quantity("1Gi".to_owned()));
        live.capacity.as_mut().unwrap().extend([huge]);
        let mut status = own();
        advertise(&live, &mut status);
        assert_eq!(status.capacity.clone().unwrap().len(), 2);
        assert!(!holds(&live, &status), "pods may not have it yet");
        live.allocatable.as_mut().unwrap().extend([chips]);
        assert_eq!(status.allocatable, live.allocatable);
        assert!(holds(&live, &status));

        live.capacity.as_mut().unwrap().remove("example.com/chip");
        let mut status = own();
        advertise(&live, &mut status);
        assert_eq!(withdrawn(&live, &status), ["example.com/chip"]);
        assert!(!holds(&live, &status));
    }

    #[test]
    fn a_count_that_somebody_changes_meanwhile_is_not_written_over() {
        let chips = [("example.com/chip".to_owned(), Quantity("5".to_owned()))];
        let (mut live, mut status) = (own(), own());
        live.capacity.as_mut().unwrap().extend(chips.clone());
        advertise(&live, &mut status);
        let first = patch(&live, &status);
        assert_eq!(first["status"]["capacity"], json!({"cpu": "4"}));
        assert_eq!(first["status"]["allocatable"]["example.com/chip"], "5");
        live.allocatable.as_mut().unwrap().extend(chips);
        let second = patch(&live, &status);
        assert_eq!(second["status"]["allocatable"], json!({"cpu": "3500m"}));
    }

    #[test]
    fn what_others_write_over_is_noticed() {
        let mut written = own();
        written.allocatable = read(json!({"allocatable": {"cpu": "3.5"}})).allocatable;
        assert!(holds(&written, &own()), "one amount, written in two ways");
        let overwritten = [
            json!({"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}}),
            json!({"nodeInfo": read(json!({})).node_info.unwrap_or_default()}),
            json!({"capacity": {"cpu": "8"}}),
            json!({"declaredFeatures": ["Another"]}),
            json!({"conditions": [{"type": "Ready", "status": "Unknown"}]}),
            json!({"conditions": []}),
        ];
        for change in overwritten {
            let mut live = serde_json::to_value(own()).unwrap();
            for (field, value) in change.as_object().unwrap() {
                live[field] = value.clone();
            }
            assert!(!holds(&read(live), &own()), "{change}");
        }
    }

    #[test]
    fn the_largest_images_are_listed_each_with_its_digest_and_its_tags() {
        let image = |name: &str, digest: &str, size| Image {
            name: name.to_owned(),
            digest: format!("sha256:{digest}"),
            size,
            pulled: false,
        };
        let many = (0..60).map(|number| {
            image(
                &format!("r.example/s{number}:1"),
                &number.to_string(),
                number,
            )
        });
        let mut many: Vec<_> = many.collect();
        many.push(image("r.example:5000/big:1", "big", 900));
        many.push(image("r.example:5000/big:latest", "big", 900));
        many.push(image("r.example:5000/big@sha256:big", "big", 900));
        let listed = listed(many);
        assert_eq!(listed.len(), MAX_IMAGES);
        let names = |at: usize| listed[at].names.clone().unwrap();
        let big = [
            "r.example:5000/big@sha256:big",
            "r.example:5000/big:1",
            "r.example:5000/big:latest",
        ];
        assert_eq!(names(0), big);
        assert_eq!(names(1), ["r.example/s59@sha256:59", "r.example/s59:1"]);
        assert_eq!(listed[49].size_bytes, Some(11), "the smallest are left out");
    }
}
