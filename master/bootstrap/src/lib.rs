//! The discovery endpoint: keeps, for each cluster, one signed document that says where its masters are, and hands it to whoever
//! asks. It decides nothing: machines believe the signature, not the endpoint (`config/discovery`).
//!
//! `serve` has the listener (one task a connection, all owned by it), `answer` the four paths, `book` what is kept, in the store
//! of `master/store`, `rate` what an address may ask. [`Client`] is the other side, for the master and the admin's tool.
//! Enter by [`serve`]; the program is `discovery`.

mod answer;
mod book;
mod client;
mod rate;
mod refusal;
mod serve;

pub use answer::{Created, Endpoint, Rates};
pub use book::{Book, BookError, DEFAULT_CLUSTERS};
pub use client::{Answer, Client, ClientError};
pub use rate::Rate;
pub use refusal::Refusal;
pub use serve::{Limits, serve};
