//! Threads of their own for what looks into the volumes of a container before it starts.
//!
//! The file system of a volume can be a driver's (NFS, FUSE), whose server may be a pod's author's:
//! when it is silent, the kernel holds the caller for as long as the server likes, in a call that
//! nothing ends. So such calls take none of the runtime's threads, the start is given up after
//! [`LIMIT`], and a thread that is held counts for its namespace until it ends.

use agent_runtime::{NamedTurns, Turn};
use std::time::Duration;
use tokio::sync::oneshot;

/// Threads at the same time: each has a small stack, and those that are held wait for nothing else.
const THREADS: usize = 64;
/// Of these, those of one namespace.
const OF_A_NAMESPACE: usize = 8;
/// Longest time for the volumes of one container: its mounts are made in milliseconds.
const LIMIT: Duration = Duration::from_secs(60);
/// Longest time that a start waits for a thread, as it has a turn meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);

/// The threads, by namespace.
#[derive(Debug)]
pub(crate) struct Preparations(NamedTurns);

impl Default for Preparations {
    fn default() -> Self {
        Self(NamedTurns::new(THREADS, OF_A_NAMESPACE))
    }
}

impl Preparations {
    /// A thread of the namespace. It has as many as there are starts at a time, so that one is left
    /// unless file systems hold them.
    ///
    /// # Errors
    /// None is left for [`PATIENCE`].
    pub(crate) async fn place(&self, namespace: &str) -> Result<Turn, String> {
        let place = tokio::time::timeout(PATIENCE, self.0.turn(namespace)).await;
        place.map_err(|_late| {
            format!("file systems of volumes in the namespace {namespace} do not answer")
        })
    }
}

/// Does it on a thread of its own, which keeps the place until it ends.
///
/// # Errors
/// There is no thread for it, or it takes longer than [`LIMIT`].
pub(crate) async fn apart<T: Send + 'static>(
    place: Turn,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    within(LIMIT, place, work).await
}

async fn within<T: Send + 'static>(
    limit: Duration,
    place: Turn,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let (told, done) = oneshot::channel();
    let thread = std::thread::Builder::new().name("prepare".to_owned());
    let thread = thread.spawn(move || {
        let result = work();
        drop(place);
        // Nobody may wait any more: what was made goes with it.
        drop(told.send(result));
    });
    thread.map_err(|error| format!("no thread to prepare the container: {error}"))?;
    match tokio::time::timeout(limit, done).await {
        Ok(Ok(result)) => result,
        Ok(Err(_ended)) => Err("the container was not prepared: its thread failed".to_owned()),
        Err(_late) => Err(format!(
            "a volume's file system has not answered for {} s",
            limit.as_secs()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// On a runtime with one thread, which nothing may hold.
    #[tokio::test]
    async fn a_file_system_that_is_silent_holds_threads_of_its_namespace_alone() {
        const SHORT: Duration = Duration::from_millis(20);
        let all = Preparations::default();
        let mut silent = Vec::new();
        for _ in 0..OF_A_NAMESPACE {
            let (release, answer) = mpsc::channel::<()>();
            silent.push(release);
            let place = all.place("silent").await.unwrap();
            let waits = move || Ok(answer.recv().is_ok());
            let told = within(SHORT, place, waits).await.unwrap_err();
            assert!(told.contains("has not answered"), "{told}");
        }
        let more = all.place("silent").await.unwrap_err();
        assert!(more.contains("do not answer"), "{more}");
        let place = all.place("quick").await.unwrap();
        assert_eq!(apart(place, || Ok(7)).await, Ok(7), "another one has");
        drop(silent);
        // The threads end one after the other.
        while all.place("silent").await.is_err() {}
    }

    #[tokio::test]
    async fn what_fails_says_why() {
        let all = Preparations::default();
        let place = all.place("n").await.unwrap();
        let failed: Result<(), String> = apart(place, || Err("no such volume".to_owned())).await;
        assert_eq!(failed, Err("no such volume".to_owned()));
    }
}
