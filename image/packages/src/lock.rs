//! The lock file: which version of which package, and its digest, for each set.

use crate::sets::Set;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// One package of a set, as locked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Locked {
    /// Name.
    pub name: String,
    /// Version, with epoch and revision.
    pub version: String,
    /// SHA-256 of the package file, hex.
    pub sha256: String,
}

/// A lock file: the packages of each set, sorted by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lock {
    /// Packages by the name of the set.
    #[serde(default)]
    pub set: BTreeMap<String, Vec<Locked>>,
}

/// A lock file that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// It could not be read or written.
    #[error("cannot access lock file {path}")]
    File {
        /// The path.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// It is not a lock file.
    #[error("lock file {path} is not readable; restore it from version control")]
    Parse {
        /// The path.
        path: String,
        /// The cause.
        #[source]
        source: toml::de::Error,
    },
    /// It can't be written as text.
    #[error("cannot encode the lock file")]
    Encode(#[source] toml::ser::Error),
    /// A digest is malformed.
    #[error("lock file {path}: package {name} has the digest {sha256:?}, expected 64 hex digits")]
    Digest {
        /// The path.
        path: String,
        /// The package.
        name: String,
        /// The text in its place.
        sha256: String,
    },
}

impl Lock {
    /// Reads a lock file; a missing one is empty.
    ///
    /// # Errors
    /// The file cannot be read, or is no lock file.
    pub fn read(path: &Path) -> Result<Self, LockError> {
        let shown = path.display().to_string();
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(source) => {
                return Err(LockError::File {
                    path: shown,
                    source,
                });
            }
        };
        let lock: Self = toml::from_str(&text).map_err(|source| LockError::Parse {
            path: shown.clone(),
            source,
        })?;
        for package in lock.set.values().flatten() {
            if package.sha256.len() != 64 || !package.sha256.bytes().all(|b| b.is_ascii_hexdigit())
            {
                let (name, sha256) = (package.name.clone(), package.sha256.clone());
                return Err(LockError::Digest {
                    path: shown,
                    name,
                    sha256,
                });
            }
        }
        Ok(lock)
    }

    /// The packages of a set; none if the set has got a root since that is not among them.
    pub(crate) fn packages(mut self, set: &Set) -> Vec<Locked> {
        let packages = self.set.remove(&set.name).unwrap_or_default();
        let has = |root: &String| packages.iter().any(|package| package.name == *root);
        if set.roots.iter().all(has) {
            packages
        } else {
            Vec::new()
        }
    }

    /// Writes the lock file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), LockError> {
        std::fs::write(path, self.text()?).map_err(|source| LockError::File {
            path: path.display().to_string(),
            source,
        })
    }

    /// The lock file's text.
    ///
    /// # Errors
    /// It cannot be written as TOML.
    pub fn text(&self) -> Result<String, LockError> {
        let body = toml::to_string(self).map_err(LockError::Encode)?;
        Ok(format!(
            "# Debian packages by version and digest; `image-build lock` writes this file.\n\n{body}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("packages.lock");
        let package = Locked {
            name: "libc6".into(),
            version: "2.41-12".into(),
            sha256: "ab".repeat(32),
        };
        let lock = Lock {
            set: BTreeMap::from([("tools".to_owned(), vec![package])]),
        };
        lock.write(&path).unwrap();
        assert_eq!(Lock::read(&path).unwrap(), lock);
    }

    #[test]
    fn a_lock_that_is_older_than_a_root_of_the_set_is_not_used() {
        let package = |name: &str| Locked {
            name: name.into(),
            version: "1".into(),
            sha256: "ab".repeat(32),
        };
        let mut set = Set::kernel("amd64");
        let packages = vec![package("linux-image-6.12"), package("linux-image-amd64")];
        let lock = Lock {
            set: BTreeMap::from([(set.name.clone(), packages.clone())]),
        };
        assert_eq!(lock.clone().packages(&set), packages);
        set.roots.push("crun".into());
        assert_eq!(lock.packages(&set), []);
    }

    #[test]
    fn a_bad_digest_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("packages.lock");
        std::fs::write(
            &path,
            "[[set.tools]]\nname = \"a\"\nversion = \"1\"\nsha256 = \"xyz\"\n",
        )
        .unwrap();
        assert!(Lock::read(&path).unwrap_err().to_string().contains("xyz"));
    }
}
