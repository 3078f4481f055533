//! Roles of the master's own parts, until RBAC carries them.

use crate::path::{Target, Verb};
use crate::user::UserInfo;
use config_kube::identity;

/// One grant: groups of the API, resources (with their subresources as `pods/status`), verbs. `*` is all.
struct Grant {
    groups: &'static [&'static str],
    resources: &'static [&'static str],
    verbs: &'static [Verb],
}

const READ: &[Verb] = &[Verb::Get, Verb::List, Verb::Watch];
const WRITE: &[Verb] = &[
    Verb::Get,
    Verb::List,
    Verb::Watch,
    Verb::Create,
    Verb::Update,
    Verb::Patch,
    Verb::Delete,
    Verb::DeleteCollection,
];
const CREATE: &[Verb] = &[Verb::Create];
const CHANGE: &[Verb] = &[Verb::Get, Verb::Update, Verb::Patch];
const RECORD: &[Verb] = &[Verb::Create, Verb::Update, Verb::Patch];

const EVENTS: Grant = Grant { groups: &["", "events.k8s.io"], resources: &["events"], verbs: RECORD };
const LEASES: Grant = Grant { groups: &["coordination.k8s.io"], resources: &["leases"], verbs: WRITE };

/// Binds pods, says why they wait.
const SCHEDULER: &[Grant] = &[
    Grant { groups: &[""], resources: &["nodes", "pods", "namespaces"], verbs: READ },
    Grant { groups: &[""], resources: &["pods/binding"], verbs: CREATE },
    Grant { groups: &[""], resources: &["pods/status"], verbs: CHANGE },
    LEASES,
    EVENTS,
];

/// Sees everything; keeps nodes, pods, namespaces and requests in order.
const CONTROLLERS: &[Grant] = &[
    Grant { groups: &["*"], resources: &["*"], verbs: READ },
    Grant {
        groups: &[""],
        resources: &["nodes", "pods", "namespaces", "configmaps", "serviceaccounts", "secrets", "events"],
        verbs: WRITE,
    },
    Grant {
        groups: &[""],
        resources: &["nodes/status", "pods/status", "namespaces/status", "namespaces/finalize"],
        verbs: CHANGE,
    },
    Grant { groups: &[""], resources: &["pods/eviction"], verbs: CREATE },
    Grant { groups: &["certificates.k8s.io"], resources: &["certificatesigningrequests"], verbs: WRITE },
    Grant {
        groups: &["certificates.k8s.io"],
        resources: &["certificatesigningrequests/approval", "certificatesigningrequests/status"],
        verbs: CHANGE,
    },
    Grant { groups: &[identity::GROUP], resources: &["nodeattestations"], verbs: WRITE },
    LEASES,
    EVENTS,
];

/// Admits machines: their objects, their Nodes, their certificates.
const ATTESTATION: &[Grant] = &[
    Grant { groups: &[identity::GROUP], resources: &["*"], verbs: WRITE },
    Grant { groups: &[""], resources: &["nodes", "nodes/status"], verbs: WRITE },
    Grant { groups: &["certificates.k8s.io"], resources: &["*"], verbs: WRITE },
    Grant { groups: &[""], resources: &["pods", "namespaces", "configmaps"], verbs: READ },
    EVENTS,
];

/// Whether a part of the master may do this by its role.
pub(super) fn allow(user: &UserInfo, target: &Target) -> bool {
    let grants = match user.name.as_str() {
        identity::SCHEDULER_USER => SCHEDULER,
        identity::CONTROLLER_MANAGER_USER => CONTROLLERS,
        identity::ATTESTATION_USER => ATTESTATION,
        _ => return false,
    };
    let resource = match target.subresource.as_str() {
        "" => target.plural.clone(),
        sub => format!("{}/{sub}", target.plural),
    };
    grants.iter().any(|grant| {
        grant.verbs.contains(&target.verb)
            && grant.groups.iter().any(|group| *group == "*" || *group == target.group)
            && grant.resources.iter().any(|known| *known == "*" || *known == resource)
    })
}
