//! Image references: `host/path:tag@digest`.

use std::fmt;
use thiserror::Error;

/// Longest reference that is looked at.
const MAX_LENGTH: usize = 512;
/// The registry of names without a host, where the configuration names no other.
pub const DOCKER_HUB: &str = "docker.io";
/// Where Docker Hub keeps the images whose names are one word.
const LIBRARY: &str = "library";

/// A checked image reference. Holding one proves that host, path, tag and digest have only the
/// characters that the OCI distribution specification allows, so that they can stand in a URL path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    /// Registry, with its port if one is named; empty where the text names none.
    pub host: String,
    /// Repository inside the registry.
    pub path: String,
    /// Tag; `latest` where neither tag nor digest was given.
    pub tag: Option<String>,
    /// `sha256:<64 hex>`.
    pub digest: Option<String>,
}

/// Why a text is no image reference.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("invalid image reference {text:?}: {fault}")]
pub struct ReferenceError {
    /// The text, cut to a length that can be shown.
    pub text: String,
    /// What is wrong with it.
    pub fault: &'static str,
}

impl Reference {
    /// Reads a reference as written in a pod.
    ///
    /// # Errors
    /// [`ReferenceError`] with the part that no registry would take.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        parse(text).map_err(|fault| ReferenceError {
            text: text.chars().take(128).collect(),
            fault,
        })
    }

    /// The tag or digest by which the registry is asked; the digest wins.
    pub fn selector(&self) -> &str {
        self.digest
            .as_deref()
            .or(self.tag.as_deref())
            .unwrap_or("latest")
    }

    /// `host/path`, without tag or digest.
    pub fn repository(&self) -> String {
        if self.host.is_empty() {
            self.path.clone()
        } else {
            format!("{}/{}", self.host, self.path)
        }
    }

    /// The reference in full: at `default`, if it names no registry itself; all names of Docker Hub
    /// as one, and names of one word there in `library/`, as other engines have it.
    #[must_use]
    pub fn complete(mut self, default: &str) -> Self {
        let host = if self.host.is_empty() {
            default
        } else {
            &self.host
        }
        .to_ascii_lowercase();
        canonical_host(&host).clone_into(&mut self.host);
        if self.host == DOCKER_HUB && !self.path.contains('/') {
            self.path = format!("{LIBRARY}/{}", self.path);
        }
        self
    }

    /// The default of imagePullPolicy: always for `latest`, else only when absent.
    pub fn is_latest(&self) -> bool {
        self.digest.is_none() && self.tag.as_deref() == Some("latest")
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository())?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// One name for all that Docker Hub has.
pub(crate) fn canonical_host(host: &str) -> &str {
    if matches!(host, "index.docker.io" | "registry-1.docker.io") {
        DOCKER_HUB
    } else {
        host
    }
}

fn parse(text: &str) -> Result<Reference, &'static str> {
    if text.is_empty() || text.len() > MAX_LENGTH {
        return Err("it must have 1 to 512 characters");
    }
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(checked_digest(digest)?)),
        None => (text, None),
    };
    let (name, tag) = match rest.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(checked_tag(tag)?)),
        _ => (rest, None),
    };
    let (host, path) = match name.split_once('/') {
        Some((host, path)) if is_host(host) => (host.to_owned(), path.to_owned()),
        Some(_) | None => (String::new(), name.to_owned()),
    };
    if !host
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'[' | b']'))
    {
        return Err("the registry's name has a character that host names don't have");
    }
    if !path.split('/').all(is_component) {
        return Err(
            "each part of the path must be lower-case letters, digits and single . _ or - between them",
        );
    }
    let tag = if tag.is_none() && digest.is_none() {
        Some("latest".to_owned())
    } else {
        tag
    };
    Ok(Reference {
        host,
        path,
        tag,
        digest,
    })
}

fn is_host(text: &str) -> bool {
    text.contains('.') || text.contains(':') || text == "localhost"
}

fn is_component(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = |b: Option<u8>| b.is_some_and(plain);
    ends(part.bytes().next())
        && ends(part.bytes().next_back())
        && part
            .bytes()
            .all(|b| plain(b) || matches!(b, b'.' | b'_' | b'-'))
        && !part.contains("..")
}

fn checked_tag(tag: &str) -> Result<String, &'static str> {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let fits = (1..=128).contains(&tag.len())
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || matches!(b, b'.' | b'-'));
    if fits {
        Ok(tag.to_owned())
    } else {
        Err("a tag is 1 to 128 letters, digits, _ . or -")
    }
}

fn checked_digest(digest: &str) -> Result<String, &'static str> {
    match digest.strip_prefix("sha256:") {
        Some(hex)
            if hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) =>
        {
            Ok(digest.to_owned())
        }
        _ => Err("a digest is sha256: and 64 lower-case hex digits"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn short_names_stay_short_until_a_registry_is_chosen() {
        assert_eq!(
            Reference::parse("busybox").unwrap().to_string(),
            "busybox:latest"
        );
        assert_eq!(
            Reference::parse("registry.example:5000/a/b")
                .unwrap()
                .to_string(),
            "registry.example:5000/a/b:latest"
        );
        assert_eq!(Reference::parse("localhost/a:2").unwrap().host, "localhost");
    }

    #[test]
    fn a_name_without_a_host_is_at_the_default_registry() {
        let at = |text: &str, default: &str| {
            Reference::parse(text)
                .unwrap()
                .complete(default)
                .to_string()
        };
        assert_eq!(at("nginx", DOCKER_HUB), "docker.io/library/nginx:latest");
        assert_eq!(at("me/app:1", DOCKER_HUB), "docker.io/me/app:1");
        assert_eq!(
            at("docker.io/nginx", DOCKER_HUB),
            "docker.io/library/nginx:latest"
        );
        assert_eq!(
            at("index.docker.io/library/nginx:1", DOCKER_HUB),
            "docker.io/library/nginx:1"
        );
        assert_eq!(
            at("nginx", "registry.example"),
            "registry.example/nginx:latest"
        );
        assert_eq!(
            at("docker.io/nginx", "registry.example"),
            "docker.io/library/nginx:latest"
        );
        assert_eq!(
            at("Registry.Example/a:1", DOCKER_HUB),
            "registry.example/a:1"
        );
    }

    #[test]
    fn a_digest_needs_no_tag_and_wins() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let reference = Reference::parse(&format!("registry.example/app:1@{digest}")).unwrap();
        assert_eq!(reference.selector(), digest);
        assert_eq!(
            Reference::parse(&format!("registry.example/app@{digest}"))
                .unwrap()
                .tag,
            None
        );
    }

    #[test]
    fn what_could_leave_its_place_in_a_url_is_refused() {
        for bad in [
            "",
            "a b",
            "registry.example/../x",
            "registry.example/a?x=1",
            "a:",
            "a@sha256:12",
            "A/B",
            "a//b",
            "a/-b",
        ] {
            assert!(Reference::parse(bad).is_err(), "{bad:?} must be refused");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_round_trips(text in "\\PC{0,64}") {
            if let Ok(reference) = Reference::parse(&text) {
                prop_assert_eq!(Reference::parse(&reference.to_string()).unwrap(), reference);
            }
        }
    }
}
