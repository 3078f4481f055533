//! How actions are carried out: calls to the API that remember what they will show in the stores.
//!
//! Each write that goes through a [`Writer`] is an expectation: the key is not reconciled again
//! before the controller's stores of that kind have seen it. So no plan repeats a write, and no
//! controller waits for a guessed time. Reads and calls on objects of any kind go through
//! [`Writer::client`]; what they change can be expected by [`Writer::expect`].

use crate::controller::Now;
use crate::queue::Expectation;
use config_kube::k8s_openapi::Metadata;
use master_client::{ApiError, Client, DeleteParams, Key, Object, Patch, Progress, Recorder};
use std::any::TypeId;
use std::sync::{Arc, Mutex, PoisonError};

/// The stores that a controller follows.
pub(crate) type Stores = Arc<Vec<Arc<dyn Progress>>>;

/// Writes in the name of one run of one key.
pub struct Writer {
    client: Client,
    recorder: Arc<Recorder>,
    stores: Stores,
    now: Now,
    expectations: Mutex<Vec<Expectation>>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl Writer {
    pub(crate) fn new(client: Client, recorder: Arc<Recorder>, stores: Stores, now: Now) -> Self {
        Self {
            client,
            recorder,
            stores,
            now,
            expectations: Mutex::default(),
        }
    }

    /// The client, for reads and for objects of any kind.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The time of the plan that is carried out. Controllers read no other clock, so that a
    /// simulation decides what time it is.
    pub fn now(&self) -> Now {
        self.now
    }

    /// Events for people.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The key is not reconciled again before this holds.
    pub fn expect(&self, is_seen: impl Fn() -> bool + Send + Sync + 'static) {
        self.expectations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Box::new(is_seen));
    }

    pub(crate) fn into_expectations(self) -> Vec<Expectation> {
        self.expectations
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates an object.
    ///
    /// # Errors
    /// As [`Client::create`].
    pub async fn create<T: Object>(&self, object: &T) -> Result<T, ApiError> {
        self.client
            .create(object)
            .await
            .inspect(|made| self.wrote(made))
    }

    /// Replaces an object, if it has not changed since it was read.
    ///
    /// # Errors
    /// As [`Client::update`].
    pub async fn update<T: Object>(&self, object: &T) -> Result<T, ApiError> {
        self.client
            .update(object)
            .await
            .inspect(|made| self.wrote(made))
    }

    /// Replaces a subresource that has the object's own form.
    ///
    /// # Errors
    /// As [`Client::update_subresource`].
    pub async fn update_subresource<T: Object>(
        &self,
        object: &T,
        subresource: &str,
    ) -> Result<T, ApiError> {
        let written = self.client.update_subresource(object, subresource).await;
        written.inspect(|made| self.wrote(made))
    }

    /// Patches an object.
    ///
    /// # Errors
    /// As [`Client::patch`].
    pub async fn patch<T: Object>(&self, key: &Key, patch: &Patch) -> Result<T, ApiError> {
        let written = self.client.patch(key.namespace(), &key.name, patch).await;
        written.inspect(|made| self.wrote(made))
    }

    /// Patches an object's status.
    ///
    /// # Errors
    /// As [`Client::patch_status`].
    pub async fn patch_status<T: Object>(&self, key: &Key, patch: &Patch) -> Result<T, ApiError> {
        let written = self
            .client
            .patch_status(key.namespace(), &key.name, patch)
            .await;
        written.inspect(|made| self.wrote(made))
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// As [`Client::delete`].
    pub async fn delete<T: Object>(
        &self,
        key: &Key,
        params: &DeleteParams,
    ) -> Result<(), ApiError> {
        let before: Vec<_> = self
            .stores_of::<T>()
            .filter_map(|store| Some((Arc::clone(store), store.revision(key)?)))
            .collect();
        self.client
            .delete::<T>(key.namespace(), &key.name, params)
            .await?;
        // The object is deleted or begins to be: either way its known state changes.
        for (store, revision) in before {
            let key = key.clone();
            self.expect(move || store.revision(&key) != Some(revision));
        }
        Ok(())
    }

    fn stores_of<T: Object>(&self) -> impl Iterator<Item = &Arc<dyn Progress>> {
        let kind = TypeId::of::<T>();
        self.stores.iter().filter(move |store| store.kind() == kind)
    }

    fn wrote<T: Object>(&self, made: &T) {
        let version = Metadata::metadata(made).resource_version.as_deref();
        let Some(revision) = version.and_then(|text| text.parse().ok()) else {
            return;
        };
        for store in self.stores_of::<T>().map(Arc::clone) {
            self.expect(move || store.has_reached(revision));
        }
    }
}
