//! Sets of field paths: a tree with sorted nodes, and set operations on it.

use crate::path::Element;
use master_schema::schema::{SchemaPosition, Shape};
use std::cmp::Ordering;

/// A set of paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Set<'a> {
    nodes: Vec<Node<'a>>,
}

/// A path element, whether the path that ends here is a member, and the longer paths. A node that
/// is no member has longer paths: empty nodes are not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node<'a> {
    /// The step.
    pub element: Element<'a>,
    /// Whether the path that ends here is a member.
    pub member: bool,
    /// The paths that continue from here.
    pub children: Set<'a>,
}

impl<'a> Set<'a> {
    /// A set of paths written as `metadata.name`.
    pub fn of(paths: &[&'a str]) -> Self {
        let mut set = Self::default();
        for path in paths {
            set.insert(path.split('.').map(|name| Element::Field(name.into())));
        }
        set
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The nodes of the first level, sorted.
    pub fn nodes(&self) -> &[Node<'a>] {
        &self.nodes
    }

    /// Adds a node unless it is empty. Cheap if nodes are added in order.
    pub fn push(&mut self, element: Element<'a>, member: bool, children: Self) {
        if !member && children.is_empty() {
            return;
        }
        // Objects and encoded sets come sorted: sets are built by appending, almost always.
        if self.nodes.last().is_none_or(|last| last.element < element) {
            self.nodes.push(Node {
                element,
                member,
                children,
            });
            return;
        }
        match self
            .nodes
            .binary_search_by(|node| node.element.cmp(&element))
        {
            Err(index) => self.nodes.insert(
                index,
                Node {
                    element,
                    member,
                    children,
                },
            ),
            Ok(index) => {
                let node = &mut self.nodes[index];
                node.member |= member;
                let known = std::mem::take(&mut node.children);
                node.children = known.union(children);
            }
        }
    }

    /// Adds a path.
    pub fn insert(&mut self, path: impl IntoIterator<Item = Element<'a>>) {
        let mut path = path.into_iter();
        let Some(first) = path.next() else { return };
        let mut rest = Self::default();
        rest.insert(path);
        let member = rest.is_empty();
        self.push(first, member, rest);
    }

    /// The node of an element.
    pub fn get(&self, element: &Element<'_>) -> Option<&Node<'a>> {
        let found = self
            .nodes
            .binary_search_by(|node| node.element.cmp(element));
        found.ok().map(|index| &self.nodes[index])
    }

    /// Whether a path of fields is a member.
    pub fn has(&self, path: &[impl AsRef<str>]) -> bool {
        let Some((first, rest)) = path.split_first() else {
            return false;
        };
        let Some(node) = self.get(&Element::Field(first.as_ref().into())) else {
            return false;
        };
        if rest.is_empty() {
            node.member
        } else {
            node.children.has(rest)
        }
    }

    /// The paths in either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        let mut nodes = Vec::with_capacity(self.nodes.len().max(other.nodes.len()));
        let (mut left, mut right) = (
            self.nodes.into_iter().peekable(),
            other.nodes.into_iter().peekable(),
        );
        loop {
            let order = match (left.peek(), right.peek()) {
                (Some(left), Some(right)) => left.element.cmp(&right.element),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return Self { nodes },
            };
            match order {
                Ordering::Less => nodes.extend(left.next()),
                Ordering::Greater => nodes.extend(right.next()),
                Ordering::Equal => {
                    if let (Some(left), Some(right)) = (left.next(), right.next()) {
                        let children = left.children.union(right.children);
                        nodes.push(Node {
                            element: left.element,
                            member: left.member || right.member,
                            children,
                        });
                    }
                }
            }
        }
    }

    /// The paths in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Set<'_>) -> Self {
        let mut both = Self::default();
        let mut rest = other.nodes.as_slice();
        // Both are sorted, so `seek` only moves forward: one walk over both, not a search for each
        // node.
        for node in &self.nodes {
            if let Some(known) = seek(&mut rest, &node.element) {
                let children = node.children.intersection(&known.children);
                both.push(node.element.clone(), node.member && known.member, children);
            }
        }
        both
    }

    /// The paths that are here and not in the other set.
    #[must_use]
    pub fn difference(self, other: &Set<'_>) -> Self {
        self.subtract(other, false)
    }

    /// The paths that are here and neither in the other set nor below one of its paths.
    #[must_use]
    pub fn difference_below(self, other: &Set<'_>) -> Self {
        self.subtract(other, true)
    }

    /// With `below`, a member of `other` takes all longer paths with it.
    fn subtract(self, other: &Set<'_>, below: bool) -> Self {
        if other.is_empty() {
            return self;
        }
        let mut left = Vec::with_capacity(self.nodes.len());
        let mut rest = other.nodes.as_slice();
        for mut node in self.nodes {
            if let Some(known) = seek(&mut rest, &node.element) {
                node.member &= !known.member;
                node.children = if known.member && below {
                    Self::default()
                } else {
                    node.children.subtract(&known.children, below)
                };
            }
            // A node stays for what is below it, too: a set may contain `spec.replicas` and not
            // `spec`.
            if node.member || !node.children.is_empty() {
                left.push(node);
            }
        }
        Self { nodes: left }
    }

    /// Calls a function for each member path; on each level, those that end there first.
    pub fn paths(&self, call: &mut impl FnMut(&[&Element<'a>])) {
        fn walk<'s, 'a>(
            set: &'s Set<'a>,
            path: &mut Vec<&'s Element<'a>>,
            call: &mut impl FnMut(&[&Element<'a>]),
        ) {
            for node in set.nodes.iter().filter(|node| node.member) {
                path.push(&node.element);
                call(path);
                path.pop();
            }
            for node in &set.nodes {
                path.push(&node.element);
                walk(&node.children, path, call);
                path.pop();
            }
        }
        walk(self, &mut Vec::new(), call);
    }

    /// The set, independent of the objects.
    pub fn into_owned(self) -> Set<'static> {
        let nodes = self.nodes.into_iter().map(|node| Node {
            element: node.element.into_owned(),
            member: node.member,
            children: node.children.into_owned(),
        });
        Set {
            nodes: nodes.collect(),
        }
    }

    /// Adds each declared field that has a member below it (upstream:
    /// `EnsureNamedFieldsAreMembers`): managed fields do not list it, as it is there for the sake
    /// of its parts, and it goes with them.
    #[must_use]
    pub fn with_declared(&self, place: SchemaPosition<'_>) -> Self {
        let nodes = self.nodes.iter().map(|node| {
            let inner = step(place, &node.element);
            let declared = inner.is_declared() && matches!(node.element, Element::Field(_));
            let member = node.member || (declared && !node.children.is_empty());
            Node {
                element: node.element.clone(),
                member,
                children: node.children.with_declared(inner),
            }
        });
        Self {
            nodes: nodes.collect(),
        }
    }

    /// Shortens paths that lead into a value that is owned as a whole: a schema change can make a
    /// field atomic.
    pub fn cut_at_atomic(&mut self, place: SchemaPosition<'_>) {
        for node in &mut self.nodes {
            if node.children.is_empty() {
                continue;
            }
            let inner = step(place, &node.element);
            if is_whole(inner) {
                node.member = true;
                node.children = Self::default();
            } else {
                node.children.cut_at_atomic(inner);
            }
        }
    }
}

/// The position that an element leads to.
fn step<'p>(place: SchemaPosition<'p>, element: &Element<'_>) -> SchemaPosition<'p> {
    match element {
        Element::Field(name) => place.field(name),
        Element::Key(_) | Element::Value(_) | Element::Index(_) => place.items(),
    }
}

/// Whether the value at a position is owned as a whole although it has parts.
fn is_whole(place: SchemaPosition<'_>) -> bool {
    match place.shape() {
        Shape::Object { atomic } | Shape::Map { atomic } => atomic,
        Shape::List(list) => *list == master_schema::schema::List::Atomic,
        Shape::Leaf(_) | Shape::Free => false,
    }
}

/// Advances in sorted nodes to an element and returns its node, if present.
fn seek<'s, 'a>(rest: &mut &'s [Node<'a>], element: &Element<'_>) -> Option<&'s Node<'a>> {
    while let Some((first, more)) = rest.split_first() {
        match first.element.cmp(element) {
            Ordering::Less => *rest = more,
            Ordering::Equal => return Some(first),
            Ordering::Greater => return None,
        }
    }
    None
}
