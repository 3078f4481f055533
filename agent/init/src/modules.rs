//! The list of kernel modules: which files, in which order.

use std::path::{Path, PathBuf};

use agent_sys::module::load;
use config_machine::kernel::MAX_MODULES;

/// The files that a list names, one a line, relative ones below `base`; empty lines and `#`
/// comments are skipped.
pub fn files(list: &str, base: &Path) -> Vec<PathBuf> {
    let names = list
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    names
        .take(MAX_MODULES)
        .map(|name| base.join(name))
        .collect()
}

/// Drivers of Hyper-V, which log errors on any other machine, and the vendor name of Hyper-V
/// machines.
const HYPER_V: (&str, &str) = ("hv_", "Microsoft Corporation");

/// AES with processor instructions; the module does not load on processors without them.
const AES: (&str, &str) = ("aesni", "aes");

/// Whether a module can be of use on a machine of this vendor, by a processor with these features.
fn useful(file: &Path, vendor: &str, features: &str) -> bool {
    let starts = |prefix| {
        file.file_name()
            .is_some_and(|file| file.to_string_lossy().starts_with(prefix))
    };
    let (hyper_v, name) = HYPER_V;
    let (aes, feature) = AES;
    (!starts(hyper_v) || vendor.trim() == name)
        && (!starts(aes) || features.split_whitespace().any(|found| found == feature))
}

/// Loads every module of the list at `path` and returns those that the kernel refused. A driver
/// without its hardware must not stop the boot; a module that is really needed fails where it is
/// used.
pub fn load_list(path: &str, base: &str) -> Vec<agent_sys::Error> {
    match std::fs::read_to_string(path) {
        Ok(list) => {
            let vendor =
                std::fs::read_to_string("/sys/class/dmi/id/sys_vendor").unwrap_or_default();
            let mut wanted = files(&list, Path::new(base));
            let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            let features = processor
                .lines()
                .find(|line| line.starts_with("flags"))
                .unwrap_or_default();
            wanted.retain(|file| useful(file, &vendor, features));
            wanted.iter().filter_map(|file| load(file).err()).collect()
        }
        Err(cause) => vec![agent_sys::Error::new("read", path, cause)],
    }
}

#[cfg(test)]
mod tests {
    use super::{files, useful};
    use std::path::{Path, PathBuf};

    #[test]
    fn lists_may_hold_relative_and_absolute_names() {
        let list = "dm-mod.ko\n\n# verity\n  /usr/lib/modules/6/erofs.ko \n";
        let expected = [
            PathBuf::from("/modules/dm-mod.ko"),
            PathBuf::from("/usr/lib/modules/6/erofs.ko"),
        ];
        assert_eq!(files(list, Path::new("/modules")), expected);
    }

    #[test]
    fn drivers_load_where_they_can_be_of_use() {
        assert!(useful(
            Path::new("/modules/hv_vmbus.ko"),
            "Microsoft Corporation\n",
            ""
        ));
        assert!(!useful(Path::new("/modules/hv_vmbus.ko"), "QEMU\n", ""));
        assert!(useful(Path::new("/modules/ena.ko"), "QEMU\n", ""));
        assert!(useful(
            Path::new("/modules/aesni-intel.ko"),
            "QEMU\n",
            "flags : fpu aes sse"
        ));
        assert!(!useful(
            Path::new("/modules/aesni-intel.ko"),
            "QEMU\n",
            "flags : fpu vaes sse"
        ));
    }
}
