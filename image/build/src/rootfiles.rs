//! Files of the root that are ours: small texts, links and empty folders.

use crate::options::Role;
use config_model::image::{Metadata, StateOwner};

/// The image's description, in its own root.
#[derive(Debug, Clone, Copy)]
pub struct Label<'a> {
    /// The image's role.
    pub role: Role,
    /// Kernel release.
    pub kernel: &'a str,
    /// Image id.
    pub id: &'a str,
    /// Security version number.
    pub svn: u64,
    /// Unix seconds.
    pub build_time: u64,
    /// Which metadata service its machines may ask.
    pub metadata: Metadata,
    /// What a worker's encrypted state belongs to.
    pub state: StateOwner,
    /// The release key that approves its boots, as `config_unlock::approvals::Approver::to_hex`
    /// writes it.
    pub approver: Option<&'a str>,
}

/// Folders of the root and where file systems will be mounted, with their modes.
pub(crate) const FOLDERS: [(&str, u32); 21] = [
    ("dev", 0o755),
    ("etc", 0o755),
    ("etc/containerd", 0o755),
    ("etc/pratique", 0o755),
    ("etc/ssl", 0o755),
    ("etc/ssl/certs", 0o755),
    ("oci", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("usr/bin", 0o755),
    ("usr/lib", 0o755),
    ("usr/lib/pratique", 0o755),
    ("usr/lib/modules", 0o755),
    ("usr/lib/x86_64-linux-gnu", 0o755),
    ("usr/lib64", 0o755),
    ("usr/sbin", 0o755),
    ("var", 0o755),
];

/// Links of the root.
pub(crate) const LINKS: [(&str, &str); 7] = [
    ("bin", "usr/bin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
    ("sbin", "usr/sbin"),
    ("etc/resolv.conf", "/run/pratique/resolv.conf"),
    ("etc/mtab", "/proc/self/mounts"),
    ("etc/os-release", "../usr/lib/os-release"),
];

/// Texts that are the same in every image.
pub(crate) const TEXTS: [(&str, &str); 4] = [
    ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
    ("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
    (
        "etc/nsswitch.conf",
        "passwd: files\ngroup: files\nhosts: files dns\n",
    ),
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/nonexistent\nnobody:x:65534:65534:nobody:/:/nonexistent\n",
    ),
];

/// The image's `os-release`, for people and for the UKI's `.osrel`.
pub(crate) fn os_release(role: Role, id: &str, svn: u64) -> String {
    let role = role.name();
    format!(
        "ID=pratique\nNAME=Pratique\nPRETTY_NAME=\"Pratique {role} {id}\"\nIMAGE_ID={role}\nIMAGE_VERSION={id}\nVERSION_ID={svn}\n"
    )
}

/// The image's description for programs on the machine.
pub(crate) fn image_toml(label: &Label<'_>) -> String {
    let Label {
        role,
        kernel,
        id,
        svn,
        build_time,
        metadata,
        state,
        approver,
    } = *label;
    let (role, metadata, state) = (role.name(), metadata.name(), state.name());
    let approver = approver
        .map(|key| format!("release_key = \"{key}\"\n"))
        .unwrap_or_default();
    format!(
        "id = \"{id}\"\nrole = \"{role}\"\nsvn = {svn}\nbuild_time = {build_time}\nkernel = \"{kernel}\"\nmetadata = \"{metadata}\"\nstate = \"{state}\"\n{approver}"
    )
}
