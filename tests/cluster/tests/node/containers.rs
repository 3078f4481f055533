//! The container engine against the real containerd, crun and registry: images, containers, logs
//! and ends.

use crate::floor::hostile;
use crate::site::{IMAGE, LIMIT, RUNTIME, Site, eventually, subdir, texts};
use agent_runtime::{
    Change, Container, ContainerSpec, ContainerState, Containerd, ErrorClass, ExitCause,
    PullPolicy, Runtime, container_id,
};
use std::sync::Arc;
use std::time::Duration;

fn id_of(spec: &ContainerSpec) -> String {
    container_id(&spec.key.pod.uid, &spec.key.container, spec.key.attempt)
}

async fn only(agent: &Containerd, spec: &ContainerSpec) -> Option<Container> {
    let mut all = agent.list(Some(&spec.key.pod.uid)).await.unwrap();
    assert!(all.len() < 2, "one attempt is one container");
    all.pop()
}

pub(crate) async fn run_to_end(agent: &Containerd, spec: &ContainerSpec) -> (i32, String) {
    agent.start(spec).await.unwrap();
    let code = eventually("the container's end", || async {
        match only(agent, spec).await?.state {
            ContainerState::Exited { code, .. } => Some(code),
            ContainerState::Created | ContainerState::Running { .. } => None,
        }
    });
    (code.await, std::fs::read_to_string(&spec.log_path).unwrap())
}

/// A site and its engine, which has the image.
async fn with_image() -> (Site, Arc<Containerd>) {
    let site = Site::new();
    let agent = site.agent();
    agent
        .ensure_image(IMAGE, PullPolicy::IfNotPresent)
        .await
        .unwrap();
    (site, agent)
}

/// Waits for a container's end.
async fn ends(agent: &Containerd, spec: &ContainerSpec) {
    eventually("the end", || async {
        only(agent, spec)
            .await
            .filter(|container| matches!(container.state, ContainerState::Exited { .. }))
    })
    .await;
}

/// Each change of a record has containerd flush its database, for which all other starts wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_s_record_is_whole_from_the_beginning() {
    let (site, agent) = with_image().await;
    let runtime = site.dir.path().join(RUNTIME);
    let real = site.dir.path().join("real-runtime");
    std::fs::rename(&runtime, &real).unwrap();
    let (socket, seen) = (site.engine.socket(), site.dir.path().join("seen"));
    let script = format!(
        "#!/usr/bin/busybox sh\n\
         for word in \"$@\"; do id=$word; if [ \"$word\" = create ]; then step=create; fi; done\n\
         if [ \"$step\" = create ]; then \
         /usr/bin/ctr --address {} --namespace k8s.io containers info \"$id\" > {} || exit 1; fi\n\
         exec {} \"$@\"\n",
        socket.display(),
        seen.display(),
        real.display()
    );
    std::fs::write(&runtime, script).unwrap();
    std::fs::set_permissions(
        &runtime,
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let mut spec = site.spec("whole", "id -u");
    spec.user = Some(7);
    for attempt in 0..2 {
        spec.key.attempt = attempt;
        let (code, log) = run_to_end(&agent, &spec).await;
        assert_eq!((code, texts(&log).last()), (0, Some(&"7")));
        let record = std::fs::read_to_string(&seen).unwrap();
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        assert_eq!(record["Labels"]["pratique.dev/user"], "7 0 0", "{record}");
        assert_eq!(record["CreatedAt"], record["UpdatedAt"], "{record}");
        agent.remove(&id_of(&spec)).await.unwrap();
    }
}

/// An attacker with the disk can write any file below containerd's root, where containerd by
/// default looks for shims, libraries and plugins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_program_on_the_state_partition_is_run() {
    let site = Site::with_state(|share, root| {
        let marker = share.join("planted");
        let shim = format!(
            "#!/usr/bin/busybox sh\necho shim >> {}\nexec {} \"$@\"\n",
            marker.display(),
            config_machine::programs::SHIM
        );
        for (folder, name) in [
            ("opt/bin", "containerd-shim-runc-v2"),
            ("opt/bin", "crun"),
            ("opt/bin", "ctr"),
        ] {
            let path = subdir(root, folder).join(name);
            std::fs::write(&path, &shim).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .unwrap();
        }
        // No libraries and no plugins: a program that loads one fails.
        let plugin = "planted-linux-amd64.so";
        for (folder, name) in [
            ("opt/lib", "libseccomp.so.2"),
            ("opt/lib", "libc.so.6"),
            ("plugins", plugin),
        ] {
            std::fs::write(subdir(root, folder).join(name), "planted").unwrap();
        }
    });
    let agent = site.agent();
    agent
        .ensure_image(IMAGE, PullPolicy::IfNotPresent)
        .await
        .unwrap();
    let (code, log) = run_to_end(&agent, &site.spec("clean", "echo ran")).await;
    assert_eq!((code, texts(&log).as_slice()), (0, ["ran"].as_slice()));
    let marker = std::fs::read_to_string(site.dir.path().join("planted")).unwrap_or_default();
    assert_eq!(marker, "", "what lay on the state was run");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_runs_from_a_mirrored_image_and_its_end_and_output_are_seen() {
    let site = Site::new();
    let agent = site.agent();
    let mut changes = agent.changes();
    let following = tokio::spawn({
        let agent = agent.clone();
        async move { agent.run().await }
    });
    assert!(
        agent
            .version()
            .await
            .unwrap()
            .starts_with("containerd://1.")
    );

    let never = agent
        .ensure_image(IMAGE, PullPolicy::Never)
        .await
        .unwrap_err();
    assert_eq!(never.class, ErrorClass::ImageNeverPull);
    let absent = agent
        .ensure_image("registry.example/absent:1", PullPolicy::IfNotPresent)
        .await
        .unwrap_err();
    assert_eq!(absent.class, ErrorClass::ImagePull, "{}", absent.chain());
    assert!(
        agent
            .ensure_image(IMAGE, PullPolicy::IfNotPresent)
            .await
            .unwrap()
            .pulled
    );
    assert!(
        !agent
            .ensure_image(IMAGE, PullPolicy::Always)
            .await
            .unwrap()
            .pulled,
        "the same digest is not fetched twice"
    );

    let spec = site.spec("speaks", "echo $GREETING; echo problem >&2; exit 3");
    let (code, log) = run_to_end(&agent, &spec).await;
    assert_eq!(code, 3);
    assert!(
        log.contains(" stdout F hello\n") && log.contains(" stderr F problem\n"),
        "{log}"
    );
    eventually("news of the end", || {
        let news = changes.try_recv();
        async move { (news == Ok(Change::Pod("uid-speaks".into()))).then_some(()) }
    })
    .await;

    let again = agent.start(&spec).await.unwrap_err();
    assert_eq!(
        again.class,
        ErrorClass::Create,
        "an attempt exists once: {}",
        again.chain()
    );
    assert!(only(&agent, &spec).await.is_some(), "and is left alone");
    agent.remove(&id_of(&spec)).await.unwrap();
    assert!(agent.list(None).await.unwrap().is_empty());
    following.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_can_neither_see_nor_make_a_tpm_and_is_confined() {
    let (site, agent) = with_image().await;
    let script = "ls /dev | grep tpm; ls /sys/class/tpm 2>/dev/null; \
        busybox mknod /dev/own c 10 224 && cat /dev/own; echo device $?; \
        busybox mount -t tmpfs none /tmp; echo mount $?; busybox unshare -m true; echo unshare $?; \
        echo x > /proc/sys/kernel/hostname; echo write $?; id -u";
    let mut spec = site.spec("confined", script);
    spec.capabilities.add = vec!["ALL".into()];
    let (_, log) = run_to_end(&agent, &spec).await;
    let stdout: Vec<&str> = log
        .lines()
        .filter(|line| line.contains(" stdout "))
        .collect();
    assert_eq!(
        texts(&stdout.join("\n")),
        ["device 1", "mount 1", "unshare 1", "write 1", "0"],
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_agent_adopts_what_the_old_one_started() {
    let site = Site::new();
    let first = site.agent();
    first
        .ensure_image(IMAGE, PullPolicy::IfNotPresent)
        .await
        .unwrap();
    let spec = site.spec(
        "survives",
        "n=0; while :; do n=$((n+1)); echo line $n; sleep 0.1; done",
    );
    first.start(&spec).await.unwrap();
    let started = only(&first, &spec).await.unwrap();
    eventually("a line", || async { lines(&spec).last().copied() }).await;
    drop(first);

    site.engine.kill_containerd().unwrap();
    let second = site.agent();
    let adopted = eventually("the container under the new agent", || async {
        second.list(None).await.ok().and_then(|mut all| all.pop())
    });
    assert_eq!(
        adopted.await,
        started,
        "the same container, running since the same time"
    );
    let before = lines(&spec).len();
    eventually("output under the new agent", || async {
        (lines(&spec).len() > before + 5).then_some(())
    })
    .await;

    second.kill(&started.id).await.unwrap();
    let ended = eventually("the end", || async {
        only(&second, &spec)
            .await
            .filter(|container| matches!(container.state, ContainerState::Exited { .. }))
    });
    assert!(matches!(
        ended.await.state,
        ContainerState::Exited { code: 137, .. }
    ));
    let all = lines(&spec);
    assert_eq!(
        all,
        (1..=all.len()).collect::<Vec<_>>(),
        "no line is lost or doubled"
    );
}

/// A container that makes so many folders in one another, and ends.
fn nests(site: &Site, levels: usize) -> ContainerSpec {
    let mut spec = site.spec("nests", "");
    spec.mounts = vec![hostile(site)];
    let levels = levels.to_string();
    spec.command = Some(["/hostile", "nests", &levels].map(str::to_owned).into());
    spec
}

/// Nothing shows what stays of a layer whose record is gone: it would fill the disk for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_container_nests_deeper_than_the_engine_has_open_files_goes_with_it() {
    let (site, agent) = with_image().await;
    site.engine.limit_open_files(4096).unwrap();
    let spec = nests(&site, 5000);
    let (code, log) = run_to_end(&agent, &spec).await;
    assert_eq!((code, texts(&log).as_slice()), (0, ["5000"].as_slice()));
    let layer = agent.layer(&id_of(&spec)).await.unwrap().unwrap();
    let snapshot = layer.parent().unwrap();
    assert!(layer.join("nested/nested").exists());
    agent.remove(&id_of(&spec)).await.unwrap();
    eventually("the layer to be gone", || async {
        (!snapshot.exists()).then_some(())
    })
    .await;
}

/// The status of a pod that is over is made of it until the pod is deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_container_is_emptied_while_its_end_and_its_log_stay() {
    let (site, agent) = with_image().await;
    let script = "busybox mkdir -p /a/b && echo x > /a/b/file; echo wrote; exit 3";
    let spec = site.spec("wrote", script);
    let (code, log) = run_to_end(&agent, &spec).await;
    assert_eq!((code, texts(&log).as_slice()), (3, ["wrote"].as_slice()));
    let id = id_of(&spec);
    let ended = only(&agent, &spec).await;
    let layer = agent.layer(&id).await.unwrap().unwrap();
    assert!(layer.join("a/b/file").exists());
    // The second time nothing of it is there.
    for _ in 0..2 {
        agent.empty(&id).await.unwrap();
        assert!(!layer.exists());
        assert_eq!(agent.layer(&id).await.unwrap(), None);
        assert_eq!(only(&agent, &spec).await, ended);
    }
    assert_eq!(std::fs::read_to_string(&spec.log_path).unwrap(), log);
    let next = site.agent();
    assert_eq!(only(&next, &spec).await, ended, "the next agent's, too");
    next.remove(&id).await.unwrap();
    assert_eq!(only(&next, &spec).await, None);
    next.empty(&id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_runs_is_not_emptied() {
    let (site, agent) = with_image().await;
    let spec = site.spec("runs", "echo x > /file; echo wrote; exec sleep 600");
    agent.start(&spec).await.unwrap();
    eventually("the file", || async {
        let log = std::fs::read_to_string(&spec.log_path).ok()?;
        (texts(&log) == ["wrote"]).then_some(())
    })
    .await;
    let id = id_of(&spec);
    let refused = agent.empty(&id).await.unwrap_err();
    assert!(
        refused.chain().contains("has not ended"),
        "{}",
        refused.chain()
    );
    let layer = agent.layer(&id).await.unwrap().unwrap();
    assert!(layer.join("file").exists());
    let state = only(&agent, &spec).await.unwrap().state;
    assert!(matches!(state, ContainerState::Running { .. }), "{state:?}");
    agent.kill(&id).await.unwrap();
    ends(&agent, &spec).await;
    agent.empty(&id).await.unwrap();
    assert!(!layer.exists());
}

/// The engine has more, for what it does for all containers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_and_commands_in_them_have_the_open_files_that_the_kernel_gives() {
    let (site, agent) = with_image().await;
    let limits = "ulimit -Sn; ulimit -Hn";
    for privileged in [false, true] {
        let name = if privileged { "privileged" } else { "plain" };
        let mut spec = site.spec(name, &format!("{limits}; sleep 600"));
        spec.privileged = privileged;
        agent.start(&spec).await.unwrap();
        let command = ["/bin/sh", "-c", limits].map(str::to_owned);
        let done = agent.exec(&id_of(&spec), &command, LIMIT).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&done.output), "1024\n4096\n");
        eventually("its own limits", || async {
            let log = std::fs::read_to_string(&spec.log_path).ok()?;
            (texts(&log) == ["1024", "4096"]).then_some(())
        })
        .await;
        agent.kill(&id_of(&spec)).await.unwrap();
        ends(&agent, &spec).await;
    }
}

fn lines(spec: &ContainerSpec) -> Vec<usize> {
    let log = std::fs::read_to_string(&spec.log_path).unwrap_or_default();
    texts(&log)
        .iter()
        .filter_map(|text| text.strip_prefix("line ")?.parse().ok())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_are_reported_with_their_class_and_leave_nothing_running() {
    let (site, agent) = with_image().await;
    let mut missing = site.spec("missing", "");
    missing.command = Some(vec!["/no/such/program".into()]);
    assert_eq!(
        agent.start(&missing).await.unwrap_err().class,
        ErrorClass::Start
    );
    let record = only(&agent, &missing).await.unwrap();
    assert!(
        matches!(
            record.state,
            ContainerState::Exited {
                code: 128,
                cause: ExitCause::NotStarted(_),
                ..
            }
        ),
        "{record:?}"
    );

    let mut root = site.spec("root", "true");
    root.confinement.run_as_non_root = true;
    assert_eq!(
        agent.start(&root).await.unwrap_err().class,
        ErrorClass::Config
    );
    assert_eq!(only(&agent, &root).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_on_the_machine_needs_no_registry_and_commands_run_inside() {
    let site = Site::new();
    let agent = site.agent();
    let following = tokio::spawn({
        let agent = agent.clone();
        async move { agent.run().await }
    });
    let image = "preloaded.example/busybox:1";
    eventually("the import", || async {
        agent.ensure_image(image, PullPolicy::Never).await.ok()
    })
    .await;
    let spec = ContainerSpec {
        image: image.into(),
        ..site.spec("inside", "sleep 600")
    };
    agent.start(&spec).await.unwrap();
    let id = id_of(&spec);
    let command = |script: &str| ["/bin/sh", "-c", script].map(str::to_owned);
    let done = agent
        .exec(&id, &command("echo inside; exit 4"), LIMIT)
        .await
        .unwrap();
    assert_eq!(
        (done.code, done.output.as_slice()),
        (Some(4), b"inside\n".as_slice())
    );
    let late = agent
        .exec(&id, &command("sleep 600"), Duration::from_millis(300))
        .await
        .unwrap();
    assert_eq!(late.code, None, "it was killed");

    agent.stop(&id).await.unwrap();
    assert!(
        matches!(
            only(&agent, &spec).await.unwrap().state,
            ContainerState::Running { .. }
        ),
        "sh as pid 1 ignores it"
    );
    agent.kill(&id).await.unwrap();
    ends(&agent, &spec).await;
    agent.remove(&id).await.unwrap();
    assert_eq!(agent.images().await.unwrap().len(), 1);
    agent.remove_image(image).await.unwrap();
    assert!(agent.images().await.unwrap().is_empty());
    following.abort();
}

/// A container that exceeds its memory limit, and how its end is reported.
async fn ends_by_memory(site: &Site, agent: &Containerd) {
    agent
        .ensure_image(IMAGE, PullPolicy::IfNotPresent)
        .await
        .unwrap();
    let mut spec = site.spec("greedy", "exec busybox tail /dev/zero");
    spec.resources.memory_limit = Some(16 << 20);
    agent.start(&spec).await.unwrap();
    let ended = eventually("the end by memory", || async {
        only(agent, &spec)
            .await
            .filter(|seen| matches!(seen.state, ContainerState::Exited { .. }))
    });
    let state = ended.await.state;
    assert!(
        matches!(
            state,
            ContainerState::Exited {
                code: 137,
                cause: ExitCause::OutOfMemory,
                ..
            }
        ),
        "{state:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_beyond_its_memory_limit_is_killed_and_reported_as_such() {
    let site = Site::new();
    let agent = site.agent();
    let following = tokio::spawn({
        let agent = agent.clone();
        async move { agent.run().await }
    });
    ends_by_memory(&site, &agent).await;
    following.abort();
}

/// A restarted agent, or one that missed containerd's events, learns it as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_for_memory_is_reported_also_when_no_agent_was_listening() {
    let site = Site::new();
    ends_by_memory(&site, &site.agent()).await;
}

/// containerd asks a container's shim for its state and calls it unknown after 2 s, as on a machine
/// that is busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_whose_shim_is_slow_to_answer_goes_on_to_run() {
    let (site, agent) = with_image().await;
    let spec = site.spec("busy", "while :; do sleep 1; done");
    agent.start(&spec).await.unwrap();

    let stopped = site.engine.stop_shims().unwrap();
    let seen = only(&agent, &spec).await.unwrap();
    drop(stopped);

    assert!(
        matches!(seen.state, ContainerState::Running { .. }),
        "{:?}",
        seen.state
    );
    agent.kill(&seen.id).await.unwrap();
    ends(&agent, &spec).await;
}
