//! The first stage: from the initrd's memory to the verified root.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use agent_sys::mount::{Limits, mount, move_mount, switch_root};
use agent_sys::power::End;
use agent_sys::verity::{Health, Superblock, Target};
use agent_sys::{process, verity};

use crate::console::Console;
use crate::disks::{self, Device};
use crate::fatal::{AfterFailure, Fatal};
use crate::guid::{Guid, of_root_hash};
use crate::{modules, mounts, settings};

/// The device-mapper name of the root.
pub const ROOT_NAME: &str = "root";
/// Where the second stage's program lies on the root.
pub const STAGE2: &str = "/usr/lib/pratique/init";
const NEW_ROOT: &str = "/sysroot";
const DISK_LIMIT: Duration = Duration::from_secs(60);
const RETRY_AFTER: Duration = Duration::from_secs(60);

const REWRITE: &str = "the disk's image is damaged or was changed: write the image again";
const DISK_CURE: &str =
    "attach the disk with this image's root, or write the image again; rebooting in a minute";

/// Why no root was opened.
#[derive(Debug, thiserror::Error)]
enum RootError {
    #[error("no disk has the partitions {0} and {1}")]
    NoDisk(Guid, Guid),
    #[error("the hash partition {0} can't be read")]
    Hash(String, #[source] std::io::Error),
    #[error("the hash partition {0} is unusable")]
    Superblock(String, #[source] verity::SuperblockError),
    #[error("the kernel command line has no single pratique.roothash=<64 hexadecimal digits>")]
    NoRootHash,
}

/// The kernel found a corrupted block of the root.
#[derive(Debug, thiserror::Error)]
#[error("the root partition has at least one block that is not as built")]
pub struct Corrupted;

/// Runs the first stage; it returns only on failure.
pub fn run() -> Fatal {
    match steps() {
        Err(fatal) => fatal,
        Ok(never) => match never {},
    }
}

/// Ends the first stage after a failure: stays up or reboots, as the failure says.
pub fn stop(fatal: &Fatal) -> ExitCode {
    match fatal.then {
        AfterFailure::Hold => loop {
            std::thread::park();
        },
        AfterFailure::RebootLater => {
            std::thread::sleep(RETRY_AFTER);
            drop(agent_sys::power::end(End::Reboot));
            ExitCode::FAILURE
        }
    }
}

fn steps() -> Result<std::convert::Infallible, Fatal> {
    let broken =
        |cause: agent_sys::Error| Fatal::retry("INITRD", "a fault of this image: report it", cause);
    mounts::apply(&mounts::EARLY).map_err(broken)?;
    let console = Console::open();
    console.milestone("initrd");
    for cause in modules::load_list("/modules/load", "/modules") {
        console.line(&Fatal::warning("MODULE", cause));
    }
    let command_line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let hash = settings::root_hash(&command_line).ok_or_else(|| {
        Fatal::hold(
            "CMDLINE",
            "boot the image's own kernel file, unchanged",
            RootError::NoRootHash,
        )
    })?;
    open_root(&hash)?;
    console.milestone("root verified");
    for entry in &mounts::EARLY {
        move_mount(entry.target, &format!("{NEW_ROOT}{}", entry.target)).map_err(broken)?;
    }
    remove_initrd(Path::new("/"));
    switch_root(NEW_ROOT).map_err(broken)?;
    Err(Fatal::hold(
        "VERITY",
        REWRITE,
        process::replace(STAGE2, &["stage2"]),
    ))
}

fn open_root(hash: &[u8; 32]) -> Result<(), Fatal> {
    let (root, tree) = of_root_hash(hash);
    let found = disks::wait_for(DISK_LIMIT, || disks::with_root(hash));
    let disk =
        found.ok_or_else(|| Fatal::retry("DISK", DISK_CURE, RootError::NoDisk(root, tree)))?;
    let (data, hashes) = (disk.data, disk.hashes);
    let superblock = superblock(&hashes).map_err(|cause| Fatal::hold("VERITY", REWRITE, cause))?;
    let number = |part: &Device| agent_sys::block::device_number(&part.name);
    let target = Target {
        name: ROOT_NAME.to_owned(),
        data: number(&data).map_err(|cause| Fatal::retry("DISK", DISK_CURE, cause))?,
        hash: number(&hashes).map_err(|cause| Fatal::retry("DISK", DISK_CURE, cause))?,
        superblock,
        root_hash: hex::encode(hash),
    };
    let node = verity::open(&target).map_err(|cause| Fatal::hold("VERITY", REWRITE, cause))?;
    let limits = Limits {
        read_only: true,
        no_suid: true,
        no_dev: true,
        no_exec: false,
    };
    let mounted = mounts::directory(NEW_ROOT, 0o755)
        .and_then(|()| mount(&node, NEW_ROOT, "erofs", limits, ""));
    mounted.map_err(|cause| match verity::health(ROOT_NAME) {
        Ok(Health::Corrupted) => Fatal::hold("VERITY", REWRITE, Corrupted),
        Ok(Health::Verified) | Err(_) => Fatal::hold("VERITY", REWRITE, cause),
    })
}

fn superblock(hashes: &Device) -> Result<Superblock, RootError> {
    let mut bytes = [0; 512];
    let read = File::open(hashes.node()).and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|cause| RootError::Hash(hashes.node(), cause))?;
    Superblock::parse(&bytes).map_err(|cause| RootError::Superblock(hashes.node(), cause))
}

/// Frees the initrd's memory: removes everything on its own filesystem, other mounts untouched.
fn remove_initrd(directory: &Path) {
    let Ok(own) = fs::symlink_metadata(directory).map(|meta| meta.dev()) else {
        return;
    };
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(meta) if meta.dev() == own && meta.is_dir() => {
                remove_initrd(&entry.path());
                // A file that can't be removed only costs memory.
                drop(fs::remove_dir(entry.path()));
            }
            Ok(meta) if meta.dev() == own => drop(fs::remove_file(entry.path())),
            Ok(_) | Err(_) => {}
        }
    }
}
