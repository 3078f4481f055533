//! A sandbox: a pod's requirements, the steps in which it is made, its record, and names that are
//! derived from its uid.

use agent_sys::namespace::Kind;
use agent_sys::netlink::links::Mac;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::net::IpAddr;
use std::path::PathBuf;

use crate::rules::LINKS;

/// A pod's requirements on its sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxSpec {
    /// The pod's UID, safe as a part of a path.
    pub uid: String,
    /// A network namespace of its own.
    pub network: bool,
    /// An IPC namespace of its own, with memory for `/dev/shm`.
    pub ipc: bool,
    /// A user namespace of its own, which owns its other namespaces.
    #[serde(default)]
    pub users: bool,
    /// Its own host name; a pod on the machine's network has the machine's.
    pub hostname: Option<String>,
    /// Kernel settings of its namespaces: paths below `/proc/sys`, and values.
    pub settings: Vec<(String, String)>,
}

impl SandboxSpec {
    /// The kinds of its own namespaces.
    pub fn kinds(&self) -> Vec<Kind> {
        let wants = |kind: &Kind| match kind {
            Kind::Network => self.network,
            Kind::Ipc => self.ipc,
            Kind::Uts => self.hostname.is_some(),
            Kind::User => self.users,
        };
        Kind::ALL.into_iter().filter(wants).collect()
    }
}

/// A complete sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sandbox {
    /// The pod's requirements.
    pub wanted: SandboxSpec,
    /// Its addresses; none on the machine's network.
    pub addresses: Vec<IpAddr>,
    /// The first id of its range of user and group ids on the machine
    /// ([`agent_sys::namespace::IDS`] of them).
    #[serde(default)]
    pub first_id: Option<u32>,
    /// The folder that holds it.
    #[serde(skip)]
    pub(crate) folder: PathBuf,
}

impl Sandbox {
    /// The file by which a namespace of its own is held.
    pub fn held(&self, kind: Kind) -> Option<PathBuf> {
        let own = self.wanted.kinds().contains(&kind);
        own.then(|| self.folder.join(kind.name()))
    }

    /// The folder in memory that its containers have as `/dev/shm`.
    pub fn shm(&self) -> Option<PathBuf> {
        self.wanted.ipc.then(|| self.folder.join(SHM))
    }
}

/// Names in a sandbox's folder beside those of its namespaces.
pub(crate) const SHM: &str = "shm";
pub(crate) const RECORD: &str = "record.json";
pub(crate) const NEW_RECORD: &str = "record.new";

/// The steps in which a sandbox is made. If the agent ends after any of them, its next start finds
/// all that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Its folder.
    Folder,
    /// Its addresses, recorded in the ledger.
    Address,
    /// Its range of ids, recorded in the ledger.
    Ids,
    /// Its namespaces, set up and held.
    Namespaces,
    /// Its memory for `/dev/shm`.
    Memory,
    /// The nftables entries of its veth pair and addresses.
    Rules,
    /// Its veth pair.
    VethPair,
    /// The node's end of the veth pair.
    NearEnd,
    /// The pod's end of the veth pair.
    FarEnd,
    /// Its record: the sandbox is complete.
    Record,
}

impl Step {
    /// All, in order.
    pub const ALL: [Self; 10] = [
        Self::Folder,
        Self::Address,
        Self::Ids,
        Self::Namespaces,
        Self::Memory,
        Self::Rules,
        Self::VethPair,
        Self::NearEnd,
        Self::FarEnd,
        Self::Record,
    ];

    /// Whether a sandbox without a network namespace of its own skips it.
    pub(crate) fn is_of_network(self) -> bool {
        match self {
            Self::Address | Self::Rules | Self::VethPair | Self::NearEnd | Self::FarEnd => true,
            Self::Folder | Self::Ids | Self::Namespaces | Self::Memory | Self::Record => false,
        }
    }
}

/// The name of the node's end of a pod's veth pair. It is derived from the uid, so that a link that
/// a crash left is found.
pub fn link_name(uid: &str) -> String {
    let [first, ..] = halves(uid);
    let digits = format!("{first:016x}");
    // A name has 15 bytes (`IFNAMSIZ`, with a zero).
    let part = digits.get(..15 - LINKS.len()).unwrap_or_default();
    format!("{LINKS}{part}")
}

/// Ethernet addresses of a veth pair's ends, the node's first: locally administered, unicast (IEEE
/// 802).
pub(crate) fn macs(uid: &str) -> (Mac, Mac) {
    let [_, second] = halves(uid);
    let [own @ .., last] = second.to_be_bytes();
    let mac = |last: u8| {
        let mut mac = [0x02, 0, 0, 0, 0, last];
        for (place, byte) in mac.iter_mut().skip(1).zip(own.iter().take(4)) {
            *place = *byte;
        }
        mac
    };
    (mac(last & !1), mac(last | 1))
}

/// Two numbers that differ by uid.
fn halves(uid: &str) -> [u64; 2] {
    let digest: [u8; 32] = Sha256::digest(uid.as_bytes()).into();
    let number = |at: usize| {
        let bytes = digest
            .get(at..)
            .and_then(|rest| rest.first_chunk().copied());
        u64::from_be_bytes(bytes.unwrap_or_default())
    };
    [number(0), number(8)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_s_name_fits_the_kernel_and_differs_by_pod() {
        let name = link_name("0b2ad3a4-5a6b-4c5d-8e9f-000000000001");
        assert_eq!(name.len(), 15);
        assert!(name.starts_with(LINKS));
        assert_ne!(name, link_name("0b2ad3a4-5a6b-4c5d-8e9f-000000000002"));
        let (near, far) = macs("a");
        assert_ne!(near, far);
        assert_eq!(
            (near[0] & 3, far[0] & 3),
            (2, 2),
            "local, and of one station"
        );
    }
}
