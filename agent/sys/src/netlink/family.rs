//! The two kinds of addresses, and what differs between them in packets.

use std::net::IpAddr;

use nix::libc;

/// A kind of addresses. Each table of the packet filter, route and connection is of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// That of an address.
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Bytes of an address.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::V4 => 4,
            Self::V6 => 16,
        }
    }

    /// Bits of an address: the length of the prefix that means it alone.
    pub const fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// Where the source's address begins in a packet's header, in bytes (RFC 791, RFC 8200).
    pub const fn source_offset(self) -> u32 {
        match self {
            Self::V4 => 12,
            Self::V6 => 8,
        }
    }

    /// Where the destination's address begins in a packet's header, in bytes.
    pub const fn destination_offset(self) -> u32 {
        match self {
            Self::V4 => 16,
            Self::V6 => 24,
        }
    }

    /// The kernel's number (`AF_INET`, `AF_INET6`; those of netfilter, `NFPROTO_*`, are the same).
    pub(super) fn number(self) -> u8 {
        let number = match self {
            Self::V4 => libc::AF_INET,
            Self::V6 => libc::AF_INET6,
        };
        u8::try_from(number).unwrap_or_default()
    }
}
