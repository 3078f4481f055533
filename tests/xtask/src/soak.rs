//! `cargo xtask soak`: looks for new cases for as long as one likes, where `cargo xtask test` repeats what is known.
//!
//! What is found is told with the seed and the command that repeat it, and is kept where the test command begins with it:
//! cases of properties in the crate's `proptest-regressions`, inputs of decoders in `tests/fuzz/corpus`.

use crate::bench;
use crate::build;
use crate::host::{self, repository};
use crate::steps::{Failure, Outcome, Steps};
use crate::suite::{self, Program, Search};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const USAGE: &str = "\
usage: cargo xtask soak [WHAT] [--minutes N] [--seed N]

  histories           concurrent clients and kills of a master; what they saw must have an order (where nothing is named)
  properties          property tests with another seed in each round
  fuzz [TARGET…]      mutated input for every decoder of bytes from outside, with another seed in each round
  pods                hostile pods on a real engine, round after round; the host stays as it was";
/// Minutes where none are given.
const MINUTES: u64 = 10;
/// Cases of each property in a round.
const CASES: u32 = 512;
/// Seconds of each fuzz target in a round.
const SECONDS: u64 = 10;

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
struct Wish {
    what: String,
    words: Vec<String>,
    minutes: u64,
    seed: Option<u64>,
}

/// Looks for as long as is asked.
pub(crate) fn soak(words: &[String]) -> Outcome {
    let wish = wish(words)?;
    match wish.what.as_str() {
        "histories" => bench::soak(&["--minutes".to_owned(), wish.minutes.to_string()]),
        "properties" => properties(&wish),
        "fuzz" => fuzz(&wish),
        "pods" => pods(&wish),
        other => Err(Failure::usage(
            &format!("soak does not know {other:?}"),
            USAGE,
        )),
    }
}

fn wish(words: &[String]) -> Outcome<Wish> {
    let mut wish = Wish {
        what: "histories".to_owned(),
        words: Vec::new(),
        minutes: MINUTES,
        seed: None,
    };
    let mut named = false;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().and_then(|value| value.parse().ok());
            value.ok_or_else(|| Failure::usage(&format!("{word} wants a number"), USAGE))
        };
        match word.as_str() {
            "--minutes" => wish.minutes = number()?,
            "--seed" => wish.seed = Some(number()?),
            option if option.starts_with("--") => {
                return Err(Failure::usage(
                    &format!("soak does not know {option}"),
                    USAGE,
                ));
            }
            what if !named => {
                named = true;
                what.clone_into(&mut wish.what);
            }
            other => wish.words.push(other.to_owned()),
        }
    }
    Ok(wish)
}

/// Runs rounds with one seed after another until the time is over, one at least.
fn rounds(wish: &Wish, mut round: impl FnMut(u64) -> Outcome) -> Outcome {
    let clock = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |time| time.as_secs())
    };
    let (begun, first) = (Instant::now(), wish.seed.unwrap_or_else(clock));
    let mut seed = first;
    loop {
        round(seed)?;
        println!(
            "[{:>6.0} s] seed {seed}: nothing found",
            begun.elapsed().as_secs_f64()
        );
        seed += 1;
        if begun.elapsed() >= Duration::from_secs(wish.minutes * 60) {
            return Ok(());
        }
    }
}

fn properties(wish: &Wish) -> Outcome {
    host::need_root("some properties are of what only root may do")?;
    let mut steps = Steps::new();
    steps.step("packages", host::packages)?;
    let programs = steps.step("lint and compile", suite::compile)?;
    let searched: Vec<(Program, Vec<String>)> = programs
        .into_iter()
        .filter_map(|program| properties_of(&program.source).map(|modules| (program, modules)))
        .collect();
    println!("{} test programs have properties", searched.len());
    rounds(wish, |seed| {
        for (program, modules) in &searched {
            let words: Vec<&str> = modules.iter().map(String::as_str).collect();
            let (passed, output) = program.run(&words, Search { seed, cases: CASES }, false);
            if !passed {
                println!("     Running {program}\n{output}");
                let repeat = format!("cargo xtask soak properties --seed {seed} --minutes 0");
                let cure = format!(
                    "it is kept in the crate's proptest-regressions; to repeat the search: {repeat}"
                );
                return Err(Failure::new(
                    format!("{program}: a counterexample with seed {seed}"),
                    cure,
                ));
            }
        }
        Ok(())
    })
}

/// Names by which a program's modules with properties are chosen, none for all of its tests; nothing where it has no property.
fn properties_of(source: &Path) -> Option<Vec<String>> {
    let has =
        |file: &Path| std::fs::read_to_string(file).is_ok_and(|text| text.contains("proptest! {"));
    let root = ["lib", "main"]
        .iter()
        .any(|stem| source.file_stem().is_some_and(|own| own == *stem));
    if !root || has(source) {
        return has(source).then(Vec::new);
    }
    let mut modules: Vec<String> = files(source.parent()?)
        .iter()
        .filter(|file| has(file))
        .map(|file| module(file))
        .collect();
    modules.sort();
    modules.dedup();
    (!modules.is_empty()).then_some(modules)
}

/// The last name of a file's module; a file of tests alone (`x_tests.rs`) belongs to the module beside it.
fn module(file: &Path) -> String {
    let stem = |path: &Path| {
        path.file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    let name = if stem(file) == "mod" {
        file.parent().map(stem).unwrap_or_default()
    } else {
        stem(file)
    };
    name.trim_end_matches("_tests").to_owned() + "::"
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| {
            if entry.path().is_dir() {
                files(&entry.path())
            } else {
                vec![entry.path()]
            }
        })
        .collect()
}

/// One test repeats its rounds for as long as this variable says.
fn pods(wish: &Wish) -> Outcome {
    host::need_root("hostile pods run in containers in namespaces of their own")?;
    let mut steps = Steps::new();
    steps.step("packages", host::packages)?;
    steps.step("image builder", build::builder)?;
    steps.step("tools", build::tools_tree)?;
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The whole workspace, so that the libraries are built with the features that the test command gave them.
    command.args([
        "test",
        "--workspace",
        "--test",
        "node",
        "--locked",
        "--no-default-features",
        "--",
    ]);
    command
        .args(["hostile_pods_leave_the_host_as_it_was", "--nocapture"])
        .current_dir(repository());
    let path = std::env::var("PATH").unwrap_or_default();
    command.env(
        "PATH",
        format!("{}:{path}", host::workshop().join("tools/bin").display()),
    );
    command.env("PRATIQUE_SOAK_MINUTES", wish.minutes.to_string());
    steps.step("hostile pods", || {
        build::watched(command, "the round that failed is above")
    })
}

fn fuzz(wish: &Wish) -> Outcome {
    let mut steps = Steps::new();
    steps.step("packages", host::packages)?;
    let cargo = |words: &[&str]| {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(words).current_dir(repository());
        build::watched(command, "the compiler's message is above")
    };
    let package = [
        "--package",
        "tests-fuzz",
        "--locked",
        "--no-default-features",
    ];
    steps.step("fuzz targets", || {
        cargo(&[&["build"][..], &package].concat())
    })?;
    let program = build::target().join("debug/tests-fuzz");
    rounds(wish, |seed| {
        let mut command = Command::new(&program);
        command.args(&wish.words).args([
            "--seconds",
            &SECONDS.to_string(),
            "--seed",
            &seed.to_string(),
        ]);
        let targets = wish.words.join(" ");
        let cure = format!(
            "its input is kept in tests/fuzz/corpus; to repeat the search: cargo xtask soak fuzz {targets} --seed {seed} --minutes 0"
        );
        build::watched(command, &cure)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Outcome<Wish> {
        wish(
            &text
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn a_wish_is_read_with_its_options_in_any_place() {
        let wish = asked("fuzz --seed 7 wire --minutes 3 log").unwrap();
        assert_eq!(
            (wish.what.as_str(), wish.minutes, wish.seed),
            ("fuzz", 3, Some(7))
        );
        assert_eq!(wish.words, ["wire", "log"]);
        let usual = asked("--minutes 1").unwrap();
        assert_eq!(
            (usual.what.as_str(), usual.minutes, usual.seed),
            ("histories", 1, None)
        );
        assert_eq!(asked("properties --hours 1").unwrap_err().code, 2);
        assert_eq!(asked("properties --seed soon").unwrap_err().code, 2);
    }

    #[test]
    fn programs_with_properties_are_found_by_their_sources() {
        let at = |path: &str| properties_of(&repository().join(path));
        assert_eq!(at("config/attest/tests/verdicts.rs"), Some(Vec::new()));
        assert_eq!(at("config/attest/tests/vectors.rs"), None);
        assert!(
            at("master/api/tests/api/main.rs")
                .unwrap()
                .contains(&"nonsense::".to_owned())
        );
        assert!(
            at("agent/net/src/lib.rs")
                .unwrap()
                .contains(&"dhcp::".to_owned())
        );
    }

    #[test]
    fn at_least_one_round_is_run_and_the_next_has_another_seed() {
        let wish = asked("properties --seed 5 --minutes 0").unwrap();
        let mut seeds = Vec::new();
        rounds(&wish, |seed| {
            seeds.push(seed);
            Ok(())
        })
        .unwrap();
        assert_eq!(seeds, [5]);
        let found = rounds(&asked("properties --seed 5").unwrap(), |seed| match seed {
            8 => Err(Failure::new("found", "")),
            _ => Ok(()),
        });
        assert!(found.is_err());
    }
}
