//! Each pod's share of the machine's connection table (conntrack).
//!
//! Every flow through the machine has an entry there, and when the table is full, all new flows are
//! dropped: those of other pods and of the machine itself, too. So the size of the table is set by
//! the machine's memory, and each address of a pod has a share:
//!
//! - connections at once: all pods that the machine may have get half of the table together;
//! - new ones in a second: those that are closed are no longer counted as connections and stay for
//!   [`CLOSED`] seconds. A pod that opens and closes as fast as it may has a thirty-fourth of the
//!   table for these.
//!
//! Packets beyond a share are counted and dropped. DNS queries to the node's own name server need
//! no entry ([`crate::rules`]).
//!
//! These rules have an nftables table of their own, which is never removed, so that the counts of
//! pods' connections survive other changes and a restart of the agent.

use crate::error::Error;
use crate::rules::LINKS;
use agent_sys::namespace;
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::{ChainKind, Change, Hook, KNOWN, NEW, Share, Step, Verdict};
use config_errors::chain;
use std::num::ParseIntError;
use std::path::Path;
use std::{fs, io};

/// The table.
const TABLE: &str = "pratique-shares";
const CHAIN: &str = "new-of-pods";
/// The set that counts open connections by address, and the one that limits new ones.
const OPEN: &str = "open";
const OPENED: &str = "opened";
/// Most addresses in a set: more than a machine may have pods.
const MOST_ADDRESSES: u32 = 16_384;
/// Milliseconds after which an address that opens nothing leaves the set: longer than its share
/// takes to be whole again.
const KEPT: u64 = 60_000;
/// After connections are looked up, before destinations are changed.
const AFTER_LOOK_UP: i32 = -150;

/// The kernel setting with the table's size.
const SIZE: &str = "net/netfilter/nf_conntrack_max";
/// Bytes of the machine's memory for each entry of the table. An entry takes about 400, with what
/// its share costs, so that a full table takes a twentieth of the memory of
/// all but the smallest machines.
const MEMORY_OF_ENTRY: u64 = 8192;
/// The least size, twice upstream's (`conntrack.min` of kube-proxy): so a pod of a small machine
/// with both families can open hundreds of connections while closed ones are still in the table.
/// And the greatest: beyond it, look-ups take long.
const SIZES: (u64, u64) = (262_144, 2_097_152);
/// All pods' open connections together may take the table's size divided by this.
const LIVE: u32 = 2;
/// In a second, one address may open the table's size divided by this; and the seconds' worth that
/// it may open at once.
const IN_A_SECOND: u32 = 1024;
const BURST: u32 = 2;
/// Seconds for which the kernel keeps the entry of a closed connection. Its default of 120 only
/// fills the table.
const CLOSED: &str = "30";
/// Other times, in seconds: upstream's (kube-proxy's `tcpCloseWaitTimeout` and
/// `tcpEstablishedTimeout`).
const TIMES: [(&str, &str); 3] = [
    ("nf_conntrack_tcp_timeout_close_wait", "3600"),
    ("nf_conntrack_tcp_timeout_established", "86400"),
    ("nf_conntrack_tcp_timeout_time_wait", CLOSED),
];

/// The share of each address of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Connections at once.
    pub open: u32,
    /// New ones in a second.
    pub opened: u32,
}

impl Shares {
    /// The shares in a table of `size` entries, on a machine with at most `pods` pods, each with
    /// one address in each of `families` address families.
    pub fn of(size: u32, pods: u32, families: u32) -> Self {
        let addresses = pods.saturating_mul(families).max(1);
        Self {
            open: (size / LIVE / addresses).max(1),
            opened: (size / IN_A_SECOND).max(1),
        }
    }
}

/// The table's size, in entries, for a machine with `memory` bytes.
pub fn size_for(memory: u64) -> u64 {
    let (least, most) = SIZES;
    (memory / MEMORY_OF_ENTRY).clamp(least, most)
}

/// Sets size and timeouts of the kernel's connection table; returns its size. A larger size that
/// the host has set is kept. The table exists once a rule matches the state of connections.
///
/// # Errors
/// If there is no table, or the kernel refuses a setting of this network namespace.
pub(crate) fn set_table() -> Result<u32, Error> {
    for (name, value) in TIMES {
        namespace::set(&format!("net/netfilter/{name}"), value)?;
    }
    let info = "/proc/meminfo";
    let info = fs::read_to_string(info).map_err(Error::file("read", info))?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes = total.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
    let wanted = size_for(kilobytes.unwrap_or(0_u64).saturating_mul(1024));
    let size = size()?;
    // 0 means no limit.
    if size != 0 && u64::from(size) >= wanted {
        return Ok(size);
    }
    // Older kernels let only the first network namespace set it, for the whole system.
    if let Err(error) = namespace::set(SIZE, &wanted.to_string()) {
        tracing::warn!(
            error = chain(&error),
            "cannot set the size of the kernel's connection table"
        );
    }
    let set = self::size()?;
    Ok(if set == 0 {
        u32::try_from(wanted).unwrap_or(u32::MAX)
    } else {
        set
    })
}

/// The size of the kernel's table.
fn size() -> Result<u32, Error> {
    let path = Path::new("/proc/sys").join(SIZE);
    let text = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
    let read = text.trim().parse();
    read.map_err(|source| {
        Error::file("understand", path)(io::Error::other::<ParseIntError>(source))
    })
}

/// The table of a family, in place of one that this or another agent made. Open connections keep
/// counting, and addresses in the sets keep their shares until they leave the sets.
pub fn table(family: Family, shares: Shares) -> Vec<Change> {
    let meter = |name, forgets| Change::AddMeter {
        table: TABLE,
        name,
        length: family.bytes(),
        most: MOST_ADDRESSES,
        forgets,
    };
    let open = Share::Connections(shares.open);
    let opened = Share::PerSecond {
        packets: shares.opened,
        burst: shares.opened.saturating_mul(BURST),
        kept: KEPT,
    };
    vec![
        Change::AddTable(TABLE),
        Change::ClearTable(TABLE),
        meter(OPEN, false),
        meter(OPENED, true),
        Change::AddChain {
            table: TABLE,
            name: CHAIN,
            kind: ChainKind::Filter,
            hook: Hook::Prerouting,
            priority: AFTER_LOOK_UP,
        },
        beyond(family, OPEN, open),
        beyond(family, OPENED, opened),
    ]
}

/// The rule that drops the first packet of a flow which exceeds a pod's share. Unanswered datagrams
/// count as one flow, although the kernel calls each of them new.
fn beyond(family: Family, set: &'static str, share: Share) -> Change {
    let bits = |load: Step, bits: u32| {
        let mask = bits.to_ne_bytes().to_vec();
        [load, Step::Mask { of: 0, mask }]
    };
    let [state, new] = bits(Step::LoadState(0), NEW);
    let [status, known] = bits(Step::LoadStatus(0), KNOWN);
    // The state comes first: nearly all packets end there.
    let steps = vec![
        state,
        new,
        Step::IsNot(0, vec![0; 4]),
        status,
        known,
        Step::Is(0, vec![0; 4]),
        Step::LoadInName(0),
        Step::Is(0, LINKS.as_bytes().to_vec()),
        Step::LoadNetwork {
            offset: family.source_offset(),
            length: family.bytes(),
            to: 0,
        },
        Step::Beyond { key: 0, set, share },
        Step::Count,
        Step::Verdict(Verdict::Drop),
    ];
    Change::AddRule {
        table: TABLE,
        chain: CHAIN.into(),
        steps,
    }
}
