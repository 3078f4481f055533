//! The pod sandboxes of this node: makes them, adopts those of an earlier agent, and removes them.

use crate::address::gateway;
use crate::error::Error;
use crate::flows::Flows;
use crate::ledger::Ledger;
use crate::link_settings::{pass_on, set_ipv6, set_link};
use crate::namespaces::{make_memory, make_namespaces};
use crate::peers::{self, Peer, Unreached};
use crate::rules::{self, Forwarding};
use crate::sandbox::{NEW_RECORD, RECORD, SHM, Sandbox, SandboxSpec, Step, link_name, macs};
use crate::shares::{self, Shares};
use crate::sizes::{Sizes, mtu};
use crate::tunnel::{Device, OVERHEAD, Plan, Renewal, Seen, led_into_the_tunnel, set_routes};
use agent_sys::mount::{detach, is_in_memory, is_mount_point};
use agent_sys::namespace::{self, Kind};
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::{Change, Filter};
use agent_sys::netlink::links::{Links, Route, VethPair};
use agent_sys::netlink::wireguard::{Key, Range};
use config_errors::chain;
use config_model::defaults::MAX_PODS;
use config_model::format::Cidr;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// The name of a pod's end of its veth pair, as CNI plugins have it.
const POD_LINK: &str = "eth0";
/// Largest record that is read.
const MAX_RECORD: u64 = 64 * 1024;

/// Where sandboxes are kept, and what the machine forwards.
#[derive(Debug, Clone)]
pub struct SandboxOptions {
    /// Folder of the sandboxes, `/run/pratique/pods`: on a tmpfs, with mounts that the container
    /// engine sees.
    pub run: PathBuf,
    /// The file of pods' addresses, on the disk: `/var/lib/pratique/pod-addresses.json`.
    pub ledger: PathBuf,
    /// The machine serves only Kubernetes: it forwards only packets of pods.
    pub kubernetes_only: bool,
    /// Pods of other machines are reached by the tunnel only.
    pub tunnel: bool,
}

/// The nftables tables of pods, and what they are computed from.
#[derive(Debug, Default)]
struct Rules {
    /// One for each address family in which the node has a range; empty before it has any.
    filters: BTreeMap<Family, Filter>,
    ranges: Vec<Cidr>,
    /// Pods' addresses, by the name of the veth pair.
    pods: BTreeMap<String, Vec<IpAddr>>,
    peers: Vec<Cidr>,
}

impl Rules {
    /// The whole table of a family.
    fn table(&self, family: Family, options: &SandboxOptions) -> Vec<Change> {
        let forwarding = Forwarding {
            kubernetes_only: options.kubernetes_only,
            tunnel: options.tunnel,
        };
        rules::all(family, &self.ranges, &self.pods, &self.peers, forwarding)
    }

    /// Replaces all tables.
    fn put(&mut self, options: &SandboxOptions) -> agent_sys::Result<()> {
        let families: Vec<Family> = self.filters.keys().copied().collect();
        for family in families {
            let table = self.table(family, options);
            if let Some(filter) = self.filters.get_mut(&family) {
                filter.apply(&table)?;
            }
        }
        Ok(())
    }

    /// Sets each pod's share of the connection table.
    fn share(&mut self, most_pods: u32) -> Result<(), Error> {
        let size = shares::set_table()?;
        let families = u32::try_from(self.filters.len()).unwrap_or(1);
        let each = Shares::of(size, most_pods, families);
        for (family, filter) in &mut self.filters {
            filter.apply(&shares::table(*family, each))?;
        }
        Ok(())
    }

    /// The families of the node's ranges.
    fn families(&self) -> BTreeSet<Family> {
        let all = self.ranges.iter();
        all.map(|range| Family::of(range.address)).collect()
    }
}

/// The sandboxes of this node. All calls block; several may run at once, for different pods.
#[derive(Debug)]
pub struct Sandboxes {
    options: SandboxOptions,
    /// Most pods that the machine may have.
    most_pods: u32,
    ledger: Mutex<Ledger>,
    rules: Mutex<Rules>,
    made: Mutex<BTreeMap<String, Sandbox>>,
    flows: Flows,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sandboxes {
    /// Finds the sandboxes of an earlier agent: complete ones are adopted, what a crash left is
    /// removed. The earlier nftables tables stay in force until [`Self::give_ranges`].
    ///
    /// # Errors
    /// If the folder can't be made or read, or something in it can't be removed.
    pub fn open(options: SandboxOptions) -> Result<Self, Error> {
        let run = &options.run;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(run)
            .map_err(Error::file("make", run))?;
        let own = Self {
            ledger: Mutex::new(Ledger::open(options.ledger.clone())),
            rules: Mutex::default(),
            made: Mutex::default(),
            flows: Flows::default(),
            most_pods: MAX_PODS,
            options,
        };
        for uid in own.folders()? {
            match own.recorded(&uid) {
                Some(sandbox) => own.adopt(sandbox)?,
                None => own.clear(&uid)?,
            }
        }
        own.remove_strays()?;
        Ok(own)
    }

    /// Sets the number of pods among which the machine's connection table is divided. To be called
    /// before the node has ranges.
    #[must_use]
    pub fn for_pods(self, most_pods: u32) -> Self {
        Self { most_pods, ..self }
    }

    /// Sets the node's ranges of pod addresses (`spec.podCIDRs`), applies the nftables tables, and
    /// turns on forwarding.
    ///
    /// # Errors
    /// If a range can't hold pods, or the kernel refuses; then pods keep what they have, and no new
    /// one gets an address.
    pub fn give_ranges(&self, ranges: &[Cidr]) -> Result<(), Error> {
        let mut rules = lock(&self.rules);
        if !rules.filters.is_empty() && rules.ranges == ranges {
            return Ok(());
        }
        for range in ranges {
            gateway(range)?;
        }
        if rules.filters.is_empty() && rules.peers.is_empty() {
            // The peers of an earlier agent: their packets stay accepted until the nodes are known
            // again; if there is a tunnel, only by the tunnel.
            rules.peers = if self.options.tunnel {
                led_into_the_tunnel()?
            } else {
                peers::routed()?
            };
        }
        let before = std::mem::replace(&mut rules.ranges, ranges.to_vec());
        let filters = std::mem::take(&mut rules.filters);
        let put = |rules: &mut Rules| {
            for family in rules.families() {
                rules.filters.insert(family, Filter::open(family)?);
            }
            rules.put(&self.options)?;
            rules.share(self.most_pods)?;
            // Nothing is forwarded before there is a table.
            rules.families().into_iter().try_for_each(pass_on)?;
            Ok::<_, Error>(())
        };
        let outcome = put(&mut rules);
        if outcome.is_err() {
            (rules.ranges, rules.filters) = (before, filters);
        }
        outcome
    }

    /// Replaces the list of other nodes: routes to their pods, and rules that accept packets from
    /// them and their pods. Nodes that are no longer in the list lose both. Packets to an untrusted
    /// node's pods are dropped, and so is what it and its pods send, on established connections
    /// too, and even if setting a route fails.
    ///
    /// # Errors
    /// If the kernel refuses; to be tried again. A node that is not on a segment of this one can't
    /// be a router: it is returned, and the others get their routes.
    pub fn give_peers(&self, peers: &[Peer]) -> Result<Vec<Unreached>, Error> {
        let unreached = peers::route(peers);
        // Also if a route failed: packets of a node that is no longer trusted must be dropped.
        self.let_in(peers::addresses(peers))?;
        unreached
    }

    /// Carries out the tunnel's plan, which is made from what the kernel holds, and renews a
    /// WireGuard key that is due; returns the plan and the node's public keys. Peers that the plan
    /// no longer has are removed before others are added.
    ///
    /// # Errors
    /// If the node has no range of pod addresses yet, or the kernel refuses; to be tried again.
    pub(crate) fn keep_tunnel(
        &self,
        device: &mut Device,
        plan: impl FnOnce(&Seen) -> Plan,
    ) -> Result<(Plan, [Key; 2]), Error> {
        let own = self.own_addresses();
        let own: Vec<IpAddr> = own.into_iter().map(|(address, _)| address).collect();
        if own.is_empty() {
            return Err(Error::NoRange);
        }
        let mut seen = device.ensure_links(&own)?;
        let plan = plan(&seen);
        device.set_peers(&seen, &plan)?;
        let range = |range: &Range| Cidr {
            address: range.address,
            prefix: range.prefix,
        };
        let all = plan.routes.keys().map(range).collect();
        self.let_in(all)?;
        if seen.routes != plan.routes {
            set_routes(&plan.routes)?;
        }
        if let Renewal::Due(slot) = plan.renewal {
            device.renew(slot)?;
            seen = device.ensure_links(&own)?;
        }
        let keys = seen.keys().ok_or(Error::NoKey)?;
        Ok((plan, keys))
    }

    /// Accepts packets from these addresses of other nodes and their pods to pods here.
    pub(crate) fn let_in(&self, peers: Vec<Cidr>) -> Result<(), Error> {
        let mut rules = lock(&self.rules);
        if rules.peers != peers {
            let before = std::mem::replace(&mut rules.peers, peers);
            if let Err(error) = rules.put(&self.options) {
                // A part of the tables may have changed; the next try replaces all.
                rules.peers = before;
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// The node's own addresses in its ranges; none before it has ranges.
    pub fn own_addresses(&self) -> Vec<(IpAddr, Cidr)> {
        let ranges = lock(&self.rules).ranges.clone();
        let own = ranges.into_iter();
        own.filter_map(|range| Some((gateway(&range).ok()?, range)))
            .collect()
    }

    /// The address families of pods here; none before the node has ranges.
    pub fn families(&self) -> BTreeSet<Family> {
        lock(&self.rules).families()
    }

    /// The sandbox of a pod, made where there is none.
    ///
    /// # Errors
    /// If the node has no range yet, no address is free, or the kernel refuses a step; the next try
    /// or [`Self::remove`] removes what was made until then.
    pub fn make(&self, wanted: &SandboxSpec) -> Result<Sandbox, Error> {
        if let Some(made) = self.find(&wanted.uid) {
            return Ok(made);
        }
        self.clear(&wanted.uid)?;
        self.begin(wanted, &Step::ALL)
    }

    /// The sandbox of a pod, if it has one.
    pub fn find(&self, uid: &str) -> Option<Sandbox> {
        lock(&self.made).get(uid).cloned()
    }

    /// The addresses of all pods that have a sandbox, by uid.
    pub fn addresses(&self) -> Vec<(String, Vec<IpAddr>)> {
        let made = lock(&self.made);
        made.iter()
            .map(|(uid, sandbox)| (uid.clone(), sandbox.addresses.clone()))
            .collect()
    }

    /// Removes a pod's sandbox and the UDP flows that it started, and releases its addresses and
    /// ids. Namespaces live on as long as a process is in them.
    ///
    /// # Errors
    /// If something can't be removed; to be tried again.
    pub fn remove(&self, uid: &str) -> Result<(), Error> {
        self.clear(uid)?;
        let addresses = lock(&self.ledger).table.of(uid).map(<[IpAddr]>::to_vec);
        // After its link, so that no flow starts again. If the kernel can't list flows, the pod is
        // removed all the same.
        if let Err(error) = self.flows.forget(&addresses.unwrap_or_default()) {
            tracing::warn!(
                pod = uid,
                error = chain(&error),
                "cannot delete UDP conntrack entries of a pod that is gone"
            );
        }
        lock(&self.ledger).change(|table| {
            let had = table.take_back(uid);
            Ok(((), had))
        })
    }

    /// The uids of pods that have a sandbox, a part of one, or addresses here.
    pub fn uids(&self) -> BTreeSet<String> {
        let of_ledger: Vec<String> = lock(&self.ledger).table.uids().map(str::to_owned).collect();
        self.folders()
            .unwrap_or_default()
            .into_iter()
            .chain(of_ledger)
            .collect()
    }

    fn begin(&self, wanted: &SandboxSpec, steps: &[Step]) -> Result<Sandbox, Error> {
        let mut sandbox = Sandbox {
            wanted: wanted.clone(),
            addresses: Vec::new(),
            first_id: None,
            folder: self.options.run.join(&wanted.uid),
        };
        if wanted.network && lock(&self.rules).ranges.is_empty() {
            return Err(Error::NoRange);
        }
        let of_it = |step: &&Step| wanted.network || !step.is_of_network();
        let lost =
            || Error::file("write", &self.options.ledger)(io::Error::other("its thread panicked"));
        // Flushing the ledger of addresses takes milliseconds; the steps that need no address run
        // meanwhile.
        thread::scope(|scope| {
            let mut writing = None::<thread::ScopedJoinHandle<'_, _>>;
            for step in steps.iter().filter(of_it) {
                if let Some(writing) = writing.take_if(|_| step.is_of_network()) {
                    sandbox.addresses = writing.join().map_err(|_panic| lost())??;
                }
                if *step == Step::Address {
                    writing = Some(scope.spawn(|| self.give_addresses(&wanted.uid)));
                }
                self.act(*step, &mut sandbox)?;
            }
            Ok(sandbox)
        })
    }

    /// Gives a pod its addresses, and records them on the disk.
    fn give_addresses(&self, uid: &str) -> Result<Vec<IpAddr>, Error> {
        let ranges = lock(&self.rules).ranges.clone();
        lock(&self.ledger).change(|table| {
            let changed = table.give(uid, &ranges)?;
            Ok((table.of(uid).unwrap_or_default().to_vec(), changed))
        })
    }

    fn act(&self, step: Step, sandbox: &mut Sandbox) -> Result<(), Error> {
        match step {
            Step::Folder => make_folder(&sandbox.folder),
            // Addresses are given by another thread, beside the steps that need none.
            Step::Address => Ok(()),
            Step::Ids if !sandbox.wanted.users => Ok(()),
            Step::Ids => {
                let uid = sandbox.wanted.uid.clone();
                sandbox.first_id = lock(&self.ledger).change(|table| {
                    let changed = table.users.give(&uid).map_err(|_full| Error::NoIds)?;
                    Ok((table.users.of(&uid), changed))
                })?;
                Ok(())
            }
            Step::Namespaces => make_namespaces(sandbox),
            Step::Memory => make_memory(sandbox),
            Step::Rules => self.admit(sandbox),
            Step::VethPair => self.add_veth_pair(sandbox),
            Step::NearEnd => self.set_near_end(sandbox),
            Step::FarEnd => self.set_far_end(sandbox),
            Step::Record => self.record(sandbox),
        }
    }

    fn admit(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let link = link_name(&sandbox.wanted.uid);
        let mut rules = lock(&self.rules);
        rules.pods.insert(link.clone(), sandbox.addresses.clone());
        for address in &sandbox.addresses {
            let change = rules::admit(&link, *address);
            self.apply(&mut rules, Family::of(*address), change)?;
        }
        Ok(())
    }

    /// Changes one set element. If the kernel refuses, its table is not the one that this agent
    /// made, and is replaced.
    fn apply(&self, rules: &mut Rules, family: Family, change: Change) -> Result<(), Error> {
        let filter = rules.filters.get_mut(&family).ok_or(Error::NoRange)?;
        if filter.apply(&[change]).is_err() {
            let table = rules.table(family, &self.options);
            let filter = rules.filters.get_mut(&family).ok_or(Error::NoRange)?;
            filter.apply(&table)?;
        }
        Ok(())
    }

    fn gateways(&self) -> Result<Vec<IpAddr>, Error> {
        lock(&self.rules).ranges.iter().map(gateway).collect()
    }

    fn add_veth_pair(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let uid = &sandbox.wanted.uid;
        let (mac, far_mac) = macs(uid);
        let path = sandbox.folder.join(Kind::Network.name());
        let far = File::open(&path).map_err(Error::file("open", &path))?;
        let mut links = Links::open()?;
        let mtu = self.sizes(&mut links)?.inside;
        links.add_veth_pair(&VethPair {
            name: &link_name(uid),
            mac,
            far_name: POD_LINK,
            far_mac,
            far: far.as_fd(),
            mtu,
        })?;
        Ok(())
    }

    /// The sizes of pods' packets.
    fn sizes(&self, links: &mut Links) -> agent_sys::Result<Sizes> {
        let around = if self.options.tunnel { OVERHEAD } else { 0 };
        Ok(Sizes::of(mtu(links)?.saturating_sub(around)))
    }

    fn set_near_end(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let name = link_name(&sandbox.wanted.uid);
        set_link(&name)?;
        // The machine's programs call ports of pods at its loopback addresses, too. Pods are kept
        // from those by the rules.
        namespace::set(&format!("net/ipv4/conf/{name}/route_localnet"), "1")?;
        let gateways = self.gateways()?;
        set_ipv6(&name, &gateways)?;
        let mut links = Links::open()?;
        let index = index_of(&mut links, &name)?;
        let sizes = self.sizes(&mut links)?;
        sizes.widen(&name, Sizes::of_node(), &mut links)?;
        links.switch_on(index)?;
        for gateway in gateways {
            links.add_address(index, gateway, Family::of(gateway).bits())?;
        }
        let (_, far) = macs(&sandbox.wanted.uid);
        for address in &sandbox.addresses {
            links.add_route(&host_route(*address, index))?;
            links.fix_neighbour(index, *address, far)?;
        }
        Ok(())
    }

    fn set_far_end(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let own = self.own_addresses();
        let sizes = self.sizes(&mut Links::open()?)?;
        let (near, _) = macs(&sandbox.wanted.uid);
        let network = sandbox.folder.join(Kind::Network.name());
        namespace::inside(&[(Kind::Network, &network)], || {
            set_ipv6(POD_LINK, &sandbox.addresses)?;
            let mut links = Links::open()?;
            let index = index_of(&mut links, POD_LINK)?;
            sizes.widen(POD_LINK, sizes.of_pod(), &mut links)?;
            links.switch_on(index)?;
            for address in &sandbox.addresses {
                links.add_address(index, *address, Family::of(*address).bits())?;
            }
            for (gateway, range) in &own {
                links.add_route_for(&host_route(*gateway, index), sizes.outside)?;
                links.fix_neighbour(index, *gateway, near)?;
                let everywhere: IpAddr = match Family::of(*gateway) {
                    Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
                    Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
                };
                let by_node = |destination, prefix| Route {
                    destination,
                    prefix,
                    gateway: Some(*gateway),
                    link: index,
                };
                links.add_route_for(&by_node(everywhere, 0), sizes.outside)?;
                links.add_route(&by_node(range.network(), range.prefix))?;
            }
            Ok(())
        })?;
        Ok(())
    }

    fn record(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let (new, path) = (sandbox.folder.join(NEW_RECORD), sandbox.folder.join(RECORD));
        let text = serde_json::to_vec(sandbox)
            .map_err(|error| Error::file("write", &path)(error.into()))?;
        fs::write(&new, text).map_err(Error::file("write", &new))?;
        fs::rename(&new, &path).map_err(Error::file("write", &path))?;
        lock(&self.made).insert(sandbox.wanted.uid.clone(), sandbox.clone());
        Ok(())
    }

    /// The uids of pods that have a folder here.
    fn folders(&self) -> Result<Vec<String>, Error> {
        let run = &self.options.run;
        let fault = || Error::file("list", run);
        let mut found = Vec::new();
        for entry in fs::read_dir(run).map_err(fault())? {
            let name = entry.map_err(fault())?.file_name();
            found.extend(name.into_string().ok());
        }
        Ok(found)
    }

    /// The sandbox that a pod's record describes, if all parts of it exist.
    fn recorded(&self, uid: &str) -> Option<Sandbox> {
        let folder = self.options.run.join(uid);
        let mut bytes = Vec::new();
        let file = File::open(folder.join(RECORD)).ok()?;
        file.take(MAX_RECORD).read_to_end(&mut bytes).ok()?;
        let read: Sandbox = serde_json::from_slice(&bytes).ok()?;
        let sandbox = Sandbox { folder, ..read };
        let kinds = sandbox.wanted.kinds();
        let held = |kind: &Kind| {
            sandbox
                .held(*kind)
                .is_some_and(|path| namespace::is_held(&path))
        };
        let pair = !sandbox.wanted.network || has_link(&link_name(uid));
        let ids = sandbox.wanted.users == sandbox.first_id.is_some();
        let whole = ids && kinds.iter().all(held) && pair;
        (sandbox.wanted.uid == uid && whole).then_some(sandbox)
    }

    fn adopt(&self, sandbox: Sandbox) -> Result<(), Error> {
        let uid = sandbox.wanted.uid.clone();
        lock(&self.ledger).change(|table| {
            let addresses = table.keep(&uid, &sandbox.addresses);
            let ids = sandbox.first_id.map(|first| table.users.keep(&uid, first));
            Ok(((), addresses || ids == Some(true)))
        })?;
        let mut rules = lock(&self.rules);
        let addresses = sandbox.addresses.clone();
        if !addresses.is_empty() {
            rules.pods.insert(link_name(&uid), addresses);
        }
        lock(&self.made).insert(uid, sandbox);
        Ok(())
    }

    /// Removes veth pairs whose pods have no sandbox.
    fn remove_strays(&self) -> Result<(), Error> {
        let known = lock(&self.rules).pods.clone();
        let mut links = Links::open()?;
        for link in links.all()? {
            if link.name.starts_with(rules::LINKS) && !known.contains_key(&link.name) {
                links.remove(&link.name)?;
            }
        }
        Ok(())
    }

    /// Removes all of a pod's sandbox but its addresses: the record first, so that what is left of
    /// an interrupted removal is not adopted.
    fn clear(&self, uid: &str) -> Result<(), Error> {
        lock(&self.made).remove(uid);
        let folder = self.options.run.join(uid);
        for name in [RECORD, NEW_RECORD] {
            absent(fs::remove_file(folder.join(name)), "remove", &folder)?;
        }
        let link = link_name(uid);
        Links::open()?.remove(&link)?;
        self.dismiss(&link)?;
        for kind in Kind::ALL {
            namespace::release(&folder.join(kind.name()))?;
        }
        let shm = folder.join(SHM);
        while is_mount_point(&shm.to_string_lossy()) && is_in_memory(&shm) {
            detach(&shm.to_string_lossy())?;
        }
        absent(fs::remove_dir(&shm), "remove", &shm)?;
        absent(fs::remove_dir(&folder), "remove", &folder)
    }

    /// Removes a pod's addresses from the filter. Those that an earlier agent added disappear when
    /// the table is replaced.
    fn dismiss(&self, link: &str) -> Result<(), Error> {
        let mut rules = lock(&self.rules);
        for address in rules.pods.remove(link).unwrap_or_default() {
            let family = Family::of(address);
            if rules.filters.contains_key(&family) {
                self.apply(&mut rules, family, rules::dismiss(link, address))?;
            }
        }
        Ok(())
    }
}

fn make_folder(folder: &Path) -> Result<(), Error> {
    fs::create_dir(folder).map_err(Error::file("make", folder))
}

/// A route to one address on a link.
fn host_route(address: IpAddr, link: u32) -> Route {
    Route {
        destination: address,
        prefix: Family::of(address).bits(),
        gateway: None,
        link,
    }
}

pub(crate) fn index_of(links: &mut Links, name: &str) -> agent_sys::Result<u32> {
    let missing = || {
        agent_sys::Error::new(
            "find the link",
            name,
            io::Error::from(io::ErrorKind::NotFound),
        )
    };
    Ok(links.named(name)?.ok_or_else(missing)?.index)
}

fn has_link(name: &str) -> bool {
    Links::open()
        .and_then(|mut links| links.named(name))
        .is_ok_and(|link| link.is_some())
}

fn absent(result: io::Result<()>, what: &'static str, path: &Path) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::file(what, path)(error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
#[path = "sandboxes_tests.rs"]
mod tests;
