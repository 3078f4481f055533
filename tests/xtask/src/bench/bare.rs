//! A machine that boots the images' kernel, without firmware and with an initrd of a benchmark's
//! own: busybox, the programs that measure, modules. It ends when its one command has.

use crate::host::workshop;
use crate::steps::{Failure, Outcome};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tests_harness::process::{Owned, run};
use tests_harness::tools::Tools;
use tests_harness::wait::eventually;

/// Before the command.
const BEGIN: &str = "#!/bin/busybox sh\n/bin/busybox mount -t proc proc /proc\n/bin/busybox mount -t sysfs sys /sys\n\
    /bin/busybox mount -t devtmpfs dev /dev\n/bin/busybox mount -t tmpfs tmp /tmp\n\
    for file in $(/bin/busybox cat /modules/order); do /bin/busybox insmod /modules/$file; done\n";
/// After it.
const END: &str = "\n/bin/busybox poweroff -f\n";

/// The machine, as far as it is made.
pub(super) struct Bare<'a> {
    tools: &'a Tools,
    kernel: Kernel,
    /// Its folder.
    pub(super) dir: PathBuf,
}

impl<'a> Bare<'a> {
    /// One in a folder of its own.
    pub(super) fn new(tools: &'a Tools, name: &str) -> Outcome<Self> {
        let dir = workshop().join(format!("bench-{name}"));
        fs::remove_dir_all(&dir).ok();
        let bare = Self {
            tools,
            kernel: kernel()?,
            dir,
        };
        for folder in ["bin", "proc", "sys", "dev", "tmp", "modules"] {
            make(&bare.root().join(folder))?;
        }
        copy(&bare.busybox(), &bare.root().join("bin/busybox"))?;
        Ok(bare)
    }

    fn busybox(&self) -> PathBuf {
        self.tools.bin().join("busybox")
    }

    /// Its first file system.
    pub(super) fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    fn console(&self) -> PathBuf {
        self.dir.join("console.log")
    }

    /// Where to look when it does not what it should.
    pub(super) fn hint(&self) -> String {
        format!("see {}", self.console().display())
    }

    /// Gives it a program of this host as `/bin/NAME`, with its libraries.
    pub(super) fn program(&self, program: &Path, name: &str) -> Outcome {
        let root = self.root();
        copy(program, &root.join("bin").join(name))?;
        for library in libraries_of(program)? {
            let inside = library.strip_prefix("/").unwrap_or(&library);
            copy(&library, &root.join(inside))?;
        }
        Ok(())
    }

    /// Has it load these modules, and before them those that they depend on.
    pub(super) fn modules(&self, names: &[&str]) -> Outcome {
        let mut files = Vec::new();
        walk(&self.kernel.modules, &mut files);
        let to = self.root().join("modules");
        let mut order = Vec::new();
        for name in names {
            self.load(&files, name, &to, &mut order)?;
        }
        write(&to.join("order"), &order.join("\n"))
    }

    /// Depth first. A module that is not there is built into the kernel, or the guest tells.
    fn load(&self, files: &[PathBuf], name: &str, to: &Path, order: &mut Vec<String>) -> Outcome {
        let same = |file: &Path| {
            let stem = file
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            let stem = stem.as_deref().and_then(|name| name.strip_suffix(".ko.xz"));
            stem.is_some_and(|stem| stem.replace('-', "_") == name.replace('-', "_"))
        };
        let target = format!("{}.ko", name.replace('-', "_"));
        let Some(file) = files.iter().find(|file| same(file)) else {
            return Ok(());
        };
        if order.contains(&target) {
            return Ok(());
        }
        let mut unpack = Command::new("sh");
        unpack.args(["-c", "\"$0\" unxz -c \"$1\" > \"$2\""]);
        unpack.arg(self.busybox()).arg(file).arg(to.join(&target));
        run(unpack)?;
        let bytes =
            fs::read(to.join(&target)).map_err(|error| fault("cannot read", file, &error))?;
        for other in depends(&bytes) {
            self.load(files, &other, to, order)?;
        }
        order.push(target);
        Ok(())
    }

    /// Boots it and runs a command in it, to its end; what its console showed. `memory`: in MiB.
    pub(super) fn run(
        &self,
        command: &str,
        memory: u32,
        devices: &[&str],
        limit: Duration,
    ) -> Outcome<String> {
        write(&self.root().join("init"), &format!("{BEGIN}{command}{END}"))?;
        let initrd = self.dir.join("initrd");
        let mut pack = Command::new("sh");
        pack.current_dir(self.root()).arg("-c");
        pack.arg("\"$0\" find . | \"$0\" cpio -o -H newc > \"$1\"");
        pack.arg(self.busybox()).arg(&initrd);
        run(pack)?;
        let mut qemu = self.tools.command("qemu-system-x86_64");
        // The machine of the stories, but for the firmware.
        qemu.args(["-machine", "q35", "-accel", "tcg,thread=multi"]);
        qemu.args(["-cpu", "max,la57=off", "-smp", "2", "-m"]);
        qemu.arg(memory.to_string());
        qemu.args(["-display", "none", "-nodefaults", "-no-reboot"]);
        qemu.arg("-kernel").arg(&self.kernel.image);
        qemu.arg("-initrd").arg(&initrd);
        qemu.args(["-append", "console=ttyS0 quiet panic=-1"]);
        qemu.args(devices);
        let console = self.console();
        qemu.args(["-serial", &format!("file:{}", console.display())]);
        let machine = Owned::start(qemu, &self.dir.join("qemu.log"))?;
        eventually("the guest to switch off", limit, &self.hint(), || {
            Ok((!machine.alive()).then_some(()))
        })?;
        fs::read_to_string(&console).map_err(|error| fault("cannot read", &console, &error))
    }
}

/// The images' kernel and its modules, as the packages were unpacked.
struct Kernel {
    image: PathBuf,
    modules: PathBuf,
}

fn kernel() -> Outcome<Kernel> {
    let trees = workshop().join("cache/trees");
    let found = entries(&trees).into_iter().find_map(|tree| {
        let modules = entries(&tree.join("usr/lib/modules")).into_iter().next()?;
        let release = modules.file_name()?.to_string_lossy().into_owned();
        let image = tree.join(format!("boot/vmlinuz-{release}"));
        image.exists().then_some(Kernel { image, modules })
    });
    found.ok_or_else(|| {
        Failure::new(
            format!("no unpacked kernel in {}", trees.display()),
            "run `cargo xtask image` first",
        )
    })
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    all.sort();
    all
}

/// The libraries that this host's loader loads for a program, by `ldd`.
fn libraries_of(program: &Path) -> Outcome<Vec<PathBuf>> {
    let mut ldd = Command::new("ldd");
    ldd.arg(program);
    let said = run(ldd)?;
    let words = said.lines().filter_map(|line| {
        line.split_whitespace()
            .find(|word| word.starts_with('/'))
            .map(PathBuf::from)
    });
    Ok(words.collect())
}

/// The names behind `depends=` in a module's information.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let text = module.get(at + KEY.len()..).unwrap_or_default();
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) {
    for path in entries(dir) {
        if path.is_dir() {
            walk(&path, files);
        } else {
            files.push(path);
        }
    }
}

/// Copies a file, and makes the folder that it goes to.
pub(super) fn copy(from: &Path, to: &Path) -> Outcome {
    to.parent().map_or(Ok(()), make)?;
    fs::copy(from, to)
        .map(drop)
        .map_err(|error| fault("cannot copy", from, &error))
}

fn make(dir: &Path) -> Outcome {
    fs::create_dir_all(dir).map_err(|error| fault("cannot make", dir, &error))
}

/// Writes a program.
pub(super) fn write(path: &Path, text: &str) -> Outcome {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(path, text)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
        .map_err(|error| fault("cannot write", path, &error))
}

/// What went wrong with a file.
pub(super) fn fault(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{what} {}: {error}", path.display()), "")
}

#[cfg(test)]
mod tests {
    use super::depends;

    #[test]
    fn a_modules_dependencies_are_read() {
        let module = b"\x7fELF...\0license=GPL\0depends=dm-mod,dm-bufio\0retpoline=Y\0";
        assert_eq!(depends(module), ["dm-mod", "dm-bufio"]);
        assert!(depends(b"\0depends=\0name=xts\0").is_empty());
    }
}
