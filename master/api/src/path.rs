//! What a request is about, from its method, path and query.

use crate::error::{ApiError, Reason};
use http::Method;

/// What is asked of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    /// Upstream's word.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// A request for a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) verb: Verb,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
}

/// The query, decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

/// Parameters of one query at most.
const PARAMETERS: usize = 100;

impl Query {
    /// Reads a query string.
    pub(crate) fn parse(text: &str) -> Result<Self, ApiError> {
        let mut pairs = Vec::new();
        for part in text.split('&').filter(|part| !part.is_empty()) {
            if pairs.len() == PARAMETERS {
                return Err(ApiError::new(Reason::BadRequest, format!("more than {PARAMETERS} query parameters")));
            }
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            pairs.push((unescape(key, true)?, unescape(value, true)?));
        }
        Ok(Self(pairs))
    }

    /// The first value of a parameter; empty where it is not there.
    pub(crate) fn get(&self, key: &str) -> &str {
        self.0.iter().find(|(name, _)| name == key).map_or("", |(_, value)| value)
    }

    /// Whether a switch is on.
    pub(crate) fn on(&self, key: &str) -> bool {
        matches!(self.get(key), "true" | "1")
    }

    /// A number.
    pub(crate) fn number(&self, key: &str) -> Result<Option<i64>, ApiError> {
        match self.get(key) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|error| {
                ApiError::new(
                    Reason::BadRequest,
                    format!("the query parameter {key}={text:?} is not a number: {error}"),
                )
            }),
        }
    }

    /// All parameters.
    pub(crate) fn pairs(&self) -> &[(String, String)] {
        &self.0
    }
}

/// Percent-decodes; `+` is a space in queries only.
fn unescape(text: &str, query: bool) -> Result<String, ApiError> {
    let bad = || ApiError::new(Reason::BadRequest, format!("{text:?} is not properly percent-encoded UTF-8"));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match first {
            b'%' => {
                let (digits, after) = rest.split_first_chunk::<2>().ok_or_else(bad)?;
                let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'));
                let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).ok_or_else(bad)?;
                bytes.push(byte);
                rest = after;
            }
            b'+' if query => bytes.push(b' '),
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).map_err(|_not_utf8| bad())
}

impl Target {
    /// The resource that a path names: none for paths that name no resource (discovery, health, …).
    pub(crate) fn parse(method: &Method, path: &str, query: &Query) -> Result<Option<Self>, ApiError> {
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match segments.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
            ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
            _ => return Ok(None),
        };
        let (namespace, rest) = match rest {
            // A namespace's own path and its subresources.
            ["namespaces"] | ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => ("", rest),
            ["namespaces", namespace, rest @ ..] => (*namespace, rest),
            rest => ("", rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, subresource] => (*plural, *name, *subresource),
            _ => return Ok(None),
        };
        let (namespace, name) = (unescape(namespace, false)?, unescape(name, false)?);
        let verb = verb(method, !name.is_empty(), query)?;
        let (group, version) = (group.to_owned(), version.to_owned());
        let (plural, subresource) = (plural.to_owned(), subresource.to_owned());
        Ok(Some(Self { verb, group, version, plural, namespace, name, subresource }))
    }
}

fn verb(method: &Method, named: bool, query: &Query) -> Result<Verb, ApiError> {
    match (method.as_str(), named) {
        ("GET" | "HEAD", true) => Ok(Verb::Get),
        ("GET" | "HEAD", false) if query.on("watch") => Ok(Verb::Watch),
        ("GET" | "HEAD", false) => Ok(Verb::List),
        ("POST", _) => Ok(Verb::Create),
        ("PUT", true) => Ok(Verb::Update),
        ("PATCH", true) => Ok(Verb::Patch),
        ("DELETE", true) => Ok(Verb::Delete),
        ("DELETE", false) => Ok(Verb::DeleteCollection),
        _ => Err(not_allowed()),
    }
}

/// Upstream's refusal of a method that a resource doesn't have.
pub(crate) fn not_allowed() -> ApiError {
    ApiError::new(Reason::MethodNotAllowed, "the server does not allow this method on the requested resource")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &Method, path: &str, query: &str) -> Option<Target> {
        Target::parse(method, path, &Query::parse(query).unwrap()).unwrap()
    }

    #[test]
    fn paths_name_resources_as_upstream_reads_them() {
        let pod = parse(&Method::GET, "/api/v1/namespaces/a/pods/b/log", "").unwrap();
        assert_eq!((&*pod.namespace, &*pod.plural, &*pod.name, &*pod.subresource), ("a", "pods", "b", "log"));
        let all = parse(&Method::GET, "/api/v1/pods", "watch=1").unwrap();
        assert_eq!((all.verb, &*all.namespace), (Verb::Watch, ""));
        let namespace = parse(&Method::PUT, "/api/v1/namespaces/a/finalize", "").unwrap();
        assert_eq!((&*namespace.plural, &*namespace.name, &*namespace.subresource), ("namespaces", "a", "finalize"));
        let lease = parse(&Method::POST, "/apis/coordination.k8s.io/v1/namespaces/n/leases", "").unwrap();
        assert_eq!((&*lease.group, lease.verb), ("coordination.k8s.io", Verb::Create));
        for path in ["/api", "/api/v1", "/apis/apps/v1", "/livez", "/", "/api/v1/pods/a/b/c"] {
            assert_eq!(parse(&Method::GET, path, ""), None, "{path}");
        }
    }

    #[test]
    fn queries_are_decoded_and_bounded() {
        let query = Query::parse("labelSelector=a%3Db%2Cc+in&watch=true").unwrap();
        assert_eq!(query.get("labelSelector"), "a=b,c in");
        assert!(query.on("watch"));
        assert!(Query::parse("a=%zz").is_err());
        assert!(Query::parse("a=%ff").is_err());
        assert!(Query::parse("a=%+1").is_err());
        assert!(Query::parse(&"a&".repeat(101)).is_err());
    }
}
