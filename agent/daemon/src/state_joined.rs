//! How the machine joined the cluster that its state belongs to, noted beside the state's
//! generation ([`config_state::generation`]): that text is authenticated and can't be set back.

use config_state::generation::{Generation, GenerationKey, Joined, LIMIT};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The file of the state's generation, where the machine has a state that lasts.
///
/// Assumption: nothing else writes the file meanwhile. init is done with it before it starts the
/// agent, and on a master's machine, where the master writes it, there is none for the agent.
#[derive(Debug, Clone)]
pub(crate) struct JoinNote(Option<Files>);

#[derive(Debug, Clone)]
struct Files {
    generation: PathBuf,
    /// The key of its text, which init gives for this boot.
    key: PathBuf,
}

impl JoinNote {
    /// The note in this file, whose text is authenticated by the key in `key`. Without one of the
    /// two paths there is no note: the machine has no state that lasts.
    pub(crate) fn at(file: Option<&Path>, key: Option<&Path>) -> Self {
        Self(file.zip(key).map(|(file, key)| Files {
            generation: file.to_owned(),
            key: key.to_owned(),
        }))
    }

    /// The path of the file, for messages.
    pub(crate) fn place(&self) -> &Path {
        let files = self.0.as_ref();
        files.map_or(Path::new(""), |files| &files.generation)
    }

    /// What is noted.
    pub(crate) fn read(&self) -> io::Result<Option<Joined>> {
        Ok(self.state()?.and_then(|found| found.state.joined))
    }

    /// Whether this is noted, or the state ends with this boot and has no note.
    pub(crate) fn is_written(&self, joined: Joined) -> bool {
        let is_it = |found: Found<'_>| found.state.joined == Some(joined);
        self.state().is_ok_and(|found| found.is_none_or(is_it))
    }

    /// Notes it; it is on the medium when this returns. A state that ends with this boot has no
    /// generation.
    pub(crate) fn write(&self, joined: Joined) -> io::Result<()> {
        let Some(Found { path, key, state }) = self.state()? else {
            return Ok(());
        };
        if state.joined == Some(joined) {
            return Ok(());
        }
        let noted = Generation {
            joined: Some(joined),
            ..state
        };
        let neighbour = path.with_extension("new");
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&neighbour)?;
        file.write_all(noted.text(&key).as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&neighbour, path)?;
        path.parent()
            .map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    }

    fn state(&self) -> io::Result<Option<Found<'_>>> {
        let Some(Files { generation, key }) = self.0.as_ref() else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        match File::open(generation) {
            Ok(file) => file.take(LIMIT).read_to_end(&mut bytes).map(drop)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
        let key = GenerationKey::parse(&zeroize::Zeroizing::new(std::fs::read(key)?))
            .ok_or_else(|| io::Error::other("the key of the state's generation is damaged"))?;
        let state = Generation::read(&bytes, &key).map_err(io::Error::other)?;
        Ok(Some(Found {
            path: generation,
            key,
            state,
        }))
    }
}

/// A state that lasts, as its file has it.
struct Found<'a> {
    path: &'a Path,
    key: GenerationKey,
    state: Generation,
}

#[cfg(test)]
mod tests {
    use super::*;
    use zeroize::Zeroizing;

    #[test]
    fn how_a_machine_joined_is_noted_beside_its_generation_where_there_is_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let (file, place) = (dir.path().join("generation"), dir.path().join("key"));
        let key = GenerationKey::of(&Zeroizing::new([7; 64]));
        let note = JoinNote::at(Some(&file), Some(&place));
        note.write(Joined::Admitted).expect("a state of this boot");
        assert!(!file.exists());
        let before = Generation {
            number: 7,
            listed: true,
            ..Generation::default()
        };
        std::fs::write(&file, before.text(&key)).expect("written");
        assert!(note.read().is_err(), "no key");
        std::fs::write(&place, key.bytes()).expect("written");
        assert_eq!(note.read().expect("read"), None);
        for joined in [Joined::Issued([7; 32]), Joined::Admitted] {
            note.write(joined).expect("noted");
            assert_eq!(note.read().expect("read"), Some(joined));
        }
        let text = std::fs::read(&file).expect("read");
        let expected = Generation {
            joined: Some(Joined::Admitted),
            ..before
        };
        assert_eq!(Generation::read(&text, &key), Ok(expected));
        // From before the join, by an older inode or as older images wrote it.
        let old = before.text(&key);
        for other in ["none", "7\n", "+7\njoined admitted\n", &old[..32]] {
            std::fs::write(&file, other).expect("written");
            assert!(note.read().is_err(), "{other}");
            assert!(note.write(Joined::Admitted).is_err(), "{other}");
        }
        std::fs::write(&file, text).expect("written");
        std::fs::write(&place, "short").expect("written");
        assert!(note.read().is_err());
        JoinNote::at(None, None)
            .write(Joined::Admitted)
            .expect("on a host");
    }
}
