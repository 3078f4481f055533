//! The configurations with which a master's state may be used. The TPM opens the state under any
//! configuration, so the state itself lists the allowed ones. The master writes the list, and no
//! service starts with another configuration.

use crate::fatal::Fatal;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// The master's list, one digest (`sha256:` and hex) a line. A worker's state has none.
pub const LIST: &str = "/var/lib/pratique/master/configurations";
/// Longest list that is read: some hundred digests.
const LIMIT: u64 = 64 << 10;
const CURE: &str = "boot with the user-data of before, and list the digest of other user-data in spec.configDigests of this \
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
}

/// Whether the state allows the configuration with this digest.
///
/// # Errors
/// `CONFIG_OTHER`, which stops the boot: the list does not have the digest, or can't be read.
pub fn check(list: &Path, digest: &[u8; 32]) -> Result<(), Fatal> {
    let hold = |cause| Fatal::hold("CONFIG_OTHER", CURE, cause);
    let Some(text) = read(list).map_err(|cause| hold(Other::Unreadable(cause)))? else {
        return Ok(());
    };
    let found = hex::encode(digest);
    let listed = |line: &str| line.trim().strip_prefix("sha256:") == Some(found.as_str());
    if text.lines().any(listed) {
        return Ok(());
    }
    let allowed = text.lines().collect::<Vec<_>>().join(", ");
    Err(hold(Other::NotListed { found, allowed }))
}

/// Removes the list, for a state that its admin moved to another board: a new list begins with this
/// boot's configuration.
///
/// # Errors
/// The file is there and can't be removed.
pub fn forget(list: &Path) -> io::Result<()> {
    match std::fs::remove_file(list) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(cause),
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

    #[test]
    fn a_state_allows_only_the_configurations_that_it_lists() {
        let dir = tempfile::tempdir().expect("a folder");
        let list = dir.path().join("configurations");
        check(&list, &[1; 32]).expect("a state without a list takes any");
        let line = |byte: &str| format!("sha256:{}\n", byte.repeat(32));
        std::fs::write(&list, line("01") + &line("02")).expect("written");
        for listed in [1, 2] {
            check(&list, &[listed; 32]).expect("listed");
        }
        let fatal = check(&list, &[3; 32]).expect_err("not listed").line();
        assert!(
            fatal.starts_with("pratique: FATAL CONFIG_OTHER: ")
                && fatal.contains("sha256:0303")
                && fatal.contains("spec.configDigests"),
            "{fatal}"
        );
        std::fs::write(&list, "").expect("written");
        assert!(check(&list, &[1; 32]).is_err(), "an empty list takes none");
        std::fs::write(&list, [0xFF; 9]).expect("written");
        assert!(check(&list, &[1; 32]).is_err(), "no text");
        forget(&list).expect("removed");
        forget(&list).expect("not there");
        check(&list, &[3; 32]).expect("a list begins anew");
    }
}
