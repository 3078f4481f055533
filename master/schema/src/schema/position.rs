//! Descends in a schema along with an object: [`SchemaPosition`].

use super::merge::Merge;
use super::{Field, Node, Schemas};
use serde_json::Value;

/// How server-side apply owns and merges a list.
#[derive(Debug, Clone, PartialEq)]
pub enum List {
    /// As a whole.
    Atomic,
    /// By its values, which are simple.
    Set,
    /// By its items, which are objects identified by these keys.
    Map(Box<[ListKey]>),
}

/// A field that identifies items of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct ListKey {
    /// The field.
    pub name: Box<str>,
    /// The value if an item leaves it out.
    pub default: Option<Value>,
}

/// The value of an absent field: upstream's types always have some fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// Nothing.
    Missing,
    /// An empty object.
    Empty,
    /// Null.
    Null,
}

/// The type of a simple value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaf {
    /// Text.
    Text,
    /// Integer or not.
    Numeric,
    /// True or false.
    Boolean,
    /// Any simple value: a quantity, a time, an integer or a string.
    Any,
}

/// The type of the value at a position, as server-side apply sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape<'a> {
    /// A simple value.
    Leaf(Leaf),
    /// An object with known fields.
    Object {
        /// Whether it is atomic: owned as a whole.
        atomic: bool,
    },
    /// An object with any keys.
    Map {
        /// Whether it is atomic: owned as a whole.
        atomic: bool,
    },
    /// A list.
    List(&'a List),
    /// Any value: objects are owned field by field, lists as a whole.
    Free,
}

/// A position in a schema; unknown where the schema has no information.
#[derive(Debug, Clone, Copy)]
pub struct SchemaPosition<'a> {
    schemas: &'a Schemas,
    node: Option<usize>,
    field: Option<&'a Field>,
}

impl<'a> SchemaPosition<'a> {
    pub(super) fn new(schemas: &'a Schemas, node: Option<usize>) -> Self {
        Self {
            schemas,
            node,
            field: None,
        }
    }

    fn node(self) -> Option<&'a Node> {
        self.node.map(|node| &self.schemas.nodes[node])
    }

    /// The position of a field, or of a map's value; unknown if there is no such field.
    #[must_use]
    pub fn field(self, name: &str) -> Self {
        match self.node() {
            Some(Node::Object(object)) => {
                let field = object.fields.get(name);
                Self {
                    schemas: self.schemas,
                    node: field.map(|field| field.node),
                    field,
                }
            }
            Some(Node::Map(inner)) => Self::new(self.schemas, Some(*inner)),
            _ => Self::new(self.schemas, None),
        }
    }

    /// The position of a list's items; unknown if this is not a list.
    #[must_use]
    pub fn items(self) -> Self {
        match self.node() {
            Some(Node::Array(items)) => Self::new(self.schemas, Some(*items)),
            _ => Self::new(self.schemas, None),
        }
    }

    /// How strategic merge patch merges the value here.
    pub fn merge(self) -> &'a Merge {
        self.field.map_or(&Merge::Atomic, |field| &field.merge)
    }

    /// Whether the schema knows nothing here: the field is not declared, or lies below one that is
    /// not.
    pub fn is_unknown(self) -> bool {
        self.node.is_none()
    }

    /// Whether this is a declared field, not an entry of a map.
    pub fn is_declared(self) -> bool {
        self.field.is_some()
    }

    /// The value if the surrounding object leaves it out.
    pub fn absent(self) -> Absent {
        self.field.map_or(Absent::Missing, |field| field.absent)
    }

    /// The type of the value here.
    pub fn shape(self) -> Shape<'a> {
        // A field can say otherwise than the definition that it refers to.
        let own = self.field.and_then(|field| field.atomic);
        match self.node() {
            Some(Node::Object(object)) => Shape::Object {
                atomic: own.unwrap_or(object.atomic),
            },
            Some(Node::Map(_)) => Shape::Map {
                atomic: own.unwrap_or(false),
            },
            Some(Node::Array(_)) => {
                Shape::List(self.field.map_or(&List::Atomic, |field| &field.list))
            }
            Some(Node::String | Node::Bytes) => Shape::Leaf(Leaf::Text),
            Some(Node::Integer(_) | Node::Number) => Shape::Leaf(Leaf::Numeric),
            Some(Node::Boolean) => Shape::Leaf(Leaf::Boolean),
            Some(Node::Time | Node::MicroTime | Node::Quantity | Node::IntOrString) => {
                Shape::Leaf(Leaf::Any)
            }
            Some(Node::Any) | None => Shape::Free,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Schemas, Source, definitions};
    use config_kube::k8s_openapi::api::core::v1::{PersistentVolume, Pod};
    use serde_json::json;

    fn at(root: usize, path: &[&str], check: impl Fn(SchemaPosition<'_>)) {
        let sources = [Source::of::<Pod>(), Source::of::<PersistentVolume>()];
        let definitions = definitions(&sources);
        let schemas = Schemas::compile(&definitions);
        let mut place = schemas.place(sources[root].name());
        for step in path {
            place = if *step == "[]" {
                place.items()
            } else {
                place.field(step)
            };
        }
        check(place);
    }

    #[test]
    fn ports_are_keyed_by_number_and_protocol_with_defaults() {
        at(0, &["spec", "containers", "[]", "ports"], |ports| {
            let key = |name: &str, default: Value| ListKey {
                name: name.into(),
                default: Some(default),
            };
            let keys = List::Map(
                [
                    key("containerPort", json!(0)),
                    key("protocol", json!("TCP")),
                ]
                .into(),
            );
            assert_eq!(ports.shape(), Shape::List(&keys));
        });
    }

    #[test]
    fn atomic_fields_are_recognized() {
        at(0, &["spec", "nodeSelector"], |place| {
            assert_eq!(place.shape(), Shape::Map { atomic: true });
        });
        at(0, &["metadata", "labels"], |place| {
            assert_eq!(place.shape(), Shape::Map { atomic: false });
        });
        at(0, &["spec", "tolerations"], |place| {
            assert_eq!(place.shape(), Shape::List(&List::Atomic));
        });
        at(0, &["metadata", "finalizers"], |place| {
            assert_eq!(place.shape(), Shape::List(&List::Set));
        });
        at(0, &["metadata", "ownerReferences", "[]"], |place| {
            assert_eq!(place.shape(), Shape::Object { atomic: true });
        });
        at(1, &["spec", "claimRef"], |place| {
            assert_eq!(place.shape(), Shape::Object { atomic: false });
        });
    }

    #[test]
    fn required_and_optional_fields_are_recognized() {
        at(0, &["spec"], |place| {
            assert!(place.absent() == Absent::Empty && place.is_declared());
        });
        at(0, &["spec", "securityContext"], |place| {
            assert!(place.absent() == Absent::Missing && place.is_declared());
        });
        at(0, &["spec", "containers"], |place| {
            assert_eq!(place.absent(), Absent::Null);
        });
        at(0, &["metadata", "labels", "a"], |place| {
            assert!(!place.is_declared() && !place.is_unknown());
        });
        at(0, &["spec", "nonsense"], |place| {
            assert!(place.is_unknown());
        });
    }
}
