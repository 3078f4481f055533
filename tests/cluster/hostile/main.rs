//! A hostile program: what a container's root tries against its machine. Tests compile it with
//! `rustc` alone, put it into a container and read what it reached.
//!
//! `hostile calls NAME:NUMBER:NUMBER32:ARGUMENT,… …` makes each call by the 64-bit, the x32 and the
//! 32-bit entry of the kernel, in a process of its own, and prints `NAME ENTRY ANSWER`: `ok`,
//! `errno N` or `signal N`. `hostile processes` tries on every process id to look into it and
//! prints `PID WAY` for each way that works. `hostile writes` opens every file of the kernel's
//! below `/proc` and `/sys` for writing, except those of processes, and prints `PATH` for each
//! that opens and takes writes; then which hidden files show something, and how many it tried.
//! `hostile terminals` opens pseudo-terminals until it gets no more, and prints how many it got.
//! `hostile nests N` makes N folders in one another, with a file in the last, and prints how many
//! it made. `hostile life` does what ordinary programs do and prints `alive`.

use std::arch::asm;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The mark of x32 calls (asm/unistd.h).
const X32: i64 = 0x4000_0000;
/// errno-base.h, fcntl.h.
const EIO: i32 = 5;
const O_NONBLOCK: i32 = 0o4000;
/// Process ids that are tried at most.
const MOST: i64 = 20_000;

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(code: i32) -> !;
}

fn call(number: i64, a: [i64; 6]) -> i64 {
    let answer;
    // SAFETY: the kernel reads and writes what the arguments point to: nothing, or memory that
    // outlives the call.
    unsafe {
        asm!("syscall", inlateout("rax") number => answer, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _);
    }
    answer
}

fn call32(number: i64, a: [i64; 6]) -> i64 {
    let answer: i32;
    // SAFETY: as above; rbx, which the compiler keeps for itself, is put back.
    unsafe {
        asm!("push rbx", "mov ebx, {first:e}", "int 0x80", "pop rbx", first = in(reg) a[0] as i32,
            inlateout("eax") number as i32 => answer, in("ecx") a[1] as i32, in("edx") a[2] as i32,
            in("esi") a[3] as i32, in("edi") a[4] as i32);
    }
    i64::from(answer)
}

/// Makes a call in a child, whose exit shows the result.
fn apart(make: impl FnOnce() -> i64) -> String {
    // SAFETY: this program has one thread.
    let pid = unsafe { fork() };
    if pid == 0 {
        let answer = make();
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { _exit(if (-4095..0).contains(&answer) { (-answer).min(250) as i32 } else { 0 }) }
    }
    let mut status = 0;
    // SAFETY: the status outlives the call.
    unsafe { waitpid(pid, &mut status, 0) };
    match (status & 0x7f, status >> 8 & 0xff) {
        (0, 0) => "ok".to_owned(),
        (0, errno) => format!("errno {errno}"),
        (signal, _) => format!("signal {signal}"),
    }
}

fn calls(words: impl Iterator<Item = String>) {
    for word in words {
        let parts: Vec<&str> = word.split(':').collect();
        let (name, number, number32) = (parts[0], parts[1].parse::<i64>().unwrap(), parts[2].parse::<i64>().unwrap());
        let mut arguments = [0; 6];
        for (place, text) in arguments.iter_mut().zip(parts[3].split(',').filter(|text| !text.is_empty())) {
            *place = text.parse().unwrap();
        }
        println!("{name} x86_64 {}", apart(|| call(number, arguments)));
        println!("{name} x32 {}", apart(|| call(number | X32, arguments)));
        if number32 >= 0 {
            println!("{name} i386 {}", apart(|| call32(number32, arguments)));
        }
    }
}

fn processes() {
    let last = fs::read_to_string("/proc/loadavg").ok();
    let last = last.and_then(|text| text.split_whitespace().last()?.parse::<i64>().ok()).unwrap_or(MOST / 2);
    let own = i64::from(std::process::id());
    for pid in (1..=(last + 500).min(MOST)).filter(|pid| *pid != own) {
        for way in reached(pid, own) {
            println!("{pid} {way}");
        }
    }
    println!("tried as {own}");
}

/// The ways into a process that work.
fn reached(pid: i64, own: i64) -> Vec<&'static str> {
    let path = |name: &str| format!("/proc/{pid}/{name}");
    let mut limit = [0_u64; 2];
    let mut byte = 0_u8;
    let local = [&raw mut byte as i64, 1];
    let remote = [0x1000_i64, 1];
    let mut ways = Vec::new();
    let mut note = |way, good| if good { ways.push(way) };
    note("is seen", fs::metadata(path("")).is_ok());
    note("exe", fs::read_link(path("exe")).is_ok());
    note("root", fs::read_dir(path("root")).is_ok());
    note("fd", fs::read_dir(path("fd")).is_ok());
    note("environ", fs::read(path("environ")).is_ok());
    note("mem", fs::File::open(path("mem")).is_ok());
    note("oom_score_adj", fs::OpenOptions::new().write(true).open(path("oom_score_adj")).is_ok());
    let pidfd = call(434, [pid, 0, 0, 0, 0, 0]);
    note("pidfd_getfd", pidfd >= 0 && (0..32).any(|fd| call(438, [pidfd, fd, 0, 0, 0, 0]) >= 0));
    if pidfd >= 0 {
        call(3, [pidfd, 0, 0, 0, 0, 0]);
    }
    // The address is none of the process's: EFAULT says that only that stood in the way.
    let read = call(310, [pid, (&raw const local) as i64, 1, (&raw const remote) as i64, 1, 0]);
    note("process_vm_readv", read >= 0 || read == -14);
    note("kcmp", call(312, [own, pid, 1, 0, 0, 0]) >= 0);
    note("get_robust_list", call(274, [pid, (&raw mut limit) as i64, (&raw mut limit) as i64 + 8, 0, 0, 0]) >= 0);
    note("prlimit", call(302, [pid, 7, 0, (&raw mut limit) as i64, 0, 0]) >= 0);
    note("ptrace", apart(|| call(101, [0x4206, pid, 0, 0, 0, 0])) == "ok");
    ways
}

/// Whether the kernel accepts writes to a file; that root can open it shows nothing. No byte is
/// written. A hidden file is /dev/null.
fn is_written(mut file: fs::File) -> bool {
    let nothing_to_do = file.write(&[]).is_err_and(|error| error.raw_os_error() == Some(EIO));
    !nothing_to_do && file.metadata().is_ok_and(|data| data.is_file())
}

/// Opens all below a folder; links are not followed, as they lead to files that are opened by
/// their own names, or to a process.
fn writes(folder: &Path, tried: &mut u64) {
    let mut entries: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, name) = (entry.path(), entry.file_name());
        let is_process = folder == Path::new("/proc") && name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && !is_process {
            writes(&path, tried);
        } else if !kind.is_dir() && !kind.is_symlink() {
            *tried += 1;
            // Some wait for another end: none does without it.
            let opened = fs::OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(&path);
            if opened.is_ok_and(is_written) {
                println!("{}", path.display());
            }
        }
    }
}

fn hidden() {
    for name in ["kcore", "keys", "kpagecgroup", "kpagecount", "kpageflags", "pagetypeinfo", "slabinfo", "timer_list", "vmallocinfo"] {
        let path = format!("/proc/{name}");
        let mut byte = [0];
        if fs::File::open(&path).is_ok_and(|mut file| file.read(&mut byte).is_ok_and(|count| count > 0)) {
            println!("{path} shows something");
        }
    }
}

/// Keeps every terminal that it gets.
fn terminals() {
    let open = || fs::OpenOptions::new().read(true).write(true).open("/dev/ptmx");
    let got: Vec<_> = std::iter::from_fn(|| open().ok()).collect();
    println!("{}", got.len());
}

/// Each is entered before the next is made: a path to the last would be too long.
fn nests(levels: usize) {
    let folder = Path::new("nested");
    let enter = |_: &usize| fs::create_dir(folder).is_ok() && std::env::set_current_dir(folder).is_ok();
    let made = (0..levels).take_while(enter).count();
    fs::write("file", "").unwrap();
    println!("{made}");
}

fn life() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let mut text = String::new();
        listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
        text
    });
    TcpStream::connect(at).unwrap().write_all(b"alive").unwrap();
    let text = thread.join().unwrap();
    fs::write("/tmp/life", &text).unwrap();
    assert_eq!(apart(|| 0), "ok");
    println!("{}", fs::read_to_string("/tmp/life").unwrap());
}

fn main() {
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some("calls") => calls(words),
        Some("processes") => processes(),
        Some("writes") => {
            let mut tried = 0;
            writes(Path::new("/proc"), &mut tried);
            writes(Path::new("/sys"), &mut tried);
            hidden();
            println!("tried {tried}");
        }
        Some("terminals") => terminals(),
        Some("nests") => nests(words.next().unwrap().parse().unwrap()),
        Some("life") => life(),
        other => panic!("no such part: {other:?}"),
    }
}
