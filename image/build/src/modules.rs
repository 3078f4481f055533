//! Kernel modules: which ones, and in which order they load.
//!
//! Debian's kernel packages carry no `modules.dep`; each module names what it needs in its
//! `.modinfo` section.

use crate::error::{Error, Result, at, read};
use image_packages::run::output;
use image_packages::tools::Tools;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Modules to open the root: the disk, verity, the file system. Clouds attach the disk by virtio,
/// SCSI over virtio or Hyper-V, or NVMe (which their kernel has built in).
const INITRD: [&str; 6] = [
    "virtio_blk",
    "virtio_scsi",
    "hv_storvsc",
    "sd_mod",
    "dm_verity",
    "erofs",
];
/// On hardware: more kinds of disks.
const INITRD_FULL: [&str; 3] = ["nvme", "ahci", "usb_storage"];
/// Modules of the running system, including the network cards of the big clouds.
const RUNNING: [&str; 29] = [
    "ext4",
    // The encrypted state: the target, its mode, and the processor's own AES.
    "dm_crypt",
    "xts",
    "aesni_intel",
    "overlay",
    "virtio_net",
    "ena",
    "gve",
    "hv_netvsc",
    "virtio_rng",
    "vfat",
    "nls_cp437",
    "nls_ascii",
    "isofs",
    "efivarfs",
    "evdev",
    "button",
    "qemu_fw_cfg",
    // The pod network: veth, nftables and conntrack, and addresses changed on the way out.
    "veth",
    "nf_tables",
    "nft_ct",
    "nft_chain_nat",
    "nft_masq",
    // The tunnel to other machines' pods.
    "wireguard",
    // For services: destination NAT, random choice, and a rejection if there is no endpoint.
    "nft_nat",
    "nft_numgen",
    "nft_reject_ipv4",
    "nft_reject_ipv6",
    // conntrack netlink, to delete UDP entries of removed endpoints.
    "nf_conntrack_netlink",
];
/// On hardware: common network cards.
const RUNNING_FULL: [&str; 6] = ["e1000e", "igb", "ixgbe", "r8169", "tg3", "bnxt_en"];

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

/// Picks the modules of a flavour from an unpacked kernel's `/usr/lib/modules/<release>`.
///
/// # Errors
/// A module that is wanted, or one that it needs, is missing or cannot be unpacked.
pub fn pick(tools: &Tools, folder: &Path, flavour: &str) -> Result<Modules> {
    let full = flavour == "amd64";
    let mut modules = ModuleFolder::open(tools, folder)?;
    let wanted = |base: &[&str], more: &[&str]| -> Vec<String> {
        let more = if full { more } else { &[] };
        base.iter()
            .chain(more)
            .map(|name| (*name).to_owned())
            .collect()
    };
    let mut loaded = BTreeSet::new();
    let initrd = modules.closure(&wanted(&INITRD, &INITRD_FULL), &mut loaded)?;
    let running = modules.closure(&wanted(&RUNNING, &RUNNING_FULL), &mut loaded)?;
    keep_out(loaded.union(&modules.builtin))?;
    Ok(Modules { initrd, running })
}

/// Checks that [`KEPT_OUT`] is not among the modules of an image.
fn keep_out<'a>(mut names: impl Iterator<Item = &'a String>) -> Result<()> {
    if names.any(|name| name == KEPT_OUT) {
        return Err(Error::Image(format!(
            "the kernel would have {KEPT_OUT}, by which 32-bit programs in containers reach the host of a virtual machine; \
             take what needs it out of the list, or choose another flavour"
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

    /// The named modules and what they need, in load order, without those in `loaded`, to which
    /// they are added.
    fn closure(&mut self, names: &[String], loaded: &mut BTreeSet<String>) -> Result<Vec<Module>> {
        let mut out = Vec::new();
        for name in names {
            self.add(name, loaded, &mut out)?;
        }
        Ok(out)
    }

    fn add(
        &mut self,
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
                "the kernel has no module {name}; take it out of the list or choose another flavour"
            ))
        })?;
        let module = self.unpacked(&name, &file)?;
        for needed in listed(&module.bytes, b"\0depends=", ',') {
            self.add(&needed, loaded, out)?;
        }
        for wished in listed(&module.bytes, b"\0softdep=pre: ", ' ') {
            if let Some(found) = self.soft(&wished) {
                self.add(&found, loaded, out)?;
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

    #[test]
    fn no_image_has_sockets_to_the_host_of_a_virtual_machine() {
        let names = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert!(keep_out(names(&["veth", "hv_netvsc"]).iter()).is_ok());
        assert!(keep_out(names(&["veth", "vsock"]).iter()).is_err());
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
