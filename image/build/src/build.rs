//! The build, step by step.

use crate::disk;
use crate::error::{Error, Result, at, read, write};
use crate::options::{Options, SecureBoot};
use crate::release::{Enrolled, Sizes};
use crate::root::{Entries, Inputs};
use crate::{initrd, keys, modules, release, root, rootfiles, uki};
use config_attest::release::{Executable, MANIFEST_VERSION, Manifest, Part};
use config_kube::{ImageRelease, ImageReleaseSpec};
use config_machine::kernel::{self, Lockdown};
use config_tpm::Digest;
use config_tpm::boot::Boot;
use config_unlock::approvals::{Approvals, Approver};
use image_format::tar::Entry;
use image_format::{Guid, verity};
use image_packages::tools::{self, Tools};
use image_packages::{Fetcher, Package, Set, elf, unpack};
use p256::ecdsa::SigningKey;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const STUB: &str = "usr/lib/systemd/boot/efi/linuxx64.efi.stub";

/// The result of a build.
#[derive(Debug)]
pub struct Built {
    /// The manifest.
    pub manifest: Manifest,
    /// Sizes.
    pub sizes: Sizes,
}

/// Unpacked packages and what they are.
struct Tree {
    folder: PathBuf,
    packages: Vec<Package>,
    kernel: String,
}

/// The content of an image, before it has an id.
struct Contents {
    entries: Entries,
    executables: Vec<Executable>,
    initrd: Vec<u8>,
}

/// The root file system and the hash tree over it.
struct Root {
    bytes: Vec<u8>,
    hashed: verity::Tree,
}

/// The kernel image and what it was made from.
struct Kernel {
    linux: Vec<u8>,
    command_line: String,
    uki: uki::Uki,
    boots: Vec<Boot>,
}

/// Builds an image into `options.out`: `ROLE.raw`, `ROLE.efi`, `ROLE.release.json`,
/// `ROLE.parts.json`.
///
/// # Errors
/// Packages or tools cannot be fetched, a program is missing, an input is refused, or the output
/// cannot be written.
pub fn run(fetcher: &Fetcher, options: &Options) -> Result<Built> {
    let work = work_folder(options)?;
    let tools = tools::build(fetcher, &options.tools)?;
    let tree = tree(fetcher, &options.flavour)?;
    let programs = programs(options)?;
    let build_time = options
        .build_time
        .map_or_else(|| newest(&tree.folder), Ok)?;
    let mut contents = contents(&tools, &tree, &programs, options, &work)?;
    let (release_key, approver) = approver(options)?;
    let approver = approver.as_deref();
    let derived = || derived_id(options, &tree, build_time, &contents, approver);
    let id = options.id.clone().unwrap_or_else(derived);
    (fetcher.notice)(&format!(
        "{} image {id}, kernel {}",
        options.role.name(),
        tree.kernel
    ));
    let label = rootfiles::Label {
        role: options.role,
        kernel: &tree.kernel,
        id: &id,
        svn: options.svn,
        build_time,
        metadata: options.metadata,
        state: options.state,
        approver,
    };
    root::label(&mut contents.entries, &label);
    let root = root_disk(&tools, &contents.entries, &label, options, &work)?;
    let kernel = kernel(&tree, &contents.initrd, &root.hashed.root, &id, options)?;
    let approvals = approvals(release_key.as_ref(), options, &kernel.boots)?;
    let disk = disk::Content {
        id: &id,
        uki: &kernel.uki.bytes,
        root: &root.bytes,
        verity: &root.hashed.bytes,
        root_hash: &root.hashed.root,
        approvals: &approvals,
    };
    disk::write(&result(options, "raw"), &disk)?;
    write(&result(options, "efi"), &kernel.uki.bytes)?;
    let parts = [
        ("uki", &kernel.uki.bytes),
        ("root", &root.bytes),
        ("verity", &root.hashed.bytes),
        ("linux", &kernel.linux),
        ("initrd", &contents.initrd),
    ];
    let manifest = Manifest {
        version: MANIFEST_VERSION,
        id,
        role: options.role.name().to_owned(),
        svn: options.svn,
        build_time,
        kernel: tree.kernel.clone(),
        command_line: kernel.command_line,
        root_hash: Digest(root.hashed.root),
        boots: kernel.boots,
        parts: parts.map(|(name, bytes)| release::part(name, bytes)).into(),
        packages: release::packages(&tree.packages)?,
        executables: contents.executables,
    };
    let sizes = sizes(&manifest, &contents.entries);
    publish(options, &manifest, &sizes)?;
    std::fs::remove_dir_all(&work).map_err(at("remove", &work))?;
    Ok(Built { manifest, sizes })
}

/// The files of the root and the initrd, from packages and programs.
fn contents(
    tools: &Tools,
    tree: &Tree,
    programs: &BTreeMap<String, Vec<u8>>,
    options: &Options,
    work: &Path,
) -> Result<Contents> {
    let folder = tree.folder.join("usr/lib/modules").join(&tree.kernel);
    let picked = modules::pick(tools, &folder, &options.modules)?;
    let inputs = Inputs {
        tree: &tree.folder,
        role: options.role,
        programs,
        modules: &picked.running,
        kernel: &tree.kernel,
        user_data: options.user_data.as_deref(),
    };
    let entries = root::entries(&inputs)?;
    let executables = release::executables(&entries);
    let init = programs
        .get("init")
        .ok_or_else(|| Error::Image("no program init was given".to_owned()))?;
    let initrd = initrd::make(tools, init, &picked.initrd, options.compress.zstd(), work)?;
    Ok(Contents {
        entries,
        executables,
        initrd,
    })
}

fn root_disk(
    tools: &Tools,
    entries: &Entries,
    label: &rootfiles::Label<'_>,
    options: &Options,
    work: &Path,
) -> Result<Root> {
    let id = label.id;
    let uuid = |what: &str| Guid::derived(&[b"pratique", id.as_bytes(), what.as_bytes()]);
    let bytes = root::file_system(
        tools,
        entries,
        options.compress,
        label.build_time,
        uuid("root file system"),
        work,
    )?;
    let hashed = verity::tree(&bytes, &salt(id), uuid("verity tree"));
    Ok(Root { bytes, hashed })
}

/// The kernel image that starts the root of this hash and no other.
fn kernel(
    tree: &Tree,
    initrd: &[u8],
    root_hash: &[u8; 32],
    id: &str,
    options: &Options,
) -> Result<Kernel> {
    let command_line = command_line(root_hash, options.lockdown, &options.cmdline_extra)?;
    let osrel = rootfiles::os_release(options.role, id, options.svn);
    let linux = read(&tree.folder.join(format!("boot/vmlinuz-{}", tree.kernel)))?;
    let stub = read(&tree.folder.join(STUB))?;
    let parts = uki::Parts {
        stub: &stub,
        linux: &linux,
        osrel: &osrel,
        command_line: &command_line,
        initrd,
        uname: &tree.kernel,
    };
    let (uki, enrolled) = kernel_image(&parts, options.secure_boot.as_ref())?;
    let boots = release::boots(&uki.measured, enrolled.as_ref());
    Ok(Kernel {
        linux,
        command_line,
        uki,
        boots,
    })
}

/// The folder of temporary files.
fn work_folder(options: &Options) -> Result<PathBuf> {
    let work = options.out.join(format!(".work.{}", options.role.name()));
    std::fs::create_dir_all(&work).map_err(at("make", &work))?;
    Ok(work)
}

/// The path of a result.
pub fn result(options: &Options, suffix: &str) -> PathBuf {
    options
        .out
        .join(format!("{}.{suffix}", options.role.name()))
}

/// The packages of image and kernel, unpacked side by side in the cache, under a name derived from
/// their digests.
fn tree(fetcher: &Fetcher, flavour: &str) -> Result<Tree> {
    let sets = [Set::image(), Set::kernel(flavour)];
    let mut packages = Vec::new();
    for set in &sets {
        packages.extend(fetcher.planned(set)?.unwrap_or_default());
    }
    let mut folder = tree_folder(fetcher, &packages);
    if !folder.exists() {
        packages.clear();
        for set in &sets {
            packages.extend(fetcher.fetch(set)?);
        }
        folder = tree_folder(fetcher, &packages);
    }
    if !folder.exists() {
        (fetcher.notice)(&format!("unpacking {} packages", packages.len()));
        let fresh = folder.with_extension(std::process::id().to_string());
        unpack::into_tree(&packages, &fresh)?;
        match std::fs::rename(&fresh, &folder) {
            // Another build was faster.
            Err(_) if folder.exists() => {
                std::fs::remove_dir_all(&fresh).map_err(at("remove", &fresh))?;
            }
            other => other.map_err(at("rename", &fresh))?,
        }
    }
    let modules = folder.join("usr/lib/modules");
    let kernel = std::fs::read_dir(&modules)
        .map_err(at("list", &modules))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .max()
        .ok_or_else(|| Error::Image("the kernel's package has no modules".to_owned()))?;
    Ok(Tree {
        folder,
        packages,
        kernel,
    })
}

fn tree_folder(fetcher: &Fetcher, packages: &[Package]) -> PathBuf {
    let list: String = packages.iter().map(|p| p.locked.sha256.as_str()).collect();
    fetcher
        .cache
        .join("trees")
        .join(&Digest::of(list.as_bytes()).to_hex()[..16])
}

/// The project's programs, stripped to the parts that the kernel loads.
fn programs(options: &Options) -> Result<BTreeMap<String, Vec<u8>>> {
    let names: &[&str] = match options.role {
        crate::options::Role::Worker => &["init", "agent"],
        crate::options::Role::Master => &["init", "agent", "master"],
    };
    let mut out = BTreeMap::new();
    for name in names {
        let path = options.bin_dir.join(name);
        let elf = |source| Error::Elf {
            path: path.display().to_string(),
            source,
        };
        let bytes = read(&path)?;
        let needs = elf::needs(&bytes).map_err(elf)?;
        if *name == "init" && (needs.interpreter.is_some() || !needs.libraries.is_empty()) {
            return Err(Error::Image(format!(
                "{} is not static; build it with RUSTFLAGS=\"-C target-feature=+crt-static\" and --target",
                path.display()
            )));
        }
        out.insert((*name).to_owned(), elf::loaded_part(&bytes).map_err(elf)?);
    }
    Ok(out)
}

/// `ROLE-` and 12 digits of a digest over the image's whole content.
fn derived_id(
    options: &Options,
    tree: &Tree,
    build_time: u64,
    contents: &Contents,
    approver: Option<&str>,
) -> String {
    let Options {
        compress,
        svn,
        flavour,
        lockdown,
        cmdline_extra,
        metadata,
        state,
        ..
    } = options;
    let (metadata, state) = (metadata.name(), state.name());
    let words = kernel::words(*lockdown);
    let contents = [
        root::digest(&contents.entries, &contents.executables),
        Digest::of(&contents.initrd),
    ];
    let mut text = format!(
        "{compress:?} {svn} {flavour} {build_time} {words:?} {cmdline_extra:?} {metadata} {state} {contents:?}\n"
    );
    text.extend(approver);
    for package in &tree.packages {
        text.extend([&package.locked.sha256, "\n"]);
    }
    format!(
        "{}-{}",
        options.role.name(),
        &Digest::of(text.as_bytes()).to_hex()[..12]
    )
}

/// The release key, if there is one, as the image's description names it.
fn approver(options: &Options) -> Result<(Option<SigningKey>, Option<String>)> {
    let key = options
        .release_key
        .as_deref()
        .map(keys::release_key)
        .transpose()?;
    let hex = key
        .as_ref()
        .map(|key| Approver::new(*key.verifying_key(), options.role.approved()).to_hex());
    Ok((key, hex))
}

/// The release key's approvals of the image's boots; empty without a key.
fn approvals(key: Option<&SigningKey>, options: &Options, boots: &[Boot]) -> Result<Vec<u8>> {
    let Some(key) = key else {
        return Ok(Vec::new());
    };
    let bytes = Approvals::sign(key, options.role.approved(), options.svn, boots).to_bytes();
    bytes.map_err(|_too_many| {
        Error::Image("the image may start in more ways than it has room to approve".to_owned())
    })
}

/// The salt of the verity tree. It is derived from the image's id, so that builds are reproducible,
/// and need not be secret.
fn salt(id: &str) -> [u8; 32] {
    Digest::of_parts(&[b"pratique verity salt", id.as_bytes()]).0
}

/// The kernel command line: the words of [`config_machine::kernel`], the root's hash, and the
/// further arguments of the description.
fn command_line(root: &[u8; 32], lockdown: Lockdown, extra: &str) -> Result<String> {
    let mut words = kernel::words(lockdown);
    words.push(format!("pratique.roothash={}", Digest(*root).to_hex()));
    words.extend((!extra.is_empty()).then(|| extra.to_owned()));
    let line = words.join(" ");
    if line.len() > kernel::COMMAND_LINE_MAX {
        let (found, most) = (line.len(), kernel::COMMAND_LINE_MAX);
        return Err(Error::Image(format!(
            "the command line has {found} bytes, the kernel takes {most}"
        )));
    }
    Ok(line)
}

/// Unix seconds of the newest file in a tree of packages; what dpkg-deb unpacks keeps its time.
fn newest(folder: &Path) -> Result<u64> {
    let mut newest = 0;
    let mut open = vec![folder.to_owned()];
    while let Some(path) = open.pop() {
        for entry in std::fs::read_dir(&path).map_err(at("list", &path))? {
            let entry = entry.map_err(at("list", &path))?;
            let metadata = entry.metadata().map_err(at("examine", &entry.path()))?;
            if metadata.is_dir() {
                open.push(entry.path());
            } else if metadata.is_file() {
                newest = newest.max(std::os::unix::fs::MetadataExt::mtime(&metadata));
            }
        }
    }
    Ok(u64::try_from(newest).unwrap_or_default())
}

fn kernel_image(
    parts: &uki::Parts<'_>,
    boot: Option<&SecureBoot>,
) -> Result<(uki::Uki, Option<Enrolled>)> {
    let Some(boot) = boot else {
        return Ok((uki::make(parts, None)?, None));
    };
    let key = keys::secure_boot_key(&boot.key)?;
    let db = keys::certificate(&boot.cert)?;
    let other = |path: &Option<PathBuf>| {
        path.as_ref()
            .map_or_else(|| Ok(db.clone()), |path| keys::certificate(path))
    };
    let enrolled = Enrolled {
        pk: other(&boot.pk_cert)?,
        kek: other(&boot.kek_cert)?,
        db: db.clone(),
    };
    let signer = uki::Signer {
        key: &key,
        certificate: &db,
    };
    Ok((uki::make(parts, Some(signer))?, Some(enrolled)))
}

fn sizes(manifest: &Manifest, entries: &Entries) -> Sizes {
    let carried = |part: &&Part| matches!(part.name.as_str(), "uki" | "root" | "verity");
    let mut executables = manifest.executables.clone();
    executables.sort_by_key(|e| std::cmp::Reverse(e.size));
    let mut files: Vec<(String, u64)> = entries
        .iter()
        .filter_map(|(path, entry)| match entry {
            Entry::File(_, content) => Some((format!("/{path}"), content.len() as u64)),
            Entry::Folder(_) | Entry::Link(_) => None,
        })
        .collect();
    files.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    let total = manifest
        .parts
        .iter()
        .filter(carried)
        .map(|part| part.size)
        .sum();
    Sizes {
        total,
        parts: manifest.parts.clone(),
        executables,
        files,
    }
}

/// Writes the release, signed where a key is given, and the sizes.
fn publish(options: &Options, manifest: &Manifest, sizes: &Sizes) -> Result<()> {
    let release = if let Some(path) = &options.release_key {
        manifest.sign(&[&keys::release_key(path)?])?
    } else {
        let manifest_text =
            serde_json::to_string(manifest).map_err(|e| Error::Json("the manifest", e))?;
        ImageRelease::named(
            &manifest.id,
            ImageReleaseSpec {
                manifest: manifest_text,
                signatures: Vec::new(),
            },
        )
    };
    let json = |what, value: serde_json::Result<Vec<u8>>| value.map_err(|e| Error::Json(what, e));
    write(
        &result(options, "release.json"),
        &json("the release", serde_json::to_vec_pretty(&release))?,
    )?;
    write(
        &result(options, "parts.json"),
        &json("the sizes", serde_json::to_vec_pretty(sizes))?,
    )
}
