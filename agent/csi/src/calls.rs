//! Prepares the calls to a driver for one volume: the gRPC messages from a request, and the folders
//! that they name on the disk.

use crate::driver::Driver;
use crate::messages::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use crate::ownership::Groups;
use crate::paths::{self, MOUNT, STAGED, is_plain};
use crate::request::{Group, Request, SecretName};
use crate::usage::{Usage, usage};
use crate::volume::Volume;
use agent_api::{Api, get};
use agent_sys::beneath::Beneath;
use config_kube::k8s_openapi::api::core::v1::Secret;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Mode of the folders in which drivers mount (upstream's).
const CLOSED: u32 = 0o750;
/// How long a driver may take to say how much of a volume is used.
const USAGE: Duration = Duration::from_secs(10);

/// What the calls of a volume are made with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Calls<'a> {
    /// The folder of the machine's volumes.
    pub(crate) data: &'a Path,
    pub(crate) api: &'a dyn Api,
    pub(crate) driver: &'a Driver,
    pub(crate) groups: &'a Groups,
}

/// The folder of a target.
fn folder_of(target: &str) -> Result<PathBuf, String> {
    paths::target_folder(target).ok_or_else(|| format!("{target:?} is no target"))
}

impl Calls<'_> {
    fn path(&self, below: &Path) -> String {
        self.data.join(below).to_string_lossy().into_owned()
    }

    /// The path at which the volume of a request is staged; empty where it isn't.
    fn staged(&self, request: &Request) -> String {
        if request.inline || !self.driver.abilities.stages {
            return String::new();
        }
        let folder = paths::stage_folder(&request.driver, &request.handle);
        self.path(&folder.join(STAGED))
    }

    pub(crate) async fn stage(&self, request: &Request) -> Result<(), String> {
        let path = paths::stage_folder(&request.driver, &request.handle).join(STAGED);
        make(self.data, &path)?;
        let message = NodeStageVolumeRequest {
            volume_id: request.handle.clone(),
            publish_context: HashMap::new(),
            staging_target_path: self.path(&path),
            volume_capability: Some(request.capability(self.driver.abilities)),
            secrets: self.secret(request.secrets.stage.as_ref()).await?,
            volume_context: request.attributes.clone(),
        };
        let staged = self.driver.stage(&message).await;
        staged.map_err(|error| format!("MountDevice failed: {error}"))
    }

    pub(crate) async fn publish(&self, request: &Request, target: &str) -> Result<(), String> {
        let folder = folder_of(target)?;
        make(self.data, &folder)?;
        let mut context = request.attributes.clone();
        context.extend(request.pod.clone());
        let message = NodePublishVolumeRequest {
            volume_id: request.handle.clone(),
            publish_context: HashMap::new(),
            staging_target_path: self.staged(request),
            target_path: self.path(&folder.join(MOUNT)),
            volume_capability: Some(request.capability(self.driver.abilities)),
            readonly: request.read_only,
            secrets: self.secret(request.secrets.publish.as_ref()).await?,
            volume_context: context,
        };
        let published = self.driver.publish(&message).await;
        published.map_err(|error| error.to_string())?;
        if is_mounted(self.data, target)? {
            return Ok(());
        }
        let name = &self.driver.name;
        Err(format!(
            "driver {name} says that the volume is published, but nothing is mounted there"
        ))
    }

    /// Gives the volume's files the group of the pod, where that is the node's to do.
    pub(crate) async fn give_group(&self, request: &Request, target: &str) -> Result<(), String> {
        let by_node = |group: &Group| group.given && !self.driver.abilities.gives_group;
        let Some(group) = request.group.filter(by_node) else {
            return Ok(());
        };
        let path = folder_of(target)?.join(MOUNT);
        let given = self.groups.give(request, group, self.data, path).await;
        given.map_err(|error| format!("applyFSGroup failed: {error}"))
    }

    pub(crate) async fn expand(
        &self,
        request: &Request,
        target: &str,
        bytes: i64,
    ) -> Result<(), String> {
        let message = NodeExpandVolumeRequest {
            volume_id: request.handle.clone(),
            volume_path: self.path(&folder_of(target)?.join(MOUNT)),
            capacity_range: Some(CapacityRange {
                required_bytes: bytes,
            }),
            staging_target_path: self.staged(request),
            volume_capability: Some(request.capability(self.driver.abilities)),
            secrets: self.secret(request.secrets.expand.as_ref()).await?,
        };
        let expanded = self.driver.expand(&message).await;
        expanded.map_err(|error| format!("NodeExpandVolume failed: {error}"))
    }

    /// How much of a published volume is used.
    pub(crate) async fn usage(&self, volume: &Volume, target: &str) -> Result<Usage, String> {
        let staged = match volume.stage {
            Some(_) => {
                let folder = paths::stage_folder(&volume.driver, &volume.handle);
                self.path(&folder.join(STAGED))
            }
            None => String::new(),
        };
        let message = NodeGetVolumeStatsRequest {
            volume_id: volume.handle.clone(),
            volume_path: self.path(&folder_of(target)?.join(MOUNT)),
            staging_target_path: staged,
        };
        let response = self.driver.usage(&message, USAGE).await;
        let response = response.map_err(|error| format!("NodeGetVolumeStats failed: {error}"))?;
        usage(&response)
    }

    pub(crate) async fn unpublish(&self, volume: &Volume, target: &str) -> Result<(), String> {
        let folder = folder_of(target)?;
        let message = NodeUnpublishVolumeRequest {
            volume_id: volume.handle.clone(),
            target_path: self.path(&folder.join(MOUNT)),
        };
        let gone = self.driver.unpublish(&message).await;
        gone.map_err(|error| error.to_string())?;
        clear(self.data, &folder)
    }

    pub(crate) async fn unstage(&self, volume: &Volume) -> Result<(), String> {
        let folder = paths::stage_folder(&volume.driver, &volume.handle);
        let message = NodeUnstageVolumeRequest {
            volume_id: volume.handle.clone(),
            staging_target_path: self.path(&folder.join(STAGED)),
        };
        let gone = self.driver.unstage(&message).await;
        gone.map_err(|error| format!("UnmountDevice failed: {error}"))?;
        clear(self.data, &folder)
    }

    /// The texts of a secret, as the master gives them to this node.
    async fn secret(&self, secret: Option<&SecretName>) -> Result<HashMap<String, String>, String> {
        let Some(SecretName { namespace, name }) = secret else {
            return Ok(HashMap::new());
        };
        if !is_plain(namespace) || !is_plain(name) {
            return Err(format!("{namespace}/{name} is no name of a secret"));
        }
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        let found: Secret = get(self.api, path)
            .await
            .map_err(|error| format!("secret {namespace}/{name}: {}", error.chain()))?;
        let texts = found.data.into_iter().flatten().map(|(key, bytes)| {
            let text = String::from_utf8(bytes.0);
            let text =
                text.map_err(|_not_text| format!("secret {namespace}/{name}: {key} is no text"));
            Ok((key, text?))
        });
        texts.collect()
    }
}

/// Makes a folder below that of the machine's volumes; no link is followed.
fn make(data: &Path, path: &Path) -> Result<(), String> {
    let made = Beneath::make_root(data).and_then(|data| data.make_dirs(path, CLOSED));
    let made = made.map_err(|error| format!("cannot make {}: {error}", path.display()));
    made.map(drop)
}

/// Whether something is mounted at a target. A link there, or on the way, is an error.
pub(crate) fn is_mounted(data: &Path, target: &str) -> Result<bool, String> {
    let folder = folder_of(target)?;
    let found = Beneath::root(data)
        .and_then(|data| data.dir(&folder))
        .and_then(|folder| folder.is_mount(Path::new(MOUNT)));
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        found => found.map_err(|error| format!("{}: {error}", folder.join(MOUNT).display())),
    }
}

/// Removes a folder of which the driver has unmounted all; what is still mounted is never entered.
fn clear(data: &Path, folder: &Path) -> Result<(), String> {
    let removed = Beneath::root(data).and_then(|data| data.remove_tree(folder));
    removed.map_err(|error| {
        let folder = folder.display();
        format!("{folder} can't be removed, so the driver has left a mount there: {error}")
    })
}
