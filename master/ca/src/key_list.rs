//! The list of the keys that the cluster keeps: their public halves, and the lowest image version
//! that can open them.
//!
//! A seal hides a key and does not prove who made it: the owner of the TPM's hierarchy can seal
//! another key and put it into the folder. So a key is used only if its public half is known: those
//! of roots, intermediates and the verdict log by their certificates, the others by this list,
//! which every root in force signs. It names these roots, too: a root that somebody put beside the
//! cluster's own has no signature of that one.
//!
//! The list is on disk before the first seal with a boot policy. A folder that has such a seal and
//! no list has lost the list, and is refused; one that has neither is from before boot policies,
//! and is migrated once ([`settle`]).

use crate::error::{Error, Result};
use crate::hierarchy::{self, ROOT_KEY, State};
use crate::keeper::{self, Keeper};
use crate::names::{spki_hash, spki_of};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{KeyPair, PublicKeyData as _, SigningKey as _};
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// File of the list.
pub(crate) const FILE: &str = "kept-keys.json";
/// Largest file that is read; a list has a few hundred bytes, and a signature for each root.
const LIMIT: u64 = 16 * 1024;
/// The prefix of the signed bytes, so that no other signature of a root is valid for a list.
const CONTEXT: &[u8] = b"pratique kept keys/v1\0";

/// The keys that have no certificate, and the floor of all seals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct KeyList {
    /// The lowest image version (SVN) that can open every kept key; `None` if any boot can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) floor: Option<u64>,
    /// For each purpose the hashes of the allowed public keys (SubjectPublicKeyInfo): one, or two
    /// while a key is replaced, and all that were retired.
    keys: BTreeMap<String, BTreeSet<String>>,
}

/// The file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignedKeyList {
    version: u32,
    /// JSON of a [`KeyList`], as it was signed.
    list: String,
    /// ECDSA P-256 signatures (base64 of DER) by the roots in force.
    signatures: Vec<String>,
}

impl KeyList {
    /// A list of no keys.
    pub(crate) fn new(floor: Option<u64>) -> Self {
        let keys = BTreeMap::new();
        Self { floor, keys }
    }

    /// The list of a folder, if it has one.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] where one of the roots did not sign it, [`Error::Planted`] where it names
    /// other roots.
    pub(crate) fn read(folder: &Path, roots: &[CertificateDer<'_>]) -> Result<Option<Self>> {
        let path = folder.join(FILE);
        let mut text = String::new();
        match std::fs::File::open(&path) {
            Ok(file) => file.take(LIMIT).read_to_string(&mut text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => Err(error),
        }
        .map_err(|source| keeper::file("cannot read", &path, source))?;
        let damaged = |why: &str| Error::Damaged {
            path: path.clone(),
            why: why.to_owned(),
        };
        let signed: SignedKeyList =
            serde_json::from_str(&text).map_err(|error| damaged(&error.to_string()))?;
        if signed.version != 1 {
            return Err(damaged("its version is not known to this program"));
        }
        let message = [CONTEXT, signed.list.as_bytes()].concat();
        let by = |root: &CertificateDer<'_>| {
            let signatures = signed.signatures.iter();
            signatures
                .filter_map(|text| STANDARD.decode(text).ok())
                .any(|signature| is_signed_by(root, &message, &signature))
        };
        if roots.is_empty() || !roots.iter().all(by) {
            return Err(damaged("not every root in force signed it"));
        }
        let list: Self =
            serde_json::from_str(&signed.list).map_err(|error| damaged(&error.to_string()))?;
        // Earlier versions named no roots: their lists do with the next write.
        if list.keys.contains_key(ROOT_KEY) {
            for root in roots {
                let spki = spki_of(root).unwrap_or_default();
                list.check_public(&path, ROOT_KEY, &spki)?;
            }
        }
        Ok(Some(list))
    }

    /// Writes it atomically, with the names of these roots, signed by their keys.
    pub(crate) fn write(&self, folder: &Path, roots: &[KeyPair]) -> Result<()> {
        let encode = |_opaque| Error::Key("the list of kept keys cannot be encoded");
        let mut list = self.clone();
        list.keys.remove(ROOT_KEY);
        for root in roots {
            list.allow(ROOT_KEY, root);
        }
        let list = serde_json::to_string(&list).map_err(encode)?;
        let message = [CONTEXT, list.as_bytes()].concat();
        let sign = |key: &KeyPair| {
            let signature = key.sign(&message).map_err(|source| Error::Build {
                profile: "list of kept keys",
                source,
            })?;
            Ok(STANDARD.encode(signature))
        };
        let signatures = roots.iter().map(sign).collect::<Result<_>>()?;
        let signed = SignedKeyList {
            version: 1,
            list,
            signatures,
        };
        let text = serde_json::to_vec(&signed).map_err(encode)?;
        keeper::write_whole(&folder.join(FILE), &text)
    }

    /// Adds a key to those that are allowed for a purpose.
    pub(crate) fn allow(&mut self, purpose: &str, key: &KeyPair) {
        let hash = spki_hash(&key.subject_public_key_info());
        self.keys
            .entry(purpose.to_owned())
            .or_default()
            .insert(hash);
    }

    /// Allows only this key for a purpose.
    pub(crate) fn allow_only(&mut self, purpose: &str, key: &KeyPair) {
        self.keys.remove(purpose);
        self.allow(purpose, key);
    }

    /// Checks that an opened key (PKCS#8) is one that the roots listed.
    ///
    /// # Errors
    ///
    /// [`Error::Planted`] if it is another.
    pub(crate) fn check(&self, path: &Path, purpose: &'static str, pkcs8: &[u8]) -> Result<()> {
        let spki = key_pair(pkcs8)?.subject_public_key_info();
        self.check_public(path, purpose, &spki)
    }

    /// Checks that a public key (SubjectPublicKeyInfo DER) is one that the roots listed.
    ///
    /// # Errors
    ///
    /// [`Error::Planted`] if it is another.
    pub(crate) fn check_public(
        &self,
        path: &Path,
        purpose: &'static str,
        spki: &[u8],
    ) -> Result<()> {
        let listed = self.keys.get(purpose);
        if listed.is_some_and(|hashes| hashes.contains(&spki_hash(spki))) {
            Ok(())
        } else {
            Err(planted(path, purpose))
        }
    }
}

/// A key file, and how to know which key must be in it.
pub(crate) struct KeyFile {
    /// Its name, without folder.
    pub(crate) key: String,
    /// What it is sealed for.
    pub(crate) purpose: &'static str,
    /// Name of the file with its certificate; without one the list names its key.
    pub(crate) certificate: Option<String>,
    /// Whether a certificate of another key is the trace of an interrupted change, after which both
    /// are replaced, and not of a planted key.
    pub(crate) remade: bool,
}

/// The list of a folder that has its roots. If the keeper's floor is higher than the list's, every
/// key is sealed again first: at a machine's first start with a policy, and after the admission of
/// a newer image. A power cut at any step is safe: keys that were not sealed again still open, and
/// the next start continues.
///
/// # Errors
///
/// [`Error::Planted`] where a key is not the one that its certificate or the list names;
/// [`Error::Keeper`] where a seal does not open, including a seal without a policy in a folder
/// whose seals must have one.
pub(crate) fn settle(
    folder: &Path,
    keeper: &dyn Keeper,
    state: &State,
    places: &[KeyFile],
) -> Result<KeyList> {
    let roots = hierarchy::read_roots(folder, state)?;
    let list = KeyList::read(folder, &roots)?;
    let wanted = keeper.floor()?;
    let list = match list {
        Some(list) => list,
        None => adopt(folder, keeper, state, places)?,
    };
    if wanted <= list.floor {
        return Ok(list);
    }
    for place in places {
        seal_again(folder, keeper, place, &list)?;
    }
    let list = KeyList {
        floor: wanted,
        ..list
    };
    list.write(folder, &hierarchy::root_keys(folder, keeper, state)?)?;
    Ok(list)
}

/// Lists the keys of a folder from before there were lists. Only seals without a policy are
/// accepted: if one has a policy, there was a list.
fn adopt(folder: &Path, keeper: &dyn Keeper, state: &State, places: &[KeyFile]) -> Result<KeyList> {
    let mut list = KeyList::new(None);
    for place in places.iter().filter(|place| place.certificate.is_none()) {
        let opened = keeper::load_unbound(keeper, &folder.join(&place.key), place.purpose);
        if let Some(der) = found(opened)? {
            list.allow(place.purpose, &key_pair(&der)?);
        }
    }
    let mut roots = Vec::new();
    for name in state.roots() {
        let path = folder.join(format!("{name}.key"));
        let der = keeper::load_unbound(keeper, &path, ROOT_KEY)?;
        let certificate = hierarchy::read_certificate(&folder.join(format!("{name}.crt")))?;
        check(&path, ROOT_KEY, &der, &certificate)?;
        roots.push(key_pair(&der)?);
    }
    list.write(folder, &roots)?;
    Ok(list)
}

/// Seals one key with the keeper's present policy. The old seal is replaced after the new one was
/// opened as a test.
fn seal_again(folder: &Path, keeper: &dyn Keeper, place: &KeyFile, list: &KeyList) -> Result<()> {
    let path = folder.join(&place.key);
    let open = || keeper::load(keeper, &path, place.purpose);
    let opened = if list.floor.is_none() {
        keeper::load_unbound(keeper, &path, place.purpose).or_else(|_bound| open())
    } else {
        open()
    };
    let Some(der) = found(opened)? else {
        return Ok(());
    };
    match &place.certificate {
        None => list.check(&path, place.purpose, &der)?,
        Some(name) => {
            let Some(certificate) = found(hierarchy::read_certificate(&folder.join(name)))? else {
                return Ok(());
            };
            match check(&path, place.purpose, &der, &certificate) {
                Err(Error::Planted { .. }) if place.remade => return Ok(()),
                checked => checked?,
            }
        }
    }
    keeper::replace(keeper, &path, place.purpose, &der)
}

/// Checks that an opened key (PKCS#8) is the one in its certificate.
///
/// # Errors
///
/// [`Error::Planted`] if it is another.
pub(crate) fn check(
    path: &Path,
    purpose: &'static str,
    pkcs8: &[u8],
    certificate: &CertificateDer<'_>,
) -> Result<()> {
    let spki = key_pair(pkcs8)?.subject_public_key_info();
    if spki_of(certificate).is_some_and(|named| named == spki) {
        Ok(())
    } else {
        Err(planted(path, purpose))
    }
}

fn planted(path: &Path, purpose: &'static str) -> Error {
    Error::Planted {
        path: path.to_owned(),
        purpose,
    }
}

/// A key from its PKCS#8.
pub(crate) fn key_pair(pkcs8: &[u8]) -> Result<KeyPair> {
    KeyPair::try_from(pkcs8).map_err(|source| Error::Build {
        profile: "stored key",
        source,
    })
}

/// The result, with `None` for a missing file.
fn found<T>(outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Ok(None)
        }
        outcome => outcome.map(Some),
    }
}

fn is_signed_by(root: &CertificateDer<'_>, message: &[u8], signature: &[u8]) -> bool {
    let Ok((_, root)) = X509Certificate::from_der(root) else {
        return false;
    };
    let point = &root.public_key().subject_public_key.data;
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point)
        .verify(message, signature)
        .is_ok()
}
