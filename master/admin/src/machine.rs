//! `pratique machine`: a line of the inventory, as a manifest for kubectl.

use crate::ek;
use crate::error::{Error, Result};
use crate::files;
use config_attest::Digest;
use config_attest::pcr::config_event_digest;
use config_kube::machine::EkSelector;
use config_kube::{Machine, MachineSpec};
use config_model::Document;
use config_model::machine::USER_DATA_SOURCES;
use std::path::{Path, PathBuf};

/// What describes a machine.
#[derive(Debug, clap::Args)]
pub(crate) struct MachineArgs {
    /// Name of the Machine and of its Node.
    #[arg(long)]
    name: String,
    /// What it may become: worker or master; its image must have the same role.
    #[arg(long, default_value = "worker", value_parser = ["worker", "master"])]
    role: String,
    /// File with an endorsement key: its certificate, public key or TPM public area. Repeat for each that the TPM has.
    #[arg(long, value_name = "FILE")]
    ek: Vec<PathBuf>,
    /// Hash of an endorsement key, instead of a file.
    #[arg(long, value_name = "sha256:HEX")]
    ek_hash: Vec<String>,
    /// Name of an EK issuer of the cluster's configuration.
    #[arg(long, value_name = "NAME")]
    ek_issuer: Vec<String>,
    /// The exact user-data that it boots with. Repeat to allow more than one.
    #[arg(long, value_name = "FILE")]
    user_data: Vec<PathBuf>,
    /// Where the machine finds its user-data.
    #[arg(long, default_value = "nocloud", value_parser = USER_DATA_SOURCES)]
    source: String,
    /// IP address or DNS name that its serving certificate may carry. Repeat for more.
    #[arg(long)]
    address: Vec<String>,
}

/// Prints the manifest.
pub(crate) fn run(args: &MachineArgs) -> Result<()> {
    let manifest = serde_yaml_ng::to_string(&describe(args)?)
        .map_err(|e| Error::input("the manifest", e.to_string(), "report this"))?;
    files::say(manifest.trim_end());
    Ok(())
}

fn describe(args: &MachineArgs) -> Result<Machine> {
    if !master_ca::profile::is_dns_name(&args.name) {
        return Err(Error::input(
            format!("--name {}", args.name),
            "not a name for a node",
            "use lower-case letters, digits and `-`",
        ));
    }
    let mut hashes = args.ek.iter().map(|file| ek::hash_of_file(file)).collect::<Result<Vec<_>>>()?;
    for text in &args.ek_hash {
        hashes.push(ek::hash_of_text(text)?);
    }
    if hashes.is_empty() && args.ek_issuer.is_empty() {
        return Err(Error::input(
            "the machine's identity",
            "none of --ek, --ek-hash and --ek-issuer is given",
            "give the machine's EK certificate with --ek FILE",
        ));
    }
    let digests = args.user_data.iter().map(|file| digest(&args.source, file)).collect::<Result<Vec<_>>>()?;
    let spec = MachineSpec {
        role: args.role.clone(),
        addresses: args.address.clone(),
        ek: EkSelector {
            hashes: hashes.iter().map(Digest::to_text).collect(),
            issuers: args.ek_issuer.clone(),
            ..EkSelector::default()
        },
        config_digests: digests,
        ..MachineSpec::default()
    };
    Ok(Machine::named(&args.name, spec))
}

/// Digest of the configuration event of a file, which must be a machine's document.
pub(crate) fn digest(source: &str, file: &Path) -> Result<String> {
    let bytes = files::read(file)?;
    match config_model::parse(&bytes, &file.display().to_string()) {
        Ok(Document::Machine(_)) => Ok(config_event_digest(source, &bytes).to_text()),
        Ok(other) => Err(Error::input(
            file.display().to_string(),
            format!("a document of kind `{}`", other.kind()),
            "name the machine's user-data",
        )),
        Err(faults) => Err(Error::Faults(faults.to_string())),
    }
}
