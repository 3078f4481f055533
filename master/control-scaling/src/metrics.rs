//! Usage of pods: samples of `metrics.k8s.io`, requests of containers.

use config_kube::Amount;
use config_kube::k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use jiff::{SignedDuration, Timestamp};
use master_client::{DynamicObject, Resource};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Nano-units in a thousandth.
const MILLI: i128 = 1_000_000;
/// The window of a sample that does not name it (upstream).
const WINDOW: SignedDuration = SignedDuration::from_mins(1);

/// A pod's usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// The amount, in thousandths.
    pub value: i64,
    /// The end of the measured window.
    pub at: Timestamp,
    /// The length of the window.
    pub window: SignedDuration,
}

/// Samples by the names of their pods.
pub type Samples = BTreeMap<String, Sample>;

/// The resource that samples are read from.
pub(super) fn served() -> Resource {
    Resource {
        group: "metrics.k8s.io".to_owned(),
        version: "v1beta1".to_owned(),
        kind: "PodMetrics".to_owned(),
        plural: "pods".to_owned(),
        namespaced: true,
    }
}

/// A quantity in thousandths, rounded up.
pub(super) fn milli(text: &str) -> Option<i64> {
    let nanos = text.parse::<Amount>().ok()?.nanos();
    let milli = nanos.div_euclid(MILLI) + i128::from(nanos.rem_euclid(MILLI) != 0);
    i64::try_from(milli).ok()
}

/// A number of thousandths as a quantity.
pub(super) fn quantity(milli: i64) -> String {
    let text = format!("{milli}m");
    master_schema::quantity::Quantity::parse(&text).map_or(text, |found| found.to_string())
}

fn usage(container: &Value, resource: &str) -> Option<i64> {
    milli(container["usage"][resource].as_str()?)
}

/// The sample of a pod: of one container, or of all together. A pod without a figure for one of its
/// containers has none, and neither has one without containers (upstream): it is not idle, its use
/// is unknown.
fn sample(pod: &Map<String, Value>, resource: &str, container: Option<&str>) -> Option<Sample> {
    let mut value = 0_i64;
    let mut found = false;
    for one in pod.get("containers")?.as_array()? {
        if container.is_none_or(|name| one["name"] == *name) {
            value = value.saturating_add(usage(one, resource)?);
            found = true;
        }
    }
    let text = |key: &str| pod.get(key).and_then(Value::as_str);
    let window = text("window").and_then(|text| text.parse().ok());
    let at = text("timestamp")?.parse().ok()?;
    found.then_some(Sample {
        value,
        at,
        window: window.unwrap_or(WINDOW),
    })
}

/// Samples of a resource.
pub fn samples(list: &[DynamicObject], resource: &str, container: Option<&str>) -> Samples {
    let one = |DynamicObject(pod): &DynamicObject| {
        let name = pod.get("metadata")?.get("name")?.as_str()?;
        Some((name.to_owned(), sample(pod, resource, container)?))
    };
    list.iter().filter_map(one).collect()
}

fn request(of: Option<&ResourceRequirements>, resource: &str) -> Option<i64> {
    milli(&of?.requests.as_ref()?.get(resource)?.0)
}

/// Containers that run for as long as the pod does.
fn running(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    let init = spec.init_containers.iter().flatten();
    let sidecars = init.filter(|one| one.restart_policy.as_deref() == Some("Always"));
    spec.containers.iter().chain(sidecars)
}

/// What pods request of a resource, in thousandths, by name.
///
/// # Errors
/// A container requests nothing, so that there is nothing to compare its use with.
pub(super) fn requests(
    pods: &[Pod],
    resource: &str,
    container: Option<&str>,
) -> Result<BTreeMap<String, i64>, String> {
    let mut all = BTreeMap::new();
    for pod in pods {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let Some(spec) = &pod.spec else { continue };
        let whole = request(spec.resources.as_ref(), resource).filter(|_| container.is_none());
        let sum = whole.map_or_else(|| sum(&name, spec, resource, container), Ok)?;
        all.insert(name, sum);
    }
    Ok(all)
}

/// What the containers of a pod request together.
fn sum(pod: &str, spec: &PodSpec, resource: &str, container: Option<&str>) -> Result<i64, String> {
    let mut sum = 0_i64;
    for one in running(spec) {
        if container.is_some_and(|wanted| wanted != one.name) {
            continue;
        }
        let Some(own) = request(one.resources.as_ref(), resource) else {
            let name = &one.name;
            return Err(format!(
                "missing request for {resource} in container {name} of Pod {pod}"
            ));
        };
        sum = sum.saturating_add(own);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_without_figures_of_containers_has_no_sample() {
        let known = |containers: Value| {
            let pod = json!({"metadata": {"name": "p"}, "timestamp": "2026-01-01T00:00:00Z",
                "containers": containers});
            let pod = DynamicObject(pod.as_object().cloned().unwrap());
            samples(&[pod], "cpu", None).len()
        };
        let one = json!({"name": "c", "usage": {"cpu": "1"}});
        let unread = json!({"name": "d", "usage": {"memory": "1"}});
        assert_eq!(known(json!([one])), 1);
        assert_eq!(known(json!([one, unread])), 0);
        assert_eq!(known(json!([])), 0);
    }
}
