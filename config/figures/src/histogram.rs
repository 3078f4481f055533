//! Durations by size.

use crate::text::Text;
use std::time::Duration;

/// Durations, counted by `N` upper bounds. The bounds are the owner's: seconds, ascending, the same
/// in every call.
#[derive(Debug, Clone, Copy)]
pub struct Histogram<const N: usize> {
    counts: [u64; N],
    /// How many are above all bounds.
    longer: u64,
    /// Seconds of all together.
    sum: f64,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self {
            counts: [0; N],
            longer: 0,
            sum: 0.0,
        }
    }
}

impl<const N: usize> Histogram<N> {
    /// Counts one. A bound includes the duration that equals it.
    pub fn add(&mut self, bounds: &[f64; N], took: Duration) {
        let seconds = took.as_secs_f64();
        let mut counts = bounds.iter().zip(&mut self.counts);
        let found = counts.find(|(bound, _)| seconds <= **bound);
        let count = found.map_or(&mut self.longer, |(_, count)| count);
        *count = count.saturating_add(1);
        self.sum += seconds;
    }

    /// Counts what another has counted by the same bounds.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(more);
        }
        self.longer = self.longer.saturating_add(other.longer);
        self.sum += other.sum;
    }

    /// How many were counted.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum::<u64>() + self.longer
    }

    /// Writes the samples, with these labels or none.
    pub fn write(&self, text: &mut Text, name: &str, labels: &str, bounds: &[f64; N]) {
        let mut counts = self.counts.to_vec();
        counts.push(self.longer);
        text.histogram(name, labels, bounds, &counts, self.sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [f64; 2] = [0.5, 1.0];

    fn of(millis: &[u64]) -> Histogram<2> {
        let mut histogram = Histogram::default();
        for millis in millis {
            histogram.add(&BOUNDS, Duration::from_millis(*millis));
        }
        histogram
    }

    #[test]
    fn durations_are_counted_below_their_bounds_and_summed() {
        let mut histogram = of(&[0, 500, 501]);
        histogram.merge(&of(&[1000, 1500]));
        assert_eq!(histogram.total(), 5);
        let mut text = Text::default();
        histogram.write(&mut text, "a", "x=\"y\"", &BOUNDS);
        assert_eq!(
            text.finish().lines().collect::<Vec<_>>(),
            [
                "a_bucket{x=\"y\",le=\"0.5\"} 2",
                "a_bucket{x=\"y\",le=\"1\"} 4",
                "a_bucket{x=\"y\",le=\"+Inf\"} 5",
                "a_sum{x=\"y\"} 3.501",
                "a_count{x=\"y\"} 5",
            ]
        );
    }
}
