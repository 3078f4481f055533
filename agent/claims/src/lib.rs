//! Persistent volumes on this machine.
//!
//! A claim leads to its volume ([`resolve`], pure), and a volume to a folder ([`Folders`]) or to a path of the machine. Folders are
//! made and removed by the master's word alone and never by a mount: where the folder of a volume is missing, its data is lost, and
//! an empty one in its place would hide that. No tasks, no channels.

mod folders;
mod resolve;

pub use folders::{FolderError, Folders};
pub use resolve::{Claimed, Found, bound, claimed, resolve};
