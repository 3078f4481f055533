//! `cargo xtask up`, `down` and `status`: a master and workers in QEMU, set up the way an admin
//! would.

use crate::build;
use crate::host::{self, workshop};
use crate::steps::{Failure, Outcome, Steps};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use tests_harness::cluster::{BOOT_LIMIT, Lab, Terms};
use tests_harness::demo;
use tests_harness::machine::Machine;
use tests_harness::registry::Registry;
use tests_harness::tools::Tools;

/// First host ports that are tried.
const API_PORT: u16 = 16443;
const REGISTRY_PORT: u16 = 15000;
/// Host port that a discovery endpoint would have.
const DISCOVERY_PORT: u16 = 15080;
/// The most workers that the segment has slots for.
pub(crate) const MAX_WORKERS: i64 = 4;

/// A record of what runs, so that `down` and `status` find it.
#[derive(Debug, Serialize, Deserialize)]
struct Running {
    machines: Vec<Machine>,
    registry: Registry,
    kubeconfig: PathBuf,
}

/// Everything from a clone to a running application.
pub(crate) fn up(workers: u8, profile: build::Profile) -> Outcome {
    tests_harness::lifetime::outlive();
    if let Some(running) = load()? {
        if running.machines.iter().any(Machine::alive) {
            return Err(Failure::new(
                "the machines of an earlier `up` still run",
                "cargo xtask status shows them; cargo xtask down ends them",
            ));
        }
        running.registry.stop()?;
    }
    let mut steps = Steps::new();
    steps.step("host: memory, disk, Rust", host::check)?;
    steps.step("packages", host::packages)?;
    build::everything(&mut steps, profile, false)?;
    let dir = workshop().join("up");
    // A cluster begins with its machines' factory state; an earlier one's keys and TPMs are of no
    // use to it.
    if dir.exists() {
        std::fs::remove_dir_all(&dir).map_err(|error| {
            Failure::new(format!("cannot clear {}: {error}", dir.display()), "")
        })?;
    }
    let lab = lab(dir)?;
    let outcome = bring_up(&mut steps, &lab, workers);
    println!("\ntimes:\n{}", steps.summary());
    outcome.map_err(|failure| Failure {
        cure: format!(
            "consoles: {}/*/console.log; {}cargo xtask down ends what was started",
            lab.dir.display(),
            if failure.cure.is_empty() {
                String::new()
            } else {
                format!("{}; ", failure.cure)
            }
        ),
        ..failure
    })
}

fn bring_up(steps: &mut Steps, lab: &Lab, workers: u8) -> Outcome {
    let terms = Terms::default();
    let registry = steps.step("registry with the demonstration image", || {
        Ok(Registry::start(
            &lab.tools,
            &lab.dir.join("registry"),
            lab.registry_port,
        )?)
    })?;
    let mut running = Running {
        machines: Vec::new(),
        registry,
        kubeconfig: lab.kubeconfig(),
    };
    save(&running)?;
    let mut master = lab.master()?;
    let master_data = steps.step("admin's key and the master's user-data", || {
        let text = lab.master_user_data(&terms)?;
        Ok(lab.give_user_data(&mut master, &text)?)
    })?;
    steps.step("master: power on", || {
        running.machines.push(master.start(&lab.tools)?);
        save(&running)?;
        running.machines[0].wait_services()?;
        Ok(())
    })?;
    let pin = steps.step(
        "master: attest it and bootstrap (pratique bootstrap)",
        || Ok(lab.bootstrap(&master, &master_data)?),
    )?;
    println!("    the cluster's CA pin is {pin}");
    for number in 1..=workers {
        let name = format!("worker-{number}");
        steps.step(&format!("{name}: user-data, inventory, power on"), || {
            let mut worker = lab.worker(&name, number.into())?;
            let data = lab.give_user_data(&mut worker, &lab.worker_user_data(number, &pin))?;
            lab.register(
                &name,
                &worker,
                &data,
                &format!("192.168.77.{}", 10 + number),
            )?;
            running.machines.push(worker.start(&lab.tools)?);
            save(&running)
        })?;
    }
    steps.step("master-1: attested and Ready", || {
        Ok(lab.wait_ready("master-1", BOOT_LIMIT)?)
    })?;
    for number in 1..=workers {
        let name = format!("worker-{number}");
        steps.step(&format!("{name}: attested and Ready"), || {
            Ok(lab.wait_ready(&name, BOOT_LIMIT)?)
        })?;
    }
    steps.step("a Deployment behind a Service, and a client", || {
        Ok(demo::begin(lab)?)
    })?;
    let other = steps.step("an answer from another machine", || Ok(demo::crossed(lab)?))?;
    let counted = steps.step("the same rolled to version 2 while the client asks", || {
        Ok(demo::roll(lab)?)
    })?;
    println!(
        "    the client asked {} times, also pods of {other} through the tunnel; {} requests failed",
        counted.asked, counted.failed
    );
    let denied = steps.step("the NetworkPolicy keeps a stranger out", || {
        Ok(demo::denied(lab)?)
    })?;
    if denied.failed < denied.asked {
        return Err(Failure::new(
            format!(
                "{} of {} requests of a pod that no policy lets in were answered",
                denied.asked - denied.failed,
                denied.asked
            ),
            "kubectl get networkpolicies hello -o yaml shows what is allowed",
        ));
    }
    show(lab)
}

fn show(lab: &Lab) -> Outcome {
    for words in [
        &["get", "nodes", "-o", "wide"][..],
        &["get", "machines"],
        &["get", "deployments,services,networkpolicies"],
        &["get", "pods", "-o", "wide"],
        &["logs", demo::CLIENT, "--tail=3"],
        &["logs", demo::STRANGER, "--tail=1"],
    ] {
        println!(
            "\n$ kubectl {}\n{}",
            words.join(" "),
            lab.kubectl(words)?.trim_end()
        );
    }
    println!(
        "\nThe machines run on until `cargo xtask down`. To go on with this cluster (kubectl is in {}):",
        lab.tools.bin().display()
    );
    println!("\n  export KUBECONFIG={}\n", lab.kubeconfig().display());
    Ok(())
}

/// init's time limit for the agent to end the containers (80 s), and a margin for a slow host.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(150);

/// Ends the machines: cleanly where they answer, else by the plug.
pub(crate) fn down(wipe: bool) -> Outcome {
    let Some(running) = load()? else {
        println!("nothing runs");
        return Ok(());
    };
    for machine in running
        .machines
        .iter()
        .rev()
        .filter(|machine| machine.alive())
    {
        match machine.power_off(POWER_OFF_LIMIT) {
            Ok(time) => println!(
                "{}: powered off in {:.1} s",
                machine.name,
                time.as_secs_f64()
            ),
            Err(error) => {
                println!(
                    "{}: {}; cutting its power",
                    machine.name,
                    tests_harness::chain(&error)
                );
                machine.cut_power()?;
            }
        }
    }
    running.registry.stop()?;
    let (file, dir) = (record(), workshop().join("up"));
    let removed = if wipe {
        std::fs::remove_dir_all(&dir)
    } else {
        std::fs::remove_file(&file)
    };
    removed.map_err(|error| {
        Failure::new(
            format!(
                "cannot remove {}: {error}",
                if wipe { dir } else { file }.display()
            ),
            "",
        )
    })
}

/// Shows the machines.
pub(crate) fn status() -> Outcome {
    let Some(running) = load()? else {
        println!("nothing runs; `cargo xtask up` starts a cluster");
        return Ok(());
    };
    for machine in &running.machines {
        let state = if machine.alive() { "runs" } else { "is off" };
        let memory = machine
            .host_memory()
            .map(|kib| format!(", {} MiB of host memory", kib / 1024))
            .unwrap_or_default();
        println!(
            "{}: {state}{memory}, console {}",
            machine.name,
            machine.dir.join("console.log").display()
        );
    }
    println!(
        "registry: {}",
        if running.registry.alive() {
            "runs"
        } else {
            "is off"
        }
    );
    println!("\n  export KUBECONFIG={}", running.kubeconfig.display());
    Ok(())
}

/// The lab of a folder, on ports that are free now.
pub(crate) fn lab(dir: PathBuf) -> Outcome<Lab> {
    Ok(Lab {
        tools: Tools::find(&host::repository())?,
        programs: build::program_dir(),
        images: build::images(),
        keys: build::keys(),
        dir,
        api_port: host::free_port(API_PORT)?,
        registry_port: host::free_port(REGISTRY_PORT)?,
        discovery_port: host::free_port(DISCOVERY_PORT)?,
        cables: Lab::cables()?,
        network: "",
    })
}

fn record() -> PathBuf {
    workshop().join("up/running.json")
}

fn save(running: &Running) -> Outcome {
    let file = record();
    let text =
        serde_json::to_vec_pretty(running).map_err(|error| Failure::new(error.to_string(), ""))?;
    std::fs::write(&file, text)
        .map_err(|error| Failure::new(format!("cannot write {}: {error}", file.display()), ""))
}

fn load() -> Outcome<Option<Running>> {
    let file = record();
    let Ok(text) = std::fs::read(&file) else {
        return Ok(None);
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| {
        Failure::new(
            format!("{} is not what `up` wrote: {error}", file.display()),
            "end its QEMU processes by hand, then remove the file",
        )
    })
}
