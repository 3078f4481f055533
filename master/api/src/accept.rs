//! What form of answer a client takes.

use crate::error::{ApiError, Reason};
use http::{HeaderMap, header};

/// What is sent in an answer about objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The objects.
    Object,
    /// `meta.k8s.io/v1 Table`.
    Table,
    /// `meta.k8s.io/v1 PartialObjectMetadata` and its list.
    Partial,
}

/// How an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Accept {
    pub(crate) form: Form,
    pub(crate) yaml: bool,
}

/// One acceptable media type.
struct Media<'a> {
    kind: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl Media<'_> {
    fn parameter(&self, key: &str) -> &str {
        self.parameters.iter().find(|(name, _)| *name == key).map_or("", |(_, value)| value)
    }
}

/// Media types of the Accept headers, in their order.
fn media(headers: &HeaderMap) -> impl Iterator<Item = Media<'_>> {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).take(50).map(|part| {
        let mut pieces = part.split(';').map(str::trim);
        let kind = pieces.next().unwrap_or_default();
        let parameters = pieces.filter_map(|piece| piece.split_once('=')).collect();
        Media { kind, parameters }
    })
}

impl Accept {
    /// Plain JSON objects.
    pub(crate) const JSON: Self = Self { form: Form::Object, yaml: false };

    /// Reads the Accept headers; the first form that the server has wins.
    pub(crate) fn parse(headers: &HeaderMap) -> Result<Self, ApiError> {
        if !headers.contains_key(header::ACCEPT) {
            return Ok(Self::JSON);
        }
        for media in media(headers) {
            let yaml = match media.kind {
                "application/json" | "*/*" | "application/*" | "" => false,
                "application/yaml" => true,
                _ => continue,
            };
            let form = match (media.parameter("as"), media.parameter("g"), media.parameter("v")) {
                ("", _, _) => Form::Object,
                ("Table", "meta.k8s.io", "v1" | "v1beta1") => Form::Table,
                ("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1" | "v1beta1") => {
                    Form::Partial
                }
                _ => continue,
            };
            return Ok(Self { form, yaml });
        }
        let text = "only the following media types are accepted: application/json, application/yaml";
        Err(ApiError::new(Reason::NotAcceptable, text))
    }

    /// Version of aggregated discovery that is asked for before the plain form, if any.
    pub(crate) fn discovery(headers: &HeaderMap) -> Option<&'static str> {
        for media in media(headers) {
            match (media.kind, media.parameter("as"), media.parameter("g"), media.parameter("v")) {
                ("application/json", "APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => return Some("v2"),
                ("application/json", "APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2beta1") => {
                    return Some("v2beta1");
                }
                ("application/json" | "*/*", "", _, _) => return None,
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
        assert_eq!(Accept::parse(&headers(table)).unwrap().form, Form::Table);
        let protobuf = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(Accept::parse(&headers(protobuf)).unwrap(), Accept::JSON);
        assert!(Accept::parse(&headers("application/yaml")).unwrap().yaml);
        let error = Accept::parse(&headers("application/vnd.kubernetes.protobuf")).unwrap_err();
        assert_eq!(error.code, 406);
        let discovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
        assert_eq!(Accept::discovery(&headers(discovery)), Some("v2"));
        assert_eq!(Accept::discovery(&headers("application/json")), None);
    }
}
