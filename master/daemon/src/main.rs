//! The master: builds the control plane's parts, starts them and ends them in order.
//!
//! `master run` reads the configuration, opens keys and store, and serves the API on one port.
//! Until the admin bootstrapped it, that port answers health and bootstrap only; then the
//! attestation service, the scheduler and the controllers start, each a future that is dropped at
//! shutdown.
//!
//! Tasks: the listener (one task a connection, owned by `master_listener::serve`), the renewal of
//! certificates, the attestation service, scheduler, controllers. All are owned by [`run::run`],
//! which ends the listener first (drain) and then the rest. Enter there. `master snapshot` and
//! `master restore` are in [`snapshot`].

mod api;
mod clients;
mod dialer;
mod discovery;
mod error;
mod kubeconfig;
mod remote;
mod rotation;
mod run;
mod served;
mod serving;
mod settings;
mod snapshot;

use clap::{Parser, Subcommand};
pub(crate) use config_errors::chain;
pub(crate) use error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// The control plane in one process.
#[derive(Debug, Parser)]
#[command(name = "master", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the master in the foreground until SIGTERM or SIGINT.
    Run(RunArgs),
    /// Write the whole store into a file, also while a master works with it.
    ///
    /// With --kubeconfig the file comes from a running master over the path /snapshot, which only
    /// those read who may list every object (`kubectl get --raw /snapshot > FILE` does the same).
    /// With --data it is read from the folder of a stopped master; if a master is running there, it
    /// is asked, with the admin's kubeconfig of the folder. The file holds every object, Secrets
    /// too, as of one moment, but not the cluster's keys (DATA/ca).
    Snapshot(snapshot::SnapshotArgs),
    /// Restore a snapshot into a data folder without a store.
    ///
    /// The snapshot is verified to its end before anything is written. The store's revisions
    /// continue far above the snapshot's, so that clients that watched the lost store list again.
    /// On a machine whose state refuses an older store, the restored one counts as the newest.
    Restore(snapshot::RestoreArgs),
}

/// Arguments of `master run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// The configuration: a cluster's document, or the first master's user-data.
    #[arg(long)]
    config: PathBuf,
    /// Where keys and state are kept.
    #[arg(long)]
    data: PathBuf,
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// The agent's attestor socket; without it keys are kept in files and the master can't be
    /// attested.
    #[arg(long)]
    attestor: Option<PathBuf>,
    /// Where a development master (no `admin_key`) writes the admin's kubeconfig; default:
    /// DATA/admin.kubeconfig.
    #[arg(long)]
    admin_kubeconfig: Option<PathBuf>,
    /// Where the root's pin is written for the agent of this machine; default with --attestor:
    /// /run/pratique/ca-pin.
    #[arg(long)]
    ca_pin: Option<PathBuf>,
    /// Where the machine keeps the key of its encrypted state's recovery slot, for the admin's
    /// recovery copy.
    #[arg(long)]
    state_recovery: Option<PathBuf>,
    /// The cluster's keys as they came with a state from another board; sealed at the start, and
    /// removed.
    #[arg(long)]
    recovered_keys: Option<PathBuf>,
    /// The record of the configuration that this boot measured; the data folder then names those
    /// that the machine may boot with.
    #[arg(long)]
    config_event: Option<PathBuf>,
    /// Where the machine's state names its generation: there the master marks that the data folder
    /// names those configurations, and in which generation it last served its store.
    #[arg(long, requires = "state_generation_key")]
    state_generation: Option<PathBuf>,
    /// The key of that file's text, in memory.
    #[arg(long)]
    state_generation_key: Option<PathBuf>,
    /// Hash of the admin's key by which the machine's state came from another board: the
    /// configuration must name it.
    #[arg(long, value_name = "sha256:HASH")]
    state_of: Option<String>,
}

/// Few arenas and early return of what is free, as `.cargo/config.toml` sets it: the C library's
/// own allocator has either one lock for all threads or a heap for each, and both cost more with
/// many objects.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Time for the runtime's threads at the end of the process; everything that must be done is done
/// before.
const RUNTIME_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter =
        EnvFilter::try_from_env("PRATIQUE_LOG").unwrap_or_else(|_unset| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    // The cluster's keys are in its memory: no other process reads it, and no core of it is written
    // (prctl(2), PR_SET_DUMPABLE).
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        tracing::error!(
            error = chain(&error),
            "cannot keep other processes from reading the memory"
        );
        return ExitCode::FAILURE;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(16)
        .build();
    let outcome = match (&runtime, cli.command) {
        (Ok(runtime), Command::Run(args)) => runtime.block_on(run::run(args)),
        (Ok(runtime), Command::Snapshot(args)) => runtime.block_on(snapshot::snapshot(args)),
        (Ok(runtime), Command::Restore(args)) => runtime.block_on(snapshot::restore(&args)),
        (Err(_), _) => Ok(()),
    };
    let outcome = match runtime {
        Ok(runtime) => {
            // A thread that a failing disk holds in the kernel does not keep the process.
            runtime.shutdown_timeout(RUNTIME_SHUTDOWN_TIMEOUT);
            outcome
        }
        Err(source) => Err(Error::Runtime(source)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = %error.chain(), "the master ends");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_line_in_a_guide_is_understood() {
        let count = tests_guides::understood("master", |words| Cli::try_parse_from(words));
        assert!(count.unwrap_or_else(|fault| panic!("{fault}")) >= 3);
    }
}
