//! For tests that measure: how many objects they use, and how long work takes.
//!
//! By hand or by `cargo xtask bench` such a test uses as many objects as its environment variables
//! say. In the test command it uses a few, which only shows that it still runs.

use nix::time::{ClockId, clock_gettime};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// A number from an environment variable; `usual`, which is small, in the test command.
pub fn number<T: FromStr>(name: &str, usual: T) -> T {
    let number = std::env::var(name).ok();
    let number = number.and_then(|number| number.parse().ok());
    number.unwrap_or(usual)
}

/// Processor time of this thread so far.
pub fn spent_by_thread() -> Duration {
    spent(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// Processor time of this process so far.
pub fn spent_by_process() -> Duration {
    spent(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

fn spent(clock: ClockId) -> Duration {
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}

/// Wall and processor time of some work, by one of the two clocks.
pub fn timed<T>(spent: fn() -> Duration, work: impl FnOnce() -> T) -> (T, Duration, Duration) {
    let (begun, before) = (Instant::now(), spent());
    let done = work();
    (done, begun.elapsed(), spent().saturating_sub(before))
}

/// The `percent`th percentile of times; zero where there are none.
pub fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    let last = times.len().saturating_sub(1);
    let at = (times.len() * percent / 100).min(last);
    times.get(at).copied().unwrap_or_default()
}

/// The median and the 99th percentile, as text.
pub fn spread(times: &mut [Duration]) -> String {
    let [half, most] = [50, 99].map(|percent| percentile(times, percent));
    format!("p50 {half:?}, p99 {most:?}")
}
