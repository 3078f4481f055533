//! Free storage of CSI drivers, as their provisioners report it (upstream: `CSIStorageCapacity`,
//! for drivers whose CSIDriver has `storageCapacity: true`).

use crate::node::NodeInfo;
use config_kube::k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use config_kube::{Amount, label_selector};
use master_claims::Claim;
use master_client::{Key, View};
use std::collections::{HashMap, HashSet};

/// Whether the provisioner of a CSI driver reports free storage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Driver(bool);

impl View for Driver {
    type Object = CSIDriver;

    fn read(driver: CSIDriver) -> Self {
        Self(driver.spec.storage_capacity == Some(true))
    }
}

/// Free storage for volumes of a class on some nodes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Capacity {
    class: String,
    /// The largest volume that is known to fit.
    largest: Option<Amount>,
    /// The nodes that can reach the storage; `None`: no node.
    nodes: Option<LabelSelector>,
}

impl View for Capacity {
    type Object = CSIStorageCapacity;

    fn read(capacity: CSIStorageCapacity) -> Self {
        // The size of the largest volume is more exact than the sum of the free storage.
        let largest = capacity.maximum_volume_size.or(capacity.capacity);
        Self {
            class: capacity.storage_class_name,
            largest: largest.and_then(|size| Amount::try_from(&size).ok()),
            nodes: capacity.node_topology,
        }
    }
}

/// The reports of all drivers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Capacities {
    /// Drivers that report free storage.
    drivers: HashSet<String>,
    all: HashMap<Key, Capacity>,
}

impl Capacities {
    /// Adds or updates a driver; returns whether anything changed.
    pub(crate) fn set_driver(&mut self, name: String, Driver(reports): Driver) -> bool {
        if reports {
            self.drivers.insert(name)
        } else {
            self.drivers.remove(&name)
        }
    }

    /// Removes a driver; returns whether it reported free storage.
    pub(crate) fn remove_driver(&mut self, name: &str) -> bool {
        self.drivers.remove(name)
    }

    pub(crate) fn retain_drivers(&mut self, keep: impl Fn(&str) -> bool) {
        self.drivers.retain(|name| keep(name));
    }

    /// Adds or updates a report; returns whether anything changed.
    pub(crate) fn set(&mut self, key: Key, capacity: Capacity) -> bool {
        self.all.insert(key, capacity.clone()) != Some(capacity)
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        self.all.remove(key);
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&Key) -> bool) {
        self.all.retain(|key, _| keep(key));
    }

    /// The reports for a class; `None` where its driver does not report.
    pub(crate) fn of_class(&self, driver: &str, class: &str) -> Option<Vec<&Capacity>> {
        let all = self.all.values().filter(|one| one.class == class);
        self.drivers.contains(driver).then(|| all.collect())
    }
}

/// Whether a volume for a claim fits into the reported storage on a node. A claim without a size
/// fits anywhere.
pub(crate) fn fits(capacities: &[&Capacity], claim: &Claim, node: &NodeInfo) -> bool {
    let reaches = |capacity: &Capacity| {
        let nodes = capacity.nodes.as_ref();
        nodes.is_some_and(|nodes| label_selector::selects(nodes, &node.labels))
    };
    let size = claim.size.ceil_units();
    let is_enough = |largest: Amount| largest.ceil_units() >= size;
    claim.size == Amount::ZERO
        || capacities
            .iter()
            .any(|one| one.largest.is_some_and(is_enough) && reaches(one))
}
