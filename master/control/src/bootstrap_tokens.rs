//! Bootstrap token cleaner: tokens go when their time is over.

use crate::driver::{Controller, Now, Plan, Right};
use crate::observe::{Kind, Observed};
use crate::write::{Deletable, Write};
use std::time::Duration;

/// Where bootstrap tokens are.
pub(crate) const NAMESPACE: &str = "kube-system";
/// Which secrets they are.
pub(crate) const TYPE: &str = "bootstrap.kubernetes.io/token";
/// Between two looks at most.
const PERIOD: Duration = Duration::from_secs(60);

/// What it does, for whoever grants it.
pub(crate) const RIGHTS: &[Right] = &[Right {
    group: "",
    resource: "secrets",
    verbs: &["list", "watch", "delete"],
}];

/// The controller.
#[derive(Debug, Default)]
pub(crate) struct BootstrapTokens;

impl Controller for BootstrapTokens {
    fn name(&self) -> &'static str {
        "token-cleaner"
    }

    fn follows(&self) -> &'static [Kind] {
        &[Kind::BootstrapToken]
    }

    fn plan(&mut self, observed: &Observed, now: Now) -> Plan {
        let mut plan = Plan {
            writes: Vec::new(),
            again: Some(PERIOD),
        };
        for (key, token) in &observed.bootstrap_tokens {
            let Some(end) = token.expires else { continue };
            match Duration::try_from(end.duration_since(now.wall)) {
                Ok(left) if !left.is_zero() => plan.again_in(left),
                Ok(_) | Err(_) => plan.writes.push(Write::Delete {
                    what: Deletable::Secret,
                    key: key.clone(),
                    uid: token.uid.clone(),
                }),
            }
        }
        plan
    }
}
