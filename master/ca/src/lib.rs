//! The cluster's keys and certificate profiles; signs only what was verified or approved.
//!
//! The authority has one root (two during a rotation) and one issuing intermediate at a time. It
//! takes only the public key from a request; the [`profile`] gives all other fields of the
//! certificate. A [`keeper`] protects private keys at rest: the machine's TPM behind the attestor
//! socket, or a file on hosts without a TPM. There are no tasks and no channels, and callers pass
//! the time in. Calls that touch the disk or the socket block: run them on a blocking thread.
//!
//! Enter by [`Authority::open`]. `issuer` lists every kind of certificate that it signs, and what
//! it requires for each.
//!
//! # Glossary
//! - *authority*: the keys and certificates in one folder ([`Authority`]).
//! - *hierarchy*: the roots and the intermediate in force at one moment.
//! - *generation*: a number that rises when the hierarchy changes; caches compare it.
//! - *keeper*: encrypts private keys for the disk and decrypts them ([`Keeper`]).
//! - *profile*: every field of a certificate but the public key ([`profile::Profile`]).
//! - *pin*: `sha256:<hex>` of a root's SubjectPublicKeyInfo, by which machines know the cluster.
//! - *rotation*: the time in which an old root and a new one are both in force ([`Rotation`]); a
//!   root's part in it is its phase ([`RootPhase`]).
//! - *grant*: a `config_attest::verifier::CertificateGrant`, for which alone a node's certificates
//!   are signed by attestation.
//! - *approved request*: a CertificateSigningRequest with the condition Approved
//!   ([`ApprovedRequest`], [`StaticRequest`]).
//! - *recovery copy*: the private keys, encrypted to the admin's public key ([`recovery`]).

pub mod attestor;
mod authority;
#[doc(hidden)]
pub mod decoders;
mod discovery;
mod error;
mod extension;
mod hierarchy;
mod issued;
mod issuer;
pub mod keeper;
mod key_list;
mod log;
mod names;
pub mod profile;
pub mod recovery;
mod request;
mod restore;
mod rotation;

pub use authority::{Authority, IssuedCertificate, OwnCertificate};
pub use error::{Error, Result};
pub use extension::{NODE_EXTENSION_OID, NodeExtension};
pub use issued::{StaticKind, StaticRequest};
pub use issuer::NodeCertificates;
pub use keeper::{AttestorKeeper, FileKeeper, Keeper};
pub use log::LogSigner;
pub use names::{certificates_of_pem, hex, pem, serial_of, spki_hash, spki_of};
pub use request::{
    ApprovedRequest, CLIENT_SIGNER, CertificateRequest, KUBELET_CLIENT_SIGNER,
    KUBELET_SERVING_SIGNER, REQUEST_LIMIT, UPSTREAM_SIGNERS,
};
pub use restore::restore;
pub use rotation::{
    AdminAccess, CERTIFICATE_PATH, ROOT_PATH, RootInForce, RootPhase, Rotation, UnreadyNode,
};
