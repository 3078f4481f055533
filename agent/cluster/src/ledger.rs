//! Keeps the table of addresses and ids on the disk: each is written before it is used.
//!
//! Guarantee: after a crash or a power cut the file is the one before a change or the one after it,
//! never a part of one, and it holds all that was given before. A file that can't be read is logged
//! and replaced by an empty table: after a power cut no pod runs, and after a crash the sandboxes
//! that still run are recorded again.

use crate::address::Table;
use crate::error::Error;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

/// Largest file that is read: a node has far fewer pods than fit.
const MAX_FILE: u64 = 4 << 20;

/// The table and its file.
#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    pub(crate) table: Table,
}

impl Ledger {
    /// Reads the ledger's file; an unreadable one counts as empty.
    pub(crate) fn open(path: PathBuf) -> Self {
        let table = read(&path).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), error, "the pod address ledger is unreadable; starting with an empty one");
            Table::default()
        });
        Self { path, table }
    }

    /// Changes the table. When this returns, the change is on the disk; after an error nothing has
    /// changed.
    pub(crate) fn change<T>(
        &mut self,
        change: impl FnOnce(&mut Table) -> Result<(T, bool), Error>,
    ) -> Result<T, Error> {
        let mut table = self.table.clone();
        let (result, changed) = change(&mut table)?;
        if changed {
            write(&self.path, &table)?;
            self.table = table;
        }
        Ok(result)
    }
}

fn read(path: &Path) -> Result<Table, String> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Table::default()),
        Err(error) => return Err(error.to_string()),
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    let table: Table = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if table.is_sound() {
        Ok(table)
    } else {
        Err("an address or a range of ids is given twice".to_owned())
    }
}

fn write(path: &Path, table: &Table) -> Result<(), Error> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let new = path.with_extension("new");
    fs::create_dir_all(folder).map_err(Error::file("make", folder))?;
    let text =
        serde_json::to_vec(table).map_err(|error| Error::file("write", path)(error.into()))?;
    let mut file = File::create(&new).map_err(Error::file("make", &new))?;
    file.write_all(&text)
        .and_then(|()| file.sync_all())
        .map_err(Error::file("write", &new))?;
    fs::rename(&new, path).map_err(Error::file("replace", path))?;
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(Error::file("write", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn give(ledger: &mut Ledger, uid: &str) -> Result<(), Error> {
        let ranges = ["10.0.0.0/24".parse().unwrap()];
        ledger.change(|table| Ok(((), table.give(uid, &ranges)?)))
    }

    #[test]
    fn addresses_are_kept_over_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/addresses.json");
        let mut first = Ledger::open(path.clone());
        give(&mut first, "a").unwrap();
        // Cut while the next was being written.
        fs::write(path.with_extension("new"), "{\"given\":{\"b\"").unwrap();
        let mut second = Ledger::open(path.clone());
        assert_eq!(second.table, first.table);
        give(&mut second, "b").unwrap();
        assert_ne!(second.table.of("a"), second.table.of("b"));
        assert_eq!(Ledger::open(path).table, second.table);
    }

    #[test]
    fn a_file_that_no_agent_wrote_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("addresses.json");
        let twice = r#"{"given":{"a":["10.0.0.2"],"b":["10.0.0.2"]},"last":[]}"#;
        for text in [
            "",
            "{}",
            "[]",
            twice,
            "{\"given\":{\"a\":[\"x\"]},\"last\":[]}",
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(Ledger::open(path.clone()).table, Table::default(), "{text}");
        }
    }

    #[test]
    fn a_change_that_can_not_be_written_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let mut ledger = Ledger::open(file.join("below/addresses.json"));
        assert!(give(&mut ledger, "a").is_err());
        assert_eq!(ledger.table, Table::default());
    }
}
