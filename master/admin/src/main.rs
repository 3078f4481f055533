//! The admin's tool: bootstrap a cluster, describe machines, check documents.
//!
//! One command a run, on the admin's own machine; everything else is kubectl. It has no tasks but
//! the driver of the one connection that `bootstrap` opens. Results go to standard output, progress
//! and errors to standard error. Enter by [`Command`]; a module for each.

mod bootstrap;
mod connection;
mod discovery;
mod ek;
mod error;
mod files;
mod issue;
mod key;
mod kubeconfig;
mod logs;
mod machine;
mod node;
mod plain;
mod recover_state;
mod root;
mod runtime;
mod status;
mod tls;
mod verify;

use clap::{CommandFactory as _, Parser, Subcommand};
use config_kube::CertificatePolicy;
use config_model::Document;
use error::{Error, Result};
use std::path::PathBuf;
use std::process::ExitCode;

/// Makes clusters, describes machines and looks into them.
#[derive(Debug, Parser)]
#[command(name = "pratique", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Attest a fresh master and take the cluster over: prints its CA pins and writes a kubeconfig.
    Bootstrap(bootstrap::BootstrapArgs),
    /// Print the Machine manifest of a machine, for `kubectl apply -f -`.
    Machine(machine::MachineArgs),
    /// Issue certificates and a key to a machine that will prove nothing, and write its user-data.
    Issue(Box<issue::IssueArgs>),
    /// Put the cluster on a discovery endpoint, or show what is served there.
    #[command(subcommand)]
    Discovery(discovery::DiscoveryCommand),
    /// Print the CertificatePolicy of a document of kind `policy`, for `kubectl apply -f -`.
    Policy {
        /// Name of the object instead of the document's; under any name but `cluster` it is a
        /// draft, whose status shows its verdict on each machine.
        #[arg(long)]
        name: Option<String>,
        /// The document.
        file: PathBuf,
    },
    /// Show the cluster's root, or rotate it: both roots count until the old one is ended.
    #[command(subcommand)]
    Root(root::RootCommand),
    /// Read the logs of a node's own programs and of its kernel; no node has a shell to look from.
    Logs(logs::LogsArgs),
    /// Show one page of a machine's status: its trust, image, state, conditions, resources, pods
    /// and warnings.
    Status(status::StatusArgs),
    /// Drain a node of its pods, return it to use, and reboot its machine or power it off.
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Check TOML documents and report all faults.
    Check {
        /// The documents.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Make the admin's key, or read it, and print its hash for the first master's user-data.
    AdminKey {
        /// The key's file.
        #[arg(long)]
        out: PathBuf,
    },
    /// Print the digest that a machine measures of its user-data.
    Digest {
        /// The source of the machine's user-data.
        #[arg(long, default_value = "nocloud", value_parser = config_model::machine::USER_DATA_SOURCES)]
        source: String,
        /// The exact user-data.
        file: PathBuf,
    },
    /// Check the log of verdicts offline: every signature, the chain, and that nothing is missing
    /// in between.
    Verify(verify::VerifyArgs),
    /// Let another board open a master's state, where its own is gone: writes a one-off key in
    /// front of the state.
    RecoverState(recover_state::RecoverStateArgs),
    /// Open the recovery copy of a cluster's root (both, while it is rotated), service account and
    /// discovery keys.
    Recover {
        /// The admin's private key.
        #[arg(long)]
        admin_key: PathBuf,
        /// The file for the keys and the root certificate (PEM); must not exist.
        #[arg(long)]
        out: PathBuf,
        /// The recovery copy: `ca/recovery.json` of the master's data folder.
        file: PathBuf,
    },
    /// Print a script by which a shell completes these commands, for example
    /// `source <(pratique completion bash)`.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            files::tell(&format!("pratique: {}", config_errors::lines(&error)));
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<()> {
    match command {
        Command::Bootstrap(args) => bootstrap::run(args),
        Command::Machine(args) => machine::run(args),
        Command::Issue(args) => issue::run(args),
        Command::Discovery(command) => discovery::run(command),
        Command::Policy { name, file } => policy(name.as_deref(), file),
        Command::Root(command) => root::run(command),
        Command::Logs(args) => logs::run(args),
        Command::Status(args) => status::run(args),
        Command::Node(command) => node::run(command),
        Command::Check { files } => check(files),
        Command::AdminKey { out } => admin_key(out),
        Command::Digest { source, file } => {
            files::say(&machine::digest(source, file)?);
            Ok(())
        }
        Command::Verify(args) => verify::run(args),
        Command::RecoverState(args) => recover_state::run(args),
        Command::Recover {
            admin_key,
            out,
            file,
        } => recover(admin_key, out, file),
        Command::Completion { shell } => {
            let script = completion(*shell)?;
            files::say(script.trim_end());
            Ok(())
        }
    }
}

fn completion(shell: clap_complete::Shell) -> Result<String> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "pratique", &mut script);
    String::from_utf8(script).map_err(|e| Error::input("the script", e.to_string(), "report this"))
}

fn policy(name: Option<&str>, file: &std::path::Path) -> Result<()> {
    let shown = file.display().to_string();
    let policy = match config_model::parse(files::read(file)?, &shown) {
        Ok(Document::Policy(policy)) => policy,
        Ok(other) => {
            let found = format!("a document of kind `{}`", other.kind());
            return Err(Error::input(
                shown,
                found,
                "write `kind = \"policy\"` and `[[rule]]` entries",
            ));
        }
        Err(faults) => return Err(Error::Faults(faults.to_string())),
    };
    let name = name.unwrap_or(policy.name.as_str());
    if !master_ca::profile::is_dns_name(name) {
        return Err(Error::input(
            format!("--name {name}"),
            "not a name for an object",
            "use a-z, 0-9 and `-`",
        ));
    }
    let manifest = serde_yaml_ng::to_string(&CertificatePolicy::named(name, policy.spec))
        .map_err(|e| Error::input("the manifest", e.to_string(), "report this"))?;
    files::say(manifest.trim_end());
    Ok(())
}

fn check(paths: &[PathBuf]) -> Result<()> {
    let mut faults = Vec::new();
    for path in paths {
        let name = path.display().to_string();
        match config_model::parse(files::read(path)?, &name) {
            Ok(document) => files::say(&format!(
                "{name}: a sound document of kind `{}`",
                document.kind()
            )),
            Err(found) => faults.push(found.to_string()),
        }
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Error::Faults(faults.join("\n")))
    }
}

fn admin_key(out: &std::path::Path) -> Result<()> {
    let (key, made) = key::AdminKey::open(out)?;
    let verb = if made { "made" } else { "found" };
    files::tell(&format!(
        "{verb} the admin's key in {}; its user-data line:",
        out.display()
    ));
    files::say(&format!("admin_key = \"{}\"", key.hash()));
    Ok(())
}

fn recover(
    admin_key: &std::path::Path,
    out: &std::path::Path,
    file: &std::path::Path,
) -> Result<()> {
    let pem = files::read_text(admin_key)?;
    let copy = files::read_text(file)?;
    let plain = master_ca::recovery::decrypt(&pem, &copy).map_err(|source| Error::Ca {
        what: "open the recovery copy",
        source,
    })?;
    files::write_private(out, &plain, false)?;
    files::tell(&format!(
        "wrote the keys to {}: keep it as you would keep the cluster",
        out.display()
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    #[test]
    fn every_command_and_argument_has_its_help() {
        Cli::command().debug_assert();
        assert_eq!(tests_guides::without_help(Cli::command()), [""; 0]);
    }

    #[test]
    fn each_shell_completes_each_command() {
        for shell in clap_complete::Shell::value_variants() {
            let script = completion(*shell).unwrap();
            for command in Cli::command().get_subcommands() {
                let name = command.get_name();
                assert!(script.contains(name), "{shell}: {name}");
            }
        }
    }

    #[test]
    fn every_command_line_in_a_guide_is_understood() {
        let count = tests_guides::understood("pratique", |words| {
            let parse = |more: &[&str]| {
                let more = more.iter().map(ToString::to_string);
                Cli::try_parse_from(words.iter().cloned().chain(more))
            };
            // An admin has it in the environment.
            let with_kubeconfig = || parse(&["--kubeconfig", "admin.kubeconfig"]);
            parse(&[]).or_else(|fault| with_kubeconfig().map_err(|_second| fault))
        });
        assert!(count.unwrap_or_else(|fault| panic!("{fault}")) > 10);
    }
}
