//! The tunnel to other machines' pods: publishes this node's key signed by its identity, and
//! verifies the keys of others.

use agent_cluster::Sandboxes;
use agent_cluster::tunnel::{Keeper, Proven};
use agent_enroll::tunnel::{publish, verify};
use agent_enroll::{Identity, MasterClient, Roots, Slot};
use agent_proxy::View;
use bytes::Bytes;
use config_errors::chain;
use config_kube::identity::TUNNEL_ANNOTATION;
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

/// A WireGuard public key.
type Key = [u8; 32];

/// Runs the tunnel and publishes its key.
pub(crate) struct Tunnel {
    sandboxes: Arc<Sandboxes>,
    view: View,
    publisher: Publisher,
    roots: Roots,
}

/// Publishes the key.
struct Publisher {
    node: String,
    client: MasterClient,
    certificate: Arc<Slot>,
    /// The last text, and its inputs.
    made: Option<(Key, CertificateDer<'static>, String)>,
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
            publisher: Publisher {
                node: identity.node.clone(),
                client: identity.client.clone(),
                certificate: Arc::clone(&identity.certificate),
                made: None,
            },
            roots: identity.roots.clone(),
        })
    }

    /// Publishes the node's WireGuard key as an annotation. Runs until dropped.
    pub(crate) async fn run(self) {
        let (sender, key) = watch::channel(None);
        let roots = self.roots;
        let judge = move |node: &str, text: &str| {
            let published = verify(text, node, &roots.get(), UnixTime::now());
            let published = published.map_err(|error| chain(&error))?;
            Ok(Proven {
                key: published.key,
                not_after: published.not_after,
            })
        };
        let keeper = Keeper {
            sandboxes: self.sandboxes,
            view: self.view.clone(),
            own: self.publisher.node.clone(),
            verify: Arc::new(judge),
            key: sender,
        };
        tokio::join!(keeper.run(), self.publisher.run(self.view, key));
    }
}

impl Publisher {
    /// Keeps the Node's annotation up to date for ever: after a renewal, and after someone else
    /// changed it.
    async fn run(mut self, view: View, mut key: watch::Receiver<Option<Key>>) {
        let mut changes = view.changes();
        loop {
            let wanted = *key.borrow_and_update();
            let stands = {
                let known = changes.borrow_and_update();
                let own = known.nodes.as_ref().and_then(|nodes| nodes.get(&self.node));
                own.and_then(|node| node.tunnel.clone())
            };
            let mut pause = LOOK;
            if let Some(key) = wanted {
                match self.publish(key, stands.as_deref()).await {
                    Ok(false) => {}
                    Ok(true) => {
                        tracing::info!("the key of this node's tunnel is published");
                        tokio::time::sleep(RETRY).await;
                    }
                    Err(reason) => {
                        tracing::warn!(reason, "the key of this node's tunnel is not published");
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
                outcome = key.changed() => if outcome.is_err() {
                    return;
                },
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Writes the annotation if it differs; returns whether it was written.
    async fn publish(&mut self, key: Key, stands: Option<&str>) -> Result<bool, String> {
        let text = self.text(key).await?;
        if stands == Some(text.as_str()) {
            return Ok(false);
        }
        let change = json!({"metadata": {"annotations": {TUNNEL_ANNOTATION: text}}});
        let path = format!("/api/v1/nodes/{}", self.node);
        let body = Bytes::from(change.to_string());
        let answer = self
            .client
            .request(Method::PATCH, &path, "application/merge-patch+json", body)
            .await
            .map_err(|error| chain(&error))?;
        if !answer.status.is_success() {
            return Err(format!("the master answered {}", answer.status));
        }
        Ok(true)
    }

    /// The text for this key and the current certificate; signed once for both.
    async fn text(&mut self, key: Key) -> Result<String, String> {
        let own = self.certificate.get();
        let leaf = own.and_then(|own| own.cert.first().cloned());
        let leaf = leaf.ok_or_else(|| "the node has no certificate".to_owned())?;
        if let Some((of, under, text)) = &self.made
            && (*of, under) == (key, &leaf)
        {
            return Ok(text.clone());
        }
        let (certificate, node) = (Arc::clone(&self.certificate), self.node.clone());
        let sign = move || publish(&certificate, &node, &key);
        let text = tokio::task::spawn_blocking(sign).await;
        let text = text
            .map_err(|error| error.to_string())?
            .map_err(|error| chain(&error))?;
        self.made = Some((key, leaf, text.clone()));
        Ok(text)
    }
}
