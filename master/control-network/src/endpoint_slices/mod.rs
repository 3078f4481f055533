//! EndpointSlices: the addresses behind each service that selects pods, in slices of at most a
//! hundred.
//!
//! Names, labels, conditions and the way slices are filled are upstream's. Services without a
//! selector and those of type `ExternalName` are left to others. Slices are deleted with their
//! service, which owns them.

mod plan;
pub(crate) mod ports;
pub(crate) mod views;

pub use plan::{Action, MANAGER, MAX_ENDPOINTS, PodEndpoint, SERVICE_NAME, endpoints, reconcile};
pub(crate) use plan::{HEADLESS, MANAGED_BY};
pub use views::{Backend, PortView, ServiceView, SliceView, Target, ZoneView};

use master_client::{ApiError, Delta, Key, Lookup, Store};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::writer::Writer;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The controller. Its keys are services.
#[derive(Debug)]
pub struct EndpointSlices {
    services: Store<ServiceView>,
    nodes: Store<ZoneView>,
    pods: Lookup<Backend>,
    slices: Lookup<SliceView>,
}

/// A pod that a service selects, and the zone of its node.
#[derive(Debug, Clone)]
pub struct Selected {
    /// The pod's name.
    pub name: String,
    /// The pod.
    pub pod: Arc<Backend>,
    /// Its node; `None` if the node does not exist.
    pub node: Option<Arc<ZoneView>>,
}

/// A service, the pods that it selects, and its slices.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The service's key.
    pub key: Key,
    /// The service.
    pub service: Arc<ServiceView>,
    /// Pods, sorted by name.
    pub pods: Vec<Selected>,
    /// Slices of this controller, sorted by name.
    pub slices: Vec<(Arc<Key>, Arc<SliceView>)>,
}

impl Controller for EndpointSlices {
    const NAME: &'static str = "endpointslice-controller";
    const RIGHTS: &'static [Right] = &[
        right("", "services", &["list", "watch"]),
        right("", "pods", &["list", "watch"]),
        right("", "nodes", &["list", "watch"]),
        right("", "services/finalizers", &["update"]),
        right(
            "discovery.k8s.io",
            "endpointslices",
            &["list", "watch", "create", "update", "delete"],
        ),
    ];
    type Facts = Facts;
    type Action = Action;

    fn new(setup: &mut Setup<'_>) -> Self {
        let services: Store<ServiceView> = setup.follow_keys();
        let by_label = services.index(&views::BY_LABEL);
        let pods: Store<Backend> = setup.follow({
            let selecting = by_label.clone();
            move |delta: &Delta<Backend>, keys| {
                let sides = [&delta.before, &delta.after];
                let pods = sides.into_iter().flatten();
                keys.extend(pods.flat_map(|pod| selecting_services(&selecting, &delta.key, pod)));
            }
        });
        let by_node = pods.index(&views::BY_NODE);
        let nodes = setup.follow(move |delta: &Delta<ZoneView>, keys| {
            let there = by_node.get(&delta.key.name);
            let of_pod =
                |(key, pod): (Arc<Key>, Arc<Backend>)| selecting_services(&by_label, &key, &pod);
            keys.extend(
                there
                    .into_iter()
                    .flat_map(of_pod)
                    .collect::<BTreeSet<Key>>(),
            );
        });
        let slices: Store<SliceView> = setup.follow(|delta: &Delta<SliceView>, keys| {
            let sides = [&delta.before, &delta.after].into_iter().flatten();
            let names = sides.filter_map(|slice| slice.service.as_deref());
            keys.extend(names.map(|name| Key::new(&delta.key.namespace, name)));
        });
        Self {
            pods: pods.index(&views::BY_NAMESPACE),
            slices: slices.index(&views::BY_SERVICE),
            services,
            nodes,
        }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let service = self.services.get(key)?;
        if !service.is_served() {
            return None;
        }
        let selected = |(key, pod): (Arc<Key>, Arc<Backend>)| {
            service.selects(&pod.labels).then(|| Selected {
                name: key.name.clone(),
                node: self.nodes.get(&Key::cluster(&pod.node)),
                pod,
            })
        };
        let pods = self.pods.get(&key.namespace).into_iter();
        Some(Facts {
            pods: pods.filter_map(selected).collect(),
            slices: self.slices.get(&key.to_string()),
            key: key.clone(),
            service,
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Action> {
        Plan {
            actions: reconcile(facts),
            requeue: None,
        }
    }

    async fn carry_out(&self, action: Action, writer: &Writer) -> Result<(), ApiError> {
        action.carry_out(writer).await
    }
}

/// The services that select a pod, found by its labels.
pub(crate) fn selecting_services(
    by_label: &Lookup<ServiceView>,
    key: &Key,
    pod: &Backend,
) -> BTreeSet<Key> {
    let labels = pod.labels.iter();
    let found = labels
        .flat_map(|(name, value)| by_label.get(&views::label_value(&key.namespace, name, value)));
    found
        .filter(|(_, service)| service.selects(&pod.labels))
        .map(|(service, _)| (*service).clone())
        .collect()
}
