//! Reading and writing the admin's files, with limits and modes.

use crate::error::{Error, Result};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Largest file that is read: release manifests list every file of an image.
const READ_LIMIT: u64 = 4 * 1024 * 1024;

/// Reads a file of at most 4 MiB.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let file = std::fs::File::open(path).map_err(Error::file("read", path))?;
    let mut bytes = Vec::new();
    file.take(READ_LIMIT + 1)
        .read_to_end(&mut bytes)
        .map_err(Error::file("read", path))?;
    if bytes.len() as u64 > READ_LIMIT {
        return Err(Error::input(
            path.display().to_string(),
            "larger than 4 MiB",
            "name the right file",
        ));
    }
    Ok(bytes)
}

/// Reads a text file.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read(path)?).map_err(|e| {
        Error::input(
            path.display().to_string(),
            format!("not UTF-8 text: {e}"),
            "name a text file",
        )
    })
}

/// Writes a file that only its owner can read; `replace` allows replacing an existing one.
pub(crate) fn write_private(path: &Path, bytes: &[u8], replace: bool) -> Result<()> {
    let mut open = std::fs::OpenOptions::new();
    open.write(true).mode(0o600);
    if replace {
        open.create(true).truncate(true);
    } else {
        open.create_new(true);
    }
    let mut file = open.open(path).map_err(Error::file("write", path))?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(Error::file("write", path))
}

/// Replaces a file of the admin's by a neighbour and a rename, so that a key in it is never lost
/// half way.
pub(crate) fn replace_private(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut neighbour = path.as_os_str().to_owned();
    neighbour.push(".new");
    let neighbour = Path::new(&neighbour);
    // Removes what an earlier run left; an existing file would keep its mode.
    match std::fs::remove_file(neighbour) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::file("replace", neighbour)(error));
        }
        Ok(()) | Err(_) => {}
    }
    write_private(neighbour, bytes, false)?;
    std::fs::rename(neighbour, path).map_err(Error::file("replace", path))
}

/// Prints a line for the admin.
pub(crate) fn say(text: &str) {
    // A closed pipe is the reader's choice.
    let _closed = writeln!(std::io::stdout(), "{text}");
}

/// Prints progress or an error for the admin, apart from the result.
pub(crate) fn tell(text: &str) {
    let _closed = writeln!(std::io::stderr(), "{text}");
}
