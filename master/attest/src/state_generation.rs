//! Reads and changes the authenticated record of the machine's state
//! ([`config_state::generation`]): its generation, and facts that an attacker must not undo.

use crate::bootstrap::write_whole;
use crate::error::Error;
use config_state::generation::{Generation, GenerationKey, LIMIT};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;
use zeroize::Zeroizing;

/// The file of the record, and the file of the key that authenticates it, which init writes at each
/// boot. A state in memory and a master on a host have neither.
#[derive(Debug, Clone)]
pub struct StateGeneration {
    /// The record, in the state.
    pub file: PathBuf,
    /// The key, in memory.
    pub key: PathBuf,
}

impl StateGeneration {
    /// The record; `None` where there is no such file.
    ///
    /// # Errors
    /// [`Error::File`]: a file can't be read, or the text is not one that a holder of the key
    /// wrote.
    pub fn read(&self) -> Result<Option<Generation>, Error> {
        Ok(self.found()?.map(|(state, _)| state))
    }

    /// Changes the record, if there is a file; the change is on disk when this returns.
    ///
    /// # Errors
    /// As [`StateGeneration::read`], or the file can't be written.
    pub fn change(&self, change: impl FnOnce(&mut Generation)) -> Result<(), Error> {
        let Some((before, key)) = self.found()? else {
            return Ok(());
        };
        let mut state = before;
        change(&mut state);
        if state == before {
            return Ok(());
        }
        write_whole(&self.file, state.text(&key).as_bytes())
    }

    fn found(&self) -> Result<Option<(Generation, GenerationKey)>, Error> {
        let unread = |path: &PathBuf| {
            let path = path.clone();
            move |source| Error::File {
                what: "read",
                path,
                source,
            }
        };
        let mut bytes = Vec::new();
        match File::open(&self.file) {
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened
                .and_then(|file| file.take(LIMIT).read_to_end(&mut bytes))
                .map_err(unread(&self.file))?,
        };
        let key = std::fs::read(&self.key).map_err(unread(&self.key))?;
        let key = GenerationKey::parse(&Zeroizing::new(key))
            .ok_or_else(|| unread(&self.key)(io::ErrorKind::InvalidData.into()))?;
        let state = Generation::read(&bytes, &key)
            .map_err(|none| unread(&self.file)(io::Error::other(none)))?;
        Ok(Some((state, key)))
    }
}

#[cfg(test)]
mod tests {
    use super::StateGeneration;
    use config_errors::chain;
    use config_state::generation::{Generation, GenerationKey};
    use zeroize::Zeroizing;

    #[test]
    fn the_master_believes_no_text_without_the_key_of_this_boot() {
        let dir = tempfile::tempdir().unwrap();
        let own = StateGeneration {
            file: dir.path().join("generation"),
            key: dir.path().join("key"),
        };
        own.change(|state| state.listed = true).unwrap();
        assert!(!own.file.exists(), "a host");
        let key = GenerationKey::of(&Zeroizing::new([7; 64]));
        let seven = Generation {
            number: 7,
            ..Generation::default()
        };
        std::fs::write(&own.file, seven.text(&key)).unwrap();
        assert!(own.read().is_err(), "no key");
        std::fs::write(&own.key, key.bytes()).unwrap();
        assert_eq!(own.read().unwrap(), Some(seven));
        own.change(|state| state.served = Some(7)).unwrap();
        let text = std::fs::read_to_string(&own.file).unwrap();
        assert_eq!(own.read().unwrap().unwrap().served, Some(7));
        let other = GenerationKey::of(&Zeroizing::new([8; 64]));
        for (bad, words) in [
            ("+7\n", "no authentication code"),
            (&text[..32], "no authentication code"),
            (&text[..200], "does not hold"),
            (&seven.text(&other), "does not hold"),
        ] {
            std::fs::write(&own.file, bad).unwrap();
            let error = chain(&own.read().unwrap_err());
            assert!(error.contains(words), "{error}");
            assert!(own.change(|state| state.listed = true).is_err());
        }
        std::fs::write(&own.file, text).unwrap();
        std::fs::write(&own.key, "short").unwrap();
        assert!(own.read().is_err());
    }
}
