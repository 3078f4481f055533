//! Roots and intermediate on disk. One state file names those in force, so a change is atomic: it
//! is the rename of that file.
//!
//! Each key and certificate has a file of its own (`root.key`, `intermediate-3.crt`). It is written
//! before the state file names it, and removed after the state file no longer does. Without a state
//! file the names are `root` and `intermediate`.

use crate::error::{Error, Result};
use crate::keeper::{self, Keeper};
use crate::key_list::{self, KeyFile};
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
/// How far the clock may be behind the intermediate's notBefore: a real-time clock set to local
/// time is off by less.
const CLOCK_BACK: Duration = Duration::from_secs(86_400);
/// The state file.
const STATE: &str = "authority.json";

/// Which roots and which intermediate are in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct State {
    version: u32,
    /// Name of the root.
    pub(crate) root: String,
    /// The new root, during a rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<Next>,
    intermediate: String,
    /// Number in the last name given: names are never used twice.
    last: u32,
}

/// The new root of a rotation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Next {
    /// Its name.
    pub(crate) root: String,
    /// When the rotation began, Unix seconds.
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
    /// Reads the state file; the first names where there is none.
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
                "this program does not know its version, or it has names that are not root-N or intermediate-N".to_owned(),
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

    /// Where the keys of roots and intermediate lie.
    pub(crate) fn places(&self) -> Vec<KeyFile> {
        let place = |name: &str, purpose| KeyFile {
            key: format!("{name}.key"),
            purpose,
            certificate: Some(format!("{name}.crt")),
            remade: false,
        };
        let roots = self.roots().map(|name| place(name, ROOT_KEY));
        roots
            .chain([place(&self.intermediate, INTERMEDIATE_KEY)])
            .collect()
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.roots()
            .chain(std::iter::once(self.intermediate.as_str()))
    }

    /// The state at the beginning of a rotation: a second root, a new intermediate.
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

    /// The state with a new intermediate.
    pub(crate) fn with_next_intermediate(&self) -> Self {
        let last = self.last.saturating_add(1);
        Self {
            intermediate: format!("intermediate-{last}"),
            last,
            ..self.clone()
        }
    }

    /// The state after a rotation finished: the new root alone. `None` where there is no rotation.
    pub(crate) fn finished(&self) -> Option<Self> {
        let root = self.next.as_ref()?.root.clone();
        Some(Self {
            root,
            next: None,
            ..self.clone()
        })
    }

    /// The state after a rotation was abandoned: the old root alone. `None` where there is no
    /// rotation.
    pub(crate) fn abandoned(&self) -> Option<Self> {
        self.next.as_ref().map(|_| Self {
            next: None,
            ..self.clone()
        })
    }

    /// Removes the files of roots and intermediates that are no longer in force. A file that cannot
    /// be removed is tried again after the next change or start.
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

/// Whether this is a name that [`State`] gives: `root`, `intermediate`, or one of these with a
/// number.
fn is_name(text: &str) -> bool {
    let number = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
    ["root", "intermediate"].iter().any(|kind| {
        text.strip_prefix(kind)
            .is_some_and(|rest| rest.is_empty() || rest.strip_prefix('-').is_some_and(number))
    })
}

/// The roots and the intermediate in force, with the key that signs.
pub(crate) struct Hierarchy {
    pub(crate) state: State,
    /// One root; during a rotation the old one, then the new one.
    pub(crate) roots: Vec<CertificateDer<'static>>,
    /// The intermediate's certificate under each root, in the roots' order.
    pub(crate) intermediates: Vec<CertificateDer<'static>>,
    pub(crate) issuer: rcgen::Issuer<'static, KeyPair>,
    pub(crate) not_before: SystemTime,
    /// The earliest end among the intermediate's certificates: no leaf outlives it.
    pub(crate) not_after: SystemTime,
    /// The latest end among them.
    last: SystemTime,
}

impl Hierarchy {
    /// Refuses to sign by a clock that is before the intermediate's notBefore: it is wrong, and so
    /// would be every validity.
    pub(crate) fn check_clock(&self, now: SystemTime) -> Result<()> {
        if now + CLOCK_BACK < self.not_before {
            Err(Error::Clock)
        } else {
            Ok(())
        }
    }

    /// When half of the intermediate's life is over. A root near its end shortens that life.
    pub(crate) fn renewal_due(&self) -> SystemTime {
        let life = self
            .last
            .duration_since(self.not_before + profile::BACKDATE)
            .unwrap_or_default();
        self.last - life / 2
    }
}

/// Whether the folder holds no authority yet.
///
/// # Errors
/// The root is missing, and other files of an authority exist.
pub(crate) fn is_fresh(folder: &Path, state: &State) -> Result<bool> {
    let root_file = folder.join(format!("{}.crt", state.root));
    if root_file.exists() {
        return Ok(false);
    }
    if folder.join(STATE).exists()
        || folder.join("intermediate.crt").exists()
        || folder.join("root-2.crt").exists()
    {
        let why = "it is missing, but certificates signed by it exist".to_owned();
        return Err(Error::Damaged {
            path: root_file,
            why,
        });
    }
    Ok(true)
}

/// Makes a root's key; its certificate is returned, to be written last ([`write_root`]).
pub(crate) fn make_root(
    folder: &Path,
    cluster: &str,
    keeper: &dyn Keeper,
    name: &str,
    now: SystemTime,
) -> Result<(KeyPair, rcgen::Certificate)> {
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
    Ok((key, certificate))
}

/// Writes a root's certificate.
pub(crate) fn write_root(
    folder: &Path,
    name: &str,
    certificate: &rcgen::Certificate,
) -> Result<()> {
    keeper::write_whole(
        &folder.join(format!("{name}.crt")),
        certificate.pem().as_bytes(),
    )
}

/// A root's key.
///
/// # Errors
///
/// [`Error::Planted`] where it is not the key of the root's certificate.
pub(crate) fn root_key(folder: &Path, keeper: &dyn Keeper, name: &str) -> Result<KeyPair> {
    let certificate = read_certificate(&folder.join(format!("{name}.crt")))?;
    let path = folder.join(format!("{name}.key"));
    load_key_of(keeper, &path, ROOT_KEY, &certificate)
}

/// The keys of all roots in force.
pub(crate) fn root_keys(folder: &Path, keeper: &dyn Keeper, state: &State) -> Result<Vec<KeyPair>> {
    let key = |name| root_key(folder, keeper, name);
    state.roots().map(key).collect()
}

/// Reads the hierarchy at start. An intermediate whose files are missing, after a cut first start,
/// is made again.
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

/// Reads the roots and the intermediate that a state names.
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
    let path = folder.join(format!("{}.key", state.intermediate));
    let first = intermediates
        .first()
        .ok_or(Error::Key("no root is in force"))?;
    let key = load_key_of(keeper, &path, INTERMEDIATE_KEY, first)?;
    assemble(state, roots, intermediates, key)
}

/// Makes the intermediate that a state names, with a certificate under each root. It is in force
/// once the state is written.
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
    // One subject and one key under both roots, so that a leaf's issuer is found whichever root the
    // peer trusts.
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

pub(crate) fn read_roots(folder: &Path, state: &State) -> Result<Vec<CertificateDer<'static>>> {
    state
        .roots()
        .map(|name| read_certificate(&folder.join(format!("{name}.crt"))))
        .collect()
}

/// A kept key, if it is the one in a certificate.
fn load_key_of(
    keeper: &dyn Keeper,
    path: &Path,
    purpose: &'static str,
    certificate: &CertificateDer<'_>,
) -> Result<KeyPair> {
    let der = keeper::load(keeper, path, purpose)?;
    key_list::check(path, purpose, &der, certificate)?;
    key_list::key_pair(&der)
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

/// The certificates of earlier intermediates; none where there is no file.
pub(crate) fn read_earlier(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    if path.exists() {
        read_certificates(path)
    } else {
        Ok(Vec::new())
    }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let text = std::fs::read_to_string(path).map_err(|e| keeper::file("cannot read", path, e))?;
    Ok(crate::names::certificates_of_pem(&text)
        .into_iter()
        .map(CertificateDer::from)
        .collect())
}

/// Whether a chain (leaf first) leads to a root by its signatures: the root signed a CA certificate
/// in the chain, and that CA signed the leaf. Other certificates in the chain are ignored: its
/// sender may have added anything.
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

/// Whether a certificate is a CA certificate (basicConstraints).
fn is_authority(certificate: &[u8]) -> bool {
    let parsed = X509Certificate::from_der(certificate);
    parsed.is_ok_and(|(_, parsed)| parsed.is_ca())
}

/// Whether the key in certificate `issuer` signed `certificate`.
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

/// notBefore and notAfter of a certificate.
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
