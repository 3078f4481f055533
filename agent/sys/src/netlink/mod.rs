//! Netlink sockets: requests to the kernel's routing and packet filter, each answered before the
//! call returns.
//!
//! A socket belongs to the network namespace of the thread that opened it, whichever thread uses it
//! later. The layouts are written by [`message`], which is pure; [`links`], [`filter`] and
//! [`wireguard`] know the requests of the kernel's parts, and [`weight`] how much of a batch they
//! take.
//!
//! No crate is used, because the requests are few, the crates in use have no batches of packet
//! filter changes, and all of it must work without an event loop, on a thread in another namespace.

mod batch;
pub mod connections;
mod datagram;
pub mod dump;
mod expression;
mod family;
pub mod filter;
pub mod links;
pub mod message;
mod routes;
pub mod weight;
pub mod wireguard;

pub use family::Family;

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, sendto,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::error::{Context, Error, Result};
use datagram::Datagram;
use message::{Message, Part, parts};
use zeroize::Zeroizing;

/// The kernel answers during the request; this limit only keeps a kernel fault from blocking the
/// agent for ever.
const PATIENCE_SECONDS: i64 = 10;
/// Most messages of one answer that are kept.
const MAX_MESSAGES: usize = 65_536;
/// Room for the largest batch that is sent.
const SEND_ROOM: usize = 8 << 20;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// The part of the kernel to which a socket talks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subsystem {
    /// Links, addresses, routes, neighbours.
    Routing,
    /// nftables and connection tracking.
    Netfilter,
    /// Parts that have a name in place of a number (generic netlink).
    Generic,
}

/// A netlink socket of one network namespace.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    sequence: u32,
}

impl Socket {
    /// Opens a socket for the calling thread's network namespace.
    ///
    /// # Errors
    /// If the kernel has no such part or the process may not.
    pub fn open(subsystem: Subsystem) -> Result<Self> {
        let (protocol, name) = match subsystem {
            Subsystem::Routing => (SockProtocol::NetlinkRoute, "the routing socket"),
            Subsystem::Netfilter => (SockProtocol::NetlinkNetFilter, "the packet filter's socket"),
            Subsystem::Generic => (SockProtocol::NetlinkGeneric, "the generic netlink socket"),
        };
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            protocol,
        )
        .at("open", name)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0)).at("bind", name)?;
        let limit = TimeVal::seconds(PATIENCE_SECONDS);
        setsockopt(&fd, sockopt::ReceiveTimeout, &limit).at("limit the wait on", name)?;
        // Not every user may; the default is room enough for most batches.
        setsockopt(&fd, sockopt::SndBufForce, &SEND_ROOM).ok();
        Ok(Self { fd, sequence: 0 })
    }

    /// Sends messages as one datagram and waits until the kernel took the last, which asks for an
    /// answer.
    ///
    /// # Errors
    /// The first refusal, with `what` and `subject`.
    pub fn send(
        &mut self,
        messages: &[Message],
        what: &'static str,
        subject: &str,
    ) -> Result<Vec<Part>> {
        self.send_and_keep(messages, what, subject, &|_| true)
    }

    /// As [`Self::send`]; keeps only the answers that `wanted` selects.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_and_keep(
        &mut self,
        messages: &[Message],
        what: &'static str,
        subject: &str,
        wanted: &dyn Fn(&Part) -> bool,
    ) -> Result<Vec<Part>> {
        let first = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        for message in messages {
            self.sequence = self.sequence.wrapping_add(1);
            message.write(self.sequence, &mut bytes);
        }
        let last = messages
            .iter()
            .rposition(Message::is_answered)
            .and_then(|at| u32::try_from(at).ok())
            .map(|at| first.wrapping_add(at));
        self.put(&bytes, what, subject)?;
        match last {
            Some(last) => self.answers(first..=last, what, subject, wanted),
            None => Ok(Vec::new()),
        }
    }

    /// Sends one request that is written already, and waits until the kernel took it.
    ///
    /// `write` is given its number. Nothing of the request is copied on this side.
    fn send_written<const LENGTH: usize>(
        &mut self,
        write: impl FnOnce(u32) -> Zeroizing<[u8; LENGTH]>,
        what: &'static str,
        subject: &str,
    ) -> Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let number = self.sequence;
        self.put(write(number).as_slice(), what, subject)?;
        self.answers(number..=number, what, subject, &|_| true)
            .map(drop)
    }

    fn put(&self, bytes: &[u8], what: &'static str, subject: &str) -> Result<()> {
        let kernel = NetlinkAddr::new(0, 0);
        let sent = sendto(self.fd.as_raw_fd(), bytes, &kernel, MsgFlags::empty());
        sent.map(drop).at(what, subject)
    }

    /// Reads until the request `last` is answered. Answers to older requests, left by a failed one,
    /// are skipped.
    fn answers(
        &mut self,
        sequences: RangeInclusive<u32>,
        what: &'static str,
        subject: &str,
        wanted: &dyn Fn(&Part) -> bool,
    ) -> Result<Vec<Part>> {
        let (first, last) = sequences.into_inner();
        let mut found = Vec::new();
        let mut buffer = Datagram::new();
        loop {
            let datagram = match buffer.receive(&self.fd) {
                Err(Errno::EINTR) => continue,
                other => other.at(what, subject)?,
            };
            for part in parts(datagram) {
                if part.sequence.wrapping_sub(first) > last.wrapping_sub(first) {
                    continue;
                }
                match part.kind {
                    NLMSG_ERROR => match part.error_number() {
                        Some(0) if part.sequence == last => return Ok(found),
                        Some(0) => {}
                        number => return Err(refusal(number, what, subject)),
                    },
                    // A list that failed half-way ends with the failure (`netlink_dump_done` in
                    // the kernel): what has come of it is not the whole.
                    NLMSG_DONE => {
                        return match part.error_number() {
                            Some(number) if number < 0 => Err(refusal(Some(number), what, subject)),
                            Some(_) | None => Ok(found),
                        };
                    }
                    _ if !wanted(&part) => {}
                    _ if found.len() < MAX_MESSAGES => found.push(part),
                    _ => return Err(Error::new(what, subject, too_much())),
                }
            }
        }
    }
}

fn refusal(number: Option<i32>, what: &'static str, subject: &str) -> Error {
    let cause = number.map_or_else(
        || io::Error::from(io::ErrorKind::InvalidData),
        |number| io::Error::from_raw_os_error(number.saturating_neg()),
    );
    Error::new(what, subject, cause)
}

fn too_much() -> io::Error {
    io::Error::other("the answer is too long")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    /// A message of the kernel without attributes: a header, and a number.
    fn message(kind: u16, sequence: u32, number: i32) -> Vec<u8> {
        let mut bytes = 20_u32.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(0_u16.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(number.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_list_counts_only_if_it_did_not_fail_half_way() {
        let (kernel, own) = UnixDatagram::pair().unwrap();
        let mut socket = Socket {
            fd: own.into(),
            sequence: 0,
        };
        let mut list = |end: i32| {
            let all = [message(0x10, 7, 1), message(NLMSG_DONE, 7, end)];
            kernel.send(&all.concat()).unwrap();
            socket.answers(7..=7, "list", "links", &|_| true)
        };
        assert_eq!(list(0).unwrap().len(), 1);
        let failure = list(-(Errno::ENOMEM as i32)).unwrap_err();
        assert_eq!(failure.errno(), Some(Errno::ENOMEM as i32));
    }
}
