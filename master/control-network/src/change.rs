//! The writes of the controllers of endpoints.

use master_client::{ApiError, DeleteParams, Key, Object};
use master_control::writer::Writer;

/// A write to an object of a kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Change<K> {
    /// Creates an object.
    Create(Box<K>),
    /// Updates an object to this, unless it changed since it was read.
    Update(Box<K>),
    /// Deletes an object.
    Delete {
        /// The object's key.
        key: Key,
        /// Its UID.
        uid: String,
    },
}

impl<K: Object> Change<K> {
    /// Makes the write.
    ///
    /// # Errors
    /// The API refuses the write or does not answer: as for each call of [`Writer`].
    pub async fn carry_out(self, writer: &Writer) -> Result<(), ApiError> {
        match self {
            Self::Create(object) => writer.create(&*object).await.map(drop),
            Self::Update(object) => writer.update(&*object).await.map(drop),
            Self::Delete { key, uid } => writer.delete::<K>(&key, &DeleteParams::of(uid)).await,
        }
    }
}
