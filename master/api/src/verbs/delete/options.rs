//! Options of a deletion: the body's `DeleteOptions`, or the query's parameters.

use crate::verbs::Call;
use crate::verbs::page::META;
use master_client::Body;
use master_schema::error::{ApiError, Reason};
use master_schema::validate::{At, Faults};
use serde_json::{Value, json};

/// What happens to the dependents of the deleted object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
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
pub(crate) struct Options {
    /// Grace period in seconds.
    pub(super) grace: Option<i64>,
    /// Delete only the object with this UID.
    pub(super) uid: Option<String>,
    /// Delete only the object at this resource version.
    pub(super) version: Option<String>,
    /// Whether this is a dry run.
    pub(in crate::verbs) dry_run: bool,
    /// What happens to dependents, if the request says so.
    pub(super) policy: Option<Policy>,
    /// The deprecated option for it.
    pub(super) orphan: Option<bool>,
}

impl Options {
    /// Reads a request's options. With an empty body, the query's parameters count.
    pub(super) async fn read(call: &Call, content: Body) -> Result<Self, ApiError> {
        let bytes = call.bytes(content).await?;
        let value = if bytes.is_empty() {
            from_query(call)?
        } else {
            call.decode(&bytes)?.value
        };
        let mut options = Self::parse(&value)?;
        options.dry_run |= call.dry_run()?;
        Ok(options)
    }

    /// Parses `DeleteOptions`.
    pub(in crate::verbs) fn parse(value: &Value) -> Result<Self, ApiError> {
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
            let at = At::root("propagationPolicy");
            faults.invalid(
                &at,
                policy,
                "orphanDependents and deletionPropagation cannot be both set",
            );
        }
        if !policy.is_null() {
            let known = ["Foreground", "Background", "Orphan", "nil"];
            faults.one_of(&At::root("propagationPolicy"), policy, &known);
        }
        for asked in dry_run {
            faults.one_of(&At::root("dryRun"), asked, &["All"]);
        }
        let unsafely = field("ignoreStoreReadErrorWithClusterBreakingPotential");
        if unsafely == &Value::Bool(true) {
            let at = At::root("ignoreStoreReadErrorWithClusterBreakingPotential");
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

fn from_query(call: &Call) -> Result<Value, ApiError> {
    let query = &call.query;
    let mut value = json!({});
    if let Some(grace) = query.number("gracePeriodSeconds")? {
        value["gracePeriodSeconds"] = grace.into();
    }
    if let Some(orphan) = query.switch("orphanDependents") {
        value["orphanDependents"] = orphan.into();
    }
    let unsafely = "ignoreStoreReadErrorWithClusterBreakingPotential";
    if query.on(unsafely) {
        value[unsafely] = true.into();
    }
    if !query.get("propagationPolicy").is_empty() {
        value["propagationPolicy"] = query.get("propagationPolicy").into();
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

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
