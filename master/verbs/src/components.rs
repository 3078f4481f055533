//! ComponentStatus and APIService: computed for each request, in upstream's form and under
//! upstream's names.

use super::answer::Answer;
use super::call::Call;
use http::StatusCode;
use master_openapi::discovery;
use master_schema::error::{ApiError, Reason};
use master_schema::registry::Kind;
use master_store::Reader;
use master_wire::path::{Verb, not_allowed};
use serde_json::{Value, json};

/// Answers for one component or for all.
pub(super) async fn read(call: &Call, reader: &dyn Reader) -> Answer {
    answer(call, all(&call.kind, reader).await, || {
        let text = format!("Component not found: {}", call.target.name);
        ApiError::new(Reason::InternalError, text)
    })
}

/// Answers for one version of an API group or for all.
pub(super) fn groups(call: &Call) -> Answer {
    let all = discovery::services(&call.registry, &call.kind);
    answer(call, all, || call.not_found())
}

fn answer(call: &Call, all: Vec<Value>, missing: impl FnOnce() -> ApiError) -> Answer {
    match call.target.verb {
        Verb::Get => {
            let found = all
                .into_iter()
                .find(|part| part["metadata"]["name"] == *call.target.name);
            let Some(Value::Object(fields)) = found else {
                return Err(missing());
            };
            call.fields_answer(StatusCode::OK, fields)
        }
        Verb::List => {
            let selector = call.selector()?;
            let chosen = all.into_iter().filter(|part| selector.matches(part));
            call.made_list(
                chosen
                    .filter_map(|part| part.as_object().cloned())
                    .collect(),
            )
        }
        Verb::Watch
        | Verb::Create
        | Verb::Update
        | Verb::Patch
        | Verb::Delete
        | Verb::DeleteCollection => Err(not_allowed()),
    }
}

/// The components. Scheduler and controllers run in this process, which ends with them; the store
/// is queried.
async fn all(kind: &Kind, reader: &dyn Reader) -> Vec<Value> {
    let store = reader.revision().await;
    let part = |name: &str, health: Result<(), String>| {
        let condition = match health {
            Ok(()) => json!({"type": "Healthy", "status": "True", "message": "ok"}),
            Err(error) => json!({"type": "Healthy", "status": "False", "error": error}),
        };
        json!({
            "kind": kind.kind, "apiVersion": kind.api_version(),
            "metadata": {"name": name, "creationTimestamp": null}, "conditions": [condition],
        })
    };
    vec![
        part("controller-manager", Ok(())),
        part("etcd-0", store.map(drop).map_err(|error| error.to_string())),
        part("scheduler", Ok(())),
    ]
}
