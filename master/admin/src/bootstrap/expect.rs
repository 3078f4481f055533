//! What the admin expects of the master: read from the admin's files, in the verifier's form.

use super::BootstrapArgs;
use crate::error::{Error, Result};
use crate::key::AdminKey;
use crate::{ek, files};
use config_attest::Inventory;
use config_attest::policy::CheckedRule;
use config_attest::release::{KnownRelease, ReleaseKey};
use config_attest::verifier::Reference;
use config_certificates::EkIssuer;
use config_kube::identity::{NODE_CLIENT_SIGNER, NODE_SERVING_SIGNER};
use config_kube::machine::EkSelector;
use config_kube::policy::{CertificateRule, ConfigRule, EkRule, EventRule, ImageRule};
use config_kube::{Decides, ImageRelease, Machine, MachineSpec, PolicyName, Rule};
use config_model::{ClusterConfig, Document, MachineConfig};
use config_tpm::Digest;
use config_tpm::pcr::config_event_digest;
use p256::ecdsa::SigningKey;
use p256::pkcs8::DecodePrivateKey as _;
use std::path::Path;

/// Name of the EK issuer that is given on the command line.
const ISSUER: &str = "given";

/// What the admin expects.
#[derive(Debug)]
pub(crate) struct Expected {
    /// The cluster of the master's user-data.
    pub(crate) cluster: ClusterConfig,
    /// The master's machine.
    pub(crate) machine: Machine,
    /// The releases that the cluster shall know, the master's among them.
    pub(crate) releases: Vec<ImageRelease>,
    /// The admin's key.
    pub(crate) signing_key: SigningKey,
    /// The rule by which the master is verified.
    pub(crate) rule: CheckedRule,
    /// Its user-data lets pods be privileged.
    pub(crate) privileged: bool,
    api_names: Vec<String>,
    known: Vec<KnownRelease>,
    issuers: Vec<EkIssuer>,
    inventory: Inventory,
}

impl Expected {
    /// Reads and checks all files before the master is contacted.
    pub(crate) fn load(args: &BootstrapArgs, key: &AdminKey) -> Result<Self> {
        let bytes = files::read(&args.user_data)?;
        let (machine_config, cluster) = first_master(&args.user_data, &bytes)?;
        check_admin_key(args, &cluster, key)?;
        let digest = config_event_digest(&args.user_data_source, &bytes).to_text();
        let machine = describe(args, &machine_config, digest)?;
        let keys = args
            .release_key
            .iter()
            .map(|file| release_key(file))
            .collect::<Result<Vec<_>>>()?;
        let issuers = issuers(args.ek_issuer.as_deref(), &cluster)?;
        let releases = args
            .release
            .iter()
            .map(|file| release(file))
            .collect::<Result<Vec<_>>>()?;
        let known = known(args, &releases, &keys)?;
        let privileged = machine_config.node.privileged;
        let rule = rule(&cluster, &keys, &issuers, privileged)?;
        let signing_key = SigningKey::from_pkcs8_der(&key.der()).map_err(|e| {
            Error::input(
                "the admin's key",
                e.to_string(),
                "make one with `pratique admin-key`",
            )
        })?;
        // The verifier identifies Machines by uid; this one gets its uid from the API later.
        let mut reference = machine.clone();
        reference.metadata.uid = Some("bootstrap".to_owned());
        let inventory = Inventory::new([reference]);
        let api_names = cluster.api_names.iter().map(ToString::to_string).collect();
        Ok(Self {
            cluster,
            machine,
            releases,
            signing_key,
            rule,
            privileged,
            api_names,
            known,
            issuers,
            inventory,
        })
    }

    /// Name of the master's Machine.
    pub(crate) fn machine_name(&self) -> &str {
        self.machine.metadata.name.as_deref().unwrap_or_default()
    }

    /// The reference values, in the verifier's form.
    pub(crate) fn reference(&self) -> Reference<'_> {
        Reference {
            inventory: &self.inventory,
            rule: &self.rule,
            issuers: &self.issuers,
            releases: &self.known,
            api_names: &self.api_names,
            cluster: self.cluster.name.as_str(),
            admin_key: None,
        }
    }
}

fn first_master(path: &Path, bytes: &[u8]) -> Result<(MachineConfig, ClusterConfig)> {
    let name = path.display().to_string();
    let document =
        config_model::parse(bytes, &name).map_err(|faults| Error::Faults(faults.to_string()))?;
    let kind = document.kind();
    if let Document::Machine(machine) = document
        && let Some(cluster) = machine.cluster().cloned()
    {
        return Ok((*machine, cluster));
    }
    Err(Error::input(
        name,
        format!("a document of kind `{kind}` that founds no cluster"),
        "name the first master's user-data: a machine's document with [cluster]",
    ))
}

fn check_admin_key(args: &BootstrapArgs, cluster: &ClusterConfig, key: &AdminKey) -> Result<()> {
    let found = cluster
        .admin_key
        .map(|pin| pin.to_string())
        .unwrap_or_default();
    if found == key.hash() {
        return Ok(());
    }
    Err(Error::input(
        args.user_data.display().to_string(),
        format!(
            "cluster.admin_key is `{found}`, but the key in {} is `{}`",
            args.admin_key.display(),
            key.hash()
        ),
        "name the key whose hash is in the user-data; the master takes no other",
    ))
}

fn describe(args: &BootstrapArgs, config: &MachineConfig, digest: String) -> Result<Machine> {
    let mut hashes = args
        .ek
        .iter()
        .map(|file| ek::hash_of_file(file))
        .collect::<Result<Vec<_>>>()?;
    for text in &args.ek_hash {
        hashes.push(ek::hash_of_text(text)?);
    }
    if hashes.is_empty() {
        return Err(Error::input(
            "the master's identity",
            "neither --ek nor --ek-hash is given",
            "give the EK certificate of the master's TPM with --ek FILE: without it any machine could be the master",
        ));
    }
    let name = config
        .name
        .as_ref()
        .map_or("master-1", |name| name.as_str());
    let own = config
        .network
        .interfaces
        .iter()
        .flat_map(|interface| &interface.addresses);
    let spec = MachineSpec {
        role: "master".to_owned(),
        addresses: own.map(|cidr| cidr.address.to_string()).collect(),
        ek: EkSelector {
            hashes: hashes.iter().map(Digest::to_text).collect(),
            issuers: Vec::new(),
            ..EkSelector::default()
        },
        config_digests: vec![digest],
        ..MachineSpec::default()
    };
    Ok(Machine::named(name, spec))
}

pub(crate) fn release(path: &Path) -> Result<ImageRelease> {
    serde_json::from_str(&files::read_text(path)?).map_err(|e| {
        Error::input(
            path.display().to_string(),
            format!("not an ImageRelease: {e}"),
            "name the *.release.json of the image build",
        )
    })
}

pub(crate) fn release_key(path: &Path) -> Result<ReleaseKey> {
    let name = path
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default();
    ReleaseKey::from_pem(&name, &files::read_text(path)?).map_err(|e| {
        Error::input(
            path.display().to_string(),
            e.to_string(),
            "name the public release key (PEM) of the image build",
        )
    })
}

/// The issuers, to one of which the EK's certificate must chain: those of the file, if there is
/// one. Floors for the TPM's firmware name issuers as the cluster does. Where the cluster's own
/// rule has floors, its issuers are used, and the file must hold certificates of some of them.
fn issuers(file: Option<&Path>, cluster: &ClusterConfig) -> Result<Vec<EkIssuer>> {
    let given = file.map(issuer).transpose()?;
    let Some(rule) = own_rule(cluster).filter(|rule| !rule.ek.min_firmware.is_empty()) else {
        return Ok(given.map(|(issuer, _)| issuer).into_iter().collect());
    };
    let wanted = |name: &str, certificates: &[Vec<u8>]| {
        let meant = given
            .as_ref()
            .is_none_or(|(_, given)| given.iter().any(|der| certificates.contains(der)));
        meant && rule.ek.issuers.iter().any(|issuer| issuer == name)
    };
    let fault = |found: String, cure: &str| Error::input("the TPM's maker", found, cure);
    let named = cluster
        .ek_issuers
        .iter()
        .filter(|issuer| wanted(issuer.name.as_str(), &issuer.certificates))
        .map(|issuer| {
            EkIssuer::from_der(issuer.name.as_str(), issuer.certificates.clone())
                .map_err(|error| fault(error.to_string(), "check the user-data's [[ek_issuer]]"))
        })
        .collect::<Result<Vec<_>>>()?;
    if named.is_empty() {
        return Err(fault(
            format!(
                "none of the issuers of the rule `{}`, which sets `ek.min_firmware`",
                rule.name
            ),
            "leave --ek-issuer out, or give certificates that the user-data's [[ek_issuer]] has",
        ));
    }
    Ok(named)
}

/// An issuer of its file, with its certificates.
fn issuer(path: &Path) -> Result<(EkIssuer, Vec<Vec<u8>>)> {
    let text = files::read_text(path)?;
    let issuer = EkIssuer::from_pem(ISSUER, &text).map_err(|e| {
        Error::input(
            path.display().to_string(),
            e.to_string(),
            "name the PEM certificates of the TPM's maker",
        )
    })?;
    Ok((issuer, master_ca::certificates_of_pem(&text)))
}

/// The cluster's own rule for machines, which its user-data states.
fn own_rule(cluster: &ClusterConfig) -> Option<&Rule> {
    cluster.policy.rules.iter().find(|rule| {
        rule.policy.decides() == Decides::Verifier
            && rule.signers.iter().any(|s| s == NODE_CLIENT_SIGNER)
    })
}

/// Opens the releases; a file without a known signature is refused before anything happens.
fn known(
    args: &BootstrapArgs,
    releases: &[ImageRelease],
    keys: &[ReleaseKey],
) -> Result<Vec<KnownRelease>> {
    let mut known = Vec::new();
    for (path, object) in args.release.iter().zip(releases) {
        let subject = path.display().to_string();
        let opened = KnownRelease::open(object, keys).map_err(|e| {
            Error::input(
                &subject,
                config_errors::lines(&e),
                "name the *.release.json of the image build",
            )
        })?;
        if opened.verified_by().is_empty() {
            return Err(Error::input(
                subject,
                "none of the given release keys has signed it",
                "give the key that signed it with --release-key, or build the image with your key",
            ));
        }
        known.push(opened);
    }
    Ok(known)
}

/// The rule's setting for machines with privileged pods, so that it accepts this one.
pub(super) fn allowed(privileged: bool) -> String {
    if privileged {
        "allow".to_owned()
    } else {
        String::new()
    }
}

/// The rule by which the master is verified: what the cluster's own rule for machines asks, and in
/// any case the EK, image and user-data that the admin gave.
fn rule(
    cluster: &ClusterConfig,
    keys: &[ReleaseKey],
    issuers: &[EkIssuer],
    privileged: bool,
) -> Result<CheckedRule> {
    let own = own_rule(cluster);
    let named = |name: &String| issuers.iter().any(|issuer| issuer.name() == name);
    let floors = own.into_iter().flat_map(|rule| &rule.ek.min_firmware);
    let rule = Rule {
        name: "bootstrap".to_owned(),
        signers: vec![
            NODE_CLIENT_SIGNER.to_owned(),
            NODE_SERVING_SIGNER.to_owned(),
        ],
        policy: PolicyName::CloudVerify,
        ek: EkRule {
            issuers: issuers
                .iter()
                .map(|issuer| issuer.name().to_owned())
                .collect(),
            hashes: "inventory".to_owned(),
            require: "all".to_owned(),
            min_firmware: floors
                .filter(|(name, _)| named(name))
                .map(|(name, least)| (name.clone(), least.clone()))
                .collect(),
        },
        images: ImageRule {
            release_keys: keys.iter().map(|key| key.name().to_owned()).collect(),
            min_svn: own.map_or(0, |rule| rule.images.min_svn),
            max_concurrent: 0,
        },
        events: own.map_or(EventRule::default(), |rule| rule.events.clone()),
        config: ConfigRule {
            measured: true,
            digests: "inventory".to_owned(),
            // Without a rule of the cluster, the user-data decides, whose digest the machine must
            // have measured.
            privileged_pods: own.map_or_else(
                || allowed(privileged),
                |rule| rule.config.privileged_pods.clone(),
            ),
        },
        certificate: CertificateRule {
            roles: vec!["master".to_owned()],
            ..CertificateRule::default()
        },
        ..Rule::default()
    };
    CheckedRule::try_from(&rule)
        .map_err(|e| Error::input("the rule", e.to_string(), "check the user-data's [[rule]]"))
}
