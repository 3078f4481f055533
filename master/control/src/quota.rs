//! Resource quota status: what is used is counted anew when something became free, and where a quota is new or changed.
//!
//! Admission adds to what is used in the transaction that uses it; only here it becomes less. The count is written only if
//! the quota is as it was before counting: nothing that was admitted meanwhile is forgotten.

use crate::driver::{Controller, Now, Plan, Right};
use crate::observe::{Key, Kind, Observed};
use crate::write::Write;
use jiff::Timestamp;
use master_client::{ApiError, Client, ListParams, Reason, Resource, Whole};
use master_kinds::quantity::{Quantities, Quantity};
use master_kinds::quota::{self, Quota};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Everything is counted anew after this time, whatever happened (upstream's default).
const PERIOD: Duration = Duration::from_secs(300);
/// Objects in a page.
const PAGE: u32 = 500;
/// Tries to count while others use something up.
const TRIES: usize = 8;

/// What it does, for whoever grants it.
pub(crate) const RIGHTS: &[Right] = &[
    Right {
        group: "*",
        resource: "*",
        verbs: &["list", "watch"],
    },
    Right {
        group: "",
        resource: "resourcequotas",
        verbs: &["get", "list", "watch"],
    },
    Right {
        group: "",
        resource: "resourcequotas/status",
        verbs: &["update"],
    },
];

/// The controller.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    everything: Option<Instant>,
}

impl Controller for Quotas {
    fn name(&self) -> &'static str {
        "resourcequota-controller"
    }

    fn follows(&self) -> &'static [Kind] {
        &[Kind::Quota, Kind::Object, Kind::Pod]
    }

    fn plan(&mut self, observed: &Observed, now: Now) -> Plan {
        if observed.quotas.is_empty() || !observed.unlisted.is_empty() {
            return Plan::default();
        }
        let all = self
            .everything
            .is_none_or(|last| now.instant.duration_since(last) >= PERIOD);
        if all {
            self.everything = Some(now.instant);
        }
        let due = |(key, facts): &(&Key, &crate::observe::QuotaFacts)| {
            all || !facts.settled || observed.released.contains_key(&key.namespace)
        };
        let namespaces: BTreeSet<&str> = observed
            .quotas
            .iter()
            .filter(due)
            .map(|(key, _)| key.namespace.as_str())
            .collect();
        let write = |namespace: &str| Write::Recount {
            namespace: namespace.to_owned(),
            seen: observed
                .released
                .get(namespace)
                .copied()
                .unwrap_or_default(),
            resources: Arc::clone(&observed.resources),
        };
        Plan {
            writes: namespaces.into_iter().map(write).collect(),
            again: Some(PERIOD),
        }
    }
}

/// Counts for all quotas of a namespace.
pub(crate) async fn recount(
    client: &Client,
    namespace: &str,
    resources: &[Resource],
) -> Result<(), ApiError> {
    let quotas = kind(resources, "resourcequotas")?;
    for found in client
        .wholes(quotas, namespace, &ListParams::default())
        .await?
        .items
    {
        let name = text(&found.0, "/metadata/name");
        let mut tries = 0;
        while !count(client, quotas, (namespace, &name), resources).await? {
            tries += 1;
            if tries >= TRIES {
                let text =
                    format!("quota {namespace}/{name} is used up faster than it can be counted");
                return Err(ApiError::new(Reason::ServerTimeout, text));
            }
        }
    }
    Ok(())
}

/// Counts for one quota; whether it was still as before.
async fn count(
    client: &Client,
    quotas: &Resource,
    (namespace, name): (&str, &str),
    resources: &[Resource],
) -> Result<bool, ApiError> {
    let mut found = match client.whole(quotas, namespace, name).await {
        Ok(found) => found,
        Err(error) if error.is_not_found() => return Ok(true),
        Err(error) => return Err(error),
    };
    let quota = Quota::read(&found.0);
    let mut used = Quantities::default();
    for resource in resources.iter().filter(|resource| resource.namespaced) {
        let wanted = |name: &str| quota::tracks(&resource.group, &resource.plural, name);
        if quota::counts(&resource.group, &resource.plural) && quota.wanted.names().any(wanted) {
            used.add(&usage(client, namespace, resource, &quota).await?);
        }
    }
    // What can't be counted, because nobody serves it, is used by nobody.
    let mut status = quota.wanted.clone();
    for (limit, amount) in &mut status.0 {
        *amount = used.get(limit).unwrap_or(Quantity::ZERO);
    }
    let status = json!({"hard": quota.wanted.to_fields(), "used": status.to_fields()});
    if found.0.get("status") == Some(&status) {
        return Ok(true);
    }
    found.0.insert("status".to_owned(), status);
    match client
        .replace(quotas, (namespace, name, Some("status")), &found)
        .await
    {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) if error.is_conflict() => Ok(false),
        Err(error) => Err(error),
    }
}

/// What all objects of a kind use of a quota.
async fn usage(
    client: &Client,
    namespace: &str,
    resource: &Resource,
    quota: &Quota,
) -> Result<Quantities, ApiError> {
    let now = Timestamp::now();
    let (group, plural) = (resource.group.as_str(), resource.plural.as_str());
    let mut used = Quantities::default();
    let mut params = ListParams {
        limit: Some(PAGE),
        ..ListParams::default()
    };
    let plain = quota.scopes.is_empty()
        && !matches!(plural, "pods" | "persistentvolumeclaims" | "services");
    loop {
        let page = if plain {
            let page = client.partials(resource, namespace, &params).await?;
            for _ in &page.items {
                used.add(&quota::usage(group, plural, &Map::new(), now));
            }
            page.continue_token
        } else {
            let page = client.wholes(resource, namespace, &params).await?;
            for Whole(object) in page
                .items
                .iter()
                .filter(|Whole(object)| quota.covers(group, plural, object))
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
