//! What the kernel writes when the machine runs out of memory, as its log comes.

use crate::kmsg::KernelLog;
use crate::service::LoggedService;
use crate::source::Source;
use std::io;
use std::path::Path;

/// Lines that are read in one look, so that a kernel that writes without pause does not keep the
/// task busy.
const MOST: usize = 10_000;

/// The process that the kernel killed when the machine as a whole was out of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victim {
    /// Its name, as the program itself may have set it.
    pub process: String,
    /// Its id.
    pub pid: u32,
}

impl Victim {
    /// Reads a line of the kernel's (`dump_oom_summary` in `mm/oom_kill.c`). `None` for any other
    /// line, and where a control group was out of memory: that is its container's end.
    pub fn read(line: &str) -> Option<Self> {
        let rest = line.strip_prefix("oom-kill:")?;
        // The process's name comes late, and may have any text: what is before it is the kernel's.
        let (before, _) = rest.split_once(",task_memcg=")?;
        before.ends_with(",global_oom").then_some(())?;
        let (rest, _uid) = rest.rsplit_once(",uid=")?;
        let (rest, pid) = rest.rsplit_once(",pid=")?;
        let (_, process) = rest.split_once(",task=")?;
        Some(Self {
            process: process.to_owned(),
            pid: pid.parse().ok()?,
        })
    }
}

/// The kernel's log from now on.
pub struct Watch(KernelLog);

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    /// Opens it behind what is there.
    ///
    /// # Errors
    /// There is none, or this process may not read it.
    pub fn begin() -> io::Result<Self> {
        KernelLog::open_at_end(Path::new("/dev/kmsg"), LoggedService::Kernel).map(Self)
    }

    /// The processes that were killed since the last look. Does not wait.
    ///
    /// # Errors
    /// `/dev/kmsg` can't be read. Lines that the kernel overwrote before they were read are no
    /// error.
    pub fn victims(&mut self) -> io::Result<Vec<Victim>> {
        let mut found = Vec::new();
        for _ in 0..MOST {
            let Some(line) = self.0.next()? else { break };
            found.extend(Victim::read(&line.text));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_machines_own_lack_of_memory_names_a_victim() {
        let line = |memory: &str, task: &str| {
            format!(
                "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,{memory},\
                 task_memcg=/kubepods/podu/c,task={task},pid=1234,uid=0"
            )
        };
        let victim = |process: &str| {
            Some(Victim {
                process: process.to_owned(),
                pid: 1234,
            })
        };
        assert_eq!(Victim::read(&line("global_oom", "java")), victim("java"));
        // A process chooses its name.
        for name in ["a,pid=1,uid=0", "a b", ",task="] {
            assert_eq!(Victim::read(&line("global_oom", name)), victim(name));
        }
        for memory in ["oom_memcg=/kubepods/podu", "oom_memcg=/x,global_oom"] {
            let of_group = Victim::read(&line(memory, "java,global_oom"));
            assert_eq!(
                of_group.is_some(),
                memory.ends_with(",global_oom"),
                "{memory}"
            );
        }
        for other in ["", "oom-kill:", "Out of memory: Killed process 1234 (java)"] {
            assert_eq!(Victim::read(other), None);
        }
    }

    #[test]
    fn victims_are_found_among_the_kernels_records() {
        let records: [&'static [u8]; 3] = [
            b"6,1,5,-;java invoked oom-killer: gfp_mask=0x140cca, order=0",
            b"6,2,6,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=java,pid=7,uid=0",
            b"3,3,7,-;Out of memory: Killed process 7 (java)",
        ];
        let mut watch = Watch(KernelLog::of_records(records.map(Some)));
        let found = watch.victims().unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].process.as_str(), found[0].pid), ("java", 7));
        assert!(watch.victims().unwrap().is_empty());
    }
}
