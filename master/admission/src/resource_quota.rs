//! `ResourceQuota`: limits a namespace's usage; the count is updated in the transaction of the
//! write.
//!
//! Guarantee: no admitted write raises `status.used` above `status.hard`, whatever else is written
//! concurrently: the quota is written in the object's transaction, on the condition that it is
//! unchanged since it was read. The controller recounts what becomes free, under the same
//! condition. A resource that a new or changed quota limits and that has not been counted yet is
//! refused until the controller has counted it, moments later: otherwise the count would miss the
//! object.

use crate::plugin::{Admitted, Operation, Plugin, Request, name_of};
use crate::plugin_services::PluginServices;
use jiff::Timestamp;
use master_client::BoxFuture;
use master_quota::Quota;
use master_schema::error::{ApiError, Reason};
use master_schema::object::meta_text;
use master_schema::quantity::{Quantities, Quantity};
use master_schema::registry::Kind;
use master_schema::served::Kinds;
use master_schema::validate::{Fields, object as inner, object_mut};
use master_store::{Entry, Op};
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// The plugin.
#[derive(Debug)]
pub(crate) struct ResourceQuota {
    kinds: Arc<Kinds>,
    /// Locks for writers under the same quotas, shared by namespaces: two namespaces on one lock
    /// only wait for each other.
    locks: Vec<Arc<Mutex<()>>>,
}

/// How many locks there are.
const LOCKS: usize = 64;

impl ResourceQuota {
    pub(crate) fn new(parts: &PluginServices) -> Self {
        Self {
            kinds: parts.kinds.clone(),
            locks: (0..LOCKS).map(|_| Arc::default()).collect(),
        }
    }

    /// The descriptor of quotas themselves.
    fn kind(&self) -> Result<Arc<Kind>, ApiError> {
        let found = self.kinds.now().find("", "v1", "resourcequotas").cloned();
        found.ok_or_else(|| ApiError::new(Reason::InternalError, "resourcequotas are not served"))
    }

    /// Locks a namespace's quotas for one writer.
    async fn lock(&self, namespace: &str) -> OwnedMutexGuard<()> {
        let sum = namespace.bytes().fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(usize::from(byte))
        });
        let lock = self
            .locks
            .get(sum % LOCKS)
            .map(Arc::clone)
            .unwrap_or_default();
        lock.lock_owned().await
    }
}

impl Plugin for ResourceQuota {
    fn concerns(&self, request: &Request<'_>) -> bool {
        let kind = &request.kind;
        if !kind.namespaced || !master_quota::counts(&kind.group, &kind.plural) {
            return false;
        }
        match (request.operation, request.subresource) {
            (Operation::Create, None) => true,
            (Operation::Update, None) => ["pods", "persistentvolumeclaims", "services"]
                .iter()
                .any(|plural| request.is("", plural)),
            (Operation::Update, Some(subresource)) => {
                request.is("", "pods") && subresource.name() == "resize"
            }
            (Operation::Create, Some(_)) | (Operation::Delete, _) => false,
        }
    }

    fn check<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: &'a Fields,
        admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            // Any other update of a pod uses nothing more (its resources change by `resize`).
            if request.writes("", "pods")
                && request
                    .old
                    .is_some_and(|old| !master_quota::moves(object, old))
            {
                return Ok(());
            }
            let namespace = meta_text(object, "namespace");
            if quotas(request, namespace).await?.is_empty() {
                return Ok(());
            }
            admitted.quota_lock = Some(self.lock(namespace).await);
            let kind = self.kind()?;
            for entry in quotas(request, namespace).await? {
                if let Some(op) = charge(&kind, request, object, &entry)? {
                    admitted.ops.push(op);
                }
            }
            Ok(())
        })
    }
}

async fn quotas(request: &Request<'_>, namespace: &str) -> Result<Vec<Entry>, ApiError> {
    master_objects::list(request.reader, &format!("resourcequotas/{namespace}/")).await
}

/// The quota's update for this object; `None` if the quota does not apply to it.
fn charge(
    kind: &Kind,
    request: &Request<'_>,
    object: &Fields,
    entry: &Entry,
) -> Result<Option<Op>, ApiError> {
    let mut fields = master_objects::decode_for_update(kind, entry)?;
    let quota = Quota::read(&fields);
    let (group, plural) = (&request.kind.group, &request.kind.plural);
    let charged = charged(&quota, group, plural, object, request.old, Timestamp::now());
    match charged.map_err(|why| request.forbidden(name_of(object), &why))? {
        None => Ok(None),
        Some(used) => {
            if let Some(status) = object_mut(&mut fields, "status") {
                status.insert("used".to_owned(), Value::Object(used.to_fields()));
            }
            Ok(Some(Op::update(
                &entry.key,
                entry.modified,
                master_objects::encode(kind, fields)?,
            )))
        }
    }
}

/// The new `status.used`; `None` if it is unchanged. `Err` is upstream's text of the refusal.
fn charged(
    quota: &Quota,
    group: &str,
    plural: &str,
    object: &Fields,
    old: Option<&Fields>,
    now: Timestamp,
) -> Result<Option<Quantities>, String> {
    if !quota.matches(group, plural, object) {
        return Ok(None);
    }
    let concerned = quota.concerned(group, plural);
    if (group, plural) == ("", "pods")
        && let Some(missing) =
            inner(object, "spec").and_then(|spec| master_quota::missing(spec, &concerned))
    {
        return Err(format!("failed quota: {}: {missing}", quota.name));
    }
    if !quota.uncounted(&concerned).is_empty() {
        return Err(format!(
            "status unknown for quota: {}, resources: {}",
            quota.name,
            concerned.join(",")
        ));
    }
    let mut delta = master_quota::usage(group, plural, object, now);
    let negative: Vec<&str> = delta
        .0
        .iter()
        .filter(|(_, amount)| **amount < Quantity::ZERO)
        .map(|(name, _)| name.as_str())
        .collect();
    if !negative.is_empty() {
        return Err(format!(
            "quota usage is negative for resource(s): {}",
            negative.join(",")
        ));
    }
    if let Some(old) = old.filter(|old| quota.matches(group, plural, old)) {
        for (name, before) in master_quota::usage(group, plural, old, now).0 {
            let now = delta.get(&name).unwrap_or_default();
            delta.set(name, now.minus(before).max(Quantity::ZERO));
        }
    }
    let requested = delta.only(|name| {
        quota.hard.get(name).is_some() && !delta.get(name).unwrap_or_default().is_zero()
    });
    if requested.is_empty() {
        return Ok(None);
    }
    let mut used = quota.used.clone();
    used.add(&requested);
    let exceeded = requested.only(|name| used.get(name) > quota.hard.get(name));
    if !exceeded.is_empty() {
        let masked = |list: &Quantities| list.only(|name| exceeded.get(name).is_some());
        return Err(format!(
            "exceeded quota: {}, requested: {}, used: {}, limited: {}",
            quota.name,
            exceeded,
            masked(&quota.used),
            masked(&quota.hard)
        ));
    }
    Ok(Some(used))
}

#[cfg(test)]
#[allow(
    clippy::needless_pass_by_value,
    reason = "literals are passed, and read better so"
)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: &Value) -> Fields {
        value.as_object().cloned().unwrap()
    }

    fn quota(hard: Value, used: Value, spec: Value) -> Quota {
        let mut spec = spec;
        spec["hard"] = hard.clone();
        Quota::read(&fields(
            &json!({"metadata": {"name": "q"}, "spec": spec, "status": {"hard": hard, "used": used}}),
        ))
    }

    fn pod(resources: Value) -> Fields {
        fields(
            &json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "resources": resources}]}}),
        )
    }

    fn charge_pod(quota: &Quota, pod: &Fields) -> Result<Option<Quantities>, String> {
        charged(quota, "", "pods", pod, None, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn refusals_are_in_upstreams_words() {
        let asks = json!({"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}});
        let full = quota(
            json!({"pods": "1", "requests.cpu": "1"}),
            json!({"pods": "1", "requests.cpu": "600m"}),
            json!({}),
        );
        assert_eq!(
            charge_pod(&full, &pod(asks.clone())).unwrap_err(),
            "exceeded quota: q, requested: pods=1,requests.cpu=500m, used: pods=1,requests.cpu=600m, \
             limited: pods=1,requests.cpu=1"
        );
        let unset = quota(
            json!({"requests.memory": "1Gi"}),
            json!({"requests.memory": "0"}),
            json!({}),
        );
        assert_eq!(
            charge_pod(&unset, &pod(asks.clone())).unwrap_err(),
            "failed quota: q: must specify requests.memory for: a"
        );
        let unknown = quota(json!({"pods": "1"}), json!({}), json!({}));
        assert_eq!(
            charge_pod(&unknown, &pod(asks)).unwrap_err(),
            "status unknown for quota: q, resources: pods"
        );
    }

    #[test]
    fn nothing_is_created_under_a_quota_that_is_not_counted_yet() {
        let new = |spec: Value, status: Value| {
            Quota::read(&fields(
                &json!({"metadata": {"name": "q"}, "spec": {"hard": spec}, "status": status}),
            ))
        };
        let make = |quota: &Quota| {
            charged(
                quota,
                "",
                "configmaps",
                &Fields::new(),
                None,
                Timestamp::UNIX_EPOCH,
            )
        };
        let limits = json!({"configmaps": "5", "count/configmaps": "5", "secrets": "5"});
        let unknown = "status unknown for quota: q, resources: configmaps,count/configmaps";
        assert_eq!(make(&new(limits.clone(), json!({}))).unwrap_err(), unknown);
        let one = json!({"hard": {"configmaps": "5"}, "used": {"configmaps": "1"}});
        assert_eq!(
            make(&new(limits, one.clone())).unwrap_err(),
            unknown,
            "a limit that came later"
        );
        let counted = make(&new(json!({"configmaps": "5", "secrets": "5"}), one))
            .unwrap()
            .unwrap();
        assert_eq!(counted.to_string(), "configmaps=2");
        assert_eq!(
            make(&new(json!({"secrets": "5"}), json!({}))),
            Ok(None),
            "no limit of these objects"
        );
    }

    #[test]
    fn an_object_that_fits_is_added_to_the_usage() {
        let room = quota(
            json!({"limits.memory": "2Gi", "count/pods": "2"}),
            json!({"limits.memory": "512Mi", "count/pods": "1"}),
            json!({}),
        );
        let used = charge_pod(&room, &pod(json!({"limits": {"memory": "1Gi"}})))
            .unwrap()
            .unwrap();
        assert_eq!(used.to_string(), "count/pods=2,limits.memory=1536Mi");
    }

    #[test]
    fn scopes_leave_other_pods_alone() {
        let scoped = quota(
            json!({"pods": "0"}),
            json!({"pods": "0"}),
            json!({"scopes": ["BestEffort"]}),
        );
        assert_eq!(
            charge_pod(&scoped, &pod(json!({"requests": {"cpu": "1"}}))),
            Ok(None)
        );
        assert!(charge_pod(&scoped, &pod(json!({}))).is_err());
        let selected = quota(
            json!({"pods": "0"}),
            json!({"pods": "0"}),
            json!({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}}),
        );
        assert_eq!(charge_pod(&selected, &pod(json!({}))), Ok(None));
    }

    #[test]
    fn an_update_counts_only_the_difference() {
        let ports = quota(
            json!({"services.nodeports": "1", "services": "1"}),
            json!({"services.nodeports": "0", "services": "1"}),
            json!({}),
        );
        let service = |kind: &str| fields(&json!({"spec": {"type": kind, "ports": [{"port": 1}]}}));
        let charged = |new: &Fields, old: &Fields| {
            charged(
                &ports,
                "",
                "services",
                new,
                Some(old),
                Timestamp::UNIX_EPOCH,
            )
        };
        let used = charged(&service("NodePort"), &service("ClusterIP"))
            .unwrap()
            .unwrap();
        assert_eq!(used.to_string(), "services=1,services.nodeports=1");
        assert_eq!(
            charged(&service("ClusterIP"), &service("NodePort")),
            Ok(None)
        );
    }
}
