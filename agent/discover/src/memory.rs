//! What a machine saves of discovery over reboots: the greatest generation, the first key, the last
//! good document.

use config_discovery::{Expected, VerifiedDocument, check};
use config_model::discovery::DiscoveryUri;
use config_model::format::Pin;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// Largest memory that is read: a signed document, as text in JSON, and little else.
const LIMIT: u64 = 4 * config_discovery::MAX_BYTES as u64;

/// The memory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The file could not be read or written.
    #[error("cannot {what} {}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Its content was not written by an agent.
    #[error("{} is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Facts {
    generation: u64,
    /// The key that was accepted first, where any was.
    key: Option<String>,
    uri: String,
    signed: String,
}

/// The memory, in one file that is replaced whole.
///
/// It is not a root of trust: an attacker who can write the state partition can make a machine
/// forget, but cannot sign, and the lowest generation in the measured configuration still holds.
#[derive(Debug)]
pub struct Memory {
    path: PathBuf,
    facts: Facts,
}

impl Memory {
    /// Reads the memory; empty where there is no file.
    ///
    /// # Errors
    /// [`MemoryError::Damaged`] where the file is no memory, [`MemoryError::File`] where it cannot
    /// be read.
    pub fn open(path: &Path) -> Result<Self, MemoryError> {
        let mut bytes = Vec::new();
        let facts = match File::open(path).and_then(|file| file.take(LIMIT).read_to_end(&mut bytes))
        {
            Ok(_) => serde_json::from_slice(&bytes).map_err(|source| MemoryError::Damaged {
                path: path.to_owned(),
                source,
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Facts::default(),
            Err(source) => {
                return Err(MemoryError::File {
                    what: "read",
                    path: path.to_owned(),
                    source,
                });
            }
        };
        Ok(Self {
            path: path.to_owned(),
            facts,
        })
    }

    /// An empty memory, in place of one that cannot be read.
    pub fn empty(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            facts: Facts::default(),
        }
    }

    /// The greatest generation ever accepted.
    pub fn generation(&self) -> u64 {
        self.facts.generation
    }

    /// The key that was accepted first.
    pub fn key(&self) -> Option<Pin> {
        self.facts.key.as_ref()?.parse().ok()
    }

    /// The last document that was accepted, if it still would be.
    pub fn last(&self, uri: &DiscoveryUri, expected: &Expected<'_>) -> Option<VerifiedDocument> {
        (self.facts.uri == uri.to_string())
            .then(|| check(self.facts.signed.as_bytes(), expected).ok())
            .flatten()
    }

    /// Saves an accepted document; it is on disk when this returns.
    pub(crate) fn keep(
        &mut self,
        uri: &DiscoveryUri,
        signed: &[u8],
        verified: &VerifiedDocument,
    ) -> Result<(), MemoryError> {
        let generation = verified.document().generation.max(self.facts.generation);
        let key = self
            .facts
            .key
            .clone()
            .or_else(|| Some(verified.key().to_string()));
        // An accepted document is JSON, so it is text.
        let signed = String::from_utf8_lossy(signed).into_owned();
        let facts = Facts {
            generation,
            key,
            uri: uri.to_string(),
            signed,
        };
        let file = |what| {
            let path = self.path.clone();
            move |source| MemoryError::File { what, path, source }
        };
        let text = serde_json::to_vec(&facts).map_err(|source| MemoryError::Damaged {
            path: self.path.clone(),
            source,
        })?;
        write_whole(&self.path, &text).map_err(file("write"))?;
        self.facts = facts;
        Ok(())
    }
}

/// Writes a temporary file, syncs and renames it, so that a power cut leaves the old or the new
/// content.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let neighbour = path.with_extension("new");
    let mut file = File::create(&neighbour)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&neighbour, path)?;
    path.parent()
        .map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
