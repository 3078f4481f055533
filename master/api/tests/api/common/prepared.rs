//! Stores with what every cluster begins with: made once for each choice of ranges and roles, then
//! copied, since a hundred objects cost more than most tests.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use master_api::{ApiServer, Options};
use master_store::EmbeddedStore;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tempfile::TempDir;

/// The files of a store that is not open.
type Files = Arc<Vec<(OsString, Vec<u8>)>>;

/// Fills an empty folder with the store of a server that was prepared with these options.
/// [`ApiServer::prepare`] over it finds everything made.
pub(crate) fn fill(folder: &Path, options: &Options) {
    for (name, content) in &*files(options) {
        std::fs::write(folder.join(name), content).unwrap();
    }
}

fn files(options: &Options) -> Files {
    static MADE: Mutex<Option<HashMap<String, Files>>> = Mutex::new(None);
    // All of the options that say what a cluster begins with.
    let key = format!("{:?} {:?}", options.ranges, options.roles);
    // Those who need the same store wait for the first of them.
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let made = made.get_or_insert_default().entry(key);
    made.or_insert_with(|| {
        let wanted = Options {
            ranges: options.ranges.clone(),
            roles: options.roles.clone(),
            ..Options::default()
        };
        // On a thread of its own: the caller may be in a runtime.
        std::thread::scope(|scope| scope.spawn(|| make(wanted)).join().unwrap())
    })
    .clone()
}

fn make(options: Options) -> Files {
    let folder = TempDir::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let store = Arc::new(EmbeddedStore::open(folder.path()).unwrap());
        ApiServer::new(store, options).prepare().await.unwrap();
    });
    let files = std::fs::read_dir(folder.path()).unwrap();
    let files = files.map(|file| {
        let file = file.unwrap();
        (file.file_name(), std::fs::read(file.path()).unwrap())
    });
    Arc::new(files.collect())
}
