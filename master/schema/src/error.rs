//! Errors in upstream's form: `Status` objects with a reason, a code and details.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// Upstream's `StatusReason`s (apimachinery `meta/v1`) that are used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// 400.
    BadRequest,
    /// 401.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 404.
    NotFound,
    /// 405.
    MethodNotAllowed,
    /// 406.
    NotAcceptable,
    /// 409, the name is taken.
    AlreadyExists,
    /// 409, the object has changed or contradicts the request.
    Conflict,
    /// 410, the revision is too old.
    Expired,
    /// 410, gone for another reason.
    Gone,
    /// 413.
    RequestEntityTooLarge,
    /// 415.
    UnsupportedMediaType,
    /// 422.
    Invalid,
    /// 429.
    TooManyRequests,
    /// 500.
    InternalError,
    /// 500, try again later.
    ServerTimeout,
    /// 503.
    ServiceUnavailable,
    /// 504.
    Timeout,
    /// Any other code of another server.
    Unknown,
}

impl Reason {
    const ALL: [(Self, &'static str, u16); 19] = [
        (Self::BadRequest, "BadRequest", 400),
        (Self::Unauthorized, "Unauthorized", 401),
        (Self::Forbidden, "Forbidden", 403),
        (Self::NotFound, "NotFound", 404),
        (Self::MethodNotAllowed, "MethodNotAllowed", 405),
        (Self::NotAcceptable, "NotAcceptable", 406),
        (Self::AlreadyExists, "AlreadyExists", 409),
        (Self::Conflict, "Conflict", 409),
        (Self::Expired, "Expired", 410),
        (Self::Gone, "Gone", 410),
        (Self::RequestEntityTooLarge, "RequestEntityTooLarge", 413),
        (Self::UnsupportedMediaType, "UnsupportedMediaType", 415),
        (Self::Invalid, "Invalid", 422),
        (Self::TooManyRequests, "TooManyRequests", 429),
        (Self::InternalError, "InternalError", 500),
        (Self::ServerTimeout, "ServerTimeout", 500),
        (Self::ServiceUnavailable, "ServiceUnavailable", 503),
        (Self::Timeout, "Timeout", 504),
        (Self::Unknown, "", 500),
    ];

    /// Upstream's name of it.
    pub fn as_str(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(reason, _, _)| *reason == self)
            .map_or("", |(_, name, _)| name)
    }

    /// Its HTTP status.
    pub fn code(self) -> u16 {
        Self::ALL
            .iter()
            .find(|(reason, _, _)| *reason == self)
            .map_or(500, |(_, _, code)| *code)
    }

    fn parse(name: &str) -> Self {
        Self::ALL
            .iter()
            .find(|(_, known, _)| *known == name)
            .map_or(Self::Unknown, |(reason, _, _)| *reason)
    }
}

/// One cause of an error (`StatusCause`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Cause {
    /// `FieldValueInvalid`, `FieldValueRequired`, …
    pub reason: Cow<'static, str>,
    /// For humans.
    pub message: String,
    /// Path of the field, such as `spec.containers[0].name`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// The object of an error (`StatusDetails`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// Name of the object, if there is one.
    pub name: String,
    /// API group of the kind.
    pub group: String,
    /// The resource (plural) or kind.
    pub kind: String,
    /// UID of the object.
    pub uid: String,
    /// All faults.
    pub causes: Vec<Cause>,
    /// Seconds to wait before another try.
    pub retry_after: Option<u32>,
    /// A token with which a list can continue although its revision has been compacted.
    pub continue_token: String,
}

/// An error of the API.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The reason.
    pub reason: Reason,
    /// HTTP status.
    pub code: u16,
    /// For humans.
    pub message: String,
    /// The object of the error.
    pub details: Box<Details>,
}

impl ApiError {
    /// An error without details.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            code: reason.code(),
            message: message.into(),
            details: Box::default(),
        }
    }

    /// Sets the object concerned; `kind` is the plural resource name, or the kind for invalid
    /// objects.
    #[must_use]
    pub fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        group.clone_into(&mut self.details.group);
        kind.clone_into(&mut self.details.kind);
        name.clone_into(&mut self.details.name);
        self
    }

    /// Sets the time after which to try again.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.details.retry_after = Some(seconds);
        self
    }

    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.reason == Reason::NotFound
    }

    /// Whether the object has changed meanwhile.
    pub fn is_conflict(&self) -> bool {
        self.reason == Reason::Conflict
    }

    /// Whether the name is taken.
    pub fn is_already_exists(&self) -> bool {
        self.reason == Reason::AlreadyExists
    }

    /// Whether a list or watch must start again.
    pub fn is_expired(&self) -> bool {
        matches!(self.reason, Reason::Expired | Reason::Gone)
    }

    /// The `Status` object.
    pub fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason.as_str(), "code": self.code,
        });
        let about = &self.details;
        if !about.continue_token.is_empty() {
            status["metadata"] = json!({"continue": about.continue_token});
        }
        let mut details = serde_json::Map::new();
        for (key, value) in [
            ("name", &about.name),
            ("group", &about.group),
            ("kind", &about.kind),
            ("uid", &about.uid),
        ] {
            if !value.is_empty() {
                details.insert(key.to_owned(), Value::String(value.clone()));
            }
        }
        if !about.causes.is_empty() {
            details.insert("causes".to_owned(), json!(about.causes));
        }
        if let Some(seconds) = about.retry_after {
            details.insert("retryAfterSeconds".to_owned(), json!(seconds));
        }
        if !details.is_empty()
            && let Some(fields) = status.as_object_mut()
        {
            fields.insert("details".to_owned(), Value::Object(details));
        }
        status
    }

    /// Parses a `Status` object.
    pub fn from_status(code: u16, status: &Value) -> Self {
        let text = |pointer: &str| {
            status
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let causes = status
            .pointer("/details/causes")
            .cloned()
            .unwrap_or_default();
        let details = Details {
            name: text("/details/name"),
            group: text("/details/group"),
            kind: text("/details/kind"),
            uid: text("/details/uid"),
            causes: serde_json::from_value(causes).unwrap_or_default(),
            retry_after: status
                .pointer("/details/retryAfterSeconds")
                .and_then(Value::as_u64)
                .and_then(|seconds| u32::try_from(seconds).ok()),
            continue_token: text("/metadata/continue"),
        };
        Self {
            reason: Reason::parse(&text("/reason")),
            code,
            message: text("/message"),
            details: Box::new(details),
        }
    }
}

/// Bytes that a client's text takes in an error at most, as it stands quoted in the JSON of the
/// answer. A valid name has fewer.
const SHOWN: usize = 256;

/// A text of a client (a path, a name, a header, …) as an error may repeat it: cut where it would
/// take more than 256 bytes of the answer. A request's header has 64 KiB, and quoting makes four
/// bytes and more of some; its sender decides when the answer is read.
pub fn shown(text: &str) -> Cow<'_, str> {
    let mut left = SHOWN;
    for (at, character) in text.char_indices() {
        // Once by `{:?}`, and what that made again by JSON.
        let quoted = character.escape_debug().map(|part| match part {
            '"' | '\\' => 2,
            part => part.len_utf8(),
        });
        match left.checked_sub(quoted.sum()) {
            Some(rest) => left = rest,
            None => return Cow::Owned(format!("{}…", &text[..at])),
        }
    }
    Cow::Borrowed(text)
}

/// The first bytes that are written.
#[derive(Debug, Default)]
struct Head(String);

impl fmt::Write for Head {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = SHOWN.saturating_sub(self.0.len());
        if text.len() <= room {
            self.0.push_str(text);
            return Ok(());
        }
        let whole = (0..=room).rev().find_map(|end| text.get(..end));
        self.0.push_str(whole.unwrap_or_default());
        self.0.push('…');
        Err(fmt::Error)
    }
}

/// The beginning of what an error shows of a client's object, such as the path of a field: 256
/// bytes at most. It costs no more than these: a key of megabytes is in the path of each of the
/// hundred thousand fields below it.
pub fn beginning(text: &dyn fmt::Display) -> String {
    let mut head = Head::default();
    // It ends with an error where there is more.
    let _cut = write!(head, "{text}");
    head.0
}

/// Upstream's error for a path that names nothing.
pub fn no_resource() -> ApiError {
    ApiError::new(
        Reason::NotFound,
        "the server could not find the requested resource",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_path_the_beginning_is_shown() {
        assert_eq!(beginning(&"spec.replicas"), "spec.replicas");
        let name = "ä".repeat(200);
        let long = beginning(&format_args!("a.{name}.b"));
        assert_eq!(long, format!("a.{}…", "ä".repeat(127)));
        let exact = "b".repeat(SHOWN);
        assert_eq!(beginning(&exact), exact);
    }

    #[test]
    fn a_clients_text_is_cut_by_the_bytes_that_it_takes_in_an_answer() {
        let name = "a".repeat(253);
        assert_eq!(shown(&name), name.as_str(), "the longest name is whole");
        for text in ["a", "\"", "\\", "\u{1}", "\u{7f}", "ä", "\u{10ffff}", "\n"] {
            let answer = json!(format!("{:?}", shown(&text.repeat(4000)))).to_string();
            assert!(answer.len() <= SHOWN + 12, "{text:?}: {}", answer.len());
            assert!(answer.contains('…'), "{text:?}: what is cut says so");
        }
    }
}
