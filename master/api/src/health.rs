//! Health endpoints: `/livez`, `/readyz`, `/healthz`, and each check under its own path.
//!
//! A check has upstream's name where it checks what upstream's does. Names of what this server
//! doesn't have (the controllers of CustomResourceDefinitions, of APIServices and of identity
//! leases, among others) are left out, though some of upstream's tests look for them.

use crate::state::ApiServer;
use http::Response;
use master_client::Body;
use master_initial::Part;
use master_schema::error::ApiError;
use master_wire::checks::{self, Check};
use master_wire::path::Query;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering};

/// The parts that [`ApiServer::prepare`] makes ready, under upstream's names.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Hook {
    /// The system's namespaces are there.
    Namespaces,
    /// So are the priority classes,
    Classes,
    /// the default roles,
    Roles,
    /// the default flow schemas,
    Flows,
    /// and the service by which pods reach this server.
    Service,
}

impl Hook {
    const ALL: [(Self, &'static str); 5] = [
        (
            Self::Namespaces,
            "poststarthook/start-system-namespaces-controller",
        ),
        (
            Self::Classes,
            "poststarthook/scheduling/bootstrap-system-priority-classes",
        ),
        (Self::Roles, "poststarthook/rbac/bootstrap-roles"),
        (
            Self::Flows,
            "poststarthook/priority-and-fairness-config-producer",
        ),
        (Self::Service, "poststarthook/bootstrap-controller"),
    ];

    pub(crate) fn of(part: Part) -> Self {
        match part {
            Part::Namespaces => Self::Namespaces,
            Part::Classes => Self::Classes,
            Part::Roles => Self::Roles,
            Part::Flows => Self::Flows,
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Which parts are ready.
#[derive(Debug, Default)]
pub(crate) struct Prepared(AtomicU8);

impl Prepared {
    pub(crate) fn is(&self, hook: Hook) {
        self.0.fetch_or(hook.bit(), Ordering::AcqRel);
    }

    fn has(&self, hook: Hook) -> bool {
        self.0.load(Ordering::Acquire) & hook.bit() != 0
    }
}

impl ApiServer {
    /// Answers `/livez`, `/readyz`, `/healthz` and the paths below them. All fail when the store's
    /// writer stopped, when no process reads standard error, and before preparation is done;
    /// `readyz` and `healthz` also while reads lag behind the store and while the server drains.
    pub(crate) async fn health(
        &self,
        path: &str,
        query: &Query,
    ) -> Result<Response<Body>, ApiError> {
        let path = path.trim_matches('/');
        let (kind, name) = match path.split_once('/') {
            Some((kind, name)) => (kind, Some(name)),
            None => (path, None),
        };
        let checks = self.checks(kind != "livez").await;
        self.note(kind, &checks);
        checks::answer(kind, name, &checks, query)
    }

    /// `/metrics/slis`: how each check ends now, and how often it ended well or not.
    pub(crate) async fn checked(&self) -> String {
        for kind in master_metrics::HEALTH {
            self.note(kind, &self.checks(kind != "livez").await);
        }
        self.inner.metrics.health().write()
    }

    fn note(&self, kind: &str, checks: &[Check]) {
        let checks = checks.iter().map(|check| (check.name, check.good));
        self.inner.metrics.health().note(kind, checks);
    }

    async fn checks(&self, ready: bool) -> Vec<Check> {
        let inner = &self.inner;
        let check = |name, good| Check { name, good };
        let mut checks = vec![
            check("ping", true),
            check("log", is_taken(std::io::stderr())),
            check("etcd", inner.writer.takes_writes(&*inner.store).await),
        ];
        if ready {
            let answers = inner.reader.revision().await.is_ok();
            checks.push(check("informer-sync", answers));
        }
        checks.extend(Hook::ALL.map(|(hook, name)| check(name, inner.prepared.has(hook))));
        if ready {
            checks.push(check("shutdown", !inner.draining.is_cancelled()));
        }
        checks
    }
}

/// The paths of the checks.
pub(crate) fn paths() -> impl Iterator<Item = String> {
    let names = ["ping", "log", "etcd"].into_iter();
    let names = names.chain(Hook::ALL.map(|(_, name)| name));
    let live = names.clone().map(|name| format!("/livez/{name}"));
    let ready = names.chain(["informer-sync", "shutdown"]);
    live.chain(ready.map(|name| format!("/readyz/{name}")))
}

/// Whether what is written to the log goes anywhere: the other end of a pipe is open.
fn is_taken(log: impl AsFd) -> bool {
    let mut watched = [PollFd::new(log.as_fd(), PollFlags::empty())];
    poll(&mut watched, PollTimeout::ZERO).is_ok_and(|ended| ended == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_nobody_reads_is_no_log() {
        let (reader, writer) = std::io::pipe().unwrap();
        assert!(is_taken(&writer));
        drop(reader);
        assert!(!is_taken(&writer));
    }
}
