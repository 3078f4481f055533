//! The kernel's figures about a process, under Prometheus' names.

use crate::Text;

/// Clock ticks per second in `/proc` (Linux: `USER_HZ`, the same on every architecture in use).
const TICKS: f64 = 100.0;
/// Bytes of a kibibyte, the unit of memory sizes in `/proc/PID/status`.
const KIB: u64 = 1024;

/// The files that a [`Process`] is made of, in the order of its fields.
pub const FILES: [&str; 4] = [
    "/proc/self/stat",
    "/proc/self/status",
    "/proc/self/limits",
    "/proc/stat",
];

/// The contents of [`FILES`]; an empty text where one can't be read, which leaves its figures out.
#[derive(Debug, Clone, Default)]
pub struct Process {
    /// Processor time and start.
    pub stat: String,
    /// Memory.
    pub status: String,
    /// Limits.
    pub limits: String,
    /// The machine's `/proc/stat`, for the time of its boot.
    pub machine: String,
    /// Open file descriptors.
    pub descriptors: Option<u64>,
}

impl Process {
    /// From `read`, which gives the text of a file, and the number of open descriptors.
    pub fn of(mut read: impl FnMut(&str) -> String, descriptors: Option<u64>) -> Self {
        let [stat, status, limits, machine] = FILES.map(&mut read);
        Self {
            stat,
            status,
            limits,
            machine,
            descriptors,
        }
    }

    /// The figures alone, in the text format.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = Text::default();
        self.write(&mut text);
        text.finish()
    }

    /// Writes the figures that are there.
    pub fn write(&self, text: &mut Text) {
        if let Some((cpu, started)) = self.times() {
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
        let memory = |key: &str| {
            let line = self
                .status
                .lines()
                .find_map(|line| line.strip_prefix(key))?;
            let kib = line.trim_start_matches(':').split_whitespace().next()?;
            kib.parse::<u64>().ok()?.checked_mul(KIB)
        };
        let limit = |key: &str| {
            let line = self
                .limits
                .lines()
                .find_map(|line| line.strip_prefix(key))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Memory in use.",
                memory("VmRSS"),
            ),
            (
                "process_virtual_memory_bytes",
                "Memory addressed.",
                memory("VmSize"),
            ),
            ("process_open_fds", "Descriptors open.", self.descriptors),
            (
                "process_max_fds",
                "Limit of open file descriptors.",
                limit("Max open files"),
            ),
        ] {
            if let Some(value) = value {
                text.single(name, "gauge", help, value);
            }
        }
    }

    /// Processor seconds used, and the start time of the process in seconds since 1970.
    fn times(&self) -> Option<(f64, f64)> {
        // The name in parentheses may contain anything; fields 3 and up follow the last
        // parenthesis.
        let fields: Vec<&str> = self.stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
        let boot = self
            .machine
            .lines()
            .find_map(|line| line.strip_prefix("btime "))?;
        let boot: f64 = boot.trim().parse().ok()?;
        Some((
            (number(14)? + number(15)?) / TICKS,
            boot + number(22)? / TICKS,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::Process;

    #[test]
    fn each_figure_has_its_unit() {
        let process = Process::of(
            |file| {
                match file {
                    // utime 150 and stime 50 ticks; begun 1,000 ticks after the boot. The name
                    // contains the characters that end a name.
                    "/proc/self/stat" => "7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 150 50 0 0 20 0 4 0 1000 0",
                    "/proc/self/status" => "Name:\ta\nVmSize:\t    2048 kB\nVmRSS:\t     512 kB\n",
                    "/proc/self/limits" => "Max processes 5 5 processes\nMax open files            1024   4096   files\n",
                    "/proc/stat" => "cpu 1 2\nbtime 1700000000\n",
                    other => other,
                }
                .to_owned()
            },
            Some(12),
        );
        let text = process.text();
        for line in [
            "process_cpu_seconds_total 2",
            "process_start_time_seconds 1700000010",
            "process_resident_memory_bytes 524288",
            "process_virtual_memory_bytes 2097152",
            "process_open_fds 12",
            "process_max_fds 1024",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is missing from:\n{text}"
            );
        }
    }

    #[test]
    fn figures_that_cannot_be_read_are_left_out() {
        assert_eq!(Process::default().text(), "");
        let cut = Process {
            stat: "7 (a) S 1".to_owned(),
            status: "VmRSS:".to_owned(),
            limits: "Max open files unlimited".to_owned(),
            machine: "btime x".to_owned(),
            descriptors: None,
        };
        assert_eq!(cut.text(), "");
    }
}
