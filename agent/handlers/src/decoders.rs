//! Decoders of this room that only its own functions call, for the fuzz targets of `tests/fuzz`.

use bytes::Bytes;

/// The number of the status in the body of a server's answer (`grpc.health.v1.Health/Check`);
/// `None` for what is no such body.
pub fn health(body: Bytes) -> Option<i32> {
    crate::grpc::parse(body)
}
