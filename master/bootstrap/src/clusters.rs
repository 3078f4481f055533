//! The clusters of the endpoint: for each its key, the hash of its credential, and its document.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use config_discovery::pin_of;
use config_model::discovery::ClusterId;
use config_model::format::Pin;
use master_store::{EmbeddedStore, Entry, ListQuery, Op, Options, Store as _, StoreError};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Default limit of clusters: with the largest documents about 25 MiB.
pub const DEFAULT_CLUSTERS: usize = 1000;
/// The table in the store.
const CLUSTERS_TABLE: &str = "clusters/";
/// Seconds after which a cluster without a document may be removed.
const UNUSED_LIFETIME: u64 = 3600;
/// Seconds after the expiry of its document at which a cluster may be removed: a master may be off
/// for weeks.
const KEPT_AFTER_EXPIRY: u64 = 90 * 24 * 3600;

/// An error of the cluster store.
#[derive(Debug, thiserror::Error)]
pub enum ClustersError {
    /// The store failed.
    #[error("the store cannot be used")]
    Store(#[from] StoreError),
    /// A record cannot be parsed.
    #[error("the record of cluster {0} is damaged")]
    Damaged(String),
    /// The system has no random bytes.
    #[error("the system gives no random bytes")]
    Random,
    /// The limit of clusters is reached.
    #[error("the limit of clusters is reached")]
    Full,
}

/// One cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// `sha256:…` of the SubjectPublicKeyInfo of the cluster's discovery key.
    key: String,
    /// SHA-256 of the cluster's credential, hex.
    credential: String,
    /// Time of creation, Unix seconds.
    created: u64,
    /// Its document.
    pub(crate) document: Option<StoredDocument>,
}

/// A stored signed document.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredDocument {
    pub(crate) generation: u64,
    expires: u64,
    bytes: String,
}

impl StoredDocument {
    pub(crate) fn new(generation: u64, expires: u64, bytes: &[u8]) -> Self {
        Self {
            generation,
            expires,
            bytes: STANDARD.encode(bytes),
        }
    }

    /// The exact bytes of the signed document.
    pub(crate) fn bytes(&self) -> Option<Bytes> {
        STANDARD.decode(&self.bytes).ok().map(Bytes::from)
    }
}

impl Record {
    /// The hash of the key.
    pub(crate) fn pin(&self) -> Option<Pin> {
        self.key.parse().ok()
    }

    /// Whether this is the cluster's credential. It compares hashes of random bytes, so timing
    /// reveals nothing.
    pub(crate) fn admits(&self, credential: &str) -> bool {
        self.credential == hash(credential)
    }

    fn stale(&self, now: u64) -> bool {
        let end = self
            .document
            .as_ref()
            .map_or(self.created + UNUSED_LIFETIME, |kept| {
                kept.expires.saturating_add(KEPT_AFTER_EXPIRY)
            });
        end < now
    }
}

/// All clusters.
#[derive(Debug)]
pub struct Clusters {
    store: EmbeddedStore,
    most: usize,
    count: AtomicUsize,
}

impl Clusters {
    /// Opens the store in a folder, or creates it, with at most `most` clusters.
    ///
    /// # Errors
    /// The store cannot be opened, or a record is damaged.
    pub async fn open(folder: &Path, most: usize) -> Result<Self, ClustersError> {
        // There are no watches, so history is useless; and all records together are smaller than a
        // usual log.
        let options = Options {
            history_events: 16,
            history_bytes: 1 << 20,
            log_bytes: 8 << 20,
            segment_bytes: 2 << 20,
            ..Options::default()
        };
        let store = EmbeddedStore::open_with(folder, &options)?;
        let query = ListQuery {
            prefix: CLUSTERS_TABLE.to_owned(),
            ..ListQuery::default()
        };
        let count = AtomicUsize::new(store.list(query).await?.entries.len());
        Ok(Self { store, most, count })
    }

    /// Creates a cluster; returns its id and its credential, of which only the hash is stored.
    ///
    /// Cancel-safe: it is written in a task of its own, which a client that goes away does not cut
    /// off. Else a cluster that was removed to make room could stay counted.
    pub(crate) async fn create(
        self: &Arc<Self>,
        spki: &[u8],
        now: u64,
    ) -> Result<(ClusterId, String), ClustersError> {
        let id = random::<16>()
            .and_then(ClusterId::of)
            .ok_or(ClustersError::Random)?;
        let credential = random::<32>()
            .map(|bytes| URL_SAFE_NO_PAD.encode(bytes))
            .ok_or(ClustersError::Random)?;
        let record = Record {
            key: pin_of(spki).to_string(),
            credential: hash(&credential),
            created: now,
            document: None,
        };
        let op = Op::create(&path(&id), encode(&id, &record)?);
        let clusters = Arc::clone(self);
        let added = tokio::spawn(async move { clusters.add(op, now).await });
        added.await.map_err(|_runtime_ends| StoreError::Closed)??;
        Ok((id, credential))
    }

    /// Writes a new cluster, if there is room for it.
    async fn add(&self, op: Op, now: u64) -> Result<(), ClustersError> {
        self.make_room(now).await?;
        if let Err(error) = self.store.commit(vec![op]).await {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return Err(error.into());
        }
        Ok(())
    }

    /// A cluster, and the revision that an update must name.
    pub(crate) async fn get(&self, id: &ClusterId) -> Result<Option<(Record, u64)>, ClustersError> {
        let Some(entry) = self.store.get(&path(id)).await?.entry else {
            return Ok(None);
        };
        decode(&entry).map(|record| Some((record, entry.modified)))
    }

    /// Writes a cluster's document; `false` if another writer was first.
    pub(crate) async fn set(
        &self,
        id: &ClusterId,
        record: Record,
        revision: u64,
        document: StoredDocument,
    ) -> Result<bool, ClustersError> {
        let record = Record {
            document: Some(document),
            ..record
        };
        let op = Op::update(&path(id), revision, encode(id, &record)?);
        match self.store.commit(vec![op]).await {
            Ok(_) => Ok(true),
            Err(StoreError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reserves room for a cluster; removes unused clusters if there is none.
    async fn make_room(&self, now: u64) -> Result<(), ClustersError> {
        let take = || {
            let more = |count: usize| (count < self.most).then_some(count + 1);
            self.count
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
                .is_ok()
        };
        if take() {
            return Ok(());
        }
        let query = ListQuery {
            prefix: CLUSTERS_TABLE.to_owned(),
            ..ListQuery::default()
        };
        for entry in self.store.list(query).await?.entries {
            if decode(&entry).is_ok_and(|record| record.stale(now))
                && self
                    .store
                    .commit(vec![Op::delete(&entry.key, entry.modified)])
                    .await
                    .is_ok()
            {
                self.count.fetch_sub(1, Ordering::Relaxed);
                tracing::info!(key = %entry.key, "removed an unused cluster to make room");
            }
        }
        if take() {
            Ok(())
        } else {
            Err(ClustersError::Full)
        }
    }
}

fn path(id: &ClusterId) -> String {
    format!("{CLUSTERS_TABLE}{id}")
}

fn encode(id: &ClusterId, record: &Record) -> Result<Bytes, ClustersError> {
    serde_json::to_vec(record)
        .map(Bytes::from)
        .map_err(|_opaque| ClustersError::Damaged(id.to_string()))
}

fn decode(entry: &Entry) -> Result<Record, ClustersError> {
    serde_json::from_slice(&entry.value.bytes())
        .map_err(|_opaque| ClustersError::Damaged(entry.key.to_string()))
}

/// SHA-256 of a credential, hex.
pub(crate) fn hash(credential: &str) -> String {
    hex::encode(Sha256::digest(credential))
}

fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).ok().map(|()| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::task::Poll;

    async fn open(dir: &Path, most: usize) -> Arc<Clusters> {
        Arc::new(Clusters::open(dir, most).await.unwrap())
    }

    /// A client may close its connection at any moment of its request.
    #[tokio::test]
    async fn a_cluster_that_was_removed_for_a_client_that_went_away_is_not_counted() {
        let dir = tempfile::tempdir().unwrap();
        let clusters = open(dir.path(), 1).await;
        clusters.create(b"a", 0).await.unwrap();
        {
            let mut creation = std::pin::pin!(clusters.create(b"b", UNUSED_LIFETIME + 1));
            let began = poll_fn(|context| Poll::Ready(creation.as_mut().poll(context)));
            assert!(began.await.is_pending());
        }
        while Arc::strong_count(&clusters) > 1 {
            tokio::task::yield_now().await;
        }
        // By now the second one is unused, too.
        clusters.create(b"c", 3 * UNUSED_LIFETIME).await.unwrap();
        assert_eq!(clusters.count.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_full_table_drops_only_unused_entries() {
        let dir = tempfile::tempdir().unwrap();
        let clusters = open(dir.path(), 2).await;
        let (used, credential) = clusters.create(b"a", 0).await.unwrap();
        let (unused, _) = clusters.create(b"b", 0).await.unwrap();
        assert!(matches!(
            clusters.create(b"c", 10).await,
            Err(ClustersError::Full)
        ));
        let (record, revision) = clusters.get(&used).await.unwrap().unwrap();
        assert!(record.admits(&credential) && !record.admits("another"));
        let first = StoredDocument::new(1, 100, b"x");
        assert!(
            clusters
                .set(&used, record.clone(), revision, first)
                .await
                .unwrap()
        );
        let second = StoredDocument::new(1, 100, b"y");
        assert!(
            !clusters.set(&used, record, revision, second).await.unwrap(),
            "somebody wrote meanwhile"
        );
        clusters.create(b"c", UNUSED_LIFETIME + 1).await.unwrap();
        assert!(clusters.get(&unused).await.unwrap().is_none());
        assert!(matches!(
            clusters.create(b"d", UNUSED_LIFETIME + 1).await,
            Err(ClustersError::Full)
        ));
        drop(clusters);
        let clusters = open(dir.path(), 2).await;
        assert!(
            matches!(
                clusters.create(b"d", UNUSED_LIFETIME + 1).await,
                Err(ClustersError::Full)
            ),
            "counted again after a start"
        );
        assert_eq!(
            clusters
                .get(&used)
                .await
                .unwrap()
                .unwrap()
                .0
                .document
                .unwrap()
                .bytes()
                .unwrap(),
            "x"
        );
        clusters
            .create(b"d", KEPT_AFTER_EXPIRY + 101)
            .await
            .unwrap();
        assert!(
            clusters.get(&used).await.unwrap().is_none(),
            "its document ended long ago"
        );
    }
}
