//! `cargo xtask mutants`: for each check of the verifier builds a verifier without it, which the
//! attacks must detect.
//!
//! A copy of `config` is built once, in which a check named in an environment variable always
//! passes; the real source has nothing of this. Every check that the attacks reach has a mutant for
//! each of its codes, whether an attack fails it or not. A mutant is killed when the attacks fail
//! with it. If two checks detect the same fault, removing one alone goes unnoticed; such pairs are
//! listed here with their reason. A fault after which an exchange cannot continue (a structure that
//! does not parse) can't be skipped, so it has no mutant.

use crate::build;
use crate::host;
use crate::steps::{Failure, Outcome, watched};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The place in the real source that records a check.
const PLACE: &str = "        if !ok && self.first.is_none() {";
/// The same in the copy.
const BLIND: &str =
    "        let ok = blind(name, code, ok);\n        if !ok && self.first.is_none() {";
/// Checks whose faults another check always detects too, with that check.
const DOUBLED: [(&str, &str); 4] = [
    (
        "EVENT_DATA Secure Boot variable SecureBoot",
        "the data of all events of PCR 7 is looked at again",
    ),
    (
        "EVENT_DATA event data of PCR 7",
        "the variables of Secure Boot were looked at before",
    ),
    (
        "EVENT_LOG_TRUNCATED event log: PCR 12",
        "whatever is in PCR 12 is OUTSIDE_ARGUMENTS first",
    ),
    (
        "EVENT_UNKNOWN events of PCR 12",
        "whatever is in PCR 12 is OUTSIDE_ARGUMENTS first",
    ),
];
/// The end of an exchange that cannot continue, in the real source.
const END: &str = "        self.test(name, code, false, expected, actual);";
/// The same in the copy.
const SEEN: &str = "        ENDING.set(true);\n        self.test(name, code, false, expected, actual);\n        ENDING.set(false);";
/// The function that the copy adds. It collects the checks that were reached in a file.
const FUNCTION: &str = r#"
thread_local! { static ENDING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) }; }

fn blind(name: &str, code: Code, ok: bool) -> bool {
    use std::io::Write as _;
    static BLIND: std::sync::LazyLock<Option<String>> = std::sync::LazyLock::new(|| std::env::var("PRATIQUE_BLIND").ok());
    static NAMES: std::sync::LazyLock<Option<String>> = std::sync::LazyLock::new(|| std::env::var("PRATIQUE_NAMES").ok());
    if ENDING.get() {
        return ok;
    }
    let check = format!("{code} {name}");
    if let Some(path) = NAMES.as_ref() {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        drop(file.and_then(|mut file| file.write_all(format!("{check}\n").as_bytes())));
    }
    ok || BLIND.as_ref() == Some(&check)
}
"#;

/// Builds the copy, runs the attacks against each mutant, or against those whose names contain a
/// word, and prints the score.
pub(crate) fn mutants(words: &[String]) -> Outcome {
    let copy = host::workshop().join("mutants");
    prepare(&copy)?;
    watched(
        attacks(&copy, &["--no-run"]),
        "the compiler's message is above",
    )?;
    let mut names = names(&copy)?;
    names.retain(|name| words.is_empty() || words.iter().any(|word| name.contains(word.as_str())));
    let (mut killed, mut doubled, mut survivors) = (0_usize, 0_usize, Vec::new());
    for name in &names {
        let caught = !passes(&copy, "PRATIQUE_BLIND", name)?;
        let reason = DOUBLED
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, reason)| reason);
        match (caught, reason) {
            (true, None) => {
                println!("  killed    {name}");
                killed += 1;
            }
            (false, Some(reason)) => {
                println!("  doubled   {name}: {reason}");
                doubled += 1;
            }
            (true, Some(_)) => {
                let what = format!("{name} is killed, and is listed as one that can't be");
                return Err(Failure::new(what, "take it out of DOUBLED in mutants.rs"));
            }
            (false, None) => {
                println!("  SURVIVED  {name}");
                survivors.push(name.clone());
            }
        }
    }
    println!(
        "\nmutants: {killed} of {} killed, {doubled} doubled by another check",
        names.len()
    );
    if survivors.is_empty() {
        return Ok(());
    }
    let cure = format!(
        "write an attack that only this check refuses: {}",
        survivors.join("; ")
    );
    Err(Failure::new(
        format!("{} mutants survived", survivors.len()),
        cure,
    ))
}

fn failed<'a>(what: &'a str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Failure + 'a {
    move |error| Failure::new(format!("cannot {what} {}: {error}", path.display()), "")
}

/// The top-level files and folders of the workspace.
const TOP: [&str; 8] = [
    "Cargo.toml",
    "Cargo.lock",
    ".cargo",
    "agent",
    "config",
    "image",
    "master",
    "tests",
];

fn prepare(copy: &Path) -> Outcome {
    if copy.exists() {
        std::fs::remove_dir_all(copy).map_err(failed("clear", copy))?;
    }
    let root = host::repository();
    // All rooms: those that the verifier needs, and those that these need, change.
    let mut command = Command::new("cp");
    command.current_dir(&root).arg("-r").args(TOP).arg(copy);
    std::fs::create_dir_all(copy).map_err(failed("make", copy))?;
    watched(command, "is the disk full?")?;
    let place = copy.join("config/attest/src/verdict.rs");
    let source = std::fs::read_to_string(&place).map_err(failed("read", &place))?;
    if source.matches(PLACE).count() != 1 || source.matches(END).count() != 1 {
        return Err(Failure::new(
            "the place where checks are recorded is not found",
            "bring PLACE and END in mutants.rs up to date",
        ));
    }
    std::fs::write(
        &place,
        source.replace(PLACE, BLIND).replace(END, SEEN) + FUNCTION,
    )
    .map_err(failed("write", &place))
}

fn attacks(copy: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args([
            "test",
            "--quiet",
            "--offline",
            "--package",
            "config-attest",
            "--test",
            "attacks",
        ])
        .args(words);
    // Optimised, as the same attacks are mounted a hundred times; in a place of its own, so that
    // the tests' builds stay.
    command
        .env("CARGO_TARGET_DIR", build::target().join("mutants"))
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "2");
    command.current_dir(copy);
    command
}

/// Whether the attacks pass with a variable set.
fn passes(copy: &Path, variable: &str, value: &str) -> Outcome<bool> {
    let mut command = attacks(copy, &[]);
    command
        .env(variable, value)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let status = command
        .status()
        .map_err(|error| Failure::new(format!("cannot run the attacks: {error}"), ""))?;
    Ok(status.success())
}

/// Every check that an attack meets; and that the attacks pass with a verifier that sees.
fn names(copy: &Path) -> Outcome<BTreeSet<String>> {
    let list: PathBuf = copy.join("names");
    if !passes(copy, "PRATIQUE_NAMES", &list.display().to_string())? {
        return Err(Failure::new(
            "the attacks do not pass with the real verifier",
            "mend them first",
        ));
    }
    let text = std::fs::read_to_string(&list).map_err(failed("read", &list))?;
    Ok(text.lines().map(str::to_owned).collect())
}
