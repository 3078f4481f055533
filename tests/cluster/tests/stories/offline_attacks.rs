//! The strongest attacks by someone with disk and board while the power is off: the state is
//! encrypted by a key that he does not get, so that he can bring a state of his own, another
//! machine's, or parts of an older one, or spoil it. A worker's outcome is always one of two: its
//! own state as it left it, or a new one, with the reason on its Node.

use crate::join::{by_discovery, pod};
use crate::older_disk::STATE_RENEWED;
use crate::older_document::Endpoint;
use crate::planted_state;
use crate::world::{Cluster, World, expect};
use agent_volume::header::{COPIES, DATA_OFFSET, Header, VolumeKey};
use agent_volume::{Kept, header};
use config_model::format::Cidr;
use config_tpm::Digest;
use config_unlock::approvals::INDEX_ATTRIBUTES;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use tests_harness::cluster::BOOT_LIMIT;
use tests_harness::disk::{Disk, Extent};
use tests_harness::machine::Blueprint;
use tests_harness::tpm::Foreign;
use tests_harness::wait::eventually;
use tests_harness::{Error, Result, file_error, xts};

/// The state's partition.
const LABEL: &str = "pratique-state";
/// The TPM's indices of the state's key.
const INDICES: [&str; 2] = ["0x1807072", "0x1807073"];
/// Bytes in each.
const INDEX_SIZE: usize = 48;
/// Bytes that are encrypted at once.
const SECTOR: usize = xts::SECTOR;

/// A foreign system on the board, with the owner hierarchy in its hands, puts a key of its own into
/// the TPM, as like to the machine's as can be, and onto the disk a volume that this key opens,
/// with something planted for everything that reads the state. The machine trusts neither, makes
/// its state anew, and reports why. From now on it finds its master by discovery, and with its
/// state it has lost what it knew of that: its measured configuration says which generation is the
/// least, and keeps it from an endpoint that serves an older one.
pub(crate) fn a_volume_and_key_planted_by_the_tpms_owner_are_not_trusted(
    world: &mut World,
) -> Result<()> {
    let cluster = world.cluster()?;
    let mut victim = Victim::start(cluster, "owned")?;
    let endpoint = Endpoint::start(&cluster.lab)?;
    cluster.worker.cut_power()?;
    discovers(cluster, &mut victim, &endpoint)?;
    let dir = folder(cluster, "owned")?;
    let kept = Kept::random(0).map_err(|error| Error::Missing(error.to_string()))?;
    plant_key(cluster, &dir, &kept)?;

    let disk = victim.disk(cluster)?;
    let extent = disk.partition(LABEL)?;
    let key = header::random_volume_key().map_err(|error| Error::Missing(error.to_string()))?;
    let sealed = Header::seal(kept.generation, &key, &kept.key, None)
        .map_err(|error| Error::Missing(error.to_string()))?;
    let opened = sealed.open(&kept.key);
    expect(
        opened.as_deref() == Some(&*key),
        "the planted key does not open the planted header",
    )?;
    for copy in COPIES {
        disk.write(extent.start + copy, &sealed.to_bytes())?;
    }
    let file = victim.planted(cluster, &dir, &key)?;
    let mut bytes = std::fs::read(&file).map_err(file_error("cannot read", &file))?;
    xts::encrypt(&key, 0, &mut bytes);
    disk.write(extent.start + DATA_OFFSET, &bytes)?;
    disk.give_to(&victim.blueprint, &cluster.lab.tools)?;
    let mark = cluster.worker.mark();
    victim.renewed(cluster, "ForeignIndex")?;
    let console = cluster.worker.console_text();
    endpoint.expect_found(console.get(mark..).unwrap_or_default())
}

/// The same state, as a plain file system in place of the volume.
pub(crate) fn a_plain_file_system_in_the_volumes_place_is_not_trusted(
    world: &mut World,
) -> Result<()> {
    let cluster = world.cluster()?;
    let mut victim = Victim::start(cluster, "plain")?;
    cluster.worker.cut_power()?;
    let dir = folder(cluster, "plain")?;
    let disk = victim.disk(cluster)?;
    let extent = disk.partition(LABEL)?;
    let key = header::random_volume_key().map_err(|error| Error::Missing(error.to_string()))?;
    let file = victim.planted(cluster, &dir, &key)?;
    let bytes = std::fs::read(&file).map_err(file_error("cannot read", &file))?;
    disk.write(extent.start, &bytes)?;
    disk.give_to(&victim.blueprint, &cluster.lab.tools)?;
    victim.renewed(cluster, "NoHeader")
}

/// The whole disk of another machine, with its state: the machine makes a new state and keeps its
/// identity.
pub(crate) fn another_machines_disk_is_not_trusted(world: &mut World) -> Result<()> {
    let (other, _) = world.second_worker("neighbour")?;
    let guest = world.guest(&other)?;
    guest.wait("state made", BOOT_LIMIT)?;
    guest.wait("state mounted", BOOT_LIMIT)?;
    guest.cut_power()?;
    let cluster = world.cluster()?;
    let mut victim = Victim::start(cluster, "swapped")?;
    let ek = cluster.machine_field("worker-1", ".spec.ek")?;
    cluster.worker.cut_power()?;
    let (theirs, own) = (other.overlay_path(), victim.blueprint.overlay_path());
    std::fs::copy(&theirs, &own).map_err(file_error("cannot copy", &theirs))?;
    victim.renewed(cluster, "OtherKey")?;
    expect(
        cluster.machine_field("worker-1", ".spec.ek")? == ek,
        "worker-1 is another machine",
    )?;
    cluster.never_ready("neighbour")
}

/// Everything behind the header is set back to what it was before the machine's last boot, and the
/// header is not: the file system is whole, and of the past.
pub(crate) fn older_data_behind_the_current_header_is_not_trusted(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    let mut victim = Victim::start(cluster, "past")?;
    let (older, newer) = two_copies(cluster, &mut victim)?;
    let data = data(&newer)?;
    for place in newer.differences(&older, data, SECTOR)? {
        newer.write(place, &older.read(place, SECTOR)?)?;
    }
    newer.give_to(&victim.blueprint, &cluster.lab.tools)?;
    let mark = cluster.worker.mark();
    victim.renewed(cluster, "Damaged")?;
    let console = cluster.worker.console_text();
    let new_lines = console.get(mark..).unwrap_or_default();
    expect(
        new_lines.contains("of generation") && new_lines.contains("the files are an older copy"),
        "the console does not say that the state is older than its header",
    )
}

/// Sectors of journal, metadata and files (what changes from boot to boot) are set back or spoiled
/// at random: the machine comes up with its own state or a new one, and is itself. It does not
/// hang, nor does its kernel panic.
pub(crate) fn corrupted_sectors_end_in_the_machines_own_state_or_a_new_one(
    world: &mut World,
) -> Result<()> {
    let cluster = world.cluster()?;
    let mut victim = Victim::start(cluster, "spoiled")?;
    let (older, newer) = two_copies(cluster, &mut victim)?;
    let changed = newer.differences(&older, data(&newer)?, SECTOR)?;
    expect(!changed.is_empty(), "nothing changed from boot to boot")?;
    let mut random = Random(0x5eed);
    for place in changed {
        match random.next() % 4 {
            0 => newer.write(place, &older.read(place, SECTOR)?)?,
            1 => {
                let at = random.next() % (SECTOR as u64);
                let byte = newer.read(place + at, 1)?;
                newer.write(place + at, &[byte[0] ^ 0x40])?;
            }
            _ => {}
        }
    }
    newer.give_to(&victim.blueprint, &cluster.lab.tools)?;
    let ek = cluster.machine_field("worker-1", ".spec.ek")?;
    let console = victim.until_a_state(cluster)?;
    println!("with spoiled sectors the machine says: {console}");
    victim.runs_again(cluster)?;
    expect(
        cluster.machine_field("worker-1", ".spec.ek")? == ek,
        "worker-1 is another machine",
    )
}

/// A pod on the good worker that is there before and after.
struct Victim {
    name: &'static str,
    uid: String,
    /// Its container of the last boot.
    container: String,
    blueprint: Blueprint,
}

impl Victim {
    fn start(cluster: &Cluster, name: &'static str) -> Result<Self> {
        let script = "echo scratch: $(ls /scratch); exec /bin/busybox sleep 100000";
        // With an address of its own.
        let manifest = pod(name, "worker-1", script).replace("  hostNetwork: true\n", "");
        let manifest = format!(
            "{manifest}    volumeMounts: [{{name: scratch, mountPath: /scratch}}]\n  \
             volumes: [{{name: scratch, emptyDir: {{}}}}]\n"
        );
        cluster.apply(name, &manifest)?;
        cluster.pod_phase(name, "Running")?;
        let words = ["get", "pod", name, "-o", "jsonpath={.metadata.uid}"];
        let mut victim = Self {
            name,
            uid: cluster.lab.kubectl(&words)?,
            container: String::new(),
            blueprint: cluster.worker_blueprint.clone(),
        };
        victim.container(cluster)?;
        Ok(victim)
    }

    /// Waits until the pod is ready in a container that it had not before: one of the machine's
    /// present boot.
    fn container(&mut self, cluster: &Cluster) -> Result<()> {
        let status = "jsonpath={.status.containerStatuses[0].ready} {.status.containerStatuses[0].containerID}";
        let words = ["get", "pod", self.name, "-o", status];
        let text = cluster.lab.kubectl_until(
            &words,
            "the pod in a new container",
            BOOT_LIMIT,
            |text| {
                text.strip_prefix("true ")
                    .is_some_and(|id| !id.is_empty() && id != self.container)
            },
        )?;
        text.strip_prefix("true ")
            .unwrap_or_default()
            .clone_into(&mut self.container);
        Ok(())
    }

    /// A file with a state that is planted for the machine and this pod, for a volume with this
    /// key.
    fn planted(&self, cluster: &Cluster, dir: &Path, key: &VolumeKey) -> Result<PathBuf> {
        let addresses = planted_addresses(cluster)?;
        let pod = planted_state::Pod {
            name: self.name,
            uid: &self.uid,
            addresses: &addresses,
        };
        planted_state::state(&cluster.lab.tools, dir, &pod, key)
    }

    /// The machine's disk, to be changed.
    fn disk(&self, cluster: &Cluster) -> Result<Disk> {
        let path = folder(cluster, self.name)?.join("disk.raw");
        Disk::copy_of(&self.blueprint, &cluster.lab.tools, &path)
    }

    /// Powers the machine on and waits until its Node shows a new state that was made for this
    /// reason, is Ready, and shows nothing of the state that was planted.
    fn renewed(&mut self, cluster: &mut Cluster, reason: &str) -> Result<()> {
        let mark = cluster.worker.mark();
        let line = self.until_a_state(cluster)?;
        expect(
            line.contains("the state did not open and was made anew"),
            &format!("the planted state is trusted: {line}"),
        )?;
        let wanted = format!("True {reason}");
        let words = ["get", "node", "worker-1", "-o", STATE_RENEWED];
        cluster
            .lab
            .kubectl_until(&words, &wanted, BOOT_LIMIT, |text| text == wanted)?;
        self.runs_again(cluster)?;
        let words = ["get", "node", "worker-1", "-o"];
        let images = "jsonpath={.status.images[*].names}";
        let images = cluster.lab.kubectl_until(
            &[&words[..], &[images]].concat(),
            "the Node's images",
            BOOT_LIMIT,
            |text| text.contains("busybox"),
        )?;
        expect(
            !images.contains(planted_state::WORD),
            &format!("the Node lists an image that was planted: {images}"),
        )?;
        let console = cluster.worker.console_text();
        expect(
            !console
                .get(mark..)
                .unwrap_or_default()
                .lines()
                .any(|line| line.trim() == planted_state::WORD),
            "something that was planted was run",
        )
    }

    /// Waits until the machine is Ready and the pod runs on it in a container of this boot; then
    /// removes it.
    fn runs_again(&mut self, cluster: &Cluster) -> Result<()> {
        cluster.lab.wait_ready("worker-1", BOOT_LIMIT)?;
        self.container(cluster)?;
        for previous in [false, true] {
            let flag = format!("--previous={previous}");
            let log = cluster.lab.kubectl(&["logs", self.name, &flag]);
            let log = log.unwrap_or_else(|error| tests_harness::chain(&error));
            expect(
                !log.contains(planted_state::WORD) && !log.contains("release_key"),
                &format!("the pod's log shows what was planted: {log}"),
            )?;
        }
        self.has_nothing_planted(cluster)?;
        let delete = ["delete", "pod", self.name, "--timeout=600s"];
        cluster.lab.kubectl(&delete).map(drop)
    }

    /// Nor does the machine show what was planted of its agent's: addresses, containers, logs.
    fn has_nothing_planted(&self, cluster: &Cluster) -> Result<()> {
        let status = "jsonpath={.status.podIPs[*].ip} {.status.containerStatuses[0].restartCount}";
        let words = ["get", "pod", self.name, "-o", status];
        let shown = cluster.lab.kubectl(&words)?;
        let planted = planted_addresses(cluster)?;
        let word_is_planted = |word: &str| {
            word.parse().is_ok_and(|address| planted.contains(&address))
                || word
                    .parse()
                    .is_ok_and(|restarts: u32| restarts >= planted_state::RESTARTS)
        };
        let words: Vec<&str> = shown.split_whitespace().collect();
        expect(
            words.len() == planted.len() + 1 && !words.into_iter().any(word_is_planted),
            &format!("the pod has planted addresses or restarts: {shown}"),
        )?;
        let logs = "/api/v1/nodes/worker-1/proxy/logs/?query=agent";
        let logs = cluster.lab.kubectl(&["get", "--raw", logs])?;
        expect(
            logs.contains(" agent: ") && !logs.contains(planted_state::WORD),
            &format!("the machine's log was planted, or there is none: {logs}"),
        )
    }

    /// Powers the machine on and waits until it has a state, its own or a new one, over the reboots
    /// that it makes by itself. Returns the console line that shows it.
    fn until_a_state(&self, cluster: &mut Cluster) -> Result<String> {
        let mark = cluster.worker.mark();
        cluster.restart_worker(&self.blueprint)?;
        let machine = cluster.worker.clone();
        let hint = "see worker-1/console.log";
        eventually("a state on worker-1", BOOT_LIMIT, hint, || {
            let console = machine.console_text();
            let new = console.get(mark..).unwrap_or_default();
            let stopped = |line: &&str| line.contains("Kernel panic") || line.contains("BUG:");
            if let Some(line) = new.lines().find(stopped) {
                return Err(Error::Missing(format!("the kernel says {line}")));
            }
            let is_outcome = |line: &&str| {
                line.contains("state opened generation=") || line.contains("was made anew, for")
            };
            Ok(new.lines().find(is_outcome).map(str::to_owned))
        })
    }
}

/// From its next boot on the worker, whose power is off, finds its master by discovery.
fn discovers(cluster: &mut Cluster, victim: &mut Victim, endpoint: &Endpoint) -> Result<()> {
    let text = by_discovery(
        &cluster.lab.worker_user_data(1, &cluster.pin),
        &endpoint.block,
    )?;
    let data = cluster.lab.give_user_data(&mut victim.blueprint, &text)?;
    cluster.worker_blueprint = victim.blueprint.clone();
    cluster
        .lab
        .register("worker-1", &victim.blueprint, &data, "192.168.77.11")
}

/// An address of each of the worker's ranges that its agent gives to no pod of a story, as it
/// begins with the first.
fn planted_addresses(cluster: &Cluster) -> Result<Vec<IpAddr>> {
    let words = ["get", "node", "worker-1", "-o"];
    let ranges = "jsonpath={.spec.podCIDRs[*]}";
    let ranges = cluster.lab.kubectl(&[&words[..], &[ranges]].concat())?;
    let address = |range: &str| {
        let range: Cidr = range.parse().ok()?;
        Some(match range.network() {
            IpAddr::V4(network) => Ipv4Addr::from_bits(network.to_bits() + 200).into(),
            IpAddr::V6(network) => Ipv6Addr::from_bits(network.to_bits() + 200).into(),
        })
    };
    let found: Option<Vec<IpAddr>> = ranges.split_whitespace().map(address).collect();
    found
        .filter(|found| found.len() == 2)
        .ok_or_else(|| Error::Missing(format!("the ranges of worker-1 are {ranges:?}")))
}

/// What lies behind the header, of the state's partition.
fn data(disk: &Disk) -> Result<Extent> {
    let whole = disk.partition(LABEL)?;
    Ok(Extent {
        start: whole.start + DATA_OFFSET,
        length: (whole.length - DATA_OFFSET) / SECTOR as u64 * SECTOR as u64,
    })
}

/// Copies of the worker's disk: of now, and of after its next boot. The power stays off.
fn two_copies(cluster: &mut Cluster, victim: &mut Victim) -> Result<(Disk, Disk)> {
    let dir = folder(cluster, victim.name)?;
    let tools = cluster.lab.tools.clone();
    cluster.worker.cut_power()?;
    let older = Disk::copy_of(&victim.blueprint, &tools, &dir.join("older.raw"))?;
    let mark = cluster.worker.mark();
    cluster.restart_worker(&victim.blueprint)?;
    cluster
        .worker
        .wait_after(mark, "state opened generation=", BOOT_LIMIT)?;
    victim.container(cluster)?;
    cluster.worker.cut_power()?;
    let newer = Disk::copy_of(&victim.blueprint, &tools, &dir.join("newer.raw"))?;
    Ok((older, newer))
}

/// As the owner of the hierarchy: removes what the TPM keeps of the state, after an attempt to read
/// it, and puts there an index of the machine's own policy that he can write, too, with a key of
/// his; and one that is the machine's own in every bit, which he can't write.
fn plant_key(cluster: &Cluster, dir: &Path, kept: &Kept) -> Result<()> {
    let (tools, blueprint) = (&cluster.lab.tools, &cluster.worker_blueprint);
    let foreign = blueprint
        .tpm(tools)?
        .foreign(tools, &dir.join("swtpm.log"))?;
    let own = policy_of(&foreign)?;
    let (policy, content) = (dir.join("policy"), dir.join("content"));
    for (file, bytes) in [(&policy, own.as_bytes()), (&content, &kept.to_bytes()[..])] {
        std::fs::write(file, bytes).map_err(file_error("cannot write", file))?;
    }
    let removed = INDICES.map(|index| take_away(&foreign, index));
    expect(
        removed.into_iter().any(|removed| removed),
        "the TPM kept nothing",
    )?;
    let persistent = foreign.tool("tpm2_getcap handles-persistent")?;
    for handle in persistent.split_whitespace().filter(|word| *word != "-") {
        foreign.tool(&format!("tpm2_evictcontrol -C o -c {handle}"))?;
    }
    let policy = policy.display();
    let attributes = [
        "ownerwrite|ownerread|policywrite|policyread|no_da".to_owned(),
        format!("{INDEX_ATTRIBUTES:#x}"),
    ];
    for (index, attributes) in INDICES.into_iter().zip(attributes) {
        foreign.tool(&format!(
            "tpm2_nvdefine {index} -C o -s {INDEX_SIZE} -L {policy} -a {attributes}"
        ))?;
    }
    let write = |index: &str| {
        let content = content.display();
        foreign.tool(&format!("tpm2_nvwrite {index} -C o -i {content}"))
    };
    write(INDICES[0])?;
    expect(
        write(INDICES[1]).is_err(),
        "the owner writes the machine's own index",
    )
}

/// The policy of the index that the machine made, which its public area shows to anyone.
fn policy_of(foreign: &Foreign) -> Result<Digest> {
    let shown = INDICES
        .into_iter()
        .find_map(|index| foreign.tool(&format!("tpm2_nvreadpublic {index}")).ok())
        .unwrap_or_default();
    let policy = shown
        .lines()
        .find_map(|line| line.trim().strip_prefix("authorization policy:"))
        .and_then(|policy| policy.trim().parse().ok());
    policy.ok_or_else(|| Error::Missing(format!("no policy of the state's index: {shown}")))
}

/// Removes an index that the owner must not be able to read; whether there was one.
fn take_away(foreign: &Foreign, index: &str) -> bool {
    let read = foreign.tool(&format!("tpm2_nvread {index} -C o"));
    read.is_err()
        && foreign
            .tool(&format!("tpm2_nvundefine {index} -C o"))
            .is_ok()
}

/// A folder for what a story needs.
fn folder(cluster: &Cluster, name: &str) -> Result<PathBuf> {
    let dir = cluster.lab.dir.join("offline").join(name);
    std::fs::create_dir_all(&dir).map_err(file_error("cannot make", &dir))?;
    Ok(dir)
}

/// Numbers that are the same in every run (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
