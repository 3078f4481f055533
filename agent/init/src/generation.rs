//! The generation of the volume's header to which the state's files belong.
//!
//! The header can't be set back: the TPM knows its generation. The data behind the header could be
//! rolled back as a whole without touching the header. So the state holds the generation, too: in
//! each boot the next one is written here, on the medium, before the agent moves header and TPM to
//! it. A power cut between the two leaves the state one ahead, never behind and never further
//! ahead.
//!
//! Such a boot can be repeated with another copy of the data, and either copy is one ahead then. So
//! each boot draws a value, notes it here and has the agent put it into the TPM last: the copy for
//! which the TPM did not move names another, and is refused from then on.
//!
//! The state is encrypted and not authenticated: other files can be rolled back unnoticed, or put
//! together from older blocks. The text here is authenticated as a whole
//! ([`config_state::generation`]). What must not be rolled back with other files is noted beside
//! the number: that the state lists the configurations which it allows ([`crate::allowed`]), how
//! the machine joined its cluster (by the agent), and in which generation a master last served its
//! store (by the master). For these two the key of the text is in a file that lasts as long as the
//! boot.

use agent_volume::header::VolumeKey;
use config_state::generation::{BootNonce, Generation, GenerationKey, LIMIT, NoGeneration};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The file, in the folder of init's own part of the state.
const FILE: &str = "generation";
/// Its place. The agent and the master note in it what must not be set back.
pub const PLACE: &str = "/var/lib/pratique/init/generation";
/// The key of its text, for agent and master. Pods can mount nothing of `/run`, and no disk has it.
pub const KEY: &str = "/run/pratique/state-generation-key";

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
    /// It is of a boot that its header has not seen.
    #[error(
        "the state's files are of generation {state}, its header of {header}: they are of different copies of the disk"
    )]
    Ahead {
        /// The state's.
        state: u64,
        /// The header's.
        header: u64,
    },
    /// It names neither the boot for which the TPM moved last, nor one that followed it.
    #[error(
        "the state's files are not of the boot that the TPM has recorded: they are of another copy of the disk, which was booted and cut off"
    )]
    OtherBoot,
    /// Its text is not one that this volume's machines wrote.
    #[error("the state's generation is not believed")]
    Untrusted(#[source] NoGeneration),
    /// The file can't be read or written, as in a state that is damaged.
    #[error("the state's generation can't be read or written")]
    File(#[source] io::Error),
}

impl GenerationError {
    /// Whether an image from before the text was authenticated may have written it.
    pub fn is_of_an_earlier_image(&self) -> bool {
        matches!(self, Self::Untrusted(NoGeneration::Unauthenticated))
    }
}

/// The generation's file of a state, with the key of its text.
#[derive(Debug, Clone)]
pub struct StateGeneration {
    folder: PathBuf,
    key: GenerationKey,
}

impl StateGeneration {
    /// Of the state in the volume with this key; `folder` is init's own part of it.
    pub fn of(folder: &Path, volume: &VolumeKey) -> Self {
        Self {
            folder: folder.to_owned(),
            key: GenerationKey::of(volume),
        }
    }

    /// Writes the key for agent and master: a new file in memory that only root can read.
    ///
    /// # Errors
    /// The file is there already or can't be written.
    pub fn give_key(&self, place: &Path) -> io::Result<()> {
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(place)?;
        file.write_all(self.key.bytes())
    }

    /// Checks that the state has the generation of its header, `header`, or the one after it, and
    /// is of a boot that the TPM has recorded, one of `kept`; notes the next generation as that of
    /// `boot`, which follows the first of them. On another board, to which an admin moved the
    /// state, no TPM has recorded one.
    ///
    /// # Errors
    /// [`GenerationError`]: the state is of another generation or boot, its text is not authentic,
    /// or its file cannot be read or written.
    pub fn advance(
        &self,
        header: u64,
        kept: &[BootNonce],
        boot: BootNonce,
    ) -> Result<(), GenerationError> {
        let next = header.saturating_add(1);
        // A state without a number is of no generation.
        let state = self.found()?.unwrap_or_default();
        if state.number < header {
            return Err(GenerationError::Older {
                state: state.number,
                header,
            });
        }
        if state.number > next {
            return Err(GenerationError::Ahead {
                state: state.number,
                header,
            });
        }
        if !kept.is_empty() && !kept.iter().any(|kept| state.follows(*kept)) {
            return Err(GenerationError::OtherBoot);
        }
        self.write(Generation {
            number: next,
            boot,
            after: kept.first().copied().unwrap_or_default(),
            ..state
        })
    }

    /// Notes the generation and the boot of a new state, of which nothing else is noted yet; it is
    /// on the medium when this returns.
    ///
    /// # Errors
    /// [`GenerationError::File`] where the file cannot be written.
    pub fn note(&self, number: u64, boot: BootNonce) -> Result<(), GenerationError> {
        self.write(Generation {
            number,
            boot,
            ..Generation::default()
        })
    }

    /// Whether the state is marked as one that lists the configurations which it allows.
    ///
    /// # Errors
    /// The file is missing, not authentic, or cannot be read.
    pub fn is_listed(&self) -> Result<bool, GenerationError> {
        self.read().map(|state| state.listed)
    }

    /// Marks the state as one that lists the configurations which it allows, or as one that does
    /// not, in the generation that it has.
    ///
    /// # Errors
    /// The file is missing, not authentic, or cannot be read or written.
    pub fn mark(&self, listed: bool) -> Result<(), GenerationError> {
        let state = self.read()?;
        if state.listed == listed {
            return Ok(());
        }
        self.write(Generation { listed, ..state })
    }

    fn read(&self) -> Result<Generation, GenerationError> {
        let missing = || GenerationError::File(io::ErrorKind::NotFound.into());
        self.found()?.ok_or_else(missing)
    }

    fn found(&self) -> Result<Option<Generation>, GenerationError> {
        let mut bytes = Vec::new();
        match File::open(self.folder.join(FILE)) {
            Ok(file) => file
                .take(LIMIT)
                .read_to_end(&mut bytes)
                .map_err(GenerationError::File)?,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(GenerationError::File(cause)),
        };
        Generation::read(&bytes, &self.key)
            .map(Some)
            .map_err(GenerationError::Untrusted)
    }

    fn write(&self, generation: Generation) -> Result<(), GenerationError> {
        let text = generation.text(&self.key);
        replace(&self.folder, text.as_bytes()).map_err(GenerationError::File)
    }
}

fn replace(folder: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = folder.join("generation.new");
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, folder.join(FILE))?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::{FILE, GenerationError, StateGeneration};
    use config_state::generation::{BootNonce, Generation, GenerationKey, Joined, NoGeneration};
    use std::os::unix::fs::PermissionsExt as _;
    use zeroize::Zeroizing;

    const BOOT: BootNonce = [1; 8];

    /// Where the power goes off in a boot.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Cut {
        BeforeHeader,
        BeforeTpm,
        No,
    }

    /// The generations of a machine's header and TPM, and the boot that the TPM has recorded.
    #[derive(Debug, Clone, Copy)]
    struct Machine {
        header: u64,
        tpm: u64,
        kept: BootNonce,
        boots: u8,
    }

    impl Machine {
        /// With a state that was just made.
        fn made(state: &StateGeneration) -> Self {
            state.note(2, BOOT).expect("noted");
            Self {
                header: 2,
                tpm: 2,
                kept: BOOT,
                boots: 1,
            }
        }

        /// Does what init and agent do: first the state moves to the next generation, then the
        /// header, then the TPM.
        fn boot(&mut self, state: &StateGeneration, cut: Cut) -> Result<(), GenerationError> {
            self.boots += 1;
            let boot = [self.boots; 8];
            state.advance(self.header, &[self.kept], boot)?;
            match cut {
                Cut::BeforeHeader => {}
                // A header that is further ahead does not open.
                Cut::BeforeTpm => self.header = self.tpm + 1,
                Cut::No => {
                    self.header += 1;
                    (self.tpm, self.kept) = (self.header, boot);
                }
            }
            Ok(())
        }
    }

    fn state() -> (tempfile::TempDir, StateGeneration) {
        let dir = tempfile::tempdir().expect("a folder");
        let state = StateGeneration::of(dir.path(), &Zeroizing::new([7; 64]));
        (dir, state)
    }

    fn text(state: &StateGeneration) -> Vec<u8> {
        std::fs::read(state.folder.join(FILE)).expect("read")
    }

    fn put(state: &StateGeneration, text: &[u8]) {
        std::fs::write(state.folder.join(FILE), text).expect("written");
    }

    #[test]
    fn a_state_survives_a_power_cut_between_file_and_header() {
        let (_dir, state) = state();
        let mut machine = Machine::made(&state);
        // Each boot is cut off before the header moves, between header and TPM, or not at all.
        for cut in [
            Cut::No,
            Cut::BeforeHeader,
            Cut::BeforeHeader,
            Cut::BeforeTpm,
            Cut::BeforeTpm,
            Cut::No,
            Cut::BeforeTpm,
            Cut::BeforeHeader,
            Cut::No,
        ] {
            machine.boot(&state, cut).expect("not older");
        }
    }

    /// Where a rise of the floor was cut off, the TPM has a boot of either image.
    #[test]
    fn a_state_follows_any_boot_that_the_tpm_has_and_no_other() {
        for (kept, follows) in [
            (&[BOOT][..], true),
            (&[[7; 8], BOOT], true),
            (&[BOOT, [7; 8]], true),
            (&[[7; 8], [8; 8]], false),
        ] {
            let (_dir, state) = state();
            state.note(2, BOOT).expect("noted");
            let advanced = state.advance(2, kept, [3; 8]);
            assert_eq!(advanced.is_ok(), follows, "{kept:?}: {advanced:?}");
            let next = state.advance(3, &kept[..1], [4; 8]);
            assert_eq!(next.is_ok(), follows, "{kept:?}: {next:?}");
        }
    }

    /// Somebody who has the disk keeps an older copy of the data alive: it is booted and cut off
    /// beside each honest boot, so that it has the number of now.
    #[test]
    fn of_two_copies_that_boot_beside_each_other_only_the_one_that_the_tpm_moved_for_is_trusted() {
        for cut in [Cut::BeforeHeader, Cut::BeforeTpm] {
            let (_dir, honest) = state();
            let (_other, older) = state();
            let mut machine = Machine::made(&honest);
            machine.boot(&honest, Cut::No).expect("not older");
            put(&older, &text(&honest));
            let before = machine;
            machine.boot(&older, cut).expect("the TPM is where it was");
            // The whole disk is put back, the header with it.
            machine.header = before.header;
            machine.boot(&honest, Cut::No).expect("not older");
            let refused = machine.boot(&older, cut);
            assert!(
                matches!(refused, Err(GenerationError::OtherBoot)),
                "{refused:?}"
            );
            machine
                .boot(&honest, Cut::No)
                .expect("the negative control");
        }
    }

    /// The admin's one-off key is for one generation of the disk that the admin saw; the other
    /// board's TPM can't be asked.
    #[test]
    fn a_state_that_is_moved_is_of_the_new_boards_boots_from_then_on() {
        let (_dir, state) = state();
        state.note(7, [1; 8]).expect("noted");
        for boot in [[2; 8], [3; 8]] {
            // The second time after a power cut.
            state.advance(7, &[], boot).expect("the admin's word");
        }
        let bound = state.advance(8, &[[3; 8]], [4; 8]);
        bound.expect("what the new TPM has");
        // After a power cut before the TPM had the value.
        state.note(7, [1; 8]).expect("noted");
        state.advance(7, &[], [2; 8]).expect("the admin's word");
        let bound = state.advance(8, &[[0; 8]], [4; 8]);
        bound.expect("bound");
    }

    #[test]
    fn a_state_that_was_rolled_back_behind_its_header_is_refused() {
        let (_dir, state) = state();
        let mut machine = Machine::made(&state);
        machine.boot(&state, Cut::No).expect("not older");
        let past = text(&state);
        machine.boot(&state, Cut::No).expect("not older");
        put(&state, &past);
        let refused = machine.boot(&state, Cut::No);
        assert!(
            matches!(
                refused,
                Err(GenerationError::Older {
                    state: 3,
                    header: 4
                })
            ),
            "{refused:?}"
        );
    }

    #[test]
    fn a_state_more_than_one_boot_ahead_of_its_header_is_refused() {
        let (_dir, state) = state();
        for (number, header) in [(9, 7), (u64::MAX, 7), (2, 0)] {
            state.note(number, BOOT).expect("noted");
            let refused = state.advance(header, &[BOOT], BOOT);
            assert!(
                matches!(refused, Err(GenerationError::Ahead { .. })),
                "{refused:?}"
            );
        }
        state.note(8, BOOT).expect("noted");
        let advanced = state.advance(7, &[BOOT], BOOT);
        advanced.expect("a power cut before the header");
    }

    /// The number of now with the fields of an older copy: by older blocks of the file's sector, by
    /// the inode of a shorter file, or by a text that a pod wrote into the sector before.
    #[test]
    fn a_text_that_was_put_together_from_others_is_refused_whatever_its_number() {
        let (_dir, state) = state();
        let older = Generation {
            number: 7,
            listed: true,
            joined: Some(Joined::Admitted),
            served: Some(5),
            boot: BOOT,
            ..Generation::default()
        };
        state.write(older).expect("written");
        let older = text(&state);
        for header in 7..12 {
            state.advance(header, &[BOOT], BOOT).expect("a boot");
        }
        let now = text(&state);
        let plain = |text: &str| text.as_bytes().to_vec();
        for (made, why) in [
            ([&now[..32], &older[32..]].concat(), NoGeneration::Changed),
            ([&now[..16], &older[16..]].concat(), NoGeneration::Changed),
            (now[..3].to_vec(), NoGeneration::Unauthenticated),
            (now[..32].to_vec(), NoGeneration::Unauthenticated),
            (plain("12\n"), NoGeneration::Unauthenticated),
            (
                plain(&format!("{:31}\nserved 5\n", "+12")),
                NoGeneration::Unauthenticated,
            ),
            (
                Generation {
                    number: 12,
                    ..Generation::default()
                }
                .text(&GenerationKey::of(&Zeroizing::new([8; 64])))
                .into_bytes(),
                NoGeneration::Changed,
            ),
        ] {
            put(&state, &made);
            let refused = state.advance(12, &[BOOT], BOOT).expect_err("refused");
            assert!(
                matches!(&refused, GenerationError::Untrusted(found) if *found == why),
                "{refused:?}"
            );
            assert_eq!(
                refused.is_of_an_earlier_image(),
                why == NoGeneration::Unauthenticated
            );
            assert!(state.is_listed().is_err() && state.mark(false).is_err());
            assert_eq!(text(&state), made, "nothing is written over it");
        }
        put(&state, &now);
        let advanced = state.advance(12, &[BOOT], BOOT);
        advanced.expect("the negative control");
    }

    #[test]
    fn a_mark_lasts_over_generations_until_it_is_taken_away() {
        let (_dir, state) = state();
        let mut machine = Machine::made(&state);
        let listed = || state.is_listed().expect("read");
        assert!(!listed());
        state.mark(true).expect("marked");
        for _boot in [1, 2] {
            machine.boot(&state, Cut::No).expect("not older");
            assert!(listed());
        }
        state.mark(false).expect("taken away");
        machine.boot(&state, Cut::No).expect("the generation stays");
        assert!(!listed());
    }

    #[test]
    fn what_agent_and_master_noted_lasts_over_generations() {
        let (_dir, state) = state();
        let noted = Generation {
            number: 7,
            listed: true,
            joined: Some(Joined::Issued([7; 32])),
            served: Some(7),
            boot: BOOT,
            after: [2; 8],
        };
        state.write(noted).expect("written");
        state.advance(7, &[BOOT], [3; 8]).expect("not older");
        state.mark(false).expect("taken away");
        let expected = Generation {
            number: 8,
            listed: false,
            boot: [3; 8],
            after: BOOT,
            ..noted
        };
        assert_eq!(state.read().expect("read"), expected);
    }

    #[test]
    fn a_state_without_a_generation_is_refused() {
        let (_dir, state) = state();
        assert!(matches!(
            state.advance(1, &[], BOOT),
            Err(GenerationError::Older { state: 0, .. })
        ));
        assert!(state.is_listed().is_err() && state.mark(true).is_err());
        for text in ["", "-1", "one", &"9".repeat(400)] {
            put(&state, text.as_bytes());
            let refused = state.advance(1, &[], BOOT);
            assert!(
                matches!(refused, Err(GenerationError::Untrusted(_))),
                "{text:?}"
            );
        }
    }

    #[test]
    fn the_key_is_given_to_root_alone_and_once() {
        let (dir, state) = state();
        let place = dir.path().join("key");
        state.give_key(&place).expect("written");
        let mode = std::fs::metadata(&place).expect("there").permissions();
        assert_eq!(mode.mode() & 0o777, 0o400);
        let bytes = std::fs::read(&place).expect("read");
        assert_eq!(GenerationKey::parse(&bytes), Some(state.key.clone()));
        assert!(state.give_key(&place).is_err(), "somebody was there before");
    }
}
