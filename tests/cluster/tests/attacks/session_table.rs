//! Floods that fill the tables of half-open exchanges: with the public endorsement keys of listed
//! machines, which are no secrets, and by a seized node.

use crate::after_join::joined;
use crate::freshness::Open;
use crate::lab::Lab;
use crate::wire::{Connection, config, connect};
use config_protocol::wire::{RENEWALS_PATH, SESSION_SECONDS, SESSIONS_PATH};
use http::{Method, StatusCode};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt as _;
use tokio_rustls::TlsConnector;

/// Places in this master's session table, by its configuration: so few that a slow host fills the
/// table long before the first session expires, and a fast one stays below the rate limits.
const TOTAL: usize = 64;
/// Sessions that one key may have open from one host.
const PER_EK: usize = 4;
/// Endorsement keys whose public halves the attacker has: each gets three places of the table,
/// while an honest machine needs one.
const EKS: usize = 20;
/// Networks that the flood comes from, and hellos of each for each key: no more than one network
/// may send at once (20), and enough to fill the table several times.
const NETWORKS: u8 = 4;
const ROUNDS: usize = 4;
/// Networks that the seized node sends from, and hosts in each: enough for all sessions of one key.
const BLOCKS: u8 = 4;
const HOSTS: u8 = 4;
/// Time for the story: if it takes longer, sessions may have expired, the table may not have been
/// full at the check, and the test proves nothing.
const LIMIT: Duration = Duration::from_secs(SESSION_SECONDS - 1);
/// Connections of one node: more than the pieces of evidence that the master reads at once from all
/// nodes and listed machines, and fewer than the requests that one node may send at once (200).
const SLOW: usize = 195;
/// Tries: a busy host may stop in the middle of the requests, so that the time limit is missed.
const TRIES: usize = 10;

/// Sends hellos from one address, one after another; how many sessions they opened.
async fn flood(
    lab: Arc<Lab>,
    from: IpAddr,
    tls: Arc<ClientConfig>,
    path: &'static str,
    hellos: Arc<Vec<Vec<u8>>>,
) -> usize {
    let mut connection = Connection::open_from(from, lab.site.address, tls)
        .await
        .unwrap();
    let mut opened = 0;
    for hello in hellos.iter() {
        let answer = connection.send(Method::POST, path, hello.clone()).await;
        match answer.status {
            StatusCode::OK => opened += 1,
            // The key has all its sessions.
            StatusCode::TOO_MANY_REQUESTS => {}
            status => panic!("{status}: {:?}", answer.json),
        }
    }
    opened
}

/// Sends them from several addresses at once.
async fn floods(
    lab: &Arc<Lab>,
    from: Vec<IpAddr>,
    tls: &Arc<ClientConfig>,
    path: &'static str,
    hellos: Vec<Vec<u8>>,
) -> usize {
    let hellos = Arc::new(hellos);
    let parts: Vec<_> = from
        .into_iter()
        .map(|from| {
            let (lab, tls, hellos) = (lab.clone(), tls.clone(), hellos.clone());
            tokio::spawn(flood(lab, from, tls, path, hellos))
        })
        .collect();
    let mut opened = 0;
    for part in parts {
        opened += part.await.unwrap();
    }
    opened
}

/// A seized node with a valid certificate opens many connections, and sends on each the beginning
/// of evidence for an invented session. Others renew and join meanwhile.
pub(crate) async fn unfinished_evidence_of_a_node_blocks_no_renewal_and_no_join(lab: &Lab) {
    let (_, bad) = joined(lab).await;
    let (mut good, who) = joined(lab).await;
    let head = format!(
        "POST {RENEWALS_PATH}/{}/evidence HTTP/1.1\r\nHost: master\r\nContent-Length: 500000\r\n\r\n{{",
        "7".repeat(32)
    );
    let tls = config(&lab.site.root, Some(&bad));
    let mut slow = Vec::new();
    for number in 0..SLOW {
        let from = [127, 3, u8::try_from(number).unwrap(), 1].into();
        let socket = connect(lab.site.address, from).await.unwrap();
        let name = ServerName::from(lab.site.address.ip());
        let connector = TlsConnector::from(tls.clone());
        let mut stream = connector.connect(name, socket).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        slow.push(stream);
    }
    good.clock.clock += 1000;
    lab.renew(&good, &who).await.accepted();
    let listed = lab.machine().await;
    lab.join(&listed).await.accepted();
    drop(slow);
}

/// An attacker with twenty public keys and several networks, and a seized node, fill the tables and
/// send more. Exchanges that were open before are completed, and machines and nodes with one
/// session at a time start new ones.
pub(crate) async fn full_session_tables_turn_away_no_machine_and_no_node() {
    for _ in 0..TRIES {
        if flooded().await {
            return;
        }
    }
    panic!("no try ended within {LIMIT:?}");
}

/// One try; false if it took so long that the first sessions may have expired.
async fn flooded() -> bool {
    let lab = Arc::new(Lab::start_with_exchanges(TOTAL).await);
    let mut hellos = Vec::new();
    for _ in 0..EKS {
        let known = lab.stranger();
        lab.list(&known, &known.node).await;
        hellos.push(serde_json::to_vec(&known.hello().0).unwrap());
    }
    let stolen: Vec<_> = (0..ROUNDS).flat_map(|_| hellos.clone()).collect();
    // From here on sessions are opened; a machine of the inventory becomes known when all before it
    // are.
    let begun = Instant::now();
    let (machine, who) = joined(&lab).await;
    let (seized, identity) = joined(&lab).await;
    let (early, late) = (lab.machine().await, lab.machine().await);
    let mut open = Open::new(&lab, &early).await;

    let networks = (0..NETWORKS).map(|network| IpAddr::from([127, 2, network + 1, 1]));
    let tls = &lab.site.anonymous;
    let joins = floods(&lab, networks.collect(), tls, SESSIONS_PATH, stolen).await;
    let own = serde_json::to_vec(&seized.hello().0).unwrap();
    let hosts = (1..=BLOCKS)
        .flat_map(|block| (1..=HOSTS).map(move |host| IpAddr::from([127, 4, block, host])));
    let tls = config(&lab.site.root, Some(&identity));
    let renewals = floods(
        &lab,
        hosts.collect(),
        &tls,
        RENEWALS_PATH,
        vec![own; PER_EK],
    )
    .await;

    // The tables are full now, and nothing in them has ended.
    let late = lab.join(&late).await;
    let renewed = lab.renew(&machine, &who).await;
    let evidence = open.evidence(&early, config_protocol::Purpose::Join);
    let answered = open.answer(&evidence).await;
    let took = begun.elapsed();
    println!(
        "{joins} joins and {renewals} renewals were begun, {:.1} s in all",
        took.as_secs_f64()
    );
    if took < LIMIT {
        assert!(joins >= 2 * TOTAL, "{joins} joins");
        assert_eq!(renewals, TOTAL);
        for outcome in [late, renewed, answered] {
            outcome.accepted();
        }
    }
    lab.site.stop();
    took < LIMIT
}
