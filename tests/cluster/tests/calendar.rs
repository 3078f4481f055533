//! Thirty days of thirty-minute certificates by a simulated clock: the agent's own cadence, the
//! verifier, the authority and the deny list, with outages, clock steps, restarts, a rotation of
//! the intermediate and revocations in between.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests may stop at the first surprise"
)]

use agent_enroll::{Cadence, NextAction};
use config_attest::Refusal;
use config_attest::verifier::CertificateGrant;
use config_kube::MachineState;
use config_protocol::Consequence;
use master_attest::MachineDenyList;
use master_ca::{Authority, FileKeeper, profile};
use master_client::UserInfo;
use master_listener::Peer;
use rustls::pki_types::{CertificateDer, UnixTime};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tests_machines::{EkKind, SoftImage, SoftMachine, World};

const DAY: u64 = 86_400;
const MONTH: u64 = 30 * DAY;
/// The master's time when the simulation begins, in Unix seconds.
const BEGIN: u64 = 1_800_000_000;
const CONFIG: &[u8] = b"version = 1\n";
/// Noon of day 10.
const NOON: u64 = 10 * DAY + DAY / 2;
/// Seconds of an outage: 60 % of a certificate's life, less one second.
const OUTAGE: u64 = 1_079;

/// A node: its machine, what its agent has in hand, and the certificate that it shows.
struct NodeSim {
    machine: SoftMachine,
    cadence: Cadence,
    chain: Vec<CertificateDer<'static>>,
    /// Everything that it was ever given.
    given: Vec<Vec<CertificateDer<'static>>>,
    joins: u32,
}

/// A cluster of one master.
struct Cluster {
    world: World,
    keys: tempfile::TempDir,
    authority: Authority,
    deny: MachineDenyList,
    /// What the master's clock is ahead of the true time.
    ahead: i64,
    outages: Vec<u64>,
    seed: u64,
}

impl Cluster {
    fn new() -> Self {
        let keys = tempfile::tempdir().unwrap();
        // The intermediate is to be renewed in the middle of the month.
        let made = moment(BEGIN) + Duration::from_secs(15 * DAY) - profile::INTERMEDIATE_LIFE / 2;
        let authority = Authority::open(keys.path(), "lab", Arc::new(FileKeeper), made).unwrap();
        let outages = (1..30).map(|day| day * DAY + day * 617).collect();
        let deny = MachineDenyList::default();
        Self {
            world: World::new(),
            keys,
            authority,
            deny,
            ahead: 0,
            outages,
            seed: 7,
        }
    }

    fn now(&self, t: u64) -> u64 {
        (BEGIN + t).checked_add_signed(self.ahead).unwrap()
    }

    fn out(&self, t: u64) -> bool {
        self.outages
            .iter()
            .any(|begin| (*begin..begin + OUTAGE).contains(&t))
    }

    /// A number from 0 to 1.
    fn chance(&mut self) -> f64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(self.seed >> 40).unwrap()) / f64::from(1_u32 << 24)
    }

    /// A new process: nothing but what is in the objects and in the authority's folder is known.
    fn restart(&mut self, t: u64) {
        let now = moment(self.now(t));
        self.authority =
            Authority::open(self.keys.path(), "lab", Arc::new(FileKeeper), now).unwrap();
        self.deny = MachineDenyList::default();
        self.world
            .machines
            .iter()
            .for_each(|machine| self.deny.set(machine));
        self.world.sessions = config_attest::sessions::Sessions::default();
    }

    /// Whether the master accepts a connection with this client certificate chain: TLS' own checks,
    /// and the deny list.
    fn hears(&self, node: &str, chain: &[CertificateDer<'static>], t: u64) -> bool {
        let now = self.now(t);
        let root = self.authority.root();
        let anchor = webpki::anchor_from_trusted_cert(&root).unwrap();
        let leaf = webpki::EndEntityCert::try_from(&chain[0]).unwrap();
        let at = UnixTime::since_unix_epoch(Duration::from_secs(now));
        let usage = webpki::KeyUsage::client_auth();
        let good = leaf.verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            std::slice::from_ref(&anchor),
            &chain[1..],
            at,
            usage,
            None,
            None,
        );
        let user = UserInfo::authenticated(&format!("system:node:{node}"), ["system:nodes"]);
        let mut peer = Peer::default();
        peer.certificates = chain.to_vec().into();
        good.is_ok() && self.deny.denied_at(&user, &peer, moment(now)).is_none()
    }

    fn issue(&mut self, verified: &CertificateGrant, t: u64) -> Vec<CertificateDer<'static>> {
        let name = verified.node_name().to_owned();
        let object = self.world.object(&name).clone();
        self.deny.set(&object);
        self.authority
            .issue_node(verified, 1, moment(self.now(t)))
            .unwrap()
            .client
            .chain()
    }

    fn joined(&mut self, name: &str, address: &str, t: u64) -> NodeSim {
        let mut machine = self.world.machine(name, address, EkKind::P256);
        self.world.now = self.now(t);
        let verified = self.world.join(&machine).unwrap();
        machine.clock.clock += 1000;
        let chain = self.issue(&verified, t);
        let cadence = Cadence::new(Duration::from_secs(t), 600, self.chance());
        NodeSim {
            machine,
            cadence,
            given: vec![chain.clone()],
            chain,
            joins: 1,
        }
    }

    /// The node does what its cadence says, at its time.
    fn act(&mut self, node: &mut NodeSim, next: NextAction, t: u64) {
        let chance = self.chance();
        let now = Duration::from_secs(t);
        if self.out(t) {
            node.cadence.failed(now, false, chance);
            return;
        }
        self.world.now = self.now(t);
        let heard = self.hears(&node.machine.node, &node.chain, t);
        let outcome = match next {
            NextAction::Wait(_) => return,
            // TLS or the deny list ends it before the verifier sees it; the agent takes a plain 401
            // for a refusal too.
            NextAction::Renew if !heard => {
                node.cadence.failed(now, true, chance);
                return;
            }
            NextAction::Renew => self.world.renew(&node.machine),
            NextAction::Rejoin | NextAction::Expired => {
                node.joins += 1;
                self.world.join(&node.machine)
            }
        };
        node.machine.clock.clock += 1000;
        match outcome {
            Ok(verified) => {
                node.chain = self.issue(&verified, t);
                node.given.push(node.chain.clone());
                node.cadence = Cadence::new(now, 600, chance);
            }
            Err(refusal) => {
                self.refuse(&refusal);
                node.cadence.failed(now, true, chance);
            }
        }
    }

    /// What the master does with a refusal that the machine proved itself.
    fn refuse(&mut self, refusal: &Refusal) {
        let Some((machine, Consequence::Untrusted)) = refusal.consequence() else {
            return;
        };
        let object = self.world.object(&machine.id().name.clone());
        object.status.get_or_insert_default().state = MachineState::Untrusted;
        let object = object.clone();
        self.deny.set(&object);
    }
}

fn moment(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Runs the nodes from `from` to `to`; every minute `look` may look and act.
fn run(
    cluster: &mut Cluster,
    nodes: &mut [NodeSim],
    from: u64,
    to: u64,
    look: impl Fn(&mut Cluster, &[NodeSim], u64),
) {
    for t in from..to {
        for node in nodes.iter_mut() {
            let next = node.cadence.next(Duration::from_secs(t));
            if !matches!(next, NextAction::Wait(_)) {
                cluster.act(node, next, t);
            }
        }
        if t.is_multiple_of(60) {
            look(cluster, nodes, t);
        }
    }
}

/// A good node never lapses; a bad one is out from its proof to its re-admission, whatever it was
/// given before.
#[test]
fn thirty_days_without_a_lapse_and_without_a_forgotten_revocation() {
    let mut cluster = Cluster::new();
    let mut nodes = vec![cluster.joined("worker-1", "10.7.0.1", 0)];
    let look = |bad_is_out: bool| {
        move |cluster: &mut Cluster, nodes: &[NodeSim], t: u64| {
            let days = t / DAY;
            // Steps of the master's clock, both ways, and restarts; an hour apart from the outages.
            if t % DAY == 12 * 3600 {
                cluster.ahead += if days.is_multiple_of(2) { 900 } else { -45 };
                cluster.restart(t);
            }
            if t % DAY == 18 * 3600
                && cluster
                    .authority
                    .renew_if_due(moment(cluster.now(t)))
                    .unwrap()
            {
                assert_eq!(days, 15, "the intermediate is renewed by its age");
            }
            let good = &nodes[0];
            if t.is_multiple_of(600) && !cluster.out(t) {
                assert!(
                    cluster.hears("worker-1", &good.chain, t),
                    "worker-1 lapsed on day {days}, second {}",
                    t % DAY
                );
            }
            if bad_is_out && t.is_multiple_of(3600) {
                let old = nodes[1].given.iter().rev().take(4);
                assert!(old.clone().count() > 0);
                for chain in old {
                    assert!(
                        !cluster.hears("worker-2", chain, t),
                        "a revocation was forgotten on day {days}"
                    );
                }
            }
        }
    };
    run(&mut cluster, &mut nodes, 1, 9 * DAY, look(false));
    // For some days there is a second one.
    nodes.push(cluster.joined("worker-2", "10.7.0.2", 9 * DAY));
    run(&mut cluster, &mut nodes, 9 * DAY, 10 * DAY, look(false));
    assert!(
        cluster.hears("worker-2", &nodes[1].chain, 10 * DAY),
        "the control: the request of a good machine is accepted"
    );
    assert_eq!((nodes[0].joins, nodes[1].joins), (1, 1), "renewals alone");
    // Day 10: the second machine reboots into a bad image and proves it.
    let mut bad: SoftImage = cluster.world.image.clone();
    bad.kernel[0] ^= 1;
    nodes[1].machine.boot(&bad, "nocloud", CONFIG);
    cluster.world.now = cluster.now(10 * DAY);
    let refusal = cluster.world.join(&nodes[1].machine).unwrap_err();
    cluster.refuse(&refusal);
    run(&mut cluster, &mut nodes, 10 * DAY, NOON, look(true));
    // Half a day later it boots the good image again, which alone changes nothing.
    let image = cluster.world.image.clone();
    nodes[1].machine.boot(&image, "nocloud", CONFIG);
    run(&mut cluster, &mut nodes, NOON, 11 * DAY, look(true));
    // Day 11: an admin's waiver, for an hour.
    let until =
        jiff::Timestamp::from_second(i64::try_from(cluster.now(11 * DAY + 3600)).unwrap()).unwrap();
    cluster.world.object("worker-2").spec.readmit_until = Some(until.to_string());
    run(
        &mut cluster,
        &mut nodes,
        11 * DAY,
        11 * DAY + 120,
        look(false),
    );
    assert!(
        cluster.hears("worker-2", &nodes[1].chain, 11 * DAY + 120),
        "re-admitted within its backoff"
    );
    run(
        &mut cluster,
        &mut nodes,
        11 * DAY + 120,
        12 * DAY,
        look(false),
    );
    assert!(
        cluster.hears("worker-2", &nodes[1].chain, 12 * DAY),
        "and kept so by renewals"
    );
    nodes.truncate(1);
    run(&mut cluster, &mut nodes, 12 * DAY, MONTH, look(false));
    assert_eq!(nodes[0].joins, 1, "worker-1 never had to join anew");
    assert!(
        nodes[0].given.len() > 4_000,
        "{} certificates",
        nodes[0].given.len()
    );
}

/// The negative control of the outages: one longer than a certificate lives is a lapse, and ends in
/// a whole exchange.
#[test]
fn an_outage_longer_than_a_certificate_lapses_and_heals() {
    let mut cluster = Cluster::new();
    cluster.outages = (0..3).map(|part| 3_000 + part * OUTAGE).collect();
    let mut nodes = vec![cluster.joined("worker-1", "10.7.0.1", 0)];
    run(&mut cluster, &mut nodes, 1, 6_100, |_, _, _| {});
    assert!(!cluster.hears("worker-1", &nodes[0].chain, 6_100));
    run(&mut cluster, &mut nodes, 6_100, 6_400, |_, _, _| {});
    assert!(cluster.hears("worker-1", &nodes[0].chain, 6_400));
    assert_eq!(nodes[0].joins, 2);
}
