//! Service accounts: that they are there, and which.

use super::uid;
use config_kube::k8s_openapi::api::core::v1::ServiceAccount;
use master_client::View;

/// A service account.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccountView {
    /// Its UID.
    pub uid: String,
}

impl View for AccountView {
    type Object = ServiceAccount;

    fn read(account: ServiceAccount) -> Self {
        Self {
            uid: uid(&account.metadata),
        }
    }
}
