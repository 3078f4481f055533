//! Programs as init starts them, and programs of this host in containers.
#![allow(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

use agent_sys::process::Program;
use std::path::Path;
use std::process::Command;

/// Where containers have the folder of [`pack`].
pub const PACKED: &str = "/program";

/// The host's shell with a script.
pub fn shell(script: &str) -> Program {
    Program {
        path: "/bin/sh".to_owned(),
        arguments: vec!["-c".to_owned(), script.to_owned()],
        environment: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        cgroup: None,
        oom_score: 0,
        open_files: None,
    }
}

/// Puts a program of this host into a new folder, with its loader and libraries: containers of
/// busybox have none.
pub fn pack(program: &Path, folder: &Path) {
    std::fs::create_dir(folder).unwrap();
    std::fs::copy(program, folder.join("program")).unwrap();
    let needed = Command::new("ldd").arg(program).output().unwrap();
    let needed = String::from_utf8(needed.stdout).unwrap();
    let files = needed.split_whitespace().map(Path::new);
    for file in files.filter(|word| word.is_absolute()) {
        let name = file.file_name().unwrap();
        std::fs::copy(file, folder.join(name)).unwrap();
    }
}

/// The command of a container that runs the program of [`pack`] with these arguments.
pub fn packed(arguments: &[&str]) -> Vec<String> {
    let loader = format!("{PACKED}/ld-linux-x86-64.so.2");
    let program = format!("{PACKED}/program");
    let own = [&*loader, "--library-path", PACKED, &*program];
    let all = own.iter().chain(arguments);
    all.map(|word| (*word).to_owned()).collect()
}
