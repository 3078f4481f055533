//! An image, built from Debian's packages and stand-ins for our programs, opened with third-party
//! tools.
//!
//! Needs the packages of image/packages.lock (cached, or from the host's mirror); unpacks the tools
//! tree if it is missing.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of a test, which clippy takes for a program"
)]

use config_attest::release::{KnownRelease, Manifest, ReleaseKey};
use config_kube::ImageRelease;
use config_model::image::{KernelFlavour, Lockdown, Metadata, StateOwner};
use image_build::modules::Wanted;
use image_build::options::{Compress, Options, Role, SecureBoot};
use image_build::{build, keys, root};
use image_packages::Fetcher;
use image_packages::tools::{self, Tools};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const MIB: usize = 1 << 20;

struct World {
    folder: tempfile::TempDir,
    fetcher: Fetcher,
    tools: Tools,
    place: PathBuf,
}

/// One place of packages, tools, keys and programs for all tests; one worker image, built once.
fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .canonicalize()
            .unwrap();
        let place = |variable, path| {
            std::env::var_os(variable).map_or_else(|| repository.join(path), PathBuf::from)
        };
        let fetcher = Fetcher {
            cache: place("PRATIQUE_CACHE", ".pratique/cache"),
            lock: repository.join("image/packages.lock"),
            locked: false,
            notice: |text| println!("{text}"),
        };
        let place = place("PRATIQUE_TOOLS", ".pratique/tools");
        let tools = tools::build(&fetcher, &place).unwrap();
        let folder = tempfile::tempdir().unwrap();
        keys::ensure(&folder.path().join("keys")).unwrap();
        let programs = folder.path().join("bin");
        std::fs::create_dir(&programs).unwrap();
        for name in ["init", "agent", "master"] {
            std::fs::copy(tools.file("usr/bin/busybox"), programs.join(name)).unwrap();
        }
        let world = World {
            folder,
            fetcher,
            tools,
            place,
        };
        build::run(&world.fetcher, &world.options(Role::Worker, "first")).unwrap();
        world
    })
}

impl World {
    fn options(&self, role: Role, out: &str) -> Options {
        let keys = self.folder.path().join("keys");
        Options {
            role,
            out: self.folder.path().join(out),
            bin_dir: self.folder.path().join("bin"),
            tools: self.place.clone(),
            svn: 3,
            id: None,
            release_key: Some(keys.join(keys::names::RELEASE)),
            secure_boot: Some(SecureBoot {
                key: keys.join(keys::names::SECURE_BOOT),
                cert: keys.join(keys::names::SECURE_BOOT_CERT),
                pk_cert: None,
                kek_cert: None,
            }),
            compress: Compress::Dev,
            flavour: "cloud-amd64".to_owned(),
            modules: Wanted::of(KernelFlavour::Cloud, None).unwrap(),
            lockdown: Lockdown::default(),
            cmdline_extra: "quiet".to_owned(),
            metadata: Metadata::Auto,
            state: StateOwner::Machine,
            user_data: None,
            build_time: None,
        }
    }

    fn result(&self, role: Role, out: &str, suffix: &str) -> Vec<u8> {
        std::fs::read(build::result(&self.options(role, out), suffix)).unwrap()
    }

    fn release(&self, role: Role, out: &str) -> ImageRelease {
        serde_json::from_slice(&self.result(role, out, "release.json")).unwrap()
    }

    fn manifest(&self, role: Role, out: &str) -> Manifest {
        Manifest::parse(&self.release(role, out).spec.manifest).unwrap()
    }

    fn tool(&self, name: &str) -> Command {
        Command::new(self.tools.program(name))
    }

    /// A partition's content, found by its number in the table, as a file.
    fn partition(&self, role: Role, out: &str, index: usize) -> PathBuf {
        let disk = self.result(role, out, "raw");
        let entry = &disk[1024 + index * 128..][..128];
        let sector = |at: usize| {
            usize::try_from(u64::from_le_bytes(entry[at..at + 8].try_into().unwrap())).unwrap()
        };
        let path = self
            .folder
            .path()
            .join(format!("{out}.{}.{index}", role.name()));
        std::fs::write(&path, &disk[sector(32) * 512..(sector(40) + 1) * 512]).unwrap();
        path
    }
}

fn succeeds(command: &mut Command) {
    let done = command.output().unwrap();
    assert!(
        done.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
}

#[test]
fn two_builds_are_identical_bit_for_bit() {
    let world = world();
    build::run(&world.fetcher, &world.options(Role::Worker, "second")).unwrap();
    for suffix in ["raw", "efi", "release.json", "parts.json"] {
        let same = world.result(Role::Worker, "first", suffix)
            == world.result(Role::Worker, "second", suffix);
        assert!(same, "worker.{suffix} differs between two builds");
    }
}

#[test]
fn another_security_version_is_another_image() {
    let world = world();
    let mut options = world.options(Role::Worker, "newer");
    options.svn = 4;
    build::run(&world.fetcher, &options).unwrap();
    let (old, new) = (
        world.manifest(Role::Worker, "first"),
        world.manifest(Role::Worker, "newer"),
    );
    assert_ne!(old.id, new.id);
    assert_ne!(old.root_hash, new.root_hash);
    assert_ne!(old.boots[0].pcrs[&11], new.boots[0].pcrs[&11]);
}

#[test]
fn a_master_is_a_worker_with_one_program_more() {
    let world = world();
    build::run(&world.fetcher, &world.options(Role::Master, "first")).unwrap();
    let paths = |role| -> BTreeSet<String> {
        world
            .manifest(role, "first")
            .executables
            .into_iter()
            .map(|e| e.path)
            .collect()
    };
    let (worker, master) = (paths(Role::Worker), paths(Role::Master));
    assert_eq!(
        master.difference(&worker).collect::<Vec<_>>(),
        ["/usr/bin/master"]
    );
    assert!(worker.is_subset(&master));
}

#[test]
fn the_image_holds_the_promised_executables_and_no_shell_or_setuid_file() {
    let world = world();
    let into = world.folder.path().join("extracted");
    let erofs = world.partition(Role::Worker, "first", 1);
    succeeds(
        world
            .tool("fsck.erofs")
            .arg(format!("--extract={}", into.display()))
            .arg(&erofs),
    );
    let mut found = BTreeSet::new();
    let mut open = vec![into.clone()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            let shown = format!("/{}", path.strip_prefix(&into).unwrap().display());
            let name = path.file_name().unwrap().to_str().unwrap();
            let mode = metadata.permissions().mode();
            if metadata.is_dir() {
                open.push(path);
                continue;
            }
            assert!(
                !["sh", "bash", "dash", "busybox", "apt", "dpkg", "sshd"].contains(&name),
                "{shown} is in the image"
            );
            if metadata.is_file() {
                assert_eq!(mode & 0o6000, 0, "{shown} is setuid or setgid");
                if mode & 0o111 != 0 {
                    found.insert(shown);
                }
            }
        }
    }
    let promised: BTreeSet<String> = root::promised(Role::Worker)
        .iter()
        .map(|path| (*path).to_owned())
        .collect();
    assert_eq!(found, promised);
    let listed: BTreeSet<String> = world
        .manifest(Role::Worker, "first")
        .executables
        .into_iter()
        .map(|e| e.path)
        .collect();
    assert_eq!(listed, promised);
}

#[test]
fn the_command_line_holds_every_word_of_the_kernels_table_once() {
    let world = world();
    let line = world.manifest(Role::Worker, "first").command_line;
    for wanted in config_machine::kernel::words(Lockdown::Confidentiality) {
        assert_eq!(
            line.split(' ').filter(|word| **word == wanted).count(),
            1,
            "{wanted} in {line}"
        );
    }
    let mut options = world.options(Role::Worker, "opened");
    options.lockdown = Lockdown::Integrity;
    build::run(&world.fetcher, &options).unwrap();
    let (closed, opened) = (
        world.manifest(Role::Worker, "first"),
        world.manifest(Role::Worker, "opened"),
    );
    assert!(
        opened.command_line.contains(" lockdown=integrity "),
        "{}",
        opened.command_line
    );
    assert_ne!(closed.id, opened.id);
    assert_ne!(
        closed.boots[0].pcrs[&9], opened.boots[0].pcrs[&9],
        "it is measured"
    );
    let mut options = world.options(Role::Worker, "long");
    options.cmdline_extra = "x".repeat(config_machine::kernel::COMMAND_LINE_MAX);
    let error = build::run(&world.fetcher, &options).unwrap_err();
    assert!(error.to_string().contains("the kernel takes"), "{error}");
}

#[test]
fn the_image_holds_debians_certificate_authorities() {
    let world = world();
    let into = world.folder.path().join("authorities");
    let erofs = world.partition(Role::Worker, "first", 1);
    succeeds(
        world
            .tool("fsck.erofs")
            .arg(format!("--extract={}", into.display()))
            .arg(&erofs),
    );
    let pem = std::fs::read(into.join("etc/ssl/certs/ca-certificates.crt")).unwrap();
    let authorities: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .unwrap();
    assert!(authorities.len() > 100, "{} authorities", authorities.len());
    for der in &authorities {
        webpki::anchor_from_trusted_cert(der).unwrap();
    }
}

#[test]
fn readme_names_every_executable_that_an_image_may_hold() {
    let readme =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md"))
            .unwrap();
    for path in root::promised(Role::Master) {
        assert!(
            readme.contains(&format!("`{path}`")),
            "README.md does not name {path}"
        );
    }
}

#[test]
fn veritysetup_accepts_the_root_and_refuses_a_flipped_byte() {
    let world = world();
    let root = world.partition(Role::Worker, "first", 1);
    let tree = world.partition(Role::Worker, "first", 2);
    let hash = world.manifest(Role::Worker, "first").root_hash.to_hex();
    succeeds(
        world
            .tool("veritysetup")
            .arg("verify")
            .arg(&root)
            .arg(&tree)
            .arg(&hash),
    );
    let flipped = world.folder.path().join("flipped");
    let mut bytes = std::fs::read(&root).unwrap();
    bytes[20 * MIB] ^= 1;
    std::fs::write(&flipped, bytes).unwrap();
    let done = world
        .tool("veritysetup")
        .arg("verify")
        .arg(&flipped)
        .arg(&tree)
        .arg(&hash)
        .output()
        .unwrap();
    assert!(
        !done.status.success(),
        "veritysetup accepted a changed root"
    );
}

#[test]
fn the_system_partition_starts_the_signed_kernel_image() {
    let world = world();
    let esp = world.partition(Role::Worker, "first", 0);
    let copy = world.folder.path().join("copy.efi");
    succeeds(
        world
            .tool("mcopy")
            .arg("-i")
            .arg(&esp)
            .arg("::EFI/BOOT/BOOTX64.EFI")
            .arg(&copy),
    );
    let started = std::fs::read(copy).unwrap();
    assert!(started == world.result(Role::Worker, "first", "efi"));
    let hash = image_format::pe::authenticode_hash(&started).unwrap();
    let boots = world.manifest(Role::Worker, "first").boots;
    assert_eq!(
        boots[0].events[&4].last().map(|event| event.digest.0),
        Some(hash)
    );
    assert!(boots[0].secure_boot && !boots[1].secure_boot);
}

#[test]
fn the_release_verifies_under_its_key_and_no_other() {
    let world = world();
    let pem = std::fs::read_to_string(
        world
            .folder
            .path()
            .join("keys")
            .join(keys::names::RELEASE_PUBLIC),
    )
    .unwrap();
    let other = world.folder.path().join("other");
    keys::ensure_release(&other).unwrap();
    let other = std::fs::read_to_string(other.join(keys::names::RELEASE_PUBLIC)).unwrap();
    let known = [
        ReleaseKey::from_pem("ours", &pem).unwrap(),
        ReleaseKey::from_pem("other", &other).unwrap(),
    ];
    let release = KnownRelease::open(&world.release(Role::Worker, "first"), &known).unwrap();
    assert_eq!(release.verified_by(), ["ours"]);
}

#[test]
fn a_program_that_is_not_static_is_refused_as_init() {
    let world = world();
    let mut options = world.options(Role::Worker, "refused");
    options.bin_dir = world.folder.path().join("dynamic");
    std::fs::create_dir(&options.bin_dir).unwrap();
    for name in ["init", "agent"] {
        std::fs::copy(world.tools.file("usr/bin/zstd"), options.bin_dir.join(name)).unwrap();
    }
    let error = build::run(&world.fetcher, &options).unwrap_err();
    assert!(error.to_string().contains("not static"), "{error}");
}
