//! How containerd is asked: a channel to its socket, requests with limits, and errors by class.
//!
//! Enter by [`channel`]. [`request`], [`unlimited`] and [`leased`] make the requests for all of
//! containerd's services, [`failed`] turns a status into an [`Error`]. No tasks; the channel
//! connects when it is used.

mod connection;
mod error;

pub use connection::{CALL_LIMIT, channel, failed, is_absent, leased, request, settled, unlimited};
pub use error::{Error, ErrorClass, Pending};
