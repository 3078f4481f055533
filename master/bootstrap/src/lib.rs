//! The discovery endpoint: stores one signed document per cluster with the addresses of its
//! masters, and serves it to every client. The endpoint is not trusted: machines verify the
//! signature (`config/discovery`).
//!
//! `serve` has the listener (one task per connection, all owned by it), `answer` the HTTP API,
//! `clusters` the records in a `master/store` (one task per new record, until it is written),
//! `rate` the request rates. [`Client`] is the client side, for the master and the admin's tool.
//! Start at [`serve`]; the program is `discovery`.

mod answer;
mod client;
mod clusters;
mod rate;
mod refusal;
mod serve;

pub use answer::{Created, Endpoint, Rates};
pub use client::{Answer, Client, ClientError};
pub use clusters::{Clusters, ClustersError, DEFAULT_CLUSTERS};
pub use rate::Rate;
pub use refusal::Refusal;
pub use serve::{Limits, serve};
