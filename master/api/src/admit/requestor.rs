//! Who asked for a certificate: no plugin, as it can't be switched off.

use crate::validate::{Fields, object_mut};
use crate::verbs::Call;
use serde_json::json;

/// A request carries who made it, as the server knows it.
pub(super) fn stamp(call: &Call, fields: &mut Fields) {
    if call.kind.kind != "CertificateSigningRequest" || call.kind.group != "certificates.k8s.io" {
        return;
    }
    let user = &call.user;
    let Some(spec) = object_mut(fields, "spec") else { return };
    for key in ["uid", "extra"] {
        spec.remove(key);
    }
    spec.insert("username".to_owned(), user.name.clone().into());
    spec.insert("groups".to_owned(), json!(user.groups));
    if !user.uid.is_empty() {
        spec.insert("uid".to_owned(), user.uid.clone().into());
    }
    if !user.extra.is_empty() {
        spec.insert("extra".to_owned(), json!(user.extra));
    }
}
