//! Reads the `passwd` and `group` files of images, once for each image: a layer never changes.
//!
//! They are read before a container is created, so that its OCI specification is complete at once:
//! each later change of its record makes containerd flush its database to the disk twice.

use super::Containerd;
use crate::root;
use crate::users::Accounts;
use agent_containerd::{Error, ErrorClass, failed};
use agent_images::Ready;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Most images whose accounts are remembered; then all are forgotten.
const MAX_IMAGES: usize = 128;
/// Most bytes of one image's accounts that are remembered: its author controls their length.
const MAX_ACCOUNTS: usize = 16 << 10;

/// Accounts by the name of the snapshot of an image's topmost layer. That name is the chain id, a
/// digest over all layers.
#[derive(Debug, Default)]
pub(super) struct Remembered(Mutex<HashMap<String, Arc<Accounts>>>);

impl Remembered {
    fn get(&self, snapshot: &str) -> Option<Arc<Accounts>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(snapshot).cloned()
    }

    fn put(&self, snapshot: &str, accounts: &Arc<Accounts>) {
        if accounts.passwd.len() + accounts.group.len() > MAX_ACCOUNTS {
            return;
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_IMAGES {
            all.clear();
        }
        all.insert(snapshot.to_owned(), accounts.clone());
    }
}

impl Containerd {
    /// The accounts of an image. Its root file system has passed [`root::check`].
    pub(super) async fn accounts_of(&self, ready: &Ready) -> Result<Arc<Accounts>, Error> {
        if let Some(known) = self.accounts.get(&ready.snapshot) {
            return Ok(known);
        }
        let turn = self.viewing.lock().await;
        // If several containers start at once, only the first reads.
        if let Some(known) = self.accounts.get(&ready.snapshot) {
            return Ok(known);
        }
        let doing = || format!("look at the files of {}", ready.image.name);
        let mounts = self.view(&ready.snapshot, &turn).await;
        let mounts = mounts.map_err(failed(ErrorClass::Create, doing()))?;
        let look = move || {
            let layers = root::layers(&mounts);
            root::check(&layers)?;
            Ok(Arc::new(Accounts::read(&layers)))
        };
        let looked = tokio::task::spawn_blocking(look).await;
        let accounts =
            looked.map_err(|error| Error::caused(ErrorClass::Create, doing(), error))??;
        self.accounts.put(&ready.snapshot, &accounts);
        Ok(accounts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_or_length_of_accounts_takes_all_memory() {
        let remembered = Remembered::default();
        let accounts = |length: usize| {
            Arc::new(Accounts {
                passwd: "p".repeat(length),
                group: "g".to_owned(),
            })
        };
        remembered.put("long", &accounts(MAX_ACCOUNTS));
        assert!(remembered.get("long").is_none());
        for number in 0..=MAX_IMAGES {
            remembered.put(&number.to_string(), &accounts(1));
        }
        assert!(remembered.get("0").is_none());
        assert!(remembered.get(&MAX_IMAGES.to_string()).is_some());
        assert!(remembered.0.lock().unwrap().len() <= MAX_IMAGES);
    }
}
