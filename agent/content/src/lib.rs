//! What the API's objects hold for a pod's containers: variables, files of volumes, and tokens.
//!
//! All referenced objects are fetched before, into [`Sources`], so that
//! [`variables`] and the choice of [`files`] are pure. Enter by [`variables::resolve`] for a
//! container's environment, by [`files::entries`] and [`files::publish`] for a volume, and by
//! [`Tokens::refresh`] for service account tokens, which the master gives out. [`Watched`] keeps
//! the config maps and secrets that volumes show up to date: one task and one watch for each, and a
//! `Notify` for each pod, which changes wake. There are no other tasks and no channels. What a pod
//! has written for itself is read by [`env_files::read`]. A [`Budget`] bounds what is kept of all
//! objects that were fetched for one pod.

#[doc(hidden)]
pub mod decoders;
pub mod env_files;
pub mod files;
mod needs;
mod quote;
mod tokens;
pub mod variables;
mod watched;

pub use files::{Room, Taken};
pub use needs::{Budget, Keyed, Keys, SourceNames};
pub use tokens::{TokenKind, Tokens};
pub use variables::Sources;
pub use watched::{Name, ObjectKind, Use, Watched};
