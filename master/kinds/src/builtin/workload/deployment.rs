//! Deployments.

use super::columns::{CONTAINERS, IMAGES, SELECTOR, count, number};
use crate::builtin::cells::AGE;
use crate::registry::{Kind, Scale, Strategy, Subresource, column};
use config_kube::k8s_openapi::api::apps::v1::Deployment;

pub(in crate::builtin) fn deployment() -> Kind {
    Kind {
        short_names: &["deploy"],
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
                number("Up-to-date", |fields, _| count(fields, "status", "/updatedReplicas").into()),
                number("Available", |fields, _| count(fields, "status", "/availableReplicas").into()),
                AGE,
                CONTAINERS,
                IMAGES,
                SELECTOR,
            ]
        },
        strategy: Strategy { generation: true, ..Strategy::default() },
        ..Kind::of::<Deployment>(true)
    }
}
