//! TOML documents: parsed, checked, and every fault reported with its position.
//!
//! A document starts with `version = 1` and has a kind: `machine` (the default; a machine's whole
//! user-data), `cluster` (the master on a plain host), `image` (input of the image build) or
//! `policy` (rules for certificate requests). Start at [`parse`]; it returns a checked [`Document`]
//! or all [`Faults`] at once, each with file, line, column, what was found, what was expected and,
//! if there is a near match, a suggestion.
//!
//! Stages: bytes → tree with spans (`read`) → `Raw*` structs with known keys and types (`raw`) →
//! checked types ([`machine`], [`cluster`], [`image`], [`rule`]). A checked value proves its
//! format: a [`format::Pin`] is a SHA-256 digest, an [`format::Endpoint`] an https address with a
//! port. No I/O, no clock, no tasks.

pub mod api;
mod check;
pub mod cloud;
pub mod cluster;
pub mod defaults;
pub mod discovery;
mod document;
pub mod eviction;
pub mod fault;
pub mod format;
pub mod host_path;
pub mod identity;
pub mod image;
pub mod machine;
pub mod network;
pub mod node_rule;
pub mod object;
pub mod pem;
pub mod pod_range;
mod raw;
mod read;
pub mod reference;
pub mod registry;
pub mod rule;
pub mod scheduler;
mod secret;
mod service_range;
mod shape;
pub mod shutdown;
pub mod stub_domain;
mod suggest;
mod syntax;
pub mod sysctl;

pub use api::ApiConfig;
pub use cluster::ClusterConfig;
pub use document::{Document, parse, toml_text};
pub use fault::{Fault, FaultKind, Faults};
pub use image::ImageConfig;
pub use machine::MachineConfig;
pub use object::{ObjectFault, check_policy};
pub use rule::PolicyConfig;
pub use shutdown::ShutdownGrace;
