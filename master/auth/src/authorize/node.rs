//! What a node may access: itself, its lease, objects bound to it, and objects that its pods
//! reference (upstream: the Node authorizer). The admission plugin `NodeRestriction` decides what
//! it may write into them.

use super::graph::{Graph, Kind};
use super::question::Question;
use crate::nodes::Nodes;
use config_kube::identity;
use master_rbac::Resource;
use std::sync::LazyLock;

/// The rules that apply to every node.
static RULES: LazyLock<Vec<master_rbac::Rule>> = LazyLock::new(master_rbac::defaults::node_rules);

/// Allowed, or the reason why not.
type Answer = Result<(), String>;

/// Whether the answer depends on which objects belong to the node.
pub(super) fn needs_graph(wanted: &Resource<'_>) -> bool {
    match wanted.group {
        "" => matches!(
            wanted.resource,
            "secrets"
                | "configmaps"
                | "persistentvolumeclaims"
                | "persistentvolumes"
                | "serviceaccounts"
                | "pods"
        ),
        "resource.k8s.io" => matches!(wanted.resource, "resourceclaims" | "resourceslices"),
        "storage.k8s.io" => wanted.resource == "volumeattachments",
        _ => false,
    }
}

/// Whether the request is for all pods: network policies of any node may select any pod.
pub(super) fn is_list_of_pods(verb: &str, wanted: &Resource<'_>) -> bool {
    matches!(verb, "list" | "watch")
        && (wanted.group, wanted.resource, wanted.subresource) == ("", "pods", "")
        && wanted.name.is_empty()
}

fn refused<T>(why: &str) -> Result<T, String> {
    Err(why.to_owned())
}

/// Decides what depends on names alone, and the rest by the rules of every node.
pub(super) fn own(
    nodes: &dyn Nodes,
    node: &str,
    verb: &str,
    wanted: &Resource<'_>,
    question: &Question<'_>,
) -> Answer {
    match (wanted.group, wanted.resource) {
        ("", "nodes") => own_node(nodes, node, verb, wanted),
        ("coordination.k8s.io", "leases") => own_lease(node, verb, wanted),
        ("storage.k8s.io", "csinodes") => own_csi_node(node, verb, wanted),
        _ if RULES.iter().any(|rule| rule.allows(&question.request)) => Ok(()),
        _ => refused(""),
    }
}

fn own_node(nodes: &dyn Nodes, node: &str, verb: &str, wanted: &Resource<'_>) -> Answer {
    match (wanted.subresource, verb) {
        // Stricter than upstream, where every node registers itself. Admission checks the name.
        ("", "create") => nodes.may_register(node),
        // Only its own, checked here and not only in admission: the error of a refused patch may
        // quote the object.
        ("" | "status", "update" | "patch") | ("", "get" | "list" | "watch")
            if wanted.name == node =>
        {
            Ok(())
        }
        ("" | "status", "update" | "patch") => Err(format!(
            "node '{node}' is not allowed to modify node '{}'",
            wanted.name
        )),
        ("", "get" | "list" | "watch") if wanted.name.is_empty() => Err(format!(
            "node '{node}' cannot read all nodes, only its own Node object"
        )),
        ("", "get" | "list" | "watch") => Err(format!(
            "node '{node}' cannot read '{}', only its own Node object",
            wanted.name
        )),
        _ => refused(""),
    }
}

fn own_lease(node: &str, verb: &str, wanted: &Resource<'_>) -> Answer {
    if !matches!(verb, "get" | "create" | "update" | "patch" | "delete") {
        return refused("can only get, create, update, patch, or delete a node lease");
    }
    if wanted.namespace != identity::NODE_LEASE_NAMESPACE {
        let namespace = identity::NODE_LEASE_NAMESPACE;
        return Err(format!(
            "can only access leases in the {namespace:?} system namespace"
        ));
    }
    // Admission checks the name of a new one.
    if verb != "create" && wanted.name != node {
        return refused("can only access node lease with the same name as the requesting node");
    }
    Ok(())
}

fn own_csi_node(node: &str, verb: &str, wanted: &Resource<'_>) -> Answer {
    if !matches!(verb, "get" | "create" | "update" | "patch" | "delete") {
        return refused("can only get, create, update, patch, or delete a CSINode");
    }
    if !wanted.subresource.is_empty() {
        return refused("cannot authorize CSINode subresources");
    }
    if verb != "create" && wanted.name != node {
        return refused("can only access CSINode with the same name as the requesting node");
    }
    Ok(())
}

/// Decides by what the pods on the node reference.
pub(super) fn related(
    graph: &Graph,
    node: &str,
    verb: &str,
    wanted: &Resource<'_>,
    of_node: Option<&str>,
) -> Answer {
    let Resource {
        resource,
        subresource,
        namespace,
        name,
        ..
    } = *wanted;
    let reached = |kind| relation(node, name, graph.reaches(node, kind, namespace, name));
    match resource {
        "secrets" => read_namespaced(verb, wanted).and_then(|()| reached(Kind::Secret)),
        "configmaps" => read_namespaced(verb, wanted).and_then(|()| reached(Kind::ConfigMap)),
        "persistentvolumeclaims" if subresource == "status" => match verb {
            "update" | "patch" => reached(Kind::Claim),
            _ => refused("can only get/update/patch this type"),
        },
        "persistentvolumeclaims" => read_one(verb, wanted).and_then(|()| reached(Kind::Claim)),
        "persistentvolumes" => {
            read_one(verb, wanted).and_then(|()| relation(node, name, graph.has_volume(node, name)))
        }
        "resourceclaims" => read_one(verb, wanted).and_then(|()| reached(Kind::ResourceClaim)),
        "volumeattachments" => read_one(verb, wanted)
            .and_then(|()| relation(node, name, graph.has_attachment(node, name))),
        "serviceaccounts" => match (subresource, verb) {
            ("", "get") => reached(Kind::ServiceAccount),
            ("token", "create") if !name.is_empty() => reached(Kind::ServiceAccount),
            ("", _) => refused("can only get individual service accounts"),
            ("token", _) => refused("can only create tokens for individual service accounts"),
            _ => refused("can only create token subresource of serviceaccount"),
        },
        "resourceslices" => slice(graph, node, verb, wanted, of_node),
        _ => pod(graph, node, verb, wanted, of_node),
    }
}

fn relation(node: &str, name: &str, found: bool) -> Answer {
    if name.is_empty() {
        return refused("No Object name found");
    }
    if found {
        return Ok(());
    }
    Err(format!(
        "no relationship found between node '{node}' and this object"
    ))
}

fn read_one(verb: &str, wanted: &Resource<'_>) -> Answer {
    if verb != "get" {
        return refused("can only get individual resources of this type");
    }
    if !wanted.subresource.is_empty() {
        return refused("cannot get subresource");
    }
    Ok(())
}

fn read_namespaced(verb: &str, wanted: &Resource<'_>) -> Answer {
    if !matches!(verb, "get" | "list" | "watch") {
        return refused("can only read resources of this type");
    }
    if !wanted.subresource.is_empty() {
        return refused("cannot read subresource");
    }
    if wanted.namespace.is_empty() {
        return refused("can only read namespaced object of this type");
    }
    Ok(())
}

fn slice(
    graph: &Graph,
    node: &str,
    verb: &str,
    wanted: &Resource<'_>,
    of_node: Option<&str>,
) -> Answer {
    if !wanted.subresource.is_empty() {
        return refused("cannot authorize ResourceSlice subresources");
    }
    match verb {
        // Admission checks the node's name in it.
        "create" => Ok(()),
        "get" | "update" | "patch" | "delete" => {
            relation(node, wanted.name, graph.has_slice(node, wanted.name))
        }
        "list" | "watch" | "deletecollection" if of_node == Some(node) => Ok(()),
        "list" | "watch" | "deletecollection" => refused(
            "can only list/watch/deletecollection resourceslices with nodeName field selector",
        ),
        _ => refused(
            "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, \
             deletecollection",
        ),
    }
}

fn pod(
    graph: &Graph,
    node: &str,
    verb: &str,
    wanted: &Resource<'_>,
    of_node: Option<&str>,
) -> Answer {
    let Resource {
        subresource,
        namespace,
        name,
        ..
    } = *wanted;
    let bound = || relation(node, name, graph.has_pod(node, namespace, name));
    match (subresource, verb) {
        ("", "get") => bound(),
        ("", "list" | "watch") if of_node == Some(node) => Ok(()),
        ("", "list" | "watch") if !name.is_empty() => bound(),
        ("", "list" | "watch") => {
            refused("can only list/watch pods with spec.nodeName field selector")
        }
        // Admission checks which pods.
        ("", "delete") | ("status", "update" | "patch") | ("eviction", "create") => Ok(()),
        _ => refused(""),
    }
}
