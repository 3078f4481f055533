//! What pods in a user namespace (`hostUsers: false`, KEP-127) can't have (pure).

use config_kube::k8s_openapi::api::core::v1::{Container, PodSpec};

/// Why a container of this pod can't run in a user namespace; `None` if it can, or if the pod asks
/// for none.
pub fn users_fault(spec: &PodSpec, container: &Container) -> Option<&'static str> {
    let on = |wish: Option<bool>| wish == Some(true);
    let security = container.security_context.as_ref();
    let faults = [
        (
            on(spec.host_network) || on(spec.host_pid) || on(spec.host_ipc),
            "hostUsers: false needs a network, process ids and IPC of the pod's own",
        ),
        (
            on(security.and_then(|security| security.privileged)),
            "hostUsers: false with a privileged container is not available",
        ),
    ];
    let mut faults = faults.into_iter().filter(|(there, _)| *there);
    let asks = spec.host_users == Some(false);
    faults.find_map(|(_, fault)| asks.then_some(fault))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn fault(spec: Value, container: Value) -> Option<&'static str> {
        let container: Container = serde_json::from_value(container).unwrap();
        users_fault(&serde_json::from_value(spec).unwrap(), &container)
    }

    #[test]
    fn a_user_namespace_needs_other_namespaces_of_the_pods_own() {
        let plain = json!({"name": "a"});
        let spec = |with: Value| {
            let mut spec = json!({"containers": []});
            spec.as_object_mut()
                .unwrap()
                .append(&mut with.as_object().unwrap().clone());
            spec
        };
        let own = json!({"hostUsers": false});
        assert_eq!(fault(spec(own.clone()), plain.clone()), None);
        for key in ["hostNetwork", "hostPID", "hostIPC"] {
            assert_eq!(fault(spec(json!({key: true})), plain.clone()), None);
            let both = spec(json!({"hostUsers": false, key: true}));
            assert!(fault(both, plain.clone()).is_some(), "{key}");
        }
        let shares = json!({"hostUsers": false, "shareProcessNamespace": true});
        assert_eq!(fault(spec(shares), plain), None);
        let privileged = json!({"securityContext": {"privileged": true}});
        let mut container = privileged;
        container["name"] = json!("a");
        let hosts = spec(json!({"hostUsers": true}));
        assert_eq!(fault(hosts, container.clone()), None);
        assert!(fault(spec(own.clone()), container).is_some());
        let terminal = json!({"name": "a", "tty": true});
        assert_eq!(fault(spec(own), terminal), None);
    }
}
