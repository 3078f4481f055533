//! The kernel's figures of this process, under Prometheus' names.

use crate::text::Text;
use std::fs;

/// Clock ticks per second in `/proc` (Linux: `USER_HZ`, the same on every architecture in use).
const TICKS: f64 = 100.0;
/// Bytes of a kibibyte, the unit of memory sizes in `/proc/self/status`.
const KIB: u64 = 1024;

/// Writes the figures that can be read; without `/proc` there are none.
pub(crate) fn write(text: &mut Text) {
    if let Some((cpu, started)) = times() {
        text.single(
            "process_cpu_seconds_total",
            "counter",
            "Processor time spent.",
            cpu,
        );
        text.single(
            "process_start_time_seconds",
            "gauge",
            "When the process began, since 1970.",
            started,
        );
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim_start_matches(':')
            .split_whitespace()
            .next()?
            .parse::<u64>()
            .ok()
    };
    for (key, name, help) in [
        ("VmRSS", "process_resident_memory_bytes", "Memory in use."),
        (
            "VmSize",
            "process_virtual_memory_bytes",
            "Memory addressed.",
        ),
    ] {
        if let Some(value) = kib(key) {
            text.single(name, "gauge", help, value * KIB);
        }
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        text.single(
            "process_open_fds",
            "gauge",
            "Descriptors open.",
            open.count() as u64,
        );
    }
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let most = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    if let Some(most) = most.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()) {
        text.single(
            "process_max_fds",
            "gauge",
            "Limit of open file descriptors.",
            most,
        );
    }
}

/// Processor seconds used, and the start time of the process in seconds since 1970.
fn times() -> Option<(f64, f64)> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may contain anything; fields 3 and up follow the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    let boot = fs::read_to_string("/proc/stat").ok()?;
    let boot: f64 = boot
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()?;
    Some((
        (number(14)? + number(15)?) / TICKS,
        boot + number(22)? / TICKS,
    ))
}
