//! A file system (FUSE) whose server does as a test says. Its folder has empty files alone.

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// What happens to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It takes group and mode.
    Given,
    /// It is listed, but gone when it is looked for.
    Gone,
    /// It keeps group and mode (EPERM).
    Refused,
    /// It is found once, and then the server fails (EIO).
    Fails,
    /// It is listed again and again, without end.
    ForEver,
}

type Files = Vec<(&'static str, Fate)>;

/// The file system, mounted until this is dropped.
#[derive(Debug)]
pub(crate) struct Served {
    path: PathBuf,
    given: Arc<Mutex<BTreeSet<&'static str>>>,
}

impl Served {
    pub(crate) fn mount(path: &Path, files: Files) -> Self {
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let device = device.expect("the kernel has FUSE");
        let number = device.as_raw_fd();
        let options = format!("fd={number},rootmode=40000,user_id=0,group_id=0");
        let (none, options) = (MsFlags::empty(), Some(options.as_str()));
        mount(Some("served"), path, Some("fuse"), none, options).expect("a mount");
        let given = Arc::default();
        let mut server = Server {
            device,
            files,
            found: BTreeSet::new(),
            given: Arc::clone(&given),
        };
        // It ends with the mount.
        std::thread::spawn(move || while server.answer().is_ok() {});
        let path = path.to_owned();
        Self { path, given }
    }

    /// The files that took a group or a mode.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        self.given.lock().unwrap().iter().copied().collect()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // By force: what still waits for an answer would keep this process from its end.
        let flags = MntFlags::MNT_FORCE | MntFlags::MNT_DETACH;
        umount2(&self.path, flags).ok();
    }
}

struct Server {
    device: File,
    files: Files,
    /// Files that were looked for.
    found: BTreeSet<usize>,
    given: Arc<Mutex<BTreeSet<&'static str>>>,
}

/// The number of the folder; that of the first file is 1 more.
const FOLDER: u64 = 1;
/// Operations of `fuse_opcode` in `linux/fuse.h`.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const BATCH_FORGET: u32 = 42;
/// Bytes of the header of a request.
const HEADER: usize = 40;

impl Server {
    /// Answers one request.
    fn answer(&mut self) -> std::io::Result<()> {
        let mut request = vec![0; 1 << 17];
        let length = self.device.read(&mut request)?;
        let request = &request[..length];
        let u32_at = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let u64_at = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap());
        let (operation, id, node) = (u32_at(4), u64_at(8), u64_at(16));
        let body = match operation {
            FORGET | BATCH_FORGET => return Ok(()),
            INIT => Ok(init()),
            LOOKUP => self.look_up(&request[HEADER..length - 1]),
            GETATTR => Ok(with_attributes(16, node)),
            SETATTR => self.set(node),
            OPENDIR => Ok(vec![0; 16]),
            RELEASEDIR => Ok(Vec::new()),
            READDIR => Ok(self.read_folder(u64_at(HEADER + 8))),
            _ => Err(Errno::ENOSYS),
        };
        let (error, body) = match body {
            Ok(body) => (0, body),
            Err(errno) => (-(errno as i32), Vec::new()),
        };
        let whole = u32::try_from(16 + body.len()).unwrap();
        let mut answer = whole.to_ne_bytes().to_vec();
        answer.extend(error.to_ne_bytes());
        answer.extend(id.to_ne_bytes());
        answer.extend(body);
        self.device.write_all(&answer)
    }

    fn look_up(&mut self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut files = self.files.iter();
        let index = files.position(|file| file.0.as_bytes() == name);
        let index = index.ok_or(Errno::ENOENT)?;
        let first = self.found.insert(index);
        match self.files[index].1 {
            Fate::Gone => Err(Errno::ENOENT),
            Fate::Fails if !first => Err(Errno::EIO),
            Fate::Fails | Fate::Given | Fate::Refused | Fate::ForEver => {
                let node = FOLDER + 1 + index as u64;
                let mut entry = with_attributes(40, node);
                entry[..8].copy_from_slice(&node.to_ne_bytes());
                Ok(entry)
            }
        }
    }

    fn set(&self, node: u64) -> Result<Vec<u8>, Errno> {
        let index = usize::try_from(node).unwrap().checked_sub(2);
        if let Some((name, fate)) = index.map(|index| self.files[index]) {
            if fate == Fate::Refused {
                return Err(Errno::EPERM);
            }
            self.given.lock().unwrap().insert(name);
        }
        Ok(with_attributes(16, node))
    }

    /// The files from an offset on (`fuse_dirent`), as many as fit into a page.
    fn read_folder(&self, offset: u64) -> Vec<u8> {
        let mut entries = Vec::new();
        for at in offset..offset + 64 {
            let index = usize::try_from(at).unwrap();
            let endless = self.files.iter().find(|file| file.1 == Fate::ForEver);
            let Some((name, _)) = endless.or_else(|| self.files.get(index)) else {
                break;
            };
            entries.extend((FOLDER + 1 + at).to_ne_bytes());
            entries.extend((at + 1).to_ne_bytes());
            entries.extend(u32::try_from(name.len()).unwrap().to_ne_bytes());
            entries.extend(0_u32.to_ne_bytes());
            entries.extend(name.as_bytes());
            entries.resize(entries.len().next_multiple_of(8), 0);
        }
        entries
    }
}

/// `fuse_init_out`: version 7.31, and writes of a page.
fn init() -> Vec<u8> {
    let mut body = vec![0; 64];
    body[..4].copy_from_slice(&7_u32.to_ne_bytes());
    body[4..8].copy_from_slice(&31_u32.to_ne_bytes());
    body[20..24].copy_from_slice(&4096_u32.to_ne_bytes());
    body
}

/// `fuse_attr` after so many bytes, which say that the kernel may keep nothing.
fn with_attributes(before: usize, node: u64) -> Vec<u8> {
    let mut body = vec![0; before + 88];
    let mode: u32 = if node == FOLDER { 0o40_755 } else { 0o100_644 };
    body[before..before + 8].copy_from_slice(&node.to_ne_bytes());
    body[before + 60..before + 64].copy_from_slice(&mode.to_ne_bytes());
    body[before + 64..before + 68].copy_from_slice(&1_u32.to_ne_bytes());
    body
}
