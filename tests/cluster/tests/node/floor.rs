//! The floor under containers: what root in a container reaches when its pod asks for all that a
//! pod may ask for.
//!
//! The hostile program is compiled here and tries each way by each entry of the kernel. Stand-in
//! for a TPM where the host has none: `/dev/kmsg`, a device that every kernel has and no container
//! is given.

use crate::cluster::{Cluster, shell};
use crate::containers::run_to_end;
use crate::site::{IMAGE, Site, texts};
use agent_runtime::{ContainerSpec, Mount, PullPolicy, Runtime, Seccomp};
use agent_sys::attach::Propagation;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// Calls that no container makes: name, number for 64-bit programs, number for 32-bit ones (−1:
/// none), arguments with which it does nothing where it is allowed.
const REFUSED: &str = "bpf:321:357: perf_event_open:298:336: io_uring_setup:425:425: io_uring_enter:426:426:-1 \
    io_uring_register:427:427:-1 keyctl:250:288:0,-4,1 add_key:248:286: request_key:249:287: userfaultfd:323:374:1 \
    kexec_load:246:283: kexec_file_load:320:-1:-1,-1 init_module:175:128: finit_module:313:350:-1 delete_module:176:129: \
    mount:165:21: umount2:166:52: pivot_root:155:217: fsopen:430:430: fsmount:432:432:-1 fsconfig:431:431:-1 fspick:433:433:-1 \
    move_mount:429:429:-1,0,-1 open_tree:428:428:-1 mount_setattr:442:442:-1 unshare:272:310:268435456 setns:308:346:-1 \
    clone:56:120:268435473 open_by_handle_at:304:342:-1 ioperm:173:101:0,1,0 iopl:172:110:0 reboot:169:88: swapon:167:87: \
    swapoff:168:115: quotactl:179:131: acct:163:51:1 syslog:103:103:10 sethostname:170:74:0,-1 setdomainname:171:121:0,-1 \
    settimeofday:164:79: clock_settime:227:264: clone3:435:435: socket:41:-1:40,1 socket:41:-1:4294967336,1 \
    sched_setscheduler:144:156:0,1 sched_setscheduler:144:156:0,1073741826 sched_setscheduler:144:156:0,6 \
    sched_setscheduler:144:156:0,4294967297 sched_setattr:314:351: ioprio_set:251:289:1,0,8196";
/// Calls of those that seem not to be there.
const MISSING: [&str; 2] = ["clone3", "sched_setattr"];

/// Compiles the hostile program; it needs nothing of a container's files.
pub(crate) fn hostile(site: &Site) -> Mount {
    let program = site.dir.path().join("hostile");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("hostile/main.rs");
    let mut compiler = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    compiler.args([
        "--edition",
        "2024",
        "-C",
        "opt-level=1",
        "-C",
        "panic=abort",
        "-C",
        "target-feature=+crt-static",
        "-o",
    ]);
    assert!(
        compiler
            .arg(&program)
            .arg(source)
            .status()
            .unwrap()
            .success(),
        "the hostile program does not compile"
    );
    Mount {
        source: program,
        destination: "/hostile".into(),
        read_only: true,
        no_exec: false,
        propagation: Propagation::Private,
    }
}

/// A container that asks for everything.
fn greedy(site: &Site, name: &str, script: &str) -> ContainerSpec {
    let mut spec = site.spec(name, script);
    spec.capabilities.add = vec!["ALL".into()];
    spec.seccomp = Seccomp::Unconfined;
    spec
}

async fn lines(site: &Site, spec: &ContainerSpec) -> Vec<String> {
    let agent = site.agent();
    agent
        .ensure_image(IMAGE, PullPolicy::IfNotPresent)
        .await
        .unwrap();
    let (_, log) = run_to_end(&agent, spec).await;
    let stdout: Vec<&str> = log
        .lines()
        .filter(|line| line.contains(" stdout "))
        .collect();
    texts(&stdout.join("\n"))
        .into_iter()
        .map(str::to_owned)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_below_the_floor_is_answered_under_unconfined_with_all_capabilities() {
    let site = Site::new();
    let mut spec = greedy(&site, "calls", "");
    spec.mounts = vec![hostile(&site)];
    let words = ["/hostile", "calls", "getpid:39:20:"]
        .into_iter()
        .chain(REFUSED.split_ascii_whitespace());
    spec.command = Some(words.map(str::to_owned).collect());
    let answers = lines(&site, &spec).await;
    assert!(
        answers.contains(&"getpid x86_64 ok".to_owned()),
        "{answers:?}"
    );
    // A kernel without 32-bit programs has no such entry, and ends who tries it.
    let has_32_bits = answers.contains(&"getpid i386 ok".to_owned());
    let mut wrong = Vec::new();
    let mut seen = 0;
    for answer in answers
        .iter()
        .filter(|answer| !answer.starts_with("getpid "))
    {
        let good = match answer.split(' ').collect::<Vec<_>>()[..] {
            [call, "x86_64", "errno", errno] if MISSING.contains(&call) => errno == "38",
            [_, "x86_64", "errno", errno] => errno == "1",
            [_, "x32", "errno", errno] => errno == "1" || errno == "38",
            [call, "i386", "errno", errno] if MISSING.contains(&call) => {
                errno == "38" || !has_32_bits
            }
            [_, "i386", "errno", errno] => errno == "1" || !has_32_bits,
            [_, "i386", "signal", _] => !has_32_bits,
            _ => false,
        };
        seen += 1;
        if !good {
            wrong.push(answer);
        }
    }
    assert!(wrong.is_empty(), "answered: {wrong:?}");
    assert!(
        seen >= 2 * REFUSED.split_ascii_whitespace().count(),
        "{answers:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_of_a_container_writes_no_file_of_the_kernels_and_sees_none_that_is_hidden() {
    let site = Site::new();
    let mut spec = site.spec("writes", "");
    spec.mounts = vec![hostile(&site)];
    spec.command = Some(vec!["/hostile".into(), "writes".into()]);
    let mut found = lines(&site, &spec).await;
    let tried = found.pop().unwrap();
    let tried = tried
        .strip_prefix("tried ")
        .and_then(|tried| tried.parse().ok());
    assert!(tried > Some(1000_u32), "{found:?}");
    // What opens belongs into READ_ONLY or MASKED of agent/confine/src/paths.rs.
    assert!(found.is_empty(), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_has_a_number_of_terminals_that_leaves_others_theirs() {
    let site = Site::new();
    let mut spec = site.spec("terminals", "");
    spec.mounts = vec![hostile(&site)];
    spec.command = Some(vec!["/hostile".into(), "terminals".into()]);
    assert_eq!(lines(&site, &spec).await, ["256"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_with_the_capability_chooses_among_the_classes_that_keep_to_its_share() {
    let site = Site::new();
    let program = hostile(&site);
    // Where the filter passes a call, the kernel looks for parameters, of which there are none
    // (EINVAL, 22).
    let calls = "sched_setscheduler:144:156:0,0 sched_setscheduler:144:156:0,3 sched_setscheduler:144:156:0,1073741829 \
        ioprio_set:251:289:1,0,16388 sched_setattr:314:351:";
    for (name, add, by_memory) in [
        ("nice", vec!["SYS_NICE".to_owned()], "errno 38"),
        ("plain", Vec::new(), "errno 22"),
    ] {
        let mut spec = site.spec(name, "");
        spec.mounts = vec![program.clone()];
        spec.capabilities.add = add;
        let words = ["/hostile", "calls"]
            .into_iter()
            .chain(calls.split_ascii_whitespace());
        spec.command = Some(words.map(str::to_owned).collect());
        let found = lines(&site, &spec).await;
        let answers = found.iter().filter_map(|line| line.split_once(" x86_64 "));
        let answers: Vec<&str> = answers.map(|(_, answer)| answer).collect();
        let wanted = ["errno 22", "errno 22", "errno 22", "ok", by_memory];
        assert_eq!(answers, wanted, "{name}: {found:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_machines_process_ids_no_process_of_the_machine_is_seen_or_reached() {
    let site = Site::new();
    let mut spec = greedy(&site, "processes", "");
    spec.mounts = vec![hostile(&site)];
    spec.shared.pid = true;
    spec.command = Some(vec!["/hostile".into(), "processes".into()]);
    let found = lines(&site, &spec).await;
    let (done, reached): (Vec<&String>, Vec<&String>) =
        found.iter().partition(|line| line.starts_with("tried as "));
    assert_eq!(done.len(), 1, "{found:?}");
    assert_ne!(done[0], "tried as 1", "it is among the machine's processes");
    assert!(reached.is_empty(), "{reached:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_device_opens_whatever_a_container_does_to_its_filter() {
    let site = Site::new();
    // In /dev, where alone devices open. The filter of devices lets everybody have the console; the
    // filter of system calls refuses to make it.
    let script = "tried() { busybox rm -f /dev/n; (busybox mknod /dev/n c $2 $3 && : > /dev/n) 2>/tmp/e; echo \"$1 $?\" \
            $(busybox sed 's/.*: //' /tmp/e); }; \
        tried kmsg 1 11; tried tpm 10 224; tried null 1 3; tried console 5 1; \
        busybox mkdir -p /tmp/cg; busybox mount -t cgroup -o devices none /tmp/cg 2>/dev/null; echo mount $?; \
        own=$(busybox sed -n 's/^[0-9]*:devices://p' /proc/self/cgroup); \
        for file in /tmp/cg$own/devices.allow /sys/fs/cgroup/devices/devices.allow /sys/fs/cgroup/devices$own/devices.allow; do \
            (echo 'a *:* rwm' > $file) 2>/dev/null; done; \
        tried kmsg 1 11; tried tpm 10 224";
    let found = lines(&site, &greedy(&site, "devices", script)).await;
    let refused = |name: &str| format!("{name} 1 Operation not permitted");
    let [kmsg, tpm, console] = ["kmsg", "tpm", "console"].map(refused);
    let wanted = [&kmsg, &tpm, "null 0", &console, "mount 1", &kmsg, &tpm];
    assert_eq!(found, wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ordinary_programs_live_with_the_default_filter() {
    let site = Site::new();
    let mut spec = site.spec(
        "life",
        "/hostile life && busybox ls / | busybox grep -c hostile && (busybox sleep 0 & wait)",
    );
    spec.mounts = vec![hostile(&site)];
    spec.confinement.no_new_privileges = true;
    assert_eq!(lines(&site, &spec).await, ["alive", "1"]);
    // Without the filter this is answered: the execution domain that turns the randomness of
    // addresses off.
    let mut spec = site.spec("domain", "");
    spec.mounts = vec![hostile(&site)];
    spec.command = Some(
        [
            "/hostile",
            "calls",
            "personality:135:136:262144",
            "personality:135:136:8",
        ]
        .map(str::to_owned)
        .into(),
    );
    let found = lines(&site, &spec).await;
    assert_eq!(
        (found[0].as_str(), found[3].as_str()),
        ("personality x86_64 errno 1", "personality x86_64 ok"),
        "{found:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_privileged_container_has_the_machines_devices_without_its_tpm() {
    let site = Site::new();
    // The filter refuses even to make a node with the TPM's number.
    let script = "(: > /dev/kmsg) 2>/dev/null; echo kmsg $?; busybox mount -t tmpfs none /tmp; echo mount $?; \
        busybox ls /dev | busybox grep tpm; busybox mknod /tmp/tpm c 10 224 2>/tmp/e; \
        echo tpm $? $(busybox sed 's/.*: //' /tmp/e); busybox mknod /tmp/kmsg c 1 11; (: > /tmp/kmsg); echo own $?; \
        busybox ls /sys/class/tpm 2>/dev/null; busybox unshare -m true; echo unshare $?";
    let mut spec = site.spec("privileged", script);
    spec.privileged = true;
    assert_eq!(
        lines(&site, &spec).await,
        [
            "kmsg 0",
            "mount 0",
            "tpm 1 Operation not permitted",
            "own 0",
            "unshare 0"
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_asks_for_what_no_pod_gets_fails_and_says_why() {
    let cluster = Cluster::new().await;
    let asks = |security: Value| {
        let mut container = shell("true");
        container["securityContext"] = security;
        json!({"containers": [container], "restartPolicy": "Never"})
    };
    let cases = [
        (
            "tracer",
            json!({"capabilities": {"add": ["SYS_PTRACE"]}}),
            "CapabilityNotAllowed",
            "SYS_PTRACE is never given",
        ),
        (
            "clock",
            json!({"capabilities": {"add": ["SYS_TIME"]}}),
            "CapabilityNotAllowed",
            "SYS_TIME is never given",
        ),
        (
            "resources",
            json!({"capabilities": {"add": ["SYS_RESOURCE"]}}),
            "CapabilityNotAllowed",
            "SYS_RESOURCE is never given",
        ),
        (
            "mistyped",
            json!({"capabilities": {"add": ["NET_RAWW"]}}),
            "CapabilityNotAllowed",
            "no capability of Linux",
        ),
        (
            "privileged",
            json!({"privileged": true}),
            "PrivilegedNotAllowed",
            "[node] privileged = true",
        ),
        (
            "profile",
            json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "p.json"}}),
            "SeccompProfileNotFound",
            "\"p.json\" is not on this machine",
        ),
    ];
    for (name, security, reason, text) in cases {
        cluster.create(name, asks(security)).await;
        let status = cluster.reaches(name, "/phase", json!("Failed")).await;
        assert_eq!(status["reason"], reason, "{status}");
        let message = status["message"].as_str().unwrap();
        assert!(
            message.starts_with("Pod was rejected: container main: ") && message.contains(text),
            "{message}"
        );
        assert!(cluster.event(reason).await.starts_with("container main: "));
    }
    cluster
        .create("all", asks(json!({"capabilities": {"add": ["ALL"]}})))
        .await;
    cluster.reaches("all", "/phase", json!("Succeeded")).await;
    let narrowed = cluster.event("CapabilitiesNarrowed").await;
    assert!(
        narrowed.contains("ALL does not include") && narrowed.contains("SYS_ADMIN"),
        "{narrowed}"
    );
}
