//! From a set to package files in the cache, by the lock file, or by the archive if the locked
//! versions are gone.
//!
//! Mirrors keep current versions only. If one locked package of a set is neither cached nor on the
//! mirror, the whole set is resolved again (its packages depend on one another's versions), the
//! caller is informed, and the result is written to `packages.local.lock` in the cache, so that the
//! next build uses the same versions. [`Fetcher::locked`] refuses instead.

use crate::apt::{AptError, Resolved, State};
use crate::lock::{Lock, LockError, Locked};
use crate::sets::Set;
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The file in the cache that records the versions used in place of locked ones that are gone.
pub const LOCAL_LOCK: &str = "packages.local.lock";

/// A package file that is present and has the digest it should have.
#[derive(Debug, Clone)]
pub struct Package {
    /// Name, version and digest.
    pub locked: Locked,
    /// The file.
    pub path: PathBuf,
}

/// Why packages could not be brought.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// apt failed.
    #[error("packages of set {set} cannot be fetched")]
    Apt {
        /// The set.
        set: String,
        /// The cause.
        #[source]
        source: AptError,
    },
    /// The lock file is not usable.
    #[error("the lock cannot be used")]
    Lock(#[from] LockError),
    /// The cache can't be used.
    #[error("cannot use the package cache at {path}")]
    Cache {
        /// The path.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The lock's versions are gone and nothing else is allowed.
    #[error("set {set}: {} of the lock are not on the mirror any more and --locked allows no other version: {}", names.len(), names.join(", "))]
    Gone {
        /// The set.
        set: String,
        /// `name version` of each.
        names: Vec<String>,
    },
    /// A file came with another digest than the lock or the archive says.
    #[error("package {name}: digest is {found}, expected {expected}; the file was removed")]
    Digest {
        /// The package.
        name: String,
        /// Found, hex.
        found: String,
        /// Expected, hex.
        expected: String,
    },
    /// apt reported a download, but the file is missing.
    #[error("package {name} did not arrive in {folder}")]
    Missing {
        /// The package.
        name: String,
        /// Where it was expected.
        folder: String,
    },
}

/// Brings packages into a cache.
#[derive(Debug, Clone)]
pub struct Fetcher {
    /// Folder of package files and apt's private state.
    pub cache: PathBuf,
    /// The lock file of the repository.
    pub lock: PathBuf,
    /// Refuse any version but the lock's.
    pub locked: bool,
    /// Called with messages for the person who runs the build.
    pub notice: fn(&str),
}

impl Fetcher {
    /// The result of [`Self::fetch`], without reading the files; `None` if it would have to
    /// download.
    ///
    /// # Errors
    /// A lock file cannot be read.
    pub fn planned(&self, set: &Set) -> Result<Option<Vec<Package>>, FetchError> {
        let mut candidates = vec![self.lock.clone()];
        if !self.locked {
            candidates.push(self.cache.join(LOCAL_LOCK));
        }
        for path in candidates {
            let chosen = Lock::read(&path)?.packages(set);
            if !chosen.is_empty() && chosen.iter().all(|p| self.file(&p.sha256).exists()) {
                if path != self.lock {
                    (self.notice)(&format!(
                        "set {}: not the lock's versions, but those of {}",
                        set.name,
                        path.display()
                    ));
                }
                return Ok(Some(self.named(chosen)));
            }
        }
        Ok(None)
    }

    /// The packages of a set, each with the digest that the lock or the signed archive gives it.
    ///
    /// # Errors
    /// A package cannot be fetched in the version that is locked, a file has another digest, or the
    /// cache cannot be written.
    pub fn fetch(&self, set: &Set) -> Result<Vec<Package>, FetchError> {
        let debs = self.cache.join("debs");
        std::fs::create_dir_all(&debs).map_err(|source| self.fault(&debs, source))?;
        let local = self.cache.join(LOCAL_LOCK);
        let mut chosen = Lock::read(&self.lock)?.packages(set);
        if !self.locked && !self.absent(&chosen)?.is_empty() {
            let again = Lock::read(&local)?.packages(set);
            if !again.is_empty() && self.absent(&again)?.is_empty() {
                (self.notice)(&format!(
                    "set {}: not the lock's versions, but those of {}",
                    set.name,
                    local.display()
                ));
                return Ok(self.named(again));
            }
        }
        let absent = self.absent(&chosen)?;
        if chosen.is_empty() || !absent.is_empty() {
            chosen = self.bring(set, chosen, &absent)?;
        }
        Ok(self.named(chosen))
    }

    /// Resolves sets again and writes the lock file.
    ///
    /// # Errors
    /// The archive cannot be reached or resolves no such set, or the lock file cannot be written.
    pub fn relock(&self, sets: &[Set]) -> Result<(), FetchError> {
        let mut lock = Lock::default();
        for set in sets {
            let found = resolve(set, &self.apt(set, lock.set.is_empty())?)?;
            lock.set.insert(set.name.clone(), found);
        }
        Ok(lock.write(&self.lock)?)
    }

    fn apt(&self, set: &Set, fresh: bool) -> Result<State, FetchError> {
        let fault = |source| FetchError::Apt {
            set: set.name.clone(),
            source,
        };
        let state = State::open(&self.cache.join("apt")).map_err(fault)?;
        if fresh || !state.has_lists() {
            (self.notice)("fetching the archive's lists");
            state.update().map_err(fault)?;
        }
        Ok(state)
    }

    /// Downloads missing packages; if the locked versions are gone, resolves the set again.
    fn bring(
        &self,
        set: &Set,
        wanted: Vec<Locked>,
        absent: &[Locked],
    ) -> Result<Vec<Locked>, FetchError> {
        let guard = self.cache.join(".lock");
        let guard = std::fs::File::create(&guard).map_err(|source| self.fault(&guard, source))?;
        guard
            .lock()
            .map_err(|source| self.fault(&self.cache, source))?;
        if wanted.is_empty() {
            let apt = if self.locked {
                None
            } else {
                Some(self.apt(set, true)?)
            };
            let gone = || FetchError::Gone {
                set: set.name.clone(),
                names: set.roots.clone(),
            };
            return self.take_current(set, &apt.ok_or_else(gone)?);
        }
        (self.notice)(&format!(
            "set {}: downloading {} of {} packages",
            set.name,
            absent.len(),
            wanted.len()
        ));
        if self.download(&self.apt(set, false)?, absent).is_ok() {
            return Ok(wanted);
        }
        let fresh = self.apt(set, true)?;
        let Err(error) = self.download(&fresh, absent) else {
            return Ok(wanted);
        };
        let current = resolve(set, &fresh)?;
        let gone: Vec<_> = self
            .absent(&wanted)?
            .into_iter()
            .filter(|p| !current.contains(p))
            .collect();
        if gone.is_empty() {
            return Err(error);
        }
        let names: Vec<_> = gone
            .iter()
            .map(|p| format!("{} {}", p.name, p.version))
            .collect();
        if self.locked {
            return Err(FetchError::Gone {
                set: set.name.clone(),
                names,
            });
        }
        (self.notice)(&format!(
            "NOTICE: set {}: the lock's versions are not on the mirror any more ({}); taking the archive's current ones",
            set.name,
            names.join(", ")
        ));
        self.take_current(set, &fresh)
    }

    /// Takes the archive's current versions and records them.
    fn take_current(&self, set: &Set, apt: &State) -> Result<Vec<Locked>, FetchError> {
        let current = resolve(set, apt)?;
        let absent = self.absent(&current)?;
        (self.notice)(&format!(
            "set {}: downloading {} of {} packages",
            set.name,
            absent.len(),
            current.len()
        ));
        self.download(apt, &absent)?;
        let path = self.cache.join(LOCAL_LOCK);
        let mut local = Lock::read(&path)?;
        local.set.insert(set.name.clone(), current.clone());
        local.write(&path)?;
        (self.notice)(&format!(
            "set {}: what was taken is recorded in {}",
            set.name,
            path.display()
        ));
        Ok(current)
    }

    fn fault(&self, path: &Path, source: std::io::Error) -> FetchError {
        let path = if path.as_os_str().is_empty() {
            &self.cache
        } else {
            path
        };
        FetchError::Cache {
            path: path.display().to_string(),
            source,
        }
    }

    fn file(&self, sha256: &str) -> PathBuf {
        self.cache.join("debs").join(format!("{sha256}.deb"))
    }

    fn named(&self, chosen: Vec<Locked>) -> Vec<Package> {
        chosen
            .into_iter()
            .map(|locked| Package {
                path: self.file(&locked.sha256),
                locked,
            })
            .collect()
    }

    /// Those that are not in the cache. A cached file whose digest is wrong is removed and counts
    /// as absent.
    fn absent(&self, wanted: &[Locked]) -> Result<Vec<Locked>, FetchError> {
        let mut out = Vec::new();
        for package in wanted {
            let path = self.file(&package.sha256);
            if !path.exists() {
                out.push(package.clone());
            } else if digest(&path).map_err(|source| self.fault(&path, source))? != package.sha256 {
                std::fs::remove_file(&path).map_err(|source| self.fault(&path, source))?;
                out.push(package.clone());
            }
        }
        Ok(out)
    }

    fn download(&self, apt: &State, wanted: &[Locked]) -> Result<(), FetchError> {
        let folder = self.cache.join(format!("incoming.{}", std::process::id()));
        let result = self.download_into(apt, wanted, &folder);
        let _gone = std::fs::remove_dir_all(&folder);
        result
    }

    fn download_into(
        &self,
        apt: &State,
        wanted: &[Locked],
        folder: &Path,
    ) -> Result<(), FetchError> {
        if wanted.is_empty() {
            return Ok(());
        }
        std::fs::create_dir_all(folder).map_err(|source| self.fault(folder, source))?;
        apt.download(wanted, folder)
            .map_err(|source| FetchError::Apt {
                set: "download".to_owned(),
                source,
            })?;
        let fault = |source| self.fault(folder, source);
        for entry in std::fs::read_dir(folder).map_err(fault)? {
            let path = entry.map_err(fault)?.path();
            let found = digest(&path).map_err(fault)?;
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let package = name.split('_').next().unwrap_or_default();
            if let Some(expected) = wanted.iter().find(|p| p.name == package).map(|p| &p.sha256)
                && *expected != found
            {
                return Err(FetchError::Digest {
                    name,
                    found,
                    expected: expected.clone(),
                });
            }
            std::fs::rename(&path, self.file(&found)).map_err(fault)?;
        }
        match self.absent(wanted)?.first() {
            None => Ok(()),
            Some(p) => Err(FetchError::Missing {
                name: p.name.clone(),
                folder: folder.display().to_string(),
            }),
        }
    }
}

/// The closure of a set's roots in the archive, less what the set leaves out, sorted.
fn resolve(set: &Set, apt: &State) -> Result<Vec<Locked>, FetchError> {
    let found = apt.resolve(&set.roots).map_err(|source| FetchError::Apt {
        set: set.name.clone(),
        source,
    })?;
    let mut kept: Vec<_> = found
        .into_iter()
        .filter(|p| set.keeps(&p.name))
        .map(
            |Resolved {
                 name,
                 version,
                 sha256,
                 size: _,
             }| Locked {
                name,
                version,
                sha256,
            },
        )
        .collect();
    kept.sort();
    Ok(kept)
}

/// SHA-256 of a file, hex.
///
/// # Errors
/// The file can't be opened, or not be read to its end.
pub fn digest(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    loop {
        match file.read(&mut block)? {
            0 => return Ok(hex::encode(hash.finalize())),
            n => hash.update(&block[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn fetcher(folder: &Path, locked: bool) -> Fetcher {
        Fetcher {
            cache: folder.join("cache"),
            lock: folder.join("packages.lock"),
            locked,
            notice: |_| {},
        }
    }

    fn set() -> Set {
        Set {
            name: "few".into(),
            roots: vec!["a".into()],
            leave_out: Vec::new(),
        }
    }

    fn lock_one(folder: &Path, content: &[u8]) -> Locked {
        let sha256 = hex::encode(Sha256::digest(content));
        let locked = Locked {
            name: "a".into(),
            version: "1".into(),
            sha256,
        };
        let lock = Lock {
            set: BTreeMap::from([("few".to_owned(), vec![locked.clone()])]),
        };
        lock.write(&folder.join("packages.lock")).unwrap();
        std::fs::create_dir_all(folder.join("cache/debs")).unwrap();
        locked
    }

    #[test]
    fn what_is_cached_needs_no_network() {
        let folder = tempfile::tempdir().unwrap();
        let locked = lock_one(folder.path(), b"content");
        let fetcher = fetcher(folder.path(), true);
        std::fs::write(fetcher.file(&locked.sha256), b"content").unwrap();
        let found = fetcher.fetch(&set()).unwrap();
        assert_eq!(found[0].locked, locked);
    }

    #[test]
    fn a_cached_file_with_another_digest_is_thrown_away() {
        let folder = tempfile::tempdir().unwrap();
        let locked = lock_one(folder.path(), b"content");
        let fetcher = fetcher(folder.path(), true);
        let path = fetcher.file(&locked.sha256);
        std::fs::write(&path, b"tampered").unwrap();
        assert_eq!(
            fetcher.absent(std::slice::from_ref(&locked)).unwrap(),
            [locked]
        );
        assert!(!path.exists());
    }

    #[test]
    fn a_set_that_is_not_locked_is_refused_where_only_the_lock_counts() {
        let folder = tempfile::tempdir().unwrap();
        let error = fetcher(folder.path(), true).fetch(&set()).unwrap_err();
        assert!(matches!(error, FetchError::Gone { .. }), "{error}");
    }

    #[test]
    fn what_was_taken_instead_is_taken_again() {
        let folder = tempfile::tempdir().unwrap();
        lock_one(folder.path(), b"gone from the mirror");
        let fetcher = fetcher(folder.path(), false);
        let sha256 = hex::encode(Sha256::digest(b"current"));
        let instead = Locked {
            name: "a".into(),
            version: "2".into(),
            sha256,
        };
        std::fs::write(fetcher.file(&instead.sha256), b"current").unwrap();
        let local = Lock {
            set: BTreeMap::from([("few".to_owned(), vec![instead.clone()])]),
        };
        local.write(&fetcher.cache.join(LOCAL_LOCK)).unwrap();
        assert_eq!(fetcher.fetch(&set()).unwrap()[0].locked, instead);
    }
}
