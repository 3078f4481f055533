//! A master whose disk is full to the last byte.

use super::{Child, LIMIT, Site};
use agent_sys::mount::{Limits, detach, mount};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use tests_harness::wait::eventually;

/// Room for the master and some objects beside the 32 MiB that its store keeps free.
const SIZE: &str = "size=64m,mode=700";
/// More objects than there is room for.
const MOST: u32 = 200;

/// A file system in memory, which ends with the test.
struct Disk(PathBuf);

impl Disk {
    fn new(at: PathBuf) -> Self {
        std::fs::create_dir_all(&at).unwrap();
        let limits = Limits {
            read_only: false,
            no_suid: true,
            no_dev: true,
            no_exec: true,
        };
        mount("tmpfs", at.to_str().unwrap(), "tmpfs", limits, SIZE).unwrap();
        Self(at)
    }

    /// Takes the last byte.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = File::create(&path).unwrap();
        for bytes in [1 << 20, 4096, 1] {
            while file.write_all(&vec![0; bytes]).is_ok() {}
        }
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        detach(self.0.to_str().unwrap_or_default()).ok();
    }
}

fn spawn(site: &Site, log: &Path) -> Child {
    let log = File::create(log).unwrap();
    Child(site.command().stderr(log).spawn().unwrap())
}

/// The store refuses writes with the cure, and reads and deletions go on. A master that starts on
/// such a disk ends, and its last line names the cure. With room again it has all that it
/// acknowledged, and takes writes.
#[test]
fn a_master_on_a_full_disk_names_the_cure_and_loses_nothing() {
    let site = Site::new();
    let disk = Disk::new(site.dir.path().join("data"));
    let log = site.dir.path().join("master.log");
    let master = spawn(&site, &log);
    site.ready().unwrap();
    let mut kept = BTreeSet::new();
    let refused = (0..MOST).find_map(|number| match site.large(number) {
        Ok(name) => {
            kept.insert(name);
            None
        }
        Err(error) => Some(tests_harness::chain(&error)),
    });
    let refused = refused.expect("there is room for everything");
    assert!(refused.contains("free some, and writes go on"), "{refused}");
    let filler = disk.fill();
    assert!(kept.is_subset(&site.config_maps()), "reads go on");
    let first = kept.pop_first().unwrap();
    site.kubectl(&["delete", "configmap", &first]).unwrap();
    drop(master);

    let mut again = spawn(&site, &log);
    let status = eventually("the master to end", LIMIT, "", || {
        Ok(again.0.try_wait().unwrap())
    });
    let text = site.log();
    let status = status.unwrap_or_else(|error| panic!("{error}\n{text}"));
    let last = text.lines().last().unwrap_or_default();
    assert!(
        !status.success() && last.contains("free some of the disk"),
        "{status}: {text}"
    );

    std::fs::remove_file(filler).unwrap();
    let back = spawn(&site, &log);
    site.ready().unwrap();
    let there = site.config_maps();
    assert!(kept.is_subset(&there), "acknowledged and lost");
    assert!(!there.contains(&first), "deleted and back");
    drop(back);
}
