//! One reading of all counters, and CPU per second since the reading before.

use crate::counters::{Counters, booted, cores};
use crate::io::{DeviceIo, devices, io_of_group};
use crate::links::{Link, default_link, links, of_node, of_pod};
use crate::rate::nano_cores;
use crate::subjects::{ContainerSubject, Disk, PodSubject, Subjects};
use agent_sys::cgroup::Groups;
use jiff::Timestamp;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Groups outside of the pods', by upstream's names of their content. Init makes the first two
/// (`agent/init`).
const SYSTEM: [(&str, &str); 4] = [
    ("kubelet", "/pratique/agent"),
    ("runtime", "/pratique/containerd"),
    // What upstream's `misc` has: programs of the machine that are none of these.
    ("misc", "/pratique/master"),
    ("pods", "/kubepods"),
];

/// Where counters are read.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    pub(crate) groups: Groups,
    pub(crate) proc: PathBuf,
}

impl Sources {
    fn machine(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.proc.join(file)).ok()
    }

    fn group(&self, path: &str) -> Counters {
        let read = |controller, file| self.groups.read(controller, path, file).ok();
        Counters::of_group(self.groups.version(), read)
    }

    /// Processes of a group without those below it.
    fn programs(&self, path: &str) -> Option<u64> {
        let all = self.groups.read("pids", path, "cgroup.procs").ok()?;
        u64::try_from(all.lines().count()).ok()
    }

    fn io(&self, path: &str, names: &HashMap<String, String>) -> Vec<DeviceIo> {
        let read = |controller, file| self.groups.read(controller, path, file).ok();
        io_of_group(self.groups.version(), read, names)
    }
}

/// What one group, or the machine, has used at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    pub(crate) at: Timestamp,
    pub(crate) counters: Counters,
    /// Billionths of a CPU since the reading before.
    pub(crate) nano_cores: Option<u64>,
    pub(crate) started: Option<Timestamp>,
}

impl Used {
    /// Whether the control group exists.
    pub(crate) fn is_known(&self) -> bool {
        self.counters.cpu.is_some() || self.counters.memory.is_some()
    }
}

/// A container, or a group of the machine's own programs.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    /// A container's; empty for others.
    pub(crate) image: String,
    pub(crate) group: String,
    pub(crate) used: Used,
    /// A container's processes; threads are no more of them.
    pub(crate) programs: Option<u64>,
    /// What a container has read and written, by device.
    pub(crate) io: Vec<DeviceIo>,
}

#[derive(Debug)]
pub(crate) struct PodUsed {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) group: String,
    pub(crate) used: Used,
    pub(crate) containers: Vec<Named>,
    /// Its own link, as the pod counts; none for one in the machine's network.
    pub(crate) link: Option<Link>,
}

/// One reading.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) taken: Instant,
    pub(crate) at: Timestamp,
    pub(crate) node: Used,
    pub(crate) system: Vec<Named>,
    pub(crate) pods: Vec<PodUsed>,
    /// The machine's own links.
    pub(crate) links: Vec<Link>,
    /// The name of the one by which packets leave the machine.
    pub(crate) default_link: Option<String>,
    pub(crate) disk: Disk,
    /// Logical processors; 0 if the kernel does not report them.
    pub(crate) cores: u64,
    /// Process ids that the machine has.
    pub(crate) most_ids: Option<u64>,
    /// Something could not be measured.
    pub(crate) incomplete: bool,
}

/// CPU time of the reading before, by group; the machine's own under an empty name.
struct Before<'a> {
    cpu: HashMap<&'a str, u64>,
    passed: Duration,
}

impl<'a> Before<'a> {
    fn of(reading: Option<&'a Reading>, now: Instant) -> Self {
        let mut cpu = HashMap::new();
        let Some(reading) = reading else {
            return Self {
                cpu,
                passed: Duration::ZERO,
            };
        };
        let containers = reading.pods.iter().flat_map(|pod| &pod.containers);
        let named = containers.chain(&reading.system);
        let groups = named.map(|one| (one.group.as_str(), one.used));
        let pods = reading
            .pods
            .iter()
            .map(|pod| (pod.group.as_str(), pod.used));
        let node = std::iter::once(("", reading.node));
        let known = groups.chain(pods).chain(node);
        cpu.extend(known.filter_map(|(group, used)| Some((group, used.counters.cpu?))));
        Self {
            cpu,
            passed: now.saturating_duration_since(reading.taken),
        }
    }

    fn used(&self, group: &str, counters: &Counters, started: Option<Timestamp>) -> Used {
        let before = self.cpu.get(group);
        Used {
            at: Timestamp::now(),
            nano_cores: before
                .zip(counters.cpu)
                .and_then(|(before, now)| nano_cores(*before, now, self.passed)),
            counters: *counters,
            started,
        }
    }
}

/// What the counters of groups are read with.
struct Meter<'a> {
    sources: &'a Sources,
    before: Before<'a>,
    /// Names of the machine's block devices, by their numbers.
    devices: HashMap<String, String>,
    /// All links of the machine's network.
    links: Vec<Link>,
}

impl Meter<'_> {
    /// A group of the machine's own programs, which init makes at the start.
    fn program(&self, name: &str, group: &str, since_boot: Option<Timestamp>) -> Named {
        Named {
            used: self.used(group, since_boot),
            programs: None,
            io: Vec::new(),
            name: name.to_owned(),
            image: String::new(),
            group: group.to_owned(),
        }
    }

    fn container(&self, one: ContainerSubject) -> Named {
        Named {
            used: self.used(&one.group, Some(one.started)),
            programs: self.sources.programs(&one.group),
            io: self.sources.io(&one.group, &self.devices),
            name: one.name,
            image: one.image,
            group: one.group,
        }
    }

    /// A pod with those of its containers that have a group.
    fn pod(&self, pod: PodSubject) -> PodUsed {
        let containers = pod.containers.into_iter().map(|one| self.container(one));
        let containers = containers.filter(|one| one.used.is_known()).collect();
        PodUsed {
            used: self.used(&pod.group, pod.started),
            namespace: pod.namespace,
            name: pod.name,
            uid: pod.uid,
            group: pod.group,
            link: of_pod(&self.links, &pod.link),
            containers,
        }
    }

    fn used(&self, group: &str, started: Option<Timestamp>) -> Used {
        self.before.used(group, &self.sources.group(group), started)
    }
}

impl Reading {
    /// Reads everything. Blocks: each counter is a small file of the kernel's.
    pub(crate) fn take(sources: &Sources, subjects: Subjects, last: Option<&Self>) -> Self {
        let taken = Instant::now();
        let before = Before::of(last, taken);
        let stat = sources.machine("stat").unwrap_or_default();
        let since_boot = booted(&stat).and_then(|at| Timestamp::from_second(at).ok());
        let of_machine = Counters::of_machine(|file| sources.machine(file));
        let node = before.used("", &of_machine, since_boot);
        let read = |file| sources.machine(file).unwrap_or_default();
        let meter = Meter {
            sources,
            before,
            devices: devices(&read("diskstats")),
            // Those of the calling thread's network.
            links: links(&read("thread-self/net/dev")),
        };
        let system = SYSTEM
            .iter()
            .map(|(name, group)| meter.program(name, group, since_boot))
            .filter(|one| one.used.is_known())
            .collect();
        let pods = subjects.pods.into_iter().map(|pod| meter.pod(pod));
        let pods: Vec<PodUsed> = pods.collect();
        // A container that has ended has no group; its pod has one as long as a container runs.
        let is_lost = |pod: &PodUsed| !pod.containers.is_empty() && !pod.used.is_known();
        let incomplete = subjects.incomplete || !node.is_known() || pods.iter().any(is_lost);
        Self {
            taken,
            at: node.at,
            node,
            system,
            pods,
            default_link: default_link(
                &read("thread-self/net/route"),
                &read("thread-self/net/ipv6_route"),
            ),
            links: of_node(meter.links, subjects.links_of_pods),
            disk: subjects.disk,
            cores: cores(&stat),
            most_ids: sources
                .machine("sys/kernel/pid_max")
                .and_then(|text| text.trim().parse().ok()),
            incomplete,
        }
    }
}
