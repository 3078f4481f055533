//! The URL of a request, and where a redirect leads from there (pure): probes follow
//! redirects that stay at their host (upstream's rule).

use config_kube::k8s_openapi::api::core::v1::HTTPGetAction;
use http::Uri;

/// The URL of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url {
    /// In lower case.
    pub(crate) scheme: String,
    /// A name, or an address without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// With its query.
    pub(crate) path: String,
}

impl Url {
    /// The URL of an action whose host and port are known.
    pub(crate) fn of(get: &HTTPGetAction, host: &str, port: u16) -> Self {
        let scheme = get.scheme.as_deref().unwrap_or("HTTP");
        let path = get.path.as_deref().unwrap_or_default();
        let slash = if path.starts_with('/') { "" } else { "/" };
        Self {
            scheme: scheme.to_ascii_lowercase(),
            host: host.to_owned(),
            port,
            path: format!("{slash}{path}"),
        }
    }
}

/// The URL that a redirect to `location` means at `from`; none where it leads to another host, or
/// is no URL.
pub(crate) fn next(from: &Url, location: &str) -> Option<Url> {
    let location = location.split('#').next().unwrap_or_default();
    let same = |path: String| Url {
        path,
        ..from.clone()
    };
    let absolute = if location.starts_with("//") {
        format!("{}:{location}", from.scheme)
    } else if location.contains("://") {
        location.to_owned()
    } else if location.starts_with('/') {
        return Some(same(location.to_owned()));
    } else {
        let path = from.path.split('?').next().unwrap_or_default();
        if location.is_empty() || location.starts_with('?') {
            return Some(same(format!("{path}{location}")));
        }
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        return Some(same(format!("{folder}/{location}")));
    };
    let uri: Uri = absolute.parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let host = uri.host()?.trim_matches(['[', ']']).to_owned();
    let usual = if scheme == "https" { 443 } else { 80 };
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    host.eq_ignore_ascii_case(&from.host).then(|| Url {
        scheme,
        port: uri.port_u16().unwrap_or(usual),
        path: path.to_owned(),
        host,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_is_followed_within_the_host_and_nowhere_else() {
        let from = Url {
            scheme: "http".to_owned(),
            host: "10.1.0.2".to_owned(),
            port: 8080,
            path: "/a/b?c".to_owned(),
        };
        let leads = |location: &str| {
            next(&from, location)
                .map(|place| format!("{} {} {}", place.scheme, place.port, place.path))
        };
        for (location, place) in [
            ("/healthz", "http 8080 /healthz"),
            ("healthz?x#y", "http 8080 /a/healthz?x"),
            ("?x", "http 8080 /a/b?x"),
            ("http://10.1.0.2:81/x", "http 81 /x"),
            ("https://10.1.0.2", "https 443 /"),
            ("//10.1.0.2/x", "http 80 /x"),
        ] {
            assert_eq!(leads(location).as_deref(), Some(place), "{location}");
        }
        for location in ["http://0.0.0.0/", "//example/x", "http://[::1", "://"] {
            assert_eq!(leads(location), None, "{location}");
        }
        let from = Url {
            host: "2001:db8::7".to_owned(),
            ..from
        };
        assert!(next(&from, "http://[2001:DB8::7]/x").is_some());
    }
}
