//! A disk that fails at each of its operations in turn: nothing is acknowledged that a power cut
//! could undo, and the store reports its failure.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may stop at the first surprise"
)]

use bytes::Bytes;
use master_store::{Action, Disk, EmbeddedStore, Expect, Op, Options, Store, StoreError};
use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Input/output error (errno(3)).
const EIO: i32 = 5;
/// No space left on device.
const ENOSPC: i32 = 28;
/// Time limit for the store's own threads.
const LIMIT: Duration = Duration::from_secs(60);

/// The content of a file before a write that is not yet on disk.
#[derive(Debug)]
struct Before {
    at: u64,
    bytes: Vec<u8>,
    /// Set after a failed flush: a later flush takes the blocks for clean and does not write them.
    lost: bool,
}

#[derive(Debug, Default)]
struct State {
    operations: u64,
    /// The operation that fails, once, and its error.
    fails: Option<(u64, i32)>,
    hit: bool,
    /// By inode, newest last.
    cached: HashMap<u64, Vec<Before>>,
}

/// A disk with a cache that fails as on Linux: once, and blocks that were not written then never
/// are.
#[derive(Debug, Default)]
struct Failing(Mutex<State>);

impl Failing {
    fn at(operation: u64, error: i32) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            fails: Some((operation, error)),
            ..State::default()
        })))
    }

    fn step(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let number = state.operations;
        state.operations += 1;
        match state.fails {
            Some((fails, error)) if fails == number => {
                state.hit = true;
                Err(io::Error::from_raw_os_error(error))
            }
            _ => Ok(()),
        }
    }

    fn hit(&self) -> bool {
        self.0.lock().unwrap().hit
    }

    /// Works from now on; returns whether it failed before.
    fn mend(&self) -> bool {
        let mut state = self.0.lock().unwrap();
        state.fails = None;
        state.hit
    }

    /// Reverts writes that never reached the disk.
    fn cut_power(&self, folder: &Path) {
        let mut cached = std::mem::take(&mut self.0.lock().unwrap().cached);
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            let writes = cached
                .remove(&file.metadata().unwrap().ino())
                .unwrap_or_default();
            for before in writes.iter().rev() {
                file.write_all_at(&before.bytes, before.at).unwrap();
            }
        }
    }
}

impl Disk for Failing {
    fn free(&self, _folder: &Path) -> io::Result<u64> {
        self.step().map(|()| u64::MAX)
    }

    fn write(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        self.step()?;
        let mut old = vec![0; bytes.len()];
        // The store opens files for writing only.
        let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let mut known = 0;
        while known < old.len() {
            match again.read_at(&mut old[known..], at + known as u64)? {
                0 => break,
                read => known += read,
            }
        }
        let mut state = self.0.lock().unwrap();
        let about = file.metadata()?;
        let cached = state.cached.entry(about.ino()).or_default();
        if about.len() == 0 {
            // A new file, possibly with the inode of a removed one.
            cached.clear();
        }
        // Writing the same blocks again makes the next flush write them; the disk still holds the
        // oldest content.
        let same =
            |before: &Before| before.lost && before.at == at && before.bytes.len() == bytes.len();
        match cached.iter_mut().find(|before| same(before)) {
            Some(before) => before.lost = false,
            None => cached.push(Before {
                at,
                bytes: old,
                lost: false,
            }),
        }
        drop(state);
        file.write_all_at(bytes, at)
    }

    fn flush(&self, file: &File) -> io::Result<()> {
        let outcome = self.step();
        let mut state = self.0.lock().unwrap();
        let cached = state.cached.entry(file.metadata()?.ino()).or_default();
        match outcome {
            Ok(()) => cached.retain(|before| before.lost),
            Err(_) => cached.iter_mut().for_each(|before| before.lost = true),
        }
        outcome
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        std::fs::rename(from, to)
    }
}

/// Small files, so that little data fills many of them.
fn options(disk: &Arc<Failing>) -> Options {
    Options {
        disk: disk.clone(),
        log_bytes: 96 << 10,
        segment_bytes: 128 << 10,
        ..Options::default()
    }
}

/// Opens the store; the threads of the previous one may still hold the lock.
async fn open(folder: &Path, disk: &Arc<Failing>) -> Result<EmbeddedStore, StoreError> {
    let began = Instant::now();
    loop {
        match EmbeddedStore::open_with(folder, &options(disk)) {
            Err(StoreError::Locked(_)) if began.elapsed() < LIMIT => {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            outcome => return outcome,
        }
    }
}

async fn put(store: &EmbeddedStore, number: u32) -> Result<(), StoreError> {
    let (key, value) = (
        format!("k/{number:03}"),
        Bytes::from(vec![u8::try_from(number % 251).unwrap(); 9000]),
    );
    let op = Op {
        key: key.as_str().into(),
        expect: Expect::Any,
        action: Action::Put(value),
    };
    store.commit(vec![op]).await.map(drop)
}

async fn all(store: &EmbeddedStore) -> BTreeMap<String, Bytes> {
    let entries = store.everything().await.unwrap().entries;
    entries
        .into_iter()
        .map(|entry| (entry.key.to_string(), entry.value.bytes()))
        .collect()
}

/// Writes until the disk fails or enough is written that a state file replaced the logs; returns
/// what was acknowledged.
async fn write(store: &EmbeddedStore, disk: &Failing) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for number in 0..40 {
        match put(store, number).await {
            Ok(()) => acknowledged.push(format!("k/{number:03}")),
            Err(_) if disk.hit() => break,
            Err(error) => panic!("a disk in order: {error}"),
        }
    }
    acknowledged
}

/// The state of the store after the failure.
struct After {
    /// It continues, as it may if the disk was only full and there is room again.
    goes_on: bool,
    /// `k/200` was acknowledged.
    written: bool,
}

/// Writes `k/200` until the store stops permanently or, if the disk was only full, continues. If a
/// state file failed, the writer learns of it from another thread: a write before that has its own
/// flush, and is acknowledged.
async fn after(store: &EmbeddedStore, error: i32) -> After {
    let failed = store.failed();
    let mut failed = std::pin::pin!(failed);
    let began = Instant::now();
    let mut written = false;
    loop {
        assert!(began.elapsed() < LIMIT, "it neither ends nor goes on");
        // Cancel-safe: the dropped answer is not needed.
        tokio::select! {
            biased;
            why = &mut failed => {
                assert!(matches!(*why, StoreError::File { .. }), "{why}");
                return After { goes_on: false, written };
            }
            outcome = put(store, 200) => match outcome {
                Ok(()) if error == ENOSPC => return After { goes_on: true, written: true },
                Ok(()) => written = true,
                Err(StoreError::Full(_) | StoreError::Closed) => {}
                Err(error) => panic!("{error}"),
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// One run: the disk fails once, at this operation. Returns false if there are fewer operations.
async fn run(operation: u64, error: i32) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let disk = Failing::at(operation, error);
    let what = format!("operation {operation}, error {error}");
    let mut acknowledged = Vec::new();
    if let Ok(store) = open(folder.path(), &disk).await {
        acknowledged = write(&store, &disk).await;
        if disk.hit() {
            let After { goes_on, written } = after(&store, error).await;
            if written {
                acknowledged.push("k/200".to_owned());
            }
            if !goes_on {
                assert!(
                    matches!(put(&store, 201).await, Err(StoreError::Closed)),
                    "{what}: a disk that fails is trusted again"
                );
            }
        }
        let seen = all(&store).await;
        assert!(
            acknowledged.iter().eq(seen.keys()),
            "{what}: what is read is what was acknowledged"
        );
    }
    let hit = disk.mend();
    // The process restarts on the same machine: what it reads may exist only in the page cache.
    let store = open(folder.path(), &disk)
        .await
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = all(&store).await;
    for key in &acknowledged {
        assert!(
            found.contains_key(key),
            "{what}: {key} was acknowledged and is lost"
        );
    }
    assert!(
        found.len() <= acknowledged.len() + 1,
        "{what}: one write at most was under way"
    );
    drop(store);
    disk.cut_power(folder.path());
    let store = open(folder.path(), &disk)
        .await
        .unwrap_or_else(|error| panic!("{what}, power cut: {error}"));
    assert!(
        all(&store).await == found,
        "{what}: what was read before the power cut is read after it"
    );
    hit
}

/// For every operation, with a full and with a broken disk.
#[tokio::test]
async fn writes_before_a_disk_failure_survive_and_none_is_acknowledged_after() {
    for error in [EIO, ENOSPC] {
        let mut operation = 0;
        while run(operation, error).await {
            operation += 1;
        }
        assert!(operation > 60, "{operation} operations are too few to tell");
    }
}
