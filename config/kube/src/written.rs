//! Times and sizes as Go's programs and upstream's kubelet write them.

use std::time::Duration;

/// A time to the millisecond as Go writes it, which is its form in upstream's API: `15.02s`,
/// `1m0.5s`. Less than a second is written in seconds, too (`0.007s`, for which Go has `7ms`).
pub fn go_duration(time: Duration) -> String {
    let all = time.as_secs();
    let mut seconds = format!("{}.{:03}", all % 60, time.subsec_millis());
    seconds.truncate(seconds.trim_end_matches('0').trim_end_matches('.').len());
    match (all / 3600, all / 60 % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// The whole seconds of a time, in that form.
pub fn go_seconds(time: Duration) -> String {
    go_duration(Duration::from_secs(time.as_secs()))
}

/// A size in the largest binary unit that it reaches, with one decimal.
pub fn binary_size(size: u64) -> String {
    let units = ["EiB", "PiB", "TiB", "GiB", "MiB", "KiB"].into_iter();
    let mut units = units.zip([60, 50, 40, 30, 20, 10]);
    units.find(|(_, bits)| size >> bits > 0).map_or_else(
        || format!("{size}.0 B"),
        |(unit, bits)| {
            let tenths = (u128::from(size) * 10 + (1 << (bits - 1))) >> bits;
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_go_does() {
        for (millis, text, whole) in [
            (15_020, "15.02s", "15s"),
            (30_000, "30s", "30s"),
            (60_500, "1m0.5s", "1m0s"),
            (3_600_000, "1h0m0s", "1h0m0s"),
            (7, "0.007s", "0s"),
        ] {
            let time = Duration::from_millis(millis);
            assert_eq!(go_duration(time), text);
            assert_eq!(go_seconds(time), whole);
        }
    }

    #[test]
    fn sizes_are_written_in_the_largest_unit_that_they_reach() {
        for (size, text) in [
            (0, "0.0 B"),
            (1023, "1023.0 B"),
            (1024, "1.0 KiB"),
            (28_346_784_153, "26.4 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(binary_size(size), text);
        }
    }
}
