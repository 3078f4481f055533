//! Pulls images for a pod's containers with the pod's pull secrets.
//!
//! Pull secrets are read from the master by name, kept in memory while the pod is on the node, and
//! sent only to the registry that they are for. If the master can't be reached, those that were
//! read last are used, so that a container of a private image can restart.
//!
//! Pulls run beside the pod's steps ([`Fetches`]), so that a slow registry delays no other
//! container of the pod.

use crate::names::is_plain;
use crate::shared::Shared;
use crate::starts::AtItsEnd;
use agent_api::{ApiError, get};
use agent_images::{
    Image, Keyring, KeyringError, PullPolicy, PullSecret, PullStage, Reference, with_reports,
};
use agent_resources::TimedWork;
use agent_runtime::{Error, ErrorClass, PodRef};
use config_kube::k8s_openapi::ByteString;
use config_kube::k8s_openapi::api::core::v1::{Container, Pod, Secret};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Most pull secrets of a pod that are read.
const MAX_SECRETS: usize = 64;
/// Most images of a container: its own and those that its volumes show.
const MOST_IMAGES: usize = 65;
/// How long a step waits for a fetch: nearly always enough for an image that is on the machine.
const SOON: Duration = Duration::from_millis(200);

/// The fetches of one pod that are under way, by container.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    puller: Puller,
    running: BTreeMap<String, Fetch>,
}

/// The fetch of a container's images; dropping it ends the fetch, and what was already downloaded
/// is kept.
#[derive(Debug)]
struct Fetch {
    wanted: Vec<NeededImage>,
    task: JoinSet<Result<Vec<Image>, Failed>>,
}

/// An image that a container needs: its own, or one that a volume shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NeededImage {
    /// The image volume that shows it; `None` for the container's own image.
    pub(crate) volume: Option<String>,
    /// As the pod writes it.
    pub(crate) image: String,
    policy: PullPolicy,
}

impl NeededImage {
    /// The container's own image, and those of the volumes that it mounts.
    pub(crate) fn all(pod: &Pod, container: &Container) -> Vec<Self> {
        let named = |volume, image: &Option<String>, policy: &Option<String>| {
            let image = image.clone().unwrap_or_default();
            Self {
                volume,
                policy: PullPolicy::of(&image, policy.as_deref()),
                image,
            }
        };
        let own = named(None, &container.image, &container.image_pull_policy);
        let spec = pod.spec.iter();
        let volumes = spec.flat_map(|spec| spec.volumes.iter().flatten());
        let mounts = container.volume_mounts.iter().flatten();
        let mounts: BTreeSet<&str> = mounts.map(|mount| mount.name.as_str()).collect();
        let shown = volumes.filter_map(|volume| {
            let image = volume.image.as_ref();
            let image = image.filter(|_| mounts.contains(volume.name.as_str()))?;
            let name = Some(volume.name.clone());
            Some(named(name, &image.reference, &image.pull_policy))
        });
        [own].into_iter().chain(shown).collect()
    }
}

/// Why an image could not be fetched.
#[derive(Debug)]
pub(crate) struct Failed {
    /// The image, as the pod writes it.
    pub(crate) image: String,
    pub(crate) error: Error,
}

/// The images that a container needs.
pub(crate) struct ContainerImages<'a> {
    pub(crate) pod: &'a Arc<Pod>,
    /// The pod's name, for its pull secrets.
    pub(crate) reference: &'a PodRef,
    pub(crate) container: &'a str,
    /// Its own image, and those of its volumes.
    pub(crate) wanted: &'a [NeededImage],
}

impl Fetches {
    /// The images that a container needs, in their order, once they are on the machine and the pod
    /// may run them; `None` while they are still fetched. `news` is notified at the end.
    pub(crate) async fn images(
        &mut self,
        shared: &Arc<Shared>,
        news: &Arc<Notify>,
        needed: &ContainerImages<'_>,
    ) -> Option<Result<Vec<Image>, Failed>> {
        let ContainerImages {
            pod,
            reference,
            container,
            wanted,
        } = *needed;
        let running = self.running.remove(container);
        let same = |fetch: &Fetch| fetch.wanted == wanted;
        let mut fetch = running.filter(same).unwrap_or_else(|| {
            let (puller, shared, news) = (self.puller.clone(), shared.clone(), news.clone());
            let (pod, reference, own) = (pod.clone(), reference.clone(), container.to_owned());
            let all = wanted.to_vec();
            let mut task = JoinSet::new();
            task.spawn(async move {
                let _notified = AtItsEnd(news);
                if let Some(beyond) = all.get(MOST_IMAGES) {
                    let image = beyond.image.clone();
                    let text = format!("a container may have {MOST_IMAGES} images with those of its volumes, not {}", all.len());
                    let error = Error::new(ErrorClass::ImagePull, text);
                    return Err(Failed { image, error });
                }
                let keys = puller.read(&shared, &pod, &reference).await;
                let mut images = Vec::new();
                for wanted in all {
                    let fetched = puller.fetch(&shared, &pod, &own, &wanted, &keys).await;
                    let image = wanted.image;
                    images.push(fetched.map_err(|error| Failed { image, error })?);
                }
                Ok(images)
            });
            Fetch {
                wanted: wanted.to_vec(),
                task,
            }
        });
        // Images that are on the machine need no second step.
        if let Ok(Some(ended)) = timeout(SOON, fetch.task.join_next()).await {
            let died = |error| Failed {
                image: wanted
                    .first()
                    .map(|own| own.image.clone())
                    .unwrap_or_default(),
                error: Error::new(ErrorClass::ImagePull, format!("fetch ended: {error}")),
            };
            return Some(ended.unwrap_or_else(|error| Err(died(error))));
        }
        self.running.insert(container.to_owned(), fetch);
        None
    }

    /// Gives up the fetches for containers that are not to be started any more.
    pub(crate) fn keep(&mut self, starts: impl Fn(&str) -> bool) {
        self.running.retain(|container, _| starts(container));
    }
}

/// The pull secrets of one pod. Clones share them.
#[derive(Debug, Clone, Default)]
struct Puller {
    keys: Arc<Mutex<Keyring>>,
}

impl Puller {
    /// Makes sure that an image is on the machine and that the pod may run it.
    async fn fetch(
        &self,
        shared: &Shared,
        pod: &Pod,
        container: &str,
        wanted: &NeededImage,
        keys: &Keyring,
    ) -> Result<Image, Error> {
        let (image, policy) = (wanted.image.as_str(), wanted.policy);
        let (runtime, events) = (&shared.runtime, shared.events.of(pod, container));
        if policy == PullPolicy::IfNotPresent
            && let Ok(there) = runtime.obtain_image(image, PullPolicy::Never, keys).await
        {
            events.normal(
                "Pulled",
                format!("Container image {image:?} already present on machine"),
            );
            return Ok(there);
        }
        if policy == PullPolicy::Never {
            return runtime.obtain_image(image, policy, keys).await;
        }
        events.normal("Pulling", format!("Pulling image {image:?}"));
        let (asked, begun) = (Instant::now(), OnceLock::new());
        let pull = async {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let _turn = shared.pulls.turn_at(namespace, &registry(image)).await;
            let start = *begun.get_or_init(Instant::now);
            let fetched = runtime.obtain_image(image, policy, keys).await;
            fetched.map(|fetched| (fetched, start))
        };
        let pull = with_reports(pull, |after| {
            let stage = match begun.get() {
                Some(_) => PullStage::Begun(runtime.pull_progress(image)),
                None => PullStage::Waits,
            };
            events.normal("Pulling", stage.message(image, after));
        });
        let (fetched, start) = pull.await?;
        let done = shared.figures.done();
        done.took(TimedWork::Pull(fetched.size), start.elapsed());
        let [took, all] = [start, asked].map(|since| since.elapsed().as_millis());
        let text = format!(
            "Successfully pulled image {image:?} in {took}ms ({all}ms including waiting). Image size: {} bytes.",
            fetched.size
        );
        events.normal("Pulled", text);
        Ok(fetched)
    }

    /// Reads the pod's pull secrets again. Missing or invalid ones are reported and left out
    /// (upstream's rule); if the master can't be reached, the last ones are used.
    async fn read(&self, shared: &Shared, pod: &Pod, reference: &PodRef) -> Keyring {
        let held = || self.keys.lock().unwrap_or_else(PoisonError::into_inner);
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
                        error = error.chain(),
                        "cannot refresh image pull secrets; using the last ones"
                    );
                    return held().clone();
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
        held().clone_from(&keys);
        keys
    }
}

/// The Secret; `None` if it does not exist, or this node may not read it.
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

/// Adds the credentials of a Secret, by its type.
fn add(keys: &mut Keyring, pod: &PodRef, secret: &Secret) -> Result<(), KeyringError> {
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
    keys.add_secret(&from, kind, data)
}

/// The registry of an image; empty if the name is invalid.
fn registry(image: &str) -> String {
    let reference = Reference::parse(image);
    reference.map_or_else(|_| String::new(), |image| image.host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_container_needs_its_own_image_and_those_of_the_volumes_that_it_mounts() {
        let volume = |name: &str, image: serde_json::Value| json!({"name": name, "image": image});
        let spec = json!({
            "containers": [{"name": "a", "image": "own:1", "volumeMounts": [
                {"name": "v", "mountPath": "/v"}, {"name": "e", "mountPath": "/e"},
            ]}],
            "volumes": [
                volume("other", json!({"reference": "other:1"})),
                volume("v", json!({"reference": "files", "pullPolicy": "Never"})),
                {"name": "e", "emptyDir": {}},
            ],
        });
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        let all = NeededImage::all(&pod, &pod.spec.as_ref().unwrap().containers[0]);
        let listed = all
            .iter()
            .map(|one| (one.volume.as_deref(), &*one.image, one.policy));
        assert_eq!(
            listed.collect::<Vec<_>>(),
            [
                (None, "own:1", PullPolicy::IfNotPresent),
                (Some("v"), "files", PullPolicy::Never),
            ]
        );
    }

    /// Whether the fetch of this image for a container of this name has ended.
    async fn ended(fetches: &mut Fetches, shared: &Arc<Shared>, image: &str) -> bool {
        let spec = json!({"containers": [{"name": image, "image": image}]});
        let meta = json!({"namespace": "n", "name": "p", "uid": "u"});
        let pod: Pod = serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap();
        let (pod, reference) = (Arc::new(pod.clone()), agent_pods::pod_ref(&pod).unwrap());
        let wanted = NeededImage::all(&pod, &pod.spec.as_ref().unwrap().containers[0]);
        let needed = ContainerImages {
            pod: &pod,
            reference: &reference,
            container: image,
            wanted: &wanted,
        };
        let found = fetches.images(shared, &Arc::default(), &needed).await;
        // The engine of these tests is not up.
        found.is_some_and(|found| found.is_err())
    }

    #[tokio::test]
    async fn a_pull_waits_for_another_to_end_if_the_node_has_no_turn_left() {
        let dir = tempfile::tempdir().unwrap();
        let shared = crate::kubelet::tests::shared(dir.path());
        let turns = usize::try_from(shared.config.parallel_pulls).unwrap();
        let mut others = Vec::new();
        while shared.pulls.free() > 0 {
            let name = others.len().to_string();
            others.push(shared.pulls.turn_at(&name, &name).await);
        }
        assert_eq!(others.len(), turns);
        let mut fetches = Fetches::default();
        let image = "registry.example/a:1";
        assert!(
            !ended(&mut fetches, &shared, image).await,
            "there is no turn"
        );
        drop(others);
        while !ended(&mut fetches, &shared, image).await {}
        assert_eq!(shared.pulls.free(), turns);
    }

    #[tokio::test]
    async fn images_of_a_slow_registry_delay_none_of_another() {
        let dir = tempfile::tempdir().unwrap();
        let shared = crate::kubelet::tests::shared(dir.path());
        let mut silent = Vec::new();
        for namespace in ["n", "n", "other"] {
            silent.push(shared.pulls.turn_at(namespace, "silent.example").await);
        }
        let free = shared.pulls.free();
        let mut fetches = Fetches::default();
        for number in 0..2 {
            let image = format!("silent.example/a{number}:1");
            assert!(!ended(&mut fetches, &shared, &image).await, "{image}");
        }
        assert_eq!(
            shared.pulls.free(),
            free,
            "waiting for the registry takes no turn"
        );
        while !ended(&mut fetches, &shared, "quick.example/b:1").await {}
    }

    #[tokio::test]
    async fn a_host_of_many_names_keeps_no_image_from_the_pods_of_another_namespace() {
        let dir = tempfile::tempdir().unwrap();
        let shared = crate::kubelet::tests::shared(dir.path());
        let mut hostile = Vec::new();
        for number in 0..12 {
            let name = format!("{}.hostile.example", number / 4);
            let turn = timeout(SOON / 10, shared.pulls.turn_at("hostile", &name));
            hostile.extend(turn.await);
        }
        assert!(hostile.len() > 2, "it has {} turns", hostile.len());
        let mut fetches = Fetches::default();
        let begun = Instant::now();
        while !ended(&mut fetches, &shared, "quick.example/b:1").await {
            assert!(begun.elapsed() < Duration::from_secs(20), "it has no turn");
        }
    }

    fn added(kind: &str, key: &str, document: &str) -> Result<Keyring, KeyringError> {
        let pod = PodRef {
            namespace: "team".into(),
            name: "p".into(),
            uid: "u".into(),
        };
        let mut keys = Keyring::default();
        let data = BTreeMap::from([(key.to_owned(), ByteString(document.as_bytes().to_vec()))]);
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
        .unwrap_err()
        .to_string();
        assert!(!fault.contains("hunter2"), "{fault}");
    }
}
