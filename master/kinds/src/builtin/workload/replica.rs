//! Replication controllers and replica sets.

use super::columns::{CONTAINERS, IMAGES, SELECTOR, count, label_map, number};
use crate::builtin::cells::AGE;
use crate::registry::{Column, Kind, Scale, Strategy, Subresource, wide};
use crate::validate::object;
use config_kube::k8s_openapi::api::apps::v1::ReplicaSet;
use config_kube::k8s_openapi::api::core::v1::ReplicationController;

const DESIRED: Column = number("Desired", |fields, _| count(fields, "spec", "/replicas").into());
const CURRENT: Column = number("Current", |fields, _| count(fields, "status", "/replicas").into());
const READY: Column = number("Ready", |fields, _| count(fields, "status", "/readyReplicas").into());

pub(in crate::builtin) fn replication_controller() -> Kind {
    Kind {
        short_names: &["rc"],
        categories: &["all"],
        scale: Some(Scale::WORKLOAD),
        subresources: &[Subresource::Scale, Subresource::Status],
        columns: const {
            &[
                DESIRED,
                CURRENT,
                READY,
                AGE,
                CONTAINERS,
                IMAGES,
                wide("Selector", |fields, _| {
                    label_map(object(fields, "spec").and_then(|spec| object(spec, "selector"))).into()
                }),
            ]
        },
        selectable: &[("status.replicas", "/status/replicas")],
        strategy: Strategy { generation: true, ..Strategy::default() },
        ..Kind::of::<ReplicationController>(true)
    }
}

pub(in crate::builtin) fn replica_set() -> Kind {
    Kind {
        short_names: &["rs"],
        categories: &["all"],
        scale: Some(Scale::WORKLOAD),
        subresources: &[Subresource::Scale, Subresource::Status],
        columns: const { &[DESIRED, CURRENT, READY, AGE, CONTAINERS, IMAGES, SELECTOR] },
        selectable: &[("status.replicas", "/status/replicas")],
        strategy: Strategy { generation: true, ..Strategy::default() },
        ..Kind::of::<ReplicaSet>(true)
    }
}
