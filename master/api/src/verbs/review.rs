//! Reviews: questions that are answered at once and never stored.

use super::Call;
use crate::error::ApiError;
use crate::path::{Verb, not_allowed};
use crate::registry::Review;
use crate::server::Body;
use crate::validate::Fields;
use http::{Response, StatusCode};
use serde_json::{Value, json};

/// Answers a review.
pub(super) async fn run(call: &Call, review: Review, content: Body) -> Result<Response<Body>, ApiError> {
    if call.target.verb != Verb::Create || !call.target.name.is_empty() {
        return Err(not_allowed());
    }
    let (mut fields, warnings) = call.object(content).await?;
    let status = match review {
        Review::SelfSubject => self_subject(call),
        Review::Token
        | Review::SubjectAccess
        | Review::LocalSubjectAccess
        | Review::SelfSubjectAccess
        | Review::SelfSubjectRules
        | Review::Binding => return Err(not_allowed()),
    };
    fields.insert("status".to_owned(), status);
    let answer = call.fields_answer(StatusCode::CREATED, fields)?;
    Ok(super::create::warned(answer, &warnings))
}

/// Who asks.
fn self_subject(call: &Call) -> Value {
    let user = &call.user;
    let mut info = Fields::new();
    info.insert("username".to_owned(), user.name.clone().into());
    if !user.uid.is_empty() {
        info.insert("uid".to_owned(), user.uid.clone().into());
    }
    info.insert("groups".to_owned(), json!(user.groups));
    if !user.extra.is_empty() {
        info.insert("extra".to_owned(), json!(user.extra));
    }
    json!({ "userInfo": info })
}
