//! `DefaultStorageClass`: claims that name no class get the class marked as default.

use crate::plugin::{Admitted, Operation, Plugin, Request};
use master_client::BoxFuture;
use master_schema::error::ApiError;
use master_schema::object::{meta_text, metadata};
use master_schema::validate::{Fields, get, object, text};
use serde_json::Value;

const DEFAULT: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];
/// The deprecated annotation that names a claim's class; an empty value counts as set.
const OLD: &str = "volume.beta.kubernetes.io/storage-class";

/// The plugin.
#[derive(Debug)]
pub(crate) struct DefaultStorageClass;

impl Plugin for DefaultStorageClass {
    fn concerns(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Create && request.writes("", "persistentvolumeclaims")
    }

    fn admit<'a>(
        &'a self,
        request: &'a Request<'a>,
        claim: &'a mut Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let old =
                object(metadata(claim), "annotations").is_some_and(|all| all.contains_key(OLD));
            let named =
                object(claim, "spec").is_some_and(|spec| !get(spec, "storageClassName").is_null());
            if old || named {
                return Ok(());
            }
            let classes = request.stored("storageclasses.storage.k8s.io", "").await?;
            let Some(name) = newest(classes.iter().map(|(_, fields)| fields), &DEFAULT) else {
                return Ok(());
            };
            if let Some(spec) = claim.get_mut("spec").and_then(Value::as_object_mut) {
                spec.insert("storageClassName".to_owned(), name.into());
            }
            Ok(())
        })
    }
}

/// The class marked as default by an annotation; of several, the youngest, then the first by name
/// (upstream).
pub(super) fn newest<'a>(
    classes: impl Iterator<Item = &'a Fields>,
    marks: &[&str],
) -> Option<String> {
    let marked = |class: &&Fields| {
        let annotations = object(metadata(class), "annotations");
        annotations.is_some_and(|all| marks.iter().any(|mark| text(all, mark) == "true"))
    };
    let mut found: Vec<(&str, &str)> = classes
        .filter(marked)
        .map(|class| {
            (
                meta_text(class, "creationTimestamp"),
                meta_text(class, "name"),
            )
        })
        .collect();
    found.sort_by(|a, b| b.0.cmp(a.0).then(a.1.cmp(b.1)));
    found.first().map(|(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn of_several_defaults_the_youngest_counts() {
        let class = |name: &str, born: &str, mark: &str| {
            json!({"metadata": {"name": name, "creationTimestamp": born, "annotations": {DEFAULT[0]: mark}}})
                .as_object()
                .cloned()
                .unwrap()
        };
        let classes = [
            class("old", "2026-01-01T00:00:00Z", "true"),
            class("b", "2026-02-01T00:00:00Z", "true"),
            class("a", "2026-02-01T00:00:00Z", "true"),
            class("no", "2026-03-01T00:00:00Z", "false"),
        ];
        assert_eq!(newest(classes.iter(), &DEFAULT).as_deref(), Some("a"));
        assert_eq!(newest(classes[3..].iter(), &DEFAULT), None);
    }
}
