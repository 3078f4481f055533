//! Containers through containerd's own API: images, root file systems, tasks and logs.
//!
//! Enter by [`Runtime`], what the kubelet needs from a machine's container engine, and by
//! [`Containerd`], the engine that speaks to containerd's socket. Every container's identity (pod, name,
//! attempt) and its end (exit code, times) live in containerd's labels, so that an agent that starts
//! anew adopts all of them by listing.
//!
//! Images: `registry` says where one may be had and by which credentials, `session` proves to a registry who asks, `http`
//! and `reach` keep requests from where they must not go, `access` remembers who may run what was fetched.
//!
//! Specifications: `spec` makes a container's, and `specification` keeps it where containerd's database holds nothing of it.
//!
//! Pods with user namespaces: `mapped` shows them the layers of images as their own files.
//!
//! Logs: `log` writes what containers print; `agent_server` reads it for who asks.
//!
//! Names that pods choose are looked up by `agent_confine::Lookups`, for probes and hooks, too.
//!
//! Tasks: [`Containerd::run`] keeps one subscription to containerd's events and turns each exit into a
//! record on the container; each running container has one log pump, a task that reads its two FIFOs.
//! Channels: [`Runtime::changes`] is a broadcast of pod uids that changed; a reader that lags lists anew.

mod access;
mod archive;
mod connection;
mod containerd;
mod content;
mod credential;
#[doc(hidden)]
pub mod decoders;
mod document;
mod events;
mod exec;
mod http;
mod images;
mod keyring;
mod labels;
mod log;
mod mapped;
mod memory;
mod model;
mod open;
mod parts;
mod pause;
mod pids;
mod process;
mod programs;
mod reach;
mod reference;
mod registry;
mod root;
mod session;
mod signals;
mod spec;
mod specification;
mod taps;
mod turns;
mod users;

pub use agent_confine::{Capabilities, Seccomp, capability_fault, withheld};
pub use agent_confine::{Lookups, OF_HANDLERS, Shares};
pub use containerd::{Containerd, Options};
pub use credential::{Credential, Secret};
pub use images::PULLS_OF_A_REGISTRY;
pub use keyring::{Keyring, KeyringError, PullSecret};
pub use log::{KEPT_LOGS, LOG_WRITES, LONGEST_LOG, rotated};
pub use mapped::show;
pub use model::{
    Change, Confinement, Container, ContainerKey, ContainerSpec, ContainerState, Error, ErrorClass,
    ExecOutput, GroupsPolicy, Image, Kind, Layers, Mount, Pause, Pending, PodNamespaces, PodRef,
    PullPolicy, Resources, Runtime, SharedNamespaces, User, Users, container_id,
};
pub use process::{Attached, Command, Control, Input, Output, Outputs, Process};
pub use programs::Programs;
pub use reference::{DOCKER_HUB, Reference, ReferenceError};
pub use registry::{Registries, Registry};
pub use taps::{Stream, Tap};

#[cfg(test)]
mod endless {
    //! Outputs without an end, for tests.

    use nix::sys::eventfd::{EfdFlags, EventFd};
    use std::fs::File;
    use std::io::Write as _;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::mpsc;
    use tokio::net::unix::pipe::Receiver;

    /// Bytes that the producer writes at once: empty lines.
    const PIECE: [u8; 4096] = [b'\n'; 4096];
    /// More than a FIFO holds.
    const HELD: u64 = 256 * 1024;
    /// How often the tasks of these tests hand their worker on.
    const STEPS: u32 = 32;

    /// How often [`endless`] is read before it ends all the same: without, a test that fails would never.
    const READS: u32 = 1_000_000;

    /// An output that has something whenever it is read, as no writer can be relied on to be faster: a
    /// counter of the kernel that each read takes one from.
    pub(crate) fn endless() -> Receiver {
        let flags = EfdFlags::EFD_SEMAPHORE | EfdFlags::EFD_NONBLOCK;
        let counter = EventFd::from_value_and_flags(READS, flags).unwrap();
        Receiver::from_owned_fd_unchecked(counter.into()).unwrap()
    }

    /// A thread that writes into a FIFO, but for a bound without which a test that fails would never end.
    #[derive(Debug)]
    pub(crate) struct Endless {
        written: Arc<AtomicU64>,
        most: u64,
        stop: Arc<AtomicBool>,
        read: mpsc::Receiver<()>,
    }

    impl Endless {
        /// Begins to write into a FIFO; no more than `most` bytes.
        pub(crate) fn begin(fifo: &Path, most: u64) -> Self {
            let mut fifo = File::options().write(true).open(fifo).unwrap();
            let (written, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
            let (tell, read) = mpsc::channel();
            let (count, stopped) = (written.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut told = false;
                while count.load(Ordering::Acquire) < most && !stopped.load(Ordering::Acquire) {
                    // The reader is gone at the end of the test.
                    if fifo.write_all(&PIECE).is_err() {
                        return;
                    }
                    let all = count.fetch_add(PIECE.len() as u64, Ordering::AcqRel);
                    if all > HELD && !told {
                        told = tell.send(()).is_ok();
                    }
                }
            });
            Self {
                written,
                most,
                stop,
                read,
            }
        }

        /// Waits until somebody reads the FIFO.
        pub(crate) fn is_read(&self) {
            self.read.recv().unwrap();
        }

        /// Ends it; whether it had written all that it may.
        pub(crate) fn stop(&self) -> bool {
            self.stop.store(true, Ordering::Release);
            self.written.load(Ordering::Acquire) >= self.most
        }
    }

    /// What another task does: it needs a worker again and again.
    pub(crate) async fn steps() {
        for _ in 0..STEPS {
            tokio::task::yield_now().await;
        }
    }
}
