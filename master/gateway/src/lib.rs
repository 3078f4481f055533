//! The way to nodes' kubelets: limits on their answers, places of open calls and of watches
//! ([`NodeCalls`], [`Watches`]), connections that are kept between two calls ([`KeptLines`]), and the bytes of a tunnel; and what a program behind the
//! API's proxy is ([`Backend`]), gets and gives: headers ([`Front`]), bodies ([`Upload`]), pages
//! ([`Page`]). An answer can go to its client over a WebSocket ([`Socket`]). What pages of other
//! origins may ask for is decided here ([`check_origin`]).

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
pub use kept::{KeptLines, Line, Standing};
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
