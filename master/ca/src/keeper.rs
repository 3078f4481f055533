//! Keepers of the cluster's private keys: the machine's TPM, or a file that only root can read.

use crate::attestor::{Attestor, AttestorError};
use crate::error::{Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use zeroize::Zeroizing;

/// Keeps secrets at rest.
///
/// Guarantee: what `seal` returns may be written to disk, and `open` of it with the same purpose
/// gives the secret back on the same machine. It does not prove who sealed: the caller compares an
/// opened key with its known public half. Assumption: the caller keeps the returned bytes whole.
pub trait Keeper: fmt::Debug + Send + Sync {
    /// Name in files and messages.
    fn name(&self) -> &'static str;
    /// How to start a master with this keeper; part of the error if another keeper is in use.
    fn cure(&self) -> &'static str;
    /// Encrypts a secret for the disk.
    ///
    /// # Errors
    /// The keeper (a TPM, through the agent) cannot be reached or fails.
    fn seal(&self, purpose: &str, secret: &[u8]) -> Result<Vec<u8>>;
    /// The reverse.
    ///
    /// # Errors
    /// As [`Keeper::seal`]; and where `kept` is damaged, of another purpose, of another machine, or
    /// of a boot that is not approved.
    fn open(&self, purpose: &str, kept: &[u8]) -> Result<Zeroizing<Vec<u8>>>;
    /// The lowest image version (SVN) that can open what is sealed now; `None` if any boot of the
    /// machine can. It never decreases.
    ///
    /// # Errors
    /// The keeper cannot be reached or fails.
    fn floor(&self) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Opens a secret that was sealed before the keeper had a floor, and no other: to seal it
    /// again.
    ///
    /// # Errors
    /// As [`Keeper::open`].
    fn open_unbound(&self, purpose: &str, kept: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
        self.open(purpose, kept)
    }
}

/// Keeps keys in plain files with mode 0600: for hosts without a TPM.
#[derive(Debug, Clone, Copy, Default)]
pub struct FileKeeper;

impl Keeper for FileKeeper {
    fn name(&self) -> &'static str {
        "file"
    }

    fn cure(&self) -> &'static str {
        "with --attestor SOCKET"
    }

    fn seal(&self, _purpose: &str, secret: &[u8]) -> Result<Vec<u8>> {
        Ok(secret.to_vec())
    }

    fn open(&self, _purpose: &str, kept: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
        Ok(Zeroizing::new(kept.to_vec()))
    }
}

/// Keeps keys sealed to the machine's TPM, through the agent behind the attestor socket.
#[derive(Debug, Clone)]
pub struct AttestorKeeper {
    attestor: Attestor,
}

impl AttestorKeeper {
    /// A keeper behind a socket.
    pub fn new(attestor: Attestor) -> Self {
        Self { attestor }
    }
}

impl Keeper for AttestorKeeper {
    fn name(&self) -> &'static str {
        "tpm"
    }

    fn cure(&self) -> &'static str {
        "without --attestor"
    }

    fn seal(&self, purpose: &str, secret: &[u8]) -> Result<Vec<u8>> {
        // The purpose is sealed with the secret, so that one sealed file cannot be put in the place
        // of another.
        let mut text = Zeroizing::new(purpose.as_bytes().to_vec());
        text.push(0);
        text.extend_from_slice(secret);
        self.attestor.seal(&text).map_err(|source| Error::Keeper {
            what: "seal a key",
            source,
        })
    }

    fn open(&self, purpose: &str, kept: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
        of_purpose(purpose, self.attestor.unseal(kept))
    }

    fn floor(&self) -> Result<Option<u64>> {
        self.attestor.floor().map_err(|source| Error::Keeper {
            what: "report which boots may open the cluster's keys",
            source,
        })
    }

    fn open_unbound(&self, purpose: &str, kept: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
        of_purpose(purpose, self.attestor.unseal_unbound(kept))
    }
}

/// The secret in unsealed data, if it was sealed for this purpose.
pub(crate) fn of_purpose(
    purpose: &str,
    unsealed: std::result::Result<Vec<u8>, AttestorError>,
) -> Result<Zeroizing<Vec<u8>>> {
    let text = unsealed
        .map(Zeroizing::new)
        .map_err(|source| Error::Keeper {
            what: "unseal a key",
            source,
        })?;
    text.strip_prefix(purpose.as_bytes())
        .and_then(|rest| rest.strip_prefix(&[0]))
        .map(|secret| Zeroizing::new(secret.to_vec()))
        .ok_or(Error::Key("a sealed key is for another purpose"))
}

/// One kept secret on disk: the keeper's name, and the sealed bytes.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptSecret {
    version: u32,
    keeper: String,
    secret: String,
}

/// Writes a secret through its keeper; the file appears whole or not at all.
pub(crate) fn store(keeper: &dyn Keeper, path: &Path, purpose: &str, plain: &[u8]) -> Result<()> {
    write(keeper, path, &keeper.seal(purpose, plain)?)
}

/// Replaces the only copy of a secret: the new seal is opened as a test before the old one is
/// removed.
pub(crate) fn replace(keeper: &dyn Keeper, path: &Path, purpose: &str, plain: &[u8]) -> Result<()> {
    let kept = keeper.seal(purpose, plain)?;
    if keeper.open(purpose, &kept)?.as_slice() != plain {
        return Err(Error::Key("unsealing a new seal gave another secret"));
    }
    write(keeper, path, &kept)
}

fn write(keeper: &dyn Keeper, path: &Path, kept: &[u8]) -> Result<()> {
    let record = KeptSecret {
        version: 1,
        keeper: keeper.name().to_owned(),
        secret: STANDARD.encode(kept),
    };
    let text = serde_json::to_vec(&record)
        .map_err(|_opaque| Error::Key("a kept key cannot be encoded"))?;
    write_whole(path, &text)
}

/// Reads a secret through its keeper.
pub(crate) fn load(keeper: &dyn Keeper, path: &Path, purpose: &str) -> Result<Zeroizing<Vec<u8>>> {
    keeper.open(purpose, &read(keeper, path)?)
}

/// Reads a secret from before the keeper had a floor.
pub(crate) fn load_unbound(
    keeper: &dyn Keeper,
    path: &Path,
    purpose: &str,
) -> Result<Zeroizing<Vec<u8>>> {
    keeper.open_unbound(purpose, &read(keeper, path)?)
}

/// The sealed bytes.
fn read(keeper: &dyn Keeper, path: &Path) -> Result<Vec<u8>> {
    let text = std::fs::read(path).map_err(|source| file("cannot read", path, source))?;
    let damaged = |why: &str| Error::Damaged {
        path: path.to_owned(),
        why: why.to_owned(),
    };
    let record: KeptSecret = serde_json::from_slice(&text).map_err(|e| damaged(&e.to_string()))?;
    if record.version != 1 {
        return Err(damaged("its version is not known to this program"));
    }
    if record.keeper != keeper.name() {
        return Err(Error::OtherKeeper {
            path: path.to_owned(),
            found: record.keeper,
            using: keeper.name(),
            cure: keeper.cure(),
        });
    }
    STANDARD
        .decode(&record.secret)
        .map_err(|e| damaged(&e.to_string()))
}

/// Writes a file with mode 0600: a temporary file, a sync and a rename.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let fail = |source| file("cannot write", path, source);
    let neighbour = path.with_extension("new");
    let mut open = std::fs::OpenOptions::new();
    let mut target = open
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&neighbour)
        .map_err(fail)?;
    target
        .write_all(bytes)
        .and_then(|()| target.sync_all())
        .map_err(fail)?;
    std::fs::rename(&neighbour, path).map_err(fail)?;
    if let Some(folder) = path.parent() {
        std::fs::File::open(folder)
            .and_then(|f| f.sync_all())
            .map_err(fail)?;
    }
    Ok(())
}

pub(crate) fn file(what: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::File {
        what,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_file_keeper_writes_only_for_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("k");
        store(&FileKeeper, &path, "test", b"secret").unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(
            load(&FileKeeper, &path, "test").unwrap().as_slice(),
            b"secret"
        );
    }

    #[test]
    fn a_key_of_another_keeper_is_named_with_the_cure() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("k");
        store(&FileKeeper, &path, "test", b"secret").unwrap();
        let other = AttestorKeeper::new(Attestor::new(Path::new("/nowhere")));
        let error = load(&other, &path, "test").unwrap_err().to_string();
        assert!(
            error.contains("`file`") && error.contains("without --attestor"),
            "{error}"
        );
    }
}
