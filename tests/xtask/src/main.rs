//! The only automation: `cargo xtask up | down | status | test | image | tools | master | bench | soak | mutants | tidy | map`.
//!
//! It compiles in seconds and needs no system library; everything heavy is a program that it builds and runs.
//! Every command prints its steps with their times, and a failure says what failed, where the log is and what to do.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line program speaks to its user"
)]

mod bench;
mod build;
mod host;
mod map;
mod master;
mod mutants;
mod python;
mod soak;
mod steps;
mod suite;
mod test;
mod tidy;
mod up;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  up [--workers N]       install what is needed, build, boot a master and a worker in QEMU, run a pod
  down                   end the machines of `up` (their disks stay; --wipe removes them)
  status                 show the machines of `up`
  test [STAGE…]          install what is needed and pass all tests (stages: tidy lint unit build stories; only by its
                         name: tail, the stories in machines that the attacks show by processes, too)
  image [--locked]       build both images into .pratique/images
  tools                  unpack the tools (QEMU, firmware, kubectl, …) into .pratique/tools
  master --config FILE --data DIR --listen ADDRESS   run a master on this host in the foreground
  check FILE…            check TOML documents
  bench image|join|api|control|disk   measure, and print the figures of tests/FIGURES.md (api --only NAME: objects watch
                         watchers collection crowd; disk rates, disk unlock; join and disk --built: of
                         the images that are there)
  soak [WHAT]            look for new cases: histories (concurrent clients and kills of a master), properties, fuzz,
                         and hostile pods (--minutes N, --seed N)
  mutants [WORD…]        blind the verifier at each of its checks; the attacks must notice
  tidy                   check the architecture
  map                    show the rooms, what depends on what, and circles of files
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = words.split_first() else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    let outcome = match command.as_str() {
        "up" => up::up(rest),
        "down" => up::down(rest),
        "status" => up::status(),
        "test" => test::test(rest),
        "image" => build::image(rest),
        "tools" => build::tools(),
        "master" => master::run(rest),
        "check" => master::check(rest),
        "bench" => bench::bench(rest),
        "soak" => soak::soak(rest),
        "mutants" => mutants::mutants(rest),
        "tidy" => tidy::tidy(),
        "map" => map::map(),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(())
        }
        other => Err(steps::Failure::usage(
            &format!("no command {other:?}"),
            USAGE,
        )),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\n{failure}");
            ExitCode::from(failure.code)
        }
    }
}
