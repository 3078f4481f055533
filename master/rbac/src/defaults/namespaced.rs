//! Roles in `kube-system` and `kube-public` (upstream: `bootstrappolicy/namespace_policy.go`).

use super::terms::{READ, account, bind, events, on, role, user};
use crate::object::{Binding, Role};
use config_kube::identity;

const SYSTEM: &str = "kube-system";
const PUBLIC: &str = "kube-public";
const READER: &str = "extension-apiserver-authentication-reader";
const SIGNER: &str = "system:controller:bootstrap-signer";
const CLOUD: &str = "system:controller:cloud-provider";
const CLEANER: &str = "system:controller:token-cleaner";

fn locking(component: &str) -> String {
    format!("system::leader-locking-{component}")
}

pub(super) fn roles() -> Vec<Role> {
    let lock = |component: &str| {
        let rules = vec![
            on("watch", "core", "configmaps"),
            on("get update", "core", "configmaps").named(component),
        ];
        role(SYSTEM, &locking(component), rules)
    };
    vec![
        role(
            SYSTEM,
            READER,
            vec![on(READ, "core", "configmaps").named("extension-apiserver-authentication")],
        ),
        role(SYSTEM, SIGNER, vec![on(READ, "core", "secrets")]),
        role(
            SYSTEM,
            CLOUD,
            vec![on("create get list watch", "core", "configmaps")],
        ),
        role(
            SYSTEM,
            CLEANER,
            vec![on("get list watch delete", "core", "secrets"), events()],
        ),
        lock("kube-controller-manager"),
        lock("kube-scheduler"),
        role(
            PUBLIC,
            SIGNER,
            vec![
                on(READ, "core", "configmaps"),
                on("update", "core", "configmaps").named("cluster-info"),
                events(),
            ],
        ),
    ]
}

pub(super) fn bindings() -> Vec<Binding> {
    let own = |namespace: &str, name: &str, account_name: &str| {
        bind(namespace, name, "Role", name, vec![account(account_name)])
    };
    let lock = |component: &str, name: &str| {
        bind(
            SYSTEM,
            &locking(component),
            "Role",
            &locking(component),
            vec![user(name), account(component)],
        )
    };
    let components = vec![
        user(identity::CONTROLLER_MANAGER_USER),
        user(identity::SCHEDULER_USER),
    ];
    vec![
        bind(
            SYSTEM,
            &format!("system::{READER}"),
            "Role",
            READER,
            components,
        ),
        lock("kube-controller-manager", identity::CONTROLLER_MANAGER_USER),
        lock("kube-scheduler", identity::SCHEDULER_USER),
        own(SYSTEM, SIGNER, "bootstrap-signer"),
        own(SYSTEM, CLOUD, "cloud-provider"),
        own(SYSTEM, CLEANER, "token-cleaner"),
        own(PUBLIC, SIGNER, "bootstrap-signer"),
    ]
}
