//! Finds the bearer token of a request: in the `Authorization` header, or, for browsers, in the
//! WebSocket protocols.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderValue, header};

/// Prefix of the WebSocket protocol that carries a token.
const PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// The token, if the request has one.
pub(super) fn token(headers: &HeaderMap) -> Option<String> {
    let value = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    if let Some(value) = value {
        let mut words = value.trim().splitn(3, ' ');
        let scheme = words.next().unwrap_or_default();
        let token = words.next().unwrap_or_default();
        return (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
            .then(|| token.to_owned());
    }
    let protocols = headers
        .get_all(header::SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut protocols = protocols.flat_map(|list| list.split(',')).map(str::trim);
    let encoded = protocols.find_map(|protocol| protocol.strip_prefix(PROTOCOL))?;
    String::from_utf8(URL_SAFE_NO_PAD.decode(encoded).ok()?)
        .ok()
        .filter(|token| !token.is_empty())
}

/// Removes the token from the headers, so that it is not forwarded.
pub(super) fn forget(headers: &mut HeaderMap) {
    headers.remove(header::AUTHORIZATION);
    let listed = headers
        .get_all(header::SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let protocols: Vec<&str> = listed
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .collect();
    if !protocols
        .iter()
        .any(|protocol| protocol.starts_with(PROTOCOL))
    {
        return;
    }
    let rest: Vec<&str> = protocols
        .into_iter()
        .filter(|protocol| !protocol.starts_with(PROTOCOL))
        .collect();
    match HeaderValue::from_str(&rest.join(", ")) {
        Ok(value) if !rest.is_empty() => {
            drop(headers.insert(header::SEC_WEBSOCKET_PROTOCOL, value));
        }
        Ok(_) | Err(_) => drop(headers.remove(header::SEC_WEBSOCKET_PROTOCOL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn a_token_is_found_where_clients_put_it_and_removed() {
        for (value, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer abc def", Some("abc")),
            ("Bearer ", None),
            ("Basic abc", None),
            ("abc", None),
        ] {
            assert_eq!(
                token(&with(header::AUTHORIZATION, value)).as_deref(),
                expected,
                "{value}"
            );
        }
        let mut headers = with(
            header::SEC_WEBSOCKET_PROTOCOL,
            &format!("{PROTOCOL}YWJj, v5.channel.k8s.io"),
        );
        assert_eq!(token(&headers).as_deref(), Some("abc"));
        forget(&mut headers);
        assert_eq!(headers[header::SEC_WEBSOCKET_PROTOCOL], "v5.channel.k8s.io");
    }
}
