//! What clients speak inside a tunnel to a pod: WebSocket frames ([`websocket`]), the channels of a remote command
//! ([`command`]), as kubectl and the client libraries speak them to exec and attach, and connections to ports ([`forward`]) over
//! the streams of [`spdy`], as kubectl speaks them to port-forward. Older clients speak SPDY to exec and attach, too
//! ([`streams`]).
//!
//! All of it is pure: bytes in, events out; the caller reads and writes. Nothing is buffered but what a decision needs (a
//! frame's header, a control message), so that the length that a peer announces costs no memory.
//!
//! Between master and node alone there is a plain connection to one port of a pod ([`port`]), on which the API's proxy speaks
//! HTTP itself.
//!
//! Enter by [`websocket::Decoder`], [`command::Input`], [`streams::Session`] and [`forward::Session`].

pub mod command;
pub mod forward;
pub mod port;
pub mod spdy;
pub mod streams;
pub mod websocket;
