//! Who a caller is, and what it may do.
//!
//! Start at [`Authenticator`] (certificates, service account tokens, bootstrap tokens, static
//! tokens, impersonation) and [`Authorizer`] (nodes, roles). Each takes what it needs and no more:
//! a [`Reader`](master_store::Reader) of stored objects, and what the master says of its nodes
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
pub use authorize::{Authorizer, Decision, Mode, Question, defaults, who};
pub use nodes::Nodes;
