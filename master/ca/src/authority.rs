//! The authority: one root for the cluster's life, one intermediate at a time that signs everything else.

use crate::error::{Error, Result};
use crate::keeper::{self, Keeper};
use crate::names::{hex, pem, spki_hash};
use crate::profile::{self, Profile};
use rcgen::{KeyPair, PublicKeyData as _, SubjectPublicKeyInfo};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_parser::prelude::{FromDer as _, X509Certificate};
use zeroize::Zeroizing;

/// A certificate that was issued, with the intermediate that a peer needs to reach the root.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The leaf.
    pub certificate: CertificateDer<'static>,
    /// The issuing intermediate.
    pub intermediate: CertificateDer<'static>,
    /// Hex serial number.
    pub serial: String,
    /// End of validity.
    pub not_after: SystemTime,
}

impl Issued {
    /// Leaf and intermediate, as a TLS peer sends them.
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone(), self.intermediate.clone()]
    }

    /// The chain as PEM.
    pub fn chain_pem(&self) -> String {
        self.chain().iter().map(|c| pem("CERTIFICATE", c)).collect()
    }
}

/// A certificate with its private key, for a part of the master itself.
#[derive(Debug)]
pub struct Identity {
    /// The certificate.
    pub issued: Issued,
    /// The key, PKCS#8.
    pub key: PrivatePkcs8KeyDer<'static>,
    /// Its SubjectPublicKeyInfo DER.
    pub spki: Vec<u8>,
}

struct Intermediate {
    certificate: CertificateDer<'static>,
    issuer: rcgen::Issuer<'static, KeyPair>,
    not_after: SystemTime,
}

/// The cluster's certificate authority.
///
/// Guarantee: leaves leave it only by [`Authority::sign_leaf`], whose callers in this crate hold a verified proof, an
/// approved request, or ask for the master's own use. The root key is in memory only while an intermediate is made.
pub struct Authority {
    folder: PathBuf,
    cluster: String,
    keeper: Arc<dyn Keeper>,
    root: CertificateDer<'static>,
    intermediate: RwLock<Arc<Intermediate>>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("folder", &self.folder).field("root", &self.pin()).finish_non_exhaustive()
    }
}

const ROOT_KEY: &str = "root key";
const INTERMEDIATE_KEY: &str = "intermediate key";
const SERVICE_ACCOUNT_KEY: &str = "service account key";
const LOG_KEY: &str = "verdict log key";
const DISCOVERY_KEY: &str = "discovery key";
/// File of the service accounts' key.
const ACCOUNTS: &str = "service-account.key";
/// File of the public keys that signed for service accounts before.
const RETIRED: &str = "service-account.retired.pem";

impl Authority {
    /// Opens the authority in `folder`, or makes it on first use.
    pub fn open(folder: &Path, cluster: &str, keeper: Arc<dyn Keeper>, now: SystemTime) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(|e| keeper::file("cannot make", folder, e))?;
        let root_file = folder.join("root.crt");
        if !root_file.exists() {
            if folder.join("intermediate.crt").exists() {
                let why = "it is missing, while an intermediate signed by it is there".to_owned();
                return Err(Error::Damaged { path: root_file, why });
            }
            create(folder, cluster, keeper.as_ref(), now)?;
        }
        let root = read_certificate(&root_file)?;
        let intermediate = match load_intermediate(folder, keeper.as_ref()) {
            Ok(found) => found,
            Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                make_intermediate(folder, cluster, keeper.as_ref(), &root, now)?
            }
            Err(other) => return Err(other),
        };
        Ok(Self {
            folder: folder.to_owned(),
            cluster: cluster.to_owned(),
            keeper,
            root,
            intermediate: RwLock::new(Arc::new(intermediate)),
        })
    }

    /// The root's certificate.
    pub fn root(&self) -> CertificateDer<'static> {
        self.root.clone()
    }

    /// The root's certificate as PEM.
    pub fn root_pem(&self) -> String {
        pem("CERTIFICATE", &self.root)
    }

    /// The root's SubjectPublicKeyInfo DER: what nodes pin.
    pub fn root_spki(&self) -> Vec<u8> {
        X509Certificate::from_der(&self.root).map(|(_, c)| c.public_key().raw.to_vec()).unwrap_or_default()
    }

    /// `sha256:<hex>` of the root's SubjectPublicKeyInfo.
    pub fn pin(&self) -> String {
        spki_hash(&self.root_spki())
    }

    /// The intermediate that signs now.
    pub fn intermediate(&self) -> CertificateDer<'static> {
        self.current().certificate.clone()
    }

    /// When the intermediate is to be renewed: when half of its life is gone.
    pub fn renewal_due(&self) -> SystemTime {
        self.current().not_after - profile::INTERMEDIATE_LIFE / 2
    }

    /// Makes a new intermediate if the present one is due. Leaves signed before stay good: they carry their chain.
    pub fn renew_if_due(&self, now: SystemTime) -> Result<bool> {
        if now < self.renewal_due() {
            return Ok(false);
        }
        let fresh = make_intermediate(&self.folder, &self.cluster, self.keeper.as_ref(), &self.root, now)?;
        *self.intermediate.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(fresh);
        Ok(true)
    }

    /// The service account key, PKCS#8.
    pub fn service_account_key(&self) -> Result<Zeroizing<Vec<u8>>> {
        keeper::load(self.keeper.as_ref(), &self.folder.join(ACCOUNTS), SERVICE_ACCOUNT_KEY)
    }

    /// Public keys (SubjectPublicKeyInfo) of service account keys that signed before the present one.
    pub fn retired_service_account_keys(&self) -> Result<Vec<Vec<u8>>> {
        let path = self.folder.join(RETIRED);
        match std::fs::read_to_string(&path) {
            Ok(text) => crate::names::public_keys_of_pem(&text)
                .ok_or_else(|| Error::Damaged { path, why: "it holds no public keys".to_owned() }),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(keeper::file("cannot read", &path, e)),
        }
    }

    /// Makes a new service account key. The old one's public key stays, so that tokens that are out keep their worth
    /// until they end. In force at the next start; the recovery copy is to be written anew.
    pub fn rotate_service_account_key(&self) -> Result<()> {
        let fail = |source| Error::Build { profile: "service account", source };
        let path = self.folder.join(ACCOUNTS);
        let old = load_key(self.keeper.as_ref(), &path, SERVICE_ACCOUNT_KEY)?;
        let mut retired = self.retired_service_account_keys()?;
        retired.push(old.subject_public_key_info());
        let text: String = retired.iter().map(|spki| pem("PUBLIC KEY", spki)).collect();
        // The public key goes first: without it a cut here would make every token that is out worthless.
        keeper::write_whole(&self.folder.join(RETIRED), text.as_bytes())?;
        let fresh = KeyPair::generate().map_err(fail)?;
        keeper::store(self.keeper.as_ref(), &path, SERVICE_ACCOUNT_KEY, &Zeroizing::new(fresh.serialize_der()))
    }

    /// The key that signs the log of verdicts, with a certificate of the root's own; made on first use, and anew under
    /// another root. Blocks on the keeper.
    pub fn log_signer(&self, now: SystemTime) -> Result<crate::LogSigner> {
        let (key, crt) = (self.folder.join("verdicts.key"), self.folder.join("verdicts.crt"));
        let root = self.root();
        let have = if crt.exists() { Some(read_certificate(&crt)?) } else { None };
        if let Some(certificate) = have.filter(|certificate| issued_by(certificate, &root)) {
            let der = keeper::load(self.keeper.as_ref(), &key, LOG_KEY)?;
            return crate::LogSigner::new(&self.cluster, &der, certificate, root);
        }
        let fail = |source| Error::Build { profile: "verdict log", source };
        let pair = KeyPair::generate().map_err(fail)?;
        let der = Zeroizing::new(pair.serialize_der());
        let root_key = load_key(self.keeper.as_ref(), &self.folder.join("root.key"), ROOT_KEY)?;
        let issuer = rcgen::Issuer::from_ca_cert_der(&root, &root_key).map_err(fail)?;
        let (_, until) = validity(&root)?;
        let certificate = profile::log(&self.cluster, now, until)?.signed_by(&pair, &issuer).map_err(fail)?;
        keeper::store(self.keeper.as_ref(), &key, LOG_KEY, &der)?;
        keeper::write_whole(&crt, certificate.pem().as_bytes())?;
        crate::LogSigner::new(&self.cluster, &der, certificate.der().clone(), root)
    }

    /// The key that signs discovery documents, PKCS#8; made on first use. Blocks on the keeper.
    pub(crate) fn discovery_key(&self) -> Result<Zeroizing<Vec<u8>>> {
        let path = self.folder.join("discovery.key");
        match keeper::load(self.keeper.as_ref(), &path, DISCOVERY_KEY) {
            Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            found => return found,
        }
        let fresh = KeyPair::generate().map_err(|source| Error::Build { profile: "discovery", source })?;
        let der = Zeroizing::new(fresh.serialize_der());
        keeper::store(self.keeper.as_ref(), &path, DISCOVERY_KEY, &der)?;
        Ok(der)
    }

    /// Writes the recovery copy of the root's, the service accounts' and the discovery key for the holder of this public key
    /// (SubjectPublicKeyInfo DER) and returns its path. An earlier copy is replaced.
    pub fn write_recovery(&self, admin_spki: &[u8]) -> Result<PathBuf> {
        let root = keeper::load(self.keeper.as_ref(), &self.folder.join("root.key"), ROOT_KEY)?;
        let accounts = self.service_account_key()?;
        let mut text = Zeroizing::new(String::new());
        text.push_str(&Zeroizing::new(pem("PRIVATE KEY", &root)));
        text.push_str(&Zeroizing::new(pem("PRIVATE KEY", &accounts)));
        text.push_str(&Zeroizing::new(pem("PRIVATE KEY", &self.discovery_key()?)));
        text.push_str(&self.root_pem());
        let path = self.folder.join("recovery.json");
        keeper::write_whole(&path, crate::recovery::encrypt(admin_spki, text.as_bytes())?.as_bytes())?;
        Ok(path)
    }

    /// Signs a leaf. The life is cut to what the intermediate can still vouch for.
    pub(crate) fn sign_leaf(&self, profile: &Profile, spki: &[u8], now: SystemTime, life: Duration) -> Result<Issued> {
        let intermediate = self.current();
        let until = (now + life).min(intermediate.not_after);
        let fail = |source| Error::Build { profile: profile.name(), source };
        let key = SubjectPublicKeyInfo::from_der(spki).map_err(fail)?;
        let params = profile.params(now, until)?;
        let serial = params.serial_number.as_ref().map(rcgen::SerialNumber::to_bytes).unwrap_or_default();
        let certificate = params.signed_by(&key, &intermediate.issuer).map_err(fail)?;
        Ok(Issued {
            certificate: certificate.der().clone(),
            intermediate: intermediate.certificate.clone(),
            serial: hex(&serial),
            not_after: until,
        })
    }

    /// Signs a leaf over a fresh P-256 key, for a part of the master.
    pub(crate) fn make_identity(&self, profile: &Profile, now: SystemTime, life: Duration) -> Result<Identity> {
        let key = KeyPair::generate().map_err(|source| Error::Build { profile: profile.name(), source })?;
        let spki = key.subject_public_key_info();
        let issued = self.sign_leaf(profile, &spki, now, life)?;
        Ok(Identity { issued, key: PrivatePkcs8KeyDer::from(key.serialize_der()), spki })
    }

    fn current(&self) -> Arc<Intermediate> {
        self.intermediate.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

/// Root and service account keys; the root's certificate is written last, so that a cut start is begun anew.
fn create(folder: &Path, cluster: &str, keeper: &dyn Keeper, now: SystemTime) -> Result<()> {
    let fail = |source| Error::Build { profile: "root", source };
    let key = KeyPair::generate().map_err(fail)?;
    let certificate = profile::root(cluster, now)?.self_signed(&key).map_err(fail)?;
    let accounts = KeyPair::generate().map_err(fail)?;
    let bytes = |pair: &KeyPair| Zeroizing::new(pair.serialize_der());
    keeper::store(keeper, &folder.join("root.key"), ROOT_KEY, &bytes(&key))?;
    keeper::store(keeper, &folder.join(ACCOUNTS), SERVICE_ACCOUNT_KEY, &bytes(&accounts))?;
    keeper::write_whole(&folder.join("root.crt"), certificate.pem().as_bytes())
}

fn make_intermediate(
    folder: &Path,
    cluster: &str,
    keeper: &dyn Keeper,
    root: &CertificateDer<'static>,
    now: SystemTime,
) -> Result<Intermediate> {
    let fail = |source| Error::Build { profile: "intermediate", source };
    let root_key = load_key(keeper, &folder.join("root.key"), ROOT_KEY)?;
    let root_issuer = rcgen::Issuer::from_ca_cert_der(root, &root_key).map_err(fail)?;
    let (_, until) = validity(root)?;
    let params = profile::intermediate(cluster, now, (now + profile::INTERMEDIATE_LIFE).min(until))?;
    let key = KeyPair::generate().map_err(fail)?;
    let certificate = params.signed_by(&key, &root_issuer).map_err(fail)?;
    keeper::store(
        keeper,
        &folder.join("intermediate.key.next"),
        INTERMEDIATE_KEY,
        &Zeroizing::new(key.serialize_der()),
    )?;
    // The key goes first: a certificate without its key would be found damaged, a key without its certificate is
    // replaced at the next start.
    let rename = |from: &str, to: &str| {
        std::fs::rename(folder.join(from), folder.join(to))
            .map_err(|e| keeper::file("cannot write", &folder.join(to), e))
    };
    match std::fs::remove_file(folder.join("intermediate.crt")) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(keeper::file("cannot remove", &folder.join("intermediate.crt"), e)),
    }
    rename("intermediate.key.next", "intermediate.key")?;
    keeper::write_whole(&folder.join("intermediate.crt"), certificate.pem().as_bytes())?;
    intermediate_of(certificate.der().clone(), key)
}

fn load_intermediate(folder: &Path, keeper: &dyn Keeper) -> Result<Intermediate> {
    let certificate = read_certificate(&folder.join("intermediate.crt"))?;
    intermediate_of(certificate, load_key(keeper, &folder.join("intermediate.key"), INTERMEDIATE_KEY)?)
}

fn intermediate_of(certificate: CertificateDer<'static>, key: KeyPair) -> Result<Intermediate> {
    let (_, not_after) = validity(&certificate)?;
    let issuer = rcgen::Issuer::from_ca_cert_der(&certificate, key)
        .map_err(|source| Error::Build { profile: "intermediate", source })?;
    Ok(Intermediate { certificate, issuer, not_after })
}

fn load_key(keeper: &dyn Keeper, path: &Path, purpose: &str) -> Result<KeyPair> {
    let der = keeper::load(keeper, path, purpose)?;
    KeyPair::try_from(der.as_slice()).map_err(|source| Error::Build { profile: "stored key", source })
}

fn read_certificate(path: &Path) -> Result<CertificateDer<'static>> {
    let text = std::fs::read_to_string(path).map_err(|e| keeper::file("cannot read", path, e))?;
    crate::names::certificates_of_pem(&text)
        .into_iter()
        .next()
        .map(CertificateDer::from)
        .ok_or_else(|| Error::Damaged { path: path.to_owned(), why: "it holds no certificate".to_owned() })
}

/// Whether the key of `issuer` signed a certificate.
fn issued_by(certificate: &[u8], issuer: &[u8]) -> bool {
    let (Ok((_, certificate)), Ok((_, issuer))) =
        (X509Certificate::from_der(certificate), X509Certificate::from_der(issuer))
    else {
        return false;
    };
    certificate.verify_signature(Some(issuer.public_key())).is_ok()
}

/// notBefore and notAfter.
pub(crate) fn validity(certificate: &[u8]) -> Result<(SystemTime, SystemTime)> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_opaque| Error::Key("not a certificate"))?;
    let moment = |seconds: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let validity = parsed.validity();
    Ok((moment(validity.not_before.timestamp()), moment(validity.not_after.timestamp())))
}
