//! What the checks of a spec's parts know of its whole, and what they share.

use master_schema::validate::forms::on;
use master_schema::validate::{FieldPath, Fields, items, text};
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

/// An empty map.
pub fn no_fields() -> &'static Fields {
    static EMPTY: LazyLock<Fields> = LazyLock::new(Map::new);
    &EMPTY
}

/// The object that a spec belongs to, as far as rules depend on it.
#[derive(Debug, Clone, Copy)]
pub struct SpecOwner<'a> {
    /// Whether it is a pod: a template may leave out what its pods get by default.
    pub pod: bool,
    /// The pod's name, if known.
    pub name: &'a str,
}

impl SpecOwner<'_> {
    /// The spec belongs to a template.
    pub const TEMPLATE: Self = Self {
        pod: false,
        name: "",
    };
}

/// What the checks of containers need from the rest of the spec.
pub(super) struct Context<'a> {
    pub(super) owner: SpecOwner<'a>,
    /// Valid volumes, by name.
    pub(super) volumes: HashMap<&'a str, &'a Fields>,
    pub(super) claims: BTreeSet<&'a str>,
    pub(super) grace: Option<i64>,
    pub(super) restart: &'a str,
    pub(super) host_users: bool,
}

/// Calls `visit` with each container of a spec and its path: init, main, ephemeral.
pub fn each_container(
    spec: &Fields,
    at: &FieldPath<'_>,
    mut visit: impl FnMut(&Fields, &FieldPath<'_>),
) {
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let place = at.field(list);
        for (number, container) in items(spec, list).iter().enumerate() {
            if let Some(container) = container.as_object() {
                visit(container, &place.index(number));
            }
        }
    }
}

/// Changes the containers in lists of a spec, one after the other.
pub fn change_containers<'a>(
    spec: &mut Fields,
    lists: &[&'a str],
    mut change: impl FnMut(&'a str, &mut Fields),
) {
    for list in lists {
        for container in spec
            .get_mut(*list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(container) = container.as_object_mut() {
                change(list, container);
            }
        }
    }
}

/// Whether an init container is a sidecar (restart policy `Always`).
pub fn is_sidecar(container: &Fields) -> bool {
    text(container, "restartPolicy") == "Always"
}

/// Whether a pod uses the node's network.
pub(super) fn host_network(spec: &Fields) -> bool {
    on(spec, "hostNetwork")
}
