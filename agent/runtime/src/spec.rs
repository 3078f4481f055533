//! Writes the OCI runtime specification of a container, from the pod's spec and its image's
//! configuration.

mod mounts;

use crate::model::{ContainerSpec, Resources, User};
use crate::users::Identity;
use agent_confine::{Device, FilterOptions, KernelView, Tpms, filter, read_only};
use agent_containerd::{Error, ErrorClass};
use agent_images::ImageDefaults;
use agent_sys::attach::Propagation;
use agent_sys::namespace::IDS;
use serde_json::{Value, json};
use std::collections::HashMap;

/// `PATH` of images that name none (as other engines do).
const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The greatest user or group id of pods (upstream's limit) and images: the ids above belong to
/// pods with user namespaces.
const MAX_ID: u32 = (1 << 31) - 1;
/// Period of CPU limits in microseconds, the kernel's default.
const CPU_PERIOD: u64 = 100_000;

/// The machine's properties that the specification depends on.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    /// Whether it has cgroup v2 only (one tree).
    pub(crate) unified_cgroups: bool,
    /// The capabilities that can be granted, by their bits: the agent's own.
    pub(crate) capabilities: u64,
    /// Lowest `oom_score_adj` that may be set, if the agent can't lower it further.
    pub(crate) lowest_oom_score: Option<i32>,
    /// Its TPMs, which no container gets.
    pub(crate) tpms: Tpms,
    /// Its other devices, which privileged containers get.
    pub(crate) devices: Vec<Device>,
    /// First process of the container whose PID namespace this one joins.
    pub(crate) target: Option<u32>,
}

/// The whole specification.
pub(crate) fn runtime_spec(
    spec: &ContainerSpec,
    id: &str,
    image: &ImageDefaults,
    identity: &Identity,
    host: &Host,
) -> Result<Value, Error> {
    if spec.confinement.run_as_non_root && identity.uid == 0 {
        return Err(config(
            "container has runAsNonRoot and image will run as root",
        ));
    }
    let capabilities =
        agent_confine::capabilities(&spec.capabilities, spec.privileged, host.capabilities);
    if spec.view != KernelView::Least && spec.pod.users.is_none() {
        return Err(config("procMount: Unmasked needs hostUsers: false"));
    }
    let view = if spec.privileged {
        KernelView::Whole
    } else {
        spec.view
    };
    let mut linux = json!({
        "cgroupsPath": format!("{}/{id}", spec.cgroup_parent),
        "namespaces": namespaces(spec, host),
        "resources": resources(spec, host),
        "maskedPaths": agent_confine::masked(&host.tpms, view),
        "rootfsPropagation": spec.mounts.iter().map(|one| one.propagation).fold(Propagation::Slave, Ord::max).option(),
    });
    if let Some(users) = &spec.pod.users {
        if spec.privileged {
            return Err(config(
                "a pod with hostUsers: false can't have a privileged container",
            ));
        }
        // The runtime enters the namespace, which has its map already; containerd gets the owner of
        // the container's folder from this one.
        let map = json!([{"containerID": 0, "hostID": users.first, "size": IDS}]);
        linux["uidMappings"] = map.clone();
        linux["gidMappings"] = map;
    }
    if spec.privileged {
        linux["devices"] = json!(agent_confine::nodes(&host.devices));
    } else {
        linux["readonlyPaths"] = json!(read_only(view));
        let options = FilterOptions {
            profile: spec.seccomp,
            capabilities: &capabilities,
            host_pid: spec.shared.pid,
        };
        linux["seccomp"] = filter(options);
    }
    Ok(json!({
        "ociVersion": "1.1.0",
        "process": process(spec, image, identity, host, &capabilities)?,
        "root": {"path": "rootfs", "readonly": spec.confinement.read_only_root},
        "mounts": mounts::mounts(spec),
        "linux": linux,
    }))
}

fn process(
    spec: &ContainerSpec,
    image: &ImageDefaults,
    identity: &Identity,
    host: &Host,
    capabilities: &[String],
) -> Result<Value, Error> {
    let cwd = spec
        .working_dir
        .as_deref()
        .or(image.working_dir.as_deref())
        .filter(|dir| !dir.is_empty())
        .unwrap_or("/");
    if !cwd.starts_with('/') {
        return Err(config(format!(
            "workingDir {cwd:?} is not an absolute path"
        )));
    }
    let oom_score = host
        .lowest_oom_score
        .map_or(spec.oom_score_adj, |lowest| spec.oom_score_adj.max(lowest));
    let User { uid, gid, groups } = identity.user(spec);
    let (who, most) = match spec.pod.users {
        Some(_) => ("a pod with hostUsers: false", IDS - 1),
        None => ("a pod", MAX_ID),
    };
    let mut ids = [uid, gid].into_iter().chain(groups.iter().copied());
    if let Some(id) = ids.find(|id| *id > most) {
        return Err(config(format!(
            "{id} is no user or group id of {who}: use one of 0 to {most}"
        )));
    }
    Ok(json!({
        "terminal": spec.tty,
        "user": {"uid": uid, "gid": gid, "additionalGids": groups},
        "args": arguments(spec, image)?,
        "env": environment(spec, image),
        "cwd": cwd,
        "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
        "noNewPrivileges": spec.confinement.no_new_privileges,
        "oomScoreAdj": oom_score,
        "rlimits": agent_confine::resource_limits(spec.privileged),
    }))
}

/// A pod's command drops the image's arguments with its entry point; a pod's arguments replace only
/// those.
fn arguments(spec: &ContainerSpec, image: &ImageDefaults) -> Result<Vec<String>, Error> {
    let filled = |list: &Option<Vec<String>>| list.clone().filter(|list| !list.is_empty());
    let command = filled(&spec.command);
    let args = filled(&spec.args);
    let mut all = match &command {
        Some(command) => command.clone(),
        None => image.entrypoint.clone().unwrap_or_default(),
    };
    match (args, command) {
        (Some(args), _) => all.extend(args),
        (None, None) => all.extend(image.cmd.clone().unwrap_or_default()),
        (None, Some(_)) => {}
    }
    if all.first().is_none_or(String::is_empty) {
        return Err(config(
            "no command specified: neither the pod nor the image names one",
        ));
    }
    Ok(all)
}

/// The image's variables, then the pod's over them; a later one of the same name wins.
fn environment(spec: &ContainerSpec, image: &ImageDefaults) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    // An image's configuration may hold very many variables, so each is looked up in a map.
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut set = |entry: String| {
        let name = entry.split('=').next().unwrap_or_default().to_owned();
        let place = *places.entry(name).or_insert(all.len());
        match all.get_mut(place) {
            Some(old) => *old = entry,
            None => all.push(entry),
        }
    };
    set(DEFAULT_PATH.to_owned());
    if spec.tty {
        set("TERM=xterm".to_owned());
    }
    image
        .env
        .iter()
        .flatten()
        .filter(|entry| entry.contains('='))
        .cloned()
        .for_each(&mut set);
    spec.env
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .for_each(&mut set);
    all
}

fn namespaces(spec: &ContainerSpec, host: &Host) -> Vec<Value> {
    let own = [
        ("mount", true),
        ("pid", !spec.shared.pid && host.target.is_none()),
        ("ipc", !spec.shared.ipc && spec.pod.ipc.is_none()),
        ("cgroup", host.unified_cgroups),
    ];
    let of_pod = [
        ("network", &spec.pod.network),
        ("ipc", &spec.pod.ipc),
        ("uts", &spec.pod.uts),
    ];
    let users = spec.pod.users.iter();
    let users = users.map(|users| json!({"type": "user", "path": users.namespace}));
    let own = own.into_iter().filter(|(_, own)| *own);
    let of_pod = of_pod
        .into_iter()
        .filter_map(|(kind, path)| Some(json!({"type": kind, "path": path.as_ref()?})));
    let of_target = host.target.filter(|_| !spec.shared.pid);
    let of_target =
        of_target.map(|pid| json!({"type": "pid", "path": format!("/proc/{pid}/ns/pid")}));
    own.map(|(kind, _)| json!({"type": kind}))
        .chain(users)
        .chain(of_pod)
        .chain(of_target)
        .collect()
}

/// Limits, and the rules of the device filter.
fn resources(spec: &ContainerSpec, host: &Host) -> Value {
    let mut all = limits(&spec.resources, host.unified_cgroups);
    all["devices"] = json!(agent_confine::device_rules(&host.tpms, spec.privileged));
    if host.unified_cgroups {
        // Also without a memory limit: one may be set later.
        all["unified"] = json!({"memory.oom.group": "1"});
    }
    all
}

/// Only the limits, which can change while a container runs. A limit that is not set is left out.
pub(crate) fn limits(wanted: &Resources, unified_cgroups: bool) -> Value {
    let shares = (wanted.cpu_request_millis.saturating_mul(1024) / 1000).clamp(2, 262_144);
    let mut all = json!({"cpu": {"shares": shares}});
    if let Some(millis) = wanted.cpu_limit_millis {
        all["cpu"]["period"] = json!(CPU_PERIOD);
        all["cpu"]["quota"] = json!((millis.saturating_mul(CPU_PERIOD) / 1000).max(1000));
    }
    if let Some(bytes) = wanted.memory_limit {
        all["memory"] = json!({"limit": bytes});
        if unified_cgroups {
            all["memory"]["swap"] = json!(bytes);
        }
    }
    if let Some(pids) = wanted.pids_limit {
        all["pids"] = json!({"limit": pids});
    }
    all
}

fn config(message: impl Into<String>) -> Error {
    Error::new(ErrorClass::Config, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        Confinement, ContainerKey, ContainerKind, GroupsPolicy, Mount, PodNamespaces, PodRef,
        SharedNamespaces, UserNamespace,
    };
    use agent_confine::{Capabilities, Seccomp};

    fn host() -> Host {
        let tpms = Tpms::find(std::path::Path::new("/nonexistent"));
        let devices = agent_confine::devices(std::path::Path::new("/dev"), &tpms);
        Host {
            unified_cgroups: true,
            capabilities: u64::MAX,
            lowest_oom_score: None,
            tpms,
            devices,
            target: None,
        }
    }

    fn wanted() -> ContainerSpec {
        let pod = PodRef {
            namespace: "default".into(),
            name: "a".into(),
            uid: "u".into(),
        };
        ContainerSpec {
            key: ContainerKey {
                pod,
                container: "c".into(),
                kind: ContainerKind::Main,
                attempt: 0,
            },
            image: "registry.example/app:1".into(),
            image_digest: None,
            command: None,
            args: None,
            env: vec![("B".into(), "pod".into())],
            working_dir: None,
            mounts: vec![Mount {
                source: "/data".into(),
                destination: "/d".into(),
                read_only: true,
                no_exec: false,
                propagation: Propagation::Private,
            }],
            keeps: Vec::new(),
            shared: SharedNamespaces::default(),
            pod: PodNamespaces::default(),
            user: None,
            group: None,
            supplemental_groups: vec![7],
            groups_policy: GroupsPolicy::Merge,
            capabilities: Capabilities::default(),
            confinement: Confinement::default(),
            privileged: false,
            view: KernelView::Least,
            stop_signal: None,
            target: None,
            seccomp: Seccomp::RuntimeDefault,
            resources: Resources {
                cpu_request_millis: 500,
                cpu_limit_millis: Some(1500),
                memory_limit: Some(1 << 20),
                pids_limit: None,
            },
            needs: None,
            oom_score_adj: -997,
            cgroup_parent: "/kubepods/podu".into(),
            stdin: false,
            tty: false,
            backoff: None,
            round: 0,
            log_path: "/l".into(),
        }
    }

    fn image() -> ImageDefaults {
        ImageDefaults {
            env: Some(vec!["A=image".into(), "B=image".into()]),
            entrypoint: Some(vec!["/entry".into()]),
            cmd: Some(vec!["default".into()]),
            ..ImageDefaults::default()
        }
    }

    fn root() -> Identity {
        Identity {
            uid: 0,
            gid: 0,
            groups: vec![0],
        }
    }

    fn made(spec: &ContainerSpec) -> Value {
        runtime_spec(spec, "id", &image(), &root(), &host()).unwrap()
    }

    #[test]
    fn command_and_arguments_follow_the_four_cases() {
        let args = |command: Option<&str>, args: Option<&str>| {
            let list = |text: Option<&str>| text.map(|text| vec![text.to_owned()]);
            let spec = ContainerSpec {
                command: list(command),
                args: list(args),
                ..wanted()
            };
            made(&spec)["process"]["args"].clone()
        };
        assert_eq!(args(None, None), json!(["/entry", "default"]));
        assert_eq!(args(None, Some("x")), json!(["/entry", "x"]));
        assert_eq!(args(Some("/cmd"), None), json!(["/cmd"]));
        assert_eq!(args(Some("/cmd"), Some("x")), json!(["/cmd", "x"]));
    }

    #[test]
    fn groups_of_the_image_are_added_to_the_pods_unless_it_is_strict() {
        let identity = Identity {
            uid: 5,
            gid: 5,
            groups: vec![5, 50],
        };
        let groups = |groups_policy| {
            let spec = ContainerSpec {
                groups_policy,
                ..wanted()
            };
            let made = runtime_spec(&spec, "id", &image(), &identity, &host()).unwrap();
            made["process"]["user"]["additionalGids"].clone()
        };
        assert_eq!(groups(GroupsPolicy::Merge), json!([5, 7, 50]));
        assert_eq!(groups(GroupsPolicy::Strict), json!([5, 7]));
    }

    #[test]
    fn nothing_to_run_is_the_pods_fault() {
        let error =
            runtime_spec(&wanted(), "id", &ImageDefaults::default(), &root(), &host()).unwrap_err();
        assert_eq!(error.class, ErrorClass::Config);
    }

    #[test]
    fn the_pods_variables_win_over_the_images() {
        let env = made(&wanted())["process"]["env"].clone();
        assert_eq!(env, json!([DEFAULT_PATH, "A=image", "B=pod"]));
    }

    #[test]
    fn the_variables_of_an_image_are_looked_up_however_many_they_are() {
        let image = ImageDefaults {
            env: Some((0..400_000).map(|number| format!("{number}=")).collect()),
            ..image()
        };
        let spec = runtime_spec(&wanted(), "id", &image, &root(), &host()).unwrap();
        assert_eq!(spec["process"]["env"].as_array().unwrap().len(), 400_002);
    }

    #[test]
    fn no_device_is_given_beyond_the_specifications_own() {
        let spec = made(&wanted());
        assert_eq!(
            spec["linux"]["resources"]["devices"],
            json!([{"allow": false, "access": "rwm"}])
        );
        assert!(spec["linux"].get("devices").is_none());
        let dev: Vec<&Value> = spec["mounts"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|m| m["destination"] == "/dev")
            .collect();
        assert_eq!(dev.len(), 1);
        assert_eq!(dev[0]["type"], "tmpfs");
    }

    /// The places of a container's mounts, in the order in which they are made.
    fn places(volumes: &[&str]) -> Vec<String> {
        let mut spec = wanted();
        let volume = spec.mounts.remove(0);
        spec.mounts = volumes
            .iter()
            .map(|&at| Mount {
                destination: at.to_owned(),
                ..volume.clone()
            })
            .collect();
        let all = made(&spec)["mounts"].as_array().unwrap().clone();
        let place = |mount: &Value| mount["destination"].as_str().unwrap().to_owned();
        all.iter().map(place).collect()
    }

    /// A link of a pod or an image leads a volume below the container's own `/dev`, and never over
    /// it.
    #[test]
    fn dev_covers_every_volume_but_those_that_are_named_below_it() {
        let volumes = ["/v", "/dev/shm", "/v/d", "/dev/./a", "/dev/../b", "/device"];
        assert_eq!(
            places(&volumes),
            [
                "/proc",
                "/sys",
                "/sys/fs/cgroup",
                "/v",
                "/v/d",
                "/dev/../b",
                "/device",
                "/dev",
                "/dev/pts",
                "/dev/shm",
                "/dev/mqueue",
                "/dev/shm",
                "/dev/./a",
            ]
        );
        // A privileged container may have the machine's own `/dev`, with what is mounted in it.
        let last = places(&["/v", "//dev/"]);
        assert_eq!(last.last().map(String::as_str), Some("//dev/"));
    }

    #[test]
    fn mounts_of_a_container_reach_the_machine_only_where_one_of_its_volumes_is_shared() {
        let mounted = |propagation| {
            let mut spec = wanted();
            spec.mounts[0].propagation = propagation;
            let all = made(&spec);
            let mut own = all["mounts"].as_array().unwrap().iter();
            let own = own.find(|mount| mount["destination"] == "/d").unwrap();
            let side = own["options"][1].as_str().unwrap().to_owned();
            let root = all["linux"]["rootfsPropagation"].as_str().unwrap();
            (side, root.to_owned())
        };
        let words = |side: &str, root: &str| (side.to_owned(), root.to_owned());
        assert_eq!(mounted(Propagation::Private), words("rprivate", "rslave"));
        assert_eq!(mounted(Propagation::Slave), words("rslave", "rslave"));
        assert_eq!(mounted(Propagation::Shared), words("rshared", "rshared"));
    }

    #[test]
    fn there_is_a_filter_under_unconfined_and_none_for_the_privileged() {
        let mut spec = ContainerSpec {
            seccomp: Seccomp::Unconfined,
            ..wanted()
        };
        spec.capabilities.add = vec!["ALL".into()];
        let open = made(&spec);
        assert_eq!(open["linux"]["seccomp"]["defaultAction"], "SCMP_ACT_ERRNO");
        let closed = json!(read_only(KernelView::Least));
        assert_eq!(open["linux"]["readonlyPaths"], closed);
        let given = open["process"]["capabilities"]["bounding"]
            .as_array()
            .unwrap()
            .clone();
        assert!(
            !given.contains(&json!("CAP_SYS_ADMIN")) && !given.contains(&json!("CAP_SYS_PTRACE")),
            "{given:?}"
        );
        spec.privileged = true;
        let root = made(&spec);
        assert!(
            root["linux"].get("seccomp").is_none() && root["linux"].get("readonlyPaths").is_none()
        );
        assert_eq!(
            root["process"]["capabilities"]["bounding"]
                .as_array()
                .unwrap()
                .len(),
            41
        );
        let rules = root["linux"]["resources"]["devices"].as_array().unwrap();
        assert!(rules.contains(
            &json!({"allow": false, "type": "c", "major": 10, "minor": 224, "access": "rwm"})
        ));
        let nodes = root["linux"]["devices"].as_array().unwrap();
        assert!(nodes.iter().any(|node| node["path"] == "/dev/null"));
        assert!(
            nodes
                .iter()
                .all(|node| !node["path"].as_str().unwrap().starts_with("/dev/tpm"))
        );
    }

    #[test]
    fn a_container_enters_what_its_pod_holds_and_has_the_rest_of_its_own() {
        let kinds = |spec: &ContainerSpec| {
            let all = made(spec)["linux"]["namespaces"].clone();
            let text = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
            let all = all.as_array().unwrap().iter();
            all.map(|one| (text(one, "type"), text(one, "path")))
                .collect::<Vec<_>>()
        };
        let pair = |kind: &str, path: &str| (kind.to_owned(), path.to_owned());
        let on_host = wanted();
        assert!(kinds(&on_host).contains(&pair("ipc", "")));
        assert!(
            kinds(&on_host)
                .iter()
                .all(|(kind, _)| kind != "network" && kind != "uts")
        );
        let pod = PodNamespaces {
            network: Some("/p/net".into()),
            ipc: Some("/p/ipc".into()),
            uts: Some("/p/uts".into()),
            shm: Some("/p/shm".into()),
            users: Some(UserNamespace {
                namespace: "/p/user".into(),
                first: 2 * IDS,
                layers: "/layers".into(),
            }),
        };
        let of_pod = ContainerSpec { pod, ..wanted() };
        let found = kinds(&of_pod);
        for (kind, path) in [
            ("network", "/p/net"),
            ("ipc", "/p/ipc"),
            ("uts", "/p/uts"),
            ("user", "/p/user"),
            ("pid", ""),
        ] {
            assert!(found.contains(&pair(kind, path)), "{kind}: {found:?}");
        }
        assert!(!found.contains(&pair("ipc", "")), "{found:?}");
        let map = json!([{"containerID": 0, "hostID": 131_072, "size": 65_536}]);
        let linux = &made(&of_pod)["linux"];
        assert_eq!((&linux["uidMappings"], &linux["gidMappings"]), (&map, &map));
        let shm = made(&of_pod)["mounts"].as_array().unwrap().clone();
        assert!(
            shm.iter()
                .any(|one| one["destination"] == "/dev/shm" && one["source"] == "/p/shm")
        );
    }

    #[test]
    fn the_machines_processes_are_hidden_where_their_ids_are_shared() {
        let options = |pid: bool, privileged: bool| {
            let shared = SharedNamespaces {
                pid,
                ..SharedNamespaces::default()
            };
            let spec = made(&ContainerSpec {
                shared,
                privileged,
                ..wanted()
            });
            let hidden = spec["mounts"][0]["options"]
                .as_array()
                .unwrap()
                .contains(&json!("hidepid=ptraceable"));
            let refused = !spec["linux"]["seccomp"].to_string().contains("\"ptrace\"");
            (hidden, refused)
        };
        assert_eq!(options(false, false), (false, false));
        assert_eq!(options(true, false), (true, true));
        assert_eq!(options(true, true), (false, true));
    }

    #[test]
    fn run_as_non_root_refuses_user_zero() {
        let spec = ContainerSpec {
            confinement: Confinement {
                run_as_non_root: true,
                ..Confinement::default()
            },
            ..wanted()
        };
        assert_eq!(
            runtime_spec(&spec, "id", &image(), &root(), &host())
                .unwrap_err()
                .class,
            ErrorClass::Config
        );
        let user = Identity {
            uid: 1000,
            ..root()
        };
        assert!(runtime_spec(&spec, "id", &image(), &user, &host()).is_ok());
    }

    #[test]
    fn limits_are_in_the_kernels_units() {
        let resources = made(&wanted())["linux"]["resources"].clone();
        assert_eq!(
            resources["cpu"],
            json!({"shares": 512, "period": 100_000, "quota": 150_000})
        );
        assert_eq!(resources["memory"]["limit"], json!(1 << 20));
    }

    #[test]
    fn an_agent_that_may_not_lower_the_oom_score_does_not_try() {
        let host = Host {
            lowest_oom_score: Some(0),
            ..host()
        };
        let spec = runtime_spec(&wanted(), "id", &image(), &root(), &host).unwrap();
        assert_eq!(spec["process"]["oomScoreAdj"], json!(0));
        assert_eq!(made(&wanted())["process"]["oomScoreAdj"], json!(-997));
    }

    #[test]
    fn a_debugger_sees_the_processes_of_its_target_and_no_others() {
        let mut host = host();
        host.target = Some(77);
        let of = |spec: &ContainerSpec| {
            namespaces(spec, &host)
                .into_iter()
                .filter(|one| one["type"] == "pid")
                .collect::<Vec<_>>()
        };
        assert_eq!(
            of(&wanted()),
            [json!({"type": "pid", "path": "/proc/77/ns/pid"})]
        );
        let mut shared = wanted();
        shared.shared.pid = true;
        assert!(of(&shared).is_empty());
    }
}
