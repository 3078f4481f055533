//! Images of containers: from registries and archives into containerd, ready to run.
//!
//! Enter by [`Images`], which finds, pulls, lists and removes images. Names are read by
//! [`Reference`]; [`Registries`] says where an image may be had and by which credentials, among
//! them those of a pod's pull secrets ([`Keyring`]).
//!
//! Inside: `session` proves to a registry who asks; `http` and `reach` keep requests from hosts
//! that they must not reach; `content` is containerd's store of blobs; `images::unpack` makes
//! layers snapshots; `zstd` refuses those that take much memory to unpack; `access` remembers who
//! may run what was fetched (KEP-2535); `archive` reads images that came with the machine;
//! `progress` counts what a pull has brought, and `reports` says it of one that takes long;
//! `garbage` chooses which unused images go when the disk fills up.
//!
//! Tasks: none but short ones that block on files. Pulls of one image, and unpacking one layer,
//! happen once at a time; pulls from one registry are limited.

mod access;
mod archive;
mod content;
mod credential;
#[doc(hidden)]
pub mod decoders;
mod document;
mod garbage;
mod http;
mod image;
mod images;
mod keyring;
mod parts;
mod progress;
mod reach;
mod reference;
mod registry;
mod reports;
mod session;
mod zstd;

pub use archive::import;
pub use credential::{Credential, Secret};
pub use garbage::{ImageUses, MIN_IMAGE_AGE, Swept};
pub use image::{Image, ImageDefaults, PullPolicy};
pub use images::{ImageSpace, Images, PULLS_OF_A_REGISTRY, Ready, SNAPSHOTTER};
pub use keyring::{Keyring, KeyringError, PullSecret};
pub use progress::Progress;
pub use reach::ClusterAddresses;
pub use reference::{DOCKER_HUB, Reference, ReferenceError};
pub use registry::{Registries, Registry};
pub use reports::{PullStage, with_reports};
