//! Reads a request's body as an object of the kind, as strictly as the request asks.

use super::call::Call;
use bytes::Bytes;
use http::header;
use http_body_util::BodyExt;
use master_client::{Body, BodyError};
use master_schema::decode::{self, Decoded};
use master_schema::error::{ApiError, Reason};
use master_schema::schema::Checked;
use master_schema::validate::Fields;
use master_wire::protobuf;
use serde_json::Value;

/// How unknown and duplicate fields are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Validation {
    Ignore,
    Warn,
    Strict,
}

/// Warnings for the answer's header.
pub(super) type Warnings = Vec<String>;

impl Call {
    /// The strictness that the request asks for; [`Call::check_write_options`] has refused unknown
    /// values.
    pub(super) fn validation(&self) -> Validation {
        match self.query.get("fieldValidation") {
            "Ignore" => Validation::Ignore,
            "Strict" => Validation::Strict,
            _ => Validation::Warn,
        }
    }

    /// The body, which was read before the verb was called, within limits: see
    /// [`master_listener::Bodies`].
    pub(super) async fn bytes(&self, content: Body) -> Result<Bytes, ApiError> {
        let early =
            |error: BodyError| ApiError::new(Reason::BadRequest, format!("no body: {error}"));
        Ok(content.collect().await.map_err(early)?.to_bytes())
    }

    /// The media type of the body, without parameters.
    pub(super) fn content_type(&self) -> &str {
        let value = self
            .headers
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        value
            .unwrap_or_default()
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
    }

    /// The body as a document, from JSON or YAML.
    pub(super) async fn document(&self, content: Body) -> Result<Decoded, ApiError> {
        let bytes = self.bytes(content).await?;
        self.decode(&bytes)
    }

    /// A body that has been read, as a document.
    pub(super) fn decode(&self, bytes: &[u8]) -> Result<Decoded, ApiError> {
        let unrecognized = |error: ApiError| {
            let (kind, why, start) = (&self.kind.kind, error.message, summary(bytes));
            let text = format!(
                "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; {why} ({start})"
            );
            ApiError::new(Reason::BadRequest, text)
        };
        match self.content_type() {
            "application/json" | "" => decode::json(bytes).map_err(unrecognized),
            "application/yaml" => decode::yaml(bytes).map_err(unrecognized),
            "application/vnd.kubernetes.protobuf" => Ok(Decoded {
                value: protobuf::decode(bytes)?,
                duplicates: Vec::new(),
            }),
            _ => {
                let text = "the body of the request was in an unknown format - accepted media types include: \
                            application/json, application/yaml";
                Err(ApiError::new(Reason::UnsupportedMediaType, text))
            }
        }
    }

    /// The body as an object of the kind: only known fields of the right types.
    pub(super) async fn object(&self, content: Body) -> Result<(Fields, Warnings), ApiError> {
        self.read_object(&self.bytes(content).await?)
    }

    /// A body that has been read, as an object of the kind.
    pub(super) fn read_object(&self, bytes: &[u8]) -> Result<(Fields, Warnings), ApiError> {
        let Decoded { value, duplicates } = self.decode(bytes)?;
        let Value::Object(mut fields) = value else {
            return Err(ApiError::new(
                Reason::BadRequest,
                format!("the body is not a {}: expected an object", self.kind.kind),
            ));
        };
        self.expect(&fields)?;
        let warnings = self.check(&mut fields, &duplicates)?;
        Ok((fields, warnings))
    }

    /// The object's version and kind must match the path's; absent ones are filled in.
    fn expect(&self, fields: &Fields) -> Result<(), ApiError> {
        let field = |key: &str| {
            fields
                .get(key)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
        };
        let (own_kind, own_version) = (self.kind.kind.clone(), self.kind.api_version());
        let (kind, version) = (
            field("kind").unwrap_or(&own_kind),
            field("apiVersion").unwrap_or(&own_version),
        );
        if kind == own_kind && version == own_version {
            return Ok(());
        }
        let bad = |text: String| Err(ApiError::new(Reason::BadRequest, text));
        let known = self
            .registry
            .kinds()
            .iter()
            .any(|one| one.kind == kind && one.api_version() == version);
        if known
            && kind == own_kind
            && version
                .rsplit_once('/')
                .map(|(group, _)| group)
                .unwrap_or_default()
                == self.kind.group
        {
            return bad(format!(
                "the API version in the data ({version}) does not match the expected API version ({own_version})"
            ));
        }
        let short = version.rsplit('/').next().unwrap_or(version);
        let why = if known {
            let package = self
                .kind
                .group
                .split('.')
                .next()
                .filter(|group| !group.is_empty())
                .unwrap_or("core");
            format!("converting ({short}.{kind}) to ({package}.{own_kind}): unknown conversion")
        } else {
            format!(
                "no kind {kind:?} is registered for version {version:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\""
            )
        };
        bad(format!(
            "{kind} in version {short:?} cannot be handled as a {own_kind}: {why}"
        ))
    }

    /// Checks an object against the kind's schema; unknown and duplicate fields are faults or
    /// warnings.
    pub(super) fn check(
        &self,
        fields: &mut Fields,
        duplicates: &[String],
    ) -> Result<Warnings, ApiError> {
        let checked = self.compare(fields);
        if !checked.wrong.is_empty() {
            let (kind, version) = (&self.kind.kind, &self.kind.version);
            let wrong: Vec<String> = checked.wrong.iter().map(ToString::to_string).collect();
            let text = format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: {}",
                wrong.join("; ")
            );
            return Err(ApiError::new(Reason::BadRequest, text));
        }
        self.judge(&checked, duplicates)
    }

    /// Compares an object with the kind's schema.
    pub(super) fn compare(&self, fields: &mut Fields) -> Checked {
        self.registry
            .schemas()
            .check(self.kind.source.name(), fields)
    }

    /// Turns unknown and duplicate fields into faults or warnings.
    pub(super) fn judge(
        &self,
        checked: &Checked,
        duplicates: &[String],
    ) -> Result<Warnings, ApiError> {
        let unknown = checked
            .unknown
            .iter()
            .map(|path| format!("unknown field {path:?}"));
        let found: Warnings = unknown
            .chain(
                duplicates
                    .iter()
                    .map(|path| format!("duplicate field {path:?}")),
            )
            .collect();
        match self.validation() {
            Validation::Ignore => Ok(Vec::new()),
            Validation::Warn => Ok(found),
            Validation::Strict if found.is_empty() => Ok(found),
            Validation::Strict => {
                let (kind, version) = (&self.kind.kind, &self.kind.version);
                let text = format!(
                    "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {}",
                    found.join(", ")
                );
                Err(ApiError::new(Reason::BadRequest, text))
            }
        }
    }
}

/// The start of a body, as text if it looks like JSON.
fn summary(bytes: &[u8]) -> String {
    const SHOWN: usize = 30;
    let start = bytes.get(..SHOWN).unwrap_or(bytes);
    let text = match bytes.first() {
        None => return "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(start).into_owned(),
        Some(_) => hex::encode(start),
    };
    if bytes.len() > SHOWN {
        format!("{text} ...")
    } else {
        text
    }
}
