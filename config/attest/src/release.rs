//! The signed description of an image: what its build predicts, and which keys signed it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_kube::pratique::ReleaseSignature;
use config_kube::{ImageRelease, ImageReleaseSpec};
use config_tpm::Digest;
use config_tpm::boot::Boot;
use p256::ecdsa::signature::{Signer as _, Verifier as _};
use p256::ecdsa::{DerSignature, SigningKey, VerifyingKey};
use p256::pkcs8::{DecodePublicKey as _, EncodePublicKey as _};
use serde::{Deserialize, Serialize};

/// The only version of a manifest.
pub const MANIFEST_VERSION: u32 = 1;
/// Largest manifest, in bytes.
pub const MAX_MANIFEST: usize = 512 * 1024;
/// The only signature algorithm.
pub const ALGORITHM: &str = "ecdsa-p256-sha256";

/// What the build predicts of an image. The exact JSON text is signed; parsing is for reading it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    /// [`MANIFEST_VERSION`].
    pub version: u32,
    /// Id, also the `ImageRelease`'s name.
    pub id: String,
    /// `worker` or `master`.
    pub role: String,
    /// Security version number.
    pub svn: u64,
    /// Unix seconds.
    pub build_time: u64,
    /// Kernel release.
    pub kernel: String,
    /// Kernel command line.
    pub command_line: String,
    /// dm-verity root hash.
    pub root_hash: Digest,
    /// The ways in which it may start, each with its predictions.
    pub boots: Vec<Boot>,
    /// Digests and sizes of the image's parts.
    pub parts: Vec<Part>,
    /// Packages inside.
    pub packages: Vec<Package>,
    /// Executables inside, by path.
    pub executables: Vec<Executable>,
}

/// A part of the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Part {
    /// Name.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// SHA-256.
    pub digest: Digest,
}

/// A package in the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Package {
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
    /// SHA-256 of the package file.
    pub digest: Digest,
}

/// An executable file in the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Executable {
    /// Path.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// SHA-256.
    pub digest: Digest,
}

/// Why a release is not usable.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// Larger than [`MAX_MANIFEST`].
    #[error("manifest of {0} bytes, at most {MAX_MANIFEST} are allowed")]
    TooLarge(usize),
    /// Not a manifest.
    #[error("manifest is not of the documented form")]
    Manifest(#[source] serde_json::Error),
    /// A field with a value that is not allowed.
    #[error("manifest: {0}")]
    Field(String),
    /// A release key that cannot be read.
    #[error("release key {0:?} is not an ECDSA P-256 public key in PEM")]
    Key(String),
}

/// A key that may sign releases.
#[derive(Debug, Clone)]
pub struct ReleaseKey {
    name: String,
    id: Digest,
    key: VerifyingKey,
}

impl ReleaseKey {
    /// From the cluster's configuration.
    ///
    /// # Errors
    /// [`ReleaseError::Key`] where the text is no P-256 public key in PEM.
    pub fn from_pem(name: &str, pem: &str) -> Result<Self, ReleaseError> {
        let public = p256::PublicKey::from_public_key_pem(pem.trim())
            .map_err(|_not_a_key| ReleaseError::Key(name.to_owned()))?;
        let key = VerifyingKey::from(&public);
        let id = key_id(&key).ok_or_else(|| ReleaseError::Key(name.to_owned()))?;
        Ok(Self {
            name: name.to_owned(),
            id,
            key,
        })
    }

    /// Its name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key itself.
    pub fn key(&self) -> VerifyingKey {
        self.key
    }
}

/// SHA-256 of a key's SubjectPublicKeyInfo DER.
pub fn key_id(key: &VerifyingKey) -> Option<Digest> {
    key.to_public_key_der()
        .ok()
        .map(|der| Digest::of(der.as_bytes()))
}

/// A release as the master knows it. Holding one proves that the manifest parsed; who signed it is
/// in `verified_by`.
#[derive(Debug, Clone)]
pub struct KnownRelease {
    manifest: Manifest,
    verified_by: Vec<String>,
}

impl KnownRelease {
    /// Parses a release and verifies its signatures by the cluster's release keys. An unsigned
    /// release is kept too, so that the refusal of a machine that booted it can name the reason.
    ///
    /// # Errors
    /// As [`Manifest::parse`]. A signature that does not verify is no error: it does not count.
    pub fn open(release: &ImageRelease, keys: &[ReleaseKey]) -> Result<Self, ReleaseError> {
        let spec = &release.spec;
        let manifest = Manifest::parse(&spec.manifest)?;
        let verified_by = keys
            .iter()
            .filter(|key| signed_by(spec, key))
            .map(|key| key.name.clone())
            .collect();
        Ok(Self {
            manifest,
            verified_by,
        })
    }

    /// What the build predicts.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Names of the keys whose signatures verified.
    pub fn verified_by(&self) -> &[String] {
        &self.verified_by
    }
}

/// Whether one of the release's first 16 signatures is by this key. Work for a hostile object is
/// bounded.
fn signed_by(spec: &ImageReleaseSpec, key: &ReleaseKey) -> bool {
    spec.signatures.iter().take(16).any(|signature| {
        // The id first: a signature is verified by the one key that it names, not by each.
        signature.algorithm == ALGORITHM
            && signature.key_id.parse() == Ok(key.id)
            && STANDARD
                .decode(&signature.signature)
                .ok()
                .and_then(|der| DerSignature::from_bytes(&der).ok())
                .is_some_and(|parsed| key.key.verify(spec.manifest.as_bytes(), &parsed).is_ok())
    })
}

impl Manifest {
    /// Parses and checks the JSON text.
    ///
    /// # Errors
    /// [`ReleaseError::TooLarge`] above 512 KiB, [`ReleaseError::Manifest`] where the text is no
    /// manifest, [`ReleaseError::Field`] where a field has a value that is not allowed.
    pub fn parse(text: &str) -> Result<Self, ReleaseError> {
        if text.len() > MAX_MANIFEST {
            return Err(ReleaseError::TooLarge(text.len()));
        }
        let manifest: Self =
            config_protocol::wire::parse(text.as_bytes()).map_err(ReleaseError::Manifest)?;
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), ReleaseError> {
        let fault = |text: &str| Err(ReleaseError::Field(text.to_owned()));
        if self.version != MANIFEST_VERSION {
            return fault(&format!(
                "version {} found, {MANIFEST_VERSION} expected",
                self.version
            ));
        }
        if self.id.is_empty() || self.id.len() > 253 {
            return fault("id must have 1 to 253 characters");
        }
        if self.role != "worker" && self.role != "master" {
            return fault("role must be `worker` or `master`");
        }
        if self.boots.is_empty() {
            return fault("boots must list at least one way of starting");
        }
        // A register without a predicted value would match nothing: the image could never join.
        for boot in &self.boots {
            for pcr in [4, 9, 11] {
                if boot.pcrs.get(&pcr).is_none_or(Vec::is_empty) {
                    return fault(&format!(
                        "each of boots must give at least one value for PCR {pcr}"
                    ));
                }
            }
            if boot.secure_boot && boot.pcrs.get(&7).is_none_or(Vec::is_empty) {
                return fault("a boot with Secure Boot must give at least one value for PCR 7");
            }
        }
        Ok(())
    }

    /// Signs the manifest and makes the object that allows the image.
    ///
    /// # Errors
    /// [`ReleaseError::Field`] where a field has a value that is not allowed; [`ReleaseError::Key`]
    /// where a signing key cannot be encoded.
    pub fn sign(&self, keys: &[&SigningKey]) -> Result<ImageRelease, ReleaseError> {
        self.check()?;
        // The text is signed and kept, not the fields: a reader verifies the bytes that it parses.
        let manifest = serde_json::to_string(self).map_err(ReleaseError::Manifest)?;
        let mut signatures = Vec::new();
        for key in keys {
            let signature: DerSignature = key.sign(manifest.as_bytes());
            let id = key_id(key.verifying_key())
                .ok_or_else(|| ReleaseError::Key("signing key".to_owned()))?;
            signatures.push(ReleaseSignature {
                key_id: id.to_text(),
                algorithm: ALGORITHM.to_owned(),
                signature: STANDARD.encode(signature.as_bytes()),
            });
        }
        Ok(ImageRelease::named(
            &self.id,
            ImageReleaseSpec {
                manifest,
                signatures,
            },
        ))
    }
}
