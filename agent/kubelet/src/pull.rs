//! Images for a pod's containers, by the pod's pull secrets.
//!
//! Pull secrets are asked of the master by name, kept in memory while the pod is here, and go to nobody but the registry
//! that they are for. Where the master can't be reached, those that were read last count, so that a container of a private
//! image starts again.

use crate::api::{ApiError, get};
use crate::kubelet::Shared;
use crate::names::is_plain;
use agent_runtime::{Error, Image, Keyring, PodRef, PullPolicy, PullSecret, Reference};
use config_kube::k8s_openapi::ByteString;
use config_kube::k8s_openapi::api::core::v1::{Container, Pod, Secret};
use std::time::Instant;

/// Most pull secrets of a pod that are read.
const MAX_SECRETS: usize = 64;

/// The pull secrets of one pod.
#[derive(Debug, Default)]
pub(crate) struct Puller {
    keys: Keyring,
}

impl Puller {
    /// Makes sure that the container's image is on the machine and that the pod may run it.
    pub(crate) async fn fetch(
        &mut self,
        shared: &Shared,
        pod: &Pod,
        reference: &PodRef,
        container: &Container,
    ) -> Result<Image, Error> {
        let image = container.image.as_deref().unwrap_or_default();
        let policy = pull_policy(container);
        self.read(shared, pod, reference).await;
        let (runtime, events) = (&shared.runtime, &shared.events);
        if policy == PullPolicy::IfNotPresent
            && let Ok(there) = runtime
                .obtain_image(image, PullPolicy::Never, &self.keys)
                .await
        {
            events.normal(
                pod,
                "Pulled",
                format!("Container image {image:?} already present on machine"),
            );
            return Ok(there);
        }
        if policy != PullPolicy::Never {
            events.normal(pod, "Pulling", format!("Pulling image {image:?}"));
        }
        let start = Instant::now();
        let fetched = runtime.obtain_image(image, policy, &self.keys).await?;
        if policy != PullPolicy::Never {
            let took = start.elapsed().as_millis();
            let text = format!(
                "Successfully pulled image {image:?} in {took}ms. Image size: {} bytes.",
                fetched.size
            );
            events.normal(pod, "Pulled", text);
        }
        Ok(fetched)
    }

    /// Reads the pod's pull secrets anew. Those that aren't there, or can't be read, are told and left out (upstream's).
    async fn read(&mut self, shared: &Shared, pod: &Pod, reference: &PodRef) {
        let wanted = pod
            .spec
            .iter()
            .flat_map(|spec| spec.image_pull_secrets.iter().flatten());
        let names: Vec<&str> = wanted
            .map(|secret| secret.name.as_str())
            .filter(|name| !name.is_empty())
            .collect();
        let mut keys = Keyring::default();
        let mut missing = Vec::new();
        for name in names.into_iter().take(MAX_SECRETS) {
            let secret = if is_plain(name) {
                secret(shared, reference, name).await
            } else {
                Ok(None)
            };
            match secret {
                Ok(Some(secret)) => {
                    if let Err(fault) = add(&mut keys, reference, &secret) {
                        let text = format!("Pull secret {name:?} cannot be used: {fault}");
                        shared
                            .events
                            .warning(pod, "FailedToRetrieveImagePullSecret", text);
                    }
                }
                Ok(None) => missing.push(name),
                Err(error) => {
                    tracing::debug!(
                        pod = reference.name,
                        reason = error.chain(),
                        "pull secrets not read anew"
                    );
                    return;
                }
            }
        }
        if !missing.is_empty() {
            let text = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                missing.join(", ")
            );
            shared
                .events
                .warning(pod, "FailedToRetrieveImagePullSecret", text);
        }
        self.keys = keys;
    }
}

/// The Secret; none where it isn't there, or not for this node.
async fn secret(shared: &Shared, pod: &PodRef, name: &str) -> Result<Option<Secret>, ApiError> {
    match get(
        &*shared.api,
        format!("/api/v1/namespaces/{}/secrets/{name}", pod.namespace),
    )
    .await
    {
        Ok(secret) => Ok(Some(secret)),
        Err(error) if error.is_not_found() || error.is_forbidden() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Adds what a Secret holds, by its type.
fn add(keys: &mut Keyring, pod: &PodRef, secret: &Secret) -> Result<(), String> {
    let meta = &secret.metadata;
    let from = PullSecret {
        namespace: pod.namespace.clone(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
    };
    let data = |key: &str| {
        secret
            .data
            .as_ref()
            .and_then(|data| data.get(key))
            .map(|ByteString(bytes)| bytes.as_slice())
    };
    let kind = secret.type_.as_deref().unwrap_or_default();
    let added = match kind {
        "kubernetes.io/dockerconfigjson" => {
            data(".dockerconfigjson").map(|document| keys.add_docker_config_json(&from, document))
        }
        "kubernetes.io/dockercfg" => {
            data(".dockercfg").map(|document| keys.add_docker_cfg(&from, document))
        }
        _ => {
            return Err(format!(
                "it is of type {kind:?}, not kubernetes.io/dockerconfigjson"
            ));
        }
    };
    added
        .ok_or("it has no data of its type")?
        .map_err(|fault| fault.to_string())
}

/// The policy in the pod, or upstream's default: always for `:latest`.
fn pull_policy(container: &Container) -> PullPolicy {
    let latest = || {
        container
            .image
            .as_deref()
            .is_some_and(|image| Reference::parse(image).is_ok_and(|image| image.is_latest()))
    };
    match container.image_pull_policy.as_deref() {
        Some("Always") => PullPolicy::Always,
        Some("Never") => PullPolicy::Never,
        Some("IfNotPresent") => PullPolicy::IfNotPresent,
        Some(_) | None if latest() => PullPolicy::Always,
        Some(_) | None => PullPolicy::IfNotPresent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn added(kind: &str, key: &str, document: &str) -> Result<Keyring, String> {
        let pod = PodRef {
            namespace: "team".into(),
            name: "p".into(),
            uid: "u".into(),
        };
        let mut keys = Keyring::default();
        let data = std::collections::BTreeMap::from([(
            key.to_owned(),
            ByteString(document.as_bytes().to_vec()),
        )]);
        let mut secret: Secret =
            serde_json::from_value(json!({"metadata": {"name": "s", "uid": "1"}})).unwrap();
        (secret.type_, secret.data) = (Some(kind.to_owned()), Some(data));
        add(&mut keys, &pod, &secret).map(|()| keys)
    }

    #[test]
    fn both_types_of_pull_secrets_are_read_and_nothing_else() {
        let entry = r#"{"registry.example": {"username": "u", "password": "p"}}"#;
        let new = format!("{{\"auths\": {entry}}}");
        assert!(
            !added("kubernetes.io/dockerconfigjson", ".dockerconfigjson", &new)
                .unwrap()
                .is_empty()
        );
        assert!(
            !added("kubernetes.io/dockercfg", ".dockercfg", entry)
                .unwrap()
                .is_empty()
        );
        for (kind, key) in [
            ("Opaque", ".dockerconfigjson"),
            ("kubernetes.io/dockercfg", ".dockerconfigjson"),
            ("kubernetes.io/dockerconfigjson", ".dockercfg"),
        ] {
            assert!(added(kind, key, &new).is_err(), "{kind} {key}");
        }
        let fault = added(
            "kubernetes.io/dockerconfigjson",
            ".dockerconfigjson",
            "hunter2",
        )
        .unwrap_err();
        assert!(!fault.contains("hunter2"), "{fault}");
    }
}
