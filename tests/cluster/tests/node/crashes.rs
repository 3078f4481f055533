//! Shims and containerd that are killed, while a container runs and at the steps of its start: it
//! runs afterwards, once, and leaves nothing when its pod goes.

use crate::cluster::{Cluster, shell};
use crate::site::{RUNTIME, Site, eventually, subdir, texts};
use agent_runtime::{ContainerState, Runtime as _};
use serde_json::json;
use std::cell::RefCell;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// What containers run; nothing else of a site has the name.
const PROGRAM: &str = "sleep";

/// Kills a shim or containerd once while it starts a container, when a file orders it.
struct Strikes(PathBuf);

impl Strikes {
    /// A site whose runtime kills its shim, or containerd, before or after it creates or starts a
    /// container.
    fn prepared() -> (Site, Self) {
        let site = Site::new();
        let dir = subdir(site.dir.path(), "strikes");
        let runtime = site.dir.path().join(RUNTIME);
        // It finds specifications by its own folder.
        let real = site.dir.path().join("real-runtime");
        std::fs::rename(&runtime, &real).unwrap();
        let (at, real) = (dir.display(), real.display());
        let script = format!(
            "#!/usr/bin/busybox sh\n\
             step=none\n\
             for word in \"$@\"; do case \"$word\" in create|start) step=$word; break;; esac; done\n\
             is_due() {{ busybox rm {at}/$step-$1-$2 2>/dev/null; }}\n\
             if is_due before shim; then kill -9 $PPID; exit 1; fi\n\
             if is_due before containerd; then kill -9 $(busybox pidof containerd); fi\n\
             {real} \"$@\"\n\
             code=$?\n\
             if is_due after shim; then kill -9 $PPID; fi\n\
             if is_due after containerd; then kill -9 $(busybox pidof containerd); fi\n\
             exit $code\n"
        );
        std::fs::write(&runtime, script).unwrap();
        std::fs::set_permissions(&runtime, PermissionsExt::from_mode(0o755)).unwrap();
        (site, Self(dir))
    }

    fn prepare(&self, strike: &str) {
        std::fs::write(self.0.join(strike), "").unwrap();
    }

    fn is_over(&self, strike: &str) -> bool {
        !self.0.join(strike).exists()
    }
}

/// A pod of one container, which runs until it is ended.
async fn create(cluster: &Cluster, name: &str) {
    let main = shell(&format!("exec {PROGRAM} 100000"));
    let spec = json!({"containers": [main], "terminationGracePeriodSeconds": 1});
    cluster.create(name, spec).await;
}

/// How many processes of containers there are.
fn programs(cluster: &Cluster) -> usize {
    let all = cluster.site.engine.processes().into_iter();
    all.filter(|name| name == PROGRAM).count()
}

/// Waits until the pod is ready, by one container, of which there is one process.
async fn runs_once(cluster: &Cluster, name: &str) {
    let agent = cluster.engine();
    eventually(&format!("{name} to run once"), || async {
        let status = cluster.pod(name).await?.status?;
        let mut conditions = status.conditions.iter().flatten();
        conditions.find(|one| one.type_ == "Ready" && one.status == "True")?;
        let seen = agent.list(None).await.ok()?;
        let running = seen
            .iter()
            .filter(|one| matches!(one.state, ContainerState::Running { .. }));
        (running.count() == 1 && programs(cluster) == 1).then_some(())
    })
    .await;
}

/// Deletes the pod and waits until nothing of it is left: no object, no container, no process, no
/// shim.
#[allow(clippy::print_stdout, reason = "a test that fails shows what was left")]
async fn leaves_nothing(cluster: &Cluster, name: &str) {
    cluster.delete(name, 1).await;
    let agent = cluster.engine();
    let left = RefCell::new(String::new());
    eventually(&format!("{name} to be gone"), || async {
        let is_there = cluster.pod(name).await.is_some();
        let seen = agent.list(None).await.ok()?;
        let shim = |name: &String| name.starts_with("containerd-shim");
        let shims = cluster.site.engine.processes().iter().any(shim);
        let states: Vec<_> = seen.iter().map(|one| &one.state).collect();
        let programs = programs(cluster);
        let now = format!("pod: {is_there}, {states:?}, {programs} programs, a shim: {shims}");
        if *left.borrow() != now {
            println!("left of {name}: {now}");
            left.replace(now);
        }
        (!is_there && seen.is_empty() && programs == 0 && !shims).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_whose_shim_is_killed_ends_and_is_started_again_once() {
    let cluster = Cluster::new().await;
    create(&cluster, "p").await;
    runs_once(&cluster, "p").await;
    cluster.site.engine.kill_shims().unwrap();
    let restarts = "/containerStatuses/0/restartCount";
    let status = cluster.reaches("p", restarts, json!(1)).await;
    let last = &status["containerStatuses"][0]["lastState"]["terminated"];
    // Nobody saw how it ended.
    let ended = (&last["reason"], &last["exitCode"]);
    assert_eq!(ended, (&json!("Unknown"), &json!(255)), "{status}");
    runs_once(&cluster, "p").await;
    leaves_nothing(&cluster, "p").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_outlives_a_shim_or_containerd_that_is_killed_at_any_step_of_it() {
    let (site, strikes) = Strikes::prepared();
    let cluster = Cluster::at(site).await;
    for victim in ["shim", "containerd"] {
        for step in ["create", "start"] {
            for when in ["before", "after"] {
                let strike = format!("{step}-{when}-{victim}");
                strikes.prepare(&strike);
                create(&cluster, &strike).await;
                eventually(&strike, || async { strikes.is_over(&strike).then_some(()) }).await;
                runs_once(&cluster, &strike).await;
                leaves_nothing(&cluster, &strike).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_whose_probes_find_no_containerd_is_not_restarted_and_stays_in_service() {
    let cluster = Cluster::new().await;
    let mut main = shell(&format!("exec {PROGRAM} 100000"));
    // It takes longer than its period: one of each kind is always under way.
    let script = "echo probed > /proc/1/fd/1; exec busybox sleep 2";
    let probe = json!({
        "exec": {"command": ["/bin/sh", "-c", script]},
        "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": 1,
    });
    (main["livenessProbe"], main["readinessProbe"]) = (probe.clone(), probe);
    let spec = json!({"containers": [main], "terminationGracePeriodSeconds": 1});
    cluster.create("p", spec).await;
    // Looks at its container and its readiness, once the container was restarted or probed so
    // often.
    let probed = async |times: usize| {
        eventually(&format!("{times} probes"), || async {
            let pod = cluster.pod("p").await?;
            let status = pod.status.clone()?;
            let restarts = status.container_statuses?.first()?.restart_count;
            let mut conditions = status.conditions?.into_iter();
            let ready = conditions.find(|one| one.type_ == "Ready")?;
            let log = cluster.log(&pod, 0);
            let done = restarts > 0 || texts(&log).len() >= times;
            (done && log.contains("probed")).then_some((restarts, ready, texts(&log).len()))
        })
        .await
    };
    let (restarts, ready, before) = probed(4).await;
    assert_eq!((restarts, ready.status.as_str()), (0, "True"));
    cluster.site.engine.kill_containerd().unwrap();
    let (restarts, after, _) = probed(before + 6).await;
    assert_eq!(restarts, 0);
    // It was never false: that would have another time.
    assert_eq!(after, ready);
    leaves_nothing(&cluster, "p").await;
}
