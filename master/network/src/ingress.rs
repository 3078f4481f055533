//! Ingresses and IngressClasses.

use crate::ingress_validate as rules;
use config_kube::k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use master_schema::cells::{AGE, at, load_balancer};
use master_schema::object::spec;
use master_schema::registry::{Kind, Strategy, Subresource, column, words};
use master_schema::validate::{Fields, default_to, items, object, object_mut, text};

/// Hosts that a cell shows.
const SHOWN: usize = 3;

/// The kind Ingress.
pub fn ingress() -> Kind {
    Kind {
        short_names: words(&["ing"]),
        subresources: vec![Subresource::Status],
        columns: vec![
            column("Class", |fields, _| {
                at(fields, "spec", "/ingressClassName").into()
            }),
            column("Hosts", |fields, _| hosts(fields).into()),
            column("Address", |fields, _| load_balancer(fields).into()),
            column("Ports", |fields, _| ports(fields).into()),
            AGE,
        ],
        strategy: Strategy {
            validate: rules::ingress,
            validate_create: rules::ingress_create,
            validate_update: rules::ingress_update,
            generation: true,
            ..Strategy::default()
        },
        ..Kind::of::<Ingress>(true)
    }
}

fn hosts(fields: &Fields) -> String {
    let rules = items(spec(fields), "rules");
    let hosts: Vec<&str> = rules
        .iter()
        .filter_map(|rule| rule.get("host")?.as_str())
        .collect();
    match hosts.as_slice() {
        [] => "*".to_owned(),
        hosts if hosts.len() > SHOWN => {
            format!(
                "{} + {} more...",
                hosts[..SHOWN].join(","),
                rules.len() - SHOWN
            )
        }
        hosts => hosts.join(","),
    }
}

fn ports(fields: &Fields) -> &'static str {
    if items(spec(fields), "tls").is_empty() {
        "80"
    } else {
        "80, 443"
    }
}

/// The kind IngressClass.
pub fn class() -> Kind {
    Kind {
        columns: vec![
            column("Controller", |fields, _| {
                text(spec(fields), "controller").into()
            }),
            column("Parameters", |fields, _| parameters(fields).into()),
            AGE,
        ],
        strategy: Strategy {
            defaults: |fields| {
                let parameters =
                    object_mut(fields, "spec").and_then(|spec| spec.get_mut("parameters"));
                if let Some(parameters) = parameters.and_then(serde_json::Value::as_object_mut) {
                    default_to(parameters, "scope", "Cluster");
                }
            },
            validate: rules::class,
            validate_update: rules::class_update,
            generation: true,
            ..Strategy::default()
        },
        ..Kind::of::<IngressClass>(false)
    }
}

fn parameters(fields: &Fields) -> String {
    let Some(parameters) = object(spec(fields), "parameters") else {
        return "<none>".to_owned();
    };
    let (group, kind, name) = (
        text(parameters, "apiGroup"),
        text(parameters, "kind"),
        text(parameters, "name"),
    );
    let kind = if group.is_empty() {
        kind.to_owned()
    } else {
        format!("{kind}.{group}")
    };
    format!("{kind}/{name}")
}
