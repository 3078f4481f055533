//! The test programs of the whole workspace: compiled once, by the linter, then run by package.
//!
//! Linting, testing and the stories each had a build of their own, with other features of the
//! shared libraries. Clippy's driver is a whole compiler, so that one build does for all three.

use crate::host::{self, repository};
use crate::steps::{Failure, Outcome};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, SysconfVar, sysconf};
use serde::Deserialize;
use std::fmt;
use std::io::{ErrorKind, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::Instant;
use tests_harness::lifetime::Lifetime;

/// Test programs that run beside each other. Most of them wait more than they work.
pub(crate) const AT_ONCE: usize = 2;
/// How many of the programs that took the most processor time are named after a run.
const NAMED: usize = 10;
/// Bytes that are kept of a program's output, from its end; consoles of machines are in it.
const KEPT: usize = 4 << 20;
/// Lines of the first failing test that are shown at the end.
const SHOWN: usize = 40;

/// One test program.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Program {
    /// The folder of its package, from the repository's root.
    pub(crate) package: PathBuf,
    /// Its target's name.
    pub(crate) name: String,
    /// The source that it begins with.
    pub(crate) source: PathBuf,
    file: PathBuf,
}

/// How property tests look for counterexamples.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Search {
    /// The seed of all random choices.
    pub(crate) seed: u64,
    /// Cases of each property that does not set its own number.
    pub(crate) cases: u32,
}

impl Search {
    /// Of the test command: the same cases in every run, after the regressions that are kept in the
    /// tree. A plain `cargo test` has the seed from `.cargo/config.toml`. New cases are looked for
    /// by `cargo xtask soak properties`.
    pub(crate) const FIXED: Self = Self {
        seed: 2026,
        cases: 64,
    };
}

/// Cargo's message about an artifact; other messages lack these fields.
#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    src_path: PathBuf,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Compiles everything with the linter, with warnings as errors, and returns the test programs.
pub(crate) fn compile() -> Outcome<Vec<Program>> {
    let driver = Command::new("clippy-driver")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if !driver.is_ok_and(|status| status.success()) {
        return Err(Failure::new(
            "the linter clippy-driver is not there",
            "rustup component add clippy",
        ));
    }
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args([
        "test",
        "--workspace",
        "--all-targets",
        "--no-run",
        "--locked",
        // A fault in one room hides none in another.
        "--no-fail-fast",
    ]);
    // The only default feature of the workspace is the master's allocator.
    command.arg("--no-default-features");
    command
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(repository())
        .stdin(Stdio::null());
    command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
    // As `cargo clippy -- --deny warnings` passes it to the driver.
    command.env(
        "CLIPPY_ARGS",
        ["--deny", "warnings", ""].join("__CLIPPY_HACKERY__"),
    );
    let output = command.stderr(Stdio::inherit()).output();
    let output =
        output.map_err(|error| Failure::new(format!("cannot start cargo: {error}"), ""))?;
    if !output.status.success() {
        let cure =
            "warnings are errors; the compiler's message is above, and cargo clippy shows it, too";
        return Err(Failure::new(
            format!("cargo failed ({})", output.status),
            cure,
        ));
    }
    let programs = programs(&String::from_utf8_lossy(&output.stdout), &repository());
    if programs.is_empty() {
        return Err(Failure::new("cargo reported no test program", ""));
    }
    Ok(programs)
}

/// Programs that are started with the same arguments, `at_once` of them at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lane<'a> {
    pub(crate) programs: &'a [Program],
    pub(crate) words: &'a [&'a str],
    /// With one at a time, output is printed as it comes, else when its program ends.
    pub(crate) at_once: usize,
}

/// One run of a program.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) passed: bool,
    /// The end of what it printed, at most twice [`KEPT`] bytes.
    pub(crate) output: String,
    /// From its start until all that it started had ended.
    seconds: f64,
    /// Of all processors, also of the processes that it waited for. Zero where the kernel did not
    /// tell.
    processor_seconds: f64,
}

/// Runs the programs of all lanes beside each other, each in its package's folder as cargo does,
/// all of them even if one fails. Names those that took the most.
pub(crate) fn run(lanes: &[Lane<'_>]) -> Outcome {
    let runs: Vec<(String, Run)> = std::thread::scope(|scope| {
        let running = lanes.iter().map(|lane| {
            scope.spawn(|| {
                each(lane.programs, lane.at_once, |program| {
                    program.run_as_tested(lane.words, lane.at_once == 1)
                })
            })
        });
        // All lanes start before the first is waited for.
        let running: Vec<_> = running.collect();
        running
            .into_iter()
            .map(ScopedJoinHandle::join)
            .flat_map(|runs| runs.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let passed = runs.iter().filter(|(_, run)| run.passed).count();
    println!(
        "\ntest programs: {passed} passed; {} failed\n{}",
        runs.len() - passed,
        costliest(&runs)
    );
    outcome(&runs)
}

/// Runs programs as [`run`] does a lane, but prints the output of those that fail alone.
pub(crate) fn run_quietly(programs: &[Program], words: &[&str], at_once: usize) -> Outcome {
    outcome(&each(programs, at_once, |program| {
        let run = program.run(words, Search::FIXED, false);
        if !run.passed {
            println!("     Running {program}\n{}", run.output);
        }
        run
    }))
}

/// Runs programs, `at_once` of them; their runs, by name.
fn each(
    programs: &[Program],
    at_once: usize,
    run: impl Fn(&Program) -> Run + Sync,
) -> Vec<(String, Run)> {
    let (next, runs) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let run = (program.to_string(), run(program));
                    runs.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(run);
                }
            });
        }
    });
    runs.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn outcome(runs: &[(String, Run)]) -> Outcome {
    let failed: Vec<&(String, Run)> = runs.iter().filter(|(_, run)| !run.passed).collect();
    let Some((first, run)) = failed.first() else {
        return Ok(());
    };
    let cure = first_failure(&run.output).map_or_else(
        || "the failing test is named above".to_owned(),
        |said| format!("all failing tests are named above; the first of {first}:\n{said}"),
    );
    let names: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
    Err(Failure::new(
        format!("tests failed: {}", names.join(", ")),
        cure,
    ))
}

/// The programs that took the most processor time, a line each, after the sum of all.
fn costliest(runs: &[(String, Run)]) -> String {
    let mut costliest: Vec<&(String, Run)> = runs.iter().collect();
    costliest
        .sort_by(|(_, one), (_, other)| other.processor_seconds.total_cmp(&one.processor_seconds));
    let lines = costliest.iter().take(NAMED).map(|(name, run)| {
        format!(
            "\n  {:>7.1} s of processor time in {:>6.1} s  {name}",
            run.processor_seconds, run.seconds
        )
    });
    let all: f64 = runs.iter().map(|(_, run)| run.processor_seconds).sum();
    format!(
        "  {all:>7.1} s of processor time in all; the most of it:{}",
        lines.collect::<String>()
    )
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.name, self.package.display())
    }
}

impl Program {
    /// Runs it as the test command does; its output is printed as it comes, or at its end.
    fn run_as_tested(&self, words: &[&str], as_it_comes: bool) -> Run {
        if as_it_comes {
            println!("     Running {self}");
        }
        let run = self.run(words, Search::FIXED, as_it_comes);
        if !as_it_comes {
            println!("     Running {self}\n{}", run.output);
        }
        run
    }

    /// Runs it. Everything that it started ends with it, and its temporary files go.
    pub(crate) fn run(&self, words: &[&str], search: Search, as_it_comes: bool) -> Run {
        let tools = host::workshop().join("tools/bin");
        let path = format!(
            "{}:{}",
            tools.display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let folder = repository().join(&self.package);
        let mut command = Command::new(&self.file);
        command.args(words).env("PATH", path).stdin(Stdio::null());
        command
            .env("PROPTEST_RNG_SEED", search.seed.to_string())
            .env("PROPTEST_CASES", search.cases.to_string());
        // Programs of the host use English and UTC for every user.
        command
            .env("LC_ALL", "C.UTF-8")
            .env("TZ", "UTC")
            .env("CARGO_MANIFEST_DIR", &folder)
            .current_dir(folder);
        self.bound(command, as_it_comes)
            .unwrap_or_else(|error| Run {
                output: tests_harness::chain(&error),
                ..Run::default()
            })
    }

    fn bound(&self, mut command: Command, as_it_comes: bool) -> tests_harness::Result<Run> {
        let fail = |source| tests_harness::Error::Start {
            program: self.to_string(),
            source,
        };
        let begun = Instant::now();
        let lifetime = Lifetime::begin_with_folder()?;
        lifetime.bind(&mut command);
        // One pipe for both, so that lines keep their order.
        let (reader, writer) = std::io::pipe().map_err(fail)?;
        command
            .stdout(writer.try_clone().map_err(fail)?)
            .stderr(writer);
        let mut child = command.spawn().map_err(fail)?;
        // It holds the pipe's writing end.
        drop(command);
        let output = kept(reader, as_it_comes).map_err(fail)?;
        let processor_seconds = processor_seconds(child.id()).unwrap_or_default();
        let passed = child.wait().map_err(fail)?.success();
        lifetime.end()?;
        Ok(Run {
            passed,
            output: String::from_utf8_lossy(&output).into_owned(),
            seconds: begun.elapsed().as_secs_f64(),
            processor_seconds,
        })
    }
}

/// Reads to the end, and returns the last [`KEPT`] bytes; prints all as it comes where asked to.
fn kept(mut reader: impl Read, as_it_comes: bool) -> std::io::Result<Vec<u8>> {
    let (mut output, mut piece) = (Vec::new(), [0; 8192]);
    loop {
        let count = match reader.read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        let new = piece.get(..count).unwrap_or_default();
        if new.is_empty() {
            return Ok(output);
        }
        if as_it_comes {
            let mut screen = std::io::stdout().lock();
            screen.write_all(new)?;
            screen.flush()?;
        }
        output.extend_from_slice(new);
        if output.len() > 2 * KEPT {
            output.drain(..output.len() - KEPT);
        }
    }
}

/// What the first failing test of a program said: at most [`SHOWN`] lines of the section that test
/// runners print before their closing line. A log may be long, and read from its end, or cut.
fn first_failure(output: &str) -> Option<String> {
    let (_, failures) = output.split_once("\nfailures:\n")?;
    let mut lines = failures
        .lines()
        .skip_while(|line| !line.starts_with("---- "));
    let title = lines.next()?;
    let said = lines.take_while(|line| !line.starts_with("---- ") && *line != "failures:");
    let said: Vec<&str> = std::iter::once(title).chain(said.take(SHOWN)).collect();
    Some(said.join("\n").trim_end().to_owned())
}

/// Waits until a child has ended, and reads its processor time before it is reaped.
fn processor_seconds(child: u32) -> Option<f64> {
    let id = Id::Pid(Pid::from_raw(i32::try_from(child).ok()?));
    waitid(id, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).ok()?;
    let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
    // After the name: from the third field on. User and system time of the process and of the
    // children that it waited for are the 14th to the 17th (proc_pid_stat(5)).
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
    let ticks: f64 = fields.map(|field| field.parse().unwrap_or(0.0)).sum();
    let each = u32::try_from(sysconf(SysconfVar::CLK_TCK).ok()??).ok()?;
    Some(ticks / f64::from(each))
}

fn programs(messages: &str, root: &Path) -> Vec<Program> {
    let artifacts = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Artifact>(line).ok());
    let mut programs: Vec<Program> = artifacts
        .filter(|artifact| artifact.profile.test)
        .filter_map(|artifact| {
            let package = artifact
                .manifest_path
                .parent()?
                .strip_prefix(root)
                .ok()?
                .to_owned();
            let Target {
                name,
                src_path: source,
            } = artifact.target;
            Some(Program {
                package,
                name,
                source,
                file: artifact.executable?,
            })
        })
        .collect();
    programs.sort();
    programs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_distinguished_from_libraries_and_examples() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/r/b/Cargo.toml","target":{"name":"y","src_path":"/r/b/tests/y.rs"},"profile":{"test":true},"executable":"/t/y-1"}
{"reason":"compiler-artifact","manifest_path":"/r/a/Cargo.toml","target":{"name":"x","src_path":"/r/a/src/lib.rs"},"profile":{"test":true},"executable":"/t/x-1"}
{"reason":"compiler-artifact","manifest_path":"/r/a/Cargo.toml","target":{"name":"e","src_path":"/r/a/examples/e.rs"},"profile":{"test":false},"executable":"/t/e-1"}
{"reason":"compiler-artifact","manifest_path":"/r/a/Cargo.toml","target":{"name":"l","src_path":"/r/a/src/lib.rs"},"profile":{"test":false},"executable":null}
{"reason":"build-finished","success":true}"#;
        let found: Vec<String> = programs(messages, Path::new("/r"))
            .iter()
            .map(|one| format!("{}/{}", one.package.display(), one.name))
            .collect();
        assert_eq!(found, ["a/x", "b/y"]);
    }

    #[test]
    fn what_the_first_failing_test_said_is_shown() {
        let output = "test a ... FAILED\ntest b ... FAILED\n\nfailures:\n\n---- a stdout ----\nno port\nsee x.log\n\n---- b stdout ----\nlate\n\n\nfailures:\n    a\n    b\n\ntest result: FAILED. 0 passed; 2 failed\n";
        assert_eq!(
            first_failure(output).unwrap(),
            "---- a stdout ----\nno port\nsee x.log"
        );
        let long = format!(
            "\nfailures:\n\n---- a ----\n{}\nfailures:\n    a\n",
            "x\n".repeat(SHOWN * 2)
        );
        assert_eq!(first_failure(&long).unwrap().lines().count(), SHOWN + 1);
        assert_eq!(first_failure("test a ... ok\n"), None);
        assert_eq!(first_failure("\nfailures:\n"), None);
    }

    #[test]
    fn the_end_of_a_long_output_is_kept() {
        let output = [vec![b'a'; 3 * KEPT], vec![b'z'; 10]].concat();
        let kept = kept(output.as_slice(), false).unwrap();
        assert!(kept.ends_with(b"azzzzzzzzzz"));
        assert!((KEPT..=2 * KEPT).contains(&kept.len()), "{}", kept.len());
    }

    #[test]
    fn a_program_that_fails_in_any_lane_is_named() {
        let program = |name: &str| Program {
            package: PathBuf::from("tests/xtask"),
            name: name.to_owned(),
            source: PathBuf::new(),
            file: Path::new("/bin").join(name),
        };
        let [good, bad] = ["true", "false"].map(|name| [program(name)]);
        let lane = |programs, at_once| Lane {
            programs,
            words: &[],
            at_once,
        };
        run(&[lane(&good, 1), lane(&good, 2)]).unwrap();
        for lanes in [
            [lane(&good, 1), lane(&bad, 2)],
            [lane(&bad, 1), lane(&good, 2)],
        ] {
            let failure = run(&lanes).unwrap_err();
            assert_eq!(failure.what, "tests failed: false of tests/xtask");
        }
    }

    #[test]
    fn a_run_counts_the_processor_time_of_what_its_program_waited_for() {
        let shell = Program {
            package: PathBuf::from("tests/xtask"),
            name: "sh".to_owned(),
            source: PathBuf::new(),
            file: PathBuf::from("/bin/sh"),
        };
        let work = "sh -c 'n=0; while [ $n -lt 300000 ]; do n=$((n + 1)); done'; echo a; echo b >&2; echo c";
        let busy = shell.run(&["-c", work], Search::FIXED, false);
        assert!(busy.passed);
        assert_eq!(busy.output, "a\nb\nc\n");
        assert!(busy.processor_seconds > 0.0, "{busy:?}");
    }

    #[test]
    fn the_programs_that_took_the_most_are_named_first() {
        let took = |name: &str, seconds| {
            let run = Run {
                processor_seconds: seconds,
                ..Run::default()
            };
            (name.to_owned(), run)
        };
        let mut runs: Vec<_> = (1..=20_u8).map(|n| took("small", f64::from(n))).collect();
        runs.push(took("large", 500.0));
        let shown = costliest(&runs);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), 1 + NAMED, "{shown}");
        assert!(lines[0].contains("710.0 s"), "{shown}");
        assert!(
            lines[1].contains("500.0 s") && lines[1].ends_with("large"),
            "{shown}"
        );
    }

    #[test]
    fn a_plain_cargo_test_has_the_seed_of_the_test_command() {
        let text = std::fs::read_to_string(repository().join(".cargo/config.toml")).unwrap();
        let wanted = format!("PROPTEST_RNG_SEED = \"{}\"", Search::FIXED.seed);
        assert!(
            text.lines().any(|line| line == wanted),
            "no line `{wanted}`:\n{text}"
        );
    }
}
