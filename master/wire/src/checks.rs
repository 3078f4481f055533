//! Answers of the health endpoints, in upstream's form.

use crate::path::Query;
use crate::respond::text;
use http::{Response, StatusCode};
use master_client::Body;
use master_schema::error::{ApiError, no_resource, shown};

/// One named check.
#[derive(Debug)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// Whether it passed.
    pub good: bool,
}

/// The answer of an endpoint (`livez`, `readyz`, `healthz`): of all its checks, or of one that the
/// path names.
///
/// # Errors
/// There is no check of that name.
pub fn answer(
    endpoint: &str,
    name: Option<&str>,
    checks: &[Check],
    query: &Query,
) -> Result<Response<Body>, ApiError> {
    let Some(name) = name else {
        return Ok(all(endpoint, checks, query));
    };
    let check = checks
        .iter()
        .find(|check| check.name == name)
        .ok_or_else(no_resource)?;
    Ok(if check.good {
        text(StatusCode::OK, "ok".to_owned())
    } else {
        let body = format!("internal server error: {name} failed: reason withheld\n");
        text(StatusCode::INTERNAL_SERVER_ERROR, body)
    })
}

/// The answer: short if all checks pass, else (or with `?verbose`) a line for each check.
fn all(kind: &str, checks: &[Check], query: &Query) -> Response<Body> {
    let excluded: Vec<&str> = query.all("exclude").collect();
    let healthy = checks
        .iter()
        .all(|check| check.good || excluded.contains(&check.name));
    let status = if healthy {
        StatusCode::OK
    } else {
        StatusCode::INTERNAL_SERVER_ERROR
    };
    if healthy && !query.has("verbose") {
        return text(status, "ok".to_owned());
    }
    let mut lines = Vec::new();
    for Check { name, good } in checks {
        lines.push(match (excluded.contains(name), good) {
            (true, _) => format!("[+]{name} excluded: ok"),
            (false, true) => format!("[+]{name} ok"),
            (false, false) => format!("[-]{name} failed: reason withheld"),
        });
    }
    let unknown: Vec<String> = excluded
        .iter()
        .filter(|name| !checks.iter().any(|check| check.name == **name))
        .map(|name| format!("{:?}", shown(name)))
        .collect();
    if !unknown.is_empty() {
        lines.push(format!(
            "warn: some health checks cannot be excluded: no matches for {}",
            unknown.join(",")
        ));
    }
    lines.push(format!(
        "{kind} check {}\n",
        if healthy { "passed" } else { "failed" }
    ));
    text(status, lines.join("\n"))
}
