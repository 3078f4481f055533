//! Which room may depend on which: between the folders at the top, and room by room within agent
//! and master.

use crate::rooms::Room;

/// The rooms that the verifier of evidence may be in: no agent contains it.
const VERIFIER: (&str, &[&str]) = (
    "config/attest",
    &[
        "image/build",
        "master/admin",
        "master/attest",
        "master/ca",
        "master/daemon",
        "master/journal",
    ],
);
/// Each room of agent and master with the rooms of the same folder that its program or library may
/// depend on. Controllers reach the API by `master/client` and know neither the server nor the
/// store; nothing but the programs knows everything. Tests of a room may depend on more.
const EDGES: &[(&str, &[&str])] = &[
    ("agent/sys", &[]),
    ("agent/init", &["sys", "metadata", "volume"]),
    ("agent/net", &["sys"]),
    ("agent/clock", &[]),
    ("agent/metadata", &[]),
    ("agent/tpm", &[]),
    ("agent/volume", &[]),
    ("agent/discover", &[]),
    ("agent/enroll", &["tpm"]),
    ("agent/containerd", &[]),
    ("agent/images", &["confine", "containerd"]),
    ("agent/runtime", &["sys", "confine", "containerd", "images"]),
    ("agent/confine", &["sys"]),
    ("agent/tunnel", &["sys", "runtime"]),
    ("agent/port", &["sys"]),
    ("agent/claims", &["sys"]),
    ("agent/grpc", &[]),
    ("agent/csi", &["sys", "confine", "api", "grpc"]),
    ("agent/cluster", &["sys", "proxy", "confine"]),
    ("agent/policy", &["sys", "cluster", "proxy"]),
    ("agent/proxy", &["sys", "port", "api"]),
    ("agent/names", &["sys", "proxy"]),
    ("agent/resources", &["sys", "runtime", "pressure"]),
    ("agent/pressure", &[]),
    ("agent/pods", &["runtime", "resources"]),
    ("agent/handlers", &["runtime", "grpc", "content"]),
    (
        "agent/probes",
        &["runtime", "resources", "pods", "handlers", "api"],
    ),
    ("agent/journal", &["sys", "port"]),
    ("agent/api", &[]),
    (
        "agent/content",
        &["sys", "runtime", "claims", "resources", "pods", "api"],
    ),
    (
        "agent/launch",
        &[
            "sys",
            "runtime",
            "claims",
            "cluster",
            "proxy",
            "resources",
            "pods",
            "content",
        ],
    ),
    (
        "agent/server",
        &[
            "sys",
            "runtime",
            "tunnel",
            "port",
            "claims",
            // The kubelet's answers hold the figures of drivers' volumes (`stats/summary`).
            "csi",
            "cluster",
            "resources",
            "pods",
            "journal",
            "api",
        ],
    ),
    (
        "agent/kubelet",
        &[
            "sys",
            "runtime",
            "port",
            "claims",
            "csi",
            "cluster",
            "policy",
            "proxy",
            "resources",
            "pressure",
            "pods",
            "probes",
            "images",
            "journal",
            "api",
            "content",
            "launch",
            "server",
        ],
    ),
    (
        "agent/daemon",
        &[
            "sys", "net", "clock", "metadata", "tpm", "volume", "discover", "enroll", "images",
            "runtime", "cluster", "proxy", "names", "journal", "api", "server", "kubelet",
        ],
    ),
    ("master/store", &[]),
    ("master/client", &["schema"]),
    ("master/schema", &[]),
    ("master/pods", &["schema"]),
    ("master/workloads", &["schema", "pods", "cron"]),
    ("master/network", &["schema"]),
    ("master/volumes", &["schema"]),
    ("master/claims", &["client"]),
    ("master/devices", &["schema"]),
    (
        "master/kinds",
        &[
            "schema",
            "pods",
            "workloads",
            "network",
            "volumes",
            "devices",
        ],
    ),
    ("master/quota", &["schema"]),
    ("master/merge", &["schema"]),
    ("master/rbac", &[]),
    ("master/objects", &["store", "schema", "pods"]),
    (
        "master/auth",
        &["store", "client", "schema", "rbac", "objects"],
    ),
    (
        "master/admission",
        &[
            "store", "client", "schema", "pods", "network", "quota", "rbac", "objects", "auth",
        ],
    ),
    ("master/openapi", &["schema"]),
    (
        "master/listener",
        &["store", "client", "schema", "objects", "auth"],
    ),
    ("master/wire", &["client", "schema"]),
    ("master/metrics", &["schema", "wire"]),
    ("master/gateway", &["client", "schema"]),
    ("master/usage", &["client", "schema"]),
    ("master/initial", &["client", "schema", "kinds", "rbac"]),
    (
        "master/verbs",
        &[
            "store",
            "client",
            "schema",
            "pods",
            "merge",
            "rbac",
            "objects",
            "auth",
            "admission",
            "openapi",
            "listener",
            "wire",
            "metrics",
            "gateway",
            "usage",
        ],
    ),
    (
        "master/api",
        &[
            "store",
            "client",
            "schema",
            "kinds",
            "rbac",
            "objects",
            "auth",
            "admission",
            "openapi",
            "listener",
            "wire",
            "metrics",
            "gateway",
            "usage",
            "initial",
            "verbs",
        ],
    ),
    ("master/ca", &[]),
    ("master/journal", &["client", "ca"]),
    ("master/nodes", &[]),
    (
        "master/attest",
        &["client", "listener", "ca", "journal", "nodes"],
    ),
    ("master/schedule", &["client", "claims"]),
    ("master/cron", &[]),
    ("master/control", &["client", "schema", "rbac", "ca"]),
    (
        "master/control-cluster",
        &[
            "client", "schema", "claims", "quota", "rbac", "ca", "control",
        ],
    ),
    ("master/control-network", &["client", "schema", "control"]),
    (
        "master/control-nodes",
        &["client", "ca", "nodes", "control"],
    ),
    ("master/control-workloads", &["client", "cron", "control"]),
    (
        "master/control-scaling",
        &["client", "schema", "control", "control-workloads"],
    ),
    (
        "master/controllers",
        &[
            "control",
            "control-cluster",
            "control-network",
            "control-nodes",
            "control-workloads",
            "control-scaling",
        ],
    ),
    ("master/bootstrap", &["store"]),
    ("master/admin", &["ca", "schedule", "bootstrap"]),
    (
        "master/daemon",
        &[
            "store",
            "client",
            "schema",
            "auth",
            "admission",
            "listener",
            "usage",
            "api",
            "ca",
            "journal",
            "attest",
            "schedule",
            "control",
            "controllers",
            "bootstrap",
        ],
    ),
];
/// Libraries that reach a network, a file or a device, so that no room in `config` depends on them.
const RUNTIMES: &[&str] = &["tokio", "nix", "hyper", "rustls", "tss-esapi"];
/// The exception: rustls without a socket is types and rules, and certificate verifiers can be
/// written in no other terms. So is hyper's client protocol over a stream, clock and executor of
/// the caller's.
const WITHOUT_IO: &[(&str, &str)] = &[("config/tls", "rustls"), ("config/http", "hyper")];

/// config ← { agent, master, image } ← tests; agent and master never meet but in config.
pub(super) fn edges(room: &Room, rooms: &[Room], faults: &mut Vec<String>) {
    let top = |address: &str| address.split('/').next().unwrap_or_default().to_owned();
    let from = top(&room.address);
    for dependency in &room.dependencies {
        if let Some(other) = rooms.iter().find(|other| &other.name == dependency) {
            let to = top(&other.address);
            let allowed = from == to || to == "config" || from == "tests";
            if from == to {
                within(room, other, faults);
            } else if !allowed {
                faults.push(format!(
                    "{}: depends on {}; the allowed edges are config <- {{agent, master, image}} <- tests",
                    room.address, other.address
                ));
            }
        }
        let (verifier, may) = VERIFIER;
        if *dependency == verifier.replace('/', "-")
            && from != "tests"
            && !may.contains(&room.address.as_str())
        {
            faults.push(format!(
                "{}: depends on {verifier}, which only {} may",
                room.address,
                may.join(", ")
            ));
        }
        let without_io = WITHOUT_IO.contains(&(room.address.as_str(), dependency.as_str()));
        if from == "config" && RUNTIMES.contains(&dependency.as_str()) && !without_io {
            faults.push(format!(
                "{}: depends on {dependency}; nothing in config does I/O",
                room.address
            ));
        }
    }
    for dependency in &room.tests_depend_on {
        if let Some(other) = rooms.iter().find(|other| &other.name == dependency) {
            let pair = (from.as_str(), top(&other.address));
            if matches!(&pair, ("agent", to) if to == "master")
                || matches!(&pair, ("master", to) if to == "agent")
            {
                faults.push(format!(
                    "{}: its tests depend on {}; what needs both belongs into tests/cluster",
                    room.address, other.address
                ));
            }
        }
    }
}

/// An edge within agent or within master must be in the table.
fn within(room: &Room, other: &Room, faults: &mut Vec<String>) {
    let Some((folder, name)) = other.address.split_once('/') else {
        return;
    };
    if !["agent", "master"].contains(&folder) {
        return;
    }
    let allowed = EDGES
        .iter()
        .find(|(address, _)| *address == room.address)
        .is_some_and(|(_, may)| may.contains(&name));
    if !allowed {
        faults.push(format!(
            "{}: depends on {}, which the table in tests/xtask/src/tidy/edges.rs does not allow; reach it by a room that may, or say in the table why it must",
            room.address, other.address
        ));
    }
}

/// Rows of the table that name no room or a missing edge: unused permissions are removed.
pub(super) fn unused(rooms: &[Room], faults: &mut Vec<String>) {
    for (address, may) in EDGES {
        let folder = address.split('/').next().unwrap_or_default();
        let room = rooms.iter().find(|room| room.address == *address);
        for other in *may {
            let needed =
                room.is_some_and(|room| room.dependencies.contains(&format!("{folder}-{other}")));
            if !needed {
                faults.push(format!(
                    "tests/xtask/src/tidy/edges.rs: {address} does not depend on {folder}/{other}; take it out of the table"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_that_nobody_needs_leaves_the_table() {
        let mut faults = Vec::new();
        unused(&[], &mut faults);
        let edges: usize = EDGES.iter().map(|(_, may)| may.len()).sum();
        assert_eq!(faults.len(), edges);
    }

    fn two_rooms(from: &str, to: &str) -> Vec<String> {
        let name = |address: &str| address.replace('/', "-");
        let rooms = vec![
            Room {
                address: from.into(),
                name: name(from),
                dependencies: vec![name(to)],
                tests_depend_on: vec![],
            },
            Room {
                address: to.into(),
                name: name(to),
                ..Room::default()
            },
        ];
        let mut faults = Vec::new();
        edges(&rooms[0], &rooms, &mut faults);
        faults
    }

    #[test]
    fn an_edge_from_agent_to_master_is_a_fault_and_to_config_is_not() {
        assert_eq!(two_rooms("agent/a", "master/b").len(), 1);
        assert_eq!(two_rooms("config/a", "agent/b").len(), 1);
        assert!(two_rooms("agent/a", "config/b").is_empty());
        assert!(two_rooms("tests/a", "master/b").is_empty());
    }

    #[test]
    fn no_agent_contains_the_verifier() {
        assert_eq!(two_rooms("agent/enroll", "config/attest").len(), 1);
        assert!(two_rooms("agent/enroll", "config/protocol").is_empty());
        assert!(two_rooms("master/attest", "config/attest").is_empty());
    }

    #[test]
    fn controllers_reach_the_api_by_the_client_alone() {
        assert_eq!(two_rooms("master/control", "master/api").len(), 1);
        assert_eq!(two_rooms("master/schedule", "master/store").len(), 1);
        assert!(two_rooms("master/control", "master/client").is_empty());
        assert_eq!(two_rooms("master/attest", "master/api").len(), 1);
        assert!(two_rooms("master/daemon", "master/api").is_empty());
    }

    #[test]
    fn the_api_is_built_on_auth_and_admission_and_never_the_other_way() {
        assert_eq!(two_rooms("master/auth", "master/admission").len(), 1);
        assert_eq!(two_rooms("master/admission", "master/api").len(), 1);
        assert_eq!(two_rooms("master/control", "master/auth").len(), 1);
        assert_eq!(two_rooms("master/verbs", "master/api").len(), 1);
        assert!(two_rooms("master/api", "master/verbs").is_empty());
        assert!(two_rooms("master/api", "master/admission").is_empty());
        assert!(two_rooms("master/admission", "master/auth").is_empty());
    }
}
