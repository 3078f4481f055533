//! Classes of priority and of runtime.

use super::cells::AGE;
use crate::registry::{Column, Kind, column};
use crate::validate::{get, text};
use config_kube::k8s_openapi::api::node::v1::RuntimeClass;
use config_kube::k8s_openapi::api::scheduling::v1::PriorityClass;

pub(super) fn priority() -> Kind {
    Kind {
        short_names: &["pc"],
        columns: const {
            &[
                Column { name: "Value", kind: "integer", priority: 0, cell: |fields, _| get(fields, "value").clone() },
                Column {
                    name: "Global-Default",
                    kind: "boolean",
                    priority: 0,
                    cell: |fields, _| get(fields, "globalDefault").as_bool().unwrap_or_default().into(),
                },
                AGE,
                column("PreemptionPolicy", |fields, _| match text(fields, "preemptionPolicy") {
                    "" => "<unset>".into(),
                    policy => policy.into(),
                }),
            ]
        },
        ..Kind::of::<PriorityClass>(false)
    }
}

pub(super) fn runtime() -> Kind {
    Kind {
        columns: const { &[column("Handler", |fields, _| text(fields, "handler").into()), AGE] },
        ..Kind::of::<RuntimeClass>(false)
    }
}
