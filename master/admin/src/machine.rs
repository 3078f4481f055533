//! `pratique machine`: a line of the inventory, as a manifest for kubectl.

use crate::ek;
use crate::error::{Error, Result};
use crate::files;
use config_kube::machine::EkSelector;
use config_kube::{Machine, MachineSpec};
use config_model::Document;
use config_model::machine::USER_DATA_SOURCES;
use config_tpm::Digest;
use config_tpm::pcr::config_event_digest;
use std::path::{Path, PathBuf};

/// A machine's description.
#[derive(Debug, clap::Args)]
pub(crate) struct MachineArgs {
    /// Name of the Machine and of its Node.
    #[arg(long)]
    name: String,
    /// Role: worker or master; its image must have the same role.
    #[arg(long, default_value = "worker", value_parser = ["worker", "master"])]
    role: String,
    /// File with an endorsement key: its certificate, public key or TPM public area. Repeat for
    /// each that the TPM has.
    #[arg(long, value_name = "FILE")]
    ek: Vec<PathBuf>,
    /// Hash of an endorsement key, instead of a file.
    #[arg(long, value_name = "sha256:HEX")]
    ek_hash: Vec<String>,
    /// Name of an EK issuer of the cluster's configuration.
    #[arg(long, value_name = "NAME")]
    ek_issuer: Vec<String>,
    /// The machine has no TPM and can prove nothing: it joins only by a rule with
    /// `insecure_no_tpm = true`.
    #[arg(long, conflicts_with_all = ["ek", "ek_hash", "ek_issuer", "user_data"])]
    insecure_no_tpm: bool,
    /// The exact user-data that it boots with. Repeat to allow more than one.
    #[arg(long, value_name = "FILE")]
    user_data: Vec<PathBuf>,
    /// The source of the machine's user-data.
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
    let mut hashes = args
        .ek
        .iter()
        .map(|file| ek::hash_of_file(file))
        .collect::<Result<Vec<_>>>()?;
    for text in &args.ek_hash {
        hashes.push(ek::hash_of_text(text)?);
    }
    if args.insecure_no_tpm && args.role != "worker" {
        return Err(Error::input(
            format!("--role {}", args.role),
            "a master without a TPM",
            "a master keeps the cluster's keys in its TPM; name --role worker, or a machine that has one",
        ));
    }
    if hashes.is_empty() && args.ek_issuer.is_empty() && !args.insecure_no_tpm {
        return Err(Error::input(
            "the machine's identity",
            "none of --ek, --ek-hash and --ek-issuer is given",
            "give the machine's EK certificate with --ek FILE, or say that it has no TPM with --insecure-no-tpm",
        ));
    }
    let digests = args
        .user_data
        .iter()
        .map(|file| digest(&args.source, file))
        .collect::<Result<Vec<_>>>()?;
    let spec = MachineSpec {
        role: args.role.clone(),
        addresses: args.address.clone(),
        ek: EkSelector {
            hashes: hashes.iter().map(Digest::to_text).collect(),
            issuers: args.ek_issuer.clone(),
            ..EkSelector::default()
        },
        config_digests: digests,
        insecure_no_tpm: args.insecure_no_tpm,
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory as _, FromArgMatches as _, Parser};

    #[derive(Debug, Parser)]
    struct Words {
        #[command(flatten)]
        machine: MachineArgs,
    }

    fn described(words: &[&str]) -> std::result::Result<Machine, String> {
        let matches = Words::command().try_get_matches_from([&["machine"], words].concat());
        let words = matches
            .and_then(|matches| Words::from_arg_matches(&matches))
            .map_err(|fault| fault.to_string())?;
        describe(&words.machine).map_err(|fault| fault.to_string())
    }

    #[test]
    fn a_machine_without_a_tpm_has_no_fields_of_a_tpm() {
        let machine = described(&["--name", "edge-1", "--insecure-no-tpm"]).unwrap();
        assert!(machine.spec.insecure_no_tpm && machine.spec.ek == EkSelector::default());
        let hash = format!("sha256:{}", "0a".repeat(32));
        assert!(
            described(&["--name", "edge-1"])
                .unwrap_err()
                .contains("--insecure-no-tpm")
        );
        assert!(described(&["--name", "edge-1", "--insecure-no-tpm", "--ek-hash", &hash]).is_err());
        assert!(described(&["--name", "edge-1", "--insecure-no-tpm", "--role", "master"]).is_err());
        assert!(
            !described(&["--name", "edge-1", "--ek-hash", &hash])
                .unwrap()
                .spec
                .insecure_no_tpm
        );
    }
}
