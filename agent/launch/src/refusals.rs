//! What this kubelet doesn't do: what isn't implemented yet, and what no pod gets. Nothing of a pod
//! is ignored in silence: a field that would change what runs, and isn't obeyed, keeps the pod from
//! starting and says so.

use crate::host_paths::{host_path_fault, is_plug_in};
use crate::machine::Machine;
use crate::network;
use crate::stage::{mounted_fault, propagation};
use agent_pods::{Refusal, os_mismatch, users_fault};
use agent_proxy::{MACHINE_PORTS, Protocol};
use agent_runtime::capability_fault;
use agent_sys::attach::Propagation;
use config_kube::k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod, PodSpec, Volume};
use std::net::Ipv6Addr;

/// Why a container is not privileged here.
pub(crate) const NOT_PRIVILEGED: &str = "privileged containers run only on machines whose measured configuration says `[node] privileged = true`";

/// Why a container does not see all of `/proc`: it has facts of the machine by which others can be
/// observed, and settings of the pod's IPC that else only `unsafe_sysctls` lets pods choose.
pub(crate) const NOT_UNMASKED: &str = "procMount: Unmasked is available with hostUsers: false, on machines whose measured configuration says `[node] privileged = true`";

/// Most containers of a pod. The runtime's process beside each takes some MiB that are charged to
/// no pod, and open files of containerd, so that one pod of thousands would take the machine's
/// memory from the pods of others. Upstream has no such limit.
const MOST_CONTAINERS: usize = 100;

/// Why neither a pod nor a container has `windowsOptions`.
const NO_WINDOWS_OPTIONS: &str = "windowsOptions are not available on this machine";

/// What begins the annotations that name profiles of AppArmor in older manifests; the container's
/// name follows.
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Why nothing that asks for a profile of AppArmor runs here, not even under the runtime's own:
/// this node gives containers none. Upstream's words, of a kernel that has no AppArmor.
const NO_APP_ARMOR: &str = "Cannot enforce AppArmor: AppArmor is not enabled on the host";

/// Whether a container asks for all of `/proc`.
pub(crate) fn is_unmasked(container: &Container) -> bool {
    let security = container.security_context.as_ref();
    security.and_then(|security| security.proc_mount.as_deref()) == Some("Unmasked")
}

/// The first reason why this node can't run the pod.
pub fn refusal(pod: &Pod, machine: &Machine) -> Option<Refusal> {
    let Some(spec) = &pod.spec else {
        return Some(unsupported("the pod has no spec"));
    };
    if let Some(refusal) = os_mismatch(pod) {
        return Some(refusal);
    }
    if let Some(message) = network::setting_fault(spec, &machine.unsafe_sysctls) {
        return Some(Refusal {
            reason: "SysctlForbidden".into(),
            message,
        });
    }
    if wants_app_armor(pod, spec) {
        return Some(Refusal {
            reason: "AppArmor".into(),
            message: NO_APP_ARMOR.into(),
        });
    }
    let fault = pod_fault(spec).map(str::to_owned);
    let fault = fault.or_else(|| number_fault(pod, None));
    let fault = fault.or_else(|| mounted_fault(spec));
    let fault = fault.or_else(|| network_fault(pod, spec));
    let mut volumes = spec.volumes.iter().flatten();
    let fault = fault.or_else(|| volumes.find_map(|volume| volume_fault(volume, machine)));
    let all: Vec<_> = agent_pods::all(pod)
        .map(|(_, container)| container)
        .collect();
    let fault = fault.or_else(|| {
        all.iter().find_map(|container| {
            let fault = container_fault(container, is_plug_in(machine, pod))?;
            Some(format!("container {}: {fault}", container.name))
        })
    });
    let refusal = fault.map(|fault| unsupported(&fault));
    let refusal = refusal.or_else(|| {
        all.iter()
            .find_map(|container| below_the_floor(spec, container, machine))
    });
    refusal.or_else(|| {
        host_path_fault(machine, pod).map(|message| Refusal {
            reason: "HostPathForbidden".into(),
            message,
        })
    })
}

/// Why this node can't run a container that was added to a pod which runs already. The pod is not
/// refused for it.
pub(crate) fn debugger_fault(
    pod: &Pod,
    container: &Container,
    machine: &Machine,
) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let fault = container_fault(container, is_plug_in(machine, pod));
    let fault = fault.or_else(|| has_app_armor_profile(container).then_some(NO_APP_ARMOR));
    fault
        .map(str::to_owned)
        .or_else(|| number_fault(pod, Some(&container.name)))
        .or_else(|| below_the_floor(spec, container, machine).map(|refusal| refusal.message))
        .or_else(|| host_path_fault(machine, pod))
}

/// Whether the pod asks for labels of SELinux, which this machine's kernel does not know. As
/// upstream's node without SELinux does, this one runs it without: a label only ever narrows what a
/// container may do beside the other bounds.
pub fn has_selinux_label(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else {
        return false;
    };
    let security = spec.security_context.as_ref();
    let of_pod = security.is_some_and(|security| security.se_linux_options.is_some());
    let mut own = agent_pods::all(pod).filter_map(|(_, one)| one.security_context.as_ref());
    of_pod || own.any(|security| security.se_linux_options.is_some())
}

fn unsupported(what: &str) -> Refusal {
    Refusal {
        reason: "NotSupported".into(),
        message: format!("this node can't run the pod: {what}"),
    }
}

/// What a container asks for and no pod gets: rights over the machine, and profiles that it does
/// not have.
fn below_the_floor(spec: &PodSpec, container: &Container, machine: &Machine) -> Option<Refusal> {
    let security = container.security_context.clone().unwrap_or_default();
    let refusal = |reason: &'static str, fault: String| {
        Some(Refusal {
            reason: reason.into(),
            message: format!("container {}: {fault}", container.name),
        })
    };
    if let Some(fault) = users_fault(spec, container) {
        return refusal("NotSupported", fault.to_owned());
    }
    if security.privileged == Some(true) {
        return if machine.privileged {
            None
        } else {
            refusal("PrivilegedNotAllowed", NOT_PRIVILEGED.to_owned())
        };
    }
    if is_unmasked(container) && !(machine.privileged && spec.host_users == Some(false)) {
        return refusal("NotSupported", NOT_UNMASKED.to_owned());
    }
    let add = security
        .capabilities
        .and_then(|capabilities| capabilities.add)
        .unwrap_or_default();
    if let Some(fault) = capability_fault(&add) {
        return refusal("CapabilityNotAllowed", fault);
    }
    let of_pod = spec
        .security_context
        .as_ref()
        .and_then(|security| security.seccomp_profile.as_ref());
    let profile = security
        .seccomp_profile
        .as_ref()
        .or(of_pod)
        .filter(|profile| profile.type_ == "Localhost")?;
    let name = profile.localhost_profile.as_deref().unwrap_or_default();
    let text = format!(
        "seccomp profile {name:?} is not on this machine, which has none of its own: use RuntimeDefault"
    );
    refusal("SeccompProfileNotFound", text)
}

fn pod_fault(spec: &PodSpec) -> Option<&'static str> {
    let security = spec.security_context.clone().unwrap_or_default();
    if spec.resource_claims.iter().flatten().next().is_some() {
        return Some("resourceClaims are not available yet");
    }
    let windows = security.windows_options.is_some();
    windows.then_some(NO_WINDOWS_OPTIONS)
}

/// Why a pod, or the container of this name that was added to it, is beyond what a pod may have.
/// Those that were added before it count with it.
fn number_fault(pod: &Pod, added: Option<&str>) -> Option<String> {
    let spec = pod.spec.iter();
    let mut later = spec.flat_map(|spec| spec.ephemeral_containers.iter().flatten());
    let before = added.and_then(|name| later.position(|one| one.name == name));
    let number = agent_pods::all(pod).count() + before.map_or(0, |before| before + 1);
    (number > MOST_CONTAINERS).then(|| {
        format!(
            "a pod may have {MOST_CONTAINERS} containers, those for its start and those added later among them, \
             and this is number {number}: divide it into several pods"
        )
    })
}

/// Whether the pod asks for a profile of AppArmor: for itself, or for a container. A container that
/// is to have none does not undo that of its pod (upstream's rule).
fn wants_app_armor(pod: &Pod, spec: &PodSpec) -> bool {
    let security = spec.security_context.as_ref();
    let of_pod = security.and_then(|security| security.app_armor_profile.as_ref());
    let mut older = pod.metadata.annotations.iter().flatten();
    is_enforced(of_pod)
        || agent_pods::all(pod).any(|(_, container)| has_app_armor_profile(container))
        || older.any(|(key, profile)| key.starts_with(APP_ARMOR) && profile != "unconfined")
}

/// Whether a container asks for a profile of AppArmor for itself.
fn has_app_armor_profile(container: &Container) -> bool {
    let security = container.security_context.as_ref();
    is_enforced(security.and_then(|security| security.app_armor_profile.as_ref()))
}

fn is_enforced(profile: Option<&AppArmorProfile>) -> bool {
    profile.is_some_and(|profile| profile.type_ != "Unconfined")
}

/// Host ports and annotations of a pod's network that this node refuses.
fn network_fault(pod: &Pod, spec: &PodSpec) -> Option<String> {
    let containers = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers);
    let own_network = spec.host_network != Some(true);
    let ports: Vec<_> = containers
        .flat_map(|container| container.ports.iter().flatten())
        .filter(|port| own_network && port.host_port.is_some_and(|port| port != 0))
        .collect();
    let without_way = ports.iter().any(|port| {
        let address = port.host_ip.as_deref().unwrap_or_default();
        let loopback = address.parse() == Ok(Ipv6Addr::LOCALHOST);
        port.protocol.as_deref() == Some("SCTP") || loopback
    });
    let of_machine = ports.iter().find_map(|port| {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let number = port.host_port.and_then(|port| u16::try_from(port).ok());
        let mut own = MACHINE_PORTS.iter();
        own.find(|(name, own)| name.name() == protocol && Some(*own) == number)
    });
    let annotated = |suffix: &str| {
        let annotations = pod.metadata.annotations.iter().flatten();
        annotations
            .into_iter()
            .any(|(key, _)| key.ends_with(suffix))
    };
    if without_way {
        return Some("hostPort is not available for SCTP, nor at ::1".to_owned());
    }
    if let Some(port) = of_machine {
        let shown = |(protocol, port): &(Protocol, u16)| format!("{port}/{}", protocol.name());
        let all: Vec<_> = MACHINE_PORTS.iter().map(shown).collect();
        return Some(format!(
            "hostPort {} is used by the machine itself, as all of these are: {}",
            shown(port),
            all.join(", ")
        ));
    }
    let limited =
        annotated("kubernetes.io/ingress-bandwidth") || annotated("kubernetes.io/egress-bandwidth");
    limited.then(|| "bandwidth limits are not available yet".to_owned())
}

fn container_fault(container: &Container, plug_in: bool) -> Option<&'static str> {
    let security = container.security_context.clone().unwrap_or_default();
    let mut mounts = container.volume_mounts.iter().flatten();
    if container.volume_devices.iter().flatten().next().is_some() {
        return Some("volumeDevices are not available: this machine gives pods no block devices");
    }
    if !plug_in && mounts.any(|mount| propagation(mount) != Propagation::Private) {
        return Some(
            "mountPropagation is available in pods with a privileged container, where the machine's configuration allows those",
        );
    }
    let windows = security.windows_options.is_some();
    windows.then_some(NO_WINDOWS_OPTIONS)
}

fn volume_fault(volume: &Volume, machine: &Machine) -> Option<String> {
    if let Some(projected) = &volume.projected {
        let sources = || projected.sources.iter().flatten();
        let missing = sources().any(|source| {
            source.cluster_trust_bundle.is_some() || source.pod_certificate.is_some()
        });
        let text = "cluster trust bundles and pod certificates are not available yet";
        return missing.then(|| format!("volume {}: {text}", volume.name));
    }
    let downward = volume.downward_api.is_some();
    let known =
        volume.empty_dir.is_some() || volume.host_path.is_some() || volume.config_map.is_some();
    let claimed = volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
    let fetched = volume.image.is_some();
    if known || claimed || fetched || volume.secret.is_some() || downward {
        let medium = volume
            .empty_dir
            .as_ref()
            .and_then(|dir| dir.medium.as_deref())
            .unwrap_or_default();
        let fault = !matches!(medium, "" | "Memory");
        return fault.then(|| {
            format!(
                "volume {}: emptyDir medium {medium} is not available yet",
                volume.name
            )
        });
    }
    let name = &volume.name;
    if volume.csi.is_some() {
        return (!machine.privileged).then(|| {
            format!(
                "volume {name}: CSI drivers are privileged, and this machine's measured configuration does not say \
                 `[node] privileged = true`"
            )
        });
    }
    Some(format!(
        "volume {name}: only emptyDir, hostPath, configMap, secret, downwardAPI, projected, image, csi, persistentVolumeClaim \
         and ephemeral are available"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn refused(change: impl FnOnce(&mut Value)) -> Option<Refusal> {
        refused_where(false, change)
    }

    fn refused_where(privileged: bool, change: impl FnOnce(&mut Value)) -> Option<Refusal> {
        let mut spec = json!({"hostNetwork": true, "containers": [{"name": "a", "image": "registry.example/a:1"}]});
        change(&mut spec);
        let directory = std::path::Path::new("/nowhere");
        let mut machine = crate::machine::tests::machine(directory);
        machine.privileged = privileged;
        refusal(
            &serde_json::from_value(json!({"spec": spec})).unwrap(),
            &machine,
        )
    }

    #[test]
    fn a_plain_pod_on_the_hosts_network_is_fine() {
        assert_eq!(refused(|_| {}), None);
        assert_eq!(
            refused(|spec| spec["containers"][0]["livenessProbe"] =
                json!({"exec": {"command": ["true"]}})),
            None
        );
    }

    #[test]
    fn a_pod_with_a_network_of_its_own_has_ports_of_the_host_but_of_sctp_and_the_machines() {
        assert_eq!(refused(|spec| spec["hostNetwork"] = json!(false)), None);
        let with = |on_host: bool, ports: Value| {
            refused(|spec| {
                spec["hostNetwork"] = json!(on_host);
                spec["containers"][0]["ports"] = json!([ports]);
            })
        };
        let ports = json!({"containerPort": 80, "hostPort": 8080});
        assert_eq!(with(false, ports), None);
        let six = json!({"containerPort": 80, "hostPort": 8080, "hostIP": "2001:db8::1"});
        assert_eq!(with(false, six), None);
        for none in [
            json!({"containerPort": 80, "hostPort": 8080, "protocol": "SCTP"}),
            json!({"containerPort": 80, "hostPort": 8080, "hostIP": "::1"}),
            json!({"containerPort": 80, "hostPort": 10250}),
            json!({"containerPort": 80, "hostPort": 6443}),
            json!({"containerPort": 80, "hostPort": 10249}),
            json!({"containerPort": 80, "hostPort": 10256, "protocol": "TCP"}),
            json!({"containerPort": 80, "hostPort": 68, "protocol": "UDP"}),
            json!({"containerPort": 80, "hostPort": 51820, "protocol": "UDP"}),
            json!({"containerPort": 80, "hostPort": 51821, "protocol": "UDP"}),
        ] {
            let message = with(false, none.clone()).unwrap().message;
            assert!(message.contains("hostPort"), "{message}");
            assert_eq!(with(true, none), None);
        }
        let tunnels = json!({"containerPort": 80, "hostPort": 51820, "protocol": "UDP"});
        let message = with(false, tunnels).unwrap().message;
        assert!(message.contains("hostPort 51820/UDP "), "{message}");
        assert!(message.contains(" 10250/TCP, "), "{message}");
        let by_tcp = json!({"containerPort": 80, "hostPort": 51820});
        assert_eq!(with(false, by_tcp), None);
        let tunnel = agent_cluster::tunnel::PORTS.map(|port| (Protocol::Udp, port));
        assert!(tunnel.iter().all(|port| MACHINE_PORTS.contains(port)));
    }

    #[test]
    fn a_bandwidth_limit_is_refused_and_says_so() {
        let message = |annotation: &str, on_host: bool| {
            let pod = json!({
                "metadata": {"annotations": {annotation: "10M"}},
                "spec": {"hostNetwork": on_host, "containers": [{"name": "a", "image": "registry.example/a:1"}]},
            });
            let machine = crate::machine::tests::machine(std::path::Path::new("/nowhere"));
            let refusal = refusal(&serde_json::from_value(pod).unwrap(), &machine)?;
            assert_eq!(refusal.reason, "NotSupported");
            Some(refusal.message)
        };
        for on_host in [false, true] {
            for limited in [
                "kubernetes.io/ingress-bandwidth",
                "kubernetes.io/egress-bandwidth",
            ] {
                let message = message(limited, on_host).unwrap();
                assert!(message.contains("bandwidth"), "{limited}: {message}");
            }
            assert_eq!(message("example.com/bandwidth", on_host), None);
        }
    }

    #[test]
    fn a_pod_has_no_more_containers_than_a_machine_can_bear() {
        let named = |count: usize| -> Vec<Value> {
            let one = |number| json!({"name": format!("c{number}"), "image": "i"});
            (0..count).map(one).collect()
        };
        let with = |initial: usize, main: usize| {
            refused(|spec| {
                spec["initContainers"] = json!(named(initial));
                spec["containers"] = json!(named(main));
            })
        };
        assert_eq!(with(0, 100), None);
        assert_eq!(with(60, 40), None);
        for (initial, main) in [(0, 101), (60, 41), (0, 500)] {
            let refusal = with(initial, main).unwrap();
            assert_eq!(refusal.reason, "NotSupported");
            let text = "a pod may have 100 containers";
            assert!(refusal.message.contains(text), "{refusal:?}");
        }
        // One that is added later does not start, and the pod goes on.
        let spec = json!({"containers": named(98), "ephemeralContainers": [{"name": "x"}, {"name": "y"}, {"name": "z"}]});
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        let machine = crate::machine::tests::machine(std::path::Path::new("/nowhere"));
        assert_eq!(refusal(&pod, &machine), None);
        for added in agent_pods::ephemeral(&pod) {
            let fault = debugger_fault(&pod, &added, &machine);
            assert_eq!(fault.is_some(), added.name == "z", "{fault:?}");
        }
    }

    #[test]
    fn all_of_proc_is_for_pods_with_users_of_their_own_where_privileged_pods_may_run() {
        let with = |privileged: bool, users: bool| {
            refused_where(privileged, |spec| {
                spec["hostNetwork"] = json!(false);
                spec["hostUsers"] = json!(users);
                spec["containers"][0]["securityContext"] = json!({"procMount": "Unmasked"});
            })
        };
        assert_eq!(with(true, false), None);
        for (privileged, users) in [(false, false), (true, true), (false, true)] {
            let refusal = with(privileged, users).unwrap();
            assert_eq!(refusal.reason, "NotSupported");
            assert!(refusal.message.contains("hostUsers: false"), "{refusal:?}");
        }
    }

    #[test]
    fn a_setting_that_reaches_beyond_the_pod_is_refused() {
        let sysctls = json!([{"name": "kernel.core_pattern", "value": "x"}]);
        let refusal = refused(|spec| spec["securityContext"] = json!({"sysctls": sysctls}));
        assert_eq!(refusal.unwrap().reason, "SysctlForbidden");
    }

    #[test]
    fn a_path_of_the_machine_that_is_not_listed_is_refused_by_its_key() {
        let with = |mount: Value, path: &str| {
            refused(|spec| {
                spec["volumes"] = json!([{"name": "v", "hostPath": {"path": path}}]);
                spec["containers"][0]["volumeMounts"] = json!([mount]);
            })
        };
        let (write, read) = (
            json!({"name": "v", "mountPath": "/m"}),
            json!({"name": "v", "mountPath": "/m", "readOnly": true}),
        );
        let refusal = with(read.clone(), "/srv").unwrap();
        assert_eq!(refusal.reason, "HostPathForbidden");
        assert!(
            refusal
                .message
                .contains("add it to `host_paths` under `[node]`"),
            "{}",
            refusal.message
        );
        // What may be read is mounted read-only then; see `a_mount_that_may_not_write_…`.
        assert_eq!(with(write.clone(), "/listed/read"), None);
        assert_eq!(with(read, "/listed/read/"), None);
        assert_eq!(with(write, "/listed/write/below"), None);
    }

    #[test]
    fn sidecars_hooks_probes_of_every_kind_and_restart_policies_are_taken() {
        let cases = [
            (
                "/containers/0/lifecycle",
                json!({"preStop": {"exec": {"command": ["a"]}}, "stopSignal": "SIGUSR1"}),
            ),
            ("/containers/0/readinessProbe", json!({"grpc": {"port": 1}})),
            ("/containers/0/restartPolicy", json!("Never")),
            (
                "/initContainers",
                json!([{"name": "s", "restartPolicy": "Always"}]),
            ),
        ];
        for (place, value) in cases {
            let (parent, key) = place.rsplit_once('/').unwrap();
            assert_eq!(
                refused(|spec| spec.pointer_mut(parent).unwrap()[key] = value),
                None,
                "{place}"
            );
        }
    }

    #[test]
    fn mounts_are_shared_and_drivers_asked_only_where_privileged_pods_are_allowed() {
        let shares = |allowed: bool, privileged: bool| {
            refused_where(allowed, |spec| {
                let mount =
                    json!({"name": "v", "mountPath": "/m", "mountPropagation": "Bidirectional"});
                spec["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
                spec["containers"][0]["volumeMounts"] = json!([mount]);
                spec["containers"][0]["securityContext"] = json!({"privileged": privileged});
            })
        };
        assert_eq!(shares(true, true), None);
        for (allowed, privileged) in [(true, false), (false, true), (false, false)] {
            assert!(shares(allowed, privileged).is_some());
        }
        let inline = |allowed: bool| {
            let volumes = json!([{"name": "v", "csi": {"driver": "d"}}]);
            refused_where(allowed, |spec| spec["volumes"] = volumes)
        };
        assert_eq!(inline(true), None);
        let message = inline(false).unwrap().message;
        assert!(message.contains("[node] privileged = true"), "{message}");
    }

    #[test]
    fn labels_of_selinux_are_taken_and_reported_to_have_no_effect() {
        let label = json!({"seLinuxOptions": {"level": "s0:c0,c1"}});
        for place in ["/spec", "/spec/containers/0"] {
            let mut pod = json!({"spec": {"containers": [{"name": "a", "image": "i"}]}});
            pod.pointer_mut(place).unwrap()["securityContext"] = label.clone();
            let pod = serde_json::from_value(pod).unwrap();
            let machine = crate::machine::tests::machine(std::path::Path::new("/nowhere"));
            assert_eq!(refusal(&pod, &machine), None, "{place}");
            assert!(has_selinux_label(&pod), "{place}");
        }
    }

    #[test]
    fn a_pod_whose_profile_of_apparmor_would_not_be_enforced_is_refused() {
        let asks = |place: &str, value: &Value| {
            let own = json!({"name": "a", "image": "i", "securityContext": {}});
            let spec = json!({"securityContext": {}, "initContainers": [own], "containers": [own]});
            let mut pod = json!({"metadata": {"annotations": {}}, "spec": spec});
            let (parent, key) = place.rsplit_once('.').unwrap();
            pod.pointer_mut(parent).unwrap()[key] = value.clone();
            let pod = serde_json::from_value(pod).unwrap();
            let machine = crate::machine::tests::machine(std::path::Path::new("/nowhere"));
            refusal(&pod, &machine)
        };
        let refused = Refusal {
            reason: "AppArmor".into(),
            message: "Cannot enforce AppArmor: AppArmor is not enabled on the host".into(),
        };
        let local = json!({"type": "Localhost", "localhostProfile": "p"});
        for place in [
            "/spec/securityContext.appArmorProfile",
            "/spec/containers/0/securityContext.appArmorProfile",
            "/spec/initContainers/0/securityContext.appArmorProfile",
        ] {
            for profile in [&json!({"type": "RuntimeDefault"}), &local] {
                assert_eq!(asks(place, profile), Some(refused.clone()), "{place}");
            }
            assert_eq!(asks(place, &json!({"type": "Unconfined"})), None, "{place}");
        }
        let older = |key: &str, profile: &str| {
            let annotations = json!({key: profile});
            asks("/metadata.annotations", &annotations)
        };
        let key = "container.apparmor.security.beta.kubernetes.io/a";
        for profile in ["runtime/default", "localhost/p"] {
            assert_eq!(older(key, profile), Some(refused.clone()));
        }
        assert_eq!(older(key, "unconfined"), None);
        assert_eq!(older("example.com/apparmor", "runtime/default"), None);
    }

    #[test]
    fn what_would_change_the_pod_and_is_missing_is_named() {
        let cases: [(&str, Value); 3] = [
            // With the machine's network, which belongs to the machine's users.
            ("/hostUsers", json!(false)),
            (
                "/volumes",
                json!([{"name": "v", "projected": {"sources": [{"clusterTrustBundle": {"path": "b"}}]}}]),
            ),
            (
                "/volumes",
                json!([{"name": "v", "emptyDir": {"medium": "HugePages"}}]),
            ),
        ];
        for (place, value) in cases {
            let (parent, key) = place.rsplit_once('/').unwrap();
            let refusal = refused(|spec| spec.pointer_mut(parent).unwrap()[key] = value);
            assert_eq!(
                refusal.map(|refusal| refusal.reason),
                Some("NotSupported".into()),
                "{place}"
            );
        }
    }

    #[test]
    fn what_no_pod_gets_is_refused_for_good_with_its_reason() {
        let asks = |security: Value| {
            let refusal = refused(|spec| spec["containers"][0]["securityContext"] = security);
            refusal.map(|refusal| (refusal.reason, refusal.message))
        };
        let (reason, message) =
            asks(json!({"capabilities": {"add": ["SYS_NICE", "SYS_PTRACE"]}})).unwrap();
        assert_eq!(reason, "CapabilityNotAllowed");
        assert!(
            message.starts_with(
                "container a: capability SYS_PTRACE is never given to a container: it "
            ),
            "{message}"
        );
        assert_eq!(
            asks(json!({"capabilities": {"add": ["ALL", "SYS_NICE"]}})),
            None
        );
        assert_eq!(
            asks(json!({"privileged": true})).unwrap().0,
            "PrivilegedNotAllowed"
        );
        let local = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "p.json"}});
        let (reason, message) = asks(local.clone()).unwrap();
        assert_eq!(reason, "SeccompProfileNotFound");
        assert!(message.contains("\"p.json\""), "{message}");
        let of_pod = refused(|spec| spec["securityContext"] = local).unwrap();
        assert_eq!(of_pod.reason, "SeccompProfileNotFound");
        let init = refused(|spec| {
            spec["initContainers"] = json!([{"name": "i", "image": "i", "securityContext": {"capabilities": {"add": ["CAP_BPF"]}}}]);
        });
        assert!(
            init.unwrap()
                .message
                .starts_with("container i: capability BPF is never given")
        );
    }

    #[test]
    fn where_the_machine_allows_it_a_container_is_privileged_and_the_floor_of_others_stays() {
        let asks = |security: Value| {
            refused_where(true, |spec| {
                spec["containers"][0]["securityContext"] = security;
            })
        };
        assert_eq!(asks(json!({"privileged": true})), None);
        assert_eq!(
            asks(json!({"capabilities": {"add": ["SYS_ADMIN"]}}))
                .unwrap()
                .reason,
            "CapabilityNotAllowed"
        );
    }
}
