//! A DHCPv4 client (RFC 2131) without I/O: packets and time in; packets, leases and the next
//! deadline out.
//!
//! Guarantees: answers that don't carry our transaction and hardware address, or that lack what a
//! lease needs, change nothing; an address is given up when its lease ends or the server takes it
//! back; sending is paced from 1 s to 64 s. Left out: the probe for an address in use (RFC 2131,
//! 2.2), which a machine network's own server does.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::wire::{self, Kind, Packet, Reply};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(64);
/// Requests for one offer before asking around again.
const REQUESTS: u32 = 4;
/// Leases are kept at least so long, whatever the server says, to keep the pace bearable.
const SHORTEST_LEASE: u32 = 60;
/// Most entries taken of a list that a server gives.
const MOST: usize = 4;
/// Largest packet read.
pub const MAX_PACKET: usize = 1500;

/// An address on loan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub address: Ipv4Addr,
    /// Bits of its network.
    pub prefix: u8,
    /// Where the default route goes.
    pub gateway: Option<Ipv4Addr>,
    /// Name servers.
    pub nameservers: Vec<Ipv4Addr>,
    /// Time servers.
    pub ntp: Vec<Ipv4Addr>,
    /// The server that gave it.
    pub server: Ipv4Addr,
    /// How long it is valid.
    pub time: Duration,
    /// After which time to ask for more.
    pub renew: Duration,
    /// After which time to ask any server.
    pub rebind: Duration,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send to everybody on the segment, from no address.
    Anonymous(Vec<u8>),
    /// Send to everybody on the segment, from the leased address.
    Broadcast(Vec<u8>),
    /// Send to one server.
    Unicast(Ipv4Addr, Vec<u8>),
    /// Use this lease from now on, in place of an older one.
    Use(Lease),
    /// Give the address up.
    Lost,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Selecting {
        send_at: Duration,
        pause: Duration,
    },
    Requesting {
        offer: Lease,
        send_at: Duration,
        pause: Duration,
        left: u32,
    },
    Bound {
        lease: Lease,
        since: Duration,
        send_at: Duration,
    },
}

/// The client of one interface.
#[derive(Debug, Clone)]
pub struct Client {
    mac: [u8; 6],
    host_name: Option<String>,
    transaction: u32,
    state: State,
}

impl Client {
    /// A client that asks at `now`. `seed` is random: it makes transactions hard to guess and
    /// spreads machines.
    pub fn new(mac: [u8; 6], host_name: Option<String>, seed: u32, now: Duration) -> Self {
        Self {
            mac,
            host_name,
            transaction: seed,
            state: State::Selecting {
                send_at: now,
                pause: FIRST_PAUSE,
            },
        }
    }

    /// When [`Client::tick`] is due next.
    pub fn deadline(&self) -> Duration {
        match &self.state {
            State::Selecting { send_at, .. } | State::Requesting { send_at, .. } => *send_at,
            State::Bound {
                lease,
                since,
                send_at,
            } => (*send_at).min(*since + lease.time),
        }
    }

    /// Takes the time and says what to send or give up.
    pub fn tick(&mut self, now: Duration) -> Vec<Output> {
        if now < self.deadline() {
            return Vec::new();
        }
        match self.state.clone() {
            State::Selecting { pause, .. } => {
                self.state = State::Selecting {
                    send_at: now + self.spread(pause),
                    pause: longer(pause),
                };
                vec![Output::Anonymous(self.discover())]
            }
            State::Requesting { left: 0, .. } => {
                self.ask_around(now);
                Vec::new()
            }
            State::Requesting {
                offer, pause, left, ..
            } => {
                let packet = self.request(&offer);
                let send_at = now + self.spread(pause);
                self.state = State::Requesting {
                    offer,
                    send_at,
                    pause: longer(pause),
                    left: left - 1,
                };
                vec![Output::Anonymous(packet)]
            }
            State::Bound { lease, since, .. } => self.keep(now, lease, since),
        }
    }

    /// Takes a packet that arrived at port 68.
    pub fn packet(&mut self, now: Duration, bytes: &[u8]) -> Vec<Output> {
        let Some(reply) = Reply::read(bytes, self.transaction, self.mac) else {
            return Vec::new();
        };
        match (reply.kind(), self.state.clone()) {
            (Some(Kind::Offer), State::Selecting { .. }) => {
                let Some(offer) = lease(reply) else {
                    return Vec::new();
                };
                self.state = State::Requesting {
                    offer,
                    send_at: now,
                    pause: FIRST_PAUSE,
                    left: REQUESTS,
                };
                self.tick(now)
            }
            (Some(Kind::Ack), State::Requesting { offer, .. }) => match lease(reply) {
                Some(lease) if lease.server == offer.server => self.bind(now, lease),
                Some(_) | None => Vec::new(),
            },
            (
                Some(Kind::Ack),
                State::Bound {
                    lease: old, since, ..
                },
            ) if now >= since + old.renew => match lease(reply) {
                Some(lease) if lease.address == old.address => self.bind(now, lease),
                Some(_) | None => Vec::new(),
            },
            (Some(Kind::Nak), State::Requesting { offer, .. })
                if reply.address(wire::SERVER) == Some(offer.server) =>
            {
                self.ask_around(now + FIRST_PAUSE);
                Vec::new()
            }
            (Some(Kind::Nak), State::Bound { lease, since, .. }) if now >= since + lease.renew => {
                self.ask_around(now);
                vec![Output::Lost]
            }
            (_, State::Selecting { .. } | State::Requesting { .. } | State::Bound { .. }) => {
                Vec::new()
            }
        }
    }

    fn keep(&mut self, now: Duration, lease: Lease, since: Duration) -> Vec<Output> {
        if now >= since + lease.time {
            self.ask_around(now);
            return vec![Output::Lost];
        }
        let rebinding = now >= since + lease.rebind;
        let packet = self.renewal(&lease);
        let output = if rebinding {
            Output::Broadcast(packet)
        } else {
            Output::Unicast(lease.server, packet)
        };
        // Half of what is left to the next border, at least a minute (RFC 2131, 4.4.5).
        let border = since + if rebinding { lease.time } else { lease.rebind };
        let wait =
            (border.saturating_sub(now) / 2).max(Duration::from_secs(u64::from(SHORTEST_LEASE)));
        let send_at = (now + wait).min(border.max(now + FIRST_PAUSE));
        self.state = State::Bound {
            lease,
            since,
            send_at,
        };
        vec![output]
    }

    fn bind(&mut self, now: Duration, lease: Lease) -> Vec<Output> {
        self.state = State::Bound {
            send_at: now + lease.renew,
            since: now,
            lease: lease.clone(),
        };
        vec![Output::Use(lease)]
    }

    fn ask_around(&mut self, when: Duration) {
        self.transaction = self
            .transaction
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        self.state = State::Selecting {
            send_at: when,
            pause: FIRST_PAUSE,
        };
    }

    /// `pause` with up to a quarter more, so that machines that start together don't ask together.
    fn spread(&self, pause: Duration) -> Duration {
        pause + pause * (self.transaction >> 24) / 1024
    }

    fn discover(&self) -> Vec<u8> {
        self.start(Kind::Discover, None).finish()
    }

    fn request(&self, offer: &Lease) -> Vec<u8> {
        let mut packet = self.start(Kind::Request, None);
        packet.option(wire::REQUESTED_ADDRESS, &offer.address.octets());
        packet.option(wire::SERVER, &offer.server.octets());
        packet.finish()
    }

    fn renewal(&self, lease: &Lease) -> Vec<u8> {
        self.start(Kind::Request, Some(lease.address)).finish()
    }

    fn start(&self, kind: Kind, own: Option<Ipv4Addr>) -> Packet {
        let largest = u16::try_from(MAX_PACKET).unwrap_or(u16::MAX);
        let mut packet = Packet::new(kind, self.transaction, self.mac, own, largest);
        if let Some(name) = &self.host_name {
            packet.host_name(name);
        }
        packet
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(LONGEST_PAUSE)
}

/// The lease in an offer or acknowledgement; `None` where address, server, mask or time are missing
/// or senseless.
fn lease(reply: Reply<'_>) -> Option<Lease> {
    let address = usable(reply.yours()?)?;
    let server = usable(reply.address(wire::SERVER)?)?;
    let prefix = prefix(reply.address(wire::MASK)?)?;
    let addresses = |code| {
        reply
            .addresses(code)
            .filter_map(usable)
            .take(MOST)
            .collect::<Vec<_>>()
    };
    let time = reply.seconds(wire::LEASE_TIME)?.max(SHORTEST_LEASE);
    // RFC 2131, 4.4.5: T1 = 0.5, T2 = 0.875 of the lease, unless the server says sensible others.
    let rebind = reply
        .seconds(wire::REBINDING)
        .filter(|t2| *t2 < time)
        .unwrap_or(time / 8 * 7);
    let renew = reply
        .seconds(wire::RENEWAL)
        .filter(|t1| *t1 > 0 && *t1 <= rebind)
        .unwrap_or((time / 2).min(rebind));
    let span = |seconds: u32| Duration::from_secs(u64::from(seconds));
    Some(Lease {
        address,
        prefix,
        gateway: reply.addresses(wire::ROUTERS).find_map(usable),
        nameservers: addresses(wire::NAME_SERVERS),
        ntp: addresses(wire::TIME_SERVERS),
        server,
        time: span(time),
        renew: span(renew.max(1)),
        rebind: span(rebind.max(1)),
    })
}

/// An address that one machine can have.
fn usable(address: Ipv4Addr) -> Option<Ipv4Addr> {
    let no = address.is_unspecified()
        || address.is_broadcast()
        || address.is_multicast()
        || address.is_loopback();
    (!no).then_some(address)
}

/// Bits of a mask without gaps, 1 to 32.
fn prefix(mask: Ipv4Addr) -> Option<u8> {
    let bits = u32::from(mask);
    let ones = bits.leading_ones();
    (ones > 0 && bits.count_ones() == ones).then(|| u8::try_from(ones).ok())?
}

#[cfg(test)]
#[path = "dhcp_tests.rs"]
mod tests;
