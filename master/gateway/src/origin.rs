//! What pages of another origin may ask for.
//!
//! A browser adds its user's certificate to what any page sends, and `kubectl proxy` adds its
//! user's token. The answers stay hidden from a page of another origin, as this server never allows
//! them (CORS), and most of its requests are announced by a preflight, which is refused. Two are
//! not, and would act with the user's rights: a WebSocket, which the page could also read, and a
//! POST without a type of its own.
//!
//! `Origin` alone does not tell pages of the loopback apart: one that `kubectl port-forward` shows
//! is of another port than `kubectl proxy`, whose own is not in what it passes on. A browser tells
//! them apart by `Sec-Fetch-Site`. Programs send neither. Browsers that leave it out (Chromium does
//! with a WebSocket) are judged by `Origin` alone.

use http::header::{CONTENT_TYPE, HOST, ORIGIN, UPGRADE};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, Method, Uri};
use master_schema::error::{ApiError, Reason};

/// Types of a body that a page can send without a preflight (Fetch, "CORS-safelisted
/// request-header"), besides none at all.
const UNANNOUNCED: [&str; 4] = [
    "",
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data",
];

/// How the origin of the page that asks relates to the one that it asks (Fetch Metadata, "The
/// Sec-Fetch-Site HTTP Request Header").
const SITE: &str = "sec-fetch-site";

/// Checks a request before anything is done for it.
///
/// # Errors
/// A page of another origin asks to upgrade the connection, or sends what no preflight announced
/// (403).
pub fn check_origin(method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
    let upgrades = headers.contains_key(UPGRADE);
    let counts = upgrades || (method == Method::POST && is_unannounced(headers));
    if counts && (is_of_another_origin(headers) || is_named_another_origin(headers)) {
        let text = if upgrades {
            "a page of another origin gets no WebSocket here"
        } else {
            "a page of another origin sends nothing here without naming its type"
        };
        return Err(ApiError::new(Reason::Forbidden, text));
    }
    Ok(())
}

fn is_unannounced(headers: &HeaderMap) -> bool {
    let kind = value(headers, &CONTENT_TYPE).split(';').next();
    let kind = kind.unwrap_or_default().trim();
    UNANNOUNCED.iter().any(|one| kind.eq_ignore_ascii_case(one))
}

/// Whether a page asks that came from elsewhere. A page from this host may, and one from the
/// loopback, as `kubectl proxy` puts the server's name into `Host`.
fn is_of_another_origin(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else {
        return false;
    };
    let origin = origin
        .to_str()
        .ok()
        .and_then(|text| text.parse::<Uri>().ok());
    let Some(host) = origin.as_ref().and_then(Uri::host) else {
        return true;
    };
    let own = value(headers, &HOST).parse::<Authority>();
    let is_own = own.is_ok_and(|own| own.host().eq_ignore_ascii_case(host));
    !is_own && !matches!(host, "localhost" | "127.0.0.1" | "[::1]")
}

/// Whether a browser says that the page is of another origin, be it by its port alone. `none` is
/// what a user typed.
fn is_named_another_origin(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all(SITE).iter();
    sites.any(|site| !matches!(site.as_bytes(), b"same-origin" | b"none"))
}

fn value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn check(method: &Method, pairs: &[(HeaderName, &'static str)]) -> Result<(), u16> {
        let pairs = pairs.iter().cloned();
        let headers = pairs.map(|(name, value)| (name, HeaderValue::from_static(value)));
        check_origin(method, &headers.collect()).map_err(|error| error.code)
    }

    #[test]
    fn a_page_of_another_origin_gets_no_websocket() {
        let of = |host: &'static str, origin: Option<&'static str>| {
            let mut pairs = vec![(HOST, host), (UPGRADE, "websocket")];
            pairs.extend(origin.map(|origin| (ORIGIN, origin)));
            check(&Method::GET, &pairs)
        };
        assert_eq!(of("master.example:6443", None), Ok(()), "no browser asks");
        assert_eq!(
            of("master.example:6443", Some("https://Master.example")),
            Ok(())
        );
        for own in [
            "http://localhost:8001",
            "http://127.0.0.1:8001",
            "http://[::1]:8001",
        ] {
            assert_eq!(of("master.example:6443", Some(own)), Ok(()), "{own}");
        }
        for other in [
            "https://page.example",
            "null",
            "https://localhost.page.example",
            "file://",
            "",
        ] {
            assert_eq!(
                of("master.example:6443", Some(other)),
                Err(403),
                "{other:?}"
            );
        }
    }

    #[test]
    fn a_page_of_another_port_of_the_loopback_asks_for_nothing_where_the_browser_says_so() {
        let site = HeaderName::from_static(SITE);
        let of = |method: &Method, upgrades: bool, named: Option<&'static str>| {
            let mut pairs = vec![
                (HOST, "master.example:6443"),
                (ORIGIN, "http://localhost:8080"),
            ];
            pairs.extend(upgrades.then_some((UPGRADE, "websocket")));
            pairs.extend(named.map(|named| (site.clone(), named)));
            check(method, &pairs)
        };
        for (method, upgrades) in [(Method::GET, true), (Method::POST, false)] {
            for own in [None, Some("same-origin"), Some("none")] {
                assert_eq!(of(&method, upgrades, own), Ok(()), "{method} {own:?}");
            }
            for other in [
                "same-site",
                "cross-site",
                "",
                "Same-Origin",
                "same-origin, none",
            ] {
                let answer = of(&method, upgrades, Some(other));
                assert_eq!(answer, Err(403), "{method} {other:?}");
            }
        }
        let followed = of(&Method::GET, false, Some("cross-site"));
        assert_eq!(followed, Ok(()), "a link from elsewhere");
        let unnamed = [(HOST, "x"), (UPGRADE, "websocket"), (site, "same-site")];
        assert_eq!(check(&Method::GET, &unnamed), Err(403), "without an origin");
    }

    #[test]
    fn a_page_of_another_origin_posts_only_what_a_preflight_would_announce() {
        let of = |kind: Option<&'static str>| {
            let mut pairs = vec![(HOST, "master.example"), (ORIGIN, "https://page.example")];
            pairs.extend(kind.map(|kind| (CONTENT_TYPE, kind)));
            check(&Method::POST, &pairs)
        };
        for kind in [
            None,
            Some(""),
            Some("Text/Plain; charset=utf-8"),
            Some("application/x-www-form-urlencoded"),
            Some("multipart/form-data; boundary=x"),
        ] {
            assert_eq!(of(kind), Err(403), "{kind:?}");
        }
        assert_eq!(of(Some("application/json")), Ok(()));
        let own = [(HOST, "master.example"), (ORIGIN, "https://master.example")];
        assert_eq!(check(&Method::POST, &own), Ok(()));
        let read = [(HOST, "master.example"), (ORIGIN, "https://page.example")];
        assert_eq!(
            check(&Method::GET, &read),
            Ok(()),
            "its answer stays hidden"
        );
    }
}
