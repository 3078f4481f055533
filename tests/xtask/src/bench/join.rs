//! `cargo xtask bench join`: from power-on to Ready, memory on the nodes, the verifier's rate.

use crate::build;
use crate::host::{self, workshop};
use crate::steps::{Failure, Outcome, Steps, watched};
use std::process::Command;
use std::time::{Duration, Instant};
use tests_harness::cluster::{BOOT_LIMIT, Lab, Terms};
use tests_harness::machine::{Blueprint, Machine};
use tests_harness::registry::Registry;

/// Power-on to Ready, phase by phase, against a bare boot of the same kernel and firmware; memory;
/// the exchange; the verifier. `built`: of the images that are there, and the machines alone.
pub(super) fn join(built: bool, profile: build::Profile) -> Outcome {
    let mut steps = Steps::new();
    host::check()?;
    if !built {
        steps.step("packages", host::packages)?;
        build::everything(&mut steps, profile, false)?;
    }
    let dir = workshop().join("bench");
    if dir.exists() {
        std::fs::remove_dir_all(&dir).map_err(|error| {
            Failure::new(format!("cannot clear {}: {error}", dir.display()), "")
        })?;
    }
    let lab = crate::up::lab(dir)?;
    let mut machines = Vec::new();
    let registry = Registry::start(&lab.tools, &lab.dir.join("registry"), lab.registry_port)?;
    let outcome = measure(&mut steps, &lab, &mut machines);
    for machine in &machines {
        machine.cut_power()?;
    }
    registry.stop()?;
    outcome?;
    if built {
        return Ok(());
    }
    rates()
}

/// The verifier's rate, and what many machines at once cost.
fn rates() -> Outcome {
    println!("\nverifier, one core:");
    let mut rate = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    rate.args([
        "run",
        "--quiet",
        "--release",
        "--locked",
        "--package",
        "master-attest",
    ]);
    rate.args(["--example", "verify_rate"])
        .current_dir(host::repository());
    watched(rate, "the compiler's message is above")?;
    for (what, filter) in [
        ("1,000 machines at once, under a flood", "rack::"),
        (
            "revocation",
            "drift::a_machine_that_proves_a_bad_image_is_denied_at_once_with_its_pods",
        ),
    ] {
        println!("\n{what}:");
        let mut attack = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        attack.args([
            "test",
            "--quiet",
            "--release",
            "--locked",
            "--package",
            "tests-cluster",
            "--test",
            "attacks",
            "--",
        ]);
        attack
            .arg(filter)
            .env("PRATIQUE_RACK", "1000")
            .current_dir(host::repository());
        watched(attack, "the story's message is above")?;
    }
    Ok(())
}

fn measure(steps: &mut Steps, lab: &Lab, machines: &mut Vec<Machine>) -> Outcome {
    let terms = Terms::default();
    let mut master = lab.master()?;
    let text = lab.master_user_data(&terms)?;
    let data = lab.give_user_data(&mut master, &text)?;
    let pin = steps.step("master: power-on to bootstrapped", || {
        machines.push(master.start(&lab.tools)?);
        machines[0].wait_services()?;
        Ok(lab.bootstrap(&master, &data)?)
    })?;
    steps.step("master: Ready", || {
        Ok(lab.wait_ready("master-1", BOOT_LIMIT)?)
    })?;
    let bare = steps.step(
        "bare boot: the same firmware and kernel, no configuration",
        || bare_boot(lab),
    )?;
    let mut worker = lab.worker("worker-1", 1)?;
    let data = lab.give_user_data(&mut worker, &lab.worker_user_data(1, &pin))?;
    lab.register("worker-1", &worker, &data, "192.168.77.11")?;
    let phases = steps.step("worker: power-on to Ready", || {
        phases(lab, &worker, machines)
    })?;
    println!("\npower-on to Ready, seconds (bare boot to the first line of init: {bare:.1}):");
    let mut last = 0.0;
    for (at, name) in &phases {
        println!("  {at:>6.1}  +{:>5.1}  {name}", at - last);
        last = *at;
    }
    if let Some((ready, _)) = phases.last() {
        println!(
            "  Ready = bare boot + {:.1} s ({:.2} x)",
            ready - bare,
            ready / bare
        );
    }
    println!("\nresident memory, MiB:");
    for (program, path) in [
        ("agent of worker-1", "/api/v1/nodes/worker-1/proxy/metrics"),
        ("agent of master-1", "/api/v1/nodes/master-1/proxy/metrics"),
        ("master", "/metrics"),
    ] {
        println!("  {program}: {}", memory(lab, path)?);
    }
    Ok(())
}

/// Seconds from power-on to the first line of init, of a machine that then has nothing to do.
fn bare_boot(lab: &Lab) -> Outcome<f64> {
    let bare = lab.worker("bare", 2)?;
    let start = Instant::now();
    let machine = bare.start(&lab.tools)?;
    let line = machine.wait("pratique:", BOOT_LIMIT);
    let seconds = start.elapsed().as_secs_f64();
    machine.cut_power()?;
    line?;
    Ok(seconds)
}

/// When each line of the machine's programs was first seen, and when the node was Ready.
fn phases(
    lab: &Lab,
    worker: &Blueprint,
    machines: &mut Vec<Machine>,
) -> Outcome<Vec<(f64, String)>> {
    let start = Instant::now();
    let machine = worker.start(&lab.tools)?;
    machines.push(machine.clone());
    let mut seen: Vec<(f64, String)> = Vec::new();
    let mut asked = Instant::now();
    tests_harness::wait::eventually(
        "worker-1 to be Ready",
        BOOT_LIMIT,
        "see worker-1/console.log",
        || {
            let text = machine.console_text();
            for line in text
                .lines()
                .filter(|line| line.contains("pratique:"))
                .skip(seen.len())
            {
                seen.push((start.elapsed().as_secs_f64(), line.trim().to_owned()));
            }
            if asked.elapsed() < Duration::from_millis(700) {
                return Ok(None);
            }
            asked = Instant::now();
            Ok(lab.wait_ready("worker-1", Duration::ZERO).ok())
        },
    )?;
    seen.push((
        start.elapsed().as_secs_f64(),
        "Ready, as kubectl sees it".to_owned(),
    ));
    Ok(seen)
}

/// The resident memory that a program reports, in MiB.
fn memory(lab: &Lab, path: &str) -> Outcome<u64> {
    let figures = lab.kubectl(&["get", "--raw", path])?;
    figures
        .lines()
        .find_map(|line| line.strip_prefix("process_resident_memory_bytes "))
        .and_then(|bytes| bytes.trim().parse::<u64>().ok())
        .map(|bytes| bytes >> 20)
        .ok_or_else(|| {
            Failure::new(
                format!("{path} has no process_resident_memory_bytes"),
                "kubectl get --raw shows what it has",
            )
        })
}
