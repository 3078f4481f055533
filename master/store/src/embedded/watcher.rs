//! A watcher: a position in the shared history, so that a slow one delays no other.

use super::Shared;
use crate::error::StoreError;
use crate::model::Revision;
use crate::traits::{Batch, BoxFuture, WatchStream};
use std::sync::Arc;
use tokio::sync::watch;

/// Events returned at once, so that a watcher far behind uses little memory.
const BATCH: usize = 500;

#[derive(Debug)]
pub(super) struct Watcher {
    shared: Arc<Shared>,
    prefix: String,
    position: Revision,
    changed: watch::Receiver<Revision>,
}

impl Watcher {
    pub(super) fn new(
        shared: Arc<Shared>,
        prefix: String,
        position: Revision,
        changed: watch::Receiver<Revision>,
    ) -> Self {
        Self {
            shared,
            prefix,
            position,
            changed,
        }
    }

    /// Takes the waiting events. A watcher without events follows the head, so that compaction does
    /// not invalidate its position.
    fn take(&mut self) -> Result<Batch, StoreError> {
        let (events, progress) =
            self.shared
                .read()?
                .events_after(&self.prefix, self.position, BATCH)?;
        self.position = progress;
        Ok(Batch { events, progress })
    }
}

impl WatchStream for Watcher {
    fn next(&mut self) -> BoxFuture<'_, Result<Batch, StoreError>> {
        Box::pin(async move {
            loop {
                self.changed.borrow_and_update();
                let batch = self.take()?;
                if !batch.events.is_empty() {
                    return Ok(batch);
                }
                if self.changed.changed().await.is_err() {
                    return Err(StoreError::Closed);
                }
            }
        })
    }

    fn progress(&self) -> Revision {
        match self
            .shared
            .read()
            .and_then(|published| published.events_after(&self.prefix, self.position, 1))
        {
            Ok((events, through)) if events.is_empty() => through,
            Ok(_) | Err(_) => self.position,
        }
    }
}
