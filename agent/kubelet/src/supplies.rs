//! Gets what a pod's containers need from the master: config maps, secrets, tokens, claims; and
//! sets up the volumes that are made of them.
//!
//! Clones share the volumes and tokens. While one of them sets these up, the others wait; a pod's
//! steps do not wait. The first time, config maps and secrets are read from the master; the pod's
//! task is woken when one of them changes, and then reads it from the node's cache.

mod claims;

use crate::names::is_plain;
use crate::shared::Shared;
use agent_api::ApiError;
use agent_content::env_files::EnvFiles;
use agent_content::{Budget, Keyed, Keys, Name, ObjectKind, SourceNames, Sources, Tokens, Use};
use agent_launch::network::service_variables;
use agent_launch::volumes::{self, VolumeLocation};
use agent_pods::Addresses;
use agent_runtime::{Error, ErrorClass, PodRef, UserNamespace, show};
use config_kube::k8s_openapi::api::core::v1::Pod;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{Mutex, Notify};

/// Volumes by their names.
pub(crate) type Volumes = BTreeMap<String, VolumeLocation>;

/// The supplies of one pod.
#[derive(Debug, Clone)]
pub(crate) struct Supplies {
    shared: Arc<Shared>,
    pod: PodRef,
    made: Arc<Mutex<Made>>,
    /// Whether a source of the volumes has changed, and what wakes the pod's task then.
    changed: Arc<AtomicBool>,
    news: Arc<Notify>,
    /// Held while the process is started whose PID namespace the pod's containers share.
    pub(crate) sharing: Arc<Mutex<()>>,
}

/// The volumes and tokens that were made for the pod.
#[derive(Debug, Default)]
struct Made {
    volumes: Option<Volumes>,
    /// Image volumes, which are set up for the containers that mount them.
    images: Volumes,
    tokens: Tokens,
    /// Whether an earlier agent set them up.
    adopted: bool,
    /// The config maps and secrets that the volumes show.
    shown: Option<Use>,
    /// The pod is being removed from the machine: nothing more is set up for it.
    closed: bool,
}

impl Made {
    fn refuse_closed(&self) -> Result<(), String> {
        if self.closed {
            return Err("the pod is being removed from the machine".to_owned());
        }
        Ok(())
    }
}

/// How config maps and secrets are read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reading {
    /// From the master.
    Now,
    /// From the node's cache.
    Known,
}

impl Supplies {
    /// `news` is notified when a source of the pod's volumes changes.
    pub(crate) fn new(shared: Arc<Shared>, pod: PodRef, news: Arc<Notify>) -> Self {
        Self {
            shared,
            pod,
            made: Arc::default(),
            changed: Arc::default(),
            news,
            sharing: Arc::default(),
        }
    }

    /// The pod's volumes; sets them up if they are not yet.
    pub(crate) async fn volumes(&self, pod: &Pod, at: &Addresses) -> Result<Volumes, String> {
        let mut made = self.made.lock().await;
        if let Some(volumes) = &made.volumes {
            return Ok(volumes.clone());
        }
        self.make(&mut made, pod, at, Reading::Now).await
    }

    /// An earlier agent has set up the pod's volumes: the next step of the pod's task updates them.
    pub(crate) fn adopt(&self) {
        if let Ok(mut made) = self.made.try_lock() {
            made.adopted = true;
            self.changed.store(true, Ordering::Release);
        }
    }

    /// Whether the volumes are out of date.
    pub(crate) fn is_stale(&self) -> bool {
        self.changed.load(Ordering::Acquire)
    }

    /// Stops the set-up of volumes for good: when this returns, a set-up under way has ended, also
    /// that of an aborted task, and no other starts.
    pub(crate) async fn close(&self) {
        self.made.lock().await.closed = true;
    }

    /// The pod has ended: its volumes are no longer updated.
    pub(crate) fn end(&self) {
        if let Ok(mut made) = self.made.try_lock() {
            made.shown = None;
        }
    }

    /// Sets up an image volume, of an image that is on the machine. It keeps showing that image as
    /// long as the pod is on the node.
    pub(crate) async fn image(
        &self,
        volume: &str,
        image: &str,
        digest: &str,
        users: Option<&UserNamespace>,
    ) -> Result<VolumeLocation, Error> {
        let mut made = self.made.lock().await;
        if let Some(shown) = made.images.get(volume) {
            return Ok(shown.clone());
        }
        made.refuse_closed()
            .map_err(|text| Error::new(ErrorClass::Volume, text))?;
        let fault = |error: String| {
            let text = format!("MountVolume.SetUp failed for volume {volume:?} : {error}");
            Error::new(ErrorClass::Config, text)
        };
        if !is_plain(volume) {
            return Err(fault("its name can't be a folder's".to_owned()));
        }
        let layers = self.shared.runtime.layers(image, digest).await?;
        let place = self
            .shared
            .config
            .machine
            .images_dir(&self.pod.uid)
            .join(volume);
        let shown = VolumeLocation::Image {
            place: show(&place, &layers.folders, users).map_err(fault)?,
            layers: layers.name,
        };
        made.images.insert(volume.to_owned(), shown.clone());
        Ok(shown)
    }

    /// Updates the volumes if they exist; does nothing while they are being set up.
    pub(crate) async fn refresh(&self, pod: &Pod, at: &Addresses) -> Result<(), String> {
        let Ok(mut made) = self.made.try_lock() else {
            return Ok(());
        };
        self.changed.store(false, Ordering::Release);
        let reading = match (&made.volumes, made.adopted) {
            (Some(_), _) => Reading::Known,
            (None, true) => Reading::Now,
            (None, false) => return Ok(()),
        };
        self.make(&mut made, pod, at, reading).await.map(drop)
    }

    async fn make(
        &self,
        made: &mut Made,
        pod: &Pod,
        at: &Addresses,
        reading: Reading,
    ) -> Result<Volumes, String> {
        made.refuse_closed()?;
        let needs = volumes::needs(pod);
        let mut budget = Budget::of_volumes(&needs)?;
        // Before they are read, so that no change is missed; the earlier watch ends only after this
        // one has begun.
        let names = self.names(ObjectKind::ConfigMap, &needs.config_maps)?;
        let names = names
            .into_iter()
            .chain(self.names(ObjectKind::Secret, &needs.secrets)?);
        let watched = &self.shared.watched;
        made.shown = Some(watched.follow(names.collect(), &self.changed, &self.news));
        let (kinds, now) = (volumes::tokens(pod), Timestamp::now());
        made.tokens
            .refresh(kinds, &*self.shared.api, pod, &self.pod, now)
            .await?;
        let found = async {
            let claims = self.claims(pod).await?;
            let objects = self.objects_of(&needs, at, reading, &mut budget).await?;
            Ok::<_, String>((claims, objects))
        };
        let (claims, objects) = match found.await {
            Ok(found) => found,
            Err(error) => {
                // It may hold the turn that the renewal needs.
                drop(budget);
                self.renew(made, pod, at, reading).await;
                return Err(error);
            }
        };
        let sources = Sources {
            tokens: made.tokens.clone(),
            claims,
            ..objects
        };
        let machine = &self.shared.config.machine;
        let volumes = volumes::prepare(pod, &self.pod.uid, machine, &sources)?;
        let places = volumes::measured(machine, pod, &self.pod, &volumes);
        self.shared.figures.disks().keep(&self.pod.uid, places);
        made.volumes = Some(volumes.clone());
        Ok(volumes)
    }

    /// If what the pod's volumes need could not be read: updates existing volumes with tokens, as
    /// tokens expire in running containers.
    async fn renew(&self, made: &Made, pod: &Pod, at: &Addresses, reading: Reading) {
        if made.volumes.is_none() && !made.adopted {
            return;
        }
        let pod = volumes::with_tokens(pod);
        let needs = volumes::needs(&pod);
        let renewed = async {
            let mut budget = Budget::of_volumes(&needs)?;
            let sources = Sources {
                tokens: made.tokens.clone(),
                ..self.objects_of(&needs, at, reading, &mut budget).await?
            };
            let machine = &self.shared.config.machine;
            volumes::prepare(&pod, &self.pod.uid, machine, &sources).map(drop)
        };
        if let Err(error) = renewed.await {
            tracing::warn!(
                pod = self.pod.name,
                error,
                "cannot renew the tokens in a pod's volumes"
            );
        }
    }

    /// What environment variables are made from: config maps and secrets by name, and services.
    pub(crate) async fn sources(
        &self,
        pod: &Pod,
        needs: &SourceNames,
        at: &Addresses,
        reading: Reading,
    ) -> Result<Sources, String> {
        let mut budget = Budget::of_variables(needs)?;
        Ok(Sources {
            services: self.services(pod)?,
            ..self.objects_of(needs, at, reading, &mut budget).await?
        })
    }

    /// Config maps and secrets by name, each with the keys that are needed; an error if they exceed
    /// the budget.
    async fn objects_of(
        &self,
        needs: &SourceNames,
        at: &Addresses,
        reading: Reading,
        budget: &mut Budget,
    ) -> Result<Sources, String> {
        let (maps, secrets) = (&needs.config_maps, &needs.secrets);
        let maps = self.objects(ObjectKind::ConfigMap, maps, reading, budget);
        let config_maps = maps.await?;
        let secrets = self.objects(ObjectKind::Secret, secrets, reading, budget);
        Ok(Sources {
            config_maps,
            secrets: secrets.await?,
            env_files: EnvFiles::default(),
            tokens: Tokens::default(),
            claims: BTreeMap::new(),
            addresses: at.clone(),
            services: Vec::new(),
            allocatable: self.shared.allocatable(),
        })
    }

    /// The environment variables for services.
    fn services(&self, pod: &Pod) -> Result<Vec<(String, String)>, String> {
        let Some(view) = &self.shared.config.cluster else {
            return Ok(Vec::new());
        };
        let text = "services have not yet been read at least once, cannot construct envvars";
        service_variables(&view.now(), pod).ok_or_else(|| text.to_owned())
    }

    fn names(&self, kind: ObjectKind, names: &BTreeMap<String, Keys>) -> Result<Vec<Name>, String> {
        let name = |name: &String| {
            if !is_plain(name) {
                return Err(format!("{name:?} is no name of one of {}", kind.resource()));
            }
            let (namespace, name) = (self.pod.namespace.clone(), name.clone());
            Ok(Name {
                kind,
                namespace,
                name,
            })
        };
        names.keys().map(name).collect()
    }

    async fn objects<T: DeserializeOwned + Keyed>(
        &self,
        kind: ObjectKind,
        names: &BTreeMap<String, Keys>,
        reading: Reading,
        budget: &mut Budget,
    ) -> Result<BTreeMap<String, Option<T>>, String> {
        let watched = &self.shared.watched;
        let mut found = BTreeMap::new();
        for (name, keys) in self.names(kind, names)?.into_iter().zip(names.values()) {
            let read = match reading {
                Reading::Now => watched.ask(&name).await,
                Reading::Known => watched.read(&name).await,
            };
            let read = read.and_then(|object| {
                let read = object.map(serde_json::from_value).transpose();
                read.map_err(ApiError::Decode)
            });
            let mut object: Option<T> = read.map_err(|error| {
                let resource = kind.resource();
                format!("get {} of {resource}: {}", name.name, error.chain())
            })?;
            if let Some(object) = &mut object {
                let kept = object.keep(keys);
                let turns = &self.shared.reading;
                budget.add(kept, turns, &name.namespace).await?;
            }
            found.insert(name.name, object);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::READING;
    use crate::kubelet::tests::shared_of;
    use agent_api::{Answer, Api, Call, Lines};
    use serde_json::{Value, json};
    use std::sync::atomic::AtomicUsize;

    /// A master whose config maps and secrets all have a mebibyte and a little beside it.
    #[derive(Debug, Default)]
    struct Generous {
        asked: AtomicUsize,
    }

    impl Api for Generous {
        fn call(&self, _call: Call) -> Answer<'_, bytes::Bytes> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let data = json!({"large": "eHh4".repeat(1 << 18), "small": "eA=="});
            let object = json!({"metadata": {"resourceVersion": "1"}, "data": data});
            Box::pin(async move { Ok(object.to_string().into()) })
        }

        fn watch(&self, _path: String) -> Answer<'_, Lines> {
            Box::pin(std::future::pending())
        }
    }

    /// A master that gives a new token at each call, and config maps of a size.
    #[derive(Debug, Default)]
    struct Issuing {
        size: AtomicUsize,
        tokens: AtomicUsize,
    }

    impl Api for Issuing {
        fn call(&self, call: Call) -> Answer<'_, bytes::Bytes> {
            let object = if call.path.ends_with("/token") {
                let token = self.tokens.fetch_add(1, Ordering::Relaxed).to_string();
                let status = json!({"token": token, "expirationTimestamp": "2000-01-01T00:00:00Z"});
                json!({"metadata": {}, "spec": {"audiences": []}, "status": status})
            } else {
                let text = "x".repeat(self.size.load(Ordering::Relaxed));
                json!({"metadata": {"resourceVersion": "1"}, "data": {"a": text}})
            };
            Box::pin(async move { Ok(object.to_string().into()) })
        }

        fn watch(&self, _path: String) -> Answer<'_, Lines> {
            Box::pin(std::future::pending())
        }
    }

    fn pod(spec: &Value) -> Pod {
        let meta = json!({"namespace": "n", "name": "p", "uid": "u"});
        serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
    }

    fn of_volumes(count: usize, items: &Value) -> Pod {
        let source = |number: usize| {
            let map = json!({"name": format!("m{number}"), "items": items});
            json!({"name": format!("v{number}"), "configMap": map})
        };
        let volumes: Vec<Value> = (0..count).map(source).collect();
        pod(&json!({"containers": [], "volumes": volumes}))
    }

    #[tokio::test]
    async fn a_pod_that_names_more_than_it_may_hold_has_no_more_of_it_read() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let master = Arc::new(Generous::default());
        let shared = shared_of(dir.path(), Vec::new(), master.clone());
        let asked = || master.asked.swap(0, Ordering::Relaxed);
        let at = Addresses::default();
        let all = of_volumes(100, &json!([]));
        let reference = agent_pods::pod_ref(&all).unwrap();
        let supplies = || Supplies::new(shared.clone(), reference.clone(), Arc::default());
        let refused = supplies().volumes(&all, &at).await.unwrap_err();
        assert!(refused.contains("may take 20 MiB"), "{refused}");
        assert_eq!(asked(), 20, "a value of a mebibyte each, and their keys");
        assert_eq!(shared.reading.free(), READING, "its turn is another's");

        let few = of_volumes(40, &json!([{"key": "small", "path": "f"}]));
        let made = supplies().volumes(&few, &at).await;
        assert_eq!(made.map(|made| made.len()), Ok(40));
        assert_eq!(asked(), 40);

        let many = of_volumes(1000, &json!([]));
        let refused = supplies().volumes(&many, &at).await.unwrap_err();
        assert!(refused.contains("these name 1000"), "{refused}");
        assert_eq!(asked(), 0);
    }

    #[tokio::test]
    async fn a_token_is_renewed_beside_a_volume_that_grows_beyond_what_it_may() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let master = Arc::new(Issuing::default());
        let shared = shared_of(dir.path(), Vec::new(), master.clone());
        let mut pod = of_volumes(1, &json!([]));
        let token = json!({"serviceAccountToken": {"path": "token"}});
        let token = json!({"name": "t", "projected": {"sources": [token]}});
        let volumes = pod.spec.as_mut().unwrap().volumes.as_mut().unwrap();
        volumes.push(serde_json::from_value(token).unwrap());
        let reference = agent_pods::pod_ref(&pod).unwrap();
        let supplies = Supplies::new(shared.clone(), reference, Arc::default());
        let at = Addresses::default();
        supplies.volumes(&pod, &at).await.unwrap();
        let held = shared.config.machine.held_dir("u");
        let shown = |path: &str| std::fs::read_to_string(held.join(path)).unwrap();
        assert_eq!(shown("projected/t/token"), "0");

        // Another pod has all of the namespace's share.
        let other = held.with_file_name("other");
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("share"), format!("{} 1 n", 1_u64 << 60)).unwrap();
        for (size, words, token) in [
            (300 << 10, "the namespace n, which may have", "1"),
            (21 << 20, "a pod may take 20 MiB", "2"),
        ] {
            master.size.store(size, Ordering::Relaxed);
            let refused = supplies.refresh(&pod, &at).await.unwrap_err();
            assert!(refused.contains(words), "{refused}");
            assert_eq!(shown("projected/t/token"), token);
            assert_eq!(shown("config-map/v0/a"), "", "it stays as it was");
        }
        assert!(!held.join("share").exists(), "it has a little, as before");
    }

    #[tokio::test]
    async fn a_container_whose_variables_name_more_than_they_may_hold_has_no_more_of_it_read() {
        let dir = tempfile::tempdir().unwrap();
        let master = Arc::new(Generous::default());
        let shared = shared_of(dir.path(), Vec::new(), master.clone());
        let reference = agent_pods::pod_ref(&pod(&json!({"containers": []}))).unwrap();
        let supplies = Supplies::new(shared, reference, Arc::default());
        let mut needs = SourceNames::default();
        for number in 0..100 {
            needs.secret(&format!("s{number}"), Keys::All);
        }
        let mut budget = Budget::of_variables(&needs).unwrap();
        let at = Addresses::default();
        let read = supplies.objects_of(&needs, &at, Reading::Now, &mut budget);
        let refused = read.await.unwrap_err();
        assert!(refused.contains("may take 4 MiB"), "{refused}");
        assert_eq!(master.asked.load(Ordering::Relaxed), 6);
    }
}
