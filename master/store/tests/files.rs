//! The embedded engine's files: state files, torn and damaged logs, full disks, snapshots.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may stop at the first surprise"
)]

use bytes::Bytes;
use master_store::{
    Action, Disk, EmbeddedStore, Entry, Expect, ListQuery, Op, Options, RESTORED_AHEAD,
    SnapshotBytes, SnapshotError, Store, StoreError, restore_snapshot, verify_snapshot,
};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

async fn put(store: &EmbeddedStore, key: &str, value: Bytes) -> Result<u64, StoreError> {
    let op = Op {
        key: key.into(),
        expect: Expect::Any,
        action: Action::Put(value),
    };
    store.commit(vec![op]).await.map(|done| done.revision)
}

/// Time limit for the store's own work, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

async fn all(store: &EmbeddedStore) -> Vec<Entry> {
    store.everything().await.unwrap().entries
}

fn files(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = entries
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with(prefix)
        })
        .collect();
    found.sort();
    found
}

/// Waits for a condition of the store's folder.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "waited for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Small files, so that little data fills many of them.
fn small() -> Options {
    Options {
        log_bytes: 64 << 10,
        segment_bytes: 256 << 10,
        ..Options::default()
    }
}

#[tokio::test]
async fn logs_give_way_to_states_and_history_outlives_both() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open_with(folder.path(), &small()).unwrap();
    let start = store.revision().await.unwrap();
    for round in 0..40u8 {
        for key in 0..20 {
            put(&store, &format!("k/{key}"), Bytes::from(vec![round; 1000]))
                .await
                .unwrap();
        }
    }
    until("a state file", || files(folder.path(), "state-").len() == 1).await;
    let (entries, head) = (all(&store).await, store.revision().await.unwrap());
    drop(store);
    let bytes: u64 = files(folder.path(), "")
        .iter()
        .map(|path| path.metadata().unwrap().len())
        .sum();
    assert!(bytes < 8 << 20, "800 kB were written, files have {bytes}");
    let store = EmbeddedStore::open_with(folder.path(), &small()).unwrap();
    assert_eq!(
        (all(&store).await, store.revision().await.unwrap()),
        (entries, head)
    );
    let mut seen = 0;
    let mut watch = store.watch("k/", start).await.unwrap();
    while seen < 800 {
        seen += watch.next().await.unwrap().events.len();
    }
    let half = ListQuery {
        prefix: "k/".to_owned(),
        revision: Some(start + 400),
        ..ListQuery::default()
    };
    let then = store.list(half).await.unwrap().entries;
    assert!(
        then.iter()
            .all(|entry| entry.value.bytes()[0] == 19 && entry.created <= start + 20)
    );
}

#[tokio::test]
async fn a_torn_end_is_dropped_and_damage_before_the_end_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path()).unwrap();
    for number in 0..50 {
        put(
            &store,
            &format!("k/{number:02}"),
            Bytes::from(vec![b'x'; 500]),
        )
        .await
        .unwrap();
    }
    drop(store);
    let log = files(folder.path(), "log-").pop().unwrap();
    let whole = std::fs::read(&log).unwrap();
    let last = whole
        .windows(4)
        .rposition(|bytes| bytes == b"k/49")
        .unwrap();
    // The last frame is torn, as by a power cut before its flush was acknowledged.
    let mut torn = whole.clone();
    torn[last + 100] ^= 1;
    std::fs::write(&log, &torn).unwrap();
    let store = EmbeddedStore::open(folder.path()).unwrap();
    assert_eq!(all(&store).await.len(), 49);
    assert!(store.get("k/49").await.unwrap().entry.is_none());
    drop(store);
    // A changed bit in the middle is damage: the frames after it were acknowledged.
    let middle = whole.windows(4).position(|bytes| bytes == b"k/20").unwrap();
    let mut damaged = whole;
    damaged[middle + 100] ^= 1;
    for path in files(folder.path(), "log-").iter().skip(1) {
        std::fs::remove_file(path).unwrap();
    }
    std::fs::write(&log, &damaged).unwrap();
    let error = EmbeddedStore::open(folder.path()).unwrap_err();
    assert!(
        matches!(&error, StoreError::Corrupt(what) if what.contains("checksum")),
        "{error}"
    );
}

#[tokio::test]
async fn a_missing_log_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let store = EmbeddedStore::open(folder.path()).unwrap();
        put(&store, &format!("k/{round}"), Bytes::from("x"))
            .await
            .unwrap();
    }
    std::fs::remove_file(&files(folder.path(), "log-")[1]).unwrap();
    let error = EmbeddedStore::open(folder.path()).unwrap_err();
    assert!(
        matches!(&error, StoreError::Corrupt(what) if what.contains("a file is missing")),
        "{error}"
    );
}

#[tokio::test]
async fn a_store_is_opened_once() {
    let folder = tempfile::tempdir().unwrap();
    let _store = EmbeddedStore::open(folder.path()).unwrap();
    assert!(matches!(
        EmbeddedStore::open(folder.path()),
        Err(StoreError::Locked(_))
    ));
}

/// A disk with this many free bytes.
#[derive(Debug)]
struct Room(AtomicU64);

impl Disk for Room {
    fn free(&self, _folder: &Path) -> std::io::Result<u64> {
        Ok(self.0.load(Ordering::Relaxed))
    }
}

#[tokio::test]
async fn on_a_full_disk_reads_and_deletions_go_on_and_writes_when_there_is_room_again() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(Room(AtomicU64::new(u64::MAX)));
    let options = Options {
        disk: disk.clone(),
        log_bytes: 1 << 30,
        ..small()
    };
    let store = EmbeddedStore::open_with(folder.path(), &options).unwrap();
    let first = put(&store, "k/first", Bytes::from("x")).await.unwrap();
    disk.0.store(1 << 20, Ordering::Relaxed);
    let mut written = 0;
    let refused = loop {
        match put(
            &store,
            &format!("k/{written}"),
            Bytes::from(vec![0; 30_000]),
        )
        .await
        {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 1000, "the disk is full");
    };
    assert!(
        matches!(&refused, StoreError::Full(why) if why.contains("1 MiB left")),
        "{refused}"
    );
    assert_eq!(
        all(&store).await.len(),
        written + 1,
        "what was acknowledged is read"
    );
    store
        .commit(vec![Op::delete("k/first", first)])
        .await
        .unwrap();
    drop(store);
    let store = EmbeddedStore::open_with(folder.path(), &options).unwrap();
    assert_eq!(
        all(&store).await.len(),
        written,
        "a store on a full disk opens for reading"
    );
    assert!(matches!(
        put(&store, "k/more", Bytes::from("x")).await,
        Err(StoreError::Full(_))
    ));
    disk.0.store(u64::MAX, Ordering::Relaxed);
    let began = Instant::now();
    while put(&store, "k/more", Bytes::from("x")).await.is_err() {
        assert!(began.elapsed() < LIMIT, "there is room again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn history_is_forgotten_by_age() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        history_age: Duration::from_millis(100),
        ..Options::default()
    };
    let store = EmbeddedStore::open_with(folder.path(), &options).unwrap();
    let first = put(&store, "k/a", Bytes::from("1")).await.unwrap();
    put(&store, "k/a", Bytes::from("2")).await.unwrap();
    let began = Instant::now();
    loop {
        match store.watch("k/", first).await {
            Err(StoreError::Compacted { .. }) => break,
            Ok(_) => assert!(began.elapsed() < LIMIT, "it is never compacted"),
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(all(&store).await[0].value, "2");
}

fn write_snapshot(path: &Path, pieces: SnapshotBytes) {
    let mut file = std::fs::File::create(path).unwrap();
    for piece in pieces {
        file.write_all(&piece).unwrap();
    }
}

#[tokio::test]
async fn a_snapshot_restores_the_state_and_expires_watches() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(&folder.path().join("one")).unwrap();
    for number in 0..3000 {
        put(
            &store,
            &format!("t{}/{number}", number % 3),
            Bytes::from(vec![b'x'; 300]),
        )
        .await
        .unwrap();
    }
    let everything = store.everything().await.unwrap();
    let file = folder.path().join("snapshot");
    write_snapshot(&file, SnapshotBytes::new(everything.clone()).unwrap());
    // The store continues, and its clients see what the snapshot does not contain.
    let later = put(&store, "t0/later", Bytes::from("x")).await.unwrap();
    let target = folder.path().join("two");
    let summary = restore_snapshot(&file, &target).unwrap();
    assert_eq!(
        (summary.revision, summary.entries),
        (everything.revision, 3000)
    );
    let restored = EmbeddedStore::open(&target).unwrap();
    assert_eq!(all(&restored).await, everything.entries);
    let head = restored.revision().await.unwrap();
    assert_eq!(head, everything.revision + RESTORED_AHEAD);
    for seen in [1, everything.revision, later] {
        assert!(
            matches!(
                restored.watch("t0/", seen).await,
                Err(StoreError::Compacted { .. })
            ),
            "{seen}"
        );
    }
    assert!(put(&restored, "t0/later", Bytes::from("y")).await.unwrap() > head);
    drop(restored);
    assert!(matches!(
        restore_snapshot(&file, &target),
        Err(SnapshotError::NotEmpty(_))
    ));
}

#[tokio::test]
async fn a_cut_or_changed_snapshot_is_refused_and_leaves_no_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(&folder.path().join("one")).unwrap();
    for number in 0..1000 {
        put(&store, &format!("k/{number}"), Bytes::from(vec![b'x'; 700]))
            .await
            .unwrap();
    }
    let file = folder.path().join("snapshot");
    write_snapshot(
        &file,
        SnapshotBytes::new(store.everything().await.unwrap()).unwrap(),
    );
    let whole = std::fs::read(&file).unwrap();
    let target = folder.path().join("two");
    let refused = |bytes: &[u8], why: &str| {
        std::fs::write(&file, bytes).unwrap();
        let error = restore_snapshot(&file, &target).unwrap_err();
        assert!(
            matches!(&error, SnapshotError::Unusable { why: said, .. } if said.contains(why)),
            "{error} for {why}"
        );
        assert!(!target.exists(), "nothing is left behind");
    };
    for cut in [
        0,
        10,
        100,
        whole.len() / 2,
        whole.len() - 1,
        whole.len() - 40,
    ] {
        refused(&whole[..cut], "cut short");
    }
    for at in (40..whole.len() - 8).step_by(whole.len() / 50) {
        let mut changed = whole.clone();
        changed[at] ^= 4;
        refused(&changed, if at < 32 { "start" } else { "" });
    }
    refused(&[whole.as_slice(), b"more"].concat(), "follow");
    refused(&[b'x'; 4000], "start");
    std::fs::write(&file, &whole).unwrap();
    assert_eq!(verify_snapshot(&file).unwrap().entries, 1000);
    // A store's own state file is not a snapshot.
    restore_snapshot(&file, &target).unwrap();
    let state = files(&target, "state-").pop().unwrap();
    assert!(
        matches!(verify_snapshot(&state), Err(SnapshotError::Unusable { why, .. }) if why.contains("not a snapshot"))
    );
    let byte = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&state)
        .unwrap();
    byte.write_all_at(b"?", 5000).unwrap();
    assert!(matches!(
        EmbeddedStore::open(&target),
        Err(StoreError::Corrupt(_))
    ));
}
