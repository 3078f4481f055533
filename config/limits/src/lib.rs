//! What a listener does against callers that it does not know: who counts as one ([`networks`]), fair shares of a room that is
//! always full ([`Places`]), and rates in bounded memory ([`Rates`]); and how those that it knows share a room ([`Shares`]).
//!
//! All of it is pure: the caller passes the address and the time, and carries out the decision. Nothing here trusts an
//! address: it only bounds what one owner of addresses can take from the others. A caller that proved a key is counted by the key.

mod network;
mod places;
mod rates;
mod shares;

pub use network::{Network, Width, networks};
pub use places::{PlaceId, Places};
pub use rates::{Rate, Rates};
pub use shares::{Room, Share, Shares, Taker};
