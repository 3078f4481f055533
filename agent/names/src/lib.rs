//! The cluster's names, answered on the node itself.
//!
//! Enter by [`serve`], which answers from what the node knows of services (`agent_proxy::View`).
//! [`zone`] finds what a name means (pure); [`answer`] makes messages of it (pure). The server
//! listens, asks the machine's own servers for all other names, and remembers their answers for a
//! while; clients have shares, so that none takes what others need.
//!
//! Tasks: [`serve`] runs until it is dropped, with one task for each socket, question and
//! connection. There are no channels.

pub mod answer;
mod forward;
mod server;
mod shares;
pub mod zone;

#[doc(hidden)]
pub use forward::heard;
pub use server::{Settings, serve};
