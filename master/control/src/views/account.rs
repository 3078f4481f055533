//! Service accounts: that they are there.

use config_kube::k8s_openapi::api::core::v1::ServiceAccount;
use master_client::View;

/// A service account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccountView;

impl View for AccountView {
    type Object = ServiceAccount;

    fn read(_: ServiceAccount) -> Self {
        Self
    }
}
