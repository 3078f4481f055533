//! What each verb does to objects: create, read, update, patch, delete, list, watch, and the verbs
//! of subresources (bind, evict, scale, token, power, logs, tunnels, the proxy).
//!
//! Start at [`run()`]: it picks the file that answers a request, the [`Call`], and hands it those
//! of the server's parts ([`ServerParts`]) that it may use. The server (`master-api`) calls it once
//! it knows the caller and has asked [`authorize`]. The verbs are generic: what differs between
//! kinds is in their descriptors (`master-schema`).
//!
//! - Writes: `create`, `update`, `patch` and `delete` read the body (`body`), update the managed
//!   fields (`managed`) and have plugins look at the object (`writer`), then write it in one
//!   transaction, again if another writer was faster.
//! - Reads: `read` and `watch`; a list comes in pages (`page`), an event as a line (`frames`), both
//!   in the form that the client accepts (`answer`). Reads of many objects take turns (`turns`).
//! - Nodes: requests to a node's kubelet go through `gateway`.
//!
//! Tasks: a watch runs inside the body of its response; a connection to a kubelet has a task that
//! ends with it. There are no channels.

mod answer;
pub mod authorize;
mod bind;
mod body;
mod call;
mod components;
mod create;
mod delete;
mod evict;
mod frames;
mod gateway;
mod log;
mod managed;
mod managed_scale;
mod metrics;
mod network_only;
mod options;
mod page;
mod patch;
mod pod_proxy;
mod power;
mod proxy;
mod read;
mod review;
mod run;
mod scale;
mod server_parts;
mod token;
mod tunnel;
mod turns;
mod update;
mod watch;
mod writer;

pub use answer::{Answer, value_answer};
pub use call::Call;
pub use create::warned;
pub use run::run;
pub use server_parts::{OwnTransport, ServerParts};
