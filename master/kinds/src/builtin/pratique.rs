//! The kinds of this project.

use config_kube::{CertificatePolicy, ImageRelease, Machine, NodeAttestation, PolicyName};
use master_schema::cells::{AGE, at};
use master_schema::registry::{Kind, Strategy, Subresource, column, integer, selectable, wide};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, object, text};
use serde_json::Value;

/// All kinds of this project.
pub(super) fn all() -> Vec<Kind> {
    vec![
        machine(),
        image_release(),
        node_attestation(),
        certificate_policy(),
    ]
}

/// Common to all: a status subresource without metadata, and generations.
fn own(kind: Kind) -> Kind {
    let strategy = Strategy {
        status_carries_metadata: false,
        generation: true,
        ..kind.strategy
    };
    Kind {
        subresources: vec![Subresource::Status],
        strategy,
        ..kind
    }
}

fn machine() -> Kind {
    own(Kind {
        columns: vec![
            column("State", |fields, _| machine_state(fields).into()),
            column("Role", |fields, _| at(fields, "spec", "/role").into()),
            column("Node", |fields, _| machine_node(fields).into()),
            column("Image", |fields, _| {
                at(fields, "status", "/image/id").into()
            }),
            column("Reason", |fields, _| {
                none_is_empty(at(fields, "status", "/reason")).into()
            }),
            column("Last Proof", |fields, now| last_proof(fields, now).into()),
            AGE,
            wide("Privileged", |fields, _| {
                none_is_empty(at(fields, "status", "/privilegedPods")).into()
            }),
            wide("Config", |fields, _| {
                at(fields, "status", "/config/digest").into()
            }),
            wide("Certificate", |fields, _| {
                at(fields, "status", "/certificate/serial").into()
            }),
            wide("Expires", |fields, _| {
                at(fields, "status", "/certificate/notAfter").into()
            }),
        ],
        strategy: Strategy {
            validate: machine_spec,
            ..Strategy::default()
        },
        ..Kind::of::<Machine>(false)
    })
}

fn none_is_empty(text: &str) -> &str {
    if text == "<none>" { "" } else { text }
}

fn machine_state(fields: &Fields) -> String {
    let is_on = |flag: &str| {
        object(fields, "spec").is_some_and(|spec| get(spec, flag) == &Value::Bool(true))
    };
    if is_on("retired") {
        return "Retired".to_owned();
    }
    match at(fields, "status", "/state") {
        // A static machine proves nothing, so no proof is pending.
        "<none>" | "Pending" if is_on("static") => "Static".to_owned(),
        "<none>" => "Pending".to_owned(),
        state => state.to_owned(),
    }
}

fn machine_node(fields: &Fields) -> String {
    match at(fields, "spec", "/nodeName") {
        "<none>" => master_schema::object::meta_text(fields, "name").to_owned(),
        name => name.to_owned(),
    }
}

fn last_proof(fields: &Fields, now: jiff::Timestamp) -> String {
    if machine_state(fields) == "Unproven" {
        return "none".to_owned();
    }
    match at(fields, "status", "/lastAttestation") {
        "<none>" => "never".to_owned(),
        time => master_schema::cells::since(time, now),
    }
}

/// `sha256:` and 64 hexadecimal digits.
fn digest(at: &FieldPath<'_>, value: &Value, faults: &mut Faults) {
    let hex = value.as_str().and_then(|text| text.strip_prefix("sha256:"));
    if !hex.is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    }) {
        faults.invalid(
            at,
            value,
            "must be \"sha256:\" followed by 64 lower-case hexadecimal digits",
        );
    }
}

fn machine_spec(fields: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("spec");
    let Some(spec) = object(fields, "spec") else {
        faults.required(&at, "");
        return;
    };
    faults.one_of(&at.field("role"), get(spec, "role"), &["worker", "master"]);
    if let Some(name) = get(spec, "nodeName").as_str()
        && let Err(fault) = master_schema::validate::names::subdomain(name)
    {
        faults.invalid(&at.field("nodeName"), get(spec, "nodeName"), fault);
    }
    let place = at.field("ek");
    if let Some(ek) = object(spec, "ek") {
        let hashes = place.field("hashes");
        for (number, hash) in items(ek, "hashes").iter().enumerate() {
            digest(&hashes.index(number), hash, faults);
        }
    }
    if get(spec, "insecureNoTpm") == &Value::Bool(true) {
        without_tpm(&at, spec, faults);
    }
    let digests = at.field("configDigests");
    for (number, value) in items(spec, "configDigests").iter().enumerate() {
        digest(&digests.index(number), value, faults);
    }
}

/// A machine without a TPM must not have fields that come from a TPM.
fn without_tpm(at: &FieldPath<'_>, spec: &Fields, faults: &mut Faults) {
    const FAULT: &str = "must not be set beside insecureNoTpm: a machine that has an endorsement key joins by its proof and in \
                         no other way; take insecureNoTpm out, or make the machine without a TPM another Machine";
    for list in ["hashes", "issuers", "seen"] {
        if object(spec, "ek").is_some_and(|ek| !items(ek, list).is_empty()) {
            faults.invalid(&at.field("ek").field(list), get(spec, "ek"), FAULT);
        }
    }
    if get(spec, "static") == &Value::Bool(true) {
        faults.invalid(&at.field("static"), get(spec, "static"), FAULT);
    }
    if get(spec, "role").as_str() == Some("master") {
        let fault =
            "must be worker with insecureNoTpm: a master keeps the cluster's keys in its TPM";
        faults.invalid(&at.field("role"), get(spec, "role"), fault);
    }
}

fn image_release() -> Kind {
    own(Kind {
        columns: vec![
            column("Role", |fields, _| at(fields, "status", "/role").into()),
            integer("SVN", |fields, _| {
                fields
                    .get("status")
                    .and_then(|status| status.get("svn"))
                    .cloned()
                    .unwrap_or_default()
            }),
            column("Verified By", |fields, _| verified_by(fields).into()),
            column("Fault", |fields, _| {
                none_is_empty(at(fields, "status", "/fault")).into()
            }),
            AGE,
        ],
        strategy: Strategy {
            validate: release_spec,
            ..Strategy::default()
        },
        ..Kind::of::<ImageRelease>(false)
    })
}

fn verified_by(fields: &Fields) -> String {
    let names = object(fields, "status").map_or(&[][..], |status| items(status, "verifiedBy"));
    let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
    if names.is_empty() {
        "<none>".to_owned()
    } else {
        names.join(",")
    }
}

fn release_spec(fields: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("spec");
    let manifest = object(fields, "spec").map_or("", |spec| text(spec, "manifest"));
    if manifest.is_empty() {
        faults.required(&at.field("manifest"), "the signed text of the release");
    }
}

fn node_attestation() -> Kind {
    own(Kind {
        columns: vec![
            column("Verdict", |fields, _| {
                at(fields, "status", "/verdict").into()
            }),
            column("Code", |fields, _| {
                none_is_empty(at(fields, "status", "/code")).into()
            }),
            column("Machine", |fields, _| {
                at(fields, "status", "/machine").into()
            }),
            column("Claimed", |fields, _| {
                at(fields, "spec", "/claims/name").into()
            }),
            column("Remote", |fields, _| at(fields, "spec", "/remote").into()),
            AGE,
            wide("EK", |fields, _| at(fields, "spec", "/ekHash").into()),
            wide("Message", |fields, _| {
                none_is_empty(at(fields, "status", "/message")).into()
            }),
        ],
        selectable: vec![
            selectable("spec.ekHash", "/spec/ekHash"),
            selectable("status.verdict", "/status/verdict"),
            selectable("status.machine", "/status/machine"),
        ],
        ..Kind::of::<NodeAttestation>(false)
    })
}

fn certificate_policy() -> Kind {
    own(Kind {
        columns: vec![
            column("Use", |fields, _| usage(fields).into()),
            column("Rules", |fields, _| rules(fields).into()),
            column("Faults", |fields, _| faults_of(fields).into()),
            AGE,
        ],
        strategy: Strategy {
            validate: policy_spec,
            ..Strategy::default()
        },
        ..Kind::of::<CertificatePolicy>(false)
    })
}

fn usage(fields: &Fields) -> &'static str {
    let decides =
        master_schema::object::meta_text(fields, "name") == config_kube::policy::POLICY_NAME;
    if decides { "Decides" } else { "Draft" }
}

fn rules(fields: &Fields) -> String {
    let rules = object(fields, "spec").map_or(&[][..], |spec| items(spec, "rules"));
    let names: Vec<&str> = rules
        .iter()
        .filter_map(|rule| rule.get("name")?.as_str())
        .collect();
    names.join(",")
}

fn faults_of(fields: &Fields) -> String {
    let faults = object(fields, "status").map_or(&[][..], |status| items(status, "faults"));
    let faults: Vec<&str> = faults.iter().filter_map(Value::as_str).collect();
    faults.join("; ")
}

/// Reports the same faults as `pratique check` for the same policy document, all at once.
fn policy_spec(fields: &Fields, faults: &mut Faults) {
    let spec = fields.get("spec").cloned().unwrap_or_default();
    match serde_json::from_value(spec.clone()) {
        Ok(typed) => {
            for fault in config_model::check_policy(&typed) {
                faults.invalid(
                    &FieldPath::root(&fault.path),
                    found(&spec, &fault.path),
                    fault.text,
                );
            }
        }
        Err(_another_form) => policy_names(&spec, faults),
    }
}

/// The value at `spec.rules[0].images.minSvn`; null if absent.
fn found<'a>(spec: &'a Value, path: &str) -> &'a Value {
    let pointer = path
        .trim_start_matches("spec")
        .replace(['.', '['], "/")
        .replace(']', "");
    spec.pointer(&pointer).unwrap_or(&Value::Null)
}

/// Reports unknown policy names: the only fault of form that the schema does not find.
fn policy_names(spec: &Value, faults: &mut Faults) {
    let at = FieldPath::root("spec");
    let at = at.field("rules");
    let rules = spec
        .as_object()
        .map_or(&[][..], |spec| items(spec, "rules"));
    for (number, rule) in rules
        .iter()
        .enumerate()
        .filter_map(|(number, rule)| Some((number, rule.as_object()?)))
    {
        let policies = PolicyName::ALL.map(PolicyName::as_str);
        faults.one_of(
            &at.index(number).field("policy"),
            get(rule, "policy"),
            &policies,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy_faults(spec: &Value) -> String {
        let mut faults = Faults::default();
        let fields = json!({ "spec": spec });
        policy_spec(fields.as_object().unwrap(), &mut faults);
        format!("{faults:?}")
    }

    #[test]
    fn a_machine_without_a_tpm_has_no_endorsement_keys_and_is_no_master() {
        let machine_faults = |spec: Value| {
            let mut faults = Faults::default();
            machine_spec(json!({ "spec": spec }).as_object().unwrap(), &mut faults);
            format!("{faults:?}")
        };
        let sound = json!({ "role": "worker", "insecureNoTpm": true, "ek": {} });
        assert_eq!(
            machine_faults(sound.clone()),
            format!("{:?}", Faults::default())
        );
        for (pointer, value) in [
            (
                "ek",
                json!({ "hashes": [format!("sha256:{}", "0a".repeat(32))] }),
            ),
            ("ek", json!({ "issuers": ["lab-ca"] })),
            ("static", json!(true)),
            ("role", json!("master")),
        ] {
            let mut bad = sound.clone();
            bad[pointer] = value;
            assert!(machine_faults(bad).contains("insecureNoTpm"), "{pointer}");
        }
        let seen = json!({ "spec": sound, "status": { "state": "Unproven", "lastAttestation": "2026-01-01T00:00:00Z" } });
        let fields = seen.as_object().unwrap();
        assert_eq!(
            (
                machine_state(fields).as_str(),
                last_proof(fields, jiff::Timestamp::now()).as_str()
            ),
            ("Unproven", "none")
        );
    }

    #[test]
    fn a_policy_is_refused_with_the_faults_of_its_document() {
        let rule = json!({ "name": "machines", "signers": ["pratique.dev/node-client", "pratique.dev/node-serving"], "policy": "queue",
            "certificate": { "roles": ["worker"] } });
        assert_eq!(
            policy_faults(&json!({ "rules": [rule] })),
            format!("{:?}", Faults::default())
        );
        let mut bad = rule.clone();
        bad["signers"] = json!(["pratique.dev/node-clint", "pratique.dev/node-serving"]);
        bad["queue"] = json!({ "expiresSeconds": 1 });
        let text = policy_faults(&json!({ "rules": [bad] }));
        for part in [
            "spec.rules[0].signers[0]",
            "did you mean",
            "spec.rules[0].queue.expiresSeconds",
            "expected",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let mut unknown = rule;
        unknown["policy"] = json!("always-aprove");
        assert!(policy_faults(&json!({ "rules": [unknown] })).contains("spec.rules[0].policy"));
    }
}
