//! Requirements on the host: memory, disk, Rust, packages, free ports. Checked before anything long
//! begins.

use crate::steps::{Failure, Outcome};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Debian packages that building and testing need, all of which bookworm and trixie have under
/// these names. gcc: the linker; make: the master's allocator; libtss2-dev, pkg-config: the TPM
/// stack; protobuf-compiler, libprotobuf-dev: containerd's API; musl-tools, bind9-dnsutils: musl's
/// resolver and `dig` as clients of the cluster's DNS.
const PACKAGES: &[&str] = &[
    "gcc",
    "make",
    "libc6-dev",
    "pkg-config",
    "libtss2-dev",
    "libtss2-tcti-swtpm0",
    "protobuf-compiler",
    "libprotobuf-dev",
    "musl-tools",
    "bind9-dnsutils",
    "python3-venv",
];

/// Names under which trixie has a package of the list (its transition to 64-bit time).
const RENAMED: &[(&str, &str)] = &[("libtss2-tcti-swtpm0", "libtss2-tcti-swtpm0t64")];

const MEMORY_MIB: u64 = 4096;
const DISK_MIB: u64 = 12 * 1024;
const RUST: (u32, u32) = (1, 90);

/// The repository's root.
pub(crate) fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// The folder for everything that is made here and not committed.
pub(crate) fn workshop() -> PathBuf {
    repository().join(".pratique")
}

/// Memory, disk and Rust.
pub(crate) fn check() -> Outcome {
    let memory = available_memory_mib();
    if memory < MEMORY_MIB {
        return Err(Failure::new(
            format!(
                "{memory} MiB of memory are available; the machines and the build need {MEMORY_MIB}"
            ),
            "end something, or use a larger host",
        ));
    }
    let disk = free_disk_mib(&repository())?;
    if disk < DISK_MIB {
        return Err(Failure::new(
            format!(
                "{disk} MiB are free on the disk of {}; {DISK_MIB} are needed",
                repository().display()
            ),
            "make room, or clone onto another disk",
        ));
    }
    let version = text_of(Command::new("rustc").arg("--version"))?;
    if rust_version(&version).is_none_or(|found| found < RUST) {
        return Err(Failure::new(
            format!(
                "Rust {}.{} or later is needed; found {}",
                RUST.0,
                RUST.1,
                version.trim()
            ),
            "rustup update stable",
        ));
    }
    Ok(())
}

/// Installs missing packages; fails at once if that is not possible.
pub(crate) fn packages() -> Outcome {
    let missing: Vec<&str> = PACKAGES
        .iter()
        .copied()
        .filter(|name| !installed(name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !nix::unistd::geteuid().is_root() {
        return Err(Failure::new(
            format!(
                "these packages are missing and only root can install them: {}",
                missing.join(" ")
            ),
            format!(
                "run as root, or: sudo apt-get install --no-install-recommends {}",
                missing.join(" ")
            ),
        ));
    }
    println!("    installing {}", missing.join(" "));
    apt(&["update"])?;
    let names: Vec<&str> = missing.iter().map(|name| available_name(name)).collect();
    let mut words = vec!["install", "--yes", "--no-install-recommends"];
    words.extend(names);
    apt(&words)
}

/// Says at once when tests need root and do not have it.
pub(crate) fn need_root(why: &str) -> Outcome {
    if nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::new(
        format!("root is needed: {why}"),
        "run the same command as root",
    ))
}

/// A loopback port that is free now, at or after `first`.
pub(crate) fn free_port(first: u16) -> Outcome<u16> {
    (first..first.saturating_add(200))
        .find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .ok_or_else(|| {
            Failure::new(
                format!("no free port on 127.0.0.1 from {first} on"),
                "end what listens there",
            )
        })
}

fn apt(words: &[&str]) -> Outcome {
    let mut command = Command::new("apt-get");
    command
        .args(["-q", "-o", "DPkg::Lock::Timeout=300"])
        .args(words)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null());
    tests_harness::process::run(command)
        .map(drop)
        .map_err(|error| {
            Failure::new(
                tests_harness::chain(&error),
                "see that apt's mirror can be reached, then run the same command again",
            )
        })
}

fn installed(name: &str) -> bool {
    let other = RENAMED
        .iter()
        .find(|(old, _)| *old == name)
        .map(|(_, new)| *new);
    std::iter::once(name).chain(other).any(|name| {
        Command::new("dpkg-query")
            .args(["-W", "-f", "${db:Status-Status}", name])
            .output()
            .is_ok_and(|output| output.stdout == b"installed")
    })
}

fn available_name(name: &'static str) -> &'static str {
    let known = |name: &str| {
        Command::new("apt-cache")
            .args(["show", name])
            .output()
            .is_ok_and(|output| output.status.success() && !output.stdout.is_empty())
    };
    match RENAMED.iter().find(|(old, _)| *old == name) {
        Some((_, new)) if !known(name) => new,
        _ => name,
    }
}

fn available_memory_mib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|rest| rest.split_whitespace().next())
        .and_then(|word| word.parse::<u64>().ok())
        .unwrap_or_default()
        / 1024
}

fn free_disk_mib(path: &Path) -> Outcome<u64> {
    let stat = nix::sys::statvfs::statvfs(path).map_err(|error| {
        Failure::new(
            format!("cannot look at the disk of {}: {error}", path.display()),
            "",
        )
    })?;
    Ok(stat.blocks_available() * stat.fragment_size() / (1024 * 1024))
}

fn text_of(command: &mut Command) -> Outcome<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| {
        Failure::new(
            format!("cannot run {program}: {error}"),
            "install Rust by rustup",
        )
    })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn rust_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split_whitespace().nth(1)?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_versions_are_compared_by_number() {
        assert_eq!(
            rust_version("rustc 1.95.0 (59807616e 2026-03-21)"),
            Some((1, 95))
        );
        assert!(rust_version("rustc 1.9.0 (x)") < Some(RUST));
        assert_eq!(rust_version("nonsense"), None);
    }

    #[test]
    fn a_port_in_use_is_passed_over() {
        let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert_ne!(free_port(port).unwrap(), port);
    }
}
