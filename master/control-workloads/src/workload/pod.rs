//! The parts of a pod that its owner needs, with indexes.

use super::amount::{later, sum};
use super::claim::{Candidate, OwnerChange};
use super::kept::{Kept, Labels, Selects, by_namespace, controller, owner_key};
use config_kube::k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use jiff::{SignedDuration, Timestamp};
use master_client::{Delta, Entries, Index, Interner, Key, Lookup, Object, Store, View};
use master_control::setup::Setup;
use master_control::views::{created, uid};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, LazyLock};

/// Annotation: pods with a lower cost are deleted first (KEP-2255).
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// The finalizer that keeps pods until their Job has counted them.
pub const JOB_TRACKING: &str = "batch.kubernetes.io/job-tracking";

/// Pods by the UID of their controller.
pub static BY_CONTROLLER: Index<OwnedPod> = Index::new("controller", |_, pod| {
    pod.owner.iter().map(|owner| owner.uid.clone()).collect()
});

/// Pods without a controller by their namespace.
static ORPHANS: Index<OwnedPod> = Index::new("orphans", |key, pod| {
    let orphan = pod.owner.is_none().then(|| key.namespace.clone());
    orphan.into_iter().collect()
});

/// The controller of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// API version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

/// A pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OwnedPod {
    /// UID.
    pub uid: String,
    /// Creation time.
    pub created: Option<Timestamp>,
    /// `deletionTimestamp`: when it is to be gone.
    pub deleted: Option<Timestamp>,
    /// The node that it is bound to; empty if it is not bound.
    pub node: Arc<str>,
    /// The only node that its affinity allows; empty if it does not name one.
    pub meant_for: Arc<str>,
    /// Phase; `Pending` if there is none yet.
    pub phase: Arc<str>,
    /// Its labels.
    pub labels: Arc<Labels>,
    /// Its controller.
    pub owner: Option<Arc<Owner>>,
    /// Since when it is ready; `None` if it is not.
    pub ready: Option<Timestamp>,
    /// Most restarts of a container, and of a sidecar.
    pub restarts: (i32, i32),
    /// The cost of its deletion, from its annotation.
    pub cost: i32,
    /// The fields for Jobs.
    pub job: Option<Box<JobPart>>,
}

/// The parts of a pod that only the Job controller needs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobPart {
    /// Whether it has the finalizer [`JOB_TRACKING`].
    pub tracked: bool,
    /// Its completion index.
    pub index: Option<i32>,
    /// Failures of its index before it.
    pub failures: i32,
    /// Failures of its index before it that its policy ignored.
    pub ignored: i32,
    /// Restarts of all its containers.
    pub restarts: i32,
    /// When it was started.
    pub started: Option<Timestamp>,
    /// When its last container ended; else when its end was found.
    pub ended: Option<Timestamp>,
    /// Exit codes of containers that have ended, by container.
    pub exits: Vec<(String, i32)>,
    /// Types and statuses of its conditions, apart from those that every pod has.
    pub conditions: Vec<(String, String)>,
}

impl OwnedPod {
    /// Whether its containers will never run again.
    pub fn ended(&self) -> bool {
        matches!(&*self.phase, "Succeeded" | "Failed")
    }

    /// Whether it counts: it has not ended and is not being deleted.
    pub fn is_active(&self) -> bool {
        !self.ended() && self.deleted.is_none()
    }

    /// Whether it is being deleted and its containers may still run.
    pub fn is_terminating(&self) -> bool {
        !self.ended() && self.deleted.is_some()
    }

    /// For how long it must still be ready to count as available; `None` if it is not ready.
    pub fn available_in(&self, least: i32, now: Timestamp) -> Option<SignedDuration> {
        let since = self.ready?;
        if least == 0 {
            return Some(SignedDuration::ZERO);
        }
        let at = later(since, SignedDuration::from_secs(i64::from(least)));
        Some(at.duration_since(now).max(SignedDuration::ZERO))
    }

    /// Whether it has been ready for `least` seconds.
    pub fn is_available(&self, least: i32, now: Timestamp) -> bool {
        self.available_in(least, now)
            .is_some_and(|left| left.is_zero())
    }

    /// A label's value; empty where there is none.
    pub fn label(&self, key: &str) -> &str {
        self.labels.get(key).map_or("", String::as_str)
    }

    /// The node that it is bound to, or the only one that its affinity allows.
    pub fn target(&self) -> &str {
        if self.node.is_empty() {
            &self.meant_for
        } else {
            &self.node
        }
    }
}

/// A pod by its key, and by its UID: another pod may have its name by now.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodId {
    /// Its key.
    pub key: Key,
    /// Its UID.
    pub uid: String,
}

impl PodId {
    /// The key and the UID of a pod in the stores.
    pub fn of(key: &Key, pod: &OwnedPod) -> Self {
        Self {
            key: key.clone(),
            uid: pod.uid.clone(),
        }
    }
}

/// All pods, with an index by controller.
#[derive(Debug)]
pub struct Pods {
    owned: Lookup<OwnedPod>,
    orphans: Lookup<OwnedPod>,
}

impl Pods {
    /// Follows all pods. A changed pod concerns its controller, or if it has none, those of
    /// `owners` whose selector matches.
    pub fn follow<T>(setup: &mut Setup<'_>, owners: &Store<Kept<T>>) -> Self
    where
        T: Object + Selects + PartialEq + Debug + Sync,
    {
        let pods = setup.follow(concerned(owners.index(&by_namespace())));
        Self {
            owned: pods.index(&BY_CONTROLLER),
            orphans: pods.index(&ORPHANS),
        }
    }

    /// The pods that the owner with this UID controls.
    pub fn of(&self, uid: &str) -> Entries<OwnedPod> {
        self.owned.get(uid)
    }

    /// Adoptions and releases: of these pods of an owner, and of the orphans in its namespace.
    pub fn owner_changes(
        &self,
        owner: &ObjectMeta,
        pods: &Entries<OwnedPod>,
        wants: impl Fn(&Key, &OwnedPod) -> bool,
    ) -> Vec<OwnerChange> {
        let namespace = owner.namespace.as_deref().unwrap_or_default();
        let orphans = self.orphans.get(namespace);
        let all = pods.iter().chain(&orphans);
        let change = |(key, pod): &(Arc<Key>, Arc<OwnedPod>)| {
            let object = Candidate {
                key,
                uid: &pod.uid,
                controller: pod.owner.as_ref().map(|owner| owner.uid.as_str()),
                leaves: pod.deleted.is_some(),
            };
            OwnerChange::of(owner, object, wants(key, pod))
        };
        all.filter_map(change).collect()
    }
}

/// Values that many pods share, stored once.
#[derive(Debug, Default)]
struct Common {
    texts: Interner<str>,
    labels: Interner<Labels>,
    owners: Interner<Owner>,
}

static COMMON: LazyLock<Common> = LazyLock::new(Common::default);

impl View for OwnedPod {
    type Object = Pod;

    fn read(pod: Pod) -> Self {
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let text = |text: Option<&str>| COMMON.texts.intern(text.unwrap_or_default().into());
        let owner = controller(&pod.metadata).map(|owner| {
            COMMON.owners.intern(Arc::new(Owner {
                api_version: owner.api_version.clone(),
                kind: owner.kind.clone(),
                name: owner.name.clone(),
                uid: owner.uid.clone(),
            }))
        });
        let ready = condition(&pod, "Ready").filter(|ready| ready.status == "True");
        let annotation = |key: &str| pod.metadata.annotations.as_ref()?.get(key)?.parse().ok();
        let phase = status.and_then(|status| status.phase.as_deref());
        Self {
            uid: uid(&pod.metadata),
            created: created(&pod.metadata),
            deleted: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0),
            node: text(spec.and_then(|spec| spec.node_name.as_deref())),
            meant_for: meant_for(&pod).unwrap_or_default().into(),
            phase: text(Some(phase.unwrap_or("Pending"))),
            labels: COMMON
                .labels
                .intern(Arc::new(pod.metadata.labels.clone().unwrap_or_default())),
            ready: ready.map(|ready| {
                ready
                    .last_transition_time
                    .as_ref()
                    .map_or(Timestamp::MIN, |time| time.0)
            }),
            restarts: restarts(&pod),
            cost: annotation(DELETION_COST).unwrap_or_default(),
            job: JobPart::read(&pod, owner.as_deref()),
            owner,
        }
    }
}

impl JobPart {
    fn read(pod: &Pod, owner: Option<&Owner>) -> Option<Box<Self>> {
        let finalizers = pod.metadata.finalizers.iter().flatten();
        let tracked = finalizers.into_iter().any(|own| own == JOB_TRACKING);
        let of_job =
            owner.is_some_and(|owner| owner.kind == "Job" && owner.api_version == "batch/v1");
        if !tracked && !of_job {
            return None;
        }
        let annotation = |key: &str| {
            let all = pod.metadata.annotations.as_ref()?;
            all.get(key)?.parse().ok()
        };
        let all = statuses(pod);
        let terminated = |status: &&ContainerStatus| {
            let ended = status.state.as_ref()?.terminated.as_ref()?;
            Some((
                status.name.clone(),
                ended.exit_code,
                ended.finished_at.clone(),
            ))
        };
        let ended: Vec<_> = all.iter().filter_map(terminated).collect();
        let last = ended.iter().filter_map(|(.., at)| Some(at.as_ref()?.0));
        let found = condition(pod, "Ready").or_else(|| condition(pod, "DisruptionTarget"));
        let found = found.and_then(|found| Some(found.last_transition_time.as_ref()?.0));
        let conditions = pod
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten());
        Some(Box::new(Self {
            tracked,
            index: annotation("batch.kubernetes.io/job-completion-index"),
            failures: annotation("batch.kubernetes.io/job-index-failure-count").unwrap_or_default(),
            ignored: annotation("batch.kubernetes.io/job-index-ignored-failure-count")
                .unwrap_or_default(),
            restarts: sum(all.iter().map(|status| status.restart_count)),
            started: pod
                .status
                .as_ref()
                .and_then(|status| Some(status.start_time.as_ref()?.0)),
            ended: last.max().or(found),
            exits: ended
                .into_iter()
                .map(|(name, code, _)| (name, code))
                .collect(),
            conditions: conditions
                .filter(|one| !matches!(&*one.type_, "Ready" | "ContainersReady" | "Initialized"))
                .map(|one| (one.type_.clone(), one.status.clone()))
                .collect(),
        }))
    }
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

fn statuses(pod: &Pod) -> Vec<&ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let main = status.and_then(|status| status.container_statuses.as_ref());
    init.into_iter().chain(main).flatten().collect()
}

/// Most restarts of a container, and of a sidecar.
fn restarts(pod: &Pod) -> (i32, i32) {
    let init = pod
        .spec
        .iter()
        .flat_map(|spec| spec.init_containers.iter().flatten());
    let sidecars: BTreeSet<&str> = init
        .filter(|container| container.restart_policy.as_deref() == Some("Always"))
        .map(|container| container.name.as_str())
        .collect();
    let mut most = (0, 0);
    for status in statuses(pod) {
        let most = if sidecars.contains(status.name.as_str()) {
            &mut most.1
        } else {
            &mut most.0
        };
        *most = status.restart_count.max(*most);
    }
    most
}

/// The only node that a pod's affinity allows by name, as that of daemon pods; `None` otherwise.
pub fn meant_for(pod: &Pod) -> Option<&str> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?;
    let nodes = affinity.node_affinity.as_ref()?;
    let required = nodes
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let fields = required
        .node_selector_terms
        .iter()
        .flat_map(|term| term.match_fields.iter().flatten());
    let mut named = fields.filter(|field| field.key == "metadata.name" && field.operator == "In");
    named.next()?.values.as_ref()?.first().map(String::as_str)
}

/// Adds the workloads of a kind that a changed pod concerns: its controller, or if it has none,
/// those whose selector matches.
fn concerned<T>(
    workloads: Lookup<Kept<T>>,
) -> impl Fn(&Delta<OwnedPod>, &mut Vec<Key>) + Send + 'static
where
    T: Object + Selects + PartialEq + Debug + Sync,
{
    move |delta, keys| {
        for pod in [&delta.before, &delta.after].into_iter().flatten() {
            match &pod.owner {
                Some(owner) if owner.kind == T::KIND && owner.api_version == T::API_VERSION => {
                    keys.push(owner_key(&delta.key.namespace, &owner.name));
                }
                Some(_) => {}
                None => {
                    let all = workloads.get(&delta.key.namespace);
                    let wanting = all.iter().filter(|(_, one)| one.wants(&pod.labels));
                    keys.extend(wanting.map(|(key, _)| (**key).clone()));
                }
            }
        }
        keys.dedup();
    }
}
