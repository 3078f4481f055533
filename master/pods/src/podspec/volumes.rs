//! Validation of volumes: exactly one source each, unique names.

use super::context::SpecOwner;
use super::sources;
use master_schema::validate::{Faults, FieldPath, Fields, get, items, names, object, text};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};

/// Validates a volume source.
type Check = fn(&Fields, &FieldPath<'_>, &mut Faults);

/// A type of source: its field, the name that upstream gives it when it is a second source, the
/// name in paths of faults, and its validation.
struct Source {
    field: &'static str,
    second: &'static str,
    within: &'static str,
    check: Check,
}

const fn source(field: &'static str, check: Check) -> Source {
    Source {
        field,
        second: field,
        within: field,
        check,
    }
}

/// The sources, in the order in which upstream looks for the first one.
const SOURCES: &[Source] = &[
    source("emptyDir", sources::empty_dir),
    source("hostPath", sources::host_path),
    source("gitRepo", sources::git_repo),
    Source {
        // Upstream's path; the field has another name.
        within: "persistentDisk",
        ..source("gcePersistentDisk", sources::gce_disk)
    },
    source("awsElasticBlockStore", sources::aws_store),
    source("secret", sources::secret),
    source("nfs", sources::nfs),
    source("iscsi", sources::iscsi),
    source("glusterfs", sources::glusterfs),
    source("flocker", sources::flocker),
    source("persistentVolumeClaim", sources::claim),
    source("rbd", sources::rbd),
    source("cinder", sources::cinder),
    Source {
        second: "cephFS",
        ..source("cephfs", sources::cephfs)
    },
    source("quobyte", sources::quobyte),
    Source {
        // Upstream's spelling.
        second: "downwarAPI",
        ..source("downwardAPI", sources::downward)
    },
    source("fc", sources::fibre_channel),
    source("flexVolume", sources::flex),
    source("configMap", sources::config_map),
    source("azureFile", sources::azure_file),
    source("vsphereVolume", sources::vsphere),
    source("photonPersistentDisk", sources::photon),
    source("portworxVolume", sources::portworx),
    source("azureDisk", sources::azure_disk),
    source("storageos", sources::storageos),
    source("projected", sources::projected),
    source("scaleIO", sources::scale_io),
    source("csi", sources::csi),
    source("ephemeral", sources::ephemeral),
    source("image", sources::image),
];

/// Maximum length of an iSCSI portal with the volume's name, if an initiator is set.
const PORTAL: usize = 64;

/// Validates volumes and returns the valid ones, by name.
pub(super) fn validate<'a>(
    spec: &'a Fields,
    owner: SpecOwner<'_>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) -> HashMap<&'a str, &'a Fields> {
    let volumes = items(spec, "volumes");
    let made: BTreeSet<String> = volumes
        .iter()
        .filter(|volume| !owner.name.is_empty() && volume.get("ephemeral").is_some())
        .map(|volume| {
            format!(
                "{}-{}",
                owner.name,
                volume
                    .get("name")
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            )
        })
        .collect();
    let mut known = HashMap::new();
    for (number, volume) in volumes.iter().enumerate() {
        let Some(volume) = volume.as_object() else {
            continue;
        };
        let at = at.index(number);
        let before = faults.found().count();
        source_of(volume, owner, &at, faults);
        name(volume, &known, &at, faults);
        // A mount of a volume that has a fault is reported as not found, as upstream does.
        if faults.found().count() == before {
            known.insert(text(volume, "name"), volume);
        }
        let claim =
            object(volume, "persistentVolumeClaim").map_or("", |claim| text(claim, "claimName"));
        // That claim belongs to the other volume, and is made after the pod.
        if made.contains(claim) {
            let words = "must not reference a PVC that gets created for an ephemeral volume";
            let at = at.field("persistentVolumeClaim");
            faults.invalid(&at.field("claimName"), &Value::from(claim), words);
        }
    }
    known
}

fn name(volume: &Fields, known: &HashMap<&str, &Fields>, at: &FieldPath<'_>, faults: &mut Faults) {
    let name = text(volume, "name");
    master_schema::validate::forms::needed_form(volume, "name", at, names::label, faults);
    if known.contains_key(name) {
        faults.duplicate(&at.field("name"), get(volume, "name"));
    }
}

fn source_of(volume: &Fields, owner: SpecOwner<'_>, at: &FieldPath<'_>, faults: &mut Faults) {
    let mut first = None;
    for source in SOURCES {
        let Some(fields) = object(volume, source.field) else {
            continue;
        };
        if first.is_some() {
            faults.forbidden(
                &at.field(source.second),
                "may not specify more than 1 volume type",
            );
            continue;
        }
        first = Some(source.field);
        (source.check)(fields, &at.field(source.within), faults);
        // Templates may leave it to a program that fills it in (KEP-4639).
        if owner.pod && source.field == "image" {
            master_schema::validate::forms::needed(fields, "reference", &at.field("image"), faults);
        }
        claim_name(volume, source.field, owner, at, faults);
    }
    if first.is_none() {
        faults.required(at, "must specify a volume type");
    }
    if let Some(iscsi) = object(volume, "iscsi")
        && iscsi.contains_key("initiatorName")
        && text(volume, "name").len() + 1 + text(iscsi, "targetPortal").len() > PORTAL
    {
        let words = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if \
                     iscsi.initiatorName is specified.";
        faults.invalid(&at.field("name"), get(volume, "name"), words);
    }
}

/// The claim of an ephemeral volume must get a valid name.
fn claim_name(
    volume: &Fields,
    source: &str,
    owner: SpecOwner<'_>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let name = text(volume, "name");
    if source != "ephemeral" || owner.name.is_empty() || name.is_empty() {
        return;
    }
    let claim = format!("{}-{name}", owner.name);
    if let Err(fault) = names::subdomain(&claim) {
        faults.invalid(
            &at.field("name"),
            get(volume, "name"),
            format!("PVC name {claim:?}: {fault}"),
        );
    }
}
