//! How strategic merge patch merges a field.

use serde_json::Value;

/// How a strategic merge patch merges a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Merge {
    /// The patch's list replaces the object's; objects are merged field by field.
    Atomic,
    /// Items are objects with this key, merged one by one.
    Key(Box<str>),
    /// Items are simple values, each at most once.
    Set,
    /// The patch's object replaces the object's.
    Replace,
}

impl Merge {
    /// Reads it from the extensions of a field's schema, with which upstream publishes
    /// `patchStrategy` and `patchMergeKey` of its types.
    pub(super) fn of(schema: &Value) -> Self {
        let text = |key: &str| schema.get(key).and_then(Value::as_str);
        let strategies = text("x-kubernetes-patch-strategy").unwrap_or_default();
        for strategy in strategies.split(',') {
            match strategy {
                "merge" => {
                    return text("x-kubernetes-patch-merge-key")
                        .map_or(Self::Set, |key| Self::Key(key.into()));
                }
                "replace" => return Self::Replace,
                // `retainKeys` is a directive for the content of an item; it doesn't change how
                // items are found.
                _ => {}
            }
        }
        Self::Atomic
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_strategy_is_known_by_its_extensions() {
        let of = |strategy: &str, key: Option<&str>| {
            Merge::of(&json!({
                "x-kubernetes-patch-strategy": strategy, "x-kubernetes-patch-merge-key": key,
            }))
        };
        assert_eq!(of("merge", Some("name")), Merge::Key("name".into()));
        assert_eq!(
            of("merge,retainKeys", Some("name")),
            Merge::Key("name".into())
        );
        assert_eq!(of("merge", None), Merge::Set);
        assert_eq!(of("replace", None), Merge::Replace);
        assert_eq!(of("retainKeys", None), Merge::Atomic);
        assert_eq!(Merge::of(&json!({"type": "array"})), Merge::Atomic);
    }
}
