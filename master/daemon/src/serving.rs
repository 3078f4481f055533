//! The API's certificate: chosen at each handshake, swapped while serving. The key stays for the
//! life of the process, so that evidence made over one connection names the key that every
//! connection shows.

use config_tpm::Digest;
use master_ca::{Authority, IssuedCertificate, profile};
use rustls::crypto::ring::sign::any_ecdsa_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

/// A certificate is renewed when one part in this many of its life is left.
const RENEW_LEFT: u32 = 3;

/// The certificate in use.
#[derive(Debug)]
pub(crate) struct Serving {
    names: Vec<String>,
    key: Arc<dyn SigningKey>,
    spki: Vec<u8>,
    current: RwLock<Current>,
}

/// The certificate, its end, and the authority's generation of which it is.
type Current = (Arc<CertifiedKey>, SystemTime, u64);

/// Why there is no certificate to serve with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServingError {
    /// The authority did not issue one.
    #[error("cannot issue the API's certificate")]
    Issue(#[source] master_ca::Error),
    /// The TLS library refuses the key.
    #[error("cannot use the API's key")]
    Key(#[source] rustls::Error),
}

impl Serving {
    /// Makes a key, and the first certificate over it.
    pub(crate) fn new(
        authority: &Authority,
        names: Vec<String>,
        now: SystemTime,
    ) -> Result<Self, ServingError> {
        let generation = authority.generation();
        let identity = authority
            .make_serving(&names, now)
            .map_err(ServingError::Issue)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(
            identity.key.secret_pkcs8_der().to_vec(),
        ));
        let key = any_ecdsa_type(&key).map_err(ServingError::Key)?;
        let spki = identity.spki;
        let not_after = identity.issued.not_after;
        let certified = Arc::new(CertifiedKey::new(
            chain_with_roots(authority, &identity.issued),
            key.clone(),
        ));
        Ok(Self {
            names,
            key,
            spki,
            current: RwLock::new((certified, not_after, generation)),
        })
    }

    /// SHA-256 of the key's SubjectPublicKeyInfo.
    pub(crate) fn spki_hash(&self) -> Digest {
        Digest::of(&self.spki)
    }

    /// When the certificate is to be renewed.
    pub(crate) fn renewal_due(&self) -> SystemTime {
        let (_, not_after, _) = &*self.current.read().unwrap_or_else(PoisonError::into_inner);
        *not_after - profile::MASTER_LIFE / RENEW_LEFT
    }

    /// Whether roots or intermediate are others since it was issued.
    fn is_stale(&self, authority: &Authority) -> bool {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .2
            != authority.generation()
    }

    /// Issues a new certificate over the same key and shows it from now on.
    pub(crate) fn renew(&self, authority: &Authority, now: SystemTime) -> Result<(), ServingError> {
        let generation = authority.generation();
        let issued = authority
            .renew_serving(&self.names, &self.spki, now)
            .map_err(ServingError::Issue)?;
        let certified = Arc::new(CertifiedKey::new(
            chain_with_roots(authority, &issued),
            self.key.clone(),
        ));
        *self.current.write().unwrap_or_else(PoisonError::into_inner) =
            (certified, issued.not_after, generation);
        Ok(())
    }
}

/// Leaf, intermediates and roots: a node that has not joined knows a root by its pin only, so it
/// must see it.
fn chain_with_roots(
    authority: &Authority,
    issued: &IssuedCertificate,
) -> Vec<CertificateDer<'static>> {
    let mut chain = issued.chain();
    chain.extend(authority.roots());
    chain
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(
            self.current
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .0
                .clone(),
        )
    }
}

/// Longest pause between two checks of what is due: clocks are set, machines sleep.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// Shortest pause, also where something is due all the time.
const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// How long before the root expires the log warns of it.
const ROOT_EXPIRY_WARNING: Duration = Duration::from_secs(365 * 86_400);
/// A day: how often that warning is repeated.
const DAY: Duration = Duration::from_secs(86_400);

/// Renews the intermediate and the API's certificate before they expire, and warns before the root
/// expires. Drop it to stop.
pub(crate) async fn keep_current(authority: Arc<Authority>, serving: Arc<Serving>) {
    let mut logged: Option<tokio::time::Instant> = None;
    loop {
        if logged.is_none_or(|logged| logged.elapsed() >= DAY)
            && let Some(days) = days_left(&authority, SystemTime::now())
        {
            tracing::warn!(
                days,
                "the cluster's root certificate expires soon, and nothing in the cluster works then: rotate it by `pratique root rotate`"
            );
            logged = Some(tokio::time::Instant::now());
        }
        let (authority, serving) = (authority.clone(), serving.clone());
        let round =
            tokio::task::spawn_blocking(move || renew_due(&authority, &serving, SystemTime::now()));
        let pause = match round.await {
            Ok(Ok(due)) => due
                .duration_since(SystemTime::now())
                .unwrap_or_default()
                .clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL),
            Ok(Err(error)) => {
                tracing::error!(error = %crate::chain(&error), "certificates could not be renewed; trying again");
                RETRY_INTERVAL
            }
            Err(error) => {
                tracing::error!(
                    error = crate::chain(&error),
                    "the certificate renewal task panicked; trying again"
                );
                RETRY_INTERVAL
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Days of the root that are left, in its last year.
fn days_left(authority: &Authority, now: SystemTime) -> Option<u64> {
    let left = authority
        .root_ends()
        .ok()?
        .duration_since(now)
        .unwrap_or_default();
    (left <= ROOT_EXPIRY_WARNING).then(|| left.as_secs() / DAY.as_secs())
}

/// Renews what is due; returns when to check again.
fn renew_due(
    authority: &Authority,
    serving: &Serving,
    now: SystemTime,
) -> Result<SystemTime, ServingError> {
    let rotated = authority.renew_if_due(now).map_err(ServingError::Issue)?;
    if rotated {
        tracing::info!("the issuing intermediate was renewed");
    }
    if serving.is_stale(authority) || now >= serving.renewal_due() {
        serving.renew(authority, now)?;
        tracing::info!("the API's certificate was renewed");
    }
    Ok(authority.renewal_due().min(serving.renewal_due()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use master_ca::FileKeeper;

    fn leaf(serving: &Serving) -> Vec<u8> {
        serving.current.read().unwrap().0.cert[0].to_vec()
    }

    #[test]
    fn the_certificate_is_swapped_before_it_ends_and_its_key_stays() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let authority = Authority::open(folder.path(), "lab", Arc::new(FileKeeper), now).unwrap();
        let serving = Serving::new(&authority, vec!["127.0.0.1".to_owned()], now).unwrap();
        let (first, key) = (leaf(&serving), serving.spki_hash());
        renew_due(&authority, &serving, now).unwrap();
        assert_eq!(leaf(&serving), first);
        let later = serving.renewal_due() + Duration::from_secs(1);
        renew_due(&authority, &serving, later).unwrap();
        assert_ne!(leaf(&serving), first);
        assert_eq!(serving.spki_hash(), key);
        assert!(serving.renewal_due() > later);
        assert_eq!(days_left(&authority, now), None);
        assert_eq!(
            days_left(&authority, now + profile::ROOT_LIFE - DAY * 7 / 2),
            Some(3)
        );
    }
}
