//! Root rotation: the node condition with which the agent reports the roots that it accepts, and
//! for which the rotation waits.

use crate::k8s_openapi::api::core::v1::NodeCondition;

/// The condition's type: true while the master uses a root that this machine does not accept.
pub const ROOT_UNKNOWN: &str = "RootUnknown";

/// The message if the condition is false: every root is pinned here, and the node's certificate
/// chains to it.
pub fn ready_for<T: AsRef<str>>(pins: &[T]) -> String {
    let pins: Vec<&str> = pins.iter().map(AsRef::as_ref).collect();
    format!(
        "ready for every root that the master is known by: {}",
        pins.join(", ")
    )
}

/// Whether a node's conditions report that it accepts the root with this pin.
pub fn is_ready_for(conditions: &[NodeCondition], pin: &str) -> bool {
    let own = conditions
        .iter()
        .find(|condition| condition.type_ == ROOT_UNKNOWN);
    own.is_some_and(|own| {
        own.status == "False"
            && own
                .message
                .as_deref()
                .is_some_and(|text| text.contains(pin))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_ready_for_a_root_that_its_condition_names() {
        let condition = |status: &str, message: String| NodeCondition {
            type_: ROOT_UNKNOWN.to_owned(),
            status: status.to_owned(),
            message: Some(message),
            ..NodeCondition::default()
        };
        let both = ready_for(&["sha256:aa", "sha256:bb"]);
        assert!(is_ready_for(
            &[condition("False", both.clone())],
            "sha256:bb"
        ));
        assert!(!is_ready_for(
            &[condition("False", ready_for(&["sha256:aa"]))],
            "sha256:bb"
        ));
        assert!(!is_ready_for(&[condition("True", both)], "sha256:bb"));
        assert!(!is_ready_for(&[], "sha256:bb"));
    }
}
