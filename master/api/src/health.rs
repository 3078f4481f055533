//! Health endpoints: `/livez`, `/readyz`, `/healthz`, and each check under its own path.

use crate::state::ApiServer;
use http::{Response, StatusCode};
use master_client::Body;
use master_schema::error::{ApiError, no_resource};
use master_store::{Action, Expect, Op, StoreError};
use master_wire::path::Query;
use master_wire::respond::text;

/// One named check.
struct Check {
    name: &'static str,
    good: bool,
}

impl ApiServer {
    /// Answers `/livez`, `/readyz`, `/healthz` and the paths below them. `livez` fails when the
    /// store's writer stopped, `readyz` also before preparation is done and while the server
    /// drains.
    pub(crate) async fn health(
        &self,
        path: &str,
        query: &Query,
    ) -> Result<Response<Body>, ApiError> {
        let mut segments = path.trim_matches('/').split('/');
        let kind = segments.next().unwrap_or_default();
        let checks = self.checks(kind != "livez").await;
        match (segments.next(), segments.next()) {
            (None, _) => Ok(answer(kind, &checks, query)),
            (Some(name), None) => {
                let check = checks
                    .iter()
                    .find(|check| check.name == name)
                    .ok_or_else(no_resource)?;
                Ok(if check.good {
                    text(StatusCode::OK, "ok".to_owned())
                } else {
                    let text_ = format!("internal server error: {name} failed: reason withheld\n");
                    text(StatusCode::INTERNAL_SERVER_ERROR, text_)
                })
            }
            (Some(_), Some(_)) => Err(no_resource()),
        }
    }

    async fn checks(&self, ready: bool) -> Vec<Check> {
        let op = Op {
            key: "health/check".into(),
            expect: Expect::Any,
            action: Action::Check,
        };
        let writes = self.inner.store.commit(vec![op]).await;
        let mut checks = vec![
            Check {
                name: "ping",
                good: true,
            },
            Check {
                name: "store",
                good: !matches!(writes, Err(StoreError::Closed)),
            },
        ];
        if ready {
            checks.push(Check {
                name: "namespaces",
                good: self.prepared(),
            });
            checks.push(Check {
                name: "shutdown",
                good: !self.draining().is_cancelled(),
            });
        }
        checks
    }
}

/// The answer: short if all checks pass, else (or with `?verbose`) a line for each check.
fn answer(kind: &str, checks: &[Check], query: &Query) -> Response<Body> {
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
        .map(|name| format!("{name:?}"))
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
