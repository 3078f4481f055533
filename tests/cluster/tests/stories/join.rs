//! From power-on to a running pod, and what the running machines show of themselves.

use crate::world::{Cluster, World, expect};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_machine::kernel::{
    LAST, Lockdown, PROOFS, Proof, SYSCTLS, Sysctl, of_memory, same, words,
};
use std::time::Duration;
use tests_harness::cluster::{BOOT_LIMIT, Lab};
use tests_harness::machine::{Blueprint, Cloud, SMBIOS_CONFIG};
use tests_harness::metadata::MetadataService;
use tests_harness::time::TIME_SERVER;
use tests_harness::wait::eventually;
use tests_harness::{Error, Result};

/// A pod under emulation: pull, unpack, start.
const POD_LIMIT: Duration = Duration::from_secs(900);

/// On a slow host a machine boots for longer than the five minutes after which pods of a node that
/// is away are evicted.
const AWAY: &str = "{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute}, \
                    {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute}";

/// A pod on a node, in the host's network, that says a line and stays, also while the node is away.
pub(crate) fn pod(name: &str, node: &str, script: &str) -> String {
    pod_tolerating(AWAY, name, node, script)
}

/// The same for a node with any taints, as a master's machine has them.
pub(crate) fn pod_anywhere(name: &str, node: &str, script: &str) -> String {
    pod_tolerating("{operator: Exists}", name, node, script)
}

fn pod_tolerating(taints: &str, name: &str, node: &str, script: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{story: {name}}}}}\nspec:\n  hostNetwork: true\n  \
         terminationGracePeriodSeconds: 1\n  nodeSelector: {{kubernetes.io/hostname: {node}, kubernetes.io/os: linux, \
         kubernetes.io/arch: amd64}}\n  tolerations: [{taints}]\n  containers:\n  - name: main\n    \
         image: registry.example/busybox:1\n    command: [\"/bin/busybox\", \"sh\", \"-c\", \"{script}\"]\n"
    )
}

impl Cluster {
    /// Applies a manifest.
    pub(crate) fn apply(&self, name: &str, manifest: &str) -> Result<()> {
        let file = self.lab.dir.join(format!("{name}.yaml"));
        std::fs::write(&file, manifest)
            .map_err(tests_harness::file_error("cannot write", &file))?;
        self.lab
            .kubectl(&["apply", "-f", &file.display().to_string()])
            .map(drop)
    }

    /// Waits for a pod's phase.
    pub(crate) fn pod_phase(&self, name: &str, phase: &str) -> Result<()> {
        let words = ["get", "pod", name, "-o", "jsonpath={.status.phase}"];
        self.lab
            .kubectl_until(
                &words,
                &format!("pod {name} to be {phase}"),
                POD_LIMIT,
                |text| text == phase,
            )
            .map(drop)
    }

    /// Waits until a pod's log holds a text, and returns the log.
    pub(crate) fn pod_log(&self, name: &str, text: &str) -> Result<String> {
        self.lab.kubectl_until(
            &["logs", name],
            &format!("{text:?} in the log of {name}"),
            POD_LIMIT,
            |log| log.contains(text),
        )
    }
}

/// Power-on → Ready, a pod runs, its logs are read.
pub(crate) fn power_on_ends_in_a_running_pod_with_logs(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    let states = cluster.lab.kubectl(&["get", "machines"])?;
    expect(
        states.matches("Trusted").count() == 2,
        &format!("not both machines are Trusted:\n{states}"),
    )?;
    cluster.lab.wait_ready("master-1", BOOT_LIMIT)?;
    cluster.apply(
        "join",
        &pod(
            "join",
            "worker-1",
            "echo hello from the pod; exec /bin/busybox sleep 100000",
        ),
    )?;
    cluster.pod_phase("join", "Running")?;
    cluster.pod_log("join", "hello from the pod")?;
    cluster
        .lab
        .kubectl(&["delete", "pod", "join", "--timeout=600s"])
        .map(drop)
}

/// The verdict's checks carry the quoted registers, and the master accepted them against the
/// release's predictions; here the release is read again and each predicted register compared with
/// what the machine's TPM showed.
pub(crate) fn quoted_registers_equal_the_predicted_ones(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    for (machine, role) in [("worker-1", "worker"), ("master-1", "master")] {
        let text = cluster
            .lab
            .kubectl(&["get", "machine", machine, "-o", "json"])?;
        let object: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let image = object["status"]["image"]["id"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        expect(
            object["status"]["image"]["role"] == role,
            &format!("{machine} proved no {role} image:\n{text}"),
        )?;
        let checks = object["status"]["checks"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        for register in [4, 7, 9, 11] {
            let name = format!("image: PCR {register}");
            let check = checks.iter().find(|check| check["name"] == name.as_str());
            let said = |key: &str| {
                check
                    .and_then(|check| check[key].as_str())
                    .unwrap_or_default()
                    .to_owned()
            };
            let (measured, predicted) = (said("actual"), said("expected"));
            let good = measured.len() == 64
                && predicted.contains(&measured)
                && predicted.starts_with(&image);
            expect(
                good,
                &format!(
                    "{machine} ({image}): no check {name} in which prediction and register agree, in\n{text}"
                ),
            )?;
        }
    }
    Ok(())
}

/// No TPM device in a container, and nothing in the image to start a session with.
pub(crate) fn images_hold_no_shell_and_containers_get_no_tpm(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    cluster.apply(
        "look",
        &pod(
            "look",
            "worker-1",
            "ls /dev | grep -c tpm; echo looked; exec /bin/busybox sleep 100000",
        )
        .replace("ls /dev | grep", "/bin/busybox ls /dev | /bin/busybox grep"),
    )?;
    let log = cluster.pod_log("look", "looked")?;
    expect(
        log.trim_start().starts_with('0'),
        &format!("a container sees a TPM device:\n{log}"),
    )?;
    cluster
        .lab
        .kubectl(&["delete", "pod", "look", "--timeout=600s"])
        .map(drop)
}

/// An admin reads the logs of the kernel, init and programs of a machine without a shell through
/// the API.
pub(crate) fn machines_without_a_shell_show_their_logs(world: &mut World) -> Result<()> {
    let lab = &world.cluster()?.lab;
    let kernel = "/api/v1/nodes/worker-1/proxy/logs/?query=kernel";
    let said = lab.kubectl(&["get", "--raw", kernel])?;
    expect(
        said.contains(" kernel: Linux version "),
        &format!("the kernel's log has no beginning:\n{said}"),
    )?;
    for (words, wanted) in [
        (
            &["worker-1", "--list"][..],
            "kernel\ninit\ncontainerd\nagent\n",
        ),
        (&["worker-1", "init"], "state mounted"),
        (
            &["worker-1", "init", "--grep", "services started"],
            " init: pratique: ",
        ),
        (
            &["worker-1", "kubelet", "-b"],
            "agent: init: started as process ",
        ),
        (
            &[
                "worker-1",
                "agent",
                "--grep",
                "node worker-1 is served",
                "-n",
                "1",
            ],
            "agent: pratique: node worker-1 is served",
        ),
        (&["master-1", "master", "-n", "5"], " master: "),
        (
            &["worker-1", "--since", "7d"],
            " containerd: init: started as process ",
        ),
    ] {
        let said = lab.logs(words)?;
        let words = words.join(" ");
        expect(
            said.contains(wanted),
            &format!("`pratique logs {words}` does not tell {wanted:?}:\n{said}"),
        )?;
        let sorted = said.lines().is_sorted_by_key(|line| line.split(' ').next());
        expect(
            sorted || words.contains("--list"),
            &format!("`pratique logs {words}` is not in the order of time:\n{said}"),
        )?;
    }
    // The agent logs this line if it does not find the CA certificates of the image.
    let missed = lab.logs(&["worker-1", "agent", "--grep", "no system root certificates"])?;
    expect(
        missed.is_empty(),
        &format!("the agent trusts no public registry: {missed}"),
    )?;
    for words in [&["worker-9", "agent"][..], &["worker-1", "master"]] {
        let refused = lab.logs(words);
        let is_explained = refused.as_ref().is_err_and(|error| {
            let message = tests_harness::chain(error);
            message.contains("worker-9")
                || message.contains("there are: kernel, init, containerd, agent")
        });
        expect(
            is_explained,
            &format!("{words:?} is not refused as it should be: {refused:?}"),
        )?;
    }
    Ok(())
}

/// As the machine's kernel shows the mount of its state. (A pod's own volume is mounted again, so
/// that the pod may run what it wrote there.)
fn the_state_is_mounted_without_execution(cluster: &Cluster) -> Result<()> {
    let console = cluster.worker.console_text();
    let mounted = console
        .lines()
        .rev()
        .find(|line| line.contains("state mounted at /var: "));
    let options = mounted.and_then(|line| line.trim().rsplit(' ').next());
    let has =
        |wanted: &str| options.is_some_and(|all| all.split(',').any(|option| option == wanted));
    expect(
        ["noexec", "nosuid", "nodev"].into_iter().all(has),
        &format!("the state is mounted otherwise: {mounted:?}"),
    )
}

/// As `/proc/self/limits` of a pod says it.
fn no_limit_counts_by_user_id(log: &str) -> Result<()> {
    for name in ["Max processes", "Max pending signals", "Max msgqueue size"] {
        let line = log.lines().find(|line| line.starts_with(name));
        expect(
            line.is_some_and(|line| line.matches("unlimited").count() == 2),
            &format!("pods of one user id share a limit, {name}:\n{log}"),
        )?;
    }
    Ok(())
}

/// containerd's own, which is far more, is not handed on to containers.
fn open_files_are_those_of_the_kernel(log: &str) -> Result<()> {
    let line = log.lines().find(|line| line.starts_with("Max open files"));
    let numbers = |line: &str| {
        line.split_ascii_whitespace()
            .skip(3)
            .take(2)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let found = line.map(numbers).unwrap_or_default();
    expect(
        found == "1024 4096",
        &format!("a container has {found:?} open files:\n{log}"),
    )
}

/// The kernel is as the one table of settings says, as a pod sees it; a pod still executes what it
/// wrote to a volume.
pub(crate) fn the_kernel_runs_with_the_settings_of_its_table(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    let settings: Vec<Sysctl> = SYSCTLS.into_iter().chain([LAST]).collect();
    let shares = of_memory(0).map(|setting| setting.path);
    let paths = settings.iter().map(|setting| setting.path).chain(shares);
    let files = paths.map(|path| format!("/proc/sys/{path}"));
    let files: Vec<String> = files
        .chain(PROOFS.map(|proof| proof.path.to_owned()))
        .collect();
    let meltdown = "/sys/devices/system/cpu/vulnerabilities/meltdown";
    let script = format!(
        "for f in {} {meltdown} /proc/cmdline /proc/self/limits /proc/meminfo; do echo \\\"$f: $(/bin/busybox cat $f)\\\"; done; \
         /bin/busybox cp /bin/busybox /scratch/busybox; /scratch/busybox echo executed; echo looked; \
         exec /bin/busybox sleep 100000",
        files.join(" ")
    );
    let volumes = "    volumeMounts: [{name: scratch, mountPath: /scratch}]\n  volumes: [{name: scratch, emptyDir: {}}]\n";
    cluster.apply("kernel", &(pod("kernel", "worker-1", &script) + volumes))?;
    let log = cluster.pod_log("kernel", "looked")?;
    the_state_is_mounted_without_execution(cluster)?;
    let shows = |file: &str| {
        log.lines()
            .find_map(|line| line.strip_prefix(file)?.strip_prefix(": "))
    };
    // The kernel shows this one to holders of SYS_ADMIN alone, which no container is, and lockdown
    // and the security modules in a file system that no container has. init reads all three back,
    // and starts no service where one is not in force (agent_init::hardening), so that a machine
    // that runs this pod has them.
    let hidden = "net/core/bpf_jit_harden";
    for Sysctl { path, value, .. } in settings
        .into_iter()
        .filter(|setting| setting.path != hidden)
    {
        let found = shows(&format!("/proc/sys/{path}"));
        expect(
            found.is_some_and(|found| same(found, value)),
            &format!("{path} is {found:?} and not {value}:\n{log}"),
        )?;
    }
    let memory =
        shows("/proc/meminfo").and_then(|line| line.strip_prefix("MemTotal:")?.strip_suffix("kB"));
    let memory = memory.and_then(|kib| kib.trim().parse::<u64>().ok());
    let memory = memory.ok_or_else(|| Error::Missing(format!("the machine's memory: {log}")))?;
    for Sysctl { path, value, .. } in of_memory(memory * 1024) {
        let found = shows(&format!("/proc/sys/{path}"));
        expect(
            found.is_some_and(|found| same(found, &value)),
            &format!("{path} is {found:?} and not {value}:\n{log}"),
        )?;
    }
    for Proof {
        word,
        path,
        shows: wanted,
    } in PROOFS
    {
        expect(
            shows(path) == Some(wanted),
            &format!("{word} has no effect:\n{log}"),
        )?;
    }
    let line = shows("/proc/cmdline").unwrap_or_default();
    for wanted in words(Lockdown::default()) {
        expect(
            line.split(' ').any(|word| word == wanted),
            &format!("{wanted} is not on the command line:\n{log}"),
        )?;
    }
    no_limit_counts_by_user_id(&log)?;
    open_files_are_those_of_the_kernel(&log)?;
    let vulnerable = shows(meltdown).is_none_or(|text| text.starts_with("Vulnerable"));
    expect(
        !vulnerable,
        &format!("the kernel leaves Meltdown open:\n{log}"),
    )?;
    expect(
        log.contains("executed"),
        &format!("a pod can't execute what it wrote to its volume:\n{log}"),
    )?;
    let console = cluster.worker.console_text();
    let said = console.contains("kernel settings hold, lockdown confidentiality");
    expect(said, &format!("the console names no lockdown:\n{console}"))?;
    cluster
        .lab
        .kubectl(&["delete", "pod", "kernel", "--timeout=600s"])
        .map(drop)
}

/// A machine that gets its user-data as a cloud-config, by QEMU's fw_cfg, proves just that and
/// joins.
pub(crate) fn a_machine_joins_with_a_cloud_config_from_fw_cfg(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    let (mut blueprint, text) = cluster.unregistered("worker-fw")?;
    let carried: Vec<String> = text.lines().map(|line| format!("  {line}")).collect();
    let file = blueprint.dir.join("user-data.yaml");
    std::fs::write(
        &file,
        format!("#cloud-config\npratique: |\n{}\n", carried.join("\n")),
    )
    .map_err(tests_harness::file_error("cannot write", &file))?;
    (blueprint.cidata, blueprint.fw_cfg) = (None, Some(file.clone()));
    cluster
        .lab
        .register("worker-fw", &blueprint, &file, "192.168.77.12")?;
    let machine = world.guest(&blueprint)?;
    let cluster = world.cluster()?;
    cluster.lab.wait_ready("worker-fw", BOOT_LIMIT)?;
    let console = machine.console_text();
    expect(
        console.contains("config measured source=fw_cfg"),
        &format!("the console names another source:\n{console}"),
    )?;
    cluster
        .lab
        .kubectl(&["delete", "node,machine", "worker-fw", "--timeout=600s"])
        .map(drop)
}

/// A machine whose firmware says EC2 and that has no user-data of its own asks the metadata
/// service, measures what it gets under the service's name, and joins.
pub(crate) fn a_machine_joins_with_user_data_from_a_metadata_service(
    world: &mut World,
) -> Result<()> {
    let cluster = world.cluster()?;
    let (mut blueprint, text) = cluster.unregistered("worker-ec2")?;
    let service = MetadataService::start(text.as_bytes())?;
    let file = blueprint.dir.join("user-data.toml");
    blueprint.cidata = None;
    blueprint.cloud = Some(Cloud {
        vendor: "Amazon EC2".to_owned(),
        metadata: service.port,
    });
    cluster
        .lab
        .register("worker-ec2", &blueprint, &file, "192.168.77.12")?;
    let machine = world.guest(&blueprint)?;
    let cluster = world.cluster()?;
    cluster.lab.wait_ready("worker-ec2", BOOT_LIMIT)?;
    let console = machine.console_text();
    let asked = console.contains("asking the metadata service of ec2");
    expect(
        asked && console.contains("config measured source=ec2"),
        &format!("the console names another source:\n{console}"),
    )?;
    let shown = cluster.machine_field("worker-ec2", ".status.config.source")?;
    expect(
        shown == "ec2",
        &format!("the Machine shows the source {shown:?}"),
    )?;
    cluster
        .lab
        .kubectl(&["delete", "node,machine", "worker-ec2", "--timeout=600s"])
        .map(drop)
}

/// A machine with a dead battery that gets its user-data by SMBIOS sets its clock by the time
/// server that this names, and joins.
pub(crate) fn a_machine_joins_with_user_data_from_smbios_and_time_from_a_server(
    world: &mut World,
) -> Result<()> {
    let cluster = world.cluster()?;
    let (mut blueprint, text) = cluster.unregistered("worker-dmi")?;
    let first = "[network]\n";
    expect(text.contains(first), &format!("no {first} in {text}"))?;
    let servers = format!("{first}ntp = [\"{TIME_SERVER}\"]\n");
    let text = text.replacen(first, &servers, 1);
    let file = blueprint.dir.join("user-data.toml");
    std::fs::write(&file, &text).map_err(tests_harness::file_error("cannot write", &file))?;
    blueprint.cidata = None;
    blueprint
        .smbios
        .push(format!("{SMBIOS_CONFIG}{}", STANDARD.encode(&text)));
    blueprint.clock = Some("2020-01-01");
    cluster
        .lab
        .register("worker-dmi", &blueprint, &file, "192.168.77.12")?;
    let server = cluster.lab.time_server()?;
    let start = jiff::Timestamp::now();
    let machine = world.guest(&blueprint)?;
    let cluster = world.cluster()?;
    cluster.lab.wait_ready("worker-dmi", BOOT_LIMIT)?;
    drop(server);
    let console = machine.console_text();
    let wrong = console.contains("clock was before the image's build time: set to it");
    let set = console.lines().find_map(|line| {
        line.split_once("clock set by time servers, from ")?
            .1
            .split_once(" to ")
    });
    let (from, to) =
        set.ok_or_else(|| Error::Missing(format!("the clock was not set:\n{console}")))?;
    let moment = |text: &str| text.trim().parse::<jiff::Timestamp>().unwrap_or_default();
    // It is set after power-on, and what the packets took on their ways leaves it a little off.
    let right = moment(from) < start && moment(to) >= start && moment(to) <= jiff::Timestamp::now();
    expect(
        wrong && right,
        &format!("powered on at {start}, the clock was set from {from} to {to}:\n{console}"),
    )?;
    let measured = console.contains("config measured source=smbios");
    expect(
        measured,
        &format!("the console names another source:\n{console}"),
    )?;
    let shown = cluster.machine_field("worker-dmi", ".status.config.source")?;
    expect(
        shown == "smbios",
        &format!("the Machine shows the source {shown:?}"),
    )?;
    cluster
        .lab
        .kubectl(&["delete", "node,machine", "worker-dmi", "--timeout=600s"])
        .map(drop)
}

/// A static join: the admin issues, the machine imports the key into its TPM and is a node, and
/// everybody can see that nothing was proven. This machine has no serial line: what init and agent
/// say stands on its screen.
pub(crate) fn a_machine_joins_by_certificates_that_an_admin_issued(
    world: &mut World,
) -> Result<()> {
    let cluster = world.cluster()?;
    let (mut blueprint, text) = cluster.unregistered("worker-static")?;
    let document = cluster
        .lab
        .issue("worker-static", &blueprint, &text, "192.168.77.12")?;
    cluster.lab.give_user_data(&mut blueprint, &document)?;
    blueprint.has_serial = false;
    let machine = world.guest(&blueprint)?;
    let cluster = world.cluster()?;
    cluster.lab.wait_ready("worker-static", BOOT_LIMIT)?;
    let mut lines = console_lines(&cluster.lab, "init", "services started")?;
    lines.extend(console_lines(
        &cluster.lab,
        "agent",
        "nothing about image or configuration is proven",
    )?);
    let hint = format!("these lines are missing there:\n{}", lines.join("\n"));
    let screen = "the words of init and agent on the screen";
    eventually(screen, BOOT_LIMIT, &hint, || {
        Ok(machine.screen()?.shows(&lines).then_some(()))
    })?;
    let described = cluster
        .lab
        .kubectl(&["describe", "machine", "worker-static"])?;
    expect(
        described.contains("static: nothing about image or configuration is proven"),
        &format!("`kubectl describe machine` does not say what is not proven:\n{described}"),
    )?;
    cluster
        .lab
        .kubectl(&["delete", "machine,node", "worker-static", "--timeout=600s"])
        .map(drop)
}

/// The lines that a part of `worker-static` wrote to the consoles, by its log, up to the first with
/// these words.
fn console_lines(lab: &Lab, part: &str, last: &str) -> Result<Vec<String>> {
    let log = lab.logs(&["worker-static", part])?;
    let mark = format!(" {part}: pratique: ");
    let lines = log.lines().filter_map(|line| line.split_once(&mark));
    let mut lines: Vec<String> = lines.map(|(_, said)| format!("pratique: {said}")).collect();
    let end = lines.iter().position(|line| line.contains(last));
    let end = end.ok_or_else(|| Error::Missing(format!("no {last:?} in the log:\n{log}")))?;
    lines.truncate(end + 1);
    expect(
        part != "init" || lines.len() > 4,
        &format!("init said too little:\n{log}"),
    )?;
    Ok(lines)
}

/// A machine without its master's address learns it from an endpoint on the host, by what
/// the master signed, and joins.
pub(crate) fn a_machine_joins_a_master_that_it_found_by_discovery(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    let (mut blueprint, text) = cluster.unregistered("worker-found")?;
    let (endpoint, block) = cluster.lab.discovery()?;
    let joined = joins_by(world, &mut blueprint, &text, &block);
    endpoint.kill()?;
    joined
}

/// User-data with a section `[discovery]` in place of its `[master]`.
pub(crate) fn by_discovery(text: &str, block: &str) -> Result<String> {
    let sections = text
        .split_once("[master]")
        .and_then(|(head, rest)| Some((head, rest.split_once("\n\n")?.1)));
    let (head, rest) =
        sections.ok_or_else(|| Error::Missing(format!("no [master] in the user-data:\n{text}")))?;
    Ok(format!("{head}{}\n\n{rest}", block.trim_end()))
}

fn joins_by(world: &mut World, blueprint: &mut Blueprint, text: &str, block: &str) -> Result<()> {
    let cluster = world.cluster()?;
    let text = by_discovery(text, block)?;
    let data = cluster.lab.give_user_data(blueprint, &text)?;
    cluster
        .lab
        .register("worker-found", blueprint, &data, "192.168.77.12")?;
    let machine = world.guest(blueprint)?;
    let cluster = world.cluster()?;
    cluster.lab.wait_ready("worker-found", BOOT_LIMIT)?;
    let console = machine.console_text();
    let found = console.contains("master by discovery: https://192.168.77.10:6443");
    expect(
        found,
        &format!("the console does not say where the master was found:\n{console}"),
    )?;
    cluster
        .lab
        .kubectl(&["delete", "node,machine", "worker-found", "--timeout=600s"])
        .map(drop)
}
