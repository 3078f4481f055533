//! Upstream's own fixtures (every field of every kind, as JSON and as YAML) survive a round trip.

use master_kinds::builtin;
use master_schema::decode;
use master_schema::registry::{Kind, Registry};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Kinds whose version is newer than the fixtures' release (1.32): read from the fixture of the
/// previous version, which has the same fields, or skipped if it has others.
const YOUNGER: &[(&str, &str)] = &[
    (
        "admissionregistration.k8s.io.v1.MutatingAdmissionPolicy",
        "v1alpha1",
    ),
    (
        "admissionregistration.k8s.io.v1.MutatingAdmissionPolicyBinding",
        "v1alpha1",
    ),
    ("networking.k8s.io.v1.IPAddress", "v1beta1"),
    ("networking.k8s.io.v1.ServiceCIDR", "v1beta1"),
    ("resource.k8s.io.v1.DeviceClass", ""),
    ("resource.k8s.io.v1.ResourceClaim", ""),
    ("resource.k8s.io.v1.ResourceClaimTemplate", ""),
    ("resource.k8s.io.v1.ResourceSlice", ""),
    ("storage.k8s.io.v1.VolumeAttributesClass", "v1beta1"),
];

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../.pratique/tools/root/usr/share/gocode/src/k8s.io/api/testdata/HEAD");
    assert!(
        folder.is_dir(),
        "upstream's fixtures are not at {}: `cargo xtask tools` unpacks them (package golang-k8s-api-dev)",
        folder.display()
    );
    folder
}

fn stem(kind: &Kind, version: &str) -> String {
    let group = if kind.group.is_empty() {
        "core"
    } else {
        &kind.group
    };
    format!("{group}.{version}.{}", kind.kind)
}

/// A null field means an absent one; stored objects have no nulls.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The kinds of upstream's `k8s.io/api`, from which the fixtures are.
fn kinds() -> Registry {
    let others = [
        "pratique.dev",
        "metrics.k8s.io",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
    ];
    let upstream = builtin::all()
        .into_iter()
        .filter(|kind| !others.contains(&kind.group.as_str()));
    Registry::new(upstream.collect())
}

#[test]
fn every_fixture_is_read_whole_and_written_the_same() {
    let (folder, registry) = (folder(), kinds());
    let (mut faults, mut younger) = (Vec::new(), Vec::new());
    for kind in registry.kinds() {
        let mut stem = stem(kind, &kind.version);
        if !folder.join(format!("{stem}.json")).exists() {
            let known = YOUNGER.iter().find(|(known, _)| *known == stem);
            younger.push(stem);
            let Some((_, version)) = known.filter(|(_, version)| !version.is_empty()) else {
                continue;
            };
            stem = self::stem(kind, version);
        }
        let json = std::fs::read(folder.join(format!("{stem}.json"))).unwrap();
        let yaml = std::fs::read(folder.join(format!("{stem}.yaml"))).unwrap();
        let mut original = decode::json(&json).unwrap().value;
        if decode::yaml(&yaml).unwrap().value != original {
            faults.push(format!("{stem}: YAML and JSON are read differently"));
        }
        let mut fields = original.as_object().cloned().unwrap();
        let checked = registry.schemas().check(kind.source.name(), &mut fields);
        faults.extend(checked.wrong.iter().map(|wrong| format!("{stem}: {wrong}")));
        faults.extend(
            checked
                .unknown
                .iter()
                .map(|unknown| format!("{stem}: {unknown} is not known")),
        );
        without_nulls(&mut original);
        let written = serde_json::to_vec(&fields).unwrap();
        if decode::json(&written).unwrap().value != original {
            faults.push(format!("{stem}: what is written is not what was read"));
        }
    }
    assert_eq!(faults, Vec::<String>::new());
    assert_eq!(
        younger,
        YOUNGER.iter().map(|(stem, _)| *stem).collect::<Vec<_>>(),
        "kinds without a fixture"
    );
}
