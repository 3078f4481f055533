//! The headers of a request that is proxied to a program in a pod, and of its answer (upstream's
//! `UpgradeAwareHandler` and `proxy.Transport`).
//!
//! No credential of the caller is passed on: neither `Authorization` nor what names or impersonates
//! a user. Cookies are passed on: this server accepts none as a credential, and programs with
//! a login of their own need them.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use std::net::IpAddr;

/// Hop-by-hop headers (RFC 9110, 7.6.1).
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
/// Headers of a request that are this server's: credentials, and what it has answered itself.
const NOT_FORWARDED: [HeaderName; 4] = [
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::EXPECT,
    header::ACCEPT_ENCODING,
];
/// Beginnings of headers by which callers act for others, or front proxies name users.
const IDENTITY_PREFIXES: [&str; 2] = ["impersonate-", "x-remote-"];
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// Under which path a proxied program appears: rewrites headers and links so that they lead through
/// it.
#[derive(Debug, Clone)]
pub struct ReverseProxy {
    /// The path that leads to the program's root, without a slash at its end.
    prefix: String,
    /// Names by which a program may call itself: the `Host` of the request, and its address and
    /// port.
    hosts: Vec<String>,
}

impl ReverseProxy {
    /// `prefix` must be made of names that were checked: it is written into headers and pages.
    pub fn new(prefix: String, hosts: Vec<String>) -> Self {
        Self { prefix, hosts }
    }

    /// The headers of the request that the program gets. Compressed pages could not be read here,
    /// so that none is asked for.
    pub fn request(
        &self,
        received: &HeaderMap,
        rest: &str,
        client: Option<IpAddr>,
        upgrade: bool,
    ) -> HeaderMap {
        let mut headers = end_to_end(received);
        for name in &NOT_FORWARDED {
            headers.remove(name);
        }
        let identifies = |name: &&HeaderName| {
            IDENTITY_PREFIXES
                .iter()
                .any(|start| name.as_str().starts_with(start))
        };
        let names: Vec<HeaderName> = headers.keys().filter(identifies).cloned().collect();
        for name in names {
            headers.remove(name);
        }
        headers.insert(
            header::ACCEPT_ENCODING,
            HeaderValue::from_static("identity"),
        );
        if let Ok(value) = HeaderValue::from_str(&format!("{}{rest}", self.prefix)) {
            headers.insert(FORWARDED_URI, value);
        }
        if let Some(client) = client {
            let before = headers.get_all(FORWARDED_FOR).iter();
            let mut all: Vec<String> = before
                .filter_map(|value| value.to_str().ok())
                .map(str::to_owned)
                .collect();
            all.push(client.to_string());
            if let Ok(value) = HeaderValue::from_str(&all.join(", ")) {
                headers.insert(FORWARDED_FOR, value);
            }
        }
        if upgrade {
            headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
            if let Some(to) = received.get(header::UPGRADE) {
                headers.insert(header::UPGRADE, to.clone());
            }
        }
        headers
    }

    /// The headers of the answer that the client gets.
    pub fn answer(&self, received: &HeaderMap) -> HeaderMap {
        let mut headers = end_to_end(received);
        let moved = received.get(header::LOCATION);
        let moved = moved.and_then(|value| self.link(value.to_str().ok()?));
        if let Some(value) = moved.and_then(|to| HeaderValue::from_str(&to).ok()) {
            headers.insert(header::LOCATION, value);
        }
        headers
    }

    /// A link of the program's that does not lead through this server yet, as one that does. `None`
    /// if it needs no change: it leads to another host, is relative, or leads through this server
    /// already.
    pub fn link(&self, to: &str) -> Option<String> {
        let lower = to.get(..8).unwrap_or(to).to_ascii_lowercase();
        let start = ["http://", "https://", "//"]
            .into_iter()
            .find(|start| lower.starts_with(start));
        let path = match start {
            Some(start) => {
                let rest = to.get(start.len()..)?;
                let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
                if !self.hosts.iter().any(|own| own == host) {
                    return None;
                }
                path
            }
            None => to,
        };
        if !path.starts_with('/') {
            return None;
        }
        let below = path.strip_prefix(&self.prefix);
        if below.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#'])) {
            return start.map(|_| path.to_owned());
        }
        Some(format!("{}{path}", self.prefix))
    }
}

/// The headers without those that are for the next hop alone.
fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let listed = headers.get_all(header::CONNECTION).iter();
    let listed: Vec<HeaderName> = listed
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let mut kept = headers.clone();
    for name in HOP_BY_HOP.iter().chain(&listed) {
        kept.remove(name);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "/api/v1/namespaces/a/pods/p/proxy";

    fn proxy() -> ReverseProxy {
        let hosts = vec!["localhost:8001".to_owned(), "10.1.0.2:8080".to_owned()];
        ReverseProxy::new(PREFIX.to_owned(), hosts)
    }

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let all = all.iter();
        all.map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        })
        .collect()
    }

    #[test]
    fn no_credential_of_the_caller_and_nothing_between_neighbours_is_passed_on() {
        let asked = headers(&[
            ("authorization", "Bearer secret"),
            ("proxy-authorization", "Basic secret"),
            ("impersonate-user", "root"),
            ("impersonate-extra-scopes", "all"),
            ("x-remote-user", "root"),
            ("x-remote-extra-a", "b"),
            ("connection", "keep-alive, x-mine"),
            ("keep-alive", "5"),
            ("x-mine", "hop"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("expect", "100-continue"),
            ("accept-encoding", "gzip"),
            ("x-forwarded-for", "203.0.113.9"),
            ("host", "localhost:8001"),
            ("cookie", "session=1"),
            ("content-type", "text/plain"),
        ]);
        let client = Some("192.0.2.7".parse().unwrap());
        let passed = proxy().request(&asked, "/x/", client, false);
        let mut all: Vec<(&str, &str)> = passed
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        all.sort_unstable();
        let uri = format!("{PREFIX}/x/");
        assert_eq!(
            all,
            [
                ("accept-encoding", "identity"),
                ("content-type", "text/plain"),
                ("cookie", "session=1"),
                ("host", "localhost:8001"),
                ("x-forwarded-for", "203.0.113.9, 192.0.2.7"),
                ("x-forwarded-uri", &*uri),
            ]
        );
        let upgraded = proxy().request(&asked, "/", None, true);
        assert_eq!(upgraded["connection"], "Upgrade");
        assert_eq!(upgraded["upgrade"], "h2c");
        assert!(!upgraded.contains_key("authorization"));
    }

    #[test]
    fn an_answer_leads_back_through_this_server() {
        let answered = headers(&[
            ("location", "http://10.1.0.2:8080/next?a=b"),
            ("connection", "close"),
            ("set-cookie", "session=1"),
        ]);
        let passed = proxy().answer(&answered);
        assert_eq!(passed["location"], &*format!("{PREFIX}/next?a=b"));
        assert!(passed.contains_key("set-cookie") && !passed.contains_key("connection"));
    }

    #[test]
    fn own_links_are_led_through_this_server_and_others_stay() {
        let through = |rest: &str| Some(format!("{PREFIX}{rest}"));
        for (link, expected) in [
            ("/x/", through("/x/")),
            ("/", through("/")),
            ("//10.1.0.2:8080/x", through("/x")),
            ("HTTP://localhost:8001/x#y", through("/x#y")),
            // Browsers take a backslash for a slash: this would else be another host.
            ("/\\evil.example", through("/\\evil.example")),
            ("//evil.example/x", None),
            ("https://evil.example/", None),
            ("http://10.1.0.2:8080", None),
            ("x/y", None),
            ("", None),
            ("#a", None),
            ("mailto:a@b", None),
            ("javascript:/x", None),
            ("/api/v1/namespaces/a/pods/p/proxy/x", None),
            (
                "/api/v1/namespaces/a/pods/p/proxyother",
                through("/api/v1/namespaces/a/pods/p/proxyother"),
            ),
        ] {
            assert_eq!(proxy().link(link), expected, "{link}");
        }
        let own = format!("http://localhost:8001{PREFIX}/x");
        assert_eq!(proxy().link(&own), through("/x"));
    }
}
