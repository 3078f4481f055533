//! The agent: builds the node's parts, starts them and ends them in order.
//!
//! `agent run` reads the machine's configuration, brings up the network (on a machine), proves the
//! machine to its master, and is then the node's kubelet until SIGTERM, or until its master orders
//! the end of the machine: its exit code then tells init. On the first master's machine it also
//! serves the attestor socket, through which the master, which does not open the TPM itself, seals
//! its keys and proves itself to the admin.
//!
//! init runs `agent metadata` to fetch the machine's user-data before there is a configuration.
//!
//! init runs `agent state-key` to get the key of the encrypted state from the TPM.
//!
//! Enter by [`run::run`]. It is the only owner of tasks: the name server, the attestor, the
//! network, the clock, discovery, the keeper of the identity, the kubelet and its server; they
//! share the identity's slots and the TPM's bounded channel. Messages that a person must see go to
//! standard output as lines that start with `pratique:`; the log goes to standard error.

mod addresses;
mod approach;
mod approvals;
mod attestor;
mod console;
mod discovery;
mod ending;
mod error;
mod glue;
mod issued;
mod issued_configuration;
mod machine;
mod metadata;
mod names;
mod network;
mod node;
mod roots;
mod run;
mod services;
mod settings;
mod state_cluster;
mod state_joined;
mod state_key;
mod state_medium;
mod state_record;
mod state_recovery;
mod time;
mod tunnel;
mod unproven;

use clap::{Args, Parser, Subcommand};
use config_errors::chain;
use config_machine::power::Order;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Threads of the runtime. Two: a handshake that waits for the TPM holds one of them.
const WORKERS: usize = 2;
/// Threads for calls that block, mostly reads and writes of files. Five kinds of calls have
/// threads of their own: TPM commands, the enrolment's work with the TPM, look-ups of names that a
/// pod chose, what goes into the file system of a driver's volume, and the removal of what
/// containers wrote.
const BLOCKING_THREADS: usize = 8;
// Containers that print without an end can block a quarter of them at most.
const _: () = assert!(4 * agent_runtime::LOG_WRITES <= BLOCKING_THREADS);
// Pods with many files, a half.
const _: () = assert!(2 * agent_kubelet::BLOCKED_BY_WALKS <= BLOCKING_THREADS);
/// Open files of the process: connections, and a descriptor for each mount of the containers that
/// are being made.
const DESCRIPTORS: u64 = 65_536;

/// The node agent of Pratique.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prove the machine to its master and be its node.
    Run(Box<RunArguments>),
    /// Fetch the machine's user-data from its cloud's metadata service, over a network that reaches
    /// nothing else.
    Metadata(metadata::MetadataArguments),
    /// Get the key of the machine's state from the TPM, and pass it to init.
    StateKey(state_key::StateKeyArguments),
    /// The unprivileged child of `metadata`.
    #[command(hide = true)]
    MetadataFetch(metadata::FetchArguments),
}

/// Arguments of `agent run`.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArguments {
    /// The machine's configuration (TOML).
    #[arg(long)]
    pub(crate) config: PathBuf,
    /// Persistent data folder (on the encrypted state).
    #[arg(long)]
    pub(crate) data: PathBuf,
    /// Runtime folder, cleared at boot (/run).
    #[arg(long)]
    pub(crate) run: PathBuf,
    /// The TPM, in tpm2-tss's notation, such as `swtpm:host=127.0.0.1,port=2321`.
    #[arg(long, default_value = "device:/dev/tpmrm0")]
    pub(crate) tcti: String,
    /// containerd's socket.
    #[arg(long, default_value = "/run/containerd/containerd.sock")]
    pub(crate) containerd: PathBuf,
    /// Bring up the machine's network; on by default if the machine was booted from an image.
    #[arg(long)]
    pub(crate) manage_network: Option<bool>,
    /// The booted image's description.
    #[arg(long, default_value = "/etc/pratique/image.toml", hide = true)]
    pub(crate) image: PathBuf,
    /// The partition that ends with the image's approvals: the master's keys are sealed for the
    /// boots that they name.
    #[arg(long, conflicts_with = "seal_for_any_boot")]
    pub(crate) approvals: Option<PathBuf>,
    /// Where the machine's state names its generation: there the agent notes how the machine joined
    /// its cluster.
    #[arg(long, hide = true, requires = "state_generation_key")]
    pub(crate) state_generation: Option<PathBuf>,
    /// The key of that file's text, in memory.
    #[arg(long, hide = true)]
    pub(crate) state_generation_key: Option<PathBuf>,
    /// Seal the master's keys to the TPM alone, so that any system on this machine can open them:
    /// for hosts that don't run an image. Without this and without `--approvals` nothing is sealed.
    #[arg(long)]
    pub(crate) seal_for_any_boot: bool,
    /// The firmware's event log.
    #[arg(
        long,
        default_value = "/sys/kernel/security/tpm0/binary_bios_measurements",
        hide = true
    )]
    pub(crate) event_log: PathBuf,
    /// The record of the configuration event; `config-event.json` in the folder of `--run` by
    /// default.
    #[arg(long, hide = true)]
    pub(crate) config_event: Option<PathBuf>,
    /// The kernel's folder of devices (`/sys`).
    #[arg(long, default_value = "/sys", hide = true)]
    pub(crate) sys: PathBuf,
    /// The address of this machine's master, on the machine that founds the cluster.
    #[arg(long, default_value = "127.0.0.1:6443", hide = true)]
    pub(crate) own_master: std::net::SocketAddr,
    /// Whether the agent's parent ends the machine when the agent's exit code asks for it, as init
    /// does. Default: the value of `--manage-network`.
    #[arg(long, hide = true)]
    pub(crate) ends_machine: Option<bool>,
    /// Port of the kubelet's API.
    #[arg(long, default_value_t = agent_kubelet::PORT, hide = true)]
    pub(crate) kubelet_port: u16,
    /// Folder of the pods' volumes and files.
    #[arg(long, default_value = "/var/lib/kubelet", hide = true)]
    pub(crate) kubelet_data: PathBuf,
    /// Folder of the pods' logs.
    #[arg(long, default_value = "/var/log/pods", hide = true)]
    pub(crate) pod_logs: PathBuf,
    /// Folder of the logs of the machine's own programs.
    #[arg(long, default_value = config_machine::journal::FOLDER, hide = true)]
    pub(crate) machine_logs: PathBuf,
    /// containerd's folder, whose file system holds the images.
    #[arg(long, default_value = "/var/lib/containerd", hide = true)]
    pub(crate) containerd_root: PathBuf,
}

/// Runs one command; returns its exit code.
async fn perform(command: Command) -> Result<u8, error::Error> {
    match command {
        Command::Run(arguments) => {
            let ordered = run::run(*arguments).await?;
            Ok(ordered.map_or(0, Order::exit_code))
        }
        Command::Metadata(arguments) => metadata::run(arguments).await,
        Command::StateKey(arguments) => state_key::run(&arguments),
        Command::MetadataFetch(arguments) => metadata::fetch(arguments).await,
    }
}

/// Raises the soft and the hard limit of open files: the kernel's are 1,024 and 4,096. The agent is
/// root; the master raises only its soft limit.
fn raise_open_files_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let of_files = Resource::RLIMIT_NOFILE;
    let raised = getrlimit(of_files).and_then(|(_, most)| {
        // Without the right to raise the hard limit, that is the most there is.
        let all = setrlimit(of_files, DESCRIPTORS.max(most), DESCRIPTORS.max(most));
        all.or_else(|_refused| setrlimit(of_files, most, most))
    });
    if let Err(error) = raised {
        tracing::warn!(
            error = chain(&error),
            "cannot raise the limit of open files"
        );
    }
}

fn main() -> ExitCode {
    let Arguments { command } = Arguments::parse();
    let filter =
        EnvFilter::try_from_env("PRATIQUE_LOG").unwrap_or_else(|_unset| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    // No other process may reach the keys in memory and the TPM, least of all pods in the machine's
    // PID namespace.
    if let Err(error) = agent_sys::process::keep_private() {
        tracing::error!(
            error = %chain(&error),
            "cannot keep other processes from reading the memory"
        );
        return ExitCode::FAILURE;
    }
    raise_open_files_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(perform(command));
            // Does not wait for calls that still block (a TPM command, a name look-up).
            runtime.shutdown_background();
            outcome
        }
        Err(error) => Err(error::Error::Runtime(error)),
    };
    let code = match outcome {
        Ok(code) => code,
        Err(error) => {
            tracing::error!(error = %chain(&error), "the agent ends");
            error.exit_code()
        }
    };
    // An error means that the reader is gone.
    drop(std::io::stdout().flush());
    agent_sys::process::leave(code)
}
