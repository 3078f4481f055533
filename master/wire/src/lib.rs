//! The API on the wire: parsing requests and writing answers.
//!
//! - [`path`]: method, path and query as a [`path::Target`]
//! - [`Accept`]: the form in which a client wants objects; [`table`]: objects as tables or as
//!   metadata alone
//! - [`protobuf`]: bodies and answers in Kubernetes' own encoding
//! - [`Pieces`]: long lists, made as their reader takes them; [`Continue`]: where the next page of
//!   a list begins
//! - [`checks`]: what the health endpoints say
//! - [`respond`]: answers that are not objects; [`finish`]: compression and indentation of any
//!   answer
//!
//! No tasks, no channels; a compressed answer is made piece by piece as its reader takes it.

mod accept;
pub mod checks;
mod encoding;
mod page_token;
pub mod path;
mod pieces;
pub mod protobuf;
pub mod respond;
pub mod table;

pub use accept::{Accept, Form, Syntax};
pub use encoding::{Encoding, finish};
pub use page_token::Continue;
pub use pieces::{Item, PIECE, Pieces};
