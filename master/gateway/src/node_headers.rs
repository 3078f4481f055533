//! What requests to nodes, and their answers, carry.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Hop-by-hop headers (RFC 9110, 7.6.1), and those with the caller's credentials, which no node
/// gets.
const OWN: [HeaderName; 10] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::AUTHORIZATION,
    header::COOKIE,
    header::HOST,
];

/// The headers that are forwarded to a node, or back from it.
pub fn for_node(headers: &HeaderMap) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
    headers
        .iter()
        .filter(|(name, _)| !OWN.contains(name) && !name.as_str().starts_with("impersonate-"))
}

/// Whether a path of the kubelet answers for as long as a container runs, or a machine: followed
/// logs.
pub fn follows(path: &str, query: &str) -> bool {
    let logs = ["/containerLogs/", "/logs/"];
    logs.iter().any(|logs| path.starts_with(logs))
        && query
            .split('&')
            .any(|pair| matches!(pair, "follow=true" | "follow=1"))
}

#[cfg(test)]
mod tests {
    use super::follows;

    #[test]
    fn only_logs_that_are_followed_take_their_time() {
        assert!(follows("/containerLogs/a/b/c", "tailLines=1&follow=true"));
        assert!(follows("/logs/", "query=agent&follow=1"));
        assert!(!follows("/logs/", "query=agent"));
        assert!(!follows("/pods", "follow=true"));
    }
}
