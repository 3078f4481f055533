//! The cluster's names, answered on the node itself.
//!
//! Enter by [`Names`], the name server of a node from its agent's start on: until the master has
//! sent the services, it answers by what an earlier agent saved ([`snapshot`]), then by what the
//! node knows of services (`agent_proxy::View`). [`serve`] is its server alone. [`zone`] finds what
//! a name means by the [`index`] of a state, and [`answer`] makes messages of it (all pure). The
//! server listens, asks the machine's own servers for all other names, and remembers their answers
//! for a while; clients have shares, so that none takes what others need.
//!
//! Tasks: [`Names::run`] runs until it is dropped, with one task for each socket, question and
//! connection. A `watch` has the addresses at which it answers, another the machine's addresses.

pub mod answer;
mod forward;
pub mod index;
mod life;
mod server;
mod shares;
pub mod snapshot;
pub mod zone;

#[doc(hidden)]
pub use forward::heard;
pub use life::{Names, Options};
pub use server::{Settings, serve};
pub use snapshot::OwnAddress;
