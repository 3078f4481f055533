//! The API is linearizable and its watches are whole, over a master that is killed in the middle.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::Duration;
use tests_load::site::Site;
use tests_load::workload::{Plan, run};

#[test]
fn what_clients_of_a_killed_master_saw_has_an_order() {
    let program = tests_harness::programs::built("master").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let report = tokio::task::LocalSet::new().block_on(&runtime, async {
        let plan = Plan {
            clients: 8,
            objects: 4,
            lives: 4,
            life: Duration::from_secs(3),
            calls: 60,
        };
        run(&mut Site::new(&program).unwrap(), plan).await.unwrap()
    });
    assert!(
        report.calls > 200 && report.replays > 5,
        "too little to tell: {report:?}"
    );
}
