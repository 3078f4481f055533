//! Pull secrets: which credential is for which registry, by the rules that Kubernetes users know.
//!
//! An entry's location is a host, with or without scheme, port and path (`registry.example/team`);
//! parts of the host may be globs (`*.registry.example`). An entry is for an image if the hosts
//! have as many labels and each fits, the ports are the same, and the image's path begins with the
//! entry's ("Interpretation of config.json", Kubernetes documentation).

use crate::credential::{Credential, Secret};
use crate::reference::canonical_host;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;
use zeroize::Zeroizing;

/// Largest document of a pull secret: the API's limit of a secret's data.
const MAX_DOCUMENT: usize = 1 << 20;
/// Most registries that one pull secret may name.
const MAX_ENTRIES: usize = 256;
/// Most credentials that are tried at one registry for one image.
const MAX_TRIED: usize = 8;
/// The user name that says: the password is an identity token.
const TOKEN_USER: &str = "<token>";

/// The Secret that a credential came from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PullSecret {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid: another Secret of the same name is another one.
    pub uid: String,
}

/// Why a pull secret is not understood. Of its contents it names only the location of the entry.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyringError {
    /// Larger than a secret may be, or with too many entries.
    #[error("it is larger than 1 MiB or names more than 256 registries")]
    TooLarge,
    /// Not JSON of the expected form.
    #[error("it is not the JSON of a docker configuration")]
    Form,
    /// A Secret of another type.
    #[error("it is of type {0:?}, not kubernetes.io/dockerconfigjson")]
    Type(String),
    /// A Secret without the key of its type.
    #[error("it has no data of its type")]
    NoData,
    /// One entry's credential.
    #[error("the entry of {location:?}: {fault}")]
    Entry {
        /// The entry's key, shortened.
        location: String,
        /// What is wrong with it.
        fault: &'static str,
    },
}

/// `.dockerconfigjson`: what `docker login` writes.
#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, RawEntry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawEntry {
    username: Option<String>,
    password: Option<Hidden>,
    auth: Option<Hidden>,
    identitytoken: Option<Hidden>,
    registrytoken: Option<Hidden>,
}

/// A secret text of the document, empty ones as none.
struct Hidden(Secret);

impl<'de> Deserialize<'de> for Hidden {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Secret::new(text)))
    }
}

/// The credentials that a pod brings, each with the registries that it is for.
#[derive(Debug, Clone, Default)]
pub struct Keyring {
    entries: Vec<Entry>,
}

/// One credential.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    host: String,
    /// Without the first slash; empty for the whole registry.
    path: String,
    pub(crate) credential: Credential,
    pub(crate) from: Arc<PullSecret>,
}

impl Keyring {
    /// No keys.
    pub const NONE: &'static Self = &Self {
        entries: Vec::new(),
    };

    /// Adds the credentials of a Secret by its type; `data` has the Secret's data by key.
    ///
    /// # Errors
    /// The Secret is of another type, or has no data of its type; else as for
    /// [`Keyring::add_docker_config_json`].
    pub fn add_secret<'a>(
        &mut self,
        from: &PullSecret,
        kind: &str,
        data: impl FnOnce(&str) -> Option<&'a [u8]>,
    ) -> Result<(), KeyringError> {
        match kind {
            "kubernetes.io/dockerconfigjson" => {
                let document = data(".dockerconfigjson").ok_or(KeyringError::NoData)?;
                self.add_docker_config_json(from, document)
            }
            "kubernetes.io/dockercfg" => {
                let document = data(".dockercfg").ok_or(KeyringError::NoData)?;
                self.add_docker_cfg(from, document)
            }
            _ => Err(KeyringError::Type(kind.to_owned())),
        }
    }

    /// Adds the credentials of a Secret of type `kubernetes.io/dockerconfigjson`.
    ///
    /// # Errors
    /// Bytes that are no such document, or an entry whose credential can't be read; then none of it
    /// is added.
    pub fn add_docker_config_json(
        &mut self,
        from: &PullSecret,
        document: &[u8],
    ) -> Result<(), KeyringError> {
        let config: DockerConfig = read(document)?;
        self.add(from, config.auths)
    }

    /// Adds the credentials of a Secret of type `kubernetes.io/dockercfg`, the older form.
    ///
    /// # Errors
    /// As for [`Keyring::add_docker_config_json`].
    pub fn add_docker_cfg(
        &mut self,
        from: &PullSecret,
        document: &[u8],
    ) -> Result<(), KeyringError> {
        self.add(from, read(document)?)
    }

    fn add(
        &mut self,
        from: &PullSecret,
        all: BTreeMap<String, RawEntry>,
    ) -> Result<(), KeyringError> {
        if all.len() > MAX_ENTRIES {
            return Err(KeyringError::TooLarge);
        }
        let from = Arc::new(from.clone());
        let mut added = Vec::with_capacity(all.len());
        for (location, raw) in all {
            let shown = || {
                location
                    .chars()
                    .filter(|c| !c.is_control())
                    .take(80)
                    .collect()
            };
            let credential = credential(raw).map_err(|fault| KeyringError::Entry {
                location: shown(),
                fault,
            })?;
            let (host, path) = place(&location);
            // An entry without a credential relies on a helper program, of which this machine has
            // none.
            if let Some(credential) = credential.filter(|_| !host.is_empty()) {
                added.push(Entry {
                    host,
                    path,
                    credential,
                    from: from.clone(),
                });
            }
        }
        self.entries.extend(added);
        Ok(())
    }

    /// Whether it has no credential at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The credentials for an image at a registry, those for the longest path first.
    pub(crate) fn matching(&self, host: &str, path: &str) -> Vec<&Entry> {
        let host = canonical_host(host);
        let fits = |entry: &&Entry| path.starts_with(&entry.path) && host_fits(&entry.host, host);
        let mut found: Vec<&Entry> = self.entries.iter().filter(fits).collect();
        found.sort_by_key(|entry| std::cmp::Reverse((entry.path.len(), entry.host == host)));
        found.truncate(MAX_TRIED);
        found
    }
}

fn read<T: serde::de::DeserializeOwned>(document: &[u8]) -> Result<T, KeyringError> {
    if document.len() > MAX_DOCUMENT {
        return Err(KeyringError::TooLarge);
    }
    // The parser's own words may quote the document.
    serde_json::from_slice(document).map_err(|_quotes_secrets| KeyringError::Form)
}

/// Host and path of an entry's location: no scheme, and no `/v1` or `/v2`, which mean the whole
/// registry.
fn place(location: &str) -> (String, String) {
    let plain = location
        .strip_prefix("https://")
        .or_else(|| location.strip_prefix("http://"))
        .unwrap_or(location);
    let (host, path) = plain.split_once('/').unwrap_or((plain, ""));
    let path = ["v1", "v2"]
        .iter()
        .find_map(|version| {
            path.strip_prefix(version)
                .filter(|rest| rest.is_empty() || rest.starts_with('/'))
        })
        .unwrap_or(path);
    let host = host.to_ascii_lowercase();
    (
        canonical_host(&host).to_owned(),
        path.trim_matches('/').to_owned(),
    )
}

fn credential(raw: RawEntry) -> Result<Option<Credential>, &'static str> {
    let given = |hidden: Option<Hidden>| {
        hidden
            .map(|Hidden(secret)| secret)
            .filter(|secret| !secret.reveal().is_empty())
    };
    if let Some(token) = given(raw.identitytoken) {
        return Ok(Some(Credential::IdentityToken(token)));
    }
    if let Some(token) = given(raw.registrytoken) {
        return Ok(Some(Credential::RegistryToken(token)));
    }
    let pair = match given(raw.auth) {
        Some(auth) => Some(decoded(&auth)?),
        None => raw
            .username
            .filter(|name| !name.is_empty())
            .zip(given(raw.password)),
    };
    let Some((username, password)) = pair else {
        return Ok(None);
    };
    if username.contains(|c: char| c == ':' || c.is_control()) {
        return Err("its user name has a colon or a control character");
    }
    if username == TOKEN_USER {
        return Ok(Some(Credential::IdentityToken(password)));
    }
    Ok(Some(Credential::Password { username, password }))
}

/// `auth`: the base64 of name, colon and password, with or without padding.
fn decoded(auth: &Secret) -> Result<(String, Secret), &'static str> {
    let text = auth.reveal().trim();
    let engine = if text.ends_with('=') {
        &STANDARD
    } else {
        &STANDARD_NO_PAD
    };
    let bytes = Zeroizing::new(
        engine
            .decode(text)
            .map_err(|_quotes_secrets| "its auth is not base64")?,
    );
    let text = std::str::from_utf8(&bytes).map_err(|_quotes_secrets| "its auth is not text")?;
    let (name, password) = text
        .split_once(':')
        .ok_or("its auth is not the base64 of name:password")?;
    Ok((
        name.to_owned(),
        Secret::new(password.trim_matches('\0').to_owned()),
    ))
}

/// Whether a location's host, with its globs, is for this host; both with their ports.
fn host_fits(pattern: &str, host: &str) -> bool {
    if pattern == host {
        return true;
    }
    let (pattern, pattern_port) = split_port(pattern);
    let (host, port) = split_port(host);
    pattern_port == port
        && pattern.split('.').count() == host.split('.').count()
        && pattern
            .split('.')
            .zip(host.split('.'))
            .all(|(pattern, label)| glob(pattern.as_bytes(), label.as_bytes()))
}

fn split_port(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        Some(_) | None => (host, None),
    }
}

/// `*`, `?` and `[a-z]` over the bytes of one label.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    // Where a `*` was met last, and how much of the text it stands for: enough to go back to, so
    // that this is no recursion.
    let (mut at, mut read, mut star) = (0, 0, None);
    while read < text.len() {
        match element(&pattern[at.min(pattern.len())..], text[read]) {
            Element::Star => {
                star = Some((at, read));
                at += 1;
            }
            Element::Fits(length) => {
                at += length;
                read += 1;
            }
            Element::Differs => match star {
                Some((place, from)) => {
                    star = Some((place, from + 1));
                    (at, read) = (place + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[at.min(pattern.len())..]
        .iter()
        .all(|byte| *byte == b'*')
}

/// How the pattern's next element matches a byte.
enum Element {
    Star,
    /// It fits, and is this long.
    Fits(usize),
    Differs,
}

fn element(pattern: &[u8], byte: u8) -> Element {
    let fits = |fits: bool, length| {
        if fits {
            Element::Fits(length)
        } else {
            Element::Differs
        }
    };
    match pattern {
        [] => Element::Differs,
        [b'*', ..] => Element::Star,
        [b'?', ..] => Element::Fits(1),
        [b'[', rest @ ..] => match rest.iter().position(|b| *b == b']') {
            Some(end) => fits(class(&rest[..end], byte), end + 2),
            None => Element::Differs,
        },
        [other, ..] => fits(*other == byte, 1),
    }
}

/// Whether a byte is among those of `[…]`.
fn class(members: &[u8], byte: u8) -> bool {
    let (negated, mut rest) = match members {
        [b'^', rest @ ..] => (true, rest),
        _ => (false, members),
    };
    let mut found = false;
    loop {
        rest = match rest {
            [from, b'-', to, rest @ ..] => {
                found |= (*from..=*to).contains(&byte);
                rest
            }
            [one, rest @ ..] => {
                found |= *one == byte;
                rest
            }
            [] => return found != negated,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn secret(name: &str) -> PullSecret {
        PullSecret {
            namespace: "team".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
        }
    }

    fn keyring(auths: &serde_json::Value) -> Keyring {
        let mut keyring = Keyring::default();
        let document = json!({"auths": auths}).to_string();
        keyring
            .add_docker_config_json(&secret("pull"), document.as_bytes())
            .unwrap();
        keyring
    }

    fn users(keyring: &Keyring, host: &str, path: &str) -> Vec<String> {
        let name = |entry: &&Entry| match &entry.credential {
            Credential::Password { username, password } => {
                format!("{username}/{}", password.reveal())
            }
            Credential::IdentityToken(token) => format!("identity {}", token.reveal()),
            Credential::RegistryToken(token) => format!("token {}", token.reveal()),
        };
        keyring.matching(host, path).iter().map(name).collect()
    }

    fn one(location: &str) -> Keyring {
        keyring(&json!({location: {"username": "u", "password": "p"}}))
    }

    #[test]
    fn a_credential_is_for_its_host_and_no_other() {
        for location in [
            "registry.example",
            "https://registry.example",
            "http://registry.example/v1/",
            "registry.example/v2",
        ] {
            assert_eq!(
                users(&one(location), "registry.example", "a/b"),
                ["u/p"],
                "{location}"
            );
        }
        for host in [
            "registry.example:5000",
            "evil-registry.example",
            "registry.example.evil",
            "example",
            "registryxexample",
        ] {
            assert!(
                users(&one("registry.example"), host, "a/b").is_empty(),
                "{host}"
            );
        }
        assert_eq!(
            users(&one("registry.example:5000"), "registry.example:5000", "a"),
            ["u/p"]
        );
        assert_eq!(
            users(&one("[fd00::1]:5000"), "[fd00::1]:5000", "a"),
            ["u/p"]
        );
    }

    #[test]
    fn globs_stand_for_parts_of_one_label() {
        let fits = |pattern: &str, host: &str| !users(&one(pattern), host, "a").is_empty();
        assert!(fits("*.registry.example", "prefix.registry.example"));
        assert!(
            fits("sub*.registry.example", "subdomain.registry.example") && fits("*", "localhost")
        );
        assert!(
            fits("*a*b.example", "xaybazb.example") && fits("node-[0-9].example", "node-7.example")
        );
        assert!(fits("?.example:5000", "a.example:5000") && fits("[^a-c]x.example", "dx.example"));
        assert!(
            !fits("*.registry.example", "registry.example") && !fits("*.example", "a.b.example")
        );
        assert!(!fits("*.example", "a.example:5000") && !fits("[^a-c]x.example", "bx.example"));
    }

    #[test]
    fn the_longest_path_goes_first() {
        let keyring = keyring(&json!({
            "registry.example": {"username": "all", "password": "1"},
            "registry.example/team": {"username": "team", "password": "2"},
            "registry.example/team/app": {"username": "app", "password": "3"},
        }));
        assert_eq!(
            users(&keyring, "registry.example", "team/app"),
            ["app/3", "team/2", "all/1"]
        );
        assert_eq!(users(&keyring, "registry.example", "other/app"), ["all/1"]);
    }

    #[test]
    fn all_names_of_docker_hub_are_one() {
        for location in [
            "https://index.docker.io/v1/",
            "docker.io",
            "registry-1.docker.io",
            "index.docker.io",
        ] {
            assert_eq!(
                users(&one(location), "docker.io", "library/nginx"),
                ["u/p"],
                "{location}"
            );
        }
    }

    #[test]
    fn every_form_of_a_credential_is_read() {
        let keyring = keyring(&json!({
            "a.example": {"auth": "dTpwOnE="}, "b.example": {"auth": "dTpwOnE"}, "c.example": {"identitytoken": "i", "auth": "dTo="},
            "d.example": {"registrytoken": "r"}, "e.example": {"username": "<token>", "password": "t"}, "f.example": {},
            "g.example": {"username": "x", "password": "y", "auth": "dTpw"},
        }));
        assert_eq!(users(&keyring, "a.example", "x"), ["u/p:q"]);
        assert_eq!(users(&keyring, "b.example", "x"), ["u/p:q"]);
        assert_eq!(users(&keyring, "c.example", "x"), ["identity i"]);
        assert_eq!(users(&keyring, "d.example", "x"), ["token r"]);
        assert_eq!(users(&keyring, "e.example", "x"), ["identity t"]);
        assert!(users(&keyring, "f.example", "x").is_empty());
        assert_eq!(users(&keyring, "g.example", "x"), ["u/p"]);
        let mut old = Keyring::default();
        old.add_docker_cfg(
            &secret("old"),
            br#"{"a.example": {"username": "u", "password": "p", "email": "e"}}"#,
        )
        .unwrap();
        assert_eq!(users(&old, "a.example", "x"), ["u/p"]);
    }

    #[test]
    fn faults_quote_nothing_of_the_secret() {
        for document in [
            r#"{"auths": {"a.example": {"auth": "aHVudGVyMg=="}}}"#,
            r#"{"auths": {"a.example": {"auth": "hunter2!"}}}"#,
            r#"{"auths": {"a.example": {"username": "a:b", "password": "hunter2"}}}"#,
            r#"{"auths": {"a.example": {"password": ["hunter2"]}}}"#,
            r#"{"auths": {"a.example": "hunter2"}}"#,
            "hunter2",
        ] {
            let mut keyring = Keyring::default();
            let error = keyring
                .add_docker_config_json(&secret("bad"), document.as_bytes())
                .unwrap_err();
            assert!(
                !format!("{error} {error:?}").contains("hunter2"),
                "{error:?}"
            );
            assert!(keyring.is_empty());
        }
    }

    proptest! {
        #[test]
        fn a_star_stands_for_anything_in_a_label(before in "[a-z]{0,5}", middle in "[a-z]{0,9}", after in "[a-z]{0,5}") {
            let (pattern, text) = (format!("{before}*{after}"), format!("{before}{middle}{after}"));
            prop_assert!(glob(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn any_pattern_ends(pattern in "[*?a\\[\\]^-]{0,24}", text in "[a-]{0,40}") {
            prop_assert!(!glob(pattern.as_bytes(), text.as_bytes()) || !pattern.is_empty() || text.is_empty());
        }
    }
}
