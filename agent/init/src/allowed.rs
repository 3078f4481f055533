//! The configurations with which a master's state may be used. The TPM opens the state under any
//! configuration, so the state itself lists the allowed ones. The master writes the list, and no
//! service starts with another configuration.
//!
//! The state is encrypted and not authenticated: sectors of its folders could be put back that are
//! from before there was a list. So the list's existence is marked beside the state's generation
//! ([`crate::generation`]), which cannot be set back: by the master when it makes the list, and
//! here where an older master made it. From then on a missing list allows nothing.

use crate::fatal::Fatal;
use crate::generation::{GenerationError, StateGeneration};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// The master's list, one digest (`sha256:` and hex) a line. A worker's state has none.
pub const LIST: &str = "/var/lib/pratique/master/configurations";
/// Longest list that is read: some hundred digests.
const LIMIT: u64 = 64 << 10;
const MISSING_CURE: &str = "put back a copy of this disk that was taken after its last start, or clear the TPM, write the whole image \
                            again and bring back the cluster from a snapshot by `master restore` (the admin's guide has the steps)";
const CURE: &str = "boot with the previous user-data, and list the digest of other user-data in spec.configDigests of this \
                    master's Machine before you boot with it; a master that nobody bootstrapped yet starts anew when the image is \
                    written again";

/// Why no service is started.
#[derive(Debug, thiserror::Error)]
enum Other {
    #[error(
        "this master's state does not allow the machine's user-data: its digest sha256:{found} is not among {allowed}"
    )]
    NotListed { found: String, allowed: String },
    #[error("the list of the configurations that this master's state allows can't be read")]
    Unreadable(#[source] io::Error),
    #[error(
        "the list of the configurations that this master's state allows is gone: the files are an older copy, or damaged"
    )]
    Missing,
    #[error("the mark of a state that lists its configurations can't be read or written")]
    Mark(#[source] GenerationError),
}

/// Whether the state allows the configuration with this digest. `state`: its generation; a state
/// that ends with this boot has none.
///
/// # Errors
/// `CONFIG_OTHER`, which stops the boot: the list does not have the digest, can't be read, or is
/// missing in a state that had one.
pub fn check(list: &Path, state: Option<&StateGeneration>, digest: &[u8; 32]) -> Result<(), Fatal> {
    let hold = |cause| Fatal::hold("CONFIG_OTHER", CURE, cause);
    let mark = |cause| Fatal::hold("CONFIG_OTHER", MISSING_CURE, Other::Mark(cause));
    let Some(text) = read(list).map_err(|cause| hold(Other::Unreadable(cause)))? else {
        let listed = state.map_or(Ok(false), StateGeneration::is_listed);
        if listed.map_err(mark)? {
            let missing = Fatal::hold("CONFIG_OTHER", MISSING_CURE, Other::Missing);
            return Err(missing);
        }
        return Ok(());
    };
    state
        .map_or(Ok(()), |state| state.mark(true))
        .map_err(mark)?;
    let found = hex::encode(digest);
    let listed = |line: &str| line.trim().strip_prefix("sha256:") == Some(found.as_str());
    if text.lines().any(listed) {
        return Ok(());
    }
    let allowed = text.lines().collect::<Vec<_>>().join(", ");
    Err(hold(Other::NotListed { found, allowed }))
}

/// Removes the list with its mark, for a state that its admin moved to another board: a new list
/// begins with this boot's configuration.
///
/// # Errors
/// The file is there and can't be removed, or the mark can't.
pub fn forget(list: &Path, state: &StateGeneration) -> Result<(), GenerationError> {
    state.mark(false)?;
    match std::fs::remove_file(list) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(GenerationError::File(cause)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn read(list: &Path) -> io::Result<Option<String>> {
    let mut text = String::new();
    match File::open(list) {
        Ok(file) => file.take(LIMIT).read_to_string(&mut text).map(drop)?,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(cause),
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::{check, forget};
    use crate::generation::StateGeneration;
    use std::path::{Path, PathBuf};
    use zeroize::Zeroizing;

    fn state() -> (tempfile::TempDir, StateGeneration, PathBuf) {
        let dir = tempfile::tempdir().expect("a folder");
        let state = StateGeneration::of(dir.path(), &Zeroizing::new([7; 64]));
        state.note(1, [1; 8]).expect("noted");
        let list = dir.path().join("configurations");
        (dir, state, list)
    }

    fn line(byte: &str) -> String {
        format!("sha256:{}\n", byte.repeat(32))
    }

    fn refusal(list: &Path, state: &StateGeneration) -> String {
        check(list, Some(state), &[3; 32])
            .expect_err("refused")
            .line()
    }

    #[test]
    fn a_state_allows_only_the_configurations_that_it_lists() {
        let (_dir, own, list) = state();
        check(&list, Some(&own), &[1; 32]).expect("a state without a list takes any");
        std::fs::write(&list, line("01") + &line("02")).expect("written");
        for listed in [1, 2] {
            check(&list, Some(&own), &[listed; 32]).expect("listed");
        }
        let fatal = refusal(&list, &own);
        assert!(
            fatal.starts_with("pratique: FATAL CONFIG_OTHER: ")
                && fatal.contains("sha256:0303")
                && fatal.contains("spec.configDigests"),
            "{fatal}"
        );
        std::fs::write(&list, "").expect("written");
        assert!(
            check(&list, Some(&own), &[1; 32]).is_err(),
            "an empty list takes none"
        );
        std::fs::write(&list, [0xFF; 9]).expect("written");
        assert!(check(&list, Some(&own), &[1; 32]).is_err(), "no text");
        forget(&list, &own).expect("removed");
        forget(&list, &own).expect("not there");
        check(&list, Some(&own), &[3; 32]).expect("a list begins anew");
        // A state that ends with the boot.
        check(&list, None, &[3; 32]).expect("it has no list");
        std::fs::write(&list, line("01")).expect("written");
        assert!(check(&list, None, &[3; 32]).is_err());
    }

    /// As after sectors of the folder were put back that are from before there was a list.
    #[test]
    fn a_state_that_had_a_list_allows_nothing_without_it() {
        let (_dir, own, list) = state();
        // The master made the list and marked it, and the power went.
        own.mark(true).expect("marked");
        let fatal = refusal(&list, &own);
        assert!(
            fatal.starts_with("pratique: FATAL CONFIG_OTHER: ")
                && fatal.contains("is gone")
                && fatal.contains("master restore"),
            "{fatal}"
        );
        // A list of a master that made no mark is marked by the next boot.
        let (dir, own, list) = state();
        std::fs::write(&list, line("03")).expect("written");
        check(&list, Some(&own), &[3; 32]).expect("listed");
        std::fs::remove_file(&list).expect("put back");
        assert!(refusal(&list, &own).contains("is gone"));
        let advanced = own.advance(1, &[[1; 8]], [2; 8]);
        advanced.expect("not older");
        assert!(refusal(&list, &own).contains("is gone"), "in the next boot");
        std::fs::write(dir.path().join("generation"), "any").expect("written");
        assert!(check(&list, Some(&own), &[3; 32]).is_err(), "no generation");
    }
}
