//! The tunnel to other machines' pods: publishes this node's keys signed by its identity, and
//! verifies the keys of others.

use agent_api::MERGE;
use agent_cluster::Sandboxes;
use agent_cluster::tunnel::{Announced, Keeper, Proven};
use agent_enroll::tunnel::{NotSignedHere, publish, verify};
use agent_enroll::{CertificateSlot, Identity, MasterClient, PinnedRoots};
use agent_proxy::View;
use bytes::Bytes;
use config_errors::chain;
use config_kube::identity::{TUNNEL_ANNOTATION, TUNNEL_KEYS_ANNOTATION};
use config_model::MachineConfig;
use config_model::network::PodRoutes;
use http::Method;
use rustls::pki_types::{CertificateDer, UnixTime};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How often the certificate is checked for a renewal.
const LOOK: Duration = Duration::from_secs(10);
/// Pause after each write, until the node's watch shows it, and after each failure.
const RETRY: Duration = Duration::from_secs(2);

/// The WireGuard public keys of both links.
type LinkKeys = [[u8; 32]; 2];

/// Runs the tunnel and publishes its keys.
pub(crate) struct Tunnel {
    sandboxes: Arc<Sandboxes>,
    view: View,
    period: Option<Duration>,
    publisher: Publisher,
    roots: PinnedRoots,
}

/// Publishes the keys.
struct Publisher {
    node: String,
    client: MasterClient,
    certificate: Arc<CertificateSlot>,
    /// The last texts, and their inputs.
    made: Option<(LinkKeys, CertificateDer<'static>, Announced)>,
}

impl Tunnel {
    /// `None` if the machine's configuration has other `pod_routes`.
    pub(crate) fn new(
        machine: &MachineConfig,
        identity: &Identity,
        sandboxes: &Arc<Sandboxes>,
        view: &View,
    ) -> Option<Self> {
        (machine.network.pod_routes == PodRoutes::WireGuard).then(|| Self {
            sandboxes: Arc::clone(sandboxes),
            view: view.clone(),
            period: machine.network.key_period.period(),
            publisher: Publisher {
                node: identity.node.clone(),
                client: identity.client.clone(),
                certificate: Arc::clone(&identity.certificate),
                made: None,
            },
            roots: identity.roots.clone(),
        })
    }

    /// Publishes the node's WireGuard keys as annotations. Runs until dropped.
    pub(crate) async fn run(self) {
        let (sender, keys) = watch::channel(None);
        let roots = self.roots;
        let keeper = Keeper {
            sandboxes: self.sandboxes,
            view: self.view.clone(),
            own: self.publisher.node.clone(),
            verify: Arc::new(move |node: &str, announced: &Announced| {
                judge(node, announced, &roots.get())
            }),
            period: self.period,
            keys: sender,
        };
        tokio::join!(keeper.run(), self.publisher.run(self.view, keys));
    }
}

/// The keys that a node's texts prove. What agents of older versions read counts where there is
/// nothing better.
fn judge(
    node: &str,
    announced: &Announced,
    roots: &[CertificateDer<'_>],
) -> Result<Proven, String> {
    let now = UnixTime::now();
    let both = |text: &String| {
        verify::<2>(text, node, roots, now).map(|published| Proven {
            keys: published.keys.map(Some),
            not_after: published.not_after,
        })
    };
    let first = |text: &String| {
        verify::<1>(text, node, roots, now).map(|published| Proven {
            keys: [published.keys.first().copied(), None],
            not_after: published.not_after,
        })
    };
    let both = announced.both.as_ref().map(both);
    if let Some(Ok(proven)) = both {
        return Ok(proven);
    }
    match (both, announced.first.as_ref().map(first)) {
        (_, Some(Ok(proven))) => Ok(proven),
        (Some(Err(error)), _) | (_, Some(Err(error))) => Err(chain(&error)),
        (Some(Ok(_)) | None, None) => Err("it has published none".to_owned()),
    }
}

impl Publisher {
    /// Keeps the Node's annotations up to date for ever: after a renewal of a key or the
    /// certificate, and after someone else changed them.
    async fn run(mut self, view: View, mut keys: watch::Receiver<Option<LinkKeys>>) {
        let mut changes = view.changes();
        loop {
            let wanted = *keys.borrow_and_update();
            let stands = {
                let known = changes.borrow_and_update();
                let own = known.nodes.as_ref().and_then(|nodes| nodes.get(&self.node));
                own.map(|node| Announced {
                    first: node.tunnel.clone(),
                    both: node.tunnel_keys.clone(),
                })
            };
            let mut pause = LOOK;
            if let Some(wanted) = wanted {
                match self.publish(wanted, stands.as_ref()).await {
                    Ok(false) => {}
                    Ok(true) => {
                        tracing::info!("the keys of this node's tunnel are published");
                        tokio::time::sleep(RETRY).await;
                    }
                    Err(error) => {
                        tracing::warn!(error, "the keys of this node's tunnel are not published");
                        pause = RETRY;
                        tokio::time::sleep(RETRY).await;
                    }
                }
            }
            // Cancel-safe: all arms only wait.
            tokio::select! {
                outcome = changes.changed() => if outcome.is_err() {
                    return;
                },
                outcome = keys.changed() => if outcome.is_err() {
                    return;
                },
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Writes the annotations if they differ; returns whether they were written.
    async fn publish(
        &mut self,
        keys: LinkKeys,
        stands: Option<&Announced>,
    ) -> Result<bool, String> {
        let texts = self.texts(keys).await?;
        if stands == Some(&texts) {
            return Ok(false);
        }
        // Both in one write: no node sees the one without the other.
        let marks = json!({TUNNEL_ANNOTATION: texts.first, TUNNEL_KEYS_ANNOTATION: texts.both});
        let change = json!({"metadata": {"annotations": marks}});
        let path = format!("/api/v1/nodes/{}", self.node);
        let body = Bytes::from(change.to_string());
        let answer = self
            .client
            .request(Method::PATCH, &path, MERGE, body)
            .await
            .map_err(|error| chain(&error))?;
        if !answer.status.is_success() {
            return Err(format!("the master answered {}", answer.status));
        }
        Ok(true)
    }

    /// The texts for these keys and the current certificate; signed once for both.
    async fn texts(&mut self, keys: LinkKeys) -> Result<Announced, String> {
        let own = self.certificate.get();
        let leaf = own.and_then(|own| own.cert.first().cloned());
        let leaf = leaf.ok_or_else(|| "the node has no certificate".to_owned())?;
        if let Some((of, under, texts)) = &self.made
            && (*of, under) == (keys, &leaf)
        {
            return Ok(texts.clone());
        }
        let (certificate, node) = (Arc::clone(&self.certificate), self.node.clone());
        let sign = move || {
            let [first, _] = keys;
            let first = publish(&certificate, &node, &[first])?;
            let both = publish(&certificate, &node, &keys)?;
            Ok::<_, NotSignedHere>(Announced {
                first: Some(first),
                both: Some(both),
            })
        };
        let texts = tokio::task::spawn_blocking(sign).await;
        let texts = texts
            .map_err(|error| error.to_string())?
            .map_err(|error| chain(&error))?;
        self.made = Some((keys, leaf, texts.clone()));
        Ok(texts)
    }
}
