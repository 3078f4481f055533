//! Defaults of a pod's spec; applying them twice changes nothing.

use super::{aggregate_requests, pull_policy_of};
use config_kube::Amount;
use master_schema::validate::forms::on;
use master_schema::validate::{Fields, default_to, get, items, object, object_mut, text};
use serde_json::{Map, Value, json};

/// Default grace period in seconds (upstream: `DefaultTerminationGracePeriodSeconds`).
pub(crate) const GRACE: i64 = 30;
/// Default permissions of files in volumes.
// Shown as 420: JSON has no octal numbers.
const MODE: i64 = 0o644;
/// Default lifetime of a token in seconds.
const TOKEN: i64 = 3600;

/// The objects of a list, mutable.
fn each_mut<'a>(fields: &'a mut Fields, list: &str) -> impl Iterator<Item = &'a mut Fields> {
    fields
        .get_mut(list)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
}

/// An inner object, mutable, if present.
fn inner<'a>(fields: &'a mut Fields, key: &str) -> Option<&'a mut Fields> {
    fields.get_mut(key).and_then(Value::as_object_mut)
}

/// Sets a number that is absent or zero.
fn number(fields: &mut Fields, key: &str, value: i64) {
    // Upstream's fields are plain integers, in which zero and absent are the same.
    if get(fields, key).as_i64().unwrap_or_default() == 0 {
        fields.insert(key.to_owned(), value.into());
    }
}

/// Sets defaults in a template's spec; defaults of pods only are set when the pods are created.
pub fn template(fields: &mut Fields) {
    if let Some(template) = object_mut(fields, "template") {
        default_to(template, "metadata", Value::Object(Map::new()));
        if let Some(spec) = object_mut(template, "spec") {
            of_spec(spec);
        }
    }
}

/// Sets the defaults of every spec, of pods and templates.
pub fn of_spec(spec: &mut Fields) {
    default_to(spec, "restartPolicy", "Always");
    default_to(spec, "terminationGracePeriodSeconds", GRACE);
    // Not the value `Default`, which means the node's own resolver.
    default_to(spec, "dnsPolicy", "ClusterFirst");
    default_to(spec, "schedulerName", "default-scheduler");
    default_to(spec, "securityContext", Value::Object(Map::new()));
    // The deprecated field `serviceAccount` is kept equal to `serviceAccountName`.
    let account = text(spec, "serviceAccountName").to_owned();
    let account = if account.is_empty() {
        text(spec, "serviceAccount").to_owned()
    } else {
        account
    };
    if !account.is_empty() {
        spec.insert("serviceAccount".to_owned(), account.clone().into());
        spec.insert("serviceAccountName".to_owned(), account.into());
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        each_mut(spec, list).for_each(container);
    }
    each_mut(spec, "volumes").for_each(volume);
    round_up(spec.get_mut("overhead"));
    if let Some(whole) = inner(spec, "resources") {
        needs(whole);
    }
}

/// Quantities have at most three decimals; more precise ones are rounded up.
fn round_up(list: Option<&mut Value>) {
    for value in list
        .and_then(Value::as_object_mut)
        .into_iter()
        .flat_map(|list| list.values_mut())
    {
        let Some(amount) = value.as_str().and_then(|text| text.parse::<Amount>().ok()) else {
            continue;
        };
        let rounded = Amount::milli(amount.ceil_milli());
        if rounded != amount && amount.ceil_milli() < i64::MAX {
            *value = Value::from(rounded.to_quantity().0);
        }
    }
}

fn needs(needs: &mut Fields) {
    round_up(needs.get_mut("limits"));
    round_up(needs.get_mut("requests"));
}

fn container(container: &mut Fields) {
    let policy = pull_policy_of(text(container, "image"));
    default_to(container, "imagePullPolicy", policy);
    default_to(container, "terminationMessagePath", "/dev/termination-log");
    default_to(container, "terminationMessagePolicy", "File");
    default_to(container, "resources", Value::Object(Map::new()));
    if let Some(own) = inner(container, "resources") {
        needs(own);
    }
    for port in each_mut(container, "ports") {
        default_to(port, "protocol", "TCP");
    }
    for variable in each_mut(container, "env") {
        if let Some(from) = inner(variable, "valueFrom") {
            field_version(from);
            if let Some(file) = inner(from, "fileKeyRef") {
                default_to(file, "optional", false);
            }
        }
    }
    for key in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = inner(container, key) {
            self::probe(probe);
        }
    }
    if let Some(lifecycle) = inner(container, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(hook) = inner(lifecycle, hook) {
                http(hook);
            }
        }
    }
}

/// Sets the API version of a field reference.
fn field_version(from: &mut Fields) {
    if let Some(field) = inner(from, "fieldRef") {
        default_to(field, "apiVersion", "v1");
    }
}

fn probe(probe: &mut Fields) {
    for (key, value) in [
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ] {
        number(probe, key, value);
    }
    http(probe);
    if let Some(grpc) = inner(probe, "grpc")
        && get(grpc, "service").is_null()
    {
        // The empty name asks for the health of the whole server (gRPC health checking protocol).
        grpc.insert("service".to_owned(), "".into());
    }
}

fn http(handler: &mut Fields) {
    if let Some(get) = inner(handler, "httpGet") {
        default_to(get, "path", "/");
        default_to(get, "scheme", "HTTP");
    }
}

fn volume(volume: &mut Fields) {
    if volume.keys().all(|key| key == "name") {
        volume.insert("emptyDir".to_owned(), Value::Object(Map::new()));
    }
    for source in ["configMap", "secret", "projected", "downwardAPI"] {
        if let Some(fields) = inner(volume, source) {
            default_to(fields, "defaultMode", MODE);
            each_mut(fields, "items").for_each(field_version);
        }
    }
    let others: [(&str, &[(&str, Value)]); 6] = [
        // The empty type means that nothing is checked at the path.
        ("hostPath", &[("type", json!(""))]),
        ("iscsi", &[("iscsiInterface", json!("default"))]),
        (
            "rbd",
            &[
                ("pool", json!("rbd")),
                ("user", json!("admin")),
                ("keyring", json!("/etc/ceph/keyring")),
            ],
        ),
        (
            "scaleIO",
            &[
                ("storageMode", json!("ThinProvisioned")),
                ("fsType", json!("xfs")),
            ],
        ),
        (
            "azureDisk",
            &[
                ("cachingMode", json!("ReadWrite")),
                ("fsType", json!("ext4")),
                ("readOnly", json!(false)),
                ("kind", json!("Shared")),
            ],
        ),
        ("image", &[]),
    ];
    for (source, values) in others {
        let Some(fields) = inner(volume, source) else {
            continue;
        };
        for (key, value) in values {
            default_to(fields, key, value.clone());
        }
        if source == "image" {
            let policy = pull_policy_of(text(fields, "reference"));
            default_to(fields, "pullPolicy", policy);
        }
    }
    if let Some(projected) = inner(volume, "projected") {
        each_mut(projected, "sources").for_each(projection);
    }
    if let Some(template) =
        inner(volume, "ephemeral").and_then(|source| inner(source, "volumeClaimTemplate"))
    {
        claim(template);
    }
}

fn projection(source: &mut Fields) {
    if let Some(token) = inner(source, "serviceAccountToken") {
        default_to(token, "expirationSeconds", TOKEN);
    }
    if let Some(fields) = inner(source, "downwardAPI") {
        each_mut(fields, "items").for_each(field_version);
    }
    if let Some(certificate) = inner(source, "podCertificate") {
        // KEP-4317: a day, unless the pod asks for another time.
        default_to(certificate, "maxExpirationSeconds", 24 * 3600);
    }
}

/// Sets defaults in a claim template.
pub fn claim(template: &mut Fields) {
    if let Some(spec) = inner(template, "spec") {
        default_to(spec, "volumeMode", "Filesystem");
        if let Some(own) = inner(spec, "resources") {
            needs(own);
        }
    }
}

/// Sets the defaults of pods only.
pub fn of_pod(spec: &mut Fields) {
    of_spec(spec);
    // Older versions stored negative times, and kubelets took them for the shortest one. Templates
    // keep their value.
    if get(spec, "terminationGracePeriodSeconds")
        .as_i64()
        .is_some_and(|seconds| seconds < 0)
    {
        spec.insert("terminationGracePeriodSeconds".to_owned(), 1.into());
    }
    // Compatibility with Docker links: variables for each Service of the namespace.
    default_to(spec, "enableServiceLinks", true);
    let host_network = on(spec, "hostNetwork");
    for list in ["containers", "initContainers"] {
        for container in each_mut(spec, list) {
            limits_are_requests(container);
            if host_network {
                // In the node's network each port is one of the node, and the scheduler looks at
                // `hostPort`.
                each_mut(container, "ports").for_each(|port| {
                    let own = get(port, "containerPort").as_i64().unwrap_or_default();
                    number(port, "hostPort", own);
                });
            }
        }
    }
    whole_requests(spec);
}

/// Requests default to limits.
fn limits_are_requests(container: &mut Fields) {
    let Some(needs) = inner(container, "resources") else {
        return;
    };
    // Else a container that names limits alone would be scheduled as if it needed nothing.
    let Some(limits) = object(needs, "limits").cloned() else {
        return;
    };
    if let Some(requests) = object_mut(needs, "requests") {
        for (name, limit) in limits {
            requests.entry(name).or_insert(limit);
        }
    }
}

/// If the pod has limits, its requests default to those of its containers, or else to the limits.
fn whole_requests(spec: &mut Fields) {
    let limits = object(spec, "resources")
        .and_then(|needs| object(needs, "limits"))
        .cloned()
        .unwrap_or_default();
    if limits.is_empty() {
        return;
    }
    // KEP-2837: what the pod may have as a whole covers its containers.
    let requested = aggregate_requests(spec);
    let shown = |name: &str, amount: Amount| {
        // If one container requests this amount, its notation is kept.
        let same = |container: &Value| {
            let value = container.pointer("/resources/requests")?.get(name)?;
            (value.as_str()?.parse::<Amount>().ok()? == amount).then(|| value.clone())
        };
        items(spec, "containers")
            .iter()
            .find_map(same)
            .unwrap_or_else(|| Value::from(amount.to_quantity().0))
    };
    let of_containers: Vec<(String, Value)> = requested
        .iter()
        .filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory"))
        .map(|(name, amount)| (name.clone(), shown(name, *amount)))
        .collect();
    let Some(requests) = inner(spec, "resources").and_then(|needs| object_mut(needs, "requests"))
    else {
        return;
    };
    for (name, value) in of_containers.into_iter().chain(limits) {
        requests.entry(name).or_insert(value);
    }
}
