//! Turns containerd's events into news for the kubelet, and imports image archives once containerd
//! is up.

use crate::containerd::Containerd;
use crate::labels;
use crate::model::Change;
use agent_containerd::{Error, ErrorClass, failed, unlimited};
use containerd_client::events::{TaskExit, TaskOom};
use containerd_client::services::v1::SubscribeRequest;
use containerd_client::services::v1::events_client::EventsClient;
use containerd_client::types::Envelope;
use prost::Message;
use std::convert::Infallible;
use std::time::Duration;

/// Pause before the subscription is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// The events that matter: ends of processes, and memory that ran out.
const FILTER: &str = "namespace==k8s.io,topic~=\"^/tasks/(exit|oom)$\"";

impl Containerd {
    /// Follows containerd's events for as long as the agent lives: connects, imports archives,
    /// reports changes. Dropping the future ends it; what was interrupted is repeated at the next
    /// start.
    pub async fn run(&self) {
        let mut imported = false;
        loop {
            if let Err(error) = self.follow(&mut imported).await {
                tracing::debug!(error = %error.chain(), "containerd's event stream ended; subscribing again");
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn follow(&self, imported: &mut bool) -> Result<(), Error> {
        self.ask_version().await?;
        if !*imported {
            for dir in &self.options.archives {
                let names = agent_images::import(&self.images, dir).await;
                tracing::info!(path = %dir.display(), images = names.len(), "image archives imported");
            }
            *imported = true;
        }
        tokio::select! {
            // Cancel-safe: both arms start again at the next call, and nothing is lost by dropping
            // them.
            ended = self.listen() => ended,
            never = self.announce() => match never {},
        }
    }

    /// Announces that everything may have changed, since events may have been missed; once more
    /// after the subscription had time to start, since containerd answers it only with its first
    /// event.
    async fn announce(&self) -> Infallible {
        self.tell(Change::All);
        tokio::time::sleep(RETRY).await;
        self.tell(Change::All);
        std::future::pending().await
    }

    async fn listen(&self) -> Result<(), Error> {
        let fail = || failed(ErrorClass::Unavailable, "follow containerd's events");
        let subscribe = SubscribeRequest {
            filters: vec![FILTER.to_owned()],
        };
        let events = EventsClient::new(self.channel.clone())
            .subscribe(unlimited(subscribe))
            .await;
        let mut events = events.map_err(fail())?.into_inner();
        while let Some(event) = events.message().await.map_err(fail())? {
            if let Some(id) = self.noted(&event).await
                && let Some(change) = self.change_of(&id).await
            {
                self.tell(change);
            }
        }
        Ok(())
    }

    /// The container that an event is about; an out-of-memory event is recorded at once.
    async fn noted(&self, event: &Envelope) -> Option<String> {
        let body = event.event.as_ref()?.value.as_slice();
        if event.topic == "/tasks/oom" {
            let id = TaskOom::decode(body).ok()?.container_id;
            if let Err(error) = self.note(&id, vec![(labels::OOM, "true".to_owned())]).await {
                tracing::debug!(container = id, error = %error.chain(), "cannot label a container as OOMKilled");
            }
            return Some(id);
        }
        let exit = TaskExit::decode(body).ok()?;
        (exit.id == exit.container_id).then_some(exit.container_id)
    }

    fn tell(&self, change: Change) {
        // Without a receiver there is no one to notify.
        drop(self.news.send(change));
    }
}
