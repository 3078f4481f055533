//! nftables: tables, chains, sets and rules of the packet filter, changed in atomic batches
//! (`include/uapi/linux/netfilter/nf_tables.h`).
//!
//! The caller decides what a rule means; this module only encodes it. Addresses and ports are in
//! registers in network byte order, as in packets.

use std::borrow::Cow;
use std::net::IpAddr;

use super::batch::batch;
use super::{Family, SEND_ROOM, Socket, Subsystem};
use crate::error::Result;

/// Most bytes of one batch that the kernel takes: it allows a socket twice the room that was asked
/// for, and needs a few.
pub const MAX_BATCH: usize = 2 * SEND_ROOM - 64;

/// Bytes of a batch of these changes.
pub fn encoded_length(family: Family, changes: &[Change]) -> usize {
    let mut bytes = Vec::new();
    for message in batch(family, changes) {
        message.write(0, &mut bytes);
    }
    bytes.len()
}

/// Bytes of an interface's name in a register or a set.
pub const NAME_BYTES: usize = 16;

/// A name of an interface as registers and sets hold it.
pub fn name_key(name: &str) -> [u8; NAME_BYTES] {
    let mut key = [0; NAME_BYTES];
    for (place, byte) in key.iter_mut().zip(name.bytes().take(NAME_BYTES - 1)) {
        *place = byte;
    }
    key
}

/// Where a chain sees packets (`NF_INET_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Incoming packets, before routing.
    Prerouting,
    /// Packets that the machine forwards.
    Forward,
    /// Packets that the machine itself sends.
    Output,
    /// As they leave.
    Postrouting,
}

/// What kind of chain it is, which says what its rules may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainKind {
    /// Lets packets pass or drops them.
    Filter,
    /// Sees the first packet of a connection and may change its addresses.
    Nat,
}

/// A register of 32 bits, counted from 0; longer values take several in a row.
pub type Register = u32;

/// A chain's name.
pub type Name = Cow<'static, str>;

/// What happens to a packet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// This chain lets it pass.
    Accept,
    /// It is gone.
    Drop,
    /// Another chain goes on, and comes back where it decides nothing.
    Jump(Name),
    /// Another chain goes on, and does not come back.
    Goto(Name),
    /// The chain that sent it here goes on.
    Return,
}

/// What a map holds under its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// What happens to a packet.
    Verdicts,
    /// Values of a length in bytes.
    Bytes(u32),
}

/// A value of a map.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// A chain goes on, and does not come back.
    Goto(Name),
    /// A chain goes on, and comes back where it decides nothing.
    Jump(Name),
    /// Bytes.
    Bytes(Vec<u8>),
}

/// A step of a rule; a condition that does not hold ends the rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step {
    /// Loads the name of the interface by which it came in, [`NAME_BYTES`] long.
    LoadInName(Register),
    /// Loads the name of the interface by which it leaves.
    LoadOutName(Register),
    /// Loads the number of its transport protocol, one byte.
    LoadProtocol(Register),
    /// Loads bytes of its network header.
    LoadNetwork {
        /// First byte.
        offset: u32,
        /// How many.
        length: u32,
        /// Where to.
        to: Register,
    },
    /// Loads bytes of its transport header; a later fragment has none.
    LoadTransport {
        /// First byte.
        offset: u32,
        /// How many.
        length: u32,
        /// Where to.
        to: Register,
    },
    /// Loads the state of its connection, a set of bits in the machine's order.
    LoadState(Register),
    /// Loads what was done to its connection, a set of bits in the machine's order.
    LoadStatus(Register),
    /// Loads, in one byte, 0 where the packet goes as its connection's first one, and 1 where it
    /// goes the other way.
    LoadDirection(Register),
    /// Loads the address that began its connection, whichever way this packet goes, before any
    /// change of sources; ends the rule where it is of no connection.
    LoadClient(Register),
    /// Loads the address that answers its connection, behind any change of destinations.
    LoadServer(Register),
    /// Loads the port that answers its connection, two bytes.
    LoadServerPort(Register),
    /// Keeps the bits of a mask.
    Mask {
        /// Which register.
        of: Register,
        /// The mask, as long as the value.
        mask: Vec<u8>,
    },
    /// Keeps the bits of a mask, then flips some.
    MaskAndFlip {
        /// Which register.
        of: Register,
        /// The mask, as long as the value.
        mask: Vec<u8>,
        /// What is flipped, as long as the mask.
        flip: Vec<u8>,
    },
    /// Holds where the register begins with these bytes.
    Is(Register, Vec<u8>),
    /// Holds where it does not.
    IsNot(Register, Vec<u8>),
    /// Holds where the register is not below these bytes, as a number in the network's order.
    AtLeast(Register, Vec<u8>),
    /// Holds where it is not above them.
    AtMost(Register, Vec<u8>),
    /// Holds where the registers from this one on are in the set.
    In(Register, Name),
    /// Holds where they are not.
    NotIn(Register, Name),
    /// Goes on as the map says for the registers from this one on; goes on here where it says
    /// nothing.
    Follow(Register, &'static str),
    /// Loads what the map holds for the registers from the first on; ends the rule where it holds
    /// nothing.
    Find {
        /// First register of the key.
        key: Register,
        /// The map.
        map: &'static str,
        /// First register of the value.
        to: Register,
    },
    /// Remembers a value under a key in a map of [`Change::AddMemory`], for some time. A key that
    /// has a value keeps it, and gets the time anew. Ends the rule where the map is full.
    Remember {
        /// First register of the key.
        key: Register,
        /// The map.
        map: &'static str,
        /// First register of the value.
        value: Register,
        /// Milliseconds.
        milliseconds: u64,
    },
    /// Forgets what is remembered under a key, if anything is.
    Forget {
        /// First register of the key.
        key: Register,
        /// The map.
        map: &'static str,
        /// First register of a value. The kernel wants one, and does not look at it.
        value: Register,
    },
    /// Holds where a key's share is used up; packets are counted under their keys in a set of
    /// [`Change::AddMeter`].
    Beyond {
        /// First register of the key.
        key: Register,
        /// The set.
        set: &'static str,
        /// The share of each key.
        share: Share,
    },
    /// No connection is looked up or made for the packet.
    Untracked,
    /// Loads a random number below a limit, 32 bits in the machine's order.
    LoadRandom {
        /// The limit.
        below: u32,
        /// Where to.
        to: Register,
    },
    /// Sets these bits of the packet's mark.
    SetMark(u32),
    /// Loads the packet's mark, in the machine's order.
    LoadMark(Register),
    /// Gives the connection another destination.
    Destination {
        /// First register of the address.
        address: Register,
        /// Register of the port.
        port: Register,
    },
    /// Gives the connection another source, whichever interface its packets leave by.
    Source {
        /// Register of the IPv4 address.
        address: Register,
    },
    /// Answers that the port can't be reached (ICMP) and drops the packet. The answer needs a
    /// source of the machine's own: the kernel sends none where the packet's destination is routed
    /// by the loopback link.
    Reject,
    /// Answers a TCP packet with a reset, in its destination's name, and drops it.
    Reset,
    /// Counts packets and bytes.
    Count,
    /// Gives the connection an address of the interface by which it leaves as its source. The
    /// connection ends where its packets leave by another one later.
    Masquerade,
    /// Ends it.
    Verdict(Verdict),
}

/// What each key of [`Step::Beyond`] may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Share {
    /// Connections at once. Those of TCP that are closed or wait for their end do not count.
    Connections(u32),
    /// Packets in a second, in the long run; the set is one that forgets.
    PerSecond {
        /// How many.
        packets: u32,
        /// How many at once beyond that.
        burst: u32,
        /// Milliseconds after which a key is forgotten that has none.
        kept: u64,
    },
}

/// Bit of [`Step::LoadStatus`]: a packet before this one made it (`IPS_CONFIRMED`).
pub const KNOWN: u32 = 8;

/// Bit of [`Step::LoadStatus`]: it has another source than its client knows (`IPS_SRC_NAT`).
pub const SOURCE_CHANGED: u32 = 16;

/// Bit of [`Step::LoadStatus`]: it has another destination than its client knows (`IPS_DST_NAT`).
pub const DESTINATION_CHANGED: u32 = 32;

/// Bit of [`Step::LoadState`]: it fits no connection, and can't begin one.
pub const INVALID: u32 = 1;

/// Bit of [`Step::LoadState`]: it begins a connection.
pub const NEW: u32 = 8;

/// Bits of [`Step::LoadState`]: part of a connection, or of something that belongs to one.
pub const ESTABLISHED_OR_RELATED: u32 = 2 | 4;

/// Addresses of one family, from the first to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    /// The first one.
    pub first: IpAddr,
    /// The last one, which is in the range, too.
    pub last: IpAddr,
}

/// A change of the packet filter for one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Makes a table; nothing changes where there is one.
    AddTable(&'static str),
    /// Removes a table with all that is in it.
    RemoveTable(&'static str),
    /// Makes a chain that sees packets; those that no rule decides pass.
    AddChain {
        /// Its table.
        table: &'static str,
        /// Its name.
        name: &'static str,
        /// Its kind.
        kind: ChainKind,
        /// The hook that the chain is attached to.
        hook: Hook,
        /// Its place among the chains there, the lowest first.
        priority: i32,
    },
    /// Makes a chain that sees what other chains send there.
    AddBranch {
        /// Its table.
        table: &'static str,
        /// Its name.
        name: Name,
    },
    /// Makes a map of keys of a fixed length in bytes.
    AddMap {
        /// Its table.
        table: &'static str,
        /// Its name.
        name: &'static str,
        /// Bytes of a key.
        length: u32,
        /// What it holds.
        values: Values,
    },
    /// Makes a map that rules fill ([`Step::Remember`]); its entries go after their time.
    AddMemory {
        /// Its table.
        table: &'static str,
        /// Its name.
        name: &'static str,
        /// Bytes of a key.
        length: u32,
        /// Bytes of a value.
        value: u32,
        /// Most entries.
        most: u32,
    },
    /// Makes a set of keys that rules fill ([`Step::Beyond`]); nothing changes where there is one.
    AddMeter {
        /// Its table.
        table: &'static str,
        /// Its name.
        name: &'static str,
        /// Bytes of a key.
        length: u32,
        /// Most keys.
        most: u32,
        /// Whether keys go after a time.
        forgets: bool,
    },
    /// Adds keys with their values to a map.
    AddEntries {
        /// Its table.
        table: &'static str,
        /// The map.
        map: &'static str,
        /// Keys and values.
        entries: Vec<(Vec<u8>, Value)>,
    },
    /// Makes a set of keys of a fixed length in bytes.
    AddSet {
        /// Its table.
        table: &'static str,
        /// Its name.
        name: Name,
        /// What keys are, for programs that show them (`nft`): data types of nftables, six bits
        /// each.
        shown_as: u32,
        /// Bytes of a key.
        length: u32,
    },
    /// Makes a set of addresses of the filter's family, given by ranges, with all that is in it.
    AddRanges {
        /// Its table.
        table: &'static str,
        /// Its name.
        name: Name,
        /// In order; they do not touch.
        ranges: Vec<AddressRange>,
    },
    /// Removes all rules of all chains of a table, which stay.
    ClearTable(&'static str),
    /// Removes all keys of a set or map.
    ClearSet {
        /// Its table.
        table: &'static str,
        /// Its name.
        name: Name,
    },
    /// Removes all rules of a chain, which stays.
    ClearChain {
        /// Its table.
        table: &'static str,
        /// Its name.
        name: Name,
    },
    /// Removes a chain with its rules; nothing may lead to it.
    RemoveChain {
        /// Its table.
        table: &'static str,
        /// Its name.
        name: Name,
    },
    /// Removes a set; no rule may ask for it.
    RemoveSet {
        /// Its table.
        table: &'static str,
        /// Its name.
        name: Name,
    },
    /// Adds keys to a set; nothing changes for those that are in it.
    AddElements {
        /// Its table.
        table: &'static str,
        /// The set.
        set: Name,
        /// The keys.
        keys: Vec<Vec<u8>>,
    },
    /// Removes keys from a set, each of which must be in it.
    RemoveElements {
        /// Its table.
        table: &'static str,
        /// The set.
        set: Name,
        /// The keys.
        keys: Vec<Vec<u8>>,
    },
    /// Adds a rule at a chain's end.
    AddRule {
        /// Its table.
        table: &'static str,
        /// The chain.
        chain: Name,
        /// What it does, step by step.
        steps: Vec<Step>,
    },
}

/// The packet filter of one network namespace for packets of one family. A table of a name is
/// another for each family.
#[derive(Debug)]
pub struct Filter(Socket, Family);

impl Filter {
    /// Opens the packet filter of the calling thread's network namespace.
    ///
    /// # Errors
    /// If the kernel has none, or the process may not.
    pub fn open(family: Family) -> Result<Self> {
        Socket::open(Subsystem::Netfilter).map(|socket| Self(socket, family))
    }

    /// Makes all of these changes, or none.
    ///
    /// # Errors
    /// The kernel's first refusal; nothing has changed then.
    pub fn apply(&mut self, changes: &[Change]) -> Result<()> {
        let batch = batch(self.1, changes);
        self.0.send(&batch, "change", "the packet filter").map(drop)
    }

    pub(super) fn parts(&mut self) -> (&mut Socket, Family) {
        (&mut self.0, self.1)
    }
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
