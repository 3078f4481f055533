//! The kernel's counters of a control group and of the machine; pure.

use crate::stall::Waits;
use agent_sys::cgroup::Version;

/// Jiffies of `/proc/stat` in a second: part of the kernel's interface (USER_HZ), independent of
/// its own ticks.
const JIFFIES: u64 = 100;
const NANOS: u64 = 1_000_000_000;
/// A limit from here on counts as none (upstream: `maxMemorySize`).
const UNLIMITED: u64 = 1 << 62;

/// What was used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// CPU time since the beginning, in nanoseconds.
    pub(crate) cpu: Option<u64>,
    /// Of it, that of programs and that of the kernel for them.
    pub(crate) split: Option<Split>,
    /// A limit of the CPU and what it did; `None` where the group has none.
    pub(crate) throttling: Option<Throttling>,
    pub(crate) memory: Option<Memory>,
    /// Bytes of swap.
    pub(crate) swap: Option<u64>,
    /// Processes that the kernel has killed here for lack of memory.
    pub(crate) oom_kills: Option<u64>,
    /// How often memory was asked for beyond the limit.
    pub(crate) refusals: Option<u64>,
    /// Processes and threads.
    pub(crate) processes: Option<u64>,
    /// What the group is given beside its limits of CPU and memory.
    pub(crate) given: Given,
    /// How long processes have waited.
    pub(crate) waits: Waits,
}

/// Settings of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Given {
    /// Its part of the CPU beside others, in shares of version 1.
    pub(crate) shares: Option<u64>,
    /// Length of a period of the CPU's limit in microseconds, also where there is no limit.
    pub(crate) period: Option<u64>,
    /// Bytes of memory from which on it is slowed; 0 where there is no such mark.
    pub(crate) reservation: Option<u64>,
    /// Bytes of swap, or of memory with swap in version 1; 0 where there is no limit.
    pub(crate) swap: Option<u64>,
    /// Processes and threads at most; 0 where there is no limit.
    pub(crate) threads: Option<u64>,
}

/// CPU time in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) user: u64,
    pub(crate) system: u64,
}

/// What a limit of the CPU allows and has done since the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Throttling {
    /// Microseconds of CPU in each period.
    pub(crate) quota: u64,
    /// Periods in which something was to run.
    pub(crate) periods: u64,
    /// Periods in which the quota was used up.
    pub(crate) throttled: u64,
    /// Nanoseconds for which processes waited for the next period.
    pub(crate) waited: u64,
}

/// Memory in use, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// All charged memory, including the page cache.
    pub(crate) usage: u64,
    /// `usage` without inactive file pages: memory that the kernel can't reclaim at once.
    pub(crate) working_set: u64,
    /// Anonymous memory.
    pub(crate) rss: u64,
    /// The page cache.
    pub(crate) cache: u64,
    /// Of the page cache, what processes have mapped.
    pub(crate) mapped: u64,
    /// The most that `usage` has been; `None` where the kernel doesn't count it.
    pub(crate) peak: Option<u64>,
    /// Page faults since the beginning.
    pub(crate) faults: u64,
    /// Of these, those that had to read from a disk.
    pub(crate) major_faults: u64,
    /// The limit; `None` if there is none.
    pub(crate) limit: Option<u64>,
}

impl Memory {
    /// Memory that may still be used beyond the working set.
    pub(crate) fn available(&self) -> Option<u64> {
        Some(self.limit?.saturating_sub(self.working_set))
    }
}

/// The number in the line that is `name number` or `name: number`.
fn named(text: &str, name: &str) -> Option<u64> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix([' ', ':']))?;
    value.split_whitespace().next()?.parse().ok()
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// A mark that a group has set; 0 where there is none.
fn set(text: &str) -> Option<u64> {
    if text.trim() == "max" {
        return Some(0);
    }
    let mark = number(text)?;
    Some(if mark < UNLIMITED { mark } else { 0 })
}

/// The shares of version 1 that are the weight of version 2 (upstream's table: 2 to 262144 are 1 to
/// 10000).
fn shares(weight: u64) -> u64 {
    2 + weight.saturating_sub(1).saturating_mul(262_142) / 9999
}

impl Counters {
    /// The counters of a group. `read` returns a file of the group by controller and name, if there
    /// is one.
    pub(crate) fn of_group(
        version: Version,
        read: impl Fn(&'static str, &'static str) -> Option<String>,
    ) -> Self {
        match version {
            Version::One => Self::of_version_one(&read),
            Version::Two => Self::of_version_two(&read),
        }
    }

    fn of_version_two(read: &impl Fn(&'static str, &'static str) -> Option<String>) -> Self {
        let of = |controller, file| number(&read(controller, file)?);
        let stat = read("cpu", "cpu.stat").unwrap_or_default();
        let nanos = |name| Some(named(&stat, name)?.saturating_mul(1000));
        let split = || {
            Some(Split {
                user: nanos("user_usec")?,
                system: nanos("system_usec")?,
            })
        };
        let throttling = || {
            let limit = read("cpu", "cpu.max")?;
            // `max` is no number: no limit.
            let quota = limit.split_whitespace().next()?;
            Some(Throttling {
                quota: quota.parse().ok()?,
                periods: named(&stat, "nr_periods").unwrap_or_default(),
                throttled: named(&stat, "nr_throttled").unwrap_or_default(),
                waited: nanos("throttled_usec").unwrap_or_default(),
            })
        };
        let memory = || {
            let stat = read("memory", "memory.stat")?;
            let of_stat = |name| named(&stat, name).unwrap_or_default();
            let usage = of("memory", "memory.current")?;
            Some(Memory {
                usage,
                working_set: usage.saturating_sub(of_stat("inactive_file")),
                rss: of_stat("anon"),
                cache: of_stat("file"),
                mapped: of_stat("file_mapped"),
                peak: of("memory", "memory.peak"),
                faults: of_stat("pgfault"),
                major_faults: of_stat("pgmajfault"),
                // `max` is no number: no limit.
                limit: of("memory", "memory.max").filter(|limit| *limit < UNLIMITED),
            })
        };
        let mark = |controller, file| set(&read(controller, file)?);
        Self {
            cpu: nanos("usage_usec"),
            split: split(),
            throttling: throttling(),
            memory: memory(),
            swap: of("memory", "memory.swap.current"),
            oom_kills: read("memory", "memory.events").and_then(|text| named(&text, "oom_kill")),
            refusals: read("memory", "memory.events").and_then(|text| named(&text, "max")),
            processes: of("pids", "pids.current"),
            given: Given {
                shares: of("cpu", "cpu.weight").map(shares),
                period: read("cpu", "cpu.max").and_then(|limit| {
                    let period = limit.split_whitespace().nth(1)?;
                    period.parse().ok()
                }),
                reservation: mark("memory", "memory.high"),
                swap: mark("memory", "memory.swap.max"),
                threads: mark("pids", "pids.max"),
            },
            waits: Waits::of(|resource| {
                let (controller, file) = resource.of_group();
                read(controller, file)
            }),
        }
    }

    /// Version 1 counts a group's own processes under plain names, and those of groups below it
    /// with them as `total_…`.
    fn of_version_one(read: &impl Fn(&'static str, &'static str) -> Option<String>) -> Self {
        let of = |controller, file| number(&read(controller, file)?);
        let stat = read("memory", "memory.stat");
        let memory = || {
            let of_stat = |name| named(stat.as_ref()?, name);
            let usage = of("memory", "memory.usage_in_bytes")?;
            Some(Memory {
                usage,
                working_set: usage.saturating_sub(of_stat("total_inactive_file")?),
                rss: of_stat("total_rss").unwrap_or_default(),
                cache: of_stat("total_cache").unwrap_or_default(),
                mapped: of_stat("total_mapped_file").unwrap_or_default(),
                peak: of("memory", "memory.max_usage_in_bytes"),
                faults: of_stat("total_pgfault").unwrap_or_default(),
                major_faults: of_stat("total_pgmajfault").unwrap_or_default(),
                limit: of("memory", "memory.limit_in_bytes").filter(|limit| *limit < UNLIMITED),
            })
        };
        let split = || {
            let text = read("cpuacct", "cpuacct.stat")?;
            let of = |name| Some(named(&text, name)?.saturating_mul(NANOS / JIFFIES));
            Some(Split {
                user: of("user")?,
                system: of("system")?,
            })
        };
        let throttling = || {
            // -1 is no limit.
            let quota = of("cpu", "cpu.cfs_quota_us")?;
            let stat = read("cpu", "cpu.stat").unwrap_or_default();
            Some(Throttling {
                quota,
                periods: named(&stat, "nr_periods").unwrap_or_default(),
                throttled: named(&stat, "nr_throttled").unwrap_or_default(),
                waited: named(&stat, "throttled_time").unwrap_or_default(),
            })
        };
        let kills =
            || read("memory", "memory.oom_control").and_then(|text| named(&text, "oom_kill"));
        let mark = |controller, file| set(&read(controller, file)?);
        Self {
            cpu: of("cpuacct", "cpuacct.usage"),
            split: split(),
            throttling: throttling(),
            memory: memory(),
            swap: stat.as_ref().and_then(|stat| named(stat, "total_swap")),
            oom_kills: kills(),
            refusals: of("memory", "memory.failcnt"),
            processes: of("pids", "pids.current"),
            given: Given {
                shares: of("cpu", "cpu.shares"),
                period: of("cpu", "cpu.cfs_period_us"),
                reservation: mark("memory", "memory.soft_limit_in_bytes"),
                swap: mark("memory", "memory.memsw.limit_in_bytes"),
                threads: mark("pids", "pids.max"),
            },
            waits: Waits::default(),
        }
    }

    /// The counters of the machine. `read` returns a file of `/proc`.
    pub(crate) fn of_machine(read: impl Fn(&'static str) -> Option<String>) -> Self {
        let info = read("meminfo").unwrap_or_default();
        let of_info = |name| named(&info, name).map(|kib| kib.saturating_mul(1024));
        let events = read("vmstat").unwrap_or_default();
        let memory = || {
            let total = of_info("MemTotal")?;
            let usage = total.saturating_sub(of_info("MemFree")?);
            Some(Memory {
                usage,
                working_set: usage.saturating_sub(of_info("Inactive(file)").unwrap_or_default()),
                rss: of_info("AnonPages").unwrap_or_default(),
                cache: of_info("Cached").unwrap_or_default(),
                mapped: of_info("Mapped").unwrap_or_default(),
                peak: None,
                faults: named(&events, "pgfault").unwrap_or_default(),
                major_faults: named(&events, "pgmajfault").unwrap_or_default(),
                limit: Some(total),
            })
        };
        let swap = || Some(of_info("SwapTotal")?.saturating_sub(of_info("SwapFree")?));
        let stat = read("stat").and_then(|text| busy(&text));
        Self {
            cpu: stat.map(|split| split.user.saturating_add(split.system)),
            split: stat,
            throttling: None,
            memory: memory(),
            swap: swap(),
            oom_kills: named(&events, "oom_kill"),
            refusals: None,
            given: Given::default(),
            processes: read("loadavg").and_then(|text| threads(&text)),
            waits: Waits::of(|resource| read(resource.of_machine())),
        }
    }
}

/// Nanoseconds in which CPUs were busy (proc_stat(5)), as the root group counts: user and nice;
/// system, irq, softirq and steal.
fn busy(stat: &str) -> Option<Split> {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = all
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    let of = |all: &[usize]| {
        let fields = all.iter().map(|at| fields.get(*at).copied());
        let jiffies = fields.map(Option::unwrap_or_default).sum::<u64>();
        jiffies.saturating_mul(NANOS / JIFFIES)
    };
    (fields.len() >= 4).then(|| Split {
        user: of(&[0, 1]),
        system: of(&[2, 5, 6, 7]),
    })
}

/// When the machine booted, in seconds since 1970 (proc_stat(5)).
pub(crate) fn booted(stat: &str) -> Option<i64> {
    i64::try_from(named(stat, "btime")?).ok()
}

/// Logical processors that are on (proc_stat(5)): a line `cpuN` for each.
pub(crate) fn cores(stat: &str) -> u64 {
    let number = |line: &str| line.strip_prefix("cpu")?.chars().next();
    let lines = stat.lines().filter_map(number);
    lines.filter(char::is_ascii_digit).map(|_| 1).sum()
}

/// The number of processes and threads (proc_loadavg(5)).
fn threads(loadavg: &str) -> Option<u64> {
    let counts = loadavg.split_whitespace().nth(3)?;
    counts.split_once('/')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(file: &str) -> Option<String> {
        let text = match file {
            "cpu.stat" => {
                "usage_usec 1230000\nuser_usec 1000000\nsystem_usec 230000\nnr_periods 9\nnr_throttled 4\nthrottled_usec 77\n"
            }
            "cpu.max" => "20000 100000\n",
            "memory.current" => "10485760\n",
            "memory.peak" => "11000000\n",
            "memory.events" => "low 0\nmax 6\noom 3\noom_kill 2\n",
            "memory.high" => "max\n",
            "memory.swap.max" => "8192\n",
            "cpu.weight" => "1\n",
            "pids.max" => "1024\n",
            "memory.stat" => {
                "anon 4194304\nfile 6291456\nfile_mapped 4096\ninactive_anon 7\nactive_file 2\ninactive_file 1048576\n\
                 pgfault 900\npgmajfault 3\n"
            }
            "memory.max" => "67108864\n",
            "memory.swap.current" => "4096\n",
            "pids.current" => "5\n",
            _ => return None,
        };
        Some(text.to_owned())
    }

    fn one(file: &str) -> Option<String> {
        let text = match file {
            "cpuacct.usage" => "1230000000\n",
            "cpuacct.stat" => "user 100\nsystem 23\n",
            "cpu.stat" => "nr_periods 9\nnr_throttled 4\nthrottled_time 77000\n",
            "cpu.cfs_quota_us" => "20000\n",
            "cpu.cfs_period_us" => "100000\n",
            "cpu.shares" => "2\n",
            "memory.failcnt" => "6\n",
            "memory.soft_limit_in_bytes" => "9223372036854771712\n",
            "memory.memsw.limit_in_bytes" => "8192\n",
            "pids.max" => "1024\n",
            "memory.usage_in_bytes" => "10485760\n",
            "memory.max_usage_in_bytes" => "11000000\n",
            "memory.oom_control" => "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            "memory.stat" => {
                "cache 1\nrss 2\ninactive_file 3\ntotal_rss 4194304\ntotal_inactive_file 1048576\ntotal_pgfault 900\n\
                 total_pgmajfault 3\ntotal_swap 4096\ntotal_cache 6291456\ntotal_mapped_file 4096\n"
            }
            "memory.limit_in_bytes" => "67108864\n",
            "pids.current" => "5\n",
            _ => return None,
        };
        Some(text.to_owned())
    }

    fn expected() -> Counters {
        Counters {
            cpu: Some(1_230_000_000),
            split: Some(Split {
                user: 1_000_000_000,
                system: 230_000_000,
            }),
            throttling: Some(Throttling {
                quota: 20_000,
                periods: 9,
                throttled: 4,
                waited: 77_000,
            }),
            memory: Some(Memory {
                usage: 10 << 20,
                working_set: 9 << 20,
                rss: 4 << 20,
                cache: 6 << 20,
                mapped: 4096,
                peak: Some(11_000_000),
                faults: 900,
                major_faults: 3,
                limit: Some(64 << 20),
            }),
            swap: Some(4096),
            oom_kills: Some(2),
            refusals: Some(6),
            processes: Some(5),
            given: Given {
                shares: Some(2),
                period: Some(100_000),
                reservation: Some(0),
                swap: Some(8192),
                threads: Some(1024),
            },
            waits: Waits::default(),
        }
    }

    #[test]
    fn the_waits_of_a_group_are_in_its_own_files_and_left_out_where_there_are_none() {
        let text = "some avg10=0.50 avg60=0.00 avg300=0.00 total=9\n";
        let read = |_: &str, file: &str| (file == "io.pressure").then(|| text.to_owned());
        let found = Counters::of_group(Version::Two, read).waits;
        assert_eq!(found.io.map(|io| io.some.total), Some(9));
        assert_eq!((found.cpu, found.memory), (None, None));
        let machine =
            Counters::of_machine(|file| (file == "pressure/cpu").then(|| text.to_owned()));
        assert_eq!(machine.waits.cpu.map(|cpu| cpu.some.total), Some(9));
        assert_eq!(
            Counters::of_group(Version::One, read).waits,
            Waits::default()
        );
    }

    #[test]
    fn both_versions_of_control_groups_give_the_same_figures() {
        assert_eq!(
            Counters::of_group(Version::Two, |_, file| two(file)),
            expected()
        );
        assert_eq!(
            Counters::of_group(Version::One, |_, file| one(file)),
            expected()
        );
        assert_eq!(expected().memory.unwrap().available(), Some(55 << 20));
    }

    #[test]
    fn each_file_is_of_its_controller() {
        let asked = std::sync::Mutex::new(Vec::new());
        Counters::of_group(Version::One, |controller, file| {
            asked.lock().unwrap().push((controller, file));
            one(file)
        });
        for (controller, file) in asked.into_inner().unwrap() {
            assert!(file.starts_with(controller), "{file} of {controller}");
        }
    }

    #[test]
    fn an_unlimited_group_has_no_limit() {
        let unlimited = |_, file| match file {
            "memory.max" => Some("max\n".to_owned()),
            "cpu.max" => Some("max 100000\n".to_owned()),
            other => two(other),
        };
        let found = Counters::of_group(Version::Two, unlimited);
        let memory = found.memory.unwrap();
        assert_eq!((memory.limit, memory.available()), (None, None));
        assert_eq!(
            (found.throttling, found.given.period),
            (None, Some(100_000))
        );
        let unlimited = |_, file| match file {
            "memory.limit_in_bytes" => Some("9223372036854771712\n".to_owned()),
            "cpu.cfs_quota_us" => Some("-1\n".to_owned()),
            other => one(other),
        };
        let found = Counters::of_group(Version::One, unlimited);
        assert_eq!(found.memory.unwrap().limit, None);
        assert_eq!(
            (found.throttling, found.given.period),
            (None, Some(100_000))
        );
        assert_eq!([1, 100, 10_000].map(shares), [2, 2597, 262_144]);
    }

    #[test]
    fn a_missing_or_malformed_group_counts_nothing() {
        for version in [Version::One, Version::Two] {
            let gone = Counters::of_group(version, |_, _| None);
            assert_eq!(gone, Counters::default());
            let nonsense = Counters::of_group(version, |_, _| Some("-1 x\n\u{0}".to_owned()));
            assert_eq!(nonsense, Counters::default());
        }
        let more_cache_than_usage = |_, file| match file {
            "memory.current" => Some("1\n".to_owned()),
            other => two(other),
        };
        let memory = Counters::of_group(Version::Two, more_cache_than_usage);
        assert_eq!(memory.memory.unwrap().working_set, 0);
    }

    #[test]
    fn the_machine_is_read_from_proc() {
        let read = |file| {
            let text = match file {
                "stat" => "cpu  10 20 30 4000 50 1 2 3 9 9\ncpu0 1 1 1 1\nbtime 1700000000\n",
                "meminfo" => {
                    "MemTotal:       1000 kB\nMemFree:         400 kB\nInactive(file):  100 kB\nInactive:  300 kB\n\
                     AnonPages:       200 kB\nSwapTotal:       50 kB\nSwapFree:        20 kB\n"
                }
                "vmstat" => "pgfault 7\npgmajfault 2\n",
                "loadavg" => "0.5 0.4 0.3 2/345 6789\n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let found = Counters::of_machine(read);
        let memory = found.memory.unwrap();
        assert_eq!(found.cpu, Some(66 * 10_000_000));
        assert_eq!(found.split.unwrap().user, 30 * 10_000_000);
        assert_eq!((memory.usage, memory.working_set), (600 << 10, 500 << 10));
        assert_eq!(memory.available(), Some(500 << 10));
        assert_eq!((memory.rss, memory.faults), (200 << 10, 7));
        assert_eq!((found.swap, found.processes), (Some(30 << 10), Some(345)));
        assert_eq!(cores("cpu  1 2\ncpu0 1\ncpu1 1\ncpus x\nbtime 1\n"), 2);
        assert_eq!(booted("cpu 1\nbtime 1700000000\n"), Some(1_700_000_000));
    }
}
