//! A folder that someone else changes: nothing outside of it is reached, and its content costs
//! bounded time and memory.

#![allow(clippy::unwrap_used, reason = "tests may stop at the first surprise")]

use agent_sys::beneath::{Beneath, Links};
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

fn folder() -> (tempfile::TempDir, Beneath) {
    let dir = tempfile::tempdir().unwrap();
    let folder = Beneath::root(dir.path()).unwrap();
    (dir, folder)
}

#[test]
fn nothing_outside_is_reached_by_any_call() {
    let (dir, folder) = folder();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("f"), "1").unwrap();
    symlink(outside.path(), dir.path().join("out")).unwrap();
    symlink(outside.path().join("f"), dir.path().join("file")).unwrap();
    let up = format!(
        "../{}/f",
        outside.path().file_name().unwrap().to_string_lossy()
    );
    for path in [
        "out/f",
        "file",
        up.as_str(),
        outside.path().join("f").to_str().unwrap(),
    ] {
        let path = Path::new(path);
        assert!(
            folder.open(path).is_err() && folder.read(path, 9).is_err(),
            "{}",
            path.display()
        );
        assert!(
            folder.append(path, 0o600).is_err() && folder.rewrite(path, 0o600).is_err(),
            "{}",
            path.display()
        );
        assert!(
            folder.handle(path, Links::Refused).is_err()
                && folder.handle(path, Links::Inside).is_err()
        );
    }
    for path in ["out/new", "../new", "/new-of-a-test"] {
        let path = Path::new(path);
        assert!(
            folder.make_dirs(path, 0o700).is_err() && folder.create(path, 0o600).is_err(),
            "{}",
            path.display()
        );
        assert!(
            folder.link(Path::new("x"), path).is_err()
                && folder.rename(Path::new("file"), path).is_err()
        );
    }
    assert!(folder.dir(Path::new("out")).is_err());
    folder.remove_tree(Path::new("out")).unwrap();
    folder.remove_file(Path::new("file")).unwrap();
    assert_eq!(fs::read_to_string(outside.path().join("f")).unwrap(), "1");
    assert_eq!(folder.names(9).unwrap().len(), 0);
}

#[test]
fn links_inside_are_followed_only_where_that_is_asked_for() {
    let (dir, folder) = folder();
    fs::create_dir(dir.path().join("..1")).unwrap();
    fs::write(dir.path().join("..1/key"), "1").unwrap();
    symlink("..1", dir.path().join("..data")).unwrap();
    symlink("..data/key", dir.path().join("key")).unwrap();
    assert!(
        folder
            .handle(Path::new("key"), Links::Inside)
            .unwrap()
            .is_file()
    );
    assert_eq!(
        folder
            .handle(Path::new("key"), Links::Refused)
            .unwrap_err()
            .raw_os_error(),
        Some(40)
    );
}

#[test]
fn only_regular_files_are_opened_and_reads_are_bounded() {
    let (dir, folder) = folder();
    nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap());
    fs::create_dir(dir.path().join("folder")).unwrap();
    for name in ["pipe", "socket", "folder"] {
        assert!(
            folder.open(Path::new(name)).is_err() && folder.append(Path::new(name), 0o600).is_err(),
            "{name}"
        );
    }
    fs::write(dir.path().join("f"), "0123456789").unwrap();
    assert_eq!(folder.read(Path::new("f"), 10).unwrap(), b"0123456789");
    assert!(folder.read(Path::new("f"), 9).is_err());
    assert_eq!(folder.read_end(Path::new("f"), 3).unwrap(), b"789");
    fs::File::create(dir.path().join("huge"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    assert!(folder.read(Path::new("huge"), 1000).is_err());
}

#[test]
fn a_file_with_a_second_name_is_not_written() {
    let (dir, folder) = folder();
    folder
        .append(Path::new("log"), 0o600)
        .unwrap()
        .write_all(b"1")
        .unwrap();
    folder
        .append(Path::new("log"), 0o600)
        .unwrap()
        .write_all(b"2")
        .unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("log")).unwrap(), "12");
    fs::hard_link(dir.path().join("log"), dir.path().join("other")).unwrap();
    assert!(folder.append(Path::new("log"), 0o600).is_err());
    assert!(folder.rewrite(Path::new("log"), 0o600).is_err());
}

#[test]
fn a_tree_of_any_depth_and_width_is_removed() {
    let (dir, folder) = folder();
    let mut at = folder.make_dirs(Path::new("tree"), 0o700).unwrap();
    for number in 0..3000 {
        drop(at.create(Path::new(&format!("f{number}")), 0o600).unwrap());
    }
    for _ in 0..1500 {
        // Names that the removal itself would choose are no obstacle.
        drop(at.make_dirs(Path::new("moved-up-1/x"), 0o700).unwrap());
        at = at.make_dirs(Path::new("d"), 0o700).unwrap();
    }
    drop(at);
    folder.remove_tree(Path::new("tree")).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    folder.remove_tree(Path::new("tree")).unwrap();
}

#[test]
fn usage_counts_each_file_once_and_says_if_it_is_incomplete() {
    let (dir, folder) = folder();
    fs::create_dir(dir.path().join("a")).unwrap();
    fs::write(dir.path().join("a/f"), vec![1; 64 << 10]).unwrap();
    let one = folder.usage(100).unwrap();
    assert!(
        one.bytes >= 64 << 10 && one.entries == 2 && !one.more,
        "{one:?}"
    );
    assert!(!folder.usage(2).unwrap().more);
    let top = folder.usage(1).unwrap();
    assert!(top.more, "the folder below is not counted: {top:?}");
    fs::hard_link(dir.path().join("a/f"), dir.path().join("again")).unwrap();
    symlink("/", dir.path().join("root")).unwrap();
    let two = folder.usage(100).unwrap();
    assert!(
        two.bytes < one.bytes + (32 << 10) && two.entries == 4 && !two.more,
        "{two:?}"
    );
    assert!(folder.usage(3).unwrap().more);
    let mut at = folder.dir(Path::new("a")).unwrap();
    for _ in 0..20 {
        at = at.make_dirs(Path::new(&"x".repeat(250)), 0o700).unwrap();
    }
    let deep = folder.usage(100).unwrap();
    assert!(!deep.more && deep.entries == 24, "{deep:?}");
}

/// 16 MiB of names, of 255 bytes each, are of 65,793 folders.
#[test]
fn usage_takes_no_more_names_of_one_folder_than_of_many() {
    // In memory, as so many new folders take a disk seconds.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    for number in 0..65_900 {
        fs::create_dir(dir.path().join(format!("{number:0255}"))).unwrap();
    }
    let folder = Beneath::root(dir.path()).unwrap();
    let usage = folder.usage(500_000).unwrap();
    assert!(usage.more && usage.entries < 65_800, "{usage:?}");
}

#[test]
fn usage_counts_what_is_deeper_than_the_descriptors_that_it_holds() {
    let (_dir, folder) = folder();
    let chain = |name: &str| {
        let mut at = folder.dir(Path::new("")).unwrap();
        for _ in 0..100 {
            // Folders are entered in the order of their inode numbers, and while others remove
            // files, a new one may get any number. The chain goes on in the middle one of three,
            // so that one of the other two waits on the way back.
            let mut made = ["one", "two", "three"].map(|side| {
                let side = PathBuf::from(format!("{side} {}", &name[..1]));
                let folder = at.make_dirs(&side, 0o700).unwrap();
                (nix::sys::stat::fstat(&folder).unwrap().st_ino, side)
            });
            made.sort();
            at.rename(&made[1].1, Path::new(name)).unwrap();
            at = at.dir(Path::new(name)).unwrap();
        }
    };
    chain("d");
    let usage = folder.usage(10_000).unwrap();
    assert!(!usage.more && usage.entries == 300, "{usage:?}");
    chain(&"y".repeat(200));
    let usage = folder.usage(10_000).unwrap();
    assert!(
        usage.more,
        "it can't be held again: no path is so long: {usage:?}"
    );
}

/// A pod that renames its folders all the time, to have nothing in them counted.
#[test]
fn usage_finds_what_is_in_folders_whose_names_change_all_the_time() {
    let (dir, folder) = folder();
    let mut names: Vec<String> = (0..12).map(|level| format!("{level}-a")).collect();
    let path = |names: &[String]| {
        names
            .iter()
            .fold(dir.path().to_owned(), |path, name| path.join(name))
    };
    fs::create_dir_all(path(&names)).unwrap();
    fs::write(path(&names).join("f"), vec![1; 1 << 20]).unwrap();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                for level in 0..names.len() {
                    let before = path(&names[..=level]);
                    let turned = if names[level].ends_with('a') {
                        "b"
                    } else {
                        "a"
                    };
                    names[level] = format!("{level}-{turned}");
                    fs::rename(before, path(&names[..=level])).unwrap();
                }
            }
        });
        let counts: Vec<_> = (0..50).map(|_| folder.usage(1000).unwrap()).collect();
        end.store(true, Ordering::Relaxed);
        for usage in counts {
            assert!(usage.bytes >= 1 << 20 || usage.more, "{usage:?}");
        }
    });
}
