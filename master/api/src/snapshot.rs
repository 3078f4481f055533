//! `/snapshot`: the whole store as one file, for those who may list every object.
//! `kubectl get --raw /snapshot > FILE` makes a backup.
//!
//! The file holds every object, Secrets included, at one revision, and is made while the server
//! runs: it shares the objects with the store and buffers one piece of the file. If the download
//! breaks off, `master restore` refuses the file.

use crate::state::ApiServer;
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use master_client::{Body, UserInfo};
use master_objects::store_error;
use master_schema::error::{ApiError, Reason};
use master_store::SnapshotBytes;
use master_verbs::authorize;
use std::convert::Infallible;

/// Answers with the store as a file, to a caller that may list every object. A right to the path
/// alone is not enough: roles that show metrics and health allow all paths.
pub(crate) async fn answer(api: &ApiServer, user: &UserInfo) -> Result<Response<Body>, ApiError> {
    authorize::every_object(&api.inner.authorizer, user).await?;
    let permit = api
        .inner
        .snapshots
        .clone()
        .try_acquire_owned()
        .map_err(|error| {
            ApiError::new(
                Reason::TooManyRequests,
                format!("other snapshots are being taken: {error}"),
            )
            .retry_after(5)
        })?;
    let everything = api.inner.store.everything().await.map_err(store_error)?;
    let pieces = SnapshotBytes::new(everything).map_err(|error| {
        ApiError::new(
            Reason::InternalError,
            format!("a snapshot cannot be begun: {error}"),
        )
    })?;
    let frames = stream::iter(pieces.map(move |piece: Bytes| {
        // Held until the last piece is read.
        let _held = &permit;
        Ok::<_, Infallible>(Frame::data(piece))
    }));
    let body = StreamBody::new(frames)
        .map_err(|never: Infallible| match never {})
        .boxed_unsync();
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
