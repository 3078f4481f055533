//! `kind = "image"`: the input of the image build.

use crate::defaults::{MAX_CMDLINE, MAX_MODULE_NAME};
use crate::fault::Sink;
use crate::format::{DnsName, FormatError, one_of, text_type};
use crate::raw::RawImageDocument;
use crate::rule::Role;
use config_machine::kernel;
pub use config_machine::kernel::Lockdown;

/// An image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageConfig {
    /// Its role; `None`: both roles are built from this description.
    pub role: Option<Role>,
    /// Its id; `None`: the build names it.
    pub id: Option<DnsName>,
    /// Its security version number; `None`: the build's argument decides.
    pub svn: Option<u64>,
    /// The kernel package.
    pub flavour: KernelFlavour,
    /// How far the kernel is locked down against root.
    pub lockdown: Lockdown,
    /// Additional kernel arguments; measured like the rest of the command line.
    pub cmdline_extra: CommandLine,
    /// Modules that the running system loads; `None`: those of the flavour.
    pub modules: Option<Vec<ModuleName>>,
    /// Modules that the initrd loads; `None`: those of the flavour.
    pub initrd_modules: Option<Vec<ModuleName>>,
    /// Debian packages added to the root file system.
    pub extra_packages: Vec<PackageName>,
    /// The metadata service that its machines may query for user-data.
    pub metadata: Metadata,
    /// What a worker's encrypted state belongs to.
    pub state: StateOwner,
}

/// What the encrypted state of a worker belongs to. A master's lists the user-data that may use it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StateOwner {
    /// The machine, under any user-data.
    #[default]
    Machine,
    /// The machine with the user-data that made it.
    UserData,
}

impl StateOwner {
    /// As documents write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::UserData => "user-data",
        }
    }
}

/// The metadata services that a machine can query, by the names that are measured as event labels.
pub const METADATA_SERVICES: [&str; 6] = [
    "ec2",
    "gce",
    "azure",
    "openstack",
    "hetzner",
    "digitalocean",
];

/// The metadata service that an image's machines query if the machine itself has no user-data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Metadata {
    /// The one that the machine's firmware indicates, if any.
    #[default]
    Auto,
    /// None.
    Off,
    /// This one, one of [`METADATA_SERVICES`].
    Service(&'static str),
}

impl Metadata {
    /// As documents write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Service(name) => name,
        }
    }
}

fn metadata(text: &str) -> Result<Metadata, FormatError> {
    let fixed = [("auto", Metadata::Auto), ("off", Metadata::Off)];
    let services = METADATA_SERVICES.map(|name| (name, Metadata::Service(name)));
    one_of(text, &[&fixed[..], &services[..]].concat())
}

/// The Debian kernel package.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KernelFlavour {
    /// `linux-image-cloud-amd64`: virtual machines.
    #[default]
    Cloud,
    /// `linux-image-amd64`: also for hardware.
    Full,
}

text_type!(
    /// A Debian package name (policy 5.6.1).
    PackageName,
    package_name
);
text_type!(
    /// The name of a kernel module, such as `nf_tables`; `-` and `_` mean the same in it.
    ModuleName,
    module_name
);
text_type!(
    /// Kernel arguments in printable ASCII that do not affect the verified root.
    #[derive(Default)]
    CommandLine,
    command_line
);

/// Kernel arguments that the image build sets itself or leaves out, besides those of
/// [`kernel::WORDS`].
const OURS: [&str; 5] = ["init", "rdinit", "root", "initrd", "rw"];

const EXPECTED_ARGUMENTS: &str =
    "kernel arguments in printable ASCII without `\"`, separated by single spaces";

fn package_name(text: &str) -> Result<(), FormatError> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+-.".contains(&b);
    let starts = text
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if starts && matches!(text.len(), 2..=128) && text.bytes().all(plain) {
        return Ok(());
    }
    Err(FormatError::new(
        "a Debian package name: lower-case letters, digits, `+`, `-` and `.`",
    ))
}

fn module_name(text: &str) -> Result<(), FormatError> {
    let plain = |name: &str| {
        let letter = |b: u8| b.is_ascii_alphanumeric() || b"_-".contains(&b);
        (1..=MAX_MODULE_NAME).contains(&name.len()) && name.bytes().all(letter)
    };
    if plain(text) {
        return Ok(());
    }
    let error = FormatError::new("the name of a kernel module: letters, digits, `_` and `-`");
    let file = text.rsplit('/').next().unwrap_or(text);
    let name = file.split('.').next().unwrap_or(file);
    Err(if plain(name) {
        error.hint(format!("write \"{name}\""))
    } else {
        error
    })
}

fn command_line(text: &str) -> Result<(), FormatError> {
    let error = || FormatError::new(EXPECTED_ARGUMENTS);
    if text.len() > MAX_CMDLINE {
        return Err(FormatError::new(&format!(
            "at most {MAX_CMDLINE} bytes of kernel arguments"
        )));
    }
    let printable = text
        .bytes()
        .all(|b| b == b' ' || (b.is_ascii_graphic() && b != b'"'));
    if !printable || text.split(' ').any(str::is_empty) && !text.is_empty() {
        return Err(error());
    }
    for word in text.split(' ') {
        let name = word.split('=').next().unwrap_or(word);
        // The kernel compares names of its arguments with `-` and `_` as one (`parameq`).
        let one = name.replace('-', "_");
        let ours = OURS.contains(&name) || kernel::is_ours(&one);
        if name.starts_with("pratique.") || one.starts_with("dm_mod.") || ours {
            return Err(error().hint(format!(
                "take out `{word}`: the image build sets `{name}` itself or leaves it out"
            )));
        }
    }
    Ok(())
}

/// Checks an image document.
pub(crate) fn check(raw: RawImageDocument, sink: &mut Sink<'_>) -> ImageConfig {
    let image = raw.image.map(|at| at.value).unwrap_or_default();
    let kernel = raw.kernel.map(|at| at.value).unwrap_or_default();
    let packages = raw.packages.map(|at| at.value).unwrap_or_default();
    let flavours = [
        ("cloud", KernelFlavour::Cloud),
        ("full", KernelFlavour::Full),
    ];
    let flavour = kernel
        .flavour
        .and_then(|text| sink.parsed(&text, one_of(&text.value, &flavours)));
    let lockdowns = [Lockdown::Confidentiality, Lockdown::Integrity]
        .map(|lockdown| (lockdown.name(), lockdown));
    let lockdown = kernel
        .lockdown
        .and_then(|text| sink.parsed(&text, one_of(&text.value, &lockdowns)));
    let owners = [StateOwner::Machine, StateOwner::UserData].map(|owner| (owner.name(), owner));
    let state = image
        .state
        .and_then(|text| sink.parsed(&text, one_of(&text.value, &owners)));
    ImageConfig {
        state: state.unwrap_or_default(),
        role: image.role.and_then(|text| sink.parse(&text)),
        id: image.id.and_then(|text| sink.parse(&text)),
        svn: image.svn.and_then(|svn| sink.number(&svn, &(1..=i64::MAX))),
        flavour: flavour.unwrap_or_default(),
        lockdown: lockdown.unwrap_or_default(),
        cmdline_extra: kernel
            .cmdline_extra
            .and_then(|text| sink.parse(&text))
            .unwrap_or_default(),
        modules: kernel.modules.map(|list| sink.parse_list(Some(&list))),
        initrd_modules: kernel
            .initrd_modules
            .map(|list| sink.parse_list(Some(&list))),
        extra_packages: sink.parse_list(packages.extra.as_ref()),
        metadata: image
            .metadata
            .and_then(|text| sink.parsed(&text, metadata(&text.value)))
            .unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::CommandLine;

    /// The kernel takes the later one of two values, and the description's come last.
    #[test]
    fn no_word_of_the_kernels_table_is_undone_by_another_way_to_write_it() {
        let refused = |word: &str| format!("quiet {word}").parse::<CommandLine>().is_err();
        for word in [
            "init_on_alloc=0",
            "init-on-alloc=0",
            "page-alloc.shuffle=0",
            "proc-mem.force-override=always",
            "lockdown=none",
            "dm-mod.create=x",
            "dm_mod.create=x",
            "rdinit=/x",
        ] {
            assert!(refused(word), "{word}");
        }
        for word in ["loglevel=4", "nvme_core.io-timeout=9"] {
            assert!(!refused(word), "{word}");
        }
    }
}
