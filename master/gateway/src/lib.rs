//! The API server's calls to nodes' kubelets and to programs behind its proxy, within limits.
//!
//! - Kubelets: how they are reached ([`NodeDialer`]), limits on answers, shares of open calls
//!   ([`NodeCalls`]), connections kept between two calls ([`IdleConnections`]), the bytes of a
//!   tunnel.
//! - Watches: shares of nodes, users and namespaces ([`Watches`]).
//! - Programs behind the proxy ([`Backend`]): headers ([`ReverseProxy`]), bodies ([`Upload`]),
//!   pages whose links are rewritten ([`Page`]).
//! - Clients: answers over a WebSocket ([`Socket`]); what web pages of other origins may ask for
//!   ([`check_origin`]).

mod answer;
mod backend;
mod call_owner;
mod idle_connections;
mod links;
mod node_calls;
mod node_dialer;
mod node_headers;
mod origin;
mod page;
mod pod_tls;
mod proxied_request;
mod relay;
mod reverse_proxy;
mod target;
mod trailing_slash;
mod upload;
mod watches;
mod websocket;

pub use answer::{Driver, Expected, NodeBody, NodeLimits};
pub use backend::{Backend, is_proxyable, of_pod, of_service};
pub use call_owner::CallOwner;
pub use idle_connections::{ConnectionCheck, IdleConnections, NodeConnection};
pub use links::Links;
pub use node_calls::{NodeCall, NodeCalls};
pub use node_dialer::{DialError, NodeDialer, NodeStream, NodeTarget, ReusableStream};
pub use node_headers::{follows, for_node};
pub use origin::check_origin;
pub use page::Page;
pub use pod_tls::connect_tls;
pub use proxied_request::{ProxiedRequest, is_page};
pub use relay::relay;
pub use reverse_proxy::ReverseProxy;
pub use target::ProxyTarget;
pub use trailing_slash::with_slash;
pub use upload::{Progress, Upload};
pub use watches::{HeldObjects, WatchMemory, WatchSlot, Watches};
pub use websocket::{Socket, WebSocketContent};
