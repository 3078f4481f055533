//! `LimitRanger`: defaults and bounds for the resources of a namespace's containers, pods and
//! volume claims.

use crate::plugin::{Admitted, Operation, Plugin, Request, name_of};
use master_client::BoxFuture;
use master_pods::podspec;
use master_schema::error::ApiError;
use master_schema::object::{meta_text, metadata, metadata_mut};
use master_schema::quantity::{Quantities, Quantity};
use master_schema::validate::{Fields, items, object, object_mut, text};
use serde_json::Value;

/// Annotation that records which defaults were set.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// The plugin.
#[derive(Debug)]
pub(crate) struct LimitRanger;

impl Plugin for LimitRanger {
    fn concerns(&self, request: &Request<'_>) -> bool {
        // The resources of a pod's containers change by `resize` alone.
        let created = request.operation == Operation::Create && request.writes("", "pods");
        let resized = request.operation == Operation::Update
            && request.is("", "pods")
            && request
                .subresource
                .is_some_and(|subresource| subresource.name() == "resize");
        let claimed =
            request.operation != Operation::Delete && request.writes("", "persistentvolumeclaims");
        created || resized || claimed
    }

    fn admit<'a>(
        &'a self,
        request: &'a Request<'a>,
        pod: &'a mut Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            if request.operation == Operation::Create && request.is("", "pods") {
                let ranges = ranges(request, pod).await?;
                for range in &ranges {
                    fill(pod, range);
                }
                if !ranges.is_empty() {
                    // The resources of containers determine the QoS class.
                    let class =
                        object(pod, "spec").map_or("BestEffort", podspec::quality_of_service);
                    if let Some(status) = object_mut(pod, "status") {
                        status.insert("qosClass".to_owned(), class.into());
                    }
                }
            }
            Ok(())
        })
    }

    fn check<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            if !text(metadata(object), "deletionTimestamp").is_empty() {
                return Ok(());
            }
            for range in ranges(request, object).await? {
                let faults = faults(&range, request.is("", "pods"), object);
                match faults.as_slice() {
                    [] => {}
                    [only] => return Err(request.forbidden(name_of(object), only)),
                    several => {
                        let text = format!("[{}]", several.join(", "));
                        return Err(request.forbidden(name_of(object), &text));
                    }
                }
            }
            Ok(())
        })
    }
}

/// The namespace's LimitRanges, each as a list of its limits.
async fn ranges(request: &Request<'_>, object: &Fields) -> Result<Vec<Vec<Limit>>, ApiError> {
    let found = request
        .stored("limitranges", meta_text(object, "namespace"))
        .await?;
    let limits = |fields: &Fields| {
        let spec = master_schema::validate::object(fields, "spec");
        let list = spec.map_or(&[][..], |spec| items(spec, "limits"));
        list.iter()
            .filter_map(Value::as_object)
            .map(Limit::read)
            .collect()
    };
    Ok(found.iter().map(|(_, fields)| limits(fields)).collect())
}

/// One item of a LimitRange.
#[derive(Debug, Default)]
struct Limit {
    kind: String,
    min: Quantities,
    max: Quantities,
    default: Quantities,
    default_request: Quantities,
    ratio: Quantities,
}

impl Limit {
    fn read(fields: &Fields) -> Self {
        let list = |name| Quantities::read(object(fields, name));
        Self {
            kind: text(fields, "type").to_owned(),
            min: list("min"),
            max: list("max"),
            default: list("default"),
            default_request: list("defaultRequest"),
            ratio: list("maxLimitRequestRatio"),
        }
    }

    fn faults(&self, requests: &Quantities, limits: &Quantities) -> Vec<String> {
        let kind = &self.kind;
        let min = self
            .min
            .0
            .iter()
            .filter_map(|(name, least)| below(kind, name, *least, requests, limits));
        let max = self
            .max
            .0
            .iter()
            .filter_map(|(name, most)| above(kind, name, *most, requests, limits));
        let ratio = self
            .ratio
            .0
            .iter()
            .filter_map(|(name, most)| too_far(kind, name, *most, requests, limits));
        min.chain(max).chain(ratio).collect()
    }
}

/// Sets the defaults of a range in a pod's containers and records them in an annotation.
fn fill(pod: &mut Fields, range: &[Limit]) {
    let (mut limits, mut requests) = (Quantities::default(), Quantities::default());
    for limit in range.iter().filter(|limit| limit.kind == "Container") {
        limits.0.extend(limit.default.0.clone());
        requests.0.extend(limit.default_request.0.clone());
    }
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    let mut defaulted = Vec::new();
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    podspec::change_containers(
        spec,
        &["containers", "initContainers"],
        |list, container| {
            let word = if list == "containers" {
                "container"
            } else {
                "init container"
            };
            let name = text(container, "name").to_owned();
            let set_limits = set(container, "limits", &limits);
            let set_requests = set(container, "requests", &requests);
            for (names, what) in [(set_requests, "request"), (set_limits, "limit")] {
                if !names.is_empty() {
                    defaulted.push(format!("{} {what} for {word} {name}", names.join(", ")));
                }
            }
        },
    );
    if defaulted.is_empty() {
        return;
    }
    if let Some(annotations) = object_mut(metadata_mut(pod), "annotations") {
        annotations.insert(
            ANNOTATION.to_owned(),
            format!("LimitRanger plugin set: {}", defaulted.join("; ")).into(),
        );
    }
}

/// Sets what a container leaves out; returns the names that were set.
fn set(container: &mut Fields, list: &str, defaults: &Quantities) -> Vec<String> {
    if defaults.is_empty() {
        return Vec::new();
    }
    let Some(resources) =
        object_mut(container, "resources").and_then(|resources| object_mut(resources, list))
    else {
        return Vec::new();
    };
    let missing: Vec<_> = defaults
        .0
        .iter()
        .filter(|(name, _)| !resources.contains_key(*name))
        .collect();
    for (name, amount) in &missing {
        resources.insert((*name).clone(), amount.to_string().into());
    }
    missing.into_iter().map(|(name, _)| name.clone()).collect()
}

fn faults(range: &[Limit], is_pod: bool, fields: &Fields) -> Vec<String> {
    let empty = Fields::new();
    let spec = object(fields, "spec").unwrap_or(&empty);
    let mut faults = Vec::new();
    for limit in range {
        match (limit.kind.as_str(), is_pod) {
            ("Container", true) => {
                let containers = items(spec, "containers")
                    .iter()
                    .chain(items(spec, "initContainers"));
                for container in containers.filter_map(Value::as_object) {
                    let list = |name| {
                        Quantities::read(
                            object(container, "resources").and_then(|r| object(r, name)),
                        )
                    };
                    faults.extend(limit.faults(&list("requests"), &list("limits")));
                }
            }
            ("Pod", true) => faults.extend(limit.faults(
                &master_quota::peak(spec, "requests"),
                &master_quota::peak(spec, "limits"),
            )),
            ("PersistentVolumeClaim", false) => {
                let requests =
                    object(spec, "resources").and_then(|resources| object(resources, "requests"));
                let requests = Quantities::read(requests);
                let nothing = Quantities::default();
                faults.extend(limit.min.0.iter().filter_map(|(name, least)| {
                    below(&limit.kind, name, *least, &requests, &nothing)
                }));
                // Claims have no limits: their requests are compared with the maximum.
                faults.extend(limit.max.0.iter().filter_map(|(name, most)| {
                    let text = format!("maximum {name} usage per {} is {most}", limit.kind);
                    match requests.get(name) {
                        None => Some(format!("{text}.  No request is specified")),
                        Some(requested) if requested > *most => {
                            Some(format!("{text}, but request is {requested}"))
                        }
                        Some(_) => None,
                    }
                }));
            }
            _ => {}
        }
    }
    faults
}

fn below(
    kind: &str,
    name: &str,
    least: Quantity,
    requests: &Quantities,
    limits: &Quantities,
) -> Option<String> {
    let text = format!("minimum {name} usage per {kind} is {least}");
    match (requests.get(name), limits.get(name)) {
        (None, _) => Some(format!("{text}.  No request is specified")),
        (Some(requested), _) if requested < least => {
            Some(format!("{text}, but request is {requested}"))
        }
        (Some(_), Some(limit)) if limit < least => Some(format!("{text}, but limit is {limit}")),
        (Some(_), _) => None,
    }
}

fn above(
    kind: &str,
    name: &str,
    most: Quantity,
    requests: &Quantities,
    limits: &Quantities,
) -> Option<String> {
    let text = format!("maximum {name} usage per {kind} is {most}");
    match (requests.get(name), limits.get(name)) {
        (_, None) => Some(format!("{text}.  No limit is specified")),
        (_, Some(limit)) if limit > most => Some(format!("{text}, but limit is {limit}")),
        (Some(requested), Some(_)) if requested > most => {
            Some(format!("{text}, but request is {requested}"))
        }
        (_, Some(_)) => None,
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "the ratio is shown with six digits"
)]
fn too_far(
    kind: &str,
    name: &str,
    most: Quantity,
    requests: &Quantities,
    limits: &Quantities,
) -> Option<String> {
    let text = format!("{name} max limit to request ratio per {kind} is {most}");
    let Some(requested) = requests.get(name).filter(|requested| !requested.is_zero()) else {
        return Some(format!(
            "{text}, but no request is specified or request is 0"
        ));
    };
    let Some(limit) = limits.get(name).filter(|limit| !limit.is_zero()) else {
        return Some(format!("{text}, but no limit is specified or limit is 0"));
    };
    let ratio = limit.amount().nanos() as f64 / requested.amount().nanos() as f64;
    let bound = most.amount().nanos() as f64 / 1e9;
    (ratio > bound).then(|| format!("{text}, but provided ratio is {ratio:.6}"))
}

#[cfg(test)]
#[allow(
    clippy::needless_pass_by_value,
    reason = "literals are passed, and read better so"
)]
mod tests {
    use super::*;
    use serde_json::json;

    fn limit(value: Value) -> Vec<Limit> {
        vec![Limit::read(value.as_object().unwrap())]
    }

    fn fields(value: &Value) -> Fields {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn each_bound_is_reported_in_upstreams_words() {
        let bounded = json!({"type": "Container", "min": {"cpu": "100m"}, "max": {"memory": "1Gi"},
            "maxLimitRequestRatio": {"cpu": "2"}});
        let faults_of = |requests: Value, limits: Value| {
            let pod = json!({"spec": {"containers": [{"name": "a",
                "resources": {"requests": requests, "limits": limits}}]}});
            faults(&limit(bounded.clone()), true, &fields(&pod))
        };
        assert_eq!(
            faults_of(
                json!({"cpu": "50m"}),
                json!({"cpu": "150m", "memory": "2Gi"})
            ),
            [
                "minimum cpu usage per Container is 100m, but request is 50m",
                "maximum memory usage per Container is 1Gi, but limit is 2Gi",
                "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000",
            ]
        );
        assert_eq!(
            faults_of(json!({}), json!({})),
            [
                "minimum cpu usage per Container is 100m.  No request is specified",
                "maximum memory usage per Container is 1Gi.  No limit is specified",
                "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
            ]
        );
        assert!(
            faults_of(
                json!({"cpu": "100m"}),
                json!({"cpu": "200m", "memory": "1Gi"})
            )
            .is_empty()
        );
    }

    #[test]
    fn claims_are_held_against_both_bounds() {
        let range = limit(
            json!({"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}),
        );
        let faults_of = |size: &str| {
            let claim = json!({"spec": {"resources": {"requests": {"storage": size}}}});
            faults(&range, false, &fields(&claim))
        };
        assert_eq!(
            faults_of("3Gi"),
            ["maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"]
        );
        assert_eq!(
            faults_of("500Mi"),
            ["minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 500Mi"]
        );
        assert!(faults_of("1Gi").is_empty());
    }

    #[test]
    fn defaults_fill_missing_values_and_are_recorded() {
        let range = limit(
            json!({"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "100m"}}),
        );
        let mut pod = fields(&json!({"metadata": {}, "spec": {"containers": [
            {"name": "a"}, {"name": "b", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}}]}}));
        fill(&mut pod, &range);
        assert_eq!(
            pod["spec"]["containers"][0]["resources"],
            json!({"limits": {"cpu": "1"}, "requests": {"cpu": "100m"}})
        );
        assert_eq!(
            pod["spec"]["containers"][1]["resources"]["limits"]["cpu"],
            "3"
        );
        let annotation = &pod["metadata"]["annotations"][ANNOTATION];
        assert_eq!(
            annotation,
            "LimitRanger plugin set: cpu request for container a; cpu limit for container a"
        );
    }
}
