//! What the master has for a pod's containers: config maps, secrets, tokens, claims, and the
//! volumes that are made of them.
//!
//! Clones share the volumes and tokens. While one of them makes these, the others wait; a pod's
//! steps do not wait. The first time, config maps and secrets are asked for as they are now; the
//! pod's task is woken when one of them changes, and reads them from the node's memory then.

mod claims;

use crate::names::is_plain;
use crate::shared::Shared;
use agent_api::ApiError;
use agent_content::{Name, ObjectKind, SourceNames, Sources, Tokens, Use};
use agent_launch::network::service_variables;
use agent_launch::volumes::{self, VolumeLocation};
use agent_pods::Addresses;
use agent_runtime::{Error, ErrorClass, PodRef, UserNamespace, show};
use config_kube::k8s_openapi::api::core::v1::Pod;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
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
    /// Whether a source of the volumes changed, and what wakes the pod's task then.
    changed: Arc<AtomicBool>,
    news: Arc<Notify>,
    /// Held while the process is made whose process ids the pod's containers share.
    pub(crate) sharing: Arc<Mutex<()>>,
}

/// The volumes and tokens that were made for the pod.
#[derive(Debug, Default)]
struct Made {
    volumes: Option<Volumes>,
    /// Those that show images, which are made for the containers that mount them.
    images: Volumes,
    tokens: Tokens,
    /// An earlier agent made them.
    adopted: bool,
    /// The config maps and secrets that they show.
    shown: Option<Use>,
    /// The pod is being removed from the machine: nothing is made for it any more.
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
    /// As the master has them now.
    Now,
    /// As the node knows them.
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

    /// The pod's volumes, made where they are not yet.
    pub(crate) async fn volumes(&self, pod: &Pod, at: &Addresses) -> Result<Volumes, String> {
        let mut made = self.made.lock().await;
        if let Some(volumes) = &made.volumes {
            return Ok(volumes.clone());
        }
        self.make(&mut made, pod, at, Reading::Now).await
    }

    /// An earlier agent has made the pod's volumes: they are brought up to date with the next look.
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

    /// Ends the making of volumes, for good: what is still being made, also by a task that was
    /// aborted in the middle of it, is there when this returns, and nothing comes after it.
    pub(crate) async fn close(&self) {
        self.made.lock().await.closed = true;
    }

    /// The pod is over: its volumes are not kept up to date any more.
    pub(crate) fn end(&self) {
        if let Ok(mut made) = self.made.try_lock() {
            made.shown = None;
        }
    }

    /// A volume that shows an image which is on the machine: that one as long as the pod is here.
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

    /// Brings volumes up to date that are there; while they are being made there is nothing to do.
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
        // Before they are read, so that no change is missed; the earlier use ends after this one
        // has begun.
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
        let sources = Sources {
            tokens: made.tokens.clone(),
            claims: self.claims(pod).await?,
            ..self.objects_of(&needs, at, reading).await?
        };
        let machine = &self.shared.config.machine;
        let volumes = volumes::prepare(pod, &self.pod.uid, machine, &sources)?;
        let places = volumes::measured(machine, pod, &self.pod, &volumes);
        self.shared.figures.disks().keep(&self.pod.uid, places);
        made.volumes = Some(volumes.clone());
        Ok(volumes)
    }

    /// What variables are made from: config maps and secrets by name, and the services.
    pub(crate) async fn sources(
        &self,
        pod: &Pod,
        needs: &SourceNames,
        at: &Addresses,
        reading: Reading,
    ) -> Result<Sources, String> {
        Ok(Sources {
            services: self.services(pod)?,
            ..self.objects_of(needs, at, reading).await?
        })
    }

    /// Config maps and secrets by name.
    async fn objects_of(
        &self,
        needs: &SourceNames,
        at: &Addresses,
        reading: Reading,
    ) -> Result<Sources, String> {
        let (maps, secrets) = (&needs.config_maps, &needs.secrets);
        Ok(Sources {
            config_maps: self.objects(ObjectKind::ConfigMap, maps, reading).await?,
            secrets: self.objects(ObjectKind::Secret, secrets, reading).await?,
            env_files: BTreeMap::new(),
            tokens: Tokens::default(),
            claims: BTreeMap::new(),
            addresses: at.clone(),
            services: Vec::new(),
            allocatable: self.shared.allocatable(),
        })
    }

    /// The variables that name services.
    fn services(&self, pod: &Pod) -> Result<Vec<(String, String)>, String> {
        let Some(view) = &self.shared.config.cluster else {
            return Ok(Vec::new());
        };
        let text = "services have not yet been read at least once, cannot construct envvars";
        service_variables(&view.now(), pod).ok_or_else(|| text.to_owned())
    }

    fn names(&self, kind: ObjectKind, names: &BTreeSet<String>) -> Result<Vec<Name>, String> {
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
        names.iter().map(name).collect()
    }

    async fn objects<T: DeserializeOwned>(
        &self,
        kind: ObjectKind,
        names: &BTreeSet<String>,
        reading: Reading,
    ) -> Result<BTreeMap<String, Option<T>>, String> {
        let watched = &self.shared.watched;
        let mut found = BTreeMap::new();
        for name in self.names(kind, names)? {
            let read = match reading {
                Reading::Now => watched.ask(&name).await,
                Reading::Known => watched.read(&name).await,
            };
            let read = read.and_then(|object| {
                let read = object.map(serde_json::from_value).transpose();
                read.map_err(ApiError::Decode)
            });
            let object = read.map_err(|error| {
                let resource = kind.resource();
                format!("get {} of {resource}: {}", name.name, error.chain())
            })?;
            found.insert(name.name, object);
        }
        Ok(found)
    }
}
