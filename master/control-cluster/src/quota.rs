//! Resource quota status: counts usage again after a release, and for a new or changed quota.
//!
//! Admission increases the usage in the transaction of the write; only this controller decreases
//! it. The count is written only if the quota is unchanged since before counting, so that no object
//! admitted meanwhile is missed.

use config_kube::k8s_openapi::api::core::v1::ResourceQuota;
use master_client::{
    ApiError, Change, Client, Delta, DynamicObject, Index, Key, ListParams, Lookup, ObjectPath,
    PartialObject, Reason, Resource, Store, View,
};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::every_kind::{Kinds, ResourceId};
use master_control::setup::Setup;
use master_control::views::pod::PodView;
use master_control::writer::Writer;
use master_quota::{self as quota, Quota};
use master_schema::quantity::{Quantities, Quantity};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Everything is counted again after this time in any case (upstream's default).
const RESYNC_PERIOD: Duration = Duration::from_secs(300);
/// Objects in a page.
const PAGE_SIZE: u32 = 500;
/// Tries to count while others use something up.
const MAX_TRIES: usize = 8;

/// A resource quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaView {
    /// Whether its status covers the limits of its spec.
    pub settled: bool,
}

impl View for QuotaView {
    type Object = ResourceQuota;

    fn read(quota: ResourceQuota) -> Self {
        let wanted = quota.spec.and_then(|spec| spec.hard).unwrap_or_default();
        let status = quota.status.unwrap_or_default();
        let hard = status.hard.unwrap_or_default();
        let used = status.used.unwrap_or_default();
        let counted = hard.keys().all(|name| used.contains_key(name));
        Self {
            settled: wanted == hard && counted,
        }
    }
}

/// Quotas by their namespace.
static BY_NAMESPACE: Index<QuotaView> =
    Index::new("namespace", |key, _| vec![key.namespace.clone()]);

/// The controller's memory of a namespace with quotas.
#[derive(Debug, Default)]
struct Count {
    /// How often something may have become free.
    released: u64,
    /// The state at the last count, and its time.
    counted: Option<(u64, Instant)>,
}

/// Counts by namespace.
#[derive(Debug, Clone, Default)]
struct Counts(Arc<Mutex<HashMap<String, Count>>>);

impl Counts {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Count>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records releases. Namespaces without a quota are ignored.
#[derive(Clone)]
struct Releases {
    quotas: Lookup<QuotaView>,
    counts: Counts,
}

impl Releases {
    fn release(&self, namespace: &str, keys: &mut Vec<Key>) {
        if self.quotas.count(namespace) > 0 {
            let mut counts = self.counts.lock();
            counts.entry(namespace.to_owned()).or_default().released += 1;
            keys.push(Key::cluster(namespace));
        }
    }
}

/// The controller. Its keys are namespaces.
#[derive(Debug)]
pub struct Quotas {
    by_namespace: Lookup<QuotaView>,
    counts: Counts,
    kinds: Kinds,
}

/// A namespace with quotas.
#[derive(Debug)]
pub struct Facts {
    namespace: String,
    /// Whether the statuses of all its quotas cover their limits.
    settled: bool,
    /// The number of releases that were seen by then.
    seen: u64,
    /// Whether something became free since it was counted.
    released: bool,
    /// For how long it has not been counted; none where it never was.
    since: Option<Duration>,
}

/// The usage of a namespace's quotas is counted again.
#[derive(Debug, PartialEq, Eq)]
pub struct Recount {
    /// Which namespace.
    pub namespace: String,
    /// The number of releases that were seen by then.
    pub seen: u64,
}

impl Controller for Quotas {
    const NAME: &'static str = "resourcequota-controller";
    const RIGHTS: &'static [Right] = &[
        right("*", "*", &["list", "watch"]),
        right("", "resourcequotas", &["get", "list", "watch"]),
        right("", "resourcequotas/status", &["update"]),
    ];
    type Facts = Facts;
    type Action = Recount;

    fn new(setup: &mut Setup<'_>) -> Self {
        let store: Store<QuotaView> = setup
            .follow(|delta, keys: &mut Vec<Key>| keys.push(Key::cluster(&delta.key.namespace)));
        let (quotas, counts) = (store.index(&BY_NAMESPACE), Counts::default());
        let releases = Releases {
            quotas: quotas.clone(),
            counts: counts.clone(),
        };
        let ended = releases.clone();
        setup.follow(move |delta: &Delta<PodView>, keys| {
            let ran = |pod: &Option<Arc<PodView>>| pod.as_ref().is_some_and(|pod| !pod.ended());
            if ran(&delta.before) && !ran(&delta.after) || respecified(delta) {
                ended.release(&delta.key.namespace, keys);
            }
        });
        let kinds = setup.follow_every_kind(
            move |(_, kind): (ResourceId, &Resource),
                  change: &Change<PartialObject>,
                  keys: &mut Vec<Key>| {
                freed(&releases, &store, kind, change, keys);
            },
        );
        Self {
            by_namespace: quotas,
            counts,
            kinds,
        }
    }

    fn facts(&self, key: &Key, now: Now) -> Option<Facts> {
        let quotas = self.by_namespace.get(&key.name);
        let mut counts = self.counts.lock();
        if quotas.is_empty() {
            counts.remove(&key.name);
            return None;
        }
        let count = counts.entry(key.name.clone()).or_default();
        let since = |(_, at): (u64, Instant)| now.instant.saturating_duration_since(at);
        Some(Facts {
            namespace: key.name.clone(),
            settled: quotas.iter().all(|(_, quota)| quota.settled),
            seen: count.released,
            released: count
                .counted
                .is_some_and(|(seen, _)| seen != count.released),
            since: count.counted.map(since),
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Recount> {
        let left = facts.since.map(|since| RESYNC_PERIOD.saturating_sub(since));
        let overdue = left.is_none_or(|left| left.is_zero());
        let mut plan = Plan::nothing();
        if overdue || facts.released || !facts.settled {
            plan.actions.push(Recount {
                namespace: facts.namespace.clone(),
                seen: facts.seen,
            });
        }
        plan.requeue_in(left.filter(|left| !left.is_zero()).unwrap_or(RESYNC_PERIOD));
        plan
    }

    async fn carry_out(&self, action: Recount, writer: &Writer) -> Result<(), ApiError> {
        recount(writer.client(), &action.namespace, &self.kinds.all()).await?;
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&action.namespace) {
            count.counted = Some((action.seen, writer.now().instant));
        }
        Ok(())
    }
}

/// Whether a pod's spec changed, by which it may ask for less (a resize) or leave the scope of a
/// quota (a deadline). A deletion counts as a generation, too, and frees nothing before the pod is
/// gone.
fn respecified(delta: &Delta<PodView>) -> bool {
    let (Some(before), Some(after)) = (&delta.before, &delta.after) else {
        return false;
    };
    before.generation != after.generation && before.deleted == after.deleted
}

/// Whether a change may have made something free, and in which namespaces.
fn freed(
    releases: &Releases,
    quotas: &Store<QuotaView>,
    kind: &Resource,
    change: &Change<PartialObject>,
    keys: &mut Vec<Key>,
) {
    match change {
        Change::Listed(_) => {
            for key in quotas.keys() {
                releases.release(&key.namespace, keys);
            }
        }
        // These may reduce their usage without being deleted.
        Change::Set(object)
            if kind.group.is_empty()
                && matches!(kind.plural.as_str(), "services" | "persistentvolumeclaims") =>
        {
            releases.release(&object.metadata.namespace, keys);
        }
        Change::Set(_) => {}
        Change::Deleted(gone) => releases.release(&gone.key.namespace, keys),
    }
}

/// Counts for all quotas of a namespace.
async fn recount(client: &Client, namespace: &str, resources: &[Resource]) -> Result<(), ApiError> {
    let quotas = kind(resources, "resourcequotas")?;
    for found in client
        .wholes(quotas, namespace, &ListParams::default())
        .await?
        .items
    {
        let name = text(&found.0, "/metadata/name");
        let mut tries = 0;
        let status = ObjectPath {
            namespace,
            name: &name,
            subresource: Some("status"),
        };
        while !count(client, quotas, status, resources).await? {
            tries += 1;
            if tries >= MAX_TRIES {
                let text =
                    format!("quota {namespace}/{name} is used up faster than it can be counted");
                return Err(ApiError::new(Reason::ServerTimeout, text));
            }
        }
    }
    Ok(())
}

/// Counts for one quota and writes its status; whether it was still as before.
async fn count(
    client: &Client,
    quotas: &Resource,
    at: ObjectPath<'_>,
    resources: &[Resource],
) -> Result<bool, ApiError> {
    let mut found = match client.whole(quotas, at.namespace, at.name).await {
        Ok(found) => found,
        Err(error) if error.is_not_found() => return Ok(true),
        Err(error) => return Err(error),
    };
    let quota = Quota::read(&found.0);
    let mut used = Quantities::default();
    for resource in resources.iter().filter(|resource| resource.namespaced) {
        let wanted = |name: &str| quota::tracks(&resource.group, &resource.plural, name);
        if quota::counts(&resource.group, &resource.plural) && quota.wanted.names().any(wanted) {
            used.add(&usage(client, at.namespace, resource, &quota).await?);
        }
    }
    // A kind that is not served has no objects, so its usage is zero.
    let mut status = quota.wanted.clone();
    for (limit, amount) in &mut status.0 {
        *amount = used.get(limit).unwrap_or(Quantity::ZERO);
    }
    let status = json!({"hard": quota.wanted.to_fields(), "used": status.to_fields()});
    if found.0.get("status") == Some(&status) {
        return Ok(true);
    }
    found.0.insert("status".to_owned(), status);
    match client.replace(quotas, at, &found).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) if error.is_conflict() => Ok(false),
        Err(error) => Err(error),
    }
}

/// The usage of a quota by all objects of a kind.
async fn usage(
    client: &Client,
    namespace: &str,
    resource: &Resource,
    quota: &Quota,
) -> Result<Quantities, ApiError> {
    let now = client.now();
    let (group, plural) = (resource.group.as_str(), resource.plural.as_str());
    let mut used = Quantities::default();
    let mut params = ListParams {
        limit: Some(PAGE_SIZE),
        ..ListParams::default()
    };
    let plain = quota.scopes.is_empty()
        && !matches!(
            plural,
            "pods" | "persistentvolumeclaims" | "services" | "resourceclaims"
        );
    loop {
        let page = if plain {
            let page = client.partials(resource, namespace, &params).await?;
            for _ in &page.items {
                used.add(&quota::usage(group, plural, &Map::new(), now));
            }
            page.continue_token
        } else {
            let page = client.wholes(resource, namespace, &params).await?;
            for DynamicObject(object) in page
                .items
                .iter()
                .filter(|DynamicObject(object)| quota.covers(group, plural, object))
            {
                used.add(&quota::usage(group, plural, object, now));
            }
            page.continue_token
        };
        if page.is_empty() {
            return Ok(used);
        }
        params.continue_token = Some(page);
    }
}

fn kind<'a>(resources: &'a [Resource], plural: &str) -> Result<&'a Resource, ApiError> {
    let found = resources
        .iter()
        .find(|resource| resource.group.is_empty() && resource.plural == plural);
    found.ok_or_else(|| ApiError::new(Reason::InternalError, format!("{plural} are not served")))
}

fn text(fields: &Map<String, Value>, pointer: &str) -> String {
    let (first, rest) = pointer
        .trim_start_matches('/')
        .split_once('/')
        .unwrap_or_default();
    let found = fields
        .get(first)
        .and_then(|value| value.pointer(&format!("/{rest}")));
    found.and_then(Value::as_str).unwrap_or_default().to_owned()
}
