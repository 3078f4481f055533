//! The `image-build` command: tools, images, keys, and volumes for machines.
//!
//! No tasks. Enter by [`main`]; the work is in the library.

mod arguments;

use arguments::{Arguments, BuildArguments, Command};
use clap::Parser;
use image_build::options::Options;
use image_build::update::Update;
use image_build::{build, keys};
use image_packages::tools::{self, Tools};
use image_packages::{Fetcher, Set};
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The firmware's empty variable store in the tools tree.
const VARIABLES: &str = "usr/share/OVMF/OVMF_VARS_4M.fd";

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = format!("image-build: {}", config_errors::lines(error.as_ref()));
            let _unwritten = writeln!(std::io::stderr(), "{text}");
            ExitCode::FAILURE
        }
    }
}

fn notice(text: &str) {
    let _unwritten = writeln!(std::io::stderr(), "image-build: {text}");
}

/// The repository: the nearest folder upwards that holds the lock file.
fn repository() -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    here.ancestors()
        .find(|f| f.join("image/packages.lock").exists())
        .unwrap_or(Path::new("."))
        .to_owned()
}

fn run(arguments: Arguments) -> Outcome {
    let repository = repository();
    let default_tools = arguments
        .tools
        .unwrap_or_else(|| repository.join(".pratique/tools"));
    let fetcher = Fetcher {
        cache: arguments
            .cache
            .unwrap_or_else(|| repository.join(".pratique/cache")),
        lock: repository.join("image/packages.lock"),
        locked: arguments.locked,
        notice,
    };
    match arguments.command {
        Command::Build(wanted) => one_image(&fetcher, default_tools, *wanted)?,
        Command::Tools { out } => {
            tools::build(&fetcher, &out.unwrap_or(default_tools))?;
        }
        Command::Lock => {
            fetcher.relock(&[
                Set::tools(),
                Set::image(),
                Set::kernel("cloud-amd64"),
                Set::kernel("amd64"),
            ])?;
        }
        Command::Keys { out } => {
            keys::ensure(&out)?;
            let tools = tools::build(&fetcher, &default_tools)?;
            let cert = out.join(keys::names::SECURE_BOOT_CERT);
            variables(&tools, Some(&cert), &out.join(keys::names::VARIABLES))?;
            variables(&tools, None, &out.join(keys::names::VARIABLES_BLANK))?;
        }
        Command::Write {
            image,
            disk,
            release_key,
            ..
        } => write_onto(&image, &disk, release_key.as_deref())?,
        Command::Cidata { out, user_data } => {
            let volume = image_format::fat::cidata(&read_bounded(&user_data)?)?;
            std::fs::write(&out, volume)?;
        }
        Command::Vars { out, sb_cert } => {
            variables(
                &tools::build(&fetcher, &default_tools)?,
                sb_cert.as_deref(),
                &out,
            )?;
        }
    }
    Ok(())
}

/// Without a release key, whatever happens to the state.
fn write_onto(image: &Path, disk: &Path, release_key: Option<&Path>) -> Outcome {
    let update = Update::open(image, disk)?;
    if let Some(release_key) = release_key {
        update.keeps_the_state(release_key)?;
    }
    for step in update.plan() {
        update.carry_out(&step)?;
    }
    let state = update.state().map_or_else(
        || "it has no state partition yet".to_owned(),
        |bytes| {
            format!(
                "its state partition of {:.1} MiB was not touched",
                mebibytes(bytes)
            )
        },
    );
    notice(&format!(
        "{} has the image of {}; {state}",
        disk.display(),
        image.display()
    ));
    Ok(())
}

fn one_image(fetcher: &Fetcher, tools: PathBuf, wanted: BuildArguments) -> Outcome {
    let options: Options = wanted.into_options(tools)?;
    let built = build::run(fetcher, &options)?;
    let part = |name: &str| {
        built
            .manifest
            .parts
            .iter()
            .find(|p| p.name == name)
            .map_or(0, |p| p.size)
    };
    notice(&format!(
        "{}: {:.1} MiB (kernel image {:.1}, root {:.1}, verity {:.1})",
        build::result(&options, "raw").display(),
        mebibytes(built.sizes.total),
        mebibytes(part("uki")),
        mebibytes(part("root")),
        mebibytes(part("verity")),
    ));
    Ok(())
}

/// For a person: exact up to 2^32 KiB.
fn mebibytes(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes / 1024).unwrap_or(u32::MAX)) / 1024.0
}

/// Reads user-data; a machine refuses more than 64 KiB.
fn read_bounded(path: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    const LIMIT: usize = 64 << 10;
    let bytes = std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    if bytes.len() > LIMIT {
        return Err(format!(
            "{} has {} bytes, a machine takes at most {LIMIT}",
            path.display(),
            bytes.len()
        )
        .into());
    }
    Ok(bytes)
}

fn variables(tools: &Tools, cert: Option<&Path>, out: &Path) -> Outcome {
    let template = std::fs::read(tools.file(VARIABLES))?;
    let bytes = match cert {
        Some(path) => {
            let der = keys::certificate(path)?;
            keys::enrolled(&template, &der, &der, &der)?
        }
        None => template,
    };
    std::fs::write(out, bytes)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use image_build::options::Compress;

    #[test]
    fn every_command_line_in_a_guide_is_understood() {
        let count =
            tests_guides::understood("image-build", |words| Arguments::try_parse_from(words));
        assert!(count.unwrap_or_else(|fault| panic!("{fault}")) >= 2);
    }

    #[test]
    fn an_image_is_compressed_hard_unless_its_builder_asks_for_a_fast_build() {
        let of = |words: &[&str]| {
            let line = [
                "image-build",
                "build",
                "--role",
                "worker",
                "--out",
                "o",
                "--bin-dir",
                "b",
            ];
            let parsed = Arguments::try_parse_from(line.iter().chain(words)).unwrap();
            let Command::Build(build) = parsed.command else {
                panic!("no build")
            };
            build.into_options("tools".into()).unwrap().compress
        };
        assert_eq!(of(&[]), Compress::Release);
        assert_eq!(of(&["--compress", "release"]), Compress::Release);
        assert_eq!(of(&["--compress", "dev"]), Compress::Dev);
    }

    #[test]
    fn kernel_arguments_that_cannot_be_measured_or_that_the_build_sets_are_refused() {
        let of = |extra: &str| {
            let line = "image-build build --role worker --out o --bin-dir b --cmdline-extra";
            let words = line.split(' ').chain([extra]);
            let Command::Build(build) = Arguments::try_parse_from(words).unwrap().command else {
                panic!("no build")
            };
            let options = build.into_options("tools".into());
            options
                .map(|options| options.cmdline_extra)
                .map_err(|error| error.to_string())
        };
        for extra in ["", "quiet", "loglevel=4 nvme_core.io-timeout=9"] {
            assert_eq!(of(extra).as_deref(), Ok(extra));
        }
        for (extra, part) in [
            ("quiet \u{e9}", "printable ASCII"),
            ("quiet\nro", "printable ASCII"),
            ("dyndbg=\"file x\"", "printable ASCII"),
            ("quiet  loglevel=4", "single spaces"),
            ("init=/bin/sh", "take out `init=/bin/sh`"),
            ("pratique.roothash=00", "take out `pratique.roothash=00`"),
            ("quiet lockdown=none", "take out `lockdown=none`"),
            ("init-on-alloc=0", "take out `init-on-alloc=0`"),
            (&*"x".repeat(1025), "at most 1024 bytes"),
        ] {
            let fault = of(extra).unwrap_err();
            assert!(
                fault.starts_with("--cmdline-extra: found ") && fault.contains(part),
                "{fault}"
            );
        }
    }
}
