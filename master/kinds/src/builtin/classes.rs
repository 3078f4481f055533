//! PriorityClass and RuntimeClass.

use super::classes_validate as rules;
use config_kube::k8s_openapi::api::node::v1::RuntimeClass;
use config_kube::k8s_openapi::api::scheduling::v1::PriorityClass;
use master_schema::cells::AGE;
use master_schema::registry::{Kind, Strategy, boolean, column, integer, words};
use master_schema::validate::{default_to, get, text};

pub(super) fn priority() -> Kind {
    Kind {
        short_names: words(&["pc"]),
        columns: vec![
            integer("Value", |fields, _| get(fields, "value").clone()),
            boolean("Global-Default", |fields, _| {
                get(fields, "globalDefault")
                    .as_bool()
                    .unwrap_or_default()
                    .into()
            }),
            AGE,
            column("PreemptionPolicy", |fields, _| {
                match text(fields, "preemptionPolicy") {
                    "" => "<unset>".into(),
                    policy => policy.into(),
                }
            }),
        ],
        strategy: Strategy {
            defaults: |fields| default_to(fields, "preemptionPolicy", "PreemptLowerPriority"),
            validate: rules::priority,
            validate_update: rules::priority_update,
            generation: true,
            ..Strategy::default()
        },
        ..Kind::of::<PriorityClass>(false)
    }
}

pub(super) fn runtime() -> Kind {
    Kind {
        columns: vec![
            column("Handler", |fields, _| text(fields, "handler").into()),
            AGE,
        ],
        strategy: Strategy {
            validate: rules::runtime,
            validate_update: rules::runtime_update,
            ..Strategy::default()
        },
        ..Kind::of::<RuntimeClass>(false)
    }
}
