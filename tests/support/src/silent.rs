//! A file system whose server never answers, as of a volume that its pod's author serves.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// A file system that is mounted until this is dropped. Each look into it blocks so long, and fails
/// then.
#[derive(Debug)]
pub struct Silent {
    path: PathBuf,
    _server: File,
}

impl Silent {
    /// Mounts it at a folder.
    pub fn mount(path: &Path) -> Self {
        let mut device = File::options();
        let server = device.read(true).write(true).open("/dev/fuse");
        let server = server.expect("the kernel has FUSE");
        let number = server.as_raw_fd();
        let options = format!("fd={number},rootmode=40000,user_id=0,group_id=0");
        let (none, options) = (MsFlags::empty(), Some(options.as_str()));
        mount(Some("silent"), path, Some("fuse"), none, options).expect("a mount");
        Self {
            path: path.to_owned(),
            _server: server,
        }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        umount2(&self.path, MntFlags::MNT_DETACH).ok();
    }
}
