//! Scopes: which pods and claims a quota applies to.

use master_schema::validate::{Fields, get, items, object, text};
use serde_json::Value;

/// One requirement of a quota's scopes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    name: String,
    operator: String,
    values: Vec<String>,
}

impl Scope {
    /// The scope of an entry in `spec.scopes`.
    pub(crate) fn exists(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            operator: "Exists".to_owned(),
            values: Vec::new(),
        }
    }

    /// A requirement of `spec.scopeSelector`.
    pub(crate) fn read(fields: &Fields) -> Self {
        let values = items(fields, "values").iter().filter_map(Value::as_str);
        Self {
            name: text(fields, "scopeName").to_owned(),
            operator: text(fields, "operator").to_owned(),
            values: values.map(str::to_owned).collect(),
        }
    }

    /// Whether the scope selects an object. Kinds without scopes are never selected.
    pub(crate) fn covers(&self, group: &str, plural: &str, fields: &Fields) -> bool {
        let empty = Fields::new();
        let spec = object(fields, "spec").unwrap_or(&empty);
        match (group, plural, self.name.as_str()) {
            ("", "pods", "Terminating") => terminating(spec),
            ("", "pods", "NotTerminating") => !terminating(spec),
            ("", "pods", "BestEffort") => best_effort(spec),
            ("", "pods", "NotBestEffort") => !best_effort(spec),
            ("", "pods", "PriorityClass") => self.selects(text(spec, "priorityClassName")),
            ("", "pods", "CrossNamespacePodAffinity") => crosses(spec),
            ("", "persistentvolumeclaims", "VolumeAttributesClass") => {
                self.selects_class(fields, spec)
            }
            _ => false,
        }
    }

    fn selects(&self, value: &str) -> bool {
        let named = self.values.iter().any(|known| known == value);
        match self.operator.as_str() {
            "Exists" => !value.is_empty(),
            "DoesNotExist" => value.is_empty(),
            "In" => !value.is_empty() && named,
            "NotIn" => value.is_empty() || !named,
            _ => false,
        }
    }

    /// A claim has up to three classes: desired, current, and the target of a running change.
    fn selects_class(&self, fields: &Fields, spec: &Fields) -> bool {
        let empty = Fields::new();
        let status = object(fields, "status").unwrap_or(&empty);
        let target = object(status, "modifyVolumeStatus")
            .map_or("", |s| text(s, "targetVolumeAttributesClassName"));
        let names = [
            text(spec, "volumeAttributesClassName"),
            text(status, "currentVolumeAttributesClassName"),
            target,
        ];
        let mut found = names.into_iter().filter(|name| !name.is_empty()).peekable();
        if found.peek().is_none() {
            return self.selects("");
        }
        found.any(|name| self.selects(name))
    }
}

/// Whether an update moves a pod from one scope to another. Only its deadline can: nothing else
/// that scopes select by may change.
pub fn moves(new: &Fields, old: &Fields) -> bool {
    let ends = |pod| object(pod, "spec").is_some_and(terminating);
    ends(new) != ends(old)
}

fn terminating(spec: &Fields) -> bool {
    get(spec, "activeDeadlineSeconds")
        .as_i64()
        .is_some_and(|seconds| seconds >= 0)
}

/// Whether no container requests CPU or memory (QoS class `BestEffort`).
fn best_effort(spec: &Fields) -> bool {
    let asks = |resources: Option<&Fields>| {
        ["requests", "limits"]
            .into_iter()
            .filter_map(|list| resources.and_then(|found| object(found, list)))
            .any(|list| {
                let some = |name| {
                    master_schema::quantity::Quantity::read(get(list, name))
                        .is_some_and(|amount| !amount.is_zero())
                };
                some("cpu") || some("memory")
            })
    };
    let containers = items(spec, "containers")
        .iter()
        .chain(items(spec, "initContainers"));
    let mut resources = containers
        .filter_map(Value::as_object)
        .map(|container| object(container, "resources"));
    !asks(object(spec, "resources")) && !resources.any(asks)
}

/// Whether affinity terms select other namespaces.
fn crosses(spec: &Fields) -> bool {
    let Some(affinity) = object(spec, "affinity") else {
        return false;
    };
    let term = |term: &Value| {
        term.get("namespaces")
            .and_then(Value::as_array)
            .is_some_and(|list| !list.is_empty())
            || term
                .get("namespaceSelector")
                .is_some_and(|selector| !selector.is_null())
    };
    ["podAffinity", "podAntiAffinity"]
        .into_iter()
        .filter_map(|key| object(affinity, key))
        .any(|kind| {
            let weighted = items(kind, "preferredDuringSchedulingIgnoredDuringExecution").iter();
            items(kind, "requiredDuringSchedulingIgnoredDuringExecution")
                .iter()
                .any(term)
                || weighted
                    .filter_map(|preference| preference.get("podAffinityTerm"))
                    .any(term)
        })
}
