//! `load bench` measures a master, `load soak` looks for histories that cannot be. Started by `cargo xtask`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line program speaks to its user"
)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tests_load::site::Site;
use tests_load::workload::{self, Plan};
use tests_load::{Result, bench};

const USAGE: &str = "\
usage: load bench --master PROGRAM [--only NAME[,NAME]…]
       load soak  --master PROGRAM [--minutes N]
";

/// The value of an option.
fn option(words: &[String], name: &str) -> Option<String> {
    words
        .windows(2)
        .find(|pair| pair[0] == name)
        .map(|pair| pair[1].clone())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let program = option(&words, "--master").map(PathBuf::from);
    let (Some(command), Some(program)) = (words.first(), program) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = tokio::task::LocalSet::new().block_on(&runtime, async {
        match command.as_str() {
            "bench" => bench::run(&program, &option(&words, "--only").unwrap_or_default()).await,
            "soak" => {
                let minutes = option(&words, "--minutes")
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(10);
                soak(&program, Duration::from_secs(minutes * 60)).await
            }
            other => {
                eprint!("load does not know {other:?}\n{USAGE}");
                Ok(())
            }
        }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", tests_harness::chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// One plan after another, each on a fresh store, with more or fewer clients and kills.
async fn soak(program: &std::path::Path, time: Duration) -> Result<()> {
    let began = Instant::now();
    let mut round = 0u32;
    while began.elapsed() < time {
        let plan = Plan {
            clients: 2 + u64::from(round * 5 % 30),
            objects: 1 + u64::from(round % 8),
            lives: 2 + round % 7,
            life: Duration::from_millis(500 + u64::from(round) * 770 % 6000),
            calls: 0,
        };
        let report = workload::run(&mut Site::new(program)?, plan).await?;
        println!(
            "{:>6.0} s  {plan:?}: {report:?}",
            began.elapsed().as_secs_f64()
        );
        round += 1;
    }
    Ok(())
}
