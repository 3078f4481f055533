//! The parts of a pod that the checks read.

use master_schema::object::metadata;
use master_schema::validate::{Fields, items, object, text};
use serde_json::Value;

/// Prefix of the deprecated AppArmor annotations; the container's name follows.
pub(crate) const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

static EMPTY: std::sync::LazyLock<Fields> = std::sync::LazyLock::new(Fields::new);

/// A container of any type.
#[derive(Debug)]
pub(crate) struct Container<'a> {
    pub(super) name: &'a str,
    pub(super) fields: &'a Fields,
    pub(super) context: &'a Fields,
}

/// A pod or a template of pods.
#[derive(Debug)]
pub(crate) struct Pod<'a> {
    pub(super) annotations: &'a Fields,
    pub(super) spec: &'a Fields,
    pub(super) context: &'a Fields,
    /// Init containers, containers, ephemeral containers.
    pub(super) containers: Vec<Container<'a>>,
}

impl<'a> Pod<'a> {
    pub(super) fn of(fields: &'a Fields) -> Self {
        let spec = object(fields, "spec").unwrap_or(&EMPTY);
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        let containers = lists
            .into_iter()
            .flat_map(|list| items(spec, list))
            .filter_map(Value::as_object);
        Self {
            annotations: object(metadata(fields), "annotations").unwrap_or(&EMPTY),
            spec,
            context: object(spec, "securityContext").unwrap_or(&EMPTY),
            containers: containers
                .map(|fields| Container {
                    name: text(fields, "name"),
                    fields,
                    context: object(fields, "securityContext").unwrap_or(&EMPTY),
                })
                .collect(),
        }
    }

    /// Whether the pod runs on Windows, where some of the checked fields have no meaning.
    pub(super) fn on_windows(&self) -> bool {
        object(self.spec, "os").is_some_and(|os| text(os, "name") == "windows")
    }

    /// Whether root in the pod is an unprivileged user on the host (user namespaces).
    pub(super) fn in_user_namespace(&self) -> bool {
        self.spec.get("hostUsers") == Some(&Value::Bool(false))
    }
}
