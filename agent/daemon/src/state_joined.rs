//! How the machine joined the cluster that its state belongs to, noted beside the state's
//! generation ([`config_state::generation`]): that file can't be set back.

use config_state::generation::{Generation, Joined, LIMIT};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The file of the state's generation, where the machine has a state that lasts.
///
/// Assumption: nothing else writes the file meanwhile. init is done with it before it starts the
/// agent, and on a master's machine, where the master writes it, there is none for the agent.
#[derive(Debug, Clone)]
pub(crate) struct JoinNote(Option<PathBuf>);

impl JoinNote {
    /// By the file's place, where there may be one.
    pub(crate) fn at(file: Option<&Path>) -> Self {
        Self(file.map(Path::to_owned))
    }

    /// The file, for what is said about it.
    pub(crate) fn place(&self) -> &Path {
        self.0.as_deref().unwrap_or(Path::new(""))
    }

    /// What is noted.
    pub(crate) fn read(&self) -> io::Result<Option<Joined>> {
        Ok(self.state()?.and_then(|(_, state)| state.joined))
    }

    /// Notes it; it is on the medium when this returns. A state that ends with this boot has no
    /// generation.
    pub(crate) fn write(&self, joined: Joined) -> io::Result<()> {
        let Some((path, state)) = self.state()? else {
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
        file.write_all(noted.to_string().as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&neighbour, path)?;
        path.parent()
            .map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    }

    fn state(&self) -> io::Result<Option<(&Path, Generation)>> {
        let Some(path) = self.0.as_deref() else {
            return Ok(None);
        };
        let mut text = String::new();
        match File::open(path) {
            Ok(file) => file.take(LIMIT).read_to_string(&mut text).map(drop)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
        let state = text.parse().map_err(io::Error::other)?;
        Ok(Some((path, state)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_machine_joined_is_noted_beside_its_generation_where_there_is_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("generation");
        let note = JoinNote::at(Some(&file));
        note.write(Joined::Admitted).expect("a state of this boot");
        assert!(!file.exists());
        std::fs::write(&file, "+7\n").expect("written");
        assert_eq!(note.read().expect("read"), None);
        for joined in [Joined::Issued([7; 32]), Joined::Admitted] {
            note.write(joined).expect("noted");
            assert_eq!(note.read().expect("read"), Some(joined));
        }
        let text = std::fs::read_to_string(&file).expect("read");
        let state: Generation = text.parse().expect("a generation");
        assert_eq!((state.number, state.listed), (7, true));
        std::fs::write(&file, "none").expect("written");
        assert!(note.read().is_err() && note.write(Joined::Admitted).is_err());
        JoinNote::at(None)
            .write(Joined::Admitted)
            .expect("on a host");
    }
}
