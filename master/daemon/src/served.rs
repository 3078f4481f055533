//! In which boot the store was last served, noted in the store and beside the generation of the
//! machine's state ([`config_state::generation`]), which can't be set back.
//!
//! The state is encrypted and not authenticated: an older store can be put back behind the current
//! generation, and with it retired machines, old policies and lower minimums. Such a store names an
//! earlier boot than the generation's file, and is not served. So a store goes back to the start of
//! the last boot at most.

use crate::Error;
use bytes::Bytes;
use config_state::generation::{Generation, LIMIT, NoGeneration};
use master_store::{Action, EmbeddedStore, Expect, Op, Store as _};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The store's key: a table that no kind has.
const KEY: &str = "state/served";

/// Checks that the store in `folder` was not set back, and notes this boot's generation in it and
/// in the generation's file, in this order: a power cut between the two leaves the store ahead.
///
/// # Errors
/// [`Error::OlderStore`], or a file or the store that can't be read or written.
pub(crate) async fn check(
    store: &EmbeddedStore,
    folder: &Path,
    generation: &Path,
) -> Result<(), Error> {
    let Some(state) = read(generation)? else {
        return Ok(());
    };
    let stored = stored(store, folder).await?;
    if let Some(served) = state.served
        && !stored.is_some_and(|stored| (served..=state.number).contains(&stored))
    {
        return Err(Error::OlderStore {
            path: folder.to_owned(),
            stored: stored.map_or_else(|| "none".to_owned(), |stored| stored.to_string()),
            served,
        });
    }
    if stored != Some(state.number) {
        put(store, folder, Some(state.number)).await?;
    }
    if state.served != Some(state.number) {
        let served = Generation {
            served: Some(state.number),
            ..state
        };
        write(generation, &served)?;
    }
    Ok(())
}

/// Has a store that was just restored go on in the state of this machine: by an admin's command it
/// takes the place of the one that was served.
///
/// # Errors
/// A file or the store can't be read or written.
pub(crate) async fn adopt(
    store: &EmbeddedStore,
    folder: &Path,
    generation: &Path,
) -> Result<(), Error> {
    let served = read(generation)?.and_then(|state| state.served);
    put(store, folder, served).await
}

async fn stored(store: &EmbeddedStore, folder: &Path) -> Result<Option<u64>, Error> {
    let fetched = store.get(KEY).await.map_err(of_store(folder))?;
    let bytes = fetched.entry.map(|entry| entry.value.bytes());
    Ok(bytes.and_then(|bytes| std::str::from_utf8(&bytes).ok()?.parse().ok()))
}

async fn put(store: &EmbeddedStore, folder: &Path, served: Option<u64>) -> Result<(), Error> {
    let action = served.map_or(Action::Delete, |number| {
        Action::Put(Bytes::from(number.to_string()))
    });
    let op = Op {
        key: KEY.into(),
        expect: Expect::Any,
        action,
    };
    store
        .commit(vec![op])
        .await
        .map(drop)
        .map_err(of_store(folder))
}

fn of_store(folder: &Path) -> impl FnOnce(master_store::StoreError) -> Error {
    let path = folder.to_owned();
    move |source| Error::Store { path, source }
}

/// A state that ends with this boot, or a host, has no generation.
fn read(path: &Path) -> Result<Option<Generation>, Error> {
    let unread = |source| Error::File {
        what: "read",
        path: path.to_owned(),
        source,
    };
    let mut text = String::new();
    match File::open(path) {
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened
            .and_then(|file| file.take(LIMIT).read_to_string(&mut text))
            .map_err(unread)?,
    };
    let parsed = text.parse();
    parsed
        .map(Some)
        .map_err(|none: NoGeneration| unread(io::Error::other(none)))
}

fn write(path: &Path, state: &Generation) -> Result<(), Error> {
    let neighbour = path.with_extension("new");
    let written = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&neighbour)
        .and_then(|mut file| {
            file.write_all(state.to_string().as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| std::fs::rename(&neighbour, path))
        .and_then(|()| {
            path.parent()
                .map_or(Ok(()), |folder| File::open(folder)?.sync_all())
        });
    written.map_err(|source| Error::File {
        what: "write",
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A master's machine: its store and its generation's file.
    struct Machine {
        dir: tempfile::TempDir,
        store: EmbeddedStore,
    }

    impl Machine {
        fn new(generation: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let store = EmbeddedStore::open(&dir.path().join("store")).unwrap();
            std::fs::write(dir.path().join("generation"), generation).unwrap();
            Self { dir, store }
        }

        fn file(&self) -> std::path::PathBuf {
            self.dir.path().join("generation")
        }

        fn text(&self) -> Generation {
            std::fs::read_to_string(self.file())
                .unwrap()
                .parse()
                .unwrap()
        }

        /// init, then the master.
        async fn boot(&self) -> Result<(), Error> {
            let state = self.text();
            let number = state.number + 1;
            write(&self.file(), &Generation { number, ..state }).unwrap();
            self.start().await
        }

        async fn start(&self) -> Result<(), Error> {
            check(&self.store, self.dir.path(), &self.file()).await
        }

        async fn set_back(&self, to: Option<u64>) {
            put(&self.store, self.dir.path(), to).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_store_of_an_earlier_boot_is_not_served() {
        let machine = Machine::new("+7\n");
        for _ in 0..3 {
            machine.boot().await.unwrap();
            machine.start().await.expect("a restart in the same boot");
        }
        let state = machine.text();
        assert_eq!(
            (state.number, state.listed, state.served),
            (10, true, Some(10))
        );
        // Of two boots before, from before there was the note, and of a boot that never was.
        for other in [Some(8), None, Some(99)] {
            machine.set_back(other).await;
            let refused = machine.boot().await.unwrap_err().to_string();
            assert!(
                refused.contains("an older copy") && refused.contains("master restore"),
                "{refused}"
            );
            assert_eq!(machine.text().served, Some(10), "noted all the same");
        }
        machine.set_back(Some(10)).await;
        machine.boot().await.expect("the newest");
    }

    #[tokio::test]
    async fn a_power_cut_between_store_and_file_loses_nothing() {
        let machine = Machine::new("7\n");
        machine.boot().await.unwrap();
        let before = machine.text();
        machine.boot().await.unwrap();
        // The store has this boot's number, and the file does not.
        let number = machine.text().number;
        write(&machine.file(), &Generation { number, ..before }).unwrap();
        machine.boot().await.unwrap();
        assert_eq!(machine.text().served, Some(10));
    }

    #[tokio::test]
    async fn a_restored_store_is_served_in_the_state_in_which_it_was_restored() {
        let machine = Machine::new("7\n");
        machine.boot().await.unwrap();
        machine.boot().await.unwrap();
        // A snapshot names the boot, and maybe the machine, in which it was taken.
        for named in [None, Some(3), Some(500)] {
            machine.set_back(named).await;
            adopt(&machine.store, machine.dir.path(), &machine.file())
                .await
                .unwrap();
            machine.boot().await.unwrap();
        }
        // In a new state nothing was served yet.
        let machine = Machine::new("2\n");
        machine.set_back(Some(500)).await;
        adopt(&machine.store, machine.dir.path(), &machine.file())
            .await
            .unwrap();
        machine.start().await.unwrap();
        machine.set_back(Some(500)).await;
        assert!(machine.boot().await.is_err());
    }

    #[tokio::test]
    async fn a_host_without_a_generation_has_nothing_to_compare() {
        let machine = Machine::new("7\n");
        let none = machine.dir.path().join("none");
        check(&machine.store, machine.dir.path(), &none)
            .await
            .unwrap();
        assert!(!none.exists());
        std::fs::write(machine.file(), "none").unwrap();
        assert!(machine.start().await.is_err());
    }
}
