//! The TLS listener: it accepts connections within limits, and passes on what each one proves about
//! its caller.
//!
//! Enter by [`serve`], which runs one task for each connection and owns them until it returns; what
//! answers is a [`Service`]. A [`Peer`] is the other end of one connection: its certificates, its
//! address, its slot within the [`ConnectionLimits`]. A [`RequestSlots`] reads a request's body,
//! then gives it a slot for work, held until the answer is read; [`Flows`] say to which flow schema
//! it belongs. How much strangers may ask ([`UnauthenticatedLimits`]) and unread answers may hold
//! ([`AnswerLimits`]) is decided for each request in `request_limiter.rs`.
//! [`Writes`] knows which writes of nodes go on. [`Denials`] hold the [`DenyList`], and a
//! [`Caller`] guards its answers by them. There are no channels.

mod answers;
mod bodies;
mod connections;
mod denials;
mod extensions;
mod flows;
mod guard;
mod idle;
mod peer;
mod request_limiter;
mod request_slots;
mod serve;
mod service;
mod stored_flows;
mod unauthenticated;
mod write_timeout;
mod writes;

pub use answers::AnswerLimits;
pub use bodies::BodyLimits;
pub use connections::ConnectionLimits;
pub use denials::Denials;
pub use extensions::{DenyList, Extensions};
pub use flows::{Flow, FlowRequest, FlowTarget, Flows};
pub use guard::Caller;
pub use peer::{Exchange, Peer};
pub use request_slots::{Access, RequestSlot, RequestSlots, too_many};
pub use serve::{ServeOptions, TlsError, serve, tls_config};
pub use service::Service;
pub use stored_flows::StoredFlows;
pub use unauthenticated::UnauthenticatedLimits;
pub use writes::{WriteUnderWay, Writes};
