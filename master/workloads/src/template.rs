//! PodTemplates.

use super::columns::{label_map, names};
use config_kube::k8s_openapi::api::core::v1::PodTemplate;
use master_pods::podspec;
use master_schema::registry::{Kind, Strategy, column};
use master_schema::validate::{FieldPath, object};

/// `PodTemplate`.
pub fn pod_template() -> Kind {
    Kind {
        columns: vec![
            column("Containers", |fields, _| {
                names(object(fields, "template"), "name").into()
            }),
            column("Images", |fields, _| {
                names(object(fields, "template"), "image").into()
            }),
            column("Pod Labels", |fields, _| {
                let metadata =
                    object(fields, "template").and_then(|template| object(template, "metadata"));
                label_map(metadata.and_then(|metadata| object(metadata, "labels"))).into()
            }),
        ],
        strategy: Strategy {
            defaults: podspec::template_defaults,
            validate: |fields, faults| {
                let template = object(fields, "template").unwrap_or(podspec::no_fields());
                podspec::template(template, &FieldPath::root("template"), faults);
            },
            generation: true,
            ..Strategy::default()
        },
        ..Kind::of::<PodTemplate>(true)
    }
}
