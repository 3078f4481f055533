//! Roots and intermediate on disk: one file says which are in force, so that every change happens whole or not at all.
//!
//! Keys and certificates lie in files by name (`root.key`, `intermediate-3.crt`), written before the file of the state names
//! them and removed after it does so no more. Without that file the names are `root` and `intermediate`.

use crate::error::{Error, Result};
use crate::keeper::{self, Keeper};
use crate::profile;
use rcgen::KeyPair;
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_parser::prelude::{FromDer as _, X509Certificate};
use zeroize::Zeroizing;

pub(crate) const ROOT_KEY: &str = "root key";
const INTERMEDIATE_KEY: &str = "intermediate key";
/// How far before the making of its own keys a clock may be that signs: a battery clock in local time is off by less.
const CLOCK_BACK: Duration = Duration::from_secs(86_400);
/// File of the state.
const STATE: &str = "authority.json";

/// Which roots and which intermediate are in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct State {
    version: u32,
    /// Name of the root.
    pub(crate) root: String,
    /// The root that is to follow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<Next>,
    intermediate: String,
    /// Number of the last name that was given.
    last: u32,
}

/// A root that is to follow another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Next {
    /// Its name.
    pub(crate) root: String,
    /// Since when both are in force, in Unix seconds.
    pub(crate) begun: u64,
}

impl Default for State {
    fn default() -> Self {
        let (root, intermediate) = ("root".to_owned(), "intermediate".to_owned());
        Self {
            version: 1,
            root,
            next: None,
            intermediate,
            last: 1,
        }
    }
}

impl State {
    /// What the folder says.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(STATE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(e) => return Err(keeper::file("cannot read", &path, e)),
        };
        let damaged = |why: String| Error::Damaged {
            path: path.clone(),
            why,
        };
        let state: Self = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        if state.version != 1 || !state.names().all(is_name) {
            return Err(damaged(
                "this program knows neither its version nor its names".to_owned(),
            ));
        }
        Ok(state)
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let bytes = serde_json::to_vec(self)
            .map_err(|_opaque| Error::Key("the authority's state cannot be encoded"))?;
        keeper::write_whole(&folder.join(STATE), &bytes)
    }

    /// The roots in force, the old one first.
    pub(crate) fn roots(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.root.as_str()).chain(self.next.iter().map(|next| next.root.as_str()))
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.roots()
            .chain(std::iter::once(self.intermediate.as_str()))
    }

    /// The same with another root to follow, and another intermediate.
    pub(crate) fn with_next_root(&self, begun: SystemTime) -> Self {
        let mut state = self.with_next_intermediate();
        let begun = begun
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        state.next = Some(Next {
            root: format!("root-{}", state.last),
            begun,
        });
        state
    }

    /// The same with another intermediate.
    pub(crate) fn with_next_intermediate(&self) -> Self {
        let last = self.last.saturating_add(1);
        Self {
            intermediate: format!("intermediate-{last}"),
            last,
            ..self.clone()
        }
    }

    /// The same with the root that follows in the place of the old one; `None` where none follows.
    pub(crate) fn finished(&self) -> Option<Self> {
        let root = self.next.as_ref()?.root.clone();
        Some(Self {
            root,
            next: None,
            ..self.clone()
        })
    }

    /// The same without the root that follows; `None` where none follows.
    pub(crate) fn abandoned(&self) -> Option<Self> {
        self.next.as_ref().map(|_| Self {
            next: None,
            ..self.clone()
        })
    }

    /// Removes the files of roots and intermediates that are in force no more. What can't be removed is so the next time.
    pub(crate) fn tidy(&self, folder: &Path) {
        let Ok(entries) = std::fs::read_dir(folder) else {
            return;
        };
        for entry in entries.flatten() {
            let file = entry.file_name();
            let stem = file.to_str().and_then(|file| {
                file.strip_suffix(".key")
                    .or_else(|| file.strip_suffix(".crt"))
            });
            if stem.is_some_and(|stem| is_name(stem) && !self.names().any(|name| name == stem)) {
                std::fs::remove_file(entry.path()).ok();
            }
        }
    }
}

/// Whether this is a name as they are given here.
fn is_name(text: &str) -> bool {
    let number = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
    ["root", "intermediate"].iter().any(|kind| {
        text.strip_prefix(kind)
            .is_some_and(|rest| rest.is_empty() || rest.strip_prefix('-').is_some_and(number))
    })
}

/// What is in force.
pub(crate) struct Hierarchy {
    pub(crate) state: State,
    /// The old root first, while it is rotated.
    pub(crate) roots: Vec<CertificateDer<'static>>,
    /// The intermediate's certificate under each root, in the roots' order.
    pub(crate) intermediates: Vec<CertificateDer<'static>>,
    pub(crate) issuer: rcgen::Issuer<'static, KeyPair>,
    pub(crate) not_before: SystemTime,
    /// When the first of the intermediate's certificates ends.
    pub(crate) not_after: SystemTime,
    /// When the last of them does.
    last: SystemTime,
}

impl Hierarchy {
    /// Refuses a clock that is before the making of the keys that are to sign.
    pub(crate) fn check_clock(&self, now: SystemTime) -> Result<()> {
        if now + CLOCK_BACK < self.not_before {
            Err(Error::Clock)
        } else {
            Ok(())
        }
    }

    /// Half of the intermediate's life, however short that is by the end of a root.
    pub(crate) fn renewal_due(&self) -> SystemTime {
        let life = self
            .last
            .duration_since(self.not_before + profile::BACKDATE)
            .unwrap_or_default();
        self.last - life / 2
    }
}

/// Whether the folder holds nothing yet.
pub(crate) fn is_fresh(folder: &Path, state: &State) -> Result<bool> {
    let root_file = folder.join(format!("{}.crt", state.root));
    if root_file.exists() {
        return Ok(false);
    }
    if folder.join(STATE).exists()
        || folder.join("intermediate.crt").exists()
        || folder.join("root-2.crt").exists()
    {
        let why = "it is missing, while what was signed by it is there".to_owned();
        return Err(Error::Damaged {
            path: root_file,
            why,
        });
    }
    Ok(true)
}

/// Makes a root; its certificate is written last.
pub(crate) fn make_root(
    folder: &Path,
    cluster: &str,
    keeper: &dyn Keeper,
    name: &str,
    now: SystemTime,
) -> Result<()> {
    let fail = |source| Error::Build {
        profile: "root",
        source,
    };
    let key = KeyPair::generate().map_err(fail)?;
    let first = name == State::default().root;
    let certificate = profile::root(cluster, first, now)?
        .self_signed(&key)
        .map_err(fail)?;
    let bytes = Zeroizing::new(key.serialize_der());
    keeper::store(
        keeper,
        &folder.join(format!("{name}.key")),
        ROOT_KEY,
        &bytes,
    )?;
    keeper::write_whole(
        &folder.join(format!("{name}.crt")),
        certificate.pem().as_bytes(),
    )
}

/// A root's key.
pub(crate) fn root_key(folder: &Path, keeper: &dyn Keeper, name: &str) -> Result<KeyPair> {
    load_key(keeper, &folder.join(format!("{name}.key")), ROOT_KEY)
}

/// Reads what is in force; an intermediate that was never whole is made anew.
pub(crate) fn open(
    folder: &Path,
    cluster: &str,
    keeper: &dyn Keeper,
    state: State,
    now: SystemTime,
) -> Result<Hierarchy> {
    if folder.join(STATE).exists() {
        state.tidy(folder);
    }
    match read(folder, keeper, state.clone()) {
        Err(Error::File { path, source, .. })
            if source.kind() == std::io::ErrorKind::NotFound && !is_root(&path, &state) =>
        {
            make_intermediate(folder, cluster, keeper, state, now)
        }
        outcome => outcome,
    }
}

fn is_root(path: &Path, state: &State) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    stem.is_some_and(|stem| state.roots().any(|root| root == stem))
}

/// Reads what a state names.
pub(crate) fn read(folder: &Path, keeper: &dyn Keeper, state: State) -> Result<Hierarchy> {
    let roots = read_roots(folder, &state)?;
    let path = folder.join(format!("{}.crt", state.intermediate));
    let all = read_certificates(&path)?;
    let of = |root: &CertificateDer<'static>| {
        all.iter()
            .find(|certificate| issued_by(certificate, root))
            .cloned()
    };
    let intermediates: Option<Vec<_>> = roots.iter().map(of).collect();
    let why = "it holds no intermediate of the root".to_owned();
    let intermediates = intermediates.ok_or(Error::Damaged { path, why })?;
    let key = load_key(
        keeper,
        &folder.join(format!("{}.key", state.intermediate)),
        INTERMEDIATE_KEY,
    )?;
    assemble(state, roots, intermediates, key)
}

/// Makes the intermediate that a state names, under each of its roots. It is in force when the state is.
pub(crate) fn make_intermediate(
    folder: &Path,
    cluster: &str,
    keeper: &dyn Keeper,
    state: State,
    now: SystemTime,
) -> Result<Hierarchy> {
    let fail = |source| Error::Build {
        profile: "intermediate",
        source,
    };
    let roots = read_roots(folder, &state)?;
    let key = KeyPair::generate().map_err(fail)?;
    // One name and one key under both roots: a leaf has a way to each.
    let params = profile::intermediate(cluster, now)?;
    let mut intermediates = Vec::new();
    for (name, root) in state.roots().zip(&roots) {
        let (_, until) = validity(root)?;
        let root_key = root_key(folder, keeper, name)?;
        let issuer = rcgen::Issuer::from_ca_cert_der(root, &root_key).map_err(fail)?;
        let mut params = params.clone();
        params.not_after = profile::moment((now + profile::INTERMEDIATE_LIFE).min(until))?;
        intermediates.push(params.signed_by(&key, &issuer).map_err(fail)?.der().clone());
    }
    let bytes = Zeroizing::new(key.serialize_der());
    let file = |kind: &str| folder.join(format!("{}.{kind}", state.intermediate));
    keeper::store(keeper, &file("key"), INTERMEDIATE_KEY, &bytes)?;
    let text: String = intermediates
        .iter()
        .map(|der| crate::names::pem("CERTIFICATE", der))
        .collect();
    keeper::write_whole(&file("crt"), text.as_bytes())?;
    assemble(state, roots, intermediates, key)
}

fn assemble(
    state: State,
    roots: Vec<CertificateDer<'static>>,
    intermediates: Vec<CertificateDer<'static>>,
    key: KeyPair,
) -> Result<Hierarchy> {
    let validities = intermediates
        .iter()
        .map(|der| validity(der))
        .collect::<Result<Vec<_>>>()?;
    let missing = || Error::Key("no root is in force");
    let not_before = validities
        .iter()
        .map(|(from, _)| *from)
        .max()
        .ok_or_else(missing)?;
    let not_after = validities
        .iter()
        .map(|(_, until)| *until)
        .min()
        .ok_or_else(missing)?;
    let last = validities
        .iter()
        .map(|(_, until)| *until)
        .max()
        .ok_or_else(missing)?;
    let first = intermediates.first().ok_or_else(missing)?;
    let issuer = rcgen::Issuer::from_ca_cert_der(first, key).map_err(|source| Error::Build {
        profile: "intermediate",
        source,
    })?;
    Ok(Hierarchy {
        state,
        roots,
        intermediates,
        issuer,
        not_before,
        not_after,
        last,
    })
}

fn read_roots(folder: &Path, state: &State) -> Result<Vec<CertificateDer<'static>>> {
    state
        .roots()
        .map(|name| read_certificate(&folder.join(format!("{name}.crt"))))
        .collect()
}

pub(crate) fn load_key(keeper: &dyn Keeper, path: &Path, purpose: &str) -> Result<KeyPair> {
    let der = keeper::load(keeper, path, purpose)?;
    KeyPair::try_from(der.as_slice()).map_err(|source| Error::Build {
        profile: "stored key",
        source,
    })
}

pub(crate) fn read_certificate(path: &Path) -> Result<CertificateDer<'static>> {
    let damaged = || Error::Damaged {
        path: path.to_owned(),
        why: "it holds no certificate".to_owned(),
    };
    read_certificates(path)?
        .into_iter()
        .next()
        .ok_or_else(damaged)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let text = std::fs::read_to_string(path).map_err(|e| keeper::file("cannot read", path, e))?;
    Ok(crate::names::certificates_of_pem(&text)
        .into_iter()
        .map(CertificateDer::from)
        .collect())
}

/// Whether a chain (leaf first) leads to a root by its signatures: the root signed an issuer that is in it, and that issuer
/// signed the leaf. Whatever else is in the chain counts for nothing; who shows it may have put anything there.
pub(crate) fn leads_to(chain: &[CertificateDer<'_>], root: &CertificateDer<'_>) -> bool {
    let Some((leaf, above)) = chain.split_first() else {
        return false;
    };
    let between = above
        .iter()
        .filter(|issuer| *issuer != root && is_authority(issuer));
    between
        .into_iter()
        .any(|issuer| issued_by(leaf, issuer) && issued_by(issuer, root))
}

/// Whether a certificate says that its key signs others.
fn is_authority(certificate: &[u8]) -> bool {
    let parsed = X509Certificate::from_der(certificate);
    parsed.is_ok_and(|(_, parsed)| parsed.is_ca())
}

/// Whether the key of `issuer` signed a certificate.
pub(crate) fn issued_by(certificate: &[u8], issuer: &[u8]) -> bool {
    let (Ok((_, certificate)), Ok((_, issuer))) = (
        X509Certificate::from_der(certificate),
        X509Certificate::from_der(issuer),
    ) else {
        return false;
    };
    certificate
        .verify_signature(Some(issuer.public_key()))
        .is_ok()
}

/// notBefore and notAfter.
pub(crate) fn validity(certificate: &[u8]) -> Result<(SystemTime, SystemTime)> {
    let (_, parsed) = X509Certificate::from_der(certificate)
        .map_err(|_opaque| Error::Key("not a certificate"))?;
    let moment =
        |seconds: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let validity = parsed.validity();
    Ok((
        moment(validity.not_before.timestamp()),
        moment(validity.not_after.timestamp()),
    ))
}
