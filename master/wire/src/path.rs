//! Parses method, path and query of a request.

use config_http::percent;
use http::Method;
use master_schema::error::{ApiError, Reason, shown};
use std::time::Duration;

/// The verb of a request for a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Reads one object.
    Get,
    /// Reads a collection.
    List,
    /// Follows a collection's changes.
    Watch,
    /// Makes an object.
    Create,
    /// Replaces an object.
    Update,
    /// Changes parts of an object.
    Patch,
    /// Deletes one object.
    Delete,
    /// Deletes the objects of a collection.
    DeleteCollection,
}

impl Verb {
    /// The name that upstream uses.
    pub fn as_str(self) -> &'static str {
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
pub struct Target {
    /// What is done.
    pub verb: Verb,
    /// The API group; empty for the core group.
    pub group: String,
    /// The version in the path.
    pub version: String,
    /// The resource in the path.
    pub plural: String,
    /// The namespace; empty for cluster-wide objects and for lists of all namespaces.
    pub namespace: String,
    /// The object's name; for lists and watches, the name that their field selector demands.
    pub name: String,
    /// The subresource; empty for the object itself.
    pub subresource: String,
    /// What follows the subresource: the path behind a proxy, with its leading slash.
    pub rest: String,
}

/// The query, decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

/// Parameters that a query may have.
const MAX_PARAMETERS: usize = 100;
/// The longest timeout that a request may ask for (upstream: `--request-timeout`).
const MAX_TIMEOUT: Duration = Duration::from_secs(60);
/// Units of durations, in seconds; a unit that is a prefix of another comes after it.
const UNITS: [(&str, f64); 7] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

impl Query {
    /// Reads a query string.
    ///
    /// # Errors
    /// It has more than 100 parameters, or a percent escape that is no byte or no UTF-8.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let mut pairs = Vec::new();
        for part in text.split('&').filter(|part| !part.is_empty()) {
            if pairs.len() == MAX_PARAMETERS {
                return Err(ApiError::new(
                    Reason::BadRequest,
                    format!("more than {MAX_PARAMETERS} query parameters"),
                ));
            }
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            pairs.push((parameter(key)?, parameter(value)?));
        }
        Ok(Self(pairs))
    }

    /// The first value of a parameter; empty if it is absent.
    pub fn get(&self, key: &str) -> &str {
        self.0
            .iter()
            .find(|(name, _)| name == key)
            .map_or("", |(_, value)| value)
    }

    /// Whether a parameter is present, with any value.
    pub fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(name, _)| name == key)
    }

    /// All values of a parameter.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }

    /// Whether a boolean parameter is true.
    pub fn on(&self, key: &str) -> bool {
        self.switch(key) == Some(true)
    }

    /// A boolean parameter, if present; as upstream does, only `false` and `0` mean false.
    pub fn switch(&self, key: &str) -> Option<bool> {
        let value = self
            .0
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())?;
        Some(!(value == "0" || value.eq_ignore_ascii_case("false")))
    }

    /// An integer parameter; none where it is absent or empty.
    ///
    /// # Errors
    /// It is no integer of 64 bits.
    pub fn number(&self, key: &str) -> Result<Option<i64>, ApiError> {
        match self.get(key) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|error| {
                ApiError::new(
                    Reason::BadRequest,
                    format!(
                        "the query parameter {key}={:?} is not a number: {error}",
                        shown(text)
                    ),
                )
            }),
        }
    }

    /// The timeout that the request asks for, at most the server's own (60 s).
    ///
    /// # Errors
    /// It is no duration in Go's form (`1m30s`).
    pub fn timeout(&self) -> Result<Option<Duration>, ApiError> {
        let text = self.get("timeout");
        if text.is_empty() {
            return Ok(None);
        }
        let wanted = duration(text).ok_or_else(|| {
            let text = format!(
                "invalid timeout specified in the request URL - time: invalid duration {:?}",
                shown(text)
            );
            ApiError::new(Reason::BadRequest, text)
        })?;
        Ok(Some(if wanted.is_zero() {
            MAX_TIMEOUT
        } else {
            wanted.min(MAX_TIMEOUT)
        }))
    }

    /// All parameters.
    pub fn pairs(&self) -> &[(String, String)] {
        &self.0
    }
}

/// Parses a duration in Go's format: `1m30s`, `1.5h`, `300ms`.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let (unit, size) = UNITS.iter().find(|(unit, _)| after.starts_with(unit))?;
        seconds += number.parse::<f64>().ok()? * size;
        rest = &after[unit.len()..];
    }
    (!text.is_empty())
        .then(|| Duration::try_from_secs_f64(seconds).ok())
        .flatten()
}

/// A name or value of a query, decoded.
fn parameter(text: &str) -> Result<String, ApiError> {
    percent::decode_query(text).ok_or_else(|| not_encoded(text))
}

/// A segment of a path, decoded.
fn segment(text: &str) -> Result<String, ApiError> {
    percent::decode_segment(text).ok_or_else(|| not_encoded(text))
}

fn not_encoded(text: &str) -> ApiError {
    ApiError::new(
        Reason::BadRequest,
        format!("{:?} is not properly percent-encoded UTF-8", shown(text)),
    )
}

impl Verb {
    /// Whether it changes nothing.
    pub fn reads(self) -> bool {
        match self {
            Self::Get | Self::List | Self::Watch => true,
            Self::Create | Self::Update | Self::Patch | Self::Delete | Self::DeleteCollection => {
                false
            }
        }
    }
}

impl Target {
    /// Whether the request writes into the store. An order to a machine is carried out by its node.
    pub fn stores(&self) -> bool {
        !self.verb.reads() && !self.is_stream() && self.subresource != "power"
    }

    /// Whether the answer is a stream without an end of its own, to which no timeout applies.
    pub fn is_stream(&self) -> bool {
        self.verb == Verb::Watch
            || matches!(
                self.subresource.as_str(),
                "proxy" | "log" | "exec" | "attach" | "portforward"
            )
    }

    /// Parses the resource that a path names; `None` for paths that name none (discovery, health,
    /// …).
    ///
    /// # Errors
    /// The namespace or the name has a percent escape that is no byte or no UTF-8, or the method
    /// does nothing at such a path.
    pub fn parse(method: &Method, path: &str, query: &Query) -> Result<Option<Self>, ApiError> {
        let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let (group, version, rest) = match segments.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Ok(None),
        };
        // The legacy path of a watch.
        let (watch, rest) = match rest {
            ["watch", rest @ ..] if !rest.is_empty() => (true, rest),
            rest => (false, rest),
        };
        let at = if rest.first() == Some(&"namespaces") {
            4
        } else {
            2
        };
        let proxied = rest
            .get(at)
            .is_some_and(|segment| *segment == "proxy")
            .then_some(at);
        let (rest, behind) = match proxied {
            Some(at) => {
                let (own, behind) = rest.split_at(at + 1);
                (
                    own,
                    behind
                        .iter()
                        .fold(String::new(), |path, segment| path + "/" + segment),
                )
            }
            // A trailing slash is ignored, except behind a proxy.
            None => (rest.strip_suffix(&[""]).unwrap_or(rest), String::new()),
        };
        let (namespace, rest) = match rest {
            // A namespace's own path and its subresources.
            ["namespaces"] | ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => {
                ("", rest)
            }
            ["namespaces", namespace, rest @ ..] => (*namespace, rest),
            rest => ("", rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] if !plural.is_empty() => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, subresource] => (*plural, *name, *subresource),
            _ => return Ok(None),
        };
        let (namespace, mut name) = (segment(namespace)?, segment(name)?);
        let verb = if watch && matches!(*method, Method::GET | Method::HEAD) {
            Verb::Watch
        } else {
            verb(method, !name.is_empty(), subresource, query)?
        };
        if matches!(verb, Verb::List | Verb::Watch) && name.is_empty() {
            selected_name(query.get("fieldSelector")).clone_into(&mut name);
        }
        let (group, version) = (group.to_owned(), version.to_owned());
        let (plural, subresource) = (plural.to_owned(), subresource.to_owned());
        Ok(Some(Self {
            verb,
            group,
            version,
            plural,
            namespace,
            name,
            subresource,
            rest: behind,
        }))
    }
}

/// The name that a field selector demands, if it does; authorization by name uses it.
fn selected_name(selector: &str) -> &str {
    let wanted = selector
        .split(',')
        .find_map(|part| part.strip_prefix("metadata.name="));
    let name = wanted.map_or("", |name| name.trim_start_matches('='));
    if matches!(name, "." | "..") || name.contains(['/', '%', '\\']) {
        ""
    } else {
        name
    }
}

fn verb(method: &Method, named: bool, subresource: &str, query: &Query) -> Result<Verb, ApiError> {
    match (method.as_str(), named) {
        ("GET" | "HEAD", true) => Ok(Verb::Get),
        ("GET" | "HEAD", false) if query.on("watch") => Ok(Verb::Watch),
        ("GET" | "HEAD", false) => Ok(Verb::List),
        ("POST", _) => Ok(Verb::Create),
        ("PUT", true) => Ok(Verb::Update),
        ("PATCH", true) => Ok(Verb::Patch),
        ("DELETE", true) => Ok(Verb::Delete),
        ("DELETE", false) => Ok(Verb::DeleteCollection),
        // The target of a proxy decides which methods it supports.
        ("OPTIONS", true) if subresource == "proxy" => Ok(Verb::Get),
        _ => Err(not_allowed()),
    }
}

/// Upstream's error for a method that a resource does not support.
pub fn not_allowed() -> ApiError {
    ApiError::new(
        Reason::MethodNotAllowed,
        "the server does not allow this method on the requested resource",
    )
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
        assert_eq!(
            (&*pod.namespace, &*pod.plural, &*pod.name, &*pod.subresource),
            ("a", "pods", "b", "log")
        );
        let all = parse(&Method::GET, "/api/v1/pods", "watch=1").unwrap();
        assert_eq!((all.verb, &*all.namespace), (Verb::Watch, ""));
        let namespace = parse(&Method::PUT, "/api/v1/namespaces/a/finalize", "").unwrap();
        assert_eq!(
            (
                &*namespace.plural,
                &*namespace.name,
                &*namespace.subresource
            ),
            ("namespaces", "a", "finalize")
        );
        let lease = parse(
            &Method::POST,
            "/apis/coordination.k8s.io/v1/namespaces/n/leases",
            "",
        )
        .unwrap();
        assert_eq!(
            (&*lease.group, lease.verb),
            ("coordination.k8s.io", Verb::Create)
        );
        for path in [
            "/api",
            "/api/v1",
            "/api/v1/",
            "/apis/apps/v1",
            "/livez",
            "/",
            "/api/v1/pods/a/b/c",
        ] {
            assert_eq!(parse(&Method::GET, path, ""), None, "{path}");
        }
    }

    #[test]
    fn the_legacy_watch_and_a_selected_name_are_understood() {
        let old = parse(&Method::GET, "/api/v1/watch/namespaces/a/pods/b", "").unwrap();
        assert_eq!(
            (old.verb, &*old.namespace, &*old.plural, &*old.name),
            (Verb::Watch, "a", "pods", "b")
        );
        let all = parse(&Method::GET, "/apis/apps/v1/watch/deployments", "").unwrap();
        assert_eq!((all.verb, &*all.name), (Verb::Watch, ""));
        let one = parse(
            &Method::GET,
            "/api/v1/pods",
            "fieldSelector=metadata.name%3Dx,spec.nodeName%3Dn",
        )
        .unwrap();
        assert_eq!((one.verb, &*one.name), (Verb::List, "x"));
        let not = parse(
            &Method::GET,
            "/api/v1/pods",
            "fieldSelector=metadata.name!%3Dx",
        )
        .unwrap();
        assert_eq!(&*not.name, "");
    }

    #[test]
    fn a_proxied_program_keeps_its_own_path() {
        let node = parse(
            &Method::GET,
            "/api/v1/nodes/https:n1:10250/proxy/logs/a/",
            "",
        )
        .unwrap();
        assert_eq!(
            (&*node.name, &*node.subresource, &*node.rest),
            ("https:n1:10250", "proxy", "/logs/a/")
        );
        let pod = parse(&Method::POST, "/api/v1/namespaces/a/pods/p:80/proxy", "").unwrap();
        assert_eq!(
            (pod.verb, &*pod.name, &*pod.rest),
            (Verb::Create, "p:80", "")
        );
        let named = parse(&Method::GET, "/api/v1/namespaces/a/configmaps/proxy", "").unwrap();
        assert_eq!((&*named.plural, &*named.name), ("configmaps", "proxy"));
    }

    #[test]
    fn a_request_may_ask_for_less_time_and_never_for_more() {
        let asked = |text: &str| Query::parse(&format!("timeout={text}")).unwrap().timeout();
        for (text, seconds) in [
            ("1m30s", 60.0),
            ("1.5s", 1.5),
            ("250ms", 0.25),
            ("0s", 60.0),
            ("0", 60.0),
            ("2h", 60.0),
        ] {
            assert_eq!(
                asked(text).unwrap(),
                Some(Duration::from_secs_f64(seconds)),
                "{text}"
            );
        }
        assert_eq!(asked("").unwrap(), None);
        for bad in ["invalid", "5", "s", "-1s", "1x", "1.2.3s"] {
            assert_eq!(asked(bad).unwrap_err().code, 400, "{bad}");
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
