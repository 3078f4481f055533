//! The configurations with which this master's machine may boot; init reads them before it starts a
//! service.
//!
//! The TPM opens the state and the cluster's keys for each image of the release key, under any
//! configuration, because the configuration is measured later. An attacker's user-data (an
//! `authorization` that allows all, a foreign `client_cas`) must not run with them. So the state
//! itself lists the allowed configurations: the one it was first used with, which the admin's
//! bootstrap attests, and from then on those in `spec.configDigests` of the master's own Machine.
//! An emptied list leaves the last one in force.
//!
//! The state is encrypted but not authenticated: an attacker could set its files back or remove
//! them. Only the state's generation is authenticated, so it also notes that the list exists.

use crate::bootstrap::write_whole;
use crate::error::Error;
use crate::state_generation::StateGeneration;
use config_kube::Machine;
use config_protocol::wire::ConfigEvent;
use std::path::{Path, PathBuf};

/// The file of allowed configurations, one digest (`sha256:` and hex) a line.
#[derive(Debug, Clone)]
pub struct Configurations {
    file: PathBuf,
}

impl Configurations {
    /// Opens the file; creates it with the configuration of this boot if there is none yet. Then
    /// notes beside the state's generation, if one is given, that the list exists.
    ///
    /// # Errors
    /// The record of the configuration event cannot be read, or a file cannot be written.
    pub fn open(
        file: PathBuf,
        event: &Path,
        generation: Option<&StateGeneration>,
    ) -> Result<Self, Error> {
        let opened = Self { file };
        let known = opened.file.try_exists().map_err(|source| Error::File {
            what: "read",
            path: opened.file.clone(),
            source,
        })?;
        if !known {
            let bytes = std::fs::read(event).map_err(|source| Error::File {
                what: "read",
                path: event.to_owned(),
                source,
            })?;
            let event: ConfigEvent =
                serde_json::from_slice(&bytes).map_err(|source| Error::Record {
                    path: event.to_owned(),
                    source,
                })?;
            opened.write(&[event.digest.to_text()])?;
        }
        if let Some(generation) = generation {
            generation.change(|state| state.listed = true)?;
        }
        Ok(opened)
    }

    /// Takes over what the master's own Machine lists.
    pub(crate) fn follow(&self, own: &Machine) {
        let mut listed = own.spec.config_digests.clone();
        listed.sort_unstable();
        listed.dedup();
        if listed.is_empty() || self.read().is_some_and(|known| known == listed) {
            return;
        }
        match self.write(&listed) {
            Ok(()) => tracing::info!(
                machine = own.metadata.name.as_deref().unwrap_or_default(),
                digests = listed.join(", "),
                "this master's machine may boot with these configurations from now on"
            ),
            Err(error) => tracing::error!(
                error = %config_errors::chain(&error),
                "the configurations of this master's machine cannot be stored: it boots only with the earlier ones"
            ),
        }
    }

    fn read(&self) -> Option<Vec<String>> {
        let text = std::fs::read_to_string(&self.file).ok()?;
        Some(text.lines().map(str::to_owned).collect())
    }

    fn write(&self, digests: &[String]) -> Result<(), Error> {
        write_whole(&self.file, format!("{}\n", digests.join("\n")).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_state::generation::{Generation, GenerationKey};

    fn digest(byte: &str) -> String {
        format!("sha256:{}", byte.repeat(32))
    }

    fn own(digests: &[&str]) -> Machine {
        let mut machine = Machine::default();
        machine.spec.config_digests = digests.iter().map(|byte| digest(byte)).collect();
        machine
    }

    #[test]
    fn the_first_configuration_counts_until_the_machine_lists_others() {
        let dir = tempfile::tempdir().unwrap();
        let (file, event) = (dir.path().join("allowed"), dir.path().join("event"));
        let generation = StateGeneration {
            file: dir.path().join("generation"),
            key: dir.path().join("key"),
        };
        let open = || Configurations::open(file.clone(), &event, Some(&generation));
        assert!(open().is_err());
        let record = |byte: &str| {
            let digest = byte.repeat(32);
            format!(
                "{{\"pcr\":13,\"label\":\"nocloud\",\"length\":3,\"digest\":\"{digest}\",\"measured\":true}}\n"
            )
        };
        std::fs::write(&event, record("0a")).unwrap();
        let opened = open().unwrap();
        let text = || std::fs::read_to_string(&file).unwrap();
        assert_eq!(text(), digest("0a") + "\n");
        // Another boot adds nothing by itself.
        std::fs::write(&event, record("0b")).unwrap();
        open().unwrap();
        assert_eq!(text(), digest("0a") + "\n");
        opened.follow(&own(&["0c", "0b", "0b"]));
        assert_eq!(text(), format!("{}\n{}\n", digest("0b"), digest("0c")));
        opened.follow(&own(&[]));
        assert_eq!(text(), format!("{}\n{}\n", digest("0b"), digest("0c")));
    }

    #[test]
    fn the_states_generation_notes_that_the_list_exists() {
        let dir = tempfile::tempdir().unwrap();
        let (file, event) = (dir.path().join("allowed"), dir.path().join("event"));
        let generation = StateGeneration {
            file: dir.path().join("generation"),
            key: dir.path().join("key"),
        };
        let key = GenerationKey::of(&zeroize::Zeroizing::new([7; 64]));
        std::fs::write(&generation.key, key.bytes()).unwrap();
        let digest = "0a".repeat(32);
        let record = format!(
            "{{\"pcr\":13,\"label\":\"nocloud\",\"length\":3,\"digest\":\"{digest}\",\"measured\":true}}\n"
        );
        std::fs::write(&event, record).unwrap();
        let open = || Configurations::open(file.clone(), &event, Some(&generation));
        open().unwrap();
        assert!(!generation.file.exists(), "a state of this boot alone");
        for listed in [false, true] {
            let before = Generation {
                number: 7,
                listed,
                ..Generation::default()
            };
            std::fs::write(&generation.file, before.text(&key)).unwrap();
            open().unwrap();
            let expected = Generation {
                listed: true,
                ..before
            };
            assert_eq!(generation.read().unwrap(), Some(expected));
        }
        std::fs::write(&generation.file, "none").unwrap();
        assert!(open().is_err());
    }
}
