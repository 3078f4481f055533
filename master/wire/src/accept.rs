//! Content negotiation: the form in which an answer is sent.

use crate::protobuf;
use http::{HeaderMap, header};
use master_schema::error::{ApiError, Reason};

/// What a client is told that accepts none of the forms of an answer.
const ACCEPTED: &str =
    "only the following media types are accepted: application/json, application/yaml";

/// How objects are represented in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The objects themselves.
    Object,
    /// A `meta.k8s.io` Table of this version.
    Table(&'static str),
    /// A `meta.k8s.io` PartialObjectMetadata of this version.
    Partial(&'static str),
    /// A `meta.k8s.io` PartialObjectMetadataList of this version.
    PartialList(&'static str),
}

/// How an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// Kubernetes' protobuf encoding.
    Protobuf,
}

/// The encoding and representation of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accept {
    /// The representation.
    pub form: Form,
    /// How it is written.
    pub syntax: Syntax,
}

/// One acceptable media type.
struct Media<'a> {
    kind: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
    /// Preference (RFC 9110, 12.4.2), in thousandths.
    weight: u32,
}

impl<'a> Media<'a> {
    fn parse(text: &'a str) -> Self {
        let mut pieces = text.split(';').map(str::trim);
        let kind = pieces.next().unwrap_or_default();
        let parameters: Vec<_> = pieces
            .filter_map(|piece| piece.split_once('='))
            .map(|(key, value)| (key.trim(), value.trim().trim_matches('"')))
            .collect();
        let weight = parameters
            .iter()
            .find(|(name, _)| *name == "q")
            .map_or(1000, |(_, q)| thousandths(q));
        Self {
            kind,
            parameters,
            weight,
        }
    }

    fn parameter(&self, key: &str) -> &'a str {
        self.parameters
            .iter()
            .find(|(name, _)| *name == key)
            .map_or("", |(_, value)| value)
    }

    fn transform(&self) -> (&'a str, &'a str, &'a str) {
        (
            self.parameter("as"),
            self.parameter("g"),
            self.parameter("v"),
        )
    }
}

/// Parses a weight such as `0.8`; an unreadable one counts as 1, as upstream does.
fn thousandths(q: &str) -> u32 {
    let (whole, part) = q.split_once('.').unwrap_or((q, ""));
    let digits: String = part.chars().chain("000".chars()).take(3).collect();
    match (whole.parse::<u32>(), digits.parse::<u32>()) {
        (Ok(0), Ok(part)) => part,
        _ => 1000,
    }
}

/// The media types of the Accept headers: by weight, then by specificity, then in the order given.
fn media(headers: &HeaderMap) -> Vec<Media<'_>> {
    let values = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut all: Vec<Media<'_>> = values
        .flat_map(|value| value.split(','))
        .take(50)
        .map(Media::parse)
        .collect();
    let wild = |media: &Media<'_>| match media.kind {
        "*/*" => 2,
        kind if kind.ends_with("/*") => 1,
        _ => 0,
    };
    all.retain(|media| media.weight > 0 && !media.kind.is_empty());
    all.sort_by_key(|media| (u32::MAX - media.weight, wild(media)));
    all
}

/// The version of `meta.k8s.io` in which a Table or PartialObjectMetadata is asked for.
fn version(text: &str) -> Option<&'static str> {
    match text {
        "v1" => Some("meta.k8s.io/v1"),
        "v1beta1" => Some("meta.k8s.io/v1beta1"),
        _ => None,
    }
}

impl Accept {
    /// Plain JSON objects.
    pub const JSON: Self = Self {
        form: Form::Object,
        syntax: Syntax::Json,
    };

    /// Parses the Accept headers; the most preferred form that the server supports wins, except
    /// that protobuf comes last, whatever its weight and place. Nearly all clients that name it
    /// also name JSON, and get that: it is sent from the stored bytes, while protobuf is encoded
    /// for each answer. So protobuf is for clients that accept nothing else.
    ///
    /// # Errors
    /// The client accepts none of the forms that the server can write (406).
    pub fn parse(headers: &HeaderMap) -> Result<Self, ApiError> {
        Self::first(headers, |_form| true)
    }

    /// As [`Accept::parse`], for an answer that is never a table: the next form that the client
    /// accepts takes its place.
    ///
    /// # Errors
    /// The client accepts nothing else that the server can write (406).
    pub fn without_tables(headers: &HeaderMap) -> Result<Self, ApiError> {
        Self::first(headers, |form| !matches!(form, Form::Table(_)))
    }

    /// The most preferred of the forms that the answer can have.
    fn first(headers: &HeaderMap, possible: impl Fn(Form) -> bool) -> Result<Self, ApiError> {
        let wanted = headers
            .get_all(header::ACCEPT)
            .iter()
            .any(|value| !value.is_empty());
        if !wanted {
            return Ok(Self::JSON);
        }
        let mut last = None;
        for media in media(headers) {
            let syntax = match media.kind {
                "application/json" | "*/*" | "application/*" => Syntax::Json,
                "application/yaml" => Syntax::Yaml,
                protobuf::MEDIA => Syntax::Protobuf,
                _ => continue,
            };
            if !matches!(media.parameter("stream"), "" | "watch") {
                continue;
            }
            let form = match (media.transform(), version(media.parameter("v"))) {
                (("", "", ""), _) => Form::Object,
                (("Table", "meta.k8s.io", _), Some(version)) => Form::Table(version),
                (("PartialObjectMetadata", "meta.k8s.io", _), Some(version)) => {
                    Form::Partial(version)
                }
                (("PartialObjectMetadataList", "meta.k8s.io", _), Some(version)) => {
                    Form::PartialList(version)
                }
                _ => continue,
            };
            let binary = syntax == Syntax::Protobuf;
            // Tables have no message.
            if !possible(form) || (binary && matches!(form, Form::Table(_))) {
                continue;
            }
            if !binary {
                return Ok(Self { form, syntax });
            }
            last = last.or(Some(Self { form, syntax }));
        }
        last.ok_or_else(|| {
            let text = format!("{ACCEPTED}, {}", protobuf::MEDIA);
            ApiError::new(Reason::NotAcceptable, text)
        })
    }

    /// The error that an answer has no form in protobuf, and the client accepts nothing else.
    pub fn no_protobuf() -> ApiError {
        ApiError::new(Reason::NotAcceptable, ACCEPTED)
    }

    /// The same encoding, with full objects.
    #[must_use]
    pub fn plain(self) -> Self {
        Self {
            form: Form::Object,
            ..self
        }
    }

    /// The version of aggregated discovery that the client prefers to the plain form, if any.
    pub fn discovery(headers: &HeaderMap) -> Option<&'static str> {
        for media in media(headers) {
            match (media.kind, media.transform()) {
                ("application/json", ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2")) => {
                    return Some("v2");
                }
                (
                    "application/json",
                    ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2beta1"),
                ) => {
                    return Some("v2beta1");
                }
                ("application/json" | "application/*" | "*/*", ("", ..)) => return None,
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(accept: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, http::HeaderValue::from_static(accept));
        headers
    }

    #[test]
    fn the_first_form_that_the_server_has_wins() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert_eq!(
            Accept::parse(&headers(table)).unwrap().form,
            Form::Table("meta.k8s.io/v1")
        );
        let protobuf = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(Accept::parse(&headers(protobuf)).unwrap(), Accept::JSON);
        let yaml = Accept::parse(&headers("application/yaml")).unwrap();
        assert_eq!(yaml.syntax, Syntax::Yaml);
        let discovery =
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
        assert_eq!(Accept::discovery(&headers(discovery)), Some("v2"));
        assert_eq!(Accept::discovery(&headers("application/json")), None);
    }

    #[test]
    fn what_is_no_table_has_the_next_form_or_none() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        assert_eq!(
            Accept::without_tables(&headers(table)).unwrap_err().code,
            406
        );
        let either = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert_eq!(
            Accept::without_tables(&headers(either)).unwrap(),
            Accept::JSON
        );
        let metadata = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
        assert_eq!(
            Accept::without_tables(&headers(metadata)).unwrap().form,
            Form::Partial("meta.k8s.io/v1")
        );
    }

    #[test]
    fn protobuf_is_for_clients_that_accept_nothing_else() {
        let protobuf = |form| Accept {
            form,
            syntax: Syntax::Protobuf,
        };
        for (accept, expected) in [
            (
                "application/vnd.kubernetes.protobuf",
                protobuf(Form::Object),
            ),
            (
                "application/vnd.kubernetes.protobuf;stream=watch",
                protobuf(Form::Object),
            ),
            (
                "application/vnd.kubernetes.protobuf, text/html",
                protobuf(Form::Object),
            ),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;\
                 g=meta.k8s.io;v=v1, application/vnd.kubernetes.protobuf;q=0.5",
                protobuf(Form::PartialList("meta.k8s.io/v1")),
            ),
            (
                "application/vnd.kubernetes.protobuf, application/json;q=0.1",
                Accept::JSON,
            ),
            ("application/vnd.kubernetes.protobuf, */*", Accept::JSON),
        ] {
            assert_eq!(
                Accept::parse(&headers(accept)).unwrap(),
                expected,
                "{accept}"
            );
        }
        let refused = Accept::parse(&headers(
            "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io",
        ));
        assert_eq!(refused.unwrap_err().code, 406);
    }

    #[test]
    fn weights_count_before_the_order() {
        let yaml = "application/json;q=0.5, application/yaml;q=0.9, */*;q=0.1";
        let syntax = |accept| Accept::parse(&headers(accept)).unwrap().syntax;
        assert_eq!(syntax(yaml), Syntax::Yaml);
        assert_eq!(syntax("*/*, application/json"), Syntax::Json);
        assert_eq!(
            syntax("*/*, application/yaml"),
            Syntax::Yaml,
            "the specific one counts first"
        );
        assert_eq!(
            Accept::parse(&headers("application/json;q=0"))
                .unwrap_err()
                .code,
            406
        );
        for refused in [
            "text/html",
            "application/json;as=Foo;v=v1;g=meta.k8s.io",
            "application/json;as=Table;v=v9;g=x",
        ] {
            assert_eq!(
                Accept::parse(&headers(refused)).unwrap_err().code,
                406,
                "{refused}"
            );
        }
    }
}
