//! Registered with the server after it is built: further paths, the deny list, and the dialer for
//! nodes.

use master_auth::Nodes;
use master_gateway::NodeDialer;
use master_listener::{Denials, Extensions};
use std::sync::{Arc, OnceLock};

/// Registered with the server after it is built.
#[derive(Debug, Default)]
pub(crate) struct Hooks {
    pub(crate) extensions: OnceLock<Arc<dyn Extensions>>,
    pub(crate) denials: Denials,
    pub(crate) node_dialer: OnceLock<Arc<dyn NodeDialer>>,
}

impl Nodes for Hooks {
    fn denied(&self, node: &str) -> Option<String> {
        self.denials.reason(|list| list.node_denied(node))
    }

    fn may_register(&self, node: &str) -> Result<(), String> {
        match self.extensions.get() {
            Some(extensions) => extensions.may_register(node),
            None => Err("this server does not register nodes".to_owned()),
        }
    }
}
