//! A registry, a containerd and a folder for both, on this host.

use agent_images::{DOCKER_HUB, Registries, Registry};
use agent_runtime::{
    Capabilities, Confinement, ContainerKey, ContainerKind, ContainerSpec, Containerd,
    GroupsPolicy, KernelView, Options, PodNamespaces, PodRef, Programs, Resources, Seccomp,
    SharedNamespaces,
};
use config_machine::programs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests_harness::engine::Engine;
use tests_harness::oci;
use tests_harness::tools::Tools;

pub(crate) const IMAGE: &str = "registry.example/busybox:1";
/// The runtime's name in the folder of a site.
pub(crate) const RUNTIME: &str = "runtime";
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// A registry, a containerd and a folder for both.
pub(crate) struct Site {
    registry: tests_harness::registry::Registry,
    pub(crate) engine: Engine,
    pub(crate) dir: tempfile::TempDir,
    /// Where its agents have images from, if not from the registry above.
    pub(crate) registries: Option<Registries>,
    /// Registries beside the one above.
    pub(crate) others: Vec<Registry>,
    /// What containerd starts as the shim of a container.
    pub(crate) shim: PathBuf,
}

impl Site {
    pub(crate) fn new() -> Self {
        Self::with_state(|_, _| {})
    }

    /// A site whose containerd finds below its root what `prepare` put there; it is called with the
    /// folder that containerd sees of this host, and with that root.
    pub(crate) fn with_state(prepare: impl FnOnce(&Path, &Path)) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .unwrap();
        let tools = Tools::find(root).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let port = tests_harness::port::free().unwrap();
        let registry =
            tests_harness::registry::Registry::start(&tools, &subdir(dir.path(), "registry"), port)
                .unwrap();
        prepare(dir.path(), &dir.path().join("engine/root"));
        std::fs::copy(
            env!("CARGO_BIN_EXE_container-runtime"),
            dir.path().join(RUNTIME),
        )
        .unwrap();
        let engine = Engine::start(&tools, dir.path()).unwrap();
        let archive = subdir(dir.path(), "archives").join("busybox.tar");
        let busybox = oci::Image::busybox(&oci::find_busybox(Some(&tools)).unwrap()).unwrap();
        busybox
            .into_archive(&archive, "preloaded.example/busybox:1")
            .unwrap();
        Self {
            registry,
            engine,
            dir,
            registries: None,
            others: Vec::new(),
            shim: programs::SHIM.into(),
        }
    }

    /// Puts an image with these entries on the machine, by this name, before an agent looks.
    pub(crate) fn preload(&self, name: &str, entries: &[oci::Entry<'_>]) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
        let tools = Tools::find(root.unwrap()).unwrap();
        let program = oci::find_busybox(Some(&tools)).unwrap();
        let image = oci::Image::with(&program, entries).unwrap();
        let file = name.replace(['/', ':'], "-") + ".tar";
        let archive = self.dir.path().join("archives").join(file);
        image.into_archive(&archive, name).unwrap();
    }

    /// The folders of an image's layers that have this file.
    pub(crate) fn layers_with(&self, file: &str) -> Vec<PathBuf> {
        let snapshots = "engine/root/io.containerd.snapshotter.v1.overlayfs/snapshots";
        let all = std::fs::read_dir(self.dir.path().join(snapshots)).unwrap();
        let all = all.map(|layer| layer.unwrap().path().join("fs"));
        all.filter(|layer| layer.join(file).symlink_metadata().is_ok())
            .collect()
    }

    /// An agent's side of it; several may follow one another.
    pub(crate) fn agent(&self) -> Arc<Containerd> {
        if let Some(registries) = &self.registries {
            return self.agent_of(registries.clone());
        }
        let mirrors = vec![format!("http://127.0.0.1:{}", self.registry.port)];
        let host = "registry.example".into();
        let own = Registry {
            host,
            mirrors,
            ..Registry::default()
        };
        let all = [vec![own], self.others.clone()].concat();
        self.agent_of(Registries::new(all, DOCKER_HUB, Vec::new()))
    }

    /// The same with other registries.
    pub(crate) fn agent_of(&self, registries: Registries) -> Arc<Containerd> {
        Arc::new(Containerd::new(Options {
            socket: self.engine.socket(),
            state: self.engine.state(),
            fifos: self.dir.path().join("io"),
            logs: self.dir.path().to_owned(),
            registries,
            programs: Some(Programs {
                shim: self.shim.clone(),
                runtime: self.dir.path().join(RUNTIME),
            }),
            archives: vec![self.dir.path().join("archives")],
        }))
    }

    pub(crate) fn spec(&self, pod: &str, script: &str) -> ContainerSpec {
        let pod = PodRef {
            namespace: "default".into(),
            name: pod.into(),
            uid: format!("uid-{pod}"),
        };
        ContainerSpec {
            log_path: self.dir.path().join("logs").join(&pod.name).join("0.log"),
            key: ContainerKey {
                pod,
                container: "main".into(),
                kind: ContainerKind::Main,
                attempt: 0,
            },
            image: IMAGE.into(),
            image_digest: None,
            command: Some(vec!["/bin/sh".into(), "-c".into(), script.into()]),
            args: None,
            env: vec![("GREETING".into(), "hello".into())],
            working_dir: None,
            mounts: Vec::new(),
            keeps: Vec::new(),
            shared: SharedNamespaces::default(),
            pod: PodNamespaces::default(),
            user: None,
            group: None,
            supplemental_groups: Vec::new(),
            groups_policy: GroupsPolicy::Merge,
            capabilities: Capabilities::default(),
            confinement: Confinement::default(),
            privileged: false,
            view: KernelView::Least,
            stop_signal: None,
            target: None,
            seccomp: Seccomp::RuntimeDefault,
            resources: Resources {
                memory_limit: Some(64 << 20),
                ..Resources::default()
            },
            needs: None,
            oom_score_adj: 0,
            cgroup_parent: format!("/pratique-test/{}", std::process::id()),
            stdin: false,
            tty: false,
            backoff: None,
            round: 0,
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.registry.stop().ok();
    }
}

pub(crate) fn subdir(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::create_dir_all(&path).unwrap();
    path
}

pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(
            start.elapsed() < LIMIT,
            "waited {} s for {what}",
            LIMIT.as_secs()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The texts of a log in the CRI format.
pub(crate) fn texts(log: &str) -> Vec<&str> {
    log.lines()
        .map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default())
        .collect()
}
