//! Layers unpacked to snapshots: those of one image one after another, each within a time limit;
//! several images at the same time.

use super::lease::Kept;
use super::{Images, Pull, SNAPSHOTTER, bad};
use crate::content::Descriptor;
use crate::document::{Configuration, Manifest};
use agent_containerd::{Error, ErrorClass, failed, leased, request, settled};
use containerd_client::services::v1::ApplyRequest;
use containerd_client::services::v1::diff_client::DiffClient;
use containerd_client::services::v1::snapshots::{
    CommitSnapshotRequest, PrepareSnapshotRequest, RemoveSnapshotRequest, StatSnapshotRequest,
};
use containerd_client::tonic::{Code, Status};
use containerd_client::types::Mount;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::Mutex;

/// The label of a layer that says what it unpacks to; the agent sets it once it has unpacked the
/// layer.
const UNPACKS_TO: &str = "pratique.dev/unpacks-to";
/// Time to unpack a layer, and how many bytes of it each further second is for: other images with
/// the layer wait for its end.
const UNPACKING: (Duration, u64) = (Duration::from_secs(60), 256 << 10);

impl Images {
    /// Applies each layer over its parent. What a layer unpacks to is what the agent has seen of
    /// it, not what the image says, which could name another image's. Layers that are there already
    /// are not touched.
    pub(super) async fn unpack(&self, manifest: &Manifest, pull: Pull<'_>) -> Result<(), Error> {
        let Pull { lease, count } = pull;
        let configuration: Configuration = self
            .document(&manifest.config.digest, "configuration")
            .await?;
        configuration.check()?;
        let diffs = &configuration.rootfs.diff_ids;
        if diffs.len() != manifest.layers.len() || diffs.is_empty() {
            let (layers, ids) = (manifest.layers.len(), diffs.len());
            return Err(bad(format!("{layers} layers and {ids} diff ids")));
        }
        let mut parent = String::new();
        for (layer, diff) in manifest.layers.iter().zip(diffs) {
            let name = chain_id(&parent, diff);
            let turn = self.unpacking.of(&name, Mutex::default);
            let _turn = turn.lock().await;
            self.hold(Kept::Snapshot, &name, lease).await?;
            let labels = self.content.labels(&layer.digest).await?;
            let is_seen = labels.is_some_and(|labels| labels.get(UNPACKS_TO) == Some(diff));
            if !is_seen || !self.has_snapshot(&name).await? {
                self.apply(layer, diff, &parent, &name, lease).await?;
                let seen = vec![(UNPACKS_TO.to_owned(), diff.clone())];
                self.content.label(&layer.digest, seen).await?;
            }
            count.unpacked();
            parent = name;
        }
        let label = format!("containerd.io/gc.ref.snapshot.{SNAPSHOTTER}");
        self.content
            .label(&manifest.config.digest, vec![(label, parent)])
            .await
    }

    /// Unpacks a layer into a snapshot over its parent, and names the snapshot once its files are
    /// on disk and what they are is proven.
    async fn apply(
        &self,
        layer: &Descriptor,
        diff: &str,
        parent: &str,
        name: &str,
        lease: &str,
    ) -> Result<(), Error> {
        let fail = || {
            let doing = format!("unpack layer {}", layer.digest);
            failed(ErrorClass::ImagePull, doing)
        };
        let key = format!("pratique-unpack-{name}");
        let remove = RemoveSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: key.clone(),
        };
        // What an earlier attempt left.
        let removed = self.snapshots().remove(request(remove.clone())).await;
        settled(removed, Code::NotFound).map_err(fail())?;
        let prepare = PrepareSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: key.clone(),
            parent: parent.to_owned(),
            labels: HashMap::new(),
        };
        let prepared = self.snapshots().prepare(leased(prepare, lease)).await;
        let mounts = prepared.map_err(fail())?.into_inner().mounts;
        let found = self.fill(layer, mounts, lease).await?;
        if found != diff {
            let digest = &layer.digest;
            let text = format!("layer {digest} unpacks to {found}, not to {diff}");
            return Err(bad(text));
        }
        self.sync().await?;
        let commit = CommitSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            name: name.to_owned(),
            key,
            labels: HashMap::new(),
        };
        match self.snapshots().commit(leased(commit, lease)).await {
            Err(status) if status.code() == Code::AlreadyExists => {
                let removed = self.snapshots().remove(request(remove)).await;
                removed.map(drop)
            }
            committed => committed.map(drop),
        }
        .map_err(fail())
    }

    /// Unpacks a layer into the mounts of a snapshot, within its time; the digest of what it
    /// unpacks to.
    async fn fill(
        &self,
        layer: &Descriptor,
        mounts: Vec<Mount>,
        lease: &str,
    ) -> Result<String, Error> {
        let digest = &layer.digest;
        let apply = ApplyRequest {
            diff: Some(layer.wire()),
            mounts,
            payloads: HashMap::new(),
            sync_fs: true,
        };
        let mut apply = leased(apply, lease);
        let limit = unpacks_within(layer.size);
        apply.set_timeout(limit);
        let applied = DiffClient::new(self.channel.clone()).apply(apply).await;
        let late =
            |status: &Status| matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded);
        if applied.as_ref().is_err_and(late) {
            let text = format!("layer {digest} is not unpacked within {limit:?}");
            return Err(bad(text));
        }
        let fail = failed(ErrorClass::ImagePull, format!("unpack layer {digest}"));
        let applied = applied.map_err(fail)?.into_inner().applied;
        Ok(applied.map(|applied| applied.digest).unwrap_or_default())
    }

    /// A layer whose files are still in memory must not count as unpacked: power may fail at any
    /// time.
    async fn sync(&self) -> Result<(), Error> {
        let state = self.state.clone();
        let sync = move || {
            std::fs::File::open(state).and_then(|dir| nix::unistd::syncfs(&dir).map_err(Into::into))
        };
        let result = tokio::task::spawn_blocking(sync)
            .await
            .unwrap_or_else(|error| Err(std::io::Error::other(error)));
        result.map_err(|error| {
            Error::caused(
                ErrorClass::ImagePull,
                format!("sync {}", self.state.display()),
                error,
            )
        })
    }

    pub(super) async fn has_snapshot(&self, name: &str) -> Result<bool, Error> {
        let stat = StatSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: name.to_owned(),
        };
        match self.snapshots().stat(request(stat)).await {
            Ok(_) => Ok(true),
            Err(status) if status.code() == Code::NotFound => Ok(false),
            Err(status) => Err(failed(
                ErrorClass::ImagePull,
                format!("look for snapshot {name}"),
            )(status)),
        }
    }
}

/// The time that unpacking a layer of so many bytes may take. A small layer that takes long unpacks
/// to more than a disk should hold.
fn unpacks_within(size: i64) -> Duration {
    let (least, rate) = UNPACKING;
    least + Duration::from_secs(size.unsigned_abs() / rate)
}

/// Name of the snapshot of a layer over its parent (OCI image specification, "Layer `ChainID`").
pub(super) fn chain_id(parent: &str, diff: &str) -> String {
    if parent.is_empty() {
        return diff.to_owned();
    }
    format!(
        "sha256:{}",
        hex::encode(Sha256::digest(format!("{parent} {diff}")))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_layer_holds_up_others_for_a_minute_or_two() {
        assert_eq!(unpacks_within(10 << 20).as_secs(), 100);
        assert_eq!(unpacks_within(4 << 30).as_secs(), 60 + 16_384);
    }

    #[test]
    fn the_first_layers_chain_is_its_diff() {
        assert_eq!(chain_id("", "sha256:aa"), "sha256:aa");
        let expected = hex::encode(Sha256::digest("sha256:aa sha256:bb"));
        assert_eq!(
            chain_id("sha256:aa", "sha256:bb"),
            format!("sha256:{expected}")
        );
    }
}
