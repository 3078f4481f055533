//! Authentication and authorization of callers.
//!
//! Start at [`Authenticator`] (certificates, service account tokens, bootstrap tokens, static
//! tokens, impersonation) and [`Authorizer`] (nodes, roles). Each takes only what it needs: a
//! [`Reader`](master_store::Reader) of stored objects, and the master's decisions on its nodes
//! ([`Nodes`]).
//!
//! No tasks, no channels.

mod authenticate;
mod authorize;
mod nodes;

pub use authenticate::{
    Authenticator, Claims, ClientCertificate, Identified, Private, Reference, TokenFileError,
    TokenIssuer, TokenKeyError, TokenList, impersonate, of_certificate,
};
pub use authorize::{Authorizer, Decision, Mode, Question, who};
pub use nodes::Nodes;
