//! What the events of a pod say of a pull that takes long: how far it is. Upstream has an event
//! for its beginning and one for its end; those in between have the reason of the first.

use crate::progress::Progress;
use config_kube::written::{binary_size as bytes, go_seconds};
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// When an event tells how far a pull is, in seconds since it was asked for. After the last time
/// none does.
const REPORTS: [u64; 9] = [30, 60, 120, 300, 600, 1200, 3600, 7200, 21_600];

/// How far a pull is.
#[derive(Debug, Clone, Copy)]
pub enum PullStage {
    /// Other pulls go first.
    Waits,
    /// The registry is asked, and has said what there is to fetch where there is progress.
    Begun(Option<Progress>),
}

/// Does some work, and reports until it is done: after half a minute, then ever more rarely, nine
/// times at most.
pub async fn with_reports<T>(work: impl Future<Output = T>, mut report: impl FnMut(Duration)) -> T {
    let begun = Instant::now();
    let mut work = pin!(work);
    for after in REPORTS.map(Duration::from_secs) {
        if let Ok(done) = timeout_at(begun + after, &mut work).await {
            return done;
        }
        report(begun.elapsed());
    }
    work.await
}

impl PullStage {
    /// What an event says of the pull of an image after some time.
    pub fn message(self, image: &str, after: Duration) -> String {
        let after = go_seconds(after);
        let how = match self {
            Self::Waits => format!("waiting for other pulls after {after}"),
            Self::Begun(None) => format!("waiting for the registry's manifest after {after}"),
            Self::Begun(Some(far)) if far.is_fetched() => format!(
                "{} fetched after {after}, {} of {} layers unpacked",
                bytes(far.bytes),
                far.unpacked,
                far.layers
            ),
            Self::Begun(Some(far)) => format!(
                "{} of {} after {after}, {} of {} layers fetched",
                bytes(far.fetched),
                bytes(far.bytes),
                far.fetched_layers,
                far.layers
            ),
        };
        format!("Pulling image {image:?}: {how}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};
    use tokio::time::{sleep, timeout};

    /// When events tell of a work that takes so many seconds.
    async fn times(seconds: u64) -> Vec<u64> {
        let mut times = Vec::new();
        let work = async {
            sleep(Duration::from_secs(seconds)).await;
            seconds
        };
        let done = with_reports(work, |after| times.push(after.as_secs())).await;
        assert_eq!(done, seconds);
        times
    }

    #[tokio::test(start_paused = true)]
    async fn events_tell_of_a_pull_ever_more_rarely_until_it_ends() {
        assert!(times(29).await.is_empty());
        assert_eq!(times(119).await, [30, 60]);
        assert_eq!(times(700).await, [30, 60, 120, 300, 600]);
        assert_eq!(
            with_reports(ready(7), |_| unreachable!("it is done")).await,
            7
        );
        let mut number = 0;
        let endless = with_reports(pending::<()>(), |_| number += 1);
        let year = Duration::from_secs(365 * 86_400);
        assert!(timeout(year, endless).await.is_err());
        assert_eq!(number, REPORTS.len());
    }

    #[test]
    fn a_pull_is_reported_by_its_bytes_and_layers() {
        let far = Progress {
            bytes: 310 << 20,
            fetched: 120 << 20,
            layers: 7,
            fetched_layers: 2,
            unpacked: 0,
        };
        let unpacks = Progress {
            fetched: far.bytes,
            fetched_layers: 7,
            unpacked: 3,
            ..far
        };
        for (seconds, stage, how) in [
            (30, PullStage::Waits, "waiting for other pulls after 30s"),
            (
                60,
                PullStage::Begun(None),
                "waiting for the registry's manifest after 1m0s",
            ),
            (
                90,
                PullStage::Begun(Some(far)),
                "120.0 MiB of 310.0 MiB after 1m30s, 2 of 7 layers fetched",
            ),
            (
                3600,
                PullStage::Begun(Some(unpacks)),
                "310.0 MiB fetched after 1h0m0s, 3 of 7 layers unpacked",
            ),
        ] {
            let message = stage.message("app:1", Duration::from_secs(seconds));
            assert_eq!(message, format!("Pulling image \"app:1\": {how}"));
        }
    }
}
