//! NetworkPolicies, ServiceCIDRs and IPAddresses.

use crate::policy_validate as rules;
use config_kube::k8s_openapi::api::networking::v1::{IPAddress, NetworkPolicy, ServiceCIDR};
use master_schema::cells::{AGE, selector};
use master_schema::object::spec;
use master_schema::object::{metadata_mut, now};
use master_schema::registry::{Kind, Strategy, Subresource, column, words};
use master_schema::validate::{Fields, items, object, text};
use serde_json::{Value, json};

/// The finalizer of a ServiceCIDR.
const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";

/// The kind NetworkPolicy.
pub fn policy() -> Kind {
    Kind {
        short_names: words(&["netpol"]),
        columns: vec![
            column("Pod-Selector", |fields, _| {
                selector(object(spec(fields), "podSelector")).into()
            }),
            AGE,
        ],
        strategy: Strategy {
            defaults: rules::policy_defaults,
            validate: rules::policy,
            generation: true,
            ..Strategy::default()
        },
        ..Kind::of::<NetworkPolicy>(true)
    }
}

/// The kind IPAddress.
pub fn address() -> Kind {
    Kind {
        short_names: words(&["ip"]),
        columns: vec![column("ParentRef", |fields, _| parent(fields).into()), AGE],
        strategy: Strategy {
            names: rules::address_name,
            validate: rules::address,
            validate_update: rules::address_update,
            ..Strategy::default()
        },
        ..Kind::of::<IPAddress>(false)
    }
}

fn parent(fields: &Fields) -> String {
    let Some(parent) = object(spec(fields), "parentRef") else {
        return "<none>".to_owned();
    };
    let (group, resource) = (text(parent, "group"), text(parent, "resource"));
    let (namespace, name) = (text(parent, "namespace"), text(parent, "name"));
    let resource = if group.is_empty() {
        resource.to_owned()
    } else {
        format!("{resource}.{group}")
    };
    if namespace.is_empty() {
        format!("{resource}/{name}")
    } else {
        format!("{resource}/{namespace}/{name}")
    }
}

/// The kind ServiceCIDR.
pub fn range() -> Kind {
    Kind {
        subresources: vec![Subresource::Status],
        columns: vec![column("CIDRs", |fields, _| cidrs(fields).into()), AGE],
        strategy: Strategy {
            create: |fields| {
                let ready = json!({
                    "type": "Ready", "status": "True", "reason": "", "lastTransitionTime": now(),
                    "message": "Kubernetes Service CIDR is ready",
                });
                fields.insert("status".to_owned(), json!({"conditions": [ready]}));
                add_finalizer(fields);
            },
            validate: rules::cidrs,
            validate_update: rules::cidrs_update,
            ..Strategy::default()
        },
        ..Kind::of::<ServiceCIDR>(false)
    }
}

/// Adds the finalizer, so that a range stays while addresses are taken from it.
fn add_finalizer(fields: &mut Fields) {
    let finalizers = metadata_mut(fields)
        .entry("finalizers")
        .or_insert_with(|| json!([]));
    if let Some(list) = finalizers.as_array_mut()
        && !list.iter().any(|own| own == FINALIZER)
    {
        list.push(FINALIZER.into());
    }
}

fn cidrs(fields: &Fields) -> String {
    let cidrs: Vec<&str> = items(spec(fields), "cidrs")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    cidrs.join(",")
}
