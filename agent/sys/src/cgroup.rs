//! Control groups of the kernel: the mount point, and the files of a group.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Component, Path, PathBuf};

/// Where control groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";
/// Bytes of a file at most; the longest that the kernel writes here is `memory.stat`, some 2 KiB.
const MAX_FILE: u64 = 64 << 10;

/// Bytes of a list of processes: more than any pod's limit lets it have.
const MAX_LIST: u64 = 4 << 20;
/// Most groups that are looked into, at and below one.
const MAX_GROUPS: usize = 4096;

/// What a pod's group limits.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// A path of a group, below its tree.
fn inside(path: &str) -> io::Result<&Path> {
    let relative = Path::new(path.trim_start_matches('/'));
    let plain = |part| matches!(part, Component::Normal(_));
    if relative.components().all(plain) {
        Ok(relative)
    } else {
        Err(io::ErrorKind::InvalidInput.into())
    }
}

/// Enables the controllers that a group has for the groups below it.
fn hand_down(group: &Path) -> io::Result<()> {
    let has = fs::read_to_string(group.join("cgroup.controllers"))?;
    let has: Vec<&str> = has.split_whitespace().collect();
    let wanted = CONTROLLERS.iter().filter(|name| has.contains(name));
    let wanted: Vec<String> = wanted.map(|name| format!("+{name}")).collect();
    fs::write(group.join("cgroup.subtree_control"), wanted.join(" "))
}

/// The processes of the group in this folder and of those below it; `most` groups are looked into.
fn processes_below(group: PathBuf, most: usize) -> Vec<u32> {
    let mut groups = vec![group];
    let (mut all, mut looked) = (Vec::new(), 0);
    while let Some(group) = groups.pop() {
        looked += 1;
        let mut text = String::new();
        // A group may go at any moment, with all that was in it.
        if let Ok(list) = File::open(group.join("cgroup.procs"))
            && list.take(MAX_LIST).read_to_string(&mut text).is_ok()
        {
            all.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
        }
        let below = fs::read_dir(&group).into_iter().flatten();
        let below = below.filter_map(Result::ok);
        let below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        // Those that wait count, too: otherwise they could be as many for each group that is looked
        // into.
        let room = most.saturating_sub(looked + groups.len());
        groups.extend(below.map(|entry| entry.path()).take(room));
    }
    all
}

/// The two forms of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A tree for each controller (cgroup-v1).
    One,
    /// One tree for all (cgroup-v2.rst).
    Two,
}

/// The control groups of this machine.
#[derive(Debug, Clone)]
pub struct Groups {
    root: PathBuf,
    version: Version,
}

impl Groups {
    /// The control groups mounted at the usual place.
    #[must_use]
    pub fn mounted() -> Self {
        Self::at(Path::new(ROOT))
    }

    /// The control groups mounted at another place.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        let version = if root.join("cgroup.controllers").exists() {
            Version::Two
        } else {
            Version::One
        };
        Self {
            root: root.to_owned(),
            version,
        }
    }

    /// Their form.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Makes the group at `path`, if it isn't there, with the means to limit CPU, memory and
    /// processes in it.
    ///
    /// # Errors
    /// The path leads out of the tree, or the kernel refuses a group.
    pub fn make(&self, path: &str) -> io::Result<()> {
        let relative = inside(path)?;
        let trees = match self.version {
            Version::One => CONTROLLERS.map(|name| self.root.join(name)).to_vec(),
            Version::Two => vec![self.root.clone()],
        };
        for tree in trees {
            let mut at = tree;
            for part in relative.components() {
                if self.version == Version::Two {
                    hand_down(&at)?;
                }
                at.push(part);
                match fs::create_dir(&at) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    made => made?,
                }
            }
        }
        Ok(())
    }

    /// Writes a file of the group at `path`.
    ///
    /// # Errors
    /// The path leads out of the tree, the group or the file isn't there, or the kernel refuses the
    /// text.
    pub fn write(&self, controller: &str, path: &str, file: &str, text: &str) -> io::Result<()> {
        let place = self.tree(controller).join(inside(path)?).join(file);
        // A file that is not there is none of the kernel's, and not made.
        let mut file = fs::OpenOptions::new().write(true).open(place)?;
        file.write_all(text.as_bytes())
    }

    /// The processes of the group at `path` and of all below it. None where there is no such group.
    ///
    /// # Errors
    /// The path leads out of the tree.
    pub fn processes(&self, path: &str) -> io::Result<Vec<u32>> {
        let group = self.tree("pids").join(inside(path)?);
        Ok(processes_below(group, MAX_GROUPS))
    }

    fn tree(&self, controller: &str) -> PathBuf {
        match self.version {
            Version::One => self.root.join(controller),
            Version::Two => self.root.clone(),
        }
    }

    /// The text of a file of the group at `path`, as the OCI specification's `cgroupsPath` names
    /// it. `controller` selects the tree for cgroup-v1.
    ///
    /// # Errors
    /// The group or the file isn't there, is longer than any of the kernel's, or the path leads out
    /// of the tree.
    pub fn read(&self, controller: &str, path: &str, file: &str) -> io::Result<String> {
        let place = self.tree(controller).join(inside(path)?).join(file);
        let mut text = String::new();
        File::open(place)?
            .take(MAX_FILE)
            .read_to_string(&mut text)?;
        if text.len() as u64 == MAX_FILE {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let file = root.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn a_file_is_found_in_either_form() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "memory/kubepods/a/memory.stat", "one");
        let groups = Groups::at(root.path());
        assert_eq!(groups.version(), Version::One);
        let read = |groups: &Groups| groups.read("memory", "/kubepods/a", "memory.stat");
        assert_eq!(read(&groups).unwrap(), "one");

        write(root.path(), "cgroup.controllers", "cpu memory");
        write(root.path(), "kubepods/a/memory.stat", "two");
        let groups = Groups::at(root.path());
        assert_eq!(groups.version(), Version::Two);
        assert_eq!(read(&groups).unwrap(), "two");
    }

    #[test]
    fn the_processes_of_a_group_are_those_of_the_groups_below_it_too() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "cgroup.controllers", "pids");
        write(root.path(), "kubepods/a/cgroup.procs", "");
        write(root.path(), "kubepods/a/one/cgroup.procs", "10\n11\n");
        write(root.path(), "kubepods/a/two/x/cgroup.procs", "12\n");
        write(root.path(), "kubepods/b/cgroup.procs", "13\n");
        let groups = Groups::at(root.path());
        let mut found = groups.processes("/kubepods/a").unwrap();
        found.sort_unstable();
        assert_eq!(found, [10, 11, 12]);
        assert_eq!(groups.processes("/kubepods/c").unwrap(), []);
        assert!(groups.processes("/kubepods/..").is_err());
    }

    #[test]
    fn no_more_groups_are_looked_into_than_allowed() {
        let root = tempfile::tempdir().unwrap();
        for group in 0..4 {
            write(root.path(), &format!("{group}/cgroup.procs"), "1\n");
            for below in 0..4 {
                write(root.path(), &format!("{group}/{below}/cgroup.procs"), "1\n");
            }
        }
        // The group itself has no process.
        for most in 1..=21 {
            let found = processes_below(root.path().to_owned(), most);
            assert_eq!(found.len(), most - 1);
        }
    }

    #[test]
    fn paths_stay_in_the_tree_and_files_are_bounded() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "memory/secret", "s");
        write(root.path(), "memory/a/long", &"x".repeat(70_000));
        let groups = Groups::at(root.path());
        let refused = groups.read("memory", "/a/..", "secret").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        let long = groups.read("memory", "/a", "long").unwrap_err();
        assert_eq!(long.kind(), io::ErrorKind::FileTooLarge);
        let none = groups.read("memory", "/b", "long").unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
    }
}
