//! Public areas (TPMT_PUBLIC, TPM 2.0 part 2, 12.2.4) of RSA and ECC keys, and their Names.

use super::buffer::{Reader, put_sized};
use super::{HashAlg, TpmError};
use std::fmt;

const ALG_RSA: u16 = 0x0001;
const ALG_AES: u16 = 0x0006;
const ALG_NULL: u16 = 0x0010;
const ALG_ECDSA: u16 = 0x0018;
pub(super) const ALG_ECC: u16 = 0x0023;
const ALG_CFB: u16 = 0x0043;

/// Object attributes (TPMA_OBJECT, part 2, 8.3).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Attributes(pub u32);

impl Attributes {
    /// May not move to another TPM.
    pub const FIXED_TPM: Self = Self(1 << 1);
    /// May not move to another parent.
    pub const FIXED_PARENT: Self = Self(1 << 4);
    /// The TPM made the secret part.
    pub const SENSITIVE_DATA_ORIGIN: Self = Self(1 << 5);
    /// Use is allowed by its auth value.
    pub const USER_WITH_AUTH: Self = Self(1 << 6);
    /// Administration needs its policy.
    pub const ADMIN_WITH_POLICY: Self = Self(1 << 7);
    /// Not protected against guessing of its auth value. A TPM also locks protected objects after a
    /// few power cuts.
    pub const NO_DA: Self = Self(1 << 10);
    /// Works on TPM-made data only.
    pub const RESTRICTED: Self = Self(1 << 16);
    /// May decrypt.
    pub const DECRYPT: Self = Self(1 << 17);
    /// May sign.
    pub const SIGN: Self = Self(1 << 18);

    /// Those of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The same attributes, with noDA as in `found`. The owner may choose noDA: it only keeps a TPM
    /// from locking the key.
    #[must_use]
    pub fn no_da_of(self, found: Self) -> Self {
        Self(self.0 & !Self::NO_DA.0 | found.0 & Self::NO_DA.0)
    }

    /// Whether all of `other` are set.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(u32, &str); 11] = [
            (1, "fixedTPM"),
            (2, "stClear"),
            (4, "fixedParent"),
            (5, "sensitiveDataOrigin"),
            (6, "userWithAuth"),
            (7, "adminWithPolicy"),
            (10, "noDA"),
            (11, "encryptedDuplication"),
            (16, "restricted"),
            (17, "decrypt"),
            (18, "sign"),
        ];
        let mut rest = self.0;
        let mut separator = "";
        for (bit, name) in NAMES {
            if rest & (1 << bit) != 0 {
                write!(f, "{separator}{name}")?;
                separator = "|";
                rest &= !(1 << bit);
            }
        }
        if rest != 0 {
            write!(f, "{separator}{rest:#x}")
        } else {
            Ok(())
        }
    }
}

/// Symmetric algorithm of a storage key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symmetric {
    /// None.
    Null,
    /// AES-128 in CFB mode.
    Aes128Cfb,
    /// AES-256 in CFB mode.
    Aes256Cfb,
}

impl Symmetric {
    /// Bytes of a key.
    pub fn key_size(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Aes128Cfb => 16,
            Self::Aes256Cfb => 32,
        }
    }
}

/// Signing scheme of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// None fixed.
    Null,
    /// ECDSA with a hash.
    Ecdsa(HashAlg),
}

/// Curves (TPM_ECC_CURVE).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curve {
    /// NIST P-256.
    P256,
    /// NIST P-384.
    P384,
}

impl Curve {
    /// Bytes of a coordinate.
    pub fn size(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P384 => 48,
        }
    }
}

/// Algorithm, parameters and public value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// RSA.
    Rsa {
        /// Symmetric algorithm for its children.
        symmetric: Symmetric,
        /// Size of the modulus in bits.
        bits: u16,
        /// Public exponent; 0 means 65537.
        exponent: u32,
        /// Modulus, big-endian.
        modulus: Vec<u8>,
    },
    /// Elliptic curve.
    Ecc {
        /// Symmetric algorithm for its children.
        symmetric: Symmetric,
        /// Signing scheme.
        scheme: Scheme,
        /// Curve.
        curve: Curve,
        /// x, big-endian, may be short.
        x: Vec<u8>,
        /// y, big-endian, may be short.
        y: Vec<u8>,
    },
}

impl Key {
    /// Symmetric algorithm for its children.
    pub(super) fn symmetric(&self) -> Symmetric {
        match self {
            Self::Rsa { symmetric, .. } | Self::Ecc { symmetric, .. } => *symmetric,
        }
    }
}

/// A key's TPM Name: name algorithm and digest of its public area (part 1, 16).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Vec<u8>);

impl Name {
    /// The Name of an object with name algorithm SHA-256 and this TPMT_PUBLIC.
    pub(super) fn of_area(area: &[u8]) -> Self {
        let digest = HashAlg::Sha256.digest(&[area]);
        Self([HashAlg::Sha256.id().to_be_bytes().as_slice(), &digest].concat())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Hex, as API objects show it.
    pub fn to_hex(&self) -> String {
        hex::encode(&self.0)
    }
}

/// TPM_RH_ENDORSEMENT.
pub const ENDORSEMENT_HIERARCHY: u32 = 0x4000_000b;
/// TPM_RH_NULL.
pub const NULL_HIERARCHY: u32 = 0x4000_0007;

/// The qualified Name of a primary key with name algorithm SHA-256 (part 1, 16): it proves in which
/// hierarchy the key was made.
pub fn qualified_name_of_primary(hierarchy: u32, name: &Name) -> Vec<u8> {
    let digest = HashAlg::Sha256.digest(&[&hierarchy.to_be_bytes(), name.as_bytes()]);
    [HashAlg::Sha256.id().to_be_bytes().as_slice(), &digest].concat()
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

/// A public area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Public {
    /// Hash of its Name and policy.
    pub name_alg: HashAlg,
    /// What it may do.
    pub attributes: Attributes,
    /// Policy digest; empty: none.
    pub auth_policy: Vec<u8>,
    /// Algorithm, parameters and public value.
    pub key: Key,
}

impl Public {
    /// Parses a TPMT_PUBLIC; every byte must belong to it.
    ///
    /// # Errors
    /// [`TpmError::Unsupported`] for key types and algorithms that no template here has,
    /// [`TpmError::Malformed`] where bytes are missing or left.
    pub fn parse(bytes: &[u8]) -> Result<Self, TpmError> {
        let mut reader = Reader::new(bytes, "public area");
        let kind = reader.u16()?;
        let name_alg = HashAlg::from_id(reader.u16()?)?;
        let attributes = Attributes(reader.u32()?);
        let auth_policy = reader.sized(64)?.to_vec();
        let symmetric = read_symmetric(&mut reader)?;
        let key = match kind {
            ALG_RSA => read_rsa(&mut reader, symmetric)?,
            ALG_ECC => read_ecc(&mut reader, symmetric)?,
            other => return Err(TpmError::Unsupported("key type", other)),
        };
        reader.finish()?;
        Ok(Self {
            name_alg,
            attributes,
            auth_policy,
            key,
        })
    }

    /// Parses a TPM2B_PUBLIC, as tools write it to files.
    ///
    /// # Errors
    /// As [`Public::parse`]; [`TpmError::Malformed`] where the size is not that of the bytes.
    pub fn parse_sized(bytes: &[u8]) -> Result<Self, TpmError> {
        let mut reader = Reader::new(bytes, "public area");
        let inner = reader.sized(1024)?;
        reader.finish()?;
        Self::parse(inner)
    }

    /// The TPMT_PUBLIC.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(384);
        let kind = match self.key {
            Key::Rsa { .. } => ALG_RSA,
            Key::Ecc { .. } => ALG_ECC,
        };
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&self.name_alg.id().to_be_bytes());
        out.extend_from_slice(&self.attributes.0.to_be_bytes());
        put_sized(&mut out, &self.auth_policy);
        match &self.key {
            Key::Rsa {
                symmetric,
                bits,
                exponent,
                modulus,
            } => {
                put_symmetric(&mut out, *symmetric);
                out.extend_from_slice(&ALG_NULL.to_be_bytes());
                out.extend_from_slice(&bits.to_be_bytes());
                out.extend_from_slice(&exponent.to_be_bytes());
                put_sized(&mut out, modulus);
            }
            Key::Ecc {
                symmetric,
                scheme,
                curve,
                x,
                y,
            } => {
                put_symmetric(&mut out, *symmetric);
                match scheme {
                    Scheme::Null => out.extend_from_slice(&ALG_NULL.to_be_bytes()),
                    Scheme::Ecdsa(hash) => {
                        out.extend_from_slice(&ALG_ECDSA.to_be_bytes());
                        out.extend_from_slice(&hash.id().to_be_bytes());
                    }
                }
                out.extend_from_slice(&curve_id(*curve).to_be_bytes());
                out.extend_from_slice(&ALG_NULL.to_be_bytes());
                put_sized(&mut out, x);
                put_sized(&mut out, y);
            }
        }
        out
    }

    /// The TPM2B_PUBLIC.
    pub fn to_sized_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_sized(&mut out, &self.to_bytes());
        out
    }

    /// The key's Name.
    pub fn name(&self) -> Name {
        let mut name = self.name_alg.id().to_be_bytes().to_vec();
        name.extend_from_slice(&self.name_alg.digest(&[&self.to_bytes()]));
        Name(name)
    }

    /// The SubjectPublicKeyInfo DER of the key (RFC 5280, 4.1), after checking that the numbers are
    /// a key.
    ///
    /// # Errors
    /// [`TpmError::Key`] where the numbers are no key.
    pub fn spki(&self) -> Result<Vec<u8>, TpmError> {
        use p256::pkcs8::EncodePublicKey as _;
        let document = match &self.key {
            Key::Rsa { .. } => self.rsa()?.to_public_key_der(),
            Key::Ecc {
                curve: Curve::P256, ..
            } => self.p256()?.to_public_key_der(),
            Key::Ecc {
                curve: Curve::P384, ..
            } => self.p384()?.to_public_key_der(),
        };
        document
            .map(p256::pkcs8::Document::into_vec)
            .map_err(|_unencodable| TpmError::Key)
    }

    /// As an RSA key.
    ///
    /// # Errors
    /// [`TpmError::Key`] where it is no RSA key, or the modulus has not the length that is
    /// declared.
    pub fn rsa(&self) -> Result<rsa::RsaPublicKey, TpmError> {
        let Key::Rsa {
            exponent,
            modulus,
            bits,
            ..
        } = &self.key
        else {
            return Err(TpmError::Key);
        };
        if modulus.len() * 8 != usize::from(*bits)
            || modulus.first().is_none_or(|byte| byte & 0x80 == 0)
        {
            return Err(TpmError::Key);
        }
        let exponent = if *exponent == 0 { 65537 } else { *exponent };
        rsa::RsaPublicKey::new(
            rsa::BigUint::from_bytes_be(modulus),
            rsa::BigUint::from(exponent),
        )
        .map_err(|_not_a_key| TpmError::Key)
    }

    /// As a P-256 key; the point is checked to be on the curve.
    ///
    /// # Errors
    /// [`TpmError::Key`] where it is of another curve, or the point is not on it.
    pub fn p256(&self) -> Result<p256::PublicKey, TpmError> {
        p256::PublicKey::from_sec1_bytes(&self.sec1(Curve::P256)?)
            .map_err(|_not_a_point| TpmError::Key)
    }

    /// As a P-384 key; the point is checked to be on the curve.
    ///
    /// # Errors
    /// [`TpmError::Key`] where it is of another curve, or the point is not on it.
    pub fn p384(&self) -> Result<p384::PublicKey, TpmError> {
        p384::PublicKey::from_sec1_bytes(&self.sec1(Curve::P384)?)
            .map_err(|_not_a_point| TpmError::Key)
    }

    /// The uncompressed point (SEC 1, 2.3.3), not checked to be on the curve.
    pub(super) fn sec1(&self, wanted: Curve) -> Result<Vec<u8>, TpmError> {
        let Key::Ecc { curve, x, y, .. } = &self.key else {
            return Err(TpmError::Key);
        };
        if *curve != wanted {
            return Err(TpmError::Key);
        }
        let mut point = vec![4];
        for coordinate in [x, y] {
            point.extend_from_slice(&left_pad(coordinate, wanted.size()).ok_or(TpmError::Key)?);
        }
        Ok(point)
    }
}

/// Zeros before a big-endian number up to `size` bytes; nothing if it is longer.
pub(super) fn left_pad(bytes: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut out = vec![0; size.checked_sub(bytes.len())?];
    out.extend_from_slice(bytes);
    Some(out)
}

fn curve_id(curve: Curve) -> u16 {
    match curve {
        Curve::P256 => 0x0003,
        Curve::P384 => 0x0004,
    }
}

fn read_symmetric(reader: &mut Reader<'_>) -> Result<Symmetric, TpmError> {
    let algorithm = reader.u16()?;
    if algorithm == ALG_NULL {
        return Ok(Symmetric::Null);
    }
    if algorithm != ALG_AES {
        return Err(TpmError::Unsupported("symmetric algorithm", algorithm));
    }
    let bits = reader.u16()?;
    let mode = reader.u16()?;
    if mode != ALG_CFB {
        return Err(TpmError::Unsupported("symmetric mode", mode));
    }
    match bits {
        128 => Ok(Symmetric::Aes128Cfb),
        256 => Ok(Symmetric::Aes256Cfb),
        other => Err(TpmError::Unsupported("AES key size", other)),
    }
}

fn put_symmetric(out: &mut Vec<u8>, symmetric: Symmetric) {
    let bits: u16 = match symmetric {
        Symmetric::Null => return out.extend_from_slice(&ALG_NULL.to_be_bytes()),
        Symmetric::Aes128Cfb => 128,
        Symmetric::Aes256Cfb => 256,
    };
    for word in [ALG_AES, bits, ALG_CFB] {
        out.extend_from_slice(&word.to_be_bytes());
    }
}

fn read_rsa(reader: &mut Reader<'_>, symmetric: Symmetric) -> Result<Key, TpmError> {
    let scheme = reader.u16()?;
    if scheme != ALG_NULL {
        return Err(TpmError::Unsupported("RSA scheme", scheme));
    }
    let bits = reader.u16()?;
    let exponent = reader.u32()?;
    let modulus = reader.sized(512)?.to_vec();
    Ok(Key::Rsa {
        symmetric,
        bits,
        exponent,
        modulus,
    })
}

fn read_ecc(reader: &mut Reader<'_>, symmetric: Symmetric) -> Result<Key, TpmError> {
    let scheme = match reader.u16()? {
        ALG_NULL => Scheme::Null,
        ALG_ECDSA => Scheme::Ecdsa(HashAlg::from_id(reader.u16()?)?),
        other => return Err(TpmError::Unsupported("ECC scheme", other)),
    };
    let curve = match reader.u16()? {
        0x0003 => Curve::P256,
        0x0004 => Curve::P384,
        other => return Err(TpmError::Unsupported("curve", other)),
    };
    let kdf = reader.u16()?;
    if kdf != ALG_NULL {
        return Err(TpmError::Unsupported("KDF", kdf));
    }
    let x = reader.sized(curve.size())?.to_vec();
    let y = reader.sized(curve.size())?.to_vec();
    Ok(Key::Ecc {
        symmetric,
        scheme,
        curve,
        x,
        y,
    })
}
