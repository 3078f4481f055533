//! `load bench` measures a master, `load soak` looks for histories that cannot be. Started by
//! `cargo xtask`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line program speaks to its user"
)]

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tests_load::site::Site;
use tests_load::workload::{self, Plan};
use tests_load::{Result, bench};

/// Measures a master, or looks for histories that no order explains.
#[derive(Debug, Parser)]
#[command(name = "load")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure latency, throughput, processor time and memory.
    Bench {
        /// The master's program.
        #[arg(long)]
        master: PathBuf,
        /// Only these parts.
        #[arg(long, value_name = "NAME[,NAME]…", default_value = "")]
        only: String,
    },
    /// Run concurrent clients, kill the master, and check what the clients saw.
    Soak {
        /// The master's program.
        #[arg(long)]
        master: PathBuf,
        /// Minutes; the round that has begun is ended.
        #[arg(long, value_name = "N", default_value_t = 10)]
        minutes: u64,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
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
        match &cli.command {
            Command::Bench { master, only } => bench::run(master, only).await,
            Command::Soak { master, minutes } => {
                soak(master, Duration::from_secs(minutes * 60)).await
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
