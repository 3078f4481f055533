//! Pod disruption budgets.

use super::columns::{count, number};
use crate::builtin::cells::AGE;
use crate::registry::{Kind, Strategy, Subresource, column};
use crate::validate::Fields;
use config_kube::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::Value;

pub(in crate::builtin) fn pod_disruption_budget() -> Kind {
    Kind {
        short_names: &["pdb"],
        subresources: &[Subresource::Status],
        columns: const {
            &[
                column("Min Available", |fields, _| amount(fields, "minAvailable").into()),
                column("Max Unavailable", |fields, _| amount(fields, "maxUnavailable").into()),
                number("Allowed Disruptions", |fields, _| count(fields, "status", "/disruptionsAllowed").into()),
                AGE,
            ]
        },
        strategy: Strategy { generation: true, ..Strategy::default() },
        ..Kind::of::<PodDisruptionBudget>(true)
    }
}

/// A number or percentage of the spec.
fn amount(fields: &Fields, key: &str) -> String {
    match fields.get("spec").and_then(|spec| spec.get(key)) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) | None => "N/A".to_owned(),
    }
}
