//! Plans of controllers over simulated facts, without an API.

mod garbage;
mod volumes;
