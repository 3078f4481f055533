//! Daemon sets.

use super::columns::{CONTAINERS, IMAGES, SELECTOR, count, label_map, number, template};
use crate::builtin::cells::AGE;
use crate::registry::{Kind, Strategy, Subresource, column};
use crate::validate::object;
use config_kube::k8s_openapi::api::apps::v1::DaemonSet;

pub(in crate::builtin) fn daemon_set() -> Kind {
    Kind {
        short_names: &["ds"],
        categories: &["all"],
        subresources: &[Subresource::Status],
        columns: const {
            &[
                number("Desired", |fields, _| count(fields, "status", "/desiredNumberScheduled").into()),
                number("Current", |fields, _| count(fields, "status", "/currentNumberScheduled").into()),
                number("Ready", |fields, _| count(fields, "status", "/numberReady").into()),
                number("Up-to-date", |fields, _| count(fields, "status", "/updatedNumberScheduled").into()),
                number("Available", |fields, _| count(fields, "status", "/numberAvailable").into()),
                column("Node Selector", |fields, _| {
                    let spec = template(fields, "/template/spec");
                    label_map(spec.and_then(|spec| object(spec, "nodeSelector"))).into()
                }),
                AGE,
                CONTAINERS,
                IMAGES,
                SELECTOR,
            ]
        },
        strategy: Strategy { generation: true, ..Strategy::default() },
        ..Kind::of::<DaemonSet>(true)
    }
}
