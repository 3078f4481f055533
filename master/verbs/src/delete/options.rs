//! Options of a deletion: the body's `DeleteOptions`, or the query's parameters.

use crate::Call;
use master_client::Body;
use master_objects::deletion::Options;
use master_schema::error::ApiError;
use master_wire::path::Query;
use serde_json::{Value, json};

/// Reads a request's options. With an empty body, the query's parameters count.
pub(super) async fn read(call: &Call, content: Body) -> Result<Options, ApiError> {
    let bytes = call.bytes(content).await?;
    let value = if bytes.is_empty() {
        from_query(&call.query)?
    } else {
        call.decode(&bytes)?.value
    };
    let mut options = Options::parse(&value)?;
    options.dry_run |= call.dry_run()?;
    Ok(options)
}

fn from_query(query: &Query) -> Result<Value, ApiError> {
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
