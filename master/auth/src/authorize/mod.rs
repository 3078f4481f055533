//! Authorization: the configured modes are asked in order; what none of them allows is refused.
//!
//! `Node` limits nodes to their own objects, `RBAC` evaluates roles and bindings. Both use indexes
//! that are brought up to the newest revision at each question ([`feed`]), so that a new role
//! applies to the very next request. Members of `system:masters` may do everything, even without
//! any role: the server itself starts with that right.

mod feed;
mod graph;
mod node;
mod question;
mod references;
mod refusal;
mod roles;

use crate::nodes::Nodes;
use config_kube::identity;
use feed::View;
use graph::Graph;
use master_client::{BoxFuture, UserInfo};
use master_objects::store_error;
use master_rbac::{Request, Resource, Snapshot, Verdict};
use master_schema::error::ApiError;
use master_store::Reader;
pub use question::{Decision, Question, who};
use std::sync::Arc;

/// First segments of paths that need no credentials: probes, the version, and those by which
/// machines join.
const PUBLIC: [&str; 6] = [
    "livez",
    "readyz",
    "healthz",
    "version",
    "attest",
    "bootstrap",
];

/// An authorization mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Nodes may use their own objects.
    Node,
    /// Roles and bindings.
    Rbac,
    /// Every caller may do everything.
    AlwaysAllow,
}

/// The modes and their indexes.
#[derive(Debug)]
pub struct Authorizer {
    modes: Vec<Mode>,
    roles: View<Snapshot>,
    graph: View<Graph>,
    reader: Arc<dyn Reader>,
    nodes: Arc<dyn Nodes>,
}

impl Authorizer {
    /// An authorizer that asks these modes in their order.
    pub fn new(modes: &[Mode], reader: Arc<dyn Reader>, nodes: Arc<dyn Nodes>) -> Self {
        Self {
            modes: modes.to_vec(),
            roles: View::new(roles::TABLES),
            graph: View::new(graph::TABLES),
            reader,
            nodes,
        }
    }

    /// Whether every caller may do everything.
    pub fn is_open(&self) -> bool {
        self.modes.contains(&Mode::AlwaysAllow)
    }

    /// Whether an unauthenticated caller is refused at a path because the mode `AlwaysAllow` is on,
    /// which is for authenticated callers alone (upstream: `AlwaysAllow` disables anonymous
    /// requests). The paths of probes, of `kubectl version` and of machines that join stay open.
    pub fn shuts_out(&self, user: &UserInfo, path: &str) -> bool {
        let first = path.trim_start_matches('/').split('/').next();
        self.is_open()
            && user.in_group(identity::UNAUTHENTICATED_GROUP)
            && !first.is_some_and(|first| PUBLIC.contains(&first))
    }

    /// Decides one question.
    ///
    /// # Errors
    /// Roles or bindings cannot be read.
    pub fn decide<'a>(
        &'a self,
        question: &'a Question<'a>,
    ) -> BoxFuture<'a, Result<Decision, ApiError>> {
        Box::pin(self.by_modes(question))
    }

    async fn by_modes(&self, question: &Question<'_>) -> Result<Decision, ApiError> {
        if question.user.in_group(identity::MASTERS_GROUP) {
            return Ok(Decision::Allow(String::new()));
        }
        let mut reasons = Vec::new();
        for mode in &self.modes {
            let decision = match mode {
                Mode::AlwaysAllow => Decision::Allow(String::new()),
                Mode::Node => match question.user.node() {
                    None => continue,
                    Some(node) => self.by_node(node, question).await?,
                },
                Mode::Rbac => self.by_roles(question).await?,
            };
            match decision {
                Decision::Allow(why) => return Ok(Decision::Allow(why)),
                Decision::NoOpinion(why) if why.is_empty() => {}
                Decision::NoOpinion(why) => reasons.push(why),
            }
        }
        Ok(Decision::NoOpinion(reasons.join("\n")))
    }

    async fn by_node(&self, node: &str, question: &Question<'_>) -> Result<Decision, ApiError> {
        let answer = match question.request {
            Request::Path(..) => Err(String::new()),
            Request::Resource(verb, wanted) if node::needs_graph(&wanted) => {
                if question.network_only && node::is_list_of_pods(verb, &wanted) {
                    return Ok(Decision::Allow(String::new()));
                }
                let look =
                    |graph: &Graph| node::related(graph, node, verb, &wanted, question.of_node);
                self.graph
                    .with(&*self.reader, look)
                    .await
                    .map_err(store_error)?
            }
            Request::Resource(verb, wanted) => {
                node::own(&*self.nodes, node, verb, &wanted, question)
            }
        };
        Ok(match answer {
            Ok(()) => Decision::Allow(String::new()),
            Err(why) => Decision::NoOpinion(why),
        })
    }

    async fn by_roles(&self, question: &Question<'_>) -> Result<Decision, ApiError> {
        let verdict = self
            .with_roles(|roles| roles.decide(&who(question.user), &question.request))
            .await?;
        Ok(match verdict {
            Verdict::Allowed(why) => Decision::Allow(why),
            Verdict::NoOpinion(why) => Decision::NoOpinion(why),
        })
    }

    /// Calls a function with all roles and bindings at the newest revision.
    ///
    /// # Errors
    /// Roles or bindings cannot be read.
    pub async fn with_roles<T>(&self, look: impl FnOnce(&Snapshot) -> T) -> Result<T, ApiError> {
        self.roles
            .with(&*self.reader, look)
            .await
            .map_err(store_error)
    }

    /// Refuses a request that is not allowed.
    ///
    /// # Errors
    /// It is not allowed (`Forbidden`), or roles cannot be read.
    pub async fn require(&self, question: &Question<'_>) -> Result<(), ApiError> {
        match self.decide(question).await? {
            Decision::Allow(_) => Ok(()),
            Decision::NoOpinion(why) => Err(refusal::of(question, &why)),
        }
    }

    /// Whether a user may do something to a resource; for checks beyond the request itself.
    ///
    /// # Errors
    /// Roles or bindings cannot be read.
    pub async fn may(
        &self,
        user: &UserInfo,
        verb: &str,
        resource: Resource<'_>,
    ) -> Result<bool, ApiError> {
        let question = Question {
            user,
            request: Request::Resource(verb, resource),
            of_node: None,
            network_only: false,
        };
        Ok(matches!(self.decide(&question).await?, Decision::Allow(_)))
    }
}
