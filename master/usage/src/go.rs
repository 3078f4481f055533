//! Durations as Go writes them; pure.

/// A number of milliseconds as Go's `time.Duration` writes it: `15.02s`, `1m0.5s`.
pub(crate) fn duration(millis: i64) -> String {
    let (minutes, rest) = (millis / 60_000, millis % 60_000);
    let mut seconds = format!("{}.{:03}", rest / 1000, rest % 1000);
    seconds.truncate(seconds.trim_end_matches('0').trim_end_matches('.').len());
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_go_does() {
        for (millis, text) in [
            (15_020, "15.02s"),
            (30_000, "30s"),
            (60_500, "1m0.5s"),
            (3_600_000, "1h0m0s"),
            (7, "0.007s"),
        ] {
            assert_eq!(duration(millis), text);
        }
    }
}
