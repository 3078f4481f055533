//! The tools tree: programs of the image's release that run on a host of any release.
//!
//! `OUT/root` is an unpacked root, `OUT/bin` holds a wrapper for each program, which runs it
//! through the tree's own loader and libraries; `OUT/share` points to the tree's data
//! (`share/OVMF`, `share/qemu`). Programs that start themselves again by `/proc/self/exe` (crun and
//! containerd's shim) get a copy that names the tree's loader, so the tree can't be moved;
//! [`build`] makes it again elsewhere.

use crate::elf::{self, ElfError};
use crate::fetch::{FetchError, Fetcher, Package};
use crate::sets::Set;
use crate::unpack::{self, UnpackError};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Changes whenever wrappers are made differently, so that older trees are made again.
const GENERATION: &str = "2";

const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/swtpm"];

/// How a program is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Launch {
    /// Through the tree's loader.
    Loader,
    /// Like QEMU: through the loader, with paths to its data and modules.
    Qemu,
    /// By itself, in a copy that names the tree's loader.
    Itself,
    /// Static: as it is.
    Static,
}

/// Programs that get a wrapper, and where they are in the tree.
const PROGRAMS: [(&str, &str, Launch); 34] = [
    ("busybox", "usr/bin/busybox", Launch::Static),
    ("certtool", "usr/bin/certtool", Launch::Loader),
    ("containerd", "usr/bin/containerd", Launch::Itself),
    (
        "containerd-shim-runc-v2",
        "usr/bin/containerd-shim-runc-v2",
        Launch::Itself,
    ),
    ("crun", "usr/bin/crun", Launch::Itself),
    ("ctr", "usr/bin/ctr", Launch::Itself),
    ("debugfs", "usr/sbin/debugfs", Launch::Loader),
    ("docker-registry", "usr/bin/docker-registry", Launch::Loader),
    ("dump.erofs", "usr/bin/dump.erofs", Launch::Loader),
    ("dumpe2fs", "usr/sbin/dumpe2fs", Launch::Loader),
    ("e2fsck", "usr/sbin/e2fsck", Launch::Loader),
    ("fsck.erofs", "usr/bin/fsck.erofs", Launch::Loader),
    ("kubectl", "usr/bin/kubectl", Launch::Loader),
    ("mcopy", "usr/bin/mtools", Launch::Loader),
    ("mdir", "usr/bin/mtools", Launch::Loader),
    ("mke2fs", "usr/sbin/mke2fs", Launch::Loader),
    ("mkfs.erofs", "usr/bin/mkfs.erofs", Launch::Loader),
    ("mtools", "usr/bin/mtools", Launch::Loader),
    ("mtype", "usr/bin/mtools", Launch::Loader),
    ("minfo", "usr/bin/mtools", Launch::Loader),
    ("qemu-img", "usr/bin/qemu-img", Launch::Loader),
    ("qemu-nbd", "usr/bin/qemu-nbd", Launch::Loader),
    (
        "qemu-system-x86_64",
        "usr/bin/qemu-system-x86_64",
        Launch::Qemu,
    ),
    ("resize2fs", "usr/sbin/resize2fs", Launch::Loader),
    ("swtpm", "usr/bin/swtpm", Launch::Loader),
    ("swtpm_cert", "usr/bin/swtpm_cert", Launch::Loader),
    ("swtpm_ioctl", "usr/bin/swtpm_ioctl", Launch::Loader),
    ("swtpm_localca", "usr/bin/swtpm_localca", Launch::Loader),
    ("swtpm_setup", "usr/bin/swtpm_setup", Launch::Loader),
    ("tpm2", "usr/bin/tpm2", Launch::Loader),
    ("tune2fs", "usr/sbin/tune2fs", Launch::Loader),
    ("veritysetup", "usr/sbin/veritysetup", Launch::Loader),
    ("xz", "usr/bin/xz", Launch::Loader),
    ("zstd", "usr/bin/zstd", Launch::Loader),
];

/// A tools tree that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ToolsError {
    /// The packages could not be fetched.
    #[error("the tools' packages cannot be fetched")]
    Fetch(#[from] FetchError),
    /// They could not be unpacked.
    #[error("the tools' packages cannot be unpacked")]
    Unpack(#[from] UnpackError),
    /// The tree can't be written or read.
    #[error("cannot use the tools tree at {path}")]
    Tree {
        /// The path.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A program is not what it should be.
    #[error("{path} cannot be examined")]
    Elf {
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: ElfError,
    },
    /// A library is missing.
    #[error("{program} needs {library}, which no package of the tools set brings")]
    Library {
        /// What needs it.
        program: String,
        /// Its name.
        library: String,
    },
}

/// A tools tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tools {
    out: PathBuf,
}

impl Tools {
    /// The tree at a place where [`build`] made it.
    pub fn at(out: &Path) -> Self {
        Self {
            out: std::path::absolute(out).unwrap_or_else(|_| out.to_owned()),
        }
    }

    /// The folder of wrappers, to be put first in PATH.
    pub fn bin(&self) -> PathBuf {
        self.out.join("bin")
    }

    /// A program's wrapper.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin().join(name)
    }

    /// A file of the unpacked root.
    pub fn file(&self, path: &str) -> PathBuf {
        self.out.join("root").join(path)
    }
}

/// Makes the tools tree at `out`, unless it is up to date.
///
/// Guarantees: a tree with a stamp is complete, as the stamp is written last; concurrent callers
/// wait for each other.
///
/// # Errors
/// The packages cannot be fetched, or the tree cannot be written.
pub fn build(fetcher: &Fetcher, out: &Path) -> Result<Tools, ToolsError> {
    let tools = Tools::at(out);
    let fault = |source| ToolsError::Tree {
        path: tools.out.display().to_string(),
        source,
    };
    std::fs::create_dir_all(&tools.out).map_err(fault)?;
    let guard = std::fs::File::create(tools.out.join(".lock")).map_err(fault)?;
    guard.lock().map_err(fault)?;
    let stamp_file = tools.out.join(".stamp");
    let there = std::fs::read_to_string(&stamp_file).unwrap_or_default();
    if fetcher
        .planned(&Set::tools())?
        .is_some_and(|packages| stamp(&packages, &tools.out) == there)
    {
        return Ok(tools);
    }
    let packages = fetcher.fetch(&Set::tools())?;
    let stamp = stamp(&packages, &tools.out);
    (fetcher.notice)(&format!(
        "unpacking {} packages into {}",
        packages.len(),
        tools.out.display()
    ));
    let tree = tools.out.join("root");
    for old in [&stamp_file, &tools.out.join("share"), &tree, &tools.bin()] {
        remove(old).map_err(fault)?;
    }
    unpack::into_tree(&packages, &tree)?;
    std::fs::create_dir_all(tools.bin()).map_err(fault)?;
    for (name, path, how) in PROGRAMS {
        wrap(&tools, name, path, how)?;
    }
    tpm2_names(&tools).map_err(fault)?;
    symlink("root/usr/share", tools.out.join("share")).map_err(fault)?;
    std::fs::write(&stamp_file, stamp).map_err(fault)?;
    Ok(tools)
}

fn remove(path: &Path) -> io::Result<()> {
    let done = match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn stamp(packages: &[Package], out: &Path) -> String {
    let mut hash = Sha256::new();
    hash.update(GENERATION);
    hash.update(out.as_os_str().as_encoded_bytes());
    for (name, path, _) in PROGRAMS {
        hash.update(format!("\n{name} {path}"));
    }
    for package in packages {
        hash.update(format!("\n{}", package.locked.sha256));
    }
    hex::encode(hash.finalize())
}

fn wrap(tools: &Tools, name: &str, path: &str, how: Launch) -> Result<(), ToolsError> {
    let program = tools.file(path);
    let wrapper = tools.program(name);
    let fault = |source| ToolsError::Tree {
        path: program.display().to_string(),
        source,
    };
    let shown = program.display();
    let loader = tools.file(LOADER);
    let libraries: Vec<_> = LIBRARIES
        .iter()
        .map(|l| tools.file(l).display().to_string())
        .collect();
    let libraries = libraries.join(":");
    if how == Launch::Static {
        return symlink(&program, &wrapper).map_err(fault);
    }
    check_libraries(tools, &program)?;
    let through = format!(
        "'{}' --argv0 \"${{0##*/}}\" --library-path '{libraries}' '{shown}'",
        loader.display()
    );
    let text = match how {
        Launch::Loader => format!("exec {through} \"$@\"\n"),
        Launch::Qemu => {
            let share = tools.file("usr/share");
            let modules = tools.file("usr/lib/x86_64-linux-gnu/qemu");
            let (share, modules) = (share.display(), modules.display());
            format!(
                "QEMU_MODULE_DIR='{modules}' exec {through} -L '{share}/qemu' -L '{share}/seabios' \"$@\"\n"
            )
        }
        Launch::Itself | Launch::Static => {
            let bytes = std::fs::read(&program).map_err(fault)?;
            let elf = |source| ToolsError::Elf {
                path: program.display().to_string(),
                source,
            };
            let changed =
                elf::with_interpreter(&bytes, &loader.display().to_string()).map_err(elf)?;
            let copy = program.with_extension("tools");
            std::fs::write(&copy, changed).map_err(fault)?;
            std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).map_err(fault)?;
            format!(
                "LD_LIBRARY_PATH='{libraries}' exec '{}' \"$@\"\n",
                copy.display()
            )
        }
    };
    std::fs::write(&wrapper, format!("#!/bin/sh\n{text}")).map_err(fault)?;
    std::fs::set_permissions(&wrapper, PermissionsExt::from_mode(0o755)).map_err(fault)
}

/// The `tpm2_*` names are links to one program that looks at its own name.
fn tpm2_names(tools: &Tools) -> io::Result<()> {
    for entry in std::fs::read_dir(tools.file("usr/bin"))? {
        let name = entry?.file_name();
        if name.to_string_lossy().starts_with("tpm2_") {
            symlink("tpm2", tools.bin().join(name))?;
        }
    }
    Ok(())
}

/// Every library that the program needs, directly or not, must be in the tree.
fn check_libraries(tools: &Tools, program: &Path) -> Result<(), ToolsError> {
    let mut seen = BTreeSet::new();
    let mut open = vec![program.to_owned()];
    while let Some(path) = open.pop() {
        let bytes = std::fs::read(&path).map_err(|source| ToolsError::Tree {
            path: path.display().to_string(),
            source,
        })?;
        let needs = elf::needs(&bytes).map_err(|source| ToolsError::Elf {
            path: path.display().to_string(),
            source,
        })?;
        for library in needs.libraries {
            if !seen.insert(library.clone()) {
                continue;
            }
            let found = LIBRARIES
                .iter()
                .map(|l| tools.file(l).join(&library))
                .find(|p| p.exists());
            let loader = tools.file("usr/lib64").join(&library);
            match found.or_else(|| loader.exists().then_some(loader)) {
                Some(path) => open.push(path),
                None => {
                    return Err(ToolsError::Library {
                        program: program.display().to_string(),
                        library,
                    });
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_one_name() {
        let names: BTreeSet<_> = PROGRAMS.iter().map(|(name, _, _)| name).collect();
        assert_eq!(names.len(), PROGRAMS.len());
    }

    #[test]
    fn another_place_or_package_makes_another_stamp() {
        assert_ne!(stamp(&[], Path::new("/a")), stamp(&[], Path::new("/b")));
    }
}
