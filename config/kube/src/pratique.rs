//! `ImageRelease` and `NodeAttestation`, and what all kinds of the project's group share.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Defines a cluster-scoped kind of `pratique.dev/v1alpha1` with the traits that clients need.
macro_rules! resource {
    ($kind:ident, $name:literal, $plural:literal, $spec:ty, $status:ty, $doc:literal) => {
        #[doc = $doc]
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "camelCase")]
        pub struct $kind {
            /// Always `pratique.dev/v1alpha1`.
            #[serde(default = "crate::pratique::api_version")]
            pub api_version: String,
            /// The kind's name.
            #[serde(default)]
            pub kind: String,
            /// Standard metadata.
            #[serde(default)]
            pub metadata: ObjectMeta,
            /// The desired state.
            #[serde(default)]
            pub spec: $spec,
            /// The observed state.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub status: Option<$status>,
        }

        impl $kind {
            /// An object of this kind with this name.
            pub fn named(name: &str, spec: $spec) -> Self {
                Self {
                    api_version: crate::pratique::api_version(),
                    kind: $name.to_owned(),
                    metadata: ObjectMeta {
                        name: Some(name.to_owned()),
                        ..ObjectMeta::default()
                    },
                    spec,
                    status: None,
                }
            }
        }

        impl k8s_openapi::Resource for $kind {
            const API_VERSION: &'static str = "pratique.dev/v1alpha1";
            const GROUP: &'static str = crate::identity::GROUP;
            const KIND: &'static str = $name;
            const VERSION: &'static str = crate::identity::VERSION;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = k8s_openapi::ClusterResourceScope;
        }

        impl k8s_openapi::Metadata for $kind {
            type Ty = ObjectMeta;
            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
pub(crate) use resource;

/// `pratique.dev/v1alpha1`.
pub(crate) fn api_version() -> String {
    format!("{}/{}", crate::identity::GROUP, crate::identity::VERSION)
}

/// One check of a verdict: its name, the expected and the actual value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// Name of the check, stable.
    pub name: String,
    /// Whether it passed.
    pub ok: bool,
    /// Refusal code if it failed (`config/protocol` lists them).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub code: String,
    /// The expected value.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub expected: String,
    /// The actual value.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub actual: String,
}

resource!(
    ImageRelease,
    "ImageRelease",
    "imagereleases",
    ImageReleaseSpec,
    ImageReleaseStatus,
    "A signed description of an image: allowing an image is applying this object."
);

/// The signed manifest and its signatures. The manifest is stored as the exact text that was
/// signed; `config-attest` parses it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ImageReleaseSpec {
    /// The exact JSON text that was signed.
    pub manifest: String,
    /// Signatures over the manifest's UTF-8 bytes.
    pub signatures: Vec<ReleaseSignature>,
}

/// One signature of a release manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReleaseSignature {
    /// `sha256:<hex>` of the release key's SubjectPublicKeyInfo DER.
    pub key_id: String,
    /// Always `ecdsa-p256-sha256`.
    pub algorithm: String,
    /// Base64 of the DER signature.
    pub signature: String,
}

/// What the master found in a release; set by the master, for `kubectl get`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ImageReleaseStatus {
    /// `worker` or `master`.
    pub role: String,
    /// Security version number.
    pub svn: u64,
    /// Names of the release keys whose signatures verified.
    pub verified_by: Vec<String>,
    /// Why it is unusable; empty if it is usable.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fault: String,
}

resource!(
    NodeAttestation,
    "NodeAttestation",
    "nodeattestations",
    NodeAttestationSpec,
    NodeAttestationStatus,
    "One attestation exchange: what was claimed and every check of the verdict."
);

/// The caller's claims, not verified.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAttestationSpec {
    /// `sha256:<hex>` of the EK's SubjectPublicKeyInfo that the caller showed.
    pub ek_hash: String,
    /// Claims, by name.
    pub claims: BTreeMap<String, String>,
    /// The caller's address.
    pub remote: String,
}

/// The verdict.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAttestationStatus {
    /// `Accepted`, `Queued` or `Refused`.
    pub verdict: String,
    /// Refusal code; empty when accepted.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub code: String,
    /// What happened and what to do, for humans.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The Machine, if the evidence is proved to be its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Every check.
    pub checks: Vec<Check>,
    /// RFC 3339 time.
    pub time: String,
    /// RFC 3339 time after which the object is deleted.
    pub expires: String,
}
