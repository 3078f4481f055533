//! Measures what pods' sandboxes and their veth pairs cost a node. The test command runs it with
//! small numbers, only to show that it works. Needs root.
//!
//! `PACE_SANDBOXES=100 cargo test --release -p agent-cluster --test pace -- --nocapture`. Processor
//! time is that of the process, as namespaces are made on threads of their own.

use agent_cluster::{SandboxOptions, SandboxSpec, Sandboxes};
use agent_sys::namespace::{Kind, in_new};
use agent_sys::netlink::links::{LOOPBACK, Links};
use tests_harness::pace::{number, spent_by_process, spread, timed};

#[test]
fn sandboxes_one_after_the_other() {
    let count = number("PACE_SANDBOXES", 5_usize);
    let dir = tempfile::tempdir().expect("a folder");
    in_new(&[Kind::Network], || {
        Links::open()?.switch_on(LOOPBACK)?;
        let sandboxes = Sandboxes::open(SandboxOptions {
            run: dir.path().join("pods"),
            ledger: dir.path().join("addresses.json"),
            kubernetes_only: true,
            tunnel: false,
        });
        let sandboxes = sandboxes.expect("a place");
        let range = "10.1.0.0/22".parse().expect("a range");
        sandboxes.give_ranges(&[range]).expect("the kernel");
        let (mut walls, mut cpus) = (Vec::new(), Vec::new());
        let uid = |at: usize| format!("pod-{at}");
        for at in 0..count {
            let wanted = SandboxSpec {
                uid: uid(at),
                network: true,
                ipc: true,
                hostname: Some(uid(at)),
                settings: Vec::new(),
                users: false,
            };
            let (made, wall, cpu) = timed(spent_by_process, || sandboxes.make(&wanted));
            made.expect("a sandbox");
            walls.push(wall);
            cpus.push(cpu);
        }
        println!(
            "{count} sandboxes made: {}; CPU {}",
            spread(&mut walls),
            spread(&mut cpus)
        );
        let (mut walls, mut cpus) = (Vec::new(), Vec::new());
        for at in 0..count {
            let (removed, wall, cpu) = timed(spent_by_process, || sandboxes.remove(&uid(at)));
            removed.expect("it goes");
            walls.push(wall);
            cpus.push(cpu);
        }
        println!("removed: {}; CPU {}", spread(&mut walls), spread(&mut cpus));
        Ok(())
    })
    .expect("a network");
}
