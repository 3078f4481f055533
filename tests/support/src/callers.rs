//! Callers of a server that go on while something happens to it, and notice each failure.
#![allow(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

use agent_sys::namespace::{self, Kind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// Who calls a server again and again, until it is told to end; its thread panics where a call
/// fails.
#[derive(Debug)]
pub struct Caller {
    /// From where, and what it calls.
    pub what: String,
    answered: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Caller {
    /// Calls from the network namespace at `place` by what `again` does each time.
    pub fn new(what: String, place: &Path, mut again: impl FnMut() + Send + 'static) -> Self {
        let answered = Arc::new(AtomicUsize::new(0));
        let ends = Arc::new(AtomicBool::new(false));
        let (count, over, place) = (Arc::clone(&answered), Arc::clone(&ends), place.to_owned());
        let thread = std::thread::spawn(move || {
            let work = || {
                while !over.load(Ordering::Acquire) {
                    again();
                    count.fetch_add(1, Ordering::AcqRel);
                }
                Ok(())
            };
            namespace::inside(&[(Kind::Network, &place)], work).unwrap();
        });
        Self {
            what,
            answered,
            ends,
            thread,
        }
    }

    /// How often it was answered so far.
    pub fn answered(&self) -> usize {
        self.answered.load(Ordering::Acquire)
    }

    /// Whether a call has failed.
    pub fn has_failed(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends them all; each must have been answered every time.
    pub fn end(all: Vec<Self>) {
        for caller in &all {
            caller.ends.store(true, Ordering::Release);
        }
        for caller in all {
            assert!(caller.thread.join().is_ok(), "{}", caller.what);
        }
    }
}
