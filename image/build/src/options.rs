//! The options of a build.

use crate::modules::Wanted;
use config_model::image::{Lockdown, Metadata, StateOwner};
use config_unlock::approvals;
use std::path::PathBuf;

/// The role of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// A node.
    Worker,
    /// A control plane, and a node too.
    Master,
}

impl Role {
    /// As files, manifests and machines write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Master => "master",
        }
    }

    /// As the release key approves its boots.
    pub(crate) fn approved(self) -> approvals::Role {
        match self {
            Self::Worker => approvals::Role::Worker,
            Self::Master => approvals::Role::Master,
        }
    }
}

/// How hard the root is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Compress {
    /// Fast to build.
    Dev,
    /// Small.
    Release,
}

impl Compress {
    /// Arguments of mkfs.erofs.
    pub(crate) fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Dev => &["-zlz4", "-C16384"],
            Self::Release => &["-zlz4hc,level=9", "-Ededupe,fragments", "-C65536"],
        }
    }

    /// Level of zstd for the initrd.
    pub(crate) fn zstd(self) -> &'static str {
        match self {
            Self::Dev => "-6",
            Self::Release => "-19",
        }
    }
}

/// Secure Boot keys of the machines that the image is made for.
#[derive(Debug, Clone)]
pub struct SecureBoot {
    /// RSA-2048 key (PKCS #8 PEM) that signs the kernel image.
    pub key: PathBuf,
    /// Its certificate (PEM), enrolled in db.
    pub cert: PathBuf,
    /// Certificate enrolled as PK; the signer's own where none is given.
    pub pk_cert: Option<PathBuf>,
    /// Certificate enrolled as KEK; the signer's own where none is given.
    pub kek_cert: Option<PathBuf>,
}

/// An image to be built.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its role.
    pub role: Role,
    /// Folder for the results.
    pub out: PathBuf,
    /// Folder with `init`, `agent` and `master`.
    pub bin_dir: PathBuf,
    /// Folder of the tools tree.
    pub tools: PathBuf,
    /// Security version number.
    pub svn: u64,
    /// Id; made from the inputs' digest where none is given.
    pub id: Option<String>,
    /// P-256 release key (PKCS #8 PEM); without one the release is not signed.
    pub release_key: Option<PathBuf>,
    /// Without keys the image starts only where Secure Boot is off.
    pub secure_boot: Option<SecureBoot>,
    /// How hard to compress.
    pub compress: Compress,
    /// Kernel flavour: `cloud-amd64` or `amd64`.
    pub flavour: String,
    /// Kernel modules.
    pub modules: Wanted,
    /// How far the kernel is closed against root.
    pub lockdown: Lockdown,
    /// Further kernel arguments.
    pub cmdline_extra: String,
    /// Which metadata service its machines may ask for their user-data.
    pub metadata: Metadata,
    /// What a worker's encrypted state belongs to.
    pub state: StateOwner,
    /// User-data in the image itself.
    pub user_data: Option<Vec<u8>>,
    /// Unix seconds; the newest file of the packages where none is given.
    pub build_time: Option<u64>,
}
