//! Kernel modules: which ones, and in which order they load.
//!
//! Debian's kernel packages carry no `modules.dep`; each module names what it needs in its
//! `.modinfo` section.

use crate::error::{Error, Result, at, read};
use config_machine::kernel;
use config_model::image::{ImageConfig, KernelFlavour, ModuleName};
use config_model::{Document, parse};
use image_packages::run::output;
use image_packages::tools::Tools;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The lists of images whose description names none.
const CLOUD: &str = include_str!("../cloud.toml");
/// The lists for the flavour that also runs on hardware.
const FULL: &str = include_str!("../full.toml");

/// Features that every image must have, and the modules for each. A description may list more
/// modules, and other drivers.
const NEEDED: [(&str, &[&str]); 5] = [
    ("the root", &["dm_verity", "erofs"]),
    ("the encrypted state", &["ext4", "dm_crypt", "xts"]),
    ("the root of containers", &["overlay"]),
    (
        "the pod network",
        &[
            "veth",
            "nf_tables",
            "nft_ct",
            "nft_chain_nat",
            "nft_masq",
            "nft_connlimit",
            "nft_limit",
            "wireguard",
        ],
    ),
    (
        "the way to services",
        &[
            "nft_nat",
            "nft_numgen",
            "nft_reject_ipv4",
            "nft_reject_ipv6",
            "nf_conntrack_netlink",
        ],
    ),
];

/// A module that no image's kernel has, also not built in: sockets to the host of a virtual
/// machine. Filters of system calls keep them from containers, but not from 32-bit programs: these
/// make sockets by `socketcall`, whose arguments no filter sees.
const KEPT_OUT: &str = "vsock";

/// A module, unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// File name in an image: `virtio_blk.ko`.
    pub file: String,
    /// Path below `/usr/lib/modules/<release>`, without compression suffix.
    pub path: String,
    /// The ELF file.
    pub bytes: Vec<u8>,
}

/// Modules of an image, each list in load order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modules {
    /// Of the initrd.
    pub initrd: Vec<Module>,
    /// Of the running system, without those that the initrd loaded.
    pub running: Vec<Module>,
}

/// The modules that an image is to have, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Of the initrd.
    pub initrd: Vec<String>,
    /// Of the running system.
    pub running: Vec<String>,
}

impl Wanted {
    /// Those that a description names; a list that it leaves out is the flavour's.
    ///
    /// # Errors
    /// The flavour's own lists are damaged: this program was not built from a good tree.
    pub fn of(flavour: KernelFlavour, described: Option<&ImageConfig>) -> Result<Self> {
        let (text, name) = match flavour {
            KernelFlavour::Cloud => (CLOUD, "image/build/cloud.toml"),
            KernelFlavour::Full => (FULL, "image/build/full.toml"),
        };
        let Document::Image(default) = parse(text, name)? else {
            return Err(Error::Image(format!("{name} describes no image")));
        };
        let names = |list: fn(&ImageConfig) -> Option<&Vec<ModuleName>>| {
            let list = described.and_then(list).or(list(&default));
            list.into_iter().flatten().map(ToString::to_string)
        };
        Ok(Self {
            initrd: names(|image| image.initrd_modules.as_ref()).collect(),
            running: names(|image| image.modules.as_ref()).collect(),
        })
    }
}

/// Picks modules from an unpacked kernel's `/usr/lib/modules/<release>`.
///
/// # Errors
/// A module that is wanted, or one that it needs, is missing or cannot be unpacked; the lists lack
/// one that images cannot do without; they have too many, or one that is kept out.
pub fn pick(tools: &Tools, folder: &Path, wanted: &Wanted) -> Result<Modules> {
    let mut modules = ModuleFolder::open(tools, folder)?;
    let mut loaded = BTreeSet::new();
    let initrd = modules.closure("kernel.initrd_modules", &wanted.initrd, &mut loaded)?;
    let [root, others @ ..] = &NEEDED;
    needed("kernel.initrd_modules", &[*root], &loaded, &modules.builtin)?;
    let running = modules.closure("kernel.modules", &wanted.running, &mut loaded)?;
    needed("kernel.modules", others, &loaded, &modules.builtin)?;
    keep_out(loaded.union(&modules.builtin))?;
    Ok(Modules { initrd, running })
}

/// Checks that an image has the modules that some purposes take.
fn needed(
    key: &str,
    purposes: &[(&str, &[&str])],
    loaded: &BTreeSet<String>,
    builtin: &BTreeSet<String>,
) -> Result<()> {
    for (purpose, names) in purposes {
        let there = |name: &str| loaded.contains(name) || builtin.contains(name);
        if let Some(name) = names.iter().find(|name| !there(name)) {
            return Err(Error::Image(format!(
                "{key} lacks {name}, which {purpose} needs: add it, or take {key} out to have the flavour's list"
            )));
        }
    }
    Ok(())
}

/// Checks that [`KEPT_OUT`] is not among the modules of an image.
fn keep_out<'a>(mut names: impl Iterator<Item = &'a String>) -> Result<()> {
    if names.any(|name| name == KEPT_OUT) {
        return Err(Error::Image(format!(
            "the kernel would have {KEPT_OUT}, by which 32-bit programs in containers reach the host of a virtual machine; \
             take what needs it out of kernel.modules, or choose another flavour"
        )));
    }
    Ok(())
}

/// The modules of a kernel, by name.
struct ModuleFolder<'a> {
    tools: &'a Tools,
    files: BTreeMap<String, PathBuf>,
    builtin: BTreeSet<String>,
    folder: PathBuf,
}

impl<'a> ModuleFolder<'a> {
    fn open(tools: &'a Tools, folder: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        let mut open = vec![folder.join("kernel")];
        while let Some(path) = open.pop() {
            for entry in std::fs::read_dir(&path).map_err(at("list", &path))? {
                let entry = entry.map_err(at("list", &path))?.path();
                if entry.is_dir() {
                    open.push(entry);
                } else if let Some(name) = module_name(&entry) {
                    files.insert(name, entry);
                }
            }
        }
        let list = folder.join("modules.builtin");
        let text = std::fs::read_to_string(&list).map_err(at("read", &list))?;
        let builtin = text
            .lines()
            .filter_map(|line| module_name(Path::new(line)))
            .collect();
        Ok(Self {
            tools,
            files,
            builtin,
            folder: folder.to_owned(),
        })
    }

    /// The modules that a key of the description names and what they need, in load order, without
    /// those in `loaded`, to which they are added.
    fn closure(
        &mut self,
        key: &str,
        names: &[String],
        loaded: &mut BTreeSet<String>,
    ) -> Result<Vec<Module>> {
        let mut out = Vec::new();
        for name in names {
            self.add(&format!("{key} names {name}"), name, loaded, &mut out)?;
        }
        if out.len() > kernel::MAX_MODULES {
            return Err(Error::Image(format!(
                "{key} comes to {} modules with those that they need, and init loads at most {}; take some out",
                out.len(),
                kernel::MAX_MODULES
            )));
        }
        Ok(out)
    }

    /// Adds a module after those that it needs; `why` names the setting or module that needs it.
    fn add(
        &mut self,
        why: &str,
        name: &str,
        loaded: &mut BTreeSet<String>,
        out: &mut Vec<Module>,
    ) -> Result<()> {
        let name = name.replace('-', "_");
        if self.builtin.contains(&name) || !loaded.insert(name.clone()) {
            return Ok(());
        }
        let file = self.files.get(&name).cloned().ok_or_else(|| {
            Error::Image(format!(
                "{why}, and the kernel has no such module: correct the name, take it out, or choose the flavour that has it"
            ))
        })?;
        let module = self.unpacked(&name, &file)?;
        for needed in listed(&module.bytes, b"\0depends=", ',') {
            self.add(
                &format!("{why}, which needs {needed}"),
                &needed,
                loaded,
                out,
            )?;
        }
        for wished in listed(&module.bytes, b"\0softdep=pre: ", ' ') {
            if let Some(found) = self.soft(&wished) {
                self.add(why, &found, loaded, out)?;
            }
        }
        out.push(module);
        Ok(())
    }

    /// The module meant by a soft dependency, which may be the name of an algorithm: its generic
    /// implementation.
    fn soft(&self, name: &str) -> Option<String> {
        let name = name.trim_start_matches("crypto-").replace('-', "_");
        [format!("{name}_generic"), name]
            .into_iter()
            .find(|name| self.files.contains_key(name))
    }

    fn unpacked(&self, name: &str, file: &Path) -> Result<Module> {
        let compressed = file.extension().is_some_and(|e| e == "xz");
        let bytes = if compressed {
            output(Command::new(self.tools.program("xz")).arg("-dc").arg(file))?
        } else {
            read(file)?
        };
        let path = file
            .strip_prefix(&self.folder)
            .unwrap_or(file)
            .to_string_lossy();
        let path = path.trim_end_matches(".xz").to_owned();
        Ok(Module {
            file: format!("{name}.ko"),
            path,
            bytes,
        })
    }
}

fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let name = name
        .strip_suffix(".xz")
        .unwrap_or(name)
        .strip_suffix(".ko")?;
    Some(name.replace('-', "_"))
}

/// The names in the first entry of a module's information that begins with `key` (a NUL, the
/// entry's name, `=`).
fn listed(bytes: &[u8], key: &[u8], between: char) -> Vec<String> {
    let Some(at) = bytes.windows(key.len()).position(|window| window == key) else {
        return Vec::new();
    };
    let rest = &bytes[at + key.len()..];
    let end = rest.iter().position(|b| *b == 0).unwrap_or(0);
    String::from_utf8_lossy(&rest[..end])
        .split(between)
        .filter(|n| !n.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_are_read_from_module_information() {
        let depends = |bytes| listed(bytes, b"\0depends=", ',');
        assert_eq!(
            depends(b"x\0license=GPL\0depends=dm-mod,dm-bufio\0intree=Y\0"),
            ["dm-mod", "dm-bufio"]
        );
        assert!(depends(b"x\0depends=\0").is_empty());
        assert!(depends(b"no information").is_empty());
        assert_eq!(
            listed(b"\0softdep=pre: crc32c b\0", b"\0softdep=pre: ", ' '),
            ["crc32c", "b"]
        );
    }

    /// A kernel of modules with what each needs; it has `erofs` built in.
    fn kernel(modules: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("kernel")).unwrap();
        for (name, needs) in modules {
            let path = folder.path().join(format!("kernel/{name}.ko"));
            std::fs::write(path, format!("ELF\0depends={needs}\0")).unwrap();
        }
        std::fs::write(folder.path().join("modules.builtin"), "kernel/erofs.ko\n").unwrap();
        folder
    }

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn picked(folder: &Path, initrd: &[&str], running: &[&str]) -> Result<Modules> {
        let tools = Tools::at(Path::new("/"));
        let (initrd, running) = (owned(initrd), owned(running));
        pick(&tools, folder, &Wanted { initrd, running })
    }

    #[test]
    fn lists_of_a_description_are_loaded_in_their_order_after_what_they_need() {
        let all = NEEDED.iter().flat_map(|(_, names)| *names);
        let mut modules: Vec<_> = all.map(|&name| (name, "")).collect();
        modules.extend([("dummy", "libdummy"), ("libdummy", "")]);
        let folder = kernel(&modules);
        let mut running: Vec<&str> = NEEDED[1..]
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        running.push("dummy");
        let found = picked(folder.path(), &["dm-verity", "erofs"], &running).unwrap();
        let files = |modules: &[Module]| -> Vec<String> {
            modules.iter().map(|module| module.file.clone()).collect()
        };
        assert_eq!(files(&found.initrd), ["dm_verity.ko"]);
        let order = files(&found.running);
        assert_eq!(order[order.len() - 2..], ["libdummy.ko", "dummy.ko"]);
        assert_eq!(order[0], "ext4.ko");
    }

    #[test]
    fn a_list_that_no_image_can_have_is_refused_with_its_key_and_a_cure() {
        let folder = kernel(&[("dm_verity", ""), ("lost", "gone"), ("ext4", "")]);
        let refused = |initrd: &[&str], running: &[&str]| {
            picked(folder.path(), initrd, running)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            refused(&["dm_verity"], &["nf_tabels"]),
            "kernel.modules names nf_tabels, and the kernel has no such module: correct the name, take it out, or choose the \
             flavour that has it"
        );
        assert!(refused(&["lost"], &[]).starts_with(
            "kernel.initrd_modules names lost, which needs gone, and the kernel has no such module"
        ));
        assert!(
            refused(&["erofs"], &[])
                .starts_with("kernel.initrd_modules lacks dm_verity, which the root needs: add it")
        );
        assert!(
            refused(&["dm_verity"], &["ext4"])
                .starts_with("kernel.modules lacks dm_crypt, which the encrypted state needs")
        );
    }

    #[test]
    fn a_description_replaces_its_flavours_lists_one_by_one() {
        let text = "version = 1\nkind = \"image\"\n[kernel]\nmodules = [\"veth\"]\n";
        let Document::Image(described) = parse(text, "image.toml").unwrap() else {
            panic!("an image");
        };
        let of = |flavour, described| Wanted::of(flavour, described).unwrap();
        let cloud = of(KernelFlavour::Cloud, None);
        let wanted = of(KernelFlavour::Cloud, Some(&described));
        assert_eq!(wanted.running, ["veth"]);
        assert_eq!(wanted.initrd, cloud.initrd);
        let full = of(KernelFlavour::Full, None);
        assert!(full.initrd.starts_with(&cloud.initrd) && full.running.starts_with(&cloud.running));
        assert!(full.initrd.len() > cloud.initrd.len() && full.running.len() > cloud.running.len());
    }

    #[test]
    fn no_image_has_sockets_to_the_host_of_a_virtual_machine() {
        assert!(keep_out(owned(&["veth", "hv_netvsc"]).iter()).is_ok());
        assert!(keep_out(owned(&["veth", "vsock"]).iter()).is_err());
    }

    #[test]
    fn names_are_the_kernels_own() {
        assert_eq!(
            module_name(Path::new("kernel/md/dm-verity.ko.xz")).as_deref(),
            Some("dm_verity")
        );
        assert_eq!(module_name(Path::new("modules.order")), None);
    }
}
