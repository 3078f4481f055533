//! The API server's calls to nodes' kubelets and to programs behind its proxy, within limits.
//!
//! - Kubelets: limits on answers, shares of open calls ([`NodeCalls`]), connections kept between two
//!   calls ([`KeptLines`]), the bytes of a tunnel.
//! - Watches: shares of nodes, users and namespaces ([`Watches`]).
//! - Programs behind the proxy ([`Backend`]): headers ([`Front`]), bodies ([`Upload`]), pages whose
//!   links are rewritten ([`Page`]).
//! - Clients: answers over a WebSocket ([`Socket`]); what web pages of other origins may ask for
//!   ([`check_origin`]).

mod answer;
mod asker;
mod backend;
mod exchange;
mod front;
mod kept;
mod links;
mod node_headers;
mod origin;
mod page;
mod pass;
mod places;
mod secure;
mod slash;
mod target;
mod upload;
mod watches;
mod websocket;

pub use answer::{Driver, Expected, NodeBody, NodeLimits};
pub use asker::Asker;
pub use backend::{Backend, of_pod, of_service};
pub use exchange::{Exchange, is_page};
pub use front::Front;
pub use kept::{ConnectionCheck, KeptLines, Line};
pub use links::Links;
pub use node_headers::{follows, for_node};
pub use origin::check_origin;
pub use page::Page;
pub use pass::pass;
pub use places::{NodeCall, NodeCalls};
pub use secure::secure;
pub use slash::with_slash;
pub use target::ProxyTarget;
pub use upload::{Progress, Upload};
pub use watches::{WatchPlace, Watches};
pub use websocket::{Carried, Socket};
