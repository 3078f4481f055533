//! Options of a deletion: the fields of `DeleteOptions`.

use master_schema::error::{ApiError, Reason};
use master_schema::validate::{Faults, FieldPath};
use serde_json::Value;

/// The group of `DeleteOptions`, as faults name it.
const META: &str = "meta.k8s.io";

/// What happens to the dependents of the deleted object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// They lose their owner.
    Orphan,
    /// They are deleted after it.
    Background,
    /// They are deleted before it.
    Foreground,
}

const POLICIES: [(&str, Policy); 3] = [
    ("Foreground", Policy::Foreground),
    ("Background", Policy::Background),
    ("Orphan", Policy::Orphan),
];

/// Validated options of a deletion.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Options {
    /// Grace period in seconds.
    pub grace: Option<i64>,
    /// Delete only the object with this UID.
    pub uid: Option<String>,
    /// Delete only the object at this resource version.
    pub version: Option<String>,
    /// Whether this is a dry run.
    pub dry_run: bool,
    /// `propagationPolicy`: what happens to dependents; `None` if the request has none.
    pub policy: Option<Policy>,
    /// `orphanDependents`, the deprecated form of the policy.
    pub orphan: Option<bool>,
}

impl Options {
    /// Parses `DeleteOptions`.
    ///
    /// # Errors
    /// It is another kind, or has faults: all of them at once.
    pub fn parse(value: &Value) -> Result<Self, ApiError> {
        let word = |pointer: &str| {
            value
                .pointer(pointer)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        match word("/kind").as_deref() {
            None | Some("" | "DeleteOptions") => {}
            Some(_) => {
                let text = "decoded object cannot be converted to DeleteOptions";
                return Err(ApiError::new(Reason::BadRequest, text));
            }
        }
        let field = |key: &str| value.get(key).unwrap_or(&Value::Null);
        let orphan = field("orphanDependents").as_bool();
        let policy = field("propagationPolicy");
        let dry_run = field("dryRun").as_array().map_or(&[][..], Vec::as_slice);
        let mut faults = Faults::default();
        if orphan.is_some() && !policy.is_null() {
            let at = FieldPath::root("propagationPolicy");
            faults.invalid(
                &at,
                policy,
                "orphanDependents and deletionPropagation cannot be both set",
            );
        }
        if !policy.is_null() {
            let known = ["Foreground", "Background", "Orphan", "nil"];
            faults.one_of(&FieldPath::root("propagationPolicy"), policy, &known);
        }
        for asked in dry_run {
            faults.one_of(&FieldPath::root("dryRun"), asked, &["All"]);
        }
        let unsafely = field("ignoreStoreReadErrorWithClusterBreakingPotential");
        if unsafely == &Value::Bool(true) {
            let at = FieldPath::root("ignoreStoreReadErrorWithClusterBreakingPotential");
            faults.invalid(
                &at,
                unsafely,
                "is not supported: what this server stores it can read",
            );
        }
        faults.into_error(META, "DeleteOptions", "")?;
        let policy = POLICIES
            .iter()
            .find(|(name, _)| policy == name)
            .map(|(_, policy)| *policy);
        Ok(Self {
            grace: number(field("gracePeriodSeconds"))?,
            uid: word("/preconditions/uid"),
            version: word("/preconditions/resourceVersion"),
            dry_run: !dry_run.is_empty(),
            policy,
            orphan,
        })
    }
}

fn number(value: &Value) -> Result<Option<i64>, ApiError> {
    if value.is_null() {
        return Ok(None);
    }
    value.as_i64().map(Some).ok_or_else(|| {
        ApiError::new(
            Reason::BadRequest,
            format!("gracePeriodSeconds: expected a whole number, found {value}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn options_are_read_and_all_their_faults_reported_at_once() {
        let options = Options::parse(&json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 3, "propagationPolicy": "Orphan",
            "preconditions": {"uid": "u"}, "dryRun": ["All"],
        }));
        let options = options.unwrap();
        assert_eq!(
            (options.grace, options.policy, options.dry_run),
            (Some(3), Some(Policy::Orphan), true)
        );
        let bad = Options::parse(
            &json!({"orphanDependents": true, "propagationPolicy": "X", "dryRun": ["Some"]}),
        );
        let bad = bad.unwrap_err();
        assert_eq!(
            (bad.code, bad.details.causes.len()),
            (422, 3),
            "{}",
            bad.message
        );
        let forced = json!({"ignoreStoreReadErrorWithClusterBreakingPotential": true});
        assert_eq!(Options::parse(&forced).unwrap_err().code, 422);
        assert_eq!(
            Options::parse(&json!({"kind": "Pod"})).unwrap_err().code,
            400
        );
        assert_eq!(
            Options::parse(&json!({"gracePeriodSeconds": "x"}))
                .unwrap_err()
                .code,
            400
        );
    }
}
