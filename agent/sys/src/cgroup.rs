//! Control groups of the kernel: the mount point, and the files of a group.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};

/// Where control groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";
/// Bytes of a file at most; the longest that the kernel writes here is `memory.stat`, some 2 KiB.
const LONGEST: u64 = 64 << 10;

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

    /// The text of a file of the group at `path`, as the OCI specification's `cgroupsPath` names
    /// it. `controller` selects the tree for cgroup-v1.
    ///
    /// # Errors
    /// The group or the file isn't there, is longer than any of the kernel's, or the path leads out of the tree.
    pub fn read(&self, controller: &str, path: &str, file: &str) -> io::Result<String> {
        let relative = Path::new(path.trim_start_matches('/'));
        let plain = |part| matches!(part, Component::Normal(_));
        if !relative.components().all(plain) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let tree = match self.version {
            Version::One => self.root.join(controller),
            Version::Two => self.root.clone(),
        };
        let mut text = String::new();
        File::open(tree.join(relative).join(file))?
            .take(LONGEST)
            .read_to_string(&mut text)?;
        if text.len() as u64 == LONGEST {
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
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
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
