//! The generation of the volume's header to which the state's files belong.
//!
//! The header can't be set back: the TPM knows its generation. The data behind the header could be
//! rolled back as a whole without touching the header. So the state holds the generation, too: in
//! each boot the next one is written here, on the medium, before the agent moves header and TPM to
//! it. A power cut between the two leaves the state one ahead, never behind.
//!
//! Other single sectors can be rolled back unnoticed: the state is encrypted and not authenticated.
//! What must not be rolled back with them is noted beside the number: that the state lists the
//! configurations which it allows ([`crate::allowed`]), how the machine joined its cluster (by the
//! agent), and in which generation a master last served its store (by the master).

use config_state::generation::{Generation, LIMIT};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The file, in the folder of init's own part of the state.
const FILE: &str = "generation";
/// Its place. The agent and the master note in it what must not be set back.
pub const PLACE: &str = "/var/lib/pratique/init/generation";

/// Why a mounted state does not belong to its header.
#[derive(Debug, thiserror::Error)]
pub enum GenerationError {
    /// It is of an earlier boot than its header.
    #[error(
        "the state's files are of generation {state}, its header of {header}: the files are an older copy"
    )]
    Older {
        /// The state's.
        state: u64,
        /// The header's.
        header: u64,
    },
    /// The file can't be read or written, as in a state that is damaged.
    #[error("the state's generation can't be read or written")]
    File(#[source] io::Error),
}

/// Checks that the state in `folder` is not older than its header of generation `header`, and notes
/// the next generation.
///
/// # Errors
/// [`GenerationError::Older`] where the state is older than its header, [`GenerationError::File`]
/// where its file cannot be read or written.
pub fn advance(folder: &Path, header: u64) -> Result<(), GenerationError> {
    let state = read(folder).map_err(GenerationError::File)?;
    if state.number < header {
        return Err(GenerationError::Older {
            state: state.number,
            header,
        });
    }
    let number = header.saturating_add(1);
    write(folder, Generation { number, ..state }).map_err(GenerationError::File)
}

/// Notes the generation of a new state in `folder`, of which nothing else is noted yet; it is on the
/// medium when this returns.
///
/// # Errors
/// [`GenerationError::File`] where the file cannot be written.
pub fn note(folder: &Path, number: u64) -> Result<(), GenerationError> {
    let generation = Generation {
        number,
        ..Generation::default()
    };
    write(folder, generation).map_err(GenerationError::File)
}

/// Whether the state in `folder` is marked as one that lists the configurations which it allows.
///
/// # Errors
/// The file cannot be read.
pub fn is_listed(folder: &Path) -> io::Result<bool> {
    read(folder).map(|state| state.listed)
}

/// Marks the state in `folder` as one that lists the configurations which it allows, or as one that
/// does not, in the generation that it has.
///
/// # Errors
/// The file cannot be read or written.
pub fn mark(folder: &Path, listed: bool) -> io::Result<()> {
    let state = read(folder)?;
    if state.listed == listed {
        return Ok(());
    }
    write(folder, Generation { listed, ..state })
}

/// A state without a number is of no generation.
fn read(folder: &Path) -> io::Result<Generation> {
    let mut text = String::new();
    match File::open(folder.join(FILE)) {
        Ok(file) => file.take(LIMIT).read_to_string(&mut text)?,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Generation::default()),
        Err(cause) => return Err(cause),
    };
    text.parse().map_err(io::Error::other)
}

fn write(folder: &Path, generation: Generation) -> io::Result<()> {
    let new = folder.join("generation.new");
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(generation.to_string().as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, folder.join(FILE))?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::{FILE, GenerationError, advance, is_listed, mark, note, read, write};
    use config_state::generation::{Generation, Joined};

    /// Does what init and agent do: first the state moves to the next generation, then, without a
    /// power cut, the header.
    #[test]
    fn a_state_survives_a_power_cut_between_file_and_header() {
        let dir = tempfile::tempdir().expect("a folder");
        note(dir.path(), 1).expect("noted");
        for header in [1, 2, 2, 2, 3, 4] {
            advance(dir.path(), header).expect("not older");
        }
    }

    #[test]
    fn a_state_that_was_rolled_back_behind_its_header_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        note(dir.path(), 1).expect("noted");
        advance(dir.path(), 1).expect("not older");
        let past = std::fs::read(dir.path().join(FILE)).expect("read");
        advance(dir.path(), 2).expect("not older");
        std::fs::write(dir.path().join(FILE), past).expect("set back");
        let refused = advance(dir.path(), 3);
        assert!(
            matches!(
                refused,
                Err(GenerationError::Older {
                    state: 2,
                    header: 3
                })
            ),
            "{refused:?}"
        );
    }

    #[test]
    fn a_mark_lasts_over_generations_until_it_is_taken_away() {
        let dir = tempfile::tempdir().expect("a folder");
        note(dir.path(), 1).expect("noted");
        let listed = || is_listed(dir.path()).expect("read");
        assert!(!listed());
        mark(dir.path(), true).expect("marked");
        for header in [1, 2] {
            advance(dir.path(), header).expect("not older");
            assert!(listed());
        }
        mark(dir.path(), false).expect("taken away");
        advance(dir.path(), 3).expect("the generation stays");
        assert!(!listed());
    }

    #[test]
    fn what_agent_and_master_noted_lasts_over_generations() {
        let dir = tempfile::tempdir().expect("a folder");
        let noted = Generation {
            number: 7,
            listed: true,
            joined: Some(Joined::Issued([7; 32])),
            served: Some(7),
        };
        write(dir.path(), noted).expect("written");
        advance(dir.path(), 7).expect("not older");
        mark(dir.path(), false).expect("taken away");
        let expected = Generation {
            number: 8,
            listed: false,
            ..noted
        };
        assert_eq!(read(dir.path()).expect("read"), expected);
    }

    #[test]
    fn a_state_without_a_generation_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        assert!(matches!(
            advance(dir.path(), 1),
            Err(GenerationError::Older { state: 0, .. })
        ));
        for text in ["", "-1", "one", &"9".repeat(40)] {
            std::fs::write(dir.path().join(FILE), text).expect("written");
            let refused = advance(dir.path(), 1);
            assert!(matches!(refused, Err(GenerationError::File(_))), "{text:?}");
        }
    }
}
