//! The first process of a PID namespace that the containers of a pod share.
//!
//! The kernel ends all processes of a PID namespace together with the first one, which also adopts
//! orphans. So this process must outlive every container and reap orphans, and does nothing else:
//! it ignores `SIGCHLD`, so that the kernel reaps ended children at once (wait(2)), and waits for
//! ever. Its file is made here, so that it needs no image.
//!
//! Its file may be executed and not read, so that no other process can trace it or read its memory
//! (`PR_SET_DUMPABLE`, ptrace(2)), not even a container that runs as its user.

/// Its name in its own root file system.
pub(crate) const NAME: &str = "pause";
/// The mode of its file.
pub(crate) const MODE: u32 = 0o111;
/// Its user and group, which own nothing: upstream's values.
pub(crate) const USER: u32 = 65_535;

/// Its address in memory, and the bytes before its instructions: the headers of the file.
const BASE: u64 = 0x40_0000;
const HEADERS: u64 = 64 + 56;

/// Instructions of x86-64.
const CODE: [u8; 36] = [
    0xb8, 13, 0, 0, 0, // mov eax, 13 (rt_sigaction)
    0xbf, 17, 0, 0, 0, // mov edi, 17 (SIGCHLD)
    0x48, 0x8d, 0x35, 19, 0, 0, 0, // lea rsi, [rip + 19]: ACTION, which follows
    0x31, 0xd2, // xor edx, edx: the old action is not asked for
    0x41, 0xba, 8, 0, 0, 0, // mov r10d, 8: bytes of a set of signals
    0x0f, 0x05, // syscall
    0xb8, 34, 0, 0, 0, // mov eax, 34 (pause)
    0x0f, 0x05, // syscall
    0xeb, 0xf7, // jmp to the instruction before the last but one
];
/// The kernel's `sigaction`: the handler is `SIG_IGN`; flags, restorer and mask are empty.
const ACTION: [u64; 4] = [1, 0, 0, 0];

/// The program, as a file (ELF-64, one segment).
pub(crate) fn program() -> Vec<u8> {
    let size = HEADERS + CODE.len() as u64 + 8 * ACTION.len() as u64;
    let mut file = Vec::new();
    // 64 bits, little-endian, version 1, no particular system.
    file.extend(*b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    let half = |file: &mut Vec<u8>, values: &[u16]| {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        file.extend(bytes);
    };
    let word = |file: &mut Vec<u8>, value: u32| file.extend(value.to_le_bytes());
    let long = |file: &mut Vec<u8>, values: &[u64]| {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        file.extend(bytes);
    };
    // An executable for x86-64, version 1.
    half(&mut file, &[2, 62]);
    word(&mut file, 1);
    // The entry point; the offset of the program headers, after this header; no sections; no flags.
    long(&mut file, &[BASE + HEADERS, 64, 0]);
    word(&mut file, 0);
    // Sizes of this header and of a program header, of which there is one; no sections.
    half(&mut file, &[64, 56, 1, 0, 0, 0]);
    // The segment: loaded, readable and executable; the whole file, at its address, aligned to
    // pages.
    word(&mut file, 1);
    word(&mut file, 4 | 1);
    long(&mut file, &[0, BASE, BASE, size, size, 4096]);
    file.extend(CODE);
    long(&mut file, &ACTION);
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};
    use std::time::Duration;

    /// Starts the program. Another test's child may hold the file open for writing until it runs
    /// its own program.
    fn start(path: &std::path::Path) -> Child {
        loop {
            match Command::new(path).spawn() {
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                other => return other.unwrap(),
            }
        }
    }

    #[test]
    fn the_program_ignores_its_children_and_waits_until_it_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        fs::write(&path, program()).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(MODE)).unwrap();
        let mut child = start(&path);
        // The signals that it ignores, by their numbers from 1 on; and where it waits.
        let status = format!("/proc/{}/status", child.id());
        let waits = || {
            let text = fs::read_to_string(&status).unwrap();
            let field = |name: &str| {
                let mut lines = text.lines();
                lines.find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
            };
            let ignored = u64::from_str_radix(&field("SigIgn:").unwrap(), 16).unwrap();
            ignored & (1 << 16) != 0 && field("State:").unwrap().starts_with('S')
        };
        while !waits() {
            assert_eq!(child.try_wait().unwrap(), None);
            std::thread::sleep(Duration::from_millis(10));
        }
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}
