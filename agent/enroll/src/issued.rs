//! A static identity: certificates and a key that an admin issued in advance. The node makes no
//! request and renews nothing; it only warns in time before its certificates expire.

use crate::Error;
use crate::client::MasterClient;
use crate::endpoint::Endpoints;
use crate::enroller::Identity;
use crate::figures::FailedRenewals;
use crate::identity::CertificateSlot;
use crate::keys::NodeKey;
use crate::request::is_for;
use agent_tpm::{Tpm, WrappedKey};
use config_kube::identity::{NODES_GROUP, node_user};
use config_tls::{Pins, client_ends_in, ends_in, spki_hash};
use rustls::crypto::ring::sign::any_ecdsa_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::sign::{CertifiedKey, SigningKey};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::sleep;
use x509_parser::certificate::X509Certificate;
use zeroize::Zeroizing;

/// Warn about expiry from this long before it.
const NOTICE: Duration = Duration::from_secs(14 * 86_400);
/// How often it then warns.
const DAILY: Duration = Duration::from_secs(86_400);
/// How often it compares the expiry with the clock, which may be set meanwhile.
const LOOK: Duration = Duration::from_secs(600);

/// The key of an issued identity.
pub enum IssuedKey {
    /// For this TPM to import.
    Wrapped(Tpm, Box<WrappedKey>),
    /// In the clear, PKCS#8.
    Plaintext(Zeroizing<Vec<u8>>),
}

impl fmt::Debug for IssuedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wrapped(..) => "Wrapped",
            Self::Plaintext(_) => "Plaintext",
        })
    }
}

/// What an admin issued, as the machine's document has it.
#[derive(Debug)]
pub struct Issued {
    /// The node's name.
    pub node: String,
    /// Client certificate and intermediates, DER.
    pub certificate: Vec<Vec<u8>>,
    /// Serving certificate and intermediates, DER.
    pub serving_certificate: Vec<Vec<u8>>,
    /// The cluster's roots, DER.
    pub roots: Vec<Vec<u8>>,
    /// The key of both certificates.
    pub key: IssuedKey,
}

/// The expiry of an issued identity.
#[derive(Debug, Clone, Copy)]
pub struct Expiry {
    /// Unix seconds at which the first of the certificates ends.
    pub not_after: u64,
}

/// Puts an issued identity in use. Blocks during the TPM's import.
///
/// # Errors
/// The certificate is for another key or was not signed under a pinned root, the TPM does not
/// import the key, or the TLS library refuses it.
pub fn put_in_use(
    issued: Issued,
    endpoints: Endpoints,
    pins: Pins,
) -> Result<(Identity, Expiry), Error> {
    let Issued {
        node,
        certificate,
        serving_certificate,
        roots,
        key,
    } = issued;
    let chain = |ders: Vec<Vec<u8>>| {
        ders.into_iter()
            .map(CertificateDer::from)
            .collect::<Vec<_>>()
    };
    let (certificate, serving_certificate) = (chain(certificate), chain(serving_certificate));
    let (mut roots, allowed) = (chain(roots), pins.get());
    roots.retain(|root| spki_hash(root).is_some_and(|hash| allowed.contains(&hash)));
    if roots.is_empty() {
        return Err(Error::Issued(
            "none of its roots is among `ca_pins`".to_owned(),
        ));
    }
    let not_after = named(&certificate, &node, "certificate")?.min(named(
        &serving_certificate,
        &node,
        "serving certificate",
    )?);
    alive(not_after, now())?;
    // The pins are public, and so are the roots: without this, anyone could make an identity of
    // the cluster for a machine that they have.
    signed(&certificate, &roots, client_ends_in, "certificate")?;
    signed(&serving_certificate, &roots, ends_in, "serving certificate")?;
    let (key, spki) = signer(key)?;
    for (chain, what) in [
        (&certificate, "certificate"),
        (&serving_certificate, "serving certificate"),
    ] {
        if !is_for(chain, &spki) {
            return Err(Error::Issued(format!("its {what} is for another key")));
        }
    }
    let slot = |chain| {
        let slot = CertificateSlot::default();
        slot.set(CertifiedKey::new(chain, Arc::clone(&key)));
        Arc::new(slot)
    };
    let (certificate, serving) = (slot(certificate), slot(serving_certificate));
    let client = MasterClient::new(endpoints, pins.clone(), Arc::clone(&certificate))?;
    Ok((
        Identity {
            node,
            client,
            serving,
            certificate,
            pins,
            roots: roots.into(),
            failed_renewals: FailedRenewals::default(),
        },
        Expiry { not_after },
    ))
}

/// The signing key and its SubjectPublicKeyInfo.
fn signer(key: IssuedKey) -> Result<(Arc<dyn SigningKey>, Vec<u8>), Error> {
    match key {
        IssuedKey::Wrapped(tpm, wrapped) => {
            let key = NodeKey::imported(tpm, *wrapped)?;
            let spki = key.spki().to_vec();
            Ok((Arc::new(key), spki))
        }
        IssuedKey::Plaintext(pkcs8) => {
            let der = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(pkcs8.as_slice()));
            let key = any_ecdsa_type(&der).map_err(Error::Tls)?;
            let spki = key.public_key().map(|spki| spki.to_vec());
            Ok((
                key,
                spki.ok_or_else(|| Error::Issued("its key has no public part".to_owned()))?,
            ))
        }
    }
}

/// Checks the subject of a certificate; returns its expiry.
fn named(chain: &[CertificateDer<'_>], node: &str, what: &str) -> Result<u64, Error> {
    let leaf = chain.first().ok_or_else(|| unreadable(what))?;
    let (_, leaf) =
        x509_parser::parse_x509_certificate(leaf).map_err(|_not_x509| unreadable(what))?;
    let (users, groups) = names(&leaf);
    if users != [node_user(node)] || groups != [NODES_GROUP] {
        return Err(Error::Issued(format!(
            "its {what} is not one of node {node}, but of {}",
            users.join(", ")
        )));
    }
    u64::try_from(leaf.validity().not_after.timestamp()).map_err(|_before_1970| unreadable(what))
}

fn signed(
    chain: &[CertificateDer<'_>],
    roots: &[CertificateDer<'_>],
    ends_in: fn(&[CertificateDer<'_>], &[u8], UnixTime) -> bool,
    what: &str,
) -> Result<(), Error> {
    let since = since(chain).ok_or_else(|| unreadable(what))?;
    if roots.iter().any(|root| ends_in(chain, root, since)) {
        return Ok(());
    }
    let text = format!("its {what} was not signed under a root that `ca_pins` names");
    Err(Error::Issued(text))
}

/// The first second of a certificate's validity. A chain is judged then: the clock of a machine
/// that has not asked the time yet may be behind, and the end is checked apart.
fn since(chain: &[CertificateDer<'_>]) -> Option<UnixTime> {
    let (_, leaf) = x509_parser::parse_x509_certificate(chain.first()?).ok()?;
    let seconds = u64::try_from(leaf.validity().not_before.timestamp()).ok()?;
    Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
}

fn unreadable(what: &str) -> Error {
    Error::Issued(format!("its {what} cannot be read"))
}

/// Common names and organizations of a certificate's subject.
pub(crate) fn names(leaf: &X509Certificate<'_>) -> (Vec<String>, Vec<String>) {
    let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| {
        value.as_str().unwrap_or_default().to_owned()
    };
    let subject = leaf.subject();
    let users = subject.iter_common_name().map(text);
    (
        users.collect(),
        subject.iter_organization().map(text).collect(),
    )
}

fn alive(not_after: u64, now: u64) -> Result<(), Error> {
    if now >= not_after {
        return Err(Error::IssuedExpired {
            days: now.saturating_sub(not_after) / DAILY.as_secs(),
        });
    }
    Ok(())
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// Warns once a day from two weeks before the expiry, and at the expiry. Runs until it is dropped.
pub async fn watch(ending: Expiry, warn: impl Fn(Duration) + Send) -> std::convert::Infallible {
    let mut logged: Option<u64> = None;
    loop {
        let left = ending.not_after.saturating_sub(now());
        if let Some(left) = due(left, logged) {
            logged = Some(left);
            warn(Duration::from_secs(left));
        }
        sleep(LOOK).await;
    }
}

/// Whether to warn `left` seconds before the expiry, if the last warning came with `logged` seconds
/// left.
fn due(left: u64, logged: Option<u64>) -> Option<u64> {
    let first = logged.is_none() && left <= NOTICE.as_secs();
    let again = logged.is_some_and(|logged| {
        logged > 0 && (left == 0 || logged - left.min(logged) >= DAILY.as_secs())
    });
    (first || again).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::{Issued, IssuedKey, alive, due, put_in_use};
    use crate::endpoint::{Endpoint, Endpoints};
    use config_tls::spki_hash;
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    };
    use zeroize::Zeroizing;

    const DAY: u64 = 86_400;

    #[test]
    fn it_warns_daily_from_two_weeks_before_the_expiry_and_once_at_it() {
        assert_eq!(due(15 * DAY, None), None);
        assert_eq!(due(14 * DAY, None), Some(14 * DAY));
        assert_eq!(due(14 * DAY - 600, Some(14 * DAY)), None);
        assert_eq!(due(13 * DAY, Some(14 * DAY)), Some(13 * DAY));
        assert_eq!(due(0, Some(600)), Some(0));
        assert_eq!(due(0, Some(0)), None);
    }

    /// Pins and roots of a cluster are public, so they alone make no identity.
    #[test]
    fn an_identity_that_the_cluster_did_not_sign_is_refused() {
        let authority = || {
            let key = KeyPair::generate().expect("a key");
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let root = params.self_signed(&key).expect("a root").der().to_vec();
            (root, Issuer::new(params, key))
        };
        let (root, cluster) = authority();
        let (_, stranger) = authority();
        let key = KeyPair::generate().expect("a key");
        let leaf = |issuer: &Issuer<'_, KeyPair>, usage| {
            let mut params = CertificateParams::default();
            let names = [
                (DnType::CommonName, "system:node:worker-1"),
                (DnType::OrganizationName, "system:nodes"),
            ];
            for (kind, name) in names {
                params.distinguished_name.push(kind, name);
            }
            params.extended_key_usages = vec![usage];
            let made = params.signed_by(&key, issuer).expect("a certificate");
            vec![made.der().to_vec()]
        };
        let (client, server) = (
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        );
        let use_of = |by: &Issuer<'_, KeyPair>, serving_by: &Issuer<'_, KeyPair>| {
            let issued = Issued {
                node: "worker-1".to_owned(),
                certificate: leaf(by, client.clone()),
                serving_certificate: leaf(serving_by, server.clone()),
                roots: vec![root.clone()],
                key: IssuedKey::Plaintext(Zeroizing::new(key.serialize_der())),
            };
            let endpoint = Endpoint::new("127.0.0.1", 1).expect("an endpoint");
            let endpoints = Endpoints::new(vec![endpoint]).expect("one");
            let pins = vec![spki_hash(&root).expect("a key")];
            put_in_use(issued, endpoints, pins.into()).map(drop)
        };
        use_of(&cluster, &cluster).expect("the cluster's");
        for (by, serving_by, what) in [
            (&stranger, &cluster, "its certificate was not signed"),
            (
                &cluster,
                &stranger,
                "its serving certificate was not signed",
            ),
        ] {
            let error = use_of(by, serving_by)
                .expect_err("a stranger's")
                .to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn an_ended_certificate_says_since_when() {
        assert!(alive(100, 99).is_ok());
        let error = alive(100, 100 + 3 * DAY).expect_err("ended").to_string();
        assert!(
            error.contains("3 days ago") && error.contains("pratique issue"),
            "{error}"
        );
    }
}
