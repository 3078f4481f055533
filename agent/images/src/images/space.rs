//! What images take of the machine's disk.

use super::{Images, SNAPSHOTTER};
use agent_containerd::{Error, ErrorClass, failed, request};
use containerd_client::services::v1::snapshots::{Kind, ListSnapshotsRequest, UsageRequest};
use containerd_client::tonic::{Code, Status};

/// What the images on a machine take of its disk by their unpacked layers. One that several images
/// have counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ImageSpace {
    /// Bytes of their files.
    pub bytes: u64,
    /// Files and folders.
    pub inodes: u64,
}

impl Images {
    /// What the images take, as containerd measured each layer when it was unpacked.
    ///
    /// # Errors
    /// containerd can't be reached.
    pub async fn space(&self) -> Result<ImageSpace, Error> {
        let space = self.layers_space().await;
        space.map_err(failed(
            ErrorClass::ImagePull,
            "measure the layers of images",
        ))
    }

    async fn layers_space(&self) -> Result<ImageSpace, Status> {
        let list = ListSnapshotsRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            filters: Vec::new(),
        };
        let mut pages = self.snapshots().list(request(list)).await?.into_inner();
        // The whole list before the first question: containerd keeps its database open for reading
        // meanwhile, and a writer that needs it larger waits for that, and other readers for him.
        let mut layers = Vec::new();
        while let Some(page) = pages.message().await? {
            let all = page.info.into_iter();
            let unpacked = all.filter(|one| one.kind() == Kind::Committed);
            layers.extend(unpacked.map(|one| one.name));
        }
        let mut space = ImageSpace::default();
        for key in layers {
            let snapshotter = SNAPSHOTTER.to_owned();
            let usage = UsageRequest { snapshotter, key };
            match self.snapshots().usage(request(usage)).await {
                Ok(usage) => {
                    let usage = usage.into_inner();
                    let size = |number| u64::try_from(number).unwrap_or_default();
                    space.bytes = space.bytes.saturating_add(size(usage.size));
                    space.inodes = space.inodes.saturating_add(size(usage.inodes));
                }
                // Its image went meanwhile.
                Err(status) if status.code() == Code::NotFound => {}
                Err(status) => return Err(status),
            }
        }
        Ok(space)
    }
}
