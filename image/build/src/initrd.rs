//! The initrd: init and the modules that open the root.

use crate::error::Result;
use crate::modules::Module;
use image_format::cpio::{self, Entry};
use image_packages::run::output;
use image_packages::tools::Tools;
use std::path::Path;
use std::process::Command;

/// The archive, compressed by zstd. `init` is the static program; `work` is a folder for files on
/// the way.
///
/// # Errors
/// The archive cannot be written, or `zstd` fails.
pub fn make(
    tools: &Tools,
    init: &[u8],
    modules: &[Module],
    level: &str,
    work: &Path,
) -> Result<Vec<u8>> {
    let archive = cpio::archive(&entries(init, modules));
    let plain = work.join("initrd.cpio");
    crate::error::write(&plain, &archive)?;
    let mut zstd = Command::new(tools.program("zstd"));
    zstd.args([
        "--quiet",
        "--stdout",
        "--no-check",
        "--single-thread",
        level,
        "--",
    ])
    .arg(&plain);
    Ok(output(&mut zstd)?)
}

fn entries(init: &[u8], modules: &[Module]) -> Vec<(String, Entry)> {
    let mut out: Vec<(String, Entry)> = ["dev", "modules", "proc", "run", "sys", "sysroot"]
        .into_iter()
        .map(|name| (name.to_owned(), Entry::Folder))
        .collect();
    let mut load = String::new();
    for module in modules {
        load.push_str(&module.file);
        load.push('\n');
        out.push((
            format!("modules/{}", module.file),
            Entry::File(0o644, module.bytes.clone()),
        ));
    }
    out.push((
        "modules/load".to_owned(),
        Entry::File(0o644, load.into_bytes()),
    ));
    out.push(("init".to_owned(), Entry::File(0o755, init.to_vec())));
    out
}

/// The initrd that the kernel gets from the stub and measures: ours, padded to 4, and the archive
/// that systemd-stub adds for the section `.osrel`.
pub fn as_measured(initrd: &[u8], osrel: &[u8]) -> Vec<u8> {
    let mut out = initrd.to_vec();
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend(cpio::stub_archive(".extra", "os-release", osrel));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_listed_in_load_order() {
        let module = |name: &str| Module {
            file: name.into(),
            path: String::new(),
            bytes: Vec::new(),
        };
        let entries = entries(b"", &[module("b.ko"), module("a.ko")]);
        let load = entries
            .iter()
            .find(|(path, _)| path == "modules/load")
            .unwrap();
        assert_eq!(load.1, Entry::File(0o644, b"b.ko\na.ko\n".to_vec()));
    }
}
