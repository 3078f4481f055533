//! Persistent volumes on this machine.
//!
//! A claim leads to its volume ([`resolve`], pure), and a volume to a folder ([`Folders`]) or to a
//! path of the machine ([`HostPaths`]). Folders are made and removed only on the master's request
//! and never by a mount: if the folder of a volume is missing, its data is lost, and an empty
//! folder would hide that. No tasks, no channels.

mod folders;
mod host_paths;
mod mount;
mod resolve;

pub use folders::{FolderError, Folders};
pub use host_paths::{HostPaths, Right, sub_path_handle};
pub use mount::{Mounted, Unmounted, What, fs_group, reference, wanted};
pub use resolve::{Claimed, Found, bound, claimed, resolve};
