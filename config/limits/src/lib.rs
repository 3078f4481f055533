//! Limits for callers of a listener. For unknown callers: which addresses count as one caller
//! ([`networks`]), connection slots with fair eviction ([`SlotTable`]), and rates in bounded memory
//! ([`Rates`]). For known users: a capacity that they share ([`Shares`]), and who goes without
//! where all together take too much ([`Lightest`]; of objects that are kept, [`KeptBytes`]).
//!
//! All of it is pure: the caller passes the address and the time, and carries out the decision.
//! Addresses are not trusted: they only bound what one owner of addresses can take from the others.
//! A caller that proved a key is counted by the key.

mod kept;
mod lightest;
mod network;
mod rates;
mod shares;
mod slots;

pub use kept::KeptBytes;
pub use lightest::Lightest;
pub use network::{Network, Width, host, networks};
pub use rates::{Rate, Rates};
pub use shares::{Capacity, Share, Shares, Taker};
pub use slots::{SlotId, SlotTable};
