//! Finds the layers of an image as folders, for image volumes.

use super::Containerd;
use crate::model::Layers;
use crate::root;
use agent_containerd::{Error, ErrorClass, failed, request, settled};
use agent_images::SNAPSHOTTER;
use containerd_client::services::v1::snapshots::{RemoveSnapshotRequest, ViewSnapshotRequest};
use containerd_client::tonic::{Code, Status};
use containerd_client::types::Mount;
use std::collections::HashMap;
use tokio::sync::MutexGuard;

impl Containerd {
    /// The layers of an image that is on the machine with this digest.
    pub(super) async fn layers_of(&self, image: &str, digest: &str) -> Result<Layers, Error> {
        let reference = self.images.reference(image)?;
        let found = self.images.find(&reference).await?;
        let ready = found.filter(|ready| ready.image.digest == digest);
        let ready = ready.ok_or_else(|| {
            let text = format!("image {reference} is not on the machine any more");
            Error::new(ErrorClass::Create, text)
        })?;
        let fail = failed(
            ErrorClass::Create,
            format!("look at the layers of {reference}"),
        );
        let turn = self.viewing.lock().await;
        let mounts = self.view(&ready.snapshot, &turn).await.map_err(fail)?;
        drop(turn);
        Ok(Layers {
            name: ready.snapshot,
            folders: root::layers(&mounts),
        })
    }

    /// The mounts of a view of a snapshot. The view itself is removed again: its folders stay as
    /// long as the image. `_turn` excludes a second view of the snapshot, which would have the same
    /// name.
    pub(super) async fn view(
        &self,
        parent: &str,
        _turn: &MutexGuard<'_, ()>,
    ) -> Result<Vec<Mount>, Status> {
        let key = format!("{parent}-view");
        self.end_view(&key).await?;
        let view = ViewSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: key.clone(),
            parent: parent.to_owned(),
            labels: HashMap::new(),
        };
        let mounts = self.snapshots().view(request(view)).await?;
        self.end_view(&key).await?;
        Ok(mounts.into_inner().mounts)
    }

    async fn end_view(&self, key: &str) -> Result<(), Status> {
        let remove = RemoveSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: key.to_owned(),
        };
        let removed = self.snapshots().remove(request(remove)).await;
        settled(removed, Code::NotFound)
    }
}
