//! Validation of volume sources.

mod keys;
mod projected;

pub(super) use keys::{field_selector, resource_selector};
pub(super) use projected::{downward, projected};

use config_kube::Amount;
use master_schema::validate::forms::{
    POSITIVE, choice, descending_path, file_mode, has, needed, needed_form, no_backsteps, number,
    on, optional_choice, optional_form, within, word,
};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, labels, names, object, text};
use serde_json::Value;

pub(super) fn empty_dir(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let limit = text(source, "sizeLimit").parse::<Amount>();
    if limit.is_ok_and(|limit| limit < Amount::ZERO) {
        faults.forbidden(
            &at.field("sizeLimit"),
            "SizeLimit field must be a valid resource quantity",
        );
    }
}

pub(super) fn host_path(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(source, "path", at, faults);
    if text(source, "path").is_empty() {
        return;
    }
    no_backsteps(get(source, "path"), &at.field("path"), faults);
    let kinds = [
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    optional_choice(source, "type", at, &kinds, faults);
}

pub(super) fn git_repo(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(source, "repository", at, faults);
    descending_path(get(source, "directory"), &at.field("directory"), faults);
}

pub(super) fn gce_disk(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(source, "pdName", at, faults);
    partition(source, at, faults);
}

pub(super) fn aws_store(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(source, "volumeID", at, faults);
    partition(source, at, faults);
}

/// Partition 0 means none; upstream's text says that partitions begin at 1.
fn partition(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    if !(0..=255).contains(&number(source, "partition")) {
        faults.invalid(
            &at.field("partition"),
            get(source, "partition"),
            "must be between 1 and 255, inclusive",
        );
    }
}

pub(super) fn secret(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(source, "secretName", at, faults);
    file_mode(source, "defaultMode", at, faults);
    keys::paths(source, at, faults);
}

pub(super) fn config_map(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(source, "name", at, faults);
    file_mode(source, "defaultMode", at, faults);
    keys::paths(source, at, faults);
}

pub(super) fn nfs(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(source, "server", at, faults);
    needed(source, "path", at, faults);
    if !text(source, "path").starts_with('/') {
        faults.invalid(
            &at.field("path"),
            word(source, "path"),
            "must be an absolute path",
        );
    }
}

pub(super) fn iscsi(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(source, "targetPortal", at, faults);
    needed(source, "iqn", at, faults);
    if !text(source, "iqn").is_empty() {
        initiator(get(source, "iqn"), &at.field("iqn"), faults);
    }
    within(source, "lun", at, 0, 255, faults);
    if (on(source, "chapAuthDiscovery") || on(source, "chapAuthSession"))
        && !has(source, "secretRef")
    {
        faults.required(&at.field("secretRef"), "");
    }
    if has(source, "initiatorName") {
        initiator(
            get(source, "initiatorName"),
            // Upstream's spelling of the path.
            &at.field("initiatorname"),
            faults,
        );
    }
}

/// Initiator names: `iqn.2001-04.com.example:storage`, `eui.` and `naa.` with 16 and 32 characters.
fn initiator(value: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    let name = value.as_str().unwrap_or_default();
    let plain = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    // Upstream's patterns accept any character after the three letters.
    let rest = name
        .char_indices()
        .nth(4)
        .map_or("", |(start, _)| &name[start..]);
    let good = match name.get(..3) {
        Some("iqn") => is_iqn(name),
        Some("eui") => plain(rest, 16),
        Some("naa") => plain(rest, 32),
        Some(_) | None => {
            faults.invalid(
                at,
                value,
                "must be valid format starting with iqn, eui, or naa",
            );
            return;
        }
    };
    if !good {
        faults.invalid(at, value, "must be valid format");
    }
}

fn is_iqn(name: &str) -> bool {
    let Some((authority, own)) = name
        .strip_prefix("iqn.")
        .and_then(|rest| rest.split_once(':'))
    else {
        return false;
    };
    let Some((date, domain)) = authority.split_once('.') else {
        return false;
    };
    let digits = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|b| b.is_ascii_digit())
    };
    let dated = date
        .split_once('-')
        .is_some_and(|(year, month)| digits(year, 4) && digits(month, 2));
    let named = !domain.is_empty()
        && domain
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'));
    let free =
        |c: char| !matches!(c, ',' | ';' | '*' | '&' | '$' | '|') && !c.is_ascii_whitespace();
    dated && named && !own.is_empty() && own.chars().all(free)
}

pub(super) fn glusterfs(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(source, "endpoints", at, faults);
    needed(source, "path", at, faults);
}

pub(super) fn flocker(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let (name, id) = (text(source, "datasetName"), text(source, "datasetUUID"));
    if name.is_empty() && id.is_empty() {
        faults.required(at, "one of datasetName and datasetUUID is required");
    }
    if !name.is_empty() && !id.is_empty() {
        let words = "datasetName and datasetUUID can not be specified simultaneously";
        faults.invalid(at, &Value::from("resource"), words);
    }
    if name.contains('/') {
        faults.invalid(
            &at.field("datasetName"),
            get(source, "datasetName"),
            "must not contain '/'",
        );
    }
}

pub(super) fn claim(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(source, "claimName", at, faults);
}

pub(super) fn rbd(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    if items(source, "monitors").is_empty() {
        faults.required(&at.field("monitors"), "");
    }
    needed(source, "image", at, faults);
}

pub(super) fn cinder(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(source, "volumeID", at, faults);
    secret_ref(source, at, faults);
}

fn secret_ref(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    if let Some(secret) = object(source, "secretRef") {
        needed(secret, "name", &at.field("secretRef"), faults);
    }
}

pub(super) fn cephfs(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    if items(source, "monitors").is_empty() {
        faults.required(&at.field("monitors"), "");
    }
}

pub(super) fn quobyte(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let words = "must be a host:port pair or multiple pairs separated by commas";
    let registry = text(source, "registry");
    if registry.is_empty() {
        faults.required(&at.field("registry"), words);
    } else if text(source, "tenant").len() >= 65 {
        faults.required(
            &at.field("tenant"),
            "must be a UUID and may not exceed a length of 64 characters",
        );
    } else {
        // Upstream shows the whole list once for each pair that is wrong.
        for _bad in registry.split(',').filter(|pair| !is_pair(pair)) {
            faults.invalid(&at.field("registry"), get(source, "registry"), words);
        }
    }
    needed(source, "volume", at, faults);
}

/// Host and port; an IPv6 address is in brackets.
fn is_pair(pair: &str) -> bool {
    let Some((host, _port)) = pair.rsplit_once(':') else {
        return false;
    };
    !host.contains(':') || (host.starts_with('[') && host.ends_with(']'))
}

pub(super) fn fibre_channel(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let (targets, ids) = (items(source, "targetWWNs"), items(source, "wwids"));
    if targets.is_empty() && ids.is_empty() {
        faults.required(
            &at.field("targetWWNs"),
            "must specify either targetWWNs or wwids, but not both",
        );
    }
    if !targets.is_empty() && !ids.is_empty() {
        let words = "targetWWNs and wwids can not be specified simultaneously";
        faults.invalid(&at.field("targetWWNs"), get(source, "targetWWNs"), words);
    }
    if !targets.is_empty() {
        if !has(source, "lun") {
            faults.required(
                &at.field("lun"),
                "lun is required if targetWWNs is specified",
            );
        }
        within(source, "lun", at, 0, 255, faults);
    }
}

pub(super) fn flex(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(source, "driver", at, faults);
    for key in object(source, "options")
        .into_iter()
        .flat_map(serde_json::Map::keys)
    {
        let space = key
            .split_once('/')
            .map_or(key.as_str(), |(space, _)| space)
            .to_lowercase();
        let reserved = |suffix: &str| space == suffix || space.ends_with(&format!(".{suffix}"));
        if reserved("kubernetes.io") || reserved("k8s.io") {
            let words = "kubernetes.io and k8s.io namespaces are reserved";
            faults.invalid(
                &at.field("options").key(key),
                &Value::from(key.as_str()),
                words,
            );
        }
    }
}

pub(super) fn azure_file(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(source, "secretName", at, faults);
    needed(source, "shareName", at, faults);
}

pub(super) fn vsphere(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(source, "volumePath", at, faults);
}

pub(super) fn photon(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(source, "pdID", at, faults);
}

pub(super) fn portworx(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(source, "volumeID", at, faults);
}

pub(super) fn azure_disk(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(source, "diskName", at, faults);
    needed(source, "diskURI", at, faults);
    optional_choice(
        source,
        "cachingMode",
        at,
        &["None", "ReadOnly", "ReadWrite"],
        faults,
    );
    optional_choice(
        source,
        "kind",
        at,
        &["Dedicated", "Managed", "Shared"],
        faults,
    );
    let uri = text(source, "diskURI");
    match text(source, "kind") {
        "Managed" if !uri.starts_with("/subscriptions/") => {
            let form = "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
            faults.unsupported(&at.field("diskURI"), word(source, "diskURI"), &[form]);
        }
        "" | "Managed" => {}
        _ if !uri.starts_with("https://") => {
            let form =
                "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
            faults.unsupported(&at.field("diskURI"), word(source, "diskURI"), &[form]);
        }
        _ => {}
    }
}

pub(super) fn storageos(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed_form(source, "volumeName", at, names::label, faults);
    optional_form(source, "volumeNamespace", at, names::label, faults);
    secret_ref(source, at, faults);
}

pub(super) fn scale_io(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    for key in ["gateway", "system", "volumeName"] {
        needed(source, key, at, faults);
    }
}

/// Maximum length of a CSI driver's name.
const DRIVER: usize = 63;

pub(super) fn csi(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let driver = text(source, "driver");
    needed(source, "driver", at, faults);
    if driver.len() > DRIVER {
        faults.too_long(&at.field("driver"), DRIVER);
    }
    // Its case does not matter (upstream's `ValidateCSIDriverName`).
    if let Err(fault) = names::subdomain(&driver.to_lowercase()) {
        faults.invalid(&at.field("driver"), word(source, "driver"), fault);
    }
    let Some(secret) = object(source, "nodePublishSecretRef") else {
        return;
    };
    if text(secret, "name").is_empty() {
        faults.required(&at.field("nodePublishSecretRef").field("name"), "");
    } else {
        optional_form(secret, "name", at, names::subdomain, faults);
    }
}

/// A claim template's metadata may have labels and annotations only.
pub(super) fn ephemeral(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let at = at.field("volumeClaimTemplate");
    let Some(template) = object(source, "volumeClaimTemplate") else {
        faults.required(&at, "");
        return;
    };
    let place = at.field("metadata");
    if let Some(metadata) = object(template, "metadata") {
        labels::annotations(
            object(metadata, "annotations"),
            &place.field("annotations"),
            faults,
        );
        labels::labels(object(metadata, "labels"), &place.field("labels"), faults);
        for key in metadata
            .keys()
            .filter(|key| !matches!(key.as_str(), "annotations" | "labels" | "creationTimestamp"))
        {
            faults.forbidden(&place.field(key), "cannot be set");
        }
    }
    claim_spec(
        object(template, "spec").unwrap_or(super::context::no_fields()),
        &at.field("spec"),
        faults,
    );
}

/// Validates the spec of a claim template.
fn claim_spec(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let modes = items(spec, "accessModes");
    if modes.is_empty() {
        faults.required(
            &at.field("accessModes"),
            "at least 1 access mode is required",
        );
    }
    let supported = [
        "ReadOnlyMany",
        "ReadWriteMany",
        "ReadWriteOnce",
        "ReadWriteOncePod",
    ];
    for mode in modes {
        faults.one_of(&at.field("accessModes"), mode, &supported);
    }
    if modes.iter().any(|mode| mode == "ReadWriteOncePod")
        && modes.iter().any(|mode| {
            mode.as_str()
                .is_some_and(|mode| supported[..3].contains(&mode))
        })
    {
        faults.forbidden(
            &at.field("accessModes"),
            "may not use ReadWriteOncePod with other access modes",
        );
    }
    labels::selector(object(spec, "selector"), &at.field("selector"), faults);
    let storage = spec
        .get("resources")
        .and_then(|resources| resources.pointer("/requests/storage"));
    let place = at.field("resources");
    let place = place.key("storage");
    match storage {
        None => faults.required(&place, ""),
        Some(requested) => {
            let found = requested
                .as_str()
                .and_then(|text| text.parse::<Amount>().ok())
                .unwrap_or(Amount::ZERO);
            if found <= Amount::ZERO {
                faults.invalid(&place, requested, POSITIVE);
            }
        }
    }
    optional_form(spec, "storageClassName", at, names::subdomain, faults);
    optional_form(
        spec,
        "volumeAttributesClassName",
        at,
        names::subdomain,
        faults,
    );
    optional_choice(spec, "volumeMode", at, &["Block", "Filesystem"], faults);
    for key in ["dataSource", "dataSourceRef"] {
        if let Some(source) = object(spec, key) {
            data_source(source, &at.field(key), faults);
        }
    }
}

fn data_source(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(source, "name", at, faults);
    needed(source, "kind", at, faults);
    // Snapshots have a group of their own; in the core group a claim is all that can be copied.
    if text(source, "apiGroup").is_empty() && text(source, "kind") != "PersistentVolumeClaim" {
        let words = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        faults.invalid(at, word(source, "kind"), words);
    }
    optional_form(source, "apiGroup", at, names::subdomain, faults);
    optional_form(source, "namespace", at, names::label, faults);
}

pub(super) fn image(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    choice(
        source,
        "pullPolicy",
        at,
        &["Always", "IfNotPresent", "Never"],
        faults,
    );
}

/// Whether a volume of a pod requests a token for an audience.
pub fn requests_token_for(pod_spec: &Fields, audience: &str) -> bool {
    let sources = items(pod_spec, "volumes")
        .iter()
        .filter_map(|volume| volume.pointer("/projected/sources"));
    let mut named = sources
        .filter_map(Value::as_array)
        .flatten()
        .filter_map(|one| one.pointer("/serviceAccountToken"));
    named.any(|one| {
        one.get("audience")
            .and_then(Value::as_str)
            .unwrap_or_default()
            == audience
    })
}
