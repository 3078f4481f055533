//! The most items of lists that the server, its controllers or a node compare or multiply.
//!
//! The bytes and values of an object do not bound that work: two lists of one object can have
//! 100,000 items each. Upstream bounds few of these lists. Each limit here is far above what
//! clusters use, and low enough that a product of two lists is done in well under a second.
//! The admin's guide lists them.

use super::{Faults, FieldPath, Fields, items};

/// Owners of an object, which has a handful: the garbage collector looks each of them up whenever
/// the object or one of them changes.
pub const OWNERS: usize = 100;
/// Finalizers of an object.
pub const FINALIZERS: usize = 1_000;

/// Requirements of a label or node selector in `matchExpressions` or `matchFields`: the selector is
/// asked about each pod, node or namespace.
pub const REQUIREMENTS: usize = 1_000;
/// Values of one requirement: names of all nodes fit.
pub const VALUES: usize = 10_000;
/// Terms of a required node selector. To list nodes by `metadata.name` takes a term for each.
pub const NODE_TERMS: usize = 1_000;

/// Required, and preferred, terms of a pod's affinity of one type: the scheduler asks each of them
/// about each group of pods, or about each node, also when it places other pods.
pub const AFFINITY_TERMS: usize = 100;
/// `matchLabelKeys`, and `mismatchLabelKeys`, of a term or constraint.
pub const LABEL_KEYS: usize = 100;
/// Topology spread constraints of a pod: the scheduler asks each of them about each node.
pub const SPREAD_CONSTRAINTS: usize = 100;
/// Items of other lists of a pod's spec: containers of a type, volumes, tolerations, gates, claims,
/// host aliases, pull secrets; mounts and sources of variables of a container; namespaces of an
/// affinity term; claim templates of a StatefulSet.
pub const OF_POD: usize = 1_000;
/// Ports of all containers of a pod together.
pub const POD_PORTS: usize = 1_000;
/// Variables of a container.
pub const VARIABLES: usize = 10_000;

/// Ports of a Service and of a subset of Endpoints: each endpoint has each of them.
pub const SERVICE_PORTS: usize = 1_000;
/// Ports of an EndpointSlice, as upstream: a Service that was stored with more than
/// [`SERVICE_PORTS`] has slices, too. Nodes read as many.
pub const SLICE_PORTS: usize = 20_000;
/// External addresses, source ranges and load balancer points of a Service.
pub const SERVICE_ADDRESSES: usize = 1_000;
/// Subsets of Endpoints; each has another list of ports, and slices of its own.
pub const SUBSETS: usize = 1_000;
/// Addresses of a subset, ready or not.
pub const SUBSET_ADDRESSES: usize = 10_000;

/// Rules of a NetworkPolicy in one direction.
pub const POLICY_RULES: usize = 1_000;
/// Peers of a rule, and exceptions of an address block: each goes with each of the rule's ports.
pub const POLICY_PEERS: usize = 1_000;
/// Ports of a rule.
pub const POLICY_PORTS: usize = 1_000;

/// Metrics of a HorizontalPodAutoscaler: each is computed over all pods of the target.
pub const METRICS: usize = 100;
/// Scaling policies of one direction: each is asked about all recent changes.
pub const SCALING_POLICIES: usize = 100;

/// Access modes of a volume or claim, of which there are four: a claim's are compared with those of
/// each volume.
pub const ACCESS_MODES: usize = 100;

/// Taints of a Node: each is compared with a pod's tolerations.
pub const TAINTS: usize = 1_000;
/// Terms of a StorageClass's topologies: each is asked about each node.
pub const TOPOLOGIES: usize = 1_000;
/// CSI drivers of a node.
pub const DRIVERS: usize = 1_000;

/// Groups of a user in an access review: each is looked for among bindings.
pub const GROUPS: usize = 1_000;
/// Audiences of a token, and in a token review.
pub const AUDIENCES: usize = 1_000;

/// Reports a list of more items than it may have. The caller validates the items all the same: a
/// stored list of more items may stay or shrink ([`Faults::forgive`]).
pub fn at_most(fields: &Fields, list: &str, most: usize, at: &FieldPath<'_>, faults: &mut Faults) {
    let found = items(fields, list).len();
    if found > most {
        faults.too_many(&at.field(list), found, most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn faults(count: usize) -> Faults {
        let fields = json!({ "list": vec![json!({}); count] });
        let mut faults = Faults::default();
        let at = FieldPath::root("spec");
        at_most(fields.as_object().unwrap(), "list", 3, &at, &mut faults);
        faults
    }

    #[test]
    fn a_list_has_no_more_items_than_its_limit() {
        assert!(faults(3).is_empty());
        let found = faults(4);
        let all: Vec<_> = found.found().collect();
        let words = "Too many: 4: must have at most 3 items";
        assert_eq!(all, [("spec.list", "FieldValueTooMany", words)]);
    }

    #[test]
    fn a_list_that_was_stored_before_there_was_a_limit_may_stay_and_shrink_but_not_grow() {
        for (now, before, left) in [(5, 5, 0), (4, 5, 0), (6, 5, 1), (4, 3, 1), (4, 0, 1)] {
            let mut all = faults(now);
            all.forgive(&faults(before));
            assert_eq!(all.found().count(), left, "{before} became {now}");
        }
    }

    /// The faults of lists of so many items, each in an item of another list.
    fn faults_below(counts: &[usize]) -> Faults {
        let (mut faults, at) = (Faults::default(), FieldPath::root("rules"));
        for (number, count) in counts.iter().enumerate() {
            let fields = json!({ "list": vec![json!({}); *count] });
            let at = at.index(number);
            at_most(fields.as_object().unwrap(), "list", 3, &at, &mut faults);
        }
        faults
    }

    #[test]
    fn a_long_list_may_move_with_the_item_in_which_it_is_and_no_other_becomes_as_long() {
        for (now, before, left) in [
            (&[5][..], &[1, 5][..], 0),
            (&[1, 1, 5], &[1, 5], 0),
            (&[4, 5], &[5, 4], 0),
            (&[6], &[1, 5], 1),
            (&[5, 5], &[1, 5], 1),
            (&[5, 5], &[4, 5], 1),
            (&[5, 4], &[1, 5], 2),
        ] {
            let mut all = faults_below(now);
            all.forgive(&faults_below(before));
            assert_eq!(all.found().count(), left, "{before:?} became {now:?}");
        }
    }

    #[test]
    fn long_lists_are_forgiven_without_other_faults() {
        let with_another = || {
            let mut faults = faults(4);
            faults.forbidden(&FieldPath::root("spec"), "it is");
            faults
        };
        let mut all = with_another();
        all.forgive_long(&with_another());
        let left: Vec<_> = all.found().collect();
        assert_eq!(left, [("spec", "FieldValueForbidden", "Forbidden: it is")]);
    }
}
