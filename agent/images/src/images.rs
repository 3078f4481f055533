//! Images in containerd: fetched or imported, unpacked to snapshots, looked up, forgotten.
//!
//! Guarantee: an image that [`Images::find`] returns is whole: the snapshot of its topmost layer is
//! there, and manifest and configuration were there when this engine first read them. While an
//! image is pulled, a lease keeps its parts from containerd's garbage collector.

mod lease;
mod space;
mod unpack;

use self::lease::Kept;
pub use self::space::ImageSpace;
use self::unpack::chain_id;
use crate::access::{self, Labels};
use crate::content::{Content, Descriptor};
use crate::document::{self, Configuration, Manifest};
use crate::image::ImageDefaults;
use crate::image::{Image, PullPolicy};
use crate::keyring::Keyring;
use crate::parts::{Parts, Remembered};
use crate::progress::{Count, Progress};
use crate::reference::Reference;
use crate::registry::{Reader, Registries};
use agent_confine::Turns;
use agent_containerd::{Error, ErrorClass, failed, request, settled, unlimited};
use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::{
    CreateImageRequest, DeleteImageRequest, DeleteRequest, GetImageRequest, Image as Stored,
    ListImagesRequest, UpdateImageRequest,
};
use containerd_client::tonic::transport::Channel;
use containerd_client::tonic::{Code, Status};
use prost_types::FieldMask;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::{Mutex, Semaphore};

/// The snapshotter of every container.
pub const SNAPSHOTTER: &str = "overlayfs";
/// Most layers of one image, the limit of overlayfs mounts with room to spare.
const MAX_LAYERS: usize = 127;
/// Most images that are pulled from one registry at the same time; fewer where these would be
/// nearly all pulls of the node.
pub const PULLS_OF_A_REGISTRY: usize = 4;

/// An image that is ready to run.
#[derive(Debug, Clone)]
pub struct Ready {
    /// The image.
    pub image: Image,
    /// `repository@sha256:…`, as statuses name it.
    pub image_id: String,
    /// Name of the snapshot of its topmost layer.
    pub snapshot: String,
    /// What its configuration says of its containers.
    pub defaults: ImageDefaults,
    /// Who may run it, as [`access`] reads them.
    labels: Labels,
}

/// Where documents and layers come from.
pub(crate) trait Source: Sync {
    /// Puts the blob into the content store.
    fn bring<'a>(
        &'a self,
        content: &'a Content,
        descriptor: &'a Descriptor,
        pull: Pull<'a>,
    ) -> agent_containerd::Pending<'a, ()>;
}

/// Where an image comes from, and for whom.
#[derive(Clone, Copy)]
struct Origin<'a> {
    source: &'a dyn Source,
    /// Who may run it.
    reader: &'a Reader,
}

/// What the parts of an image that is brought in have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pull<'a> {
    /// The lease that keeps them meanwhile.
    pub(crate) lease: &'a str,
    pub(crate) count: &'a Count,
}

/// The pulls of one image.
#[derive(Debug, Default)]
struct Incoming {
    turn: Mutex<()>,
    count: Count,
}

/// The images of a machine, in containerd.
#[derive(Debug)]
pub struct Images {
    channel: Channel,
    pub(crate) content: Content,
    registries: Registries,
    /// Root of containerd's state, synced to disk before an unpacked layer counts.
    state: PathBuf,
    remembered: Remembered,
    /// Pulls under way, by reference: every caller that needs the same image waits for that one
    /// pull.
    incoming: Turns<Incoming>,
    /// Pulls under way, by registry: a slow one delays no image of another.
    pulls: Turns<Semaphore>,
    /// Snapshots that are being made, by name: images that share a layer have it unpacked once.
    unpacking: Turns<Mutex<()>>,
    leases: AtomicU64,
}

impl Images {
    /// The images that containerd has behind `channel`; its state lies at `state`.
    pub fn new(channel: Channel, registries: Registries, state: PathBuf) -> Self {
        let content = Content::new(channel.clone());
        let (remembered, incoming, pulls, unpacking, leases) = Default::default();
        Self {
            channel,
            content,
            registries,
            state,
            remembered,
            incoming,
            pulls,
            unpacking,
            leases,
        }
    }

    fn client(&self) -> ImagesClient<Channel> {
        ImagesClient::new(self.channel.clone())
    }

    fn snapshots(&self) -> SnapshotsClient<Channel> {
        SnapshotsClient::new(self.channel.clone())
    }

    /// Reads a reference as the pod wrote it, completed by the configured default registry.
    ///
    /// # Errors
    /// The text is no reference.
    pub fn reference(&self, text: &str) -> Result<Reference, Error> {
        let reference = Reference::parse(text).map_err(|error| {
            Error::caused(
                ErrorClass::InvalidImageName,
                format!("Failed to apply default image tag {text:?}"),
                error,
            )
        })?;
        Ok(reference.complete(self.registries.default_host()))
    }

    /// Makes the image ready for a pod with these keys, by the policy.
    ///
    /// # Errors
    /// It is not there and can't be had, or the pod may not run it; the class says which.
    pub async fn ensure(
        &self,
        text: &str,
        policy: PullPolicy,
        keys: &Keyring,
    ) -> Result<Image, Error> {
        let reference = self.reference(text)?;
        let never = |what: &str| {
            let message = format!("Container image {text:?} {what} with pull policy of Never");
            Error::new(ErrorClass::ImageNeverPull, message)
        };
        if policy == PullPolicy::Always {
            return self.pull(&reference, policy, keys).await;
        }
        match self.find(&reference).await? {
            Some(ready) if self.may_run(&ready, &reference, keys) => Ok(ready.image),
            Some(_) if policy == PullPolicy::Never => Err(never(
                "is present, but the pod has no pull secret by which it may be used,",
            )),
            None if policy == PullPolicy::Never => Err(never("is not present")),
            Some(_) | None => self.pull(&reference, policy, keys).await,
        }
    }

    /// How far the pull of an image is; none where its manifest is not here yet, and where it is
    /// not pulled. All who wait for an image wait for one pull.
    pub fn progress(&self, text: &str) -> Option<Progress> {
        let name = self.reference(text).ok()?.to_string();
        self.incoming.of(&name, Incoming::default).count.progress()
    }

    fn may_run(&self, ready: &Ready, reference: &Reference, keys: &Keyring) -> bool {
        access::allows(&ready.labels, &self.registries.holders(reference, keys))
    }

    async fn pull(
        &self,
        reference: &Reference,
        policy: PullPolicy,
        keys: &Keyring,
    ) -> Result<Image, Error> {
        let name = reference.to_string();
        let incoming = self.incoming.of(&name, Incoming::default);
        let _turn = incoming.turn.lock().await;
        if policy == PullPolicy::IfNotPresent
            && let Some(ready) = self.find(reference).await?
            && self.may_run(&ready, reference, keys)
        {
            return Ok(ready.image);
        }
        let pulls = self
            .pulls
            .of(&reference.host, || Semaphore::new(PULLS_OF_A_REGISTRY));
        // The semaphore is never closed.
        let _pull = pulls.acquire().await.ok();
        let fetched = self.registries.resolve(reference, keys).await?;
        let target = fetched.descriptor().clone();
        if let Some(ready) = self.find(reference).await?
            && ready.image.digest == target.digest
        {
            self.grant(&name, &target, &ready.labels, fetched.reader())
                .await?;
            return Ok(ready.image);
        }
        let origin = Origin {
            source: &fetched,
            reader: fetched.reader(),
        };
        self.bring_in(&name, &target, origin, &incoming.count)
            .await?;
        let ready = self.find(reference).await?;
        let gone = || {
            Error::new(
                ErrorClass::ImagePull,
                format!("{reference} was fetched and is gone again"),
            )
        };
        let ready = ready
            .filter(|ready| ready.image.digest == target.digest)
            .ok_or_else(gone)?;
        Ok(Image {
            pulled: true,
            ..ready.image
        })
    }

    /// Brings in an image that came with the machine, for all of its pods; an image that is there
    /// is only labelled so.
    pub(crate) async fn take_in(
        &self,
        name: &Reference,
        target: &Descriptor,
        source: &dyn Source,
    ) -> Result<(), Error> {
        let text = name.to_string();
        let incoming = self.incoming.of(&text, Incoming::default);
        let _turn = incoming.turn.lock().await;
        match self.find(name).await? {
            Some(ready) if ready.image.digest == target.digest => {
                self.grant(&text, target, &ready.labels, &Reader::Everyone)
                    .await
            }
            Some(_) | None => {
                let reader = &Reader::Everyone;
                let origin = Origin { source, reader };
                self.bring_in(&text, target, origin, &incoming.count).await
            }
        }
    }

    async fn bring_in(
        &self,
        name: &str,
        target: &Descriptor,
        origin: Origin<'_>,
        count: &Count,
    ) -> Result<(), Error> {
        let _counting = count.begin();
        let lease = self.lease().await?;
        let pull = Pull {
            lease: &lease,
            count,
        };
        let result = match self.bring_in_leased(target, origin, pull).await {
            Ok(()) => self.name(name, target, access::only(origin.reader)).await,
            Err(error) => Err(error),
        };
        let delete = DeleteRequest {
            id: lease,
            sync: false,
        };
        // A lease that stays ends by itself.
        drop(
            LeasesClient::new(self.channel.clone())
                .delete(request(delete))
                .await,
        );
        result
    }

    async fn bring_in_leased(
        &self,
        target: &Descriptor,
        origin: Origin<'_>,
        pull: Pull<'_>,
    ) -> Result<(), Error> {
        self.bring_part(target, origin, pull).await?;
        let mut manifest_at = target.clone();
        if let Some(all) = document::manifests(&self.content.read(&target.digest).await?)? {
            manifest_at = document::choose(all)?;
            self.bring_part(&manifest_at, origin, pull).await?;
            let kept = vec![(gc_label("m.0"), manifest_at.digest.clone())];
            self.content.label(&target.digest, kept).await?;
        }
        let manifest: Manifest = self.document(&manifest_at.digest, "manifest").await?;
        let layers = manifest.layers.len();
        if layers > MAX_LAYERS {
            let text = format!("the image has {layers} layers; {MAX_LAYERS} are allowed");
            return Err(bad(text));
        }
        pull.count.expect(&manifest.config, &manifest.layers);
        let mut kept = Vec::new();
        for (index, part) in std::iter::once(&manifest.config)
            .chain(&manifest.layers)
            .enumerate()
        {
            self.bring_part(part, origin, pull).await?;
            pull.count.has(part, index > 0);
            kept.push((gc_label(&format!("p.{index}")), part.digest.clone()));
        }
        self.content.label(&manifest_at.digest, kept).await?;
        self.unpack(&manifest, pull).await
    }

    /// Brings in a document or layer. One that is there is sent all the same where this reader has
    /// not been sent it before: an image may name parts of a private one, by their digests, that
    /// its registry never had.
    async fn bring_part(
        &self,
        part: &Descriptor,
        Origin { source, reader }: Origin<'_>,
        pull: Pull<'_>,
    ) -> Result<(), Error> {
        // Before it is looked for: a blob that is skipped is in no other lease.
        self.hold(Kept::Blob, &part.digest, pull.lease).await?;
        let labels = self.content.labels(&part.digest).await?;
        let labels = labels.unwrap_or_default();
        if access::was_sent(&labels, reader) {
            return Ok(());
        }
        source.bring(&self.content, part, pull).await?;
        if access::with(&labels, reader).is_none() {
            return Ok(());
        }
        let sent = access::only(reader).into_iter().collect();
        self.content.label(&part.digest, sent).await
    }

    /// Gives an image its name, and says who may run it; labels of an earlier image of this name
    /// are removed.
    async fn name(&self, name: &str, target: &Descriptor, labels: Labels) -> Result<(), Error> {
        let image = Stored {
            name: name.to_owned(),
            target: Some(target.wire()),
            labels,
            ..Stored::default()
        };
        let create = CreateImageRequest {
            image: Some(image.clone()),
            source_date_epoch: None,
        };
        match self.client().create(request(create)).await {
            Err(status) if status.code() == Code::AlreadyExists => {
                self.update(image, &["target", "labels"]).await
            }
            result => result.map(drop),
        }
        .map_err(failed(ErrorClass::ImagePull, format!("name image {name}")))
    }

    /// Adds to those who may run an image.
    async fn grant(
        &self,
        name: &str,
        target: &Descriptor,
        had: &Labels,
        reader: &Reader,
    ) -> Result<(), Error> {
        let Some(labels) = access::with(had, reader) else {
            return Ok(());
        };
        let image = Stored {
            name: name.to_owned(),
            target: Some(target.wire()),
            labels,
            ..Stored::default()
        };
        let result = self.update(image, &["labels"]).await;
        result.map_err(failed(
            ErrorClass::ImagePull,
            format!("note who may run image {name}"),
        ))
    }

    async fn update(&self, image: Stored, fields: &[&str]) -> Result<(), Status> {
        let paths = fields.iter().map(|field| (*field).to_owned()).collect();
        let update = UpdateImageRequest {
            image: Some(image),
            update_mask: Some(FieldMask { paths }),
            source_date_epoch: None,
        };
        self.client().update(request(update)).await.map(drop)
    }

    /// The image, if it is there and whole.
    ///
    /// # Errors
    /// containerd can't be reached.
    pub async fn find(&self, reference: &Reference) -> Result<Option<Ready>, Error> {
        let get = GetImageRequest {
            name: reference.to_string(),
        };
        let stored = match self.client().get(request(get)).await {
            Ok(answer) => answer.into_inner().image,
            Err(status) if status.code() == Code::NotFound => None,
            Err(status) => {
                return Err(failed(
                    ErrorClass::ImagePull,
                    format!("look for image {reference}"),
                )(status));
            }
        };
        let Some((target, labels)) = stored.and_then(|image| Some((image.target?, image.labels)))
        else {
            return Ok(None);
        };
        let loaded = self
            .load(reference, &target.digest)
            .await
            .map(|ready| Ready { labels, ..ready });
        match loaded {
            Ok(ready) => Ok(self.has_snapshot(&ready.snapshot).await?.then_some(ready)),
            Err(error) if error.class == ErrorClass::Unavailable => Err(error),
            // Parts are missing or unreadable: as good as absent.
            Err(error) => {
                tracing::warn!(image = %reference, error = %error.chain(), "a local image is incomplete; pulling it again");
                Ok(None)
            }
        }
    }

    async fn load(&self, reference: &Reference, target: &str) -> Result<Ready, Error> {
        let parts = if let Some(parts) = self.remembered.get(target) {
            parts
        } else {
            let parts = Arc::new(self.read(target).await?);
            self.remembered.put(target, &parts);
            parts
        };
        let image = Image {
            name: reference.to_string(),
            digest: target.to_owned(),
            size: parts.size,
            pulled: false,
        };
        Ok(Ready {
            image,
            image_id: format!("{}@{target}", reference.repository()),
            snapshot: parts.snapshot.clone(),
            defaults: parts.defaults.clone(),
            labels: Labels::new(),
        })
    }

    async fn read(&self, target: &str) -> Result<Parts, Error> {
        let top = self.content.read(target).await?;
        let digest = match document::manifests(&top)? {
            Some(all) => document::choose(all)?.digest,
            None => target.to_owned(),
        };
        let manifest: Manifest = self.document(&digest, "manifest").await?;
        let configuration: Configuration = self
            .document(&manifest.config.digest, "configuration")
            .await?;
        let snapshot = configuration
            .rootfs
            .diff_ids
            .iter()
            .fold(String::new(), |parent, diff| chain_id(&parent, diff));
        let size: i64 = manifest
            .layers
            .iter()
            .map(|layer| layer.size)
            .fold(manifest.config.size, i64::saturating_add);
        Ok(Parts {
            snapshot,
            size: u64::try_from(size).unwrap_or_default(),
            defaults: configuration.config.unwrap_or_default(),
        })
    }

    async fn document<T: serde::de::DeserializeOwned>(
        &self,
        digest: &str,
        what: &str,
    ) -> Result<T, Error> {
        let bytes = self.content.read(digest).await?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Error::caused(
                ErrorClass::ImagePull,
                format!("read image {what} {digest}"),
                error,
            )
        })
    }

    /// Every named image; those that aren't whole have size 0.
    ///
    /// # Errors
    /// containerd can't list them.
    pub async fn list(&self) -> Result<Vec<Image>, Error> {
        let list = self
            .client()
            .list(unlimited(ListImagesRequest {
                filters: Vec::new(),
            }))
            .await;
        let stored = list
            .map_err(failed(ErrorClass::ImagePull, "list images"))?
            .into_inner()
            .images;
        let mut all = Vec::with_capacity(stored.len());
        for image in stored {
            let Ok(reference) = Reference::parse(&image.name) else {
                continue;
            };
            let digest = image.target.map(|target| target.digest).unwrap_or_default();
            let size = self
                .load(&reference, &digest)
                .await
                .map_or(0, |ready| ready.image.size);
            all.push(Image {
                name: image.name,
                digest,
                size,
                pulled: false,
            });
        }
        Ok(all)
    }

    /// Removes the name of an image; containerd collects what no other image needs. One that is
    /// gone already is fine.
    ///
    /// # Errors
    /// containerd can't remove it.
    pub async fn remove(&self, name: &str) -> Result<(), Error> {
        let delete = DeleteImageRequest {
            name: name.to_owned(),
            sync: false,
            target: None,
        };
        let result: Result<_, Status> = self.client().delete(request(delete)).await;
        settled(result, Code::NotFound).map_err(failed(
            ErrorClass::ImagePull,
            format!("remove image {name}"),
        ))
    }
}

fn bad(message: String) -> Error {
    Error::new(ErrorClass::ImagePull, message)
}

fn gc_label(name: &str) -> String {
    format!("containerd.io/gc.ref.content.{name}")
}
