//! Limits on open connections: how known and unknown callers share them.
//!
//! Before a caller authenticates, a node looks like any unknown client. So no new connection is
//! refused: it replaces the oldest unauthenticated connection of its own network if that network
//! has used up its share, else the oldest of the network that has most
//! ([`config_limits::SlotTable`]). A caller that proves its identity leaves the group of strangers
//! and cannot be displaced by one:
//!
//! - a client certificate of the cluster or a valid token makes a connection *identified*; each
//!   user has a share, and so have all accounts of a namespace, and all users of a host. Node
//!   certificates have their own capacity, with a few slots for each node,
//!   so that no number of tokens keeps a node out. A denied caller (a retired machine, and the
//!   tokens of its pods) counts as a stranger;
//! - an endorsement key of the inventory, shown in a hello, makes it *listed*; each key has a few
//!   slots. Endorsement keys are public, so these slots are counted by key, and a connection that
//!   loses its slot becomes a stranger again and stays open.
//!
//! So strangers behind one address cannot use up the connections of the machines behind the same
//! address.

use crate::answers::Owner;
use config_kube::identity::party;
use config_limits::{
    Capacity, Network, Share, Shares, SlotId, SlotTable, Taker, Width, host, networks,
};
use master_client::UserInfo;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio_util::sync::CancellationToken;

/// Limits, in connections.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Callers that have not authenticated.
    pub strangers: usize,
    /// Of these, per host (an IPv4 address, a /64 of IPv6).
    pub per_host: usize,
    /// Of these, per site (a /56 of IPv6) or block (a /24 of IPv4, a /48 of IPv6).
    pub per_block: usize,
    /// Callers that showed an endorsement key of the inventory.
    pub listed: usize,
    /// Of these, per key: a machine needs one, and a few more after connections broke.
    pub per_key: usize,
    /// Callers whose certificate or token was verified.
    pub identified: usize,
    /// Of these, per user; further ones count as strangers.
    pub per_user: usize,
    /// Of these, of all accounts of a namespace, whose pods may run on every node.
    pub per_namespace: usize,
    /// Nodes that showed their certificate.
    pub nodes: usize,
    /// Of these, per node; further ones count as identified.
    pub per_node: usize,
}

impl Default for ConnectionLimits {
    /// An unauthenticated connection takes about 50 KiB, so all of them take about 100 MiB. Half of
    /// them may come from one address: a rack behind NAT may boot all at once.
    fn default() -> Self {
        Self {
            strangers: 2048,
            per_host: 1024,
            per_block: 1536,
            listed: 1024,
            per_key: 4,
            identified: 8192,
            per_user: 1024,
            per_namespace: 2048,
            nodes: 8192,
            per_node: 16,
        }
    }
}

impl ConnectionLimits {
    /// The sum of all limits.
    pub fn total(&self) -> usize {
        self.strangers + self.listed + self.identified + self.nodes
    }

    /// The same limits scaled down to a process that may hold this many connections.
    #[must_use]
    pub fn within(self, connections: usize) -> Self {
        let total = self.total();
        if connections >= total {
            return self;
        }
        let part = |number: usize| (number.saturating_mul(connections) / total).max(1);
        Self {
            strangers: part(self.strangers),
            per_host: part(self.per_host),
            per_block: part(self.per_block),
            listed: part(self.listed),
            identified: part(self.identified),
            per_user: part(self.per_user),
            per_namespace: part(self.per_namespace),
            nodes: part(self.nodes),
            ..self
        }
    }

    fn groups(&self, from: IpAddr) -> Vec<(Network, usize)> {
        let most = |network: &Network| match network.width() {
            Width::Host => self.per_host,
            Width::Site | Width::Block => self.per_block,
        };
        networks(from)
            .into_iter()
            .map(|network| (network, most(&network)))
            .collect()
    }
}

/// An endorsement key: the SHA-256 of its public part.
type Key = [u8; 32];

#[derive(Debug)]
enum CallerClass {
    Stranger,
    Listed,
    /// Identified; a slot among those of its kind.
    Known {
        _share: Share,
    },
}

#[derive(Debug)]
struct Open {
    from: IpAddr,
    class: CallerClass,
    end: CancellationToken,
}

#[derive(Debug)]
struct Rooms {
    next: SlotId,
    open: HashMap<SlotId, Open>,
    strangers: SlotTable<Network>,
    listed: SlotTable<Key>,
}

/// The open connections.
#[derive(Debug)]
pub(crate) struct Connections {
    limits: ConnectionLimits,
    rooms: Mutex<Rooms>,
    identified: Arc<Shares>,
    nodes: Arc<Shares>,
}

/// One open connection; its slot is freed when it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    connections: Arc<Connections>,
    id: SlotId,
    end: CancellationToken,
    identified: AtomicBool,
    /// Whether its caller proved who it is, even if it has no place among identified ones.
    proven: AtomicBool,
    /// Whose memory its answers take, from its first proof on.
    owner: OnceLock<Owner>,
    /// The name of strangers from the same host.
    host: String,
    from: IpAddr,
}

impl Connections {
    pub(crate) fn new(limits: ConnectionLimits) -> Arc<Self> {
        let rooms = Rooms {
            next: 0,
            open: HashMap::new(),
            strangers: SlotTable::new(limits.strangers),
            listed: SlotTable::new(limits.listed),
        };
        let shares = |total, part| {
            Shares::new(Capacity {
                total,
                part,
                kept: 0,
            })
        };
        Arc::new(Self {
            limits,
            rooms: Mutex::new(rooms),
            identified: shares(limits.identified, limits.per_user),
            nodes: shares(limits.nodes, limits.per_node),
        })
    }

    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a new connection as a stranger's.
    pub(crate) fn enter(self: &Arc<Self>, from: IpAddr) -> Slot {
        let end = CancellationToken::new();
        let mut rooms = self.rooms();
        let id = rooms.next;
        rooms.next += 1;
        rooms.open.insert(
            id,
            Open {
                from,
                class: CallerClass::Stranger,
                end: end.clone(),
            },
        );
        self.admit_stranger(&mut rooms, id, from);
        Slot {
            connections: Arc::clone(self),
            id,
            end,
            identified: AtomicBool::new(false),
            proven: AtomicBool::new(false),
            owner: OnceLock::new(),
            host: host(from),
            from,
        }
    }

    fn admit_stranger(&self, rooms: &mut Rooms, id: SlotId, from: IpAddr) {
        if let Some(out) = rooms.strangers.enter(id, &self.limits.groups(from))
            && let Some(open) = rooms.open.get(&out)
        {
            tracing::debug!(remote = %open.from, "closing the connection of a stranger: a new one needs its slot");
            open.end.cancel();
        }
    }
}

impl Slot {
    /// Cancelled once the connection must be closed.
    pub(crate) fn ended(&self) -> CancellationToken {
        self.end.clone()
    }

    /// Whether the caller's certificate or token was verified and it counts as identified.
    pub(crate) fn is_identified(&self) -> bool {
        self.identified.load(Ordering::Acquire)
    }

    /// Whose memory its answers take; `None` while the caller has proved nothing.
    pub(crate) fn owner(&self) -> Option<&Owner> {
        self.owner.get().filter(|_| self.is_proven())
    }

    /// Names who reads the answers, once.
    pub(crate) fn own(&self, owner: impl FnOnce() -> Owner) {
        self.owner.get_or_init(owner);
    }

    /// The address of the other end.
    pub(crate) fn from(&self) -> IpAddr {
        self.from
    }

    /// The host of the other end, as a name.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Whether the caller's certificate or token was verified, and it is not denied.
    pub(crate) fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Acquire)
    }

    /// Marks progress: among strangers this connection is now the newest.
    pub(crate) fn touch(&self) {
        self.connections.rooms().strangers.touch(self.id);
    }

    /// Counts the caller as this user, whose certificate or token was verified and who is not
    /// denied; `node`: it is a node that showed its certificate. If the user, or all users
    /// together, are at their limit, the connection stays what it was.
    pub(crate) fn identify(&self, user: &UserInfo, node: bool) {
        if !self.is_proven() {
            self.proven.store(true, Ordering::Release);
        }
        if self.is_identified() || self.end.is_cancelled() {
            return;
        }
        let connections = &self.connections;
        let name = party(&user.name);
        let taker = |host| Taker {
            user: name,
            host,
            kept_for: false,
        };
        let most = if name == user.name {
            connections.limits.per_user
        } else {
            connections.limits.per_namespace
        };
        let own = node.then(|| connections.nodes.take(taker(None), 1));
        let identified = &connections.identified;
        let other = || identified.take_up_to(taker(Some(&self.host)), 1, most);
        let Some(share) = own.flatten().or_else(other) else {
            return;
        };
        let mut rooms = connections.rooms();
        rooms.strangers.leave(self.id);
        rooms.listed.leave(self.id);
        if let Some(open) = rooms.open.get_mut(&self.id) {
            open.class = CallerClass::Known { _share: share };
        }
        self.identified.store(true, Ordering::Release);
    }

    /// Counts an identified caller as a stranger again: it is denied now.
    pub(crate) fn forget(&self) {
        self.proven.store(false, Ordering::Release);
        let mut rooms = self.connections.rooms();
        let rooms = &mut *rooms;
        let Some(open) = rooms.open.get_mut(&self.id) else {
            return;
        };
        if !matches!(open.class, CallerClass::Known { .. }) {
            return;
        }
        open.class = CallerClass::Stranger;
        self.identified.store(false, Ordering::Release);
        let from = open.from;
        self.connections.admit_stranger(rooms, self.id, from);
    }

    /// Counts the caller as listed: it showed an endorsement key of the inventory.
    pub(crate) fn list(&self, key: Key) {
        let connections = &self.connections;
        let mut rooms = connections.rooms();
        let rooms = &mut *rooms;
        let Some(open) = rooms.open.get_mut(&self.id) else {
            return;
        };
        if !matches!(open.class, CallerClass::Stranger) || self.end.is_cancelled() {
            return;
        }
        open.class = CallerClass::Listed;
        rooms.strangers.leave(self.id);
        if let Some(out) = rooms
            .listed
            .enter(self.id, &[(key, connections.limits.per_key)])
            && let Some(open) = rooms.open.get_mut(&out)
        {
            open.class = CallerClass::Stranger;
            let from = open.from;
            connections.admit_stranger(rooms, out, from);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut rooms = self.connections.rooms();
        rooms.strangers.leave(self.id);
        rooms.listed.leave(self.id);
        rooms.open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ConnectionLimits = ConnectionLimits {
        strangers: 8,
        per_host: 2,
        per_block: 3,
        listed: 2,
        per_key: 1,
        identified: 3,
        per_user: 2,
        per_namespace: 2,
        nodes: 2,
        per_node: 1,
    };

    fn user(name: &str) -> UserInfo {
        UserInfo::authenticated(name, [""; 0])
    }

    impl Connections {
        /// Connections of strangers, listed and identified callers, nodes aside.
        fn count(&self) -> [usize; 3] {
            let rooms = self.rooms();
            let identified = self.identified.taken();
            [rooms.strangers.len(), rooms.listed.len(), identified]
        }
    }

    fn cut(slots: &[Slot]) -> Vec<bool> {
        slots
            .iter()
            .map(|slot| slot.ended().is_cancelled())
            .collect()
    }

    #[test]
    fn a_stranger_displaces_only_the_oldest_of_its_own_network() {
        let connections = Connections::new(LIMITS);
        let at = |text: &str| connections.enter(text.parse().unwrap());
        let slots = [
            at("192.0.2.1"),
            at("::ffff:192.0.2.1"),
            at("192.0.2.1"),
            at("2001:db8::1"),
        ];
        assert_eq!(cut(&slots), [true, false, false, false]);
        // A /48 has one share for all of its addresses.
        let more = [
            at("2001:db8:0:1::1"),
            at("2001:db8:0:2::1"),
            at("2001:db8:0:300::1"),
        ];
        assert_eq!(cut(&slots), [true, false, false, true]);
        assert_eq!(cut(&more), [false, false, false]);
        drop((slots, more));
        assert_eq!(connections.count(), [0, 0, 0]);
        assert!(connections.rooms().open.is_empty());
    }

    #[test]
    fn strangers_behind_the_same_address_do_not_displace_identified_callers() {
        let connections = Connections::new(LIMITS);
        let nat: IpAddr = "192.0.2.1".parse().unwrap();
        let (node, machine) = (connections.enter(nat), connections.enter(nat));
        node.identify(&user("system:node:n1"), false);
        machine.list([7; 32]);
        let crowd: Vec<Slot> = (0..100).map(|_| connections.enter(nat)).collect();
        assert!(!node.ended().is_cancelled() && !machine.ended().is_cancelled());
        assert_eq!(
            crowd
                .iter()
                .filter(|slot| !slot.ended().is_cancelled())
                .count(),
            LIMITS.per_host
        );
        // The next node connects too, and stays until it has identified itself.
        let next = connections.enter(nat);
        next.identify(&user("system:node:n2"), false);
        drop(crowd);
        assert!(next.is_identified() && !next.ended().is_cancelled());
        assert_eq!(connections.count(), [0, 1, 2]);
    }

    #[test]
    fn connections_beyond_the_share_of_a_user_or_key_count_as_strangers() {
        let connections = Connections::new(LIMITS);
        let at = |last: u8| connections.enter([10, last, 0, 1].into());
        let slots = [at(1), at(2), at(3)];
        for slot in &slots {
            slot.identify(&user("pod"), false);
        }
        assert_eq!(
            slots.each_ref().map(Slot::is_identified),
            [true, true, false]
        );
        let keyed = [at(4), at(5), at(6), at(7)];
        for (slot, key) in keyed.iter().zip([1, 1, 2, 3]) {
            slot.list([key; 32]);
        }
        // The key's older connection, and then the oldest of all, count as strangers again.
        assert_eq!(connections.count(), [3, 2, 2]);
        assert_eq!(cut(&keyed), [false; 4]);
        drop(slots);
        drop(keyed);
        assert_eq!(connections.count(), [0, 0, 0]);
    }

    #[test]
    fn accounts_of_a_namespace_share_and_all_users_of_a_host_leave_half() {
        let limits = ConnectionLimits {
            identified: 8,
            per_namespace: 3,
            ..LIMITS
        };
        let connections = Connections::new(limits);
        let known = |last: u8, name: &str| {
            let slot = connections.enter([192, 0, 2, last].into());
            slot.identify(&user(name), false);
            slot
        };
        let account = |name: &str| format!("system:serviceaccount:{name}");
        let slots = ["a:one", "a:two", "a:three", "a:four", "b:one", "c:one"];
        let slots = slots.map(|name| known(1, &account(name)));
        assert_eq!(
            slots.each_ref().map(Slot::is_identified),
            [true, true, true, false, true, false]
        );
        assert!(known(2, "jane").is_identified());
    }

    #[test]
    fn users_of_a_host_hold_more_connections_together_than_one_of_them() {
        // The connections that a master has of so many open files, and those of 1,010 that stay.
        let stay = |files: usize, users: usize| {
            let limits = ConnectionLimits::default().within((files - 256) / 2);
            let connections = Connections::new(limits);
            let open = |number: usize| {
                let slot = connections.enter([127, 0, 0, 1].into());
                slot.identify(&user(&format!("user-{}", number % users)), false);
                slot
            };
            let slots: Vec<Slot> = (0..1_010).map(open).collect();
            cut(&slots).iter().filter(|cut| !**cut).count()
        };
        assert_eq!(stay(20_000, 1), 909);
        assert_eq!(stay(20_000, 4), 1_010);
        assert_eq!(stay(10_000, 4), 1_010);
    }

    #[test]
    fn tokens_do_not_take_the_slots_of_nodes_and_each_node_has_a_share() {
        let connections = Connections::new(LIMITS);
        let nat: IpAddr = "192.0.2.1".parse().unwrap();
        let known_from = |from: IpAddr, name: &str, node: bool| {
            let slot = connections.enter(from);
            slot.identify(&user(name), node);
            slot
        };
        let known = |name: &str, node: bool| known_from(nat, name, node);
        // Service accounts take all that identified callers may have.
        let pods: IpAddr = "192.0.2.2".parse().unwrap();
        let crowd = [(nat, "a"), (nat, "a"), (pods, "b"), (pods, "b")];
        let crowd = crowd.map(|(from, name)| known_from(from, name, false));
        assert_eq!(
            crowd.each_ref().map(Slot::is_identified),
            [true, true, true, false]
        );
        // A node that opens more than its share takes nothing from another, and further nodes count
        // as strangers.
        let nodes = ["n1", "n1", "n2", "n3"].map(|node| known(node, true));
        assert_eq!(
            nodes.each_ref().map(Slot::is_identified),
            [true, false, true, false]
        );
        let strangers: Vec<Slot> = (0..20).map(|_| connections.enter(nat)).collect();
        assert_eq!(cut(&nodes), [false, true, false, true]);
        drop((crowd, nodes, strangers));
        assert_eq!(connections.nodes.taken(), 0);
        assert_eq!(connections.count(), [0, 0, 0]);
    }

    #[test]
    fn a_denied_caller_counts_as_a_stranger_again() {
        let connections = Connections::new(LIMITS);
        let nat: IpAddr = "192.0.2.1".parse().unwrap();
        let [pod, node] = [("pod", false), ("n", true)].map(|(name, node)| {
            let slot = connections.enter(nat);
            slot.identify(&user(name), node);
            slot
        });
        for slot in [&pod, &node] {
            slot.forget();
            slot.forget();
            assert!(!slot.is_identified());
        }
        assert_eq!(
            (connections.count(), connections.nodes.taken()),
            ([2, 0, 0], 0)
        );
        let _stranger = connections.enter(nat);
        assert!(pod.ended().is_cancelled() && !node.ended().is_cancelled());
        // A valid caller on the same connection makes it identified again.
        node.identify(&user("jane"), false);
        assert!(node.is_identified());
    }

    #[test]
    fn a_process_with_few_descriptors_has_smaller_limits() {
        let limits = ConnectionLimits::default();
        assert_eq!(limits.within(1 << 20).total(), limits.total());
        let small = limits.within(1000);
        assert!(
            small.total() <= 1000
                && small.identified > small.strangers
                && small.per_host < small.strangers
        );
    }
}
