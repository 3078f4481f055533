//! An API over a store of its own for each case: a copy of a store that was prepared once, because
//! creating the initial objects of a cluster takes longer than a short case.

use super::dice::Dice;
use super::simulation::Day;
use master_api::{ApiServer, Clock, Identities};
use master_store::{Disk, EmbeddedStore, Options, Store};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, OnceLock};
use tempfile::TempDir;

/// A disk without flushes: the store's own tests cover power cuts.
#[derive(Debug)]
struct Volatile;

impl Disk for Volatile {
    fn flush(&self, _: &File) -> io::Result<()> {
        Ok(())
    }
}

/// UIDs and generated names from a seed.
fn identities(seed: u64) -> Identities {
    let dice = Mutex::new(Dice(seed.rotate_left(16)));
    Identities::of(move || {
        let mut dice = dice.lock().unwrap();
        u128::from(dice.next()) << 64 | u128::from(dice.next())
    })
}

fn open(folder: &TempDir, seed: u64, day: &Day) -> (Arc<dyn Store>, ApiServer) {
    let options = Options {
        disk: Arc::new(Volatile),
        ..Options::default()
    };
    let store: Arc<dyn Store> =
        Arc::new(EmbeddedStore::open_with(folder.path(), &options).unwrap());
    let day = day.clone();
    let options = master_api::Options {
        clock: Clock::of(move || day.now()),
        roles: master_control::roles(&master_controllers::all()),
        identities: identities(seed),
        ..master_api::Options::default()
    };
    let server = ApiServer::new(Arc::clone(&store), options);
    (store, server)
}

/// The files of a store with the initial objects of every cluster.
fn first() -> &'static [(OsString, Vec<u8>)] {
    static FIRST: OnceLock<Vec<(OsString, Vec<u8>)>> = OnceLock::new();
    FIRST.get_or_init(|| {
        let folder = TempDir::new().unwrap();
        // On a thread of its own: the caller may be in a runtime.
        std::thread::scope(|scope| {
            let prepare = || {
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                runtime.enable_all().build().unwrap().block_on(async {
                    let (_store, server) = open(&folder, u64::MAX, &Day::first());
                    server.prepare().await.unwrap();
                });
            };
            scope.spawn(prepare).join().unwrap();
        });
        let files = std::fs::read_dir(folder.path()).unwrap();
        let files = files.map(|file| {
            let file = file.unwrap();
            (file.file_name(), std::fs::read(file.path()).unwrap())
        });
        files.collect()
    })
}

/// A store with the initial objects of every cluster, in a folder of its own, and the API over it.
pub(crate) fn prepared(seed: u64, day: &Day) -> (TempDir, Arc<dyn Store>, ApiServer) {
    let folder = TempDir::new().unwrap();
    for (name, content) in first() {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    let (store, server) = open(&folder, seed, day);
    (folder, store, server)
}
