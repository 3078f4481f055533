//! Which right in the API a request to the node needs (pure): the mapping of upstream's kubelet,
//! with fine-grained rights (KEP-2862).
//!
//! This is stricter than upstream in one point: requests that run commands in pods or connect to
//! them need the right to `create` with any method. A WebSocket begins with GET, and the right to
//! read must not include the right to run.

use http::Method;

/// A right to a node that a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeededRight {
    /// The verb.
    pub verb: &'static str,
    /// Subresources of the node, the narrowest first: the right to any of them is enough.
    pub subresources: &'static [&'static str],
}

impl NeededRight {
    /// The right that a method and a path need.
    pub fn of(method: &Method, path: &str) -> Self {
        let mut parts = path.trim_start_matches('/').split('/');
        let first = parts.next().unwrap_or_default();
        let subresources: &[&str] = match first {
            "stats" => &["stats"],
            "metrics" => &["metrics"],
            "logs" => &["log"],
            "pods" | "runningpods" => &["pods", "proxy"],
            "healthz" => &["healthz", "proxy"],
            "configz" => &["configz", "proxy"],
            "statusz" => &["statusz", "proxy"],
            "flagz" => &["flagz", "proxy"],
            _ => &["proxy"],
        };
        let runs = matches!(
            first,
            "exec" | "run" | "attach" | "portForward" | "podPort" | "cri"
        );
        let verb = match method.as_str() {
            method if runs || method == "POST" => "create",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" => "delete",
            _ => "get",
        };
        Self { verb, subresources }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_needs_its_own_right() {
        for (method, path, verb, subresources) in [
            (Method::GET, "/stats/summary", "get", &["stats"][..]),
            (Method::GET, "/metrics", "get", &["metrics"]),
            (Method::GET, "/metrics/cadvisor", "get", &["metrics"]),
            (Method::GET, "/logs/", "get", &["log"]),
            (Method::GET, "/pods", "get", &["pods", "proxy"]),
            (Method::GET, "/runningpods/", "get", &["pods", "proxy"]),
            (Method::GET, "/healthz/ping", "get", &["healthz", "proxy"]),
            (Method::GET, "/configz", "get", &["configz", "proxy"]),
            (Method::GET, "/statusz", "get", &["statusz", "proxy"]),
            (Method::GET, "/flagz", "get", &["flagz", "proxy"]),
            (Method::GET, "/containerLogs/a/b/c", "get", &["proxy"]),
            (Method::HEAD, "/x", "get", &["proxy"]),
            (Method::POST, "/x", "create", &["proxy"]),
            (Method::DELETE, "/x", "delete", &["proxy"]),
            // A prefix of a name is another name.
            (Method::GET, "/metricsx", "get", &["proxy"]),
            (Method::GET, "//metrics", "get", &["metrics"]),
            (Method::GET, "/./metrics", "get", &["proxy"]),
        ] {
            assert_eq!(
                NeededRight::of(&method, path),
                NeededRight { verb, subresources },
                "{path}"
            );
        }
    }

    #[test]
    fn running_in_pods_needs_more_than_a_right_to_read() {
        for path in [
            "/exec/a/b/c",
            "/run/a/b/c",
            "/attach/a/b/c",
            "/portForward/a/b",
            "/podPort/a/b/c/1",
        ] {
            let right = NeededRight::of(&Method::GET, path);
            assert_eq!((right.verb, right.subresources), ("create", &["proxy"][..]));
        }
    }
}
