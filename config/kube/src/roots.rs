//! How a node tells which of the cluster's roots it is ready for: a condition that the agent sets, and that the rotation of
//! the root waits for.

use crate::k8s_openapi::api::core::v1::NodeCondition;

/// The condition's type: holds where the master is known by a root that this machine is not ready for.
pub const ROOT_UNKNOWN: &str = "RootUnknown";

/// What the condition says where it doesn't hold: every root is pinned here, and the node's certificate leads to it.
pub fn ready_for<T: AsRef<str>>(pins: &[T]) -> String {
    let pins: Vec<&str> = pins.iter().map(AsRef::as_ref).collect();
    format!(
        "ready for every root that the master is known by: {}",
        pins.join(", ")
    )
}

/// Whether a node's conditions say that it is ready for the root with this pin.
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
    fn ready_is_who_says_so_of_this_root() {
        let told = |status: &str, message: String| NodeCondition {
            type_: ROOT_UNKNOWN.to_owned(),
            status: status.to_owned(),
            message: Some(message),
            ..NodeCondition::default()
        };
        let both = ready_for(&["sha256:aa", "sha256:bb"]);
        assert!(is_ready_for(&[told("False", both.clone())], "sha256:bb"));
        assert!(!is_ready_for(
            &[told("False", ready_for(&["sha256:aa"]))],
            "sha256:bb"
        ));
        assert!(!is_ready_for(&[told("True", both)], "sha256:bb"));
        assert!(!is_ready_for(&[], "sha256:bb"));
    }
}
