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

/// A job whose caller looks at it. It goes back among the others with this, also where the caller
/// is gone meanwhile: dropping a job ends its work.
struct Held<'a> {
    jobs: &'a Jobs,
    name: &'a str,
    job: Job,
    /// It has ended well, and is forgotten.
    is_over: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let job = std::mem::take(&mut self.job);
            self.jobs.all(|all| all.insert(self.name.to_owned(), job));
        }
    }
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
        let mut held = Held {
            jobs: self,
            name,
            job: self.all(|all| all.remove(name)).unwrap_or_default(),
            is_over: false,
        };
        if held.job.running.is_empty() {
            if let Some((error, again)) = &held.job.failed
                && *again > Instant::now()
            {
                return Err(error.clone());
            }
            held.job.running.spawn(begin());
        }
        let Ok(ended) = timeout(patience, held.job.running.join_next()).await else {
            return Err("the driver has not answered yet".to_owned());
        };
        match ended.map(words) {
            Some(Ok(())) | None => {
                held.is_over = true;
                Ok(())
            }
            Some(Err(error)) => {
                held.job.fail(error.clone());
                Err(error)
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn work_goes_on_when_its_caller_is_gone() {
        let jobs = Jobs::default();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let work = || async move { ended.await.map_err(|_dropped| "dropped".to_owned()) };
        let caller = jobs.attempt("name", PATIENCE, work);
        assert!(timeout(Duration::from_millis(10), caller).await.is_err());
        tokio::task::yield_now().await;
        end.send(()).unwrap();
        let again = || std::future::ready(Err("begun a second time".to_owned()));
        assert_eq!(jobs.attempt("name", PATIENCE, again).await, Ok(()));
    }

    #[tokio::test]
    async fn failed_work_is_not_begun_again_at_once() {
        let jobs = Jobs::default();
        let fails = || std::future::ready(Err("no".to_owned()));
        let refused = Err("no".to_owned());
        assert_eq!(jobs.attempt("name", PATIENCE, fails).await, refused);
        let works = || std::future::ready(Ok(()));
        assert_eq!(jobs.attempt("name", PATIENCE, works).await, refused);
        assert_eq!(jobs.attempt("other", PATIENCE, works).await, Ok(()));
    }
}
