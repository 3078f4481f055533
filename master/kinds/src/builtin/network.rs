//! Network policies, and the addresses of services as objects.

use super::cells::{AGE, selector};
use super::service::spec;
use crate::registry::{Kind, Subresource, column};
use crate::validate::{Fields, items, object, text};
use config_kube::k8s_openapi::api::networking::v1::{IPAddress, NetworkPolicy, ServiceCIDR};
use serde_json::Value;

pub(super) fn policy() -> Kind {
    Kind {
        short_names: &["netpol"],
        columns: const { &[column("Pod-Selector", |fields, _| selector(object(spec(fields), "podSelector")).into()), AGE] },
        ..Kind::of::<NetworkPolicy>(true)
    }
}

pub(super) fn address() -> Kind {
    Kind {
        short_names: &["ip"],
        columns: const { &[column("ParentRef", |fields, _| parent(fields).into()), AGE] },
        ..Kind::of::<IPAddress>(false)
    }
}

fn parent(fields: &Fields) -> String {
    let Some(parent) = object(spec(fields), "parentRef") else { return "<none>".to_owned() };
    let (group, resource) = (text(parent, "group"), text(parent, "resource"));
    let (namespace, name) = (text(parent, "namespace"), text(parent, "name"));
    let resource = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
    if namespace.is_empty() { format!("{resource}/{name}") } else { format!("{resource}/{namespace}/{name}") }
}

pub(super) fn range() -> Kind {
    Kind {
        subresources: &[Subresource::Status],
        columns: const { &[column("CIDRs", |fields, _| cidrs(fields).into()), AGE] },
        ..Kind::of::<ServiceCIDR>(false)
    }
}

fn cidrs(fields: &Fields) -> String {
    let cidrs: Vec<&str> = items(spec(fields), "cidrs").iter().filter_map(Value::as_str).collect();
    cidrs.join(",")
}
