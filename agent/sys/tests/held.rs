//! Files without a name, kept by this process in all the ways there are, on the real kernel.

#![allow(unsafe_code, reason = "a file is mapped, which has no safe call")]

use agent_sys::held::{NamelessFiles, held};
use nix::sched::{CloneFlags, unshare};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::{self, File};
use std::io::Write;
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};

/// Bytes of a file, and of no other that this process has.
const SIZE: usize = 3 << 20;

/// One test at a time: a thread with descriptors of its own begins with all that the process has.
static ALONE: Mutex<()> = Mutex::new(());

/// A new file in the folder, which has a name.
fn file(dir: &Path, name: &str, size: usize) -> File {
    let path = dir.join(name);
    let mut file = File::options()
        .create_new(true)
        .read(true)
        .write(true)
        .open(path)
        .expect("a new file");
    file.write_all(&vec![1; size]).expect("room on the disk");
    file.sync_all().expect("it is written");
    file
}

/// How many files of this size are held.
fn of_size(dir: &Path, size: usize) -> usize {
    let device = fs::metadata(dir).expect("the folder").dev();
    let held = held(&[std::process::id()], device, 100_000);
    assert!(!held.more);
    let wanted = |bytes: u64| {
        let size = size as u64;
        (size..size + (1 << 16)).contains(&bytes)
    };
    let files = held.files.iter().filter(|file| wanted(file.bytes));
    files.inspect(|file| assert!(file.root.is_some())).count()
}

#[test]
fn a_deleted_file_counts_while_it_is_open_or_mapped_and_one_with_a_name_does_not() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let open = file(dir.path(), "f", SIZE);
    assert_eq!(of_size(dir.path(), SIZE), 0, "it has a name");
    fs::hard_link(dir.path().join("f"), dir.path().join("g")).unwrap();
    fs::remove_file(dir.path().join("f")).unwrap();
    assert_eq!(of_size(dir.path(), SIZE), 0, "it has another name");
    fs::remove_file(dir.path().join("g")).unwrap();
    let again = open.try_clone().unwrap();
    assert_eq!(of_size(dir.path(), SIZE), 1, "once for two descriptors");
    drop(again);

    let length = NonZeroUsize::new(4096).unwrap();
    // SAFETY: a mapping of its own, which nobody looks into.
    let mapped = unsafe {
        mmap(
            None,
            length,
            ProtFlags::PROT_READ,
            MapFlags::MAP_SHARED,
            &open,
            0,
        )
    };
    let mapped = mapped.unwrap();
    drop(open);
    assert_eq!(of_size(dir.path(), SIZE), 1, "it is mapped");
    // SAFETY: as it was mapped.
    unsafe { munmap(mapped, 4096) }.unwrap();
    assert_eq!(of_size(dir.path(), SIZE), 0, "it is gone");

    let none = held(
        &[std::process::id()],
        fs::metadata(dir.path()).unwrap().dev(),
        1,
    );
    assert!(none.more, "more than were to be looked at");
    assert_eq!(
        held(&[u32::MAX], 0, 10),
        NamelessFiles::default(),
        "no such process"
    );
}

#[test]
fn a_thread_with_descriptors_of_its_own_hides_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let (sender, opened) = channel();
    let (end, ended) = channel::<()>();
    std::thread::scope(|scope| {
        let dir = dir.path();
        scope.spawn(move || {
            unshare(CloneFlags::CLONE_FILES).unwrap();
            let open = file(dir, "f", SIZE);
            fs::remove_file(dir.join("f")).unwrap();
            sender.send(()).unwrap();
            ended.recv().unwrap();
            drop(open);
        });
        opened.recv().unwrap();
        let found = of_size(dir, SIZE);
        end.send(()).unwrap();
        assert_eq!(found, 1);
    });
}

#[test]
fn files_in_memory_are_not_on_the_disk() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let name = c"in-memory";
    let memory = nix::sys::memfd::memfd_create(name, nix::sys::memfd::MFdFlags::empty()).unwrap();
    File::from(memory.try_clone().unwrap())
        .write_all(&vec![1; SIZE])
        .unwrap();
    let shared = tempfile::tempfile_in("/dev/shm").unwrap();
    (&shared).write_all(&vec![1; SIZE]).unwrap();
    assert_eq!(of_size(dir.path(), SIZE), 0);
    drop((memory, shared));
}
