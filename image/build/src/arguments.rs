//! The command line.

use clap::{Args, Parser, Subcommand};
use config_model::format::FormatError;
use config_model::image::{CommandLine, ImageConfig, KernelFlavour};
use config_model::rule;
use config_model::{Document, parse};
use image_build::modules::Wanted;
use image_build::options::{Compress, Options, Role, SecureBoot};
use std::error::Error;
use std::path::{Path, PathBuf};

/// Arguments of every command.
#[derive(Debug, Parser)]
#[command(
    name = "image-build",
    about = "Builds Pratique's machine images, without root rights."
)]
pub(crate) struct Arguments {
    /// Package cache [default: .pratique/cache under the repository]
    #[arg(long, global = true, env = "PRATIQUE_CACHE")]
    pub(crate) cache: Option<PathBuf>,
    /// Tools tree [default: .pratique/tools under the repository]
    #[arg(long, global = true, env = "PRATIQUE_TOOLS")]
    pub(crate) tools: Option<PathBuf>,
    /// Refuse any package version but the lock file's
    #[arg(long, global = true)]
    pub(crate) locked: bool,
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Build an image: ROLE.raw, ROLE.efi, ROLE.release.json, ROLE.parts.json
    Build(Box<BuildArguments>),
    /// Make the tools tree: QEMU, firmware, swtpm, kubectl and what else tests run
    Tools {
        /// Where [default: .pratique/tools under the repository]
        #[arg(long)]
        out: Option<PathBuf>,
    },
    /// Resolve all package sets again and write image/packages.lock
    Lock,
    /// Make development keys (once) and firmware variables, with and without them
    Keys {
        /// Folder of the keys
        #[arg(long)]
        out: PathBuf,
    },
    /// Write an image onto a machine's disk that has an older one, and keep the machine's state
    Write {
        /// The image, ROLE.raw
        image: PathBuf,
        /// The disk, while the machine is off: a block device or a raw file
        disk: PathBuf,
        /// Public half of the release key, PEM: checks that the machine opens its state with this
        /// image
        #[arg(long, required_unless_present = "lose_state")]
        release_key: Option<PathBuf>,
        /// Write it also where the machine may not open its state afterwards
        #[arg(long, conflicts_with = "release_key")]
        lose_state: bool,
    },
    /// Make a NoCloud volume
    Cidata {
        /// The volume
        #[arg(long)]
        out: PathBuf,
        /// TOML for the machine
        #[arg(long)]
        user_data: PathBuf,
    },
    /// Make OVMF's variable store: empty, or with a certificate enrolled and Secure Boot on
    Vars {
        /// The store
        #[arg(long)]
        out: PathBuf,
        /// PEM certificate to enrol as PK, KEK and db
        #[arg(long)]
        sb_cert: Option<PathBuf>,
    },
}

/// Arguments of `build`. What a description gives, an argument overrides.
#[derive(Debug, Args)]
pub(crate) struct BuildArguments {
    /// What the image is for
    #[arg(long)]
    role: Role,
    /// Folder for the results
    #[arg(long)]
    out: PathBuf,
    /// Folder with the programs init, agent and master
    #[arg(long)]
    bin_dir: PathBuf,
    /// Description of the image (TOML, kind = "image")
    #[arg(long)]
    description: Option<PathBuf>,
    /// Security version number [default: 1]
    #[arg(long)]
    svn: Option<u64>,
    /// Id [default: made of the inputs' digest]
    #[arg(long)]
    id: Option<String>,
    /// P-256 key that signs the release
    #[arg(long)]
    release_key: Option<PathBuf>,
    /// RSA key that signs the kernel image for Secure Boot
    #[arg(long, requires = "sb_cert")]
    sb_key: Option<PathBuf>,
    /// Its certificate
    #[arg(long, requires = "sb_key")]
    sb_cert: Option<PathBuf>,
    /// Certificate enrolled as PK [default: that of --sb-cert]
    #[arg(long, requires = "sb_key")]
    sb_pk_cert: Option<PathBuf>,
    /// Certificate enrolled as KEK [default: that of --sb-cert]
    #[arg(long, requires = "sb_key")]
    sb_kek_cert: Option<PathBuf>,
    /// How hard to compress
    #[arg(long, default_value = "release")]
    compress: Compress,
    /// Further kernel arguments, none of which the build sets itself [default: quiet]
    #[arg(long)]
    cmdline_extra: Option<String>,
    /// User-data for every machine that boots the image, where none is to be brought from outside;
    /// everybody can read it
    #[arg(long)]
    user_data: Option<PathBuf>,
    /// Time of the build, Unix seconds [default: the newest file of the packages]
    #[arg(long, env = "SOURCE_DATE_EPOCH")]
    build_time: Option<u64>,
}

impl BuildArguments {
    /// The description and the arguments together; arguments win.
    pub(crate) fn into_options(self, tools: PathBuf) -> Result<Options, Box<dyn Error>> {
        let described = self.description.as_deref().map(described).transpose()?;
        let role = match self.role {
            Role::Worker => rule::Role::Worker,
            Role::Master => rule::Role::Master,
        };
        if let Some(other) = described
            .as_ref()
            .and_then(|d| d.role)
            .filter(|described| *described != role)
        {
            return Err(format!("the description is for {other:?}, --role for {role:?}").into());
        }
        let flavour = described.as_ref().map(|d| d.flavour).unwrap_or_default();
        let modules = Wanted::of(flavour, described.as_deref())?;
        let flavour = match flavour {
            KernelFlavour::Cloud => "cloud-amd64",
            KernelFlavour::Full => "amd64",
        };
        let extra = described
            .as_ref()
            .map(|d| d.cmdline_extra.to_string())
            .filter(|words| !words.is_empty());
        let lockdown = described.as_ref().map(|d| d.lockdown).unwrap_or_default();
        let metadata = described.as_ref().map(|d| d.metadata).unwrap_or_default();
        let state = described.as_ref().map(|d| d.state).unwrap_or_default();
        let secure_boot = self.sb_key.zip(self.sb_cert).map(|(key, cert)| SecureBoot {
            key,
            cert,
            pk_cert: self.sb_pk_cert,
            kek_cert: self.sb_kek_cert,
        });
        Ok(Options {
            role: self.role,
            out: self.out,
            bin_dir: self.bin_dir,
            tools,
            svn: self
                .svn
                .or(described.as_ref().and_then(|d| d.svn))
                .unwrap_or(1),
            id: self
                .id
                .or(described.and_then(|d| d.id).map(|id| id.to_string())),
            release_key: self.release_key,
            secure_boot,
            compress: self.compress,
            flavour: flavour.to_owned(),
            modules,
            lockdown,
            cmdline_extra: self
                .cmdline_extra
                .map(kernel_arguments)
                .transpose()?
                .or(extra)
                .unwrap_or_else(|| "quiet".to_owned()),
            metadata,
            state,
            user_data: self.user_data.as_deref().map(user_data).transpose()?,
            build_time: self.build_time,
        })
    }
}

/// The words of `--cmdline-extra`, which keep the rules of a description's `cmdline_extra`.
fn kernel_arguments(words: String) -> Result<String, Box<dyn Error>> {
    match words.parse::<CommandLine>() {
        Ok(_) => Ok(words),
        Err(FormatError {
            expected,
            suggestion,
        }) => {
            let cure = suggestion.map_or_else(String::new, |cure| format!("; {cure}"));
            Err(format!("--cmdline-extra: found {words:?}, expected {expected}{cure}").into())
        }
    }
}

/// The bytes of a machine's document.
fn user_data(path: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let bytes = std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    match parse(&bytes, &path.display().to_string())? {
        Document::Machine(_) => Ok(bytes),
        other @ (Document::Image(_) | Document::Cluster(_) | Document::Policy(_)) => Err(format!(
            "{}: kind is {}, expected machine",
            path.display(),
            other.kind()
        )
        .into()),
    }
}

/// The image that a file describes.
fn described(path: &Path) -> Result<Box<ImageConfig>, Box<dyn Error>> {
    let name = path.display().to_string();
    let text = std::fs::read(path).map_err(|e| format!("cannot read {name}: {e}"))?;
    let image = match parse(text, &name)? {
        Document::Image(image) => image,
        other @ (Document::Machine(_) | Document::Cluster(_) | Document::Policy(_)) => {
            return Err(format!("{name}: kind is {}, expected image", other.kind()).into());
        }
    };
    if !image.extra_packages.is_empty() {
        return Err(
            "packages.extra: an image of extra packages cannot be built yet; take the list out"
                .into(),
        );
    }
    Ok(image)
}
