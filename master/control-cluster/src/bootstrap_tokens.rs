//! Bootstrap token cleaner: tokens go when their time is over.

use config_kube::k8s_openapi::api::core::v1::Secret;
use master_client::{ApiError, DeleteParams, Key, Store};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::token::TokenView;
use master_control::writer::Writer;
use std::sync::Arc;

/// The controller. Its keys are the secrets of bootstrap tokens.
#[derive(Debug)]
pub struct BootstrapTokens {
    tokens: Store<TokenView>,
}

/// A token and what is known of it.
#[derive(Debug)]
pub struct Facts {
    key: Key,
    token: Arc<TokenView>,
}

/// The token is deleted.
#[derive(Debug, PartialEq, Eq)]
pub struct Delete {
    /// Its secret.
    pub key: Key,
    /// The secret's UID.
    pub uid: String,
}

impl Controller for BootstrapTokens {
    const NAME: &'static str = "token-cleaner";
    const RIGHTS: &'static [Right] = &[right("", "secrets", &["list", "watch", "delete"])];
    type Facts = Facts;
    type Action = Delete;

    fn new(setup: &mut Setup<'_>) -> Self {
        let tokens = setup.follow_keys();
        Self { tokens }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let (key, token) = (key.clone(), self.tokens.get(key)?);
        Some(Facts { key, token })
    }

    fn plan(facts: &Facts, now: Now) -> Plan<Delete> {
        let Some(end) = facts.token.expires else {
            return Plan::nothing();
        };
        if let Some(left) = now.until(end) {
            return Plan::wait(left);
        }
        let (key, uid) = (facts.key.clone(), facts.token.uid.clone());
        Plan::act(Delete { key, uid })
    }

    async fn carry_out(&self, token: Delete, writer: &Writer) -> Result<(), ApiError> {
        let params = DeleteParams::of(token.uid);
        writer.delete::<Secret>(&token.key, &params).await
    }
}
