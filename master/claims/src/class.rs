//! The parts of a StorageClass that matter here.

use config_kube::k8s_openapi::api::core::v1::TopologySelectorTerm;
use config_kube::k8s_openapi::api::storage::v1::StorageClass;
use config_kube::local_volume::annotation;
use jiff::Timestamp;
use master_client::View;
use std::collections::BTreeMap;

/// Annotations that mark the default class (upstream's, and its older one).
const DEFAULT: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];
/// The provisioner of classes whose volumes are made by people.
const NOBODY: &str = "kubernetes.io/no-provisioner";

/// A StorageClass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Class {
    /// The provisioner of its volumes.
    pub provisioner: String,
    /// Whether a claim waits for the first pod that uses it.
    pub waits: bool,
    /// Reclaim policy of its volumes.
    pub policy: String,
    /// Whether claims that name no class get it.
    pub is_default: bool,
    /// When it came: of several default classes the youngest counts.
    pub created: Option<Timestamp>,
    /// Mount options of its volumes.
    pub options: Vec<String>,
    /// The nodes on which volumes may be provisioned; empty: all.
    pub places: Vec<TopologySelectorTerm>,
}

impl Class {
    /// Whether volumes can be provisioned for its claims on a node with these labels.
    pub fn provisions(&self, labels: &BTreeMap<String, String>) -> bool {
        let allows = |term: &TopologySelectorTerm| {
            let mut all = term.match_label_expressions.iter().flatten();
            all.all(|need| {
                labels
                    .get(&need.key)
                    .is_some_and(|value| need.values.contains(value))
            })
        };
        !matches!(self.provisioner.as_str(), "" | NOBODY)
            && (self.places.is_empty() || self.places.iter().any(allows))
    }

    /// Whether it has a provisioner.
    pub fn is_dynamic(&self) -> bool {
        !matches!(self.provisioner.as_str(), "" | NOBODY)
    }
}

impl View for Class {
    type Object = StorageClass;

    fn read(class: StorageClass) -> Self {
        let notes = class.metadata.annotations.as_ref();
        Self {
            waits: class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
            policy: class.reclaim_policy.unwrap_or_else(|| "Delete".to_owned()),
            is_default: DEFAULT
                .iter()
                .any(|key| annotation(notes, key) == Some("true")),
            created: class
                .metadata
                .creation_timestamp
                .as_ref()
                .map(|time| time.0),
            options: class.mount_options.unwrap_or_default(),
            places: class.allowed_topologies.unwrap_or_default(),
            provisioner: class.provisioner,
        }
    }
}
