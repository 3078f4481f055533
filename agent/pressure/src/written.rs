//! Times and sizes as upstream's kubelet writes them.

use std::time::Duration;

/// Whole seconds as Go writes durations, which is their form in upstream's API.
#[must_use]
pub fn go_duration(time: Duration) -> String {
    let all = time.as_secs();
    let (hours, minutes, seconds) = (all / 3600, all / 60 % 60, all % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// A size in the largest binary unit that it reaches, with one decimal.
#[must_use]
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
