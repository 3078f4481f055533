//! What the images on the machine take of its disk, measured when somebody asks for figures, at
//! most once in [`PERIOD`], whether pods run or not.

use agent_runtime::{Error, ImageSpace};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Least time between two measurements.
const PERIOD: Duration = Duration::from_secs(60);

/// The last measurement. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stored(Arc<Mutex<Last>>);

#[derive(Debug, Default)]
struct Last {
    /// When it was begun; none where it failed.
    looked: Option<Instant>,
    found: Option<ImageSpace>,
}

impl Stored {
    fn lock(&self) -> MutexGuard<'_, Last> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measures by the engine, where that is due.
    pub(crate) async fn look(&self, measure: impl Future<Output = Result<ImageSpace, Error>>) {
        let looked = self.lock().looked;
        if looked.is_some_and(|looked| looked.elapsed() < PERIOD) {
            return;
        }
        let (now, found) = (Instant::now(), measure.await.ok());
        let looked = found.map(|_| now);
        *self.lock() = Last { looked, found };
    }

    /// What the last measurement has found.
    pub(crate) fn found(&self) -> Option<ImageSpace> {
        self.lock().found
    }

    /// For tests: what a measurement has found.
    #[cfg(test)]
    pub(crate) fn tell(&self, found: ImageSpace) {
        self.lock().found = Some(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_runtime::ErrorClass;

    #[tokio::test(start_paused = true)]
    async fn images_are_measured_once_a_minute_and_an_engine_that_is_away_gives_no_figure() {
        let stored = Stored::default();
        let look = async |bytes: u64| {
            let space = ImageSpace { bytes, inodes: 1 };
            stored.look(async move { Ok(space) }).await;
            stored.found().map(|space| space.bytes)
        };
        assert_eq!(look(7).await, Some(7));
        tokio::time::advance(PERIOD / 2).await;
        assert_eq!(look(8).await, Some(7));
        tokio::time::advance(PERIOD / 2).await;
        assert_eq!(look(8).await, Some(8));
        tokio::time::advance(PERIOD).await;
        let away = Error::new(ErrorClass::Unavailable, "no engine");
        stored.look(async move { Err(away) }).await;
        assert_eq!(stored.found(), None);
        assert_eq!(look(9).await, Some(9), "it is asked again");
    }
}
