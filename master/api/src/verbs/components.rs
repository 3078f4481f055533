//! ComponentStatus: made at each request, in upstream's form and under upstream's names.

use super::Call;
use super::answer::value_answer;
use http::{Response, StatusCode};
use master_client::Body;
use master_schema::error::{ApiError, Reason};
use master_schema::validate::Fields;
use master_wire::Form;
use master_wire::path::{Verb, not_allowed};
use master_wire::table::{self, Include, Style};
use serde_json::{Value, json};

/// Answers for one component or for all.
pub(super) async fn read(call: &Call) -> Result<Response<Body>, ApiError> {
    match call.target.verb {
        Verb::Get => {
            let found = all(call)
                .await
                .into_iter()
                .find(|part| part["metadata"]["name"] == *call.target.name);
            let Some(Value::Object(fields)) = found else {
                let text = format!("Component not found: {}", call.target.name);
                return Err(ApiError::new(Reason::InternalError, text));
            };
            call.fields_answer(StatusCode::OK, fields)
        }
        Verb::List => list(call, all(call).await),
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
async fn all(call: &Call) -> Vec<Value> {
    let store = call.api.inner.reader.revision().await;
    let part = |name: &str, health: Result<(), String>| {
        let condition = match health {
            Ok(()) => json!({"type": "Healthy", "status": "True", "message": "ok"}),
            Err(error) => json!({"type": "Healthy", "status": "False", "error": error}),
        };
        json!({
            "kind": call.kind.kind, "apiVersion": call.kind.api_version(),
            "metadata": {"name": name, "creationTimestamp": null}, "conditions": [condition],
        })
    };
    vec![
        part("controller-manager", Ok(())),
        part("etcd-0", store.map(drop).map_err(|error| error.to_string())),
        part("scheduler", Ok(())),
    ]
}

fn list(call: &Call, parts: Vec<Value>) -> Result<Response<Body>, ApiError> {
    let accept = call.accept()?;
    let selector = call.selector()?;
    let fields = |part: Value| {
        if let Value::Object(fields) = part {
            fields
        } else {
            Fields::new()
        }
    };
    let parts: Vec<Fields> = parts
        .into_iter()
        .filter(|part| selector.matches(part))
        .map(fields)
        .collect();
    let list = match accept.form {
        Form::Object => {
            let plain = |mut fields: Fields| {
                fields.remove("kind");
                fields.remove("apiVersion");
                Value::Object(fields)
            };
            let items: Vec<Value> = parts.into_iter().map(plain).collect();
            json!({"kind": "ComponentStatusList", "apiVersion": "v1", "metadata": {}, "items": items})
        }
        Form::Table(version) => {
            let style = Style {
                version,
                include: Include::of(call.query.get("includeObject"))?,
                headings: true,
            };
            table::table(&call.kind, style, parts.into_iter().map(Ok), &json!({}))?
        }
        Form::PartialList(version) => {
            let items: Vec<Value> = parts
                .iter()
                .map(|part| table::partial(part, version))
                .collect();
            json!({"kind": "PartialObjectMetadataList", "apiVersion": version, "metadata": {}, "items": items})
        }
        Form::Partial(_) => {
            let text = "you requested PartialObjectMetadata, but the requested object is a list (ComponentStatusList)";
            return Err(ApiError::new(Reason::NotAcceptable, text));
        }
    };
    value_answer(StatusCode::OK, &list, accept)
}
