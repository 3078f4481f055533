//! In which boot the store was last served, noted in the store and beside the generation of the
//! machine's state ([`config_state::generation`]), which is authenticated and can't be set back.
//!
//! The state is encrypted and not authenticated: an older store can be put back behind the current
//! generation, and with it retired machines, old policies and lower minimums. Such a store names an
//! earlier boot than the generation's file, and is not served.
//!
//! Within a boot nothing more is noted: a store goes back to when the master began to serve in the
//! last boot. In each boot the file is written by init first, which carries over the boot that was
//! served before, and then here. With the file from between the two a store of the boot before is
//! served, too, which goes back to when the master began to serve in that boot, and none of an
//! earlier one.

use crate::Error;
use bytes::Bytes;
use config_state::generation::Generation;
use master_attest::StateGeneration;
use master_store::{Action, Expect, Op, Store};
use std::path::Path;

/// The store's key: a table that no kind has.
const KEY: &str = "state/served";

/// Checks that the store in `folder` was not set back, and notes this boot's generation in it and
/// in the generation's file, in this order: a power cut between the two leaves the store ahead.
///
/// # Errors
/// [`Error::OlderStore`], or a file or the store that can't be read or written.
pub(crate) async fn check(
    store: &dyn Store,
    folder: &Path,
    generation: &StateGeneration,
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
    let change = |state: &mut Generation| state.served = Some(state.number);
    generation.change(change).map_err(of_state)
}

/// Lets this machine's state continue with a store that an admin has just restored in place of the
/// one that was served: the store gets the boot that the state notes.
///
/// # Errors
/// A file or the store can't be read or written.
pub(crate) async fn adopt(
    store: &dyn Store,
    folder: &Path,
    generation: &StateGeneration,
) -> Result<(), Error> {
    let served = read(generation)?.and_then(|state| state.served);
    put(store, folder, served).await
}

async fn stored(store: &dyn Store, folder: &Path) -> Result<Option<u64>, Error> {
    let fetched = store.get(KEY).await.map_err(of_store(folder))?;
    let bytes = fetched.entry.map(|entry| entry.value.bytes());
    Ok(bytes.and_then(|bytes| std::str::from_utf8(&bytes).ok()?.parse().ok()))
}

async fn put(store: &dyn Store, folder: &Path, served: Option<u64>) -> Result<(), Error> {
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

/// `None` without a generation: on a host, or where the state does not outlive this boot.
fn read(generation: &StateGeneration) -> Result<Option<Generation>, Error> {
    generation.read().map_err(of_state)
}

fn of_state(error: master_attest::Error) -> Error {
    if let master_attest::Error::File { what, path, source } = error {
        return Error::File { what, path, source };
    }
    Error::Attest(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    use config_state::generation::GenerationKey;
    use master_store::EmbeddedStore;

    /// A master's machine: its store and its generation's file.
    struct Machine {
        dir: tempfile::TempDir,
        store: EmbeddedStore,
    }

    impl Machine {
        fn new(number: u64) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let store = EmbeddedStore::open(&dir.path().join("store")).unwrap();
            let machine = Self { dir, store };
            std::fs::write(machine.file().key, key().bytes()).unwrap();
            machine.write(Generation {
                number,
                listed: true,
                ..Generation::default()
            });
            machine
        }

        fn file(&self) -> StateGeneration {
            StateGeneration {
                file: self.dir.path().join("generation"),
                key: self.dir.path().join("key"),
            }
        }

        fn state(&self) -> Generation {
            self.file().read().unwrap().unwrap()
        }

        fn write(&self, state: Generation) {
            std::fs::write(self.file().file, state.text(&key())).unwrap();
        }

        /// As init leaves the file.
        fn next_boot(&self) {
            let state = self.state();
            self.write(Generation {
                number: state.number + 1,
                ..state
            });
        }

        /// init, then the master.
        async fn boot(&self) -> Result<(), Error> {
            self.next_boot();
            self.start().await
        }

        async fn start(&self) -> Result<(), Error> {
            check(&self.store, self.dir.path(), &self.file()).await
        }

        async fn set_back(&self, to: Option<u64>) {
            put(&self.store, self.dir.path(), to).await.unwrap();
        }
    }

    fn key() -> GenerationKey {
        GenerationKey::parse(&[7; 32]).unwrap()
    }

    #[tokio::test]
    async fn a_store_of_an_earlier_boot_is_not_served() {
        let machine = Machine::new(7);
        for _ in 0..3 {
            machine.boot().await.unwrap();
            machine.start().await.expect("a restart in the same boot");
        }
        let state = machine.state();
        assert_eq!(
            (state.number, state.listed, state.served),
            (10, true, Some(10))
        );
        // Stores of two boots ago, of a master that noted no boot, and of a boot that never was.
        for other in [Some(8), None, Some(99)] {
            machine.set_back(other).await;
            let refused = machine.boot().await.unwrap_err().to_string();
            assert!(
                refused.contains("an older copy") && refused.contains("master restore"),
                "{refused}"
            );
            assert_eq!(machine.state().served, Some(10), "noted all the same");
        }
        machine.set_back(Some(10)).await;
        machine.boot().await.expect("the newest");
    }

    /// The file has two versions in a boot: the one that init writes, and then the master's.
    #[tokio::test]
    async fn a_file_from_between_inits_write_and_the_masters_allows_the_boot_before_and_no_other() {
        let machine = Machine::new(7);
        machine.boot().await.unwrap();
        machine.boot().await.unwrap();
        machine.next_boot();
        let between = machine.state();
        machine.start().await.unwrap();
        let whole = machine.state();
        assert_eq!([between.served, whole.served].map(Option::unwrap), [9, 10]);
        for (file, store, served) in [
            (whole, 10, true),
            (whole, 9, false),
            (whole, 8, false),
            (between, 10, true),
            (between, 9, true),
            (between, 8, false),
        ] {
            machine.write(file);
            machine.set_back(Some(store)).await;
            let outcome = machine.boot().await;
            assert_eq!(outcome.is_ok(), served, "{file:?} {store}: {outcome:?}");
        }
    }

    #[tokio::test]
    async fn a_power_cut_between_store_and_file_loses_nothing() {
        let machine = Machine::new(7);
        machine.boot().await.unwrap();
        let before = machine.state();
        machine.boot().await.unwrap();
        // The store has this boot's number, and the file does not.
        let number = machine.state().number;
        machine.write(Generation { number, ..before });
        machine.boot().await.unwrap();
        assert_eq!(machine.state().served, Some(10));
    }

    #[tokio::test]
    async fn a_restored_store_is_served_in_the_state_in_which_it_was_restored() {
        let machine = Machine::new(7);
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
        let machine = Machine::new(2);
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
        let machine = Machine::new(7);
        let none = StateGeneration {
            file: machine.dir.path().join("none"),
            ..machine.file()
        };
        check(&machine.store, machine.dir.path(), &none)
            .await
            .unwrap();
        assert!(!none.file.exists());
        std::fs::write(machine.file().file, "none").unwrap();
        assert!(machine.start().await.is_err());
    }
}
