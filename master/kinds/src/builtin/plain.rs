//! ServiceAccounts and Leases.

use config_kube::k8s_openapi::api::coordination::v1::Lease;
use config_kube::k8s_openapi::api::core::v1::ServiceAccount;
use master_schema::cells::{AGE, at};
use master_schema::object::metadata;
use master_schema::registry::{Kind, Strategy, Subresource, column, integer, words};
use master_schema::validate::{Faults, FieldPath, Fields, get, names, object, text};
use serde_json::{Value, json};

/// Annotation of a service account whose pods may use only the secrets that it names.
const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";

pub(super) fn service_account() -> Kind {
    Kind {
        short_names: words(&["sa"]),
        columns: vec![
            integer("Secrets", |fields, _| {
                master_schema::validate::items(fields, "secrets")
                    .len()
                    .into()
            }),
            AGE,
        ],
        subresources: vec![Subresource::Token],
        strategy: Strategy {
            create: keep_names,
            update: |new, _| keep_names(new),
            warn: warn_account,
            ..Strategy::default()
        },
        ..Kind::of::<ServiceAccount>(true)
    }
}

/// References of a service account to secrets keep the name only.
fn keep_names(fields: &mut Fields) {
    for secret in fields
        .get_mut("secrets")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        // They are in the account's namespace, whatever the reference says (upstream's
        // `cleanSecretReferences`).
        let name = secret.get("name").cloned();
        *secret = name.map_or_else(|| json!({}), |name| json!({"name": name}));
    }
}

fn warn_account(new: &Fields, old: Option<&Fields>, warnings: &mut Vec<String>) {
    let enforces = |fields| {
        object(metadata(fields), "annotations").is_some_and(|notes| notes.contains_key(ENFORCE))
    };
    if enforces(new) && !old.is_some_and(enforces) {
        warnings.push(format!(
            "metadata.annotations[{ENFORCE}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted \
             secrets"
        ));
    }
}

pub(super) fn lease() -> Kind {
    Kind {
        columns: vec![
            column("Holder", |fields, _| {
                at(fields, "spec", "/holderIdentity").into()
            }),
            AGE,
        ],
        strategy: Strategy {
            validate: lease_spec,
            // Who renews a Lease need not know whether it is there yet.
            made_by_update: true,
            ..Strategy::default()
        },
        ..Kind::of::<Lease>(true)
    }
}

fn lease_spec(fields: &Fields, faults: &mut Faults) {
    let Some(spec) = object(fields, "spec") else {
        return;
    };
    let at = FieldPath::root("spec");
    for (key, least) in [("leaseDurationSeconds", 1), ("leaseTransitions", 0)] {
        let value = get(spec, key);
        if value.as_i64().is_some_and(|value| value < least) {
            let detail = if least == 1 {
                "must be greater than 0"
            } else {
                "must be greater than or equal to 0"
            };
            faults.invalid(&at.field(key), value, detail);
        }
    }
    let (strategy, place) = (get(spec, "strategy"), at.field("strategy"));
    if let Some(name) = strategy.as_str() {
        // Upstream's path contains the field twice.
        let place = place.field("strategy");
        if !name.contains('/') {
            faults.one_of(&place, strategy, &["OldestEmulationVersion"]);
        } else if let Err(fault) = names::qualified(name) {
            faults.invalid(&place, strategy, fault);
        }
    }
    if !text(spec, "preferredHolder").is_empty() && text(spec, "strategy").is_empty() {
        faults.forbidden(
            &at.field("preferredHolder"),
            "may only be specified if `strategy` is defined",
        );
    }
}
