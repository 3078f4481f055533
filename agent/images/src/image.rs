//! What the rest of the agent sees of an image.

use crate::reference::Reference;
use serde::Deserialize;

/// When an image must be asked for at its registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PullPolicy {
    /// At each start.
    Always,
    /// When it isn't on the machine.
    IfNotPresent,
    /// Never: it must be on the machine.
    Never,
}

impl PullPolicy {
    /// The policy in the pod, or upstream's default: always for `:latest`.
    pub fn of(image: &str, policy: Option<&str>) -> Self {
        let latest = || Reference::parse(image).is_ok_and(|image| image.is_latest());
        match policy {
            Some("Always") => Self::Always,
            Some("Never") => Self::Never,
            Some("IfNotPresent") => Self::IfNotPresent,
            Some(_) | None if latest() => Self::Always,
            Some(_) | None => Self::IfNotPresent,
        }
    }
}

/// An image on the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Full reference.
    pub name: String,
    /// `sha256:…` of the manifest (or index) that the reference stands for.
    pub digest: String,
    /// Bytes of its layers and manifests as transferred.
    pub size: u64,
    /// True if it was fetched just now.
    pub pulled: bool,
}

impl Image {
    /// The id that its containers have for it.
    pub fn id(&self) -> String {
        let name = Reference::parse(&self.name)
            .map_or_else(|_| self.name.clone(), |name| name.repository());
        format!("{name}@{}", self.digest)
    }
}

/// The part of an image's configuration that a container takes over (OCI image specification,
/// `config`).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ImageDefaults {
    /// Variables, as `NAME=value`.
    pub env: Option<Vec<String>>,
    /// The program and its first arguments.
    pub entrypoint: Option<Vec<String>>,
    /// Further arguments, which a pod may replace.
    pub cmd: Option<Vec<String>>,
    /// User or id, and group after a colon.
    pub user: Option<String>,
    /// Working directory.
    pub working_dir: Option<String>,
    /// The signal by which its containers are asked to end.
    pub stop_signal: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_the_id_of_its_containers() {
        let image = Image {
            name: "docker.io/library/nginx:1".into(),
            digest: "sha256:0a".into(),
            size: 1,
            pulled: false,
        };
        assert_eq!(image.id(), "docker.io/library/nginx@sha256:0a");
    }
}
