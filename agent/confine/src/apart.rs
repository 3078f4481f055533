//! Runs calls into the file systems of volumes on threads of their own.
//!
//! The file system of a volume can be a driver's (NFS, FUSE), whose server may belong to a pod's
//! author. If the server does not respond, the kernel blocks the caller for as long, and nothing
//! can end the call. So such calls use none of the runtime's threads, their callers stop waiting
//! after a time, and a blocked thread counts for its namespace until it ends.

use crate::shares::{NamedTurns, Turn};
use crate::turns::Turns;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};

/// Longest wait for a thread, enough also if all containers of a node start at once: others need
/// theirs for much less time, unless file systems block them.
const PATIENCE: Duration = Duration::from_secs(300);

/// The threads, by namespace.
#[derive(Debug)]
pub struct Threads {
    places: NamedTurns,
    /// A lock for each volume or container that a thread works at.
    busy: Turns<Mutex<()>>,
}

/// A thread's turn among those of its namespace, and the lock of what it works at.
#[derive(Debug)]
pub struct Place {
    _turn: Turn,
    _alone: OwnedMutexGuard<()>,
}

/// The progress of a call on such a thread: one step for each answer of the file system.
#[derive(Debug, Default)]
pub struct Steps {
    made: AtomicU64,
    given_up: AtomicBool,
}

impl Steps {
    /// Records that the file system has answered again.
    ///
    /// # Errors
    /// Nobody waits for the rest.
    pub fn step(&self) -> io::Result<()> {
        self.made.fetch_add(1, Ordering::Relaxed);
        if self.given_up.load(Ordering::Relaxed) {
            return Err(io::Error::other("nobody waits for it any more"));
        }
        Ok(())
    }
}

/// Tells the thread, when it is dropped, that nobody waits.
struct Waiting(Arc<Steps>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.given_up.store(true, Ordering::Relaxed);
    }
}

impl Threads {
    /// `all` threads at the same time, at most `of_a_namespace` of them for each namespace; the
    /// last quarter is only for namespaces that have none. A blocked thread costs little but its
    /// stack.
    pub fn new(all: usize, of_a_namespace: usize) -> Self {
        Self {
            places: NamedTurns::with_reserve(all, of_a_namespace),
            busy: Turns::default(),
        }
    }

    /// Waits for a thread of the namespace for work at this volume, or this container: one at a
    /// time. The caller should hold nothing that others need meanwhile: the wait may take up to
    /// [`PATIENCE`].
    ///
    /// # Errors
    /// A thread of an earlier attempt still works at it; or no thread becomes free within
    /// [`PATIENCE`].
    pub async fn place(&self, namespace: &str, at: &str) -> Result<Place, String> {
        let alone = self.busy.of(at, Mutex::default).try_lock_owned();
        let alone =
            alone.map_err(|_held| "an earlier attempt still waits for a volume's file system")?;
        let turn = tokio::time::timeout(PATIENCE, self.places.turn(namespace)).await;
        let turn = turn.map_err(|_late| {
            format!("file systems of volumes in the namespace {namespace} do not answer")
        })?;
        Ok(Place {
            _turn: turn,
            _alone: alone,
        })
    }
}

/// Does the work on a thread of its own, which keeps `held`, its place, until it ends. If the
/// caller is dropped, the thread continues to its next [`Steps::step`], and drops the result before
/// `held`.
///
/// # Errors
/// The thread can't be started, or `work` fails or makes no step for `silence`.
pub async fn apart<T: Send + 'static>(
    silence: Duration,
    held: impl Send + 'static,
    work: impl FnOnce(&Steps) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let (finished, mut done) = oneshot::channel();
    let steps = Arc::<Steps>::default();
    let waiting = Waiting(steps.clone());
    let thread = std::thread::Builder::new().name("apart".to_owned());
    let thread = thread.spawn(move || {
        let result = work(&steps);
        // If nobody waits any more, the result is dropped before its place is free: its drop (an
        // unmount, say) would otherwise undo what the next one at the same place has made.
        drop(finished.send((result, held)));
    });
    thread.map_err(|error| format!("cannot start a thread for a volume's file system: {error}"))?;
    let mut before = 0;
    loop {
        match tokio::time::timeout(silence, &mut done).await {
            Ok(Ok((result, held))) => {
                drop(held);
                return result;
            }
            Ok(Err(_ended)) => return Err("the thread for the volume's files failed".to_owned()),
            Err(_late) => {}
        }
        let made = waiting.0.made.load(Ordering::Relaxed);
        if made == before {
            let seconds = silence.as_secs();
            return Err(format!(
                "a volume's file system has not answered for {seconds} s"
            ));
        }
        before = made;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    /// On a runtime with one thread, which nothing may hold.
    #[tokio::test]
    async fn a_file_system_that_does_not_respond_blocks_only_threads_of_its_namespace() {
        let all = Threads::new(64, 8);
        let mut silent = Vec::new();
        for number in 0..8 {
            let (release, answer) = mpsc::channel::<()>();
            silent.push(release);
            let place = all.place("silent", &number.to_string()).await.unwrap();
            let waits = move |_: &Steps| Ok(answer.recv().is_ok());
            let error = apart(SHORT, place, waits).await.unwrap_err();
            assert!(error.contains("has not answered"), "{error}");
        }
        let again = all.place("quick", "0").await.unwrap_err();
        assert!(again.contains("an earlier attempt"), "{again}");
        tokio::time::pause();
        let more = all.place("silent", "more").await.unwrap_err();
        tokio::time::resume();
        assert!(more.contains("do not answer"), "{more}");
        let place = all.place("quick", "q").await.unwrap();
        assert_eq!(
            apart(LONG, place, |_| Ok(7)).await,
            Ok(7),
            "another one has"
        );
        drop(silent);
        // The threads end one after the other.
        while all.place("silent", "more").await.is_err() {}
    }

    #[tokio::test]
    async fn silent_file_systems_of_many_namespaces_leave_threads_to_those_that_have_none() {
        let all = Threads::new(16, 4);
        let mut silent = Vec::new();
        for namespace in ["a", "b", "c"] {
            for number in 0..4 {
                let at = format!("{namespace}{number}");
                silent.push(all.place(namespace, &at).await.unwrap());
            }
        }
        for namespace in ["d", "e", "f", "g"] {
            let place = all.place(namespace, namespace).await;
            silent.push(place.expect("the first of its own"));
        }
        tokio::time::pause();
        assert!(
            all.place("h", "h").await.is_err(),
            "an author's many namespaces"
        );
    }

    #[tokio::test]
    async fn what_fails_says_why() {
        let failed: Result<(), String> =
            apart(LONG, (), |_| Err("no such volume".to_owned())).await;
        assert_eq!(failed, Err("no such volume".to_owned()));
    }

    /// A result whose drop takes as long as the test determines.
    struct Slow {
        ends: mpsc::Sender<()>,
        may_end: mpsc::Receiver<()>,
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            self.ends.send(()).ok();
            self.may_end.recv().ok();
        }
    }

    #[tokio::test]
    async fn a_result_that_nobody_takes_is_gone_before_its_place_is_free() {
        let all = Threads::new(4, 4);
        let place = all.place("a", "v").await.unwrap();
        let (go_on, gone_on) = mpsc::channel::<()>();
        let (ends, ending) = mpsc::channel();
        let (let_end, may_end) = mpsc::channel::<()>();
        let work = move |_: &Steps| {
            gone_on.recv().ok();
            Ok(Slow { ends, may_end })
        };
        let dropped = tokio::time::timeout(SHORT, apart(LONG, place, work)).await;
        assert!(dropped.is_err(), "nobody waits");
        drop(go_on);
        ending.recv().unwrap();
        let refused = all.place("a", "v").await.unwrap_err();
        assert!(refused.contains("an earlier attempt"), "{refused}");
        drop(let_end);
        while all.place("a", "v").await.is_err() {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_makes_progress_is_waited_for_and_ends_with_its_caller() {
        let (ask, asked) = mpsc::channel();
        let (report, reported) = mpsc::channel();
        let slow = move |steps: &Steps| {
            while asked.recv().is_ok() {
                steps.step().map_err(|error| error.to_string())?;
                report.send(()).map_err(|error| error.to_string())?;
            }
            Ok(7)
        };
        let asks = async move {
            for _ in 0..5 {
                tokio::time::sleep(LONG * 9 / 10).await;
                ask.send(()).unwrap();
                reported.recv().unwrap();
            }
            // The thread ends in real time.
            tokio::time::resume();
        };
        let (outcome, ()) = tokio::join!(apart(LONG, (), slow), asks);
        assert_eq!(outcome, Ok(7));

        let (ended, end) = oneshot::channel();
        let endless = move |steps: &Steps| -> Result<(), String> {
            let ends = loop {
                if let Err(error) = steps.step() {
                    break error;
                }
            };
            drop(ended.send(ends.to_string()));
            Ok(())
        };
        let dropped = tokio::time::timeout(SHORT, apart(LONG, (), endless)).await;
        assert!(dropped.is_err());
        assert!(end.await.unwrap().contains("nobody waits"));
    }
}
