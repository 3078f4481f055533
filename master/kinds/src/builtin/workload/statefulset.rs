//! Stateful sets.

use super::columns::{CONTAINERS, IMAGES, count};
use crate::builtin::cells::AGE;
use crate::registry::{Kind, Scale, Strategy, Subresource, column};
use config_kube::k8s_openapi::api::apps::v1::StatefulSet;

pub(in crate::builtin) fn stateful_set() -> Kind {
    Kind {
        short_names: &["sts"],
        categories: &["all"],
        scale: Some(Scale::WORKLOAD),
        subresources: &[Subresource::Scale, Subresource::Status],
        columns: const {
            &[
                column("Ready", |fields, _| {
                    let (ready, desired) =
                        (count(fields, "status", "/readyReplicas"), count(fields, "spec", "/replicas"));
                    format!("{ready}/{desired}").into()
                }),
                AGE,
                CONTAINERS,
                IMAGES,
            ]
        },
        strategy: Strategy { generation: true, ..Strategy::default() },
        ..Kind::of::<StatefulSet>(true)
    }
}
