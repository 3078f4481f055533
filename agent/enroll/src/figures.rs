//! Metrics of a node's identity, under the names of upstream's kubelet: how long its certificates
//! last, how often they could not be renewed, and its requests to the API.

use crate::client::MasterClient;
use crate::identity::CertificateSlot;
use config_figures::Text;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// How often a renewal failed: each renews both certificates. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct FailedRenewals(Arc<AtomicU64>);

impl FailedRenewals {
    pub(crate) fn one_more(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The metrics of one identity, as they are when they are asked for.
#[derive(Debug)]
pub struct IdentityFigures {
    pub(crate) client: MasterClient,
    pub(crate) certificate: Arc<CertificateSlot>,
    pub(crate) serving: Arc<CertificateSlot>,
    pub(crate) failed: FailedRenewals,
}

impl IdentityFigures {
    /// Their text, in Prometheus' format.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = Text::default();
        let failed = self.failed.0.load(Ordering::Relaxed);
        text.single(
            "kubelet_certificate_manager_client_ttl_seconds",
            "gauge",
            "Seconds until the client certificate expires, negative if it has expired",
            seconds_left(&self.certificate),
        );
        text.single(
            "kubelet_certificate_manager_client_expiration_renew_errors",
            "counter",
            "Counter of certificate renewal errors.",
            failed,
        );
        text.single(
            "kubelet_certificate_manager_server_ttl_seconds",
            "gauge",
            "Seconds until the serving certificate expires, negative if it has expired",
            seconds_left(&self.serving),
        );
        text.single(
            "kubelet_server_expiration_renew_errors",
            "counter",
            "Counter of certificate renewal errors.",
            failed,
        );
        self.client.requests().write(&mut text);
        text.finish()
    }
}

/// Until a certificate expires; infinite where there is none that can be read, as with upstream.
fn seconds_left(slot: &CertificateSlot) -> f64 {
    let not_after = slot.get().and_then(|key| {
        let (_, leaf) = x509_parser::parse_x509_certificate(key.cert.first()?).ok()?;
        Some(leaf.validity().not_after.timestamp())
    });
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let left = not_after.map(|end| i128::from(end) - i128::from(now.as_secs()));
    // Beyond 68 years there is no difference.
    let near = |left: i128| left.clamp(i32::MIN.into(), i32::MAX.into());
    let left = left.map(|left| i32::try_from(near(left)).unwrap_or(i32::MAX));
    left.map_or(f64::INFINITY, f64::from)
}
