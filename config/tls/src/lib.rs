//! Verifiers of TLS peers. Every certificate verifier of the project is here, so that security code
//! exists once and is tested in one place. Nothing here opens a socket, reads a file or looks at a
//! clock: rustls provides types and rules, and passes the time.
//!
//! | verifier | who uses it | what it proves |
//! |---|---|---|
//! | [`PinnedVerifier`] | a node towards its master | a chain to a root whose key is pinned, and the requested name |
//! | [`CurrentClients`] | the API server and the kubelet's API towards callers | a chain to a root that is in force at the handshake |
//! | [`NamedServer`] | the API server towards a node | a chain to a root of the cluster, the node's own subject, and no objection |
//! | [`signed_by_client`] | a node towards other nodes | a chain to a root of the cluster, for clients, whose leaf's key signed a message |
//! | [`unverified_server`] | discovery, and the admin's tool before a proof | that the server holds the key which it shows, and nothing else |
//! | [`unproven_probe_server`] | probes and lifecycle hooks | nothing |

mod chain;
mod clients;
mod named;
mod pinned;
mod probed;
mod signed;
#[cfg(test)]
mod testing;
mod unverified;

pub use chain::{client_ends_in, ends_in};
pub use clients::{CurrentClients, Roots, RootsError, Strangers};
pub use named::{NamedServer, Objection};
pub use pinned::{Pin, PinnedVerifier, Pins, ShownRoot, not_pinned, pins_text, spki_hash};
pub use probed::unproven_probe_server;
pub use signed::{NotSigned, signed_by_client};
pub use unverified::unverified_server;
