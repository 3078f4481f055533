//! What the master has for a pod's containers: config maps, secrets, tokens, claims, and the volumes that are made of them.
//!
//! Clones share the volumes and tokens. While one of them makes these, the others wait; a pod's steps do not wait.

mod claims;

use crate::names::is_plain;
use crate::network::{Addresses, service_variables};
use crate::shared::Shared;
use crate::volumes::{self, Source};
use agent_api::get;
use agent_content::{Sources, Tokens};
use agent_runtime::{Error, ErrorClass, PodRef, Users, show};
use config_kube::k8s_openapi::api::core::v1::Pod;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::Mutex;

/// Volumes by their names.
pub(crate) type Volumes = BTreeMap<String, Source>;

/// The supplies of one pod.
#[derive(Debug, Clone)]
pub(crate) struct Supplies {
    shared: Arc<Shared>,
    pod: PodRef,
    made: Arc<Mutex<Made>>,
    /// Held by who makes the process whose process ids the pod's containers share.
    pub(crate) sharing: Arc<Mutex<()>>,
}

/// The volumes and tokens that were made for the pod.
#[derive(Debug, Default)]
struct Made {
    volumes: Option<Volumes>,
    /// Those that show images, which are made for the containers that mount them.
    images: Volumes,
    tokens: Tokens,
}

impl Supplies {
    pub(crate) fn new(shared: Arc<Shared>, pod: PodRef) -> Self {
        Self {
            shared,
            pod,
            made: Arc::default(),
            sharing: Arc::default(),
        }
    }

    /// The pod's volumes, made where they are not yet.
    pub(crate) async fn volumes(&self, pod: &Pod, at: &Addresses) -> Result<Volumes, String> {
        let mut made = self.made.lock().await;
        if let Some(volumes) = &made.volumes {
            return Ok(volumes.clone());
        }
        self.make(&mut made, pod, at).await
    }

    /// A volume that shows an image which is on the machine: that one as long as the pod is here.
    pub(crate) async fn image(
        &self,
        volume: &str,
        image: &str,
        digest: &str,
        users: Option<&Users>,
    ) -> Result<Source, Error> {
        let mut made = self.made.lock().await;
        if let Some(shown) = made.images.get(volume) {
            return Ok(shown.clone());
        }
        let fault = |error: String| {
            let text = format!("MountVolume.SetUp failed for volume {volume:?} : {error}");
            Error::new(ErrorClass::Config, text)
        };
        if !is_plain(volume) {
            return Err(fault("its name can't be a folder's".to_owned()));
        }
        let layers = self.shared.runtime.layers(image, digest).await?;
        let place = self.shared.config.images_dir(&self.pod.uid).join(volume);
        let shown = Source::Image {
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
        if made.volumes.is_none() {
            return Ok(());
        }
        self.make(&mut made, pod, at).await.map(drop)
    }

    async fn make(&self, made: &mut Made, pod: &Pod, at: &Addresses) -> Result<Volumes, String> {
        let (kinds, now) = (volumes::tokens(pod), Timestamp::now());
        made.tokens
            .refresh(kinds, &*self.shared.api, pod, &self.pod, now)
            .await?;
        let sources = Sources {
            tokens: made.tokens.clone(),
            claims: self.claims(pod).await?,
            ..self.sources(pod, volumes::needs(pod), at).await?
        };
        let volumes = volumes::prepare(pod, &self.pod.uid, &self.shared.config, &sources)?;
        made.volumes = Some(volumes.clone());
        Ok(volumes)
    }

    /// Asks the master for config maps and secrets by name.
    pub(crate) async fn sources(
        &self,
        pod: &Pod,
        (maps, secrets): (BTreeSet<String>, BTreeSet<String>),
        at: &Addresses,
    ) -> Result<Sources, String> {
        Ok(Sources {
            config_maps: self.objects("configmaps", maps).await?,
            secrets: self.objects("secrets", secrets).await?,
            env_files: BTreeMap::new(),
            tokens: Tokens::default(),
            claims: BTreeMap::new(),
            addresses: at.clone(),
            services: self.services(pod)?,
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

    async fn objects<T: DeserializeOwned>(
        &self,
        resource: &str,
        names: BTreeSet<String>,
    ) -> Result<BTreeMap<String, Option<T>>, String> {
        let mut found = BTreeMap::new();
        for name in names {
            if !is_plain(&name) {
                return Err(format!("{name:?} is no name of one of {resource}"));
            }
            let path = format!(
                "/api/v1/namespaces/{}/{resource}/{name}",
                self.pod.namespace
            );
            let object = match get(&*self.shared.api, path).await {
                Ok(object) => Some(object),
                Err(error) if error.is_not_found() => None,
                Err(error) => return Err(format!("get {name} of {resource}: {}", error.chain())),
            };
            found.insert(name, object);
        }
        Ok(found)
    }
}
