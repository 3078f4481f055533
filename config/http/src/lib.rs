//! HTTP/1.1 over a stream that the caller opened: one connection, each time and each size bounded.
//! Agent and master use this one client for single requests.
//!
//! No I/O: stream, clock and executor are the caller's ([`hyper::rt`]). Beside it stand the agent's
//! pool of connections to the master's API (`agent/enroll`), its calls to containerd and to CSI
//! drivers, which are gRPC over HTTP/2 (`agent/grpc`), and the API's requests to nodes, whose
//! bodies stream both ways (`master/verbs`).
//!
//! Guarantees: a redirect is returned like any other answer, and never followed; no more of an
//! answer is read than [`Limits`] allow; the connection ends when the [`Connection`] and the last
//! [`Body`] of it are dropped.
//!
//! Enter by [`Connection::open`]; [`first_to_answer`] chooses the address of a name to connect to,
//! by the caller's clock and sockets. [`Challenge`] is what a server asks of a client that sent no
//! credentials (`WWW-Authenticate`); [`percent`] is the encoding of texts in paths and queries.

mod addresses;
mod challenge;
mod connection;
mod error;
pub mod percent;

pub use addresses::{ATTEMPT_DELAY, CONNECT_LIMIT, MAX_ADDRESSES, first_to_answer};
pub use challenge::Challenge;
pub use connection::{Body, Connection, Driver, Limits};
pub use error::HttpError;
