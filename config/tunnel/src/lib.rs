//! What clients speak inside a tunnel to a pod: WebSocket frames ([`websocket`]) and the channels of a remote command
//! ([`command`]), as kubectl and the client libraries speak them to exec and attach.
//!
//! All of it is pure: bytes in, events out; the caller reads and writes. Nothing is buffered but what a decision needs (a
//! frame's header, a control message), so that the length that a peer announces costs no memory.
//!
//! Enter by [`websocket::Decoder`] and [`command::Input`].

pub mod command;
pub mod websocket;
