//! What the API's objects hold for a pod's containers: variables, files of volumes, and tokens.
//!
//! Everything that references lead to is fetched before and stands in [`Sources`], so that [`variables`] and the choice of
//! [`files`] are pure. Enter by [`variables::resolve`] for a container's environment, by [`files::entries`] and
//! [`files::publish`] for a volume, and by [`Tokens::refresh`] for service account tokens, which the master gives out.
//! What a pod has written for itself is read by [`env_files::read`].
//! There are no tasks and no channels.

pub mod env_files;
pub mod files;
mod tokens;
pub mod variables;

pub use files::Room;
pub use tokens::{TokenKind, Tokens};
pub use variables::Sources;
