//! `cargo xtask soak`: searches for new cases for any time, while `cargo xtask test` repeats known
//! ones.
//!
//! A find is printed with the seed and the command that repeat it, and is kept where the test
//! command begins with it: cases of properties in the crate's `proptest-regressions`, inputs of
//! decoders in `tests/fuzz/corpus`.

use crate::bench;
use crate::build;
use crate::host::{self, repository};
use crate::steps::{Failure, Outcome, Steps, watched};
use crate::suite::{self, Program, Search};
use crate::verdicts::{self, Verdicts};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Minutes by default.
const MINUTES: u64 = 10;
/// Cases of each property in a round.
const CASES: u32 = 512;
/// Seeds of worlds by default, and in a round.
const WORLDS: u64 = 10_000;
const WORLDS_AT_ONCE: u64 = 100;
/// The same of worlds with a given number of machines.
const LARGE_WORLDS_AT_ONCE: u64 = 5;
/// The test of these, by its name.
const LARGE: &str = "a_large_control_plane";
/// Seconds of each fuzz target in a round.
const SECONDS: u64 = 10;

/// What to search for, and for how long.
#[derive(Debug, clap::Args)]
pub(crate) struct Soak {
    #[command(subcommand)]
    what: Option<What>,
    /// Minutes; the round that has begun is ended.
    #[arg(long, global = true, value_name = "N", default_value_t = MINUTES)]
    minutes: u64,
    /// Seed of the first round; the time where none is given.
    #[arg(long, global = true, value_name = "N")]
    seed: Option<u64>,
}

#[derive(Debug, PartialEq, Eq, clap::Subcommand)]
enum What {
    /// Concurrent clients and kills of a master; what they saw must have an order. The default.
    Histories,
    /// Property tests with another seed in each round.
    Properties,
    /// Mutated input for decoders of bytes from outside, with another seed in each round.
    Fuzz {
        /// The decoders; all where none is named.
        targets: Vec<String>,
    },
    /// Lives of clusters, in which controllers and schedulers meet faults, one after another from
    /// `--seed` on (0 where none is given).
    Worlds {
        /// How many.
        #[arg(long, value_name = "N", default_value_t = WORLDS)]
        seeds: u64,
        /// Machines of each life; a few where none is given.
        #[arg(long, value_name = "N")]
        nodes: Option<usize>,
    },
    /// Hostile pods on a real engine, round after round; the host stays as it was.
    Pods,
    /// What the test command runs, round after round: the same tree must give the same verdict.
    Verdicts(Verdicts),
}

/// Searches for the given time.
pub(crate) fn soak(wish: &Soak) -> Outcome {
    match &wish.what {
        None | Some(What::Histories) => bench::soak(wish.minutes),
        Some(What::Properties) => properties(wish),
        Some(What::Fuzz { targets }) => fuzz(wish, targets),
        Some(What::Worlds { seeds, nodes }) => worlds(wish.seed.unwrap_or(0), *seeds, *nodes),
        Some(What::Pods) => pods(wish),
        Some(What::Verdicts(how)) => verdicts::verdicts(how, wish.minutes),
    }
}

/// Runs rounds with one seed after another until the time is over, one at least.
fn rounds(wish: &Soak, mut round: impl FnMut(u64) -> Outcome) -> Outcome {
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

fn properties(wish: &Soak) -> Outcome {
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
            let run = program.run(&words, Search { seed, cases: CASES }, false);
            if !run.passed {
                println!("     Running {program}\n{}", run.output);
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

/// Names by which a program's modules with properties are chosen, none for all of its tests;
/// nothing where it has no property.
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

/// The last name of a file's module; a file of tests alone (`x_tests.rs`) belongs to the module
/// beside it.
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

/// One test repeats its rounds for the time in this variable.
fn pods(wish: &Soak) -> Outcome {
    host::need_root("hostile pods run in containers in namespaces of their own")?;
    let mut steps = Steps::new();
    steps.step("packages", host::packages)?;
    steps.step("image builder", build::builder)?;
    steps.step("tools", build::tools_tree)?;
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The whole workspace, so that the libraries are built with the features that the test command
    // gave them.
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
        watched(command, "the round that failed is above")
    })
}

/// The seeds in rounds of some at once, each with the number at which the next begins.
fn in_rounds(first: u64, seeds: u64, at_once: u64) -> Vec<std::ops::Range<u64>> {
    let end = first.saturating_add(seeds);
    let begins = (first..end).step_by(usize::try_from(at_once).unwrap_or(usize::MAX));
    begins
        .map(|begin| begin..begin.saturating_add(at_once).min(end))
        .collect()
}

/// Tests play the seeds in this variable: with the controllers of workloads and with the whole
/// control plane, each without and with storms; or with as many machines as are asked for, and with
/// storms. Optimised: a life takes seconds otherwise.
fn worlds(first: u64, seeds: u64, nodes: Option<usize>) -> Outcome {
    let mut steps = Steps::new();
    steps.step("packages", host::packages)?;
    let play = |worlds: &str, words: &[&str]| {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["test", "--locked", "--profile", "quick"]);
        command.args(["--package", "master-controllers", "--test", "faults"]);
        command.args(words).current_dir(repository());
        command.env("PRATIQUE_WORLDS", worlds);
        if let Some(nodes) = nodes {
            command.env("PRATIQUE_NODES", nodes.to_string());
        }
        watched(
            command,
            "the seed is above; a case for it belongs to `found` in master/controllers/tests/faults",
        )
    };
    steps.step("compile", || play("0..0", &["--no-run"]))?;
    let begun = Instant::now();
    let (at_once, tests) = match nodes {
        None => (WORLDS_AT_ONCE, vec!["--skip", "found", "--skip", LARGE]),
        Some(_) => (LARGE_WORLDS_AT_ONCE, vec![LARGE]),
    };
    for round in in_rounds(first, seeds, at_once) {
        let worlds = format!("{}..{}", round.start, round.end);
        play(&worlds, &[&["--quiet", "--"][..], &tests].concat())?;
        println!(
            "[{:>6.0} s] seeds {worlds}: nothing found; to go on from here: --seed {}",
            begun.elapsed().as_secs_f64(),
            round.end
        );
    }
    let which = match nodes {
        None => {
            "the controllers of workloads and with the whole control plane, without and with storms"
                .to_owned()
        }
        Some(nodes) => format!("the whole control plane of {nodes} nodes, with storms"),
    };
    println!("{seeds} seeds from {first} on, each with {which}: nothing found");
    Ok(())
}

fn fuzz(wish: &Soak, targets: &[String]) -> Outcome {
    let mut steps = Steps::new();
    steps.step("packages", host::packages)?;
    let cargo = |words: &[&str]| {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(words).current_dir(repository());
        watched(command, "the compiler's message is above")
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
        command.args(targets).args([
            "--seconds",
            &SECONDS.to_string(),
            "--seed",
            &seed.to_string(),
        ]);
        let targets = targets.join(" ");
        let cure = format!(
            "its input is kept in tests/fuzz/corpus; to repeat the search: cargo xtask soak fuzz {targets} --seed {seed} --minutes 0"
        );
        watched(command, &cure)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        wish: Soak,
    }

    fn asked(text: &str) -> Soak {
        let words = ["soak"].into_iter().chain(text.split_whitespace());
        <Line as clap::Parser>::try_parse_from(words).unwrap().wish
    }

    #[test]
    fn a_wish_is_read_with_its_options_in_any_place() {
        let wish = asked("fuzz --seed 7 wire --minutes 3 log");
        let targets = vec!["wire".to_owned(), "log".to_owned()];
        assert_eq!(wish.what, Some(What::Fuzz { targets }));
        assert_eq!((wish.minutes, wish.seed), (3, Some(7)));
        let usual = asked("--minutes 1");
        assert_eq!((usual.what, usual.minutes, usual.seed), (None, 1, None));
    }

    #[test]
    fn programs_with_properties_are_found_by_their_sources() {
        let at = |path: &str| properties_of(&repository().join(path));
        assert_eq!(at("config/verdicts/tests/verdicts.rs"), Some(Vec::new()));
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
    fn seeds_of_worlds_are_played_in_rounds_until_all_have_been() {
        let wish = asked("worlds --seeds 250 --seed 7");
        assert_eq!(
            (wish.what, wish.seed),
            (
                Some(What::Worlds {
                    seeds: 250,
                    nodes: None
                }),
                Some(7)
            )
        );
        assert_eq!(in_rounds(7, 250, 100), [7..107, 107..207, 207..257]);
        assert!(in_rounds(7, 0, 100).is_empty());
        let large = asked("worlds --seeds 20 --nodes 300").what;
        let (seeds, nodes) = (20, Some(300));
        assert_eq!(large, Some(What::Worlds { seeds, nodes }));
    }

    #[test]
    fn at_least_one_round_is_run_and_the_next_has_another_seed() {
        let wish = asked("properties --seed 5 --minutes 0");
        let mut seeds = Vec::new();
        rounds(&wish, |seed| {
            seeds.push(seed);
            Ok(())
        })
        .unwrap();
        assert_eq!(seeds, [5]);
        let found = rounds(&asked("properties --seed 5"), |seed| match seed {
            8 => Err(Failure::new("found", "")),
            _ => Ok(()),
        });
        assert!(found.is_err());
    }
}
