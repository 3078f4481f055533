//! The cluster's keys and certificate profiles; signs only what was verified or approved.
//!
//! A long-lived root (two, while it is rotated), and one issuing intermediate at a time. From a request only the public key is taken; all else
//! comes from a [`profile`]. Private keys rest with a [`keeper`]: the machine's TPM behind the attestor socket, or a
//! file on hosts without one. Nothing here runs by itself: no tasks, no channels; time is passed in. The calls that
//! touch the disk or the socket block, and belong on a blocking thread.
//!
//! Enter by [`Authority::open`]; `issuer` has what it signs and on whose word.

pub mod attestor;
mod authority;
mod discovery;
mod error;
mod extension;
mod hierarchy;
mod issued;
mod issuer;
pub mod keeper;
mod log;
mod names;
pub mod profile;
pub mod recovery;
mod request;
mod restore;
mod rotation;

pub use authority::{Authority, Identity, Issued};
pub use error::{Error, Result};
pub use extension::{NODE_EXTENSION_OID, NodeExtension};
pub use issued::{StaticKind, StaticRequest};
pub use issuer::NodeCertificates;
pub use keeper::{AttestorKeeper, FileKeeper, Keeper};
pub use log::LogSigner;
pub use names::{certificates_of_pem, hex, pem, serial_of, spki_hash, spki_of};
pub use request::{
    ApprovedRequest, CLIENT_SIGNER, KUBELET_CLIENT_SIGNER, KUBELET_SERVING_SIGNER, REQUEST_LIMIT,
    Request, UPSTREAM_SIGNERS,
};
pub use restore::restore;
pub use rotation::{AdminAccess, CERTIFICATE_PATH, ROOT_PATH, Root, Rotation, Standing, Waiting};
