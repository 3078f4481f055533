//! The deny list of callers and nodes, which is registered after the server is built.

use crate::DenyList;
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;

/// The deny list; empty until one is registered. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Denials(Arc<OnceLock<Arc<dyn DenyList>>>);

impl Denials {
    /// Registers the deny list, once; returns whether it was the first.
    pub fn set(&self, list: Arc<dyn DenyList>) -> bool {
        self.0.set(list).is_ok()
    }

    /// Changes whenever the deny list does; `None` if there is no deny list.
    pub fn changed(&self) -> Option<watch::Receiver<u64>> {
        Some(self.0.get()?.changed())
    }

    /// The reason that `why` finds in the deny list, if there is one.
    pub fn reason(&self, why: impl Fn(&dyn DenyList) -> Option<String>) -> Option<String> {
        let list = self.0.get()?;
        why(list.as_ref())
    }

    /// Waits until `why` finds a reason in the deny list; for ever if there is no deny list.
    pub async fn until(&self, why: impl Fn(&dyn DenyList) -> Option<String>) -> String {
        let Some(list) = self.0.get() else {
            return std::future::pending().await;
        };
        let mut changed = list.changed();
        loop {
            if let Some(why) = why(list.as_ref()) {
                return why;
            }
            if changed.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}
