//! The Kubernetes kinds in use, the kinds of pratique.dev, and the identities and paths that master
//! and agent share.
//!
//! The only crate that depends on `k8s-openapi`; all others use the kinds from here. Start at
//! [`pratique`] for the project's own kinds and at [`identity`] for the names in certificates.

pub mod discovery;
pub mod event;
pub mod identity;
pub mod json;
pub mod kubeconfig;
pub mod label_selector;
pub mod local_volume;
pub mod machine;
pub mod metrics;
pub mod node_selector;
pub mod policy;
pub mod pratique;
pub mod quantity;
pub mod roots;
pub mod taints;
pub mod written;

pub use json::{FromJson, ToJson};
pub use k8s_openapi;
pub use kubeconfig::Kubeconfig;
pub use machine::{Machine, MachineSpec, MachineState, MachineStatus};
pub use policy::{
    CertificatePolicy, CertificatePolicySpec, CertificatePolicyStatus, Decides, PolicyName, Rule,
};
pub use pratique::{ImageRelease, ImageReleaseSpec, NodeAttestation, NodeAttestationStatus};
pub use quantity::Amount;
