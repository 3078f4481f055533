//! The cluster's names, answered on the node itself.
//!
//! [`zone`] finds what a name means (pure); [`answer`] makes messages of it (pure); [`server`]
//! listens, asks the machine's own servers for all other names, and remembers their answers for a
//! while; [`shares`] keeps one client from taking what others need (pure).

pub mod answer;
mod forward;
mod server;
mod shares;
pub mod zone;

#[doc(hidden)]
pub use forward::heard;
pub use server::{PORT_OF_SERVICE, Settings, serve};
