//! Background work: at most one run at a time for each name, which goes on if its caller is gone,
//! with pauses that grow after failures.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

/// Pauses after a failure (upstream's): the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(122);

/// The work, by names. Dropped with it.
#[derive(Debug, Default)]
pub(crate) struct Jobs(Mutex<HashMap<String, Job>>);

#[derive(Debug, Default)]
struct Job {
    running: JoinSet<Result<(), String>>,
    /// Why it failed last, and when it may be tried again.
    failed: Option<(String, Instant)>,
    pause: Duration,
}

impl Job {
    fn fail(&mut self, error: String) {
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.failed = Some((error, Instant::now() + self.pause));
    }
}

/// The result of a task.
fn words(ended: Result<Result<(), String>, JoinError>) -> Result<(), String> {
    ended.map_err(|error| error.to_string()).flatten()
}

impl Jobs {
    /// The outcome of the work of this name within `patience`: it is begun where it is due and does
    /// not go on already.
    ///
    /// # Errors
    /// Why it failed, now or the last time, or that it goes on.
    pub(crate) async fn attempt<F>(
        &self,
        name: &str,
        patience: Duration,
        begin: impl FnOnce() -> F,
    ) -> Result<(), String>
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let mut job = self.all(|all| all.remove(name)).unwrap_or_default();
        if job.running.is_empty() {
            if let Some((error, again)) = &job.failed
                && *again > Instant::now()
            {
                let error = error.clone();
                self.all(|all| all.insert(name.to_owned(), job));
                return Err(error);
            }
            job.running.spawn(begin());
        }
        let Ok(ended) = timeout(patience, job.running.join_next()).await else {
            self.all(|all| all.insert(name.to_owned(), job));
            return Err("the driver has not answered yet".to_owned());
        };
        let error = match ended.map(words) {
            Some(Ok(())) | None => return Ok(()),
            Some(Err(error)) => error,
        };
        job.fail(error.clone());
        self.all(|all| all.insert(name.to_owned(), job));
        Err(error)
    }

    /// Forgets what has ended well, and failures that are long ago.
    pub(crate) fn reap(&self) {
        let old = Instant::now().checked_sub(LONGEST_PAUSE);
        self.all(|all| {
            all.retain(|_, job| {
                match job.running.try_join_next().map(words) {
                    Some(Ok(())) => return false,
                    Some(Err(error)) => job.fail(error),
                    None => {}
                }
                let failed = job.failed.as_ref();
                !job.running.is_empty() || failed.is_some_and(|(_, again)| Some(*again) >= old)
            });
        });
    }

    /// Ends all of it.
    pub(crate) fn end(&self) {
        self.all(HashMap::clear);
    }

    fn all<T>(&self, with: impl FnOnce(&mut HashMap<String, Job>) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
