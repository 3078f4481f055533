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

    /// A set of nodes in any order: those of one element become one, empty ones are left out. It
    /// costs a walk over nodes that are in order, and otherwise a sort, whatever the order is.
    pub fn from_unsorted(mut nodes: Vec<Node<'a>>) -> Self {
        nodes.retain(|node| node.member || !node.children.is_empty());
        if nodes.is_sorted_by(|one, next| one.element < next.element) {
            return Self { nodes };
        }
        // Stable: of equal elements in several spellings the first stays, as with `push`.
        nodes.sort_by(|one, other| one.element.cmp(&other.element));
        let mut merged: Vec<Node<'a>> = Vec::with_capacity(nodes.len());
        let mut nodes = nodes.into_iter().peekable();
        while let Some(mut node) = nodes.next() {
            let mut several = false;
            while let Some(same) = nodes.next_if(|next| next.element == node.element) {
                several = true;
                node.member |= same.member;
                node.children.nodes.extend(same.children.nodes);
            }
            if several {
                node.children = Self::from_unsorted(std::mem::take(&mut node.children.nodes));
            }
            merged.push(node);
        }
        Self { nodes: merged }
    }

    /// The paths in any of the sets, all at once: a union with one after the other would walk over
    /// the nodes of the first sets again and again.
    pub fn union_all(sets: impl IntoIterator<Item = Self>) -> Self {
        Self::from_unsorted(sets.into_iter().flat_map(|set| set.nodes).collect())
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The nodes of the first level, sorted.
    pub fn nodes(&self) -> &[Node<'a>] {
        &self.nodes
    }

    /// Adds a node unless it is empty. Only for nodes that are added in order: each other one moves
    /// all that follow it ([`Set::from_unsorted`]).
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

/// Advances in sorted nodes to an element and returns its node, if present. It goes in growing
/// steps, so that a few elements are found among many nodes without a look at each: the fields of
/// thousands of managers are compared with the same changes.
fn seek<'s, 'a>(rest: &mut &'s [Node<'a>], element: &Element<'_>) -> Option<&'s Node<'a>> {
    let nodes = *rest;
    let is_before = |node: &Node<'a>| node.element.cmp(element) == Ordering::Less;
    // All nodes before `from` are before the element.
    let (mut from, mut step) = (0_usize, 1_usize);
    while nodes.get(from + step - 1).is_some_and(is_before) {
        from += step;
        step *= 2;
    }
    let end = nodes.len().min(from + step - 1);
    let found = from + nodes[from..end].partition_point(is_before);
    let left = &nodes[found..];
    *rest = left;
    left.first()
        .filter(|node| node.element.cmp(element) == Ordering::Equal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Simple;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use std::borrow::Cow;
    use std::collections::BTreeSet;

    fn value(value: Value) -> Element<'static> {
        Element::Value(Simple(Cow::Owned(value)))
    }

    /// Few elements, so that many are equal; `1` and `1.0` are one.
    fn element() -> impl Strategy<Value = Element<'static>> {
        let field = "[a-c]".prop_map(|name| Element::Field(name.into()));
        let number = prop::sample::select(vec![json!(1), json!(1.0), json!(2), json!("1")]);
        prop_oneof![
            field,
            (0..3_i64).prop_map(Element::Index),
            number.prop_map(value)
        ]
    }

    /// A set that grew node by node.
    fn grown(nodes: Vec<Node<'static>>) -> Set<'static> {
        let mut set = Set::default();
        for node in nodes {
            set.push(node.element, node.member, node.children);
        }
        set
    }

    fn nodes(depth: u32) -> BoxedStrategy<Vec<Node<'static>>> {
        let children = match depth.checked_sub(1) {
            Some(below) => nodes(below).prop_map(grown).boxed(),
            None => Just(Set::default()).boxed(),
        };
        let node = (element(), prop::bool::ANY, children);
        let node = node.prop_map(|(element, member, children)| Node {
            element,
            member,
            children,
        });
        prop::collection::vec(node, 0..6).boxed()
    }

    fn indexes<'a>(all: impl IntoIterator<Item = &'a i64>) -> Set<'static> {
        let nodes = all.into_iter().map(|index| Node {
            element: Element::Index(*index),
            member: true,
            children: Set::default(),
        });
        Set::from_unsorted(nodes.collect())
    }

    proptest! {
        #[test]
        fn nodes_in_any_order_make_the_set_that_grows_of_them(all in nodes(2)) {
            prop_assert_eq!(Set::from_unsorted(all.clone()), grown(all));
        }

        #[test]
        fn sets_are_united_at_once_as_one_after_the_other(
            sets in prop::collection::vec(nodes(2).prop_map(grown), 0..5),
        ) {
            let one_by_one = sets.clone().into_iter().fold(Set::default(), Set::union);
            prop_assert_eq!(Set::union_all(sets), one_by_one);
        }

        #[test]
        fn common_elements_are_found_wherever_they_are(
            ones in prop::collection::btree_set(0..80_i64, 0..40),
            others in prop::collection::btree_set(0..80_i64, 0..40),
        ) {
            let (one, other) = (indexes(&ones), indexes(&others));
            prop_assert_eq!(one.intersection(&other), indexes(ones.intersection(&others)));
            prop_assert_eq!(one.difference(&other), indexes(ones.difference(&others)));
        }
    }

    /// Each `v:` of a client's sorted map comes behind all `i:`, and belongs before them: to put
    /// one after the other in place would move some 10^10 nodes.
    #[test]
    fn a_client_orders_fields_as_it_likes_at_no_cost() {
        const EACH: usize = 110_000;
        let keys: BTreeSet<String> = (0..EACH)
            .flat_map(|number| [format!("i:{number}"), format!("v:{number}")])
            .collect();
        let fields: Vec<String> = keys.iter().map(|key| format!("\"{key}\":{{}}")).collect();
        let text = format!("{{{}}}", fields.join(","));
        assert!(text.len() < 3 << 20, "it fits a body");
        let set = crate::fields::decode(&text).unwrap();
        assert_eq!(set.nodes().len(), 2 * EACH);
        assert!(
            set.nodes()
                .is_sorted_by(|one, next| one.element < next.element)
        );
        assert_eq!(set.nodes()[0].element, value(json!(0)));
        // Spellings of one element, of which the first has many fields.
        let many: Vec<String> = (0..EACH)
            .map(|number| format!("\"i:{number}\":{{}}"))
            .collect();
        let spellings = vec![r#""v:1.0":{"f:a":{}}"#; 50_000].join(",");
        let text = format!("{{\"v:1\":{{{}}},{spellings}}}", many.join(","));
        let set = crate::fields::decode(&text).unwrap();
        assert_eq!(set.nodes().len(), 1);
        assert_eq!(set.nodes()[0].children.nodes().len(), EACH + 1);
    }
}
