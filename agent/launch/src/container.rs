//! Makes the engine's specification of a container: user, mounts, command, limits.

use crate::machine::Machine;
use crate::network::{self, hosts_text};
use crate::refusals::{NOT_PRIVILEGED, NOT_UNMASKED, is_unmasked};
use crate::resolver::Resolver;
use crate::security::Security;
use crate::stage::{MountRequest, propagation};
use crate::sub_paths::sub_paths;
use crate::volumes::{self, VolumeLocation};
use agent_cluster::Sandbox;
use agent_content::Sources;
use agent_content::variables::{self, PathVars};
use agent_pods::{Addresses, is_on_host, log_file, needs, pod_ref};
use agent_resources::qos;
use agent_runtime::{
    ContainerKey, ContainerKind, ContainerSpec, KernelView, Mount, Pause, PodNamespaces, PodRef,
    Resources, SharedNamespaces, UserNamespace, container_id,
};
use agent_sys::attach::Propagation;
use agent_sys::beneath::{Beneath, Links};
use agent_sys::namespace;
use config_kube::k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// Most `volumeMounts` of a container, to which files of the node's own come. Each holds a
/// descriptor while the container starts.
const MOST_MOUNTS: usize = 1000;
/// Default of `terminationMessagePath` (upstream's).
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Which attempt is to be started.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// Its pod.
    pub pod: &'a Pod,
    /// Its container.
    pub container: &'a Container,
    /// What the container is in its pod.
    pub kind: ContainerKind,
    /// 0 for the first attempt.
    pub number: u32,
    /// The back-off that came before it.
    pub backoff: Option<Duration>,
    /// Id of the container whose processes it is to see.
    pub target: Option<&'a str>,
    /// The pod's sandbox.
    pub sandbox: &'a Sandbox,
}

/// An attempt that is ready to be started.
#[derive(Debug)]
pub struct Launch {
    /// The engine's id of it.
    pub id: String,
    /// What the engine runs; its mounts come from where [`crate::stage`] puts the wanted
    /// ones.
    pub spec: ContainerSpec,
    /// What the container is to see, in the order of the specification's mounts.
    pub wanted: Vec<MountRequest>,
}

/// A mount of the container, and where it is in the container.
struct MountAt {
    wanted: MountRequest,
    destination: String,
}

/// Makes the files that the attempt needs and says how to run it.
///
/// # Errors
/// What in the pod, or on the machine, keeps the attempt from being made; in upstream's words where
/// upstream has some.
pub fn prepare(
    machine: &Machine,
    attempt: Attempt<'_>,
    sources: &Sources,
    volumes: &BTreeMap<String, VolumeLocation>,
    machine_memory: u64,
) -> Result<Launch, String> {
    let Attempt {
        pod,
        container,
        number,
        ..
    } = attempt;
    let reference = pod_ref(pod).ok_or("the pod lacks a plain name, namespace or uid")?;
    let vars = variables::resolve(pod, container, sources)?;
    let expanded = |list: &Option<Vec<String>>| {
        let list = list.as_deref();
        list.map(|texts| vars.expand_all(texts)).transpose()
    };
    let (command, args) = (expanded(&container.command)?, expanded(&container.args)?);
    let mut all_vars = vec![("HOSTNAME".to_owned(), host_name(pod))];
    all_vars.extend(vars.into_list());
    check_texts(container, command.as_deref(), args.as_deref(), &all_vars)?;
    let id = container_id(&reference.uid, &container.name, number);
    let mut mounts = volume_mounts(machine, container, volumes, &all_vars)?;
    mounts.extend(
        own_files(machine, attempt, &sources.addresses, &id).map_err(|error| error.to_string())?,
    );
    // A mount above another comes first, so that it does not cover it. `/a/` is as deep as `/a`.
    mounts.sort_by_key(|mount| Path::new(&mount.destination).components().count());
    let mut spec = specification(machine, attempt, reference, machine_memory)?;
    (spec.command, spec.args, spec.env) = (command, args, all_vars);
    spec.mounts = staged(&machine.stage_dir(&id), &mounts);
    spec.keeps = kept(container, volumes);
    Ok(Launch {
        id,
        spec,
        wanted: mounts.into_iter().map(|mount| mount.wanted).collect(),
    })
}

/// Refuses texts that no program can get: one ends at its first NUL, as does a path.
///
/// # Errors
/// There is a NUL in one of them; the message names the field, not what it holds.
fn check_texts(
    container: &Container,
    command: Option<&[String]>,
    args: Option<&[String]>,
    vars: &[(String, String)],
) -> Result<(), String> {
    let has_nul = |text: &String| text.contains('\0');
    let message = &container.termination_message_path;
    let mut mounts = container.volume_mounts.iter().flatten();
    let fields = [
        ("mountPath", mounts.any(|mount| has_nul(&mount.mount_path))),
        ("terminationMessagePath", message.iter().any(has_nul)),
        ("workingDir", container.working_dir.iter().any(has_nul)),
        ("command", command.into_iter().flatten().any(has_nul)),
        ("args", args.into_iter().flatten().any(has_nul)),
    ];
    if let Some((field, _)) = fields.into_iter().find(|(_, is_wrong)| *is_wrong) {
        return Err(format!("{field} must not contain a NUL character"));
    }
    let mut vars = vars.iter();
    match vars.find(|(name, value)| has_nul(name) || has_nul(value)) {
        Some((name, _)) => Err(format!(
            "variable {name:?} must not contain a NUL character"
        )),
        None => Ok(()),
    }
}

/// The specification of an attempt, without its command, its variables and what is mounted.
fn specification(
    machine: &Machine,
    attempt: Attempt<'_>,
    reference: PodRef,
    machine_memory: u64,
) -> Result<ContainerSpec, String> {
    let Attempt {
        pod,
        container,
        number,
        ..
    } = attempt;
    let spec = pod.spec.as_ref().ok_or("the pod has no spec")?;
    let security = Security::of(
        spec.security_context.as_ref(),
        container.security_context.as_ref(),
    );
    // Asked of each container, as the machine may have another configuration since the pod was
    // admitted.
    if security.privileged() && !machine.privileged {
        return Err(NOT_PRIVILEGED.to_owned());
    }
    let resources = Resources {
        pids_limit: Some(machine.pids.into()),
        ..qos::resources(pod, container)
    };
    let id = container_id(&reference.uid, &container.name, number);
    Ok(ContainerSpec {
        log_path: log_file(&machine.logs, &reference, &container.name, number),
        oom_score_adj: qos::oom_score(pod, container, machine_memory),
        cgroup_parent: qos::cgroup(pod, &reference.uid),
        key: ContainerKey {
            pod: reference,
            container: container.name.clone(),
            kind: attempt.kind,
            attempt: number,
        },
        image: container.image.clone().unwrap_or_default(),
        image_digest: None,
        command: None,
        args: None,
        env: Vec::new(),
        working_dir: container.working_dir.clone(),
        mounts: Vec::new(),
        keeps: Vec::new(),
        shared: SharedNamespaces {
            pid: spec.host_pid == Some(true),
            ipc: spec.host_ipc == Some(true),
        },
        pod: namespaces(attempt.sandbox, machine.stage_dir(&id).join("layers")),
        user: security.id(|pod| pod.run_as_user, |container| container.run_as_user)?,
        group: security.id(|pod| pod.run_as_group, |container| container.run_as_group)?,
        supplemental_groups: security.groups()?,
        groups_policy: security.groups_policy(),
        capabilities: security.capabilities(),
        confinement: security.confinement(),
        privileged: security.privileged(),
        view: view(machine, container)?,
        stop_signal: stop_signal(container),
        target: attempt.target.map(str::to_owned),
        seccomp: security.seccomp(),
        resources,
        needs: needs(pod, container),
        stdin: container.stdin == Some(true),
        tty: container.tty == Some(true),
        backoff: attempt.backoff,
        round: 0,
    })
}

/// The layers of images that volumes of the container show.
fn kept(container: &Container, volumes: &BTreeMap<String, VolumeLocation>) -> Vec<String> {
    let mounts = container.volume_mounts.iter().flatten();
    let layers = mounts.filter_map(|mount| match volumes.get(&mount.name)? {
        VolumeLocation::Image { layers, .. } => Some(layers.clone()),
        VolumeLocation::Held(_)
        | VolumeLocation::Own(_)
        | VolumeLocation::Host(..)
        | VolumeLocation::Driver(_)
        | VolumeLocation::ReadOnly(_) => None,
    });
    layers.collect()
}

/// The process whose process ids the pod's containers share, where they do.
pub fn pause(pod: &Pod, sandbox: &Sandbox) -> Option<Pause> {
    let spec = pod.spec.as_ref()?;
    let shares = spec.share_process_namespace == Some(true) && spec.host_pid != Some(true);
    let reference = pod_ref(pod).filter(|_| shares)?;
    Some(Pause {
        cgroup_parent: qos::cgroup(pod, &reference.uid),
        pod: reference,
        // It has no layers.
        namespaces: namespaces(sandbox, PathBuf::new()),
    })
}

/// The pod's users, where it has some of its own; layers of its containers' images are mounted at
/// `layers`.
pub fn users(sandbox: &Sandbox, layers: PathBuf) -> Option<UserNamespace> {
    Some(UserNamespace {
        namespace: sandbox.held(namespace::Kind::User)?,
        first: sandbox.first_id?,
        layers,
    })
}

fn namespaces(sandbox: &Sandbox, layers: PathBuf) -> PodNamespaces {
    PodNamespaces {
        network: sandbox.held(namespace::Kind::Network),
        ipc: sandbox.held(namespace::Kind::Ipc),
        uts: sandbox.held(namespace::Kind::Uts),
        shm: sandbox.shm(),
        users: users(sandbox, layers),
    }
}

/// How much of the kernel the container sees, by its `procMount`; asked of each, as whether it may
/// be privileged is.
fn view(machine: &Machine, container: &Container) -> Result<KernelView, String> {
    match (is_unmasked(container), machine.privileged) {
        (false, _) => Ok(KernelView::Least),
        (true, true) => Ok(KernelView::Proc),
        (true, false) => Err(NOT_UNMASKED.to_owned()),
    }
}

/// The container's own stop signal (KEP-4960).
fn stop_signal(container: &Container) -> Option<String> {
    container.lifecycle.as_ref()?.stop_signal.clone()
}

/// The container's mounts; the source of each is its number below the staging folder.
fn staged(stage: &Path, mounts: &[MountAt]) -> Vec<Mount> {
    let mount = |(index, at): (usize, &MountAt)| Mount {
        source: stage.join(index.to_string()),
        destination: at.destination.clone(),
        read_only: at.wanted.read_only,
        no_exec: at.wanted.no_exec,
        propagation: at.wanted.propagation,
    };
    mounts.iter().enumerate().map(mount).collect()
}

fn volume_mounts(
    machine: &Machine,
    container: &Container,
    volumes: &BTreeMap<String, VolumeLocation>,
    vars: &[(String, String)],
) -> Result<Vec<MountAt>, String> {
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    if mounts.len() > MOST_MOUNTS {
        let count = mounts.len();
        return Err(format!(
            "a container may have {MOST_MOUNTS} volumeMounts, not {count}"
        ));
    }
    let asks = mounts.iter().any(|mount| mount.sub_path_expr.is_some());
    let vars = PathVars::of(if asks { vars } else { &[] });
    let paths = sub_paths(mounts, &vars, volumes)?;
    let mounts = mounts.iter().zip(&paths);
    mounts
        .map(|(mount, path)| volume_mount(machine, mount, path.as_deref(), volumes))
        .collect()
}

fn volume_mount(
    machine: &Machine,
    mount: &VolumeMount,
    sub_path: Option<&str>,
    volumes: &BTreeMap<String, VolumeLocation>,
) -> Result<MountAt, String> {
    let source = volumes
        .get(&mount.name)
        .ok_or_else(|| format!("the pod has no volume {:?}", mount.name))?;
    // What the agent fills is the agent's alone to write (upstream's rule, too).
    let of_volume = match source {
        VolumeLocation::Held(_) | VolumeLocation::ReadOnly(_) | VolumeLocation::Image { .. } => {
            true
        }
        VolumeLocation::Own(_) | VolumeLocation::Host(..) | VolumeLocation::Driver(_) => false,
    };
    let read_only = mount.read_only == Some(true) || of_volume;
    let handle =
        volumes::place(machine, source, sub_path, read_only).map_err(|error| match sub_path {
            Some(path) => format!("subPath {path:?} of volume {:?}: {error}", mount.name),
            None => format!("volume {:?}: {error}", mount.name),
        })?;
    let destination = Path::new("/").join(&mount.mount_path);
    if destination
        .components()
        .any(|part| part == Component::ParentDir)
    {
        return Err(format!(
            "mountPath {:?} must not contain ..",
            mount.mount_path
        ));
    }
    let destination = destination.to_string_lossy().into_owned();
    let wanted = MountRequest {
        source: handle,
        read_only,
        no_exec: matches!(source, VolumeLocation::Image { .. }),
        propagation: propagation(mount),
        is_mapped: matches!(source, VolumeLocation::Image { .. }),
    };
    Ok(MountAt {
        wanted,
        destination,
    })
}

/// The files of name resolution and of the termination message, unless the pod mounts something
/// there itself.
fn own_files(
    machine: &Machine,
    attempt: Attempt<'_>,
    addresses: &Addresses,
    id: &str,
) -> io::Result<Vec<MountAt>> {
    let Attempt {
        pod,
        container,
        sandbox,
        ..
    } = attempt;
    let dir = Beneath::make_root(&machine.pod_dir(&sandbox.wanted.uid))?;
    let words = termination_file(id);
    dir.make_dirs(Path::new(MESSAGES), 0o755)?;
    dir.append(&words, 0o666)?;
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let [hosts, resolv] = NAME_FILES.map(Path::new);
    dir.rewrite(hosts, 0o644)?.write_all(
        hosts_text(pod, &read(&machine.hosts), &machine_name(), &addresses.pod).as_bytes(),
    )?;
    dir.rewrite(resolv, 0o644)?.write_all(
        Resolver::of(pod, &read(&machine.resolv_conf), addresses.dns)
            .text()
            .as_bytes(),
    )?;
    let words_at = container
        .termination_message_path
        .clone()
        .unwrap_or_else(|| TERMINATION_LOG.to_owned());
    let taken = |place: &str| {
        container
            .volume_mounts
            .iter()
            .flatten()
            .any(|mount| mount.mount_path.trim_end_matches('/') == place)
    };
    let files = [
        (hosts, "/etc/hosts"),
        (resolv, "/etc/resolv.conf"),
        (&words, words_at.as_str()),
    ];
    let mounts = files
        .into_iter()
        .filter(|(_, place)| place.starts_with('/') && !taken(place));
    let mount_at = |(path, destination): (&Path, &str)| {
        let source = dir.handle(path, Links::Refused)?;
        let wanted = MountRequest {
            source,
            read_only: false,
            no_exec: false,
            propagation: Propagation::Private,
            is_mapped: false,
        };
        Ok(MountAt {
            wanted,
            destination: destination.to_owned(),
        })
    };
    mounts.map(mount_at).collect()
}

/// Folder of termination messages, below the pod's.
pub const MESSAGES: &str = "messages";

/// Files of name resolution, below the pod's folder: only its containers read them.
pub const NAME_FILES: [&str; 2] = ["hosts", "resolv.conf"];

/// File of an attempt's termination message, below the pod's folder.
pub fn termination_file(id: &str) -> PathBuf {
    Path::new(MESSAGES).join(id)
}

/// The host name that the pod's programs see.
fn host_name(pod: &Pod) -> String {
    if is_on_host(pod) {
        machine_name()
    } else {
        network::kernel_name(pod).unwrap_or_else(|_| network::hostname(pod))
    }
}

fn machine_name() -> String {
    nix::unistd::gethostname()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;
    use agent_runtime::GroupsPolicy;
    use serde_json::{Value, json};

    fn launched(spec: &Value) -> Result<Launch, String> {
        let dir = tempfile::tempdir().unwrap();
        let meta = json!({"name": "p", "namespace": "n", "uid": "u"});
        let pod: Pod = serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let sandbox = Sandbox::default();
        let attempt = Attempt {
            pod: &pod,
            container,
            kind: ContainerKind::Main,
            number: 2,
            backoff: None,
            target: None,
            sandbox: &sandbox,
        };
        let held = dir.path().join("held");
        fs::create_dir_all(&held).unwrap();
        let volumes = [
            ("v".to_owned(), VolumeLocation::Own(dir.path().to_owned())),
            ("held".to_owned(), VolumeLocation::Held(held)),
        ];
        prepare(
            &machine(dir.path()),
            attempt,
            &Sources::default(),
            &volumes.into(),
            1 << 30,
        )
    }

    fn made(spec: &Value) -> Result<ContainerSpec, String> {
        launched(spec).map(|launch| launch.spec)
    }

    #[test]
    fn the_container_wins_over_the_pod() {
        let spec = made(&json!({
            "securityContext": {
                "runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "runAsNonRoot": true, "supplementalGroupsPolicy": "Strict",
            },
            "containers": [{"name": "a", "image": "i", "securityContext": {"runAsUser": 5, "allowPrivilegeEscalation": false}}],
        }))
        .unwrap();
        assert_eq!(
            (spec.user, spec.group, spec.supplemental_groups),
            (Some(5), Some(2), vec![3])
        );
        assert!(spec.confinement.run_as_non_root && spec.confinement.no_new_privileges);
        assert_eq!(spec.groups_policy, GroupsPolicy::Strict);
    }

    #[test]
    fn variables_are_expanded_in_the_command() {
        let env = json!([{"name": "A", "value": "x"}]);
        let spec =
            made(&json!({"containers": [{"name": "a", "env": env, "command": ["run", "$(A)"]}]}))
                .unwrap();
        assert_eq!(spec.command.unwrap(), ["run", "x"]);
    }

    #[test]
    fn a_sub_path_stays_inside_its_volume() {
        let mount = |path: &str| json!({"containers": [{"name": "a", "volumeMounts": [{"name": "v", "mountPath": "/m", "subPath": path}]}]});
        let launch = launched(&mount("a/b")).unwrap();
        let at = launch
            .spec
            .mounts
            .iter()
            .position(|mount| mount.destination == "/m")
            .unwrap();
        assert!(launch.wanted[at].source.is_dir() && !launch.wanted[at].read_only);
        assert!(
            launch.spec.mounts[at]
                .source
                .ends_with(format!("mounts/{}/{at}", launch.id))
        );
        assert!(made(&mount("../a")).is_err());
    }

    #[test]
    fn a_sub_path_of_variables_stays_inside_its_volume_too() {
        let mount = |value: &str, text: &str| {
            let mount = json!({"name": "v", "mountPath": "/m", "subPathExpr": text});
            let env = json!([{"name": "A", "value": value}]);
            made(&json!({"containers": [{"name": "a", "env": env, "volumeMounts": [mount]}]}))
        };
        assert!(mount("foo", "$(A)/b").is_ok());
        for (value, text) in [("..", "$(A)"), ("/tmp", "$(A)"), ("foo", "$(B)")] {
            assert!(mount(value, text).is_err(), "{value} {text}");
        }
    }

    #[test]
    fn a_mount_below_another_comes_after_it_however_their_paths_are_written() {
        for (above, below) in [("/a/", "/a/b"), ("//a", "/a/b"), ("/a/./", "/a/b/c")] {
            let mounts = [below, above].map(|path| json!({"name": "v", "mountPath": path}));
            let containers = json!([{"name": "a", "volumeMounts": mounts}]);
            let spec = made(&json!({"containers": containers})).unwrap();
            let own = spec.mounts.iter().map(|mount| mount.destination.as_str());
            let own: Vec<_> = own.filter(|path| [above, below].contains(path)).collect();
            assert_eq!(own, [above, below]);
        }
    }

    #[test]
    fn what_the_agent_fills_is_read_only_whatever_the_pod_says() {
        let mounts = json!([{"name": "held", "mountPath": "/m", "readOnly": false}]);
        let launch =
            launched(&json!({"containers": [{"name": "a", "volumeMounts": mounts}]})).unwrap();
        let at = launch
            .spec
            .mounts
            .iter()
            .position(|mount| mount.destination == "/m")
            .unwrap();
        assert!(launch.wanted[at].read_only && launch.spec.mounts[at].read_only);
    }

    #[test]
    fn a_pod_that_ran_before_the_machine_got_another_configuration_is_not_privileged() {
        let privileged = |value: bool| json!({"containers": [{"name": "a", "securityContext": {"privileged": value}}]});
        assert!(
            made(&privileged(true))
                .unwrap_err()
                .contains("[node] privileged")
        );
        assert!(made(&privileged(false)).is_ok());
    }

    #[test]
    fn a_pod_that_ran_before_the_machine_got_another_configuration_does_not_see_all_of_proc() {
        let shown = |mount: &str| {
            let security = json!({"procMount": mount});
            let containers = json!([{"name": "a", "securityContext": security}]);
            made(&json!({"hostUsers": false, "containers": containers}))
        };
        let refused = shown("Unmasked").unwrap_err();
        assert!(refused.contains("[node] privileged"), "{refused}");
        assert_eq!(shown("Default").unwrap().view, KernelView::Least);
    }

    #[test]
    fn a_nul_is_refused_in_all_that_the_runtime_reads_and_not_shown() {
        let mount = |path: &str| json!([{"name": "v", "mountPath": path}]);
        for (field, value, told) in [
            ("volumeMounts", mount("/./dev\0secret"), "mountPath"),
            ("volumeMounts", mount("/dev/null\0secret"), "mountPath"),
            (
                "terminationMessagePath",
                json!("/a\0secret"),
                "terminationMessagePath",
            ),
            ("workingDir", json!("/\0secret"), "workingDir"),
            ("command", json!(["a", "secret\0"]), "command"),
            ("args", json!(["secret\0"]), "args"),
            (
                "env",
                json!([{"name": "A", "value": "secret\0"}]),
                "variable \"A\"",
            ),
        ] {
            let mut container = json!({"name": "a"});
            container[field] = value;
            let refused = made(&json!({"containers": [container]})).unwrap_err();
            assert_eq!(refused, format!("{told} must not contain a NUL character"));
        }
    }

    #[test]
    fn processes_are_limited_by_default() {
        assert_eq!(
            made(&json!({"containers": [{"name": "a"}]}))
                .unwrap()
                .resources
                .pids_limit,
            Some(100)
        );
    }
}
