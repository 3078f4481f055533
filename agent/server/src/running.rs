//! `/runningpods/`: the pods of which something runs, as the container engine tells, whatever the
//! master wants. The form is upstream's: what the engine knows of a pod, and no more.

use agent_runtime::{Container as Seen, ContainerState};
use config_kube::k8s_openapi::List;
use config_kube::k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use std::collections::BTreeMap;

/// The pods that have a container which runs.
pub(crate) fn pods(seen: &[Seen]) -> List<Pod> {
    let runs = |one: &&Seen| matches!(one.state, ContainerState::Running { .. });
    let mut all = BTreeMap::new();
    for one in seen.iter().filter(runs) {
        let pod = all.entry(&one.key.pod).or_insert_with(|| {
            let mut pod = Pod::default();
            pod.metadata.namespace = Some(one.key.pod.namespace.clone());
            pod.metadata.name = Some(one.key.pod.name.clone());
            pod.metadata.uid = Some(one.key.pod.uid.clone());
            pod.spec = Some(PodSpec::default());
            pod
        });
        pod.spec.get_or_insert_default().containers.push(Container {
            name: one.key.container.clone(),
            image: Some(one.image.clone()),
            ..Container::default()
        });
    }
    List {
        items: all.into_values().collect(),
        ..List::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_runtime::PodRef;
    use jiff::Timestamp;
    use serde_json::json;
    use tests_support::containers;

    fn seen(pod: &str, container: &str, runs: bool) -> Seen {
        let started_at = Timestamp::UNIX_EPOCH;
        let reference = PodRef {
            namespace: "n".to_owned(),
            name: pod.to_owned(),
            uid: format!("uid-{pod}"),
        };
        let state = if runs {
            ContainerState::Running { started_at }
        } else {
            ContainerState::Created
        };
        Seen {
            id: format!("{pod}-{container}"),
            image: "image:1".to_owned(),
            ..containers::container(reference, container, state)
        }
    }

    #[test]
    fn pods_of_which_something_runs_are_listed_with_what_runs() {
        let all = [
            seen("a", "one", true),
            seen("b", "one", false),
            seen("a", "two", true),
            seen("a", "three", false),
        ];
        let list = serde_json::to_value(pods(&all)).unwrap();
        assert_eq!(list["kind"], json!("PodList"));
        let items = list["items"].as_array().unwrap();
        assert_eq!(items.len(), 1, "{list}");
        assert_eq!(items[0]["metadata"]["uid"], json!("uid-a"));
        let names = &items[0]["spec"]["containers"];
        assert_eq!(names[0]["name"], json!("one"));
        assert_eq!(names[1]["name"], json!("two"));
        assert_eq!(names.as_array().unwrap().len(), 2);
        assert_eq!(names[0]["image"], json!("image:1"));
    }
}
