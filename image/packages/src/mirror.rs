//! The source of packages: the mirror in the host's apt configuration, for the image's release.
//!
//! Both formats of apt sources are read (sources.list(5): one line each, or deb822). Only Debian's
//! own archive counts: the suite is a Debian release, the component `main` is in it, and no foreign
//! keyring signs it.

use std::path::Path;

/// The Debian release of the image's packages.
pub const RELEASE: &str = "trixie";

/// Releases under whose names a host's sources may list the archive.
const KNOWN: [&str; 6] = [
    "bookworm",
    "trixie",
    "forky",
    "stable",
    "oldstable",
    "testing",
];

/// Keyrings of Debian's archive, the first that exists is used.
const KEYRINGS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];

/// One archive and the suites wanted from it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// Base address.
    pub uri: String,
    /// Suite of [`RELEASE`].
    pub suite: String,
}

/// No usable source.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The path.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The host's apt names no Debian mirror.
    #[error(
        "no Debian mirror in {folder}/sources.list or {folder}/sources.list.d: expected an entry `deb URI {RELEASE} main` (or bookworm)"
    )]
    None {
        /// apt's configuration folder.
        folder: String,
    },
    /// No archive keyring.
    #[error("no archive keyring at {}; install debian-archive-keyring", KEYRINGS[0])]
    Keyring,
}

/// The archive keyring of this host.
///
/// # Errors
/// The host has none of the known keyrings.
pub fn keyring() -> Result<&'static str, MirrorError> {
    KEYRINGS
        .into_iter()
        .find(|path| Path::new(path).exists())
        .ok_or(MirrorError::Keyring)
}

/// The sources of the host's apt in `folder` (`/etc/apt`), mapped to [`RELEASE`], sorted, without
/// doubles.
///
/// # Errors
/// A file of the host's apt cannot be read, or names no Debian archive.
pub fn of_host(folder: &Path) -> Result<Vec<Source>, MirrorError> {
    let mut found = Vec::new();
    let main = folder.join("sources.list");
    if main.exists() {
        found.extend(one_line(&read(&main)?));
    }
    let parts = folder.join("sources.list.d");
    if parts.exists() {
        let error = |source| MirrorError::Read {
            path: parts.display().to_string(),
            source,
        };
        let mut names = std::fs::read_dir(&parts)
            .map_err(error)?
            .map(|entry| entry.map(|e| e.path()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(error)?;
        names.sort();
        for path in names {
            match path.extension().and_then(|e| e.to_str()) {
                Some("list") => found.extend(one_line(&read(&path)?)),
                Some("sources") => found.extend(deb822(&read(&path)?)),
                Some(_) | None => {}
            }
        }
    }
    found.sort();
    found.dedup();
    if found.is_empty() {
        return Err(MirrorError::None {
            folder: folder.display().to_string(),
        });
    }
    Ok(found)
}

fn read(path: &Path) -> Result<String, MirrorError> {
    std::fs::read_to_string(path).map_err(|source| MirrorError::Read {
        path: path.display().to_string(),
        source,
    })
}

/// The suite of [`RELEASE`] that corresponds to a host's suite; `None` for suites that the image
/// doesn't use.
fn mapped(suite: &str) -> Option<String> {
    let (base, rest) = suite.split_once(['-', '/']).unwrap_or((suite, ""));
    if !KNOWN.contains(&base) {
        return None;
    }
    match (rest, suite.contains('/')) {
        ("", false) => Some(RELEASE.to_owned()),
        ("updates", false) => Some(format!("{RELEASE}-updates")),
        ("security", false) | ("updates", true) => Some(format!("{RELEASE}-security")),
        _ => None,
    }
}

fn debian_signs(signed_by: Option<&str>) -> bool {
    signed_by.is_none_or(|by| by.contains("debian-archive"))
}

/// Entries of the one-line format: `deb [options] URI suite component…`.
fn one_line(text: &str) -> Vec<Source> {
    let mut out = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some(rest) = line.strip_prefix("deb ") else {
            continue;
        };
        let rest = rest.trim_start();
        let (options, rest) = match rest.strip_prefix('[').and_then(|r| r.split_once(']')) {
            Some((options, rest)) => (options, rest),
            None => ("", rest),
        };
        let signed = options
            .split_whitespace()
            .find_map(|option| option.strip_prefix("signed-by="));
        let mut words = rest.split_whitespace();
        let (Some(uri), Some(suite)) = (words.next(), words.next()) else {
            continue;
        };
        if let Some(suite) = mapped(suite)
            && debian_signs(signed)
            && words.any(|component| component == "main")
        {
            out.push(Source {
                uri: uri.to_owned(),
                suite,
            });
        }
    }
    out
}

/// Entries of the deb822 format: stanzas of `Key: value`, continued lines start with a blank.
fn deb822(text: &str) -> Vec<Source> {
    let mut out = Vec::new();
    let mut stanza: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            out.extend(of_stanza(&stanza));
            stanza.clear();
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = stanza.last_mut() {
                value.push(' ');
                value.push_str(line.trim());
            }
        } else if let Some((key, value)) = line.split_once(':') {
            stanza.push((key.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    out
}

fn of_stanza(stanza: &[(String, String)]) -> Vec<Source> {
    let get = |key: &str| {
        stanza
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.as_str())
    };
    let has = |key: &str, wanted: &str| {
        get(key)
            .unwrap_or_default()
            .split_whitespace()
            .any(|w| w == wanted)
    };
    let enabled = !get("enabled").is_some_and(|v| v.eq_ignore_ascii_case("no"));
    if !enabled
        || !has("types", "deb")
        || !has("components", "main")
        || !debian_signs(get("signed-by"))
    {
        return Vec::new();
    }
    let suites: Vec<_> = get("suites")
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(mapped)
        .collect();
    get("uris")
        .unwrap_or_default()
        .split_whitespace()
        .flat_map(|uri| {
            suites.iter().map(|suite| Source {
                uri: uri.to_owned(),
                suite: suite.clone(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(uri: &str, suite: &str) -> Source {
        Source {
            uri: uri.to_owned(),
            suite: suite.to_owned(),
        }
    }

    #[test]
    fn one_line_sources_are_mapped_to_the_image_release() {
        let text = "# deb http://no.example bookworm main\n\
            deb http://mirror.example/debian bookworm main contrib\n\
            deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/security bookworm-security main\n\
            deb-src http://mirror.example/debian bookworm main\n\
            deb http://mirror.example/debian bookworm-backports main\n\
            deb [signed-by=/usr/share/keyrings/other.gpg] http://other.example bookworm main\n\
            deb http://other.example bookworm stable\n";
        assert_eq!(
            one_line(text),
            [
                source("http://mirror.example/debian", "trixie"),
                source("http://mirror.example/security", "trixie-security")
            ]
        );
    }

    #[test]
    fn deb822_sources_are_mapped_to_the_image_release() {
        let text = "Types: deb deb-src\n# a remark\nURIs: http://mirror.example/debian\nSuites: trixie trixie-updates\n \
            trixie-backports\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.pgp\n\n\
            Types: deb\nURIs: http://other.example\nSuites: nodistro\nComponents: main\n\n\
            Enabled: no\nTypes: deb\nURIs: http://off.example\nSuites: trixie\nComponents: main\n";
        assert_eq!(
            deb822(text),
            [
                source("http://mirror.example/debian", "trixie"),
                source("http://mirror.example/debian", "trixie-updates")
            ]
        );
    }

    #[test]
    fn a_host_without_a_mirror_is_refused_with_what_is_expected() {
        let folder = tempfile::tempdir().unwrap();
        let error = of_host(&folder.path().join("apt")).unwrap_err();
        assert!(error.to_string().contains("deb URI trixie main"), "{error}");
    }
}
