//! The public areas from which keys are derived. One changed bit gives another key.
//!
//! All of ours set noDA: a TPM counts a power cut after the use of a protected auth value as a
//! guess of it, and a few of them lock every protected key for hours. There is nothing to guess:
//! these auth values are empty, or 32 random bytes.

use tss_esapi::Result;
use tss_esapi::abstraction::{AsymmetricAlgorithmSelection, ek};
use tss_esapi::attributes::{ObjectAttributes, ObjectAttributesBuilder};
use tss_esapi::interface_types::algorithm::{HashingAlgorithm, PublicAlgorithm};
use tss_esapi::interface_types::ecc::EccCurve;
use tss_esapi::interface_types::key_bits::RsaKeyBits;
use tss_esapi::structures::{
    Digest, EccPoint, EccScheme, HashScheme, KeyDerivationFunctionScheme, KeyedHashScheme, Public,
    PublicBuilder, PublicEccParametersBuilder, PublicKeyedHashParameters,
    SymmetricDefinitionObject,
};

/// The supported types of endorsement keys, in the order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EkKind {
    /// RSA 2048, template L-1.
    Rsa2048,
    /// ECC NIST P-256, template L-2.
    P256,
    /// ECC NIST P-384, template H-3.
    P384,
}

impl EkKind {
    /// RSA first: nearly every TPM is delivered with this key, so inventories have it.
    pub(crate) const ALL: [Self; 3] = [Self::Rsa2048, Self::P256, Self::P384];

    /// Where the TCG's registry of handles lets a manufacturer persist the key.
    pub(crate) fn persisted_handle(self) -> u32 {
        match self {
            Self::P384 => 0x8101_0016,
            Self::P256 => 0x8101_0002,
            Self::Rsa2048 => 0x8101_0001,
        }
    }

    /// Where the EK Credential Profile puts the certificate.
    pub(crate) fn certificate_index(self) -> u32 {
        match self {
            Self::P384 => 0x01c0_0016,
            Self::P256 => 0x01c0_000a,
            Self::Rsa2048 => 0x01c0_0002,
        }
    }
}

/// An endorsement key by the TCG EK Credential Profile's template (annex B: L-1, H-3 and L-2).
pub(crate) fn endorsement(kind: EkKind) -> Result<Public> {
    let algorithm = match kind {
        EkKind::Rsa2048 => AsymmetricAlgorithmSelection::Rsa(RsaKeyBits::Rsa2048),
        EkKind::P256 => AsymmetricAlgorithmSelection::Ecc(EccCurve::NistP256),
        EkKind::P384 => AsymmetricAlgorithmSelection::Ecc(EccCurve::NistP384),
    };
    ek::create_ek_public_from_default_template_2(algorithm, None)
}

/// The attestation key: restricted, ECDSA P-256 with SHA-256, used with its auth value.
pub(crate) fn attestation() -> Result<Public> {
    let attributes = fixed()
        .with_no_da(true)
        .with_sign_encrypt(true)
        .with_restricted(true)
        .with_user_with_auth(true);
    signing(attributes.build()?, Digest::default())
}

/// The node key: free to sign anything, as TLS needs, and only while `policy` holds.
pub(crate) fn node(policy: Digest) -> Result<Public> {
    signing(
        fixed().with_sign_encrypt(true).with_no_da(true).build()?,
        policy,
    )
}

/// The storage key under which secrets are sealed: a primary of the owner hierarchy, ECC P-256 with
/// AES-128.
pub(crate) fn storage() -> Result<Public> {
    let attributes = fixed()
        .with_decrypt(true)
        .with_restricted(true)
        .with_user_with_auth(true)
        .with_no_da(true)
        .build()?;
    ecc(attributes, Digest::default())
        .with_ecc_parameters(
            PublicEccParametersBuilder::new_restricted_decryption_key(
                SymmetricDefinitionObject::AES_128_CFB,
                EccCurve::NistP256,
            )
            .build()?,
        )
        .build()
}

/// A sealed secret: data from outside, fixed to this TPM. It opens only by its policy; without one,
/// for any caller.
pub(crate) fn sealed(policy: Option<&[u8]>) -> Result<Public> {
    let attributes = ObjectAttributesBuilder::new()
        .with_fixed_tpm(true)
        .with_fixed_parent(true)
        .with_user_with_auth(policy.is_none())
        .with_no_da(true)
        .build()?;
    let policy = policy.map(Digest::try_from).transpose()?;
    PublicBuilder::new()
        .with_public_algorithm(PublicAlgorithm::KeyedHash)
        .with_name_hashing_algorithm(HashingAlgorithm::Sha256)
        .with_object_attributes(attributes)
        .with_auth_policy(policy.unwrap_or_default())
        .with_keyed_hash_parameters(PublicKeyedHashParameters::new(KeyedHashScheme::Null))
        .with_keyed_hash_unique_identifier(Digest::default())
        .build()
}

fn fixed() -> ObjectAttributesBuilder {
    ObjectAttributesBuilder::new()
        .with_fixed_tpm(true)
        .with_fixed_parent(true)
        .with_sensitive_data_origin(true)
}

fn signing(attributes: ObjectAttributes, policy: Digest) -> Result<Public> {
    let parameters = PublicEccParametersBuilder::new()
        .with_symmetric(SymmetricDefinitionObject::Null)
        .with_ecc_scheme(EccScheme::EcDsa(HashScheme::new(HashingAlgorithm::Sha256)))
        .with_curve(EccCurve::NistP256)
        .with_key_derivation_function_scheme(KeyDerivationFunctionScheme::Null)
        .with_is_signing_key(attributes.sign_encrypt())
        .with_is_decryption_key(attributes.decrypt())
        .with_restricted(attributes.restricted())
        .build()?;
    ecc(attributes, policy)
        .with_ecc_parameters(parameters)
        .build()
}

fn ecc(attributes: ObjectAttributes, policy: Digest) -> PublicBuilder {
    PublicBuilder::new()
        .with_public_algorithm(PublicAlgorithm::Ecc)
        .with_name_hashing_algorithm(HashingAlgorithm::Sha256)
        .with_object_attributes(attributes)
        .with_auth_policy(policy)
        .with_ecc_unique_identifier(EccPoint::default())
}
