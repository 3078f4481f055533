//! A flood that fills the table of half-open exchanges, by the endorsement keys of machines that the inventory knows, which
//! are no secrets.

use crate::freshness::Open;
use crate::lab::{Lab, Outcome};
use crate::life::joined;
use crate::wire::{Answer, Connection};
use config_attest::Code;
use config_attest::wire::{SESSION_SECONDS, SESSIONS_PATH};
use http::{Method, StatusCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sessions that the master holds open (`Limits::default`).
const TOTAL: usize = 4096;
/// Of one endorsement key from one network.
const PER_EK: usize = 4;
/// Networks that the sessions of one endorsement key are opened from.
const NETWORKS: usize = 14;
/// Groups of networks: no network sends more than a caller may at once.
const GROUPS: usize = 4;
/// Endorsement keys: more than enough to fill the table.
const EKS: usize = 80;
/// Sessions of the machines around the flood, at most.
const OTHERS: usize = 64;
/// Time for the flood: what is opened first must not end before it was looked at.
const LIMIT: Duration = Duration::from_secs(SESSION_SECONDS - 5);
/// Tries: a busy machine may be too slow for the flood.
const TRIES: usize = 3;

fn half_open(answer: &Answer) -> bool {
    answer.json["message"].as_str().is_some_and(|text| text.contains("half-open"))
}

/// Sends hellos from one network until one is refused; how many sessions it opened.
async fn fill(lab: Arc<Lab>, network: usize, hellos: Arc<Vec<Vec<u8>>>) -> usize {
    let from = [127, 2, u8::try_from(network + 1).unwrap(), 1].into();
    let mut connection = Connection::open_from(from, lab.site.address, lab.site.anonymous.clone()).await.unwrap();
    let mut opened = 0;
    for hello in hellos.iter().skip(network / NETWORKS).step_by(GROUPS) {
        for _ in 0..PER_EK {
            let answer = loop {
                let answer = connection.send(Method::POST, SESSIONS_PATH, hello.clone()).await;
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

/// While the table is full no new exchange begins; what was begun is not pushed out, nodes renew beside it, and each place
/// that becomes free is the next comer's.
pub(crate) async fn a_full_table_keeps_what_it_holds() {
    for _ in 0..TRIES {
        if flooded().await {
            return;
        }
    }
    panic!("no flood was through in {LIMIT:?}");
}

/// The story; false: the flood took so long that what it opened first ended by itself.
async fn flooded() -> bool {
    let lab = Arc::new(Lab::start().await);
    let (machine, who) = joined(&lab).await;
    let (early, late, later) = (lab.machine().await, lab.machine().await, lab.machine().await);
    let mut hellos = Vec::new();
    for _ in 0..EKS {
        let known = lab.stranger();
        lab.list(&known, &known.node).await;
        hellos.push(serde_json::to_vec(&known.hello().0).unwrap());
    }
    let last = lab.machine().await;
    let hellos = Arc::new(hellos);
    let begun = Instant::now();
    let mut open = Open::new(&lab, &early).await;
    let flood: Vec<_> =
        (0..NETWORKS * GROUPS).map(|network| tokio::spawn(fill(lab.clone(), network, hellos.clone()))).collect();
    let mut opened = 0;
    for part in flood {
        opened += part.await.unwrap();
    }
    let took = begun.elapsed();
    println!("{opened} half-open exchanges in {:.1} s", took.as_secs_f64());
    if took >= LIMIT {
        lab.site.stop();
        return false;
    }
    assert!((TOTAL - OTHERS..=TOTAL).contains(&opened), "{opened} sessions");

    refused(&lab, lab.join(&late).await).await;
    // Whoever has a certificate renews, and what was begun goes on; one place is free, and the next comer's.
    lab.renew(&machine, &who).await.accepted();
    let evidence = open.evidence(&early, config_attest::Purpose::Join);
    open.answer(&evidence).await.accepted();
    lab.join(&late).await.accepted();
    // It is answered, and so free again; held open, it is nobody else's.
    let _held = Open::new(&lab, &later).await;
    refused(&lab, lab.join(&last).await).await;
    lab.site.stop();
    true
}

async fn refused(lab: &Lab, outcome: Outcome) {
    assert_eq!(outcome.answer.status, StatusCode::TOO_MANY_REQUESTS);
    lab.refused(&outcome, Code::SessionsFull, false).await;
}
