//! The read-only root: its content and its file system.
//!
//! Only named programs are copied from packages, with the libraries that they need; there is no
//! shell, no package manager, no setuid file. [`check`] refuses an image that would break that
//! promise.

use crate::authorities;
use crate::error::{Error, Result, at, read, write};
use crate::modules::Module;
use crate::options::{Compress, Role};
use crate::rootfiles::{self, Label};
use config_attest::release::Executable;
use config_machine::containerd;
use config_tpm::Digest;
use image_format::Guid;
use image_format::tar::{self, Entry};
use image_packages::elf;
use image_packages::run::output;
use image_packages::tools::Tools;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs taken from Debian's packages.
pub const PROGRAMS: [&str; 4] = [
    "usr/bin/containerd",
    "usr/bin/containerd-shim-runc-v2",
    "usr/bin/crun",
    "usr/sbin/mke2fs",
];
/// Every executable file of a worker's image, as README promises. [`check`] refuses an image with
/// any other.
const PROMISED: [&str; 7] = [
    "/usr/bin/agent",
    "/usr/bin/containerd",
    "/usr/bin/containerd-shim-runc-v2",
    "/usr/bin/crun",
    "/usr/lib/pratique/init",
    "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    "/usr/sbin/mke2fs",
];
/// Additional executables of a master's image.
const PROMISED_MASTER: &str = "/usr/bin/master";
/// Libraries that are opened by name at run time.
const OPENED: [&str; 1] = ["libtss2-tcti-device.so.0"];
/// Data files of packages.
const DATA: [&str; 1] = ["etc/mke2fs.conf"];
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const LOADER: &str = "ld-linux-x86-64.so.2";
/// File names that no image may contain, in any folder.
const FORBIDDEN: [&str; 22] = [
    "ash", "bash", "busybox", "csh", "dash", "ksh", "rbash", "sh", "tcsh", "zsh", "apt", "apt-get",
    "dpkg", "rpm", "sshd", "ssh", "su", "sudo", "login", "perl", "python3", "systemd",
];

/// The root's entries by path, without leading slash.
pub type Entries = BTreeMap<String, Entry>;

/// The inputs of the root.
#[derive(Debug)]
pub struct Inputs<'a> {
    /// Tree of the unpacked packages.
    pub tree: &'a Path,
    /// The image's role.
    pub role: Role,
    /// Our programs by name, stripped.
    pub programs: &'a BTreeMap<String, Vec<u8>>,
    /// Modules of the running system.
    pub modules: &'a [Module],
    /// Kernel release.
    pub kernel: &'a str,
    /// User-data for every machine that boots the image.
    pub user_data: Option<&'a [u8]>,
}

/// Adds the image's description to the root.
pub fn label(entries: &mut Entries, label: &Label<'_>) {
    let image = rootfiles::image_toml(label);
    let release = rootfiles::os_release(label.role, label.id, label.svn);
    entries.insert(
        "etc/pratique/image.toml".to_owned(),
        Entry::File(0o644, image.into_bytes()),
    );
    entries.insert(
        "usr/lib/os-release".to_owned(),
        Entry::File(0o644, release.into_bytes()),
    );
}

/// A digest over paths, modes and content; the digests of the executables are known already.
pub fn digest(entries: &Entries, executables: &[Executable]) -> Digest {
    let known: BTreeMap<&str, Digest> = executables
        .iter()
        .map(|e| (e.path.trim_start_matches('/'), e.digest))
        .collect();
    let mut text = String::new();
    for (path, entry) in entries {
        let what = match entry {
            Entry::Folder(mode) => format!("folder {mode:o}"),
            Entry::File(mode, content) => {
                let digest = known
                    .get(path.as_str())
                    .copied()
                    .unwrap_or_else(|| Digest::of(content));
                format!("file {mode:o} {digest}")
            }
            Entry::Link(target) => format!("link {target}"),
        };
        text.extend([path, " ", &what, "\n"]);
    }
    Digest::of(text.as_bytes())
}

/// Everything that goes into the root, but its [`label`].
///
/// # Errors
/// A file of the tree cannot be read, or one that an image must hold is missing.
pub fn entries(inputs: &Inputs<'_>) -> Result<Entries> {
    let mut out = Entries::new();
    for (path, mode) in rootfiles::FOLDERS {
        out.insert(path.to_owned(), Entry::Folder(mode));
    }
    for (path, target) in rootfiles::LINKS {
        out.insert(path.to_owned(), Entry::Link(target.to_owned()));
    }
    for (path, content) in rootfiles::TEXTS {
        out.insert(
            path.to_owned(),
            Entry::File(0o644, content.as_bytes().to_vec()),
        );
    }
    let configuration = containerd::configuration(containerd::MACHINE);
    out.insert(
        containerd::PATH.trim_start_matches('/').to_owned(),
        Entry::File(0o644, configuration.into_bytes()),
    );
    if let Some(bytes) = inputs.user_data {
        out.insert(
            "etc/pratique/user-data".to_owned(),
            Entry::File(0o644, bytes.to_vec()),
        );
    }
    modules(inputs, &mut out);
    for path in DATA {
        out.insert(
            path.to_owned(),
            Entry::File(0o644, read(&inputs.tree.join(path))?),
        );
    }
    out.insert(
        authorities::BUNDLE.to_owned(),
        Entry::File(0o644, authorities::bundle(inputs.tree)?),
    );
    programs(inputs, &mut out)?;
    check(inputs.role, &out)?;
    Ok(out)
}

fn modules(inputs: &Inputs<'_>, out: &mut Entries) {
    let base = format!("usr/lib/modules/{}", inputs.kernel);
    let mut load = String::new();
    for module in inputs.modules {
        let path = format!("{base}/{}", module.path);
        for (at, _) in path.match_indices('/') {
            out.entry(path[..at].to_owned())
                .or_insert(Entry::Folder(0o755));
        }
        load.extend(["/", &path, "\n"]);
        out.insert(path, Entry::File(0o644, module.bytes.clone()));
    }
    out.insert(
        "usr/lib/pratique/modules".to_owned(),
        Entry::File(0o644, load.into_bytes()),
    );
}

fn programs(inputs: &Inputs<'_>, out: &mut Entries) -> Result<()> {
    let mut open: Vec<String> = OPENED.iter().map(|name| (*name).to_owned()).collect();
    let mut add = |path: &str, bytes: Vec<u8>, out: &mut Entries| -> Result<()> {
        let needs = elf::needs(&bytes).map_err(|source| Error::Elf {
            path: path.to_owned(),
            source,
        })?;
        open.extend(needs.libraries);
        out.insert(path.to_owned(), Entry::File(0o755, bytes));
        Ok(())
    };
    for path in PROGRAMS {
        add(path, read(&inputs.tree.join(path))?, out)?;
    }
    let ours: &[(&str, &str)] = match inputs.role {
        Role::Worker => &[
            ("init", "usr/lib/pratique/init"),
            ("agent", "usr/bin/agent"),
        ],
        Role::Master => &[
            ("init", "usr/lib/pratique/init"),
            ("agent", "usr/bin/agent"),
            ("master", "usr/bin/master"),
        ],
    };
    for (name, path) in ours {
        let bytes = inputs
            .programs
            .get(*name)
            .ok_or_else(|| Error::Image(format!("no program {name} was given")))?;
        add(path, bytes.clone(), out)?;
    }
    while let Some(library) = open.pop() {
        if library == LOADER || out.contains_key(&format!("{LIBRARIES}/{library}")) {
            continue;
        }
        let path = inputs.tree.join(LIBRARIES).join(&library);
        let bytes = std::fs::read(&path).map_err(|source| Error::File {
            doing: "find a library that a program of the image needs:",
            path: path.display().to_string(),
            source,
        })?;
        let needs = elf::needs(&bytes).map_err(|source| Error::Elf {
            path: library.clone(),
            source,
        })?;
        open.extend(needs.libraries);
        out.insert(format!("{LIBRARIES}/{library}"), Entry::File(0o644, bytes));
    }
    let loader = format!("{LIBRARIES}/{LOADER}");
    out.insert(
        loader.clone(),
        Entry::File(0o755, read(&inputs.tree.join(&loader))?),
    );
    out.insert(
        format!("usr/lib64/{LOADER}"),
        Entry::Link(format!("../lib/x86_64-linux-gnu/{LOADER}")),
    );
    Ok(())
}

/// Every executable file that an image of this role may hold.
pub fn promised(role: Role) -> Vec<&'static str> {
    match role {
        Role::Worker => PROMISED.to_vec(),
        Role::Master => PROMISED.into_iter().chain([PROMISED_MASTER]).collect(),
    }
}

/// Refuses setuid and setgid files, shells, package managers and their like, and executables that
/// are not promised.
///
/// # Errors
/// The path of a file that is refused, and why.
pub fn check(role: Role, entries: &Entries) -> Result<()> {
    let promised = promised(role);
    if let Some((path, _)) = executables(entries)
        .iter()
        .find(|(path, _)| !promised.contains(&path.as_str()))
    {
        return Err(Error::Image(format!(
            "{path} is executable but not on the list of permitted executables"
        )));
    }
    for (path, entry) in entries {
        let name = path.rsplit('/').next().unwrap_or(path);
        let special = matches!(entry, Entry::File(mode, _) if mode & 0o6000 != 0);
        let forbidden = !matches!(entry, Entry::Folder(_)) && FORBIDDEN.contains(&name);
        if special || forbidden {
            return Err(Error::Image(format!(
                "/{path} must not be in an image: no shell, package manager or setuid file"
            )));
        }
    }
    Ok(())
}

/// Paths of the executable files, with a leading slash, and their content.
pub fn executables(entries: &Entries) -> Vec<(String, &[u8])> {
    entries
        .iter()
        .filter_map(|(path, entry)| match entry {
            Entry::File(mode, content) if mode & 0o111 != 0 => {
                Some((format!("/{path}"), content.as_slice()))
            }
            Entry::File(..) | Entry::Folder(_) | Entry::Link(_) => None,
        })
        .collect()
}

/// The root as an erofs file system.
///
/// # Errors
/// The archive cannot be written, or `mkfs.erofs` fails.
pub fn file_system(
    tools: &Tools,
    entries: &Entries,
    compress: Compress,
    time: u64,
    uuid: Guid,
    work: &Path,
) -> Result<Vec<u8>> {
    let list: Vec<(String, Entry)> = entries
        .iter()
        .map(|(path, entry)| (path.clone(), entry.clone()))
        .collect();
    let archive: PathBuf = work.join("root.tar");
    let image = work.join("root.erofs");
    write(&archive, &tar::archive(&list, time)?)?;
    match std::fs::remove_file(&image) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(at("remove", &image)(error));
        }
        Ok(()) | Err(_) => {}
    }
    let mut mkfs = Command::new(tools.program("mkfs.erofs"));
    mkfs.args(["--quiet", "-x-1", "--workers=1", "--tar=f", "--sort=path"])
        .args(compress.arguments());
    mkfs.arg(format!("-T{time}"))
        .arg(format!("-U{uuid}"))
        .arg(&image)
        .arg(&archive);
    output(&mut mkfs)?;
    let bytes = read(&image)?;
    for path in [&archive, &image] {
        std::fs::remove_file(path).map_err(at("remove", path))?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(path: &str, mode: u32) -> Entries {
        Entries::from([(path.to_owned(), Entry::File(mode, Vec::new()))])
    }

    #[test]
    fn setuid_files_shells_and_unpromised_programs_are_refused() {
        let check = |entries| check(Role::Worker, &entries);
        assert!(check(with("usr/bin/agent", 0o4755)).is_err());
        assert!(check(with("usr/bin/agent", 0o2755)).is_err());
        assert!(check(with("usr/bin/mount", 0o755)).is_err());
        assert!(check(with("opt/dash", 0o644)).is_err());
        assert!(check(with("usr/bin/agent", 0o755)).is_ok());
        assert!(
            check(Entries::from([(
                "bin/sh".to_owned(),
                Entry::Link("agent".into())
            )]))
            .is_err()
        );
    }

    #[test]
    fn folders_come_before_what_is_in_them() {
        let module = Module {
            file: "a.ko".into(),
            path: "kernel/fs/a/a.ko".into(),
            bytes: Vec::new(),
        };
        let inputs = Inputs {
            tree: Path::new("/"),
            role: Role::Worker,
            programs: &BTreeMap::new(),
            modules: &[module],
            kernel: "6.12",
            user_data: None,
        };
        let mut entries = Entries::new();
        modules(&inputs, &mut entries);
        let paths: Vec<_> = entries.keys().cloned().collect();
        assert!(
            paths.contains(&"usr/lib/modules/6.12/kernel/fs".to_owned()),
            "{paths:?}"
        );
    }
}
