//! A flood that fills the table of half-open exchanges, by the endorsement keys of machines that
//! the inventory knows, which are no secrets.

use crate::after_join::joined;
use crate::freshness::Open;
use crate::lab::Lab;
use crate::wire::{Answer, Connection, config, connect};
use config_protocol::Code;
use config_protocol::wire::{RENEWALS_PATH, SESSION_SECONDS, SESSIONS_PATH};
use http::{Method, StatusCode};
use rustls::pki_types::ServerName;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt as _;
use tokio_rustls::TlsConnector;

/// Sessions that this master holds open, by its configuration: so few that a slow machine fills the
/// table long before the first of them ends, and that a fast one sends no more than the rate limits
/// let pass.
const TOTAL: usize = 64;
/// Of one endorsement key from one network.
const PER_EK: usize = 4;
/// Networks from which the flood comes. Each sends fewer requests than one network may at once
/// (200).
const NETWORKS: usize = 2;
/// Endorsement keys: more than enough to fill the table.
const EKS: usize = 20;
/// Sessions of the machines around the flood, at most.
const OTHERS: usize = 16;
/// Time for the story: if it takes longer, sessions may have expired, the table may not have been
/// full at the check, and the test proves nothing.
const LIMIT: Duration = Duration::from_secs(SESSION_SECONDS - 1);
/// Connections of one node: as many pieces of evidence as the master reads of nodes and known
/// machines at once, and some. Fewer than the requests that one node may send at once (200).
const SLOW: usize = 195;
/// Tries: the story is about a hundred requests, but a busy machine may stop in the middle of them.
const TRIES: usize = 10;

fn half_open(answer: &Answer) -> bool {
    answer.json["message"]
        .as_str()
        .is_some_and(|text| text.contains("half-open"))
}

/// Sends hellos from one network until one is refused; how many sessions it opened.
async fn fill(lab: Arc<Lab>, network: usize, hellos: Arc<Vec<Vec<u8>>>) -> usize {
    let from = [127, 2, u8::try_from(network + 1).unwrap(), 1].into();
    let mut connection = Connection::open_from(from, lab.site.address, lab.site.anonymous.clone())
        .await
        .unwrap();
    let mut opened = 0;
    for hello in hellos.iter().skip(network).step_by(NETWORKS) {
        for _ in 0..PER_EK {
            let answer = loop {
                let answer = connection
                    .send(Method::POST, SESSIONS_PATH, hello.clone())
                    .await;
                if answer.status != StatusCode::TOO_MANY_REQUESTS || half_open(&answer) {
                    break answer;
                }
                // Faster than all known keys together may ask; what is filled here is the table.
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            if half_open(&answer) {
                return opened;
            }
            assert_eq!(answer.status, StatusCode::OK, "{:?}", answer.json);
            opened += 1;
        }
    }
    opened
}

/// A seized node with a valid certificate: on each of many connections it begins evidence for an
/// invented session, and never ends it. Others renew and join meanwhile.
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

/// While the table is full no new exchange begins; open exchanges are not displaced, nodes still
/// renew, and each freed slot goes to the next caller.
pub(crate) async fn a_full_session_table_keeps_open_exchanges_and_lets_nodes_renew() {
    for _ in 0..TRIES {
        if flooded().await {
            return;
        }
    }
    panic!("the story was never through in {LIMIT:?}");
}

/// The story; false: it took so long that what was opened first ended by itself.
async fn flooded() -> bool {
    let lab = Arc::new(Lab::start_with_exchanges(TOTAL).await);
    let mut hellos = Vec::new();
    for _ in 0..EKS {
        let known = lab.stranger();
        lab.list(&known, &known.node).await;
        hellos.push(serde_json::to_vec(&known.hello().0).unwrap());
    }
    let hellos = Arc::new(hellos);
    // From here on sessions are opened; a machine of the inventory becomes known when all before it
    // are.
    let begun = Instant::now();
    let (machine, who) = joined(&lab).await;
    let (early, late) = (lab.machine().await, lab.machine().await);
    let (later, last) = (lab.machine().await, lab.machine().await);
    let mut open = Open::new(&lab, &early).await;
    let flood: Vec<_> = (0..NETWORKS)
        .map(|network| tokio::spawn(fill(lab.clone(), network, hellos.clone())))
        .collect();
    let mut opened = 0;
    for part in flood {
        opened += part.await.unwrap();
    }
    let turned_away = lab.join(&late).await;
    // A node with a certificate renews, and open exchanges continue; one slot is free for the next
    // caller.
    let renewed = lab.renew(&machine, &who).await;
    let evidence = open.evidence(&early, config_protocol::Purpose::Join);
    let answered = open.answer(&evidence).await;
    let next = lab.join(&late).await;
    // An answered session is free again; an open one is not given to others.
    let _held = Open::new(&lab, &later).await;
    let held_out = lab.join(&last).await;
    let took = begun.elapsed();
    println!(
        "{opened} half-open exchanges, {:.1} s in all",
        took.as_secs_f64()
    );
    if took < LIMIT {
        assert!(
            (TOTAL - OTHERS..=TOTAL).contains(&opened),
            "{opened} sessions"
        );
        for outcome in [turned_away, held_out] {
            assert_eq!(outcome.answer.status, StatusCode::TOO_MANY_REQUESTS);
            lab.refused(&outcome, Code::SessionsFull, false).await;
        }
        for outcome in [renewed, answered, next] {
            outcome.accepted();
        }
    }
    lab.site.stop();
    took < LIMIT
}
