//! The certificate authority of a cluster: one root, two during a rotation, and one intermediate
//! that signs all leaves.

use crate::error::{Error, Result};
use crate::hierarchy::{self, Hierarchy, State, issued_by, read_certificate, validity};
use crate::keeper::{self, Keeper};
use crate::key_list::{self, KeyFile, KeyList};
use crate::names::{hex, pem, spki_hash, spki_of};
use crate::profile::{self, Profile};
use crate::recovery::STATE_KEY_BYTES;
use rcgen::{KeyPair, PublicKeyData as _, SubjectPublicKeyInfo};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use zeroize::Zeroizing;

/// An issued certificate with the intermediates that lead to the root.
#[derive(Debug, Clone)]
pub struct IssuedCertificate {
    /// The leaf.
    pub certificate: CertificateDer<'static>,
    /// The issuing intermediate: one certificate under each root in force.
    pub intermediates: Vec<CertificateDer<'static>>,
    /// Serial number, lower-case hex.
    pub serial: String,
    /// End of validity.
    pub not_after: SystemTime,
}

impl IssuedCertificate {
    /// Leaf and intermediates, as a TLS peer sends them.
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        std::iter::once(&self.certificate)
            .chain(&self.intermediates)
            .cloned()
            .collect()
    }

    /// The chain as PEM.
    pub fn chain_pem(&self) -> String {
        self.chain().iter().map(|c| pem("CERTIFICATE", c)).collect()
    }
}

/// A certificate with its private key, for the master's own use.
#[derive(Debug)]
pub struct OwnCertificate {
    /// The certificate.
    pub issued: IssuedCertificate,
    /// The key, PKCS#8.
    pub key: PrivatePkcs8KeyDer<'static>,
    /// Its SubjectPublicKeyInfo DER.
    pub spki: Vec<u8>,
}

/// The cluster's certificate authority.
///
/// Guarantee: every leaf is signed by `sign_leaf`, which is private to this crate. Its callers hold
/// a grant of the verifier or an approved request, or sign for the master's own use or for the
/// admin (see `issuer`). A root's key is in memory only while it signs.
pub struct Authority {
    pub(crate) folder: PathBuf,
    pub(crate) cluster: String,
    pub(crate) keeper: Arc<dyn Keeper>,
    hierarchy: RwLock<Arc<Hierarchy>>,
    /// Certificates of earlier intermediates, the newest last.
    earlier: RwLock<Vec<CertificateDer<'static>>>,
    /// The file with the key of the encrypted state's recovery slot.
    state_key: Option<PathBuf>,
    /// Locked during a change of the hierarchy: changes run one after the other.
    changing: Mutex<()>,
    generation: AtomicU64,
    /// Held while a listed key changes; locked after `changing` if both are needed.
    list: Mutex<KeyList>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("folder", &self.folder)
            .field("roots", &self.pins())
            .finish_non_exhaustive()
    }
}

pub(crate) const SERVICE_ACCOUNT_KEY: &str = "service account key";
const RETIRED_KEY: &str = "retired service account key";
const LOG_KEY: &str = "verdict log key";
pub(crate) const DISCOVERY_KEY: &str = "discovery key";
/// File of the key that signs discovery documents.
pub(crate) const DISCOVERY: &str = "discovery.key";
/// Files of the key that signs the log of verdicts, and of its certificate.
pub(crate) const LOG: [&str; 2] = ["verdicts.key", "verdicts.crt"];
/// File of the service accounts' key.
pub(crate) const ACCOUNTS: &str = "service-account.key";
/// File of the certificates of earlier intermediates, and how many of them are kept. No leaf
/// outlives its intermediate, and in the life of one the intermediate is renewed twice, under at
/// most two roots.
const EARLIER: &str = "intermediates.earlier.pem";
const MOST_EARLIER: usize = 8;
/// File of the public keys of earlier service account keys.
const RETIRED: &str = "service-account.retired.pem";

impl Authority {
    /// Opens the authority in `folder`, or makes it on first use. Blocks on the keeper.
    ///
    /// # Errors
    /// A file is missing, damaged or of another keeper; the keeper or the disk fails.
    pub fn open(
        folder: &Path,
        cluster: &str,
        keeper: Arc<dyn Keeper>,
        now: SystemTime,
    ) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(|e| keeper::file("cannot make", folder, e))?;
        let state = State::read(folder)?;
        if hierarchy::is_fresh(folder, &state)? {
            found(folder, cluster, keeper.as_ref(), &state, now)?;
        }
        let list = key_list::settle(folder, keeper.as_ref(), &state, &places(&state))?;
        let hierarchy = hierarchy::open(folder, cluster, keeper.as_ref(), state, now)?;
        let earlier = hierarchy::read_earlier(&folder.join(EARLIER))?;
        Ok(Self {
            folder: folder.to_owned(),
            cluster: cluster.to_owned(),
            keeper,
            earlier: RwLock::new(earlier),
            hierarchy: RwLock::new(Arc::new(hierarchy)),
            state_key: None,
            changing: Mutex::new(()),
            generation: AtomicU64::new(1),
            list: Mutex::new(list),
        })
    }

    /// The same, with the key of the machine's encrypted state in its recovery copy: 64 hex digits
    /// in a file.
    #[must_use]
    pub fn with_state_key(mut self, file: PathBuf) -> Self {
        self.state_key = Some(file);
        self
    }

    /// The root's certificate; during a rotation the old root's.
    pub fn root(&self) -> CertificateDer<'static> {
        self.current().roots[0].clone()
    }

    /// The roots in force: one; during a rotation the old one, then the new one.
    pub fn roots(&self) -> Vec<CertificateDer<'static>> {
        self.current().roots.clone()
    }

    /// The roots' certificates as PEM.
    pub fn roots_pem(&self) -> String {
        self.current()
            .roots
            .iter()
            .map(|root| pem("CERTIFICATE", root))
            .collect()
    }

    /// SubjectPublicKeyInfo DER of [`Authority::root`], whose hash nodes pin.
    pub fn root_spki(&self) -> Vec<u8> {
        spki_of(&self.root()).unwrap_or_default()
    }

    /// `sha256:<hex>` of [`Authority::root_spki`].
    pub fn pin(&self) -> String {
        spki_hash(&self.root_spki())
    }

    /// The pins of [`Authority::roots`].
    pub fn pins(&self) -> Vec<String> {
        self.current()
            .roots
            .iter()
            .map(|root| spki_hash(&spki_of(root).unwrap_or_default()))
            .collect()
    }

    /// The issuing intermediate's certificates, one under each of [`Authority::roots`].
    pub fn intermediates(&self) -> Vec<CertificateDer<'static>> {
        self.current().intermediates.clone()
    }

    /// The certificates between leaves and roots: those of the intermediate in force, and of
    /// earlier ones, whose leaves may still be in use. Some may be under a root that is no longer
    /// in force.
    pub fn issuers(&self) -> Vec<CertificateDer<'static>> {
        let mut all = self.intermediates();
        all.extend_from_slice(&self.earlier.read().unwrap_or_else(PoisonError::into_inner));
        all
    }

    /// A number that rises with each change of roots or intermediate: anything built from them is
    /// stale when it differs.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// When the intermediate is due for renewal: after half of its life.
    pub fn renewal_due(&self) -> SystemTime {
        self.current().renewal_due()
    }

    /// Makes a new intermediate if the present one is due; returns whether it did. Earlier leaves
    /// stay valid: peers send them with their own intermediate, or are known by [`Self::issuers`].
    /// Blocks on the keeper.
    ///
    /// # Errors
    /// The keeper or the disk fails; the old intermediate stays in force.
    pub fn renew_if_due(&self, now: SystemTime) -> Result<bool> {
        let _changing = self.change();
        let current = self.current();
        if now < current.renewal_due() {
            return Ok(false);
        }
        let state = current.state.with_next_intermediate();
        let fresh = hierarchy::make_intermediate(
            &self.folder,
            &self.cluster,
            self.keeper.as_ref(),
            state,
            now,
        )?;
        self.put(fresh)?;
        Ok(true)
    }

    /// The lock under which the hierarchy changes.
    pub(crate) fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts another hierarchy in force: on disk first, then in memory. The caller holds the lock of
    /// `change`.
    pub(crate) fn put(&self, fresh: Hierarchy) -> Result<()> {
        self.keep_earlier(&fresh)?;
        fresh.state.write(&self.folder)?;
        fresh.state.tidy(&self.folder);
        *self
            .hierarchy
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(fresh);
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Keeps the certificates of intermediates that `fresh` no longer has.
    fn keep_earlier(&self, fresh: &Hierarchy) -> Result<()> {
        let before = self.issuers();
        let mut earlier: Vec<_> = {
            let kept = self.earlier.read().unwrap_or_else(PoisonError::into_inner);
            let gone = before
                .into_iter()
                .filter(|one| !kept.contains(one) && !fresh.intermediates.contains(one));
            kept.iter().cloned().chain(gone).collect()
        };
        earlier.drain(..earlier.len().saturating_sub(MOST_EARLIER));
        let text: String = earlier.iter().map(|c| pem("CERTIFICATE", c)).collect();
        keeper::write_whole(&self.folder.join(EARLIER), text.as_bytes())?;
        *self.earlier.write().unwrap_or_else(PoisonError::into_inner) = earlier;
        Ok(())
    }

    /// The lowest image version (SVN) that can open the kept keys; `None` if any boot of the
    /// machine can.
    pub fn kept_from(&self) -> Option<u64> {
        self.listed().floor
    }

    /// The list of the kept keys.
    pub(crate) fn listed(&self) -> MutexGuard<'_, KeyList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the list, signed by the roots in force.
    fn write_list(&self, list: &KeyList) -> Result<()> {
        let roots =
            hierarchy::root_keys(&self.folder, self.keeper.as_ref(), &self.current().state)?;
        list.write(&self.folder, &roots)
    }

    /// The private key that signs service account tokens, PKCS#8. Blocks on the keeper.
    ///
    /// # Errors
    /// The file is missing, damaged or of another keeper, or the keeper fails.
    pub fn service_account_key(&self) -> Result<Zeroizing<Vec<u8>>> {
        self.listed_key(&self.listed(), ACCOUNTS, SERVICE_ACCOUNT_KEY)
    }

    /// A kept key that has no certificate.
    fn listed_key(
        &self,
        list: &KeyList,
        file: &str,
        purpose: &'static str,
    ) -> Result<Zeroizing<Vec<u8>>> {
        let path = self.folder.join(file);
        let der = keeper::load(self.keeper.as_ref(), &path, purpose)?;
        list.check(&path, purpose, &der)?;
        Ok(der)
    }

    /// Public keys (SubjectPublicKeyInfo DER) of earlier service account keys.
    ///
    /// # Errors
    /// The file cannot be read, or holds anything but public keys that the roots listed: tokens
    /// verify by them.
    pub fn retired_service_account_keys(&self) -> Result<Vec<Vec<u8>>> {
        self.retired_keys(&self.listed())
    }

    fn retired_keys(&self, list: &KeyList) -> Result<Vec<Vec<u8>>> {
        let path = self.folder.join(RETIRED);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(keeper::file("cannot read", &path, e)),
        };
        let keys = crate::names::public_keys_of_pem(&text).ok_or_else(|| Error::Damaged {
            path: path.clone(),
            why: "it holds no public keys".to_owned(),
        })?;
        for key in &keys {
            list.check_public(&path, RETIRED_KEY, key)?;
        }
        Ok(keys)
    }

    /// Makes a new service account key, in force from the next start. The old key's public half is
    /// kept, so that tokens it signed verify until they expire. The caller writes a new recovery
    /// copy afterwards.
    ///
    /// # Errors
    /// The old key can't be read, no new one can be made, or the keeper or the disk refuses what is
    /// written.
    pub fn rotate_service_account_key(&self) -> Result<()> {
        let fail = |source| Error::Build {
            profile: "service account",
            source,
        };
        let mut list = self.listed();
        let old = self.listed_key(&list, ACCOUNTS, SERVICE_ACCOUNT_KEY)?;
        let old = key_list::key_pair(&old)?;
        let mut retired = self.retired_keys(&list)?;
        retired.push(old.subject_public_key_info());
        // The list is written first: a key that is only in the file would count as planted.
        list.allow(RETIRED_KEY, &old);
        self.write_list(&list)?;
        let text: String = retired.iter().map(|spki| pem("PUBLIC KEY", spki)).collect();
        // The public key is written first: a power cut between the two writes must not invalidate
        // tokens in use.
        keeper::write_whole(&self.folder.join(RETIRED), text.as_bytes())?;
        let fresh = KeyPair::generate().map_err(fail)?;
        list.allow(SERVICE_ACCOUNT_KEY, &fresh);
        self.write_list(&list)?;
        keeper::store(
            self.keeper.as_ref(),
            &self.folder.join(ACCOUNTS),
            SERVICE_ACCOUNT_KEY,
            &Zeroizing::new(fresh.serialize_der()),
        )?;
        list.allow_only(SERVICE_ACCOUNT_KEY, &fresh);
        self.write_list(&list)
    }

    /// The key that signs the log of verdicts, with a certificate that [`Authority::root`] signed
    /// itself; made on first use, and again when the root changes. Blocks on the keeper.
    ///
    /// # Errors
    /// A file is damaged or of another keeper, or the keeper or the disk fails.
    pub fn log_signer(&self, now: SystemTime) -> Result<crate::LogSigner> {
        let [key, crt] = LOG.map(|file| self.folder.join(file));
        let current = self.current();
        let root = current.roots[0].clone();
        let have = if crt.exists() {
            Some(read_certificate(&crt)?)
        } else {
            None
        };
        if let Some(certificate) = have.filter(|certificate| issued_by(certificate, &root)) {
            let der = keeper::load(self.keeper.as_ref(), &key, LOG_KEY)?;
            key_list::check(&key, LOG_KEY, &der, &certificate)?;
            return crate::LogSigner::new(&self.cluster, &der, certificate, root);
        }
        let fail = |source| Error::Build {
            profile: "verdict log",
            source,
        };
        let pair = KeyPair::generate().map_err(fail)?;
        let der = Zeroizing::new(pair.serialize_der());
        let root_key =
            hierarchy::root_key(&self.folder, self.keeper.as_ref(), &current.state.root)?;
        let issuer = rcgen::Issuer::from_ca_cert_der(&root, &root_key).map_err(fail)?;
        let (_, until) = validity(&root)?;
        let certificate = profile::log(&self.cluster, now, until)?
            .signed_by(&pair, &issuer)
            .map_err(fail)?;
        keeper::store(self.keeper.as_ref(), &key, LOG_KEY, &der)?;
        keeper::write_whole(&crt, certificate.pem().as_bytes())?;
        crate::LogSigner::new(&self.cluster, &der, certificate.der().clone(), root)
    }

    /// The private key that signs discovery documents, PKCS#8; made on first use. Blocks on the
    /// keeper.
    pub(crate) fn discovery_key(&self) -> Result<Zeroizing<Vec<u8>>> {
        let mut list = self.listed();
        match self.listed_key(&list, DISCOVERY, DISCOVERY_KEY) {
            Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            found => return found,
        }
        let fresh = KeyPair::generate().map_err(|source| Error::Build {
            profile: "discovery",
            source,
        })?;
        let der = Zeroizing::new(fresh.serialize_der());
        // The list is written first: an entry for a key that was never written does no harm, as the
        // key was never used.
        list.allow_only(DISCOVERY_KEY, &fresh);
        self.write_list(&list)?;
        keeper::store(
            self.keeper.as_ref(),
            &self.folder.join(DISCOVERY),
            DISCOVERY_KEY,
            &der,
        )?;
        Ok(der)
    }

    /// Writes the recovery copy: the private keys of the roots, the service accounts and discovery,
    /// encrypted to this public key (SubjectPublicKeyInfo DER, P-256). Returns its path; it
    /// replaces an earlier copy. Blocks on the keeper.
    ///
    /// # Errors
    /// The public key is not a P-256 key, or the keeper or the disk fails.
    pub fn write_recovery(&self, admin_spki: &[u8]) -> Result<PathBuf> {
        self.recovery_of(&self.current(), admin_spki)
    }

    /// [`Authority::write_recovery`] for a hierarchy that is not in force yet.
    pub(crate) fn recovery_of(&self, hierarchy: &Hierarchy, admin_spki: &[u8]) -> Result<PathBuf> {
        let mut keys = Vec::new();
        for name in hierarchy.state.roots() {
            let key = hierarchy::root_key(&self.folder, self.keeper.as_ref(), name)?;
            keys.push(Zeroizing::new(key.serialize_der()));
        }
        keys.extend([self.service_account_key()?, self.discovery_key()?]);
        let mut text = Zeroizing::new(String::new());
        for key in keys {
            text.push_str(&Zeroizing::new(pem("PRIVATE KEY", &key)));
        }
        hierarchy
            .roots
            .iter()
            .for_each(|root| text.push_str(&pem("CERTIFICATE", root)));
        if let Some(key) = self.read_state_key()? {
            text.push_str(&crate::recovery::state_key_pem(&key));
        }
        let path = self.folder.join("recovery.json");
        keeper::write_whole(
            &path,
            crate::recovery::encrypt(admin_spki, text.as_bytes())?.as_bytes(),
        )?;
        Ok(path)
    }

    /// `None` if the machine has no encrypted state.
    fn read_state_key(&self) -> Result<Option<Zeroizing<[u8; STATE_KEY_BYTES]>>> {
        let Some(path) = &self.state_key else {
            return Ok(None);
        };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => Zeroizing::new(text),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(keeper::file("cannot read", path, e)),
        };
        crate::names::unhex(text.trim()).map_or_else(
            || {
                Err(Error::Damaged {
                    path: path.clone(),
                    why: "it holds no recovery key of the machine's state".to_owned(),
                })
            },
            |key| Ok(Some(key)),
        )
    }

    /// Signs a leaf over a public key (SubjectPublicKeyInfo DER). It ends after `life`, or with the
    /// intermediate if that is sooner.
    pub(crate) fn sign_leaf(
        &self,
        profile: &Profile,
        spki: &[u8],
        now: SystemTime,
        life: Duration,
    ) -> Result<IssuedCertificate> {
        let current = self.current();
        current.check_clock(now)?;
        let until = (now + life).min(current.not_after);
        let fail = |source| Error::Build {
            profile: profile.name(),
            source,
        };
        let key = SubjectPublicKeyInfo::from_der(spki).map_err(fail)?;
        let params = profile.params(now, until)?;
        let serial = params
            .serial_number
            .as_ref()
            .map(rcgen::SerialNumber::to_bytes)
            .unwrap_or_default();
        let certificate = params.signed_by(&key, &current.issuer).map_err(fail)?;
        Ok(IssuedCertificate {
            certificate: certificate.der().clone(),
            intermediates: current.intermediates.clone(),
            serial: hex(&serial),
            not_after: until,
        })
    }

    /// Signs a leaf over a new P-256 key, for the master's own use.
    pub(crate) fn make_identity(
        &self,
        profile: &Profile,
        now: SystemTime,
        life: Duration,
    ) -> Result<OwnCertificate> {
        let key = KeyPair::generate().map_err(|source| Error::Build {
            profile: profile.name(),
            source,
        })?;
        let spki = key.subject_public_key_info();
        let issued = self.sign_leaf(profile, &spki, now, life)?;
        Ok(OwnCertificate {
            issued,
            key: PrivatePkcs8KeyDer::from(key.serialize_der()),
            spki,
        })
    }

    pub(crate) fn current(&self) -> Arc<Hierarchy> {
        self.hierarchy
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Makes the keys of a new cluster: the root's certificate is written last, so that an interrupted
/// start begins again with new keys.
fn found(
    folder: &Path,
    cluster: &str,
    keeper: &dyn Keeper,
    state: &State,
    now: SystemTime,
) -> Result<()> {
    let accounts = KeyPair::generate().map_err(|source| Error::Build {
        profile: "root",
        source,
    })?;
    let floor = keeper.floor()?;
    keeper::store(
        keeper,
        &folder.join(ACCOUNTS),
        SERVICE_ACCOUNT_KEY,
        &Zeroizing::new(accounts.serialize_der()),
    )?;
    let (key, certificate) = hierarchy::make_root(folder, cluster, keeper, &state.root, now)?;
    let mut list = KeyList::new(floor);
    list.allow(SERVICE_ACCOUNT_KEY, &accounts);
    list.write(folder, &[key])?;
    hierarchy::write_root(folder, &state.root, &certificate)
}

/// The files of the keys that a state names, and of those beside it.
fn places(state: &State) -> Vec<KeyFile> {
    let beside = |key: &str, purpose, certificate: Option<&str>| KeyFile {
        key: key.to_owned(),
        purpose,
        certificate: certificate.map(str::to_owned),
        remade: certificate.is_some(),
    };
    let [log, certificate] = LOG;
    let mut all = state.places();
    all.extend([
        beside(ACCOUNTS, SERVICE_ACCOUNT_KEY, None),
        beside(DISCOVERY, DISCOVERY_KEY, None),
        beside(log, LOG_KEY, Some(certificate)),
    ]);
    all
}
