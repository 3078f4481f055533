//! `node.host_paths`: the folders and files of the machine that its pods may mount as `hostPath`.
//!
//! Pods can mount what the machine's own measured configuration lists, and nothing else. Some paths
//! cannot be listed at all, as a pod could act as the machine through them.

use crate::fault::{FaultKind, Position, Sink};
use crate::format::{FormatError, text_type};
use crate::raw::{RawHostPath, RawHostPathEntry};
use crate::read::At;

/// Paths that no pod may read or write: neither these, nor anything below or above them. Kernel
/// interfaces and devices, runtime sockets and secrets, and the state of the agent, the master and
/// the container runtime.
pub const NEVER: [&str; 13] = [
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/var/run",
    "/boot",
    "/efi",
    "/etc/pratique",
    "/var/lib/pratique",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/lib/etcd",
    "/oci",
];
/// Paths that no pod may write besides [`NEVER`]: programs and settings of the machine, and logs
/// that the agent writes.
pub const NEVER_WRITABLE: [&str; 9] = [
    "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/root", "/var/log",
];
/// Bytes of a path: `PATH_MAX` of Linux without the final NUL.
const MAX_PATH: usize = 4095;

text_type!(
    /// An absolute path in normal form: no `.`, no `..`, no `//`, no `/` at the end, no control
    /// characters.
    PlainPath,
    plain_path
);

/// A path of the machine that pods may mount, with everything below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPath {
    /// The path.
    pub path: PlainPath,
    /// Whether pods may write there.
    pub writable: bool,
}

/// The reason why a pod cannot mount a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// It is not listed.
    Unlisted,
    /// It is listed as read-only.
    ReadOnly,
}

/// Whether `paths` allows pods to mount `path`, for writing if `writable`.
///
/// Total over all texts; a `path` that is not a [`PlainPath`] is never allowed. It compares names
/// only: code that opens the path must not follow symbolic links.
///
/// # Errors
/// The reason to report for the pod.
pub fn allows(paths: &[HostPath], path: &str, writable: bool) -> Result<(), Refused> {
    if plain_path(path).is_err() {
        return Err(Refused::Unlisted);
    }
    let mut covering = paths
        .iter()
        .filter(|listed| holds(listed.path.as_str(), path))
        .peekable();
    if covering.peek().is_none() {
        return Err(Refused::Unlisted);
    }
    if writable && !covering.any(|listed| listed.writable) {
        Err(Refused::ReadOnly)
    } else {
        Ok(())
    }
}

/// Whether `path` is `folder` or below it.
fn holds(folder: &str, path: &str) -> bool {
    path.strip_prefix(folder.trim_end_matches('/'))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn plain_path(text: &str) -> Result<(), FormatError> {
    let parts = |text: &str| {
        text.split('/')
            .all(|part| !part.is_empty() && part != "." && part != "..")
    };
    let plain = text.len() <= MAX_PATH
        && !text.contains(char::is_control)
        && text
            .strip_prefix('/')
            .is_some_and(|rest| rest.is_empty() || parts(rest));
    if plain {
        return Ok(());
    }
    let error = FormatError::new("an absolute path without `.`, `..`, `//` and a `/` at its end");
    let trimmed = text.trim_end_matches('/');
    Err(if trimmed != text && plain_path(trimmed).is_ok() {
        error.hint(format!("write \"{trimmed}\""))
    } else {
        error
    })
}

/// Checks the list.
pub(crate) fn check(
    raw: Option<At<Vec<At<RawHostPathEntry>>>>,
    sink: &mut Sink<'_>,
) -> Vec<HostPath> {
    let mut paths: Vec<HostPath> = Vec::new();
    for At {
        value: RawHostPathEntry(raw),
        place,
    } in raw.map(|list| list.value).unwrap_or_default()
    {
        let Some((path, at)) = entry(raw, &place, sink) else {
            continue;
        };
        if paths.iter().any(|other| other.path == path.path) {
            sink.fault(
                FaultKind::Duplicate,
                &at,
                format!("{} a second time", path.path),
                "each path once",
            );
            continue;
        }
        paths.push(path);
    }
    paths
}

/// One path, and its position.
fn entry(raw: RawHostPath, table: &Position, sink: &mut Sink<'_>) -> Option<(HostPath, Position)> {
    let text = sink.required(
        raw.path,
        table,
        "path",
        "the path of a folder or file of the machine",
    )?;
    let path: PlainPath = sink.parse(&text)?;
    let writable = raw.writable.is_some_and(|flag| flag.value);
    let meets = |list: &[&'static str]| {
        list.iter()
            .copied()
            .find(|other| holds(other, path.as_str()) || holds(path.as_str(), other))
    };
    if let Some(other) = meets(&NEVER) {
        let found = format!("{}, {}", path, relation(path.as_str(), other));
        let expected = "a path by which no pod can act as the machine";
        let suggestion =
            "give the pods a folder of their own, such as \"/var/lib/NAME\"".to_owned();
        sink.suggest(
            FaultKind::BadValue,
            &text.place,
            found,
            expected,
            Some(suggestion),
        );
        return None;
    }
    if writable && let Some(other) = meets(&NEVER_WRITABLE) {
        let found = format!("{}, {}, for writing", path, relation(path.as_str(), other));
        let suggestion = "leave `writable` out, or give the pods a folder of their own, such as \"/var/lib/NAME\"";
        let expected = "a path that the machine neither runs, nor trusts, nor writes";
        sink.suggest(
            FaultKind::Conflict,
            &text.place,
            found,
            expected,
            Some(suggestion.to_owned()),
        );
        return None;
    }
    Some((HostPath { path, writable }, text.place))
}

fn relation(path: &str, other: &str) -> String {
    if path == other {
        "the machine's own".to_owned()
    } else if holds(other, path) {
        format!("which lies in the machine's {other}")
    } else {
        format!("which holds the machine's {other}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed() -> Vec<HostPath> {
        let path = |path: &str, writable| HostPath {
            path: path.parse().unwrap(),
            writable,
        };
        vec![
            path("/srv", false),
            path("/srv/data", true),
            path("/var/lib/cache", true),
        ]
    }

    #[test]
    fn a_listed_path_covers_everything_below_it() {
        for (path, writable) in [
            ("/srv", false),
            ("/srv/a/b", false),
            ("/srv/data", true),
            ("/srv/data/x", true),
        ] {
            assert_eq!(allows(&listed(), path, writable), Ok(()), "{path}");
        }
    }

    #[test]
    fn a_path_not_listed_or_not_in_normal_form_is_refused() {
        for path in [
            "/",
            "/sr",
            "/srvs",
            "/var/lib",
            "/etc/shadow",
            "",
            "srv",
            "/srv/",
            "/srv/../etc",
            "/srv//a",
            "/srv/.",
        ] {
            assert_eq!(
                allows(&listed(), path, false),
                Err(Refused::Unlisted),
                "{path}"
            );
        }
        assert_eq!(allows(&listed(), "/srv/a", true), Err(Refused::ReadOnly));
        assert_eq!(allows(&listed(), "/srv", true), Err(Refused::ReadOnly));
        assert_eq!(allows(&[], "/srv", false), Err(Refused::Unlisted));
    }
}
