//! Descriptors of kinds: [`Kind`], and the set of served kinds, [`Registry`].

use crate::error::{ApiError, Reason};
use crate::schema::{self, Schemas, Source};
pub use crate::stored_fields::{RenamedField, SelectableField, renamed, selectable};
use crate::validate::meta::NameRule;
use crate::validate::{Faults, Fields, names};
use jiff::Timestamp;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// A subresource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subresource {
    /// The status alone.
    Status,
    /// The approval conditions of a certificate request.
    Approval,
    /// Binds a pod to a node.
    Binding,
    /// Deletes a pod if its disruption budget allows it.
    Eviction,
    /// A container's log.
    Log,
    /// The finalizers of a namespace's spec.
    Finalize,
    /// The number of replicas; [`Kind::scale`] says where the kind has it.
    Scale,
    /// Ephemeral containers, added to a running pod for debugging.
    EphemeralContainers,
    /// The resources of a running pod's containers.
    Resize,
    /// Issues a service account's token.
    Token,
    /// Ends the node's machine.
    Power,
    /// Forwards HTTP requests to the node, service or pod.
    Proxy,
    /// Runs a command in a container.
    Exec,
    /// The streams of a running container.
    Attach,
    /// Streams to a pod's ports.
    PortForward,
}

impl Subresource {
    /// The path segment.
    pub fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Approval => "approval",
            Self::Binding => "binding",
            Self::Eviction => "eviction",
            Self::Log => "log",
            Self::Finalize => "finalize",
            Self::Scale => "scale",
            Self::EphemeralContainers => "ephemeralcontainers",
            Self::Resize => "resize",
            Self::Token => "token",
            Self::Power => "power",
            Self::Proxy => "proxy",
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
        }
    }

    /// The verbs, as discovery lists them.
    pub fn verbs(self) -> &'static [&'static str] {
        match self {
            Self::Status
            | Self::Approval
            | Self::Scale
            | Self::EphemeralContainers
            | Self::Resize => &["get", "patch", "update"],
            Self::Binding | Self::Eviction | Self::Token | Self::Power => &["create"],
            Self::Log => &["get"],
            Self::Finalize => &["update"],
            Self::Proxy => &["create", "delete", "get", "patch", "update"],
            Self::Exec | Self::Attach | Self::PortForward => &["create", "get"],
        }
    }

    /// The kind of its body if it is not the object; `kind` is the object's kind.
    pub fn body(self, kind: &str) -> Option<GroupVersionKind<'static>> {
        let (group, kind) = match self {
            Self::Binding => ("", "Binding"),
            Self::Eviction => ("policy", "Eviction"),
            Self::Scale => ("autoscaling", "Scale"),
            Self::Token => ("authentication.k8s.io", "TokenRequest"),
            Self::Proxy if kind == "Node" => ("", "NodeProxyOptions"),
            Self::Proxy if kind == "Service" => ("", "ServiceProxyOptions"),
            Self::Proxy => ("", "PodProxyOptions"),
            Self::Exec => ("", "PodExecOptions"),
            Self::Attach => ("", "PodAttachOptions"),
            Self::PortForward => ("", "PodPortForwardOptions"),
            Self::Status
            | Self::Approval
            | Self::Log
            | Self::Finalize
            | Self::EphemeralContainers
            | Self::Resize
            | Self::Power => return None,
        };
        let version = "v1";
        Some(GroupVersionKind {
            group,
            version,
            kind,
        })
    }
}

/// A kind in one of its versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupVersionKind<'a> {
    /// API group; empty for core.
    pub group: &'a str,
    /// Version.
    pub version: &'a str,
    /// Kind.
    pub kind: &'a str,
}

/// Where a kind has the fields of its scale subresource: JSON pointers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scale {
    /// The desired number.
    pub replicas: Cow<'static, str>,
    /// The observed number.
    pub observed: Cow<'static, str>,
    /// The selector of the counted pods: a `LabelSelector`, a map of labels, or a selector as a
    /// string.
    pub selector: Cow<'static, str>,
}

impl Scale {
    /// The paths of upstream's workload kinds.
    pub const WORKLOAD: Self = Self {
        replicas: Cow::Borrowed("/spec/replicas"),
        observed: Cow::Borrowed("/status/replicas"),
        selector: Cow::Borrowed("/spec/selector"),
    };
}

/// Kinds that are answered at once and never stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Review {
    /// Who a token belongs to.
    Token,
    /// Who the caller is.
    SelfSubject,
    /// Whether a user may do something.
    SubjectAccess,
    /// The same inside one namespace.
    LocalSubjectAccess,
    /// Whether the caller may do something.
    SelfSubjectAccess,
    /// What the caller may do in a namespace.
    SelfSubjectRules,
    /// Not a review: binds a pod, in the deprecated form that names the pod in its body.
    Binding,
    /// Not a review and read-only: the status of the cluster's components.
    Components,
    /// Not a review and read-only: the usage of nodes and pods, as the nodes report it.
    Metrics,
    /// Not a review and read-only: the API groups that are served, in all their versions.
    Groups,
}

impl Review {
    /// Whether its objects are computed per request and take no body.
    pub fn is_read(self) -> bool {
        matches!(self, Self::Components | Self::Metrics | Self::Groups)
    }
}

/// One column of a table.
#[derive(Debug, Clone)]
pub struct Column {
    /// Heading.
    pub name: Cow<'static, str>,
    /// `string`, `integer`, `date`, …
    pub kind: Cow<'static, str>,
    /// 0: always shown; 1: with `-o wide`.
    pub priority: u8,
    /// Its cells.
    pub cell: Cell,
}

/// The source of a column's cells.
#[derive(Debug, Clone)]
pub enum Cell {
    /// They are computed from the object and the current time.
    Computed(fn(&Fields, Timestamp) -> Value),
    /// The value of a field, by its JSON pointer; null where it is absent. So has a kind that a
    /// document describes.
    Field(String),
}

impl Cell {
    /// The value for an object.
    pub fn value(&self, fields: &Fields, now: Timestamp) -> Value {
        match self {
            Self::Computed(compute) => compute(fields, now),
            Self::Field(pointer) => {
                let path = pointer.strip_prefix('/').unwrap_or_default();
                let (first, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
                let value = fields.get(first).and_then(|value| value.pointer(rest));
                value.cloned().unwrap_or_default()
            }
        }
    }
}

const fn of_kind(
    kind: &'static str,
    name: &'static str,
    priority: u8,
    cell: fn(&Fields, Timestamp) -> Value,
) -> Column {
    Column {
        name: Cow::Borrowed(name),
        kind: Cow::Borrowed(kind),
        priority,
        cell: Cell::Computed(cell),
    }
}

/// A string column that is always shown.
pub const fn column(name: &'static str, cell: fn(&Fields, Timestamp) -> Value) -> Column {
    of_kind("string", name, 0, cell)
}

/// A column shown with `-o wide`.
pub const fn wide(name: &'static str, cell: fn(&Fields, Timestamp) -> Value) -> Column {
    of_kind("string", name, 1, cell)
}

/// An integer column that is always shown.
pub const fn integer(name: &'static str, cell: fn(&Fields, Timestamp) -> Value) -> Column {
    of_kind("integer", name, 0, cell)
}

/// A boolean column that is always shown.
pub const fn boolean(name: &'static str, cell: fn(&Fields, Timestamp) -> Value) -> Column {
    of_kind("boolean", name, 0, cell)
}

/// A column of times that is always shown.
pub const fn date(name: &'static str, cell: fn(&Fields, Timestamp) -> Value) -> Column {
    of_kind("date", name, 0, cell)
}

/// A name that a program or a document gives.
pub type Word = Cow<'static, str>;

/// Short names or categories of a built-in kind.
pub fn words(list: &[&'static str]) -> Vec<Word> {
    list.iter().map(|word| Cow::Borrowed(*word)).collect()
}

/// Dotted paths of fields that a write resets, so that its manager never owns them (upstream:
/// `GetResetFields`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    /// On a write of the object.
    pub main: Vec<Word>,
    /// On a write of the status.
    pub status: Vec<Word>,
}

impl Default for Reset {
    fn default() -> Self {
        Self {
            main: words(&["status"]),
            status: words(&["spec"]),
        }
    }
}

impl Reset {
    /// The paths of a write of the status, or of the object.
    pub fn paths(&self, status: bool) -> Vec<&str> {
        let paths = if status { &self.status } else { &self.main };
        paths.iter().map(|path| &**path).collect()
    }
}

/// What happens to the dependents of a deleted object if the request does not say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dependents {
    /// They are deleted after it.
    Deleted,
    /// They lose their owner (replication controllers and jobs, for compatibility).
    Orphaned,
    /// Objects of this kind own nothing, whatever the request says (events).
    Untracked,
}

/// What a kind does to its objects when they are written.
#[derive(Clone)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own about a kind"
)]
pub struct Strategy {
    /// The format of names.
    pub names: NameRule,
    /// Sets default values, on every write.
    pub defaults: fn(&mut Fields),
    /// Sets what the server determines at creation.
    pub create: fn(&mut Fields),
    /// Restores what an update may not touch; the new object comes first.
    pub update: fn(&mut Fields, &Fields),
    /// Adjusts the result of a write through a subresource: the result, the object that was sent,
    /// the old object.
    pub through: fn(Subresource, &mut Fields, &Fields, &Fields),
    /// Validates an object.
    pub validate: fn(&Fields, &mut Faults),
    /// Adds warnings for the writer: the new object, and the old one at an update.
    pub warn: fn(&Fields, Option<&Fields>, &mut Vec<String>),
    /// Validates what applies to new objects only.
    pub validate_create: fn(&Fields, &mut Faults),
    /// Validates a change, except through subresources with rules of their own (ephemeral
    /// containers, resize); the new object comes first.
    pub validate_update: fn(&Fields, &Fields, &mut Faults),
    /// Validates a change through a subresource; the new object comes first.
    pub validate_through: fn(Subresource, &Fields, &Fields, &mut Faults),
    /// Whether a status given at creation is kept (nodes) or dropped.
    pub status_at_creation: bool,
    /// Whether metadata can be changed through the status subresource (not so for `CustomResource`
    /// kinds).
    pub status_carries_metadata: bool,
    /// Whether an update creates the object if it does not exist (upstream: `AllowCreateOnUpdate`).
    pub made_by_update: bool,
    /// Whether `metadata.generation` counts changes of the spec.
    pub generation: bool,
    /// Whether a deletion waits until the kubelet confirms it with a grace period of 0.
    pub graceful: bool,
    /// Fields that writers never own.
    pub reset: Reset,
    /// What happens to dependents if the request does not say so.
    pub dependents: Dependents,
    /// Whether a deletion returns the object instead of a `Status`.
    pub returns_deleted: bool,
}

impl Default for Strategy {
    fn default() -> Self {
        Self {
            names: names::subdomain,
            defaults: |_| (),
            create: |_| (),
            update: |_, _| (),
            through: |_, _, _, _| (),
            validate: |_, _| (),
            validate_create: |_, _| (),
            validate_update: |_, _, _| (),
            validate_through: |_, _, _, _| (),
            warn: |_, _, _| (),
            status_at_creation: false,
            status_carries_metadata: true,
            made_by_update: false,
            generation: false,
            graceful: false,
            reset: Reset::default(),
            dependents: Dependents::Deleted,
            returns_deleted: false,
        }
    }
}

impl fmt::Debug for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Strategy")
            .field("generation", &self.generation)
            .field("graceful", &self.graceful)
            .finish_non_exhaustive()
    }
}

/// Converts between a served version and the stored one. Served → stored → served loses nothing.
#[derive(Debug, Clone, Copy)]
pub struct Conversion {
    /// Converts the served version to the stored one.
    pub to_stored: fn(&mut Fields),
    /// Converts the stored version to the served one.
    pub to_served: fn(&mut Fields),
}

/// One kind in one version: everything that the generic request path needs.
#[derive(Debug)]
#[allow(
    clippy::struct_field_names,
    reason = "upstream's words: a kind has a kind"
)]
pub struct Kind {
    /// API group; empty for core.
    pub group: String,
    /// Version.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// Path segment.
    pub plural: String,
    /// Singular name, for discovery.
    pub singular: String,
    /// Short names.
    pub short_names: Vec<Word>,
    /// Categories, such as `all`.
    pub categories: Vec<Word>,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Table in the store; the versions of one kind share it.
    pub table: String,
    /// Subresources.
    pub subresources: Vec<Subresource>,
    /// The paths of the scale subresource, if the kind has one.
    pub scale: Option<Scale>,
    /// Whether tables begin with the column `Name`.
    pub named: bool,
    /// Table columns, after the name.
    pub columns: Vec<Column>,
    /// Selectable fields beyond name and namespace.
    pub selectable: Vec<SelectableField>,
    /// What happens to objects when they are written.
    pub strategy: Strategy,
    /// The review, if the kind is one.
    pub review: Option<Review>,
    /// The warning for every request if a newer version replaces this one.
    pub deprecated: Option<Word>,
    /// Why no client may write objects of this kind: what they would ask for is not there. They can
    /// be read, so that clients that look for them find none instead of an error.
    pub refused: Option<Word>,
    /// Top-level fields with another name in the store.
    pub renames: Vec<RenamedField>,
    /// Conversion to the stored version and back, if it is more than renaming.
    pub conversion: Option<Conversion>,
    /// The status of a new object, if upstream shows its zero values.
    pub blank: Option<Value>,
    /// The schema's source.
    pub source: Source,
}

impl Kind {
    /// A kind of `k8s-openapi` or `config-kube` with default behaviour.
    pub fn of<T>(namespaced: bool) -> Self
    where
        T: config_kube::k8s_openapi::Resource,
    {
        let plural = T::URL_PATH_SEGMENT.to_owned();
        let table = if T::GROUP.is_empty() {
            plural.clone()
        } else {
            format!("{plural}.{}", T::GROUP)
        };
        Self {
            group: T::GROUP.to_owned(),
            version: T::VERSION.to_owned(),
            kind: T::KIND.to_owned(),
            singular: T::KIND.to_lowercase(),
            plural,
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced,
            table,
            subresources: Vec::new(),
            scale: None,
            named: true,
            columns: Vec::new(),
            selectable: Vec::new(),
            strategy: Strategy::default(),
            review: None,
            deprecated: None,
            refused: None,
            renames: Vec::new(),
            conversion: None,
            blank: None,
            source: Source::of::<T>(),
        }
    }

    /// `group/version`, or the version alone for core.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `plural.group`, as messages name it.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// The error that a request about an object is forbidden.
    pub fn forbidden(&self, name: &str, why: &str) -> ApiError {
        let plural = self.qualified();
        ApiError::new(
            Reason::Forbidden,
            format!("{plural} {name:?} is forbidden: {why}"),
        )
        .about(&self.group, &self.plural, name)
    }

    /// The key of an object in the store.
    pub fn key(&self, namespace: &str, name: &str) -> String {
        // The table comes first, so that all objects of a kind, and those of a namespace in it, are
        // neighbours: a list is one range.
        if self.namespaced {
            [&self.table, "/", namespace, "/", name].concat()
        } else {
            [&self.table, "/", name].concat()
        }
    }

    /// Prefix of the keys of a namespace's objects, or of all objects.
    pub fn prefix(&self, namespace: &str) -> String {
        if self.namespaced && !namespace.is_empty() {
            format!("{}/{namespace}/", self.table)
        } else {
            format!("{}/", self.table)
        }
    }

    /// Whether objects are stored in the served form.
    pub fn stored_as_served(&self) -> bool {
        self.renames.is_empty() && self.conversion.is_none()
    }

    /// Converts a served object to the stored form.
    pub fn to_stored(&self, object: &mut Fields) {
        for RenamedField { served, stored } in &self.renames {
            if let Some(value) = object.remove(&**served) {
                object.insert(stored.to_string(), value);
            }
        }
        if let Some(conversion) = self.conversion {
            (conversion.to_stored)(object);
        }
    }

    /// Converts a stored object to the served form.
    pub fn to_served(&self, object: &mut Fields) {
        for RenamedField { served, stored } in &self.renames {
            if let Some(value) = object.remove(&**stored) {
                object.insert(served.to_string(), value);
            }
        }
        if let Some(conversion) = self.conversion {
            (conversion.to_served)(object);
        }
    }

    /// The subresource with this name.
    pub fn subresource(&self, name: &str) -> Option<Subresource> {
        self.subresources
            .iter()
            .copied()
            .find(|sub| sub.name() == name)
    }

    /// The verbs, as discovery lists them.
    pub fn verbs(&self) -> &'static [&'static str] {
        match self.review {
            Some(review) if review.is_read() => &["get", "list"],
            Some(_) => &["create"],
            None if self.refused.is_some() => &["get", "list", "watch"],
            None => &[
                "create",
                "delete",
                "deletecollection",
                "get",
                "list",
                "patch",
                "update",
                "watch",
            ],
        }
    }

    /// Whether the status is a subresource.
    pub fn has_status(&self) -> bool {
        self.subresources.contains(&Subresource::Status)
    }
}

/// The kinds that are served.
#[derive(Debug)]
pub struct Registry {
    kinds: Vec<Arc<Kind>>,
    /// The kinds of a plural: a few, in several versions or groups.
    by_plural: HashMap<String, Vec<Arc<Kind>>>,
    schemas: Schemas,
}

impl Registry {
    /// A registry of kinds.
    pub fn new(kinds: Vec<Kind>) -> Self {
        let sources: Vec<Source> = kinds.iter().map(|kind| kind.source.clone()).collect();
        let schemas = Schemas::compile(&schema::definitions(&sources));
        let mut registry = Self {
            kinds: Vec::new(),
            by_plural: HashMap::new(),
            schemas,
        };
        for kind in kinds {
            let kind = Arc::new(kind);
            let same = registry.by_plural.entry(kind.plural.clone()).or_default();
            same.push(kind.clone());
            registry.kinds.push(kind);
        }
        registry
    }

    /// The kind at a path.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        let same = self.by_plural.get(plural)?.iter();
        // Of two at one path the later.
        same.rev()
            .find(|kind| kind.group == group && kind.version == version)
    }

    /// All kinds, in the order of discovery.
    pub fn kinds(&self) -> &[Arc<Kind>] {
        &self.kinds
    }

    /// Groups and their versions, in order.
    pub fn groups(&self) -> Vec<(&str, Vec<&str>)> {
        let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
        for kind in &self.kinds {
            // Their order is that of the kinds: the first version of a group is the preferred one.
            match groups.iter_mut().find(|(group, _)| *group == kind.group) {
                Some((_, versions)) if versions.contains(&kind.version.as_str()) => {}
                Some((_, versions)) => versions.push(&kind.version),
                None => groups.push((&kind.group, vec![&kind.version])),
            }
        }
        groups
    }

    /// Compiled schemas.
    pub fn schemas(&self) -> &Schemas {
        &self.schemas
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_column_that_a_document_describes_shows_a_field() {
        let object = json!({"spec": {"sizes": [{"width": 3}]}, "data": "x"});
        let fields: Fields = serde_json::from_value(object).unwrap();
        let shown =
            |pointer: &str| Cell::Field(pointer.to_owned()).value(&fields, Timestamp::now());
        assert_eq!(shown("/spec/sizes/0/width"), 3);
        assert_eq!(shown("/data"), "x");
        for absent in ["/spec/none", "/none/at/all", "", "data"] {
            assert_eq!(shown(absent), Value::Null, "{absent}");
        }
    }
}
