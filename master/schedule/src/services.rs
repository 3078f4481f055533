//! Selectors of Services: the pods of a Service are spread by default (upstream:
//! `DefaultSelector`).

use crate::request::Demand;
use crate::terms::Labels;
use config_kube::k8s_openapi::api::core::v1::Service;
use master_client::{Key, View};
use std::collections::{BTreeMap, HashMap};

/// The labels that a Service selects; a Service without any selects nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceSelector(Labels);

impl View for ServiceSelector {
    type Object = Service;

    fn read(service: Service) -> Self {
        let selector = service.spec.and_then(|spec| spec.selector);
        Self(selector.unwrap_or_default())
    }
}

/// Selectors by the values of their first labels, with the names of their Services.
type ByLabel = HashMap<String, HashMap<String, BTreeMap<String, Labels>>>;

/// The Services by namespace, indexed so that those of a pod are found from its labels.
#[derive(Debug, Clone, Default)]
pub(crate) struct Services {
    by_namespace: HashMap<String, ByLabel>,
    /// The first label of each selector.
    first: HashMap<Key, (String, String)>,
}

impl Services {
    /// Adds or changes a Service.
    pub(crate) fn set(&mut self, key: Key, ServiceSelector(selector): ServiceSelector) {
        self.remove(&key);
        let Some((label, value)) = selector.first_key_value() else {
            return;
        };
        let first = (label.clone(), value.clone());
        let by_label = self.by_namespace.entry(key.namespace.clone()).or_default();
        let by_value = by_label.entry(first.0.clone()).or_default();
        let alike = by_value.entry(first.1.clone()).or_default();
        alike.insert(key.name.clone(), selector);
        self.first.insert(key, first);
    }

    /// Removes a Service.
    pub(crate) fn remove(&mut self, key: &Key) {
        let Some((label, value)) = self.first.remove(key) else {
            return;
        };
        if let Some(by_label) = self.by_namespace.get_mut(&key.namespace) {
            if let Some(by_value) = by_label.get_mut(&label) {
                if let Some(alike) = by_value.get_mut(&value) {
                    alike.remove(&key.name);
                }
                by_value.retain(|_, alike| !alike.is_empty());
            }
            by_label.retain(|_, by_value| !by_value.is_empty());
        }
        self.by_namespace.retain(|_, by_label| !by_label.is_empty());
    }

    /// The selectors of all Services that select a pod, merged.
    pub(crate) fn selecting<'a>(&'a self, pod: &Demand) -> BTreeMap<&'a str, &'a str> {
        let mut together = BTreeMap::new();
        let Some(by_label) = self.by_namespace.get(&*pod.namespace) else {
            return together;
        };
        for (label, value) in &*pod.labels {
            let by_value = by_label.get(label);
            let alike = by_value.and_then(|by_value| by_value.get(value));
            for selector in alike.into_iter().flat_map(BTreeMap::values) {
                let mut wanted = selector.iter();
                if wanted.all(|(key, value)| pod.labels.get(key) == Some(value)) {
                    let wanted = selector.iter();
                    together.extend(wanted.map(|(key, value)| (key.as_str(), value.as_str())));
                }
            }
        }
        together
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::PodRequest;
    use serde_json::{Value, json};

    fn selected(services: &Services, labels: &Value) -> Vec<String> {
        let pod = json!({"metadata": {"namespace": "default", "name": "p", "labels": labels}});
        let pod = PodRequest::of(&serde_json::from_value(pod).unwrap());
        let together = services.selecting(&pod.demand);
        let text = together.iter().map(|(key, value)| format!("{key}={value}"));
        text.collect()
    }

    fn set(services: &mut Services, namespace: &str, name: &str, selector: &Value) {
        let selector = serde_json::from_value(selector.clone()).unwrap();
        services.set(Key::new(namespace, name), ServiceSelector(selector));
    }

    #[test]
    fn selectors_of_all_services_that_select_a_pod_count_together() {
        let mut services = Services::default();
        set(&mut services, "default", "web", &json!({"app": "web"}));
        set(
            &mut services,
            "default",
            "blue",
            &json!({"colour": "blue", "tier": "front"}),
        );
        set(
            &mut services,
            "default",
            "green",
            &json!({"colour": "blue", "tier": "back"}),
        );
        set(&mut services, "default", "bare", &json!({}));
        set(&mut services, "other", "web", &json!({"tier": "front"}));
        let labels = json!({"app": "web", "colour": "blue", "tier": "front", "own": "1"});
        assert_eq!(
            selected(&services, &labels),
            ["app=web", "colour=blue", "tier=front"]
        );
        assert_eq!(selected(&services, &json!({"app": "web"})), ["app=web"]);
        assert!(selected(&services, &json!({"tier": "front"})).is_empty());
    }

    #[test]
    fn what_no_service_selects_any_more_is_given_up() {
        let mut services = Services::default();
        set(&mut services, "default", "web", &json!({"app": "web"}));
        set(&mut services, "default", "web", &json!({"app": "other"}));
        assert!(selected(&services, &json!({"app": "web"})).is_empty());
        assert_eq!(selected(&services, &json!({"app": "other"})), ["app=other"]);
        services.remove(&Key::new("default", "web"));
        assert!(services.by_namespace.is_empty() && services.first.is_empty());
    }
}
