//! Simulates two nodes with their kernels, clocks, agents and watches: packets arrive whatever
//! happens to these.

use super::super::plan::{Node, members};
use super::plan as planned;
use super::*;
use agent_sys::netlink::wireguard::Peer as KernelPeer;
use config_model::format::Cidr;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv6Addr};

const PERIOD: u64 = 900;
/// Seconds between two plans of an agent.
const TICK: u64 = 5;
/// Four epochs.
const TICKS: u64 = 4 * PERIOD / TICK;
/// The true time at the start, in Unix seconds.
const BEGIN: u64 = 1_790_000_100;
/// `REJECT_AFTER_TIME`.
const ENDS: u64 = 180;
/// Age in seconds at which the kernel makes a new session by itself, without the agent's packets.
const BY_ITSELF: u64 = 165;

/// A session of a link: both ends' keys, and when it was agreed.
#[derive(Debug, Clone, Copy)]
struct Session {
    keys: [Key; 2],
    at: u64,
}

/// A node.
#[derive(Debug, Default)]
struct Sim {
    /// Seconds by which its clock is ahead.
    skew: i64,
    keys: [Key; 2],
    births: [Birth; 2],
    /// The other node's key on each link, and when the kernel last agreed on a session, by this
    /// node's clock.
    peers: [Option<(Key, u64)>; 2],
    /// Where packets for the other node's ranges go.
    routes: [Option<Slot>; 2],
    memory: Memory,
    /// What it published, and when.
    published: Vec<(u64, [Key; 2])>,
    /// How many of the other node's publications it has read.
    read: usize,
    /// When the API will have its new keys, if they are not published yet.
    unpublished: Option<u64>,
    /// Whether a packet of it has reached the other node: from then on all must.
    reached: bool,
    renewed: [u32; 2],
}

/// What happens to the nodes.
#[derive(Debug, Clone, Default)]
struct Events {
    skew: i64,
    /// Seconds after which the other node's publications are seen; in turn, each for a fifth of the
    /// time.
    lags: [[u64; 5]; 2],
    /// Seconds after the middle of an epoch at which each renews its key.
    delays: [u64; 2],
    /// Seconds until the API has a publication.
    late: u64,
    /// When agents are down: the node, the first tick, and the number of ticks.
    down: Vec<(usize, u64, u64)>,
}

#[derive(Debug)]
struct World {
    now: u64,
    nodes: [Sim; 2],
    sessions: [Option<Session>; 2],
    events: Events,
    made: u64,
}

fn name(node: usize) -> String {
    format!("n{node}")
}

/// A node's ranges, one of each family.
fn ranges(node: usize) -> [Range; 2] {
    let number = u8::try_from(node).unwrap();
    let v6 = Ipv6Addr::new(0xfd00, 0, 0, number.into(), 0, 0, 0, 0);
    let range = |address: IpAddr, prefix| Range { address, prefix };
    [range([10, 1, number, 0].into(), 24), range(v6.into(), 64)]
}

impl World {
    fn new(events: Events) -> Self {
        let mut world = Self {
            now: BEGIN,
            nodes: [Sim::default(), Sim::default()],
            sessions: [None; 2],
            events,
            made: 0,
        };
        world.nodes[1].skew = world.events.skew;
        for node in 0..2 {
            let at = world.clock(node);
            let keys = [world.key(), world.key()];
            let own = &mut world.nodes[node];
            own.keys = keys;
            own.births = [Birth { at, first: true }; 2];
            own.published.push((world.now, keys));
            own.read = 1;
        }
        world
    }

    fn key(&mut self) -> Key {
        self.made += 1;
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.made.to_be_bytes());
        key
    }

    fn clock(&self, node: usize) -> u64 {
        self.now.checked_add_signed(self.nodes[node].skew).unwrap()
    }

    fn tick(&self) -> u64 {
        (self.now - BEGIN) / TICK
    }

    fn is_up(&self, node: usize) -> bool {
        self.was_up(node, self.tick())
    }

    fn was_up(&self, node: usize, tick: u64) -> bool {
        let mut down = self.events.down.iter();
        !down.any(|(of, from, long)| *of == node && (*from..from + long).contains(&tick))
    }

    fn is_back(&self, node: usize) -> bool {
        let tick = self.tick();
        self.was_up(node, tick) && !self.was_up(node, tick.saturating_sub(1))
    }

    /// Both ends of a link have each other's key.
    fn is_mutual(&self, slot: Slot) -> bool {
        let [a, b] = &self.nodes;
        let holds = |one: &Sim, other: &Sim| {
            let peer = slot.of(&one.peers).map(|(key, _)| key);
            peer == Some(*slot.of(&other.keys))
        };
        holds(a, b) && holds(b, a)
    }

    fn sends(&self, node: usize, slot: Slot, session: &Session) -> bool {
        let (own, other) = (&self.nodes[node], 1 - node);
        session.keys[node] == *slot.of(&own.keys)
            && slot.of(&own.peers).map(|(key, _)| key) == Some(session.keys[other])
            && self.now - session.at < ENDS
    }

    fn takes(&self, node: usize, slot: Slot, session: &Session) -> bool {
        let peer = slot.of(&self.nodes[node].peers).map(|(key, _)| key);
        peer == Some(session.keys[1 - node]) && self.now - session.at < ENDS
    }

    fn agree(&mut self, slot: Slot) {
        let keys = [0, 1].map(|node: usize| *slot.of(&self.nodes[node].keys));
        *slot.of_mut(&mut self.sessions) = Some(Session { keys, at: self.now });
        for node in 0..2 {
            let now = self.clock(node);
            if let Some((_, at)) = slot.of_mut(&mut self.nodes[node].peers) {
                *at = now;
            }
        }
    }

    /// Makes new sessions as the kernels do by themselves.
    fn agree_anew(&mut self) {
        let woken = self.is_up(0) && self.is_up(1);
        let old = if woken { AGREED_ANEW } else { BY_ITSELF };
        for slot in Slot::ALL {
            let session = *slot.of(&self.sessions);
            let stands = session.is_some_and(|session| {
                let both = (0..2).all(|node| self.sends(node, slot, &session));
                both && self.now - session.at < old
            });
            if !stands && self.is_mutual(slot) {
                self.agree(slot);
            }
            // The packet that confirms a session of the key before comes late.
            for node in 0..2 {
                let (birth, now) = (*slot.of(&self.nodes[node].births), self.clock(node));
                let peer = slot.of_mut(&mut self.nodes[node].peers).as_mut();
                let peer = peer.filter(|(_, at)| *at > 0);
                if let Some((_, at)) = peer
                    && !birth.first
                    && now - birth.at < DOUBT - TICK
                {
                    *at = now;
                }
            }
        }
    }

    /// A packet of a node for each range of the other: whether both arrive.
    fn send(&mut self, node: usize) -> bool {
        let routes = self.nodes[node].routes;
        let ways = routes.map(|slot| slot.is_some_and(|slot| self.send_by(node, slot)));
        ways == [true; 2]
    }

    fn send_by(&mut self, node: usize, slot: Slot) -> bool {
        let session = *slot.of(&self.sessions);
        let sends = session.is_some_and(|session| self.sends(node, slot, &session));
        if !sends && self.is_mutual(slot) {
            self.agree(slot);
            return true;
        }
        sends && session.is_some_and(|session| self.takes(1 - node, slot, &session))
    }

    fn publish(&mut self, node: usize) {
        let now = self.now;
        let own = &mut self.nodes[node];
        if own.unpublished.is_some_and(|at| at <= now) {
            own.published.push((now, own.keys));
            own.unpublished = None;
        }
    }

    /// The other node's keys, as this node's watch has reported them so far.
    fn heard(&mut self, node: usize) -> [Key; 2] {
        let part = usize::try_from(self.tick() * 5 / TICKS).unwrap().min(4);
        let until = self.now - self.events.lags[node][part].min(self.now - BEGIN);
        let other = &self.nodes[1 - node].published;
        let observed = other.iter().filter(|(at, _)| *at <= until).count();
        let read = observed.max(self.nodes[node].read);
        let keys = other[read - 1].1;
        self.nodes[node].read = read;
        keys
    }

    fn plan(&mut self, node: usize) -> Plan {
        let other = 1 - node;
        let heard = self.heard(node);
        let clock = Clock {
            now: self.clock(node),
            period: Some(PERIOD),
            delay: self.events.delays[node],
        };
        let of = |node: usize, keys: [Key; 2]| Node {
            name: name(node),
            addresses: vec![IpAddr::from([192, 0, 2, u8::try_from(node).unwrap() + 1])],
            ranges: ranges(node)
                .map(|Range { address, prefix }| Cidr { address, prefix })
                .to_vec(),
            keys: keys.map(Some),
        };
        let own = &mut self.nodes[node];
        let all = [of(node, own.keys), of(other, heard)];
        let link = |slot: Slot| {
            let peer = slot.of(&own.peers).map(|(key, handshake)| {
                let ranges = ranges(other).to_vec();
                (key, KernelPeer { ranges, handshake })
            });
            let tunnel = Tunnel {
                key: Some(*slot.of(&own.keys)),
                port: 0,
                peers: peer.into_iter().collect(),
            };
            let birth = *slot.of(&own.births);
            Link { birth, tunnel }
        };
        let seen = Seen {
            links: Slot::ALL.map(link),
            routes: std::iter::zip(ranges(other), own.routes)
                .filter_map(|(range, slot)| Some((range, slot?)))
                .collect(),
        };
        let members = members(&name(node), &all);
        planned(&members, &seen, clock, &mut own.memory)
    }

    /// An agent reads the kernel's state, plans, and applies the plan.
    fn look(&mut self, node: usize) {
        let plan = self.plan(node);
        let ends = !self.was_up(node, self.tick() + 1);
        let (new, now, true_now) = (self.key(), self.clock(node), self.now);
        let late = self.events.late;
        let own = &mut self.nodes[node];
        for slot in Slot::ALL {
            let planned = slot.of(&plan.peers).keys().next().copied();
            let peer = slot.of_mut(&mut own.peers);
            if peer.map(|(key, _)| key) != planned {
                *peer = planned.map(|key| (key, 0));
            }
        }
        let before = own.routes;
        // An agent that is killed now has moved only one of the two routes.
        let moved = if ends { 1 } else { 2 };
        let planned = ranges(1 - node).map(|range| plan.routes.get(&range).copied());
        for (route, planned) in own.routes.iter_mut().zip(planned).take(moved) {
            *route = planned;
        }
        if ends {
            return;
        }
        if let Renewal::Due(slot) = plan.renewal {
            assert!(!before.contains(&Some(slot)), "packets go by it");
            *slot.of_mut(&mut own.keys) = new;
            *slot.of_mut(&mut own.births) = Birth {
                at: now,
                first: false,
            };
            *slot.of_mut(&mut own.renewed) += 1;
            own.unpublished = Some(true_now + late);
        }
        if plan.moving {
            // The routes have moved away from the link; now its peer may get another key.
            self.look(node);
        }
    }

    /// Runs for a time; the error names the first lost packet.
    fn run(&mut self, ticks: u64) -> Result<(), String> {
        for _ in 0..ticks {
            for node in 0..2 {
                self.publish(node);
                if self.is_back(node) {
                    // A new agent reads the kernel's state and lists the nodes.
                    let read = self.nodes[1 - node].published.len();
                    self.nodes[node].memory = Memory::default();
                    self.nodes[node].read = read;
                }
                if self.is_up(node) {
                    self.look(node);
                }
                self.arrive()?;
            }
            self.agree_anew();
            self.arrive()?;
            self.now += TICK;
            self.arrive()?;
        }
        Ok(())
    }

    fn arrive(&mut self) -> Result<(), String> {
        for node in 0..2 {
            let arrives = self.send(node);
            if !arrives && self.nodes[node].reached {
                return Err(format!(
                    "a packet of node {node} is lost, {} s after the begin: {self:#?}",
                    self.now - BEGIN
                ));
            }
            self.nodes[node].reached |= arrives;
        }
        Ok(())
    }
}

fn any_down(long: u64) -> impl Strategy<Value = Vec<(usize, u64, u64)>> {
    proptest::collection::vec((0_usize..2, 1..TICKS, 1..=long), 0..6)
}

fn any_lags(most: u64) -> impl Strategy<Value = [[u64; 5]; 2]> {
    proptest::array::uniform2(proptest::array::uniform5(0..=most))
}

fn any_delays() -> impl Strategy<Value = [u64; 2]> {
    proptest::array::uniform2(0..=PERIOD / 4)
}

proptest! {
    #[test]
    fn no_packet_is_lost_by_a_renewal_wherever_the_clocks_are(
        skew in -(PERIOD.cast_signed())..PERIOD.cast_signed(),
        lags in any_lags(10),
        delays in any_delays(),
        late in 0_u64..=5,
        down in any_down(2),
    ) {
        let mut world = World::new(Events { skew, lags, delays, late, down });
        prop_assert_eq!(world.run(TICKS), Ok(()));
    }

    #[test]
    fn no_packet_is_lost_by_a_renewal_however_late_it_is_heard_of(
        skew in -(PERIOD.cast_signed() / 2 - 240)..=PERIOD.cast_signed() / 2 - 240,
        lags in any_lags(4 * PERIOD),
        delays in any_delays(),
        late in 0..=2 * PERIOD,
        down in any_down(4),
    ) {
        let mut world = World::new(Events { skew, lags, delays, late, down });
        prop_assert_eq!(world.run(TICKS), Ok(()));
    }
}

#[test]
fn every_key_is_renewed_and_packets_change_the_link_with_each_epoch() {
    let mut world = World::new(Events::default());
    let mut routes = Vec::new();
    for _ in 0..8 {
        world.run(PERIOD / TICK).unwrap();
        let both = world.nodes.each_ref().map(|node| node.routes);
        assert!(both.iter().all(|routes| routes[0] == routes[1]));
        routes.push(both.map(|routes| routes[0].unwrap()));
    }
    for (before, after) in routes.iter().zip(&routes[1..]) {
        assert_eq!(before[0], before[1]);
        assert_eq!(before[0], after[0].other());
    }
    for node in &world.nodes {
        assert!(node.renewed.iter().all(|count| (3..=4).contains(count)));
    }
}

const NOW: u64 = BEGIN - BEGIN % PERIOD + PERIOD / 2 + 1;

/// Another node by its number, with a key for each link.
fn other(number: u16, keys: [bool; 2]) -> Node {
    let [high, low] = number.to_be_bytes();
    let key = |slot: u8| {
        let mut key = [slot + 1; 32];
        key[..2].copy_from_slice(&[high, low]);
        key
    };
    Node {
        name: format!("n{number}"),
        addresses: vec![IpAddr::from([192, 0, high, low])],
        ranges: vec![format!("10.{}.{low}.0/24", high + 1).parse().unwrap()],
        keys: [keys[0].then(|| key(0)), keys[1].then(|| key(1))],
    }
}

/// A kernel that is as planned, with sessions of these ages.
fn made(plan: &Plan, ages: [u64; 2]) -> Seen {
    let link = |slot: Slot| {
        let peer = |(key, peer): (&Key, &Peer)| {
            let ranges = peer.ranges.clone();
            let handshake = NOW - slot.of(&ages);
            (*key, KernelPeer { ranges, handshake })
        };
        let peers = slot.of(&plan.peers).iter().map(peer).collect();
        let birth = Birth {
            at: NOW - 2 * PERIOD,
            first: true,
        };
        let tunnel = Tunnel {
            peers,
            ..Tunnel::default()
        };
        Link { birth, tunnel }
    };
    Seen {
        links: Slot::ALL.map(link),
        routes: plan.routes.clone(),
    }
}

fn at(now: u64) -> Clock {
    Clock {
        now,
        period: Some(PERIOD),
        delay: 0,
    }
}

/// What is planned, again and again until the kernel is as planned.
fn settled(nodes: &[Node], ages: [u64; 2]) -> (Seen, Plan) {
    let members = members("own", nodes);
    let mut seen = Seen::default();
    let mut memory = Memory::default();
    for _ in 0..3 {
        seen = made(&planned(&members, &seen, at(NOW), &mut memory), ages);
    }
    let plan = planned(&members, &seen, at(NOW), &mut memory);
    (seen, plan)
}

#[test]
fn packets_go_by_the_preferred_link_that_is_proven_and_stay_where_none_is() {
    let nodes = [other(1, [true, true])];
    let slot = |ages| *settled(&nodes, ages).1.routes.values().next().unwrap();
    let preferred = at(NOW).preferred();
    let ages = |of_preferred, of_other| match preferred {
        Slot::First => [of_preferred, of_other],
        Slot::Second => [of_other, of_preferred],
    };
    assert_eq!(slot(ages(10, 10)), preferred);
    assert_eq!(slot(ages(FRESH, 10)), preferred.other(), "it is too old");
    assert_eq!(slot(ages(10, FRESH)), preferred);
    // Neither is proven: wherever they go, there they stay.
    let members = members("own", &nodes);
    for stays in Slot::ALL {
        let (mut seen, _) = settled(&nodes, [FRESH, FRESH]);
        for route in seen.routes.values_mut() {
            *route = stays;
        }
        let plan = planned(&members, &seen, at(NOW), &mut Memory::default());
        assert_eq!(plan.routes.values().next(), Some(&stays));
    }
}

#[test]
fn a_node_of_an_older_version_is_reached_by_the_first_link_and_its_key_there_stays() {
    let nodes = [other(1, [true, false])];
    let (seen, plan) = settled(&nodes, [10, 10]);
    assert_eq!(plan.routes.values().next(), Some(&Slot::First));
    assert_eq!((plan.peers[0].len(), plan.peers[1].len()), (1, 0));
    let renewals = |preferred: Slot| {
        let members = members("own", &nodes);
        let mut memory = Memory::default();
        let now = (NOW..).step_by(usize::try_from(PERIOD).unwrap());
        let now = now.take(2).find(|now| at(*now).preferred() == preferred);
        let now = now.unwrap();
        let mut last = Renewal::NotDue;
        for now in now..=now + SETTLED {
            let mut seen = seen.clone();
            for peer in seen.links[0].tunnel.peers.values_mut() {
                peer.handshake = now;
            }
            last = planned(&members, &seen, at(now), &mut memory).renewal;
        }
        last
    };
    assert_eq!(renewals(Slot::First), Renewal::Due(Slot::Second));
    assert_eq!(renewals(Slot::Second), Renewal::Waits("n1".to_owned()));
}

#[test]
fn a_node_that_is_not_trusted_leaves_both_links_in_one_plan() {
    let (seen, plan) = settled(&[other(1, [true, true])], [10, 10]);
    assert!(plan.peers.iter().all(|peers| peers.len() == 1));
    let gone = members("own", &[other(1, [false, false])]);
    let plan = planned(&gone, &seen, at(NOW), &mut Memory::default());
    assert!(plan.peers.iter().all(BTreeMap::is_empty));
    assert_eq!(plan.routes.len(), 1, "its packets end in the tunnel");
}

#[test]
fn packets_move_to_the_other_link_before_their_peer_has_another_key() {
    let preferred = at(NOW).preferred();
    let mut nodes = [other(1, [true, true])];
    let (seen, _) = settled(&nodes, [10, 10]);
    let before = preferred.of(&nodes[0].keys).unwrap();
    *preferred.of_mut(&mut nodes[0].keys) = Some([9; 32]);
    let members = members("own", &nodes);
    let plan = planned(&members, &seen, at(NOW), &mut Memory::default());
    assert!(plan.moving && preferred.of(&plan.peers).contains_key(&before));
    assert_eq!(plan.routes.values().next(), Some(&preferred.other()));
    let seen = made(&plan, [10, 10]);
    let plan = planned(&members, &seen, at(NOW), &mut Memory::default());
    assert!(!plan.moving && preferred.of(&plan.peers).contains_key(&[9; 32]));
    // If the other link is not proven, the peer gets its new key at once.
    let ages = [FRESH, FRESH];
    let (seen, _) = settled(&[other(1, [true, true])], ages);
    let plan = planned(&members, &seen, at(NOW), &mut Memory::default());
    assert!(!plan.moving && preferred.of(&plan.peers).contains_key(&[9; 32]));
}

#[test]
fn silent_peers_hold_no_renewal_up_and_without_a_period_there_is_none() {
    let nodes: Vec<Node> = (1..4).map(|number| other(number, [true, true])).collect();
    let (seen, plan) = settled(&nodes, [DEAD, DEAD]);
    assert_eq!(plan.renewal, Renewal::Due(at(NOW).preferred().other()));
    let members = members("own", &nodes);
    let kept = Clock {
        now: NOW,
        period: None,
        delay: 0,
    };
    let plan = planned(&members, &seen, kept, &mut Memory::default());
    assert_eq!(plan.renewal, Renewal::NotDue);
    // A peer with a session only on the other link delays it.
    let preferred = at(NOW).preferred();
    let mut ages = [10, 10];
    *preferred.of_mut(&mut ages) = DEAD;
    let (mut seen, plan) = settled(&nodes[..1], ages);
    assert_eq!(plan.renewal, Renewal::Waits("n1".to_owned()));
    // But not for ever.
    let members = super::super::plan::members("own", &nodes[..1]);
    let mut renewal = |age| {
        let born = NOW - age;
        seen.links.iter_mut().for_each(|link| link.birth.at = born);
        planned(&members, &seen, at(NOW), &mut Memory::default()).renewal
    };
    let waits = Renewal::Waits("n1".to_owned());
    assert_eq!(renewal(MAX_PERIODS * PERIOD - 1), waits);
    assert_eq!(
        renewal(MAX_PERIODS * PERIOD),
        Renewal::Due(preferred.other())
    );
}

#[test]
fn nodes_renew_their_keys_one_after_another() {
    let day = 24 * 60 * 60;
    let mut minutes = BTreeMap::<u64, u32>::new();
    for number in 0..500 {
        let delay = delay(&name(number), day);
        assert!(delay <= day / 4);
        *minutes.entry(delay / 60).or_default() += 1;
    }
    assert!(minutes.values().all(|nodes| *nodes <= 10));
    let nodes = [other(1, [true, true])];
    let (seen, _) = settled(&nodes, [10, 10]);
    let members = members("own", &nodes);
    let renewal = |delay| {
        let mut memory = Memory::default();
        let clock = |now| Clock { delay, ..at(now) };
        planned(&members, &seen, clock(NOW - SETTLED), &mut memory);
        planned(&members, &seen, clock(NOW), &mut memory).renewal
    };
    assert_eq!(renewal(0), Renewal::Due(at(NOW).preferred().other()));
    assert_eq!(renewal(2), Renewal::NotDue);
}

#[test]
fn old_sessions_are_woken_and_neither_dead_ones_nor_fresh_ones() {
    let woken = |age| settled(&[other(1, [true, true])], [age, 10]).1.wake;
    let nobody = [Vec::<Key>::new(), Vec::new()];
    assert_eq!(woken(AGREED_ANEW - 1), nobody);
    assert_eq!(woken(AGREED_ANEW)[0].len(), 1);
    assert_eq!(woken(FRESH), nobody);
}

#[test]
fn five_hundred_peers_change_the_link_with_one_route_each_and_no_change_of_a_peer() {
    let nodes: Vec<Node> = (1..=500)
        .map(|number| other(number, [true, true]))
        .collect();
    let (seen, plan) = settled(&nodes, [10, 10]);
    assert!(plan.peers.iter().all(|peers| peers.len() == 500));
    assert_eq!(plan.routes.len(), 500);
    let members = members("own", &nodes);
    let mut later = seen.clone();
    let next = NOW + PERIOD;
    for link in &mut later.links {
        for peer in link.tunnel.peers.values_mut() {
            peer.handshake = next;
        }
    }
    let after = planned(&members, &later, at(next), &mut Memory::default());
    assert_eq!((&after.peers, after.moving), (&plan.peers, false));
    assert!(
        after
            .routes
            .iter()
            .all(|(range, slot)| plan.routes[range] == slot.other())
    );
    // A removed node takes only its own ranges with it.
    let fewer = super::super::plan::members("own", &nodes[1..]);
    let after = planned(&fewer, &seen, at(NOW), &mut Memory::default());
    assert!(after.peers.iter().all(|peers| peers.len() == 499));
}
