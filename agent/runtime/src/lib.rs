//! Containers through containerd's own API: root file systems, tasks and logs.
//!
//! Enter by [`Runtime`], what the kubelet needs from a machine's container engine, and by
//! [`Containerd`], the engine that speaks to containerd's socket. Every container's identity (pod,
//! name, attempt) and its end (exit code, times) live in containerd's labels, so that a restarted
//! agent adopts all of them by listing.
//!
//! Images come from `agent_images`, requests to containerd from `agent_containerd`.
//!
//! Specifications: `spec` makes a container's, and `specification` keeps it outside of containerd's
//! database. What runs them is written in C: `c_strings` refuses texts that it would cut.
//!
//! Pods with user namespaces: `mapped` shows them the layers of images as their own files.
//!
//! Layers: `emptying` removes what containers wrote, before containerd removes the rest.
//!
//! Logs: `log` writes containers' output; `agent_server` serves it.
//!
//! `agent_confine::Lookups` looks up names that pods choose, also for probes and hooks.
//!
//! Tasks: [`Containerd::run`] keeps one subscription to containerd's events and reports each exit
//! as a change of its pod; [`Runtime::list`] records the end on the container. Each running
//! container has one log pump, a task that reads its two FIFOs. Channels: [`Runtime::changes`] is a
//! broadcast of the uids of changed pods; a receiver that lags lists all containers.

mod c_strings;
mod containerd;
#[doc(hidden)]
pub mod decoders;
mod emptying;
mod events;
mod exec;
mod labels;
mod log;
mod mapped;
mod memory;
mod model;
mod open;
mod pause;
mod pids;
mod process;
mod programs;
mod root;
mod signals;
mod spec;
mod specification;
mod taps;
mod users;

pub use agent_confine::{Capabilities, KernelView, Seccomp, capability_fault, withheld};
pub use agent_confine::{Lookups, NamedTurns, OF_HANDLERS, Threads, Turn, apart};
pub use agent_containerd::{Error, ErrorClass, Pending};
pub use agent_images::{
    Image, ImageSpace, Keyring, PULLS_OF_A_REGISTRY, Progress, PullPolicy, Registries,
};
pub use containerd::{Containerd, Options};
pub use log::{KEPT_LOGS, LOG_WRITES, LONGEST_LOG, rotated};
pub use mapped::show;
pub use model::{
    Change, Confinement, Container, ContainerKey, ContainerKind, ContainerSpec, ContainerState,
    ExecOutput, ExitCause, GroupsPolicy, Layers, Mount, Pause, PodNamespaces, PodRef, Resources,
    Runtime, SharedNamespaces, User, UserNamespace, container_id,
};
pub use process::{Attached, Command, Control, Input, Output, Outputs, Process};
pub use programs::Programs;
pub use taps::{Stream, Tap};

#[cfg(test)]
mod empty_engine;
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

    /// How often [`endless`] can be read before it ends after all: without an end, a test that
    /// fails would run for ever.
    const READS: u32 = 1_000_000;

    /// An output that always has data, since no writer is reliably fast enough: an eventfd counter,
    /// of which each read takes one.
    pub(crate) fn endless() -> Receiver {
        let flags = EfdFlags::EFD_SEMAPHORE | EfdFlags::EFD_NONBLOCK;
        let counter = EventFd::from_value_and_flags(READS, flags).unwrap();
        Receiver::from_owned_fd_unchecked(counter.into()).unwrap()
    }

    /// A thread that writes into a FIFO, up to a bound: without one, a test that fails would run
    /// for ever.
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
            let (sender, read) = mpsc::channel();
            let (count, stopped) = (written.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut notified = false;
                while count.load(Ordering::Acquire) < most && !stopped.load(Ordering::Acquire) {
                    // The reader is gone at the end of the test.
                    if fifo.write_all(&PIECE).is_err() {
                        return;
                    }
                    let all = count.fetch_add(PIECE.len() as u64, Ordering::AcqRel);
                    if all > HELD && !notified {
                        notified = sender.send(()).is_ok();
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

    /// Another task: it yields again and again, so that it needs a worker each time.
    pub(crate) async fn steps() {
        for _ in 0..STEPS {
            tokio::task::yield_now().await;
        }
    }
}
