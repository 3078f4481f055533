//! `cargo xtask bench disk`: the cost of encrypting the state, measured in machines in one run.
//!
//! Rates come from a machine that boots the images' kernel with an initrd of this command's own
//! ([`super::bare`], [`super::guest`]): one disk, plain, encrypted as the state is, and encrypted
//! with authentication over dm-integrity. The time to unlock comes from the console of a worker's
//! image.

use super::DiskPart;
use super::bare::{Bare, copy, fault, write};
use super::guest::{FIGURE, Figure};
use crate::build;
use crate::host::{self, workshop};
use crate::steps::{Failure, Outcome, Steps};
use std::fs;
use std::time::Duration;
use tests_harness::cluster::BOOT_LIMIT;
use tests_harness::tools::Tools;

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
/// dmsetup by the loader and the libraries of the tools tree, which need not be this host's.
const DMSETUP: &str =
    "#!/bin/busybox sh\nexec /tools/ld.so --library-path /tools /tools/dmsetup \"$@\"\n";

/// Rates and the time to unlock, or one of them. `built`: with the tools and images that are there.
pub(super) fn disk(part: Option<DiskPart>, built: bool, profile: build::Profile) -> Outcome {
    let mut steps = Steps::new();
    host::check()?;
    if !built {
        steps.step("packages", host::packages)?;
        build::everything(&mut steps, profile, false)?;
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
    let bare = Bare::new(&tools, "disk")?;
    let disk = bare.dir.join("disk.raw");
    let made = fs::File::create(&disk).and_then(|file| file.set_len(SIZE));
    made.map_err(|error| fault("cannot make", &disk, &error))?;
    dmsetup(&tools, &bare)?;
    let own = std::env::current_exe()
        .map_err(|error| Failure::new(format!("no path of this program: {error}"), ""))?;
    bare.program(&own, "xtask")?;
    bare.modules(&MODULES)?;
    let drive = format!(
        "if=none,id=disk,format=raw,cache=writeback,file={}",
        disk.display()
    );
    let devices = ["-drive", &drive, "-device", "virtio-blk-pci,drive=disk"];
    let said = bare.run("/bin/xtask bench disk-guest", 1024, &devices, LIMIT)?;
    let figures: Vec<Figure> = said
        .lines()
        .filter_map(|line| Figure::parse(line.trim().strip_prefix(FIGURE)?))
        .collect();
    if figures.is_empty() {
        return Err(Failure::new("the guest measured nothing", bare.hint()));
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

/// A worker's image without configuration, powered on three times: the console's milestones tell
/// when the root was verified and when the state was mounted, in milliseconds since the kernel's
/// start.
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

/// dmsetup, and the libraries that it is linked against.
fn dmsetup(tools: &Tools, bare: &Bare<'_>) -> Outcome {
    let to = bare.root().join("tools");
    copy(&tools.file("/usr/sbin/dmsetup"), &to.join("dmsetup"))?;
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
        copy(&libraries.join(library), &to.join(library))?;
    }
    copy(&libraries.join("ld-linux-x86-64.so.2"), &to.join("ld.so"))?;
    write(&bare.root().join("bin/dmsetup"), DMSETUP)
}

#[cfg(test)]
mod tests {
    use super::milliseconds;

    #[test]
    fn a_milestones_time_is_read() {
        assert_eq!(milliseconds("pratique: 3165 root verified"), Some(3165.0));
        assert_eq!(milliseconds("pratique: root verified"), None);
    }
}
