//! The protocols inside a tunnel to a pod. For `exec` and `attach`: the channels of a command
//! ([`command`]) in WebSocket frames ([`websocket`]) or, for older clients, over SPDY
//! ([`streams`]). For `port-forward`: connections to ports over SPDY ([`forward`]), or over
//! channels for clients that know no SPDY ([`channels`]). Both uses of SPDY share frames and
//! session ([`spdy`]).
//!
//! All of it is pure: bytes in, events out; the caller reads and writes. Only what a decision needs
//! is buffered (a frame's header, a control message), so that a length that a peer announces costs
//! no memory.
//!
//! Between master and node alone there is a plain connection to one port of a pod ([`port`]), on
//! which the API's proxy speaks HTTP itself.
//!
//! Enter by [`websocket::Decoder`], [`command::Input`], [`streams::Session`] and
//! [`forward::Session`].

pub mod channels;
pub mod command;
pub mod forward;
pub mod port;
pub mod spdy;
pub mod streams;
pub mod websocket;
