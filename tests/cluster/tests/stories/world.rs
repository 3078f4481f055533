//! The world that stories share: a master, a good worker, a registry; started by the first story
//! that needs them.

use crate::network::Asking;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests_harness::cluster::{BOOT_LIMIT, Lab, Terms};
use tests_harness::machine::{Blueprint, Machine};
use tests_harness::registry::Registry;
use tests_harness::tap::Tap;
use tests_harness::tools::Tools;
use tests_harness::{Error, Result, port};

/// Node certificates live so short that a renewal is seen within a story.
const TTL: &str = "3m";
/// Both families, IPv4 first: the defaults, and some of IPv6.
const RANGES: &str = "pod_cidrs = [\"10.244.0.0/16\", \"fd00:10:244::/48\"]\nservice_cidr = [\"10.96.0.0/12\", \"fd00:10:96::/112\"]\n";
/// The slot of the good worker; stories that refuse use the next one.
const GOOD_SLOT: usize = 1;
const OTHER_SLOT: usize = 2;
/// Lines of each console, and of each of kubectl's lists, that a failed story shows.
const SHOWN: usize = 80;

/// The cluster and machines that the stories share, as far as they were started.
#[derive(Debug, Default)]
pub(crate) struct World {
    cluster: Option<Cluster>,
    /// Machines of the story that runs, ended after it.
    guests: Vec<Machine>,
    /// `worker-2`, which several stories share; it has the slot that guests of others use.
    companion: Option<(Blueprint, Machine)>,
    failed: Option<String>,
    /// The eavesdropper between the machines, from the first story on that wants one.
    tap: Option<Arc<Tap>>,
    /// Requests that go on between two machines while other stories run.
    pub(crate) asking: Option<Asking>,
}

/// The running cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) lab: Lab,
    pub(crate) pin: String,
    pub(crate) master: Machine,
    pub(crate) master_blueprint: Blueprint,
    pub(crate) worker: Machine,
    pub(crate) worker_blueprint: Blueprint,
    registry: Registry,
}

impl World {
    /// Tells one story and ends its guests, whatever came of it.
    pub(crate) fn tell(
        &mut self,
        name: &str,
        story: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let start = Instant::now();
        let outcome = story(self);
        if outcome.is_err() && self.cluster.is_none() {
            // The machines of a cluster that did not come up.
            self.guests.iter().for_each(show_console);
        }
        for guest in self.guests.drain(..) {
            guest.cut_power()?;
        }
        if outcome.is_err() {
            if let Some(cluster) = &self.cluster {
                cluster.show_state();
            }
            // Whatever it left behind, the next story that wants it gets a new one.
            self.end_companion()?;
        }
        println!("{name}: {:.1} s", start.elapsed().as_secs_f64());
        outcome
    }

    /// The cluster; made where it is not there yet. One that could not be made is not tried twice.
    pub(crate) fn cluster(&mut self) -> Result<&mut Cluster> {
        if let Some(why) = &self.failed {
            return Err(Error::Missing(format!(
                "the cluster did not come up in an earlier story: {why}"
            )));
        }
        if self.cluster.is_none() {
            match self.make() {
                Ok(cluster) => self.cluster = Some(cluster),
                Err(error) => {
                    self.failed = Some(tests_harness::chain(&error));
                    return Err(error);
                }
            }
        }
        self.cluster
            .as_mut()
            .ok_or_else(|| Error::Missing("no cluster".to_owned()))
    }

    /// The eavesdropper between the machines.
    pub(crate) fn tap(&mut self) -> Result<Arc<Tap>> {
        if let Some(tap) = &self.tap {
            return Ok(Arc::clone(tap));
        }
        let tap = Arc::new(self.cluster()?.lab.tap()?);
        self.tap = Some(Arc::clone(&tap));
        Ok(tap)
    }

    /// Powers on a guest that ends with the story.
    pub(crate) fn guest(&mut self, blueprint: &Blueprint) -> Result<Machine> {
        let tools = self.cluster()?.lab.tools.clone();
        let machine = blueprint.start(&tools)?;
        self.guests.push(machine.clone());
        Ok(machine)
    }

    /// Powers on `worker-2` where it does not run, and waits until it is Ready. It stays until
    /// [`World::end_companion`].
    pub(crate) fn companion(&mut self) -> Result<()> {
        if self.companion.is_none() {
            let (blueprint, _) = self.second_worker("worker-2")?;
            let machine = blueprint.start(&self.cluster()?.lab.tools)?;
            self.companion = Some((blueprint, machine));
        }
        self.cluster()?.lab.wait_ready("worker-2", BOOT_LIMIT)
    }

    /// Cuts the power of `worker-2`, and gives it back after `meanwhile`.
    pub(crate) fn without_companion(
        &mut self,
        meanwhile: impl FnOnce(&Cluster) -> Result<()>,
    ) -> Result<()> {
        let (blueprint, machine) = self
            .companion
            .take()
            .ok_or_else(|| Error::Missing("worker-2 does not run".to_owned()))?;
        machine.cut_power()?;
        let cluster = self.cluster()?;
        meanwhile(cluster)?;
        let machine = blueprint.start(&cluster.lab.tools)?;
        self.companion = Some((blueprint, machine));
        Ok(())
    }

    /// Ends `worker-2`, where it runs.
    pub(crate) fn end_companion(&mut self) -> Result<()> {
        match self.companion.take() {
            Some((_, machine)) => machine.cut_power(),
            None => Ok(()),
        }
    }

    /// A worker's blueprint on the second slot, with the user-data that the inventory expects,
    /// registered.
    pub(crate) fn second_worker(&mut self, name: &str) -> Result<(Blueprint, PathBuf)> {
        let cluster = self.cluster()?;
        let (mut blueprint, text) = cluster.unregistered(name)?;
        let data = cluster.lab.give_user_data(&mut blueprint, &text)?;
        cluster
            .lab
            .register(name, &blueprint, &data, "192.168.77.12")?;
        Ok((blueprint, data))
    }

    /// Ends everything.
    pub(crate) fn end(&mut self) {
        let companion = self.companion.take().map(|(_, machine)| machine);
        let machines = self.guests.drain(..).chain(companion);
        let cluster = self.cluster.take();
        let registry = cluster.as_ref().map(|cluster| cluster.registry.clone());
        for machine in machines.chain(
            cluster
                .into_iter()
                .flat_map(|cluster| [cluster.worker, cluster.master]),
        ) {
            if let Err(error) = machine.cut_power() {
                println!("{}: {}", machine.name, tests_harness::chain(&error));
            }
        }
        if let Some(Err(error)) = registry.map(|registry| registry.stop()) {
            println!("registry: {}", tests_harness::chain(&error));
        }
    }

    fn make(&mut self) -> Result<Cluster> {
        let lab = lab()?;
        let registry = Registry::start(&lab.tools, &lab.dir.join("registry"), lab.registry_port)?;
        let terms = Terms {
            ttl: TTL,
            ranges: RANGES,
            ..Terms::default()
        };
        let mut master = lab.master()?;
        let text = lab.master_user_data(&terms)?;
        let data = lab.give_user_data(&mut master, &text)?;
        let running = master.start(&lab.tools)?;
        self.guests.push(running.clone());
        running.wait_services()?;
        let pin = lab.bootstrap(&master, &data)?;
        let mut worker = lab.worker("worker-1", GOOD_SLOT)?;
        let data = lab.give_user_data(&mut worker, &lab.worker_user_data(1, &pin))?;
        lab.register("worker-1", &worker, &data, "192.168.77.11")?;
        let good = worker.start(&lab.tools)?;
        self.guests.push(good.clone());
        lab.wait_ready("worker-1", BOOT_LIMIT)?;
        self.guests.clear();
        Ok(Cluster {
            lab,
            pin,
            master: running,
            master_blueprint: master,
            worker: good,
            worker_blueprint: worker,
            registry,
        })
    }
}

impl Cluster {
    /// Prints what the cluster looks like: who reads of a failed story has no machine to ask.
    fn show_state(&self) {
        for words in [
            &["get", "nodes,pods", "--all-namespaces", "-o", "wide"][..],
            &["events", "--all-namespaces"],
        ] {
            match self.lab.kubectl(words) {
                Ok(printed) => println!("$ kubectl {}\n{}", words.join(" "), ending(&printed)),
                Err(error) => println!("{}", tests_harness::chain(&error)),
            }
        }
        [&self.master, &self.worker]
            .into_iter()
            .for_each(show_console);
    }

    /// A second worker's blueprint and the user-data that it should have; the inventory does not
    /// know it.
    pub(crate) fn unregistered(&self, name: &str) -> Result<(Blueprint, String)> {
        let mut blueprint = self.lab.worker(name, OTHER_SLOT)?;
        std::fs::remove_file(blueprint.overlay_path()).ok();
        std::fs::remove_file(blueprint.console()).ok();
        let text = self
            .lab
            .worker_user_data(2, &self.pin)
            .replace("worker-2", name);
        self.lab.give_user_data(&mut blueprint, &text)?;
        Ok((blueprint, text))
    }

    /// Cuts the good worker's power, where it has any, and powers it on as this blueprint says.
    pub(crate) fn restart_worker(&mut self, blueprint: &Blueprint) -> Result<()> {
        self.worker.cut_power()?;
        self.worker = blueprint.start(&self.lab.tools)?;
        Ok(())
    }

    /// A machine's field by a `JSONPath` expression.
    pub(crate) fn machine_field(&self, name: &str, path: &str) -> Result<String> {
        self.lab.kubectl(&[
            "get",
            "machine",
            name,
            "-o",
            &format!("jsonpath={{{path}}}"),
        ])
    }

    /// Waits until a Machine is refused with a code, and checks that `kubectl describe machine`
    /// shows it and that no Ready node came of it.
    pub(crate) fn refused(&self, name: &str, code: &str, limit: Duration) -> Result<()> {
        let words = ["get", "machine", name, "-o", "jsonpath={.status.reason}"];
        self.lab.kubectl_until(
            &words,
            &format!("machine {name} to be refused with {code}"),
            limit,
            |text| text == code,
        )?;
        let described = self.lab.kubectl(&["describe", "machine", name])?;
        expect(
            described.contains(code),
            &format!("`kubectl describe machine {name}` does not show {code}:\n{described}"),
        )?;
        self.never_ready(name)
    }

    /// Checks that there is no Ready node of a name.
    pub(crate) fn never_ready(&self, name: &str) -> Result<()> {
        let nodes = self.lab.kubectl(&["get", "nodes", "--no-headers"])?;
        let ready = nodes
            .lines()
            .any(|line| line.starts_with(name) && line.split_whitespace().nth(1) == Some("Ready"));
        expect(!ready, &format!("{name} is Ready:\n{nodes}"))
    }
}

fn show_console(machine: &Machine) {
    let console = machine.console_text();
    println!(
        "the console of {} ends:\n{}",
        machine.name,
        ending(&console)
    );
}

/// The last [`SHOWN`] lines of a text.
fn ending(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    let first = lines.len().saturating_sub(SHOWN);
    lines.get(first..).unwrap_or_default().join("\n")
}

/// Fails with a sentence unless `holds`.
pub(crate) fn expect(holds: bool, sentence: &str) -> Result<()> {
    if holds {
        Ok(())
    } else {
        Err(Error::Missing(sentence.to_owned()))
    }
}

/// The clone.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .map(Path::to_owned)
        .unwrap_or_default()
}

/// The folder of the stories' files.
pub(crate) fn folder() -> PathBuf {
    root().join(".pratique/stories")
}

fn lab() -> Result<Lab> {
    let root = root();
    let workshop = root.join(".pratique");
    Ok(Lab {
        tools: Tools::find(&root)?,
        programs: workshop.join("bin"),
        images: workshop.join("images"),
        keys: workshop.join("keys"),
        dir: folder(),
        api_port: port::free()?,
        registry_port: port::free()?,
        discovery_port: port::free()?,
        cables: Lab::cables()?,
        // As often as it can be.
        network: "wireguard_key_period = \"5m\"\n",
    })
}
