//! The flow schemas in the store, read once for each of their changes.

use crate::flows::{Flow, FlowRequest, Flows};
use config_errors::chain;
use futures_util::FutureExt;
use master_client::Object;
use master_objects::{list, store_error, stored};
use master_schema::error::ApiError;
use master_store::{Reader, Revision, WatchStream};
use serde_json::Value;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::Mutex;

const SCHEMAS: &str = "flowschemas.flowcontrol.apiserver.k8s.io/";
const LEVELS: &str = "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io/";

/// The flows of the moment.
///
/// Guarantee: an answer's flow is that of all writes that were acknowledged before its request,
/// unless another request is reading them at this moment; then it may be that of the writes before.
#[derive(Debug, Default)]
pub struct StoredFlows {
    now: RwLock<Arc<Flows>>,
    streams: Mutex<Vec<Box<dyn WatchStream>>>,
    /// The revision up to which `now` is complete; 0 before the first list.
    seen: AtomicU64,
}

impl StoredFlows {
    /// The flow of a request. Without a change of the store since the last request this costs two
    /// reads of memory and the match.
    pub async fn find(&self, reader: &dyn Reader, asked: &FlowRequest<'_>) -> Option<Flow> {
        let head = reader.revision().await.ok()?;
        if self.seen.load(Ordering::Acquire) < head
            && let Ok(mut streams) = self.streams.try_lock()
        {
            // Tried again with the next request.
            if let Err(error) = self.catch_up(reader, &mut streams, head).await {
                streams.clear();
                tracing::debug!(error = chain(&error), "cannot read the flow schemas");
            }
        }
        let flows = Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner));
        flows.find(asked)
    }

    async fn catch_up(
        &self,
        reader: &dyn Reader,
        streams: &mut Vec<Box<dyn WatchStream>>,
        head: Revision,
    ) -> Result<(), ApiError> {
        // A stream that is ready has a change, or has lost some.
        let ready = |stream: &mut Box<dyn WatchStream>| stream.next().now_or_never().is_some();
        if streams.is_empty() || streams.iter_mut().any(ready) {
            streams.clear();
            // Kept only with the flows read: where the caller goes away at one of the awaits, the
            // next request must read all of them again.
            let mut fresh = Vec::new();
            for table in [SCHEMAS, LEVELS] {
                fresh.push(reader.watch(table, head).await.map_err(store_error)?);
            }
            let flows = Flows::of(read(reader, SCHEMAS).await?, &read(reader, LEVELS).await?);
            *self.now.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(flows);
            *streams = fresh;
        }
        self.seen.store(head, Ordering::Release);
        Ok(())
    }
}

/// The objects of a table; one that cannot be read is none.
async fn read<T: Object>(reader: &dyn Reader, table: &str) -> Result<Vec<T>, ApiError> {
    let entries = list(reader, table).await?;
    let objects = entries
        .iter()
        .filter_map(|entry| T::from_tree(&Value::Object(stored(entry).ok()?)).ok());
    Ok(objects.collect())
}
