//! Reads of stored objects, and the store's errors in the words of the API.

use config_errors::chain;
use master_schema::error::{ApiError, Cause, Reason};
use master_store::{Entry, ListQuery, Reader, StoreError};

/// The newest entries below a prefix.
///
/// # Errors
/// The store cannot be read.
pub async fn list(reader: &dyn Reader, prefix: &str) -> Result<Vec<Entry>, ApiError> {
    let query = ListQuery {
        prefix: prefix.to_owned(),
        ..ListQuery::default()
    };
    Ok(reader.list(query).await.map_err(store_error)?.entries)
}

/// A store's error, where no word of the kind applies.
pub fn store_error(error: StoreError) -> ApiError {
    match error {
        StoreError::Busy => ApiError::new(
            Reason::TooManyRequests,
            "too many writes are waiting, try again",
        )
        .retry_after(1),
        StoreError::Compacted { asked, floor } => ApiError::new(
            Reason::Expired,
            format!(
                "The resourceVersion for the provided list or watch is too old: {asked} ({floor})"
            ),
        ),
        StoreError::Future { asked, head } => {
            let text = format!("Too large resource version: {asked}, current: {head}");
            let mut error = ApiError::new(Reason::Timeout, text).retry_after(1);
            error.details.causes = vec![Cause {
                reason: "ResourceVersionTooLarge".into(),
                message: "Too large resource version".to_owned(),
                field: String::new(),
            }];
            error
        }
        behind @ StoreError::Behind { .. } => {
            ApiError::new(Reason::ServiceUnavailable, behind.to_string()).retry_after(1)
        }
        StoreError::Invalid(text) => ApiError::new(Reason::RequestEntityTooLarge, text),
        StoreError::Closed => {
            ApiError::new(Reason::ServiceUnavailable, "the server is shutting down")
        }
        StoreError::Full(why) => ApiError::new(
            Reason::InternalError,
            format!("the store takes no more writes: {why}"),
        ),
        other @ (StoreError::Conflict { .. }
        | StoreError::Folder(_)
        | StoreError::Locked(_)
        | StoreError::File { .. }
        | StoreError::Corrupt(_)) => {
            tracing::error!(error = chain(&other), "the store failed");
            ApiError::new(Reason::InternalError, format!("the store failed: {other}"))
        }
    }
}
