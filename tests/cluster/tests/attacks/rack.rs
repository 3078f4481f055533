//! A rack that boots at once, under a flood of garbage: hollow machines, with keys in software and
//! the real protocol. `PRATIQUE_RACK=1000` makes it the figure in `tests/FIGURES.md`.

use crate::lab::Lab;
use crate::wire::Connection;
use config_kube::{Machine, MachineState};
use config_protocol::wire::SESSIONS_PATH;
use http::{Method, StatusCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tests_machines::SoftMachine;

/// The default number of machines: enough to see that they don't block each other.
const FEW: usize = 40;
/// Exchanges at once: what the generator's own two cores prepare.
const AT_ONCE: usize = 64;
/// Connections of the flood.
const FLOOD: usize = 8;
/// Resident memory that the master may gain under any load, in KiB.
const GAIN: u64 = 200 << 10;
/// What each machine may add, in KiB: itself, its Node, its requests, and the history of them all.
const GAIN_EACH: u64 = 64;

pub(crate) async fn a_rack_joins_under_a_flood() {
    let many = std::env::var("PRATIQUE_RACK")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(FEW);
    let lab = Arc::new(Lab::start().await);
    let mut machines = Vec::new();
    for _ in 0..many {
        let machine = lab.stranger();
        lab.list(&machine, &machine.node).await;
        machines.push(machine);
    }
    // The last one is known, and so all are.
    lab.known(machines.last().unwrap()).await;
    let (stop, garbage) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let flood: Vec<_> = (0..FLOOD)
        .map(|_| tokio::spawn(flood(lab.clone(), stop.clone(), garbage.clone())))
        .collect();
    let before = lab.site.resident();
    let start = Instant::now();
    let machines = Arc::new(std::sync::Mutex::new(machines));
    let workers: Vec<_> = (0..AT_ONCE)
        .map(|_| tokio::spawn(join_all(lab.clone(), machines.clone())))
        .collect();
    let mut slowest = Duration::ZERO;
    for worker in workers {
        slowest = slowest.max(worker.await.unwrap());
    }
    let took = start.elapsed();
    stop.store(true, Ordering::Release);
    for part in flood {
        part.await.unwrap();
    }
    let gained = lab.site.resident().saturating_sub(before);
    let all: Vec<Machine> = lab.site.list().await;
    let trusted = all.iter().filter_map(|machine| machine.status.as_ref());
    assert_eq!(
        trusted
            .filter(|status| status.state == MachineState::Trusted)
            .count(),
        many
    );
    let rubbish = garbage.load(Ordering::Relaxed);
    println!(
        "{many} hollow machines joined in {:.1} s (slowest exchange {:.2} s), {rubbish} pieces of garbage meanwhile, \
         master's memory {:+} MiB",
        took.as_secs_f64(),
        slowest.as_secs_f64(),
        gained >> 10
    );
    assert!(rubbish > 0, "the flood did not flow");
    assert!(
        gained < GAIN + GAIN_EACH * many as u64,
        "the master gained {gained} KiB"
    );
    lab.site.stop();
}

/// Joins machines until none is left; the longest that one took, with its tries.
async fn join_all(lab: Arc<Lab>, machines: Arc<std::sync::Mutex<Vec<SoftMachine>>>) -> Duration {
    let mut slowest = Duration::ZERO;
    loop {
        let Some(machine) = machines.lock().unwrap().pop() else {
            return slowest;
        };
        let start = Instant::now();
        // A node that is asked to retry later retries later; it must not be refused.
        while lab.join(&machine).await.answer.status != StatusCode::OK {
            assert!(
                start.elapsed() < Duration::from_secs(300),
                "{} does not get in",
                machine.node
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        slowest = slowest.max(start.elapsed());
    }
}

/// Sends what is no hello, and hellos of strangers.
async fn flood(lab: Arc<Lab>, stop: Arc<AtomicBool>, count: Arc<AtomicU64>) {
    let hello = serde_json::to_vec(&lab.stranger().hello().0).unwrap();
    while !stop.load(Ordering::Acquire) {
        let Ok(mut connection) =
            Connection::open(lab.site.address, lab.site.anonymous.clone()).await
        else {
            continue;
        };
        for body in [
            b"{\"protocol\":".to_vec(),
            vec![0xff; 60 << 10],
            hello.clone(),
        ] {
            let Ok(answer) = connection
                .request(Method::POST, SESSIONS_PATH, "application/json", body)
                .await
            else {
                break;
            };
            assert!(!answer.status().is_success(), "garbage was taken");
            count.fetch_add(1, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
