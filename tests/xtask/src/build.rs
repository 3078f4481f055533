//! Builds: the programs for this host, the programs for the images, the tools tree and the images.

use crate::host::{repository, workshop};
use crate::steps::{Failure, Outcome, Steps, watched};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Flags by which init needs no library on the machine.
const STATIC: &str = "-C target-feature=+crt-static";
/// The target is named so that the flags do not reach build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Programs that go into images.
const IMAGE_PROGRAMS: &[(&str, &str)] = &[("agent-daemon", "agent"), ("master-daemon", "master")];
/// Programs that a person runs on his own machine.
const HOST_PROGRAMS: &[(&str, &str)] = &[
    ("master-admin", "pratique"),
    ("image-build", "image-build"),
    ("master-bootstrap", "discovery"),
];

/// How well programs are compiled: the name of cargo's profile, and of the folder below its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// In a third of the time, to try and to test.
    Quick,
    /// To ship and to measure.
    Release,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Release => "release",
        }
    }

    /// How hard `image-build` compresses: those who ship or measure an image get the smallest.
    fn compression(self) -> &'static str {
        match self {
            Self::Quick => "dev",
            Self::Release => "release",
        }
    }

    /// The only default feature of the workspace is the master's allocator, whose C sources take
    /// minutes.
    fn features(self) -> &'static [&'static str] {
        match self {
            Self::Quick => &["--no-default-features"],
            Self::Release => &[],
        }
    }
}

/// The folder of cargo's builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from)
}

/// The folder of the built programs.
pub(crate) fn program_dir() -> PathBuf {
    workshop().join("bin")
}

/// The folder of images.
pub(crate) fn images() -> PathBuf {
    workshop().join("images")
}

/// The folder of development keys.
pub(crate) fn keys() -> PathBuf {
    workshop().join("keys")
}

/// `cargo xtask image`.
pub(crate) fn image(locked: bool, profile: Profile) -> Outcome {
    let mut steps = Steps::new();
    crate::host::check()?;
    steps.step("packages to build with", crate::host::packages)?;
    everything(&mut steps, profile, locked)
}

/// `cargo xtask tools`.
pub(crate) fn tools() -> Outcome {
    let mut steps = Steps::new();
    steps.step("image builder", builder)?;
    steps.step("tools", tools_tree)?;
    steps.step("Python packages", crate::python::packages)
}

/// Programs, tools, keys and images.
pub(crate) fn everything(steps: &mut Steps, profile: Profile, locked: bool) -> Outcome {
    steps.step("programs", || programs(profile))?;
    other_parts(steps, profile, locked)
}

/// Makes everything except the programs: the tools, the keys, the images.
pub(crate) fn other_parts(steps: &mut Steps, profile: Profile, locked: bool) -> Outcome {
    steps.step("tools (QEMU, firmware, kubectl, …)", tools_tree)?;
    steps.step("development keys", development_keys)?;
    for role in ["master", "worker"] {
        steps.step(&format!("{role} image"), || {
            one_image(role, profile, locked)
        })?;
    }
    Ok(())
}

/// Builds `image-build`, `pratique` and `discovery` alone.
pub(crate) fn builder() -> Outcome {
    let packages: Vec<&str> = HOST_PROGRAMS.iter().map(|(package, _)| *package).collect();
    cargo(Profile::Quick, &packages, &[], None)?;
    gather(HOST_PROGRAMS, &target().join(Profile::Quick.name()))
}

/// Unpacks the tools tree; quick where it is complete.
pub(crate) fn tools_tree() -> Outcome {
    let mut command = image_build("tools");
    command.arg("--out").arg(workshop().join("tools"));
    watched(
        command,
        "see that apt's mirror can be reached, then run the same command again",
    )
}

/// Builds all programs, those for this host and those that go into the images, in one call: apart
/// from each other cargo would choose other features for the libraries they share, and compile half
/// of these twice.
pub(crate) fn programs(profile: Profile) -> Outcome {
    let list = [HOST_PROGRAMS, IMAGE_PROGRAMS].concat();
    let packages: Vec<&str> = list.iter().map(|(package, _)| *package).collect();
    cargo(profile, &packages, &[], None)?;
    gather(&list, &target().join(profile.name()))?;
    cargo(
        profile,
        &["agent-init"],
        &["--target", TARGET],
        Some(STATIC),
    )?;
    gather(
        &[("agent-init", "init")],
        &target().join(TARGET).join(profile.name()),
    )
}

/// Makes the development keys on first use.
pub(crate) fn development_keys() -> Outcome {
    let mut command = image_build("keys");
    command.arg("--out").arg(keys());
    watched(command, "")
}

/// Builds one image; `locked`: of the package versions in the lock file and no others.
pub(crate) fn one_image(role: &str, profile: Profile, locked: bool) -> Outcome {
    watched(
        image_command(role, profile, locked),
        "the message above names the part; `cargo xtask image` builds the images alone",
    )
}

fn image_command(role: &str, profile: Profile, locked: bool) -> Command {
    let mut command = image_build("build");
    command
        .args(["--role", role])
        .arg("--out")
        .arg(images())
        .arg("--bin-dir")
        .arg(program_dir());
    command.arg("--release-key").arg(keys().join("release.key"));
    command
        .arg("--sb-key")
        .arg(keys().join("sb.key"))
        .arg("--sb-cert")
        .arg(keys().join("sb.crt"));
    command.args(["--compress", profile.compression()]);
    if locked {
        command.arg("--locked");
    }
    command
}

/// The image builder with one of its commands.
pub(crate) fn image_build(command: &str) -> Command {
    let mut program = Command::new(program_dir().join("image-build"));
    program.arg(command).current_dir(repository());
    program
}

fn cargo(profile: Profile, packages: &[&str], words: &[&str], flags: Option<&str>) -> Outcome {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(["build", "--profile", profile.name(), "--locked"])
        .args(profile.features())
        .args(words)
        .current_dir(repository());
    for package in packages {
        command.args(["--package", package]);
    }
    if let Some(flags) = flags {
        command.env("RUSTFLAGS", flags);
    }
    watched(command, "the compiler's message is above")
}

fn gather(list: &[(&str, &str)], from: &Path) -> Outcome {
    let to = program_dir();
    let fail = |path: &Path, error: std::io::Error| {
        Failure::new(format!("cannot copy {}: {error}", path.display()), "")
    };
    std::fs::create_dir_all(&to).map_err(|error| fail(&to, error))?;
    for (_, name) in list {
        let source = from.join(name);
        let next = to.join(format!("{name}.new"));
        // A rename, so that a program that runs is not written over.
        std::fs::copy(&source, &next).map_err(|error| fail(&source, error))?;
        std::fs::rename(&next, to.join(name)).map_err(|error| fail(&next, error))?;
    }
    Ok(())
}

/// How hard the commands for both images compress.
#[cfg(test)]
pub(crate) fn compression(profile: Profile) -> Vec<String> {
    let roles = ["master", "worker"].into_iter();
    let words = roles.flat_map(|role| {
        let command = image_command(role, profile, false);
        let words = command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned());
        words
            .skip_while(|word| word != "--compress")
            .skip(1)
            .take(1)
            .collect::<Vec<_>>()
    });
    words.collect()
}
