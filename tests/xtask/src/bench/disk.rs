//! `cargo xtask bench disk`: the cost of encrypting the state, measured in machines in one run.
//!
//! Rates come from a machine that boots the images' kernel with an initrd of this command's own ([`super::guest`]): one disk,
//! plain, encrypted as the state is, and encrypted with authentication over dm-integrity. The time to unlock comes from the
//! console of a worker's image.

use super::DiskPart;
use super::guest::{FIGURE, Figure};
use crate::build;
use crate::host::{self, workshop};
use crate::steps::{Failure, Outcome, Steps};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tests_harness::cluster::BOOT_LIMIT;
use tests_harness::process::{Owned, run};
use tests_harness::tools::Tools;
use tests_harness::wait::eventually;

/// How long the guest may measure.
const LIMIT: Duration = Duration::from_secs(3600);
/// Bytes of the disk.
const SIZE: u64 = 512 << 20;
/// Modules that the guest needs, beside those that they depend on.
const MODULES: [&str; 7] = [
    "virtio_blk",
    "xts",
    "aesni-intel",
    "sha256-ssse3",
    "authenc",
    "dm-crypt",
    "dm-integrity",
];
/// Starts what measures, and switches off.
const INIT: &str = "#!/bin/busybox sh\n/bin/busybox mount -t proc proc /proc\n/bin/busybox mount -t sysfs sys /sys\n\
    /bin/busybox mount -t devtmpfs dev /dev\nfor file in $(/bin/busybox cat /modules/order); do /bin/busybox insmod /modules/$file; done\n\
    /bin/xtask bench disk-guest\n/bin/busybox poweroff -f\n";
/// dmsetup by the loader and the libraries of the tools tree, which need not be this host's.
const DMSETUP: &str =
    "#!/bin/busybox sh\nexec /tools/ld.so --library-path /tools /tools/dmsetup \"$@\"\n";

/// Rates and the time to unlock, or one of them. `built`: with the tools and images that are there.
pub(super) fn disk(part: Option<DiskPart>, built: bool) -> Outcome {
    let mut steps = Steps::new();
    host::check()?;
    if !built {
        steps.step("packages", host::packages)?;
        build::everything(&mut steps, build::Profile::Release, false)?;
    }
    if part != Some(DiskPart::Unlock) {
        let figures = steps.step("rates", measure)?;
        report(&figures);
    }
    if part != Some(DiskPart::Rates) {
        steps.step("unlock", unlocked)?;
    }
    Ok(())
}

/// Boots the guest and parses its output.
fn measure() -> Outcome<Vec<Figure>> {
    let tools = Tools::find(&host::repository())?;
    let dir = workshop().join("bench-disk");
    fs::remove_dir_all(&dir).ok();
    let kernel = kernel()?;
    let initrd = initrd(&tools, &dir, &kernel)?;
    let (disk, console) = (dir.join("disk.raw"), dir.join("console.log"));
    let made = fs::File::create(&disk).and_then(|file| file.set_len(SIZE));
    made.map_err(|error| fault("cannot make", &disk, &error))?;
    let mut qemu = tools.command("qemu-system-x86_64");
    // The machine of the stories, but for the firmware.
    qemu.args([
        "-machine",
        "q35",
        "-accel",
        "tcg,thread=multi",
        "-cpu",
        "max,la57=off",
    ]);
    qemu.args([
        "-smp",
        "2",
        "-m",
        "1024",
        "-display",
        "none",
        "-nodefaults",
        "-no-reboot",
    ]);
    qemu.arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(&initrd);
    qemu.args(["-append", "console=ttyS0 quiet panic=-1"]);
    let drive = format!(
        "if=none,id=disk,format=raw,cache=writeback,file={}",
        disk.display()
    );
    qemu.args(["-drive", &drive, "-device", "virtio-blk-pci,drive=disk"]);
    qemu.args(["-serial", &format!("file:{}", console.display())]);
    let machine = Owned::start(qemu, &dir.join("qemu.log"))?;
    let hint = format!("see {}", console.display());
    eventually("the guest to switch off", LIMIT, &hint, || {
        Ok((!machine.alive()).then_some(()))
    })?;
    let said =
        fs::read_to_string(&console).map_err(|error| fault("cannot read", &console, &error))?;
    let figures: Vec<Figure> = said
        .lines()
        .filter_map(|line| Figure::parse(line.trim().strip_prefix(FIGURE)?))
        .collect();
    if figures.is_empty() {
        return Err(Failure::new("the guest measured nothing", hint));
    }
    Ok(figures)
}

/// Medians, and each against the plain disk.
fn report(figures: &[Figure]) {
    let mut kinds: Vec<&str> = Vec::new();
    for figure in figures {
        if !kinds.contains(&figure.kind.as_str()) {
            kinds.push(&figure.kind);
        }
    }
    let median = |kind: &str, of: fn(&Figure) -> f64| {
        let mut all: Vec<f64> = figures
            .iter()
            .filter(|one| one.kind == kind)
            .map(of)
            .collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or_default()
    };
    println!(
        "\n{:<24}{:>18}{:>18}{:>18}",
        "medians (of plain)", "write MiB/s", "read MiB/s", "fsyncs/s"
    );
    let plain = kinds.first().copied().unwrap_or_default();
    for kind in &kinds {
        print!("{kind:<24}");
        for of in [
            |one: &Figure| one.write,
            |one: &Figure| one.read,
            |one: &Figure| one.fsync,
        ] {
            let value = median(kind, of);
            print!(
                "{value:>10.1} ({:>4.0}%)",
                100.0 * value / median(plain, of)
            );
        }
        println!();
    }
}

/// A worker's image without configuration, powered on three times: the console's milestones tell when the root was
/// verified and when the state was mounted, in milliseconds since the kernel's start.
fn unlocked() -> Outcome {
    let lab = crate::up::lab(workshop().join("bench-unlock"))?;
    let worker = lab.worker("unlock", 1)?;
    fs::remove_dir_all(&worker.dir).ok();
    for boot in ["made", "existing", "existing"] {
        let mark = fs::metadata(worker.console()).map_or(0, |file| file.len());
        let machine = worker.start(&lab.tools)?;
        let mark = usize::try_from(mark).unwrap_or(usize::MAX);
        let at = |text| -> Outcome<f64> {
            let line = machine.wait_after(mark, text, BOOT_LIMIT)?;
            Ok(milliseconds(&line).unwrap_or_default())
        };
        let times = at("root verified").and_then(|root| Ok((root, at("state mounted")?)));
        machine.cut_power()?;
        let (root, state) = times?;
        println!(
            "state {boot}: root verified → state mounted {:.1} s, of {:.1} s since the kernel's start",
            (state - root) / 1000.0,
            state / 1000.0
        );
    }
    Ok(())
}

/// The number behind `pratique:`.
fn milliseconds(line: &str) -> Option<f64> {
    line.split_once("pratique: ")?
        .1
        .split(' ')
        .next()?
        .parse()
        .ok()
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

/// The guest's first file system: busybox, this program, dmsetup, modules.
fn initrd(tools: &Tools, dir: &Path, kernel: &Kernel) -> Outcome<PathBuf> {
    let root = dir.join("root");
    for folder in ["bin", "proc", "sys", "dev", "modules", "tools"] {
        make(&root.join(folder))?;
    }
    let busybox = tools.bin().join("busybox");
    copy(&busybox, &root.join("bin/busybox"))?;
    copy(
        &tools.file("/usr/sbin/dmsetup"),
        &root.join("tools/dmsetup"),
    )?;
    let libraries = tools.file("/usr/lib/x86_64-linux-gnu");
    for library in [
        "libdevmapper.so.1.02.1",
        "libc.so.6",
        "libm.so.6",
        "libselinux.so.1",
        "libudev.so.1",
        "libpcre2-8.so.0",
        "libcap.so.2",
    ] {
        copy(&libraries.join(library), &root.join("tools").join(library))?;
    }
    copy(
        &libraries.join("ld-linux-x86-64.so.2"),
        &root.join("tools/ld.so"),
    )?;
    let own = std::env::current_exe()
        .map_err(|error| Failure::new(format!("no path of this program: {error}"), ""))?;
    copy(&own, &root.join("bin/xtask"))?;
    for library in libraries_of(&own)? {
        copy(
            &library,
            &root.join(library.strip_prefix("/").unwrap_or(&library)),
        )?;
    }
    let order = modules(tools, kernel, &root.join("modules"))?;
    write(&root.join("modules/order"), &order.join("\n"))?;
    write(&root.join("bin/dmsetup"), DMSETUP)?;
    write(&root.join("init"), INIT)?;
    let file = dir.join("initrd");
    let mut pack = Command::new("sh");
    pack.current_dir(&root).arg("-c");
    pack.arg("\"$0\" find . | \"$0\" cpio -o -H newc > \"$1\"");
    pack.arg(&busybox).arg(&file);
    run(pack)?;
    Ok(file)
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

/// Unpacks modules and those that they depend on; their files, in load order.
fn modules(tools: &Tools, kernel: &Kernel, to: &Path) -> Outcome<Vec<String>> {
    let mut files = Vec::new();
    walk(&kernel.modules, &mut files);
    let mut order = Vec::new();
    for name in MODULES {
        load(tools, &files, name, to, &mut order)?;
    }
    Ok(order)
}

/// Depth first. A module that is not there is built into the kernel, or the guest tells.
fn load(
    tools: &Tools,
    files: &[PathBuf],
    name: &str,
    to: &Path,
    order: &mut Vec<String>,
) -> Outcome {
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
    unpack
        .arg(tools.bin().join("busybox"))
        .arg(file)
        .arg(to.join(&target));
    run(unpack)?;
    let bytes = fs::read(to.join(&target)).map_err(|error| fault("cannot read", file, &error))?;
    for other in depends(&bytes) {
        load(tools, files, &other, to, order)?;
    }
    order.push(target);
    Ok(())
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

fn copy(from: &Path, to: &Path) -> Outcome {
    to.parent().map_or(Ok(()), make)?;
    fs::copy(from, to)
        .map(drop)
        .map_err(|error| fault("cannot copy", from, &error))
}

fn make(dir: &Path) -> Outcome {
    fs::create_dir_all(dir).map_err(|error| fault("cannot make", dir, &error))
}

/// A program.
fn write(path: &Path, text: &str) -> Outcome {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(path, text)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
        .map_err(|error| fault("cannot write", path, &error))
}

fn fault(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{what} {}: {error}", path.display()), "")
}

#[cfg(test)]
mod tests {
    use super::{depends, milliseconds};

    #[test]
    fn a_modules_dependencies_and_a_milestones_time_are_read() {
        let module = b"\x7fELF...\0license=GPL\0depends=dm-mod,dm-bufio\0retpoline=Y\0";
        assert_eq!(depends(module), ["dm-mod", "dm-bufio"]);
        assert!(depends(b"\0depends=\0name=xts\0").is_empty());
        assert_eq!(milliseconds("pratique: 3165 root verified"), Some(3165.0));
        assert_eq!(milliseconds("pratique: root verified"), None);
    }
}
