//! Answers: objects in the form that the client accepts.

use super::call::Call;
use http::{HeaderValue, Response, StatusCode, header};
use jiff::Timestamp;
use master_client::Body;
use master_objects::StoredPart;
use master_schema::error::{ApiError, Reason};
use master_schema::validate::Fields;
use master_store::Entry;
use master_wire::path::Verb;
use master_wire::respond::{json_bytes, protobuf_bytes};
use master_wire::table::{self, Include, Style};
use master_wire::{Accept, Form, Syntax, protobuf};
use serde::Serialize;
use serde_json::{Value, json};

/// An answer, or the error that is answered.
pub type Answer = Result<Response<Body>, ApiError>;

/// How a list's items are made, in the form that the client accepts.
#[derive(Debug, Clone, Copy)]
pub(super) enum ListShape {
    /// Objects.
    Objects,
    /// Rows of a table; ages are those at this time.
    Rows(Style, Timestamp),
    /// PartialObjectMetadata of this version.
    Partial(&'static str),
}

impl Call {
    /// The form that the client accepts.
    pub(super) fn accept(&self) -> Result<Accept, ApiError> {
        Accept::parse(&self.headers)
    }

    /// Refuses protobuf for a kind that has no message. Metadata alone can be read of any kind.
    pub(super) fn check_form(&self, accept: Accept) -> Result<(), ApiError> {
        let metadata = match accept.form {
            Form::Partial(_) => true,
            // The events of a watch are not in a list.
            Form::PartialList(_) => self.target.verb != Verb::Watch,
            Form::Object | Form::Table(_) => false,
        };
        if accept.syntax != Syntax::Protobuf
            || (metadata && self.target.verb.reads())
            || protobuf::is_known(&self.kind.api_version(), &self.kind.kind)
        {
            return Ok(());
        }
        Err(Accept::no_protobuf())
    }

    /// An answer with one stored object.
    pub(super) fn object_answer(&self, status: StatusCode, entry: &Entry) -> Answer {
        let accept = self.accept()?;
        if accept.form == Form::Object && accept.syntax != Syntax::Yaml {
            let (head, kept) = (
                master_objects::head(&self.kind, StoredPart::Whole),
                master_objects::stored_bytes(&self.kind, entry, StoredPart::Whole)?,
            );
            let revision = entry.modified.to_string();
            let mut answer = Vec::with_capacity(head.len() + revision.len() + 3 + kept.len());
            answer.extend_from_slice(head.as_bytes());
            answer.extend_from_slice(revision.as_bytes());
            answer.extend_from_slice(b"\",");
            kept.put(&mut answer);
            answer.push(b'\n');
            return from_json(status, answer, accept);
        }
        let bare = matches!(accept.form, Form::Table(_))
            && Include::of(self.query.get("includeObject"))? != Include::Object;
        let read = if bare {
            master_objects::decode_without_managed
        } else {
            master_objects::decode
        };
        self.shaped(status, read(&self.kind, entry)?, accept)
    }

    /// An answer with an object that is not stored (dry run).
    pub(super) fn fields_answer(&self, status: StatusCode, mut fields: Fields) -> Answer {
        fields.insert("kind".to_owned(), self.kind.kind.as_str().into());
        fields.insert("apiVersion".to_owned(), self.kind.api_version().into());
        master_objects::expand_managed(&mut fields);
        self.shaped(status, fields, self.accept()?)
    }

    /// An answer with objects that are computed for the request and not stored.
    pub(super) fn made_list(&self, mut items: Vec<Fields>) -> Answer {
        let accept = self.accept()?;
        if accept.form == Form::Object {
            for fields in &mut items {
                fields.remove("kind");
                fields.remove("apiVersion");
            }
        }
        let shape = self.list_shape(accept)?;
        let items = items.into_iter();
        let items = items.map(|fields| self.list_item(shape, fields)).collect();
        self.list_answer(accept, shape, &json!({}), items)
    }

    /// How the items of a list are made.
    pub(super) fn list_shape(&self, accept: Accept) -> Result<ListShape, ApiError> {
        match accept.form {
            Form::Object => Ok(ListShape::Objects),
            Form::Table(version) => Ok(ListShape::Rows(self.style(version)?, Timestamp::now())),
            Form::PartialList(version) => Ok(ListShape::Partial(version)),
            Form::Partial(_) => {
                let text = format!(
                    "you requested PartialObjectMetadata, but the requested object is a list ({}List)",
                    self.kind.kind
                );
                Err(ApiError::new(Reason::NotAcceptable, text))
            }
        }
    }

    /// An item of a list.
    pub(super) fn list_item(&self, shape: ListShape, fields: Fields) -> Value {
        match shape {
            ListShape::Objects => Value::Object(fields),
            ListShape::Rows(style, now) => table::row(&self.kind, style, fields, now),
            ListShape::Partial(version) => table::partial(&fields, version),
        }
    }

    /// An answer with a list of items, which were made in this shape.
    pub(super) fn list_answer(
        &self,
        accept: Accept,
        shape: ListShape,
        metadata: &Value,
        items: Vec<Value>,
    ) -> Answer {
        if let ListShape::Rows(style, _) = shape {
            let table = table::with_rows(&self.kind, style, items, metadata);
            return value_answer(StatusCode::OK, &table, accept);
        }
        let (kind, version) = self.list_type(shape);
        let mut list =
            json!({"kind": kind, "apiVersion": version, "metadata": metadata, "items": []});
        // Moved: `json!` would copy them.
        list["items"] = Value::Array(items);
        value_answer(StatusCode::OK, &list, accept)
    }

    /// Kind and version of a list that is no table.
    pub(super) fn list_type(&self, shape: ListShape) -> (String, String) {
        match shape {
            ListShape::Partial(version) => {
                let kind = "PartialObjectMetadataList";
                (kind.to_owned(), version.to_owned())
            }
            ListShape::Objects | ListShape::Rows(..) => {
                (format!("{}List", self.kind.kind), self.kind.api_version())
            }
        }
    }

    /// The style of a table.
    fn style(&self, version: &'static str) -> Result<Style, ApiError> {
        Ok(Style {
            version,
            include: Include::of(self.query.get("includeObject"))?,
            headings: true,
        })
    }

    fn shaped(&self, status: StatusCode, fields: Fields, accept: Accept) -> Answer {
        let value = match accept.form {
            Form::Object => Value::Object(fields),
            Form::Partial(version) => table::partial(&fields, version),
            Form::PartialList(_) => {
                let text = format!(
                    "you requested PartialObjectMetadataList, but the requested object is not a list ({})",
                    self.kind.kind
                );
                return Err(ApiError::new(Reason::NotAcceptable, text));
            }
            Form::Table(version) => {
                let metadata = json!({"resourceVersion": master_schema::object::meta_text(&fields, "resourceVersion")});
                table::table(&self.kind, self.style(version)?, [Ok(fields)], &metadata)?
            }
        };
        value_answer(status, &value, accept)
    }
}

/// An answer that was made as JSON, in JSON or protobuf.
fn from_json(status: StatusCode, bytes: Vec<u8>, accept: Accept) -> Answer {
    Ok(match accept.syntax {
        Syntax::Protobuf => protobuf_bytes(status, protobuf::from_json(&bytes)?),
        Syntax::Json | Syntax::Yaml => json_bytes(status, bytes),
    })
}

/// An answer with a value, in the form that the client accepts.
///
/// # Errors
/// The value can't be written in that form.
pub fn value_answer(status: StatusCode, value: &impl Serialize, accept: Accept) -> Answer {
    let unwritten = |form: &str, error: &dyn std::fmt::Display| {
        let text = format!("the answer cannot be written as {form}: {error}");
        ApiError::new(Reason::InternalError, text)
    };
    if accept.syntax != Syntax::Yaml {
        let written = serde_json::to_vec(value);
        let mut bytes = written.map_err(|error| unwritten("JSON", &error))?;
        bytes.push(b'\n');
        return from_json(status, bytes, accept);
    }
    let written = serde_yaml_ng::to_string(value);
    let text = written.map_err(|error| unwritten("YAML", &error))?;
    let mut response = json_bytes(status, text.into_bytes());
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/yaml"),
    );
    Ok(response)
}

/// A success without an object; `about` goes into `details`.
pub(super) fn success(status: StatusCode, about: Option<Value>, accept: Accept) -> Answer {
    let mut value =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    match about {
        Some(about) => value["details"] = about,
        None => value["code"] = status.as_u16().into(),
    }
    value_answer(status, &value, accept.plain())
}
