//! The ranges of pod addresses that a Node names.

use config_kube::k8s_openapi::api::core::v1::Node;
use config_model::format::Cidr;

/// The ranges in `spec.podCIDRs`; none where the master has not given the Node any yet.
///
/// # Errors
/// One of them is no range; the message names it.
pub fn ranges(node: &Node) -> Result<Vec<Cidr>, String> {
    let all = node.spec.as_ref().and_then(|spec| spec.pod_cidrs.as_ref());
    all.into_iter()
        .flatten()
        .map(|text| {
            text.parse::<Cidr>()
                .map_err(|error| format!("podCIDR {text:?}: {error}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_names_its_ranges_or_none() {
        let of = |spec: serde_json::Value| {
            ranges(&serde_json::from_value(json!({"spec": spec})).unwrap())
        };
        assert_eq!(of(json!({})), Ok(vec![]));
        let both = json!({"podCIDRs": ["10.1.0.0/24", "fd00::/64"]});
        assert_eq!(of(both).unwrap().len(), 2);
        assert!(
            of(json!({"podCIDRs": ["ten"]}))
                .unwrap_err()
                .contains("\"ten\"")
        );
    }
}
